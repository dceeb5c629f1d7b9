"""What a client may read of an open session: windows of the tree, entries by id, paths, labels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson

from . import rows, tree
from .errors import CursorExpired
from .family import Union, unite
from .log.index import NONE
from .text import one_line, row_text

if TYPE_CHECKING:
    from .live import LiveSession
    from .log.index import Index
    from .session import Session
    from .types import Entry, FilterMode, Row
    from .wire import types as t

KEPT_LAYOUTS = 6
ROWS_AT_ONCE = 200  # what is read before others get the event loop: a few milliseconds
LONG = 5_000  # entries whose layout takes longer than an event loop should be kept
SLICE = 0.004  # seconds that a long read keeps the event loop at a time
ENTRIES_BUDGET = 4 << 20
BEFORE = AFTER = 20
THREADED = 1 << 20  # bytes of bodies above which a read leaves the event loop

T = TypeVar("T")


async def in_slices(work: Generator[Any, None, T]) -> T:
    """Run a generator to its end, letting others have the event loop every few milliseconds."""
    until = time.monotonic() + SLICE
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + SLICE


def stamp_of(session: Session) -> tuple[Any, ...]:
    """What a layout was made from."""
    return session.epoch, session.revision, session.leaf, len(session.index)


def first_layout(session: Session) -> dict[Any, Any]:
    """The layout that the first window of a long session will want, made where nobody waits for the event loop."""
    if len(session.index) < LONG:
        return {}
    made = rows.Layout(session.index, session.leaf, "default", None, session.runs())
    return {("default", ()): (stamp_of(session), made)}


async def layout(live: LiveSession, mode: FilterMode, words: Sequence[str]) -> rows.Layout:
    """The rows of a session as it is now; kept for as long as nothing changes, and grown when a chain goes on."""
    session = live.session
    key = (mode, tuple(words))
    stamp = stamp_of(session)
    kept: tuple[Any, rows.Layout] | None = live.layouts.get(key)
    if kept is not None and kept[0] == stamp:
        return kept[1]
    index, leaf = session.index, session.leaf
    made: rows.Layout | None = None
    if kept is not None and not words and kept[0][0] == session.epoch:
        made = rows.grow(kept[1], index, leaf)
    if made is None:
        seen = None
        if words:
            shown = rows.visible(index, leaf, mode)
            seen = await in_slices(rows.matching(index, session.entry, shown, words, fetch=session.fetch))
            if len(session.index) != len(seen) or session.index is not index:
                return await layout(live, mode, words)
        made = rows.Layout(index, leaf, mode, seen, session.runs())
    live.layouts.pop(key, None)
    live.layouts[key] = (stamp, made)
    while len(live.layouts) > KEPT_LAYOUTS:
        live.layouts.pop(next(iter(live.layouts)))
    return made


async def tree_window(
    live: LiveSession, params: t.SessionTreeParams, relatives: Sequence[Session] = (), text: int = 4 << 20
) -> t.TreeResult:
    """A window of rows; with `relatives`, of one tree over the session and these. `text`: code points of all texts."""
    session = live.session
    words = rows.words_of(params.query or "")
    at = NONE if params.at is None else session.find(params.at)
    around = None if params.around is None else session.find(params.around)
    index, read, union = session.index, session.entry, None
    if relatives:
        everyone = [session, *relatives]
        union = await off_loop(len(session.index) * 100, unite, everyone)
        index, read = union.index, union.reader(everyone)
        seen = None
        if words:
            seen = await in_slices(rows.matching(index, read, rows.visible(index, session.leaf, params.filter), words))
        base = rows.Layout(index, session.leaf, params.filter, seen)
    else:
        base = await layout(live, params.filter, words)
    collapsed = [i for name in params.collapsed if (i := session.index.ordinal.get(name)) is not None]
    view = rows.View(base, collapsed, at)
    start = params.start
    if around is not None:
        start = rows.around(view, around, params.count)
    result: t.TreeResult = {
        "epoch": session.epoch,
        "revision": session.revision,
        "leafId": session.leaf_id,
        "total": view.total,
        "start": start,
        "rows": [],
    }
    limit = min(params.text_limit, max(1, text // max(1, min(params.count, view.total - start))))
    for at_row in range(start, min(start + params.count, view.total), ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, start + params.count - at_row)
        size = 0
        if union is None:
            needed = rows.bodies(index, view, at_row, count)
            size = body_size(index, needed)
            read = await off_loop(size, session.fetch, needed)
        part = partial(rows.window, index, view, read, at_row, count, text_limit=limit, words=words)
        result["rows"] += await off_loop(size, part)
        await asyncio.sleep(0)
        if session.epoch != result["epoch"]:
            return await tree_window(live, params, relatives, text)
    if union is not None:
        _name_relatives(result["rows"], view, start, union, relatives)
    if around is not None and result["rows"] and (place := view.place(around)) >= 0:
        result["selected"] = place - start
    return result


def _name_relatives(shown: list[Row], view: rows.View, start: int, union: Union, relatives: Sequence[Session]) -> None:
    for row, place in zip(shown, view.rows(start, len(shown)), strict=True):
        member = union.member[view.base.order[place]]
        if member:
            row["sessionId"] = relatives[member - 1].wire_id


async def leaves(session: Session) -> t.LeavesResult:
    while True:
        items = await in_slices(_leaves(session))
        if items is not None:
            return {"items": items}


def _leaves(session: Session) -> Generator[None, None, list[t.LeafItem] | None]:
    """The tips; None when the log was rewritten meanwhile."""
    index, leaf, epoch = session.index, session.leaf, session.epoch
    tips = tree.leaves(index)
    counts = [0] * len(index)
    for parent in index.parent:
        if parent >= 0:
            counts[parent] += 1
    shown = rows.visible(index, leaf, "default")
    yield
    times: dict[int, int] = {}
    for n, tip in enumerate(tips):
        times[tip] = index.time[tip]
        if n % ROWS_AT_ONCE == 0:
            yield
            if session.epoch != epoch:
                return None
    tips.sort(key=lambda i: (i != leaf, -times[i], -i))
    calls = rows.Calls(index, session.entry)
    items: list[t.LeafItem] = []
    for start in range(0, len(tips), ROWS_AT_ONCE):
        named = {tip: _shown_above(index, shown, tip) for tip in tips[start : start + ROWS_AT_ONCE]}
        read = session.fetch(i for i in named.values() if i >= 0)
        for tip, i in named.items():
            items.append(_leaf_item(index, counts, tip, i, leaf))
            if i >= 0:
                entry = read(i)
                items[-1]["text"] = row_text(entry, rows.TEXT_LIMIT, calls.of(i, entry))
        yield
        if session.epoch != epoch:
            return None
    return items


def _shown_above(index: Index, shown: bytearray, i: int) -> int:
    while i >= 0 and not shown[i]:
        i = index.parent[i]
    return i


def _leaf_item(index: Index, counts: Sequence[int], tip: int, named: int, leaf: int) -> t.LeafItem:
    length, i = 1, index.parent[tip]
    while i >= 0 and counts[i] < 2:
        length += 1
        i = index.parent[i]
    item: t.LeafItem = {
        "entryId": index.ids[tip],
        "timestamp": index.time.iso(tip),
        "text": "",
        "entries": length,
        "active": tip == leaf,
    }
    label = index.labels.get(tip) or index.labels.get(named)
    if label is not None:
        item["label"] = one_line(label.text, rows.NAME_LIMIT)
    return item


def labels(session: Session) -> t.LabelsResult:
    index = session.index
    found = sorted(index.labels.items(), key=lambda item: item[1].by)
    return {
        "items": [
            {
                "entryId": index.ids[i],
                "label": one_line(label.text, rows.NAME_LIMIT),
                "timestamp": index.time.iso(label.by),
            }
            for i, label in found
        ]
    }


async def entries(session: Session, params: t.SessionEntriesParams) -> t.EntriesResult:
    """Entries asked for, each once, in that order; what does not fit into the budget is cut, never left out."""
    missing: list[str] = []
    chosen: list[int] = []
    if params.ids is not None:
        for name in dict.fromkeys(params.ids):
            i = session.index.ordinal.get(name)
            if i is None:
                missing.append(name)
            else:
                chosen.append(i)
    elif params.around is not None:
        before = BEFORE if params.before is None else min(params.before, 200)
        after = AFTER if params.after is None else min(params.after, 200)
        chosen = neighbours(session, session.find(params.around), before, after)
    elif params.since is not None:
        changes = session.since(params.since.epoch, params.since.revision)
        if changes is None:
            raise CursorExpired("the changes since then are not kept any more; open the session anew")
        chosen = [session.find(ref["id"]) for change in changes for ref in change["entries"]]
    budget = params.max_bytes or ENTRIES_BUDGET
    shown = await off_loop(body_size(session.index, chosen), cut_to, session, chosen, budget)
    return {"entries": shown, "missing": missing}


def cut_to(session: Session, chosen: Sequence[int], budget: int) -> list[Entry]:
    """The bodies of entries, cut where together they take more than `budget` bytes."""
    shown: list[Entry] = []
    for i in chosen:
        entry, size = fitted(session.entry(i), session.index.length[i], budget)
        budget = max(budget - size, 0)
        shown.append(entry)
    return shown


def neighbours(session: Session, i: int, before: int, after: int) -> list[int]:
    """Entries around `i` in path order: toward the leaf on the active path, else toward the newest tip below."""
    index = session.index
    found: list[int] = []
    up = i
    while up >= 0 and len(found) <= before:
        found.append(up)
        up = index.parent[up]
    found.reverse()
    if tree.is_ancestor(index, i, session.leaf):
        path = tree.path(index, session.leaf)
        place = path.index(i)
        return found + path[place + 1 : place + 1 + after]
    for _ in range(after):
        below = tree.children(index, i)
        if not below:
            break
        i = below[-1]
        found.append(i)
    return found


def fitted(entry: Entry, size: int, budget: int) -> tuple[Entry, int]:
    """An entry that takes at most `budget` bytes, its longest strings cut to fit, and the bytes that it takes."""
    if size <= budget:
        return entry, size
    copy: Entry = orjson.loads(orjson.dumps(entry))
    strings: list[tuple[int, str, Any, Any]] = []  # (bytes, dotted path, container, key)
    stack: list[tuple[str, dict[Any, Any] | list[Any]]] = [("", copy)]
    while stack:
        path, value = stack.pop()
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            name = f"{path}.{key}" if path else str(key)
            if isinstance(inner, str):
                strings.append((len(inner.encode()), name, value, key))
            elif isinstance(inner, dict | list):
                stack.append((name, cast("dict[Any, Any] | list[Any]", inner)))
    strings.sort(key=lambda item: -item[0])
    total = size
    for length, _, container, key in strings:
        if total <= budget or length <= 64:
            break
        keep = max(length - (total - budget) - 3, 16)
        container[key] = container[key].encode()[:keep].decode(errors="ignore") + "…"
        total -= length - len(container[key].encode())
    if strings and total < size:
        copy["truncated"] = {"field": strings[0][1], "bytes": strings[0][0]}
    return copy, total


def for_context(session: Session, path: Sequence[int]) -> list[int]:
    """The entries of a path whose bodies its context depends on: of a long one, what the last compaction kept.

    Above that only settings count: models, levels, modes, rules, and the last answer's model.
    """
    index = session.index
    types = [index.type_of(i) for i in path]
    start = next((k for k in range(len(path) - 1, -1, -1) if types[k] in {"compaction", "reset_boundary"}), 0)
    if path and types[start] == "compaction":
        kept = index.ordinal.get(str(session.entry(path[start]).get("firstKeptEntryId")), NONE)
        start = path.index(kept) if kept in path[:start] else start
    answer = next((k for k in range(start - 1, -1, -1) if index.shape_of(path[k]).role == "assistant"), NONE)
    return [i for k, i in enumerate(path) if k >= start or k == answer or types[k] != "message"]


def context_path(session: Session, path: Sequence[int], needed: Sequence[int]) -> list[Entry]:
    """The entries of a path, with nothing but type and id where the body cannot matter to the context."""
    index, wanted = session.index, set(needed)
    return [session.entry(i) if i in wanted else {"type": index.type_of(i), "id": index.ids[i]} for i in path]


def body_size(index: Index, chosen: Sequence[int]) -> int:
    return sum(index.length[i] for i in chosen)


async def off_loop(size: int, function: Callable[..., T], *args: Any) -> T:
    """Call `function` here when it reads little, in a thread when it reads `size` bytes of bodies or more than that."""
    if size < THREADED:
        return function(*args)
    return await asyncio.to_thread(function, *args)


def thinking_and_mode(session: Session) -> tuple[str, str]:
    """Thinking level and mode in force at the leaf."""
    index = session.index
    wanted = {"thinking_level_change": "thinkingLevel", "mode_change": "mode"}
    codes: dict[int, str] = {code: shape.type for code, shape in enumerate(index.shapes.items) if shape.type in wanted}
    found: dict[str, str] = {}
    i = session.leaf
    while i != NONE and codes:
        if index.shape[i] in codes:
            type_ = codes[index.shape[i]]
            found[type_] = str(session.entry(i).get(wanted[type_]) or "")
            codes = {code: other for code, other in codes.items() if other != type_}
        i = index.parent[i]
    return found.get("thinking_level_change") or "off", found.get("mode_change") or "none"
