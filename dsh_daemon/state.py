"""What is ours and not derived: leaf memory, drafts, pins, archive, titles that a log cannot hold, remembered files."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from .database import Database

VERSION = 1
_SCHEMA = """
CREATE TABLE session (
    path TEXT PRIMARY KEY,
    archived INTEGER NOT NULL DEFAULT 0,
    pinned INTEGER NOT NULL DEFAULT 0,
    title TEXT,
    draft TEXT,
    remembered INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE leaf (
    path TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    last_entry TEXT,
    leaf TEXT,
    history BLOB NOT NULL
) WITHOUT ROWID;
"""
_LATER = """
CREATE TABLE IF NOT EXISTS label (
    path TEXT NOT NULL,
    entry TEXT NOT NULL,
    label TEXT NOT NULL,
    at TEXT NOT NULL,
    PRIMARY KEY (path, entry)
) WITHOUT ROWID;
"""


class LeafMemory(NamedTuple):
    """Where a session was left. It holds only while the log has this size and this last entry."""

    size: int  # bytes
    last_entry: str | None
    leaf: str | None
    history: list[str | None]  # where `back` goes, the latest last


class Flags(NamedTuple):
    archived: bool = False
    pinned: bool = False
    title: str | None = None


_NONE = Flags()
_FLAGS = "SELECT path, archived, pinned, title FROM session"


class State:
    """The state database at `path` (None: in memory). A corrupt one is set aside as `.bad`; `problem` says so.

    Every setter is durable when it returns. Safe to use from any thread. Everything raises Busy, StorageFull,
    StorageError; while the file is locked when we begin, nothing is known and nothing can be set.
    """

    def __init__(self, path: str | None) -> None:
        self._db = Database(path, schema=_SCHEMA, version=VERSION, durable=True, later=_LATER)

    @property
    def problem(self) -> str | None:
        return self._db.problem

    def opened(self) -> int:
        """A number that changes when all that is known may have changed at once: the file could be opened at last."""
        return self._db.opened()

    def leaf(self, path: str) -> LeafMemory | None:
        for size, last_entry, leaf, history in self._db.read(
            "SELECT size, last_entry, leaf, history FROM leaf WHERE path = ?", path
        ):
            try:
                moves = orjson.loads(history)
            except orjson.JSONDecodeError:
                moves = []
            return LeafMemory(size, last_entry, leaf, moves)
        return None

    def set_leaf(self, path: str, memory: LeafMemory | None) -> None:
        if memory is None:
            self._db.write("DELETE FROM leaf WHERE path = ?", path)
        else:
            self._db.write(
                "INSERT OR REPLACE INTO leaf VALUES (?, ?, ?, ?, ?)",
                path, memory.size, memory.last_entry, memory.leaf, orjson.dumps(memory.history),
            )  # fmt: skip

    def draft(self, path: str) -> str | None:
        """Give the unsent prompt of a session."""
        return self._value(path, "draft")

    def set_draft(self, path: str, text: str | None) -> None:
        self._set(path, "draft", text)

    def flags(self, path: str) -> Flags:
        for archived, pinned, title in self._db.read(
            "SELECT archived, pinned, title FROM session WHERE path = ?", path
        ):
            return Flags(bool(archived), bool(pinned), title)
        return _NONE

    def all_flags(self) -> dict[str, Flags]:
        """Map path to flags for every session that has any."""
        rows = self._db.read(
            "SELECT path, archived, pinned, title FROM session WHERE archived OR pinned OR title IS NOT NULL"
        )
        return {path: Flags(bool(archived), bool(pinned), title) for path, archived, pinned, title in rows}

    def set_archived(self, path: str, on: bool) -> None:
        self._set(path, "archived", int(on))

    def set_pinned(self, path: str, on: bool) -> None:
        self._set(path, "pinned", int(on))

    def set_title(self, path: str, title: str | None) -> None:
        """Name a session whose log cannot hold a name."""
        self._set(path, "title", title)

    def labels(self, path: str) -> dict[str, tuple[str, str]]:
        """Labels of a session whose log cannot hold them: entry id -> label and when it was given."""
        rows = self._db.read("SELECT entry, label, at FROM label WHERE path = ?", path)
        return {entry: (label, at) for entry, label, at in rows}

    def set_label(self, path: str, entry_id: str, label: str | None, at: str) -> None:
        if label is None:
            self._db.write("DELETE FROM label WHERE path = ? AND entry = ?", path, entry_id)
        else:
            self._db.write("INSERT OR REPLACE INTO label VALUES (?, ?, ?, ?)", path, entry_id, label, at)

    def remembered(self) -> list[str]:
        """Sessions outside all roots that were opened by path."""
        return [path for (path,) in self._db.read("SELECT path FROM session WHERE remembered ORDER BY path")]

    def remember(self, path: str, on: bool = True) -> None:
        self._set(path, "remembered", int(on))

    def moved(self, old: str, new: str) -> None:
        """Carry everything that is known of `old` over to `new`."""
        for table in ("session", "leaf", "label"):
            self._db.write(f"UPDATE OR REPLACE {table} SET path = ? WHERE path = ?", new, old)  # noqa: S608

    def close(self) -> None:
        self._db.close()

    def _value(self, path: str, column: str) -> str | None:
        for (value,) in self._db.read(f"SELECT {column} FROM session WHERE path = ?", path):  # noqa: S608
            return value
        return None

    def _set(self, path: str, column: str, value: str | int | None) -> None:
        update = f"ON CONFLICT (path) DO UPDATE SET {column} = excluded.{column}"
        self._db.write(f"INSERT INTO session (path, {column}) VALUES (?, ?) {update}", path, value)  # noqa: S608
