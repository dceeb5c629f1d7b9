"""One open session: index, journal, leaf and revision. Synchronous; whoever shares it between tasks holds its lock.

Law of revisions: `revision` grows by at least one with every change (entry appended, leaf moved) and never otherwise;
`epoch` is replaced when the state is not a continuation of what was handed out before (file rewritten or truncated).

Law of the leaf: the leaf is the last entry in file order, whoever wrote it, or where a later move put it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import orjson

from . import rows, tree, turns
from .entries import Flag
from .errors import (
    AlreadyExists,
    Busy,
    DamagedHeader,
    DamagedRegion,
    EntryNotFound,
    Fault,
    InvalidEntry,
    LeafMoved,
    NotSupportedByFormat,
    SessionGone,
)
from .log import snapshot
from .log.formats import dsh, writing
from .log.formats.header import SLOT_BYTES, is_title_slot, readable, title_slot
from .log.formats.legacy import migrate
from .log.frames import FrameJournal, open_journal
from .log.index import NO_TIME, NONE, Header, Index
from .log.journal import FileJournal, Journal, MemoryJournal, Outdated, replace
from .log.recover import clean, loads
from .log.scan import MAX_DIAGNOSTICS, continues, scan
from .log.times import instant
from .text import as_dict, as_str, row_text
from .types import Change, Diagnostic, Entry, EntryRef, MethodCause, OpenTurn

if TYPE_CHECKING:
    from .state import LeafMemory

GENERATOR = "dsh-daemon/1"  # in the header of what we create
KEPT_CHANGES = 1_000
NEAR = 16 << 10  # bytes between two bodies that are rather read too than skipped
READ_AHEAD = 4 << 20  # bytes of bodies that are held for one piece of work
SURELY_SHALLOW = 200  # brackets: fewer than these cannot nest more deeply than our encoder goes
CLOCKS_DIFFER = 2_000  # milliseconds by which a file system's clock may be behind the one of whoever wrote an entry
RETRIES = 20  # how often an append looks again when another program keeps writing

Closed = Literal["deleted", "replaced"]

NAMING = frozenset({"session_info", "title_change"})
_NO_HEADER = {"headerless": "no_header", "broken": "broken_header"}  # what the diagnostics call these states


class SessionClosed(Exception):
    """The file of an open session is gone, or holds another session now."""

    def __init__(self, reason: Closed) -> None:
        super().__init__(reason)
        self.reason: Closed = reason


class Rewritten(SessionGone):
    """An entry is not where it was: another program is rewriting the file; who looks again sees it as it is then."""


class Session:
    """An open session. Entries are named by ordinals inside and by ids outside."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.index = Index()
        self.leaf = NONE
        self.epoch = secrets.token_hex(8)
        self.revision = 1
        self.scanned = 0  # bytes that opening had to read
        self.wire_id = ""  # the id as listed, which differs from the header's where two files share that one
        self.changes: deque[Change] = deque(maxlen=KEPT_CHANGES)
        self.history: list[str | None] = []  # where moves of the leaf came from, oldest first
        self._runs: tuple[tuple[str, int], tree.Runs] | None = None
        self._fork_text: tuple[object, str | None] = (None, None)  # of which index, what it is
        self._turn_marks = turns.Nearest(turns.TURN_MARKS)
        self._step_marks = turns.Nearest(turns.STEP_MARKS)
        self._headers = turns.Nearest(frozenset({"request_header"}))

    @classmethod
    def open(
        cls,
        path: str,
        kept: bytes | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        scanner: Callable[[Index, Journal, int, Callable[[], bool]], None] = scan,
    ) -> Session:
        """Open the file at `path` and index it, from the snapshot `kept` on where that fits. Raises a storage fault."""
        session = cls(open_journal(path))
        session.load(kept, cancelled, scanner)
        return session

    @classmethod
    def in_memory(cls, header: dict[str, Any]) -> Session:
        """A session that lives in this process only."""
        session = cls(MemoryJournal(orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE)))
        session.load()
        return session

    def load(
        self,
        kept: bytes | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        scanner: Callable[[Index, Journal, int, Callable[[], bool]], None] = scan,
    ) -> None:
        """Scan the log into a new index; the leaf becomes the last entry."""
        size = self.journal.size()
        index = (snapshot.load(kept, self.journal, size) if kept is not None else None) or Index()
        self.scanned = size - index.end
        scanner(index, self.journal, size, cancelled)
        self.adopt(index)

    def adopt(self, index: Index) -> None:
        index.kept_labels = self.index.kept_labels
        if index.kept_labels:
            index.resolve_labels()
        self.index = index
        self._runs = None
        index.inherited = _inherited(index, self.path)
        self.leaf = len(index) - 1
        self.wire_id = self.wire_id or index.header.session_id

    @property
    def path(self) -> str | None:
        return self.journal.path

    @property
    def header(self) -> Header:
        return self.index.header

    @property
    def leaf_id(self) -> str | None:
        return self.index.id_of(self.leaf)

    # Reading

    def find(self, entry_id: str | None) -> int:
        """Ordinal of an entry; NONE for None. Raises EntryNotFound."""
        if entry_id is None:
            return NONE
        i = self.index.ordinal.get(entry_id)
        if i is None:
            raise EntryNotFound(
                f"there is no entry {entry_id!r} in this session", sessionId=self.wire_id, entryId=entry_id
            )
        return i

    def hangable(self, entry_id: str) -> int:
        """Ordinal of an entry under which a line can be written. Raises EntryNotFound, DamagedRegion."""
        i = self.find(entry_id)
        if "~" in entry_id and self.index.ordinal.get(entry_id.rpartition("~")[0]) is not None:
            text = f"another entry of this file has the id of {entry_id}, so a line cannot name it as its parent"
            raise DamagedRegion(text, entryId=entry_id, offset=self.index.offset[i], diagnostic="duplicate_id")
        return i

    def raw(self, i: int) -> bytes:
        """The bytes of an entry as they stand in the file."""
        data = self.journal.read(self.index.offset[i], self.index.length[i])
        if len(data) < self.index.length[i]:
            raise Rewritten("the file was cut off under us", path=self.path)
        return data

    def entry(self, i: int) -> Entry:
        """An entry as the wire shows it: its wire id, valid text, version 3 fields also where the file is older."""
        return self._decode(i, self.raw(i))

    def stored(self, i: int) -> Entry:
        """An entry as the log has it, where that is in other words than version 3; with what makes it an entry."""
        if self.header.format != "dsh":
            return self.entry(i)
        return dsh.as_stored(*self._event(i, self.raw(i)))

    def inside(self, entry_id: str) -> Entry | None:
        """The event of this number where a row of several holds it, as dsh would have written it alone."""
        numbers = self.index.numbers
        if numbers is None or not entry_id.isdecimal() or len(entry_id) > 16 or not len(numbers):
            return None
        i = numbers.before(int(entry_id)) - 1
        if i < 0 or self.index.type_of(i) != "assistant_chunks":
            return None
        record, _ = self._event(i, self.raw(i))
        found = next((event for event in dsh.expand(record) if str(event.get("seq")) == entry_id), None)
        if found is None or "seq0" not in record:
            return None
        return dsh.as_stored(found, dsh.View(entry_id, str(int(entry_id) - 1), dsh.stamp(found.get("time"))))

    def _event(self, i: int, raw: bytes) -> tuple[Entry, dsh.View]:
        index = self.index
        wire_id = index.ids[i]
        record, sound = _parsed(raw)
        number = dsh.number_of(cast("Entry", record)) if isinstance(record, dict) else None
        if not isinstance(record, dict) or (number is not None and wire_id.partition("~")[0] != str(number)):
            raise Rewritten("the file was rewritten under us", path=self.path)
        event = cast("Entry", record)
        view = dsh.View(wire_id, index.id_of(index.parent[i]), index.time.iso(i))
        return (event if sound else clean(event)), view

    def fetch(self, wanted: Iterable[int]) -> Callable[[int], Entry]:
        """What reads these entries, and any other, quickly: neighbours in the file come by one system call.

        Each call lets other threads have the interpreter, and getting it back takes longer than reading a page.
        """
        offset, length = self.index.offset, self.index.length
        found = _Found(self.entry)
        group: list[int] = []
        start = end = total = 0
        for i in sorted(set(wanted)):
            total += length[i]
            if total > READ_AHEAD:
                break
            if group and offset[i] - end > NEAR:
                self._fetch(found, group, start, end)
                group = []
            if not group:
                start = offset[i]
            end = offset[i] + length[i]
            group.append(i)
        if group:
            self._fetch(found, group, start, end)
        return found.__getitem__

    def _fetch(self, found: _Found, group: list[int], start: int, end: int) -> None:
        offset, length, decode = self.index.offset, self.index.length, self._decode
        data = self.journal.read(start, end - start)
        for i in group:
            at = offset[i] - start
            found[i] = decode(i, data[at : at + length[i]])

    def _decode(self, i: int, raw: bytes) -> Entry:
        index = self.index
        if index.header.format == "dsh":
            return dsh.as_entry(*self._event(i, raw))
        wire_id = index.ids[i]
        entry = parsed(raw, wire_id)
        if entry is None:
            raise Rewritten("the file was rewritten under us", path=self.path)
        if index.header.version < 3 or entry.get("id") != wire_id or "parentId" not in entry:
            entry = self._newer(entry, i)
            entry = {**entry, "id": wire_id, "parentId": entry.get("parentId", index.id_of(index.parent[i]))}
        return entry

    def ref(self, i: int) -> EntryRef:
        index = self.index
        return {"id": index.ids[i], "parentId": index.id_of(index.parent[i]), "type": index.shape_of(i).own_type}

    def runs(self) -> tree.Runs:
        """The tree as chains; cut anew when entries came."""
        stamp = (self.epoch, len(self.index))
        if self._runs is None or self._runs[0] != stamp:
            self._runs = stamp, tree.runs(self.index)
        return self._runs[1]

    def recorded_turn(self) -> turns.Open | None:
        """The recorded turn in which the leaf is; None outside of recorded turns."""
        index = self.index
        start = self._turn_marks.above(index, self.leaf)
        if start < 0 or index.type_of(start) != "turn_start":
            return None
        step = steps = 0
        mark = self._step_marks.above(index, self.leaf)
        if mark >= 0 and (tree.is_ancestor(index, start, mark) if index.forward else start < mark):
            steps = turns.number_of(self.entry(mark), "step") or turns.spans(index, self.path_from(start))[0].steps
            step = steps if index.type_of(mark) == "step_start" else 0
        return turns.Open(self._number(start), start, step, steps)

    def _number(self, start: int) -> int:
        """The number of a recorded turn; where its own is damaged, the one after the turn before it."""
        index = self.index
        stored = turns.number_of(self.entry(start), "turn")
        return stored or turns.last_number(turns.spans(index, tree.path(index, start)), self.entry)

    def path_from(self, start: int) -> list[int]:
        """Ordinals from `start`, which is on the active path, down to the leaf."""
        found: list[int] = []
        i = self.leaf
        while i != start:
            found.append(i)
            i = self.index.parent[i]
        found.append(start)
        found.reverse()
        return found

    def open_turn(self) -> OpenTurn | None:
        """The same as the wire shows it."""
        try:
            found = self.recorded_turn()
        except Fault:
            return None  # the file is being rewritten: the next look at it begins a new epoch
        return None if found is None else {"turn": found.turn, "entryId": self.index.ids[found.start]}

    def next_turn(self) -> int:
        """The number that the next turn on this path has."""
        index = self.index
        mark = self._turn_marks.above(index, self.leaf)
        if mark < 0:
            return 1 + turns.prompts_above(index, self.runs(), self.leaf)
        start = turns.start_of(index, mark)
        if start < 0:  # nothing began where something ends
            return 1 + turns.last_number(turns.spans(index, tree.path(index, self.leaf)), self.entry)
        after = [] if start == mark else self.path_from(mark)
        return 1 + self._number(start) + sum(index.shape_of(i).role == "user" for i in after)

    def last_header(self) -> Entry | None:
        """The `request_header` in force at the leaf."""
        found = self._headers.above(self.index, self.leaf)
        return None if found < 0 else self.entry(found)

    def diagnostics(self) -> list[Diagnostic]:
        """What is wrong with the log, in file order where it has a place, then what the leaf is in."""
        return self.faults() + self._about_the_leaf()

    def faults(self) -> list[Diagnostic]:
        """What is wrong with the log, wherever the leaf is: the first thousand, and how many more there are."""
        index = self.index
        found = [*self.journal.faults(), *self._about_the_place(), *index.diagnostics]
        total = len(found) + len(index.orphans) + len(index.cuts)
        for i, name in islice(index.orphans.items(), max(0, MAX_DIAGNOSTICS - len(found))):
            before = index.id_of(i - 1)
            hint = f"; the entry before it in the file is {before}" if before else ""
            found.append({
                "code": "unknown_parent", "severity": "warning", "offset": index.offset[i], "length": index.length[i],
                "entryId": index.ids[i],
                "message": f"its parent {name[:64]} is not in this file, it stands as a root{hint}",
            })  # fmt: skip
        for i, name in islice(index.cuts.items(), max(0, MAX_DIAGNOSTICS - len(found))):
            found.append({
                "code": "cycle", "severity": "warning", "offset": index.offset[i], "length": index.length[i],
                "entryId": index.ids[i],
                "message": f"{index.ids[i]} and {name} were each other's ancestors; the link between them was cut",
            })  # fmt: skip
        if total > len(found):
            text = f"{total - len(found)} more faults of this file are not listed"
            found.append({"code": "more_faults", "severity": "info", "message": text})
        return found

    def _about_the_place(self) -> list[Diagnostic]:
        """What is wrong with where a dsh log stands: dsh refuses a whole root for it."""
        path = self.path
        if path is None or self.header.format != "dsh" or (named := dsh.id_of_folder(path)) is None:
            return []
        found: list[Diagnostic] = []
        other = path.removesuffix(".zstd") if path.endswith(".zstd") else f"{path}.zstd"
        if os.path.exists(other):
            text = f"the same folder holds {os.path.basename(other)} too; dsh refuses a root of two encodings"
            found.append({"code": "mixed_encodings", "severity": "warning", "message": text})
        if self.header.state == "ok" and named != self.header.session_id:
            text = f"its folder is named for {named}, its header for {self.header.session_id}; dsh refuses it"
            found.append({"code": "wrong_folder", "severity": "warning", "message": text})
        return found

    @property
    def packed(self) -> bool:
        """Whether the log is compressed, so that one body may take as long to read as many."""
        return isinstance(self.journal, FrameJournal)

    @property
    def file_size(self) -> int:
        """Bytes of the file that are known: not those of the log, where it is compressed."""
        return self.journal.file_size if isinstance(self.journal, FrameJournal) else self.index.size

    @property
    def damaged(self) -> bool:
        """Whether a part of the log cannot be read, or is missing."""
        return bool(self.index.damage) or any(fault["severity"] == "error" for fault in self.journal.faults())

    def restore(self, memory: LeafMemory) -> None:
        """Put the leaf where it was left, where the log is what it was then."""
        index = self.index
        self.history = [place for place in memory.history if place is None or place in index.ordinal]
        same = memory.size == index.size and memory.last_entry == index.id_of(len(index) - 1)
        if same and (memory.leaf is None or memory.leaf in index.ordinal):
            self.leaf = self.find(memory.leaf)

    def keep_labels(self, labels: dict[str, tuple[str, str]]) -> None:
        """Show these labels (id -> text and time), which the log itself cannot hold."""
        self.index.kept_labels = labels
        self.index.resolve_labels()

    def relabeled(self, entry_id: str, text: str | None, at: str, cause: MethodCause) -> Change:
        """Another label for an entry of a log that cannot hold it; the caller has stored it."""
        kept = self.index.kept_labels
        if text is None:
            kept.pop(entry_id, None)
        else:
            kept[entry_id] = text, at
        self.index.resolve_labels()
        return self._changed(cause, [], {entry_id: text})

    def renamed(self, cause: MethodCause) -> Change:
        """Another title that the log cannot hold; the caller has stored it."""
        return self._changed(cause, [], {})

    def _about_the_leaf(self) -> list[Diagnostic]:
        index, leaf = self.index, self.leaf
        if leaf < 0:
            return []
        found: list[Diagnostic] = []
        broken = rows.dangling(index, self.entry, leaf)
        if broken != NONE:
            safe = self._safe_above(broken)
            what = "calls a tool that has no result" if index.flags_of(broken) & Flag.CALLS else "is empty"
            place = f"the last safe entry is {index.id_of(safe)}" if safe >= 0 else "no entry before it is safe"
            found.append({
                "code": "dangling", "severity": "warning", "entryId": index.ids[broken],
                "message": f"the last answer {what}; {place}",
            })  # fmt: skip
        runs = self.runs()
        depths, run = runs.depths(), runs.of(leaf)
        length = depths[run] - (runs.end(run) - 1 - leaf)
        if len(index) > 10 and length * 10 < max(depths.values()):
            found.append({
                "code": "short_active_path", "severity": "warning", "entryId": index.ids[leaf],
                "message": f"the active path has {length} entries, the longest branch of this session many more",
            })  # fmt: skip
        return found

    def _safe_above(self, i: int) -> int:
        """The nearest message above an unfinished answer at which a model can be asked again, or NONE."""
        index = self.index
        while (i := index.parent[i]) >= 0:
            shape = index.shape_of(i)
            unfinished = shape.role == "toolResult" or shape.flags & (Flag.CALLS | Flag.EMPTY)
            if shape.type == "message" and not unfinished:
                break
        return i

    # Following the file

    def refresh(self, upto: int | None = None) -> list[Change]:
        """Take in what other programs did to the file. Raises SessionClosed when it is not there, or not this one."""
        found = self.journal.check(self.index.size)
        if found == "same":
            return []
        if found == "gone":
            raise SessionClosed("deleted")
        if found == "grown" and continues(self.index, self.journal):
            self.journal.accept()
            return self.take_in("external", upto)
        if found == "touched":
            return self._look_again()
        return [self._start_over()]

    def _look_again(self) -> list[Change]:
        """The file has another time and the same size: it was touched, or rewritten in place."""
        self.journal.accept()
        old, fresh = self.index, Index()
        scan(fresh, self.journal, self.journal.size())
        if fresh.header.session_id != old.header.session_id:
            raise SessionClosed("replaced")
        if (fresh.ids, fresh.offset, fresh.parent) != (old.ids, old.offset, old.parent):
            return [self.become(fresh, "external")]
        leaf = self.leaf
        self.adopt(fresh)
        self.leaf = leaf
        return []

    def _start_over(self) -> Change:
        """The file was replaced or cut: the same session with another content, or another session."""
        path = self.path
        if path is None:
            raise SessionClosed("replaced")
        fresh = Session.open(path)
        if fresh.header.session_id != self.header.session_id:
            fresh.journal.close()
            raise SessionClosed("replaced")
        self.journal.close()
        self.journal = fresh.journal
        return self.become(fresh.index, "external")

    def become(self, index: Index, cause: MethodCause | Literal["external"]) -> Change:
        """Show another content from now on: a new epoch begins."""
        self.adopt(index)
        self.epoch = secrets.token_hex(8)
        self.changes.clear()
        self.history.clear()
        return self._changed(cause, [], {}, resync=True)

    def title(self) -> str | None:
        """The name that the log itself gives the session: omp's title slot, else the last entry, else the header."""
        if self.header.slot:  # omp rewrites it in place
            slot = is_title_slot(self.journal.read(0, 4 * SLOT_BYTES).partition(b"\n")[0])
            if slot is not None and isinstance(slot["title"], str) and slot["title"]:
                return readable(slot["title"])
        given = self.header.raw.get("title")
        if isinstance(given, str) and not turns.codes_of(self.index, NAMING):
            return readable(given).strip() or None
        return self.index.facts.title or None

    def fork_point(self) -> str | None:
        """The last entry that a branch or fork took from its parent; None for any other session."""
        return self.index.id_of(self.index.inherited - 1)

    def fork_text(self) -> str | None:
        """The last message of a user or model that was taken from the parent, as a row shows it."""
        known, text = self._fork_text
        if known is not self.index:
            i = self.index.inherited - 1
            while i >= 0 and self.index.shape_of(i).role not in {"user", "assistant"}:
                i = self.index.parent[i]
            try:
                text = row_text(self.entry(i), rows.TEXT_LIMIT) if i >= 0 else None
            except Fault:
                return None  # the file is being rewritten
            self._fork_text = self.index, text
        return text

    def take_in(self, cause: MethodCause | Literal["external"], upto: int | None = None) -> list[Change]:
        """Index what the file holds beyond `index.size`, up to byte `upto`, and say what that changed."""
        index = self.index
        keep = len(index) - index.provisional
        held = index.ids[keep:]
        labels = len(index.label_log)
        scan(index, self.journal, upto if upto is not None else self.journal.size())
        if index.ids[keep : keep + len(held)] != held:
            # A record that looked whole was only the start of another one: what was handed out is void.
            self.epoch = secrets.token_hex(8)
            self.changes.clear()
            self.leaf = len(index) - 1
            return [self._changed(cause, [], {}, resync=True)]
        new = range(keep + len(held), len(index))
        if not new:
            return []
        self.leaf = len(index) - 1
        changed = {
            change.target: change.text
            for change in index.label_log[min(labels, len(index.label_log)) :]
            if change.target in index.ordinal
        }
        return [self._changed(cause, new, changed)]

    def _changed(
        self,
        cause: MethodCause | Literal["external"],
        new: Iterable[int],
        labels: dict[str, str | None],
        *,
        resync: bool = False,
    ) -> Change:
        before = self.revision
        self.revision += 1
        change: Change = {
            "sessionId": self.wire_id, "epoch": self.epoch, "fromRevision": before, "revision": self.revision,
            "cause": cause, "entries": [self.ref(i) for i in new], "leafId": self.leaf_id, "openTurn": self.open_turn(),
        }  # fmt: skip
        if labels:
            change["labels"] = labels
        if resync:
            change["resync"] = True
        else:
            self.changes.append(change)
        return change

    def since(self, epoch: str, revision: int) -> list[Change] | None:
        """The changes after `revision`, or None where the stream cannot be continued from there."""
        if epoch != self.epoch or revision > self.revision:
            return None
        if revision == self.revision:
            return []
        if not self.changes or self.changes[0]["fromRevision"] > revision:
            return None
        return [change for change in self.changes if change["fromRevision"] >= revision]

    # Changing

    def expect_leaf(self, expected: str | None) -> None:
        if expected != self.leaf_id:
            raise LeafMoved(
                f"the leaf is {self.leaf_id or 'before the first entry'}", expected=expected, actual=self.leaf_id
            )

    def move(self, target: int, cause: MethodCause, *, back: bool = False) -> Change | None:
        """Put the leaf at `target` (NONE = before the first entry); None when it is there already. Writes nothing."""
        if target == self.leaf:
            return None
        if back:
            self.history.pop()
        else:
            self.history = [*self.history[-99:], self.leaf_id]
        self.leaf = target
        return self._changed(cause, [], {})

    def check_writable(self) -> None:
        """Refuse to write to what is not a whole session file. Raises DamagedHeader, NotSupportedByFormat (dsh)."""
        state = self.header.state
        if self.header.format == "dsh":
            text = "only the agent of a dsh session writes to it; a fork is a session of its own"
            raise NotSupportedByFormat(text, format="dsh", instead="session/fork")
        if state == "ok":
            return
        text = {
            "headerless": "this file has no session header and is never written to",
            "broken": "the header of this file is damaged; `dshd doctor --fix` makes a repaired copy",
            "empty": "this file is empty",
        }
        raise DamagedHeader(
            text.get(state, "this file is not a session"), path=self.path, detail=_NO_HEADER.get(state, state)
        )

    def prepare(self, entries: Sequence[dict[str, Any]], parent: int, *, marks: bool = False) -> Prepared:
        """Complete and check entries that are to be appended under `parent`; nothing is written.

        `marks`: whether the marks of turns, steps and forks may be among them.

        Raises InvalidEntry, EntryNotFound, AlreadyExists. Entries that were appended before with the same content are
        not written again.
        """
        return _prepare(self, entries, parent, marks=marks)

    def write(
        self, lines: bytes, lock: Callable[[], Any] | None = None, ready: Callable[[], None] = lambda: None
    ) -> tuple[int, int]:
        """Append lines to the file as it is known; (offset, end) of our bytes. Raises Outdated and write faults."""
        index = self.index
        unterminated = bool(index.pending)
        if lock is None:
            written = self.journal.append(lines, index.size, unterminated=unterminated, ready=ready)
        else:
            with lock():
                written = self.journal.append(lines, index.size, unterminated=unterminated, ready=ready)
        start = written.offset + (1 if unterminated else 0)
        return start, written.offset + written.length

    def write_slot(self, title: str) -> None:
        """Put another title into omp's first line, in place: it always has the same length."""
        first = self.journal.read(0, SLOT_BYTES)
        if len(first) == SLOT_BYTES and first.endswith(b"\n") and is_title_slot(first) is not None:
            self.journal.overwrite(0, title_slot(title, now()))

    def take_written(self, offset: int, end: int, cause: MethodCause) -> list[Change]:
        """Index what was just written at `offset`, with what others may have put before it."""
        changes: list[Change] = []
        if offset > self.index.size:
            changes += self.take_in("external", offset)
        return changes + self.take_in(cause, end)

    def upgrade(
        self, lock: Callable[[], AbstractContextManager[Any]] = nullcontext, ready: Callable[[], None] = lambda: None
    ) -> list[Change]:
        """Rewrite a version 1 or 2 file as version 3, with the original kept beside it; ids stay as they were shown.

        Raises Outdated when another program wrote meanwhile, and write faults; then nothing is changed.
        """
        path, version = self.path, self.header.version
        if path is None or version >= 3:
            return []
        data = b"".join(self._upgraded())
        leaf, ids = self.leaf_id, self.index.ids
        with lock():
            ready()
            replace(path, data, f"{path}.v{version}-{sha256(data).hexdigest()[:8]}.bak", self.index.size)
        fresh = Session.open(path)
        self.journal.close()
        self.journal = fresh.journal
        self.adopt(fresh.index)
        if fresh.index.ids == ids:
            self.leaf = self.find(leaf)
            return []
        self.epoch = secrets.token_hex(8)
        self.changes.clear()
        return [self._changed("external", [], {}, resync=True)]

    def _upgraded(self) -> Iterator[bytes]:
        """The lines of this log as version 3; what is no record stays as it is."""
        index, header, done = self.index, self.index.header, 0
        for i in range(len(index)):
            between = self.journal.read(done, index.offset[i] - done)
            if done <= header.offset < index.offset[i]:
                yield self._new_header(between, header.offset - done)
            else:
                yield between or b"\n"
            raw = self.raw(i)
            record = loads(raw)
            newer = self._newer(record, i)
            yield raw if newer == record else dumps(newer)
            done = index.offset[i] + index.length[i]
        rest = self.journal.read(done, index.size - done)
        yield self._new_header(rest, header.offset) if not len(index) else rest

    def _new_header(self, piece: bytes, at: int) -> bytes:
        """`piece` with the header line that begins at `at` saying version 3."""
        end = piece.find(b"\n", at)
        end = len(piece) if end < 0 else end
        raw = {name: value for name, value in self.header.raw.items() if name not in {"type", "version"}}
        return piece[:at] + dumps({"type": "session", "version": 3, **raw}) + piece[end:]

    def _newer(self, record: Entry, i: int) -> Entry:
        """A stored record of any version with the fields of version 3."""
        index = self.index
        return migrate(
            record,
            index.header.version,
            index.ids[i],
            index.id_of(index.parent[i]),
            lambda n: index.ids[n - 1] if 0 < n <= len(index) else None,
        )

    def append(self, entries: Sequence[dict[str, Any]], parent: int | None = None, *, sync: bool = True) -> list[str]:
        """Append a chain of entries under `parent` (default: the leaf), durably; their ids. Without a daemon."""
        self.check_writable()
        for _ in range(RETRIES):
            try:
                self.refresh()
            except SessionClosed as closed:
                raise SessionGone(f"the file of this session was {closed.reason}", path=self.path) from None
            prepared = self.prepare(entries, self.leaf if parent is None else parent)
            if not prepared.lines:
                return prepared.ids
            try:
                offset, end = self.write(prepared.lines)
            except Outdated:
                continue
            self.take_written(offset, end, {"method": "session/append", "client": "local"})
            if sync:
                self.journal.sync()
            return prepared.ids
        raise Busy("another program keeps writing to this session", retryAfterMs=500)


