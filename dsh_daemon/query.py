"""A query as texts are compared with it: how well one fits, and the line of it that shows why."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from enum import IntEnum
from itertools import accumulate, islice
from typing import TYPE_CHECKING

import regex

from . import tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WIDTH = 160  # code points of a snippet
PLACES = 256  # of a word that are counted, to know which of the words is rare
PARTS = 16  # of a text in which the rarest word stands, of which the best one is shown
PIECE = 1_000  # code points, or a few more, whose places are known together
REACH = 24  # code points within which a snippet begins or ends at a blank

_pieces = re.compile(rf"(?s:.{{{PIECE}}}\S*\s|.+)")
_words = re.compile(r"\S+").finditer
_grapheme = regex.compile(r"\X")


class Quality(IntEnum):
    """How well a text fits."""

    PHRASE = 0  # it holds the query as it was asked, one word after the other
    WORDS = 1  # it holds each word
    BEGINNINGS = 2  # it holds words that begin so


class Query:
    """What somebody looks for. All of it is text; it may hold no word at all, and then nothing fits."""

    def __init__(self, text: str) -> None:
        self.words = tokens.words(text)
        self.phrase = tokens.phrase(text)
        self._asked = [_Wanted(word, prefix=True) for word in self.words]
        self._whole = [_Wanted(word, prefix=False) for word in self.words]
        self._phrase = [_Wanted(self.phrase, prefix=False)] if self.phrase is not None else []

    def fits(self, folded: str) -> Quality | None:
        """How well a folded text fits; None where a word is missing."""
        if not self._held(folded):
            return None
        if all(wanted.within(folded) for wanted in self._phrase):
            return Quality.PHRASE
        return Quality.WORDS if all(wanted.within(folded) for wanted in self._whole) else Quality.BEGINNINGS

    def _held(self, folded: str) -> bool:
        return bool(self._asked) and all(wanted.within(folded) for wanted in self._asked)

    def quote(self, text: str, width: int = WIDTH) -> tuple[str, list[list[int]]] | None:
        """The line of a text that shows best what was looked for, and where that stands in it, in code points.

        None where the text does not fit.
        """
        page = _Page(text)
        if not self._held(page.folded):
            return None
        first, last = self._best(page, width)
        start = max(0, min(first - max(0, width - (last - first)) // 3, len(text) - width))
        end = min(len(text), start + width)
        start, end = _begin(text, start, first), _end(text, end, min(last, end))
        return _one_line(text, start, end, self._spans(page, start, end))

    def ranges(self, text: str) -> list[list[int]] | None:
        """Where what was looked for stands in a text that is shown as it is; None where that does not fit."""
        page = _Page(text)
        return self._spans(page, 0, len(text)) if self._held(page.folded) else None

    def _spans(self, page: _Page, start: int, end: int) -> list[list[int]]:
        """Where the words stand in a part of a text: ascending, not overlapping."""
        around = page.around(start, end)
        found = [page.span(*place) for wanted in self._asked for place in wanted.places(page.folded, *around)]
        merged: list[list[int]] = []
        for a, b in sorted((max(a, start), min(b, end)) for a, b in found if a < end and b > start):
            if merged and a <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], b)
            else:
                merged.append([a, b])
        return merged

    def _best(self, page: _Page, width: int) -> tuple[int, int]:
        """The first best part of a text: the whole phrase, or where the most words stand together."""
        folded = page.folded
        wanted = self._phrase if self._phrase and self._phrase[0].within(folded) else self._asked
        rarest = min(
            (list(islice(one.places(folded), PLACES)) for one in wanted), key=len, default=list[tuple[int, int]]()
        )
        best, most = (0, 0), 0
        for at, stop in rarest[:PARTS]:
            around = max(0, at - width), stop + width
            near = sorted((*place, n) for n, one in enumerate(wanted) for place in one.places(folded, *around))
            seen: Counter[int] = Counter()
            k = 0
            for start, end, number in near:
                seen[number] += 1
                while end - near[k][0] > width and near[k][0] < start:
                    seen[near[k][2]] -= 1
                    k += 1
                if (found := sum(map(bool, seen.values()))) > most:
                    most, best = found, (near[k][0], end)
        return page.span(*best) if most else (0, 0)


class _Wanted:
    """One word, found quickly: its first letters are looked for, and only there is it compared."""

    def __init__(self, word: tokens.Word, *, prefix: bool) -> None:
        self._word = word
        self._prefix = prefix

    def within(self, folded: str) -> bool:
        return self._word.atoms[0].text in folded and next(self.places(folded), None) is not None

    def places(self, folded: str, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
        """Where it stands between these places, from left to right, not overlapping."""
        first = self._word.atoms[0].text
        stop = len(folded) if end is None else end
        at = folded.find(first, start, stop)
        while at >= 0:
            found = self._word.end(folded, at, prefix=self._prefix)
            if found >= 0:
                yield at, found
            at = folded.find(first, max(found, at + 1), stop)


class _Page:
    """A text, its folded form, and which place of one is which of the other, found out for the parts asked about."""

    def __init__(self, text: str) -> None:
        self._pieces: list[str] = _pieces.findall(text)
        parts = [tokens.fold(piece) for piece in self._pieces]
        self.folded = "".join(parts)
        self._starts = [0, *accumulate(map(len, self._pieces))]
        self._folded_starts = [0, *accumulate(map(len, parts))]
        self._known: dict[int, Sequence[int]] = {}

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The part of the text that a part of the folded one, which is not empty, comes from."""
        first, last = self._piece(start), self._piece(end - 1)
        origin, inner = self._origin(last), end - self._folded_starts[last]
        while inner < len(origin) - 1 and origin[inner] == origin[inner - 1]:
            inner += 1  # of one character that folds to several
        at = start - self._folded_starts[first]
        return self._starts[first] + self._origin(first)[at], self._starts[last] + origin[inner]

    def around(self, start: int, end: int) -> tuple[int, int]:
        """A part of the folded text that holds a part of the text, and what reaches into it."""
        first = max(0, bisect_right(self._starts, start) - 2)
        last = min(len(self._pieces), bisect_right(self._starts, end) + 1)
        return self._folded_starts[first], self._folded_starts[last]

    def _piece(self, place: int) -> int:
        return bisect_right(self._folded_starts, place, hi=len(self._pieces)) - 1

    def _origin(self, piece: int) -> Sequence[int]:
        origin = self._known.get(piece)
        if origin is None:
            origin = self._known[piece] = tokens.folded(self._pieces[piece])[1]
        return origin


