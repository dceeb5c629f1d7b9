"""A session that the daemon has open: one lock, one write path, one stream of changes to its followers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from .agents import Agent, Inbox
from .errors import Busy, Fault, SessionGone, StorageError
from .log.journal import Outdated
from .session import RETRIES, Prepared, Session, SessionClosed
from .types import Change, MethodCause, OpenTurn

THREADED = 4 << 20  # bytes of growth above which the scan leaves the event loop


class Client(Protocol):
    """What the service knows of a connection."""

    id: str
    name: str
    pid: int | None
    read_only: bool
    summarizer: bool  # it serves hook/summarize
    hooks: tuple[str, ...]  # what it is asked before it happens
    events: tuple[str, ...]  # what it is told after it happened
    leaving: bool  # it sends nothing more
    gone: bool  # the connection ended

    def push(self, method: str, params: Any, key: str | None = None) -> None:
        """Queue a notification; waiting ones of one `key` may be folded into a single `resync`."""
        ...

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Ask the client. Raises ConnectionError where it leaves or cannot answer."""
        ...


class Operation:
    """What asks hooks or a model before it writes; until that is decided it can be stopped."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.decided = False

    def stop(self) -> bool:
        """Call it off; False where that comes too late."""
        if not self.decided:
            self._task.cancel()
        return not self.decided


class Commits:
    """Group commit: every append that waits at the same time shares one fsync."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._next: asyncio.Future[None] | None = None
        self._worker: asyncio.Task[None] | None = None

    async def durable(self) -> None:
        """Return when what was written before this call is on the disk. Raises the storage fault of a failed sync."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        mine = self._next
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        await asyncio.shield(mine)

    async def _work(self) -> None:
        while (waiting := self._next) is not None:
            self._next = None  # whoever writes from here on waits for the next round
            try:
                await asyncio.to_thread(self._sync)
                waiting.set_result(None)
            except Fault as fault:
                waiting.set_exception(fault)
            finally:
                if not waiting.done():
                    waiting.set_exception(StorageError("the disk was not waited for to the end"))
                waiting.exception()  # it is raised in `durable`; a cancelled waiter must not make it "never retrieved"

    async def settled(self) -> None:
        """Wait for the syncs under way."""
        if self._worker is not None:
            await self._worker

    @property
    def busy(self) -> bool:
        return self._worker is not None and not self._worker.done()


class LiveSession:
    """An open session with its followers. All mutations, and reads that wait for the disk, go through `lock`."""

    def __init__(
        self,
        key: str,
        session: Session,
        publish: Callable[[LiveSession, Change], None],
        gone: Callable[[LiveSession, str], Awaitable[Fault]],
        noticed: Callable[[LiveSession], None] = lambda _live: None,
        notification: Callable[[str, Any], Any] = lambda _method, params: params,
        *,
        durable: bool,
    ) -> None:
        """`publish` tells of a change, `gone` that the file went away; it gives the fault for whoever asked.

        `noticed` is called when what lists show of it changed beside the log; `notification` makes what is pushed.
        """
        self.key = key  # its path, or what stands for that where it is in no file
        self.session = session
        self.lock = asyncio.Lock()
        self.followers: dict[Client, None] = {}  # in the order in which they came
        self.commits = Commits(self._sync)
        self.closed: str | None = None
        self.used = time.monotonic()
        self.layouts: dict[Any, Any] = {}
        self.agent: Agent | None = None
        self.inbox = Inbox()
        self.operation: Operation | None = None
        self.seat = asyncio.Lock()  # held while the session gets another agent, or none
        self._readers = 0
        self._publish = publish
        self._gone = gone
        self._noticed = noticed
        self._notification = notification
        self._durable = durable

    def _sync(self) -> None:
        self.session.journal.sync()  # looked up at each call: a rewritten file gets another journal

    @property
    def id(self) -> str:
        return self.session.wire_id

    @property
    def much_to_read(self) -> bool:
        """Whether catching up reads so much that it belongs into a thread, and so under the lock."""
        session = self.session
        if self.closed is not None:
            return False
        found = session.journal.check(session.index.size)
        if found == "grown":
            return session.journal.size() - session.index.end > THREADED  # an unfinished line is read again
        return found != "same" and session.index.size > THREADED

    @property
    def needed(self) -> bool:
        """Whether somebody follows or drives it, or left a message, or reads it together with others."""
        return bool(self.followers or self.agent or self.inbox.sizes or self._readers or self.operation)

    @contextmanager
    def kept_open(self) -> Generator[None]:
        """Keep the file open, however many others are opened meanwhile."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    def running(self) -> OpenTurn | None:
        """The open turn at the leaf, where the agent runs it."""
        found = self.session.open_turn() if self.agent is not None and self.agent.turn is not None else None
        return found if found is not None and self.agent and found["entryId"] == self.agent.turn else None

    def noticed(self) -> None:
        """Something changed that is not in the log: who drives the session, or what that one does."""
        self._noticed(self)

    def tell(self, method: str, params: dict[str, Any], but: Client | None = None) -> None:
        """Push what is not logged to the agent and all followers, but not to who said it."""
        message = self._notification(method, params)
        hearers = dict(self.followers)
        if self.agent is not None:
            hearers[self.agent.client] = None
        for client in hearers:
            if client is not but:
                client.push(method, message, self.id)

    def publish(self, changes: list[Change]) -> None:
        for change in changes:
            self._publish(self, change)

    async def catch_up(self) -> None:
        """Take in what others wrote, under the lock where that is `much_to_read`. Raises SessionGone and others."""
        session = self.session
        if self.closed is not None:
            raise SessionGone(f"the file of this session was {self.closed}", path=session.path, reason=self.closed)
        try:
            if self.much_to_read:
                reading = asyncio.ensure_future(asyncio.to_thread(session.refresh))
                cancelled = await _ended(reading)
                changes = reading.result()
            else:
                cancelled = None
                changes = session.refresh()
        except SessionClosed as closed:
            self.closed = closed.reason
            raise await self._gone(self, closed.reason) from None
        self.publish(changes)
        if cancelled is not None:
            raise cancelled

    async def commit(
        self,
        build: Callable[[], Prepared],
        cause: MethodCause,
        *,
        lock: Callable[[], AbstractContextManager[Any]] = nullcontext,
        ready: Callable[[], None] = lambda: None,
        written: Callable[[Prepared], None] = lambda _prepared: None,
        heavy: bool = False,
    ) -> Prepared:
        """Write what `build` prepares for the log as it is now; index it, publish it, then wait for the disk.

        Runs under `self.lock` up to the publication; the wait for the disk is shared with other writers. `build` is
        called again when another program wrote between our look and our write, and may refuse by raising. `written`
        hears of it before anybody else does. A `heavy`
        batch is prepared and indexed in threads. The caller is shielded from being cancelled.
        """
        async with self.lock:
            for _ in range(RETRIES):
                await self.catch_up()
                prepared = await asyncio.to_thread(build) if heavy else build()
                if not prepared.lines:
                    break
                try:
                    offset, end = await asyncio.to_thread(self.session.write, prepared.lines, lock, ready)
                except Outdated:
                    continue
                if heavy:
                    changes = await asyncio.to_thread(self.session.take_written, offset, end, cause)
                else:
                    changes = self.session.take_written(offset, end, cause)
                written(prepared)
                self.publish(changes)
                break
            else:
                raise Busy("another program keeps writing to this session", retryAfterMs=500)
            # Others may write while this one waits for the disk.
            prepared = prepared._replace(revision=self.session.revision, leaf_id=self.session.leaf_id)
        if self._durable:
            await self.commits.durable()
        return prepared


async def _ended(work: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait for the end of what a thread does to the index: a cancel frees the lock no earlier, and is given back."""
    cancelled = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as exc:
            cancelled = exc
    return cancelled
