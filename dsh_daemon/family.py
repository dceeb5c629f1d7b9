"""Several sessions of a family as one tree: what a branch inherited is shown once, what it added where it left."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
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
    """One index over all. Two entries of one id and type in a family are one: copies keep their ids."""
    index = Index()
    index.header = sessions[0].index.header
    index.inherited = sessions[0].index.inherited
    union = Union(index, array("i"), array("i"))
    placed: dict[tuple[str, str], int] = {}
    times: list[str | None] = []
    for number, session in enumerate(sessions):
        source = session.index
        here: list[int] = [NONE] * len(source)  # ordinal there -> ordinal in the union
        for i in range(len(source)):
            key = source.ids[i], source.type_of(i)
            known = placed.get(key) if number else None
            if known is not None:
                here[i] = known
                continue
            here[i] = placed[key] = len(index)
            index.ids.append(source.ids[i])
            union.member.append(number)
            union.ordinal.append(i)
            shape = source.shape_of(i)
            index.shape.append(index.shapes.code(shape.type, shape.role, shape.flags))
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
