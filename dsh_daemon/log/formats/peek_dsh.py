"""What a list of sessions shows of a dsh log, from the text at its beginning and at its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dsh_daemon.log.index import NO_TIME
from dsh_daemon.log.times import instant
from dsh_daemon.text import as_dict, as_str, blocks
from dsh_daemon.types import Tail

from . import dsh
from .header import readable, record_of

_ENDS: dict[str, Tail] = {"aborted": "aborted", "error": "error", "interrupted": "interrupted"}


class Name(NamedTuple):
    title: str
    by_user: bool


class Seen(NamedTuple):
    """What one piece of text tells; None where it does not."""

    tail: Tail | None
    activity: int | None  # time of the last message, in milliseconds
    model: str | None
    name: Name | None


def first_prompt(text: bytes, limit: int) -> str | None:
    """The first thing that the user said."""
    at = 0
    while (at := text.find(b'"user/message"', at)) >= 0:
        start = text.rfind(b"\n", 0, at) + 1
        stop = text.find(b"\n", at)
        stop = len(text) if stop < 0 else stop
        record = record_of(text[start:stop])
        if record is not None and record.get("type") == dsh.USER:
            data = as_dict(record.get("data"))
            said = "\n".join(as_str(b.get("text")) for b in blocks(data.get("content")) if b.get("type") == "text")
            if as_dict(data.get("source")).get("kind") == "user" and said.strip():
                return readable(said[:limit])
        at = stop
    return None


def seen(text: bytes) -> Seen:
    """How the log ends that ends in `text` (whole lines), as far back as that goes."""
    tail: Tail | None = None
    activity: int | None = None
    model: str | None = None
    name: Name | None = None
    answered: set[str] = set()
    for record in _backwards(text):
        type_, data = record.get("type"), as_dict(record.get("data"))
        if type_ == "session/title" and name is None:
            by_user = as_dict(data.get("source")).get("kind") == "user"
            name = Name(readable(as_str(data.get("title"))), by_user)
        elif type_ == "turn/end" and tail is None:
            tail = _ENDS.get(as_str(as_dict(data.get("reason")).get("kind")), "done")
        elif type_ == dsh.TURN_START and tail is None:
            tail = "open"
        elif type_ in dsh.MESSAGES:
            if activity is None and (time := instant(record.get("time"))) != NO_TIME:
                activity = time
            message = as_dict(data.get("message"))
            if type_ == dsh.RESULT:
                answered.add(as_str(as_dict(message.get("source")).get("callId")))
            elif type_ == dsh.ANSWER:
                model = model or readable(as_str(as_dict(message.get("source")).get("model"))) or None
                calls = {as_str(b.get("id")) for b in blocks(message.get("content")) if b.get("type") == "tool-call"}
                if tail is None and calls - answered:
                    tail = "pendingTool"
        if tail is not None and activity is not None and model is not None and name is not None:
            break
    return Seen(tail, activity, model, name)


def _backwards(text: bytes) -> Iterator[dict[str, Any]]:
    """The events that tell something, last first. The line that is not finished yet is none."""
    end = text.rfind(b"\n")
    while end > 0:
        start = text.rfind(b"\n", 0, end) + 1
        line = text[start:end]
        if not line.startswith((b'{"type":"assistant/chunk"', b'{"type":"text-chunks"', b'{"type":"reasoning-chunks"')):
            record = record_of(line)
            if record is not None:
                yield record
        end = start - 1
