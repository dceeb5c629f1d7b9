"""What dsh holds of a log while it loads it: one event after another, and the first that breaks a rule ends it.

dsh refuses a whole log for one such event, so the same rules stand before everything that we write to one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple, Self, cast

import orjson

from dsh_daemon.text import as_dict, as_str, blocks

from . import dsh
from .dsh import MOST

Event = dict[str, Any]

ENVELOPE = frozenset({"type", "seq", "time", "data", "surfaceOp", "sourceEventSeqs", "ignorable"})
END_SEED = "session/end-seed"
HEADER = "request/header"
RETIRED = frozenset({"request/header-delta", "mode/set"})  # events that dsh refuses by name
STEERING = "steering/message"  # a `user/message` of earlier versions, which dsh still reads
BARE_REASONS = frozenset({"completed", "blocked", "max-tokens", "interrupted", "disposed"})  # their kind says all
_DEFAULTS = frozenset({"reasoningEffort", "maxTokens"})
_ROW = frozenset({"type", "seq0", "time0", "data"})


class Broken(Exception):
    """An event that dsh would refuse; the field that is at fault, and why."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field, self.reason = field, reason


class Unknown(Broken):
    """An event of a type that dsh does not know, and that does not say that it may be ignored."""

    def __init__(self, type_: str) -> None:
        super().__init__("type", f"{type_[:64]!r} is no event that dsh knows")
        self.type = type_


class Call(NamedTuple):
    """A tool call that has no result yet."""

    step: int  # of the answer that asked for it
    seq: int | None  # of the `tool/call` that says that the tool was started


