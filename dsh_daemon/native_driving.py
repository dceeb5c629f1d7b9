"""What an agent writes into a native session: the marks of its turns and steps, the closers of a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import turns
from .driver import Begun, Resumed
from .errors import InvalidEntry, NoOpenTurn, NotSupportedByFormat, StepOpen, UnsupportedVersion
from .log.index import NONE
from .session import Prepared, Session

if TYPE_CHECKING:
    from collections.abc import Mapping

NEWEST = 3  # version of the native format that we write
INTERRUPTED = {"kind": "interrupted"}
LONG = 1 << 20  # bytes of an open turn above which its closers are made in a thread


class Driver:
    """One agent's hold on a native session. Whoever shares the session between tasks holds its lock for every call."""

    def __init__(self, session: Session) -> None:
        """Raises DamagedHeader, NotSupportedByFormat, UnsupportedVersion."""
        session.check_writable()  # the format of a file whose header cannot be read is a guess
        header = session.header
        if header.format != "native":
            text = f"{header.format} itself continues its sessions; session/launch gives the command"
            raise NotSupportedByFormat(text, format=header.format, instead="session/launch")
        if header.version > NEWEST:
            text = f"this session is of version {header.version}, this daemon writes version {NEWEST}"
            raise UnsupportedVersion(text, version=header.version)
        self.session = session
        self._taken = len(session.index)  # entries when it was taken

    @property
    def heavy(self) -> bool:
        """Whether what is next takes so long that it belongs into a thread."""
        found = self.session.recorded_turn()
        return found is not None and self.session.index.size - self.session.index.offset[found.start] > LONG

    def check(self) -> None:
        """Raises DamagedHeader."""
        self.session.check_writable()

    def resume(self) -> Resumed:
        """Close the recorded turn in which the leaf is, as interrupted; nothing where there is none."""
        entries = self._ending(INTERRUPTED)
        prepared = self._prepared(entries)
        return Resumed(prepared, [_repair(id_, entry) for id_, entry in zip(prepared.ids, entries, strict=True)])

    interrupt = resume  # whoever leaves closes what it began in the same way

    def start_turn(self, content: object) -> Begun:
        """Begin a turn with what the user says, behind the closers of one that nobody runs. Raises InvalidEntry."""
        number = self.session.next_turn()
        prepared = self._prepared([
            *self._ending(INTERRUPTED),
            {"type": "turn_start", "turn": number},
            {"type": "message", "message": {"role": "user", "content": content}},
        ])  # fmt: skip
        return Begun(number, prepared.ids[-1], prepared.ids[-2], prepared)

    def start_step(self, turn: int, header: Mapping[str, Any] | None) -> Begun:
        """Begin the next step, behind its header where it is another one. Raises NoOpenTurn, StepOpen."""
        found = self._in_turn(turn)
        if found.step:
            raise _step_open(found)
        entries: list[dict[str, Any]] = []
        if header is not None:
            before = self.session.last_header()
            known = NONE if before is None else self.session.index.ordinal[str(before["id"])]
            if before is None or before.get("header") != header:
                reason = "initial" if before is None else "resume" if known < self._taken else "change"
                entries.append({"type": "request_header", "header": header, "reason": reason})
        entries.append({"type": "step_start", "turn": turn, "step": found.steps + 1})
        prepared = self._prepared(entries)
        return Begun(found.steps + 1, prepared.ids[-1], prepared.ids[-1], prepared)

    def end_step(self, turn: int, step: int, outcome: str) -> Prepared:
        """End a step; a completed one has its answer. Raises NoOpenTurn, InvalidEntry."""
        found = self._in_turn(turn)
        if found.step != step:
            text = f"step {step} is not open" + (f", step {found.step} is" if found.step else "")
            raise NoOpenTurn(text, turn=turn, step=step)
        entry: dict[str, Any] = {"type": "step_end", "turn": turn, "step": step}
        if outcome != "completed":
            entry["outcome"] = outcome
        elif not self._has_answer():
            text = "a completed step has its assistant message in the log, empty as it may be"
            raise InvalidEntry(text, index=0, field="outcome")
        return self._prepared([entry])

    def end_turn(self, turn: int, reason: dict[str, Any]) -> Prepared:
        """End a turn, and what is open in it where it was not completed. Raises NoOpenTurn, StepOpen."""
        found = self._in_turn(turn)
        if found.step and reason["kind"] == "completed":
            raise _step_open(found)
        return self._prepared(self._ending(reason))

    def _prepared(self, entries: list[dict[str, Any]]) -> Prepared:
        session = self.session
        leaf = session.leaf
        if entries and leaf != NONE:
            leaf = session.hangable(session.index.ids[leaf])
        return session.prepare(entries, leaf, marks=True)

    def _ending(self, reason: dict[str, Any]) -> list[dict[str, Any]]:
        session = self.session
        found = session.recorded_turn()
        if found is None:
            return []
        turn = turns.spans(session.index, session.path_from(found.start))[0]
        turn.number = found.turn
        calls = turns.unanswered(turn, session.index, session.fetch(turn.exchange))
        return turns.closers(turn, found.step, calls, reason)

    def _in_turn(self, turn: int) -> turns.Open:
        found = self.session.recorded_turn()
        if found is None or found.turn != turn:
            what = "no turn is open" if found is None else f"turn {found.turn} is open"
            raise NoOpenTurn(f"turn {turn} is not open: {what} at the leaf", turn=turn)
        return found

    def _has_answer(self) -> bool:
        """Whether an assistant message stands in the step in which the leaf is."""
        index, i = self.session.index, self.session.leaf
        while i >= 0 and (shape := index.shape_of(i)).type != "step_start":
            if shape.role == "assistant":
                return True
            i = index.parent[i]
        return False


def _step_open(found: turns.Open) -> StepOpen:
    text = f"step {found.step} of turn {found.turn} is not ended yet"
    return StepOpen(text, turn=found.turn, step=found.step)


def _repair(id_: str, entry: dict[str, Any]) -> dict[str, Any]:
    if entry["type"] == "message":
        message = entry["message"]
        code = message["details"]["code"]
        return {"entryId": id_, "kind": "toolResult", "callId": message["toolCallId"], "code": code}
    return {"entryId": id_, "kind": "stepEnd" if entry["type"] == "step_end" else "turnEnd"}
