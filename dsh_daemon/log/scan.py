"""Bytes of a log -> `Index`: linear, streaming, lenient. Reads only; what it cannot read it reports and steps over.

The fast path decodes just the fields of `Head` from each line. A line that it refuses goes to `recover`, which knows
the ways in which logs get damaged. Columns are filled a block at a time, since a Python loop over 100,000 entries
costs more than their decoding.
"""

from __future__ import annotations

import io
from array import array
from codecs import utf_8_decode
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, islice
from operator import ge
from typing import TYPE_CHECKING, Any, Protocol, cast

from dsh_daemon.entries import KNOWN_TYPES, Flag
from dsh_daemon.types import Diagnostic

from .events import Events, decode as decode_event, event_of, is_event_line
from .formats import dsh
from .formats.header import OMP_ROLES, OMP_TYPES, header_of, is_entry, slot_of, take_slot
from .formats.legacy import made_up_id
from .heads import UNREADABLE, AnyHead, Assistant, ToolResult, User, as_head, decode, decode_any, flags_of
from .index import NONE, Header, Index, LabelChange, Shapes
from .recover import loads, recover
from .times import latest

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK = 1 << 17
HUGE_LINE = 16 << 20
MAX_DIAGNOSTICS = 1_000
LONG_TAIL = 1 << 20  # bytes above which an unfinished last line is not searched for what can be read of it: it grows
MAX_COPIES = 8  # lines of one id that are compared for being the same line again
NEAR = 16  # lines behind a damaged header that tell whose log it is
FAILED = Flag.ERROR.value
MARK = 64  # bytes at the end of what was scanned that tell whether the file still holds it


class Source(Protocol):
    """Where a log's bytes come from."""

    def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; fewer only at the end."""
        ...

    def readinto(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` on; how many bytes it got, 0 only at the end."""
        ...


