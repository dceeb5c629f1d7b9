"""Sums over a session: turns, messages, tokens and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from . import aside, tree, turns
from .log.heads import UNREADABLE
from .session import NEAR, Rewritten
from .text import as_dict, as_str, message_of, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .log.index import Index
    from .session import Session
    from .wire import types as t

    Spent = tuple[int, dict[str, Any], str]  # ordinal, usage, name of the model
    Told = tuple[Any, Any, Any]  # usage, provider, model as an entry has them

READ_AT_ONCE = 1 << 20  # bytes
MOST = 2**53 - 1  # what every JSON reader takes for a whole number
ABSURD = 1e15  # no request took so many tokens or cost so much
NAME_LIMIT = 200
UNKNOWN = "unknown"  # whoever answered did not say what it is

# How agents and providers spell what they count.
_INPUT = ("input", "inputTokens", "input_tokens")
_OUTPUT = ("output", "outputTokens", "output_tokens")
_CACHE_READ = ("cacheRead", "cacheReadTokens", "cache_read_input_tokens")
_CACHE_WRITE = ("cacheWrite", "cacheWriteTokens", "cache_creation_input_tokens")
_SPENDING = frozenset({"usage", "model_usage", "compaction", "branch_summary"})  # these have a `usage` of their own


_SUMMARY = "compaction/summary"  # so has this event of dsh


class _Message(msgspec.Struct, gc=False):
    usage: Any = None
    provider: Any = None
    model: Any = None


class _Line(msgspec.Struct, gc=False):
    usage: Any = None
    provider: Any = None
    model: Any = None
    message: _Message | None = None


class _Answer(msgspec.Struct, gc=False):
    source: _Message | None = None


class _Data(msgspec.Struct, gc=False):
    usage: Any = None
    provider: Any = None
    model: Any = None
    message: _Answer | None = None


class _Event(msgspec.Struct, gc=False):
    data: _Data | None = None


_decode = msgspec.json.Decoder(_Line).decode
_decode_event = msgspec.json.Decoder(_Event).decode


class _Sums:
    """What some entries took, by model."""

    def __init__(self, begun: int, messages: int) -> None:
        self.begun = begun
        self.messages = messages
        self.models: dict[str, t.ModelSums] = {}

    def add(self, name: str, tokens: t.Tokens, cost: float) -> None:
        found = self.models.get(name)
        if found is None:
            found = self.models[name] = {
                "tokens": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                "cost": 0.0,
            }
        _add(found["tokens"], tokens)
        found["cost"] += cost

    def shown(self) -> t.Sums:
        tokens: t.Tokens = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
        for model in self.models.values():
            _add(tokens, model["tokens"])
        cost = sum(model["cost"] for model in self.models.values())
        return {"turns": self.begun, "messages": self.messages, "tokens": tokens, "cost": cost, "models": self.models}


def _add(total: t.Tokens, more: t.Tokens) -> None:
    total["input"] = min(total["input"] + more["input"], MOST)
    total["output"] = min(total["output"] + more["output"], MOST)
    total["cacheRead"] = min(total["cacheRead"] + more["cacheRead"], MOST)
    total["cacheWrite"] = min(total["cacheWrite"] + more["cacheWrite"], MOST)


def sums(session: Session) -> t.StatsResult:
    """What this session itself took, on all its branches; apart from that what it inherited, and what its path took.

    One pass over the entries that can name a cost, without reading the others. Raises Rewritten.
    """
    index, path = session.index, tree.path(session.index, session.leaf)
    size = len(index)
    inherited = min(index.inherited, size)
    on_path = bytearray(size)
    for i in path:
        on_path[i] = 1
    begun, messages = turns.begun(index), _messages(index)
    own = _Sums(sum(begun[inherited:]), sum(messages[inherited:]))
    theirs = _Sums(sum(begun[:inherited]), sum(messages[:inherited]))
    active = _Sums(sum(begun[i] for i in path), sum(messages[i] for i in path))
    for i, usage, name in _spent(session):
        tokens: t.Tokens = {
            "input": _count(usage, _INPUT),
            "output": _count(usage, _OUTPUT),
            "cacheRead": _count(usage, _CACHE_READ),
            "cacheWrite": _count(usage, _CACHE_WRITE),
        }
        cost = _cost(usage)
        (theirs if i < inherited else own).add(name, tokens, cost)
        if on_path[i]:
            active.add(name, tokens, cost)
    return {**own.shown(), "activePath": active.shown(), "inherited": theirs.shown()}


def _messages(index: Index) -> bytes:
    """1 for each message."""
    table = [shape.type == "message" for shape in index.shapes.items]
    return bytes(table[code] for code in index.shape)


def _spent(session: Session) -> Iterator[Spent]:
    """Each entry that tells what a request took, in file order."""
    index = session.index
    told = _told_by_dsh if session.header.format == "dsh" else _told
    shapes = index.shapes.items
    table = [s.role == "assistant" or s.type in _SPENDING or s.stored == _SUMMARY for s in shapes]
    chosen = [i for i, code in enumerate(index.shape) if table[code]]
    above: dict[int, str] = {}
    for i, raw in _raw(session, chosen):
        usage, provider, model = told(session, i, raw)
        counted = as_dict(usage)
        if not counted:
            continue
        name = _name(provider, model)
        if not name and index.shape_of(i).role is None:
            name = _answering(session, i, above)  # a summary does not say which model made it
        yield i, counted, name or UNKNOWN


def _told(session: Session, i: int, raw: memoryview) -> Told:
    try:
        line = _decode(raw)
        found = line if line.message is None else line.message
    except UNREADABLE:  # it is damaged, or one of these fields is not what it should be
        entry = session.entry(i)
        stored = message_of(entry) or entry
        return stored.get("usage"), stored.get("provider"), stored.get("model")
    return found.usage, found.provider, found.model


def _told_by_dsh(session: Session, i: int, raw: memoryview) -> Told:
    """What an answer or the summary of a compaction tells; the first names its model as its source."""
    try:
        data = _decode_event(raw).data or _Data()
        by = data if data.message is None else data.message.source or _Message()
    except UNREADABLE:
        stored = as_dict(session.stored(i).get("data"))
        source = as_dict(as_dict(stored.get("message")).get("source")) or stored
        return stored.get("usage"), source.get("provider"), source.get("model")
    return data.usage, by.provider, by.model


def _raw(session: Session, chosen: Sequence[int]) -> Iterator[tuple[int, memoryview]]:
    """The bytes of entries, neighbours by one read."""
    offset, length = session.index.offset, session.index.length
    for group in _groups(chosen, offset, length):
        aside.go_on()
        start, end = offset[group[0]], offset[group[-1]] + length[group[-1]]
        data = session.journal.read(start, end - start)
        if len(data) < end - start:
            raise Rewritten("the file was cut off under us", path=session.path)
        view = memoryview(data)
        for i in group:
            yield i, view[offset[i] - start : offset[i] - start + length[i]]


def _groups(chosen: Iterable[int], offset: Sequence[int], length: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    start = end = 0
    for i in chosen:
        if group and (offset[i] - end > NEAR or end - start > READ_AT_ONCE):
            yield group
            group = []
        if not group:
            start = offset[i]
        end = offset[i] + length[i]
        group.append(i)
    if group:
        yield group


def _answering(session: Session, i: int, known: dict[int, str]) -> str:
    """The model that answered last above an entry, or ""; `known`: what was found, so that no way is gone twice."""
    index = session.index
    walk: list[int] = []
    name = ""
    while i >= 0:
        if i in known:
            name = known[i]
            break
        walk.append(i)
        if index.shape_of(i).role == "assistant":
            message = message_of(session.entry(i))
            name = _name(message.get("provider"), message.get("model"))
            break
        i = index.parent[i]
    known.update(dict.fromkeys(walk, name))
    return name


def _name(provider: object, model: object) -> str:
    return one_line("/".join(filter(None, (as_str(provider), as_str(model)))), NAME_LIMIT)


def _count(usage: dict[str, Any], names: Iterable[str]) -> int:
    return next((int(number) for name in names if (number := _number(usage.get(name))) is not None), 0)


def _cost(usage: dict[str, Any]) -> float:
    cost = usage.get("cost")
    return _number(cost) or _number(as_dict(cost).get("total")) or 0.0


def _number(value: object) -> float | None:
    """A number that can be meant; None for what is none, also for one that is negative or absurd."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < ABSURD:
        return None
    return value
