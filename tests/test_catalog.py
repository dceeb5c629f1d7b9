"""The catalog is disposable: whatever happens to it, the list is the same."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from dsh_daemon.catalog import Catalog, Counts, Record, Stamp
from dsh_daemon.log.formats.peek import Peek

STAMP = Stamp(1, 2**63 - 1, 3, 4)


def record(session_id: str = "s", **more: object) -> Record:
    return Record(Peek("pi", 3, session_id, "ok", "ok", **more))  # type: ignore[arg-type]


def test_rows_and_snapshots_come_back_as_they_went(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "catalog.db"))
    full = record(cwd="/x", first="漢字 \ufffd", created=-5, name="n")
    full.counts, full.counted = Counts(3, 2, 1, 0.5, "m"), STAMP
    rows = {"/a": (STAMP, full), "/b": (STAMP, Record(None, "no session"))}
    catalog.put((path, *row) for path, row in rows.items())
    catalog.put_snapshot("/a", STAMP, b"\0blob")
    catalog.close()

    again = Catalog(str(tmp_path / "catalog.db"))
    assert again.load() == rows
    assert again.snapshot("/a") == (STAMP, b"\0blob")
    assert again.snapshot("/b") is None
    again.drop(["/a"])
    assert again.load().keys() == {"/b"}
    assert again.snapshot("/a") is None
    again.close()


def test_thousands_of_rows_go_in_at_once() -> None:
    catalog = Catalog(None)
    catalog.put((f"/{n}", STAMP, record(f"s{n}")) for n in range(2_345))
    assert len(catalog.load()) == 2_345


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE file SET record = 'x'",
        "UPDATE file SET record = replace(CAST(record AS TEXT), 's1', 's9')",
        "UPDATE file SET size = size + 1",
        "UPDATE file SET record = x'', checksum = 0",
        "UPDATE file SET checksum = checksum + 1",
        "UPDATE file SET path = path || 'x'",
    ],
)
def test_a_row_that_was_changed_is_as_good_as_none(tmp_path: Path, damage: str) -> None:
    """A049."""
    catalog = Catalog(str(tmp_path / "catalog.db"))
    catalog.put([("/a", STAMP, record("s1"))])
    catalog.close()
    connection = apsw.Connection(str(tmp_path / "catalog.db"))
    connection.execute(damage)
    connection.close()
    again = Catalog(str(tmp_path / "catalog.db"))
    assert again.load() == {}
    again.close()


def test_a_corrupt_or_newer_file_is_set_aside(tmp_path: Path) -> None:
    """A144."""
    path = tmp_path / "catalog.db"
    path.write_bytes(b"SQLite format 3\0" + os.urandom(9_000))
    catalog = Catalog(str(path))
    catalog.put([("/a", STAMP, record())])
    assert len(catalog.load()) == 1
    assert catalog.problem is not None
    catalog.close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 1_000)
    connection.close()
    catalog = Catalog(str(path))
    assert catalog.load() == {}
    catalog.close()
    assert sorted(p.name for p in tmp_path.glob("*.bad*")) == ["catalog.db.bad", "catalog.db.bad2"]


def test_a_catalog_that_cannot_be_used_raises_nothing(tmp_path: Path) -> None:
    """It is derived: a lock held by another program, or a full disk, costs a second look at some files and no more."""
    path = tmp_path / "catalog.db"
    catalog = Catalog(str(path))
    catalog.put([("/a", STAMP, record("s1"))])
    lock = apsw.Connection(str(path))
    lock.execute("BEGIN IMMEDIATE")
    catalog.put([("/b", STAMP, record("s2"))])
    catalog.drop(["/a"])
    catalog.put_snapshot("/a", STAMP, b"x")
    assert catalog.problem is not None
    assert (catalog.load().keys(), catalog.snapshot("/a")) == ({"/a"}, None)
    lock.execute("ROLLBACK")
    catalog.put([("/b", STAMP, record("s2"))])
    assert (catalog.load().keys(), catalog.problem) == ({"/a", "/b"}, None)
    catalog.close()
    lock.close()


def test_it_is_private(tmp_path: Path) -> None:
    """A105."""
    before = os.umask(0)
    try:
        Catalog(str(tmp_path / "cache" / "catalog.db")).close()
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "cache" / "catalog.db").stat().st_mode & 0o777 == 0o600
