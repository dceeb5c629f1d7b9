"""Pieces of a log indexed each for itself, and put together to the index of the whole.

A process that does no more than that loads this module and what it needs, so it imports little.
"""

from __future__ import annotations

import gc
import os
import sys
from array import array
from collections.abc import Callable

from dsh_daemon.entries import Flag

from . import snapshot
from .index import NONE, Header, Index, LabelChange
from .scan import MAX_DIAGNOSTICS, Source, scan

MOST_SHAPES = 1_000  # a log of more kinds of entries is not worth translating
# A made-up id, and a suffix for a repeated one, depend on all ids before it.
DEPENDENT = frozenset({"missing_id", "duplicate_id"})
TITLES = frozenset({"session_info", "title_change"})


class _Input:
    """The file that is our standard input; its position is shared with whoever opened it and stays as it is."""

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(0, length, offset)

    def readinto(self, offset: int, buffer: memoryview) -> int:
        return os.preadv(0, [buffer], offset)


def help_out(places: list[int], parent: int) -> None:
    """Scan the pieces of the file on standard input that lie between `places`, the last one first.

    What `piece` makes of each goes to standard output, with its length in 8 bytes before it.
    """
    gc.disable()
    source = _Input()
    for start, stop in zip(places[-2::-1], places[:0:-1], strict=True):
        blob = piece(source, start, stop, lambda: os.getppid() != parent)
        sys.stdout.buffer.write(len(blob).to_bytes(8) + blob)
        sys.stdout.flush()


def piece(source: Source, start: int, stop: int, cancelled: Callable[[], bool] = lambda: False) -> bytes:
    """Snapshot of an index of the lines from `start` to `stop`, both starts of lines, as if nothing were before."""
    index = Index()
    index.header, index.header_seen, index.end = Header(), True, start
    scan(index, source, stop, cancelled)
    return snapshot.dump(index, source) or b""


def joinable(index: Index) -> bool:
    """Whether what follows may be indexed without knowing of this beginning."""
    return index.header.state == "ok" and index.header.version > 1 and index.header.format != "dsh"


def join(first: Index, second: Index) -> bool:
    """Append to `first` the index of what follows it; False, with nothing done, where a scan must decide."""
    n, split = len(first), first.end
    faults = second.diagnostics
    unread = min((d.get("offset", 0) for d in faults if d["code"] == "unreadable_line"), default=second.end)
    if (
        first.pending
        or second.pending
        or not joinable(first)
        or len(first.diagnostics) + len(faults) >= MAX_DIAGNOSTICS
        or any(d["code"] in DEPENDENT for d in faults)
        or unread <= split + 1  # the record may have begun before the split
        or len(first.shapes.items) + len(second.shapes.items) > MOST_SHAPES
        or not first.ordinal.keys().isdisjoint(second.ids)
    ):
        return False
    if first.crlf:
        faults = [d for d in faults if d["code"] != "crlf"]
    for fault in faults:
        fault["line"] = fault.get("line", 0) + first.line
    first.diagnostics += faults
    first.damage += second.damage
    first.crlf = first.crlf or second.crlf
    if second.header.format == "omp" and first.header.format == "pi":
        first.header.format = "omp"
    _join_facts(first, second)
    _join_columns(first, second)
    labels = len(first.label_log)
    first.label_log += [LabelChange(by + n, target, text) for by, target, text in second.label_log]
    first.forward = first.forward or second.forward
    if first.adopt_orphans():  # only where an entry has its parent further down a cycle can run through both
        first.forward = True
        first.cut_cycles()
    first.resolve_labels(labels)
    first.end, first.line, first.mark = second.end, first.line + second.line, second.mark
    return True


def _join_facts(first: Index, second: Index) -> None:
    facts, more = first.facts, second.facts
    if any(shape.type in TITLES for shape in second.shapes.items):
        facts.title, facts.title_source = more.title, more.title_source
    facts.model = more.model or facts.model
    facts.cost += more.cost
    facts.messages += more.messages
    if facts.first_user == NONE and more.first_user != NONE:
        facts.first_user = len(first) + more.first_user
    facts.last_activity = max(facts.last_activity, more.last_activity)


def _join_columns(first: Index, second: Index) -> None:
    n, count = len(first), len(second)
    codes = [first.shapes.code(s.type, s.role, s.flags & ~Flag.UNKNOWN.value) for s in second.shapes.items]
    first.ids += second.ids
    first.ordinal.update(zip(second.ids, range(n, n + count), strict=True))
    first.parent += array("i", [NONE if parent == NONE else parent + n for parent in second.parent])
    first.offset += second.offset
    first.length += second.length
    first.time.text += second.time.text
    first.shape += array("H", [codes[code] for code in second.shape])
    first.copies |= second.copies
    first.cuts |= {i + n: name for i, name in second.cuts.items()}
    for i, name in second.orphans.items():
        first.orphan(i + n, name)
