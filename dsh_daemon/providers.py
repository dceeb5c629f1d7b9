"""Messages in the agents' own form -> those of a request to OpenAI's or Anthropic's API, valid whatever they are.

Both refuse a request in which calls and results do not pair. So a result moves up to its call, a call without one gets
one that says so, and a result that answers no call is told as what the user's side says:

    assistant(a, b)  user  toolResult(b)  toolResult(x)   ->   assistant(a, b)  a: unknown  b: …  user  user("of x: …")

What has no words for these APIs (blank text, unsigned thoughts, answers of nothing else) is left out.
"""

from __future__ import annotations

import re
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import orjson

from . import turns
from .log.recover import clean
from .text import as_dict, as_str, blocks, image_text, plain_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Message = dict[str, Any]
Block = dict[str, Any]

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
OPENAI_ID, ANTHROPIC_ID = 40, 64  # characters that the id of a call may have
MOST_OF_A_NAME = 64
NOTHING_PUT_OUT = "(no output)"
BEGINNING = "(What stood before this is not here.)"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,")


class Request(NamedTuple):
    """Messages for an API, and from which entries each of them comes: none for what was made up."""

    messages: list[Message]
    sources: list[list[str]]
    system: str = ""  # Anthropic's takes it apart from the messages


class Text(NamedTuple):
    text: str


class Image(NamedTuple):
    type: str
    data: str  # base64


class Thought(NamedTuple):
    block: Block  # as Anthropic's API gave it


@dataclass(slots=True)
class Result:
    parts: list[Text | Image]
    failed: bool
    ids: list[str]


@dataclass(slots=True)
class Call:
    id: str
    name: str
    input: dict[str, Any]
    result: Result | None = None


@dataclass(slots=True)
class Answer:
    parts: list[Text | Thought | Call]
    ids: list[str]

    def calls(self) -> list[tuple[Call, Result]]:
        """The calls, each with a result."""
        return [(part, part.result or _unknown(part)) for part in self.parts if isinstance(part, Call)]


@dataclass(slots=True)
class Said:
    """What is not from the model."""

    role: str  # user, system
    parts: list[Text | Image]
    ids: list[str]


@dataclass(slots=True)
class Prompt:
    """The system prompt; a later message may replace sections of an earlier one, or take them away."""

    texts: list[str] = field(default_factory=list[str])
    sections: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, message: Message) -> str:
        """Take in a system message; what it says at its place."""
        said = [text] if (text := plain_text(message.get("content"))).strip() else []
        self.texts += said
        for name, value in as_dict(message.get("sections")).items():
            known = self.sections.pop(name, None) is not None
            if isinstance(value, str) and value.strip():
                self.sections[name] = value
                said.append(f"The section {name!r} of these instructions is now:\n\n{value}" if known else value)
            elif known:
                said.append(f"The section {name!r} of these instructions no longer holds.")
        return "\n\n".join(said)

    def whole(self) -> str:
        """All of it, as it is at the end."""
        return "\n\n".join([*self.texts, *self.sections.values()])


