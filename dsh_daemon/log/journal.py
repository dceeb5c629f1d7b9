"""The file under a log: read at an offset, append whole lines, notice what others did to it.

We never create a file by appending, never write inside one and never hold our lock longer than one write takes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from dsh_daemon.errors import AlreadyExists, Busy, SessionGone, StorageFull, storage_fault
from dsh_daemon.paths import make_folders
from dsh_daemon.types import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

Found = Literal["same", "touched", "grown", "shrunk", "replaced", "gone"]

LOCK_WAIT = 2.0  # seconds that an append waits for another program's advisory lock
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}  # what filesystems without hard links say
SETTLE = 0.02  # seconds without growth after which a write of another program is over
QUIET = 2.0  # seconds without growth after which an unterminated last line counts as abandoned


class Written(NamedTuple):
    offset: int  # where our bytes begin; what lies between the known end and here is another program's
    length: int


class Outdated(Exception):
    """The file is not what the caller last saw; it must look again before it writes."""


class Journal(Protocol):
    """What a session needs of its storage."""

    @property
    def path(self) -> str | None: ...
    def read(self, offset: int, length: int) -> bytes: ...
    def readinto(self, offset: int, buffer: memoryview) -> int: ...
    def size(self) -> int: ...
    def check(self, size: int) -> Found: ...
    def accept(self) -> None: ...
    def append(self, data: bytes, size: int, *, unterminated: bool, ready: Callable[[], None] = ...) -> Written: ...
    def overwrite(self, offset: int, data: bytes) -> None: ...
    def sync(self) -> None: ...
    def faults(self) -> list[Diagnostic]: ...
    def close(self) -> None: ...


class Descriptor:
    """An open file that is closed when nobody holds it any more.

    Whoever closes a journal may do so while a thread is about to read or write: the number must not become another
    file's before that thread is done.
    """

    __slots__ = ("number",)

    def __init__(self, path: str, flags: int) -> None:
        self.number = os.open(path, flags | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


class FileJournal:
    """One session file. Raises Fault: SessionGone, ReadOnly, StorageFull, StorageError, Busy."""

    plain = True  # the bytes of the file are those of the log

    def __init__(self, path: str) -> None:
        self.path: str | None = path
        self._path = path
        try:
            self._file: Descriptor | None = Descriptor(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as exc:
            raise storage_fault(exc, path, reading=True) from exc
        self._end: Descriptor | None = None  # for appending, opened by the first append
        self.stat = os.fstat(self._file.number)
        self.identity = (self.stat.st_dev, self.stat.st_ino)
        self._known = self._looked = self.stat.st_mtime_ns
        self._steady = (-1, 0.0)  # size of an unfinished file, and since when we have seen it

    def fileno(self) -> int:
        return self._open().number

    def _open(self) -> Descriptor:
        file = self._file
        if file is None:
            raise SessionGone(f"the session was closed: {self._path}", path=self._path)
        return file

    def descriptor(self) -> Descriptor:
        """The open file, for a process that is to read it too. Raises SessionGone."""
        return self._open()

    def read(self, offset: int, length: int) -> bytes:
        """Bytes at `offset`; fewer than `length` only where the file ends."""
        file = self._open()
        try:
            data = os.pread(file.number, length, offset)
            while len(data) < length and (more := os.pread(file.number, length - len(data), offset + len(data))):
                data += more
        except OSError as exc:
            raise storage_fault(exc, self._path) from exc
        return data

    def readinto(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` on; how many bytes it got, 0 only at the end."""
        file = self._open()
        try:
            return os.preadv(file.number, [buffer], offset)
        except OSError as exc:
            raise storage_fault(exc, self._path) from exc

    def size(self) -> int:
        return os.fstat(self._open().number).st_size

    def faults(self) -> list[Diagnostic]:
        """What is wrong with the file beneath the text that it holds."""
        return []

    def check(self, size: int) -> Found:
        """What became of a file of which `size` bytes are known; "touched" may be a rewriting that kept the size."""
        try:
            now = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return "gone"
        except OSError as exc:
            raise storage_fault(exc, self._path) from exc
        if (now.st_dev, now.st_ino) != self.identity:
            return "replaced"
        self._looked = now.st_mtime_ns
        if now.st_size == size:
            return "same" if self._looked == self._known else "touched"
        return "grown" if now.st_size > size else "shrunk"

    def accept(self) -> None:
        """What the last `check` saw is known now."""
        self._known = self._looked

    def append(
        self, data: bytes, size: int, *, unterminated: bool, ready: Callable[[], None] = lambda: None
    ) -> Written:
        """Append whole lines in one write to a file that we know to be `size` bytes long.

        `unterminated`: its last line has no newline; ours is put before the data, unless that line is still being
        written. `ready` is called under our lock just before the write and may refuse by raising.
        Raises Outdated, with nothing written, when the file is not `size` bytes long or not the same file any more.
        """
        end = self._writer()
        with locked(end.number, self._path):
            if unterminated:
                self._let_finish(size, os.fstat(end.number).st_mtime)
                data = b"\n" + data
            ready()
            now = os.fstat(end.number)
            found = self.check(size)
            if found not in {"same", "touched"} or (now.st_dev, now.st_ino) != self.identity or now.st_size != size:
                raise Outdated
            written = self._write(end.number, data, size)
            if found == "same":
                self._known = os.fstat(end.number).st_mtime_ns  # changed by ourselves
            return written

    def _let_finish(self, size: int, mtime: float) -> None:
        """Raise Busy while the unfinished last line may still grow: for `QUIET` after it last did."""
        age = time.time() - mtime
        if age < 0:  # a clock that is not ours: only what we see ourselves counts
            if self._steady[0] != size:
                self._steady = (size, time.monotonic())
            age = time.monotonic() - self._steady[1]
        if age < QUIET:
            wait = int((QUIET - age) * 1000) + 1
            raise Busy("another program is writing the last line of this session", retryAfterMs=wait)

    def _write(self, fd: int, data: bytes, size: int) -> Written:
        try:
            count = os.write(fd, data)
        except OSError as exc:
            raise storage_fault(exc, self._path) from exc
        # Right also when another O_APPEND writer came between our look and our write.
        offset = os.lseek(fd, 0, os.SEEK_CUR) - count
        if count < len(data):
            if offset == size and os.fstat(fd).st_size == size + count:
                os.ftruncate(fd, size)
            raise StorageFull(f"no space left to write {self._path}", path=self._path)
        return Written(offset, count)

    def overwrite(self, offset: int, data: bytes) -> None:
        """Write inside the file: only for omp's title slot, which is made for it. Raises Outdated for another file."""
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                now = os.fstat(fd)
                if (now.st_dev, now.st_ino) != self.identity:
                    raise Outdated
                os.pwrite(fd, data, offset)
                self._known = os.fstat(fd).st_mtime_ns
            finally:
                os.close(fd)
        except OSError as exc:
            raise storage_fault(exc, self._path) from exc

    def _writer(self) -> Descriptor:
        self._open()
        if self._end is None:
            try:
                end = Descriptor(self._path, os.O_WRONLY | os.O_APPEND)
            except FileNotFoundError:
                raise Outdated from None
            except OSError as exc:
                raise storage_fault(exc, self._path) from exc
            now = os.fstat(end.number)
            if (now.st_dev, now.st_ino) != self.identity:
                raise Outdated
            self._end = end
            return end
        return self._end

    def sync(self) -> None:
        """Return when everything appended before this call is on the disk."""
        file = self._end or self._open()
        try:
            os.fdatasync(file.number)
        except OSError as exc:
            raise storage_fault(exc, self._path) from exc

    def close(self) -> None:
        """Nothing is read or written after this; what is under way in a thread is finished."""
        self._file = self._end = None