class _Found(dict[int, Entry]):
    """Entries by ordinal; those that were not looked for are read when they are wanted."""

    def __init__(self, read: Callable[[int], Entry]) -> None:
        self.read = read

    def __missing__(self, i: int) -> Entry:
        return self.read(i)


def _inherited(index: Index, path: str | None) -> int:
    """How many entries, from the first one on, a branch or fork copied from its parent: those older than its header.

    Where a clock went wrong, those that stand in the parent's file as well.
    """
    header = index.header
    seed = header.raw.get("seedLength")
    if index.numbers is not None:
        return index.numbers.before(seed) if isinstance(seed, int) and not isinstance(seed, bool) and seed > 0 else 0
    if isinstance(seed, int) and not isinstance(seed, bool):
        return max(0, min(seed, len(index)))
    began = instant(header.timestamp)
    if header.parent is None or began == NO_TIME:
        return 0
    count = 0
    for i in range(len(index)):
        if index.time[i] >= began:
            if path is not None and _is_ahead(index, i, path):
                return max(count, _shared(index, path, header.parent))
            break
        if index.type_of(i) != "label":  # those stand at the end of the copy, under their old times
            count = i + 1
    return count


def _is_ahead(index: Index, i: int, path: str) -> bool:
    """Whether an entry is from later than what was written after it: other entries, or the file itself."""
    following = (index.time[j] for j in range(i + 1, min(i + 1_000, len(index))))
    if any(NO_TIME != at < index.time[i] for at in following):
        return True
    try:
        return index.time[i] > os.stat(path).st_mtime * 1000 + CLOCKS_DIFFER
    except OSError:
        return False


