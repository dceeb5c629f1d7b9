"""What we write into a dsh log: its header, its events, what closes a turn that was cut off.

Every event passes the rules by which dsh loads a log (`dsh_ledger`) and those that its agent keeps.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

import orjson

from dsh_daemon.errors import InvalidEntry
from dsh_daemon.log.recover import MAX_DEPTH
from dsh_daemon.text import as_dict

from . import dsh
from .dsh_ledger import END_SEED, HEADER, STEERING, Broken, Event, Ledger, is_whole

INTERRUPTED = {"kind": "interrupted"}
INBOX = "agent/inbox/spliced"  # dsh plays them again when it goes on with a log
RESERVED = frozenset({
    dsh.TURN_START, "turn/end", dsh.STEP_START, "step/end", HEADER, END_SEED, INBOX, "session", *dsh.ROWS,
})  # fmt: skip
SENT = frozenset({"type", "data", "surfaceOp", "sourceEventSeqs", "ignorable"})

_INSIDE_A_STEP = frozenset({"assistant/chunk", dsh.ANSWER, dsh.TOOL_CALL, dsh.RESULT})
_INSIDE_A_TURN = frozenset({"request/context", "todo/write"})
_RETIRED = ("sandboxMode", "approvalPolicy")  # fields of a header that dsh refuses
_FIRST = ("type", "version", "id", "createdAt", "cwd", "parentSession", "seedLength", "origin", "delegationDepth")


def new_header(session_id: str, created: int, cwd: str | None, **more: Any) -> Event:
    """Header of a new log; `more` is parentSession, seedLength, agentPreset. What is None is left out."""
    fields = {
        "type": "session", "version": dsh.VERSION, "id": session_id, "createdAt": created, "cwd": cwd,
        "delegationDepth": 0, **more,
    }  # fmt: skip
    order = [*_FIRST, *(name for name in fields if name not in _FIRST)]
    return {name: fields[name] for name in order if fields.get(name) is not None}


def header_fault(header: Mapping[str, Any]) -> str | None:
    """Why dsh refuses a log with this header; None where it does not."""
    created, depth, cwd = header.get("createdAt"), header.get("delegationDepth"), header.get("cwd", "/")
    if header.get("version") != dsh.VERSION or isinstance(header["version"], bool):
        return f"it is of version {header.get('version')}, dsh reads version {dsh.VERSION}"
    if not isinstance(header.get("id"), str) or not header["id"]:
        return "it has no id"
    for name, value in (("createdAt", created), ("delegationDepth", depth)):
        if not is_whole(value) or cast("int", value) < 0:
            return f"{name} is not a whole number"
    if not isinstance(cwd, str) or not os.path.isabs(cwd):
        return "cwd is not an absolute path"
    if header.get("origin", "subagent") != "subagent":
        return "its origin is not subagent"
    if not isinstance(header.get("agentPreset", ""), str):
        return "agentPreset is not a text"
    retired = next((name for name in _RETIRED if name in header), None)
    return f"it has {retired}, which dsh refuses" if retired else None


def line_of(record: Event) -> bytes:
    """A record as a stored line, with its newline."""
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def event(type_: str, data: Any, *, cited: Sequence[int] | None = None, op: Any = None) -> Event:
    """An event that has no number and no time yet."""
    found: Event = {"type": type_, "data": data}
    if cited is not None:
        found["sourceEventSeqs"] = list(cited)
    if op is not None:
        found["surfaceOp"] = op
    return found


def numbered(ledger: Ledger, sent: Sequence[Event], time: int, first: int = 0) -> list[Event]:
    """Give events their numbers and their time, and take them into the ledger.

    Raises InvalidEntry with the `index` of the event, counted from `first`; the ledger is of no use then.
    """
    found: list[Event] = []
    for number, fields in enumerate(sent, first):
        fault = _shape_fault(fields)
        if fault is not None:
            raise InvalidEntry(fault.reason, index=number, field=fault.field)
        made: Event = {"type": fields["type"], "seq": ledger.next, "time": time, "data": fields["data"]}
        made |= {name: fields[name] for name in ("sourceEventSeqs", "surfaceOp", "ignorable") if name in fields}
        try:
            _check_place(ledger, made)
            ledger.take(made)
        except Broken as broken:
            raise InvalidEntry(broken.reason, index=number, field=broken.field) from None
        found.append(made)
    return found


def refuse_reserved(sent: Sequence[Event]) -> None:
    """Refuse what no client appends itself: marks, and what dsh would run again. Raises InvalidEntry."""
    for number, fields in enumerate(sent):
        type_ = fields.get("type")
        if isinstance(type_, str) and type_ in RESERVED:
            text = f"events of type {type_} are not appended by clients"
            raise InvalidEntry(text, index=number, field="type")


def _shape_fault(fields: Event) -> Broken | None:
    extra = fields.keys() - SENT
    if extra:
        return Broken(min(extra)[:64], "an event is sent with type, data, surfaceOp, sourceEventSeqs and ignorable")
    type_ = fields.get("type")
    if not isinstance(type_, str) or not type_ or len(type_) > 128:
        return Broken("type", "an event has a type")
    if "data" not in fields:
        return Broken("data", "an event has data")
    return _lossy(fields)


def _lossy(fields: Event) -> Broken | None:
    """What JavaScript would read as something else than was sent."""
    stack: list[tuple[str, Any, int]] = [("", fields, 0)]
    while stack:
        name, value, depth = stack.pop()
        reason = None
        if isinstance(value, str):
            if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
                reason = "half of a character"
        elif isinstance(value, float):
            if not math.isfinite(value) or (not value and math.copysign(1, value) < 0):
                reason = f"{value} is no number of JSON"
        elif isinstance(value, int) and not isinstance(value, bool):
            if not is_whole(value):
                reason = "a whole number beyond 53 bits"
        elif isinstance(value, dict | list):
            if depth == MAX_DEPTH:
                reason = f"nested more than {MAX_DEPTH} levels deep"
            else:
                items = cast("Event", value).items() if isinstance(value, dict) else enumerate(cast("list[Any]", value))
                for key, item in items:
                    stack.append((f"{name}.{key}"[:200] if name else str(key), item, depth + 1))
                    if isinstance(key, str) and not key.isascii():
                        stack.append((name, key, depth))
        elif value is not None and not isinstance(value, bool):
            reason = f"{type(value).__name__} is no value of JSON"
        if reason is not None:
            return Broken(name, reason)
    return None


def _check_place(ledger: Ledger, made: Event) -> None:
    """The order that dsh's own agent keeps. Raises Broken."""
    type_, data = made["type"], as_dict(made["data"])
    if type_ == STEERING:
        raise Broken("type", "dsh does not write this event any more")
    if type_ in dsh.MESSAGES:
        _check_new_message(type_, made["data"])
    if type_ == dsh.TURN_START:
        if ledger.open:
            raise Broken("type", f"turn {ledger.turn} is not ended")
        if data.get("turn") != ledger.turn + 1:
            raise Broken("data.turn", f"the next turn is {ledger.turn + 1}")
    elif type_ in _INSIDE_A_STEP or type_ in {"turn/end", "step/end", dsh.STEP_START}:
        if not ledger.open or data.get("turn") != ledger.turn:
            raise Broken("data.turn", f"turn {ledger.turn} is open" if ledger.open else "no turn is open")
    elif type_ in _INSIDE_A_TURN and not ledger.open:
        raise Broken("type", f"{type_} stands inside of a turn")
    elif type_ == HEADER and not ledger.open:
        raise Broken("type", "a request header stands inside of a turn")
    if type_ == dsh.STEP_START:
        if ledger.step or data.get("step") != ledger.steps + 1:
            raise Broken("data.step", f"step {ledger.step} is open" if ledger.step else "steps are counted from 1")
    elif type_ in _INSIDE_A_STEP or type_ == "step/end":
        if not ledger.step or data.get("step") != ledger.step:
            raise Broken("data.step", f"step {ledger.step} is open" if ledger.step else "no step is open")
    elif type_ == "turn/end" and ledger.step:
        raise Broken("type", f"step {ledger.step} is not ended")
    if type_ == dsh.TOOL_CALL and not (_text(data.get("callId")) and _text(data.get("name"))):
        raise Broken("data.callId", "a tool call has a callId and a name")
    if type_ == "assistant/chunk" and not _text(as_dict(data.get("chunk")).get("type")):
        raise Broken("data.chunk", "a chunk has a type")


