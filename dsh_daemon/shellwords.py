"""The words of a shell command, as far as it takes to see which files it names, from which folder, and what it moves.

This is no shell: nothing is expanded but the home folder, and what stands in quotes or in a here-document is looked
through for names as well (`python -c "open('config.ts')"` names config.ts).
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Fits = Callable[[str, str], bool]  # whether a path, spelled from this folder below the session's, is the wanted one

_PIECE = re.compile(
    r"""(?P<end>\n|;|\|\|?|&&?|`|\$?\(|\)|\{\s|\s\})|(?P<gap>(?:[ \t]|\\\n)+|\d*(?:<<<|<<-?|>>|>\||<>|[<>])&?)"""
    r"""|'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|\\(?P<escaped>.)|(?P<plain>[^\s;|&`()<>'"\\]+)|.""",
    re.DOTALL,
)
_QUOTING = re.compile(r"[\\'\"]")
_ESCAPED = re.compile(r'\\([\\"$`\n])')
_APART = re.compile(r"[\s'\"`()<>|;&=,:\[\]{}!?*#]+")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_BEFORE = frozenset({"sudo", "command", "env", "nohup", "time", "exec", "then", "do", "else", "!"})
_HOME = re.compile(r"\$(?:HOME\b|\{HOME\})")


class Named(NamedTuple):
    """How a command names a file."""

    word: str
    moved_from: str = ""
    moved_to: str = ""


def named(command: str, name: str, fits: Fits) -> Named | None:
    """How a command names the wanted file, whose last part is `name`: a move of it before anything else; None: not."""
    if name not in _QUOTING.sub("", command):
        return None
    found: Named | None = None
    for folder, words in _commands(_HOME.sub("~", command)):
        if (move := _move(folder, words, fits)) is not None:
            return move
        if found is None:
            found = next((Named(word) for word in _candidates(words, name) if fits(word, folder)), None)
    return found


def _candidates(words: Iterable[str], name: str) -> Iterator[str]:
    """The words in which the file may be named, and the pieces of those that hold more than a path."""
    for word in words:
        if name in word:
            yield word
            yield from (part for piece in _APART.split(word) if name in piece for part in (piece, piece.rstrip(".,")))


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each simple command with the folder that a `cd` before it leads to ("" for where the session is)."""
    folder, outer, words = "", list[str](), list[str]()
    for end, part in _parted(text):
        if part is not None:
            words.append(part)
            continue
        yield folder, words
        if words[:1] == ["cd"] and len(words) == 2:
            folder = below(folder, words[1])
        if end.endswith("("):
            outer.append(folder)
        elif end == ")" and outer:
            folder = outer.pop()
        words = []
    yield folder, words


def _parted(text: str) -> Iterator[tuple[str, str | None]]:
    """Words (as second members) and what stands between commands (as first ones)."""
    word: str | None = None
    for match in _PIECE.finditer(text):
        kind = match.lastgroup
        if kind in {"end", "gap"}:
            if word is not None:
                yield "", word
            word = None
            if kind == "end":
                yield match[0], None
        elif kind == "double":
            word = (word or "") + _ESCAPED.sub(r"\1", match["double"])
        elif kind is not None:
            word = (word or "") + match[kind]
    if word is not None:
        yield "", word


def below(folder: str, path: str) -> str:
    """Where a path leads from a folder; one that begins anew stands alone."""
    return path if path.startswith(("/", "~")) or not folder else posixpath.join(folder, path)


def _move(folder: str, words: Sequence[str], fits: Fits) -> Named | None:
    """What `mv` or `git mv` does to the wanted file, where this command is one."""
    words = list(words)
    while words and (words[0] in _BEFORE or _ASSIGNED.fullmatch(words[0])):
        del words[0]
    if words[:1] == ["git"]:
        if words[1:2] == ["-C"] and len(words) > 3:
            folder = below(folder, words[2])
            del words[1:3]
        del words[0]
    if words[:1] != ["mv"]:
        return None
    paths = [word for word in words[1:] if not word.startswith("-")]
    if len(paths) < 2:
        return None
    *sources, target = paths
    for source in sources:
        inside = target.endswith("/") or len(sources) > 1
        place = posixpath.join(target, posixpath.basename(source.rstrip("/"))) if inside else target
        if fits(source, folder):
            return Named(source, moved_to=place)
        if fits(place, folder):
            return Named(place, moved_from=source)
    return None
