"""The words of a shell command, as far as it takes to see which files it names, from which folder, and what it moves.

This is no shell: nothing is expanded but the home folder and brace lists, and what stands in quotes or in a
here-document is looked through for names as well (`python -c "open('config.ts')"` names config.ts).
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Word = tuple[str, str]  # and the folder that it is spelled from, "" for where the session is
    Fits = Callable[[str, str], bool]  # whether a path, spelled from this folder below the session's, is the wanted one

MOST = 256  # words that the brace lists of one command are spelled out to
LONGEST = 4_096  # characters of a folder, and of a word with brace lists
DEEPEST = 64  # folders that `pushd` remembers
_PIECE = re.compile(
    r"""(?P<end>\n|;|\|\|?|&&?|`|\$?\(|\)|\{\s|\s\})|(?P<gap>(?:[ \t]|\\\n)+|\d*(?:<<<|<<-?|>>|>\||<>|[<>])&?)"""
    r"""|'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|\\(?P<escaped>.)|(?P<plain>[^\s;|&`()<>'"\\]+)|.""",
    re.DOTALL,
)
_QUOTING = re.compile(r"[\\'\"]")
_ESCAPED = re.compile(r'\\([\\"$`\n])')
_APART = re.compile(r"[\s'\"`()<>|;&=,:\[\]{}!?*#]+")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_BEFORE = frozenset({
    "sudo", "doas", "command", "builtin", "env", "nohup", "nice", "time", "timeout", "xargs", "exec", "if", "elif",
    "then", "else", "while", "until", "do", "!",
})  # fmt: skip
_OF_BEFORE = re.compile(r"-.*|\d+[smhd]?", re.DOTALL)  # what such a word is given: `timeout -k 5 10m`
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh", "fish"})
_SCRIPT = re.compile(r"-[A-Za-z]*c")
# Options by which programs first go into a folder.
_LEADS = {
    "git": {"-C"}, "go": {"-C"}, "make": {"-C", "--directory"}, "gmake": {"-C", "--directory"}, "ninja": {"-C"},
    "meson": {"-C"}, "tar": {"-C", "--directory", "--cd"}, "bsdtar": {"-C", "--cd"}, "cargo": {"-C"},
    "npm": {"-C", "--prefix"}, "pnpm": {"-C", "--dir"}, "yarn": {"--cwd"}, "bun": {"--cwd"}, "uv": {"--directory"},
    "poetry": {"-C", "--directory"},
}  # fmt: skip
_IN_ORDER = frozenset({"tar", "bsdtar"})  # go there for the words behind the option alone
_BRACES = re.compile(r"\{([^{}\s,]*+,[^{}\s]*+)\}")
_HOME = re.compile(r"\$(?:HOME\b|\{HOME\})")


class Named(NamedTuple):
    """How a command names a file."""

    word: str
    moved_from: str = ""
    moved_to: str = ""


class _Place(NamedTuple):
    """Where a shell is: the folder, the one before it, those that `popd` leads back to; "" is where the session is."""

    folder: str = ""
    before: str = ""
    pushed: tuple[str, ...] = ()


_START = _Place()


def named(command: str, name: str, fits: Fits) -> Named | None:
    """How a command names the wanted file, whose last part is `name`: a move of it before anything else; None: not."""
    name = plain(name)
    if not may_spell(plain(_QUOTING.sub("", command)), name):
        return None
    found: Named | None = None
    for words in _commands(_HOME.sub("~", command), _Expansion(name)):
        if (move := _move(words, fits)) is not None:
            return move
        if found is None:
            found = next((Named(word) for word, at in _candidates(words, name) if fits(word, at)), None)
    return found


def plain(text: str) -> str:
    """A text as names are compared before it is known which file system they are of: composed, without case."""
    return unicodedata.normalize("NFC", text).casefold()


def _candidates(words: Iterable[Word], name: str) -> Iterator[Word]:
    """The words in which the file may be named, and the pieces of those that hold more than a path."""
    for word, folder in words:
        if name in plain(word):
            yield word, folder
            pieces = (piece for piece in _APART.split(word) if name in plain(piece))
            yield from ((part, folder) for piece in pieces for part in (piece, piece.rstrip(".,")))


# Brace lists


def may_spell(text: str, name: str) -> bool:
    """Whether `name` is in a text, or may be in what its brace lists stand for. Takes time by its length alone.

    False is sure. All readings are followed at once: bit k of `read` is set where, in one of them, what was read ends
    with the first k + 1 characters of the name.
    """
    if name in text:
        return True
    if not name or "{" not in text:
        return False
    places: dict[str, int] = {}
    for k, char in enumerate(name):
        places[char] = places.get(char, 0) | 1 << k
    whole = 1 << (len(name) - 1)
    read, outer = 0, list[tuple[int, int]]()  # of each list that is open: before it, after those of its members read
    for char in text:
        if char == "{":
            outer.append((read, 0))
        elif char == "," and outer:
            before, after = outer.pop()
            outer.append((before, after | read))
            read = before
        elif char == "}" and outer:
            read |= outer.pop()[1]
        elif (read := (read << 1 | 1) & places.get(char, 0)) & whole:
            return True
    return False


