"""Turns and steps of a path: recorded by marks in native logs, derived from the messages in all others.

A recorded turn reaches from its `turn_start` to its `turn_end`. Outside of those every user message begins a derived
turn; it is closed by its last answer, where that asks for no tools and every call of the turn has its result.

    turn_start  user  [request_header  step_start  assistant  tool_call  toolResult  step_end]...  turn_end
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from . import tree
from .entries import Flag
from .log.index import NONE
from .text import as_dict, as_str, blocks, message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from .log.index import Index
    from .tree import Runs
    from .types import Entry

TURN_MARKS = frozenset({"turn_start", "turn_end"})
STEP_MARKS = frozenset({"step_start", "step_end"})
CUTS = frozenset({"compaction", "reset_boundary"})  # what takes entries above it from a model's sight

_OUTSIDE, _DERIVED, _RECORDED = range(3)  # of turns, in one by its messages, in one by its marks
MOST = 10**9  # what a turn or step can be numbered; a log that says more would leave no number for the next one
NOT_STARTED, OUTCOME_UNKNOWN = "TOOL_NOT_STARTED", "TOOL_OUTCOME_UNKNOWN"
_ADVICE = {
    NOT_STARTED: "The work was cut off before this tool was started, so nothing of it happened. Call it again if it is "
    "still needed.",
    OUTCOME_UNKNOWN: "The work was cut off while this tool was running: all of it, part of it or nothing may have "
    "happened. Look at the state it was to change before you call it again.",
}


class Open(NamedTuple):
    """The recorded turn that a path ends in."""

    turn: int
    start: int  # ordinal of its turn_start
    step: int  # number of the step that is open, 0 for none
    steps: int  # number of the last step that was begun, 0 for none


class Call(NamedTuple):
    """A tool call that has no result."""

    id: str
    name: str
    started: bool  # a `tool_call` entry says so


@dataclass(slots=True)
class Turn:
    """One turn of a path; ordinals, NONE where there is nothing."""

    start: int  # turn_start, or the user message of a derived turn
    recorded: bool
    number: int = 0
    end: int = NONE  # turn_end, or the answer that closed a derived turn
    prompt: int = NONE  # its first user message
    steps: int = 0
    open_step: int = NONE  # step_start of the step that did not end
    kind: str | None = None  # how it ended; None while it goes on
    answers: list[int] = field(default_factory=list[int])  # assistant messages
    exchange: list[int] = field(default_factory=list[int])  # these, tool results and `tool_call`, in path order


class Nearest:
    """Finds the nearest entry of some types at or above a place; a log that grows costs only its new entries.

    Nothing is remembered of a place that may yet hang elsewhere: below an entry that stands before its parent, or in a
    last line that is still being written.
    """

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._known: tuple[object, int, int] = (None, NONE, NONE)  # index, where it was asked, what was found

    def above(self, index: Index, i: int) -> int:
        """Ordinal of the entry, or NONE."""
        codes = codes_of(index, self._types)
        if not codes:
            return NONE
        known, asked, found = self._known
        at, parent, shape = i, index.parent, index.shape
        while at >= 0 and shape[at] not in codes:
            if at == asked and known is index and not index.forward:
                at = found
                break
            at = parent[at]
        settled = not index.forward and i < len(index) - index.provisional
        self._known = (index, i, at) if settled else (None, NONE, NONE)
        return at


def codes_of(index: Index, types: frozenset[str]) -> set[int]:
    """Numbers of the shapes of these types."""
    return {code for code, shape in enumerate(index.shapes.items) if shape.type in types}


def number_of(entry: Mapping[str, Any], name: str) -> int:
    """A turn or step number as stored; 0 for what is none."""
    value = entry.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST else 0


def before_prompt(index: Index, i: int) -> int:
    """Where work goes on so that a user message is written anew: above it, and above the mark of the turn it begins."""
    above = index.parent[i]
    return index.parent[above] if above >= 0 and index.type_of(above) == "turn_start" else above


def begun(index: Index) -> bytearray:
    """1 for each entry of the whole tree that begins a turn: a `turn_start`, a user message outside recorded turns."""
    kinds = [(shape.type, shape.role) for shape in index.shapes.items]
    prompts = bytes(type_ == "message" and role == "user" for type_, role in kinds)
    found = bytearray(prompts[code] for code in index.shape)
    starts, ends = codes_of(index, frozenset({"turn_start"})), codes_of(index, frozenset({"turn_end"}))
    if not starts:
        return found
    parent, shape = index.parent, index.shape
    inside = bytearray(len(index))  # 1 outside of recorded turns, 2 in one, 0 not known yet
    for i in range(len(index)):
        at, walk = i, list[int]()
        while at >= 0 and not inside[at]:
            walk.append(at)
            at = parent[at]
        state = inside[at] if at >= 0 else 1
        for at in reversed(walk):
            if shape[at] in starts:
                state, found[at] = 2, 1
            elif shape[at] in ends:
                state = 1
            elif state == 2:
                found[at] = 0
            inside[at] = state
    return found


def start_of(index: Index, mark: int) -> int:
    """The `turn_start` that belongs to a mark of a turn, or is it; NONE for a `turn_end` that ends nothing."""
    at = mark if index.type_of(mark) == "turn_start" else index.parent[mark]
    while at >= 0 and index.type_of(at) not in TURN_MARKS:
        at = index.parent[at]
    return at if at >= 0 and index.type_of(at) == "turn_start" else NONE


def prompts_above(index: Index, runs: Runs, i: int) -> int:
    """Count the user messages on the path to `i`."""
    codes = [code for code, shape in enumerate(index.shapes.items) if shape.role == "user"]
    count, end = 0, i + 1
    run = runs.of(i) if i >= 0 else NONE
    while run >= 0:
        piece = index.shape[runs.starts[run] : end]
        count += sum(piece.count(code) for code in codes)
        run = runs.parent[run]
        end = runs.end(run) if run >= 0 else 0
    return count


def number_at(index: Index, runs: Runs, read: Callable[[int], Entry], i: int) -> int:
    """The number of the turn that an entry belongs to; 0 for one that stands in none."""
    marks = codes_of(index, TURN_MARKS)
    at = i
    while marks and at >= 0 and index.shape[at] not in marks:
        at = index.parent[at]
    if not marks or at < 0:
        return prompts_above(index, runs, i)
    if index.type_of(at) == "turn_start" and (number := number_of(read(at), "turn")):
        return number
    found = spans(index, tree.path(index, i))
    inside = bool(found) and (at == i or not found[-1].recorded or found[-1].end == NONE)
    return last_number(found, read) if inside else 0


def numbers(index: Index, read: Callable[[int], Entry]) -> list[int]:
    """The same of every entry, in one go."""
    kinds = [(shape.type, shape.role) for shape in index.shapes.items]
    parent, shape = index.parent, index.shape
    last = array("q", [NONE]) * len(index)  # the number of the last turn on the path to an entry
    modes = bytearray(len(index))
    found = [0] * len(index)
    for start in range(len(index)):
        at, walk = start, list[int]()
        while at >= 0 and last[at] == NONE:
            walk.append(at)
            at = parent[at]
        number, mode = (last[at], modes[at]) if at >= 0 else (0, _OUTSIDE)
        for i in reversed(walk):
            type_, role = kinds[shape[i]]
            ends = type_ == "turn_end"
            if type_ == "turn_start":
                number, mode = number_of(read(i), "turn") or number + 1, _RECORDED
            elif type_ == "message" and role == "user" and mode != _RECORDED:
                number, mode = number + 1, _DERIVED
            found[i] = number if ends or mode != _OUTSIDE else 0
            if ends and mode == _RECORDED:
                mode = _OUTSIDE
            last[i], modes[i] = number, mode
    return found


def first_shown(index: Index, path: Sequence[int], read: Callable[[int], Entry]) -> int:
    """The place on a path above which nothing is in its context."""
    cuts = codes_of(index, CUTS)
    start = next((k for k in range(len(path) - 1, -1, -1) if index.shape[path[k]] in cuts), 0)
    if path and index.type_of(path[start]) == "compaction":
        kept = index.ordinal.get(str(read(path[start]).get("firstKeptEntryId")), NONE)
        start = next((k for k in range(start) if path[k] == kept), start)
    return start


def places(
    index: Index, path: Sequence[int], wanted: Container[int], read: Callable[[int], Entry]
) -> dict[int, tuple[int, int]]:
    """Turn and step in which each of the wanted entries of a path stands; 0 for what it stands outside of.

    Steps are numbered as they are recorded; those of a derived turn by its answers.
    """
    found = spans(index, path)
    give_numbers(found, read)
    begin = {turn.start: turn for turn in found}
    ends, marks = codes_of(index, frozenset({"turn_end"})), codes_of(index, frozenset({"step_start"}))
    answers = {code for code, shape in enumerate(index.shapes.items) if shape.role == "assistant"}
    where: dict[int, tuple[int, int]] = {}
    turn: Turn | None = None
    mark, step = NONE, 0
    for i in path:
        code = index.shape[i]
        if i in begin:
            turn, mark, step = begin[i], NONE, 0
        elif turn is not None and (code in marks if turn.recorded else code in answers):
            mark, step = i, step + 1
        if i in wanted:
            stored = number_of(read(mark), "step") if turn is not None and turn.recorded and mark != NONE else 0
            where[i] = (0, 0) if turn is None else (turn.number, stored or step)
        if code in ends:
            turn = None
    return where


def give_numbers(found: Sequence[Turn], read: Callable[[int], Entry]) -> None:
    """Give the turns of a path their numbers: the stored ones, and the next one where none is stored."""
    last = 0
    for turn in found:
        stored = number_of(read(turn.start), "turn") if turn.recorded else 0
        last = turn.number = stored or last + 1


def settle(turn: Turn, index: Index, read: Callable[[int], Entry], *, last: bool) -> None:
    """Find out how one turn of `spans` ended; one that is not the last of its path was at least interrupted."""
    if not turn.recorded:
        _close(turn, index, read)
    elif turn.end != NONE:
        turn.kind = kind_of_end(read(turn.end))
    if turn.end == NONE and turn.kind is None and not last:
        turn.kind = "interrupted"


def bodies(turn: Turn, index: Index) -> list[int]:
    """The entries that `settle` may read."""
    if turn.recorded:
        return [] if turn.end == NONE else [turn.end]
    return turn.exchange if any(index.flags_of(i) & Flag.CALLS for i in turn.answers) else []


def last_number(found: Sequence[Turn], read: Callable[[int], Entry]) -> int:
    """The number of the last turn of a path; 0 where it has none."""
    for k in range(len(found) - 1, -1, -1):
        if found[k].recorded and (number := number_of(read(found[k].start), "turn")):
            return number + len(found) - 1 - k
    return len(found)


def spans(index: Index, path: Sequence[int]) -> list[Turn]:
    """The turns of a path by the shapes of its entries alone: no numbers yet, derived ones not closed yet."""
    kinds = [(shape.type, shape.role) for shape in index.shapes.items]
    found: list[Turn] = []
    turn: Turn | None = None  # the one that entries belong to
    for i in path:
        type_, role = kinds[index.shape[i]]
        if type_ == "message":
            if role == "user":
                if turn is None or not turn.recorded:
                    turn = Turn(i, recorded=False)
                    found.append(turn)
                if turn.prompt == NONE:
                    turn.prompt = i
            elif turn is not None and role == "assistant":
                turn.answers.append(i)
                turn.exchange.append(i)
                turn.steps += not turn.recorded
            elif turn is not None and role == "toolResult":
                turn.exchange.append(i)
        elif type_ == "turn_start":
            turn = Turn(i, recorded=True)
            found.append(turn)
        elif type_ == "turn_end":
            if turn is not None and turn.recorded:
                turn.end = i
            turn = None
        elif turn is not None and type_ == "tool_call":
            turn.exchange.append(i)
        elif turn is not None and turn.recorded and type_ == "step_start":
            turn.steps += 1
            turn.open_step = i
        elif turn is not None and turn.recorded and type_ == "step_end":
            turn.open_step = NONE
    return found


def _close(turn: Turn, index: Index, read: Callable[[int], Entry]) -> None:
    """Find out whether a derived turn ended, and how."""
    if not turn.answers:
        return
    last = turn.answers[-1]
    flags = index.flags_of(last)
    if flags & (Flag.ABORTED | Flag.ERROR):
        turn.kind = "aborted" if flags & Flag.ABORTED else "error"
    elif flags & (Flag.CALLS | Flag.EMPTY):
        return
    if not unanswered(turn, index, read):
        turn.end = last
        turn.kind = turn.kind or "completed"


def unanswered(turn: Turn, index: Index, read: Callable[[int], Entry]) -> list[Call]:
    """The calls of a turn that have no result after them, in the order in which they were made."""
    if not any(index.flags_of(i) & Flag.CALLS for i in turn.answers):
        return []
    waiting: dict[str, Call] = {}
    for i in turn.exchange:
        shape = index.shape_of(i)
        if shape.type == "tool_call":
            call = waiting.get(as_str(read(i).get("callId")))
            if call is not None:
                waiting[call.id] = call._replace(started=True)
        elif shape.role == "toolResult":
            waiting.pop(as_str(message_of(read(i)).get("toolCallId")), None)
        elif shape.flags & Flag.CALLS:
            for block in blocks(message_of(read(i)).get("content")):
                if block.get("type") == "toolCall":
                    id_ = as_str(block.get("id"))
                    waiting[id_] = Call(id_, as_str(block.get("name")), started=False)
    return list(waiting.values())


def kind_of_end(entry: Entry) -> str:
    """The kind of reason that a `turn_end` gives."""
    return as_str(as_dict(entry.get("reason")).get("kind")) or "completed"


def last_closed(index: Index, path: Sequence[int], read: Callable[[int], Entry]) -> int:
    """The nearest place at or above the end of a path at which a turn is closed, NONE where there is none."""
    for turn in reversed(spans(index, path)):
        if not turn.recorded:
            _close(turn, index, read)
        if turn.end != NONE:
            return turn.end
    return NONE


def broken_off(index: Index, path: Sequence[int], read: Callable[[int], Entry]) -> Turn | None:
    """The turn in the middle of which a path ends, with its number; None where the end is a place for a fork."""
    found = spans(index, path)
    if not found:
        return None
    last = found[-1]
    if not last.recorded:
        _close(last, index, read)
    if last.end != NONE:
        return None
    last.number = last_number(found, read)
    return last


def closers(turn: Turn, step: int, calls: Sequence[Call], reason: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What ends a recorded turn, as entries: a result for each unanswered call, `step_end`, `turn_end`."""
    found: list[dict[str, Any]] = [{"type": "message", "message": result(call)} for call in calls]
    if step:
        outcome = "aborted" if reason.get("kind") in {"aborted", "interrupted"} else "error"
        found.append({"type": "step_end", "turn": turn.number, "step": step, "outcome": outcome})
    found.append({"type": "turn_end", "turn": turn.number, "reason": dict(reason)})
    return found


def result(call: Call) -> dict[str, Any]:
    """The message that answers a call which got no result."""
    code = OUTCOME_UNKNOWN if call.started else NOT_STARTED
    return {
        "role": "toolResult",
        "toolCallId": call.id,
        "toolName": call.name,
        "content": [{"type": "text", "text": _ADVICE[code]}],
        "isError": True,
        "details": {"code": code},
    }
