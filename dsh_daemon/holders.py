"""Which program may be writing a session file right now, as far as the operating system tells."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import NamedTuple

import psutil

_KEEP = 2.0  # seconds
_WRITES = os.O_WRONLY | os.O_RDWR
_AGENTS = (
    ("omp", re.compile(r"(?:^|[/@])(?:omp|oh-my-pi)(?:$|[/.])")),
    ("pi", re.compile(r"(?:^|/)pi(?:$|\.[cm]?js$)|(?<!oh-my-pi/)pi-coding-agent")),
    ("dsh", re.compile(r"(?:^|/)dsh(?:$|\.[cm]?js$)|@deepseek-ai/dsh")),
)


# A daemon of ours, or a script that uses us, keeps its own descriptor; it takes omp's lock around every write.
_OURS = re.compile(r"(?:^|/)dshd$|dsh_daemon")


class Agent(NamedTuple):
    client: str  # "omp", "pi", "dsh"
    pid: int
    cwd: str
    words: tuple[str, ...] = ()  # its command line


class Held(NamedTuple):
    pid: int
    dev: int
    ino: int
    path: str


def holders(path: str) -> list[int]:
    """Pids of other processes of this user that hold `path` open for writing; asked of the system at every call."""
    try:
        wanted = os.stat(path)
    except OSError:
        return []
    return sorted({held.pid for held in _open_logs() if (held.dev, held.ino) == (wanted.st_dev, wanted.st_ino)})


def loaders(path: str, cwd: str | None, session_id: str) -> list[int]:
    """Pids of omp processes that may go on with this session without holding its file; asked of the system."""
    agents = [agent for agent in _running() if agent.client == "omp"]
    agents = idle_omps(agents, _open_logs()) if agents else []
    return [agent.pid for agent in agents if may_have_loaded(agent, path, cwd, session_id)]


def idle_omps(agents: list[Agent], held: list[Held]) -> list[Agent]:
    """List the omp processes that hold no session file of their own.

    omp opens its file only with the first append after a start, a new file or a rewrite. Until then it has the session
    in its memory alone, and stops saving after a foreign append all the same. Its subagents' files tell nothing.
    """
    own = {entry.pid for entry in held if not os.path.isfile(f"{os.path.dirname(entry.path)}.jsonl")}
    return [agent for agent in agents if agent.pid not in own]


def may_have_loaded(agent: Agent, path: str, cwd: str | None, session_id: str) -> bool:
    """Whether an omp process without an open file may have this session: as its terminal says, else by folder."""
    known = _of_terminal(agent.pid, path)
    if known is not None:
        return os.path.realpath(known) == os.path.realpath(path)
    # `--resume` takes a path, a file name or the beginning of an id.
    named = [word for word in agent.words[2:] if len(word) > 3]
    if any(os.path.basename(path) in word or session_id.startswith(word.lower()) for word in named):
        return True
    return bool(cwd) and os.path.realpath(agent.cwd) == os.path.realpath(cwd or "")


def _of_terminal(pid: int, path: str) -> str | None:
    """The session that omp noted for the terminal of one of its processes; None where it has none, or no note."""
    try:
        terminal = os.readlink(f"/proc/{pid}/fd/0")
        if not terminal.startswith("/dev/") or terminal == os.devnull:
            return None
        note = f"{path.rpartition('/sessions/')[0]}/terminal-sessions/{terminal[5:].replace('/', '-')}"
        with open(note, encoding="utf-8", errors="replace") as file:
            lines = file.read(8192).split("\n")
    except OSError:
        return None
    return lines[1] if len(lines) > 1 and lines[1] else None


class Watch:
    """The same for lists of sessions: one look at all processes serves for `_KEEP` seconds."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._held: dict[tuple[int, int], int] = {}
        self._agents: dict[str, list[Agent]] = {}
        self._idle_omps: list[Agent] = []

    def holder(self, dev: int, ino: int) -> int | None:
        """Pid of a process that has this file open for writing."""
        self._look()
        return self._held.get((dev, ino))

    def agents(self, client: str) -> list[Agent]:
        """List the running processes of an agent program."""
        self._look()
        return self._agents.get(client, [])

    def loader(self, path: str, cwd: str | None, session_id: str) -> int | None:
        """Pid of an omp process that may go on with this session without holding its file."""
        self._look()
        return next((a.pid for a in self._idle_omps if may_have_loaded(a, path, cwd, session_id)), None)

    def _look(self) -> None:
        if time.monotonic() - self._since > _KEEP:
            try:
                held = _open_logs()
            except OSError:  # no descriptor is left: a list is better with an old answer than not at all
                return
            self._held = {(entry.dev, entry.ino): entry.pid for entry in held}
            self._agents = {}
            for agent in _running():
                self._agents.setdefault(agent.client, []).append(agent)
            self._idle_omps = idle_omps(self._agents.get("omp", []), held)
            self._since = time.monotonic()


def _open_logs() -> list[Held]:
    """Each session file that another process of this user has open for writing."""
    if not sys.platform.startswith("linux"):
        return _open_logs_portable()
    found: list[Held] = []
    for pid in _pids():
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                link = f"{folder}/{name}"
                target = os.readlink(link)
                # omp's atomic first write leaves the name of the temporary file on the descriptor's link at times.
                if ".jsonl" in target and _for_writing(pid, name) and not any(map(_OURS.search, _command(pid))):
                    status = os.stat(link)
                    found.append(Held(pid, status.st_dev, status.st_ino, target))
        except OSError:
            continue  # it ended, or it is not ours to look at
    return found


def _for_writing(pid: int, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}", "rb") as file:
        for line in file:
            if line.startswith(b"flags:"):
                return bool(int(line.split()[1], 8) & _WRITES)
    return False


def _open_logs_portable() -> list[Held]:
    found: list[Held] = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid():
                continue
            for opened in process.open_files():
                if ".jsonl" in opened.path:
                    status = os.stat(opened.path)
                    found.append(Held(process.pid, status.st_dev, status.st_ino, opened.path))
        except (psutil.Error, OSError):
            continue
    return found


def _running() -> list[Agent]:
    found: list[Agent] = []
    for pid in _pids() if sys.platform.startswith("linux") else psutil.pids():
        try:
            words = _command(pid)
            for client, pattern in _AGENTS:
                # The program itself, or the script that an interpreter runs.
                if any(pattern.search(word) for word in words[:2]):
                    found.append(Agent(client, pid, psutil.Process(pid).cwd(), tuple(words)))
                    break
        except (psutil.Error, OSError):
            continue
    return found


def _command(pid: int) -> list[str]:
    if sys.platform.startswith("linux"):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).decode("utf-8", "replace").split("\0")
    return psutil.Process(pid).cmdline()


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]
