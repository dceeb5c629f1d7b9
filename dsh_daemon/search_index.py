"""The full-text index of all sessions: which entries say what, and what a search must know of them beside.

One row of FTS5 for each entry that says something. The text itself is not kept: it is read from the log again. The
rowid alone tells the file, the entry's place in it and who speaks: each file has stretches of the numbers, with room to
grow, which lie close to each other since an index keeps the distances. A file is put in piece by piece, each in a
transaction with how far it got, so that whatever ends us costs no more than a piece. Disposable: files are the truth.
"""

# apsw's stubs leave the type of blobs open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import logging
import os
import threading
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import apsw
import msgspec

from .catalog import Stamp
from .database import Database
from .errors import Fault
from .log.index import Shape
from .tokens import TOKENIZER

T = TypeVar("T")
log = logging.getLogger(__name__)

# What is a letter, and its lower case, may differ between versions of Unicode.
VERSION = 1_000 * 1 + int(unicodedata.unidata_version.partition(".")[0])
SPEAKER_BITS = 2  # of a rowid: who says it
SPARE = 16  # entries at least for which a stretch has more room than it needs
CHUNK = 256  # entries in one row of what is kept of them: an append writes the last row anew
COLUMNS_KEPT = 2_000_000  # entries whose columns are held in memory

_COLUMN_BYTES = 10  # of an entry in `chunk.columns`

_SCHEMA = f"""
CREATE VIRTUAL TABLE text USING fts5(said, content='', contentless_delete=1, tokenize="{TOKENIZER}");
CREATE TABLE file (
    number INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    known BLOB NOT NULL,
    facts BLOB NOT NULL,
    labels BLOB
);
CREATE TABLE stretch (
    base INTEGER PRIMARY KEY,
    file INTEGER NOT NULL,
    first INTEGER NOT NULL,
    room INTEGER NOT NULL
);
CREATE INDEX stretch_of_file ON stretch (file);
CREATE TABLE chunk (
    file INTEGER NOT NULL, number INTEGER NOT NULL,
    columns BLOB NOT NULL,
    places BLOB NOT NULL,
    PRIMARY KEY (file, number)
) WITHOUT ROWID;
"""


class Known(msgspec.Struct, array_like=True, frozen=True):
    """How far a file is in the index."""

    stamp: Stamp  # the state of the file that was read
    entries: int  # that are in the index for good
    end: int  # bytes of the log up to the end of the last one of these
    mark: bytes  # what these bytes are recognised by
    whole: bool  # the file has no more than that, as it was
    leaf: str | None  # id of the entry where work went on
    cwd: str | None


class Facts(msgspec.Struct, array_like=True):
    """What is kept of a whole file. Spans are flat lists of where one begins and where it ends."""

    shapes: list[tuple[str, str | None, int, str | None]] = []
    active: list[int] = []  # spans of the entries on the path to the leaf
    compacted: list[int] = []  # spans of those of them that a compaction took from the context


class Piece(msgspec.Struct, array_like=True):
    """Entries from `first` on, one for each element of the columns, to be put in the place of what is there."""

    first: int
    known: Known
    facts: Facts
    labels: dict[int, str]  # in force in the whole file, by ordinal
    said: list[tuple[int, int, str]]  # ordinal, who says it, the words as `tokens.indexed` gives them
    time: bytes  # array "q", as Index.time
    shape: bytes  # array "H", -> facts.shapes
    offset: bytes  # array "q"
    length: bytes  # array "q"
    turn: bytes  # array "i", 0 where there is none
    ids: list[str]
    more: int = 0  # entries that follow in other pieces


class Stretch(NamedTuple):
    """Numbers from `base` on that are given to the entries of a file from its ordinal `first` on."""

    base: int
    file: int
    first: int
    room: int


class Listing(NamedTuple):
    """Which files there are; what it was read at tells whether it still holds."""

    at: object
    paths: dict[int, str]  # by number
    numbers: dict[str, tuple[int, int]]  # number and version by path
    labels: dict[str, dict[int, str]]
    stretches: list[Stretch]  # ascending
    bases: list[int]


class Place(NamedTuple):
    """Where an entry is found in its log."""

    id: str
    offset: int
    length: int
    turn: int


