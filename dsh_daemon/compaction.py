"""Where a context is cut: what a compaction summarises, and from which entry on everything is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .entries import Flag
from .layout import MARKS
from .log.index import NONE
from .summaries import tokens_of
from .text import as_dict, as_str, calls_of, message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .log.index import Index
    from .types import Entry

CALLS = int(Flag.CALLS)
SAYS = frozenset({"message", "custom_message", "branch_summary"})  # what a model is given
SPEAKERS = frozenset({"user", "assistant"})
BYTES_PER_TOKEN = 4  # of a short entry as stored
LONG = 16 << 10  # bytes of an entry from which on it is looked at: it may be an image
_USAGE = ("input", "output", "cacheRead", "cacheWrite")


class Cut(NamedTuple):
    summarised: list[int]  # ordinals, oldest first; a compaction before this one comes first
    first_kept: int
    tokens_before: int  # of everything that a model was given


class Window(NamedTuple):
    """The part of a path that a model is given: after the newest compaction, from what that kept on."""

    start: int  # place on the path
    compaction: int  # ordinal, or NONE


def plan_cut(index: Index, path: Sequence[int], read: Callable[[int], Entry], keep: int) -> Cut | None:
    """Cut the context at the end of `path` so that its newest entries, of about `keep` tokens, stay.

    No call is parted from its result, no mark of a turn or step from what it begins; where a single turn is larger
    than that, it is cut at one of its steps. None where all of it is within that, or nothing would go.
    """
    window = window_of(index, path, read)
    places = [k for k in places_to_cut(index, path, read) if k > window.start]
    kept, best = 0, NONE
    for k in range(len(path) - 1, window.start - 1, -1):
        kept += size_of(index, path[k], read)
        if kept > keep and best != NONE:
            return _cut(index, path, read, window, best)
        if places and places[-1] == k:
            best = places.pop()
    return _cut(index, path, read, window, best) if kept > keep and best != NONE else None


def cut_at(index: Index, path: Sequence[int], read: Callable[[int], Entry], first_kept: int) -> Cut | None:
    """Cut where a client says; None where that is not in the context, or nothing would go.

    Where that would part a call from its result, more is kept: the cut moves up to the next place that does not.
    """
    window = window_of(index, path, read)
    place = next((k for k in range(window.start, len(path)) if path[k] == first_kept), NONE)
    if place == NONE:
        return None
    held = held_places(index, path, read)
    if held[place]:
        place = max((k for k in places_to_cut(index, path, read, held) if window.start < k <= place), default=NONE)
    return None if place == NONE else _cut(index, path, read, window, place)


def first_cut(index: Index, path: Sequence[int], read: Callable[[int], Entry]) -> int:
    """The first entry of the context from which on a compaction can keep everything; NONE where there is none."""
    window = window_of(index, path, read)
    says = next((k for k in range(window.start, len(path)) if index.type_of(path[k]) in SAYS), len(path))
    return next((path[k] for k in places_to_cut(index, path, read) if k > says), NONE)


def window_of(index: Index, path: Sequence[int], read: Callable[[int], Entry]) -> Window:
    for k in range(len(path) - 1, -1, -1):
        type_ = index.type_of(path[k])
        if type_ == "reset_boundary":
            return Window(k + 1, NONE)
        if type_ == "compaction":
            first = index.ordinal.get(as_str(read(path[k]).get("firstKeptEntryId")), NONE)
            return Window(next((n for n in range(k) if path[n] == first), k + 1), path[k])
    return Window(0, NONE)


def size_of(index: Index, i: int, read: Callable[[int], Entry]) -> int:
    """Estimate the tokens of an entry; only of a long one is the body read."""
    if index.type_of(i) not in SAYS:
        return 0
    length = index.length[i]
    return length // BYTES_PER_TOKEN if length < LONG else tokens_of(read(i))


def held_places(index: Index, path: Sequence[int], read: Callable[[int], Entry]) -> bytearray:
    """1 for each place on the path at which a cut would part a call from its result, or from one that may yet come.

    A result answers the latest call of its id that has none, as in a request to an API (`providers`). A call without
    one holds nothing from where the person or the model speaks next: nobody will answer it.
    """
    until = list(range(len(path)))  # by place: the last one that stays together with it
    waiting: dict[str, list[int]] = {}  # places of calls without a result, by id
    speaks_next: dict[int, int] = {}  # by place of what the person or the model said
    spoke = NONE
    for k, i in enumerate(path):
        shape = index.shape_of(i)
        if shape.role == "toolResult":
            if calls := waiting.get(as_str(message_of(read(i)).get("toolCallId"))):
                place = calls.pop()
                until[place] = max(until[place], k)
        elif shape.role in SPEAKERS:
            speaks_next[spoke], spoke = k, k
        if shape.flags & CALLS:
            for call in calls_of(read(i)):
                waiting.setdefault(as_str(call.get("id")), []).append(k)
    for place in {place for calls in waiting.values() for place in calls}:
        until[place] = max(until[place], speaks_next.get(place, len(path)) - 1)
    held, end = bytearray(len(path)), NONE
    for k in range(len(path)):
        held[k] = k <= end
        end = max(end, until[k])
    return held


def places_to_cut(
    index: Index, path: Sequence[int], read: Callable[[int], Entry], held: bytearray | None = None
) -> list[int]:
    """Places on the path at which no call is parted from its result; marks go with what follows them."""
    held = held_places(index, path, read) if held is None else held
    found: list[int] = []
    marks = NONE  # place of the first of the marks just above
    for k, i in enumerate(path):
        shape = index.shape_of(i)
        if shape.type in MARKS:
            marks = k if marks == NONE else marks
            continue
        if shape.type in SAYS and shape.role != "toolResult" and not held[k]:
            found.append(k if marks == NONE else marks)
        marks = NONE
    return found


def _cut(index: Index, path: Sequence[int], read: Callable[[int], Entry], window: Window, place: int) -> Cut | None:
    summarised = [i for i in path[window.start : place] if index.type_of(i) in SAYS]
    if not summarised:
        return None
    if window.compaction != NONE:
        summarised.insert(0, window.compaction)
    return Cut(summarised, path[place], _tokens(index, path[window.start :], read, window))


def _tokens(index: Index, part: Sequence[int], read: Callable[[int], Entry], window: Window) -> int:
    """Size of the context: as the last answer tells it, and what came after that; an estimate where none does."""
    total = 0
    for i in reversed(part):
        if i == window.compaction:
            break
        if index.shape_of(i).role == "assistant":
            usage = as_dict(message_of(read(i)).get("usage"))
            if told := sum(value for name in _USAGE if isinstance(value := usage.get(name), int) and value > 0):
                return total + told
        total += size_of(index, i, read)
    return sum(size_of(index, i, read) for i in part) + (
        0 if window.compaction == NONE else tokens_of(read(window.compaction))
    )
