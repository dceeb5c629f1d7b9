"""The writes of an open session, one function each: what is asked, what is written, what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import navigation, tree
from .errors import Busy, EntryNotFound, NoActiveModel
from .guards import guards
from .log.formats.writing import summary_entry
from .log.index import NONE
from .log.journal import Outdated
from .session import Prepared, Session
from .state import LeafMemory
from .types import MethodCause

if TYPE_CHECKING:
    from .live import LiveSession
    from .state import State
    from .wire import types as t

HEAVY_BATCH = 100  # entries of one append above which it leaves the event loop


async def write(
    live: LiveSession,
    build: Callable[[], Prepared],
    cause: MethodCause,
    also: Callable[[], None] = lambda: None,
    *,
    heavy: bool = False,
) -> Prepared:
    """Commit what `build` prepares, behind every check that a write needs; `also` runs under the locks just before."""
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

    return await live.commit(build, cause, lock=lock, ready=last_look, heavy=heavy)


async def append(live: LiveSession, params: t.SessionAppendParams, cause: MethodCause) -> t.AppendResult:
    session = live.session
    given = params.model_fields_set

    def build() -> Prepared:
        parent = session.leaf
        if "parent_id" in given:
            parent = NONE if params.parent_id is None else session.hangable(params.parent_id)
        elif parent != NONE:
            session.hangable(session.index.ids[parent])
        prepared = session.prepare(params.entries, parent)
        if prepared.lines and "expected_leaf_id" in given:
            session.expect_leaf(params.expected_leaf_id)
        return prepared

    prepared = await write(live, build, cause, heavy=len(params.entries) > HEAVY_BATCH)
    return {"ids": prepared.ids, "leafId": prepared.ids[-1], "revision": session.revision}


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
            old = session.leaf_id
            entry = summary_entry(
                session.header.format, params.entry_id, summary.text, summary.details, summary.from_extension
            )
            return session.prepare([entry], target)

        prepared = await write(live, build, cause)
        await note_departure(live, state, old)
        return {
            "oldLeafId": old,
            "leafId": session.leaf_id,
            "summaryEntryId": prepared.ids[0],
            "revision": session.revision,
        }
    async with live.lock:
        await live.catch_up()
        if "expected_leaf_id" in params.model_fields_set:
            session.expect_leaf(params.expected_leaf_id)
        old = session.leaf_id
        await move(live, state, session.find(params.entry_id), cause)
        return {"oldLeafId": old, "leafId": session.leaf_id, "revision": session.revision}


async def note_departure(live: LiveSession, state: State | None, old: str | None) -> None:
    """After a move that wrote an entry: the place that was left, for `back`."""
    session = live.session
    session.history = [*session.history[-99:], old]
    await remember(live, state, session.leaf, session.history)


async def navigate(
    live: LiveSession, state: State | None, params: t.SessionNavigateParams, cause: MethodCause
) -> t.NavigateResult:
    """Go to an entry as a person does. Raises EntryNotFound, LeafMoved, NoActiveModel."""
    session = live.session
    async with live.lock:
        await live.catch_up()
        if "expected_leaf_id" in params.model_fields_set:
            session.expect_leaf(params.expected_leaf_id)
        plan = plan_of(session, params)
        old = session.leaf_id
        result: t.NavigateResult = {
            "outcome": plan.outcome,
            "oldLeafId": old,
            "leafId": session.index.id_of(plan.leaf),
            "commonAncestorId": session.index.id_of(plan.common_ancestor),
            "abandoned": len(plan.abandoned),
            "revision": session.revision,
        }
        if plan.prompt is not None:
            result["editorText"] = plan.prompt.text
            if plan.prompt.images:
                result["editorImages"] = plan.prompt.images
        if params.preview:
            result["outcome"] = "preview"
            return result
        if plan.outcome == "unchanged" and params.label is None:
            return result
        if params.summarize is not False and plan.outcome != "unchanged":
            raise NoActiveModel("there is no model to summarise with: none is configured and no client offers one")
        await move(live, state, plan.leaf, cause, back=params.back)
        if plan.prompt is not None and state is not None and session.path is not None:
            await asyncio.to_thread(state.set_draft, session.path, plan.prompt.text)
    if params.label is not None:
        await label(live, params.target_id or session.index.id_of(plan.leaf), params.label, cause)
    result["leafId"], result["revision"] = session.leaf_id, session.revision
    return result


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
        raise EntryNotFound("the place before the first entry cannot have a label", entryId=None)
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

    await write(live, build, cause)
    result: t.LabelResult = {"stored": "log", "leafId": session.leaf_id, "revision": session.revision}
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
    await write(live, build, cause, (lambda: session.write_slot(wanted)) if slot and changed else lambda: None)
    return {"stored": "log", "revision": session.revision}
