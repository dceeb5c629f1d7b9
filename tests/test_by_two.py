"""A long log scanned by two processes: the same index as by one, and nothing left behind."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon.log import by_two, pieces, snapshot
from dsh_daemon.log.index import Index
from dsh_daemon.log.journal import FileJournal, MemoryJournal
from dsh_daemon.log.scan import scan
from tests.damage import CLEAN, DAMAGES
from tests.indexes import trees
from tests.support import assistant, header, line, user
from tests.test_scan import log, scanned, state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def same(found: Index, whole: Index) -> None:
    """Both are one index; sums of costs may have been rounded at another place."""
    a, b = state(found), state(whole)
    assert a["facts"].pop("cost") == pytest.approx(b["facts"].pop("cost"))
    assert a == b


def halved(data: bytes, split: int) -> tuple[Index, bool]:
    """Index of `data` made of two halves, and whether they could be joined."""
    source = MemoryJournal(data)
    stop = data.rfind(b"\n") + 1
    first = Index()
    scan(first, source, split)
    second = snapshot.load(pieces.piece(source, split, stop), source, len(data))
    assert second is not None
    before = state(first)
    done = pieces.join(first, second)
    if not done:
        assert state(first) == before
    scan(first, source, len(data))
    return first, done


def line_starts(data: bytes) -> list[int]:
    """All places where a log may be split: behind a newline, but not behind the last one."""
    return [i + 1 for i in range(len(data)) if data[i : i + 1] == b"\n"][:-1]


@pytest.mark.parametrize("damage", [d for d in DAMAGES if not d.heavy], ids=lambda d: d.name)
def test_a_damaged_log_reads_the_same_in_halves(damage):
    data = damage.apply(CLEAN)
    whole = scanned(data)
    for split in line_starts(data):
        same(halved(data, split)[0], whole)


def test_two_damages_read_the_same_in_halves():
    rng = random.Random(1)
    for first, second in rng.sample([(a, b) for a in DAMAGES for b in DAMAGES if not a.heavy and not b.heavy], 150):
        try:
            data = second.apply(first.apply(CLEAN))
        except (ValueError, IndexError, TypeError):
            continue  # the second needs a line that the first has destroyed
        for split in rng.sample(starts := line_starts(data), min(3, len(starts))):
            same(halved(data, split)[0], scanned(data))


def test_a_clean_log_is_joined_wherever_it_is_split():
    for split in line_starts(CLEAN):
        assert halved(CLEAN, split)[1]


@settings(max_examples=100, deadline=None)
@given(trees(14, shuffled=True), st.data())
def test_any_log_reads_the_same_in_halves(entries: list[dict[str, Any]], data: st.DataObject):
    whole = log(entries)
    starts = line_starts(whole)
    if not starts:
        return
    index, done = halved(whole, data.draw(st.sampled_from(starts)))
    same(index, scanned(whole))
    assert done


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 9), st.booleans()), max_size=14), st.data())
def test_knots_repeats_and_orphans_read_the_same_in_halves(links: list[tuple[int, int, bool]], data: st.DataObject):
    """Ids and parents from a small pool: cycles, self-parents, duplicates and forward parents are all frequent."""
    made = [
        user(f"e{a}", None if b < 0 else f"e{b}", "same" if one else f"text {k}") for k, (a, b, one) in enumerate(links)
    ]
    if data.draw(st.booleans()):  # no id twice, so that halves can be joined
        made = list({entry["id"]: entry for entry in made}.values())
    whole = log(made)
    starts = line_starts(whole)
    if starts:
        same(halved(whole, data.draw(st.sampled_from(starts)))[0], scanned(whole))


def test_a_cycle_that_runs_through_both_halves_is_cut_once():
    data = log([user("a", "d", "1"), user("b", "a", "2"), user("c", "b", "3"), user("d", "c", "4")])
    for split in line_starts(data):
        index, done = halved(data, split)
        assert done
        assert index.cuts == {0: "d"}
        same(index, scanned(data))


def test_labels_and_names_of_the_second_half_count():
    made = [
        user("a", None, "1"),
        {"type": "session_info", "id": "n1", "parentId": "a", "timestamp": "2026-01-01T00:00:00.000Z", "name": "one"},
        {"type": "label", "id": "l1", "parentId": "n1", "targetId": "b", "label": "early"},
        user("b", "l1", "2"),
        {"type": "label", "id": "l2", "parentId": "b", "targetId": "a", "label": "late"},
        {"type": "session_info", "id": "n2", "parentId": "l2", "timestamp": "2026-01-01T00:00:00.000Z", "name": " "},
        {"type": "label", "id": "l3", "parentId": "n2", "targetId": "b", "label": ""},
        {"type": "from_the_future", "id": "f", "parentId": "l3"},
        {"type": "model_change", "id": "m", "parentId": "f", "model": "some/model"},
    ]
    data = log(made)
    for split in line_starts(data):
        index, done = halved(data, split)
        assert done
        same(index, scanned(data))


@pytest.mark.parametrize("version", [1, 2])
def test_a_log_of_an_older_version_reads_the_same(version: int):
    data = log([user("a", None, "1"), assistant("b", "a", "2"), user("c", "b", "3")], version=version)
    for split in line_starts(data):
        index, done = halved(data, split)
        assert done == (version > 1)
        same(index, scanned(data))


# With a real helper


@pytest.fixture
def long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileJournal]:
    """A log of a few MB, for which a helper is started all the same."""
    monkeypatch.setattr(by_two, "WORTH_IT", 1 << 20)
    monkeypatch.setattr(by_two, "PIECE", 1 << 16)
    monkeypatch.setattr(by_two, "_processors", lambda: 2)
    path = tmp_path / "long.jsonl"
    body = "word " * 400
    made = [line(header())]
    made += [line(user(f"{k:08x}", f"{k - 1:08x}" if k else None, f"{k} {body}")) for k in range(2_000)]
    path.write_bytes(b"".join(made) + b'{"type":"message"')
    journal = FileJournal(str(path))
    yield journal
    journal.close()


def both(journal: FileJournal) -> Index:
    index = Index()
    by_two.scan_by_two(index, journal, journal.size())
    return index


def by_one(journal: FileJournal) -> Index:
    index = Index()
    scan(index, journal, journal.size())
    return index


def slow_down(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the helper get at least as far as we do; where our own scans ended."""
    ends: list[int] = []

    def slow(index: Index, source: FileJournal, size: int, cancelled: Any) -> None:
        time.sleep(0.05)
        scan(index, source, size, cancelled)
        ends.append(size)

    monkeypatch.setattr(by_two, "scan", slow)
    return ends


