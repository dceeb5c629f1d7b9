"""Changes of files as text: the patches that models write, and unified diffs of what a call or its result holds.

    *** Begin Patch                    [src/config.ts#1A2B]
    *** Update File: src/config.ts     PUT 3.=3:
    *** Move to: src/settings.ts       +port: 8080
    @@                                 MV src/settings.ts
    -port: 80
    +port: 8080

A hunk whose place in the file nobody tells begins with `@@ @@`, without numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal, NamedTuple

from .text import many_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONTEXT = 3  # lines around a change
LIMIT = 16_000  # code points of a change
COMPARED = 4_000_000  # pairs of lines above which two texts are not compared line by line
EQUAL, OFTEN = 200_000, 20  # pairs of equal lines above which a line that comes more often begins no match
NOWHERE = "/dev/null"
SOMEWHERE = "@@ @@"

_FILE = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")
_MOVE = re.compile(r"\*\*\* Move to: (.+)")
_ANCHOR = re.compile(r"\[([^\]]+?)(?:#[0-9A-Za-z]+)?\]")  # omp: `[path#tag]`, then operations on numbered lines
_TAG = re.compile(r'<SM:EDIT\b((?:[^<>"]|"[^"]*")*)>')
_TAG_PATH = re.compile(r'\bpath="([^"]+)"')
_SOUGHT = re.compile(r"<SM:(FIND|PUT|AFTER)>")
_NUMBERED = re.compile(r"([-+ ])\s*(\d{1,9})[| ](.*)")  # how pi and omp show a change: sign, number of the line, line

Operation = Literal["add", "update", "delete"]


class Section(NamedTuple):
    """What a patch does to one file."""

    path: str
    operation: Operation
    moved_to: str
    hunks: str


class _Open:
    """A section that is being read. `anchored`: by line numbers, as omp has them."""

    def __init__(self, path: str, operation: Operation = "update", *, anchored: bool = False) -> None:
        self.path = path.strip()
        self.operation: Operation = operation
        self.anchored = anchored
        self.moved_to = ""
        self.lines: list[str] = []

    def take(self, line: str) -> None:
        if (move := _MOVE.fullmatch(line)) is not None:
            self.moved_to = move[1].strip()
        elif not self.anchored or line.startswith("+"):
            self.lines.append(line)
        elif line.startswith("MV "):
            self.moved_to = line[3:].strip()
        elif line.strip() == "REM":
            self.operation = "delete"
        elif line.strip():
            self.lines.append(f"@@ {line.strip()} @@")

    def closed(self) -> Section:
        lines = self.lines
        if self.operation == "add":
            lines = [f"@@ -0,0 +1,{len(lines)} @@", *lines]
        elif lines and not lines[0].startswith("@@"):
            lines = [SOMEWHERE, *lines]
        hunks = "\n".join(SOMEWHERE if line.rstrip() == "@@" else line for line in lines)
        return Section(self.path, self.operation, self.moved_to, hunks)


def sections(patch: str) -> list[Section]:
    """The files that a patch changes, in its order; [] for what is none of the patches that we know."""
    if "<SM:EDIT" in patch:
        return _tagged(patch)
    lines = patch.replace("\r\n", "\n").split("\n")
    found: list[_Open] = []
    plain = False  # in a diff as git and `diff -u` write it
    for k, line in enumerate(lines):
        if (head := _FILE.fullmatch(line)) is not None:
            found.append(_Open(head[2], _operation(head[1])))
            plain = False
        elif line.startswith("*** ") and not line.startswith("*** Move to: "):
            continue
        elif line.startswith("--- ") and lines[k + 1 : k + 2] and lines[k + 1].startswith("+++ "):
            found.append(_between(line[4:], lines[k + 1][4:]))
            plain = True
        elif plain and line.startswith(("+++ ", "diff --git ", "index ")):
            continue
        elif (anchor := _ANCHOR.fullmatch(line)) is not None and (not found or found[-1].anchored):
            found.append(_Open(anchor[1], anchored=True))
        elif found:
            found[-1].take(line)
    return [one.closed() for one in found]


def _operation(word: str) -> Operation:
    return "add" if word == "Add" else "delete" if word == "Delete" else "update"


def _between(old: str, new: str) -> _Open:
    """The section of a diff from `a/path` to `b/path`; a time behind a tab is no part of either."""
    before, after = (name.partition("\t")[0].strip() for name in (old, new))
    if before == NOWHERE:
        return _Open(after.removeprefix("b/"))
    found = _Open(before.removeprefix("a/"), "delete" if after == NOWHERE else "update")
    if after != NOWHERE and after.removeprefix("b/") != found.path:
        found.moved_to = after.removeprefix("b/")
    return found


def _tagged(patch: str) -> list[Section]:
    """The sections of a patch in tags, each of which reaches to the next one."""
    found: list[Section] = []
    end = len(patch)
    for tag in reversed([*_TAG.finditer(patch)]):
        if (path := _TAG_PATH.search(tag[1])) is not None:
            found.append(Section(path[1].strip(), "update", "", _sought(patch[tag.end() : end])))
            end = tag.start()
    return found[::-1]


def _sought(body: str) -> str:
    """Texts to find and to put, as hunks."""
    lines: list[str] = []
    for kind, text in _marked(body):
        if kind == "FIND" or not lines:
            lines.append(SOMEWHERE)
        lines += [("-" if kind == "FIND" else "+") + line for line in lines_of(text)]
    return "\n".join(lines)


def _marked(body: str) -> Iterator[tuple[str, str]]:
    """What stands between each mark and its end; marks that have none cost no look through the rest for each."""
    at = 0
    last = {kind: body.rfind(f"</SM:{kind}>") for kind in ("FIND", "PUT", "AFTER")}
    for mark in _SOUGHT.finditer(body):
        kind, start = mark[1], mark.end()
        if at <= mark.start() and start <= last[kind]:
            at = body.index(f"</SM:{kind}>", start)
            yield kind, body[start:at].removeprefix("\n").removesuffix("\n")


# Diffs


def lines_of(text: str) -> list[str]:
    """The lines of a text; a newline at its end begins no further one."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def whole(path: str, old: str, new: str) -> str:
    """The unified diff of a file whose whole text is known before and after; "" where nothing changed."""
    hunks = "\n".join(_compared(lines_of(old), lines_of(new)))
    return headed(path, path, hunks) if hunks else ""


