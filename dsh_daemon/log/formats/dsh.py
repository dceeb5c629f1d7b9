"""DeepSeek Harness: events of a session, one a line, numbered without a gap; deltas of an answer packed into rows.

    {"type": "user/message", "seq": 7, "time": 1796033552229, "data": {…}, "surfaceOp": "append"}
    {"type": "text-chunks", "seq0": 14, "time0": 1796033552369, "data": {…, "dt": [31], "texts": ["Hel", "lo"]}}

The row stands for the events 14 and 15, the second 31 ms after the first. An entry's id is its number; the entry before
it is its parent. `as_entry` says an event in the words of version 3, which all of our code above speaks.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple, cast

from dsh_daemon.entries import KNOWN_TYPES
from dsh_daemon.log.recover import loads
from dsh_daemon.text import as_dict, as_str, blocks, iso
from dsh_daemon.types import Entry

VERSION = 0
LOG_NAMES = frozenset({"session.jsonl", "session.jsonl.zstd"})
MOST = 2**53  # numbers from here on are none

# Events that dsh knows, in our words. The other ones that it knows are `custom` entries.
TURN_START, STEP_START, TOOL_CALL = "turn/start", "step/start", "tool/call"
USER, ANSWER, RESULT = "user/message", "assistant/message", "tool/result"
MESSAGES = frozenset({USER, ANSWER, RESULT})
ROWS = {"text-chunks": "text", "reasoning-chunks": "reasoning", "tool-call-chunks": "toolCall"}
PLAIN = {
    TURN_START: "turn_start", "turn/end": "turn_end", STEP_START: "step_start", "step/end": "step_end",
    TOOL_CALL: "tool_call", "request/header": "request_header", "request/context": "model_change",
    "session/end-seed": "end_seed", "session/title": "title_change", "assistant/chunk": "assistant_chunks",
    **dict.fromkeys(ROWS, "assistant_chunks"),
}  # fmt: skip
OTHERS = frozenset({
    "agent-preset/selected", "agent/inbox/spliced", "approval/asked", "approval/decided", "approval/policy",
    "command/done", "command/run", "compaction/end", "compaction/prune", "compaction/start", "compaction/summary",
    "feedback/record", "goal/change", "hook/invoked", "hook/result", "llm/retry", "llm/retry-started",
    "permission/preset", "plan/mode", "sandbox/mode", "schedule/change", "session/title-llm-request",
    "subagent/descriptor", "team/member", "team/message/delivered", "team/message/queued", "team/task", "todo/write",
    "tool-workflow/agent-end", "tool-workflow/agent-start", "tool-workflow/run-end", "tool-workflow/run-start",
    "tool/code-dispatch", "tool/code-dispatch-start", "web/deepseek-search-llm-request",
})  # fmt: skip
KNOWN = frozenset(PLAIN) | OTHERS | MESSAGES

_DELTAS = {"text-delta": "text", "reasoning-delta": "reasoning", "tool-call-delta": "toolCall"}
_UNSAFE = re.compile(r"~([0-9A-Fa-f]{4})")


class View(NamedTuple):
    """Where an event stands: what of its entry the event itself does not say."""

    id: str
    parent: str | None
    time: str | None  # ISO 8601


def is_event(record: dict[str, Any]) -> bool:
    """Whether a parsed line is an event, or a row of some."""
    number = record.get("seq", record.get("seq0"))
    return (
        isinstance(record.get("type"), str)
        and isinstance(number, int)
        and not isinstance(number, bool)
        and "id" not in record
        and "data" in record
    )


def number_of(record: dict[str, Any]) -> int | None:
    """The number of an event, or of the first one of a row; None where it has none."""
    for name in ("seq", "seq0"):
        value = record.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST:
            return value
    return None


def id_of_folder(path: str) -> str | None:
    """The session id that the folder of a log is named for; None where the file has another name than a log."""
    folder, name = os.path.split(path)
    folder = os.path.basename(folder)
    if name not in LOG_NAMES or not folder:
        return None
    units = _UNSAFE.sub(lambda match: chr(int(match[1], 16)), folder)
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # halves of a character meet


def as_stored(record: Entry, view: View) -> Entry:
    """An event as the wire shows it: every field as it is in the log, and what makes it an entry."""
    return {**record, "id": view.id, "parentId": view.parent, "timestamp": view.time}


def expand(record: Entry) -> list[Entry]:
    """The events that a row stands for, as dsh would have written each by itself; any other event alone."""
    kind = ROWS.get(as_str(record.get("type")))
    first, data = number_of(record), as_dict(record.get("data"))
    if kind is None or first is None or "seq0" not in record:
        return [record]
    time = record.get("time0")
    waits = _list(data.get("dt"))
    found: list[Entry] = []
    for k, text in enumerate(_list(data.get("args" if kind == "toolCall" else "texts"))):
        wait = waits[k - 1] if 0 < k <= len(waits) else 0
        time = time + wait if isinstance(time, int) and isinstance(wait, int) else time
        chunk: dict[str, Any]
        if kind == "toolCall":
            named = {name: data[name] for name in ("id", "name") if name in data}
            chunk = {"type": "tool-call-delta", "index": data.get("index"), **named, "argumentsDelta": text}
        else:
            chunk = {"type": f"{kind}-delta", "index": data.get("index"), "text": text}
        place = {"turn": data.get("turn"), "step": data.get("step")}
        found.append({"type": "assistant/chunk", "seq": first + k, "time": time, "data": {**place, "chunk": chunk}})
    return found


def type_of(stored: str) -> str:
    """The type of an event that needs no look at its data, in our words."""
    if stored in PLAIN:
        return PLAIN[stored]
    if stored in OTHERS:
        return "custom"
    return f"dsh:{stored}" if stored in KNOWN_TYPES or stored == "session" else stored


def user_type(source: dict[str, Any], *, replaces: bool) -> str:
    """What a `user/message` is to a person: their own message, the summary of a compaction, or what a plugin said."""
    kind = as_str(source.get("kind"))
    if kind == "user":
        return "message"
    return "compaction" if replaces and source.get("plugin") == "compact" else "custom_message"


def as_entry(record: Entry, view: View) -> Entry:
    """An event in the words of version 3; what it does not have is left out, what we do not know is kept."""
    stored = as_str(record.get("type"))
    base: Entry = {"type": type_of(stored), "id": view.id, "parentId": view.parent, "timestamp": view.time}
    data = as_dict(record.get("data"))
    if stored == USER:
        return base | _user(data, record)
    if stored == ANSWER:
        return base | {"type": "message", "message": answer(data)}
    if stored == RESULT:
        return base | {"type": "message", "message": result(data)}
    if stored in ROWS:
        return base | _row(stored, record, data)
    if stored == "assistant/chunk":
        return base | _chunk(record, data)
    if stored == "session/title":
        by = "user" if as_dict(data.get("source")).get("kind") == "user" else "auto"
        return base | {"title": as_str(data.get("title")), "source": by}
    if stored == "request/context":
        return base | {"provider": data.get("provider"), "modelId": data.get("model")}
    if stored in PLAIN:
        return base | {name: value for name, value in data.items() if name not in base}
    if stored in OTHERS:
        return base | {"customType": stored, "data": record.get("data")}
    return {**record, **base}


def _user(data: dict[str, Any], record: Entry) -> Entry:
    source = as_dict(data.get("source"))
    content = _content(data.get("content"))
    type_ = user_type(source, replaces=isinstance(record.get("surfaceOp"), dict))
    if type_ == "message":
        return {"type": type_, "message": {"role": "user", "content": content, "timestamp": record.get("time")}}
    if type_ == "compaction":
        # What stands around the summary tells a model what it is.
        inner = content[1:-1] if len(content) > 2 else content
        return {"type": type_, "summary": "\n".join(as_str(block.get("text")) for block in inner).strip()}
    name = as_str(source.get("plugin")) or as_str(source.get("kind")) or "user"
    return {"type": type_, "customType": name, "content": content, "display": True}


def answer(data: dict[str, Any]) -> dict[str, Any]:
    """The message of an `assistant/message` as version 3 has it."""
    message = as_dict(data.get("message"))
    source, usage = as_dict(message.get("source")), as_dict(data.get("usage"))
    content = _content(message.get("content"))
    calls = any(block.get("type") == "toolCall" for block in content)
    numbers = {
        ours: _count(usage.get(theirs))
        for ours, theirs in (
            ("input", "inputTokens"), ("output", "outputTokens"), ("cacheRead", "cacheReadTokens"),
            ("cacheWrite", "cacheWriteTokens"),
        )
    }  # fmt: skip
    return {
        "role": "assistant",
        "content": content,
        "provider": as_str(source.get("provider")),
        "model": as_str(source.get("model")),
        "usage": {**numbers, "totalTokens": sum(numbers.values()), "cost": {"total": 0}},
        "stopReason": "aborted" if data.get("interrupted") else "toolUse" if calls else "stop",
    }


def result(data: dict[str, Any]) -> dict[str, Any]:
    """The message of a `tool/result` as version 3 has it."""
    message = as_dict(data.get("message"))
    found = next((b for b in blocks(message.get("content")) if b.get("type") == "tool-result"), as_dict(None))
    call = as_str(found.get("toolCallId")) or as_str(as_dict(message.get("source")).get("callId"))
    shown: dict[str, Any] = {
        "role": "toolResult",
        "toolCallId": call,
        "content": _content(found.get("content")),
        "isError": found.get("isError") is True,
    }
    if code := as_str(as_dict(data.get("error")).get("code")):
        shown["details"] = {"code": code}
    return shown


def as_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as a dsh model gets it, in the words of version 3."""
    if message.get("role") == "assistant":
        return answer({"message": message})
    if as_dict(message.get("source")).get("kind") == "tool":
        return result({"message": message})
    return {"role": "user", "content": _content(message.get("content"))}


