"""Parents, children, paths: pure functions over an index, linear in what they touch, never recursive."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import compress
from operator import ne
from typing import TYPE_CHECKING

from .log.index import NO_TIME, NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .log.index import Index


def path(index: Index, i: int) -> list[int]:
    """Ordinals from the root down to `i`; [] for NONE."""
    parent = index.parent
    found: list[int] = []
    while i >= 0:
        found.append(i)
        i = parent[i]
    found.reverse()
    return found


def by_age(index: Index, siblings: Sequence[int]) -> list[int]:
    """Siblings oldest first; they come in file order, and one without a time counts as old as the one before it."""
    times: list[int] = []
    last = NO_TIME
    for i in siblings:
        own = index.time[i]
        last = own if own != NO_TIME else last
        times.append(last)
    return [i for _, i in sorted(zip(times, siblings, strict=True))]


def children(index: Index, i: int) -> list[int]:
    """Children of `i`, oldest first; the roots for NONE."""
    parent = index.parent
    found: list[int] = []
    start = 0 if index.forward else i + 1
    while True:
        try:
            child = parent.index(i, start)
        except ValueError:
            return by_age(index, found)
        found.append(child)
        start = child + 1


def child_map(index: Index) -> dict[int, list[int]]:
    """Children, oldest first, of every entry that has any; NONE holds the roots."""
    found: dict[int, list[int]] = {}
    for i, p in enumerate(index.parent):
        found.setdefault(p, []).append(i)
    for p, siblings in found.items():
        if len(siblings) > 1:
            found[p] = by_age(index, siblings)
    return found


def leaves(index: Index) -> list[int]:
    """Tips of all branches in file order."""
    inner = bytearray(len(index) + 1)
    for p in index.parent:
        inner[p] = 1  # a root marks the spare last place
    return [i for i in range(len(index)) if not inner[i]]


def common_ancestor(index: Index, a: int, b: int) -> int:
    """Deepest entry that is on the paths of both (an entry is on its own path), or NONE."""
    parent = index.parent
    if index.forward:
        above = set(path(index, a))
        while b >= 0 and b not in above:
            b = parent[b]
        return b
    while a != b:
        if a > b:
            a = parent[a]
        else:
            b = parent[b]
    return a


def is_ancestor(index: Index, a: int, b: int) -> bool:
    """Whether `a` is on the path to `b`, `b` itself included."""
    return common_ancestor(index, a, b) == a


def abandoned(index: Index, old: int, target: int) -> list[int]:
    """List what a move from `old` to `target` leaves: below their common ancestor down to `old`, oldest first."""
    stop = common_ancestor(index, old, target)
    found: list[int] = []
    while old != stop:
        found.append(old)
        old = index.parent[old]
    found.reverse()
    return found


@dataclass(slots=True)
class Runs:
    """The tree as chains of consecutive ordinals: each entry of a run is the parent of the next one.

    Only the last entry of a run has other children, and those start runs. A log that was written in one go is one
    run, so whole-tree work costs by the number of branches, not of entries.
    """

    starts: list[int]  # first ordinal of each run, ascending; a run ends where the next one starts
    size: int  # entries in all
    parent: list[int]  # run that a run hangs from, NONE for roots
    kids: dict[int, list[int]]  # run -> the runs below it, oldest first; NONE holds the roots

    def of(self, i: int) -> int:
        """Run of an ordinal."""
        return bisect_right(self.starts, i) - 1

    def end(self, run: int) -> int:
        """Ordinal after the last one of a run."""
        return self.starts[run + 1] if run + 1 < len(self.starts) else self.size

    def depths(self) -> dict[int, int]:
        """Entries on the path from the root to the end of each run; 0 for NONE."""
        lengths: dict[int, int] = {NONE: 0}
        for run in self.preorder(NONE):
            lengths[run] = lengths[self.parent[run]] + self.end(run) - self.starts[run]
        return lengths

    def preorder(self, leaf: int) -> list[int]:
        """All runs as they are drawn: parents first, the branch that holds `leaf` before its siblings."""
        active: set[int] = set()
        run = self.of(leaf) if leaf >= 0 else NONE
        while run >= 0:
            active.add(run)
            run = self.parent[run]
        order: list[int] = []
        stack = [NONE]
        while stack:
            run = stack.pop()
            if run >= 0:
                order.append(run)
            below = self.kids.get(run)
            if below is None:
                continue
            if len(below) > 1 and (run in active or run == NONE):
                below = sorted(below, key=lambda kid: kid not in active)
            stack.extend(reversed(below))
        return order


def runs(index: Index) -> Runs:
    """Cut the tree into runs."""
    n = len(index)
    parent = index.parent
    heads = list(compress(range(n), map(ne, parent, range(-1, n - 1))))
    cuts = {parent[i] + 1 for i in heads}
    cuts.update(heads)
    if n:
        cuts.add(0)
    cuts.discard(n)
    starts = sorted(cuts)
    number: Mapping[int, int] = {start: k for k, start in enumerate(starts)}
    above: list[int] = []
    kids: dict[int, list[int]] = {}
    for k, start in enumerate(starts):
        p = parent[start]
        # The parent is the last entry of its run, so the run after the parent's starts right behind it.
        up = NONE if p < 0 else number.get(p + 1, len(starts)) - 1
        above.append(up)
        kids.setdefault(up, []).append(k)
    for up, below in kids.items():
        if len(below) > 1:
            kids[up] = [number[i] for i in by_age(index, [starts[k] for k in below])]
    return Runs(starts, n, above, kids)
