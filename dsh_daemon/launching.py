"""The command lines with which each agent continues its sessions.

pi and omp start at the last line of a file, wherever the leaf is with us. `keepLeaf` appends one entry under the leaf
that says nothing to them, so that this line is the last one.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Literal

from .changing import write
from .cwd import within
from .errors import AgentBusy, NotSupportedByFormat
from .holders import holders
from .log.index import NONE
from .roots import Root, of_agents
from .session import Prepared

if TYPE_CHECKING:
    from .items import Item
    from .live import LiveSession
    from .service import Service
    from .types import MethodCause
    from .wire import types as t

PIN = {"type": "custom", "customType": "dsh-daemon/leaf"}
SESSION_DIR = "PI_CODING_AGENT_SESSION_DIR"  # read by pi and by omp
PROFILE = "omp profile "  # how the origin of such a store begins
VARIABLES = ("PI_CODING_AGENT_DIR", SESSION_DIR)
FLAGS = {"pi": {"resume": "--session", "fork": "--fork"}, "omp": {"resume": "--resume", "fork": "--fork"}}


async def launch(service: Service, params: t.SessionLaunchParams, cause: MethodCause) -> t.LaunchResult:
    """session/launch. Raises NotSupportedByFormat, AgentBusy (omp has the file open), write faults where it pins."""
    await service.path_of(params.session_id)
    item = service.store.get(params.session_id)
    format_ = item.peek.format
    if format_ == "native":
        text = "no program of its own continues a native session; session/resume makes any client its agent"
        raise NotSupportedByFormat(text, format=format_, instead="session/resume")
    cwd = service.store.facts.places.spelled(item.peek.cwd) if item.peek.cwd else None
    if format_ == "dsh":  # it has no command line for one session: all are in its browser page
        if (agent := service.store.facts.drivers.get(item.path)) is not None and params.action == "resume":
            text = f"{agent['client']} is the agent of this session; two who write to it would corrupt its log"
            raise AgentBusy(text, holder={"client": agent["client"], "pid": agent.get("pid")})
        return {"argv": ["dsh", "web"], "cwd": cwd}
    if format_ not in FLAGS:
        raise NotSupportedByFormat(f"how {format_} continues a session is not known here", format=format_)
    live = await service.opened(params.session_id)
    live.session.check_writable()
    if format_ == "omp" and params.action == "resume":
        await asyncio.to_thread(_not_held, item.path)
    store = await asyncio.to_thread(_store_of, item)
    profile = ["--profile", store.origin.removeprefix(PROFILE)] if store and store.origin.startswith(PROFILE) else []
    result: t.LaunchResult = {"argv": [format_, *profile, FLAGS[format_][params.action], item.path], "cwd": cwd}
    if env := _environment(item, store, params.action):
        result["env"] = env
    if params.keep_leaf and (pinned := await _pin(live, cause)) is not None:
        result["pinnedEntryId"] = pinned
    return result


def _not_held(path: str) -> None:
    """Refuse to start a second omp on a file. Raises AgentBusy."""
    if pids := holders(path):
        raise AgentBusy(f"omp has this session open (process {pids[0]})", holder={"client": "omp", "pid": pids[0]})


def _store_of(item: Item) -> Root | None:
    """The folder of the agent's own in which a session stands."""
    path = os.path.realpath(item.path)
    roots = (root for root in of_agents(os.environ) if root.format in {None, item.peek.format})
    return next((root for root in roots if within(path, os.path.realpath(root.path))), None)


def _environment(item: Item, store: Root | None, action: Literal["resume", "fork"]) -> dict[str, str]:
    """What the agent must be told to find this store again: nothing where it is its default one.

    A session that is named by its path is continued in its place. A copy of it would go to the default store.
    """
    if store is None:
        return {SESSION_DIR: os.path.dirname(item.path)} if action == "fork" else {}
    return {store.origin: os.path.abspath(os.environ[store.origin])} if store.origin in VARIABLES else {}


async def _pin(live: LiveSession, cause: MethodCause) -> str | None:
    """Make the leaf the last line of its file, durably; id of the entry that was written for it."""
    session = live.session

    def build() -> Prepared:
        index = session.index
        if session.leaf == len(index) - 1:
            return Prepared([], b"")
        return session.prepare([PIN], NONE if session.leaf == NONE else session.hangable(index.ids[session.leaf]))

    if session.leaf == len(session.index) - 1:
        return None  # nothing to write: nothing that a write minds stands in the way
    prepared = await write(live, build, cause)
    return prepared.ids[0] if prepared.ids else None
