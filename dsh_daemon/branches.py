"""Branch: a new session file from a path of another one, which stays byte-identical."""

from __future__ import annotations

import asyncio
import os
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Literal

from . import changing, dsh_fork, surface, tree
from .branching import BranchPlan, branch_path, plan_branch
from .child import child_header, content
from .errors import AlreadyExists, DamagedRegion, Fault
from .log.index import NONE
from .log.journal import MemoryJournal, publish
from .naming import file_name, new_session_id
from .navigation import Prompt, prompt_of
from .session import Session, new_id, now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .dsh_fork import Forked
    from .live import LiveSession
    from .service import Service
    from .types import MethodCause, SessionInfo
    from .wire import types as t

LONG = 5_000  # entries of a path above which it is looked through in a thread


async def branch(
    service: Service, live: LiveSession, params: t.SessionBranchParams, cause: MethodCause
) -> t.BranchResult:
    """session/branch. Raises EntryNotFound, NotAUserMessage, DamagedRegion, AlreadyExists, TurnOpen, storage faults."""
    session = live.session
    if session.header.format != "dsh":
        session.check_writable()
    chosen = params.child_session_id if session.path is not None else None  # what is in memory keeps its id
    async with service.making if chosen is not None else nullcontext():
        child = await made_before(service, live, chosen, params.cwd)
        async with live.lock:
            await live.catch_up()
            target = session.leaf if params.entry_id is None else session.find(params.entry_id)
            ordinals = _path(session, target, params.position)
            prompt = prompt_of(session.entry(target)) if params.position == "before" else None
            if session.path is None:
                return await _replace_in_memory(service, live, ordinals, prompt, cause)
            if child is not None:
                if not is_copy(child, session, ordinals):
                    raise another(child.id)
                path = child.key
            elif session.header.format == "dsh":
                path = (await fork_of_dsh(service, session, ordinals, chosen, params.cwd)).path
            else:
                plan = await plan_copy(session, ordinals, force=params.force)
                path = await publish_copy(service, session, plan, chosen or new_session_id(), params.cwd)
    if prompt is not None:
        with suppress(Fault):  # the branch is made, and the answer holds the text
            await service.off_loop(service.state.set_draft, path, prompt.text)
    return _answer(await service.file_info(path), path, live.id, prompt)


def _path(session: Session, target: int, position: Literal["before", "at"]) -> list[int]:
    """The ordinals that a branch takes along. A dsh log is forked at the closed turn before a prompt."""
    if target == NONE:
        return []
    path = branch_path(session.index, target, position)
    if session.header.format != "dsh" or position == "at":
        return path
    boundary = surface.boundary_for(session.index, target)
    return tree.path(session.index, boundary)


def _answer(info: SessionInfo, path: str | None, previous: str, prompt: Prompt | None) -> t.BranchResult:
    result: t.BranchResult = {"outcome": "branched", "session": info, "path": path, "previousSessionId": previous}
    if prompt is not None:
        result["editorText"] = prompt.text
        if prompt.images:
            result["editorImages"] = prompt.images
    return result


async def _replace_in_memory(
    service: Service, live: LiveSession, ordinals: Sequence[int], prompt: Prompt | None, cause: MethodCause
) -> t.BranchResult:
    """A session without a file becomes its own branch: the same id, a new epoch."""
    session = live.session
    changing.refuse_while_running(live)
    plan = await plan_copy(session, ordinals, force=True)
    header = {**session.header.raw, "timestamp": now()}
    fresh = Session(MemoryJournal(b"".join(content(session, plan, header, session.title()))))
    fresh.load()
    session.journal = fresh.journal
    live.publish([session.become(fresh.index, cause)])
    return _answer(await service.info(live), None, live.id, prompt)


# What branch and fork have in common


async def made_before(
    service: Service, live: LiveSession, session_id: str | None, cwd: str | None
) -> LiveSession | None:
    """The session that a request for this id made before; None where the id is free. Raises AlreadyExists.

    The caller holds `service.making`, and no lock of a session: this takes that of another one.
    """
    known = None if session_id is None else await service.known(session_id)
    if session_id is None or known is None:
        return None
    if known["parentSessionId"] != live.id or (cwd is not None and known["cwd"] != cwd):
        raise another(session_id)
    return await service.opened(session_id)


def is_copy(child: LiveSession, source: Session, ordinals: Sequence[int]) -> bool:
    """Whether a session that was made from `source` was made from this path of it."""
    kept = (source.index.ids[i] for i in reversed(ordinals) if source.index.type_of(i) != "label")
    return child.session.fork_point() == next(kept, None)


def another(session_id: str) -> AlreadyExists:
    return AlreadyExists(f"there is already a session {session_id}", id=session_id)


async def plan_copy(session: Session, ordinals: Sequence[int], *, force: bool) -> BranchPlan:
    """Plan the copy of a path. The caller holds the lock of the session. Raises DamagedRegion."""
    fresh: set[str] = set()

    def take() -> str:
        fresh.add(id_ := new_id(session.index.ordinal, fresh))
        return id_

    args = session.index, ordinals, session.entry, session.raw, take
    plan = plan_branch(*args) if len(ordinals) < LONG else await asyncio.to_thread(plan_branch, *args)
    if not force and (damage := plan.damage(session.index)) is not None:
        raise _damaged_region(session, damage)
    return plan


def _damaged_region(session: Session, offset: int) -> DamagedRegion:
    text = "unreadable lines stand between the entries to copy; force copies what can be read"
    told = (d for d in session.index.diagnostics if d.get("offset") == offset)
    found = next(told, None)
    place = {} if found is None else {"line": found.get("line"), "diagnostic": found["code"]}
    return DamagedRegion(text, offset=offset, **place)


async def fork_of_dsh(
    service: Service, session: Session, path: Sequence[int], session_id: str | None, cwd: str | None
) -> Forked:
    """Make a fork of a dsh session in dsh's own layout, with its labels in our state, and list it.

    The caller holds the lock of the session. Raises BoundaryInTurn, DamagedRegion, AlreadyExists and storage faults.
    """
    made = await asyncio.to_thread(dsh_fork.fork, session, path[-1] if path else NONE, session_id, cwd)
    assert session.path is not None
    given = await asyncio.to_thread(service.state.labels, session.path)
    for i in path:
        if (label := given.get(session.index.ids[i])) is not None:
            await asyncio.to_thread(service.state.set_label, made.path, session.index.ids[i], *label)
    await asyncio.to_thread(service.store.keep, made.path)
    await service.background.refresh([made.path])
    return made


async def publish_copy(
    service: Service, session: Session, plan: BranchPlan, session_id: str, cwd: str | None, *, sealed: bool = False
) -> str:
    """Write the new file beside that of the source, durably, and list it; its path. Raises storage faults."""
    assert session.path is not None
    path = os.path.join(os.path.dirname(session.path), file_name(session_id))
    title = session.title()
    header = child_header(session, session_id, cwd, title, len(plan.kept))
    await asyncio.to_thread(publish, path, b"", content(session, plan, header, title, sealed=sealed))
    await asyncio.to_thread(service.store.keep, path)
    await service.background.refresh([path])
    return path