def _shared(index: Index, path: str, parent: str) -> int:
    """How many entries at the beginning of a session stand in the file of its parent, too; 0 where that is gone."""
    if not os.path.isabs(parent) or os.path.realpath(parent) == os.path.realpath(path):
        return 0
    source = Index()
    try:
        journal = FileJournal(parent)
    except Fault:
        return 0
    try:
        scan(source, journal, journal.size())
    except Fault:
        return 0
    finally:
        journal.close()
    count = 0
    for i in range(len(index)):
        if index.ids[i] in source.ordinal:
            count = i + 1
        elif index.type_of(i) != "label":
            break
    return count


class Prepared(NamedTuple):
    """Entries ready to be written; no lines when all of them stand in the log already."""

    ids: list[str]
    lines: bytes
    revision: int = 0  # that they produced, once they are written
    leaf_id: str | None = None  # the leaf then


def _prepare(session: Session, entries: Sequence[dict[str, Any]], parent: int, *, marks: bool) -> Prepared:
    index = session.index
    ids: list[str] = []
    lines: list[bytes] = []
    batch: set[str] = set()
    previous = index.id_of(parent)
    for number, sent in enumerate(entries):
        if not marks:
            writing.refuse_reserved(sent, number)
        id_ = sent.get("id")
        if id_ is None:
            id_ = new_id(index.ordinal, batch)
        elif not isinstance(id_, str) or not writing.ID.fullmatch(id_):
            text = "an entry id is 1 to 64 letters, digits, _ and -, beginning with a letter or digit, and not root"
            raise InvalidEntry(text, index=number, field="id")
        if id_ in batch:
            raise AlreadyExists(f"the id {id_} stands twice in this batch", id=id_, sessionId=session.wire_id)
        if id_ in index.ordinal:
            _same_or_refuse(session, id_, sent, number)
        else:
            under = sent.get("parentId", previous)
            if under is not None and not isinstance(under, str):
                raise InvalidEntry("parentId is the id of an entry or null", index=number, field="parentId")
            if under is not None and under not in batch:
                session.hangable(under)
            record = writing.complete(index.header.format, sent, id_, under, now(), number)
            if (
                record["type"] == "label"
                and record["targetId"] not in index.ordinal
                and record["targetId"] not in batch
            ):
                raise InvalidEntry("the entry to label does not exist", index=number, field="targetId")
            kept = clean(record)
            if kept is not record:
                writing.refuse_what_changes(record, number)
            lines.append(orjson.dumps(kept, option=orjson.OPT_APPEND_NEWLINE))
        ids.append(id_)
        batch.add(id_)
        previous = id_
    return Prepared(ids, b"".join(lines))


