"""Results whose next pages somebody may ask for: kept for a while, so that pages fit together whatever is written."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import CursorExpired

MOST = 256
BYTES = 32 << 20  # that all of them may take, more or less


class Order(NamedTuple):
    made_for: object  # the request, without what may differ between its pages
    content: Sequence[Any]
    size: int  # bytes of each of its elements
    about: Any = None  # what was known when it was made


class Orders:
    """The least recently used ones are forgotten; they do not outlive the process. Safe to use from any thread."""

    def __init__(self) -> None:
        self._kept: dict[str, Order] = {}
        self._size = 0
        self._lock = threading.Lock()

    def keep(self, order: Order) -> str:
        """Keep an order; the name by which `cursor` and `find` know it."""
        name = secrets.token_hex(6)
        with self._lock:
            self._kept[name] = order
            self._size += len(order.content) * order.size
            while len(self._kept) > MOST or (self._size > BYTES and len(self._kept) > 1):
                dropped = self._kept.pop(next(iter(self._kept)))
                self._size -= len(dropped.content) * dropped.size
        return name

    def find(self, cursor: str, made_for: object) -> tuple[str, int, Order]:
        """The order that a cursor names, and the place in it. Raises CursorExpired."""
        name, _, place = cursor.partition("-")
        with self._lock:
            order = self._kept.pop(name, None)
            if order is not None:
                self._kept[name] = order
        if order is None or not (place.isascii() and place.isdecimal() and len(place) < 10):
            raise CursorExpired("the results at this cursor are not kept any more; ask for the first page again")
        if order.made_for != made_for:
            raise CursorExpired("this cursor belongs to another search, or to a file that was rewritten since")
        return name, int(place), order
