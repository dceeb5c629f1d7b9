"""The screen of `dshd replay`: what was said so far above, where it stands below, keys that lead through it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator

from dsh_daemon.chunks import Delta, unpack
from dsh_daemon.log.times import NO_TIME

from .keys import Key, Keys, paint, terminal
from .render import Part, Screen, cells, clean, clean_lines, session_line
from .replay import pause
from .telling import CHUNKS, Log, body, head

SLOWEST, FASTEST = 1 / 8, 64
LEAST_S = 0.002  # between two things that come, so that keys are heard
LONGEST_LINE = 20_000  # code points of a line that are shown
SMALL = 4  # lines of a terminal on which there is no room for a title
HELP = "space play · ←→ step · ↑↓ turn · +- speed · q end"
_NAMES = {
    Key.LEFT: "left", Key.RIGHT: "right", Key.ENTER: "right", Key.UP: "up", Key.DOWN: "down", Key.HOME: "home",
    Key.END: "end", Key.PAGE_UP: "back", Key.PAGE_DOWN: "on", Key.ESCAPE: "quit", " ": "play", "q": "quit",
    "h": "left", "l": "right", "j": "down", "k": "up", "g": "home", "G": "end", "+": "faster", "=": "faster",
    "-": "slower", "b": "back", "f": "on",
}  # fmt: skip


class Player:
    """Plays a log on a terminal. `place` is the last entry that is shown, or one before the first."""

    def __init__(self, log: Log, view: Screen, speed: float, *, playing: bool) -> None:
        self.log = log
        self.view = view
        self.speed = speed
        self.playing = playing
        self.place = log.start - 1
        self.read = log.start - 1  # the last entry that was looked at: hidden ones and pieces of answers come between
        self.time = NO_TIME  # of what came last
        self.waiting: deque[Delta] = deque()  # pieces that are still to come
        self.stream = ""  # of the answer whose pieces come
        self.scroll = 0  # lines below the screen
        self._typed: deque[Key | str] = deque()
        self._lines: dict[tuple[int, int], list[Part]] = {}  # by place and width

    async def run(self) -> None:
        with terminal() as keys:
            if not self.playing:
                await self._step(1)
            await self._draw()
            while await self._go_on(keys):
                await self._draw()
            interrupted = bool(self._typed) and self._typed[0] is Key.INTERRUPT
        if interrupted:
            raise SystemExit(128 + keys.ended_by)

    async def _key(self, keys: Keys, seconds: float | None) -> str | None:
        """What the next key is for, "" for nothing; None when none was pressed for so long."""
        if not self._typed:
            try:
                pressed = await asyncio.wait_for(keys.next(), seconds)
            except TimeoutError:
                return None
            self._typed.extend(pressed if isinstance(pressed, str) else [pressed])
        if self._typed[0] is Key.INTERRUPT:
            return "quit"
        return _NAMES.get(self._typed.popleft(), "")

    # What comes

    async def _go_on(self, keys: Keys) -> bool:
        """Wait for the next thing to come, or for a key; False ends it."""
        moment = await self._next() if self.playing else None
        if self.playing and moment is None:
            self.playing = False
            return True
        wait = None if moment is None else max(pause(self.time, moment, self.speed), LEAST_S)
        key = await self._key(keys, wait)
        if key == "quit":
            return False
        if key is not None:
            await self._press(key)
        elif moment is not None:
            self._come(moment)
        return True

    async def _next(self) -> int | None:
        """Time of the next piece or entry; None at the end. A piece waits in `waiting`, an entry is `read`."""
        while not self.waiting:
            if self.read > self.place and self.log.shows(told := await self.log.at(self.read)):
                return told.time
            if self.read + 1 >= self.log.end:
                return None
            self.read += 1
            told = await self.log.at(self.read)
            if told.type == CHUNKS:
                self.waiting.extend(delta for delta in unpack(told.entry) if delta.kind == "text")
        return self.waiting[0].time

    def _come(self, time: int) -> None:
        """Show what came."""
        self.time = self.time if time == NO_TIME else time
        self.scroll = 0
        if self.waiting:
            self.stream += self.waiting.popleft().text
        else:
            self.place, self.stream = self.read, ""

    async def _press(self, key: str) -> None:
        match key:
            case "play":
                self.playing = not self.playing
            case "faster":
                self.speed = min(self.speed * 2, FASTEST)
            case "slower":
                self.speed = max(self.speed / 2, SLOWEST)
            case "right" | "left":
                await self._step(1 if key == "right" else -1)
            case "down" | "up":
                await self._step(1 if key == "down" else -1, turns=True)
            case "home":
                await self._go(self.log.start - 1)
                await self._step(1)
            case "end":
                await self._end()
            case "back" | "on":
                page = self._height() // 2
                self.scroll = max(0, self.scroll + (page if key == "back" else -page))
            case _:
                pass

    async def _step(self, way: int, *, turns: bool = False) -> None:
        """Go to the next entry that is shown, one way or the other; with `turns` to the next prompt."""
        k = self.place + way
        while self.log.start <= k < self.log.end:
            told = await self.log.at(k)
            if self.log.shows(told) and (not turns or told.role == "user"):
                break
            k += way
        if self.log.start <= k < self.log.end:
            await self._go(k)
        elif turns and way > 0:
            await self._end()
        elif way > 0:
            self.stream = await self.log.unfinished(self.log.end)

    async def _end(self) -> None:
        await self._go(self.log.end)
        await self._step(-1)
        self.stream = await self.log.unfinished(self.log.end)

    async def _go(self, k: int) -> None:
        self.place = self.read = k
        self.waiting.clear()
        self.stream, self.playing, self.scroll = "", False, 0
        if self.log.start <= k < self.log.end:
            self.time = (await self.log.at(k)).time
            # Of what is longer than the screen the beginning is looked at first.
            self.scroll = max(0, len(await self._of(k, self._size()[0])) - self._height())

    # The picture

    def _size(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24  # some terminals tell none

    def _height(self) -> int:
        """Lines for what is said: two above, where there is room for them, and one below are taken."""
        lines = self._size()[1]
        return lines - 3 if lines > SMALL else max(lines - 1, 1)

    async def _draw(self) -> None:
        width, rows = self._size()
        self.view.width = width
        height = self._height()
        lines = list(wrapped(self._streamed(), width))
        k = self.place
        while k >= self.log.start and len(lines) < height + self.scroll:
            if self.log.shows(await self.log.at(k)):
                lines = await self._of(k, width) + lines
            k -= 1
        self.scroll = min(self.scroll, max(0, len(lines) - height))
        end = len(lines) - self.scroll
        shown = lines[max(0, end - height) : end]
        shown += [("", "")] * (height - len(shown))
        title = [session_line(self.view, self.log.state), ""] if rows > SMALL else []
        paint(iter([*title, *(self.view.paint(*line) for line in shown), self._status()]), rows)

    async def _of(self, k: int, width: int) -> list[Part]:
        """The lines of an entry, wrapped, with an empty one below."""
        known = self._lines.get((k, width))
        if known is None:
            told = await self.log.at(k)
            parts: list[Part] = []
            if told.role != "assistant" and (cut := await self.log.unfinished(k)):
                parts += [*_indented((line, "") for line in clean_lines(cut)), ("  … cut off here", "warn"), ("", "")]
            title = "".join(text for text, _ in head(told))
            style = head(told)[1][1]
            parts += [(title, style), *_indented(body(told)), ("", "")]
            if len(self._lines) > 500:
                self._lines.clear()
            known = self._lines[k, width] = list(wrapped(parts, width))
        return known

    def _streamed(self) -> list[Part]:
        if not self.stream:
            return []
        return [("assistant …", "assistant"), *_indented((line, "") for line in clean_lines(self.stream))]

    def _status(self) -> str:
        """Where it stands, at the left; what can be pressed, at the right where there is room."""
        log = self.log
        done = min(max(self.place - log.start + 1, 0), log.end - log.start)
        turn = log.turn_at(self.place)
        facts = [f"{done:,} of {log.end - log.start:,}", *([f"turn {turn:,}"] if turn else []), f"{self.speed:g}x"]
        left = [("▶ " if self.playing else "■ ", "good" if self.playing else "warn")]
        return self.view.fit(left, (" · ".join(facts), ""), [(HELP, "dim")])


def _indented(parts: Iterable[Part]) -> Iterator[Part]:
    return ((f"  {text}".rstrip(), style) for text, style in parts)


def wrapped(parts: Iterable[Part], width: int) -> Iterator[Part]:
    """Lines that fit, broken at blanks where there are some; what goes on stands as far in as it began."""
    for text, style in parts:
        line = clean(text[:LONGEST_LINE])
        if cells(line) <= width:
            yield line, style
            continue
        indent = " " * min(len(line) - len(line.lstrip(" ")), width // 2)
        lead, at = "", 0
        while at < len(line):
            end, room = at, width - len(lead)
            while end < len(line) and (room := room - cells(line[end])) >= 0:
                end += 1
            blank = line.rfind(" ", at, end) if end < len(line) else -1
            end = blank if blank > (at + end) // 2 else max(end, at + 1)
            yield lead + line[at:end], style
            lead, at = indent, end + (line[end : end + 1] == " ")