def _same_or_refuse(session: Session, id_: str, sent: dict[str, Any], number: int) -> None:
    """A repeated id is a retry when every field that the client sent is the stored one."""
    stored = session.entry(session.find(id_))
    stamp = as_str(stored.get("timestamp"))
    stamp = stamp if instant(stamp) != NO_TIME else now()
    whole = writing.complete(session.header.format, sent, id_, stored.get("parentId"), stamp, number)
    for name, value in sent.items():
        was = stored.get(name)
        same = was == (whole[name] if name == "timestamp" else value)
        if name == "message":
            kept = as_dict(was)
            same = bool(kept) and all(kept.get(key) == whole["message"][key] for key in as_dict(value))
        if not same:
            raise AlreadyExists(f"the entry {id_} exists with another content", id=id_, sessionId=session.wire_id)


def parsed(raw: bytes, wire_id: str) -> Entry | None:
    """A stored line as it can be shown; None where it is not the entry that was indexed as `wire_id`."""
    record, sound = _parsed(raw)
    if not isinstance(record, dict) or not _is_named(cast("Entry", record), wire_id):
        return None
    return cast("Entry", record) if sound else clean(record)


def _parsed(raw: bytes) -> tuple[Any, bool]:
    """What a line holds, None where that is nothing, and whether the wire can have it as it is."""
    try:
        return orjson.loads(raw), raw.count(b"{") + raw.count(b"[") < SURELY_SHALLOW
    except ValueError:
        pass
    try:
        return loads(raw), False
    except ValueError:
        return None, False


def _is_named(record: Entry, wire_id: str) -> bool:
    """Whether a record can be the one that was indexed as `wire_id`."""
    stored = record.get("id")
    if not isinstance(stored, str) or not stored:
        return True  # its id was made up
    return wire_id == readable(stored) or wire_id.startswith(readable(stored) + "~")


def new_id(*taken: Any) -> str:
    """8 lower-case hex digits that no entry has; longer when chance runs out."""
    for size in (4, 4, 4, 4, 8, 16):
        id_ = secrets.token_hex(size)
        if not any(id_ in ids for ids in taken):
            return id_
    raise AssertionError("128 random bits collided")


def dumps(record: Entry) -> bytes:
    """One JSON line of ours without its newline; a half character pair stays the escape that it was."""
    try:
        return orjson.dumps(record)
    except TypeError:
        return json.dumps(record, separators=(",", ":")).encode()


def now() -> str:
    """The present, as entries write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
