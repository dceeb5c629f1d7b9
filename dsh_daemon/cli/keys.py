"""A terminal that a command has for itself: its keys as they are pressed, its screen, and both as they were after."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import signal
import sys
import termios
import tty
from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

ESCAPE_S = 0.05  # how long the rest of a sequence may take after an Esc; longer, and the key itself was pressed
PASTE_S = 2.0  # the same of what is pasted: its line breaks are no keys, however slowly it comes
PASTE, PASTED = "\x1b[200~", "\x1b[201~"
ENTER_SCREEN = "\x1b[?1049h\x1b[?2004h"  # a screen of its own; what is pasted comes marked
LEAVE_SCREEN = "\x1b[?2004l\x1b[?1049l\x1b[?25h"


class Key(Enum):
    """What is not text."""

    UP = auto()
    DOWN = auto()
    LEFT = auto()
    RIGHT = auto()
    HOME = auto()
    END = auto()
    PAGE_UP = auto()
    PAGE_DOWN = auto()
    ENTER = auto()
    TAB = auto()
    ESCAPE = auto()
    BACKSPACE = auto()
    WORD = auto()  # takes a word back
    CLEAR = auto()  # takes all back
    INTERRUPT = auto()  # Ctrl-C, or the terminal's end
    REPAINT = auto()  # no key: the screen has another size, or there is something new to show


_KEYS = {
    "\r": Key.ENTER, "\n": Key.ENTER, "\t": Key.TAB, "\x7f": Key.BACKSPACE, "\x08": Key.BACKSPACE, "\x1b": Key.ESCAPE,
    "\x03": Key.INTERRUPT, "\x04": Key.INTERRUPT, "\x0e": Key.DOWN, "\x10": Key.UP, "\x15": Key.CLEAR,
    "\x17": Key.WORD,
}  # fmt: skip
_SEQUENCES = {
    "A": Key.UP, "B": Key.DOWN, "C": Key.RIGHT, "D": Key.LEFT, "H": Key.HOME, "F": Key.END, "Z": Key.LEFT,
    "1~": Key.HOME, "4~": Key.END, "5~": Key.PAGE_UP, "6~": Key.PAGE_DOWN, "7~": Key.HOME, "8~": Key.END,
}  # fmt: skip
_SEQUENCE = re.compile(r"\x1b(?:\[([0-9;?]*)([ -/]*[@-~])|O(.))")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*|O)?")
_TEXT = re.compile(r"[^\x00-\x1f\x7f]+")


class Keys:
    """What is pressed, and what is typed or pasted as text."""

    def __init__(self) -> None:
        self.ended_by = signal.SIGINT
        self._queue: asyncio.Queue[Key | str] = asyncio.Queue()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text = ""
        self._late: asyncio.TimerHandle | None = None

    async def next(self) -> Key | str:
        return await self._queue.get()

    def read(self) -> None:
        """Take in what the terminal has."""
        try:
            data = os.read(sys.stdin.fileno(), 4096)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            self.put(Key.INTERRUPT)
            return
        self._text += self._decode(data)
        self._take(finished=False)

    def put(self, key: Key | str) -> None:
        self._queue.put_nowait(key)

    def end(self, number: signal.Signals) -> None:
        """A signal that ends the command, once the terminal is as it was."""
        self.ended_by = number
        self.put(Key.INTERRUPT)

    def _take(self, *, finished: bool) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._text, keys = keys_of(self._text, finished=finished)
        for key in keys:
            self.put(key)
        if self._text:
            seconds = PASTE_S if self._text.startswith(PASTE) else ESCAPE_S
            self._late = asyncio.get_running_loop().call_later(seconds, lambda: self._take(finished=True))


def keys_of(text: str, *, finished: bool) -> tuple[str, list[Key | str]]:
    """The keys in what a terminal sent, and the rest, which may be the beginning of one unless `finished`."""
    keys: list[Key | str] = []
    while text and (finished or not _is_unfinished(text)):
        key, size = _first(text)
        keys += [] if key is None else [key]
        text = text[size:]
    return text, keys


def _is_unfinished(text: str) -> bool:
    return PASTED not in text if text.startswith(PASTE) else _UNFINISHED.fullmatch(text) is not None


def _first(text: str) -> tuple[Key | str | None, int]:
    """The first key, None where it means nothing to us, and how long it is."""
    if text.startswith(PASTE):
        pasted, end, _ = text.removeprefix(PASTE).partition(PASTED)
        return " ".join(pasted.split()), len(PASTE) + len(pasted) + len(end)
    if found := _SEQUENCE.match(text):
        number, letter, keypad = found[1], found[2], found[3]
        return _SEQUENCES.get(keypad or (f"{number}~" if letter == "~" else letter)), found.end()
    if found := _TEXT.match(text):
        return found[0], found.end()
    if text[0] == "\x1b" and len(text) > 1:  # a key with Alt
        return None, 2
    return _KEYS.get(text[0]), 1


@contextmanager
def terminal() -> Generator[Keys]:
    """Have the terminal for ourselves; however this ends, it is again as it was."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()
    keys = Keys()
    try:
        tty.setraw(fd, termios.TCSADRAIN)  # what was typed meanwhile counts
        _write(ENTER_SCREEN)
        loop.add_reader(fd, keys.read)
        loop.add_signal_handler(signal.SIGWINCH, keys.put, Key.REPAINT)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, keys.end, number)
        yield keys
    finally:
        loop.remove_reader(fd)
        for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        with suppress(OSError, termios.error):  # it may be gone
            _write(LEAVE_SCREEN)
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def paint(lines: Iterator[str], height: int, cursor: tuple[int, int] | None = None) -> None:
    """Show these lines and nothing else, the cursor at (row, column) of them."""
    shown = [line for line, _ in zip(lines, range(height), strict=False)]
    text = "\x1b[?25l\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in shown) + "\x1b[J"
    if cursor is not None:
        text += f"\x1b[{cursor[0] + 1};{cursor[1] + 1}H\x1b[?25h"
    _write(text)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
