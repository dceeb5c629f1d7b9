"""A small SQLite file of ours that must never stop the daemon: a bad one is set aside and begun anew."""

# apsw's stubs leave the type of blobs open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw

from .errors import NO_SPACE, Busy, Fault, StorageError, StorageFull
from .paths import open_private, private_folder

WAIT_MS = 1_000  # how long another program that has the file locked is waited for
LOOK_AGAIN = 5.0  # seconds until a file that could not be used is tried again

T = TypeVar("T")
log = logging.getLogger(__name__)

_BAD = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError)
_LOCKED = (apsw.BusyError, apsw.LockedError)
_SIDES = ("-wal", "-shm")
_PASSING = (*_LOCKED, apsw.FullError)


class _Handle(NamedTuple):
    connection: apsw.Connection
    lock: threading.RLock


class Database:
    """Two connections, one to write and one to read, shared by threads. `path` None keeps it in memory.

    A file that is corrupt or of another version is renamed to `<path>.bad` and replaced by an empty one. In a folder
    that cannot be written the database lives in memory. So it does while another program has the file locked or the
    disk is full; then it is tried again, and of a `durable` one nothing is written before. `problem` tells what
    happened. Every use raises Busy, StorageFull, StorageError.
    """

    def __init__(
        self, path: str | None, *, schema: str, version: int, durable: bool, disposable: bool = False, later: str = ""
    ) -> None:
        """`disposable`: a bad file is deleted. `later`: tables that came after the others, made where missing."""
        self.path = path
        self.problem: str | None = None
        self._schema = schema
        self._later = later
        self._version = version
        self._durable = durable
        self._disposable = disposable
        self._changing = threading.RLock()  # held while the connections are replaced
        self._hindered: apsw.Error | None = None  # why it is in memory for now
        self._retry = 0.0
        self._opened = 0
        self._writer: _Handle
        self._reader: _Handle
        self._writer, self._reader = self._open() or self._in_memory()

    def read(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        return self.reading(lambda connection: _rows(connection, sql, args))

    def reading(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work`, which only reads and may be called again, with the connection for that."""
        return self._run(work, write=False)

    def write(self, sql: str, *args: Any) -> None:
        """Run one statement; committed when this returns."""
        self._run(lambda connection: _rows(connection, sql, args), write=True)

    def write_many(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run one statement for each of `rows` in one transaction."""
        kept = list(rows)
        self.writing(lambda connection: connection.executemany(sql, kept))

    def writing(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work`, which may be called again, in one transaction."""
        return self._run(lambda connection: _whole(connection, work), write=True)

    def opened(self) -> int:
        """How often other content came in place of what was read before: of the file, or of an empty one in memory."""
        self._look_again()
        return self._opened

    def close(self) -> None:
        with self._changing, self._writer.lock, self._reader.lock:
            self._reader.connection.close()
            self._writer.connection.close()

    def _run(self, work: Callable[[apsw.Connection], T], *, write: bool) -> T:
        for again in (True, True, False):
            self._look_again()
            if write and self._durable and self._hindered is not None:
                raise self._fault(self._hindered)
            handle = self._writer if write else self._reader
            try:
                with handle.lock:
                    return _sane(work, handle.connection)
            except (*_BAD, apsw.ConnectionClosedError) as exc:
                if not again:
                    raise self._fault(exc, _errno(handle.connection)) from exc
                self._replace(handle, exc)
            except apsw.Error as exc:
                raise self._fault(exc, _errno(handle.connection)) from exc
        raise AssertionError("the last attempt returns or raises")

    def _fault(self, exc: apsw.Error, code: int = 0) -> Fault:
        if isinstance(exc, _LOCKED):
            return Busy(f"another program has {self.path} locked", retryAfterMs=WAIT_MS)
        if isinstance(exc, apsw.FullError) or code in NO_SPACE:
            return StorageFull(f"no space left to write {self.path}", path=self.path)
        name = errno.errorcode.get(code) or type(exc).__name__
        return StorageError(f"{self.path} cannot be used: {exc}", path=self.path, errno=name)

    def _look_again(self) -> None:
        if not self._due():
            return
        with self._changing:
            if self._due():  # no other thread did it meanwhile
                self._hindered = self.problem = None
                if (handles := self._open()) is not None:  # else what came meanwhile is kept in memory on
                    self._writer, self._reader = handles

    def _due(self) -> bool:
        return self._hindered is not None and time.monotonic() >= self._retry

    def _replace(self, handle: _Handle, exc: apsw.Error) -> None:
        """Begin a bad file anew, unless another thread did or the connection was only closed."""
        with self._changing:
            if handle not in (self._writer, self._reader) or isinstance(exc, apsw.ConnectionClosedError):
                return
            if self._writer is self._reader:
                return  # in memory: the file has no part in it
            with self._writer.lock, self._reader.lock:
                self._reader.connection.close(True)
                self._writer.connection.close(True)
            self._set_aside(str(exc))
            self._writer, self._reader = self._open() or self._in_memory()

    def _open(self) -> tuple[_Handle, _Handle] | None:
        """The file's connections; None where there is no file, or none that can be used."""
        for _ in range(2 if self.path is not None else 0):
            assert self.path is not None
            try:
                handles = self._connect(self.path)
            except _BAD as exc:
                if not self._set_aside(str(exc)):
                    break
            except (apsw.Error, OSError) as exc:
                if isinstance(exc, _PASSING):
                    self._hindered, self._retry = exc, time.monotonic() + LOOK_AGAIN
                self.problem = f"{self.path} cannot be used, kept in memory instead: {exc}"
                log.warning("%s", self.problem)
                break
            else:
                self._opened += 1
                return handles
        return None

    def _in_memory(self) -> tuple[_Handle, _Handle]:
        self._opened += 1
        handle = _Handle(self._prepare(apsw.Connection(":memory:")), threading.RLock())
        return handle, handle

    def _connect(self, path: str) -> tuple[_Handle, _Handle]:
        private_folder(Path(path).parent)
        # SQLite would create it by the umask; its -wal and -shm files copy this file's mode.
        os.close(open_private(Path(path), os.O_RDWR))
        writer = apsw.Connection(path)
        try:
            self._prepare(writer)
            reader = apsw.Connection(path)
            reader.set_busy_timeout(WAIT_MS)
            reader.pragma("query_only", True)
        except BaseException:
            writer.close(True)
            raise
        return _Handle(writer, threading.RLock()), _Handle(reader, threading.RLock())

    def _prepare(self, connection: apsw.Connection) -> apsw.Connection:
        connection.set_busy_timeout(WAIT_MS)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "full" if self._durable else "normal")
        # As it is at one moment: another process may be making it.
        found, new = _whole(connection, lambda c: (c.pragma("user_version"), _is_empty(c)))
        connection.transaction_mode = "IMMEDIATE"  # nobody else writes between what is read in one and what is written
        if found != self._version and not new:
            raise apsw.FormatError(f"it has version {found}, this program knows {self._version}")
        if self._durable and not new and connection.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
            raise apsw.CorruptError("quick_check failed")
        if new:
            with connection:
                if _is_empty(connection):
                    connection.execute(self._schema)
                    connection.pragma("user_version", self._version)
        if self._later:
            connection.execute(self._later)
        return connection

    def _set_aside(self, reason: str) -> bool:
        """Rename or delete a bad file; False where the system does not let us."""
        assert self.path is not None
        try:
            done = self._delete() if self._disposable else self._rename()
        except OSError as exc:
            self.problem = f"{self.path} is unusable ({reason}) and cannot be set aside: {exc.strerror}"
            return False
        self.problem = f"{self.path} was unusable ({reason}) and was {done}"
        log.warning("%s", self.problem)
        return True

    def _delete(self) -> str:
        assert self.path is not None
        os.unlink(self.path)
        for side in _SIDES:
            with suppress(FileNotFoundError):
                os.unlink(self.path + side)
        return "deleted"

    def _rename(self) -> str:
        assert self.path is not None
        bad, n = f"{self.path}.bad", 1
        while os.path.lexists(bad):
            n += 1
            bad = f"{self.path}.bad{n}"
        os.rename(self.path, bad)
        for side in _SIDES:
            if os.path.lexists(self.path + side):
                os.rename(self.path + side, bad + side)
        return f"set aside as {bad}"


def _errno(connection: apsw.Connection) -> int:
    try:
        return connection.system_errno
    except apsw.ConnectionClosedError:
        return 0


def _is_empty(connection: apsw.Connection) -> bool:
    return not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()


def _rows(connection: apsw.Connection, sql: str, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return connection.execute(sql, args).fetchall()


def _sane(work: Callable[[apsw.Connection], T], connection: apsw.Connection) -> T:
    try:
        return work(connection)
    except UnicodeDecodeError as exc:  # SQLite does not look whether its texts are any
        raise apsw.CorruptError(f"a damaged text: {exc}") from exc


def _whole(connection: apsw.Connection, work: Callable[[apsw.Connection], T]) -> T:
    with connection:
        return work(connection)
    raise AssertionError("a transaction swallows nothing")
