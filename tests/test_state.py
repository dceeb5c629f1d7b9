"""What is ours and not derived survives restarts, and never stops the daemon."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from pathlib import Path

import apsw
import pytest

from dsh_daemon.errors import Busy, Fault, StorageFull
from dsh_daemon.state import Flags, LeafMemory, State


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    state = State(str(tmp_path / "state.db"))
    memory = LeafMemory(120, "e2", "e1", ["e2", None])
    state.set_leaf("/a", memory)
    state.set_draft("/a", "unsent\n漢字")
    state.set_archived("/a", True)
    state.set_title("/b", "Named")
    state.remember("/c")
    state.close()

    again = State(str(tmp_path / "state.db"))
    assert again.leaf("/a") == memory
    assert again.draft("/a") == "unsent\n漢字"
    assert again.all_flags() == {"/a": Flags(archived=True), "/b": Flags(title="Named")}
    assert again.flags("/nowhere") == Flags()
    assert again.remembered() == ["/c"]
    again.set_leaf("/a", None)
    again.set_draft("/a", None)
    again.set_archived("/a", False)
    again.remember("/c", on=False)
    assert (again.leaf("/a"), again.draft("/a"), again.remembered()) == (None, None, [])
    again.close()


def test_what_is_known_of_a_file_moves_with_it(tmp_path: Path) -> None:
    state = State(None)
    state.set_pinned("/a", True)
    state.set_leaf("/a", LeafMemory(1, None, None, []))
    state.moved("/a", "/b")
    assert state.flags("/b").pinned
    assert state.leaf("/b") is not None
    assert not state.flags("/a").pinned


def test_a_corrupt_file_is_set_aside_and_reported(tmp_path: Path) -> None:
    """A138: garbage in our own state costs what was in it, once."""
    path = tmp_path / "state.db"
    garbage = os.urandom(5_000)
    path.write_bytes(garbage)
    state = State(str(path))
    assert state.problem is not None
    assert "state.db.bad" in state.problem
    state.set_draft("/a", "x")
    state.close()
    assert (tmp_path / "state.db.bad").read_bytes() == garbage
    again = State(str(path))
    assert again.problem is None
    assert again.draft("/a") == "x"
    again.close()


def test_corruption_that_shows_late_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    state = State(str(path))
    for n in range(500):
        state.set_draft(f"/{n}", "x" * 200)
    state.close()
    data = bytearray(path.read_bytes())
    data[8192:] = os.urandom(len(data) - 8192)
    path.write_bytes(data)
    state = State(str(path))
    state.set_draft("/a", "y")
    assert state.draft("/a") == "y"
    assert state.problem is not None
    state.close()


def test_a_file_of_a_newer_version_is_kept_and_not_read(tmp_path: Path) -> None:
    """A144."""
    path = tmp_path / "state.db"
    State(str(path)).close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()
    state = State(str(path))
    assert state.problem is not None
    state.set_pinned("/a", True)
    assert (tmp_path / "state.db.bad").exists()
    state.close()


def test_a_folder_that_cannot_be_written_leaves_it_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state = State(str(tmp_path / "file" / "state.db"))
    assert state.problem is not None
    state.set_pinned("/a", True)
    assert state.flags("/a").pinned


def test_a_writer_that_waits_holds_up_no_reader(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    state = State(str(path))
    state.set_draft("/a", "x")
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    failed: list[Fault] = []

    def write() -> None:
        try:
            state.set_draft("/a", "y")
        except Fault as fault:
            failed.append(fault)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    time.sleep(0.1)
    start = time.monotonic()
    assert state.draft("/a") == "x"
    assert time.monotonic() - start < 0.5
    for writer in writers:
        writer.join()
    assert [type(fault) for fault in failed] == [Busy, Busy]
    other.execute("ROLLBACK")
    state.set_draft("/a", "z")
    assert state.draft("/a") == "z"
    state.close()
    other.close()


def test_what_the_disk_refuses_is_a_fault_of_the_protocol(tmp_path: Path) -> None:
    state = State(str(tmp_path / "state.db"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    try:
        with pytest.raises(StorageFull):
            state.set_draft("/a", "x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    state.set_draft("/a", "x")
    assert state.draft("/a") == "x"
    state.close()


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    """A105."""
    before = os.umask(0)
    try:
        state = State(str(tmp_path / "deep" / "er" / "state.db"))
        state.set_pinned("/a", True)
        modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "deep").rglob("*")}
    finally:
        os.umask(before)
        state.close()
    assert modes.pop("er") == 0o700
    assert set(modes.values()) == {0o600}, modes
    assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o700


def test_threads_share_it(tmp_path: Path) -> None:
    state = State(str(tmp_path / "state.db"))

    def work(n: int) -> None:
        for k in range(20):
            state.set_draft(f"/{n}", str(k))
            assert state.draft(f"/{n}") == str(k)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [state.draft(f"/{n}") for n in range(4)] == ["19"] * 4
    state.close()
