"""omp's lock on a session file: taken, given back, never left behind."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from dsh_daemon.errors import Busy, StorageFull
from dsh_daemon.log.formats.omp_lock import omp_lock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.jsonl"


def lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def test_a_lock_names_us_and_goes_with_us(path: Path) -> None:
    with omp_lock(str(path)):
        assert lock_of(path).read_text().startswith(f"{os.getpid()}:")
    assert not lock_of(path).exists()


def _fill_up(path: str, room: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    with pytest.raises(StorageFull), omp_lock(path):
        pass


@pytest.mark.parametrize("room", [0, 3])
def test_a_full_disk_leaves_no_lock_behind(path: Path, room: int) -> None:
    child = multiprocessing.get_context("fork").Process(target=_fill_up, args=(str(path), room))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert not lock_of(path).exists()
    with omp_lock(str(path)):
        pass


def test_a_lock_of_a_crashed_process_that_had_our_number_is_stale(path: Path) -> None:
    lock_of(path).write_text(f"{os.getpid()}:1\n")
    with omp_lock(str(path)):
        assert lock_of(path).read_text() != f"{os.getpid()}:1\n"


def test_a_lock_of_a_living_process_is_busy(path: Path) -> None:
    lock_of(path).write_text(f"{os.getppid()}:1\n")
    with pytest.raises(Busy), omp_lock(str(path)):
        pass
    assert lock_of(path).exists()


def test_threads_of_one_process_never_hold_it_together(path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(20):
            with omp_lock(str(path)):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (80, 1)
    assert not lock_of(path).exists()
