"""Where entries stand in the text of a log as an editor counts it: lines from 0, columns from 0.

Of a compressed log these are places in the text that it holds.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .index import Index
    from .journal import Journal

Units = Literal["utf-8", "utf-16"]

CHUNK = 1 << 20
_INNER = bytes(range(0x80, 0xC0))  # bytes of a character after its first
_OUTER = bytes(range(0xF0, 0xF8))  # first bytes of characters that UTF-16 writes as two


class Span(NamedTuple):
    """A part of one line."""

    line: int
    start: int
    end: int


def spans(journal: Journal, index: Index, chosen: Sequence[int], units: Units) -> list[Span]:
    """Where these entries (ordinals, ascending) stand."""
    found: list[Span] = []
    starts = [index.offset[i] for i in chosen]
    for i, (line, begin) in zip(chosen, _lines(journal, starts, index.size), strict=True):
        column = 0 if begin == index.offset[i] else _width(journal, begin, index.offset[i] - begin, units)
        found.append(Span(line, column, column + _width(journal, index.offset[i], index.length[i], units)))
    return found


def entry_at(journal: Journal, index: Index, line: int, column: int, units: Units) -> int | None:
    """The entry that stands at a place; None where none does."""
    begin, end = _line(journal, line, index.size)
    here = range(bisect_left(index.offset, begin), bisect_left(index.offset, end))
    for i in reversed(here):  # a line that was glued together holds several
        if i == here.start or _width(journal, begin, index.offset[i] - begin, units) <= column:
            return i
    return None


def _width(journal: Journal, start: int, length: int, units: Units) -> int:
    if units == "utf-8":
        return length
    data = journal.read(start, length)
    if data.isascii():
        return len(data)
    return len(data.translate(None, _INNER)) + len(data) - len(data.translate(None, _OUTER))


def _chunks(journal: Journal, size: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < size and (data := journal.read(at, min(CHUNK, size - at))):
        yield at, data
        at += len(data)


def _lines(journal: Journal, offsets: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """For each of the ascending offsets, its line and where that begins."""
    line = begin = done = 0
    for at, data in _chunks(journal, size):
        seen = 0
        while done < len(offsets) and offsets[done] < at + len(data):
            stop = offsets[done] - at
            line, begin = line + data.count(b"\n", seen, stop), _after_last(data, seen, stop, at, begin)
            seen = stop
            done += 1
            yield line, begin
        if done == len(offsets):
            return
        line, begin = line + data.count(b"\n", seen), _after_last(data, seen, len(data), at, begin)
    for _ in range(done, len(offsets)):  # the file was cut off meanwhile
        yield line, begin


def _after_last(data: bytes, start: int, stop: int, at: int, begin: int) -> int:
    found = data.rfind(b"\n", start, stop)
    return begin if found < 0 else at + found + 1


def _line(journal: Journal, line: int, size: int) -> tuple[int, int]:
    """Where a line begins and where the next one does; an empty range at the end where there is no such line."""
    seen = 0
    begin = 0 if line == 0 else None
    for at, data in _chunks(journal, size):
        count = data.count(b"\n")
        if seen + count < line:
            seen += count
            continue
        place = 0
        if begin is None:
            for _ in range(line - seen):
                place = data.index(b"\n", place) + 1
            seen, begin = line, at + place
        end = data.find(b"\n", place)
        if end >= 0:
            return begin, at + end + 1
    return (size if begin is None else begin), size
