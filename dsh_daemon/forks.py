"""Fork: a new session from the path to a place outside of turns; its source stays byte-identical.

    source  u1 a1 │ u2 a2 │ u3 ...        boundary a2
    fork    u1 a1 │ u2 a2 │ labels title end_seed │ u4 ...
            └── byte for byte ┘

A boundary inside a turn is refused, so that no fork begins with a call that nobody will answer.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

from . import tree, turns
from .branches import LONG, another, fork_of_dsh, is_copy, made_before, plan_copy, publish_copy
from .child import child_header, content
from .errors import BoundaryInTurn, EntryNotFound
from .log.journal import MemoryJournal
from .naming import new_session_id
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .branching import BranchPlan
    from .live import LiveSession
    from .service import Service
    from .wire import types as t


async def fork(service: Service, live: LiveSession, params: t.SessionForkParams) -> t.ForkResult:
    """session/fork. Raises BoundaryInTurn, EntryNotFound, DamagedRegion, AlreadyExists and storage faults."""
    session = live.session
    of_dsh = session.header.format == "dsh"
    if not of_dsh:
        session.check_writable()
    chosen = params.child_session_id
    async with service.making if chosen is not None else nullcontext():
        child = await made_before(service, live, chosen, params.cwd)
        async with live.lock:
            await live.catch_up()
            path = path_to(session, params.boundary)
            boundary = session.index.id_of(path[-1]) if path else None
            if child is None and of_dsh:
                made = await fork_of_dsh(service, session, path, chosen, params.cwd)
                child, copied = made.path, made.seed_length
            elif child is None:
                await _outside_of_turns(session, path)
                plan = await plan_copy(session, path, force=params.force)
                copied = len(plan.kept)
                child = await _make(service, session, plan, chosen or new_session_id(), params.cwd)
            else:
                copied = _copied(child.session)
                if not is_copy(child, session, path):
                    if params.boundary is not None:
                        raise another(child.id)
                    boundary = child.session.fork_point()  # the leaf of then; it moved since
    info = await (service.file_info(child) if isinstance(child, str) else service.info(child))
    return {"outcome": "forked", "session": info, "seedLength": copied, "boundary": boundary}


def _copied(child: Session) -> int:
    """How many entries a fork took along; of dsh events, of which a line may hold several."""
    seed = child.header.raw.get("seedLength") if child.header.format == "dsh" else None
    return seed if isinstance(seed, int) else child.index.inherited


def path_to(session: Session, boundary: str | int | None) -> list[int]:
    """The path that ends with an entry, or with the one at a place of the active path. Raises EntryNotFound."""
    if isinstance(boundary, str):
        return tree.path(session.index, session.find(boundary))
    path = tree.path(session.index, session.leaf)
    if boundary is None:
        return path
    if boundary >= len(path):
        text = f"the active path has {len(path)} entries, counted from 0: there is none at {boundary}"
        raise EntryNotFound(text, sessionId=session.wire_id, boundary=boundary)
    return path[: boundary + 1]


async def _outside_of_turns(session: Session, path: Sequence[int]) -> None:
    """Raises BoundaryInTurn."""
    index = session.index
    args = index, path, session.entry
    heavy = len(path) > LONG
    turn = await asyncio.to_thread(turns.broken_off, *args) if heavy else turns.broken_off(*args)
    if turn is None:
        return
    before = await asyncio.to_thread(turns.last_closed, *args) if heavy else turns.last_closed(*args)
    nearest = index.id_of(before)
    where = f"the nearest place before it is {nearest}" if nearest else "no turn before it is closed"
    text = f"{index.ids[path[-1]]} is inside of turn {turn.number}; {where}"
    raise BoundaryInTurn(text, turn=turn.number, nearestClosed=nearest)


async def _make(
    service: Service, session: Session, plan: BranchPlan, session_id: str, cwd: str | None
) -> str | LiveSession:
    """The new session: the path of its file beside that of its source, or in memory as its source."""
    if session.path is not None:
        return await publish_copy(service, session, plan, session_id, cwd, sealed=True)
    title = session.title()
    header = child_header(session, session_id, cwd, title, len(plan.kept))
    fresh = Session(MemoryJournal(b"".join(content(session, plan, header, title, sealed=True))))
    fresh.load()
    return service.take_in(fresh)