def made(path: str, text: str) -> str:
    """The same for a text that was written without a word of what was there before."""
    lines = lines_of(text)
    return headed(NOWHERE, path, "\n".join([f"@@ -0,0 +1,{len(lines)} @@", *(f"+{line}" for line in lines)]))


def replaced(old: str, new: str) -> str:
    """One hunk for a text that took the place of another somewhere in a file."""
    before, after = lines_of(old), lines_of(new)
    return "\n".join([SOMEWHERE, *_signed(before, after, _opcodes(before, after))])


def headed(old: str, new: str, hunks: str) -> str:
    return f"--- {old}\n+++ {new}\n{hunks}"


def numbered(shown: str) -> str:
    """Hunks of a change as pi and omp show it, each line with its number; "" for what is no such text."""
    hunks: list[str] = []
    group: list[tuple[str, int, str]] = []
    moved = 0  # lines that the hunks before added
    for line in [*shown.split("\n"), ""]:
        match = _NUMBERED.fullmatch(line)
        if match is not None and match[3] != "...":
            group.append((match[1], int(match[2]), match[3]))
            continue
        if any(sign != " " for sign, *_ in group):
            hunks += _hunk(group, moved)
            moved += sum((sign == "+") - (sign == "-") for sign, *_ in group)
        group = []
    return "\n".join(hunks)


