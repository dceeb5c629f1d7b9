"""A repaired copy of a damaged dsh log: all that can be read of it, in the form that dsh loads; the original is kept.

    damaged    0 1 2 . . . 6 7 │ 3 4        4, 5 are lost; another program numbered on from 3
    repaired   0 1 2 ~ ~ ~ 6 7   8 9        ~ an event that says that one was lost: dsh passes over it

Numbers stay what they are where they can, since other events, forks and labels name them. The inbox is emptied where
anything was lost: what waits in it would run, though the event that took it out may be among the lost ones.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import orjson

from .dsh_driving import ELSEWHERE, STOPS, follow, refuse_damage, stored_header
from .errors import DamagedHeader, DamagedRegion, Fault, NotSupportedByFormat
from .log.formats import dsh, dsh_writing as writing
from .log.formats.dsh_ledger import BARE_REASONS, ENVELOPE, Broken, Event, Ledger, Unknown, is_whole
from .log.frames import frame, framed
from .log.journal import replace
from .log.recover import clean, loads
from .naming import dsh_project, dsh_segment
from .text import as_dict, as_str, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .session import Session

LOST = "dsh-daemon/lost"
FILLED = 100_000  # lost events in a row up to which each gets a place of its own
MENDED = STOPS - ELSEWHERE  # diagnostics that the copy does not have


LOSSES = frozenset({"torn_frame", "damaged_frame", "unreadable_line", "fragment", "torn_tail", "missing_id"})


class Repaired(NamedTuple):
    path: str
    kept: str  # where the original is
    lost: int  # events that are not in the copy


def fault(session: Session) -> Fault | None:
    """What dsh refuses of a log, where a repaired copy can do without it. Reads all of it."""
    try:
        refuse_damage(session)
        follow(session, Ledger(), 0, session.index.end)
    except NotSupportedByFormat:
        return None  # an event of another version of dsh: nothing is broken
    except Fault as found:
        if isinstance(found, DamagedRegion) and found.data["diagnostic"] in ELSEWHERE:
            return None
        return found if mended_header(session) is not None else None
    return None


def repair(session: Session) -> Repaired | None:
    """Put a repaired copy in the place of a damaged log. None where there is nothing to repair, or no way to do it.

    The caller sees to it that no dsh has the session, and that nobody writes to it meanwhile. Raises Outdated when
    somebody did, and storage faults; then nothing is changed.
    """
    path, header = session.path, mended_header(session)
    if path is None or header is None or fault(session) is None:
        return None
    draft = Mender(session)
    for _ in draft.lines():
        pass
    if "seedLength" in header and draft.seed is not None:
        header["seedLength"] = draft.seed
    mender = Mender(session, draft)
    first = writing.line_of(header)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    folder, name = os.path.split(path)
    kept = os.path.join(folder, f"damaged-{stamp}.{name.partition('.')[2]}.kept")
    packed = path.endswith(".zstd")
    lines = mender.lines()
    replace(path, frame(first) if packed else first, kept, session.file_size, framed(lines) if packed else lines)
    return Repaired(path, kept, draft.lost)


def mended_header(session: Session) -> Event | None:
    """The header that the copy has; None where it cannot be told which log this is."""
    path = session.path
    if path is None:
        return None
    segment, project = (os.path.basename(at) for at in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))))
    header: Event = {}
    with suppress(DamagedHeader, Broken, ValueError):
        header = dict(stored_header(session)) if session.header.state == "ok" else {}
    if header and header.get("version") != dsh.VERSION:
        return None
    for name in ("sandboxMode", "approvalPolicy"):
        header.pop(name, None)
    id_ = as_str(header.get("id")) or dsh.id_of_folder(path)
    cwd = header.get("cwd")
    created = header.get("createdAt", session.index.time[0] if len(session.index) else 0)
    more = {name: value for name, value in header.items() if name not in {"type", "version", "id", "createdAt", "cwd"}}
    if id_ is None or not is_whole(created):
        return None
    mended = writing.new_header(id_, max(0, created), cwd, **more)
    fits = isinstance(cwd, str | None) and (dsh_project(cwd), dsh_segment(id_)) == (project, segment)
    return mended if fits and writing.header_fault(mended) is None else None


class Mender:
    """One way through a damaged log; `draft` is what an earlier one found out."""

    def __init__(self, session: Session, draft: Mender | None = None) -> None:
        self.session = session
        self.ledger = Ledger()
        self.lost = 0  # events that are not in the copy
        self.seed: int | None = None  # how many events a fork took from its parent, in the new numbers
        self.answered: dict[str, int] = {}  # call -> ordinal of its last result
        self._draft = draft
        self._lossy = draft is not None and (draft.lost > 0 or _has_losses(session))
        self._called: set[str] = set()
        self._shift = 0  # new number - old one, of the run that is being read
        self._moved: dict[int, int] = {}  # old number -> new one, where they differ

    def lines(self) -> Iterator[bytes]:
        """The lines of the copy behind its header."""
        session, index = self.session, self.session.index
        for i in range(len(index)):
            if i == index.inherited and i:
                self.seed = self.ledger.next
            raw = session.raw(i)
            try:
                record: object = loads(raw)
            except ValueError:
                record = None
            number = dsh.number_of(cast("Event", record)) if isinstance(record, dict) else None
            if number is None:
                self.lost += 1
                continue
            yield from self._jump(i, number)
            yield from self._next(i, number, cast("Event", record), raw)
        if index.inherited == len(index) and index.inherited:
            self.seed = self.ledger.next

    def _jump(self, i: int, number: int) -> Iterator[bytes]:
        """Make up for what is missing between the last event and one that was numbered `number`."""
        due = self.ledger.next - self._shift
        missing = number - due
        if missing == 0:
            return
        self.lost += max(1, missing)
        if self._shift == 0 and 0 < missing <= FILLED:
            yield from self._fill(missing, i)
        else:
            self._shift = self.ledger.next - number

    def _fill(self, count: int, i: int) -> Iterator[bytes]:
        """Events in the places of those that are lost: results for the calls that were left without, else marks."""
        ledger, answered = self.ledger, self._draft.answered if self._draft is not None else {}
        stop = ledger.next + count
        while ledger.next < stop:
            made: Event = {"type": LOST, "data": {}, "ignorable": True}
            for closer in writing.closers(ledger):
                if closer["type"] == dsh.RESULT and answered.get(_call(closer), -1) < i:
                    made = closer
                    made["data"]["message"]["id"] = f"interrupted-tool-result-{_call(closer)}-{ledger.next}"
                    break
            yield self._take({"type": made["type"], "seq": ledger.next, "time": ledger.time, **made})

    def _take(self, event: Event) -> bytes:
        self.ledger.take(event)
        return writing.line_of(event)

    def _next(self, i: int, number: int, record: Event, raw: bytes) -> Iterator[bytes]:
        ledger = self.ledger
        first = ledger.next
        if self._is_left_out(record):
            yield from self._leave_out(record, i)
        else:
            for event in self._forms(record):
                try:
                    ledger.take(event)
                except Unknown:  # of another version of dsh, which knows it
                    ledger.next += 1
                except Broken:
                    continue
                self._note(event, i)
                same = event == record and b"\n" not in raw
                yield raw.rstrip(b"\r") + b"\n" if same and _is_plain(raw) else writing.line_of(event)
                break
            else:
                self.lost += 1
                yield from self._leave_out(record, i)
        if self._shift:
            for k in range(ledger.next - first):
                self._moved[number + k] = first + k

    def _note(self, event: Event, i: int) -> None:
        data = as_dict(event.get("data"))
        if event.get("type") == dsh.RESULT:
            self.answered[_call(event)] = i
        elif event.get("type") == dsh.ANSWER:
            content = as_dict(data.get("message")).get("content")
            self._called |= {as_str(block.get("id")) for block in blocks(content) if block.get("type") == "tool-call"}

    def _is_left_out(self, record: Event) -> bool:
        """What must not stand in a log that has lost something: half of the inbox, results of calls that are gone."""
        if not self._lossy:
            return False
        if record.get("type") == dsh.RESULT and record.get("surfaceOp") == "append":
            return _call(record) not in self._called
        return record.get("type") == writing.INBOX

    def _leave_out(self, record: Event, i: int) -> Iterator[bytes]:
        yield from self._fill(len(dsh.expand(record)) if "seq0" in record else 1, i)

    def _forms(self, record: Event) -> Iterator[Event]:
        """The event under its new number: as it was, then with ever less of what may be wrong with it."""
        if "seq0" in record:
            row = {"type": record.get("type"), "seq0": self.ledger.next, "time0": record.get("time0")}
            yield row | {"data": record.get("data")}
            return
        event: Event = {name: value for name, value in record.items() if name in ENVELOPE}
        event["seq"] = self.ledger.next
        if not is_whole(event.get("time")):
            event["time"] = self.ledger.time
        if event.get("ignorable", True) is not True:
            del event["ignorable"]
        if self._moved or self._shift:
            self._renumber(event)
        event = cast("Event", clean(event))
        yield event
        if event.get("type") not in dsh.MESSAGES:
            event.pop("surfaceOp", None)
            event.pop("sourceEventSeqs", None)
            yield event
            if event.get("type") == "turn/end" and self.ledger.open:
                kind = as_str(as_dict(as_dict(event.get("data")).get("reason")).get("kind"))
                reason = {"kind": kind if kind in BARE_REASONS else "interrupted"}
                yield event | {"data": {"turn": self.ledger.turn, "reason": reason}}
            return
        cited = event.pop("sourceEventSeqs", None)
        seqs = cast("list[Any]", cited) if isinstance(cited, list) else []
        known = [seq for seq in dict.fromkeys(seqs) if is_whole(seq) and 0 <= seq < self.ledger.next]
        rest = {"sourceEventSeqs": known} if known else {}
        yield event | rest
        if isinstance(event.get("surfaceOp"), dict):
            shown = self.ledger.surface
            places = sorted(shown.index(seq) for seq in known if seq in shown)
            if places and places == list(range(places[0], places[-1] + 1)):
                yield (
                    event | rest | {"surfaceOp": {"op": "replace", "start": shown[places[0]], "end": shown[places[-1]]}}
                )
        yield event | rest | {"surfaceOp": "append"}

    def _renumber(self, event: Event) -> None:
        """Let an event name other ones by their new numbers."""

        def new(seq: Any) -> Any:
            return self._moved.get(seq, seq) if is_whole(seq) else seq

        def all_new(seqs: Any) -> Any:
            return [new(seq) for seq in cast("list[Any]", seqs)] if isinstance(seqs, list) else seqs

        if "sourceEventSeqs" in event:
            event["sourceEventSeqs"] = all_new(event["sourceEventSeqs"])
        if isinstance(event.get("surfaceOp"), dict):
            event["surfaceOp"] = {name: new(value) for name, value in as_dict(event["surfaceOp"]).items()}
        data = as_dict(event.get("data"))
        if changed := {name: all_new(data[name]) for name in ("messageSeqs", "shadowedSeqs") if name in data}:
            event["data"] = {**data, **changed}
        if isinstance(data.get("shadowedRange"), dict):
            ends = {name: new(value) for name, value in as_dict(data["shadowedRange"]).items()}
            event["data"] = {**as_dict(event["data"]), "shadowedRange": ends}


def _has_losses(session: Session) -> bool:
    """Whether something was lost that the numbers do not tell."""
    return bool(session.index.pending) or any(found["code"] in LOSSES for found in session.faults())


def _call(event: Event) -> str:
    return as_str(as_dict(as_dict(as_dict(event.get("data")).get("message")).get("source")).get("callId"))


def _is_plain(raw: bytes) -> bool:
    """Whether a line is JSON as it stands, and not only what could be recovered of one."""
    try:
        raw.decode()
        orjson.loads(raw)
    except ValueError:
        return False
    return True
