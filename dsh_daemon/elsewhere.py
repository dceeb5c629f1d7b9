"""What is asked of a session whose log cannot hold it: labels and titles go into our own state, a move is refused.

dsh has one path in a log, and only its agent writes there. Another way begins with a fork, at a closed turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from . import surface
from .errors import EntryNotFound, NotSupportedByFormat
from .log.index import NONE
from .session import Session, now
from .text import one_line

if TYPE_CHECKING:
    from .live import LiveSession
    from .state import State
    from .store import Store
    from .table import Delta
    from .types import MethodCause
    from .wire import types as t

TITLE_LIMIT = 240


def keeps_nothing(session: Session) -> bool:
    """Whether labels, titles and moves of a session cannot be written to its log."""
    return session.header.format == "dsh"


def refuse_move(session: Session, target: int) -> None:
    """Refuse to move the leaf, and say where a fork would begin. Raises NotSupportedByFormat."""
    boundary = surface.boundary_for(session.index, target) if target != NONE else NONE
    where = f"a fork at {session.index.ids[boundary]}" if boundary != NONE else "a new session"
    text = f"a dsh log has one path and cannot go back in it; {where} takes another way"
    place: dict[str, Any] = {"instead": "session/fork", "boundary": session.index.id_of(boundary)}
    raise NotSupportedByFormat(text, format="dsh", **place)


async def label(live: LiveSession, state: State, params: t.SessionLabelParams, cause: MethodCause) -> t.LabelResult:
    """Set or clear a label, durably, in our own state. Raises EntryNotFound, LeafMoved and faults of the state."""
    session = live.session
    wanted = " ".join((params.label or "").split()) or None
    entry_id = params.entry_id
    async with live.lock:
        await live.catch_up()
        if entry_id is None:  # pyright: ignore[reportUnnecessaryComparison]  # a navigation's target may be none
            raise EntryNotFound("the place before the first entry cannot have a label", entryId=None)
        found = session.index.labels.get(session.find(entry_id))
        if (found.text if found else None) != wanted:
            if "expected_leaf_id" in params.model_fields_set:
                session.expect_leaf(params.expected_leaf_id)
            assert session.path is not None
            at = now()
            await asyncio.to_thread(state.set_label, session.path, entry_id, wanted, at)
            live.publish([session.relabeled(entry_id, wanted, at, cause)])
    return {"stored": "state", "leafId": session.leaf_id, "revision": session.revision}


async def rename(
    live: LiveSession, state: State, store: Store, title: str | None, cause: MethodCause
) -> tuple[t.RenameResult, Delta | None]:
    """Set a title in our own state, durably, or (None) show that of the log again; what lists show of it then."""
    session, delta = live.session, None
    wanted = " ".join((title or "").split()) or None
    path = session.path
    assert path is not None
    async with live.lock:
        await live.catch_up()
        if (await asyncio.to_thread(state.flags, path)).title != wanted:
            await asyncio.to_thread(state.set_title, path, wanted)
            delta = await asyncio.to_thread(store.reflag, path)
            change = session.renamed(cause)
            if delta.upserts:
                item = delta.upserts[0]
                change["info"] = {"title": one_line(item.title, TITLE_LIMIT), "titleSource": item.title_source}
            live.publish([change])
    return {"stored": "state", "revision": session.revision}, delta