class Ids:
    """Ids of calls as an API takes them: short, plain, and each there once. A prefix of a path keeps its ids."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._last: dict[str, int] = {}  # the last number behind a name
        self._taken: set[str] = set()

    def of(self, id_: str) -> str:
        name = base = _UNSAFE.sub("_", id_)[: self._longest] or "call"
        while name in self._taken:
            self._last[base] = self._last.get(base, 1) + 1
            end = f"_{self._last[base]}"
            name = base[: self._longest - len(end)] + end
        self._taken.add(name)
        return name


def openai(messages: Sequence[Message], sources: Sequence[list[str]]) -> Request:
    """Messages of a chat completion: a result is a `tool` message of text, its images follow as the user's."""
    made = Request([], [])
    told, _ = _conversation(messages, sources, OPENAI_ID)
    for item in told:
        if isinstance(item, Said):
            _put(made, {"role": item.role, "content": _openai_content(item.parts)}, item.ids)
            continue
        texts = [part.text for part in item.parts if isinstance(part, Text)]
        answer: Message = {"role": "assistant", "content": "\n".join(texts) or None}
        calls = item.calls()
        if calls:
            answer["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": orjson.dumps(call.input).decode()},
                }
                for call, _ in calls
            ]
        _put(made, answer, item.ids)
        for call, result in calls:
            lines = [part.text if isinstance(part, Text) else "(an image, shown below)" for part in result.parts]
            content = "\n".join(lines) or NOTHING_PUT_OUT
            _put(made, {"role": "tool", "tool_call_id": call.id, "content": content}, result.ids)
        if shown := _images(calls):
            ids = [id_ for _, result in calls if _has_image(result) for id_ in result.ids]
            _put(made, {"role": "user", "content": _openai_content(shown)}, ids)
    return made


def _openai_content(parts: Sequence[Text | Image]) -> str | list[Block]:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {"type": "image_url", "image_url": {"url": f"data:{part.type};base64,{part.data}"}}
        for part in parts
    ]


def anthropic(messages: Sequence[Message], sources: Sequence[list[str]]) -> Request:
    """Messages and system prompt of Anthropic's API: user and assistant in turn, results first in what follows calls.

    Neighbours of one role become one message.
    """
    told, prompt = _conversation(messages, sources, ANTHROPIC_ID)
    made = Request([], [], prompt.whole())
    for item in told:
        if isinstance(item, Said):
            if item.role == "user":
                _join(made, "user", _anthropic_content(item.parts), item.ids)
            continue
        if not made.messages:
            _put(made, {"role": "user", "content": [{"type": "text", "text": BEGINNING}]}, [])
        _join(made, "assistant", [_anthropic_block(part) for part in item.parts], item.ids)
        if calls := item.calls():
            # The API takes no images in the result of a call that failed.
            late = _images([(call, result) for call, result in calls if result.failed])
            blocks_ = [_anthropic_result(call, result) for call, result in calls] + _anthropic_content(late)
            _join(made, "user", blocks_, [id_ for _, result in calls for id_ in result.ids])
    for message in made.messages:
        while message["role"] == "assistant" and message["content"][-1]["type"].endswith("thinking"):
            message["content"].pop()  # an answer never ends in a thought
    if made.messages and made.messages[-1]["role"] == "assistant":
        last = made.messages[-1]["content"][-1]
        last["text"] = last["text"].rstrip()  # not a call: those are followed by their results
    return made


def _anthropic_content(parts: Iterable[Text | Image]) -> list[Block]:
    return [_anthropic_block(part) for part in parts]


def _anthropic_block(part: Text | Image | Thought | Call) -> Block:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(type_, data):
            return {"type": "image", "source": {"type": "base64", "media_type": type_, "data": data}}
        case Thought(block):
            return block
        case Call():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": part.input}


def _anthropic_result(call: Call, result: Result) -> Block:
    parts = [
        Text("(an image, shown below)") if result.failed and isinstance(part, Image) else part for part in result.parts
    ]
    content = _anthropic_content(parts or [Text(NOTHING_PUT_OUT)])
    found: Block = {"type": "tool_result", "tool_use_id": call.id, "content": content}
    return {**found, "is_error": True} if result.failed else found


def _put(made: Request, message: Message, ids: Iterable[str]) -> None:
    made.messages.append(message)
    made.sources.append(list(ids))


def _join(made: Request, role: str, content: list[Block], ids: Iterable[str]) -> None:
    if not made.messages or made.messages[-1]["role"] != role:
        _put(made, {"role": role, "content": content}, ids)
    else:
        made.messages[-1]["content"] += content
        made.sources[-1] += ids


def _has_image(result: Result) -> bool:
    return any(isinstance(part, Image) for part in result.parts)