class _Expansion:
    """What words stand for: of a command so many at most, of those words alone that may spell the wanted name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._left = MOST

    def __call__(self, word: str) -> list[str]:
        if "{" not in word or len(word) > LONGEST or not may_spell(plain(word), self._name):
            return [word]
        words = list(islice(expanded(word), self._left))
        self._left -= len(words)
        return words or [word]


def expanded(word: str) -> Iterator[str]:
    """All that a word with brace lists stands for, in quotes too: programs read such patterns themselves."""
    left = [word]
    while left:
        word = left.pop()
        inner = _BRACES.search(word)
        if inner is None:
            yield word
        else:
            begin, end = word[: inner.start()], word[inner.end() :]
            left += [f"{begin}{member}{end}" for member in reversed(inner[1].split(","))]


# Where a command is


def _commands(text: str, expand: _Expansion, place: _Place = _START) -> Iterator[list[Word]]:
    """Each simple command, those of a script that a shell is given too, with the folder of each word."""
    outer, words = list[_Place](), list[str]()
    for end, part in chain(_parted(text), [("\n", None)]):
        if part is not None:
            words += expand(part)
            continue
        script = _script(words)
        yield _placed(words if script is None else words[:script] + words[script + 1 :], place.folder)
        if script is not None:
            yield from _commands(words[script], expand, place)
        if end not in {"$(", "`"}:  # there it goes on behind what stands in them
            place = _after(place, words)
        if end.endswith("("):
            outer.append(place)
        elif end == ")" and outer:
            place = outer.pop()
        words = []


def _program(words: Sequence[str]) -> int:
    """Where the program stands in a command, behind what only says how to run it."""
    at = 0
    while at < len(words) and (
        words[at] in _BEFORE or _ASSIGNED.fullmatch(words[at]) or (at and _OF_BEFORE.fullmatch(words[at]))
    ):
        at += 1
    return at


def _script(words: Sequence[str]) -> int | None:
    """Which word is a script that a shell is to run."""
    at = _program(words)
    if at < len(words) and posixpath.basename(words[at]) in _SHELLS:
        for n in range(at + 1, len(words) - 1):
            if _SCRIPT.fullmatch(words[n]):
                return n + 1
    return None


def _after(place: _Place, words: Sequence[str]) -> _Place:
    """Where a shell is after a command."""
    verb, *rest = words[_program(words) :] or [""]
    folder, before, pushed = place
    where = next((word for word in rest if (word == "-" or not word.startswith("-")) and word != "/dev/null"), None)
    if verb == "cd":
        return _Place(before if where == "-" else _into(folder, where or "~"), folder, pushed)
    if verb == "pushd" and where is not None:
        return _Place(_into(folder, where), folder, (*pushed[-DEEPEST:], folder))
    if verb == "pushd" and pushed:
        return _Place(pushed[-1], folder, (*pushed[:-1], folder))
    if verb == "popd" and pushed:
        return _Place(pushed[-1], folder, pushed[:-1])
    return place


def _into(folder: str, path: str) -> str:
    there = below(folder, path)
    return there if len(there) <= LONGEST else folder


def _placed(words: Sequence[str], folder: str) -> list[Word]:
    """Each word of a command with the folder that it is spelled from: some programs first go elsewhere."""
    start = _program(words)
    program = posixpath.basename(words[start]) if start < len(words) else ""
    leads = _LEADS.get(program, frozenset[str]())
    there, option, places = folder, "", [folder] * len(words)
    for n in range(start + 1, len(words) if leads else 0):
        places[n] = there
        if option in leads:  # this one is its value
            there, option = _into(there, words[n]), ""
            continue
        option, given, value = words[n].partition("=")
        if option in leads and given:
            there, option = _into(there, value), ""
        elif option[:2] in leads and len(option) > 2:  # -Csrc
            there = _into(there, option[2:])
        elif program == "git" and not given and not option.startswith("-"):
            break  # what follows are options of its command
    return list(zip(words, places if program in _IN_ORDER else [there] * len(words), strict=True))


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


def _move(words: Sequence[Word], fits: Fits) -> Named | None:
    """What `mv` or `git mv` does to the wanted file, where this command is one."""
    words = words[_program([word for word, _ in words]) :]
    if words and words[0][0] == "git":
        at = 1
        while at < len(words) and words[at][0].startswith("-"):
            at += 2 if words[at][0] in {"-C", "-c"} else 1
        words = words[at:]
    if not words or words[0][0] != "mv":
        return None
    paths = [word for word, _ in words[1:] if not word.startswith("-")]
    if len(paths) < 2:
        return None
    folder = words[0][1]
    *sources, target = paths
    for source in sources:
        inside = target.endswith("/") or len(sources) > 1
        place = posixpath.join(target, posixpath.basename(source.rstrip("/"))) if inside else target
        if fits(source, folder):
            return Named(source, moved_to=place)
        if fits(place, folder):
            return Named(place, moved_from=source)
    return None
