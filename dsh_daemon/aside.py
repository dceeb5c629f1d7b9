"""Long work is done aside: in few threads of its own, without the garbage collector, given up when nobody waits.

Each busy thread takes the interpreter from the event loop for some milliseconds at a time, so more of them would make
every client wait and end nothing earlier; and who asks often, and does not wait, must not take the threads that write.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import orjson

LONG = 4 << 20  # bytes to be read above which work is long
AT_ONCE = 2  # pieces of long work
BETWEEN = 4  # pieces of work that is not long, but too long for an event loop
REST_S = 10.0  # seconds after which the collector works again although the work goes on
SLICE = 1 << 18  # characters that are encoded at once
FREED_AT_ONCE = 500

long = ThreadPoolExecutor(AT_ONCE, "dshd-long")
short = ThreadPoolExecutor(BETWEEN, "dshd-short")
unwanted: ContextVar[Callable[[], bool]] = ContextVar("unwanted", default=lambda: False)


class Unwanted(Exception):
    """Nobody waits for this work any more."""


def go_on() -> None:
    """Long work asks this now and then. Raises Unwanted."""
    if unwanted.get()():
        raise Unwanted


class _Rest:
    """How many pieces of work the collector rests for. What they make is freed without it: JSON has no cycles."""

    def __init__(self) -> None:
        self.count = 0
        self.since = 0.0
        self.lock = threading.Lock()

    def begin(self) -> None:
        with self.lock:
            self.count += 1
            if gc.isenabled():
                self.since = time.monotonic()
                gc.disable()

    def end(self) -> None:
        with self.lock:
            self.count -= 1
            if not self.count or time.monotonic() - self.since > REST_S:
                gc.enable()


_rest = _Rest()


@contextmanager
def uncollected() -> Generator[None]:
    """Let the garbage collector rest: looking through a million new messages holds all threads for half a second."""
    _rest.begin()
    try:
        yield
    finally:
        _rest.end()


def packed(items: list[Any]) -> list[Any]:
    """A list as JSON that is put into an answer as it is, made and freed in pieces; as it was where JSON has no words.

    The encoder lets no other thread run until it is done. `items` is empty afterwards.
    """
    try:
        parts = [orjson.dumps(item) for item in items]
    except TypeError:
        return items
    while items:
        del items[-FREED_AT_ONCE:]
    return cast("list[Any]", _fragment(b"[", b",", parts, b"]"))


def packed_text(texts: Sequence[str]) -> str:
    """The same for a long string that is given in parts."""
    try:
        parts = [orjson.dumps(text[k : k + SLICE])[1:-1] for text in texts for k in range(0, len(text), SLICE)]
    except TypeError:
        return "".join(texts)
    return cast("str", _fragment(b'"', b"", parts, b'"'))


def _fragment(begin: bytes, between: bytes, parts: list[bytes], end: bytes) -> orjson.Fragment:
    if not parts:
        return orjson.Fragment(begin + end)
    parts[0] = begin + parts[0]  # not around the whole: that would be copied twice
    parts[-1] += end
    return orjson.Fragment(between.join(parts))