def _images(calls: Iterable[tuple[Call, Result]]) -> list[Text | Image]:
    """The images of results, under a line that says whose they are."""
    found: list[Text | Image] = []
    for call, result in calls:
        if shown := [part for part in result.parts if isinstance(part, Image)]:
            found += [Text(f"From the result of {call.name} ({call.id}):"), *shown]
    return found


# What was said


def _conversation(
    messages: Sequence[Message], sources: Sequence[list[str]], longest_id: int
) -> tuple[list[Said | Answer], Prompt]:
    """What there is to tell, in order, with results at their calls; and the system prompt."""
    ids, prompt = Ids(longest_id), Prompt()
    waiting: dict[str, deque[Call]] = {}  # calls without a result by the id that the agent knows, latest answer first
    told: list[Said | Answer] = []
    for message, origin in zip(messages, sources, strict=True):
        role = as_str(message.get("role"))
        if role == "assistant":
            made: list[tuple[str, Call]] = []
            parts = _answer(message, ids, made)
            for name, call in reversed(made):
                waiting.setdefault(name, deque()).appendleft(call)
            if any(not isinstance(part, Thought) for part in parts):
                told.append(Answer(parts, list(origin)))
        elif role == "toolResult":
            parts = _parts(message.get("content"))
            if calls := waiting.get(as_str(message.get("toolCallId"))):
                calls.popleft().result = Result(parts, bool(message.get("isError")), list(origin))
            elif parts:
                note = f"A result of {as_str(message.get('toolName')) or 'a tool'} that answers no call here:"
                told.append(Said("user", [Text(note), *parts], list(origin)))
        elif role in {"system", "developer"}:
            if text := prompt.add(message):
                told.append(Said("system", [Text(text)], list(origin)))
        elif said := _SAID.get(role, _nothing)(message):
            told.append(Said("user", said, list(origin)))
    return told, prompt


def _answer(message: Message, ids: Ids, made: list[tuple[str, Call]]) -> list[Text | Thought | Call]:
    """The parts of an answer; its calls go into `made`, too, each with the id that the agent gave it."""
    found: list[Text | Thought | Call] = []
    signed = _is_signed(message)
    for block in blocks(message.get("content")):
        type_ = block.get("type")
        if type_ == "text" and (text := as_str(block.get("text"))).strip():
            found.append(Text(text))
        elif type_ == "image":
            found.append(Text(image_text(block)))  # no API takes images from an assistant
        elif type_ == "toolCall":
            id_ = as_str(block.get("id"))
            call = Call(ids.of(id_), _name(block.get("name")), _input(block.get("arguments")))
            made.append((id_, call))
            found.append(call)
        elif signed and (thought := _thought(block)):
            found.append(Thought(thought))
    return found


def _is_signed(message: Message) -> bool:
    """Whether the signatures of an answer's thoughts are Anthropic's: another API gives that name to something else.

    They hold for the whole answer; one that was cut off is another one.
    """
    provider, api, model = (as_str(message.get(name)) for name in ("provider", "api", "model"))
    ours = provider == "anthropic" or ("claude" in model and api.startswith(("anthropic", "bedrock")))
    return ours and as_str(message.get("stopReason")) not in {"aborted", "error"}


def _thought(block: Block) -> Block | None:
    signature = as_str(block.get("thinkingSignature"))
    if block.get("type") == "redactedThinking" or (block.get("type") == "thinking" and block.get("redacted")):
        data = as_str(block.get("data")) or signature
        return {"type": "redacted_thinking", "data": data} if data.strip() else None
    if block.get("type") == "thinking" and signature.strip():
        return {"type": "thinking", "thinking": as_str(block.get("thinking")), "signature": signature}
    return None


def _name(value: object) -> str:
    return _UNSAFE.sub("_", as_str(value))[:MOST_OF_A_NAME] or "tool"


