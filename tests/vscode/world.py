"""One person's world for a test: sessions, a project, a daemon of its own, and windows of VS Code that use it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from dsh_daemon.client import connect
from tests.examples import SAMPLE, SAMPLE_ID
from tests.model import Model, model
from tests.running import PATIENCE, Daemon
from tests.support import header, line, write_log

from .editor import CLIENT, REPOSITORY, SIZE, SOON, Server, Window, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager

    from playwright.sync_api import Browser, BrowserContext

    from dsh_daemon.client import Client

EMPTY = Path()  # in the place of a folder: a window without any
AGENT = REPOSITORY / "tests" / "agent.py"
T = TypeVar("T")


class World:
    def __init__(self, folder: Path, server: Server, browser: Browser) -> None:
        self.server = server
        self.browser = browser
        self.store = folder / "store"
        self.project = folder / "shop"
        self.daemon = Daemon(folder / "home", self.store)
        self.program = folder / "bin" / "dshd"
        self.windows: list[Window] = []
        self._contexts: list[BrowserContext] = []
        self._aside = asyncio.new_event_loop()  # in a thread of its own: Playwright has this one's loop
        self._thread = Thread(target=self._aside.run_forever, daemon=True)
        self._thread.start()
        self.project.mkdir(parents=True)
        self.store.mkdir()
        write_program(self.program, self.daemon.env)

    # Sessions

    def sample(self) -> str:
        """The session of the protocol's examples, as if it had been run in the project."""
        head, *rest = SAMPLE.read_text().splitlines(keepends=True)
        data = line({**json.loads(head), "cwd": str(self.project)})
        self.file(SAMPLE_ID).write_bytes(data + "".join(rest).encode())
        return SAMPLE_ID

    def session(self, session_id: str, entries: Iterable[dict[str, Any]], cwd: Path | None = None, **more: Any) -> str:
        write_log(self.file(session_id), list(entries), header(session_id, str(cwd or self.project), **more))
        return session_id

    def file(self, session_id: str) -> Path:
        return self.store / f"{session_id}.jsonl"

    def written_by_others(self, session_id: str, *entries: dict[str, Any]) -> None:
        """Another program appends to the file, with the daemon unasked."""
        text = b"".join(line(entry) for entry in entries)
        with self.file(session_id).open("ab") as out:
            subprocess.run(["cat"], input=text, stdout=out, check=True)

    # The daemon and its other clients

    def ask(self, method: str, **params: Any) -> Any:
        """A request of a second client."""

        async def asked() -> Any:
            async with connect(self.daemon.socket, name="second", start=False) as client:
                return await client.request(method, **params)

        return self._run(asked())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._aside).result(PATIENCE)

    @contextmanager
    def _within(self, place: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """What `async with` gives, on the loop beside the test."""

        async def left() -> None:
            await place.__aexit__(None, None, None)

        async def entered() -> T:
            return await place.__aenter__()

        given = self._run(entered())
        try:
            yield given
        finally:
            self._run(left())

    @contextmanager
    def client(self, name: str, **options: Any) -> Iterator[Client]:
        """A client that stays; it serves what it names in `hooks`, or as a `summarizer`."""
        with self._within(connect(self.daemon.socket, name=name, start=False, **options)) as client:
            yield client

    @contextmanager
    def model(self) -> Iterator[Model]:
        """A model that is configured for the daemon, which starts with it."""
        with self._within(model()) as running:
            self.daemon.env |= running.settings
            write_program(self.program, self.daemon.env)
            self.daemon.start()
            yield running

    def pid(self) -> int:
        return self.ask("daemon/ping")["pid"]

    def dshd(self, *arguments: str) -> str:
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def created(self, title: str) -> str:
        """A native session, as a client makes one; the daemon runs for it."""
        if not self.daemon.answers():
            self.daemon.start()
        return self.ask("session/create", cwd=str(self.project), title=title)["sessionId"]

    @contextmanager
    def agent(self, session_id: str) -> Iterator[Callable[[str], None]]:
        """The agent of a session; gives a function that waits until the agent reaches something."""
        command = [sys.executable, str(AGENT), self.daemon.socket, session_id]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        assert process.stdout

        def reached(wanted: str) -> None:
            said: list[str] = []
            for text in process.stdout or ():
                said.append(text.strip())
                if said[-1] == wanted:
                    return
            raise AssertionError(f"the agent said {said}, not {wanted!r}")

        try:
            reached("ready 1")
            yield reached
        finally:
            process.kill()
            process.wait(PATIENCE)
            process.stdout.close()

    def rows(self, session_id: str, **params: Any) -> list[dict[str, Any]]:
        return self.ask("session/tree", sessionId=session_id, **params)["rows"]

    # Windows

    def window(self, place: Path | None = None, *, configure: bool = True, **settings: Any) -> Window:
        """A new window of the project, or of another folder or workspace file, with this world's daemon."""
        found = {"dsh__daemon__path": str(self.program)} if configure else {}
        self.server.configure(**found, **settings)
        window = self._window()
        window.page.goto(self.server.address(place or self.project))
        window.page.evaluate("() => navigator.clipboard.writeText('')")
        return window.drawn()

    def opened(self, **settings: Any) -> Window:
        """A window with our side bar, whose sessions are listed."""
        window = self.window(**settings).open_container()
        window.sessions.rows.first.wait_for()
        return window

    def run_in_host(self, tests: Path, **variables: str) -> tuple[int, str]:
        """Let VS Code run `tests` in its extension host, with the client from its folder; its status and words."""
        self.server.configure(dsh__daemon__path=str(self.program))
        window = self._window()
        ended: list[int] = []
        said: list[str] = []
        window.page.expose_function("codeAutomationLog", lambda _kind, words: said.append(" ".join(map(str, words))))
        window.page.expose_function("codeAutomationExit", lambda code, *_: ended.append(code))
        window.page.goto(
            self.server.address(
                self.project,
                extensionDevelopmentPath=self.server.remote(CLIENT),
                extensionTestsPath=self.server.remote(tests),
                extensionEnvironment=json.dumps(variables),
            )
        )
        wait_until(window.page, lambda: bool(ended), "the tests do not come to an end", 120)
        return ended[0], "\n".join(said)

    def _window(self) -> Window:
        context = self.browser.new_context(viewport=SIZE, permissions=["clipboard-read", "clipboard-write"])
        context.set_default_timeout(SOON)
        self._contexts.append(context)
        self.windows.append(Window(context.new_page()))
        return self.windows[-1]

    def close(self) -> None:
        for context in self._contexts:
            for page in context.pages:
                page.close()  # before its context: VS Code takes leave, and what its extensions started ends
            context.close()
        self._end_daemon()
        self._aside.call_soon_threadsafe(self._aside.stop)
        self._thread.join(PATIENCE)
        self._aside.close()

    def _end_daemon(self) -> None:
        """Ours, or the one that a window started."""
        with suppress(OSError):
            pid = self.pid()
            os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + PATIENCE
            while self.daemon.answers() and time.monotonic() < until:
                time.sleep(0.02)
        self.daemon.stop()


def write_program(path: Path, env: dict[str, str]) -> None:
    """A `dshd` that knows where its home is, however it is started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ours = {name: value for name, value in env.items() if name.startswith("DSHD_") or name == "HOME"}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in ours.items())
    path.write_text(f'#!/bin/sh\n{exports}exec {shlex.quote(sys.executable)} -m dsh_daemon "$@"\n')
    path.chmod(0o755)
