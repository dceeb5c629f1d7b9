"""The writes of an open session, one function each: what is asked, what is written, what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import navigation, tree
from .errors import Busy, EntryNotFound, LeafMoved, NotTheAgent, TurnOpen
from .guards import guards
from .log.formats.writing import summary_entry
from .log.index import NONE
from .log.journal import Outdated
from .session import Prepared, Session
from .state import LeafMemory
from .text import as_str, message_of
from .types import MethodCause, OpenTurn

if TYPE_CHECKING:
    from .live import Client, LiveSession
    from .state import State
    from .wire import types as t

OF_AGENTS = frozenset({"assistant", "toolResult"})  # roles
NAMELESS = "the place before the first entry cannot have a label"
HEAVY_BATCH = 100  # entries of one append above which it leaves the event loop


async def write(
    live: LiveSession,
    build: Callable[[], Prepared],
    cause: MethodCause,
    also: Callable[[], None] = lambda: None,
    *,
    heavy: bool = False,
    written: Callable[[Prepared], None] = lambda _prepared: None,
) -> Prepared:
    """Commit what `build` prepares, behind every check that a write needs.

    `also` runs under the locks just before, `written` just after, before anybody hears of it.
    """
    session = live.session
    session.check_writable()
    lock, ready = guards(session)
    if session.header.format == "omp":
        await asyncio.to_thread(ready)
    if session.header.version < 3:
        async with live.lock:
            await live.catch_up()
            try:
                live.publish(await asyncio.to_thread(session.upgrade, lock, ready))
            except Outdated:
                text = "another program wrote to this session while it was brought to version 3"
                raise Busy(text, retryAfterMs=500) from None

    def last_look() -> None:
        ready()
        also()

    return await live.commit(build, cause, lock=lock, ready=last_look, written=written, heavy=heavy)


async def check_ready(session: Session, parent: int) -> None:
    """Refuse what `write` would refuse, before somebody is asked for what is to be written under `parent`."""
    session.check_writable()
    if parent != NONE:
        session.hangable(session.index.ids[parent])
    if session.header.format == "omp":
        _, ready = guards(session)
        await asyncio.to_thread(ready)


def expect_same(session: Session, leaf: str | None, epoch: str) -> None:
    """Refuse to go on with a plan for a session that went on itself. Raises LeafMoved."""
    session.expect_leaf(leaf)
    if session.epoch != epoch:
        raise LeafMoved("the file was rewritten meanwhile", expected=leaf, actual=session.leaf_id)


def refuse_move(live: LiveSession, target: int) -> None:
    """Refuse to move the leaf while a connected agent runs a turn there. Raises TurnOpen."""
    if (running := live.running()) is not None and target != live.session.leaf:
        raise _turn_open(running)


def refuse_while_running(live: LiveSession) -> None:
    """Refuse what may take away the turn that a connected agent runs. Raises TurnOpen."""
    if (running := live.running()) is not None:
        raise _turn_open(running)


def refuse_elsewhere(live: LiveSession, parents: Iterable[int]) -> None:
    """Refuse to append outside of the turn that a connected agent runs. Raises TurnOpen."""
    if (running := live.running()) is None:
        return
    index = live.session.index
    start = live.session.find(running["entryId"])
    if not all(tree.is_ancestor(index, start, parent) for parent in parents):
        raise _turn_open(running)


def _turn_open(running: OpenTurn) -> TurnOpen:
    text = f"the agent is in the middle of turn {running['turn']}; session/abort asks it to stop"
    return TurnOpen(text, turn=running["turn"], entryId=running["entryId"])


def refuse_work(live: LiveSession, client: Client, entries: Iterable[dict[str, Any]]) -> None:
    """Refuse what only the agent says while it runs a turn: an agent that was taken over may not know it yet.

    Raises NotTheAgent.
    """
    agent = live.agent
    if agent is None or agent.client is client or live.running() is None:
        return
    for entry in entries:
        if entry.get("type") in {"tool_call", "assistant_chunks"} or as_str(message_of(entry).get("role")) in OF_AGENTS:
            text = f"{agent.client.name} is the agent of this session and in the middle of a turn"
            raise NotTheAgent(text, holder={"client": agent.client.name})


async def append(
    live: LiveSession, client: Client, params: t.SessionAppendParams, cause: MethodCause
) -> t.AppendResult:
    session = live.session
    given = params.model_fields_set

    def build() -> Prepared:
        parent = session.leaf
        if "parent_id" in given:
            parent = NONE if params.parent_id is None else session.hangable(params.parent_id)
        elif parent != NONE:
            session.hangable(session.index.ids[parent])
        prepared = session.prepare(params.entries, parent)
        if prepared.lines:
            refuse_work(live, client, params.entries)
            named = {as_str(entry.get("parentId")) for entry in params.entries} & session.index.ordinal.keys()
            refuse_elsewhere(live, [parent] * (parent != session.leaf) + [session.find(name) for name in named])
        if prepared.lines and "expected_leaf_id" in given:
            session.expect_leaf(params.expected_leaf_id)
        return prepared

    prepared = await write(live, build, cause, heavy=len(params.entries) > HEAVY_BATCH)
    return {"ids": prepared.ids, "leafId": prepared.ids[-1], "revision": prepared.revision}


async def remember(live: LiveSession, state: State | None, leaf: int, history: list[str | None]) -> None:
    """Make a move of the leaf survive a restart, for as long as nobody appends."""
    session = live.session
    if state is None or session.path is None:
        return
    index = session.index
    memory = LeafMemory(index.size, index.id_of(len(index) - 1), index.id_of(leaf), history)
    await asyncio.to_thread(state.set_leaf, session.path, memory)


async def move(live: LiveSession, state: State | None, target: int, cause: MethodCause, *, back: bool = False) -> None:
    """Put the leaf at `target`, durably. The caller holds the lock of the session."""
    session = live.session
    if target == session.leaf:
        return
    history = session.history[:-1] if back else [*session.history[-99:], session.leaf_id]
    await remember(live, state, target, history)
    change = session.move(target, cause, back=back)
    if change is not None:
        live.publish([change])


async def move_leaf(
    live: LiveSession, state: State | None, params: t.SessionMoveLeafParams, cause: MethodCause
) -> t.MoveLeafResult:
    session = live.session
    old = session.leaf_id
    if params.summary is not None:
        summary = params.summary

        def build() -> Prepared:
            nonlocal old
            if "expected_leaf_id" in params.model_fields_set:
                session.expect_leaf(params.expected_leaf_id)
            target = NONE if params.entry_id is None else session.hangable(params.entry_id)
            refuse_move(live, target)
            old = session.leaf_id
            entry = summary_entry(
                session.header.format, params.entry_id, summary.text, summary.details, summary.from_extension
            )
            return session.prepare([entry], target)

        prepared = await write(live, build, cause)
        await note_departure(live, state, old)
        return {
            "oldLeafId": old,
            "leafId": prepared.leaf_id,
            "summaryEntryId": prepared.ids[0],
            "revision": prepared.revision,
        }
    async with live.lock:
        await live.catch_up()
        if "expected_leaf_id" in params.model_fields_set:
            session.expect_leaf(params.expected_leaf_id)
        old, target = session.leaf_id, session.find(params.entry_id)
        refuse_move(live, target)
        await move(live, state, target, cause)
        return {"oldLeafId": old, "leafId": session.leaf_id, "revision": session.revision}


async def note_departure(live: LiveSession, state: State | None, old: str | None) -> None:
    """After a move that wrote an entry: the place that was left, for `back`."""
    session = live.session
    session.history = [*session.history[-99:], old]
    await remember(live, state, session.leaf, session.history)


class Move(NamedTuple):
    """A move as planned, and the state of the session that it was planned for."""

    plan: navigation.Plan
    old: str | None  # the leaf
    epoch: str
    result: t.NavigateResult  # what is answered if it comes to it


def plan_move(live: LiveSession, params: t.SessionNavigateParams) -> Move:
    """Plan what a person asks for; the caller holds the lock. Raises EntryNotFound, LeafMoved."""
    session = live.session
    if "expected_leaf_id" in params.model_fields_set:
        session.expect_leaf(params.expected_leaf_id)
    plan = plan_of(session, params)
    result: t.NavigateResult = {
        "outcome": plan.outcome,
        "oldLeafId": session.leaf_id,
        "leafId": session.index.id_of(plan.leaf),
        "commonAncestorId": session.index.id_of(plan.common_ancestor),
        "abandoned": len(plan.abandoned),
        "revision": session.revision,
    }
    if plan.prompt is not None:
        result["editorText"] = plan.prompt.text
        if plan.prompt.images:
            result["editorImages"] = plan.prompt.images
    return Move(plan, session.leaf_id, session.epoch, result)


def refuse_nameless(move_: Move, params: t.SessionNavigateParams) -> None:
    """Refuse a label for the place before the first entry, before anything moves. Raises EntryNotFound."""
    if params.label is not None and params.target_id is None and move_.plan.leaf == NONE:
        raise EntryNotFound(NAMELESS, entryId=None)


class LeftBehind(NamedTuple):
    """The summary of a way that is left."""

    text: str
    details: Any
    from_extension: bool
    left_out: int = 0  # of the oldest entries, which the model that wrote it was not shown


async def navigate(
    live: LiveSession, state: State | None, params: t.SessionNavigateParams, cause: MethodCause
) -> t.NavigateResult:
    """Go to an entry as a person does, asking nobody. Raises EntryNotFound, LeafMoved, TurnOpen."""
    async with live.lock:
        await live.catch_up()
        move_ = plan_move(live, params)
        result = move_.result
        if params.preview:
            result["outcome"] = "preview"
            return result
        if move_.plan.outcome == "unchanged" and params.label is None:
            return result
        refuse_nameless(move_, params)
        await _go(live, state, move_, cause, back=params.back)
    return await _named(live, move_, params.target_id, params.label, cause)


async def apply(
    live: LiveSession,
    state: State | None,
    move_: Move,
    params: t.SessionNavigateParams,
    left: LeftBehind | None,
    cause: MethodCause,
) -> t.NavigateResult:
    """Do what was planned, with the summary of what it leaves. Raises LeafMoved where the session went on meanwhile."""
    session, plan, result = live.session, move_.plan, move_.result

    if left is None:
        async with live.lock:
            await live.catch_up()
            expect_same(session, move_.old, move_.epoch)
            await _go(live, state, move_, cause, back=params.back)
        return await _named(live, move_, params.target_id, params.label, cause)

    def build() -> Prepared:
        expect_same(session, move_.old, move_.epoch)
        refuse_move(live, plan.leaf)
        target = session.index.id_of(plan.leaf)
        if target is not None:
            session.hangable(target)
        entry = summary_entry(session.header.format, target, left.text, left.details, left.from_extension)
        return session.prepare([entry], plan.leaf)

    prepared = await write(live, build, cause)
    await note_departure(live, state, move_.old)
    await _draft(live, state, plan)
    result["summaryEntryId"] = prepared.ids[0]
    result["leafId"], result["revision"] = prepared.leaf_id, prepared.revision
    return await _named(live, move_, prepared.ids[0], params.label, cause)


async def _go(live: LiveSession, state: State | None, move_: Move, cause: MethodCause, *, back: bool) -> None:
    """Move the leaf as planned; the caller holds the lock."""
    plan, result = move_.plan, move_.result
    if plan.outcome == "moved":
        refuse_move(live, plan.leaf)
    await move(live, state, plan.leaf, cause, back=back)
    await _draft(live, state, plan)
    result["leafId"], result["revision"] = live.session.leaf_id, live.session.revision


async def _draft(live: LiveSession, state: State | None, plan: navigation.Plan) -> None:
    """Keep the prompt that came back, until it is sent."""
    if plan.prompt is not None and state is not None and live.session.path is not None:
        await asyncio.to_thread(state.set_draft, live.session.path, plan.prompt.text)


async def _named(
    live: LiveSession, move_: Move, entry_id: str | None, text: str | None, cause: MethodCause
) -> t.NavigateResult:
    """Put the label on the entry, where one was asked for."""
    result = move_.result
    if text is not None:
        named = await label(live, entry_id or live.session.index.id_of(move_.plan.leaf), text, cause)
        result["leafId"], result["revision"] = named["leafId"], named["revision"]
    return result


async def compact(
    live: LiveSession,
    entry: Callable[[], dict[str, Any]],
    cause: MethodCause,
) -> Prepared:
    """Append the compaction that `entry` makes for the session as it is now, under the leaf."""
    session = live.session
    return await write(live, lambda: session.prepare([entry()], session.leaf), cause)


def plan_of(session: Session, params: t.SessionNavigateParams) -> navigation.Plan:
    index = session.index
    if not params.back:
        return navigation.plan_navigation(index, session.entry, session.leaf, session.find(params.target_id))
    while session.history and session.history[-1] is not None and session.history[-1] not in index.ordinal:
        session.history.pop()  # the entry went with a file that was cut
    if not session.history:
        return navigation.Plan("unchanged", session.leaf, session.leaf, [])
    target = session.find(session.history[-1])
    ancestor = tree.common_ancestor(index, session.leaf, target)
    left = tree.abandoned(index, session.leaf, target)
    return navigation.Plan("unchanged" if target == session.leaf else "moved", target, ancestor, left)


async def label(
    live: LiveSession,
    entry_id: str | None,
    text: str | None,
    cause: MethodCause,
    expect: Callable[[], None] = lambda: None,
) -> t.LabelResult:
    """Set a label, or clear it (None or blank). The label in force already is not written again."""
    session = live.session
    wanted = " ".join((text or "").split()) or None
    if entry_id is None:
        raise EntryNotFound(NAMELESS, entryId=None)
    written: str | None = None

    def build() -> Prepared:
        nonlocal written
        target = session.find(entry_id)
        current = session.index.labels.get(target)
        if (current.text if current else None) == wanted:
            written = session.index.ids[current.by] if current else None
            return Prepared([], b"")
        expect()
        session.hangable(entry_id)
        entry: dict[str, Any] = {"type": "label", "targetId": entry_id}
        if wanted is not None:
            entry["label"] = wanted
        prepared = session.prepare([entry], session.leaf)
        written = prepared.ids[0]
        return prepared

    prepared = await write(live, build, cause)
    result: t.LabelResult = {"stored": "log", "leafId": prepared.leaf_id, "revision": prepared.revision}
    if written is not None:
        result["labelEntryId"] = written
    return result


async def rename(live: LiveSession, title: str | None, cause: MethodCause) -> t.RenameResult:
    """Name a session in its own log, as its owner does; None takes the name away."""
    session = live.session
    wanted = " ".join((title or "").split())
    slot = session.header.slot

    def build() -> Prepared:
        before = session.title() or ""
        if before == wanted:
            return Prepared([], b"")
        entry: dict[str, Any] = {"type": "session_info", "name": wanted}
        if session.header.format == "omp":
            entry = {"type": "title_change", "title": wanted, "previousTitle": before, "source": "user"}
        return session.prepare([entry], session.leaf)

    changed = (session.title() or "") != wanted
    prepared = await write(
        live, build, cause, (lambda: session.write_slot(wanted)) if slot and changed else lambda: None
    )
    return {"stored": "log", "revision": prepared.revision}
