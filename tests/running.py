"""A real daemon process for tests: its own home in a temp folder, ended by its own pid, and clients of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from dsh_daemon.client import Client, connect

PATIENCE = 20.0  # seconds that a test waits for what must come


def environment(home: Path, roots: Path | str = "", **more: str) -> dict[str, str]:
    """Variables of a daemon or command that must see nothing of this machine's own sessions."""
    left = ("DSHD_", "XDG_", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left)}
    return {**kept, "HOME": str(home), "DSHD_HOME": str(home), "DSHD_ROOTS": str(roots), "NO_COLOR": "1", **more}


class Daemon:
    """`python -m dsh_daemon serve --foreground` in a home of its own."""

    def __init__(self, home: Path, roots: Path | str = "", **more: str) -> None:
        self.home = home
        self.env = environment(home, roots, **more)
        self.socket = str(home / "run" / "dshd.sock")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        with open(self.home / "stderr", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dsh_daemon", "serve", "--foreground"],
                env=self.env, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        until = time.monotonic() + PATIENCE
        while not self.answers():
            assert self.process.poll() is None, (self.home / "stderr").read_text()
            assert time.monotonic() < until, "the daemon did not start"
            time.sleep(0.01)

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self.socket)
            except OSError:
                return False
            return True

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()

    def client(self, name: str = "test", **options: Any) -> Any:
        return connect(self.socket, name=name, start=False, **options)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()


@asynccontextmanager
async def clients(daemon: Daemon, count: int) -> AsyncIterator[list[Client]]:
    """`count` connected clients."""
    opened: list[Client] = []
    try:
        for n in range(count):
            opened.append(await daemon.client(f"client-{n}"))
        yield opened
    finally:
        for client in opened:
            await client.close()


async def eventually(check: Callable[[], bool] | Callable[[], Awaitable[bool]], within: float = PATIENCE) -> None:
    """Wait until `check` holds; fail when it does not within so many seconds."""
    until = time.monotonic() + within
    while True:
        found = check()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < until, "it did not come to hold in time"
        await asyncio.sleep(0.02)


class Follower:
    """A client's own picture of a session, kept by the rule that every client follows (protocol-spec, Resync)."""

    def __init__(self, client: Client, session_id: str) -> None:
        self.client = client
        self.session_id = session_id
        self.epoch = ""
        self.revision = 0
        self.leaf: str | None = None
        self.entries: dict[str, str | None] = {}
        self.labels: dict[str, str] = {}
        self.gaps = 0
        self.changes: list[dict[str, Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._again = asyncio.Lock()

    async def open(self) -> None:
        self.client.on("session/changed", self.on_change)
        await self.baseline()

    async def baseline(self) -> None:
        async with self._again:
            state = await self.client.request("session/open", sessionId=self.session_id)
            self.epoch, self.revision, self.leaf = state["epoch"], state["revision"], state["leafId"]
            rows: list[dict[str, Any]] = []
            while True:
                tree = await self.client.request(
                    "session/tree", sessionId=self.session_id, filter="all", start=len(rows), count=5000
                )
                if tree["revision"] != self.revision:
                    state = await self.client.request("session/open", sessionId=self.session_id)
                    self.epoch, self.revision, self.leaf = state["epoch"], state["revision"], state["leafId"]
                    rows = []
                    continue
                rows += tree["rows"]
                if len(rows) >= tree["total"]:
                    break
            self.entries = {row["id"]: row["parentId"] for row in rows}
            self.labels = {row["id"]: row["label"] for row in rows if "label" in row}

    def on_change(self, change: dict[str, Any]) -> None:
        if change["sessionId"] != self.session_id:
            return
        self.changes.append(change)
        if change["epoch"] != self.epoch or change.get("resync"):
            self.again()
        elif change["revision"] <= self.revision:
            return
        elif change["fromRevision"] == self.revision:
            self.revision, self.leaf = change["revision"], change["leafId"]
            for ref in change["entries"]:
                self.entries[ref["id"]] = ref["parentId"]
            for entry_id, label in change.get("labels", {}).items():
                if label is None:
                    self.labels.pop(entry_id, None)
                else:
                    self.labels[entry_id] = label
        else:
            self.gaps += 1
            self.again()

    def again(self) -> None:
        task = asyncio.create_task(self.baseline())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        while self._tasks:
            await asyncio.gather(*list(self._tasks))