def scan(index: Index, source: Source, size: int, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Extend `index` from `index.end` to byte `size` of `source`.

    An unterminated last line is kept in `index.pending`; when it parses, its entries are indexed and counted in
    `index.provisional`. The next scan drops those first and reads that line again.
    """
    _Scan(index, source).run(size, cancelled)


def continues(index: Index, source: Source) -> bool:
    """Whether the source still ends, where the index ends, in the bytes it ended in: programs rewrite logs in place."""
    return source.read(index.end - len(index.mark), len(index.mark)) == index.mark


class _Part(io.RawIOBase):
    """The bytes of a source between two offsets, as a file."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self.source, self.at, self.stop = source, start, stop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        got = self.source.readinto(self.at, memoryview(buffer)[: max(0, self.stop - self.at)])
        self.at += got
        return got


class _Answers(dict[int, int]):
    """Codes of the shapes of assistant messages, by flags."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes

    def __missing__(self, flags: int) -> int:
        code = self[flags] = self.shapes.code("message", "assistant", flags)
        return code


class _Scan:
    def __init__(self, index: Index, source: Source) -> None:
        index.drop_provisional()
        self.index = index
        self.source = source
        self.labels = len(index.label_log)
        self.shapes = len(index.shapes.items)
        # The last report of a line that is no record, which the next such line may extend.
        self.unread = next((d for d in index.diagnostics[:-4:-1] if d["code"] == "unreadable_line"), None)
        code = index.shapes.code
        self.user = code("message", "user", 0)
        self.answers = _Answers(index.shapes)
        self.results = code("message", "toolResult", 0), code("message", "toolResult", FAILED)

    def run(self, size: int, cancelled: Callable[[], bool]) -> None:
        index = self.index
        reported = len(index.diagnostics)
        file = io.BufferedReader(_Part(self.source, index.end, size), BLOCK)
        rest = b""
        try:
            while not cancelled() and (lines := file.readlines(BLOCK)):
                if not lines[-1].endswith(b"\n"):
                    rest = lines.pop()
                self.block(lines)
        finally:
            index.diagnostics[reported:] = sorted(index.diagnostics[reported:], key=lambda d: d.get("offset", 0))
            if rest:
                self.tail(rest)
            self.settle()
        index.mark = self.source.read(max(0, index.end - MARK), min(MARK, index.end))

    def block(self, lines: list[bytes]) -> None:
        """Whole lines, each with its newline; the first one starts at `index.end`."""
        index, done = self.index, 0
        text = b"".join(lines)
        if b"\r" in text and not index.crlf:
            self.look_for_crlf(lines)
        if len(text) > HUGE_LINE:
            self.look_for_huge(lines)
        valid = text.isascii() or is_utf8(text)
        del text
        while not index.header_seen and done < len(lines):
            index.line += 1
            self.opening(lines[done][:-1], index.end)
            index.end += len(lines[done])
            done += 1
        if self.of_events(lines[done:]):
            self.records(lines[done:], decode_event, self.events.take, valid=valid)
        else:
            self.records(lines[done:], decode, self.take, valid=valid)

    def records(
        self, lines: Sequence[bytes], decode: Callable[[bytes], Any], take: Callable[..., None], *, valid: bool
    ) -> None:
        """The same behind the header: `decode` gives the head of a line, or refuses it, `take` adds such heads."""
        index, done = self.index, 0
        remaining = iter(lines)
        while done < len(lines):
            heads: list[Any] = []
            with suppress(*UNREADABLE):
                heads.extend(map(decode, remaining))  # the list keeps what came before the line that was refused
            taken = lines[done : done + len(heads)]
            offsets = list(accumulate(map(len, taken), initial=index.end))
            end = offsets.pop()
            if not valid:
                self.look_for_bad_bytes(taken, offsets, index.line)
            first = index.line + 1
            take(heads, offsets, [len(line) - 1 for line in taken], range(first, first + len(heads)))
            index.line += len(heads)
            index.end = end
            done += len(heads)
            if done < len(lines):
                index.line += 1
                self.line(lines[done][:-1], index.end)
                index.end += len(lines[done])
                done += 1

    @cached_property
    def events(self) -> Events:
        return Events(self)

    def of_events(self, lines: Sequence[bytes]) -> bool:
        """Whether this is a dsh log: by its header, or by what stands where the first entry should be."""
        header = self.index.header
        if header.format == "pi" and not len(self.index):
            # Behind a whole header stands an event; where that is damaged, what follows may be, too.
            near = islice((line for line in lines if line.strip()), 1 if header.state == "ok" else NEAR)
            if any(b'"seq' in line and is_event_line(line) for line in near):
                header.format = "dsh"
                if header.state != "ok":
                    header.version = dsh.VERSION
        return header.format == "dsh"

    def line(self, raw: bytes, offset: int, *, quiet: bool = False) -> None:
        """One line, whatever it holds, at `index.line`. `quiet`: that it is unreadable is known already."""
        if not raw.strip():
            return
        if self.index.header.format == "dsh":
            self.recovered(raw, offset, event_of, self.events.take)
            return
        head = decode_any(raw)
        if head is not None:
            if not raw.isascii():
                self.look_for_bad_bytes([raw], [offset], self.index.line - 1)
            self.take([head], [offset], [len(raw)], [self.index.line])
            return
        self.recovered(raw, offset, as_head, self.take, quiet=quiet)

    def recovered(
        self,
        raw: bytes,
        offset: int,
        head_of: Callable[[dict[str, Any]], Any],
        take: Callable[..., None],
        *,
        quiet: bool = False,
    ) -> None:
        """What can be got out of a line that the fast decoder refused; what is wrong with it is reported."""
        result = recover(raw)
        for damage in result.damage:
            if quiet and damage.code == "unreadable_line":
                continue
            self.report(damage.code, damage.severity, offset + damage.offset, damage.length, damage.message)
            if damage.code in {"unreadable_line", "fragment"}:
                self.index.damage.append((offset + damage.offset, damage.length))
        found = result.found
        take(
            [head_of(each.record) for each in found],
            [offset + each.offset for each in found],
            [each.length for each in found],
            [self.index.line] * len(found),
        )

    def tail(self, data: bytes) -> None:
        """The last line, which has no newline (yet)."""
        index = self.index
        index.checkpoint()
        index.pending = data
        before, kept = len(index), len(index.diagnostics)
        index.line += 1
        self.unread = None
        opening = not index.header_seen
        if opening:
            self.opening(data, index.end)
        elif index.header.format == "dsh":
            pass  # dsh takes no line before its newline, and writes another one in its place when it resumes
        elif len(data) < LONG_TAIL or data.rstrip().endswith(b"}"):
            self.line(data, index.end)
        index.provisional = len(index) - before
        if index.provisional or (opening and index.header.state == "ok"):
            text = "the last line has no newline; it will get one before the next append"
            index.diagnostics.append(self.diagnostic("missing_newline", "info", index.end, len(data), text))
        elif data.strip(b"\0 \t\r\n"):
            text = "the last line is unfinished; it stays in the file and the next append starts a new line"
            index.diagnostics[kept:] = [self.diagnostic("torn_tail", "warning", index.end, len(data), text)]
        index.line -= 1
        index.damage = [place for place in index.damage if place[0] < index.end]

    def opening(self, raw: bytes, offset: int) -> None:
        """A line before the header: a BOM, a blank line, omp's title slot, the header, or what stands in its place."""
        index = self.index
        if offset == 0 and raw.startswith(b"\xef\xbb\xbf"):
            self.report("bom", "info", 0, 3, "the file starts with a byte order mark")
            raw, offset = raw[3:], 3
        if not raw.strip(b" \t\r\0"):
            if b"\0" in raw:
                self.report("nul_run", "warning", offset, len(raw), f"{raw.count(0)} NUL bytes were skipped")
            return
        try:
            found = loads(raw.strip(b" \t\r"))
        except ValueError:
            found = None
        record = cast("dict[str, Any]", found) if isinstance(found, dict) else None
        if index.slot is None and (slot := slot_of(record)) is not None:
            index.slot = slot
            return
        index.header_seen = True
        header = header_of(record, index.slot) if record is not None else None
        if header is not None:
            header.offset = offset
            index.header = header
            if header.format == "dsh" and header.version != dsh.VERSION:
                text = f"version {header.version} is not the one that we know: the session can be read, not resumed"
                self.report("future_version", "warning", offset, len(raw), text)
            elif header.version > 3:
                text = f"version {header.version} is newer than the 3 that we know"
                self.report("future_version", "warning", offset, len(raw), text)
            return
        header = index.header = Header(state="broken")
        if index.slot is not None:
            header.format = "omp"
            take_slot(header, index.slot)
        if record is not None and dsh.is_event(record):
            header.format, header.version, header.state = "dsh", dsh.VERSION, "headerless"
            self.report("no_header", "error", offset, len(raw), "the first line is an event and not a session header")
            self.line(raw, offset)
            return
        if record is not None and is_entry(record):
            header.state = "headerless"
            header.version = 3 if "id" in record else 1
            self.report("no_header", "error", offset, len(raw), "the first line is an entry and not a session header")
            self.line(raw, offset)
            return
        text = "the first line is not a session header; the file is read only"
        self.report("broken_header", "error", offset, len(raw), text)
        if record is None or "delegationDepth" not in record:  # what only a header of dsh has is no entry
            self.line(raw, offset, quiet=True)

    # What the decoder does not mind

    def look_for_crlf(self, lines: list[bytes]) -> None:
        offset = self.index.end
        for number, line in enumerate(lines, self.index.line + 1):
            offset += len(line)
            if line.endswith(b"\r\n"):
                self.index.crlf = True
                self.report("crlf", "info", offset - 2, 2, "lines end with CR LF", line=number)
                return

    def look_for_huge(self, lines: list[bytes]) -> None:
        offset = self.index.end
        for number, line in enumerate(lines, self.index.line + 1):
            if len(line) > HUGE_LINE:
                text = f"one record of {len(line) >> 20} MB"
                self.report("huge_line", "info", offset, len(line) - 1, text, line=number)
            offset += len(line)

    def look_for_bad_bytes(self, lines: Sequence[bytes], offsets: Sequence[int], before: int) -> None:
        for number, (line, offset) in enumerate(zip(lines, offsets, strict=True), before + 1):
            try:
                line.decode()
            except UnicodeDecodeError as exc:
                text = "bytes that are not UTF-8 read as U+FFFD"
                self.report("invalid_utf8", "warning", offset + exc.start, 1, text, line=number)

    # Filling the index

    def take(
        self, heads: Sequence[AnyHead], offsets: Sequence[int], lengths: Sequence[int], numbers: Sequence[int]
    ) -> None:
        """Add entries, in file order, to the columns; `numbers` are their physical lines."""
        index, known = self.index, self.index.ordinal
        ids = [head.id for head in heads]
        start = len(index.ids)
        stop = start + len(ids)
        if (
            index.header.version > 1
            and all(ids)
            and "session" not in [head.type for head in heads if head.message is None]
        ):
            deque(map(known.setdefault, ids, range(start, stop)), 0)
            if len(known) == stop:
                index.ids += ids
                self.columns(heads, offsets, lengths, start)
                return
            for id_ in ids:  # some of them are not the first of their name
                if known.get(id_, NONE) >= start:
                    del known[id_]
        for head, offset, length, number in zip(heads, offsets, lengths, numbers, strict=True):
            self.one(head, offset, length, number)

    def one(self, head: AnyHead, offset: int, length: int, number: int) -> None:
        """Add one entry that may lack an id, repeat one, or be no entry at all."""
        index = self.index
        if head.type == "session":
            text = "a second session header; the first one counts"
            self.report("extra_header", "warning", offset, length, text, line=number)
            return
        if head.type == "title" and not head.id:
            return
        id_ = head.id
        if not id_:
            if head.type not in KNOWN_TYPES:
                text = f"a line of type {head.type[:40]!r} without an id is not an entry"
                self.report("not_an_entry", "info", offset, length, text, line=number)
                return
            name = index.header.session_id
            while (id_ := made_up_id(name, offset)) in index.ordinal:  # chance repeats eight digits in a long log
                name += "+"
            if index.header.version > 1:
                text = "an entry without an id; one was made up"
                self.report("missing_id", "warning", offset, length, text, id_, line=number)
            if head.parentId == "" and len(index):
                head.parentId = index.ids[-1]
        if id_ in index.ordinal:
            id_ = self.again(id_, offset, length, number)
            if id_ is None:
                return
        index.ordinal[id_] = len(index)
        index.ids.append(id_)
        self.columns([head], [offset], [length], len(index) - 1)

    def again(self, id_: str, offset: int, length: int, number: int, *, compare: bool = True) -> str | None:
        """The wire id of a further line with a known id; None where it is the same line again."""
        index = self.index
        raw = self.source.read(offset, length) if compare else b""
        count = index.copies.get(id_, 1)
        for k in range(1, min(count, MAX_COPIES) + 1) if compare else ():
            i = index.ordinal.get(id_ if k == 1 else f"{id_}~{k}", NONE)
            if i != NONE and index.length[i] == length and self.source.read(index.offset[i], length) == raw:
                return None
        count += 1
        while f"{id_}~{count}" in index.ordinal:
            count += 1
        index.copies[id_] = count
        text = f"another entry has the id {id_}"
        self.report("duplicate_id", "warning", offset, length, text, f"{id_}~{count}", line=number)
        return f"{id_}~{count}"

    def columns(self, heads: Sequence[AnyHead], offsets: Sequence[int], lengths: Sequence[int], start: int) -> None:
        index, facts = self.index, self.index.facts
        get = index.ordinal.get
        parents = [get(head.parentId or "", NONE) for head in heads]
        if any(map(ge, parents, range(start, start + len(parents)))):
            index.forward = index.knotted = True
        times = [head.timestamp for head in heads]
        spoken = [head.timestamp for head in heads if head.message is not None]
        uniform = index.time.extend(times)
        if spoken:
            facts.messages += len(spoken)
            facts.last_activity = max(facts.last_activity, latest(spoken, uniform=uniform))
        user, (good, bad) = self.user, self.results
        shapes: list[int] = []
        add = shapes.append
        for head in heads:
            message = head.message
            if head.type != "message" or message is None:
                self.note(head, start + len(shapes))
                add(index.shapes.code(head.type, None, 0))
            elif isinstance(message, ToolResult):
                add(bad if message.isError else good)
            elif isinstance(message, User):
                add(user)
            elif isinstance(message, Assistant):
                add(self.answers[flags_of(message)])
                if message.model:
                    facts.model = message.model
                if message.usage is not None and message.usage.cost is not None:
                    facts.cost += message.usage.cost.total or 0
            else:
                add(index.shapes.code("message", message.role, FAILED if message.isError else 0))
        if facts.first_user == NONE and user in shapes:
            facts.first_user = start + shapes.index(user)
        # An array made of a list at once is filled twice as fast as one that is extended by its items.
        index.parent += array("i", parents)
        index.offset += array("q", offsets)
        index.length += array("q", lengths)
        index.shape += array("H", shapes)
        if NONE in parents:
            for i, (parent, head) in enumerate(zip(parents, heads, strict=True), start):
                if parent == NONE and head.parentId:
                    index.orphan(i, head.parentId)

    def note(self, head: AnyHead, i: int) -> None:
        """Remember what labels, names and model changes say."""
        index, facts = self.index, self.index.facts
        if head.type == "label":
            if head.targetId:
                text = (head.label or "").strip()
                index.label_log.append(LabelChange(i, head.targetId, text or None))
        elif head.type == "session_info":
            facts.title = (head.name or "").strip() or None
            facts.title_source = "user"
        elif head.type == "title_change":
            facts.title = (head.title or "").strip() or None
            facts.title_source = "user" if head.source == "user" else "agent"
        elif head.type == "model_change":
            facts.model = head.modelId or (head.model or "").partition("/")[2] or head.model or facts.model
            if head.model and index.header.format == "pi":
                index.header.format = "omp"  # pi writes provider and modelId

    def settle(self) -> None:
        """Give late parents their children, cut cycles, resolve labels."""
        index = self.index
        if index.adopt_orphans():
            index.forward = index.knotted = True
        if index.knotted:
            index.cut_cycles()
            index.knotted = False
        if index.header.format == "pi" and any(
            shape.type in OMP_TYPES or shape.role in OMP_ROLES for shape in index.shapes.items[self.shapes :]
        ):
            index.header.format = "omp"
        index.resolve_labels(self.labels)

    def diagnostic(
        self, code: str, severity: Any, offset: int, length: int, message: str, line: int | None = None
    ) -> Diagnostic:
        line = self.index.line if line is None else line
        return Diagnostic(code=code, severity=severity, line=line, offset=offset, length=length, message=message)

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
    ) -> None:
        """Note what is wrong at a place; `more` are the details of this code."""
        last = self.unread
        if code == "unreadable_line" and last and last.get("offset", 0) + last.get("length", 0) + 2 >= offset:
            # A record printed over several lines is one fault, not twenty.
            last["length"] = offset + length - last.get("offset", 0)
            return
        if len(self.index.diagnostics) < MAX_DIAGNOSTICS:
            item = self.diagnostic(code, severity, offset, length, message, line)
            if entry_id:
                item["entryId"] = entry_id
            if code == "seq_gap":
                item["expected"], item["got"] = more["expected"], more["got"]
            if code == "unreadable_line":
                self.unread = item
            self.index.diagnostics.append(item)


def is_utf8(data: bytes) -> bool:
    view, at = (
        memoryview(data),
        0,
    )  # in pieces, since text of other scripts takes four times the room while it is checked
    try:
        while at < len(data):
            at += utf_8_decode(view[at : at + BLOCK], "strict", at + BLOCK >= len(data))[1]
    except UnicodeDecodeError:
        return False
    return True