class MemoryJournal:
    """A log that is never written anywhere."""

    def __init__(self, data: bytes = b"") -> None:
        self.path: str | None = None
        self.data = bytearray(data)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])

    def readinto(self, offset: int, buffer: memoryview) -> int:
        found = self.data[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def size(self) -> int:
        return len(self.data)

    def check(self, size: int) -> Found:
        return "same" if size == len(self.data) else "grown"

    def accept(self) -> None:
        """Nobody else can have touched it."""

    def append(
        self, data: bytes, size: int, *, unterminated: bool, ready: Callable[[], None] = lambda: None
    ) -> Written:
        del size, unterminated
        ready()
        self.data += data
        return Written(len(self.data) - len(data), len(data))

    def overwrite(self, offset: int, data: bytes) -> None:
        self.data[offset : offset + len(data)] = data

    def sync(self) -> None:
        """Nothing to wait for."""

    def faults(self) -> list[Diagnostic]:
        return []

    def close(self) -> None:
        """Nothing to close."""


@contextmanager
def locked(fd: int, path: str) -> Generator[None]:
    """Hold our advisory lock on an open file. A filesystem without locks is no reason to refuse (A039)."""
    deadline = time.monotonic() + LOCK_WAIT
    held = True
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as exc:
            if exc.errno in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}:
                held = False
                break
            if exc.errno not in {errno.EWOULDBLOCK, errno.EAGAIN, errno.EINTR}:
                raise storage_fault(exc, path) from exc
            if time.monotonic() > deadline:
                raise Busy(f"another program holds the lock of {path}", retryAfterMs=500) from None
            time.sleep(0.01)
    try:
        yield
    finally:
        if held:
            fcntl.flock(fd, fcntl.LOCK_UN)


