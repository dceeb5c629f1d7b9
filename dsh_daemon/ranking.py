"""How strongly the entries of a session fit a query, and which of them count.

A rank is one number, the smaller the stronger: what was found, who says it there, and on which branch.

    title 0    label 6..11    the whole phrase 12..17    all words 18..23    words that begin so 24..29
               + 0 a person, 2 a model or a summary, 4 a tool    + 1 on an abandoned branch
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from . import aside, tokens
from .fulltext import Speaker, says_something, text_of
from .log.index import NO_TIME
from .query import Quality
from .search_index import SPEAKER_BITS
from .tokens import fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .log.index import Shape
    from .query import Query
    from .session import Session
    from .wire import types as t

    Rows = Sequence[int]  # ascending: ordinal << SPEAKER_BITS | speaker
    Found = Sequence[tuple[Quality, Rows]]  # the best quality first; the last one has all that the others have

TITLE, LABEL, TEXT = 0, 6, 12  # what ranks begin with
STEP = 6  # between the ranks of two qualities
SLICE = 128  # entries that are read between two looks whether anybody still waits
DAY = 10  # characters of a time that names a day only

_SPEAKER = (1 << SPEAKER_BITS) - 1


class Standing(Protocol):
    """A session as it is compared: its entries by place, and what depends on where its leaf is."""

    @property
    def straight(self) -> bool:
        """Whether every entry is on the path to the leaf."""
        ...

    def __len__(self) -> int: ...
    def shape(self, i: int) -> Shape: ...
    def time(self, i: int) -> int: ...
    def labels(self) -> Mapping[int, str]: ...
    def active(self, i: int) -> bool: ...


class Strongest(NamedTuple):
    rank: int
    ordinal: int
    hits: int  # entries of the session that fit


class Filter:
    """Which entries count, as a search says it."""

    def __init__(self, where: t.Where) -> None:
        self._roles = None if where.roles is None else frozenset(where.roles)
        self._types = None if where.types is None else frozenset(where.types)
        self._labeled, self._branch = where.labeled, where.branch
        self._since = NO_TIME if where.since is None else _instant(where.since)
        self._until = None if where.until is None else _instant(where.until, whole_day=True)
        timed = where.since is not None or where.until is not None
        chosen = (self._types, self._labeled, self._branch, timed or None)
        self.titles = chosen == (None,) * 4 and (self._roles is None or "title" in self._roles)
        self.everything = chosen == (None,) * 4 and self._roles is None
        self._timed = timed

    def keeps(self, standing: Standing, i: int, *, label: bool = False) -> bool:
        """Whether an entry counts; `label`: as one whose label was found."""
        shape = standing.shape(i)
        roles, types = self._roles, self._types
        if roles is not None and not roles & {shape.role, shape.kind, "label" if label else None}:
            return False
        if types is not None and not types & {shape.type, shape.own_type}:
            return False
        if self._timed:
            time = standing.time(i)
            if time == NO_TIME or time < self._since or (self._until is not None and time > self._until):
                return False
        if self._labeled is not None and (i in standing.labels()) != self._labeled:
            return False
        return self._branch is None or standing.active(i) == (self._branch == "active")


def _instant(text: str, *, whole_day: bool = False) -> int:
    """Milliseconds since 1970 of a time, in UTC where it names no zone; of a day its end with `whole_day`."""
    at = datetime.fromisoformat(text)
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    if whole_day and len(text) == DAY:
        at += timedelta(days=1, milliseconds=-1)
    return int(at.timestamp() * 1000)


def expressions(query: Query) -> list[tuple[Quality, str]]:
    """What to ask the index, the best quality first: what fits one fits all that come after it."""
    if query.phrase is None:
        return []
    asked = {
        tokens.expression(query.words): Quality.BEGINNINGS,
        tokens.expression(query.words, prefix=False): Quality.WORDS,
        tokens.expression([query.phrase]): Quality.PHRASE,
    }
    return sorted((quality, text) for text, quality in asked.items())


def rank(quality: int, speaker: int) -> int:
    """The rank of an entry of the active path whose text fits so well."""
    return TEXT + STEP * quality + 2 * speaker


def by_rows(found: Found, count: int) -> dict[int, int]:
    """The first `count` entries of a session as far as they are in these rows, with their ranks on the active path."""
    ranks: dict[int, int] = {}
    for quality, rows in reversed(found):
        for row in rows:
            ranks[row >> SPEAKER_BITS] = rank(quality, row & _SPEAKER)
    return ranks if not ranks or max(ranks) < count else {i: ranks[i] for i in ranks if i < count}


def scan(session: Session, query: Query, start: int = 0) -> dict[int, int]:
    """The entries from place `start` on whose text fits, with their ranks on the active path."""
    index = session.index
    speaks = [says_something(shape.type, shape.role) for shape in index.shapes.items]
    chosen = [i for i in range(start, len(index)) if speaks[index.shape[i]]]
    ranks: dict[int, int] = {}
    for k in range(0, len(chosen), SLICE):
        aside.go_on()
        some = chosen[k : k + SLICE]
        read = session.fetch(some)
        for i in some:
            said = text_of(read(i))
            if said is not None and (quality := query.fits(fold(said.text))) is not None:
                ranks[i] = rank(quality, said.speaker)
    return ranks


def labelled(standing: Standing, query: Query) -> dict[int, int]:
    """The entries whose label fits, with their ranks on the active path."""
    ranks: dict[int, int] = {}
    for i, text in standing.labels().items():
        if query.fits(fold(text)) is not None:
            role = standing.shape(i).role
            speaker = Speaker.USER if role == "user" else Speaker.TOOL if role == "toolResult" else Speaker.ANSWER
            ranks[i] = LABEL + 2 * speaker
    return ranks


def counting(standing: Standing, texts: Mapping[int, int], labels: Mapping[int, int], only: Filter) -> dict[int, int]:
    """Of entries found by their texts and by their labels those that count, with their ranks where they stand."""
    ranks = {**texts, **labels}
    return {
        i: found + (not standing.active(i))
        for i, found in ranks.items()
        if only.everything or only.keeps(standing, i, label=i in labels)
    }


def ordered(ranks: Mapping[int, int]) -> list[int]:
    """Entries by rank, the latest first where that is equal."""
    return sorted(ranks, key=lambda i: (ranks[i], -i))


def strongest(standing: Standing, found: Found, labels: Mapping[int, int], only: Filter) -> Strongest | None:
    """The strongest of the entries of a session that the index found by their texts, or that have these labels."""
    if not labels and only.everything and standing.straight and within(found, len(standing)):
        return strongest_of_all(found)
    ranks = counting(standing, by_rows(found, len(standing)), labels, only)
    if not ranks:
        return None
    best = min(ranks, key=lambda i: (ranks[i], -i))
    return Strongest(ranks[best], best, len(ranks))


def within(found: Found, count: int) -> bool:
    """Whether what was found, which is something, are places of the first `count` entries."""
    return bool(found) and bool(found[-1][1]) and found[-1][1][-1] >> SPEAKER_BITS < count


def strongest_of_all(found: Found) -> Strongest:
    """The same where each entry counts and none is on an abandoned branch, which is quicker to tell."""
    quality, rows = next(pair for pair in found if pair[1])
    speaker = rows[0] & _SPEAKER if len(rows) == 1 else min(map(_SPEAKER.__and__, rows))
    best = next(row for row in reversed(rows) if row & _SPEAKER == speaker)
    return Strongest(rank(quality, speaker), best >> SPEAKER_BITS, len(found[-1][1]))
