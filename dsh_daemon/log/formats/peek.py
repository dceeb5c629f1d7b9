"""What a list of sessions shows of a file, from bounded pieces of its beginning and end."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import msgspec

from dsh_daemon.log.frames import MAGIC, head_text, tail_text
from dsh_daemon.log.index import NO_TIME, Header
from dsh_daemon.log.recover import loads
from dsh_daemon.log.times import instant
from dsh_daemon.types import Format, Health, Tail

from .header import readable, record_of
from .peek_dsh import first_prompt, seen
from .recognise import HEAD_BYTES, TOO_LONG, recognise

TAIL_BYTES = 32 << 10
MOST_BYTES = 256 << 10
EVENTS_BYTES = 64 << 10  # at each end of a dsh log, which repeats long system prompts
FIRST_TEXT = 2_000  # code points kept of the first user message

_HEALTH: dict[str, Health] = {
    "ok": "ok", "headerless": "headerless", "broken": "damaged", "empty": "empty", "foreign": "unsupported",
}  # fmt: skip
_ENDS: dict[str, Tail] = {"aborted": "aborted", "error": "error", "interrupted": "interrupted"}
_CUT_TEXT = re.compile(rb'"(?:text|content)":"((?:[^"\\]|\\.){1,8000})')


class Peek(msgspec.Struct, gc=False):
    """Times are milliseconds since 1970 or None; texts are as in the file, not yet one line."""

    format: Format
    version: int
    session_id: str
    state: str  # of the header: see `recognise`
    health: Health
    cwd: str | None = None
    parent: str | None = None  # as stored: a path or an id
    created: int | None = None
    activity: int | None = None  # of the last message; never the time of the file
    name: str | None = None
    name_source: Literal["user", "agent"] = "user"
    name_sure: bool = True  # no later name can stand in the part that was not read
    first: str | None = None  # the first user message
    model: str | None = None
    tail: Tail = "empty"
    subagent: bool = False


def peek(path: str, hint: Format = "pi") -> tuple[os.stat_result, Peek | str]:
    """Read at most `MOST_BYTES` at each end of a file -> its stat, and what it is or the reason why it is no session.

    Raises OSError when it cannot be read; no content makes it raise. Anything but a regular file is not opened.
    """
    # A FIFO would block the open, a device could do anything: they are looked at by name only.
    if not stat.S_ISREG((status := os.stat(path)).st_mode):
        return status, "not a regular file"
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        return status, look(lambda offset, length: os.pread(fd, length, offset), status.st_size, path, hint)
    finally:
        os.close(fd)


def look(read: Callable[[int, int], bytes], size: int, path: str, hint: Format = "pi") -> Peek | str:
    """What a log of `size` bytes is; `read(offset, length)` gives its bytes, `path` names it."""
    prefix = read(0, HEAD_BYTES)
    header = recognise(prefix, path, whole=len(prefix) >= size, hint=hint)
    if header == TOO_LONG:
        prefix = read(0, MOST_BYTES)
        header = recognise(prefix, path, whole=len(prefix) >= size, hint=hint)
    if isinstance(header, str):
        return header
    result = Peek(header.format, header.version, header.session_id, header.state, _HEALTH[header.state])
    result.cwd, result.parent = header.cwd, header.parent
    result.created = _known(instant(header.timestamp))
    if header.state == "empty":
        return result
    if header.format == "dsh":
        _events(result, header, read, size, packed=prefix.startswith(MAGIC) or not prefix.lstrip().startswith(b"{"))
        return result
    result.first = _first_user(prefix)
    if result.first is None and len(prefix) < size and len(prefix) < MOST_BYTES:
        prefix = read(0, MOST_BYTES)
        result.first = _first_user(prefix)
    if result.first is None and len(prefix) < size:
        result.first = _cut_user(prefix)
    if len(prefix) >= size:
        end = _End(prefix, header)
    else:
        end = _End(_tail(read, size, TAIL_BYTES), header)
        if not end.settled and size > TAIL_BYTES:
            end = _End(_tail(read, size, MOST_BYTES), header)
        if end.activity is None:
            end.activity = _End(prefix, header).activity
    result.activity = end.activity
    result.tail = end.tail or ("empty" if len(prefix) >= size else "done")
    result.model = end.model
    if b"\0" in end.data and result.health == "ok":
        result.health = "recovered"
    result.subagent = _is_subagent(header, prefix)
    _name(result, header, prefix, end.data, whole=len(prefix) >= size)
    if result.created is None:
        result.created = next((_known(instant(r.get("timestamp"))) for r in _records(prefix[:HEAD_BYTES])), None)
    return result


def _events(result: Peek, header: Header, read: Callable[[int, int], bytes], size: int, *, packed: bool) -> None:
    """Note what the beginning and the end of a dsh log tell."""
    limit = EVENTS_BYTES
    while True:
        text, whole = head_text(read, size, limit) if packed else (read(0, limit), limit >= size)
        result.first = first_prompt(text, FIRST_TEXT)
        if whole or result.first is not None or limit >= MOST_BYTES:
            break
        limit = MOST_BYTES
    head = seen(text)
    end = head
    if not whole:
        for limit in (EVENTS_BYTES, MOST_BYTES):
            deep = limit == MOST_BYTES  # one frame may be longer than that
            end = seen(tail_text(read, size, limit, deep=deep) if packed else _tail(read, size, limit))
            if end.tail is not None and end.activity is not None:
                break
    result.subagent = header.raw.get("origin") == "subagent"
    result.activity = end.activity if end.activity is not None else head.activity
    result.tail = end.tail or ("empty" if whole else "done")
    result.model = end.model or head.model
    name = end.name or head.name
    if name is not None and name.title.strip():
        result.name, result.name_source = name.title, "user" if name.by_user else "agent"
    result.name_sure = whole or end.name is not None


def _tail(read: Callable[[int, int], bytes], size: int, length: int) -> bytes:
    start = max(0, size - length)
    data = read(start, length)
    return data[data.find(b"\n") + 1 :] if start else data


class _End:
    """How a log ends: walked backwards from the last record along parent links, as far as `data` goes."""

    def __init__(self, data: bytes, header: Header) -> None:
        self.data = data
        self.native = header.format == "native"
        self.tail: Tail | None = None
        self.activity: int | None = None
        self.model: str | None = None
        if header.state == "foreign":
            times = (_known(instant(r.get("timestamp", r.get("time")))) for r in _backwards(data))
            self.activity = next((time for time in times if time is not None), None)
            self.tail = "done"
            self.settled = self.activity is not None
            return
        self.settled = self._walk(follow=True)
        if self.tail is None:
            self._walk(follow=False)

    def _walk(self, *, follow: bool) -> bool:
        """Whether both the tail and the time of the last message were found."""
        wanted: str | None = None  # id of the next entry on the path to the root; None: whatever comes
        answered: set[Any] = set()
        exited = results = done = False
        for record in _backwards(self.data):
            type_ = record.get("type")
            message = record.get("message")
            fields = cast("dict[str, Any]", message) if isinstance(message, dict) else None
            if fields is not None and self.activity is None:
                self.activity = _time_of(record, fields)
                if self.activity is not None and self.tail is not None:
                    return True
            if self.tail is not None or (wanted is not None and record.get("id", wanted) != wanted):
                continue
            parent = record.get("parentId")
            wanted = parent if follow and isinstance(parent, str) else None
            if type_ == "turn_end":
                reason = record.get("reason")
                kind = cast("dict[str, Any]", reason).get("kind") if isinstance(reason, dict) else None
                self.tail = "done" if done else _ENDS.get(str(kind), "done")
            elif type_ == "turn_start" and "id" in record:
                self.tail = "interrupted" if exited else "open"
            elif type_ == "custom" and record.get("customType") == "session_exit":
                exited = True
            elif fields is not None and not done:
                role = fields.get("role")
                if role == "toolResult":
                    results = True
                    answered.add(_hashable(fields.get("toolCallId")))
                elif role == "user":
                    self.tail = "interrupted" if exited else "open"
                elif role == "assistant":
                    self.model = self.model or _text(fields.get("model"))
                    self.tail = _after_answer(fields, answered, results, exited)
                    if self.tail == "done" and self.native:
                        # A recorded turn goes on until its turn_end: the marks decide, where there are any.
                        done, self.tail = True, None
            if self.tail is not None and self.activity is not None:
                return True
            if parent is None and "parentId" in record and follow:
                wanted = "\0"  # a root: nothing else is on this path
        if done and self.tail is None:
            self.tail = "done"
        return self.tail is not None and self.activity is not None


def _after_answer(message: dict[str, Any], answered: set[Any], results: bool, exited: bool) -> Tail:
    stop = _text(message.get("stopReason"))
    if stop in {"aborted", "error"}:
        return _ENDS[stop]
    content = message.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    calls = {
        _hashable(cast("dict[str, Any]", block).get("id"))
        for block in blocks
        if isinstance(block, dict) and cast("dict[str, Any]", block).get("type") == "toolCall"
    }
    if calls - answered:
        return "pendingTool"
    if calls or results:
        return "interrupted" if exited else "open"
    return "done"


def _name(result: Peek, header: Header, prefix: bytes, tail: bytes, *, whole: bool) -> None:
    """Note the name that was given, as far as these pieces tell; one between them takes a full scan."""
    if header.slot_title:
        result.name = header.slot_title
        slot = next(_records(prefix[:HEAD_BYTES]), None)
        result.name_source = "agent" if slot is not None and slot.get("source") == "auto" else "user"
        return
    title = header.raw.get("title")
    if isinstance(title, str) and title.strip():
        result.name = readable(title)
        result.name_source = "agent" if header.raw.get("titleSource") == "auto" else "user"
    if header.slot:
        return
    if found := _last_name(tail):
        result.name, result.name_source = found
        return
    result.name_sure = whole
    if not whole and (found := _last_name(prefix)):
        result.name, result.name_source = found


def _last_name(data: bytes) -> tuple[str | None, Literal["user", "agent"]] | None:
    end = len(data)
    while (at := max(data.rfind(b'"session_info"', 0, end), data.rfind(b'"title_change"', 0, end))) >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        stop = data.find(b"\n", at)
        record = record_of(data[start : stop if stop >= 0 else len(data)])
        if record is not None and record.get("type") in {"session_info", "title_change"}:
            text = record.get("name" if record["type"] == "session_info" else "title")
            by_agent = record["type"] == "title_change" and record.get("source") != "user"
            return (readable(text) if isinstance(text, str) and text.strip() else None), "agent" if by_agent else "user"
        end = start
    return None


def _first_user(data: bytes) -> str | None:
    position = 0
    while (at := data.find(b'"user"', position)) >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        stop = data.find(b"\n", at)
        if stop < 0:
            stop = len(data)
        record = record_of(data[start:stop])
        if record is not None:
            for key in ("message", "payload", "data"):  # of pi, omp and claude; codex; dsh
                message = record.get(key)
                if isinstance(message, dict) and cast("dict[str, Any]", message).get("role") == "user":
                    text = _plain(cast("dict[str, Any]", message).get("content"))
                    if text.strip():
                        return readable(text[:FIRST_TEXT])
        position = stop
    return None


def _cut_user(data: bytes) -> str | None:
    """Text of a first user message whose line is longer than what was read (an image in it, say)."""
    start = data.rfind(b"\n") + 1
    line = data[start:]
    if b'"role":"user"' not in line[:1_000]:
        return None
    found = _CUT_TEXT.search(line)
    if found is None:
        return None
    try:
        text = loads(b'"' + found[1] + b'"')
    except ValueError:
        return None
    return readable(str(text)[:FIRST_TEXT])


def _plain(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    blocks = [cast("dict[str, Any]", block) for block in cast("list[Any]", content) if isinstance(block, dict)]
    return "\n".join(text for block in blocks if isinstance(text := block.get("text"), str))


def _is_subagent(header: Header, prefix: bytes) -> bool:
    if header.raw.get("origin") == "subagent" or header.raw.get("isSidechain") is True:
        return True
    return b'"type":"session_init"' in prefix


def _time_of(record: dict[str, Any], message: dict[str, Any]) -> int | None:
    time = _known(instant(record.get("timestamp")))
    return time if time is not None else _known(instant(message.get("timestamp")))


def _known(time: int) -> int | None:
    return None if time == NO_TIME else time


def _text(value: object) -> str | None:
    return readable(value) if isinstance(value, str) and value else None


def _hashable(value: object) -> object:
    return value if isinstance(value, str) else None


def _records(data: bytes) -> Iterator[dict[str, Any]]:
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        if end < 0:
            end = len(data)
        record = record_of(data[position:end])
        if record is not None:
            yield record
        position = end + 1


def _backwards(data: bytes) -> Iterator[dict[str, Any]]:
    end = len(data)
    while end > 0:
        start = data.rfind(b"\n", 0, end) + 1
        record = record_of(data[start:end])
        if record is not None:
            yield record
        end = start - 1