class Columns:
    """What a search compares of the entries of one file."""

    __slots__ = ("active", "compacted", "labels", "shape", "shapes", "straight", "time")

    def __init__(self, facts: Facts, labels: dict[int, str], time: array[int], shape: array[int]) -> None:
        self.time = time
        self.shape = shape
        self.shapes = [Shape(*each) for each in facts.shapes]
        self.active = facts.active
        self.compacted = facts.compacted
        self.labels = labels
        self.straight = self.active == [0, len(time)]  # every entry is on the path to the leaf

    def __len__(self) -> int:
        return len(self.time)

    def is_active(self, i: int) -> bool:
        return within(self.active, i)

    def is_compacted(self, i: int) -> bool:
        return within(self.compacted, i)


def within(spans: Sequence[int], i: int) -> bool:
    return bool(bisect_right(spans, i) & 1)


class SearchIndex:
    """The index at `path` (None: in memory). Safe to use from any thread; every method raises storage faults.

    A file that is corrupt or of another version is deleted and begun anew.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._lock = threading.RLock()  # of what is kept in memory
        self._openings = 0
        self._writes = 0
        self._size = 0  # of the file when it was looked at last
        self._db, self._identity = self._open()
        self._listing = Listing(None, {}, {}, {}, [], [])
        self._kept: dict[str, tuple[int, Columns]] = {}  # the least recently used first
        self._entries_kept = 0
        self._straight: dict[str, tuple[tuple[int, int] | None, int]] = {}

    @property
    def problem(self) -> str | None:
        return self._db.problem

    def opened(self) -> tuple[int, int]:
        """What changes when all that was in the index may be gone."""
        return self._openings, self._db.opened()

    def close(self) -> None:
        self._db.close()

    # -- files --------------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, Known]:
        """All files that are in the index, or partly, by path."""
        found: dict[str, Known] = {}
        for path, known in self._rows("SELECT path, known FROM file"):
            with suppress(msgspec.DecodeError):  # as good as not there
                found[path] = _as_known(known)
        return found

    def put(self, path: str, before: Known | None, piece: Piece) -> bool:
        """Put in a piece of a file that was known as `before`; False, with nothing done, where that is not so."""
        self._writes += 1
        return self._db.writing(lambda connection: _put(connection, path, before, piece))

    def forget(self, paths: Iterable[str]) -> None:
        """Take files out. Their words may stay in the database until its next merge; after `clear` nothing does."""
        gone = list(paths)
        if gone:
            self._writes += 1
            self._db.writing(lambda connection: _forget(connection, gone))

    def moved(self, old: str, new: str) -> None:
        """A file has another name now."""
        self._writes += 1
        self._db.writing(lambda connection: _rename(connection, old, new))

    def clear(self) -> None:
        """Leave nothing of what ever was in the index."""
        self._begin_anew(unlink=True)

    def look_after(self) -> None:
        """Begin anew where somebody took the file away under us, or cut it: SQLite may find nothing in the rest."""
        if self._identity is None:
            return
        status = _status(self.path)
        if status is None or (status.st_dev, status.st_ino) != self._identity:
            self._begin_anew(unlink=False)
        elif status.st_size < self._size:
            log.warning("somebody cut %s: it is begun anew", self.path)
            self._begin_anew(unlink=True)
        else:
            self._size = status.st_size  # it never shrinks: what is deleted leaves pages for what comes

    def _begin_anew(self, *, unlink: bool) -> None:
        with self._lock:
            if self.path is not None and unlink:
                for side in ("", "-wal", "-shm"):
                    with suppress(FileNotFoundError):
                        os.unlink(self.path + side)
            # The old one is closed by the last thread that still reads it; SQLite sees that its file is not there.
            self._db, self._identity = self._open()

    def _reading(self, work: Callable[[apsw.Connection], T]) -> T:
        """Read; once more where the index was begun anew meanwhile, which takes the file away under who reads."""
        while True:
            database = self._db
            try:
                return database.reading(work)
            except Fault:
                with self._lock:  # held while it is begun anew
                    if database is self._db:
                        raise

    def _rows(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        return self._reading(lambda connection: _all(connection, sql, *args))

    def _open(self) -> tuple[Database, tuple[int, int] | None]:
        self._openings += 1
        database = Database(self.path, schema=_SCHEMA, version=VERSION, durable=False, disposable=True)
        self._size = 0
        status = _status(self.path)
        return database, status and (status.st_dev, status.st_ino)

    # -- search -------------------------------------------------------------------------------------------------------

    def listing(self) -> Listing:
        """Which files there are; who asks for several things gives this with each, so that it is read once."""
        # The reader's own number tells of what other connections did, ours of what was done where there is but one.
        at = (self.opened(), self._rows("PRAGMA data_version"), self._writes)
        listing = self._listing
        if listing.at != at:
            numbers: dict[str, tuple[int, int]] = {}
            labels: dict[str, dict[int, str]] = {}
            files, stretches = self._reading(_files_and_stretches)
            for number, path, version, given in files:
                numbers[path] = number, version
                if given is not None:
                    labels[path] = given
            paths = {number: path for path, (number, _) in numbers.items()}
            listing = Listing(at, paths, numbers, labels, stretches, [stretch.base for stretch in stretches])
            self._listing = listing
        return listing

    def labels(self) -> dict[str, dict[int, str]]:
        """The labels in force of all files that have any: path -> ordinal -> label."""
        return self.listing().labels

    def matches(self, expression: str, path: str | None = None, listing: Listing | None = None) -> dict[str, list[int]]:
        """Find the entries that an expression of `tokens` matches, by path: `ordinal << SPEAKER_BITS | speaker`.

        `path`: only in this file. They come in ascending order.
        """
        listing = listing or self.listing()
        # One text that holds all of them is made and read several times as fast as a row for each.
        sql = "SELECT '[' || group_concat(rowid) || ']' FROM text WHERE text MATCH ?"
        if path is not None:
            if path not in listing.numbers:
                return {}
            own = [stretch for stretch in listing.stretches if stretch.file == listing.numbers[path][0]]
            sql = f"{sql} AND rowid BETWEEN ? AND ?"
            parts = [self._rows(sql, expression, *_rowids(stretch.base, stretch.room)) for stretch in own]
        else:
            parts = [self._rows(sql, expression)]
        rows = sorted(chain.from_iterable(_as_numbers(joined) for ((joined,),) in parts if joined is not None))
        found: dict[str, list[int]] = {}
        at = 0
        while at < len(rows):
            place = bisect_right(listing.bases, rows[at] >> SPEAKER_BITS) - 1
            if place < 0:
                break  # it came after the files were listed, as what stands below
            base, file, first, room = listing.stretches[place]
            end = bisect_left(rows, (base + room) << SPEAKER_BITS, at)
            if file in listing.paths:
                shift = (first - base) << SPEAKER_BITS
                found.setdefault(listing.paths[file], []).extend([row + shift for row in rows[at:end]])
            at = end if end > at else at + 1
        return found

    def columns(self, path: str, listing: Listing | None = None) -> Columns | None:
        """What is kept of the entries of a file; None where it is not in the index."""
        known = (listing or self.listing()).numbers.get(path)
        if known is None:
            return None
        number, version = known
        with self._lock:
            kept = self._kept.pop(path, None)
            if kept is not None:
                self._kept[path] = kept
                if kept[0] == version:
                    return kept[1]
        read = self._reading(lambda connection: _columns(connection, number))
        if read is not None:
            self._keep(path, *read)
        return read and read[1]

    def straight(self, path: str, listing: Listing) -> int:
        """How many entries a file has, where all are on the path to the leaf; 0 for any other one."""
        known = listing.numbers.get(path)
        kept = self._straight.get(path)
        if kept is None or kept[0] != known:
            columns = self.columns(path, listing)
            kept = self._straight[path] = known, len(columns) if columns is not None and columns.straight else 0
        return kept[1]

    def places(self, path: str, ordinals: Iterable[int], listing: Listing | None = None) -> dict[int, Place]:
        """Where entries of a file are found in its log."""
        known = (listing or self.listing()).numbers.get(path)
        if known is None:
            return {}
        by_chunk: dict[int, list[int]] = {}
        for i in ordinals:
            by_chunk.setdefault(i // CHUNK, []).append(i)
        sql = "SELECT number, places FROM chunk WHERE file = ? AND number = ?"

        def read(connection: apsw.Connection) -> dict[int, Place]:
            found: dict[int, Place] = {}
            for chunk, blob in filter(None, [_row(connection, sql, known[0], chunk) for chunk in by_chunk]):
                found |= _places(blob, chunk * CHUNK, by_chunk[chunk])
            return found

        return self._reading(read)

    def _keep(self, path: str, version: int, columns: Columns) -> None:
        with self._lock:
            old = self._kept.pop(path, None)
            self._kept[path] = version, columns
            self._entries_kept += len(columns) - (len(old[1]) if old is not None else 0)
            while self._entries_kept > COLUMNS_KEPT and len(self._kept) > 1:
                _, dropped = self._kept.pop(next(iter(self._kept)))
                self._entries_kept -= len(dropped)


_pack = msgspec.msgpack.Encoder().encode
_as_known = msgspec.msgpack.Decoder(Known).decode
_as_facts = msgspec.msgpack.Decoder(Facts).decode
_as_labels = msgspec.msgpack.Decoder(dict[int, str]).decode
_as_numbers = msgspec.json.Decoder(list[int]).decode
_as_packed = msgspec.msgpack.Decoder(tuple[list[str], bytes, bytes, bytes]).decode


def _read(decode: Callable[[bytes], T], blob: bytes) -> T:
    """What a blob says. Damage in it is as any other damage of the database, although SQLite does not see it."""
    try:
        return decode(blob)
    except (msgspec.DecodeError, TypeError) as exc:
        raise apsw.CorruptError(f"a damaged blob: {exc}") from exc


def _array(code: str, blob: bytes) -> array[int]:
    try:
        return array(code, blob)
    except ValueError as exc:
        raise apsw.CorruptError(f"a damaged blob: {exc}") from exc


def _status(path: str | None) -> os.stat_result | None:
    try:
        return os.stat(path) if path is not None else None
    except OSError:
        return None


def _put(connection: apsw.Connection, path: str, before: Known | None, piece: Piece) -> bool:
    row = _row(connection, "SELECT number, version, known FROM file WHERE path = ?", path)
    current = None
    if row is not None:
        with suppress(msgspec.DecodeError):
            current = _as_known(row[2])
    if current != before:
        return False
    labels = _pack(piece.labels) if piece.labels else None
    values = (_pack(piece.known), _pack(piece.facts), labels)
    if row is None:
        sql = "INSERT INTO file (path, version, known, facts, labels) VALUES (?, 1, ?, ?, ?)"
        connection.execute(sql, (path, *values))
        number = connection.last_insert_rowid()
    else:
        number = row[0]
        sql = "UPDATE file SET version = ?, known = ?, facts = ?, labels = ? WHERE number = ?"
        connection.execute(sql, (row[1] + 1, *values, number))
        _cut(connection, number, piece.first)
    _put_chunks(connection, number, piece)
    stretches = _room_for(connection, number, piece)
    rows: list[tuple[int, str]] = []
    for i, speaker, words in piece.said:
        stretch = stretches[-1] if i >= stretches[-1].first else stretches[0]
        rows.append(((stretch.base + i - stretch.first) << SPEAKER_BITS | speaker, words))
    connection.executemany("INSERT INTO text (rowid, said) VALUES (?, ?)", rows)
    return True


def _rowids(base: int, room: int) -> tuple[int, int]:
    """The first and the last row that a stretch can have."""
    return base << SPEAKER_BITS, ((base + room) << SPEAKER_BITS) - 1


def _room_for(connection: apsw.Connection, number: int, piece: Piece) -> list[Stretch]:
    """The stretches, one or two, that have room for all entries of a piece; the second is new."""
    sql = "SELECT base, file, first, room FROM stretch WHERE file = ? ORDER BY base DESC LIMIT 1"
    last = _row(connection, sql, number)
    found = [] if last is None else [Stretch(*last)]
    start = max(piece.first, found[0].first + found[0].room if found else 0)
    end = piece.first + len(piece.ids)
    if end > start:
        above = _row(connection, "SELECT base + room FROM stretch ORDER BY base DESC LIMIT 1") or (0,)
        size = end + piece.more
        found.append(Stretch(above[0], number, start, size - start + max(SPARE, size // 4)))
        connection.execute("INSERT INTO stretch VALUES (?, ?, ?, ?)", found[-1])
    return found


def _files_and_stretches(connection: apsw.Connection) -> tuple[list[tuple[Any, ...]], list[Stretch]]:
    with connection:  # both as they are at one moment
        rows = _all(connection, "SELECT number, path, version, labels FROM file")
        files = [(*row, None if blob is None else _read(_as_labels, blob)) for *row, blob in rows]
        stretches = _all(connection, "SELECT base, file, first, room FROM stretch ORDER BY base")
        return files, [Stretch(*each) for each in stretches]
    raise AssertionError("a transaction swallows nothing")


def _cut(connection: apsw.Connection, number: int, first: int) -> None:
    """Take out the entries of a file from `first` on."""
    sql = "SELECT number, length(columns) FROM chunk WHERE file = ? ORDER BY number DESC LIMIT 1"
    last = _row(connection, sql, number)
    if last is None or last[0] * CHUNK + last[1] // _COLUMN_BYTES <= first:
        return
    sql = "SELECT base, file, first, room FROM stretch WHERE file = ? AND first + room > ?"
    for row in _all(connection, sql, number, first):
        stretch = Stretch(*row)
        skip = max(0, first - stretch.first)
        rows = _rowids(stretch.base + skip, stretch.room - skip)
        connection.execute("DELETE FROM text WHERE rowid BETWEEN ? AND ?", rows)
        if not skip:
            connection.execute("DELETE FROM stretch WHERE base = ?", (stretch.base,))
    connection.execute("DELETE FROM chunk WHERE file = ? AND number > ?", (number, first // CHUNK))


def _put_chunks(connection: apsw.Connection, number: int, piece: Piece) -> None:
    chunk, kept = divmod(piece.first, CHUNK)
    time, shape = array("q"), array("H")
    ids, offset, length, turn = list[str](), array("q"), array("q"), array("i")
    if kept:
        sql = "SELECT columns, places FROM chunk WHERE file = ? AND number = ?"
        columns, places = _row(connection, sql, number, chunk) or (b"", b"")
        time, shape = _split(columns)
        ids, offset, length, turn = _unpacked(places)
        for column in (time, shape, ids, offset, length, turn):
            del column[kept:]
    for column, blob in (
        (time, piece.time), (shape, piece.shape), (offset, piece.offset), (length, piece.length), (turn, piece.turn),
    ):  # fmt: skip
        column.frombytes(blob)
    ids += piece.ids
    rows: list[tuple[int, int, bytes, bytes]] = []
    for start in range(0, len(ids), CHUNK):
        part = slice(start, start + CHUNK)
        places = _pack((ids[part], offset[part].tobytes(), length[part].tobytes(), turn[part].tobytes()))
        rows.append((number, chunk, time[part].tobytes() + shape[part].tobytes(), places))
        chunk += 1
    connection.executemany("INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?)", rows)


def _unpacked(places: bytes) -> tuple[list[str], array[int], array[int], array[int]]:
    ids, *blobs = _read(_as_packed, places)
    offset, length, turn = (_array(code, blob) for code, blob in zip("qqi", blobs, strict=True))
    if not len(ids) == len(offset) == len(length) == len(turn):
        raise apsw.CorruptError("damaged blobs: they do not fit together")
    return ids, offset, length, turn


def _split(columns: bytes) -> tuple[array[int], array[int]]:
    count = len(columns) // _COLUMN_BYTES
    return array("q", columns[: count * 8]), array("H", columns[count * 8 : count * _COLUMN_BYTES])


def _columns(connection: apsw.Connection, number: int) -> tuple[int, Columns] | None:
    with connection:  # all of it as it is at one moment
        row = _row(connection, "SELECT version, known, facts, labels FROM file WHERE number = ?", number)
        sql = "SELECT columns FROM chunk WHERE file = ? ORDER BY number"
        chunks = _all(connection, sql, number)
        if row is None:
            return None
        time, shape = array("q"), array("H")
        for (blob,) in chunks:
            times, shapes = _split(blob)
            time += times
            shape += shapes
        version, known, blob, labels = row
        facts = _read(_as_facts, blob)
        if max(shape, default=-1) >= len(facts.shapes) or len(time) < _read(_as_known, known).entries:
            raise apsw.CorruptError("damaged blobs: they do not fit together")
        return version, Columns(facts, _read(_as_labels, labels) if labels else {}, time, shape)
    raise AssertionError("a transaction swallows nothing")


def _places(blob: bytes, first: int, wanted: Iterable[int]) -> dict[int, Place]:
    ids, offset, length, turn = _unpacked(blob)
    inside = [(i, i - first) for i in wanted if i - first < len(ids)]
    return {i: Place(ids[k], offset[k], length[k], turn[k]) for i, k in inside}


def _forget(connection: apsw.Connection, paths: Sequence[str]) -> None:
    for path in paths:
        row = _row(connection, "SELECT number FROM file WHERE path = ?", path)
        if row is not None:
            _cut(connection, row[0], 0)
            connection.execute("DELETE FROM chunk WHERE file = ?", row)
            connection.execute("DELETE FROM file WHERE number = ?", row)


def _rename(connection: apsw.Connection, old: str, new: str) -> None:
    if _row(connection, "SELECT 1 FROM file WHERE path = ?", old) is not None:
        _forget(connection, [new])
        connection.execute("UPDATE file SET path = ?, version = version + 1 WHERE path = ?", (new, old))


def _all(connection: apsw.Connection, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    return connection.execute(sql, args).fetchall()


def _row(connection: apsw.Connection, sql: str, *args: Any) -> tuple[Any, ...] | None:
    return connection.execute(sql, args).fetchone()
