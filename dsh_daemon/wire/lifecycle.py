"""One daemon per socket: the start lock, what is stale, who answers. Standard library only: every `dshd` loads it."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Any

from dsh_daemon.paths import Folders, open_private, private_folder

try:
    import fcntl
except ImportError:  # no daemon on Windows, but the package imports
    fcntl = None

CONNECT_S = 2.0
ANSWER_S = 5.0
STALE = (FileNotFoundError, ConnectionRefusedError)  # nothing listens; any other failure says nothing of the sort


class Unanswered(ConnectionError):
    """Something listens but does not answer, or not as a daemon of ours."""


class AlreadyRunning(Exception):
    """Another daemon serves this socket; `pid` is what it says of itself."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"already running (pid {pid})")
        self.pid = pid


def peer(sock: socket.socket) -> tuple[int | None, int | None]:
    """Process and user id of the other end of a unix socket, None where the system does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None, None
    pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def connect(path: Path, timeout: float = CONNECT_S) -> socket.socket:
    """Give a connected socket. Raises STALE where nothing listens, another OSError where something else is wrong."""
    deadline = time.monotonic() + timeout
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout)
        try:
            sock.connect(os.fspath(path))
        except BlockingIOError:  # its queue is full: alive, and busy
            sock.close()
            if time.monotonic() > deadline:
                raise TimeoutError(110, "the daemon takes no connections", str(path)) from None
            time.sleep(0.02)
        except OSError as exc:
            sock.close()
            raise type(exc)(exc.errno, exc.strerror or str(exc), str(path)) from None
        else:
            uid = peer(sock)[1]
            if uid is not None and uid != os.getuid():
                sock.close()
                raise PermissionError(13, f"a process of uid {uid} listens there", str(path))
            return sock


def ask(sock: socket.socket, method: str, params: dict[str, Any] | None = None, timeout: float = ANSWER_S) -> Any:
    """Give the result of one request on a connected socket. Raises Unanswered, ConnectionResetError."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}).encode()
    sock.settimeout(timeout)
    data = b""
    try:
        sock.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        while True:
            head, end, rest = data.partition(b"\r\n\r\n")
            if end and len(rest) >= (length := int(head.lower().rpartition(b"content-length:")[2].split()[0])):
                break
            chunk = sock.recv(65536)
            if not chunk:
                raise ConnectionResetError(104, "the daemon closed the connection without an answer")
            data += chunk
    except TimeoutError:
        raise Unanswered(110, f"the daemon accepts but does not answer within {timeout:g} s") from None
    message = json.loads(rest[:length])
    if "result" not in message:
        raise Unanswered(0, str(message.get("error", {}).get("message")))
    return message["result"]


class StartLock:
    """An flock that its process holds for life; what the file says is for people only."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd

    @classmethod
    def take(cls, path: Path) -> StartLock | None:
        """Take the lock; None while another process has it."""
        assert fcntl is not None, "no daemon on this system"
        while True:
            fd = open_private(path, os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            lock = cls(path, fd)
            if lock.intact():
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"%d\n" % os.getpid(), 0)
                return lock
            lock.release()  # somebody removed the file between open and flock

    def intact(self) -> bool:
        """Whether the file that we hold is still the one that others would open."""
        return _identity(self.path) == _key(os.fstat(self._fd))

    def release(self) -> None:
        os.close(self._fd)


class Bound:
    """The listening socket of this process and the lock that lets it listen there."""

    def __init__(self, where: Folders, lock: StartLock, sock: socket.socket) -> None:
        self.where, self.lock, self.sock = where, lock, sock
        self._identity = _identity(where.socket)

    def intact(self) -> bool:
        return self._identity is not None and _identity(self.where.socket) == self._identity

    def unlink(self) -> None:
        """Remove our socket file, and only ours."""
        if self.intact():
            self.where.socket.unlink(missing_ok=True)

    def rebind(self) -> bool:
        """Listen again after the file was removed; False where another daemon has the place or is taking it.

        Raises OSError where the folder cannot be made again.
        """
        _folder(self.where)
        if not self.lock.intact():
            lock = StartLock.take(self.where.lock)
            if lock is None:
                return False
            self.lock.release()
            self.lock = lock
        if _listening(self.where.socket):
            return False
        self.sock = _listen(self.where.socket)
        self._identity = _identity(self.where.socket)
        return True


def bind(where: Folders, patience: float = 10.0) -> Bound:
    """Listen on the socket of `where`, as the only one.

    Raises AlreadyRunning; OSError where the folder, the lock or the socket cannot be had; Unanswered where another
    process holds the lock or the socket and does not answer.
    """
    _folder(where)
    deadline = time.monotonic() + patience
    while (lock := StartLock.take(where.lock)) is None:
        # The other one is starting, running, or finishing its last writes.
        if pid := _answering(where.socket, deadline):
            raise AlreadyRunning(pid)
        if time.monotonic() > deadline:
            raise Unanswered(110, "another process holds the start lock and does not answer", str(where.lock))
        time.sleep(0.02)
    try:
        _refuse_second(where.socket)
        return Bound(where, lock, _listen(where.socket))
    except BaseException:
        lock.release()
        raise


def _folder(where: Folders) -> None:
    folder = where.socket.parent
    if not where.explicit_socket:
        private_folder(folder, links=False)
    elif not folder.is_dir():
        raise FileNotFoundError(2, "the folder of the socket does not exist", str(folder))


def _listening(path: Path) -> bool:
    """Whether anything listens. Call it with the start lock held: only then is a refusal final."""
    try:
        connect(path).close()
    except STALE:
        return False
    return True


def _refuse_second(path: Path) -> None:
    """Raise AlreadyRunning where a daemon listens that does not have the lock: its file was removed."""
    if _listening(path):
        with connect(path) as sock:
            raise AlreadyRunning(ask(sock, "daemon/ping")["pid"])


def _answering(path: Path, deadline: float) -> int | None:
    try:
        with connect(path) as sock:
            return ask(sock, "daemon/ping", timeout=max(0.1, deadline - time.monotonic()))["pid"]
    except (*STALE, ConnectionResetError, BrokenPipeError):
        return None


def _listen(path: Path) -> socket.socket:
    if path.is_symlink() or path.exists():
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(17, "there is a file that is no socket", str(path))
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o077)
    try:
        sock.bind(os.fspath(path))
        path.chmod(0o600)
    except OSError as exc:
        sock.close()
        raise type(exc)(exc.errno, exc.strerror or str(exc), str(path)) from None
    finally:
        os.umask(mask)
    sock.listen(256)
    sock.setblocking(False)
    return sock


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        return _key(path.lstat())
    except OSError:
        return None


def _key(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino
