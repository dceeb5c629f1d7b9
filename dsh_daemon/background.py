"""What the daemon does unasked: watch the files, keep the list right, tell of it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from .catalog import Record, Stamp
from .errors import Fault
from .extract import counts_of
from .listing import Filters
from .log import snapshot
from .log.formats.peek import Peek, look
from .progress import Progress
from .session import Session
from .table import Delta
from .watch import Watcher

if TYPE_CHECKING:
    from .items import Item
    from .live import Client, LiveSession
    from .service import Service

PUSH_EVERY = 0.25  # seconds between two catalog/changed
KEEP_AFTER = 0.5  # seconds after an open at which its index is stored
FIRST_WALK = 10.0  # seconds that a list waits for the first walk over the roots before it answers with what is there
AGAIN = 1.0  # seconds after which a background task that failed begins anew

log = logging.getLogger(__name__)


class Subscription(NamedTuple):
    accepts: Callable[[Item], bool]
    known: set[str]  # ids that this client has been shown


class Background:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.subscribers: dict[Client, Subscription] = {}
        self.watcher: Watcher | None = None
        self.walked = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._keeping: set[asyncio.Task[None]] = set()
        self._upserts: dict[str, Item] = {}
        self._removed: set[str] = set()
        self._dirty: set[str] = set()  # paths of open sessions whose row is old
        self._wake = asyncio.Event()
        self.progress = (0, 0)  # files looked at by the first walk, files there are

    async def start(self) -> None:
        for work in (self._walk, self._push, self.service.indexing.keep_up):
            self._tasks.append(asyncio.create_task(self._lasting(work), name=f"background {work.__name__}"))

    async def _lasting(self, work: Callable[[], Awaitable[None]]) -> None:
        """Keep a task alive: what goes wrong in one round ends that round only, and is in the log."""
        while True:
            try:
                await work()
            except Exception as exc:  # noqa: BLE001  (a worker outlives a bug in one round)
                frames = "".join(traceback.format_tb(exc.__traceback__))
                log.error("background %s: %s\n%s", work.__name__, type(exc).__name__, frames)  # noqa: TRY400  (no texts)
            await asyncio.sleep(AGAIN)

    async def stop(self) -> None:
        tasks = [*self._tasks, *self._keeping]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Watching

    async def _walk(self) -> None:
        service = self.service
        self.watcher = Watcher(
            [root.path for root in service.store.walker.roots], self._open_sizes, service.settings.watch
        )
        self.collect(await service.off_loop(service.store.refresh, self._progress))
        self.walked.set()
        # When watching begins, the roots are named once: what changed since the walk is found by that.
        async for paths in self.watcher.changes():
            await self._moved(paths)

    def _progress(self, done: int, total: int) -> None:
        self.progress = (done, total)

    def _open_sizes(self) -> dict[str, int]:
        return {
            path: live.session.file_size for path, live in self.service.live.items() if live.session.path is not None
        }

    async def _moved(self, paths: set[str]) -> None:
        """Files changed: open sessions take it in, the list is brought up to date."""
        service = self.service
        for path in paths:
            live = service.live.get(path)
            if live is None:
                continue
            async with live.lock:
                with suppress(Fault):
                    await live.catch_up()
        await self.refresh(paths)

    async def up_to_date(self, client: Client | None = None, token: str | int | None = None) -> None:
        """Let the list hold every session that was there when we were asked.

        The first walk over the roots is waited for a while, and told of where a token asks for that.
        """
        until = time.monotonic() + FIRST_WALK
        with Progress(client, token, "Looking for sessions") as progress:
            while not self.walked.is_set() and time.monotonic() < until:
                done, total = self.progress
                progress.report(f"{done}/{total}")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.walked.wait(), 0.1)
        if self.walked.is_set():
            self.collect(await self.service.off_loop(self.service.store.refresh_folders))

    async def refresh(self, paths: Iterable[str]) -> None:
        self.collect(await self.service.off_loop(self.service.store.refresh_paths, list(paths)))

    def watch_info(self) -> dict[str, Any]:
        watcher = self.watcher
        if watcher is None:
            return {"mode": "polling", "reason": "watching has not begun yet"}
        info: dict[str, Any] = {"mode": watcher.mode}
        if watcher.reason:
            info["reason"] = watcher.reason
        return info

    # Telling

    def subscribe(self, client: Client, filters: Filters, shown: Iterable[str]) -> None:
        self.subscribers[client] = Subscription(self.service.store.accepts(filters), set(shown))

    def collect(self, delta: Delta) -> None:
        """Note what changed in the list; subscribers hear of it within `PUSH_EVERY`."""
        for item in delta.upserts:
            self._upserts[item.path] = item
        self._removed.update(delta.removed)
        if delta:
            self._wake.set()
            self.service.indexing.noticed([item.path for item in delta.upserts])

    def counted(self, item: Item) -> None:
        """A file was looked through."""
        self._upserts[item.path] = item
        self._wake.set()

    def touched(self, live: LiveSession) -> None:
        """An open session changed."""
        self._dirty.add(live.key)
        self._wake.set()
        self.service.indexing.changed(live.key)

    def keep_index(self, live: LiveSession) -> None:
        """Store the index of a session for the next time that it is opened, once its first readers have their rows."""
        task = asyncio.create_task(self._keep_index(live))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def _keep_index(self, live: LiveSession) -> None:
        await asyncio.sleep(KEEP_AFTER)
        async with live.lock:  # a scan must not go on under it
            session = live.session
            if session.path is None or self.service.live.get(live.key) is not live:
                return
            try:
                stamp = Stamp.of(os.stat(session.path))
            except OSError:
                return
            blob = None
            with suppress(Fault):  # the file may go meanwhile
                blob = await self.service.off_loop(snapshot.dump, session.index, session.journal)
        if blob is not None:
            await self.service.off_loop(self.service.catalog.put_snapshot, session.path, stamp, blob)

    async def _push(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._dirty:
                dirty, self._dirty = self._dirty, set()
                self.collect(await self.service.off_loop(self.note, dirty))
                self._wake.clear()
            upserts, self._upserts = self._upserts, {}
            removed, self._removed = self._removed, set()
            for client, subscription in list(self.subscribers.items()):
                self._tell(client, subscription, upserts.values(), removed)
            await asyncio.sleep(PUSH_EVERY)

    def _tell(self, client: Client, subscription: Subscription, upserts: Iterable[Item], removed: set[str]) -> None:
        shown = [item for item in upserts if subscription.accepts(item)]
        known = subscription.known
        gone = known & removed | {item.id for item in upserts if item.id in known and not subscription.accepts(item)}
        known -= gone
        known |= {item.id for item in shown}
        if shown or gone:
            infos = [self.service.store.info(item) for item in shown]
            client.push("catalog/changed", {"upserts": infos, "removed": sorted(gone)}, "catalog")

    def note(self, keys: set[str]) -> Delta:
        """Bring the rows of open sessions up to date. Runs in a thread; the session may go on meanwhile."""
        store = self.service.store
        upserts: list[Item] = []
        removed: list[str] = []
        for key in keys:
            live = self.service.live.get(key)
            if live is None or live.session.path is None:
                delta = (
                    store.refresh_paths([key]) if live is None else store.put_memory(key, *memory_record(live.session))
                )
                upserts += delta.upserts
                removed += delta.removed
                continue
            delta = store.refresh_paths([key])
            removed += delta.removed
            item = store.at(key)
            if item is not None and (item := store.put_scanned(key, item.stamp, counts_of(live.session))) is not None:
                upserts.append(item)
        return Delta(upserts, removed)


def memory_record(session: Session) -> tuple[Record, Stamp]:
    """The row of a session that is in no file."""
    size = session.journal.size()
    peek = look(session.journal.read, size, session.header.session_id)
    assert isinstance(peek, Peek)  # it was opened
    stamp = Stamp(0, 0, size, time.time_ns())
    return Record(peek, None, counts_of(session), stamp), stamp
