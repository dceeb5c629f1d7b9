"""Plan the copy of a path into a new session file: what is copied byte for byte, what must be written anew.

Label entries stay behind and are written again at the end, so whatever referred to one is led elsewhere:

    e1 <- label <- e3      parentId, fromId   to the nearest kept entry above     e1 <- e3
                           firstKeptEntryId   to the next kept entry below
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson

from .errors import NotAUserMessage
from .log.index import NONE
from .log.recover import clean, loads
from .text import as_str
from .tree import path
from .turns import before_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .log.index import Index
    from .types import Entry

# Diagnostics of lines that hold more than one record: there the byte between two records need not be a newline.
_SHARED_LINES = {"glued_records", "fragment", "nul_run"}
_MANY = 1_000  # diagnostics at which the scan stops listing them
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]', re.DOTALL)


@dataclass(slots=True)
class BranchPlan:
    kept: list[int]  # ordinals in path order
    changed: dict[int, bytes] = field(default_factory=dict[int, bytes])  # ordinal -> its line as it must be written
    labels: list[Entry] = field(default_factory=list[dict[str, Any]])  # to append, in this order
    last: str | None = None  # id of the last of all these lines

    def pieces(self, index: Index) -> list[tuple[int, int] | bytes]:
        """List what follows the header: (offset, length) in the source, or a line; a newline goes behind each."""
        shared = len(index.diagnostics) >= _MANY or any(d["code"] in _SHARED_LINES for d in index.diagnostics)
        found: list[tuple[int, int] | bytes] = []
        for i in self.kept:
            if i in self.changed:
                found.append(self.changed[i])
                continue
            offset, length = index.offset[i], index.length[i]
            last = found[-1] if found else b""
            if isinstance(last, tuple) and last[0] + last[1] + 1 == offset and not shared:
                found[-1] = (last[0], offset + length - last[0])
            else:
                found.append((offset, length))
        found.extend(orjson.dumps(clean(label)) for label in self.labels)
        return found

    def damage(self, index: Index) -> int | None:
        """Offset of the first unreadable bytes between the entries that are copied; None where there are none.

        An entry whose parent is not in the file may have lost it to any damage before it.
        """
        if not self.kept:
            return None
        low = 0 if self.kept[0] in index.orphans else min(index.offset[i] for i in self.kept)
        high = max(index.offset[i] for i in self.kept)
        return next((offset for offset, _ in index.damage if low < offset < high), None)

    def crosses_damage(self, index: Index) -> bool:
        """Whether unreadable bytes stand between the entries that are copied."""
        return self.damage(index) is not None


def branch_path(index: Index, i: int, position: Literal["before", "at"]) -> list[int]:
    """List the ordinals that a branch takes along: up to the parent of a user message, or up to an entry itself.

    Raises NotAUserMessage for "before" anything else.
    """
    if position == "at":
        return path(index, i)
    shape = index.shape_of(i)
    if shape.role != "user":
        what = f"{shape.role} message" if shape.role else f"{shape.type} entry"
        article = "an" if what[0] in "aeiou" else "a"
        raise NotAUserMessage(
            f"{index.ids[i]} is {article} {what}; a branch before something wants a user's message",
            entryId=index.ids[i],
            **({"role": shape.role} if shape.role else {}),
        )
    return path(index, before_prompt(index, i))


def plan_branch(
    index: Index,
    ordinals: Sequence[int],
    read: Callable[[int], Entry],
    raw: Callable[[int], bytes],
    fresh: Callable[[], str],
) -> BranchPlan:
    """Plan the copy of a path (`ordinals`, root first).

    `read` gives an entry as version 3 has it, `raw` its bytes, `fresh` an id that is new to both files.
    """
    labels = {i for i in ordinals if index.type_of(i) == "label"}
    plan = BranchPlan([i for i in ordinals if i not in labels])
    above, below = _stand_ins(index, ordinals, labels)
    parent: str | None = None
    previous = NONE
    for i in plan.kept:
        fields: dict[str, str | None] = {}
        if index.parent[i] != previous or i in index.orphans or i in index.cuts:
            fields["parentId"] = parent
        if labels and (type_ := index.type_of(i)) in {"compaction", "branch_summary"}:
            fields |= _references(type_, read(i), above, below)
        if index.header.version < 3:
            plan.changed[i] = orjson.dumps(clean({**read(i), **fields}))
        elif fields:
            plan.changed[i] = with_fields(raw(i), fields)
        parent, previous = stored_id(index, i, read), i
    plan.labels = _labels(index, plan.kept, parent, read, fresh)
    plan.last = plan.labels[-1]["id"] if plan.labels else parent
    return plan


def stored_id(index: Index, i: int, read: Callable[[int], Entry]) -> str:
    """Id of an entry as its line has it: a second line of one id is named `<id>~2` on the wire only."""
    id_ = index.ids[i]
    return as_str(read(i).get("id")) or id_ if "~" in id_ else id_


def _stand_ins(index: Index, ordinals: Sequence[int], labels: set[int]) -> tuple[dict[str, str | None], dict[str, str]]:
    """For the id of each dropped label: the nearest kept entry above it (None: none), and the next one below it."""
    above: dict[str, str | None] = {}
    below: dict[str, str] = {}
    last: str | None = None
    waiting: list[str] = []
    for i in ordinals:
        id_ = index.ids[i]
        if i in labels:
            above[id_] = last
            waiting.append(id_)
        else:
            below.update(dict.fromkeys(waiting, id_))
            waiting.clear()
            last = id_
    return above, below


def _references(type_: str, entry: Entry, above: dict[str, str | None], below: dict[str, str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    if type_ == "branch_summary":
        origin = entry.get("fromId")
        if isinstance(origin, str) and origin in above:
            found["fromId"] = above[origin] or "root"
        return found
    first, through = entry.get("firstKeptEntryId"), entry.get("providerReplayThroughEntryId")
    if isinstance(first, str) and first in below:
        found["firstKeptEntryId"] = below[first]
    if isinstance(through, str) and above.get(through) is not None:
        found["providerReplayThroughEntryId"] = above[through]
    return found


def _labels(
    index: Index, kept: Sequence[int], parent: str | None, read: Callable[[int], Entry], fresh: Callable[[], str]
) -> list[Entry]:
    """Make new entries of the labels in force on what is kept, in the order in which they were given."""
    found: list[Entry] = []
    for by, i, text in sorted((index.labels[i].by, i, index.labels[i].text) for i in kept if i in index.labels):
        entry = {
            "type": "label",
            "id": fresh(),
            "parentId": parent,
            "timestamp": read(by).get("timestamp"),
            "targetId": stored_id(index, i, read),
            "label": text,
        }
        parent = entry["id"]
        found.append(entry)
    return found


def with_fields(raw: bytes, fields: dict[str, str | None]) -> bytes:
    """Set some top-level fields of a JSON object and leave every other byte as it was."""
    want = {**loads(raw), **fields}
    result = raw
    for name, value in fields.items():
        result = _set(result, name, orjson.dumps(value))
    if not _same(loads(result), want):
        return orjson.dumps(clean(want))  # the object is stranger than we know: its meaning goes before its bytes
    return result


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    # By text, since NaN is not equal to itself.
    return a.keys() == b.keys() and all(repr(a[key]) == repr(b[key]) for key in a)


def _set(raw: bytes, name: str, value: bytes) -> bytes:
    spans = _values(raw, name)
    if not spans:
        start = raw.index(b"{") + 1
        rest = raw[start:].lstrip()
        comma = b"" if rest.startswith(b"}") else b","
        return raw[:start] + orjson.dumps(name) + b":" + value + comma + raw[start:]
    for start, end in reversed(spans):
        raw = raw[:start] + value + raw[end:]
    return raw


def _values(raw: bytes, name: str) -> list[tuple[int, int]]:
    """Where the values of a top-level field stand (more than once where the key is repeated)."""
    found: list[tuple[int, int]] = []
    depth, key, start, text = 0, b"", -1, b""
    for token in _TOKEN.finditer(raw):
        mark = token[0]
        if mark[:1] == b'"':
            text = mark if depth == 1 and start < 0 else text
        elif mark in b"{[":
            depth += 1
        elif mark == b":" and depth == 1 and start < 0:
            key, start = text, token.end()
        elif (mark == b"," and depth == 1) or (mark in b"}]" and depth == 1):
            if start >= 0 and loads(key) == name:
                value = raw[start : token.start()]
                left = start + len(value) - len(value.lstrip())
                found.append((left, left + len(value.strip())))
            start = -1
            depth -= mark in b"}]"
        elif mark in b"}]":
            depth -= 1
    return found
