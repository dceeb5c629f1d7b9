"""What a model sees of a dsh session: the messages on the surface, as dsh itself derives them; the request of a step.

A message that comes stands at the end of the surface, or in place of a range of it (a compaction):

    7  8  21  30  41   ->   103 replaces 8 to 30   ->   7  103  41
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .context import Context, Model
from .entries import Flag
from .errors import NotRecorded
from .log.formats import dsh
from .log.index import NONE
from .text import as_dict, as_str, blocks
from .turns import codes_of, number_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .log.index import Index
    from .types import Entry

    Read = Callable[[int], Entry]

Message = dict[str, Any]
_SURFACE, _CALLS = Flag.SURFACE.value, Flag.CALLS.value


class Request(NamedTuple):
    header: dict[str, Any]
    messages: list[Message]
    sources: list[list[str]]


class Sourced(NamedTuple):
    message: Message
    ids: list[str]


def shown_at(index: Index, i: int) -> list[int]:
    """The surface after entry `i`: ordinals in its order."""
    if i == len(index) - 1:
        return list(index.surface.shown)
    replaced: dict[int, list[int]] = {}
    for old, new in index.surface.shadowed.items():
        replaced.setdefault(new, []).append(old)
    codes = {code for code, shape in enumerate(index.shapes.items) if shape.flags & _SURFACE}
    shown: list[int] = []
    for k, code in enumerate(index.shape[: i + 1]):
        if code not in codes:
            continue
        if k in replaced:
            first = shown.index(replaced[k][0])
            shown[first : first + len(replaced[k])] = [k]
        else:
            shown.append(k)
    return shown


def messages_of(index: Index, stored: Read, shown: list[int]) -> list[Sourced]:
    """What the entries of a surface say to a model. An answer without content is there for its usage only."""
    found: list[Sourced] = []
    for i in shown:
        record = stored(i)
        data = as_dict(record.get("data"))
        message = data if record.get("type") == dsh.USER else as_dict(data.get("message"))
        if message and (record.get("type") != dsh.ANSWER or message.get("content")):
            found.append(Sourced(message, [index.ids[i]]))
    return found


def closers(index: Index, stored: Read, i: int) -> list[Sourced]:
    """The results that dsh gives to the calls that its log leaves open, where entry `i` ends it within a turn.

    It writes them when it resumes the session, and derives them from the same log until then.
    """
    marks = codes_of(index, frozenset({"turn_start", "turn_end"}))
    start = i
    while start >= 0 and index.shape[start] not in marks:
        start -= 1
    if start < 0 or index.type_of(start) != "turn_start":
        return []
    open_calls: dict[str, tuple[int, bool]] = {}  # call -> where it was made, whether it was begun
    for k in range(start + 1, i + 1):
        type_, role, flags, _ = index.shapes.items[index.shape[k]]
        if type_ == "step_end":
            open_calls.clear()
        elif type_ == "tool_call":
            call = as_str(as_dict(stored(k).get("data")).get("callId"))
            if call in open_calls:
                open_calls[call] = (open_calls[call][0], True)
        elif role == "assistant" and flags & _CALLS:
            message = as_dict(as_dict(stored(k).get("data")).get("message"))
            called = [block for block in blocks(message.get("content")) if block.get("type") == "tool-call"]
            open_calls |= {as_str(block.get("id")): (k, False) for block in called}
        elif role == "toolResult":
            message = as_dict(as_dict(stored(k).get("data")).get("message"))
            open_calls.pop(as_str(as_dict(message.get("source")).get("callId")), None)
    return [
        Sourced(dsh.closing_message(call, index.surface.next + n, started=begun), [index.ids[k]])
        for n, (call, (k, begun)) in enumerate(open_calls.items())
    ]


def context_of(index: Index, stored: Read, i: int, *, ours: bool = False, running: bool = False) -> Context:
    """What a model is given after entry `i`: the very messages that dsh derives, or those in our words (`ours`).

    `running`: whether an agent is known to be at the turn in which the log ends; its calls get their own results.
    """
    shown = shown_at(index, i)
    found = messages_of(index, stored, shown)
    if i == len(index) - 1 and not running:
        found += closers(index, stored, i)
    header = header_at(index, stored, i)
    config = as_dict(header.get("config"))
    result: Context = {
        "messages": [dsh.as_message(item.message) if ours else item.message for item in found],
        "models": {},
        "thinkingLevel": as_str(config.get("reasoningEffort")) or "off",
        "mode": "none",
        "injectedRules": [],
        "sources": [item.ids for item in found],
    }
    if model := as_str(config.get("model")):
        provider = as_str(config.get("provider"))
        result["models"] = {"default": "/".join(filter(None, (provider, model)))}
        result["model"] = Model(provider=provider, modelId=model)
    checkpoint = next((k for k in reversed(shown) if index.type_of(k) == "compaction"), NONE)
    if checkpoint != NONE:
        result["compactedFrom"] = index.ids[checkpoint]
    return result


def header_at(index: Index, stored: Read, i: int) -> dict[str, Any]:
    """The request header in force at entry `i`; {} where none was recorded."""
    codes = codes_of(index, frozenset({"request_header"}))
    while i >= 0 and index.shape[i] not in codes:
        i -= 1
    return {} if i < 0 else as_dict(as_dict(stored(i).get("data")).get("header"))


def request_of(index: Index, stored: Read, i: int, turn: int, step: int) -> Request:
    """The request of a step at or before entry `i`, as it was sent. Raises NotRecorded."""
    begin = codes_of(index, frozenset({"step_start"}))
    start = i
    while start >= 0:
        if index.shape[start] in begin:
            data = as_dict(stored(start).get("data"))
            if (number_of(data, "turn"), number_of(data, "step")) == (turn, step):
                break
        start -= 1
    if start < 0:
        raise NotRecorded(f"step {step} of turn {turn} is not in this log", turn=turn, step=step)
    # What is said before the answer begins is part of the question.
    after = codes_of(index, frozenset({"assistant_chunks", "step_start", "step_end", "turn_start", "turn_end"}))
    stop = start + 1
    while stop <= i and index.shape[stop] not in after and index.shape_of(stop).role != "assistant":
        stop += 1
    header = header_at(index, stored, stop - 1)
    if not header:
        raise NotRecorded(f"the log holds no header for step {step} of turn {turn}", turn=turn, step=step)
    found = messages_of(index, stored, shown_at(index, stop - 1))
    return Request(header, [item.message for item in found], [item.ids for item in found])


def boundary_for(index: Index, target: int) -> int:
    """The closed turn at which a fork begins that goes on from `target`; NONE where none is closed.

    A prompt is to be written anew, so the fork ends with the turn before it; anything else is kept, with its turn.
    """
    ends = codes_of(index, frozenset({"turn_end"}))
    if target >= 0 and index.shape_of(target).role != "user":
        marks = ends | codes_of(index, frozenset({"turn_start"}))
        k = target
        while k < len(index) and index.shape[k] not in marks:
            k += 1
        if k < len(index) and index.shape[k] in ends:
            return k
    while target >= 0 and index.shape[target] not in ends:
        target -= 1
    return target
