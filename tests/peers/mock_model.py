"""A model on loopback that answers as the prompt tells it to: OpenAI chat completions, streamed."""

import json
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

MODEL = "mock-1"
LARGEST_REQUEST = 16 << 20
VERBS = ("SAY", "CALL", "HOLD", "FAIL")


class MockModel:
    """`with MockModel() as model:` serves `model.url` (ending in /v1) until the block ends.

    The last user message that has a line starting with a verb is the script; THEN lines divide it into replies, one
    per request. `SAY text` and `CALL tool {json}` build a reply, `HOLD text` streams the text and then waits for
    `release()` (30 s at most), `FAIL 400` answers with that status. Without a script the reply is `ok: <prompt>`.
    """

    def __init__(self) -> None:
        self.requests: deque[dict[str, Any]] = deque(maxlen=200)
        self.holding = threading.Event()
        self._released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.model = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def release(self) -> None:
        self._released.set()

    def hold(self) -> None:
        self.holding.set()
        self._released.wait(30)
        self._released.clear()
        self.holding.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def reply_to(messages: list[dict[str, Any]]) -> list[str]:
    """The lines of the reply that is due, given the messages of a request."""
    prompts = [(index, _text(message)) for index, message in enumerate(messages) if message["role"] == "user"]
    for index, prompt in reversed(prompts):
        lines = [line for line in prompt.split("\n") if line.partition(" ")[0] in (*VERBS, "THEN")]
        if lines:
            replies = "\n".join(lines).split("\nTHEN\n")
            given = sum(message["role"] == "assistant" for message in messages[index:])
            return replies[given].split("\n") if given < len(replies) else ["SAY done"]
    return [f"SAY ok: {prompts[-1][1][:60] if prompts else ''}"]


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)


class _Handler(BaseHTTPRequestHandler):
    timeout = 60

    @property
    def model(self) -> MockModel:
        return self.server.model  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        """Say nothing on stderr."""

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        if length > LARGEST_REQUEST:
            self._json(413, {"error": {"message": "request too large"}})
            return
        request = json.loads(self.rfile.read(length))
        self.model.requests.append(request)
        lines = reply_to(request["messages"])
        failure = next((line for line in lines if line.startswith("FAIL ")), None)
        if failure is not None:
            self._json(int(failure[5:]), {"error": {"message": "mock failure", "type": "invalid_request_error"}})
            return
        try:
            self._stream(lines)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _json(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, lines: list[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for delta in self._deltas(lines):
            self._chunk({"delta": {"role": "assistant", **delta}, "finish_reason": None})
        calls = any(line.startswith("CALL ") for line in lines)
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        self._chunk({"delta": {}, "finish_reason": "tool_calls" if calls else "stop"}, usage=usage)
        self.wfile.write(b"data: [DONE]\n\n")

    def _deltas(self, lines: list[str]) -> Iterator[dict[str, Any]]:
        for index, line in enumerate(lines):
            verb, _, rest = line.partition(" ")
            if verb == "CALL":
                tool, _, arguments = rest.partition(" ")
                call = {"index": index, "id": f"call_{len(self.model.requests)}_{index}", "type": "function"}
                yield {"tool_calls": [{**call, "function": {"name": tool, "arguments": arguments or "{}"}}]}
            else:
                yield {"content": rest}
            if verb == "HOLD":
                self.model.hold()

    def _chunk(self, choice: dict[str, Any], **more: Any) -> None:
        body = {"id": "chatcmpl-mock", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
        data = json.dumps({**body, "choices": [{"index": 0, **choice}], **more})
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()