def test_a_helper_gives_the_index_that_one_scan_gives(
    long_log: FileJournal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    slowly = slow_down(monkeypatch)
    joined: list[bool] = []
    join = pieces.join
    monkeypatch.setattr(by_two, "join", lambda a, b: joined.append(join(a, b)) or joined[-1])
    same(both(long_log), by_one(long_log))
    assert len(joined) > 5
    assert all(joined)
    assert slowly
    assert not caplog.records
    assert not psutil.Process().children()


@pytest.mark.parametrize("program", ["/does/not/exist", "/bin/false"])
def test_without_a_helper_the_log_is_scanned_from_front_to_back(
    program: str, long_log: FileJournal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(sys, "executable", program)
    same(both(long_log), by_one(long_log))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_nobody_waits_for_a_helper_that_hangs(long_log: FileJournal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 100\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    started = time.monotonic()
    same(both(long_log), by_one(long_log))
    assert time.monotonic() - started < 20
    assert not psutil.Process().children()


def test_a_short_log_needs_no_helper(long_log: FileJournal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(by_two, "WORTH_IT", 32 << 20)
    monkeypatch.setattr(subprocess, "Popen", None)
    same(both(long_log), by_one(long_log))


def test_a_cancelled_scan_ends_its_helper(long_log: FileJournal):
    index = Index()
    by_two.scan_by_two(index, long_log, long_log.size(), lambda: True)
    assert index.end < long_log.size()
    assert not psutil.Process().children()


def test_a_helper_has_none_of_our_files_but_the_log(long_log: FileJournal, tmp_path: Path):
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)  # as a careless library leaves it
        source = FileJournal(str(tmp_path / "long.jsonl"))
        with tempfile.TemporaryFile() as output, by_two._helper(source, [0, 0, source.size()], output) as helper:
            files = {os.readlink(f"/proc/{helper.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{helper.pid}/fd")}
        source.close()
    assert str(tmp_path / "lock") not in files
    assert not any(name.startswith("socket:") for name in files)


def test_a_helper_does_not_outlive_whoever_started_it(tmp_path: Path):
    path = tmp_path / "huge.jsonl"
    rows = line(user("a", None, "x")) * 20_000  # each compared with the first one: minutes of work
    with path.open("wb") as file:
        file.write(line(header()))
        for _ in range(40):
            file.write(rows)
    code = f"""
import tempfile
from dsh_daemon.log import by_two
from dsh_daemon.log.journal import FileJournal
source = FileJournal({str(path)!r})
places = [0, {len(line(header()))}, source.size()]
helper = by_two._helper(source, places, tempfile.TemporaryFile())
print(helper.pid, flush=True)
helper.wait()
"""
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    helper = psutil.Process(int(starter.stdout.readline()))
    until = time.monotonic() + 20
    while helper.cpu_times().user < 0.3:  # at work
        assert time.monotonic() < until
        time.sleep(0.02)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    try:
        helper.wait(2)
    except psutil.TimeoutExpired:
        helper.kill()
        raise
