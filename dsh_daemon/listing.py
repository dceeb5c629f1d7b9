"""A page of the list of sessions: filters, order, families, cursors."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from hashlib import sha256
from typing import Any, Literal

import orjson

from .cwd import Places, Scope
from .errors import CursorExpired
from .items import Item
from .types import Format, Tail

Sort = Literal["lastActivity", "created", "title", "size"]

_THIS_RUN = secrets.token_hex(4)  # cursors do not outlive the process


@dataclass(frozen=True, slots=True)
class Filters:
    """The params of `session/list` that choose and order. `archived` and `subagents` add those to the others."""

    cwd: str | None = None
    scope: Scope | None = None  # None: "exact" with a cwd, else "all"
    query: str | None = None
    formats: tuple[Format, ...] | None = None
    tail: tuple[Tail, ...] | None = None
    named: bool | None = None
    archived: bool = False
    subagents: bool = False
    sort: Sort = "lastActivity"
    order: Literal["desc", "asc"] = "desc"
    group: Literal["none", "family"] = "none"


def accepts(filters: Filters, places: Places) -> Callable[[Item], bool]:
    """Build the test that an item passes to be listed."""
    words = (filters.query or "").casefold().split()
    scope: Scope = filters.scope or ("exact" if filters.cwd is not None else "all")
    known: dict[str | None, bool] = {}

    def at_place(item: Item) -> bool:
        cwd = item.peek.cwd
        found = known.get(cwd)
        if found is None:
            found = known[cwd] = places.matches(cwd, filters.cwd or "", scope)
        return found

    def accept(item: Item) -> bool:
        if (item.flags.archived and not filters.archived) or (item.subagent and not filters.subagents):
            return False
        if filters.formats is not None and item.peek.format not in filters.formats:
            return False
        if filters.tail is not None and item.peek.tail not in filters.tail:
            return False
        if filters.named is not None and (item.title_source == "user") != filters.named:
            return False
        if filters.cwd is not None and not at_place(item):
            return False
        return not words or all(word in item.words for word in words)

    return accept


def arrange(items: Iterable[Item], filters: Filters) -> list[Item]:
    """Put accepted items in order. Equal keys: the newer, then the path, whichever the order."""
    down = filters.order == "desc"
    result = sorted(items, key=lambda item: item.path)
    result.sort(key=lambda item: item.created or 0, reverse=True)
    result.sort(key=_KEYS[filters.sort], reverse=down)
    return _families(result) if filters.group == "family" else result


def page(ordered: list[Item], filters: Filters, limit: int | None, cursor: str | None) -> tuple[list[Item], str | None]:
    """One page and the cursor of the next. Raises CursorExpired where the cursor does not fit this list any more."""
    request = sha256(orjson.dumps([_THIS_RUN, *astuple(filters)])).hexdigest()[:16]
    start = 0
    if cursor is not None:
        start = _start(ordered, filters, request, cursor)
    if limit is None or start + limit >= len(ordered):
        return ordered[start:], None
    last = ordered[start + limit - 1]
    place = orjson.dumps([request, last.path, str(_KEYS[filters.sort](last))])
    return ordered[start : start + limit], base64.urlsafe_b64encode(place).decode().rstrip("=")


def _start(ordered: list[Item], filters: Filters, request: str, cursor: str) -> int:
    try:
        made_for, path, key = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError):
        raise CursorExpired("this is no cursor of ours") from None
    if made_for != request:
        raise CursorExpired("this cursor belongs to another list or another run of the daemon")
    for i, item in enumerate(ordered):
        if item.path == path and str(_KEYS[filters.sort](item)) == key:
            return i + 1
    raise CursorExpired("the session at this place moved; ask for the first page again")


def _families(ordered: list[Item]) -> list[Item]:
    """Bring families together where their first member stands, parents before children."""
    chosen = {item.path: item for item in ordered}
    children: dict[str | None, list[Item]] = {}
    for item in ordered:
        above = item.parent
        seen = {item.path}
        while above is not None and above.path not in chosen and above.path not in seen:
            seen.add(above.path)  # a parent that the filters hid is stepped over
            above = above.parent
        children.setdefault(above.path if above is not None and above.path in chosen else None, []).append(item)
    result: list[Item] = []
    placed: set[str] = set()
    for first in ordered:
        if first.path in placed:
            continue
        top, seen = first, {first.path}
        while top.parent is not None and top.parent.path in chosen and top.parent.path not in seen:
            top = top.parent
            seen.add(top.path)
        stack = [top]
        while stack:
            item = stack.pop()
            if item.path not in placed:
                placed.add(item.path)
                result.append(item)
                stack += reversed(children.get(item.path, []))
    return result


_KEYS: dict[Sort, Callable[[Item], Any]] = {
    "lastActivity": lambda item: item.recent,
    "created": lambda item: -(2**62) if item.created is None else item.created,
    "title": lambda item: item.title.casefold(),
    "size": lambda item: item.stamp.size,
}
