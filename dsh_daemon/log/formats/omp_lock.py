"""omp's own lock on one of its session files: a file `.<name>.lock` beside it that holds `<pid>:<ms>`.

omp takes an abstract socket around this file as well; the file alone keeps every version of omp out, since each waits
for it and steals it only from a dead process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from dsh_daemon.errors import Busy, StorageFull, storage_fault

WAIT = 2.0  # seconds
ORPHAN = 0.5  # seconds after which a lock without a readable holder belongs to a crashed process

_held: set[str] = set()  # lock files of this process
_claiming = threading.Lock()  # held while a lock file and `_held` change


@contextmanager
def omp_lock(path: str) -> Generator[None]:
    """Hold omp's lock on the session file at `path`. Raises Busy while a living process has it."""
    lock = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.lock")
    record = f"{os.getpid()}:{time.time_ns() // 1_000_000}\n".encode()
    deadline = time.monotonic() + WAIT
    while not _claim(lock, record):
        if _steal(lock):
            continue
        if time.monotonic() > deadline:
            raise Busy("omp is writing to this session", retryAfterMs=500)
        time.sleep(0.005)
    try:
        yield
    finally:
        with _claiming, suppress(FileNotFoundError):
            _held.discard(lock)
            os.unlink(lock)


def _claim(lock: str, record: bytes) -> bool:
    """Make the lock file; False where there is one. Raises a storage fault, and then leaves none."""
    with _claiming:
        try:
            fd = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        except OSError as exc:
            raise storage_fault(exc, lock) from exc
        try:
            whole = os.write(fd, record) == len(record)
        except OSError as exc:
            with suppress(FileNotFoundError):
                os.unlink(lock)
            raise storage_fault(exc, lock) from exc
        finally:
            os.close(fd)
        if not whole:
            os.unlink(lock)
            raise StorageFull(f"no space left to write {lock}", path=lock)
        if _content(lock) != record:
            return False  # a process that took us for dead removed it
        _held.add(lock)
    return True


def _steal(lock: str) -> bool:
    """Remove the lock file of a process that is no more."""
    with _claiming:
        if lock in _held or not _stale(lock):
            return False
        with suppress(FileNotFoundError):
            os.unlink(lock)
        return True


def _content(lock: str) -> bytes | None:
    try:
        with open(lock, "rb") as file:
            return file.read(64)
    except FileNotFoundError:
        return None


def _stale(lock: str) -> bool:
    content = _content(lock)
    if content is None:
        return False
    pid = content.partition(b":")[0]
    if not pid.isdigit():
        with suppress(FileNotFoundError):
            return time.time() - os.stat(lock).st_mtime > ORPHAN
        return False
    if int(pid) == os.getpid():
        return _content(lock) == content  # of one that crashed and had our number: none of our threads is at it
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return _content(lock) == content
    except (PermissionError, OverflowError):
        return False
    return False
