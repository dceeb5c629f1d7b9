"""What the agent of a session does: take it, begin and end turns and steps, read its inbox, leave.

The log alone says which turn is open. What the daemon adds is who runs it: `Agent.turn` names the `turn_start` that
this agent wrote. An open turn that nobody runs is closed by the next one who resumes or begins a turn.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from . import dsh_driving, elsewhere, native_driving
from .agents import Agent
from .changing import write
from .errors import (
    AgentBusy,
    Fault,
    InvalidEntry,
    InvalidReference,
    NoAgent,
    NoOpenTurn,
    NotTheAgent,
    PersistenceUnavailable,
    ReadOnly,
    StorageError,
    StorageFull,
    TurnOpen,
    storage_fault,
)
from .session import Prepared, Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from .driver import Driver, Resumed
    from .live import Client, LiveSession
    from .types import Live, MethodCause
    from .wire import types as t

LEAVES_S = 2.0  # how long a connection that ends may take to be gone

log = logging.getLogger(__name__)


def agent_of(live: LiveSession | None, client: Client) -> Agent:
    """The agent of a session, where that is this client. Raises NotTheAgent."""
    agent = live.agent if live is not None else None
    if agent is None or agent.client is not client:
        who = f"{agent.client.name} is" if agent else "nobody is"
        how = "turn/start" if live is not None and live.session.path is None else "session/resume"
        text = f"{who} the agent of this session; {how} makes you it"
        raise NotTheAgent(text, holder=None if agent is None else _holder(agent))
    return agent


def _holder(agent: Agent) -> dict[str, Any]:
    client = agent.client
    return {"client": client.name} if client.pid is None else {"client": client.name, "pid": client.pid}


def driven_by(agent: Agent) -> AgentBusy:
    text = f"{agent.client.name} is the agent of this session; session/resume with takeover takes it away"
    return AgentBusy(text, holder=_holder(agent))


def driver_of(session: Session) -> Driver:
    """What writes for an agent. Raises DamagedHeader, NotSupportedByFormat, UnsupportedVersion."""
    return dsh_driving.Driver(session) if session.header.format == "dsh" else native_driving.Driver(session)


# Taking and leaving


async def resume(
    live: LiveSession, client: Client, cause: MethodCause, *, takeover: bool, holder: Live | None = None
) -> list[t.Repair]:
    """Make `client` the agent, and close the turn that nobody runs any more; what was written for that.

    `holder`: a program that may have the session without us. Raises AgentBusy, PersistenceUnavailable,
    UnsupportedVersion, NotSupportedByFormat, DamagedHeader, DamagedRegion.
    """
    session = live.session
    driver = driver_of(session)
    async with live.seat:
        before = live.agent
        if before is not None and before.client is client:
            async with live.lock:
                await asyncio.to_thread(driver.check)  # what became of the log meanwhile may forbid to go on
            return []
        if before is not None and before.client.leaving:
            before = await _gone(live, before)
        if before is not None and not takeover:
            raise driven_by(before)
        if before is None and holder is not None and not takeover:
            text = f"{holder['client']} may have this session open; takeover says that it has not"
            raise AgentBusy(text, holder={"client": holder["client"], "pid": holder.get("pid")})
        live.agent = Agent(client, driver)  # from here on the one before is refused
        try:
            await asyncio.to_thread(_must_persist, session)
            repaired = await _close(live, driver, driver.resume, cause)
        except BaseException as exc:
            live.agent = None if before is None or before.client.gone else before
            live.noticed()
            if isinstance(exc, ReadOnly | StorageFull | StorageError):
                text = f"nothing can be written to this session: {exc.message}"
                raise PersistenceUnavailable(text, reason=exc.message) from None
            raise
        if before is not None:
            before.client.push("agent/lost", {"sessionId": live.id, "by": client.name})
            live.inbox.restore()
        if client.gone:  # it left while we wrote
            live.agent = None
        elif live.inbox.waiting:
            live.tell("agent/inbox", _inbox(live))
    live.noticed()
    return repaired


async def _gone(live: LiveSession, agent: Agent) -> Agent | None:
    """Let an agent go whose client has said goodbye or hung up; its turn is closed by whoever comes now."""
    until = asyncio.get_running_loop().time() + LEAVES_S
    while not agent.client.gone and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110  (it is milliseconds)
        await asyncio.sleep(0.002)
    if not agent.client.gone:
        return agent
    async with live.lock:  # what it was writing is written now
        live.agent = None
    live.inbox.restore()
    return None


def _must_persist(session: Session) -> None:
    """Raises PersistenceUnavailable for a session in no file, a storage fault for one that cannot be written."""
    if session.path is None:
        text = "this session is in memory only: it ends with the daemon, so there is nothing to resume"
        raise PersistenceUnavailable(text, reason="the session is in memory only")
    try:
        os.close(os.open(session.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    except OSError as exc:
        raise storage_fault(exc, session.path) from None


async def leave(live: LiveSession, client: Client, cause: MethodCause) -> None:
    """Let go of a session; the turn that this client runs is closed as interrupted. Raises write faults."""
    async with live.seat:
        agent = live.agent
        if agent is None or agent.client is not client:
            return
        async with live.lock:  # what it was writing is written now, and nothing more will be
            running = live.running() is not None
            live.agent = None
        if live.inbox.claimed:
            live.inbox.restore()
            live.tell("agent/inbox", _inbox(live))
        live.inbox.wake()
        if running:
            await _close(live, agent.driver, agent.driver.interrupt, cause)
    live.noticed()


async def left(live: LiveSession, client: Client) -> None:
    """The connection of an agent ended."""
    try:
        await leave(live, client, {"method": "session/release", "client": client.name})
    except Fault as fault:  # the turn stays open; the next resume closes it
        log.warning("the open turn of %s could not be closed: %s", live.id, fault.kind)


async def _close(
    live: LiveSession, driver: Driver, closing: Callable[[], Resumed], cause: MethodCause
) -> list[t.Repair]:
    """Close the recorded turn in which the leaf is; what was written."""
    repaired: list[Any] = []

    def build() -> Prepared:
        made = closing()
        repaired[:] = made.repaired
        return made.prepared

    await _write(live, driver, build, cause)
    return repaired


async def _write(
    live: LiveSession,
    driver: Driver,
    build: Callable[[], Prepared],
    cause: MethodCause,
    written: Callable[[Prepared], None] = lambda _prepared: None,
) -> Prepared:
    if live.session.header.format == "dsh":  # what `write` looks at is the business of its driver
        return await live.commit(build, cause, written=written, heavy=driver.heavy)
    return await write(live, build, cause, written=written, heavy=driver.heavy)


# Turns and steps


async def start_turn(
    live: LiveSession, client: Client, params: t.TurnStartParams, cause: MethodCause
) -> t.TurnStartResult:
    """Begin a turn with the user's message. Raises NotTheAgent, TurnOpen, InvalidReference, InvalidEntry."""
    session = live.session
    agent, begun = Agent(client, driver_of(session)), None
    # Nobody can resume what is in memory only: the first who works in it has it.
    free = live.agent is None and session.path is None
    if not free:
        agent = agent_of(live, client)

    def build() -> Prepared:
        nonlocal begun
        if not free or live.agent is not None:
            agent_of(live, client)
        if (running := live.running()) is not None:
            text = f"turn {running['turn']} is not ended yet"
            raise TurnOpen(text, turn=running["turn"], entryId=running["entryId"])
        content = params.content
        if params.message_id is not None:
            message = live.inbox.find(params.message_id)
            if message is None:
                text = f"no message {params.message_id} waits"
                raise InvalidReference(text, ref=params.message_id, reason=text)
            content = message["content"]
        begun = agent.driver.start_turn(content)
        return begun.prepared

    def own(_: Prepared) -> None:
        assert begun is not None
        if free:
            live.agent = agent
        agent.turn = begun.mark_id
        if params.message_id is not None:
            live.inbox.use(params.message_id)
            live.tell("agent/inbox", _inbox(live))

    prepared = await _write(live, agent.driver, build, cause, own)
    if client.gone:  # it left while we wrote
        await left(live, client)
    assert begun is not None
    return {"turn": begun.number, "entryId": begun.entry_id, "revision": prepared.revision}


