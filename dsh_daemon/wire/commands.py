"""`dshd status | stop | socket-path | stdio | serve`: what must be quick or must work before anything else does."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from dsh_daemon import PROTOCOL_VERSION, __version__
from dsh_daemon.paths import Folders, folders

from .lifecycle import STALE, StartLock, ask, connect
from .words import failure, home, plural, printable, program


def socket_path(*, as_json: bool = False) -> int:
    path = str(folders().socket)
    say(json.dumps({"socketPath": path}) if as_json else path)
    return 0


def status(*, as_json: bool = False) -> int:
    """Print the daemon's status; 1 where none runs."""
    where = folders()
    try:
        with connect(where.socket) as sock:
            result = ask(sock, "daemon/status")
    except STALE:
        if as_json:
            say(json.dumps({"state": "stopped", "socketPath": str(where.socket)}))
        else:
            say(f"no daemon runs (socket {home(str(where.socket))})")
        return 1
    except OSError as exc:
        return fail(exc)
    say(json.dumps(result) if as_json else _facts(result))
    return 0


def stop(*, as_json: bool = False, force: bool = False, drain: bool = True) -> int:
    """End the daemon and return when it has: its last writes are done and another may start."""
    from .launch import wait_end

    where = folders()
    try:
        with connect(where.socket) as sock:
            pid = ask(sock, "daemon/ping")["pid"]
            ask(sock, "daemon/stop", {"drain": drain, "force": force})
            ended = wait_end(sock) and _unlocked(where)
    except STALE:
        say("{}" if as_json else "no daemon runs")
        return 0
    except OSError as exc:
        return fail(exc)
    if not ended:
        return refuse("unreachable", f"the daemon (pid {pid}) is still finishing; --force ends it at once")
    say("{}" if as_json else f"stopped (pid {pid})")
    return 0


def stdio(*, standalone: bool = False) -> int:
    if standalone:
        from .daemon import serve_alone

        return serve_alone()
    from .forward import forward

    try:
        return forward(folders())
    except OSError as exc:
        return fail(exc)


def serve(
    *, foreground: bool = False, socket: str | None = None, tcp: str | None = None, ready_fd: int | None = None
) -> int:
    """Start the daemon; 0 also where one runs already, unless it listens elsewhere than asked."""
    where = folders(socket=socket)
    try:
        if ready_fd is None:
            refused = _bad_address(tcp) or _listens_elsewhere(where, tcp)
            if refused := refused or (_bad_config(where) if foreground else None):
                return refuse(*refused)
        if foreground:
            from .daemon import serve_foreground

            return serve_foreground(where, tcp, ready_fd)
        from .launch import StartFailed, spawn

        try:
            word, pid = running(where) or spawn(where, tcp)
        except StartFailed:
            if bad := _bad_config(where):
                return refuse(*bad)
            raise
        say(f"dshd: {'already running' if word == 'running' else 'started'} (pid {pid})")
        if tcp:
            with connect(where.socket) as sock:
                say(f"TCP {_tcp(ask(sock, 'daemon/status')['tcp'])}")
    except OSError as exc:
        return fail(exc)
    return 0


def running(where: Folders) -> tuple[str, int] | None:
    """Find the daemon that answers: ("running", pid), None where none does. Raises OSError where it hangs."""
    try:
        with connect(where.socket) as sock:
            return "running", ask(sock, "daemon/ping")["pid"]
    except (*STALE, ConnectionResetError):
        return None


def _bad_address(tcp: str | None) -> tuple[str, str] | None:
    if tcp is None:
        return None
    from .server import LOOPBACK

    host, colon, port = tcp.rpartition(":")
    if colon and host.strip("[]") in LOOPBACK and port.isdigit() and int(port) < 1 << 16:
        return None
    return "invalidParams", f"{tcp}: TCP is HOST:PORT with a loopback host ({', '.join(sorted(LOOPBACK))})"