def _input(arguments: object) -> dict[str, Any]:
    """Arguments of a call as an object, whatever the model made of them."""
    if isinstance(arguments, str):
        with suppress(ValueError):  # where the model wrote no JSON, it is shown its own words
            arguments = clean(orjson.loads(arguments))
    if isinstance(arguments, dict):
        return cast("dict[str, Any]", arguments)
    return {} if arguments is None or arguments == "" else {"arguments": arguments}


def _unknown(call: Call) -> Result:
    """What a call without a result gets. Whether its tool was started is not known here."""
    told = turns.result(turns.Call(call.id, call.name, started=True))
    return Result([Text(plain_text(told["content"]))], failed=True, ids=[])


def _parts(content: object) -> list[Text | Image]:
    """Content that is not a model's: what can be shown to one."""
    found: list[Text | Image] = []
    for block in blocks(content):
        type_ = as_str(block.get("type"))
        if type_ == "text":
            if (text := as_str(block.get("text"))).strip():
                found.append(Text(text))
        elif type_ == "image":
            found.append(_image(block))
        elif type_.strip():
            found.append(Text(f"({type_})"))
    return found


def _image(block: Block) -> Text | Image:
    """An image, or a word on why it is not shown."""
    source = as_dict(block.get("source"))
    data = as_str(block.get("data")) or as_str(source.get("data"))
    type_ = as_str(block.get("mimeType")) or as_str(source.get("mediaType")) or as_str(source.get("media_type"))
    if url := _DATA_URL.match(data):
        type_, data = url[1], data[url.end() :]
    if data.startswith("blob:"):
        return Text("(An image stood here. It is kept apart from the session, and not here.)")
    type_ = type_.lower()
    if type_ not in IMAGE_TYPES or len(data) % 4 or not _BASE64.fullmatch(data):
        return Text(f"(An image stood here that cannot be shown: {image_text(block)})")
    return Image(type_, data)


def _nothing(_message: Message) -> list[Text | Image]:
    return []  # a role that we do not know says nothing to a model, as with pi and oh-my-pi


def _content(message: Message) -> list[Text | Image]:
    return _parts(message.get("content"))


def _summary(message: Message) -> list[Text | Image]:
    text = as_str(message.get("summary"))
    if not text.strip():
        return []
    left = message.get("role") == "branchSummary"
    what = "another branch of this conversation, which was left" if left else "this conversation up to here"
    return [Text(f"A summary of {what}:\n\n{text}")]


def _execution(message: Message) -> list[Text | Image]:
    if message.get("excludeFromContext"):
        return []
    shell = message.get("role") == "bashExecution"
    ran = f"I ran a command:\n\n$ {as_str(message.get('command'))}"
    lines = [ran if shell else f"I ran Python code:\n\n{as_str(message.get('code'))}"]
    output = as_str(message.get("output"))
    lines.append(f"It gave:\n\n{output}" if output.strip() else "It gave no output.")
    code = message.get("exitCode")
    if isinstance(code, int) and code:
        lines.append(f"Its exit code was {code}.")
    if message.get("cancelled"):
        lines.append("It was cancelled.")
    if message.get("truncated"):
        lines.append("The output is not all here.")
    return [Text("\n\n".join(lines))]


def _files(message: Message) -> list[Text | Image]:
    files = message.get("files")
    found: list[Text | Image] = []
    for file in map(as_dict, cast("list[Any]", files) if isinstance(files, list) else []):
        path, content = as_str(file.get("path")), as_str(file.get("content"))
        if path.strip() or content.strip():
            found.append(Text(f"The file {path}:\n\n{content}" if content.strip() else f"The file {path}."))
        if image := as_dict(file.get("image")):
            found.append(_image(image))
    return found


_SAID: dict[str, Callable[[Message], list[Text | Image]]] = {
    "user": _content,
    "custom": _content,
    "hookMessage": _content,
    "branchSummary": _summary,
    "compactionSummary": _summary,
    "bashExecution": _execution,
    "pythonExecution": _execution,
    "fileMention": _files,
}
