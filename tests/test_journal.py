"""The file under a log: whole lines at its end, whoever else writes, and nothing else ever."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import resource
import signal
import stat
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from dsh_daemon.errors import AlreadyExists, Busy, Fault, ReadOnly, SessionGone, StorageFull, storage_fault
from dsh_daemon.log import journal
from dsh_daemon.log.journal import FileJournal, MemoryJournal, Outdated, publish, replace

from .running import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = b'{"type":"session"}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "session.jsonl"
    path.write_bytes(HEADER)
    return path


@pytest.fixture
def file(path: Path) -> FileJournal:
    return FileJournal(str(path))


def append(file: FileJournal, data: bytes, *, unterminated: bool = False) -> journal.Written:
    return file.append(data, file.size(), unterminated=unterminated)


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def in_child(work: Callable[[], Any]) -> None:
    """Run `work` in a process of its own, which may limit itself; its failure is ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, of which the child uses none
        pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException as exc:  # noqa: BLE001
            os.write(2, f"{type(exc).__name__}: {exc}\n".encode())
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def script(code: str, *args: str) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[1]
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], cwd=root, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


def test_an_append_goes_to_the_end_and_says_where(file: FileJournal, path: Path):
    assert append(file, b"one\n") == (len(HEADER), 4)
    assert append(file, b"two\n") == (len(HEADER) + 4, 4)
    assert path.read_bytes() == HEADER + b"one\ntwo\n"
    assert file.read(len(HEADER), 100) == b"one\ntwo\n"
    assert file.read(10_000, 10) == b""


def test_a001_an_append_after_a_torn_tail_starts_a_new_line(file: FileJournal, path: Path):
    path.write_bytes(HEADER + b'{"torn')
    age(path, 3)
    assert append(file, b"{}\n", unterminated=True) == (len(HEADER) + 6, 4)
    assert path.read_bytes() == HEADER + b'{"torn\n{}\n'


def test_a_tail_that_is_still_being_written_is_busy_and_untouched(file: FileJournal, path: Path):
    path.write_bytes(HEADER + b'{"torn')
    with pytest.raises(Busy) as refused:
        append(file, b"{}\n", unterminated=True)
    assert 0 < refused.value.data["retryAfterMs"] <= 2_001
    assert path.read_bytes() == HEADER + b'{"torn'


def test_a_file_that_others_changed_is_outdated_and_nothing_is_written(file: FileJournal, path: Path, tmp_path: Path):
    size = file.size()
    path.write_bytes(HEADER + b"more\n")
    assert file.check(size) == "grown"
    with pytest.raises(Outdated):
        file.append(b"{}\n", size, unterminated=False)
    path.write_bytes(b"x")
    assert file.check(size) == "shrunk"
    with pytest.raises(Outdated):
        file.append(b"{}\n", size, unterminated=False)
    other = tmp_path / "other"
    other.write_bytes(HEADER)
    other.rename(path)
    assert file.check(size) == "replaced"
    with pytest.raises(Outdated):
        file.append(b"{}\n", size, unterminated=False)
    assert path.read_bytes() == HEADER


@pytest.mark.parametrize("written_before", [False, True])
def test_a006_a_file_that_is_gone_is_not_made_again(file: FileJournal, path: Path, *, written_before: bool):
    if written_before:
        append(file, b"one\n")
    size = file.size()
    path.rename(path.with_suffix(".moved"))
    assert file.check(size) == "gone"
    with pytest.raises(Outdated):
        file.append(b"{}\n", size, unterminated=False)
    assert not path.exists()
    assert file.read(0, 4) == HEADER[:4]


def test_a_file_whose_folder_is_gone_is_gone(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "s.jsonl").write_bytes(HEADER)
    file = FileJournal(str(folder / "s.jsonl"))
    folder.rename(tmp_path / "elsewhere")
    assert file.check(file.size()) == "gone"
    folder.write_bytes(b"a file now")
    assert file.check(file.size()) == "gone"


def test_opening_what_is_not_there_says_so(tmp_path: Path):
    with pytest.raises(SessionGone):
        FileJournal(str(tmp_path / "no"))


