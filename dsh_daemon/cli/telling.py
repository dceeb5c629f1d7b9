"""A session in the order of its log, and its entries as a person follows them: who speaks, what is said and done."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import Any, NamedTuple

from dsh_daemon.chunks import unpack
from dsh_daemon.entries import HIDDEN_BY_DEFAULT, KIND_OF_ROLE, kind_of
from dsh_daemon.log.formats import dsh
from dsh_daemon.log.times import instant
from dsh_daemon.text import as_dict, as_str, blocks, call_text, image_text, message_of, one_line, row_text
from dsh_daemon.touches import asked

from .call import Client, Refusal, read_state
from .render import Part, clean, clean_lines, clock, short_id

AT_ONCE = 200  # entries that are asked for at a time
KEPT = 4  # windows of so many that are held
WHOLE = 32 << 20  # bytes of a single entry; of several at once the daemon cuts what is long
LINE = 240  # code points of a line that sums something up
CHUNKS = "assistant_chunks"
Entry = dict[str, Any]

_SIGNS = {"+": "good", "-": "error", "@": "dim", "\\": "dim"}
_RAN = frozenset({"bashExecution", "pythonExecution"})


class Told(NamedTuple):
    """An entry in the words that all agents share, and as its log has it."""

    entry: Entry
    stored: Entry

    @property
    def id(self) -> str:
        return as_str(self.entry.get("id"))

    @property
    def parent(self) -> str | None:
        return self.entry.get("parentId")

    @property
    def type(self) -> str:
        return as_str(self.entry.get("type"))

    @property
    def role(self) -> str:
        return as_str(message_of(self.entry).get("role")) if self.type == "message" else ""

    @property
    def time(self) -> int:
        """Milliseconds since 1970; NO_TIME where there is none."""
        return instant(self.entry.get("timestamp"))

    @property
    def pieces(self) -> str:
        """What the pieces of an answer say, that are in this entry."""
        return "".join(delta.text for delta in unpack(self.entry) if delta.kind == "text")


class Log:
    """A session in the order of its log, read window by window. Entries are named by their place in it.

    `start` and `end` are where a replay begins and ends.
    """

    def __init__(self, client: Client, state: dict[str, Any], turns: list[dict[str, Any]], *, all_: bool) -> None:
        self.client = client
        self.state = state
        self.session: str = state["sessionId"]
        self.turns = turns
        self.start = self.end = 0
        self._hidden = frozenset[str]() if all_ else HIDDEN_BY_DEFAULT
        self._numbers = {turn["startId"]: int(turn["turn"]) for turn in turns}
        self._begun: list[tuple[int, int]] = []  # where turns begin, as far as was read, and their numbers
        self._windows: dict[int, list[Told]] = {}

    @classmethod
    async def of(cls, client: Client, session: str, *, all_: bool) -> Log:
        state = await read_state(client, session)
        turns = (await client.request("session/turns", {"sessionId": session}))["turns"]
        log = cls(client, state, turns, all_=all_)
        log.end = (await log._ask(0, 1))["total"]
        return log

    async def begin_at(self, entry_id: str) -> None:
        """Begin at an entry. The turn in which it is must be known although its beginning is not read."""
        self.start = (await self._ask(entry_id, 1))["start"]
        above = {"sessionId": self.session, "entryId": entry_id}
        if turns := (await self.client.request("session/turns", above))["turns"]:
            self._begun.append((self.start, int(turns[-1]["turn"])))

    async def only_turn(self, number: int) -> None:
        """Keep what was written from the beginning of a turn to its end. Raises Refusal."""
        place = next((n for n, turn in enumerate(self.turns) if turn["turn"] == number), None)
        if place is None:
            known = f"turns {self.turns[0]['turn']} to {self.turns[-1]['turn']} are" if self.turns else "no turn is"
            raise Refusal("invalidReference", f"there is no turn {number}: {known} on the way to the leaf")
        turn, after = self.turns[place], self.turns[place + 1 : place + 2]
        self.start = (await self._ask(turn["startId"], 1))["start"]
        if turn["endId"] is not None:
            self.end = (await self._ask(turn["endId"], 1))["start"] + 1
        elif after:
            self.end = (await self._ask(after[0]["startId"], 1))["start"]

    async def _ask(self, start: int | str, count: int) -> dict[str, Any]:
        params = {"sessionId": self.session, "start": start, "count": count}
        return await self.client.request("session/entries", params if count > 1 else {**params, "maxBytes": WHOLE})

    async def at(self, k: int) -> Told:
        first = k - k % AT_ONCE
        if first not in self._windows:
            while len(self._windows) >= KEPT:
                del self._windows[next(iter(self._windows))]
            found = (await self._ask(first, AT_ONCE))["entries"]
            for n, entry in enumerate(found):
                if "truncated" in entry:
                    found[n : n + 1] = (await self._ask(first + n, 1))["entries"]
            self._windows[first] = [self._told(entry) for entry in found]
            for n, told in enumerate(self._windows[first], first):
                mark = n, self._numbers.get(told.id, 0)
                if mark[1] and mark not in self._begun:
                    insort(self._begun, mark)
        window = self._windows[first]
        if k - first >= len(window):
            raise Refusal("busy", "the log was rewritten while it was read")
        return window[k - first]

    def _told(self, stored: Entry) -> Told:
        if self.state["format"] != "dsh":
            return Told(stored, stored)
        view = dsh.View(as_str(stored.get("id")), stored.get("parentId"), stored.get("timestamp"))
        return Told(dsh.as_entry(stored, view), stored)

    def shows(self, told: Told) -> bool:
        """Whether an entry is a step of its own: not what the tree hides, and no piece of an answer."""
        return told.type not in self._hidden and told.type != CHUNKS

    def turn_at(self, k: int) -> int:
        """The turn in which an entry that was read stands; 0 where none is known."""
        place = bisect_right(self._begun, (k, 1 << 62)) - 1
        return self._begun[place][1] if place >= 0 else 0

    async def unfinished(self, k: int) -> str:
        """The pieces of an answer before a place that never came to its end: no answer holds them."""
        found: list[str] = []
        while k > self.start:
            k -= 1
            told = await self.at(k)
            if told.type == CHUNKS:
                found.append(told.pieces)
            elif self.shows(told):
                break
        return "".join(reversed(found))


# Entries as lines: text and its style, not yet cut or wrapped


def head(told: Told) -> list[Part]:
    """When, who, which entry."""
    kind, style = _kind(told)
    message = message_of(told.entry)
    failed = message.get("isError") is True or message.get("stopReason") == "error"
    parts = [(clock(told.entry.get("timestamp")) + "  ", "dim"), (kind, style), ("  " + short_id(told.id), "dim")]
    return [*parts, ("  failed", "error")] if failed else parts


def _kind(told: Told) -> Part:
    if told.role == "toolResult":
        name = clean(as_str(message_of(told.entry).get("toolName")))
        return f"result of {name}" if name else "result", "kind"
    if told.type == CHUNKS:
        return "assistant", "assistant"
    kind = kind_of(told.type, told.role)
    word = clean(told.role or told.type)[:24] if kind == "other" else kind
    return word or "?", kind if kind in {"user", "assistant"} else "kind"


def body(told: Told, *, said: bool = False) -> Iterator[Part]:
    """What an entry says; with `said`, its text was told already, piece by piece."""
    entry = told.entry
    message = message_of(entry) if told.type == "message" else entry
    if told.role in _RAN:
        yield from _lines("$ " + (as_str(message.get("command")) or as_str(message.get("code"))), "")
        yield from _lines(as_str(message.get("output")), "dim")
    elif told.role in KIND_OF_ROLE or told.type == "custom_message":
        style = "dim" if told.role == "toolResult" else ""
        for block in blocks(message.get("content")):
            if not said or block.get("type") == "toolCall":
                yield from _block(block, style)
        for section in as_dict(message.get("sections")).values():  # of a system prompt
            yield from _lines(as_str(section), style)
    elif summary := as_str(message.get("summary")):
        yield from _lines(summary, "")
    else:
        yield row_text(entry, LINE), "dim"
    yield from _lines(as_str(message.get("errorMessage")), "error")


def _block(block: dict[str, Any], style: str) -> Iterator[Part]:
    match block.get("type"):
        case "text":
            yield from _lines(as_str(block.get("text")), style)
        case "thinking":
            yield from _lines(as_str(block.get("thinking")), "dim")
        case "toolCall":
            yield from _call(block)
        case "image":
            yield image_text(block), "dim"
        case other:
            yield clean(f"[{other}]"), "dim"


def _call(block: dict[str, Any]) -> Iterator[Part]:
    """A call, with all of its command where that has several lines, and the change that it asks for."""
    yield one_line(call_text(block), LINE), "kind"
    arguments: object = block.get("arguments")
    command = as_str(as_dict(arguments).get("command"))
    if "\n" in command or len(command) > LINE:
        yield from (("  " + line, style) for line, style in _lines(command, "dim"))
    for line in clean_lines(asked(arguments).rstrip("\n")):
        if line:
            yield "  " + line, _SIGNS.get(line[:1], "")


def _lines(text: str, style: str) -> Iterator[Part]:
    if text.strip():
        yield from ((line, style) for line in clean_lines(text.strip("\n")))