def _content(content: object) -> list[dict[str, Any]]:
    return [_block(block) for block in blocks(content)]


def _block(block: dict[str, Any]) -> dict[str, Any]:
    type_ = block.get("type")
    if type_ == "reasoning":
        return {"type": "thinking", "thinking": as_str(block.get("text"))}
    if type_ == "tool-call":
        return {
            "type": "toolCall",
            "id": as_str(block.get("id")),
            "name": as_str(block.get("name")),
            "arguments": arguments(block.get("arguments")),
        }
    return block


def arguments(text: object) -> object:
    """The arguments of a call, which a model writes as JSON text: an object, or the text where it is none."""
    if not isinstance(text, str):
        return text
    try:
        value = loads(text.encode("utf-8", "replace"))
    except ValueError:
        return text
    return cast("dict[str, Any]", value) if isinstance(value, dict) else text


def _row(stored: str, record: Entry, data: dict[str, Any]) -> Entry:
    kind = ROWS[stored]
    shown: Entry = {name: data.get(name) for name in ("turn", "step", "index")}
    shown |= {"kind": kind, "t0": record.get("time0"), "dt": [0, *_list(data.get("dt"))]}
    shown["texts"] = _list(data.get("args" if kind == "toolCall" else "texts"))
    if "id" in data:
        shown["callId"] = data["id"]
    if "name" in data:
        shown["name"] = data["name"]
    return shown


