"""Where one session touched a file: the entries whose calls did it, what each did, in which turn and step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import aside, tree, turns
from .entries import Flag
from .log.index import NO_TIME, NONE
from .text import as_dict, as_str, blocks, call_text, calls_of, message_of, one_line, row_text
from .touches import Known, Touch, Wanted, applied, change, touches

if TYPE_CHECKING:
    from .log.index import Index
    from .log.journal import Journal
    from .session import Session
    from .types import Entry
    from .wire import types as t

CHUNK = 1 << 20  # bytes that are looked through at once
OVERLAP = 1 << 13  # more of them than a name and the brace lists in it take
TEXT_LIMIT = 240
LOOK_AHEAD = 500  # entries after a call among which its result is looked for
FOLLOWED = 1 << 20  # code points of a file whose text is followed through the changes
Place = tuple[int, int]
_RAN = frozenset({"bashExecution", "pythonExecution", "fileMention"})  # messages that are calls themselves


class Call(NamedTuple):
    id: str  # "" for what a person did
    name: str
    arguments: object


class Trace(NamedTuple):
    """One touch: by which call of which entry, and when; of an entry without a time that of the one before it."""

    time: int
    i: int
    n: int  # which of the touches of its entry
    call: Call
    touch: Touch

    @property
    def place(self) -> Place:
        return self.i, self.n


def mentions(journal: Journal, wanted: Wanted) -> bool:
    """Whether any call of a log may touch the file."""
    return any(wanted.may_be_in(data) for data in _pieces(journal))


def _pieces(journal: Journal) -> Iterator[bytes]:
    """A log in pieces that overlap, so that each name is whole in one of them."""
    for at in range(0, journal.size(), CHUNK):
        aside.go_on()
        yield journal.read(at, CHUNK + OVERLAP)


def _groups(index: Index) -> Iterator[range]:
    """The entries of a log, so many at a time as are read at once."""
    first = 0
    while first < len(index):
        behind = bisect_left(index.offset, index.offset[first] + CHUNK, first + 1)
        yield range(first, behind)
        first = behind


def _entries(session: Session, wanted: Wanted, calling: Collection[int]) -> Iterator[int]:
    """The entries of these shapes of which a call may touch the file, in file order."""
    index, journal = session.index, session.journal
    for group in _groups(index):
        aside.go_on()
        start, last = index.offset[group[0]], group[-1]
        if any(index.shape[i] in calling for i in group) and wanted.may_be_in(
            journal.read(start, index.offset[last] + index.length[last] - start)
        ):
            yield from (i for i in group if index.shape[i] in calling and wanted.may_be_in(session.raw(i)))


def traces(session: Session, wanted: Wanted) -> list[Trace]:
    """Every touch of the wanted file by the calls of a session, in file order."""
    index, cwd = session.index, session.header.cwd
    calling = {
        code for code, shape in enumerate(index.shapes.items)
        if shape.type == "message" and (shape.flags & Flag.CALLS or shape.role in _RAN)
    }  # fmt: skip
    found: list[Trace] = []
    for i in _entries(session, wanted, calling):
        made = ((c, touch) for c in _calls(session.entry(i)) for touch in touches(c.name, c.arguments, wanted, cwd))
        found += [Trace(time_at(index, i), i, n, call, touch) for n, (call, touch) in enumerate(made)]
    return found


def time_at(index: Index, i: int) -> int:
    """Milliseconds since 1970 of an entry, or of the nearest one before it that has a time."""
    while i >= 0 and index.time[i] == NO_TIME:
        i -= 1
    return index.time[i] if i >= 0 else 0


def _calls(entry: Entry) -> Iterator[Call]:
    """The calls of an answer; a command that a person ran and files that they named are calls too."""
    message = message_of(entry)
    role = as_str(message.get("role"))
    if role == "fileMention":
        for file in blocks(message.get("files")):
            yield Call("", "read", {"path": as_str(file.get("path"))})
    elif role in _RAN:
        arguments = {name: message[name] for name in ("command", "code") if name in message}
        yield Call("", "bash", arguments)
    else:
        for block in calls_of(entry):
            yield Call(as_str(block.get("id")), as_str(block.get("name")), block.get("arguments"))


def _text(session: Session, trace: Trace) -> str:
    call = trace.call
    if not call.id:
        return row_text(session.entry(trace.i), TEXT_LIMIT)
    return one_line(call_text({"name": call.name, "arguments": call.arguments}), TEXT_LIMIT)


def items(
    session: Session, session_id: str, all_: Sequence[Trace], chosen: Sequence[Trace], wanted: Wanted, *, changes: bool
) -> list[t.TouchedItem]:
    """What the wire shows of some traces of a session; `all_` are those of the session, in file order."""
    index = session.index
    active = set(tree.path(index, session.leaf))
    where = _numbers(session, sorted({trace.i for trace in chosen}), active)
    diffs = _changes(session, all_, wanted) if changes else {}
    shown: list[t.TouchedItem] = []
    for trace in chosen:
        touch, i = trace.touch, trace.i
        item: t.TouchedItem = {
            "sessionId": session_id, "entryId": index.ids[i], "action": touch.action, "path": touch.path,
            "timestamp": index.time.iso(i), "text": _text(session, trace),
            "branch": "active" if i in active else "abandoned",
        }  # fmt: skip
        turn, step = where.get(i, (0, 0))
        if trace.call.id:
            item["callId"] = trace.call.id
        if touch.renamed_from:
            item["renamedFrom"] = touch.renamed_from
        if touch.renamed_to:
            item["renamedTo"] = touch.renamed_to
        if turn:
            item["turn"] = turn
        if step:
            item["step"] = step
        if _failed(session, trace):
            item["failed"] = True
        if diff := diffs.get(trace.place):
            item["change"] = diff
        shown.append(item)
    return shown


def _numbers(session: Session, wanted: Sequence[int], active: Collection[int]) -> dict[int, tuple[int, int]]:
    """Turn and step of each entry; one walk for all that stand on one path, the active one first."""
    index = session.index
    found: dict[int, tuple[int, int]] = {}
    ends = [session.leaf] if any(i in active for i in wanted) else []
    for end in [*ends, *reversed(wanted)]:
        if end not in found and end != NONE:
            aside.go_on()
            found |= turns.places(index, tree.path(index, end), set(wanted) - found.keys(), session.entry)
    return found


def _result(session: Session, trace: Trace) -> dict[str, Any]:
    """The message that answers a call; {} where none does."""
    index, call = session.index, trace.call.id
    roles = [shape.role == "toolResult" for shape in index.shapes.items]
    for j in range(trace.i + 1, min(len(index), trace.i + 1 + LOOK_AHEAD)) if call else ():
        if roles[index.shape[j]] and call.encode() in session.raw(j):
            message = message_of(session.entry(j))
            if message.get("toolCallId") == call and tree.is_ancestor(index, trace.i, j):
                return message
    return {}


def _failed(session: Session, trace: Trace) -> bool:
    if trace.call.id:
        return _result(session, trace).get("isError") is True
    message = message_of(session.entry(trace.i))
    return bool(message.get("cancelled")) or message.get("exitCode") not in {None, 0}


def _changes(session: Session, all_: Sequence[Trace], wanted: Wanted) -> dict[Place, str]:
    """The change of each trace. The text of a file is followed from where a call wrote all of it, on each path."""
    index, cwd = session.index, session.header.cwd
    texts: dict[int, dict[str, Known]] = {}  # by entry: the files that are known after it
    diffs: dict[Place, str] = {}
    for trace in all_:
        aside.go_on()
        at, touch = trace.i, trace.touch
        while at >= 0 and at not in texts:
            at = index.parent[at]
        known = dict(texts.get(at, {}))
        name = wanted.place(touch.renamed_from or touch.path, cwd)
        before = known.get(name)
        answer = _result(session, trace)
        diffs[trace.place] = change(touch, as_dict(answer.get("details")), before)
        if answer.get("isError") is not True:
            after = applied(touch, before)
            known.pop(name, None)
            if after is not None and len(after.text) < FOLLOWED:
                known[wanted.place(touch.renamed_to or touch.path, cwd)] = after
        texts[trace.i] = known
    return diffs
