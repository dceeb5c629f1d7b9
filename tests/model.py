"""A small server that speaks the OpenAI API on loopback, for the summarizer: answers, refuses, dawdles, breaks off."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import Any

Step = str | bytes | int | float | None


class Model:
    """What it does with each request is `plan`: one list of steps a request, the last one again and again.

    A step is a text to stream, bytes to send as they are (and then the end), a number of seconds to wait, None to cut
    the connection; a list that is one integer is a status to refuse with. `heard` has the requests.
    """

    def __init__(self) -> None:
        self.plan: list[list[Step]] = [["## Goal\n", "Fix the login."]]
        self.heard: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.hung_up = 0  # requests whose client left before the end
        self.url = ""
        self.content_type = "text/event-stream"
        self.end = "stop"  # the reason with which an answer ends
        self.newer = False  # it knows `max_tokens` by its newer name only

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line)
            raw = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            self.keys.append(next((v.decode() for k, v in raw.items() if k.lower() == b"authorization"), ""))
            body = await reader.readexactly(int(fields[b"content-length"]))
            self.heard.append(json.loads(body))
            if self.newer and "max_tokens" in self.heard[-1]:
                await self._refuse(writer, 400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'.")
                return
            steps = self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]
            if len(steps) == 1 and isinstance(steps[0], int):
                await self._refuse(writer, steps[0], "not now")
                return
            head = f"HTTP/1.1 200 OK\r\ncontent-type: {self.content_type}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode())
            for step in steps:
                if step is None:
                    writer.transport.abort()
                    return
                if isinstance(step, bytes):
                    writer.write(step)
                    await writer.drain()
                    return
                if isinstance(step, float):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(step):
                            await reader.read(1)  # nothing more comes but the end
                            self.hung_up += 1
                            return
                    continue
                self._chunk(writer, {"content": step}, None)
                await writer.drain()
            self._chunk(writer, {}, self.end)
            writer.write(b"data: [DONE]\n\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up += 1
        finally:
            writer.close()

    @staticmethod
    async def _refuse(writer: asyncio.StreamWriter, status: int, text: str) -> None:
        error = json.dumps({"error": {"message": text}}).encode()
        writer.write(b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\n" % status)
        writer.write(b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(error), error))
        await writer.drain()

    @staticmethod
    def _chunk(writer: asyncio.StreamWriter, delta: dict[str, Any], reason: str | None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        writer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    @property
    def settings(self) -> dict[str, str]:
        return {"DSHD_SUMMARIZER__BASE_URL": self.url, "DSHD_SUMMARIZER__MODEL": "mock-1"}


@asynccontextmanager
async def model():
    """A running model."""
    running = Model()
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    async with server:
        running.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield running
