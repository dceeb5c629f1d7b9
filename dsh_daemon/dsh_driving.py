"""What an agent writes into a dsh session: the marks of its turns and steps, its own events, the closers of a crash.

A driver belongs to whoever took the session. It gives what is to be written to the log as it is now, and writes
nothing itself: it is asked again where another program was faster.

    resume       closers, end-seed           only where a turn was cut off: an intact session gains nothing
    first write  end-seed, …                 dsh marks where what it found ends; so does the first who writes to it
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .driver import Begun, Resumed
from .errors import (
    DamagedHeader,
    DamagedRegion,
    InvalidEntry,
    NoOpenTurn,
    NotSupportedByFormat,
    SessionGone,
    StepOpen,
    UnsupportedVersion,
)
from .log.formats import dsh, dsh_writing as writing
from .log.formats.dsh_ledger import HEADER, Broken, Event, Ledger, Unknown, event_of
from .session import Prepared, Session
from .text import as_dict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIECE = 1 << 20  # bytes of a log that are checked at a time
LONG = 256 << 10  # bytes of it that are checked in a thread

# What is wrong with a log or its place, where dsh refuses it, or goes on with less of it than we show.
STOPS = frozenset({
    "mixed_encodings", "wrong_folder", "header_frame_contract", "torn_frame", "damaged_frame", "seq_gap",
    "unreadable_line", "fragment", "missing_id", "extra_header", "nul_run", "torn_tail",
})  # fmt: skip
ELSEWHERE = frozenset({"mixed_encodings", "wrong_folder"})  # of these: wrong is where it stands, not what it holds


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Driver:
    """One agent's hold on a dsh session. Whoever shares the session between tasks holds its lock for every call."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._ledger = Ledger()
        self._end = 0  # bytes of text that the ledger has seen
        self._epoch = ""
        self._first: int | None = None  # number of the first event that this agent may have written

    def ledger(self) -> Ledger:
        """What the log says now, to be written on. Reads what is new in it: the first time all of it.

        Raises DamagedHeader, DamagedRegion, UnsupportedVersion, and NotSupportedByFormat for an event that dsh does
        not know (`eventType`): dsh would not go on with the log either.
        """
        session = self.session
        refuse_damage(session)
        if self._epoch != session.epoch or self._end > session.index.end:
            self._ledger, self._end, self._epoch = Ledger(), 0, session.epoch
        self._end = follow(session, self._ledger, self._end, session.index.end)
        if self._first is None:
            self._first = self._ledger.next
        return self._ledger.copy()

    @property
    def heavy(self) -> bool:
        """Whether what is next takes so long that it belongs into a thread: what is new in the log is read first."""
        return self.session.index.end - self._end > LONG

    def check(self) -> None:
        """Raises what `ledger` does."""
        self.ledger()

    def resume(self) -> Resumed:
        """Close a turn that was cut off, as dsh does it."""
        ledger = self.ledger()
        events = self._close(ledger)
        repaired = [_repair(event) for event in events]
        if events:
            events += writing.numbered(ledger, [writing.end_seed()], now_ms())
        return Resumed(_prepared(events), repaired)

    def start_turn(self, content: object) -> Begun:
        """Begin a turn with what the user says, behind the closers of one that nobody runs. Raises InvalidEntry."""
        ledger = self.ledger()
        prompt = writing.prompt(content)
        events = self._close(ledger)
        events += self._opening(ledger)
        mark = writing.event(dsh.TURN_START, {"turn": ledger.turn + 1})
        events += writing.numbered(ledger, [mark, prompt], now_ms(), first=-1)
        prepared = _prepared(events)
        return Begun(ledger.turn, prepared.ids[-1], prepared.ids[-2], prepared)

    def start_step(self, turn: int, header: object = None) -> Begun:
        """Begin the next step; its header is written where it is another one, or the first of this agent.

        Raises NoOpenTurn, StepOpen, InvalidEntry.
        """
        ledger = self._in_turn(turn)
        if ledger.step:
            raise _step_open(ledger)
        step = ledger.steps + 1
        sent = [writing.event(dsh.STEP_START, {"turn": turn, "step": step})]
        fresh = ledger.header_seq < (self._first or 0)
        if header is not None and (fresh or header != ledger.header):
            reason = "initial" if ledger.header_seq < 0 else "resume" if fresh else "change"
            sent.append(writing.event(HEADER, {"header": header, "reason": reason}))
        events = self._opening(ledger)
        mark = ledger.next
        events += writing.numbered(ledger, sent, now_ms(), first=-1)
        return Begun(step, str(mark), str(mark), _prepared(events))

    def end_step(self, turn: int, step: int, outcome: str = "completed") -> Prepared:
        """End a step; a completed one has its answer. Raises NoOpenTurn, InvalidEntry."""
        ledger = self._in_turn(turn)
        if ledger.step != step:
            text = f"step {step} is not open" + (f", step {ledger.step} is" if ledger.step else "")
            raise NoOpenTurn(text, turn=turn, step=step)
        if outcome == "completed" and not ledger.answered:
            text = "a completed step has its assistant/message in the log, empty as it may be"
            raise InvalidEntry(text, index=0, field="outcome")
        events = self._opening(ledger)
        return _prepared(
            events + writing.numbered(ledger, [writing.event("step/end", {"turn": turn, "step": step})], now_ms())
        )

    def end_turn(self, turn: int, reason: dict[str, Any]) -> Prepared:
        """End a turn, and what is open in it where it was not completed. Raises NoOpenTurn, StepOpen, InvalidEntry."""
        ledger = self._in_turn(turn)
        if ledger.step and reason.get("kind") == "completed":
            raise _step_open(ledger)
        events = self._opening(ledger)
        ends = writing.closers(ledger, writing.reason_of(reason))
        return _prepared(events + writing.numbered(ledger, ends, now_ms()))

    def interrupt(self) -> Resumed:
        """End the turn that this agent leaves open; nothing where there is none."""
        ledger = self.ledger()
        events = self._close(ledger, now_ms())
        return Resumed(_prepared(events), [_repair(event) for event in events])

    def append(self, entries: Sequence[Event]) -> Prepared:
        """Events as they are to stand in the log: type, data, surfaceOp, sourceEventSeqs, ignorable.

        Raises InvalidEntry with index, field and reason.
        """
        writing.refuse_reserved(entries)
        ledger = self.ledger()
        before = self._opening(ledger)
        sent = writing.numbered(ledger, entries, now_ms())
        return Prepared(_prepared(sent).ids, _prepared(before + sent).lines)

    def rename(self, title: str) -> Prepared:
        """Name the session, as its user does in dsh."""
        return self.append([writing.title(title)])

    def _close(self, ledger: Ledger, time: int | None = None) -> list[Event]:
        try:
            return writing.close(ledger, ledger.time if time is None else time)
        except Broken as broken:
            text = f"the turn that was cut off cannot be closed: {broken.reason}; {MEND}"
            raise DamagedRegion(text, path=self.session.path, diagnostic="refused_event", offset=self._end) from None

    def _opening(self, ledger: Ledger) -> list[Event]:
        """The mark of where this agent took the log over, before the first event that it writes."""
        if ledger.next != self._first or ledger.seeded:
            return []
        return writing.numbered(ledger, [writing.end_seed()], now_ms())

    def _in_turn(self, turn: int) -> Ledger:
        ledger = self.ledger()
        if not ledger.open or ledger.turn != turn:
            what = f"turn {ledger.turn} is open" if ledger.open else "no turn is open"
            raise NoOpenTurn(f"turn {turn} is not open: {what}", turn=turn)
        return ledger


