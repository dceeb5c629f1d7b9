"""What a client may read of an open session: windows of the tree, entries by id, paths, labels."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial, wraps
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import orjson

from . import aside, providers, rows, stats, surface, transcript, tree, turns
from .context import SETTINGS, SPEAKING, Context, build_context, names_model
from .errors import CursorExpired, NotRecorded
from .family import Union, unite
from .log.index import NONE
from .session import Rewritten, Session
from .text import as_dict, as_str, one_line, row_text

if TYPE_CHECKING:
    from .live import LiveSession
    from .log.index import Index
    from .types import Entry, FilterMode, Row
    from .wire import types as t

KEPT_LAYOUTS = 6
ROWS_AT_ONCE = 200  # what is read before others get the event loop: a few milliseconds
LONG = 5_000  # entries whose layout takes longer than an event loop should be kept
SLICE = 0.004  # seconds that a long read keeps the event loop at a time
ENTRIES_BUDGET = 4 << 20
BEFORE = AFTER = 20
IN_LOG_ORDER = 100
BUSY = 100  # bytes that are read in the time that a piece of work takes for each of something
THREADED = 1 << 20  # bytes of bodies above which a read leaves the event loop

T = TypeVar("T")
Read = TypeVar("Read", bound=Callable[..., Awaitable[Any]])
ContextFormat = Literal["agent", "openai", "anthropic"]


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


def of_one_log(read: Read) -> Read:
    """A read that takes a while, of a session or an open one. Raises Rewritten where that was rewritten meanwhile.

    Its ordinals then name entries of both, or none.
    """

    @wraps(read)
    async def checked(of: Session | LiveSession, *args: Any, **more: Any) -> Any:
        session = of if isinstance(of, Session) else of.session
        index = session.index
        try:
            result = await read(of, *args, **more)
        except (IndexError, KeyError):
            if session.index is index:
                raise
        else:
            if session.index is index:
                return result
        raise Rewritten("the file was rewritten while it was read", path=session.path)

    return checked  # pyright: ignore[reportReturnType]  # the same parameters, by other names


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


@of_one_log
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
    view = rows.MainLine(base, at) if params.main_line else rows.View(base, collapsed, at)
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
            size = cost(session, needed)
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


def _name_relatives(shown: list[Row], view: rows.Drawn, start: int, union: Union, relatives: Sequence[Session]) -> None:
    for row, place in zip(shown, view.rows(start, len(shown)), strict=True):
        member = union.member[view.base.order[place]]
        if member:
            row["sessionId"] = relatives[member - 1].wire_id


@of_one_log
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
                "timestamp": label.at or index.time.iso(label.by),
            }
            for i, label in found
        ]
    }


@of_one_log
async def entries(session: Session, params: t.SessionEntriesParams) -> t.EntriesResult:
    """Entries asked for, each once, in that order; what does not fit into the budget is cut, never left out."""
    missing: list[str] = []
    chosen: list[int] = []
    if params.ids is not None:
        inside: dict[str, Entry] = {}  # events that stand in a row of several
        for name in dict.fromkeys(params.ids):
            i = session.index.ordinal.get(name)
            if i is not None:
                chosen.append(i)
            elif (event := session.inside(name)) is not None:
                inside[name] = event
            else:
                missing.append(name)
        if inside:
            return _with_rows(session, params.ids, inside, missing, params.max_bytes or ENTRIES_BUDGET)
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
    if params.start is not None:
        return await _in_log_order(session, params.start, params.count or IN_LOG_ORDER, budget)
    shown = await off_loop(cost(session, chosen), cut_to, session, chosen, budget)
    return {"entries": shown, "missing": missing}


async def _in_log_order(session: Session, place: int | str, count: int, budget: int) -> t.EntriesResult:
    """Entries as they were written, one after the other, on whatever branch."""
    start = session.find(place) if isinstance(place, str) else place
    total = len(session.index)
    chosen = range(min(start, total), min(start + count, total))
    shown = await off_loop(cost(session, chosen), cut_to, session, chosen, budget)
    return {"entries": shown, "missing": [], "start": start, "total": total}


def _with_rows(
    session: Session, ids: Sequence[str], inside: dict[str, Entry], missing: list[str], budget: int
) -> t.EntriesResult:
    """Entries and events inside rows, in the order in which they were asked for."""
    shown: list[Entry] = []
    for name in dict.fromkeys(ids):
        if name not in missing:
            entry = inside.get(name) or session.stored(session.find(name))
            fit, size = fitted(entry, len(orjson.dumps(entry)), budget)
            budget = max(budget - size, 0)
            shown.append(fit)
    return {"entries": shown, "missing": missing}


def cut_to(session: Session, chosen: Sequence[int], budget: int) -> list[Entry]:
    """The bodies of entries, cut where together they take more than `budget` bytes."""
    shown: list[Entry] = []
    for i in chosen:
        entry, size = fitted(session.stored(i), session.index.length[i], budget)
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


@of_one_log
async def context(live: LiveSession, i: int, format_: ContextFormat) -> t.ContextResult:
    """What a model would see at `i`; in the form of a provider a request that it takes, whatever the path ends in.

    A recorded turn that ends nowhere and that nobody runs is shown with the results that `session/resume` would write.
    """
    session = live.session
    if session.header.format == "dsh":
        return await _surface(session, i, format_, running=live.running() is not None)
    path = tree.path(session.index, i)
    turn = cut_off(live, i)

    def build() -> t.ContextResult:
        made = build_context(context_path(session, path), omp=session.header.format == "omp")
        if turn is not None:
            for call in turns.unanswered(turn, session.index, session.fetch(turn.exchange)):
                made["messages"].append(turns.result(call))
                made["sources"].append([])
        return _for_provider(made, format_)

    return await set_aside(body_size(session.index, path), build)


def _for_provider(made: Context, format_: ContextFormat) -> t.ContextResult:
    aside.go_on()
    if format_ == "agent":
        return {**made}
    request = (providers.openai if format_ == "openai" else providers.anthropic)(made["messages"], made["sources"])
    result: t.ContextResult = {**made, "messages": request.messages, "sources": request.sources}
    return {**result, "system": request.system} if request.system else result


async def _surface(session: Session, i: int, format_: ContextFormat, *, running: bool) -> t.ContextResult:
    index = session.index

    def build() -> t.ContextResult:
        made = surface.context_of(index, session.stored, i, ours=format_ != "agent", running=running)
        return _for_provider(made, format_)

    return await set_aside(cost(session, surface.shown_at(index, i)), build)


def cut_off(live: LiveSession, i: int) -> turns.Turn | None:
    """The recorded turn that a path to `i` shows closed although the log does not: it ends here, and nobody runs it."""
    session = live.session
    if i != session.leaf or live.running() is not None:
        return None
    found = session.recorded_turn()
    if found is None:
        return None
    return turns.spans(session.index, session.path_from(found.start))[0]


def for_context(session: Session, path: Sequence[int]) -> list[int]:
    """The entries of a path whose bodies its context depends on: of a long one, what the last compaction kept.

    Above that only settings count: models, levels, modes, rules, and the last answer or header that names a model.
    """
    index = session.index
    settings, said = turns.codes_of(index, SETTINGS), turns.codes_of(index, SPEAKING | SETTINGS)
    start = turns.first_shown(index, path, session.entry)
    return [i for i in path[:start] if index.shape[i] in settings] + [i for i in path[start:] if index.shape[i] in said]


def context_path(session: Session, path: Sequence[int]) -> list[Entry]:
    """The entries of a path, with nothing but type and id where the body cannot matter to the context."""
    index, needed = session.index, for_context(session, path)
    wanted, read = set(needed), session.fetch(needed)
    found: list[Entry] = [read(i) if i in wanted else {"type": index.type_of(i), "id": index.ids[i]} for i in path]
    shapes = enumerate(index.shapes.items)
    naming = {code for code, shape in shapes if shape.role == "assistant" or shape.type == "request_header"}
    for k in range(len(path) - 1, -1, -1):
        if index.shape[path[k]] in naming:
            found[k] = read(path[k])
            if names_model(found[k]):
                break
    return found


def body_size(index: Index, chosen: Sequence[int]) -> int:
    return sum(index.length[i] for i in chosen)


def cost(session: Session, chosen: Sequence[int]) -> int:
    """The same, and more than the event loop may be kept for where bodies must be decompressed first."""
    return max(body_size(session.index, chosen), THREADED if session.packed else 0)


async def off_loop(size: int, function: Callable[..., T], *args: Any) -> T:
    """Call `function` here when it reads little, in a thread when it reads `size` bytes of bodies or more than that."""
    if size < THREADED:
        return function(*args)
    return await asyncio.to_thread(function, *args)


async def set_aside(size: int, function: Callable[..., T], *args: Any) -> T:
    """The same for a read of much at once, by which writes must not be held up; what it gives may be encoded already.

    It is given up when the caller is cancelled.
    """
    if size < THREADED:
        return function(*args)
    gone = Event()

    def work() -> T:
        aside.unwanted.set(gone.is_set)
        with aside.uncollected():
            aside.go_on()
            result = function(*args)
            return cast("T", packed(cast("dict[str, Any]", result)) if isinstance(result, dict) else result)

    pool = aside.short if size < aside.LONG else aside.long
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, contextvars.copy_context().run, work)
    except asyncio.CancelledError:
        gone.set()
        raise


def packed(result: dict[str, Any]) -> dict[str, Any]:
    """An answer whose long parts are encoded already."""
    makers: dict[type, Callable[[Any], Any]] = {list: aside.packed, str: lambda text: aside.packed_text([text])}
    return {name: makers[type(value)](value) if type(value) in makers else value for name, value in result.items()}


def thinking_and_mode(session: Session) -> tuple[str, str]:
    """Thinking level and mode in force at the leaf."""
    index = session.index
    if session.header.format == "dsh":
        config = as_dict(surface.header_at(index, session.stored, session.leaf).get("config"))
        return as_str(config.get("reasoningEffort")) or "off", "none"
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


@of_one_log
async def request(session: Session, i: int, turn: int, step: int) -> t.RequestResult:
    """The model request of a recorded step, from the nearest one of these numbers at or above `i`.

    Raises NotRecorded where the path has no such step, or no header before it.
    """
    if session.header.format == "dsh":
        found = await set_aside(session.index.size, surface.request_of, session.index, session.stored, i, turn, step)
        header = cast("t.RequestHeader", found.header)
        return {"header": header, "messages": found.messages, "sources": found.sources}
    path = tree.path(session.index, i)
    return await set_aside(body_size(session.index, path), rebuilt, session, path, turn, step)


def rebuilt(session: Session, path: Sequence[int], turn: int, step: int) -> t.RequestResult:
    index = session.index
    place = _step_on(session, path, turn, step)
    headers = turns.codes_of(index, frozenset({"request_header"}))
    header = next((k for k in range(place, -1, -1) if index.shape[path[k]] in headers), NONE)
    if header == NONE:
        raise NotRecorded(f"no request header was recorded before step {step} of turn {turn}", turn=turn, step=step)
    envelope = session.entry(path[header]).get("header")
    if not isinstance(envelope, dict):
        raise NotRecorded(f"the request header of step {step} of turn {turn} is damaged", turn=turn, step=step)
    above = path[: place + 1]
    made = build_context(context_path(session, above))
    return {"header": cast("t.RequestHeader", envelope), "messages": made["messages"], "sources": made["sources"]}


def _step_on(session: Session, path: Sequence[int], turn: int, step: int) -> int:
    """Where on a path a step began, the last one of these numbers. Raises NotRecorded."""
    index = session.index
    marks = turns.codes_of(index, frozenset({"step_start"}))
    places = [k for k in range(len(path) - 1, -1, -1) if index.shape[path[k]] in marks]
    for n in range(0, len(places), ROWS_AT_ONCE):
        some = places[n : n + ROWS_AT_ONCE]
        read = session.fetch(path[k] for k in some)
        for k in some:
            entry = read(path[k])
            if turns.number_of(entry, "turn") == turn and turns.number_of(entry, "step") == step:
                return k
    text = f"step {step} of turn {turn} is not recorded on this path"
    raise NotRecorded(text, turn=turn, step=step)


@of_one_log
async def turn_list(live: LiveSession, i: int) -> t.TurnsResult:
    """The turns of the path to `i`, oldest first."""
    session = live.session
    index = session.index
    path = tree.path(index, i)
    found = turns.spans(index, path)
    starts = [turn.start for turn in found if turn.recorded]
    await off_loop(len(path) * BUSY, turns.give_numbers, found, session.fetch(starts))
    shown: list[t.TurnItem] = []
    for n in range(0, len(found), ROWS_AT_ONCE):
        some = found[n : n + ROWS_AT_ONCE]
        size = sum(body_size(index, [*turns.bodies(turn, index), turn.start]) for turn in some)
        shown += await off_loop(size, _turn_items, session, some, found[-1])
        await asyncio.sleep(0)
    if found and cut_off(live, i) is not None:
        shown[-1]["reason"] = {"kind": "interrupted"}
    return {"turns": shown, "derived": not starts}


def _turn_items(session: Session, some: Sequence[turns.Turn], last: turns.Turn) -> list[t.TurnItem]:
    index = session.index
    prompts = [turn.prompt for turn in some if turn.prompt != NONE]
    read = session.fetch([*prompts, *(i for turn in some for i in turns.bodies(turn, index))])
    items: list[t.TurnItem] = []
    for turn in some:
        turns.settle(turn, index, read, last=turn is last)
        ended = index.id_of(turn.end)
        items.append({
            "turn": turn.number, "startId": index.ids[turn.start], "endId": ended, "boundary": ended,
            "reason": _reason(turn, read), "steps": turn.steps,
            "text": "" if turn.prompt == NONE else row_text(read(turn.prompt), rows.TEXT_LIMIT),
        })  # fmt: skip
    return items


def _reason(turn: turns.Turn, read: Callable[[int], Entry]) -> dict[str, Any] | None:
    """Why a turn ended, as it is stored where it is."""
    stored = as_dict(read(turn.end).get("reason")) if turn.recorded and turn.end != NONE else {}
    return None if turn.kind is None else {**stored, "kind": turn.kind}


@of_one_log
async def document(live: LiveSession, i: int, format_: str, limit: int) -> t.TranscriptResult:
    """The path to `i` as a document that fits into a message of `limit` bytes."""
    session = live.session
    path = tree.path(session.index, i)
    size = body_size(session.index, path) * (BUSY if format_ == "html" else 1)
    made_up = cut_off(live, i) is not None

    def work() -> t.TranscriptResult:
        parts = transcript.parts(session, path, format_, limit, cut_off=made_up)
        return {"text": "".join(parts) if size < THREADED else aside.packed_text(parts)}

    return await set_aside(size, work)


@of_one_log
async def sums(session: Session) -> t.StatsResult:
    """What a session took."""
    return await set_aside(session.index.size, stats.sums, session)