def _listens_elsewhere(where: Folders, tcp: str | None) -> tuple[str, str] | None:
    """What to say where a daemon runs that does not listen as asked, which only a new start can change."""
    usual = folders().socket
    for path in dict.fromkeys((where.socket, usual)):
        try:
            with connect(path) as sock:
                found = ask(sock, "daemon/status")
        except (*STALE, ConnectionResetError):
            continue
        there = f"a daemon runs already (pid {found['pid']})"
        if path != where.socket:
            return "busy", f"{there} on {home(str(path))}; `{program()} stop` first"
        listens = found.get("tcp")
        if tcp is not None and not listens:
            return "busy", f"{there} without TCP; `{program()} stop` first"
        if tcp is not None and tcp.rpartition(":")[2] not in {"0", str(listens["port"])}:
            return "busy", f"{there} with TCP on port {listens['port']}; `{program()} stop` first"
        return None
    return None


def _bad_config(where: Folders) -> tuple[str, str] | None:
    from dsh_daemon.config import ConfigError, load

    try:
        load(where)
    except ConfigError as exc:
        return "config", str(exc)
    return None


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def fail(exc: OSError) -> int:
    """Say in one line what the system refused and where; the exit status."""
    return refuse(*failure(exc))


def refuse(kind: str, message: str) -> int:
    sys.stderr.write(f"dshd: {kind}: {message}\n")
    return 1


def _unlocked(where: Folders, timeout: float = 15.0) -> bool:
    # The lock is the truth of a process: a pid may be a zombie's, a name another's.
    deadline = time.monotonic() + timeout
    while where.lock.exists():
        if lock := StartLock.take(where.lock):
            lock.release()
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _facts(status: dict[str, Any]) -> str:
    up = status["uptimeMs"] // 1000
    since = f"{up} s" if up < 120 else f"{up // 60} min" if up < 7200 else f"{up // 3600} h"
    clients = [f"{c['name']}" + (f" (pid {c['pid']})" if c.get("pid") else "") for c in status["connections"][:-1]]
    index, watch = status["index"], status["watch"]
    version = f"{status['version']} (protocol {status['protocolVersion']})"
    whole = f"{index['indexed']:,} of {plural(index['total'], 'session')}"
    facts = [
        ("socket", _place(status["socketPath"])),
        *([("tcp", _tcp(status["tcp"]))] if status.get("tcp") else []),
        ("log", _place(status["logFile"])),
        ("clients", ", ".join(clients) or "none"),
        ("open", plural(status["openSessions"], "session")),
        ("memory", f"{status['memoryBytes'] >> 20} MiB"),
        ("index", whole if index["indexed"] >= index["total"] else f"{whole}, {index['state']}"),
        ("watch", watch["mode"] + (f" ({watch['reason']})" if watch.get("reason") else "")),
    ]
    if status["version"] != __version__ or status["protocolVersion"] != PROTOCOL_VERSION:
        facts.append(("this is", f"dshd {__version__} (protocol {PROTOCOL_VERSION})"))
    lines = [f"dsh-daemon {version}: {status['state']} (pid {status['pid']}), up {since}"]
    lines += [f"{name:<9}{value}" for name, value in facts]
    roots = [(root["format"], _place(root["path"]), root["origin"], _root_state(root)) for root in status["roots"]]
    widths = [max(map(len, column)) for column in zip(*roots, strict=True)]
    for row in roots:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        lines.append(f"{'root':<9}{'  '.join(cells).rstrip()}")
    return "\n".join(map(printable, lines))


def _root_state(root: dict[str, Any]) -> str:
    if root["readable"]:
        return plural(root["sessions"], "session")
    return "not readable" if root["exists"] else "not there"


def _place(path: str | None) -> str:
    return home(path) if path else "none"


def _tcp(info: dict[str, Any]) -> str:
    host = f"[{info['host']}]" if ":" in info["host"] else info["host"]
    return f"{host}:{info['port']}, token in {home(info['tokenFile'])}"


def quiet_pipe() -> None:
    """Let the interpreter's last flush of a stdout that takes nothing go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