def publish(path: str, data: bytes, pieces: Iterator[bytes] | None = None) -> None:
    """Create a session file with all of its first content, durably, or not at all; an existing file is never replaced.

    Modes: 0600, in a folder of 0700 if it has to be made. Raises AlreadyExists or a storage fault.
    """
    folder = os.path.dirname(path)
    try:
        make_folders(Path(folder))
        temp = _temporary(path, data, pieces)
        try:
            _give_name(temp, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temp)
        sync_folder(folder)
    except FileExistsError:
        raise AlreadyExists(f"there is already a file {path}", path=path) from None
    except OSError as exc:
        raise storage_fault(exc, path) from exc


def _temporary(path: str, data: bytes, pieces: Iterator[bytes] | None = None) -> str:
    """Path of a new file beside `path` with this content, on the disk, readable by its owner only."""
    folder, name = os.path.split(os.fsencode(path))
    temp = os.fsdecode(
        os.path.join(folder, b".%b.%d-%b.tmp" % (name[-180:], os.getpid(), secrets.token_hex(4).encode()))
    )
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)
            file.write(data)
            for piece in pieces or ():
                file.write(piece)
            file.flush()
            os.fsync(fd)
    except BaseException:
        os.unlink(temp)
        raise
    return temp


def _give_name(temp: str, path: str) -> None:
    """Let the file `temp` be found as `path` too (or instead). Raises FileExistsError where something has that name."""
    try:
        os.link(temp, path)
    except OSError as exc:
        if exc.errno not in _NO_LINKS:
            raise
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.rename(temp, path)


def sync_folder(folder: str) -> None:
    """Make a new name in `folder` survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: str, data: bytes, keep: str, size: int, pieces: Iterator[bytes] | None = None) -> None:
    """Put `data`, and `pieces` behind it, in the place of the file at `path`, atomically; that stays as `keep`.

    Used for migrating version 1 and 2 logs and by `doctor --fix`, never for an entry. Raises Outdated, with nothing
    changed, when the file is not `size` bytes long (any more); AlreadyExists when there is a file `keep`.
    """
    folder = os.path.dirname(path)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            with locked(fd, path):
                _replace(fd, path, data, keep, size, pieces)
            sync_folder(folder)
        finally:
            os.close(fd)
    except FileExistsError:
        raise AlreadyExists(f"there is already a file {keep}", path=keep) from None
    except OSError as exc:
        raise storage_fault(exc, path) from exc


def _replace(fd: int, path: str, data: bytes, keep: str, size: int, pieces: Iterator[bytes] | None) -> None:
    before = os.fstat(fd)
    if before.st_size != size:
        raise Outdated
    temp = _temporary(path, data, pieces)
    try:
        os.chmod(temp, before.st_mode & 0o777)
        try:
            os.link(path, keep)
        except FileExistsError:
            if not _same_bytes(fd, keep, size):  # else an earlier try was cut off after this step
                raise
        except OSError as exc:
            if exc.errno not in _NO_LINKS:
                raise
            publish(keep, os.pread(fd, size, 0))
        if os.fstat(fd).st_size != size or not os.path.samestat(os.stat(path), before):
            os.unlink(keep)
            raise Outdated
        os.rename(temp, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temp)
    if late := _late(fd, size):
        # Another program had the old file open and wrote between our look and the change of names.
        with open(path, "ab") as file:
            file.write(late)


def _late(fd: int, offset: int) -> bytes:
    """What came behind `offset`, as soon as it does not grow: of a write that is under way a read may give a part."""
    until = time.monotonic() + QUIET
    before = b""
    while (data := os.pread(fd, os.fstat(fd).st_size - offset, offset)) != before and time.monotonic() < until:
        before = data
        time.sleep(SETTLE)
    return data


def _same_bytes(fd: int, path: str, size: int) -> bool:
    with open(path, "rb") as other:
        return os.fstat(other.fileno()).st_size == size and other.read() == os.pread(fd, size, 0)


__all__ = ["FileJournal", "Journal", "MemoryJournal", "Outdated", "SessionGone", "Written", "publish", "replace"]