def test_ready_is_asked_under_the_lock_and_may_refuse(file: FileJournal, path: Path):
    def refuse() -> None:
        other = os.open(path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        raise Busy("held", retryAfterMs=1)

    with pytest.raises(Busy):
        file.append(b"{}\n", file.size(), unterminated=False, ready=refuse)
    assert path.read_bytes() == HEADER
    append(file, b"{}\n")


def test_another_programs_lock_is_waited_for_and_then_busy(
    file: FileJournal, path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal, "LOCK_WAIT", 0.1)
    other = os.open(path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(Busy):
        append(file, b"{}\n")
    os.close(other)
    append(file, b"{}\n")


HAMMER = """
import select, sys
path, name, count, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
for k in range(count):
    if select.select([sys.stdin], [], [], k % 5 * pause)[0]:  # closed
        break
    with open(path, "ab", buffering=0) as file:
        file.write(b'{"by":"%s","k":%d,"fill":"%s"}\\n' % (name.encode(), k, b"x" * (k * 37 % 3000)))
"""


def test_nothing_is_lost_among_writers_that_know_nothing_of_each_other(file: FileJournal, path: Path):
    """Two processes append as pi does, without any lock, while we append."""
    count = 400
    others = [script(HAMMER, str(path), name, str(count), "0") for name in ("a", "b")]
    ours = 0
    while ours < count or any(other.poll() is None for other in others):
        size = file.size()
        line = b'{"by":"us","k":%d}\n' % ours
        try:
            offset, length = file.append(line, size, unterminated=False)
        except Outdated:
            continue
        assert file.read(offset, length) == line
        ours += 1
        if ours >= count:
            time.sleep(0.01)
    for other in others:
        assert other.wait() == 0
        other.communicate()
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    seen: dict[bytes, list[int]] = {b"a": [], b"b": [], b"us": []}
    for line in lines[1:]:
        assert line.startswith(b'{"by":"')
        assert line.endswith(b"}")
        seen[line.split(b'"')[3]].append(int(line.split(b'"k":')[1].split(b",")[0].rstrip(b"}")))
    assert seen == {b"a": list(range(count)), b"b": list(range(count)), b"us": list(range(ours))}


def test_a142_a_full_disk_leaves_the_file_as_it_was(path: Path):
    def work() -> None:
        file = FileJournal(str(path))
        append(file, b"x" * 3_000 + b"\n")
        before = hashlib.sha256(path.read_bytes()).digest()
        soft = path.stat().st_size + 100
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
        for data in (b"y" * 5_000 + b"\n", b"z" * 101 + b"\n"):  # some of it fits
            with pytest.raises(StorageFull):
                append(file, data)
            assert hashlib.sha256(path.read_bytes()).digest() == before
        append(file, b"a" * 99 + b"\n")
        with pytest.raises(StorageFull):  # nothing of it fits
            append(file, b"b\n")
        with pytest.raises(StorageFull):
            publish(str(path.with_name("new.jsonl")), b"n" * (soft + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        append(file, b"c" * 9_000 + b"\n")

    in_child(work)
    assert path.stat().st_size == len(HEADER) + 3_001 + 100 + 9_001
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a039_no_right_to_write_is_read_only_and_not_busy(code: int):
    assert storage_fault(OSError(code, os.strerror(code)), "/x").kind == "readOnly"


def test_a039_a_file_of_others_can_be_read_and_not_written():
    with TemporaryDirectory() as folder:
        path = os.path.join(folder, "session.jsonl")
        Path(path).write_bytes(HEADER)
        os.chmod(path, 0o444)
        os.chmod(folder, 0o555)

        def work() -> None:
            if os.geteuid() == 0:
                os.setuid(65_534)
            file = FileJournal(path)
            assert file.read(0, 100) == HEADER
            for attempt in (
                lambda: append(file, b"{}\n"),
                lambda: publish(f"{folder}/new.jsonl", b"x"),
                lambda: replace(path, b"x", f"{folder}/kept", len(HEADER)),
            ):
                with pytest.raises(ReadOnly):
                    attempt()

        in_child(work)
        assert os.listdir(folder) == ["session.jsonl"]


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077, 0o777])
def test_a105_what_we_create_is_for_its_owner_only(tmp_path: Path, umask: int):
    new = tmp_path / "a" / "b" / "new.jsonl"
    before = os.umask(umask)
    try:
        publish(str(new), b"header\n", iter([b"more\n"]))
        replace(str(new), b"other\n", str(new) + ".bak", 12)
    finally:
        os.umask(before)
    assert new.read_bytes() == b"other\n"
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "a", *(tmp_path / "a").rglob("*"))}
    assert modes == {"a": 0o700, "b": 0o700, "new.jsonl": 0o600, "new.jsonl.bak": 0o600}


def test_publishing_never_replaces_a_file(path: Path):
    with pytest.raises(AlreadyExists):
        publish(str(path), b"other")
    assert path.read_bytes() == HEADER
    assert list(path.parent.iterdir()) == [path]


def test_publishing_without_hard_links_never_replaces_a_file_either(path: Path, monkeypatch: pytest.MonkeyPatch):
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(AlreadyExists):
        publish(str(path), b"other")
    publish(str(path.with_name("new.jsonl")), b"new")
    replace(str(path), b"other", str(path) + ".bak", len(HEADER))
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == {
        "session.jsonl": b"other", "session.jsonl.bak": HEADER, "new.jsonl": b"new",
    }  # fmt: skip


def test_what_fails_while_it_is_published_leaves_nothing_behind(tmp_path: Path):
    def pieces():
        yield b"one"
        raise Busy("the source is gone", retryAfterMs=1)

    with pytest.raises(Busy):
        publish(str(tmp_path / "new.jsonl"), b"header\n", pieces())
    assert list(tmp_path.iterdir()) == []


def test_names_of_any_length_that_the_system_takes_can_be_published(tmp_path: Path):
    for name in ("한" * 80 + ".jsonl", "x" * 249 + ".jsonl"):
        publish(str(tmp_path / name), b"x")
    with pytest.raises(Fault):
        publish(str(tmp_path / ("x" * 260)), b"x")
    assert len(list(tmp_path.iterdir())) == 2


