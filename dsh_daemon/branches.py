"""Branch: a new session file from a path of another one, which stays byte-identical."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from .branching import BranchPlan, branch_path, plan_branch
from .child import child_header, content
from .errors import AlreadyExists, DamagedRegion, Fault
from .log.index import NONE
from .log.journal import MemoryJournal, publish
from .naming import file_name, new_session_id
from .navigation import Prompt, prompt_of
from .session import Session, new_id, now

if TYPE_CHECKING:
    from .live import LiveSession
    from .service import Service
    from .types import MethodCause, SessionInfo
    from .wire import types as t


def damaged_region(session: Session, offset: int) -> DamagedRegion:
    text = "unreadable lines stand between the entries to copy; force copies what can be read"
    told = (d for d in session.index.diagnostics if d.get("offset") == offset)
    found = next(told, None)
    place = {} if found is None else {"line": found.get("line"), "diagnostic": found["code"]}
    return DamagedRegion(text, offset=offset, **place)


async def branch(
    service: Service, live: LiveSession, params: t.SessionBranchParams, cause: MethodCause
) -> t.BranchResult:
    """session/branch. Raises EntryNotFound, NotAUserMessage, DamagedRegion, AlreadyExists and storage faults."""
    session = live.session
    session.check_writable()
    async with live.lock:
        await live.catch_up()
        target = session.leaf if params.entry_id is None else session.find(params.entry_id)
        ordinals = branch_path(session.index, target, params.position) if target != NONE else []
        fresh: set[str] = set()

        def take() -> str:
            fresh.add(id_ := new_id(session.index.ordinal, fresh))
            return id_

        plan = plan_branch(session.index, ordinals, session.entry, session.raw, take)
        if (damage := plan.damage(session.index)) is not None and not params.force:
            raise damaged_region(session, damage)
        prompt = prompt_of(session.entry(target)) if params.position == "before" else None
        title = session.title()
        if session.path is None:
            return await _replace_in_memory(service, live, plan, prompt, title, cause)
        session_id = params.child_session_id or new_session_id()
        last = session.index.id_of(plan.kept[-1]) if plan.kept else None
        async with service.making:
            known = await service.known(session_id)
            if known is None:
                path = os.path.join(os.path.dirname(session.path), file_name(session_id))
                header = child_header(session, session_id, params.cwd, title, len(plan.kept))
                await asyncio.to_thread(publish, path, b"", content(session, plan, header, title))
                await service.background.refresh([path])
            elif known["parentSessionId"] != live.id or (await service.opened(session_id)).session.fork_point() != last:
                raise AlreadyExists(f"there is already a session {session_id}", id=session_id)
            else:
                path = known["path"] or ""
    if prompt is not None:
        with suppress(Fault):  # the branch is made, and the answer holds the text
            await service.off_loop(service.state.set_draft, path, prompt.text)
    return _answer(await service.file_info(path), path, live.id, prompt)


def _answer(info: SessionInfo, path: str | None, previous: str, prompt: Prompt | None) -> t.BranchResult:
    result: t.BranchResult = {"outcome": "branched", "session": info, "path": path, "previousSessionId": previous}
    if prompt is not None:
        result["editorText"] = prompt.text
        if prompt.images:
            result["editorImages"] = prompt.images
    return result


async def _replace_in_memory(
    service: Service, live: LiveSession, plan: BranchPlan, prompt: Prompt | None, title: str | None, cause: MethodCause
) -> t.BranchResult:
    """A session without a file becomes its own branch: the same id, a new epoch."""
    session = live.session
    header = {**session.header.raw, "timestamp": now()}
    fresh = Session(MemoryJournal(b"".join(content(session, plan, header, title))))
    fresh.load()
    session.journal = fresh.journal
    live.publish([session.become(fresh.index, cause)])
    return _answer(await service.info(live), None, live.id, prompt)
