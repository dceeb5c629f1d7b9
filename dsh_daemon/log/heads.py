"""The few fields of a log line that the index needs: decoded fast where the line is as agents write it.

Three decoders, each for what the one before refused: `decode` knows the roles that nearly all messages have and looks
no further into the others than it must; `decode_any` takes a message of any role; `as_head` takes any parsed record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from dsh_daemon.entries import Flag

from .formats.header import readable
from .recover import loads

# RecursionError and UnicodeDecodeError come from fields that are decoded; in others msgspec finds its own words.
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Block(msgspec.Struct, gc=False):
    type: str | None = None
    text: msgspec.Raw = msgspec.Raw()


class Cost(msgspec.Struct, gc=False):
    total: float | None = None


class Usage(msgspec.Struct, gc=False):
    cost: Cost | None = None


class User(msgspec.Struct, gc=False, tag_field="role", tag="user"):
    pass


class ToolResult(msgspec.Struct, gc=False, tag_field="role", tag="toolResult"):
    isError: bool | None = None  # noqa: N815  (fields are named as in the file)


class Assistant(msgspec.Struct, gc=False, tag_field="role", tag="assistant"):
    content: list[Block] | str | None = None
    model: str | None = None
    usage: Usage | None = None
    stopReason: str | None = None  # noqa: N815


class Other(msgspec.Struct, gc=False):
    role: str | None = None
    isError: bool | None = None  # noqa: N815


class _Envelope(msgspec.Struct, gc=False):
    type: str
    id: str = ""
    parentId: str | None = ""  # noqa: N815  ("" = absent)
    timestamp: str | int | float | None = None
    targetId: str | None = None  # noqa: N815
    label: str | None = None
    name: str | None = None
    title: str | None = None
    source: str | None = None
    modelId: str | None = None  # noqa: N815
    model: str | None = None


class Head(_Envelope, gc=False):
    """An entry as far as the index cares; `message` is None where it has none."""

    message: User | ToolResult | Assistant | None = None


class HeadOfAny(_Envelope, gc=False):
    message: Other | None = None


AnyHead = Head | HeadOfAny

decode: Callable[[bytes], Head] = msgspec.json.Decoder(Head).decode
_decode_any: Callable[[bytes], HeadOfAny] = msgspec.json.Decoder(HeadOfAny).decode


def decode_any(line: bytes) -> AnyHead | None:
    """Head of a line with a message of any role; None where the line is not as it should be."""
    try:
        return decode(line)
    except UNREADABLE:
        pass
    try:
        head = _decode_any(line)
    except UNREADABLE:
        return None
    if head.message is not None and head.message.role == "assistant":
        return None  # some field of it is of another kind than we know
    return head


def as_head(record: dict[str, Any]) -> AnyHead:
    """Head of a parsed record of any shape: fields of the wrong type are dropped, not refused."""
    fields: dict[str, Any] = {
        name: _text(record, name) for name in ("targetId", "label", "name", "title", "source", "modelId", "model")
    }
    fields["type"] = _text(record, "type") or ""
    fields["id"] = _text(record, "id") or ""
    fields["parentId"] = _text(record, "parentId") if "parentId" in record else ""
    fields["timestamp"] = record.get("timestamp")
    message = record.get("message")
    if not isinstance(message, dict):
        return Head(**fields)
    found = cast("dict[str, Any]", message)
    role = _text(found, "role")
    if role == "assistant":
        return Head(message=_answer(found), **fields)
    return HeadOfAny(message=Other(role, found.get("isError") is True), **fields)


def _answer(message: dict[str, Any]) -> Assistant:
    content = message.get("content")
    blocks: list[Block] | str | None = content if isinstance(content, str) else None
    if isinstance(content, list):
        found = (cast("dict[str, Any]", block) for block in cast("list[Any]", content) if isinstance(block, dict))
        blocks = [Block(_text(b, "type"), msgspec.Raw(msgspec.json.encode(_text(b, "text")))) for b in found]
    total: Any = message.get("usage")
    for name in ("cost", "total"):
        total = cast("dict[str, Any]", total).get(name) if isinstance(total, dict) else None
    usage = Usage(Cost(float(total))) if isinstance(total, int | float) and not isinstance(total, bool) else None
    return Assistant(blocks, _text(message, "model"), usage, _text(message, "stopReason"))


def _text(record: dict[str, Any], name: str) -> str | None:
    value = record.get(name)
    return readable(value) if isinstance(value, str) else None


def flags_of(answer: Assistant) -> int:
    """What the index notes of an assistant message: `Flag` bits."""
    flags = _STOPPED.get(answer.stopReason, 0)
    content = answer.content
    if not content:
        return flags | _EMPTY
    if isinstance(content, str):
        return flags
    for block in content:
        if block.type == "toolCall":
            break
    else:
        return flags
    for block in content:
        if block.type not in {"toolCall", "thinking"} and (block.type != "text" or not _blank(block.text)):
            return flags | _CALLS
    return flags | _TOOLS_ONLY


# Plain numbers: looking at a member of an enum takes longer than everything else above.
_CALLS, _EMPTY = Flag.CALLS.value, Flag.EMPTY.value
_TOOLS_ONLY = (Flag.CALLS | Flag.TOOLS_ONLY).value
_STOPPED: dict[str | None, int] = {"error": Flag.ERROR.value, "aborted": Flag.ABORTED.value}


def _blank(raw: msgspec.Raw) -> bool:
    """Whether it is a JSON string without a visible character, or no string."""
    text = bytes(raw)
    if not text.startswith(b'"'):
        return True
    return not text[1:2].isalnum() and not str(loads(text)).strip()
