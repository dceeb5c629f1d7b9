"""Start a daemon that outlives its starter, and say readably why it did not start."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

from dsh_daemon.paths import Folders, open_private, private_folder

from .lifecycle import ask, connect

READY_S = 30.0
LOG_LINES = 20
_PACKAGE = Path(__file__).resolve().parents[1]


class StartFailed(ConnectionError):
    """The daemon did not start; the message holds what it said."""


def command(*arguments: str) -> list[str]:
    """Give the command line for `dshd` with this interpreter.

    Never with the current folder among the places of modules: an editor starts us inside of projects.
    """
    code = (
        f"import sys; sys.path.append({str(_PACKAGE.parent)!r})\nfrom dsh_daemon.__main__ import main; sys.exit(main())"
    )
    return [sys.executable, "-P", "-c", code, *arguments]


def start_daemon(where: Folders) -> None:
    """Have a short-lived `dshd serve` start the daemon, so that it is nobody's child. Raises StartFailed."""
    arguments = ["serve", *(["--socket", str(where.socket)] if where.explicit_socket else [])]
    done = subprocess.run(command(*arguments), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace").strip() or f"dshd serve ended with {done.returncode}"
        raise StartFailed(0, text.removeprefix("dshd: "))


def replace_daemon(where: Folders) -> bool:
    """Stop a daemon that is older than we are if nobody else uses it; False where somebody does."""
    with connect(where.socket) as sock:
        if ask(sock, "daemon/status")["connections"][1:]:
            return False
        ask(sock, "daemon/stop")
        wait_end(sock)
    return True


def wait_end(sock: object, timeout: float = 15.0) -> bool:
    """Wait until the daemon behind a connected socket has ended it: by then all is written."""
    from socket import socket

    assert isinstance(sock, socket)
    deadline = time.monotonic() + timeout
    try:
        while (left := deadline - time.monotonic()) > 0:
            sock.settimeout(left)
            if not sock.recv(65536):
                return True
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return False


def spawn(where: Folders, tcp: str | None = None) -> tuple[str, int]:
    """Start `dshd serve --foreground` detached; ("ready" or "running", pid) once it answers. Raises StartFailed."""
    try:
        private_folder(where.log.parent)
        log = open_private(where.log, os.O_WRONLY | os.O_APPEND)
    except OSError as exc:
        raise StartFailed(0, f"cannot write the log {where.log}: {exc.strerror or exc}") from None
    before = os.fstat(log).st_size
    reader, writer = os.pipe()
    arguments = ["serve", "--foreground", "--ready-fd", str(writer)]
    arguments += ["--socket", str(where.socket)] if where.explicit_socket else []
    arguments += ["--tcp", tcp] if tcp else []
    try:
        process = subprocess.Popen(
            command(*arguments), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            pass_fds=(writer,), start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(writer)
        os.close(log)
    try:
        said = _first_line(reader, time.monotonic() + READY_S)
    finally:
        os.close(reader)
    if said is None:
        process.terminate()
        raise StartFailed(0, f"the daemon was not ready within {READY_S:g} s; its log: {where.log}")
    word, _, pid = said.partition(" ")
    if not pid:
        code = process.wait()
        raise StartFailed(0, _failure(where.log, before, code))
    if word == "running":
        process.wait()
    return word, int(pid)


def _first_line(fd: int, deadline: float) -> str | None:
    data = b""
    while not data.endswith(b"\n"):
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        chunk = os.read(fd, 256)
        if not chunk:
            break
        data += chunk
    return data.decode().strip()


def _failure(log: Path, before: int, code: int) -> str:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(before, size - 16384) if size > before else max(0, size - 16384))
        lines = file.read().decode("utf-8", "replace").rstrip("\n").split("\n")[-LOG_LINES:]
    if code == 1 and size > before and len(lines) == 1:
        return lines[0].removeprefix("dshd: ")
    return "\n".join([f"the daemon did not start (exit {code}); the end of its log {log}:", *lines])