@dataclass(slots=True)
class Ledger:
    """What the events so far say about the one that may come next."""

    next: int = 0
    time: int = 0  # of the last event
    turn: int = 0  # number that the last `turn/start` gave
    open: bool = False  # that turn did not end
    step: int = 0  # number of the step that is open, 0 for none
    steps: int = 0  # number of the last step of the turn
    answered: bool = False  # an answer stands in the open step
    calls: dict[str, Call] = field(default_factory=dict[str, Call])
    surface: list[int] = field(default_factory=list[int])  # seqs that a model sees, in its order
    results: dict[int, bytes] = field(default_factory=dict[int, bytes])  # seq -> mark of all but what a tool said
    header: Any = None  # what the last `request/header` holds
    header_seq: int = -1
    seeded: bool = False  # the last event is an end-seed

    def copy(self) -> Self:
        return replace(self, calls=dict(self.calls), surface=list(self.surface), results=dict(self.results))

    def take(self, event: Event) -> None:
        """Go on to the next event, or row of some. Raises Broken, and then knows no more than before."""
        if "seq0" in event:
            self._row(event)
            return
        type_ = event.get("type")
        if not event.keys() <= ENVELOPE:
            extra = min(event.keys() - ENVELOPE)
            raise Broken(extra[:64], "an event has no fields but " + ", ".join(sorted(ENVELOPE)))
        if not isinstance(type_, str):
            raise Broken("type", "an event has a type")
        if event.get("seq") != self.next or isinstance(event.get("seq"), bool):
            raise Broken("seq", f"event {self.next} is due")
        if not is_whole(event.get("time")):
            raise Broken("time", "the time of an event is a whole number of milliseconds")
        if "data" not in event:
            raise Broken("data", "an event has data")
        if event.get("ignorable", True) is not True:
            raise Broken("ignorable", "ignorable is true or not there")
        if type_ in RETIRED or (type_ not in dsh.KNOWN and type_ != STEERING and "ignorable" not in event):
            raise Unknown(type_)
        if type_ in dsh.MESSAGES or type_ == STEERING:
            self._message(*current(event))
        elif "surfaceOp" in event or "sourceEventSeqs" in event:
            name = "surfaceOp" if "surfaceOp" in event else "sourceEventSeqs"
            raise Broken(name, f"only messages have {name}")
        elif type_ == HEADER:
            check_request_header(event["data"])
            self.header, self.header_seq = event["data"]["header"], self.next
        else:
            self._mark(type_, as_dict(event["data"]))
        self.next += 1
        self.time = event["time"]
        self.seeded = type_ == END_SEED

    def _mark(self, type_: str, data: Event) -> None:
        if type_ == dsh.TURN_START:
            check_turn_start(data)
            self.turn, self.open, self.step, self.steps = _number(data, "turn"), True, 0, 0
            self.calls = {}
        elif type_ == "turn/end":
            check_turn_end(data)
            self.open, self.step, self.calls = False, 0, {}
        elif type_ == dsh.STEP_START:
            self.step = self.steps = _number(data, "step")
            self.answered = False
        elif type_ == "step/end":
            self.step, self.calls = 0, {}
        elif type_ == dsh.TOOL_CALL and (call := self.calls.get(as_str(data.get("callId")))) is not None:
            self.calls[data["callId"]] = call._replace(seq=self.next)

    def _row(self, row: Event) -> None:
        kind, data = dsh.ROWS.get(as_str(row.get("type"))), as_dict(row.get("data"))
        texts = data.get("args" if kind == "toolCall" else "texts")
        waits = data.get("dt")
        if kind is None or row.keys() != _ROW or not isinstance(texts, list) or not isinstance(waits, list):
            raise Broken("data", "a row has type, seq0, time0 and data, and that has texts and dt")
        count, between = len(cast("list[Any]", texts)), cast("list[Any]", waits)
        named = {"id", "name"} if kind == "toolCall" else set[str]()
        names = {"turn", "step", "index", "dt", "args" if kind == "toolCall" else "texts"}
        if not names <= data.keys() <= names | named:
            raise Broken("data", f"the data of a row has {', '.join(sorted(names))}")
        if row["seq0"] != self.next:
            raise Broken("seq0", f"event {self.next} is due")
        if not count or len(between) != count - 1:
            raise Broken("data.dt", "a row has one dt between two texts")
        if not is_whole(row["time0"]) or not all(is_whole(wait) for wait in between):
            raise Broken("time0", "the times of a row are whole numbers of milliseconds")
        self.next += count
        self.time = row["time0"] + sum(between)
        self.seeded = False

    def _message(self, type_: str, event: Event) -> None:
        message = message_of(type_, event["data"])
        check_message(type_, message)
        cited = event.get("sourceEventSeqs")
        if "sourceEventSeqs" in event:
            self._check_cited(type_, cited)
        shadowed = self._place(event.get("surfaceOp"))
        if missing := set(self.surface[shadowed]).difference(cast("list[int]", cited or ())):
            raise Broken("sourceEventSeqs", f"what replaces event {min(missing)} cites it")
        mark = _all_but_content(event["data"]) if type_ == dsh.RESULT else b""
        if type_ == dsh.RESULT and shadowed.stop > shadowed.start:
            old = self.surface[shadowed]
            if len(old) != 1 or self.results.get(old[0]) != mark:
                raise Broken("surfaceOp", "a tool result replaces one tool result, of which only the content differs")
            if not self.open:
                raise Broken("surfaceOp", "a tool result is replaced inside of a turn")
        for seq in self.surface[shadowed]:
            self.results.pop(seq, None)
        self.surface[shadowed] = [self.next]
        if type_ == dsh.RESULT:
            self.results[self.next] = mark
            self.calls.pop(message["source"]["callId"], None)
        elif type_ == dsh.ANSWER:
            self.answered = True
            step = _number(as_dict(event["data"]), "step")
            for block in blocks(message["content"]):
                if block.get("type") == "tool-call" and (id_ := as_str(block.get("id"))):
                    self.calls[id_] = Call(step, None)

    def _check_cited(self, type_: str, cited: object) -> None:
        if not isinstance(cited, list) or not all(is_whole(seq) for seq in cast("list[object]", cited)):
            raise Broken("sourceEventSeqs", "sourceEventSeqs is a list of numbers of events")
        seqs = cast("list[int]", cited)
        if not seqs and type_ != dsh.ANSWER:
            raise Broken("sourceEventSeqs", "sourceEventSeqs is not empty")
        if len(set(seqs)) < len(seqs) or not all(0 <= seq < self.next for seq in seqs):
            raise Broken("sourceEventSeqs", "sourceEventSeqs names earlier events, each once")

    def _place(self, op: object) -> slice:
        """The part of the surface in whose place a message comes."""
        if op == "append":
            return slice(len(self.surface), len(self.surface))
        found = as_dict(op)
        if found.keys() != {"op", "start", "end"} or found["op"] != "replace":
            raise Broken("surfaceOp", 'surfaceOp of a message is "append" or {op: "replace", start, end}')
        ends = found["start"], found["end"]
        if not all(is_whole(seq) and seq in self.surface for seq in ends):
            raise Broken("surfaceOp", "what is replaced is on the surface")
        first, last = (self.surface.index(seq) for seq in ends)
        if first > last:
            raise Broken("surfaceOp", "the start of what is replaced does not stand behind its end")
        return slice(first, last + 1)