def _hunk(group: Sequence[tuple[str, int, str]], moved: int) -> list[str]:
    signs = [sign for sign, *_ in group]
    before, after = len(signs) - signs.count("+"), len(signs) - signs.count("-")
    first = next(k for k, sign in enumerate(signs) if sign != " ")  # old versions number what is around it wrongly
    start = group[first][1] - first - (moved if signs[first] == "+" else 0)
    start -= not before  # of lines that only come in, the line after which they come
    head = f"@@ -{start},{before} +{start + moved + (not before) - (not after)},{after} @@"
    return [head, *(f"{sign}{text}" for sign, _, text in group)]


def bounded(diff: str, limit: int = LIMIT) -> str:
    """A diff with nothing in it that steers a terminal, cut between lines; the last line then says how many are not."""
    text = many_lines(diff[: 2 * limit]).rstrip("\n")
    if len(text) <= limit and len(diff) <= 2 * limit:
        return text
    kept = text[:limit].rpartition("\n")[0] or text[:limit]
    left = diff.count("\n") - kept.count("\n")
    return f"{kept}\n\\ {left:,} more lines are left out" if left else kept


_Step = tuple[str, int, int, int, int]


def _opcodes(old: Sequence[str], new: Sequence[str]) -> list[_Step]:
    """How to come from one list of lines to the other; of what is too long, that the middle was replaced."""
    most = min(len(old), len(new))
    head = next((k for k in range(most) if old[k] != new[k]), most)
    tail = next((k for k in range(most - head) if old[-1 - k] != new[-1 - k]), most - head)
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    steps: list[_Step] = [("replace", 0, len(a), 0, len(b))] if a or b else []
    if a and b and len(a) * len(b) <= COMPARED:
        steps = [*_matcher(a, b).get_opcodes()]
    shifted = [(tag, i + head, j + head, k + head, m + head) for tag, i, j, k, m in steps]
    first: list[_Step] = [("equal", 0, head, 0, head)] if head else []
    last: list[_Step] = [("equal", len(old) - tail, len(old), len(new) - tail, len(new))] if tail else []
    return first + shifted + last


def _matcher(a: Sequence[str], b: Sequence[str]) -> SequenceMatcher[str]:
    """Compares two lists of lines. It looks at each pair of equal ones, at most of them many times."""
    counts = Counter(a)
    if sum(counts[line] for line in b) <= EQUAL:
        return SequenceMatcher(None, a, b, autojunk=False)
    often = {line for line, count in Counter(b).items() if count > OFTEN}
    return SequenceMatcher(often.__contains__, a, b, autojunk=False)


def _compared(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Numbered hunks of what differs, with some lines around."""
    group: list[_Step] = []
    for tag, i, j, k, m in _opcodes(old, new):
        if tag != "equal":
            group.append((tag, i, j, k, m))
            continue
        if group and j - i > 2 * CONTEXT:
            yield from _grouped(old, new, [*group, (tag, i, i + CONTEXT, k, k + CONTEXT)])
            group = []
        if group:
            group.append((tag, i, j, k, m))
        else:
            back = min(CONTEXT, j - i)
            group = [(tag, j - back, j, m - back, m)]
    if any(tag != "equal" for tag, *_ in group):
        tag, i, j, k, m = group[-1]
        if tag == "equal":
            group[-1] = tag, i, min(j, i + CONTEXT), k, min(m, k + CONTEXT)
        yield from _grouped(old, new, group)


def _grouped(old: Sequence[str], new: Sequence[str], group: Sequence[_Step]) -> Iterator[str]:
    if all(tag == "equal" for tag, *_ in group):
        return
    (_, i, _, k, _), (_, _, j, _, m) = group[0], group[-1]
    yield f"@@ -{i + (j > i)},{j - i} +{k + (m > k)},{m - k} @@"
    yield from _signed(old, new, group)


def _signed(old: Sequence[str], new: Sequence[str], steps: Sequence[_Step]) -> Iterator[str]:
    for tag, i, j, k, m in steps:
        if tag == "equal":
            yield from (f" {line}" for line in old[i:j])
        else:
            yield from (f"-{line}" for line in old[i:j])
            yield from (f"+{line}" for line in new[k:m])
