"""The compact index of one log: parallel arrays by ordinal (file order), no bodies.

About 220 bytes an entry. An ordinal is an entry's place in the index; -1 stands for "none" (no parent, no leaf).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from dsh_daemon.entries import KNOWN_TYPES, Flag, kind_of
from dsh_daemon.types import Diagnostic, Format, Kind, TitleSource

from .numbers import Numbers, Ordinals
from .times import NO_TIME, Times

NONE = -1


class Shape(NamedTuple):
    """What entries have in common: there are a few dozen of these in any log, so an entry holds a number."""

    type: str  # in the words of version 3, which all of our code speaks
    role: str | None
    flags: int
    stored: str | None = None  # the type as the log has it, where that is another word

    @property
    def kind(self) -> Kind:
        return kind_of(self.type, self.role)

    @property
    def own_type(self) -> str:
        return self.stored or self.type


class Label(NamedTuple):
    text: str
    by: int  # ordinal of the label entry in force, or of the labelled one where the label is not in the log
    at: str | None = None  # when it was given, where no entry says so


class LabelChange(NamedTuple):
    by: int  # ordinal of the label entry
    target: str  # as written
    text: str | None


@dataclass(slots=True)
class Facts:
    """Sums over the log that a list of sessions shows."""

    title: str | None = None  # the last name given in the log
    title_source: TitleSource = "user"
    model: str | None = None
    cost: float = 0.0
    messages: int = 0
    first_user: int = -1  # ordinal of the first user message
    last_activity: int = NO_TIME  # latest time of a message


@dataclass(slots=True)
class Header:
    """The session header as read; `raw` is the stored object ({} when there is none)."""

    format: Format = "pi"
    version: int = 3
    session_id: str = ""
    cwd: str | None = None
    timestamp: str | int | None = None
    parent: str | None = None  # as stored: a path or an id
    state: str = "ok"  # "ok" | "headerless" | "broken" | "empty" | "foreign"
    offset: int = 0  # of the header line
    slot: bool = False  # omp's 256-byte title slot stands first
    slot_title: str | None = None
    raw: dict[str, object] = field(default_factory=dict[str, object])


@dataclass(slots=True)
class Surface:
    """What a dsh log says beside its events: how they are numbered, and which of them a model sees.

    The surface is a list of messages; one that comes stands at its end, or in place of a range of it.
    """

    next: int = 0  # the number that the next event should have
    shown: list[int] = field(default_factory=list[int])  # ordinals on the surface at the end, in its order
    shadowed: dict[int, int] = field(default_factory=dict[int, int])  # ordinal -> of what replaced it, in that order
    required: dict[str, int] = field(default_factory=dict[str, int])  # types that nobody knows -> first ordinal


class Shapes:
    """Interns shapes; per-shape answers are tables, so that a test over all entries is one lookup each."""

    def __init__(self) -> None:
        self.items: list[Shape] = []
        self.codes: dict[tuple[str, str | None, int, str | None], int] = {}

    def code(self, type_: str, role: str | None, flags: int, stored: str | None = None) -> int:
        key = (type_, role, flags, stored)
        code = self.codes.get(key)
        if code is None:
            if type_ not in KNOWN_TYPES:
                flags |= Flag.UNKNOWN
            if len(self.items) > 60_000:  # a hostile file with a type per line
                type_, role, stored = "other", None, None
            code = self.codes[key] = len(self.items)
            self.items.append(
                Shape(type_, role, int(flags), stored)
            )  # a plain number: arithmetic on an IntFlag is slow
        return code


class Index:
    """What a scan of a log yields. Only `dsh_daemon.log.scan` writes to it."""

    def __init__(self) -> None:
        self.header = Header(state="empty")
        self.header_seen = False
        self.slot: dict[str, Any] | None = None  # omp's title slot as stored
        self.ids: list[str] = []  # wire ids: unique, `<id>~2` for a second entry of one id
        self.ordinal: dict[str, int] = {}  # wire id -> ordinal
        self.numbers: Numbers | None = None  # what both of them are for a log that numbers its entries
        self.parent = array("i")  # ordinal of the parent, NONE for roots, orphans and cut cycles
        self.offset = array("q")  # of the record's first byte in the file
        self.length = array("q")  # of the record in bytes, newline not counted
        self.time = Times()  # milliseconds since 1970 UTC, NO_TIME where unreadable
        self.shape = array("H")  # -> shapes.items
        self.shapes = Shapes()
        self.orphans: dict[int, str] = {}  # ordinal -> the parent id that is not in the file
        self.waiting: dict[str, list[int]] = {}  # the same by parent id
        self.cuts: dict[int, str] = {}  # ordinal -> the parent id whose link closed a cycle
        self.copies: dict[str, int] = {}  # id -> last suffix given to a further entry of it
        self.forward = False  # some entry stands before its parent in the file
        self.knotted = False  # there may be a cycle that is not cut yet
        self.label_log: list[LabelChange] = []
        self.labels: dict[int, Label] = {}  # target ordinal -> label in force (last line of the file wins)
        self.facts = Facts()
        self.diagnostics: list[Diagnostic] = []
        self.damage: list[tuple[int, int]] = []  # (offset, length) of what could not be read inside the log
        self.crlf = False
        self.inherited = 0  # entries at the beginning that a branch or fork took from its parent
        self.surface = Surface()  # of a dsh log
        self.kept_labels: dict[str, tuple[str, str]] = {}  # id -> label and its time, of a log that cannot hold labels

        self.end = 0  # bytes consumed: the end of the last complete line
        self.line = 0  # physical lines consumed up to `end`
        self.mark = b""  # the last bytes before `end`
        self.pending = b""  # bytes after `end`: an unterminated last line
        self.provisional = 0  # entries of the pending line, the last ones of the index
        self._before_tail: _Checkpoint | None = None
        self._unlabeled: set[str] = set()  # targets of labels that are not in the file

    def __len__(self) -> int:
        return len(self.ids)

    def type_of(self, i: int) -> str:
        return self.shapes.items[self.shape[i]].type

    def shape_of(self, i: int) -> Shape:
        return self.shapes.items[self.shape[i]]

    def flags_of(self, i: int) -> int:
        return self.shapes.items[self.shape[i]].flags | (Flag.ORPHAN if i in self.orphans else 0)

    def id_of(self, i: int) -> str | None:
        """Wire id of an ordinal; None for NONE."""
        return None if i < 0 else self.ids[i]

    @property
    def size(self) -> int:
        """Bytes of the file that this index describes."""
        return self.end + len(self.pending)

    def number(self, numbers: Numbers) -> Ordinals:
        """Let the entries be called by numbers, which nobody who reads ids need know."""
        ordinal = Ordinals(numbers)
        self.numbers = numbers
        self.ids, self.ordinal = cast("list[str]", numbers), cast("dict[str, int]", ordinal)
        return ordinal

    def checkpoint(self) -> None:
        """Remember what the pending line may change besides the columns."""
        self._before_tail = _Checkpoint(
            replace(self.facts),
            len(self.label_log),
            len(self.diagnostics),
            len(self.damage),
            replace(self.header),
            self.header_seen,
            self.slot,
        )

    def drop_provisional(self) -> None:
        """Forget the pending line: it is about to be read again."""
        before = self._before_tail
        if before is None:
            return
        keep = len(self) - self.provisional
        if self.provisional:
            self._unlink(keep)
        self.facts = before.facts
        del self.label_log[before.label_log :]
        del self.diagnostics[before.diagnostics :]
        del self.damage[before.damage :]
        self.header, self.header_seen, self.slot = before.header, before.header_seen, before.slot
        self.pending, self.provisional, self._before_tail = b"", 0, None

    def _unlink(self, keep: int) -> None:
        """Take the entries from `keep` on out of the tree."""
        self.knotted = self.knotted or bool(self.cuts)
        for i, name in self.cuts.items():  # the cycle may have run through them; if not, it is cut again
            self.parent[i] = self.ordinal[name]
        self.cuts.clear()
        for id_ in self.ids[keep:]:
            del self.ordinal[id_]
            name, mark, suffix = id_.rpartition("~")
            if mark and suffix.isdigit() and self.copies.get(name) == int(suffix):
                self.copies[name] -= 1
        for i in range(keep, len(self)):
            if (name := self.orphans.pop(i, None)) is not None:
                self.waiting[name].remove(i)
                if not self.waiting[name]:
                    del self.waiting[name]
        if self.forward:
            for i, parent in enumerate(self.parent[:keep]):
                if parent >= keep:
                    self.orphan(i, self.ids[parent])
        for column in (self.ids, self.parent, self.offset, self.length, self.time, self.shape):
            del column[keep:]
        self.resolve_labels()

    def orphan(self, i: int, name: str) -> None:
        """Let `i` stand as a root until an entry `name` turns up."""
        self.parent[i] = NONE
        self.orphans[i] = name
        self.waiting.setdefault(name, []).append(i)

    def adopt_orphans(self) -> bool:
        """Give orphans the parents that have turned up; whether some parent stands behind its child."""
        forward = False
        for name in [name for name in self.waiting if name in self.ordinal]:
            parent = self.ordinal[name]
            for i in self.waiting.pop(name):
                del self.orphans[i]
                self.parent[i] = parent
                forward = forward or parent >= i
        return forward

    def cut_cycles(self) -> None:
        """Make the parent links a forest: in each cycle the entry that stands first in the file becomes a root."""
        parent = self.parent
        state = bytearray(len(parent))  # 0 unseen, 1 on the walk, 2 done
        for start in range(len(parent)):
            if state[start]:
                continue
            walk: list[int] = []
            i = start
            while i >= 0 and not state[i]:
                state[i] = 1
                walk.append(i)
                i = parent[i]
            if i >= 0 and state[i] == 1:
                first = min(walk[walk.index(i) :])
                self.cuts[first] = self.ids[parent[first]]
                parent[first] = NONE
            for i in walk:
                state[i] = 2

    def resolve_labels(self, first: int = 0) -> None:
        """Labels in force: the last line of the file wins, whichever branch it stands on.

        `first`: the place in `label_log` up to which that is known.
        """
        if not first or any(target in self.ordinal for target in self._unlabeled):
            first = 0
            self.labels = {}
            self._unlabeled.clear()
        for by, target, text in self.label_log[first:]:
            i = self.ordinal.get(target)
            if i is None:
                self._unlabeled.add(target)
            elif text is None:
                self.labels.pop(i, None)
            else:
                self.labels[i] = Label(text, by)
        for target, (text, at) in self.kept_labels.items():
            if (i := self.ordinal.get(target)) is not None:
                self.labels[i] = Label(text, i, at)


class _Checkpoint(NamedTuple):
    facts: Facts
    label_log: int
    diagnostics: int
    damage: int
    header: Header
    header_seen: bool
    slot: dict[str, Any] | None