def is_whole(value: object) -> bool:
    """Whether it is a number that JavaScript has as a whole one."""
    return isinstance(value, int) and not isinstance(value, bool) and -MOST < value < MOST


def current(event: Event) -> tuple[str, Event]:
    """A message as dsh reads it: in its present form, where it is of an earlier one."""
    type_, data = event["type"], as_dict(event["data"])
    named = {"id": f"legacy-message:{event['seq']}", "role": "user"}
    if type_ == STEERING:
        said = data["message"] if isinstance(data.get("message"), dict) else {**data, **named}
        return dsh.USER, {**event, "data": said}
    if type_ == dsh.USER and "content" in data and "source" in data and not data.keys() & {"id", "role", "message"}:
        return type_, {**event, "data": {**data, **named}}
    if type_ == dsh.ANSWER and "content" in data and "provenance" in data and "message" not in data:
        source = {**as_dict(data["provenance"]), "kind": "model"}
        said = {**named, "role": "assistant", "content": data["content"], "source": source}
        return type_, {**event, "data": {**data, "message": said}}
    if type_ == dsh.RESULT and {"callId", "content", "isError"} <= data.keys() and "message" not in data:
        block = {"type": "tool-result", "toolCallId": data["callId"], "content": data["content"]}
        block["isError"] = data["isError"]
        said = {**named, "id": "legacy", "content": [block], "source": {"kind": "tool", "callId": data["callId"]}}
        rest = {name: value for name, value in data.items() if name not in {"callId", "content", "isError"}}
        return type_, {**event, "data": {**rest, "message": said}}
    return type_, event


def message_of(type_: str, data: object) -> Event:
    """The message that an event holds. Raises Broken."""
    message: object = data if type_ == dsh.USER else as_dict(data).get("message")
    if not isinstance(message, dict):
        raise Broken("data" if type_ == dsh.USER else "data.message", "a message is an object")
    return cast("Event", message)


def check_turn_start(data: Event) -> None:
    """What dsh asks of a turn's start that an earlier version wrote. Raises Broken."""
    if "trigger" in data and (
        not _number(data, "turn")
        or data.keys() != {"turn", "trigger"}
        or not _text(as_dict(data["trigger"]).get("kind"))
    ):
        raise Broken("data.trigger", "the start of a turn has nothing but its number")


def check_turn_end(data: Event) -> None:
    """What dsh asks of the data of a `turn/end`. Raises Broken."""
    reason = as_dict(data.get("reason"))
    kind = reason.get("kind")
    if not _number(data, "turn") or data.keys() != {"turn", "reason"}:
        raise Broken("data", "the end of a turn has its number and a reason, and nothing else")
    if not isinstance(kind, str):
        raise Broken("data.reason", "the reason of a turn's end has a kind")
    if (kind in BARE_REASONS or (kind == "aborted" and "reason" not in reason)) and len(reason) > 1:
        raise Broken("data.reason", f"a reason of kind {kind} has nothing but that")
    if kind == "error" and "error" not in reason and not _is_old_error(reason):
        raise Broken("data.reason", "a reason of kind error has an error")


