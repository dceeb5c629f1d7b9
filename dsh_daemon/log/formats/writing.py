"""What we write into whose file: the fields that an entry needs so that its owner goes on reading it."""

from __future__ import annotations

import re
from typing import Any, cast

from dsh_daemon.errors import InvalidEntry
from dsh_daemon.log.index import NO_TIME
from dsh_daemon.log.recover import MAX_DEPTH
from dsh_daemon.log.times import instant
from dsh_daemon.text import as_dict, as_str, iso
from dsh_daemon.types import Format

ID = re.compile(r"(?!root$)[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # "~" marks a second entry of one id on the wire

# Written by their own methods, or not entries at all.
RESERVED = frozenset(
    {"session", "title", "turn_start", "turn_end", "step_start", "step_end", "request_header", "end_seed"}
)

# Types of ours with a form of their own (protocol-spec/README.md, the native format).
_TEXT, _NUMBER = (str,), (int,)
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "tool_call": {"callId": _TEXT, "name": _TEXT, "turn": _NUMBER, "step": _NUMBER, "arguments": _TEXT},
    "assistant_chunks": {
        "kind": _TEXT,
        "turn": _NUMBER,
        "step": _NUMBER,
        "index": _NUMBER,
        "texts": (list,),
        "dt": (list,),
    },
}
_NEEDED = {"tool_call": ("callId", "name"), "assistant_chunks": ("kind", "texts")}

# pi and omp read these of an assistant message without looking whether they are there.
_ASSISTANT = ("provider", "model", "usage", "stopReason")


def complete(
    format_: Format, sent: dict[str, Any], id_: str, parent_id: str | None, now: str, number: int
) -> dict[str, Any]:
    """The record to store for an entry that a client sent; `number` is its place in the batch, for the error.

    Raises InvalidEntry, naming the field.
    """
    type_ = sent.get("type")
    if not isinstance(type_, str) or not type_ or len(type_) > 64:
        raise InvalidEntry("an entry has a type", index=number, field="type")
    time = instant(sent.get("timestamp", now))
    stamp = None if time == NO_TIME else iso(time)
    if stamp is None:
        raise InvalidEntry("timestamp is an ISO 8601 time", index=number, field="timestamp")
    rest = {name: value for name, value in sent.items() if name not in {"type", "id", "parentId", "timestamp"}}
    if type_ == "message":
        rest["message"] = _message(format_, rest.get("message"), stamp, number)
    elif type_ == "label" and not isinstance(rest.get("targetId"), str):
        raise InvalidEntry("a label names its targetId", index=number, field="targetId")
    elif type_ == "session_info" and not isinstance(rest.get("name"), str):
        raise InvalidEntry("session_info has a name", index=number, field="name")
    elif format_ == "native" and type_ in _FIELDS:
        _check_fields(type_, rest, number)
    return {"type": type_, "id": id_, "parentId": parent_id, "timestamp": stamp, **rest}


def _check_fields(type_: str, fields: dict[str, Any], number: int) -> None:
    for name, kinds in _FIELDS[type_].items():
        value = fields.get(name)
        wrong = not isinstance(value, kinds) or isinstance(value, bool)
        if wrong and (name in fields or name in _NEEDED[type_]):
            what = {str: "a string", int: "a number", list: "a list"}[kinds[0]]
            raise InvalidEntry(f"{name} of a {type_} is {what}", index=number, field=name)
    if "dt" in fields and len(fields["dt"]) != len(fields["texts"]):
        raise InvalidEntry("a run of chunks has one dt for each text", index=number, field="dt")


def refuse_reserved(sent: dict[str, Any], number: int) -> None:
    """Refuse what no client appends itself. Raises InvalidEntry."""
    if sent.get("type") in RESERVED:
        text = f"entries of type {sent['type']} are not appended by clients"
        raise InvalidEntry(text, index=number, field="type")


def refuse_what_changes(record: dict[str, Any], number: int) -> None:
    """Refuse what a log cannot hold as it was sent. Raises InvalidEntry, naming the field."""
    stack: list[tuple[str, Any, int]] = [("", record, 0)]
    while stack:
        name, value, depth = stack.pop()
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise InvalidEntry("a number beyond 64 bits", index=number, field=name)
        if isinstance(value, dict):
            members = [(str(key), item) for key, item in cast("dict[Any, Any]", value).items()]
        elif isinstance(value, list):
            members = [(str(key), item) for key, item in enumerate(cast("list[Any]", value))]
        else:
            continue
        if depth == MAX_DEPTH:
            text = f"nested more than {MAX_DEPTH} levels deep"
            raise InvalidEntry(text, index=number, field=name.partition(".")[0])
        stack += [(f"{name}.{key}"[:200] if name else key, item, depth + 1) for key, item in members]


def _message(format_: Format, message: Any, stamp: str, number: int) -> dict[str, Any]:
    fields = as_dict(message)
    role, content = as_str(fields.get("role")), fields.get("content")
    if not role:
        raise InvalidEntry("a message has a role", index=number, field="message.role")
    blocks_ok = isinstance(content, list) and all(
        isinstance(as_dict(block).get("type"), str) for block in cast("list[object]", content)
    )
    if not isinstance(content, str) and not blocks_ok and role not in {"bashExecution", "pythonExecution"}:
        raise InvalidEntry("content is a string or a list of blocks with a type", index=number, field="message.content")
    if role == "assistant" and format_ != "native":
        for name in _ASSISTANT:
            if name not in fields:
                raise InvalidEntry(
                    f"{format_} needs {name} in an assistant message", index=number, field=f"message.{name}"
                )
        if isinstance(content, str):
            # pi and omp walk an answer's blocks.
            fields = {**fields, "content": [{"type": "text", "text": content}]}
    if "timestamp" not in fields:
        fields = {**fields, "timestamp": instant(stamp)}
    return fields


def summary_entry(
    format_: Format, branched_from: str | None, text: str, details: Any, from_extension: bool | None
) -> dict[str, Any]:
    """A `branch_summary` for the position branched from, as the owner of the file writes it."""
    entry: dict[str, Any] = {"type": "branch_summary", "fromId": branched_from or "root", "summary": text}
    return entry | _origin(format_, details, from_extension)


def compaction_entry(
    format_: Format, text: str, first_kept: str, tokens_before: int, details: Any, from_extension: bool
) -> dict[str, Any]:
    """A `compaction` that keeps everything from `first_kept` on, as the owner of the file writes it."""
    entry = {"type": "compaction", "summary": text, "firstKeptEntryId": first_kept, "tokensBefore": tokens_before}
    return entry | _origin(format_, details, from_extension)


def _origin(format_: Format, details: Any, from_extension: bool | None) -> dict[str, Any]:
    fields: dict[str, Any] = {} if details is None else {"details": details}
    if format_ == "pi":
        fields["fromHook"] = bool(from_extension)
    return fields | {"fromExtension": bool(from_extension)}
