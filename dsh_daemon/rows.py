"""Rows that a client only has to draw: the texts, labels and flags of a window of a layout, and queries over it."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from .entries import Flag
from .layout import FAILED, Drawn, Layout, MainLine, View, around, grow, visible
from .log.index import NONE
from .text import as_dict, as_str, calls_of, message_of, one_line, row_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from .log.index import Index, Shape
    from .types import Entry, Kind, Row, RowFlag

    Reader = Callable[[int], Entry]

__all__ = [
    "Calls", "Drawn", "Layout", "MainLine", "View", "around", "bodies",
    "dangling", "grow", "matching", "ranges_of", "visible", "window", "words_of",
]  # fmt: skip

TEXT_LIMIT = 240
NAME_LIMIT = 240
SLICE = 128  # entries that a query reads between two yields
LOOK_BACK = 256  # entries between a tool result and its call

CALLS, EMPTY = int(Flag.CALLS), int(Flag.EMPTY)


def words_of(query: str) -> list[str]:
    """Split a query into words, ready to be compared; [] asks for everything."""
    return query.casefold().split()


def matching(
    index: Index,
    read: Reader,
    seen: bytearray,
    words: Sequence[str],
    limit: int = TEXT_LIMIT,
    fetch: Callable[[Sequence[int]], Reader] | None = None,
) -> Generator[int, None, bytearray]:
    """Of what `seen` shows, keep the rows that hold all words in text (of `limit` code points), label or role.

    Yields the number of entries looked at now and then, so that the caller can spread the work or give up. `fetch`
    gives a reader that is quick for some entries.
    """
    kept = bytearray(len(seen))
    calls = Calls(index, read)
    candidates = list(compress(range(len(seen)), seen))
    for n, i in enumerate(candidates):
        if n % SLICE == 0:
            if n:
                yield n
            if fetch is not None:
                read = fetch(candidates[n : n + SLICE])
        label = index.labels.get(i)
        role = index.shape_of(i).role
        short = f"{role or ''}\n{label.text if label else ''}".casefold()
        missing = [word for word in words if word not in short]
        if missing:
            entry = read(i)
            text = row_text(entry, limit, calls.of(i, entry)).casefold()
            kept[i] = all(word in text for word in missing)
        else:
            kept[i] = 1
    return kept


class Calls:
    """Finds the call that a tool result answers: in an assistant message above it."""

    def __init__(self, index: Index, read: Reader) -> None:
        self.index = index
        self.read = read
        self.asks = [bool(shape.flags & CALLS) for shape in index.shapes.items]
        self.known: dict[int, dict[str, dict[str, object]]] = {}

    def of(self, i: int, entry: Entry) -> dict[str, object] | None:
        """Find the call that entry `i` answers; None when it is no tool result or its call is not near."""
        message = message_of(entry)
        if message.get("role") != "toolResult":
            return None
        call_id = as_str(message.get("toolCallId"))
        parent, shape, asks = self.index.parent, self.index.shape, self.asks
        for _ in range(LOOK_BACK):
            i = parent[i]
            if i < 0:
                return None
            if asks[shape[i]] and (call := self.made_by(i).get(call_id)) is not None:
                return call
        return None

    def made_by(self, i: int) -> dict[str, dict[str, object]]:
        calls = self.known.get(i)
        if calls is None:
            if len(self.known) > LOOK_BACK:
                self.known.clear()
            calls = self.known[i] = {as_str(call.get("id")): call for call in calls_of(self.read(i))}
        return calls


def dangling(index: Index, read: Reader, leaf: int) -> int:
    """Find the assistant message at which the path to `leaf` breaks off: empty, or with unanswered calls; or NONE."""
    answered: set[str] = set()
    i = leaf
    for _ in range(LOOK_BACK):
        if i < 0:
            return NONE
        shape = index.shape_of(i)
        if shape.role == "toolResult":
            answered.add(as_str(message_of(read(i)).get("toolCallId")))
        elif shape.type == "message":
            if shape.flags & CALLS:
                return i if {as_str(call.get("id")) for call in calls_of(read(i))} - answered else NONE
            return i if shape.flags & EMPTY and not shape.flags & FAILED else NONE
        i = index.parent[i]
    return NONE


def bodies(index: Index, view: Drawn, start: int, count: int) -> list[int]:
    """The entries whose bodies a window is made of: its own, and those that hold the calls of its tool results."""
    shapes = index.shapes.items
    answers = [shape.role == "toolResult" for shape in shapes]
    asks = [bool(shape.flags & CALLS) for shape in shapes]
    order, shape, parent = view.base.order, index.shape, index.parent
    found = [order[row] for row in view.rows(start, count)]
    above: set[int] = set()
    for i in found:
        if answers[shape[i]]:
            up = i
            for _ in range(LOOK_BACK):
                up = parent[up]
                if up < 0 or asks[shape[up]]:
                    break
            above.add(up)
    above.discard(NONE)
    return [*found, *above]


def window(
    index: Index,
    view: Drawn,
    read: Reader,
    start: int = 0,
    count: int = 1000,
    *,
    text_limit: int = TEXT_LIMIT,
    words: Sequence[str] = (),
) -> list[Row]:
    """Rows of `view` from position `start`, with their texts read; `words` are marked in `matches`."""
    base = view.base
    rows = view.rows(start, count)
    if not rows:
        return []
    calls = Calls(index, read)
    broken = dangling(index, read, base.leaf)
    inherited, shadowed = index.inherited, index.surface.shadowed
    stamps: dict[int, Stamp] = {}
    gutters: dict[tuple[int, bool], str] = {}
    order, first, hidden, labels, ids = base.order, base.first, view.hidden, index.labels, index.ids
    leaf_row, leaf = base.leaf_row, view.leaf
    result: list[Row] = []
    rank = base.rank_of(rows[0])
    for row in rows:
        if not first[rank] <= row < first[rank + 1]:
            rank = base.rank_of(row)
        i = order[row]
        code = index.shape[i]
        stamp = stamps.get(code)
        if stamp is None:
            stamp = stamps[code] = stamp_of(index.shapes.items[code])
        level = base.level[rank]
        key = (level, level == rank and row == first[rank])
        gutter = gutters.get(key)
        if gutter is None:
            gutter = gutters[key] = base.gutter(level, head=key[1])
        above = row - 1 if row > first[rank] else base.parent_row(row, rank)
        entry = read(i)
        call = calls.of(i, entry) if stamp.answer else None
        text = row_text(entry, text_limit, call)
        item: Row = {
            "id": ids[i],
            "parentId": ids[order[above]] if above >= 0 else None,
            "depth": base.depth[rank],
            "gutter": gutter,
            "kind": stamp.kind,
            "type": stamp.type,
            "text": text,
            "timestamp": index.time.iso(i),
            # The branch of the leaf stands first everywhere, so the path to it is the first rows.
            "active": row <= leaf_row,
            "leaf": row == leaf,
            "children": 1 if row + 1 < first[rank + 1] else base.kids[rank],
        }
        if stamp.role is not None:
            item["role"] = stamp.role
        if stamp.answer:
            name = as_str(message_of(entry).get("toolName")) or as_str(as_dict(call).get("name"))
            if name:
                item["toolName"] = one_line(name, NAME_LIMIT)
        if i in labels:
            item["label"] = one_line(labels[i].text, NAME_LIMIT)
            item["labelAt"] = labels[i].at or index.time.iso(labels[i].by)
        if row in hidden:
            item["hidden"] = hidden[row]
            item["collapsed"] = True
        flags = stamp.flags
        if stamp.kind == "turn" and (flag := _TURN_ENDS.get(as_str(as_dict(entry.get("reason")).get("kind")))):
            flags = (*flags, flag)
        if i == broken:
            flags = (*flags, "dangling")
        if i in index.orphans:
            flags = (*flags, "orphan")
        if i in shadowed:
            flags = (*flags, "shadowed")
        if i < inherited:
            flags = (*flags, "inherited")
        if flags:
            item["flags"] = list(flags)
        if words and (ranges := ranges_of(text, words)):
            item["matches"] = ranges
        result.append(item)
    return result


_TURN_ENDS: dict[str, RowFlag] = {"error": "error", "aborted": "aborted", "interrupted": "interrupted"}
_SHAPE_FLAGS: dict[Flag, RowFlag] = {Flag.ERROR: "error", Flag.ABORTED: "aborted", Flag.UNKNOWN: "unknown"}


class Stamp(NamedTuple):
    """What rows of one shape have in common."""

    type: str
    kind: Kind
    role: str | None
    answer: bool  # a tool result, whose row reads as its call
    flags: tuple[RowFlag, ...]


def stamp_of(shape: Shape) -> Stamp:
    flags: tuple[RowFlag, ...] = tuple(name for flag, name in _SHAPE_FLAGS.items() if shape.flags & flag)
    role = None if shape.role is None else one_line(shape.role, NAME_LIMIT)
    return Stamp(one_line(shape.own_type, NAME_LIMIT), shape.kind, role, shape.role == "toolResult", flags)


def ranges_of(text: str, words: Sequence[str]) -> list[list[int]]:
    """Where the words stand in `text`, in code points, half-open, ascending, not overlapping."""
    folded = text.casefold()
    # Folding lengthens a few characters (ß -> ss); then each folded character is led back to its own.
    back = None if len(folded) == len(text) else [k for k, char in enumerate(text) for _ in char.casefold()]
    spans: list[list[int]] = []
    for word in words:
        at = folded.find(word)
        while at >= 0:
            end = at + len(word)
            spans.append([at, end] if back is None else [back[at], back[end - 1] + 1])
            at = folded.find(word, end)
    spans.sort()
    merged: list[list[int]] = []
    for span in spans:
        if merged and span[0] <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], span[1])
        else:
            merged.append(span)
    return merged
