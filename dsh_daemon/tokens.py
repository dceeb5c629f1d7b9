"""What counts as a word: how text is prepared for the full-text index, and how a query is read.

Scripts that put blanks between words are matched by whole words and their beginnings; the others (Chinese, Japanese,
Thai, and Korean, whose particles hang on the words) by any substring. For that, a run of such characters goes into the
index as its overlapping pairs and its last character: a substring of two and more is a sequence of pairs, one character
is the beginning of a pair. Everything else is left to the tokeniser of SQLite, which is told `TOKENIZER`.

Case, accents, width and the normal form are folded, here for all that is not ASCII. `Word.end` finds in folded text
exactly what `expression` finds in the index.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from unicodedata import normalize

import regex

LETTERS = 3  # words of one letter that stand for what begins with them; more of them must be whole
TOKENS = 64  # of a word or phrase that count: the index takes long for each, where it stands again and again
BLOCK = "\x1e"  # between two parts of one text: no phrase goes across it
TOKENIZER = "unicode61 remove_diacritics 0 categories 'L* N* M* Co'"

_WALL = "\ue000"  # BLOCK as a token; no text has it, private characters are taken for blanks
# Of scripts without blanks between words. Digits and punctuation of theirs are not among them.
_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecd\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109d\u1100-\u11ff"
    "\u1780-\u17b3\u17b6-\u17d3\u3005-\u3007\u3021-\u3029\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa"
    "\u30fc-\u30ff\u3105-\u312f\u3131-\u318e\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97c"
    "\uac00-\ud7a3\ud7b0-\ud7fb\uf900-\ufad9\U0001b000-\U0001b16f\U00020000-\U000323af"
)
_INDIC = (
    "\u0900-\u0963\u0966-\u096f\u0971-\u09f1\u09f4-\u09f9\u09fc\u09fe-\u0a75\u0a77-\u0aef\u0af2-\u0b6f\u0b71-\u0bf2"
    "\u0bfb-\u0c76\u0c78-\u0c7e\u0c80-\u0c83\u0c85-\u0d4e\u0d50-\u0d78\u0d7a-\u0df3\u0df5-\u0dff"
)
_MARKED = _INDIC + _UNSPACED  # where marks, which are no letters, belong to words
_WORD = rf"(?:[^\W_]|[{_MARKED}])"
_GAP = rf"[^\w{_MARKED}{BLOCK}]|_"

_run = re.compile(f"[{_UNSPACED}]+")
_atom = re.compile(rf"([{_UNSPACED}]+)|(?:(?![{_UNSPACED}]){_WORD})+")
_odd = re.compile(rf"[^\w\x00-\x7f{_MARKED}]+")  # what is no word, although SQLite may not know it: it is older
# All but what lower() alone folds and SQLite cuts into words as we do: that is most of what is written in East Asia.
_other = re.compile(
    "[^\x00-\x7f\u00b7\u2010\u2012-\u2016\u2018-\u201d\u2020-\u2022\u2190-\u2199\u2500-\u259f\u3001\u3002"
    "\u300a-\u3011\u3041-\u3096\u30a1-\u30fa\u30fc\u4e00-\u9fff\uac00-\ud7a3]+"
)
# Accents, vowel points and what is not seen; not the marks that make another letter of a Japanese or Indic one.
_accents = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f"
    "\u00ad\u200c-\u200f\u2060\ufeff]+"
)
# A character with all that may melt into it: marks, and the vowels and finals of Korean in all their spellings.
_piece = regex.compile("(?s:.)[\\p{M}\u1160-\u11ff\ud7b0-\ud7fb\u314f-\u3163\uffc2-\uffdc\uff9e\uff9f]*")


_begins = re.compile(rf"(?<!{_WORD})|(?<=[{_UNSPACED}])").match
_ends = re.compile(rf"(?!{_WORD})|(?=[{_UNSPACED}])").match
_apart, _between = re.compile(f"(?:{_GAP})+").match, re.compile(f"(?:{_GAP})*").match


class Atom(NamedTuple):
    text: str  # folded
    unspaced: bool  # found anywhere inside a run of its script, not only at the beginning of a word


class Word(NamedTuple):
    """What a query wants to be in a text: atoms that follow each other there."""

    atoms: tuple[Atom, ...]
    phrase: bool = False  # its last word must be whole

    @property
    def is_letter(self) -> bool:
        """Whether it stands for all words that begin with one letter."""
        return not self.phrase and len(self.atoms) == 1 and len(self.atoms[0].text) == 1 and not self.atoms[0].unspaced

    def end(self, folded: str, at: int, *, prefix: bool = True) -> int:
        """Where it ends that begins at this place of a folded text; -1 where it does not stand there.

        Without `prefix` its last word must be whole in any case. A pattern of its own would take longer to compile
        than all else that a search does.
        """
        before: Atom | None = None
        for atom in self.atoms:
            if before is None:
                found = atom.unspaced or _begins(folded, at)
            else:
                found = (_apart if before.unspaced is atom.unspaced else _between)(folded, at)
                at = found.end() if found else at
            if not found or not folded.startswith(atom.text, at):
                return -1
            at += len(atom.text)
            before = atom
        whole = not prefix or self.phrase
        return at if not whole or (before and before.unspaced) or _ends(folded, at) else -1


def fold(text: str) -> str:
    """`text` without the differences that a search does not see."""
    return text.lower() if text.isascii() else _fold(text, _melted)


def folded(text: str) -> tuple[str, Sequence[int]]:
    """`text` folded, and for each place in it, its end included, the place in `text` that it comes from."""
    if text.isascii() or not _other.search(text):
        return text.lower(), range(len(text) + 1)
    parts: list[str] = []
    origin = array("q")
    for match in _piece.finditer(text):
        part = fold(match[0])
        parts.append(part)
        origin.extend([match.start()] * len(part))
    origin.append(len(text))
    return "".join(parts), origin


def indexed(text: str) -> str:
    """What of `text` is handed to SQLite."""
    words = text if text.isascii() else _run.sub(_pairs, _fold(text, _melted_words))
    return words.replace(BLOCK, f" {_WALL} ") if BLOCK in text else words


def _fold(text: str, melted: Callable[[str], str]) -> str:
    parts: list[str] = []
    at = 0
    for match in _other.finditer(text):
        start, end = match.span()
        start = max(at, start - 1)  # it may begin with a mark on the character before it
        parts += (text[at:start].lower(), melted(text[start:end]))
        at = end
    parts.append(text[at:].lower())
    return "".join(parts)


@lru_cache(1 << 14)
def _melted(text: str) -> str:
    return normalize("NFC", _accents.sub("", normalize("NFKD", normalize("NFKD", text).casefold())))


@lru_cache(1 << 14)
def _melted_words(text: str) -> str:
    return _odd.sub(" ", _melted(text))


def words(query: str) -> list[Word]:
    """Read a query: words and, between double quotes, phrases; no word twice. What holds no letter is no word.

    Of many words of one letter only the first few stand for what begins with them.
    """
    parts = query.split('"')
    if len(parts) % 2 == 0:  # the last quote has no partner
        parts[-2:] = [" ".join(parts[-2:])]
    found: dict[Word, None] = {}
    for number, part in enumerate(parts):
        for piece in [part] if number % 2 else part.split():
            if atoms := _atoms(piece):
                found[Word(atoms, phrase=bool(number % 2))] = None
    letters = [word for word in found if word.is_letter]
    # The beginnings with one letter are half of all that there is: the index takes long for each.
    return [Word(word.atoms, phrase=True) if word in letters[LETTERS:] else word for word in found]


def phrase(query: str) -> Word | None:
    """All of a query as one phrase; None where it holds no word."""
    atoms = _atoms(query)
    return Word(atoms, phrase=True) if atoms else None


def expression(wanted: Iterable[Word], *, prefix: bool = True) -> str:
    """The MATCH expression of FTS5 for texts that hold all these words, of which there is at least one."""
    return " AND ".join(_expression(word.atoms, prefix=prefix and not word.phrase) for word in wanted)


def _atoms(text: str) -> tuple[Atom, ...]:
    found: list[Atom] = []
    left = TOKENS
    for match in _atom.finditer(fold(text)):
        unspaced = bool(match[1])
        atom = Atom(match[0][:left] if unspaced else match[0], unspaced)
        found.append(atom)
        left -= len(atom.text) if unspaced else 1
        if left <= 0:
            break
    return tuple(found)


def _expression(atoms: tuple[Atom, ...], *, prefix: bool) -> str:
    last = atoms[-1]
    tokens = [_pairs_of(atom.text) if atom.unspaced else atom.text for atom in atoms[:-1]]
    if not last.unspaced:
        return f'"{" ".join([*tokens, last.text])}"{"*" if prefix else ""}'
    if len(last.text) == 1:  # a run goes on behind it, or ends with it
        return f'"{" ".join([*tokens, last.text])}"*'
    return f'"{" ".join([*tokens, *map("".join, pairwise(last.text))])}"'


def _pairs(match: re.Match[str]) -> str:
    return f" {_pairs_of(match[0])} "


@lru_cache(1 << 14)
def _pairs_of(run: str) -> str:
    """The tokens of a whole run: its pairs, then its last character."""
    return " ".join([*map("".join, pairwise(run)), run[-1]])