def _begin(text: str, start: int, first: int) -> int:
    """Where a snippet that must hold place `first` begins: behind a blank near `start`, or between graphemes."""
    if start <= 0:
        return 0
    for k in range(start - 1, min(first, start + REACH)):
        if text[k].isspace():
            return k + 1
    return min(first, _boundary(text, start))


def _end(text: str, end: int, last: int) -> int:
    """The same for its end: before a blank, or between graphemes."""
    if end >= len(text):
        return len(text)
    for k in range(end, max(last, end - REACH) - 1, -1):
        if text[k].isspace():
            return k
    return max(last, _boundary(text, end))


def _boundary(text: str, at: int) -> int:
    """The last place up to `at` at which no grapheme is cut."""
    for match in _grapheme.finditer(text, max(0, at - 64), at + 64):
        if match.end() > at:
            return match.start()
    return at


def _one_line(text: str, start: int, end: int, spans: Iterable[Sequence[int]]) -> tuple[str, list[list[int]]]:
    """A part of a text as one line that says where it was cut, and the spans in it."""
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    end -= len(piece) - len(piece.rstrip())
    shown = ["…"] if text[:start].strip() else []
    size = len(shown)
    befores: list[int] = []  # where each word begins in the text
    places: list[int] = []  # and in the line
    for match in _words(text, start, end):
        if befores:
            shown.append(" ")
            size += 1
        befores.append(match.start())
        places.append(size)
        shown.append(match[0])
        size += len(match[0])
    if text[end:].strip():
        shown.append("…")

    def place(at: int) -> int:
        """Where the character before this place ends in the line, or the word behind it begins."""
        k = bisect_right(befores, at) - 1
        return places[k] + at - befores[k]

    clipped = [(max(a, start), min(b, end)) for a, b in spans]
    return "".join(shown), [[place(a), place(b - 1) + 1] for a, b in clipped if a < b]