def _check_new_message(type_: str, data: object) -> None:
    """What dsh writes in every message, though it reads some without."""
    place = "data" if type_ == dsh.USER else "data.message"
    message = as_dict(data) if type_ == dsh.USER else as_dict(as_dict(data).get("message"))
    if not message:
        raise Broken(place, "a message is an object")
    if not _text(message.get("id")):
        raise Broken(f"{place}.id", "a message has an id")
    content = message.get("content")
    for block in cast("list[object]", content) if isinstance(content, list) else ():
        fields = as_dict(block)
        if not _text(fields.get("type")):
            raise Broken(f"{place}.content", "every block of a message has a type")
        if fields["type"] == "image" and not isinstance(fields.get("attachment"), dict):
            raise Broken(f"{place}.content", "an image is an attachment of dsh; a log does not hold its bytes")
        if fields["type"] == "tool-call" and not (_text(fields.get("id")) and _text(fields.get("name"))):
            raise Broken(f"{place}.content", "a tool call has an id and a name")
        if fields["type"] == "tool-result" and not isinstance(fields.get("isError"), bool):
            raise Broken(f"{place}.content", "a tool result says whether it isError")


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


# What is written in which words


def end_seed() -> Event:
    return event(END_SEED, {})


def prompt(content: object) -> Event:
    """What the user says: a text, or a list of blocks. Raises InvalidEntry."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise InvalidEntry("content is a text or a list of blocks", index=0, field="content")
    data: Event = {"content": content, "source": {"kind": "user"}, "role": "user", "id": str(uuid4())}
    return event(dsh.USER, data, op="append")


def title(text: str) -> Event:
    """The name that a person gave the session; dsh does not replace it by one of its own."""
    return event("session/title", {"title": text, "messageSeqs": [], "source": {"kind": "user"}})


def reason_of(reason: Mapping[str, Any]) -> Event:
    """Why a turn ended, with what dsh expects of that kind of reason."""
    found = dict(reason)
    if found.get("kind") == "aborted":
        found.setdefault("reason", {"kind": "user"})
    elif found.get("kind") == "error" and not isinstance(found.get("error"), dict):
        told = found.get("message", found.get("error"))
        found["error"] = {"message": told if _text(told) else "the turn failed", "code": "UNKNOWN"}
    return found


def closers(ledger: Ledger, reason: Mapping[str, Any] = INTERRUPTED) -> list[Event]:
    """What ends the turn that is open, where one is: a result for each open call, `step/end`, `turn/end`.

    With the default reason these are the events that dsh itself writes when it goes on with a log that a crash left.
    """
    if not ledger.open:
        return []
    found: list[Event] = []
    turn = ledger.turn
    for number, (id_, call) in enumerate(ledger.calls.items(), ledger.next):
        started = call.seq is not None
        error = {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
        if not started:
            error = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
        message = dsh.closing_message(id_, number, started=started)
        data: Event = {"turn": turn, "step": call.step, "message": message, "error": error}
        found.append(event(dsh.RESULT, data, cited=None if call.seq is None else [call.seq], op="append"))
    if ledger.step:
        found.append(event("step/end", {"turn": turn, "step": ledger.step}))
    found.append(event("turn/end", {"turn": turn, "reason": dict(reason)}))
    return found


def close(ledger: Ledger, time: int) -> list[Event]:
    """The closers of a turn that was cut off, numbered and taken into the ledger. Raises Broken.

    They are taken without the rules of an agent: a log may be cut off where none of its own would leave it.
    """
    found: list[Event] = []
    for fields in closers(ledger):
        made = {"type": fields["type"], "seq": ledger.next, "time": time, **fields}
        ledger.take(made)
        found.append(made)
    return found