def test_replacing_keeps_the_original_and_its_mode(path: Path):
    path.chmod(0o644)
    inode = path.stat().st_ino
    replace(str(path), b"new\n", str(path) + ".bak", len(HEADER))
    kept = path.with_name(path.name + ".bak")
    assert (path.read_bytes(), kept.read_bytes(), kept.stat().st_ino) == (b"new\n", HEADER, inode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_replacing_what_others_changed_changes_nothing(path: Path):
    path.write_bytes(HEADER + b"more\n")
    with pytest.raises(Outdated):
        replace(str(path), b"new\n", str(path) + ".bak", len(HEADER))
    kept = path.with_name(path.name + ".bak")
    kept.write_bytes(b"mine")
    with pytest.raises(AlreadyExists):
        replace(str(path), b"new\n", str(kept), path.stat().st_size)
    assert (path.read_bytes(), kept.read_bytes()) == (HEADER + b"more\n", b"mine")
    assert len(list(path.parent.iterdir())) == 2


def test_no_line_is_lost_while_the_file_is_replaced(path: Path):
    """Whoever had the old file open writes into the original, which is kept."""
    other = script(HAMMER, str(path), "a", "1000000000", "0.002")
    round_ = 0
    until = time.monotonic() + PATIENCE
    while round_ < 20 and other.poll() is None and time.monotonic() < until:
        with suppress(Outdated):
            replace(str(path), HEADER, f"{path}.{round_}.bak", path.stat().st_size)
            round_ += 1
    other.communicate()
    assert (round_, other.returncode) == (20, 0)
    lines: list[bytes] = []
    for each in path.parent.iterdir():
        lines += each.read_bytes().split(b"\n")
    written = {line for line in lines if line.startswith(b'{"by"')}
    assert written == {b'{"by":"a","k":%d,"fill":"%s"}' % (k, b"x" * (k * 37 % 3000)) for k in range(len(written))}


def test_a_line_that_comes_in_two_pieces_while_the_file_is_replaced_is_whole_in_the_new_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of a write that is under way, what is read may be a part."""
    other = path.open("ab", buffering=0)
    rename, rest = os.rename, [b"lf\n"]

    def while_it_is_renamed(old: str, new: str) -> None:
        other.write(b"one\nha")
        rename(old, new)

    monkeypatch.setattr(os, "rename", while_it_is_renamed)
    monkeypatch.setattr(time, "sleep", lambda _: rest and other.write(rest.pop()))
    with other:
        replace(str(path), b"new\n", f"{path}.bak", len(HEADER))
    assert path.read_bytes() == b"new\none\nhalf\n"


def test_only_the_same_file_is_written_inside(file: FileJournal, path: Path, tmp_path: Path):
    file.overwrite(2, b"TYPE")
    assert path.read_bytes() == b'{"TYPE' + HEADER[6:]
    other = tmp_path / "other"
    other.write_bytes(HEADER)
    other.rename(path)
    with pytest.raises(Outdated):
        file.overwrite(2, b"TYPE")
    assert path.read_bytes() == HEADER


WRITER = """
import sys
from dsh_daemon.session import Session
session = Session.open(sys.argv[1])
for k in range(100_000):
    id_ = f"{sys.argv[2]}{k:06d}"
    session.append([{"type": "custom", "id": id_, "customType": "test", "data": "x" * (k * 331 % 5000)}])
    print(id_, flush=True)
"""


def test_every_acknowledged_append_survives_kill_9(tmp_path: Path):
    from dsh_daemon.session import Session

    path = tmp_path / "s.jsonl"
    path.write_bytes(
        b'{"type":"session","version":3,"id":"s","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/","generator":"dsh-daemon/1"}\n'
    )
    acknowledged: list[str] = []
    for round_, pause in enumerate((0.05, 0.11, 0.02, 0.2, 0.08)):
        child = script(WRITER, str(path), f"r{round_}x")
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(pause)
        child.kill()
        acknowledged += (first + child.stdout.read()).split()
        child.communicate()
        age(path, 5)  # a torn tail counts as abandoned
    index = Session.open(str(path)).index
    assert [id_ for id_ in index.ids if id_ in set(acknowledged)] == acknowledged
    assert len(index) <= len(acknowledged) + 5
    assert {d["code"] for d in index.diagnostics} <= {"unreadable_line", "torn_tail"}


def test_a_log_in_memory_behaves_like_a_file():
    memory = MemoryJournal(HEADER)
    assert memory.append(b"one\n", len(HEADER), unterminated=False) == (len(HEADER), 4)
    assert memory.check(len(HEADER)) == "grown"
    assert (memory.size(), memory.read(len(HEADER), 99), memory.path) == (len(HEADER) + 4, b"one\n", None)
    buffer = bytearray(9)
    assert memory.readinto(len(HEADER), memoryview(buffer)) == 4
    memory.overwrite(0, b"#")
    assert memory.read(0, 2) == b'#"'
