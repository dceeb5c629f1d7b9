"""Hits as the wire shows them, of sessions that are open and of those that only the index knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from . import extract, rows, turns
from .fulltext import text_of
from .log.formats import dsh
from .log.frames import open_journal
from .ranking import Standing
from .search_index import within
from .session import parsed
from .text import iso, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .log.index import Shape
    from .query import Query
    from .search_index import Columns, Place
    from .session import Session
    from .types import Entry
    from .wire import types as t


class Shown(Standing, Protocol):
    """A session of which entries can be shown."""

    def id(self, i: int) -> str: ...
    def iso(self, i: int) -> str | None: ...
    def compacted(self, i: int) -> bool: ...
    def turn(self, i: int) -> int: ...
    def reader(self, chosen: Sequence[int]) -> Callable[[int], Entry | None]: ...


class Open:
    """A session that is open, as it is now."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.index = session.index
        self._active = extract.active(session)
        self._compacted: list[int] | None = None
        self._labels = {i: label.text for i, label in list(self.index.labels.items())}
        self.straight = self._active == [0, len(self.index)]

    def __len__(self) -> int:
        return len(self.index)

    def id(self, i: int) -> str:
        return self.index.ids[i]

    def shape(self, i: int) -> Shape:
        return self.index.shape_of(i)

    def time(self, i: int) -> int:
        return self.index.time[i]

    def iso(self, i: int) -> str | None:
        return self.index.time.iso(i)

    def labels(self) -> Mapping[int, str]:
        return self._labels

    def active(self, i: int) -> bool:
        return within(self._active, i)

    def compacted(self, i: int) -> bool:
        if self._compacted is None:
            self._compacted = extract.compacted(self.session)
        return within(self._compacted, i)

    def turn(self, i: int) -> int:
        return turns.number_at(self.index, self.session.runs(), self.session.entry, i)

    def reader(self, chosen: Sequence[int]) -> Callable[[int], Entry | None]:
        return self.session.fetch(chosen)


class Kept:
    """A session that nobody has open, as the index knows it; its log is read where the entries to be shown stand."""

    def __init__(self, path: str, columns: Columns, places: Mapping[int, Place], *, of_dsh: bool = False) -> None:
        """`places`: of the entries that are to be shown, which stand there in the words of version 3 or of dsh."""
        self._path = path
        self._of_dsh = of_dsh
        self._columns = columns
        self._places = places
        self.straight = columns.straight

    def __len__(self) -> int:
        return len(self._columns)

    def id(self, i: int) -> str:
        return self._places[i].id

    def shape(self, i: int) -> Shape:
        return self._columns.shapes[self._columns.shape[i]]

    def time(self, i: int) -> int:
        return self._columns.time[i]

    def iso(self, i: int) -> str | None:
        return iso(self._columns.time[i])

    def labels(self) -> Mapping[int, str]:
        return self._columns.labels

    def active(self, i: int) -> bool:
        return self._columns.is_active(i)

    def compacted(self, i: int) -> bool:
        return self._columns.is_compacted(i)

    def turn(self, i: int) -> int:
        return self._places[i].turn

    def reader(self, chosen: Sequence[int]) -> Callable[[int], Entry | None]:
        journal = open_journal(self._path)
        try:
            raw = {i: journal.read(self._places[i].offset, self._places[i].length) for i in chosen}
        finally:
            journal.close()
        return lambda i: self._entry(raw[i], self._places[i].id)

    def _entry(self, raw: bytes, wire_id: str) -> Entry | None:
        entry = parsed(raw, wire_id)
        if entry is None or not self._of_dsh:
            return entry
        return dsh.as_entry(entry, dsh.View(wire_id, None, None)) if dsh.is_event(entry) else None


def show(standing: Shown, query: Query, chosen: Sequence[int]) -> Iterator[t.Hit]:
    """Entries as hits; one that does not fit, since its file was rewritten meanwhile, is left out."""
    labels, read = standing.labels(), standing.reader(chosen)
    for i in chosen:
        shape = standing.shape(i)
        role = shape.role or shape.kind
        label = one_line(labels.get(i, ""), rows.NAME_LIMIT)
        if (ranges := query.ranges(label)) is not None:
            snippet, role = label, "label"
        else:
            entry = read(i)
            said = None if entry is None else text_of(entry)
            if said is None or (quote := query.quote(said.text)) is None:
                continue
            snippet, ranges = quote
        active = standing.active(i)
        hit: t.Hit = {
            "entryId": standing.id(i), "role": one_line(role, rows.NAME_LIMIT), "kind": shape.kind,
            "branch": "active" if active else "abandoned", "compacted": active and standing.compacted(i),
            "snippet": snippet, "ranges": ranges, "timestamp": standing.iso(i),
        }  # fmt: skip
        if turn := standing.turn(i):
            hit["turn"] = turn
        yield hit