async def end_turn(live: LiveSession, client: Client, params: t.TurnEndParams, cause: MethodCause) -> t.EndResult:
    """End a turn. Raises NotTheAgent, NoOpenTurn, StepOpen."""
    agent = working(live, client)

    def build() -> Prepared:
        _must_run(live, client, params.turn)
        return agent.driver.end_turn(params.turn, dict(params.reason))

    def disown(_: Prepared) -> None:
        agent.turn = None  # on a path that leads back into it, nobody runs it

    prepared = await _write(live, agent.driver, build, cause, disown)
    return {"revision": prepared.revision}


async def start_step(
    live: LiveSession, client: Client, params: t.StepStartParams, cause: MethodCause
) -> t.StepStartResult:
    """Begin a step, with its header where it is another one. Raises NotTheAgent, NoOpenTurn, StepOpen."""
    agent, begun = working(live, client), None

    def build() -> Prepared:
        nonlocal begun
        _must_run(live, client, params.turn)
        begun = agent.driver.start_step(params.turn, params.header)
        return begun.prepared

    prepared = await _write(live, agent.driver, build, cause)
    assert begun is not None
    return {"step": begun.number, "entryId": begun.entry_id, "revision": prepared.revision}


async def end_step(live: LiveSession, client: Client, params: t.StepEndParams, cause: MethodCause) -> t.EndResult:
    """End a step. Raises NotTheAgent, NoOpenTurn, InvalidEntry."""
    agent = working(live, client)

    def build() -> Prepared:
        _must_run(live, client, params.turn)
        return agent.driver.end_step(params.turn, params.step, params.outcome)

    prepared = await _write(live, agent.driver, build, cause)
    return {"revision": prepared.revision}


