"""`dshd search` on a terminal without a query: type to search, choose, see the entry where it stands."""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import regex

from .call import Client, RpcError, program, put, read_state, screen, short_ref
from .keys import Key, Keys, paint, terminal
from .render import (
    Part,
    Screen,
    cells,
    clean,
    cut,
    entry_lines,
    pad,
    plural,
    prefixes,
    row_line,
    session_line,
    short_id,
)
from .searching import head_line, hit_line, unsearched

PAGE = 60  # sessions, or hits of one, to choose from
DEBOUNCE_S = 0.04
AGAIN_S = 1.0  # until the same is asked again while the index is being built
PROMPT = "search: "
LONGEST = 4_096  # code points of a query
SMALL = 4  # lines of a terminal on which there is no room for blanks and help
AROUND = 7  # rows of the tree that stand around what was chosen
SHOWN = 16  # lines of an entry

Result = dict[str, Any]

_last_character = regex.compile(r"\X\Z")  # as a person sees it, of however many code points


class Choice(NamedTuple):
    session_id: str
    entry_id: str | None


class Place(NamedTuple):
    """What is searched: everything, or one session; and what was typed and chosen there."""

    info: Result | None
    query: str = ""
    chosen: int = 0


async def pick(client: Client, params: dict[str, Any]) -> None:
    """Let somebody search, then show what they chose; nothing where they leave."""
    info = await read_state(client, params["sessionId"]) if "sessionId" in params else None
    with terminal() as keys:
        picker = Picker(client, params["where"], Place(info), keys)
        try:
            choice = await picker.run()
        finally:
            picker.stop()
    if choice is None:
        raise SystemExit(128 + keys.ended_by)
    for line in await _shown(client, screen(), choice):
        put(line)