def _is_old_error(reason: Event) -> bool:
    step, failure, rest = reason.get("step"), reason.get("failure"), reason.keys() - {"kind", "step"}
    if not is_whole(step) or cast("int", step) < 0:
        return False
    if isinstance(failure, dict):
        told = cast("Event", failure)
        extra = told.keys() - {"message", "code", "status", "providerRetryAfterMs", "requestId"}
        return rest == {"failure"} and not extra and all(isinstance(told.get(n), str) for n in ("message", "code"))
    return {"message"} <= rest <= {"message", "code"} and all(isinstance(reason[name], str) for name in rest)


def check_message(type_: str, message: Event) -> None:
    """What dsh asks of every message. Raises Broken."""
    place = "data." if type_ == dsh.USER else "data.message."
    source = as_dict(message.get("source"))
    if not _text(message.get("id")):
        raise Broken(f"{place}id", "the id of a message is a text")
    if message.get("role") != ("assistant" if type_ == dsh.ANSWER else "user"):
        raise Broken(f"{place}role", f"the role in {type_} is {'assistant' if type_ == dsh.ANSWER else 'user'}")
    if not _text(source.get("kind")):
        raise Broken(f"{place}source", "a message has a source with a kind")
    content = message.get("content")
    if not isinstance(content, list):
        raise Broken(f"{place}content", "the content of a message is a list of blocks")
    if type_ == dsh.ANSWER and not (
        source["kind"] == "model" and _text(source.get("provider")) and _text(source.get("model"))
    ):
        raise Broken(f"{place}source", "the source of an answer is a model, with its provider")
    if type_ == dsh.RESULT:
        if source["kind"] != "tool" or not _text(source.get("callId")):
            raise Broken(f"{place}source", "the source of a tool result is a tool, with its callId")
        block = as_dict(cast("list[object]", content)[0]) if len(cast("list[object]", content)) == 1 else {}
        if (
            block.get("type") != "tool-result"
            or block.get("toolCallId") != source["callId"]
            or not isinstance(block.get("content"), list)
        ):
            text = "the content of a tool result is one tool-result block of that call, which has content"
            raise Broken(f"{place}content", text)


def check_request_header(data: object) -> None:
    """What dsh asks of the data of a `request/header`. Raises Broken."""
    fields = as_dict(data)
    header = as_dict(fields.get("header"))
    config = as_dict(header.get("config"))
    for name in ("provider", "model"):
        if not _text(config.get(name)):
            raise Broken(f"header.config.{name}", f"the config of a request header names its {name}")
    if "reasoningEffort" in config and not _text(config["reasoningEffort"]):
        raise Broken("header.config.reasoningEffort", "the effort is a text")
    if fields.get("reason") == "fallback":
        raise Broken("reason", "dsh refuses a request header that is a fallback")
    defaults = header.get("adapterDefaults", {})
    if not isinstance(defaults, dict) or any(
        name not in _DEFAULTS or value is not True or name not in config
        for name, value in cast("Event", defaults).items()
    ):
        raise Broken("header.adapterDefaults", "adapterDefaults says true of some of reasoningEffort and maxTokens")


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _number(data: Event, name: str) -> int:
    value = data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _all_but_content(data: Event) -> bytes:
    """A mark of a tool result that is the same for another one that differs in what the tool said only."""
    message = data["message"]
    rest = {**data, "message": {**message, "content": [{**message["content"][0], "content": None}]}}
    return blake2b(repr(_sorted(rest)).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        items = cast("Event", value)
        return {name: _sorted(items[name]) for name in sorted(items)}
    return [_sorted(item) for item in cast("list[object]", value)] if isinstance(value, list) else value


def event_of(line: bytes) -> Event:
    """The event, or row, of a stored line. Raises Broken."""
    try:
        found: object = orjson.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Broken("", "this line is not an event")
    return cast("Event", found)
