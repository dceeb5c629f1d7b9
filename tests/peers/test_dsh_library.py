"""What our functions write into a DSH home, without a daemon, is to the real dsh as if it had written it itself."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dsh_daemon import dsh_fork, dsh_repair
from dsh_daemon.dsh_driving import Driver
from dsh_daemon.errors import DamagedHeader, DamagedRegion
from dsh_daemon.naming import dsh_project, dsh_segment
from dsh_daemon.session import Session
from tests.dsh_logs import Log, damaged
from tests.test_dsh_writing import DAMAGE, REFUSED, cut_somewhere, legacy, our_turn, put, story, timeless

from . import MockModel, dsh
from .dsh_checks import assert_of_a_piece, conversation, opened
from .dsh_peer import DshProcess, Facts, fork, session_id, write

pytestmark = pytest.mark.timeout(600)  # the first test may have to install the peers

HEADER = {"createdAt": 1_796_000_000_000, "cwd": "/tmp/demo/proj", "delegationDepth": 0}


def sound(*paths: Path | str) -> list[Facts]:
    """What dsh makes of logs that it lists, loads and resumes."""
    found = dsh().load(Path(path) for path in paths)
    for seen in found:
        assert_of_a_piece(seen)
    return found


def goes_on(home: Path, cwd: Path, path: Path) -> None:
    """A process of dsh resumes the session and has another turn in it."""
    with MockModel() as model, DshProcess(model, home, cwd, resume=session_id(path.parent.name)) as process:
        process.prompt("SAY and on")
        assert process.messages()[-1]["content"] == [{"type": "text", "text": "and on"}]


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_our_forks_are_those_that_dsh_makes(tmp_path: Path, compression: str) -> None:
    events = conversation()
    dsh().make(tmp_path, [write({"id": "one", **HEADER}, events[:9], events[9:])], compression=compression)
    (path,) = tmp_path.glob("*/one/*")
    ends = [event["seq"] for event in events if event["type"] == "turn/end"]
    pairs: list[tuple[str, Path]] = []
    session = Session.open(str(path))
    for number, boundary in enumerate([*ends, ends[1] + 2]):
        i = max(k for k, name in enumerate(session.index.ids) if int(name) <= boundary)
        made = dsh_fork.fork(session, i, f"ours ~{number}\u2028")
        pairs.append((made.path, path.parent.parent / f"theirs-{number}" / path.name))
        dsh().make(tmp_path, [fork("one", f"theirs-{number}", boundary)], compression=compression)
    for ours, theirs in zip(sound(*(a for a, _ in pairs)), sound(*(b for _, b in pairs)), strict=True):
        assert timeless(ours["stored"]["events"]) == timeless(theirs["stored"]["events"])
        assert ours["stored"]["messages"] == theirs["stored"]["messages"]
        same = ("cwd", "parentSession", "seedLength", "delegationDepth", "version")
        assert [ours["stored"]["header"][name] for name in same] == [theirs["stored"]["header"][name] for name in same]
    assert len(dsh().listed(tmp_path)) == 1 + 2 * len(pairs)


@pytest.mark.parametrize("zstd", [True, False])
def test_turns_of_ours_and_of_dsh_follow_each_other(tmp_path: Path, zstd: bool) -> None:
    home, cwd = tmp_path / "home", tmp_path / "project"
    cwd.mkdir()
    root = home / ".dsh" / "sessions"
    events = conversation()
    facts = {**HEADER, "cwd": str(cwd)}
    dsh().make(root, [write({"id": "one", **facts}, events)], compression="zstd" if zstd else "none")
    (path,) = root.glob("*/one/*")
    for number in (4, 6):
        session = Session.open(str(path))
        driver = Driver(session)
        assert driver.resume().prepared.lines == b""
        assert our_turn(session, driver) == number
        put(session, driver.end_turn(number, {"kind": "aborted"}))
        put(session, driver.rename("By us"))
        (seen,) = sound(path)
        assert seen["stored"]["events"][: len(events)] == events
        events = seen["stored"]["events"]
        if not zstd:
            return
        goes_on(home, cwd, path)


def test_dsh_writes_the_closers_that_we_write(tmp_path: Path) -> None:
    paths: list[Path] = []
    for seed in range(30):
        paths.append(cut_somewhere(random.Random(seed)).write(tmp_path / str(seed), zstd=seed % 2 == 0))
    for called in (False, True):
        log = Log("opened")
        log.events = list(opened(called=called))
        paths.append(log.write(tmp_path / f"called {called}"))
    theirs = sound(*paths)
    for path in paths:
        session = Session.open(str(path))
        put(session, Driver(session).resume().prepared)
    for ours, before in zip(sound(*paths), theirs, strict=True):
        assert timeless(ours["stored"]["events"]) == timeless(before["after"]["events"])
        closers = ours["stored"]["events"][len(before["stored"]["events"]) : -1]
        assert [event["time"] for event in closers] == [before["stored"]["events"][-1]["time"]] * len(closers)
        assert ours["written"] == []


def test_dsh_refuses_what_our_rules_refuse_and_takes_the_rest(tmp_path: Path) -> None:
    start = [
        {"type": "turn/start", "seq": 0, "time": 3, "data": {"turn": 1}},
        {**REFUSED["gap"][0], "seq": 1, "time": 3},
    ]
    soft = {"type": "x/y", "seq": 2, "time": 1, "data": 1, "ignorable": True}
    events = [event for event, _ in REFUSED.values()] + [soft, {**REFUSED["gap"][0], "seq": 2}]
    paths: list[Path] = []
    for number, event in enumerate(events):
        log = Log(f"s{number}")
        log.events = [*start, event]
        paths.append(log.write(tmp_path / str(number), packed=False))
    paths.append(legacy().write(tmp_path / "legacy"))
    answers = dsh().load(paths, resume=False)
    names = [*REFUSED, "soft", "good", "legacy"]
    taken = [name for name, seen in zip(names, answers, strict=True) if "error" not in seen["stored"]]
    assert taken == ["soft", "good", "legacy"]


@pytest.mark.parametrize("name", DAMAGE)
def test_the_repaired_copy_of_a_damaged_log_is_good_to_dsh(tmp_path: Path, name: str) -> None:
    home, cwd = tmp_path / "home", tmp_path / "project"
    cwd.mkdir()
    root = home / ".dsh" / "sessions"
    log = story()
    for event in log.events:
        if event["type"] == "agent/inbox/spliced":  # those of the story are not as dsh itself writes them
            event["data"] = {"target": "next-turn", "start": 0, "removedCount": 0, "inserted": []}
    log.header["cwd"] = str(cwd)
    folder = root / dsh_project(str(cwd)) / dsh_segment(log.header["id"])
    folder.mkdir(parents=True)
    path = folder / "session.jsonl.zstd"
    path.write_bytes(DAMAGE[name](log.zstd()))
    session = Session.open(str(path))
    assert dsh_repair.repair(session) is not None
    sound(path)
    assert dsh().listed(root) == ["session-a"]
    goes_on(home, cwd, path)


def test_random_damage_is_repaired_to_what_dsh_loads(tmp_path: Path) -> None:
    paths: list[Path] = []
    for seed in range(60):
        dice = random.Random(seed)
        path = story().write(tmp_path / str(seed), batch=4, packed=seed % 2 == 0)
        path.write_bytes(damaged(path.read_bytes(), dice)[0])
        session = Session.open(str(path))
        if session.header.format != "dsh" or dsh_repair.mended_header(session) is None:
            continue
        try:
            Driver(session).resume()
        except (DamagedRegion, DamagedHeader):
            assert dsh_repair.repair(session) is not None
        paths.append(path)
    assert len(paths) > 20
    sound(*paths)