async def append(
    live: LiveSession, client: Client, params: t.SessionAppendParams, cause: MethodCause
) -> t.AppendResult:
    """Append events to a dsh session, as its agent. Raises NotTheAgent, LeafMoved, InvalidEntry."""
    session = live.session
    agent = agent_of(live, client)
    driver = agent.driver
    assert isinstance(driver, dsh_driving.Driver)

    def build() -> Prepared:
        agent_of(live, client)
        if "expected_leaf_id" in params.model_fields_set:
            session.expect_leaf(params.expected_leaf_id)
        if "parent_id" in params.model_fields_set and params.parent_id != session.leaf_id:
            elsewhere.refuse_move(session, session.find(params.parent_id))
        return driver.append(params.entries)

    prepared = await _write(live, driver, build, cause)
    return {"ids": prepared.ids, "leafId": prepared.leaf_id, "revision": prepared.revision}


async def rename(live: LiveSession, client: Client, title: str, cause: MethodCause) -> t.RenameResult:
    """Name a dsh session in its log, as its agent. Raises NotTheAgent, InvalidEntry."""
    driver = agent_of(live, client).driver
    assert isinstance(driver, dsh_driving.Driver)

    def build() -> Prepared:
        agent_of(live, client)
        return driver.rename(" ".join(title.split()))

    prepared = await _write(live, driver, build, cause)
    return {"stored": "log", "revision": prepared.revision}


def working(live: LiveSession, client: Client) -> Agent:
    """The agent of a session, where that is this client and the format has turns. Raises NotTheAgent and others."""
    if live.agent is None:
        driver_of(live.session)  # says what is wrong with the session itself
    return agent_of(live, client)


def _must_run(live: LiveSession, client: Client, turn: int) -> None:
    """Raises NotTheAgent, NoOpenTurn where this client does not run the turn at the leaf."""
    agent_of(live, client)
    if live.running() is None:
        raise NoOpenTurn(f"turn {turn} is not open: no turn is open at the leaf", turn=turn)


# Messages, and what is never logged


def send(live: LiveSession | None, client: Client, params: t.AgentSendParams) -> t.AgentSendResult:
    """Leave a message for the agent. Raises NoAgent, InvalidEntry, Overloaded."""
    if live is None or live.agent is None:
        raise NoAgent("this session has no agent; start one, or session/resume it", sessionId=params.session_id)
    try:
        size = len(orjson.dumps(params.content))
    except TypeError:
        text = "no log holds this: a number beyond 64 bits, or nested too deeply"
        raise InvalidEntry(text, index=0, field="content") from None
    message_id = live.inbox.put(params.content, params.mode, client.name, size)
    live.tell("agent/inbox", _inbox(live))
    return {"messageId": message_id}


async def claim(live: LiveSession | None, client: Client, params: t.AgentClaimParams) -> t.AgentClaimResult:
    """Take the next message, waiting for one if asked to. Raises NotTheAgent, also when that ends while it waits."""
    until = asyncio.get_running_loop().time() + params.wait_ms / 1000
    while True:
        agent_of(live, client)
        assert live is not None
        moved = live.inbox.moved
        message = live.inbox.next(params.mode)
        if message is not None:
            live.tell("agent/inbox", _inbox(live))
            return {"message": message}  # pyright: ignore[reportReturnType]  # made by Inbox.put
        left_s = until - asyncio.get_running_loop().time()
        if left_s <= 0 or client.leaving or live.inbox.closed:
            return {"message": None}
        with suppress(TimeoutError):
            await asyncio.wait_for(moved.wait(), left_s)


def abort(live: LiveSession | None) -> t.AbortResult:
    """Ask the agent to stop the turn that it runs."""
    running = live.running() if live is not None else None
    if live is None or live.agent is None or running is None:
        return {"aborted": None}
    live.agent.client.push("agent/abortRequested", {"sessionId": live.id, "turn": running["turn"]})
    return {"aborted": "turn"}


def _inbox(live: LiveSession) -> dict[str, Any]:
    return {"sessionId": live.id, "messages": list(live.inbox.waiting)}


def brief(live: LiveSession, client: Client) -> None:
    """Tell a client that begins to follow a session what the others heard before, where it is not as usual."""
    agent = live.agent
    if agent is not None and (agent.status == "running" or agent.detail):
        said = {"status": agent.status} | ({} if agent.detail is None else {"detail": agent.detail})
        client.push("agent/status", said | {"sessionId": live.id}, live.id)
    if live.inbox.waiting:
        client.push("agent/inbox", _inbox(live), live.id)


def pass_on(
    live: LiveSession | None, client: Client, method: str, params: t.AgentDeltaParams | t.AgentStatusParams
) -> None:
    """Tell all who follow a session what its agent says. Raises NotTheAgent."""
    agent = agent_of(live, client)
    assert live is not None
    said = params.model_dump(by_alias=True, exclude_unset=True, exclude={"work_done_token"})
    if "status" in said:
        agent.status, agent.detail = said["status"], said.get("detail")
        live.noticed()
    live.tell(method, said | {"sessionId": live.id}, but=client)
