"""What waits for one client: its answers for as long as it takes, what it is told up to a limit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .codec import Notification

MARK = 64 * 1024  # bytes in the transport above which we queue here, where a change can still be replaced
OWED = 1 << 20  # bytes of answers that wait before no further request is started

Key = tuple[str, str]


@dataclass(slots=True)
class _Item:
    frame: bytes
    note: Notification | None = None
    key: Key | None = None
    merged: bool = False
    dropped: bool = False


class Outbox:
    """Writes at once while the client reads; otherwise queues, counts notifications and coalesces those of one key."""

    def __init__(self, writer: asyncio.StreamWriter, limit: int, overflow: Callable[[str], None]) -> None:
        self._writer, self._limit, self._overflow = writer, limit, overflow
        self._low = limit // 8
        self._queue: deque[_Item] = deque()
        self._keyed: dict[Key, list[_Item]] = {}
        self._pump: asyncio.Task[None] | None = None
        self._closed = False
        self._written = 0
        self._progress = 0, asyncio.get_running_loop().time()  # bytes that had left, since when
        self.told = 0  # bytes of notifications that wait
        self.owed = 0  # bytes of answers that wait
        self.moved = asyncio.Event()  # set whenever something left

    def answer(self, frame: bytes) -> None:
        """Send what must arrive: an answer, or a request of ours."""
        if self._closed:
            return
        if self.congested():
            self.owed += len(frame)
            self._wait(_Item(frame))
        else:
            self._write(frame)

    def tell(self, note: Notification, key: str | None = None) -> None:
        """Send a notification; one that waits and has the same `key` may be replaced by what covers both."""
        if self._closed:
            return
        if not self.congested():
            self._write(note.frame)
            return
        full = None if key is None else (note.method, key)
        earlier = self._keyed.get(full) if full else None
        if earlier and (self.told >= self._low or earlier[0].merged):
            self._merge(earlier, note)
            return
        self.told += len(note.frame)
        if self.told > self._limit:
            self._overflow(f"{self.told} bytes of notifications wait")
            return
        item = _Item(note.frame, note, full)
        if full:
            self._keyed.setdefault(full, []).append(item)
        self._wait(item)

    def _merge(self, waiting: list[_Item], note: Notification) -> None:
        # Into the place of the first, so that it stays ahead of the answers that came after it.
        merge = MERGE.get(note.method, _latest)
        first, merged = waiting[0], waiting[0].note
        assert merged is not None
        for item in waiting:
            self.told -= len(item.frame)
        for item in waiting[1:]:
            assert item.note is not None
            merged = merge(merged, item.note)
            item.dropped, item.frame, item.note = True, b"", None
        first.note = merge(merged, note)
        first.frame, first.merged = first.note.frame, True
        self.told += len(first.frame)
        del waiting[1:]

    def congested(self) -> bool:
        return bool(self._queue) or self._writer.transport.get_write_buffer_size() > MARK

    def stalled(self, now: float, seconds: float) -> bool:
        """Nothing has left for so long although something waits."""
        waiting = self._writer.transport.get_write_buffer_size()
        left = self._written - waiting
        if left != self._progress[0] or not (waiting or self._queue):
            self._progress = left, now
        return now - self._progress[1] > seconds

    async def flush(self) -> None:
        """Wait until all that waits has been handed to the system."""
        if self._pump:
            await asyncio.wait([self._pump])
        # A transport tells when it is below a mark, not when it is empty.
        while not self._closed and self._writer.transport.get_write_buffer_size():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def close(self) -> None:
        self._closed = True
        self._queue.clear()
        self._keyed.clear()
        self.told = self.owed = 0
        if self._pump:
            self._pump.cancel()
        self.moved.set()

    def _write(self, frame: bytes) -> None:
        self._written += len(frame)
        self._writer.write(frame)

    def _wait(self, item: _Item) -> None:
        self._queue.append(item)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._queue:
            try:
                await self._writer.drain()
            except ConnectionError:
                return  # the reader of this connection sees its end
            item = self._queue.popleft()
            if item.dropped:
                continue
            if item.note is None:
                self.owed -= len(item.frame)
            else:
                self.told -= len(item.frame)
            if item.key:
                waiting = self._keyed[item.key]
                waiting.remove(item)
                if not waiting:
                    del self._keyed[item.key]
            self._write(item.frame)
            self.moved.set()


def _latest(_earlier: Notification, later: Notification) -> Notification:
    return later


def _resync(earlier: Notification, later: Notification) -> Notification:
    old, new = earlier.params, later.params
    kept = ("sessionId", "epoch", "revision", "cause", "leafId", "openTurn")
    params = {name: new[name] for name in kept if name in new}
    return Notification(
        later.method, {**params, "fromRevision": old.get("fromRevision"), "entries": [], "resync": True}
    )


def _catalog(earlier: Notification, later: Notification) -> Notification:
    upserts: dict[str, Any] = {}
    removed: dict[str, None] = {}
    for params in (earlier.params, later.params):
        for session_id in params.get("removed", ()):
            upserts.pop(session_id, None)
            removed[session_id] = None
        for info in params.get("upserts", ()):
            removed.pop(info["sessionId"], None)
            upserts[info["sessionId"]] = info
    return Notification(later.method, {"upserts": list(upserts.values()), "removed": list(removed)})


def _delta(earlier: Notification, later: Notification) -> Notification:
    lost = earlier.params.get("skipped", 0) + later.params.get("skipped", 0) + 1
    return Notification(later.method, {**later.params, "skipped": lost})


MERGE: dict[str, Callable[[Notification, Notification], Notification]] = {
    "session/changed": _resync,
    "catalog/changed": _catalog,
    "agent/delta": _delta,
}
