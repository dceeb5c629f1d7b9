"""Several sessions of a family as one tree: what a branch inherited is shown once, what it added where it left."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .log.index import NONE, Index
from .log.times import Times

if TYPE_CHECKING:
    from .session import Session
    from .types import Entry


@dataclass(slots=True)
class Union:
    """A tree over several sessions. The first session's ordinals are the tree's first ones."""

    index: Index
    member: array[int]  # by ordinal: which of the sessions
    ordinal: array[int]  # by ordinal: the entry's ordinal there

    def reader(self, sessions: Sequence[Session]) -> Callable[[int], Entry]:
        return lambda i: sessions[self.member[i]].entry(self.ordinal[i])


def unite(sessions: Sequence[Session]) -> Union:
    """One index over all. Two entries of one id and type in a family are one: copies keep their ids.

    dsh numbers the entries of all sessions alike: there the session that wrote an entry is part of its name.
    """
    index = Index()
    index.header = sessions[0].index.header
    index.inherited = sessions[0].index.inherited
    index.surface = sessions[0].index.surface
    union = Union(index, array("i"), array("i"))
    placed: dict[tuple[str | None, ...], int] = {}
    times: list[str | None] = []
    by_id = {session.index.header.session_id: session.index for session in sessions}
    for number, session in enumerate(sessions):
        source = session.index
        writer = _writers(source, by_id)
        here: list[int] = [NONE] * len(source)  # ordinal there -> ordinal in the union
        for i in range(len(source)):
            key = source.ids[i], source.shape_of(i).own_type, writer(i)
            known = placed.get(key) if number else None
            if known is not None:
                here[i] = known
                continue
            here[i] = placed[key] = len(index)
            index.ids.append(source.ids[i])
            union.member.append(number)
            union.ordinal.append(i)
            shape = source.shape_of(i)
            index.shape.append(index.shapes.code(*shape))
            times.append(source.time.iso(i))
        for i in range(len(source)):
            if here[i] == len(index.parent):
                parent = source.parent[i]
                index.parent.append(here[parent] if parent >= 0 else NONE)
                index.forward = index.forward or index.parent[-1] >= here[i]
        for i, label in source.labels.items():
            if union.member[here[i]] == number:
                index.labels[here[i]] = label._replace(by=here[label.by])
    index.time = Times()
    index.time.extend(times)
    return union


def _writers(index: Index, by_id: Mapping[str, Index]) -> Callable[[int], str | None]:
    """Gives the session that wrote an entry of a log that numbers its entries: itself, or one that it was forked from.

    None for every entry of another log, whose ids tell them apart.
    """
    numbers = index.numbers
    if numbers is None:
        return lambda _: None
    seeds: list[tuple[int, str]] = []  # what lies before a number was not written by this session
    seen: set[str] = set()
    at: Index | None = index
    while at is not None and at.header.session_id not in seen:
        seen.add(at.header.session_id)
        seed = at.header.raw.get("seedLength")
        seeds.append((seed if isinstance(seed, int) and at.header.parent else 0, at.header.session_id))
        parent = at.header.parent
        at = by_id.get(parent) if parent else None
        if at is None and parent:
            seeds.append((0, parent))

    def writer(i: int) -> str:
        return next((name for seed, name in seeds if numbers.values[i] >= seed), seeds[-1][1])

    return writer
