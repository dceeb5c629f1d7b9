"""The events of a dsh log -> `Index`: one entry a stored line, each the child of the one before it.

Numbers must follow each other. Where they do not, the log was written by two programs, or a piece of it is lost: both
sides are shown, and the place is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from dsh_daemon.entries import Flag
from dsh_daemon.text import as_dict, as_str

from .formats import dsh
from .formats.header import readable
from .formats.legacy import made_up_id
from .heads import UNREADABLE
from .index import NONE, Index
from .numbers import Numbers
from .times import instant

COMPARED = 1_000  # repeated numbers of which it is looked whether the same line came again
MANY_TYPES = 1_000


class Event(msgspec.Struct, gc=False):
    """An event as far as the index cares."""

    type: str
    seq: int | None = None
    seq0: int | None = None
    time: int | float | None = None
    time0: int | float | None = None
    data: msgspec.Raw = msgspec.Raw()
    surfaceOp: msgspec.Raw = msgspec.Raw()  # noqa: N815  (fields are named as in the file)
    ignorable: bool | None = None


class _Source(msgspec.Struct, gc=False):
    kind: str | None = None
    plugin: str | None = None
    model: str | None = None


class _User(msgspec.Struct, gc=False):
    source: _Source | None = None


class _Block(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None
    isError: bool | None = None  # noqa: N815


class _Message(msgspec.Struct, gc=False):
    content: list[_Block] | None = None
    source: _Source | None = None


class _Spoken(msgspec.Struct, gc=False):
    message: _Message | None = None
    interrupted: bool | None = None


class _Row(msgspec.Struct, gc=False):
    texts: list[msgspec.Raw] | None = None
    args: list[msgspec.Raw] | None = None


class _Replace(msgspec.Struct, gc=False):
    op: str
    start: int
    end: int


decode: Callable[[bytes], Event] = msgspec.json.Decoder(Event).decode
_decode_user = msgspec.json.Decoder(_User).decode
_decode_spoken = msgspec.json.Decoder(_Spoken).decode
_decode_row = msgspec.json.Decoder(_Row).decode
_decode_replace = msgspec.json.Decoder(_Replace).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode

_SURFACE, _CALLS, _EMPTY = Flag.SURFACE.value, Flag.CALLS.value, Flag.EMPTY.value
_TOOLS_ONLY, _ERROR, _ABORTED = Flag.TOOLS_ONLY.value, Flag.ERROR.value, Flag.ABORTED.value


class Reporter(Protocol):
    """What a scan does for its formats."""

    index: Index

    def report(
        self,
        code: str,
        severity: str,
        offset: int,
        length: int,
        message: str,
        entry_id: str | None = None,
        line: int | None = None,
        **more: int,
    ) -> None: ...
    def again(self, id_: str, offset: int, length: int, number: int, *, compare: bool = True) -> str | None: ...


class Events:
    """Fills an index with the events of a log."""

    def __init__(self, scan: Reporter) -> None:
        self.scan = scan
        self.index = scan.index
        self.compared = 0
        self.ordinal = self.index.number(Numbers() if self.index.numbers is None else self.index.numbers)
        code = self.index.shapes.code
        self.plain = {stored: code(dsh.type_of(stored), None, 0, stored) for stored in (*dsh.PLAIN, *dsh.OTHERS)}
        for stored in ("session/title", "request/header", *dsh.ROWS):
            del self.plain[stored]  # these say more

    def take(
        self, heads: Sequence[Event], offsets: Sequence[int], lengths: Sequence[int], numbers: Iterable[int]
    ) -> None:
        """Add events, in file order, to the columns; `numbers` are their physical lines."""
        index, surface, ordinal = self.index, self.index.surface, self.ordinal
        values, plain = ordinal.ids.values, self.plain.get
        before, due = len(values), surface.next
        in_order = due > ordinal.ids.greatest
        times: list[object] = []
        places: list[int] = []
        sizes: list[int] = []
        shapes: list[int] = []

        def store() -> None:
            index.offset.extend(places)
            index.length.extend(sizes)
            index.shape.extend(shapes)
            index.time.extend(_texts(times))
            for column in (times, places, sizes, shapes):
                column.clear()

        for head, offset, length, number in zip(heads, offsets, lengths, numbers, strict=False):
            code, time = plain(head.type), head.time
            if head.seq == due and in_order and code is not None:
                values.append(due)
                due += 1
            else:
                surface.next = due
                seq = head.seq
                if seq is None:
                    seq, time = head.seq0, head.time0
                if seq is not None and seq <= ordinal.ids.greatest:
                    store()  # it is compared with what came before
                fresh = self.name(head, seq, offset, length, number)
                due = surface.next
                in_order = due > ordinal.ids.greatest
                if not fresh:
                    continue
                if code is None:
                    code = self.shape(head, len(values) - 1, offset, length, number)
                    if head.type in dsh.MESSAGES:
                        index.facts.messages += 1
                        index.facts.last_activity = max(index.facts.last_activity, instant(time))
            shapes.append(code)
            times.append(time)
            places.append(offset)
            sizes.append(length)
        surface.next = due
        index.parent.extend(range(before - 1, len(values) - 1))
        store()

    def name(self, head: Event, seq: int | None, offset: int, length: int, number: int) -> bool:
        """Give the next entry its id; False where the line is no entry, or the same one again."""
        ordinal, surface = self.ordinal, self.index.surface
        if seq is None or not 0 <= seq < dsh.MOST:
            id_ = self.unnumbered(head, offset, length, number)
            if id_ is not None:
                ordinal.add(id_)
            return id_ is not None
        if seq != surface.next:
            self.jump(seq, offset, length, number)
        surface.next = seq + (1 if head.seq is not None else _width(head.data))
        if seq > ordinal.ids.greatest:
            ordinal.ids.values.append(seq)
            return True
        id_ = str(seq)
        if id_ in ordinal:
            self.compared += 1
            again = self.scan.again(id_, offset, length, number, compare=self.compared < COMPARED)
            if again is None:
                return False
            id_ = again
        ordinal.add(id_)
        return True

    def unnumbered(self, head: Event, offset: int, length: int, number: int) -> str | None:
        """An id for an event that has no number; None for what is no event."""
        if head.type == "session":
            text = "a second session header; the first one counts"
            self.scan.report("extra_header", "warning", offset, length, text, line=number)
            return None
        if not bytes(head.data):
            text = f"a line of type {head.type[:40]!r} without a number is not an event"
            self.scan.report("not_an_entry", "info", offset, length, text, line=number)
            return None
        name = self.index.header.session_id
        while (id_ := f"x{made_up_id(name, offset)}") in self.index.ordinal:
            name += "+"
        text = "an event without a number; an id was made up"
        self.scan.report("missing_id", "warning", offset, length, text, id_, line=number)
        return id_

    def jump(self, got: int, offset: int, length: int, number: int) -> None:
        """The numbers do not go on."""
        due = self.index.surface.next
        if got > due:
            text = f"event {due} was due and {got} came: {got - due} are missing"
        else:
            text = f"event {due} was due and {got} came: from here on a second run is numbered from {got}"
        self.scan.report("seq_gap", "error", offset, length, text, line=number, expected=due, got=got)
        self.index.damage.append((offset, 0))

    def shape(self, head: Event, i: int, offset: int, length: int, number: int) -> int:
        """Number of the shape of an event whose data says more about it; notes what else it tells."""
        code, facts, type_ = self.index.shapes.code, self.index.facts, head.type
        if type_ in dsh.ROWS:
            return code("assistant_chunks", None, 0, type_)
        if type_ == dsh.USER:
            source = _source(head.data)
            kind = dsh.user_type(source, replaces=bytes(head.surfaceOp).startswith(b"{"))
            if kind == "message" and facts.first_user == NONE:
                facts.first_user = i
            flags = self.surface(head, i, offset, length, number)
            return code(kind, "user" if kind == "message" else None, flags, type_)
        if type_ in {dsh.ANSWER, dsh.RESULT}:
            flags = self.surface(head, i, offset, length, number)
            spoken = _spoken(head.data)
            if type_ == dsh.RESULT:
                failed = any(block.isError for block in _blocks(spoken))
                return code("message", "toolResult", flags | (_ERROR if failed else 0), type_)
            source = spoken.message.source if spoken.message is not None else None
            if source is not None and source.model:
                facts.model = readable(source.model)
            return code("message", "assistant", flags | _flags(spoken), type_)
        if type_ == "session/title":
            data = _object(head.data)
            facts.title = readable(as_str(data.get("title"))).strip() or None
            facts.title_source = "user" if as_dict(data.get("source")).get("kind") == "user" else "agent"
        elif type_ == "request/header":
            config = as_dict(as_dict(_object(head.data).get("header")).get("config"))
            facts.model = readable(as_str(config.get("model"))) or facts.model
        else:
            self.unknown(head, i, offset, length, number)
        return code(readable(dsh.type_of(type_)), None, 0, readable(type_))

    def unknown(self, head: Event, i: int, offset: int, length: int, number: int) -> None:
        """An event that dsh does not know: it refuses the log, unless the event says that it may be ignored."""
        required = self.index.surface.required
        if head.ignorable or head.type in required or len(required) >= MANY_TYPES:
            return
        required[head.type] = i
        text = f"{readable(head.type)[:64]!r} is no event that dsh knows: the session can be read, not resumed"
        self.scan.report("unknown_event", "warning", offset, length, text, self.index.ids[i], line=number)

    def surface(self, head: Event, i: int, offset: int, length: int, number: int) -> int:
        """Put a message where a model sees it; its flag."""
        shown, raw = self.index.surface.shown, bytes(head.surfaceOp)
        if raw.startswith(b"{"):
            try:
                op = _decode_replace(raw)
                first = shown.index(self.ordinal.find(op.start))
                last = shown.index(self.ordinal.find(op.end), first)
            except (*UNREADABLE, ValueError):
                text = "what this message replaces is not on the surface; it stands at the end"
                self.scan.report("surface_range", "warning", offset, length, text, self.index.ids[i], line=number)
            else:
                self.index.surface.shadowed |= dict.fromkeys(shown[first : last + 1], i)
                shown[first : last + 1] = [i]
                return _SURFACE
        shown.append(i)
        return _SURFACE


def is_event_line(line: bytes) -> bool:
    """Whether a line is an event: so begins a log that has lost its header, or has one of another kind."""
    try:
        head = decode(line)
    except UNREADABLE:
        return False
    return (head.seq is not None or head.seq0 is not None) and bool(bytes(head.data)) and b'"parentId"' not in line


def event_of(record: dict[str, Any]) -> Event:
    """A parsed record of any shape: fields of the wrong type are dropped, not refused."""
    fields: dict[str, Any] = {"type": readable(as_str(record.get("type")))}
    for name in ("seq", "seq0", "time", "time0"):
        value = record.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            fields[name] = int(value) if abs(value) < dsh.MOST else None
    for name in ("data", "surfaceOp"):
        if name in record:
            fields[name] = msgspec.Raw(_encoded(record[name]))
    return Event(ignorable=record.get("ignorable") is True, **fields)


def _texts(times: Sequence[object]) -> list[str | None]:
    """Times as entries write them; many follow each other within a second."""
    found: list[str | None] = []
    before, text = -1, ""
    for time in times:
        if type(time) is not int or not 0 <= time < dsh.MOST:
            found.append(dsh.stamp(time))
            continue
        second, rest = divmod(time, 1000)
        if second != before:
            whole = dsh.stamp(second * 1000)
            if whole is None:
                found.append(None)
                continue
            before, text = second, whole[:20]
        found.append(f"{text}{rest:03}Z")
    return found


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, RecursionError):
        return b"{}"


def _width(data: msgspec.Raw) -> int:
    """How many events a row stands for."""
    try:
        row = _decode_row(data)
    except UNREADABLE:
        return 1
    return len(row.texts or row.args or ()) or 1


def _object(data: msgspec.Raw) -> dict[str, Any]:
    try:
        return _decode_object(data)
    except UNREADABLE:
        return {}


def _source(data: msgspec.Raw) -> dict[str, Any]:
    try:
        source = _decode_user(data).source
    except UNREADABLE:
        return as_dict(_object(data).get("source"))
    return {} if source is None else {"kind": source.kind, "plugin": source.plugin}


def _spoken(data: msgspec.Raw) -> _Spoken:
    try:
        return _decode_spoken(data)
    except UNREADABLE:
        return _Spoken()


def _blocks(spoken: _Spoken) -> list[_Block]:
    return (spoken.message.content if spoken.message is not None else None) or []


def _flags(spoken: _Spoken) -> int:
    """What the index notes of an answer."""
    flags = _ABORTED if spoken.interrupted else 0
    content = _blocks(spoken)
    if not content:
        return flags | _EMPTY
    if any(block.type == "tool-call" for block in content):
        said = any(block.type not in {"tool-call", "reasoning"} and (block.text or "").strip() for block in content)
        flags |= _CALLS | (0 if said else _TOOLS_ONLY)
    return flags