def _step_open(ledger: Ledger) -> StepOpen:
    text = f"step {ledger.step} of turn {ledger.turn} is not ended yet"
    return StepOpen(text, turn=ledger.turn, step=ledger.step)


def _prepared(events: Sequence[Event]) -> Prepared:
    return Prepared([str(event["seq"]) for event in events], b"".join(map(writing.line_of, events)))


def _repair(event: Event) -> dict[str, Any]:
    id_ = str(event["seq"])
    if event["type"] != dsh.RESULT:
        return {"entryId": id_, "kind": "stepEnd" if event["type"] == "step/end" else "turnEnd"}
    data = event["data"]
    return {
        "entryId": id_,
        "kind": "toolResult",
        "callId": data["message"]["source"]["callId"],
        "code": data["error"]["code"],
    }


# What the log must be for that


MEND = "`dshd doctor --fix` makes a repaired copy"


def refuse_header(session: Session) -> None:
    """Refuse a log whose header does not say what it is. Raises DamagedHeader, UnsupportedVersion."""
    header = session.header
    if header.state != "ok":
        raise DamagedHeader(f"the header of this log is damaged; {MEND}", path=session.path, detail=header.state)
    if header.version != dsh.VERSION:
        text = f"this log is of version {header.version}, dsh reads version {dsh.VERSION}"
        raise UnsupportedVersion(text, version=header.version)


