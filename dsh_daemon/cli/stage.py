"""The stage of `dshd demo`: who says what happens, and the temporary folder, daemon and agents it happens with."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import textwrap
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsh_daemon.paths import folders
from dsh_daemon.wire.launch import command

from .call import Client, Refusal, connect, flush, program, put, put_json, screen

PATIENCE_S = 8.0


class Narrator:
    """Says what happens: a numbered line, the command that does it, what it prints."""

    def __init__(self, *, quiet: bool, pause: float) -> None:
        self.view = screen()
        if self.view.width:
            self.view.width = max(20, self.view.width - 4)
        self.quiet = quiet
        self.pause = pause if self.view.is_terminal and not quiet else 0.0
        self.steps: list[dict[str, Any]] = []

    async def step(self, text: str, doing: str = "", method: str = "", result: Any = None) -> None:
        self.steps.append({"text": text, "command": doing, "method": method, "result": result})
        if self.quiet:
            return
        await asyncio.sleep(self.pause)
        put("")
        first, *more = textwrap.wrap(text, self.view.width or 1000)
        put(self.view.join([(f" {len(self.steps):>2} ", "dim"), (first, "strong")]))
        for line in more:
            self.line(self.view.paint(line, "strong"))
        if doing:
            self.command(doing)
        flush()

    def command(self, doing: str) -> None:
        self.line(self.view.join([("$ ", "dim"), (doing, "command")]))

    def line(self, text: str) -> None:
        if not self.quiet:
            put("    " + text)
            flush()

    def lines(self, lines: Iterable[str]) -> None:
        """What the command prints."""
        for line in lines:
            self.line(line)

    def note(self, text: str, style: str = "dim") -> None:
        """What no command prints."""
        self.lines(self.view.note(text, style, indent=""))

    def end(self) -> None:
        if self.quiet:
            put_json({"steps": self.steps})
            return
        put("")
        self.note("That was all. The folder and its daemon are gone.")
        self.note("Next: `{0} list`, `{0} tree`, `{0} --help`.".format(program()))


class Stage:
    """The temporary folder and the daemon in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cwd = folder / "shop"
        self.process: subprocess.Popen[bytes] | None = None
        self.agents: list[subprocess.Popen[bytes]] = []
        self.outside: list[Path] = []  # where a socket lives whose path in the folder would be too long

    def enter(self, home_name: str, roots: Sequence[str]) -> None:
        """Let this process, and what it starts, use a home of its own below the folder."""
        for name in [name for name in os.environ if name.startswith("DSHD_")]:
            del os.environ[name]
        os.environ["DSHD_HOME"] = str(self.folder / home_name)
        os.environ["DSHD_ROOTS"] = os.pathsep.join(roots)
        socket = folders().socket
        if not socket.is_relative_to(self.folder):
            self.outside.append(socket.parent)

    async def start(self, name: str) -> Client:
        """Start a daemon and connect to it."""
        log = self.folder / "serve.log"
        with log.open("ab") as errors:
            self.process = await asyncio.to_thread(
                subprocess.Popen,
                command("serve", "--foreground"),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        until = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            try:
                return await connect(name=name, start=False)
            except OSError:
                if time.monotonic() > until:
                    break
                await asyncio.sleep(0.02)
        last = log.read_text(errors="replace").strip().rpartition("\n")[2]
        raise Refusal("unreachable", f"the daemon did not start: {last or 'no reason given'}")

    async def agent(self, session: str) -> subprocess.Popen[bytes]:
        """Start an agent process for a session; it prints a line for each thing that it reached."""
        with (self.folder / "agent.log").open("ab") as errors:
            self.agents.append(
                await asyncio.to_thread(
                    subprocess.Popen,
                    command("demo", "--agent", session),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
            )
        return self.agents[-1]

    async def reached(self, agent: subprocess.Popen[bytes], wanted: str) -> None:
        """Wait until an agent prints `wanted`."""
        assert agent.stdout
        while True:
            line = await asyncio.to_thread(agent.stdout.readline)
            if line.decode().strip() == wanted:
                return
            if not line:
                last = (self.folder / "agent.log").read_text(errors="replace").strip().rpartition("\n")[2]
                raise Refusal("demo", f"the agent ended: {last or 'no reason given'}")

    def kill(self) -> None:
        """End the daemon and all agents as `kill -9` does."""
        processes = [*([self.process] if self.process else []), *self.agents]  # it must not hear that they ended
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            if process.stdout:
                process.stdout.close()
        self.agents.clear()
        self.process = None

    async def stop(self, client: Client) -> None:
        await client.request("daemon/stop")
        await client.close()
        if self.process:
            with suppress(subprocess.TimeoutExpired):  # a busy disk; what it has is thrown away in any case
                await asyncio.to_thread(self.process.wait, PATIENCE_S)
                self.process = None

    def clear(self) -> None:
        self.kill()
        for path in (self.folder, *self.outside):
            shutil.rmtree(path, ignore_errors=True)
