"""File changes under the roots, as sets of paths to look at again: native where the system allows, else by polling."""

# watchfiles' stubs name anyio's types, which a checker may not see.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Literal

from watchfiles import Change, awatch

from .walk import SUFFIXES

_NOISE = (".lock", ".tmp", ".bak", ".md", ".log", ".txt", ".json")  # files that agents keep beside sessions
_BEAT = 1.0  # seconds between looks at the open sessions' sizes
_LOOK_AROUND = 60.0  # seconds after which everything is looked through, for what was missed
_SETTLE = 0.3  # seconds: a folder's first files may come before the folder is watched
_FIRST_RETRY, _LAST_RETRY = 5.0, 300.0  # seconds until native watching is tried again


def _none() -> dict[str, int]:
    return {}


class Watcher:
    """Watches `roots`, also those that do not exist yet; heals what was missed.

    `open_sizes` gives path -> known size in bytes of the sessions that are open: they are compared every second.
    `mode` and `reason` say how it watches at this moment.
    """

    def __init__(
        self,
        roots: Iterable[str],
        open_sizes: Callable[[], Mapping[str, int]] = _none,
        wanted: Literal["auto", "native", "polling"] = "auto",
    ) -> None:
        self.roots = list(roots)
        self.mode: Literal["native", "polling"] = "polling" if wanted == "polling" else "native"
        self.reason: str | None = "the configuration says so" if wanted == "polling" else None
        self._open_sizes = open_sizes
        self._native_wanted = wanted != "polling"
        self._pending: set[str] = set()
        self._news = asyncio.Event()
        self._restart = asyncio.Event()
        self._present: dict[str, tuple[int, int]] = {}

    async def changes(self) -> AsyncIterator[set[str]]:
        """Yield paths that changed: session files (also deleted ones), folders that came, names that went."""
        tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._beat())]
        try:
            while True:
                news = asyncio.create_task(self._news.wait())
                await asyncio.wait([news, *tasks], return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                for task in tasks:
                    if task.done():
                        task.result()
                self._news.clear()
                paths, self._pending = self._pending, set()
                if paths:
                    yield paths
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _emit(self, paths: Iterable[str]) -> None:
        self._pending.update(paths)
        if self._pending:
            self._news.set()

    def _emit_later(self, paths: Iterable[str]) -> None:
        asyncio.get_running_loop().call_later(_SETTLE, self._emit, set(paths))

    async def _watch(self) -> None:
        retry = _FIRST_RETRY
        self._present = self._existing()
        while True:
            self._restart.clear()
            if not self._native_wanted:
                await self._poll(None)
                continue
            try:
                await self._native()
                retry = _FIRST_RETRY
            except FileNotFoundError:
                await asyncio.sleep(_BEAT)  # a root went while it was being watched
            except (OSError, RuntimeError, ExceptionGroup) as exc:
                cause = exc.exceptions[0] if isinstance(exc, ExceptionGroup) else exc
                self.mode, self.reason = "polling", f"native watching failed: {cause}"
                await self._poll(time.monotonic() + retry)
                retry = min(retry * 2, _LAST_RETRY)
            self._present = self._existing()

    async def _native(self) -> None:
        """Watch until the set of existing roots changes. Raises OSError, RuntimeError where the system refuses."""
        self._emit_later(self._present)
        if not self._present:
            await self._restart.wait()
            return
        works = asyncio.get_running_loop().call_later(_SETTLE, self._is_native)
        watching = awatch(
            *sorted(self._present), watch_filter=None, debounce=100, step=50, stop_event=self._restart,
            rust_timeout=10_000, ignore_permission_denied=True,
        )  # fmt: skip
        try:
            async with aclosing(watching):
                async for changes in watching:
                    self._take(changes)
        finally:
            works.cancel()

    def _is_native(self) -> None:
        self.mode, self.reason = "native", None

    def _take(self, changes: set[tuple[Change, str]]) -> None:
        for change, path in changes:
            if path.endswith(SUFFIXES):
                self._emit([path])
            elif change == Change.deleted:
                if not path.endswith(_NOISE):
                    self._emit([path])
            elif change == Change.added and os.path.isdir(path):
                self._emit([path])
                self._emit_later([path])

    async def _poll(self, until: float | None) -> None:
        before = await asyncio.to_thread(self._snapshot)
        self._emit(self._existing())
        while until is None or time.monotonic() < until:
            start = time.monotonic()
            after = await asyncio.to_thread(self._snapshot)
            self._emit(path for path, _ in before.items() ^ after.items())
            before = after
            await asyncio.sleep(min(max(_BEAT, 20 * (time.monotonic() - start)), 4.0))

    def _snapshot(self) -> dict[str, tuple[int, int, int]]:
        files: dict[str, tuple[int, int, int]] = {}
        stack = list(self.roots)
        while stack:
            with suppress(OSError), os.scandir(stack.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    elif entry.name.endswith(SUFFIXES):
                        with suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            files[entry.path] = status.st_ino, status.st_size, status.st_mtime_ns
        return files

    async def _beat(self) -> None:
        looked = time.monotonic()
        while True:
            await asyncio.sleep(_BEAT)
            for path, size in self._open_sizes().items():
                try:
                    grown = os.stat(path).st_size != size
                except OSError:
                    grown = True
                if grown:
                    self._emit([path])
            if self._existing() != self._present:
                self._restart.set()
            if self.mode == "native" and time.monotonic() - looked > _LOOK_AROUND:
                looked = time.monotonic()
                self._emit(self._present)

    def _existing(self) -> dict[str, tuple[int, int]]:
        """Map each root that is there to its device and inode: one that was made anew must be watched anew."""
        present: dict[str, tuple[int, int]] = {}
        for root in self.roots:
            with suppress(OSError):
                status = os.stat(root)
                if stat.S_ISDIR(status.st_mode):
                    present[root] = status.st_dev, status.st_ino
        return present
