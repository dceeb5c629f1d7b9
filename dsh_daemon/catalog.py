"""The catalog database: what was read of each session file, and index snapshots. Disposable: files are the truth."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from .database import Database
from .errors import Fault
from .log.formats.peek import Peek

VERSION = 1
_SCHEMA = """
CREATE TABLE file (
    path TEXT PRIMARY KEY,
    dev INTEGER NOT NULL, ino INTEGER NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    record BLOB NOT NULL,
    checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE snapshot (
    path TEXT PRIMARY KEY,
    dev INTEGER NOT NULL, ino INTEGER NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    index_blob BLOB NOT NULL
);
"""


class Stamp(NamedTuple):
    """Which state of a file something was read from."""

    dev: int
    ino: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class Counts(msgspec.Struct, gc=False, omit_defaults=True):
    """What only a full scan of a file knows."""

    entries: int
    messages: int
    diagnostics: int
    cost: float = 0.0
    model: str | None = None
    name: str | None = None
    name_source: str = "user"
    activity: int | None = None  # milliseconds since 1970
    damaged: bool = False  # something inside could not be read
    recovered: bool = False  # all could be read, some of it by recovery
    fork_point: str | None = None
    fork_text: str | None = None  # the message at which a branch or fork left, as a row shows it


class Record(msgspec.Struct, gc=False, omit_defaults=True):
    """What is known of a file: `peek`, or the reason why it is no session; `counts` once it was scanned."""

    peek: Peek | None = None
    reason: str | None = None
    counts: Counts | None = None
    counted: Stamp | None = None  # the state of the file that was counted


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Catalog:
    """The catalog at `path` (None: in memory). A corrupt one, or one of another version, is set aside as `.bad`.

    Safe to use from any thread. Nothing here raises: what cannot be kept is read again from the files, what cannot be
    found is as good as not kept. `problem` tells of it until something can be kept again.
    """

    def __init__(self, path: str | None) -> None:
        self._db = Database(path, schema=_SCHEMA, version=VERSION, durable=False)
        self._trouble: str | None = None

    @property
    def problem(self) -> str | None:
        return self._trouble or self._db.problem

    def load(self) -> dict[str, tuple[Stamp, Record]]:
        """Every sound row; one that does not fit its checksum is as good as none."""
        rows: dict[str, tuple[Stamp, Record]] = {}
        for path, dev, ino, size, mtime_ns, record, checksum in self._read("SELECT * FROM file"):
            stamp = Stamp(dev, ino, size, mtime_ns)
            try:
                if _checksum(path, stamp, record) == checksum:
                    rows[path] = stamp, _decode(record)
            except (msgspec.DecodeError, TypeError, AttributeError):
                continue
        return rows

    def put(self, rows: Iterable[tuple[str, Stamp, Record]]) -> None:
        """Store rows in transactions of a few hundred."""
        batch: list[tuple[Any, ...]] = []
        for path, stamp, record in rows:
            blob = _encode(record)
            batch.append((path, *stamp, blob, _checksum(path, stamp, blob)))
            if len(batch) == 500:
                if not self._put(batch):
                    return
                batch = []
        if batch:
            self._put(batch)

    def drop(self, paths: Iterable[str]) -> None:
        gone = [(path,) for path in paths]
        if gone and self._write("DELETE FROM file WHERE path = ?", gone):
            self._write("DELETE FROM snapshot WHERE path = ?", gone)

    def put_snapshot(self, path: str, stamp: Stamp, blob: bytes) -> None:
        self._write("INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?, ?, ?, ?)", [(path, *stamp, blob)])

    def snapshot(self, path: str) -> tuple[Stamp, bytes] | None:
        """Return the last index snapshot of a file and the state of the file that it was made from."""
        for dev, ino, size, mtime_ns, blob in self._read(
            "SELECT dev, ino, size, mtime_ns, index_blob FROM snapshot WHERE path = ?", path
        ):
            return Stamp(dev, ino, size, mtime_ns), blob
        return None

    def close(self) -> None:
        self._db.close()

    def _put(self, batch: list[tuple[Any, ...]]) -> bool:
        return self._write("INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?)", batch)

    def _read(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        try:
            return self._db.read(sql, *args)
        except Fault as fault:
            self._trouble = fault.message
            return []

    def _write(self, sql: str, rows: list[tuple[Any, ...]]) -> bool:
        try:
            self._db.write_many(sql, rows)
        except Fault as fault:
            self._trouble = fault.message
            return False
        self._trouble = None
        return True


def _checksum(path: str, stamp: Stamp, blob: bytes) -> int:
    return crc32(blob, crc32(f"{path}:{stamp.dev}:{stamp.ino}:{stamp.size}:{stamp.mtime_ns}".encode()))