def _chunk(record: Entry, data: dict[str, Any]) -> Entry:
    chunk = as_dict(data.get("chunk"))
    kind = _DELTAS.get(as_str(chunk.get("type")))
    shown: Entry = {"turn": data.get("turn"), "step": data.get("step"), "index": chunk.get("index")}
    if kind is None:  # a mark between deltas
        return {**shown, "chunk": chunk, "texts": []}
    text = chunk.get("argumentsDelta" if kind == "toolCall" else "text")
    shown |= {"kind": kind, "t0": record.get("time"), "dt": [0], "texts": [text]}
    return shown | {ours: chunk[theirs] for ours, theirs in (("callId", "id"), ("name", "name")) if theirs in chunk}


def closing_message(call: str, number: int, *, started: bool) -> dict[str, Any]:
    """The result that dsh gives a call which a crash left without one, as it will write it when it resumes."""
    text = (
        "The tool call was interrupted after it was recorded, but no result was durably recorded. Its outcome is "
        "unknown. Decide whether to retry from the tool semantics: retry only if the operation is read-only or "
        "idempotent; if it may have side effects, first verify external state or ask the user. Do not retry blindly."
        if started
        else "The tool call was interrupted before the Harness recorded it as started. Retry it if it is still needed."
    )
    content = [{"type": "text", "text": text}]
    return {
        "id": f"interrupted-tool-result-{call}-{number}",
        "role": "user",
        "source": {"kind": "tool", "callId": call},
        "content": [{"type": "tool-result", "toolCallId": call, "isError": True, "content": content}],
    }


def stamp(time: object) -> str | None:
    """The time of an event as entries write it; None where it is none."""
    return iso(int(time)) if isinstance(time, int | float) and not isinstance(time, bool) and abs(time) < MOST else None


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST else 0