def refuse_damage(session: Session) -> None:
    """Refuse what dsh would not go on with as it is shown. Raises DamagedHeader, DamagedRegion, UnsupportedVersion."""
    refuse_header(session)
    path = session.path
    if (fault := writing.header_fault(stored_header(session))) is not None:
        raise DamagedHeader(f"dsh refuses the header of this log: {fault}; {MEND}", path=path, detail=fault)
    for found in session.faults():
        if found["code"] in STOPS:
            text = found["message"] if found["code"] in ELSEWHERE else f"{found['message']}; {MEND}"
            raise DamagedRegion(text, path=path, diagnostic=found["code"], offset=found.get("offset", 0))
    if session.index.pending:
        text = f"the last line of this log is unfinished; {MEND}"
        raise DamagedRegion(text, path=path, diagnostic="torn_tail", offset=session.index.end)


def stored_header(session: Session) -> Event:
    """The header as it stands in the log. Raises DamagedHeader."""
    offset = session.header.offset
    try:
        return as_dict(event_of(_line_at(session, offset)))
    except Broken as broken:  # more lenient readers than dsh take it
        text = f"dsh refuses the header of this log: {broken.reason}; {MEND}"
        raise DamagedHeader(text, path=session.path, detail=broken.reason) from None


def _line_at(session: Session, offset: int) -> bytes:
    found = b""
    while b"\n" not in found and (more := session.journal.read(offset + len(found), PIECE)):
        found += more
    return found.partition(b"\n")[0]


def first_event(session: Session) -> int:
    """Where the line behind the header begins."""
    offset = session.header.offset
    return offset + len(_line_at(session, offset)) + 1


def follow(session: Session, ledger: Ledger, start: int, stop: int) -> int:
    """Take the lines of a log from `start` (0: its first event) to `stop` into a ledger; where that ended.

    Raises DamagedRegion, NotSupportedByFormat.
    """
    at = start or first_event(session)
    for line in lines(session, at, stop):
        try:
            ledger.take(event_of(line))
        except Unknown as unknown:
            text = f"{unknown.reason}, and it is not to be ignored: the session can be read, not gone on with"
            raise NotSupportedByFormat(text, format="dsh", eventType=unknown.type) from None
        except Broken as broken:
            text = f"dsh refuses this log for its event {ledger.next}: {broken.reason}; `dshd doctor --fix` repairs it"
            raise DamagedRegion(
                text, path=session.path, diagnostic="refused_event", offset=at, field=broken.field
            ) from None
        at += len(line) + 1
    return at


def lines(session: Session, start: int, stop: int) -> Iterator[bytes]:
    """Whole lines of a log, without their newlines. Raises SessionGone where it was cut off meanwhile."""
    rest: list[bytes] = []
    at = start
    while at < stop:
        data = session.journal.read(at, min(PIECE, stop - at))
        if not data:
            raise SessionGone("the file was cut off under us", path=session.path)
        at += len(data)
        first, *more = data.split(b"\n")
        rest.append(first)
        if more:
            yield b"".join(rest)
            yield from more[:-1]
            rest = [more[-1]]
    if rest and rest[-1]:
        yield b"".join(rest)
