"""Where every row of a tree stands: order, depth, gutters, filters and folds, without a single body read.

The rules are in protocol-spec/README.md, "Row order and shape".
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from .entries import HIDDEN_BY_DEFAULT, Flag
from .log.index import NONE
from .tree import runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .log.index import Index, Shape
    from .tree import Runs
    from .types import FilterMode

# Of an agent's work: they say nothing themselves.
MARKS = frozenset({
    "turn_start", "turn_end", "step_start", "step_end", "request_header", "tool_call", "assistant_chunks", "end_seed",
})  # fmt: skip
LEVELS = 32  # levels of a gutter that are drawn; what is deeper than that is not looked at line by line

# Plain numbers: testing an IntFlag costs more than the rest of a row.
TOOLS_ONLY = int(Flag.TOOLS_ONLY)
FAILED = int(Flag.ERROR | Flag.ABORTED)


def shows(shape: Shape, mode: FilterMode) -> bool:
    """Whether `mode` shows entries of a shape; in "labeled-only", whether it shows them when they have a label."""
    if mode == "all":
        return True
    message = shape.type == "message"
    if only_calls(shape):
        return False
    if mode == "labeled-only":
        return True
    if mode == "user-only":
        return message and shape.role == "user"
    if mode == "no-tools" and message and shape.role == "toolResult":
        return False
    return shape.type not in HIDDEN_BY_DEFAULT and not shape.type.startswith(("turn_", "step_"))


def only_calls(shape: Shape) -> bool:
    return bool(shape.flags & TOOLS_ONLY) and not shape.flags & FAILED


def at_work(index: Index, leaf: int) -> int:
    """The entry at which the work stands: the leaf, or what stands above the marks that an agent wrote since."""
    marks = {code for code, shape in enumerate(index.shapes.items) if shape.type in MARKS}
    i = leaf
    while i >= 0 and index.shape[i] in marks:
        i = index.parent[i]
    return i if i >= 0 else leaf


def visible(index: Index, leaf: int, mode: FilterMode) -> bytearray:
    """1 for each entry that `mode` shows, 0 for the others; where work stands a message of tool calls alone shows."""
    leaf = at_work(index, leaf)
    table = bytes(shows(shape, mode) for shape in index.shapes.items)
    if mode == "labeled-only":
        seen = bytearray(len(index))
        for i in index.labels:
            seen[i] = table[index.shape[i]] or i == leaf
        return seen
    seen = bytearray(map(table.__getitem__, index.shape))
    if leaf >= 0 and mode != "user-only" and only_calls(index.shape_of(leaf)):
        seen[leaf] = 1
    return seen


class Layout:
    """Every row of a tree in drawn order, unfolded: one number a row, and a few for each run of the tree.

    Arrays by rank (a run's place in drawn order): `first` is its first row, `up` the rank of the nearest run above
    that has rows, `kids` how many runs with rows hang from it.
    """

    def __init__(
        self, index: Index, leaf: int, mode: FilterMode, seen: bytearray | None = None, tree: Runs | None = None
    ) -> None:
        """`seen` narrows the rows to what a query kept (see `matching`); `tree` is `runs(index)` where known."""
        self.grows = seen is None and mode != "labeled-only" and not index.provisional and not index.forward
        if seen is None:
            seen = visible(index, leaf, mode)
        tree = tree or runs(index)
        order = tree.preorder(leaf)
        self.tree: Runs = tree
        self.mode: FilterMode = mode
        self.leaf = leaf
        self.order = array("i")
        self.rank = array("i", bytes(4 * len(order)))  # by run
        self.first = array("i")
        self.above = array("i")  # rank of the run above in the whole tree
        self.up = array("i")
        self.kids = array("i", bytes(4 * len(order)))
        self.last = array("i", bytes(4 * len(order)))  # rank of the last run with rows that hangs from it
        self.last_root = NONE
        hang = array("i")  # where the runs below hang: the rank itself, or its `up` when it has no rows
        starts, size = tree.starts, len(index)
        for rank, run in enumerate(order):
            self.rank[run] = rank
            start = starts[run]
            stop = starts[run + 1] if run + 1 < len(starts) else size
            row = len(self.order)
            self.first.append(row)
            if stop - start == 1:
                if seen[start]:
                    self.order.append(start)
            else:
                self.order.extend(compress(range(start, stop), seen[start:stop]))
            parent = tree.parent[run]
            above = self.rank[parent] if parent >= 0 else NONE
            up = hang[above] if above >= 0 else NONE
            self.above.append(above)
            self.up.append(up)
            if len(self.order) == row:
                hang.append(up)
                continue
            hang.append(rank)
            if up >= 0:
                self.kids[up] += 1
                self.last[up] = rank
            else:
                self.last_root = rank
        self.first.append(len(self.order))
        self.depth = array("i")
        self.level = array("i")  # rank of the run that draws the innermost connector, NONE for none
        for rank, up in enumerate(self.up):
            forked = up >= 0 and self.kids[up] > 1
            self.depth.append(0 if up < 0 else self.depth[up] + forked)
            self.level.append(rank if forked else self.level[up] if up >= 0 else NONE)
        self.leaf_row = self.position(leaf)

    def __len__(self) -> int:
        return len(self.order)

    def rank_of(self, row: int) -> int:
        return bisect_right(self.first, row) - 1

    def position(self, i: int) -> int:
        """Row of an entry or of its nearest visible ancestor; NONE when there is none."""
        if i < 0:
            return NONE
        rank = self.rank[self.tree.of(i)]
        row = bisect_right(self.order, i, self.first[rank], self.first[rank + 1]) - 1
        return row if row >= self.first[rank] else self.parent_row(self.first[rank], rank)

    def parent_row(self, row: int, rank: int) -> int:
        """Row of the nearest visible ancestor of a row in the run at `rank`."""
        if row > self.first[rank]:
            return row - 1
        up = self.up[rank]
        return self.first[up + 1] - 1 if up >= 0 else NONE

    @cached_property
    def extent(self) -> array[int]:
        """By rank: how many runs its subtree has."""
        sizes = array("i", [1]) * len(self.up)
        for rank in range(len(sizes) - 1, -1, -1):
            if self.above[rank] >= 0:
                sizes[self.above[rank]] += sizes[rank]
        return sizes

    def below(self, i: int) -> tuple[int, int]:
        """Half-open range of the rows under an entry, which may itself be hidden."""
        rank = self.rank[self.tree.of(i)]
        low = bisect_right(self.order, i, self.first[rank], self.first[rank + 1])
        return low, self.first[rank + self.extent[rank]]

    def below_run(self, rank: int) -> Iterator[int]:
        """Ranks of the runs with rows that hang from a run, as they are drawn; the roots for NONE."""
        below, end = (rank + 1, rank + self.extent[rank]) if rank >= 0 else (0, len(self.up))
        while below < end:
            if self.first[below] < self.first[below + 1]:
                yield below
                below += self.extent[below]
            else:
                below += 1  # nothing of it shows: what hangs from it hangs from the one above

    def gutter(self, level: int, *, head: bool) -> str:
        """Drawn prefix under the connector of the run at `level`; `head` for the row that has the connector itself."""
        parts: list[str] = []
        while level >= 0 and len(parts) < LEVELS:
            up = self.up[level]
            final = self.last[up] == level
            if head and not parts:
                parts.append("└─ " if final else "├─ ")
            else:
                parts.append("   " if final else "│  ")
            level = self.level[up]
        if level >= 0:
            parts.append("⋯ ")
        parts.reverse()
        return "".join(parts)


def grow(old: Layout, index: Index, leaf: int) -> Layout | None:
    """Extend a layout by entries appended in one chain to its leaf; None when only a full one will do.

    A full layout is always right; this one spares a client that follows a long session from waiting for it.
    """
    before, now = old.tree.size, len(index)
    if not before or not old.grows or index.forward or before == now or old.leaf != before - 1 or leaf != now - 1:
        return None
    if any(index.parent[i] != i - 1 for i in range(before, now)):
        return None
    rank = old.rank[len(old.tree.starts) - 1]
    first, stop = old.first[rank], old.first[rank + 1]
    if any(i != at and only_calls(index.shape_of(i)) for at in (old.leaf, leaf) for i in [at_work(index, at)]):
        return None
    table = [shows(shape, old.mode) for shape in index.shapes.items]
    fresh = [i for i in range(before, now) if table[index.shape[i]]]
    if (not fresh or fresh[-1] != leaf) and old.mode != "user-only" and only_calls(index.shape_of(leaf)):
        fresh.append(leaf)
    if stop > first and old.order[stop - 1] == old.leaf and not table[index.shape[old.leaf]]:
        stop -= 1  # it was shown for being the leaf only
    if stop == first:
        return None
    new = copy(old)
    shift = stop + len(fresh) - old.first[rank + 1]
    new.order = old.order[:stop] + array("i", fresh) + old.order[old.first[rank + 1] :]
    new.first = old.first[: rank + 1] + array("i", [row + shift for row in old.first[rank + 1 :]])
    new.tree = replace(old.tree, size=now)
    new.leaf = leaf
    new.grows = not index.provisional
    new.leaf_row = new.position(leaf)
    return new


class Fold(NamedTuple):
    row: int
    stop: int  # rows `row + 1` to `stop` are folded away


class View:
    """What is left to draw of a layout: the rows below one entry, or all; without what is folded."""

    def __init__(self, base: Layout, collapsed: Iterable[int] = (), at: int = NONE) -> None:
        """`collapsed` are ordinals; those that have no row, or no rows below them, change nothing."""
        self.base = base
        low, high = base.below(at) if at >= 0 else (0, len(base))
        folds: list[Fold] = []
        for i in collapsed:
            row = base.position(i)
            if row >= 0 and base.order[row] == i:
                start, stop = base.below(i)
                if start < stop:
                    folds.append(Fold(row, stop))
        self.end = high
        self.hidden: dict[int, int] = {}  # row -> rows folded under it
        self.spans: list[tuple[int, int]] = []
        for fold in sorted(folds):
            if low <= fold.row < high:
                self.hidden[fold.row] = fold.stop - fold.row - 1
                self.spans.append((low, fold.row + 1))
                low = fold.stop
        if low < high:
            self.spans.append((low, high))
        self.starts: list[int] = []
        self.total = 0
        for start, stop in self.spans:
            self.starts.append(self.total)
            self.total += stop - start
        self.leaf = self.shown(base.leaf_row)

    def shown(self, row: int) -> int:
        """Row that stands for a row of the layout: itself, or the one under which it is folded; or NONE."""
        if row >= self.end:
            return NONE
        k = bisect_right(self.spans, row, key=lambda span: span[0]) - 1
        if k < 0:
            return NONE
        return min(row, self.spans[k][1] - 1)

    def place(self, i: int) -> int:
        """Position in this view of an entry or of its nearest visible ancestor; NONE when there is none."""
        row = self.shown(self.base.position(i))
        if row < 0:
            return NONE
        k = bisect_right(self.spans, row, key=lambda span: span[0]) - 1
        return self.starts[k] + row - self.spans[k][0]

    def rows(self, start: int, count: int) -> list[int]:
        """Rows of the layout at positions `start` to `start + count`."""
        found: list[int] = []
        k = max(bisect_right(self.starts, start) - 1, 0)
        while k < len(self.spans) and len(found) < count:
            low, high = self.spans[k]
            low += max(start - self.starts[k], 0)
            found.extend(range(low, min(high, low + count - len(found))))
            k += 1
        return found


class Piece(NamedTuple):
    low: int
    high: int  # rows `low` to `high` are drawn
    stop: int  # rows `high` to `stop` are folded under the last of them
    start: int  # place in the line


class MainLine:
    """The way from an entry, or from the top, to the leaf, or along the first branches where the leaf is not below.

    Each branch that leaves it, or goes on behind the leaf, is its first row alone, which hides what is below it and
    stands right behind the row where it leaves; other roots stand first.
    """

    def __init__(self, base: Layout, at: int = NONE) -> None:
        self.base = base
        self.hidden: dict[int, int] = {}  # row -> rows folded under it
        self.total = 0
        self.pieces: list[Piece] = []
        self._follow(at)
        self.by_row = sorted(self.pieces)
        self.leaf = self.shown(base.leaf_row)

    def _follow(self, at: int) -> None:
        base = self.base
        rank = base.rank[base.tree.of(at)] if at >= 0 else NONE
        low = base.below(at)[0] if at >= 0 else 0
        at_leaf = at < 0 and base.leaf < 0
        while True:
            if rank >= 0:
                at_leaf = self._along(low, rank)
                if at_leaf and base.leaf_row + 1 < base.first[rank + 1]:
                    self._fold(base.leaf_row + 1, rank)
                    return
            ranks = list(base.below_run(rank))
            for other in ranks if at_leaf else ranks[1:]:
                self._fold(base.first[other], other)
            if at_leaf or not ranks:
                return
            rank = ranks[0]
            low = base.first[rank]

    def _along(self, low: int, rank: int) -> bool:
        """Add the rows of a run from `low` on, not beyond the leaf; says whether that is among them."""
        high, leaf = self.base.first[rank + 1], self.base.leaf_row
        found = low <= leaf < high
        self._add(low, leaf + 1 if found else high)
        return found

    def _fold(self, row: int, rank: int) -> None:
        """Add one row of a run for all that follows it there and below."""
        self._add(row, row + 1, self.base.first[rank + self.base.extent[rank]])

    def _add(self, low: int, high: int, stop: int = 0) -> None:
        if low < high:
            self.pieces.append(Piece(low, high, max(high, stop), self.total))
            self.total += high - low
            if stop > high:
                self.hidden[high - 1] = stop - high

    def _piece(self, row: int) -> Piece | None:
        k = bisect_right(self.by_row, row, key=lambda piece: piece.low) - 1
        return self.by_row[k] if k >= 0 and row < self.by_row[k].stop else None

    def shown(self, row: int) -> int:
        """Row that stands for a row of the layout: itself, or the one under which it is folded; or NONE."""
        piece = self._piece(row)
        return min(row, piece.high - 1) if piece else NONE

    def place(self, i: int) -> int:
        """Position in this line of an entry or of its nearest visible ancestor; NONE when there is none."""
        row = self.shown(self.base.position(i))
        piece = self._piece(row)
        return piece.start + row - piece.low if piece else NONE

    def rows(self, start: int, count: int) -> list[int]:
        """Rows of the layout at positions `start` to `start + count`."""
        found: list[int] = []
        k = max(bisect_right(self.pieces, start, key=lambda piece: piece.start) - 1, 0)
        while k < len(self.pieces) and len(found) < count:
            low, high, _, place = self.pieces[k]
            low += max(start - place, 0)
            found.extend(range(low, min(high, low + count - len(found))))
            k += 1
        return found


Drawn = View | MainLine


def around(view: Drawn, i: int, count: int) -> int:
    """Where a window of `count` rows starts so that entry `i` stands in its middle."""
    return max(0, min(view.place(i) - count // 2, view.total - count))