class Picker:
    """What is typed, what was found, which of it is chosen."""

    def __init__(self, client: Client, where: dict[str, Any], place: Place, keys: Keys) -> None:
        self.client, self.where, self.keys = client, where, keys
        self.place = place
        self.outer: list[Place] = []  # where `left` leads back to
        self.items: list[Result] = []
        self.found: Place | None = None  # where the items were found; None before the first answer
        self.first = 0  # of them on the screen
        self.status = ""
        self.waiting: deque[Key] = deque()  # pressed for what is not found yet
        self.view = screen()
        self._asking: asyncio.Task[None] | None = None

    async def run(self) -> Choice | None:
        """What somebody chose; None where they left without."""
        self.ask()
        while True:
            self.draw()
            key = await self.keys.next()
            if self._asking is not None and self._asking.done():
                self._asking.result()  # raises what a lost connection raised
            match key:
                case Key.ESCAPE | Key.LEFT if self.outer:
                    self.waiting.clear()
                    self.enter(self.outer.pop())
                case Key.ESCAPE | Key.INTERRUPT:
                    return None
                case Key.BACKSPACE | Key.WORD | Key.CLEAR | str():
                    self.type(_typed(self.place.query, key))
                case Key.REPAINT:
                    pass
                case Key():
                    self.waiting.append(key)
            # An item is chosen of what was asked for, never of what the screen still shows from before.
            while self.waiting and self.is_found:
                key = self.waiting.popleft()
                if key is Key.ENTER and self.items:
                    return self.choice()
                self.press(key)

    @property
    def is_found(self) -> bool:
        """Whether the items are those of the place and of what is typed there now."""
        return self.found is not None and self.found[:2] == self.place[:2]

    def press(self, key: Key) -> None:
        """A key that looks into the chosen item or chooses another one; any other does nothing."""
        if key in {Key.TAB, Key.RIGHT}:
            self.look_into()
        else:
            self.move(key)

    def type(self, query: str) -> None:
        if query != self.place.query:
            self.waiting.clear()
            self.place = self.place._replace(query=query, chosen=0)
            self.ask()

    def move(self, key: Key) -> None:
        last, page = len(self.items) - 1, max(1, self.height // 4)
        steps = {Key.UP: -1, Key.DOWN: 1, Key.PAGE_UP: -page, Key.PAGE_DOWN: page, Key.HOME: -last, Key.END: last}
        self.place = self.place._replace(chosen=max(0, min(self.place.chosen + steps.get(key, 0), last)))

    def look_into(self) -> None:
        """Every hit of the chosen session."""
        if self.place.info is None and self.items and self.place.query.strip():
            self.outer.append(self.place)
            self.enter(Place(self.items[self.place.chosen]["session"], self.place.query))

    def enter(self, place: Place) -> None:
        self.place, self.items, self.status, self.found = place, [], "", None
        self.ask()

    def choice(self) -> Choice:
        """The chosen entry; where it is the title that was found, or nothing was asked for, the session."""
        item = self.items[self.place.chosen]
        info, hit = (item["session"], item.get("best")) if self.place.info is None else (self.place.info, item)
        return Choice(info["sessionId"], None if hit is None or hit["role"] == "title" else hit["entryId"])

    # Asking

    def ask(self) -> None:
        """Search anew for what is typed now; an answer to what was typed before is not waited for."""
        self.stop()
        self._asking = asyncio.create_task(self._ask(self.place))

    def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, place: Place) -> None:
        try:
            await asyncio.sleep(DEBOUNCE_S)
            while True:
                try:
                    left = await self._found(place)
                except RpcError as exc:
                    left = False
                    self.show([], clean(exc.message))
                self.found = place
                self.keys.put(Key.REPAINT)
                if not left:
                    return
                await asyncio.sleep(AGAIN_S)
        except OSError:
            self.keys.put(Key.REPAINT)
            raise

    async def _found(self, place: Place) -> bool:
        """Take in what there is; whether more may be found in a moment."""
        left, items, status = "", list[Result](), ""
        if place.query.replace('"', "").strip():
            asked = {"query": place.query, "where": self.where, "limit": PAGE}
            if place.info is None:
                result = await self.client.request("search/sessions", asked)
                what, left = "session", unsearched(result)
            else:
                result = await self.client.request("search/entries", {**asked, "sessionId": place.info["sessionId"]})
                what = "hit"
            items = result["items"]
            more = "more than " if "nextCursor" in result else ""
            status = left or more + plural(len(items), what)
        elif place.info is None:
            names = ("cwd", "scope", "formats", "archived", "subagents")
            filters = {name: self.where[name] for name in names if name in self.where}
            listed = await self.client.request("session/list", {**filters, "limit": PAGE})
            items = [{"session": info, "hits": 0} for info in listed["items"]]
            status = "the latest sessions"
        self.show(items, status)
        return bool(left)

    def show(self, items: list[Result], status: str) -> None:
        """Take in what was found; where more of the same is found, what is about to be chosen stays so."""
        chosen = self.place.chosen
        if self.is_found and self.items and self.place.info is None:
            before = self.items[chosen]["session"]["sessionId"]
            chosen = next((n for n, item in enumerate(items) if item["session"]["sessionId"] == before), chosen)
        self.items, self.status = items, status
        self.place = self.place._replace(chosen=max(0, min(chosen, len(items) - 1)))

    # Drawing

    @property
    def height(self) -> int:
        return max(1, shutil.get_terminal_size().lines)

    def draw(self) -> None:
        self.view = screen()
        width, height = self.view.width or 80, self.height
        prompt = PROMPT if width >= 40 else "> "
        room = width - cells(prompt) - 1
        typed = _end(self.place.query, room)
        status = [(self.status, "dim")] if cells(typed) + cells(self.status) + 2 <= room else []
        top = self.view.fit_all([(prompt, "strong")], [(typed, "")], status)
        if height > SMALL:
            body = list(self._body(height - 3))
            lines = [top, "", *body, *[""] * (height - 3 - len(body)), self._help(width)]
        else:
            lines = [top, *self._body(height - 1)]
        paint(iter(lines), height, (0, cells(prompt) + cells(typed)))

    def _help(self, width: int) -> str:
        keys = ["↑↓ choose", "Enter show", "Esc back" if self.outer else "Esc leave"]
        if self.place.info is None and self.place.query.strip():
            keys.insert(2, "Tab every hit of it")
        return self.view.paint(cut(" · ".join(keys), width - 1), "dim")

    def _body(self, height: int) -> Iterator[str]:
        """As many items as fit, the chosen one among them."""
        if self.place.info is not None:
            yield session_line(self.view, self.place.info)
            height -= 1
        if not self.items:
            nothing = "nothing was found" if self.place.query.strip() else "type what to look for"
            yield from [self.view.paint(f"  {nothing}", "dim")] * (self.found is not None)
            return
        blocks = list(self._blocks())
        self.first = min(self.first, self.place.chosen)
        while sum(map(len, blocks[self.first : self.place.chosen + 1])) > height and self.first < self.place.chosen:
            self.first += 1
        for block in blocks[self.first :]:
            if len(block) > height:
                return
            height -= len(block)
            yield from block

    def _blocks(self) -> Iterator[list[str]]:
        inside = self.place.info is not None
        refs = [""] * len(self.items) if inside else prefixes([item["session"]["sessionId"] for item in self.items])
        for n, (item, ref) in enumerate(zip(self.items, refs, strict=True)):
            chosen = n == self.place.chosen
            if inside:
                yield [hit_line(self.view, item, mark="▌ " if chosen else "  ")]
                continue
            mark: Sequence[Part] = [("▌ " if chosen else "  ", "leaf")]
            lines = [head_line(self.view, item["session"], ref, item["hits"], mark=mark)]
            if "best" in item:
                lines.append(hit_line(self.view, item["best"], mark="▌   " if chosen else "    ", ids=False))
            yield lines


def _typed(query: str, key: Key | str) -> str:
    """A query after something was typed into it or taken back."""
    match key:
        case Key.BACKSPACE:
            return _last_character.sub("", query)
        case Key.WORD:
            return query.rstrip().rpartition(" ")[0]
        case str():
            return (query + clean(key[:LONGEST]))[:LONGEST]
        case _:
            return ""


def _end(text: str, room: int) -> str:
    """As much of the end of a text as fits into so many cells."""
    at = len(text)
    while at > 0 and (room := room - cells(text[at - 1])) >= 0:
        at -= 1
    return text[at:]


# What was chosen


async def _shown(client: Client, view: Screen, choice: Choice) -> list[str]:
    """The entry in its session, and the commands that go on from there."""
    state = await read_state(client, choice.session_id)
    ref = await short_ref(client, choice.session_id)
    lines = [session_line(view, state)]
    if choice.entry_id is None:
        ways = [("tree", "shows it"), ("watch", "follows it"), ("resume", "goes on with it")]
        return [*lines, "", *_ways(view, [(f"{program()} {verb} {ref}", text) for verb, text in ways])]
    around = {"sessionId": choice.session_id, "around": choice.entry_id, "count": AROUND}
    lines += [row_line(view, row) for row in (await client.request("session/tree", around))["rows"]]
    found = await client.request("session/entries", {"sessionId": choice.session_id, "ids": [choice.entry_id]})
    body = [line for entry in found["entries"] for line in entry_lines(view, entry)]
    lines += ["", *body[:SHOWN]]
    entry = short_id(choice.entry_id)
    ways = [(f"{program()} tree {ref} --around {entry}", "shows where it stands")]
    if len(body) > SHOWN:
        lines.append(view.paint(f"… {plural(len(body) - SHOWN, 'more line')}", "dim"))
        ways.insert(0, (f"{program()} show {ref} {entry}", "shows all of it"))
    if state["can"]["navigate"]:
        ways.append((f"{program()} navigate {ref} {entry}", "goes back there, in the same session"))
    return [*lines, "", *_ways(view, ways)]


def _ways(view: Screen, ways: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max(cells(command) for command, _ in ways)
    for command, text in ways:
        yield view.fit([("  ", ""), (pad(command, width), "command"), ("  ", "")], (text, "dim"))
