"""What is written to dsh logs: the rules of dsh, numbers and closers, frames, forks, repaired copies."""

from __future__ import annotations

import json
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from dsh_daemon import dsh_fork, dsh_repair
from dsh_daemon.dsh_driving import Driver
from dsh_daemon.errors import (
    AlreadyExists,
    BoundaryInTurn,
    DamagedHeader,
    DamagedRegion,
    Fault,
    InvalidEntry,
    NoOpenTurn,
    NotSupportedByFormat,
    StepOpen,
    UnsupportedVersion,
)
from dsh_daemon.log.formats import dsh, dsh_writing as writing
from dsh_daemon.log.formats.dsh_ledger import Broken, Ledger
from dsh_daemon.log.index import NONE
from dsh_daemon.log.journal import Outdated
from dsh_daemon.naming import dsh_project, dsh_segment
from dsh_daemon.session import Prepared, Session

from .dsh_logs import ANSWERED_BY, PROJECT, Event, Log, damaged, dump, frame, story

CONFIG = {"provider": "deepseek-official", "model": "deepseek-v4-flash"}
CAUSE: Any = {"method": "test", "client": "test"}


def opened(root: Path, log: Log, **how: Any) -> Session:
    return Session.open(str(log.write(root, **how)))


def text_of(path: str | Path) -> bytes:
    data = Path(path).read_bytes()
    return data if not str(path).endswith(".zstd") else unpacked(data)


def unpacked(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()


def frames_of(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    while data:
        reader = zstandard.ZstdDecompressor().decompressobj()
        found.append(reader.decompress(data))
        data = reader.unused_data
    return found


def events_in(path: str | Path) -> list[Event]:
    records = [json.loads(line) for line in text_of(path).split(b"\n")[1:-1]]
    return [event for record in records for event in dsh.expand(record)]


def ledger_of(path: str | Path) -> Ledger:
    """What dsh makes of a log; fails where dsh would refuse it."""
    header, *lines = text_of(path).split(b"\n")[:-1]
    assert writing.header_fault(json.loads(header)) is None
    ledger = Ledger()
    for line in lines:
        ledger.take(orjson.loads(line))
    return ledger


def put(session: Session, prepared: Prepared) -> None:
    if prepared.lines:
        session.take_written(*session.write(prepared.lines), CAUSE)


def timeless(events: list[Event]) -> list[Event]:
    return [{name: value for name, value in event.items() if name != "time"} for event in events]


# Rules


def test_the_rules_take_what_dsh_wrote() -> None:
    for packed in (False, True):
        log = story()
        ledger = Ledger()
        for line in log.lines(packed=packed):
            ledger.take(orjson.loads(line))
        assert ledger.next == len(log.events)
        assert (ledger.turn, ledger.open, ledger.step) == (4, False, 0)


FAILURE = {"message": "m", "code": "c"}
LEGACY: list[Event] = [
    {"type": "user/message", "data": {"content": [], "source": {"kind": "user"}}, "surfaceOp": "append"},
    {"type": "steering/message", "data": {"turn": 1, "content": [], "source": {"kind": "user"}}, "surfaceOp": "append"},
    {"type": "assistant/message", "data": {"content": [], "provenance": ANSWERED_BY}, "surfaceOp": "append"},
    {"type": "tool/result", "data": {"callId": "c", "content": [], "isError": False}, "surfaceOp": "append"},
    {"type": "turn/start", "data": {"turn": 1, "trigger": {"kind": "user"}}},
    {"type": "turn/end", "data": {"turn": 1, "reason": {"kind": "aborted"}}},
    {"type": "turn/end", "data": {"turn": 1, "reason": {"kind": "error", "step": 1, "message": "m", "code": "c"}}},
    {"type": "turn/end", "data": {"turn": 1, "reason": {"kind": "error", "step": 1, "failure": FAILURE}}},
]  # fmt: skip


def legacy() -> Log:
    log = Log()
    log.events = [{**event, "seq": n, "time": 5} for n, event in enumerate(LEGACY)]
    return log


def test_what_earlier_versions_wrote_is_taken_and_not_written(tmp_path: Path) -> None:
    session, driver = driven(tmp_path, legacy())
    assert driver.resume().repaired == []
    put(session, driver.start_turn("x").prepared)
    put(session, driver.start_step(2).prepared)
    for event in LEGACY:
        with pytest.raises(InvalidEntry):
            driver.append([event])


def user(**changes: Any) -> Event:
    data = {"content": [], "source": {"kind": "user"}, "role": "user", "id": "m"}
    return {"type": "user/message", "seq": 2, "time": 5, "data": data, "surfaceOp": "append", **changes}


def answer(**message: Any) -> Event:
    said = {"role": "assistant", "content": [], "source": ANSWERED_BY, "id": "a", **message}
    return {"type": "assistant/message", "seq": 2, "time": 5, "data": {"message": said}, "surfaceOp": "append"}


def result(block: Any, call: str = "c") -> Event:
    said = {"role": "user", "content": block, "source": {"kind": "tool", "callId": call}, "id": "r"}
    return {"type": "tool/result", "seq": 2, "time": 5, "data": {"message": said}, "surfaceOp": "append"}


def requested(config: Any, reason: str = "initial", **header: Any) -> Event:
    data = {"header": {"config": config, **header}, "reason": reason}
    return {"type": "request/header", "seq": 2, "time": 5, "data": data}


ENDED: Event = {"turn": 1, "reason": {"kind": "completed"}}
MARK: Event = {"type": "turn/end", "seq": 2, "time": 1, "data": ENDED}
BLOCK = {"type": "tool-result", "toolCallId": "c", "content": [], "isError": False}
REFUSED: dict[str, tuple[Event, str]] = {
    "gap": (user(seq=3), "seq"),
    "regression": (user(seq=1), "seq"),
    "field of ours": (user(id="x"), "id"),
    "fraction of time": (user(time=1.5), "time"),
    "no data": ({"type": "todo/write", "seq": 2, "time": 1}, "data"),
    "ignorable false": ({"type": "x/y", "seq": 2, "time": 1, "data": 1, "ignorable": False}, "ignorable"),
    "unknown": ({"type": "x/y", "seq": 2, "time": 1, "data": 1}, "type"),
    "retired": ({"type": "mode/set", "seq": 2, "time": 1, "data": 1}, "type"),
    "mark on the surface": ({**MARK, "surfaceOp": "append"}, "surfaceOp"),
    "mark that cites": ({**MARK, "sourceEventSeqs": [1]}, "sourceEventSeqs"),
    "message beside the surface": ({**user(), "surfaceOp": None}, "surfaceOp"),
    "replaces what is not shown": (user(surfaceOp={"op": "replace", "start": 0, "end": 0}), "surfaceOp"),
    "replaces and does not cite": (user(surfaceOp={"op": "replace", "start": 1, "end": 1}), "sourceEventSeqs"),
    "cites the future": (user(sourceEventSeqs=[2]), "sourceEventSeqs"),
    "cites twice": (user(sourceEventSeqs=[1, 1]), "sourceEventSeqs"),
    "cites nothing": (user(sourceEventSeqs=[]), "sourceEventSeqs"),
    "role": (answer(role="user"), "data.message.role"),
    "source": (answer(source={"kind": "model", "provider": "p"}), "data.message.source"),
    "content": (answer(content="x"), "data.message.content"),
    "two results": (result([BLOCK, BLOCK]), "data.message.content"),
    "no content": (result([{**BLOCK, "content": None}]), "data.message.content"),
    "another call": (result([BLOCK], "d"), "data.message.content"),
    "no reason": ({**MARK, "data": {"turn": 1}}, "data"),
    "end of no turn": ({**MARK, "data": {**ENDED, "turn": 0}}, "data"),
    "reason with more": ({**MARK, "data": {"turn": 1, "reason": {"kind": "completed", "by": "us"}}}, "data.reason"),
    "error without one": ({**MARK, "data": {"turn": 1, "reason": {"kind": "error"}}}, "data.reason"),
    "trigger": ({**MARK, "type": "turn/start", "data": {"turn": 1, "trigger": 1}}, "data.trigger"),
    "message without id": (answer(id=""), "data.message.id"),
    "config": (requested({"provider": "p"}), "header.config.model"),
    "reason": (requested(CONFIG, "fallback"), "reason"),
    "effort": (requested({**CONFIG, "reasoningEffort": 3}), "header.config.reasoningEffort"),
    "defaults": (requested(CONFIG, adapterDefaults={"maxTokens": True}), "header.adapterDefaults"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_the_rules_refuse_what_dsh_refuses_and_know_no_more_afterwards(name: str) -> None:
    event, field = REFUSED[name]
    ledger = Ledger()
    ledger.take({"type": "turn/start", "seq": 0, "time": 3, "data": {"turn": 1}})
    ledger.take(user(seq=1))
    before = ledger.copy()
    with pytest.raises(Broken) as broken:
        ledger.take(event)
    assert broken.value.field == field
    assert ledger == before
    ledger.take(user())


ROW = {"turn": 1, "step": 1, "index": 0, "dt": [1], "texts": ["a", "b"]}


@pytest.mark.parametrize("data", [{**ROW, "dt": []}, {**ROW, "texts": [], "dt": []}, {**ROW, "id": "x"}, {}, None])
def test_a_row_that_does_not_add_up_is_refused(data: Any) -> None:
    ledger = Ledger()
    with pytest.raises(Broken):
        ledger.take({"type": "text-chunks", "seq0": 0, "time0": 1, "data": data})
    ledger.take({"type": "text-chunks", "seq0": 0, "time0": 1, "data": ROW})
    assert (ledger.next, ledger.time) == (2, 2)


def test_a_tool_result_is_replaced_by_one_that_says_something_else_and_is_the_same_else() -> None:
    ledger = Ledger()
    ledger.take({"type": "turn/start", "seq": 0, "time": 3, "data": {"turn": 1}})
    ledger.take(result([BLOCK]) | {"seq": 1})
    op = {"surfaceOp": {"op": "replace", "start": 1, "end": 1}, "sourceEventSeqs": [1]}
    with pytest.raises(Broken):
        ledger.take(result([{**BLOCK, "isError": True}]) | op)
    ledger.take(result([{**BLOCK, "content": [{"type": "text", "text": "pruned"}]}]) | op)
    assert ledger.surface == [2]


HEADERS: dict[str, Event] = {
    "version": {"version": 1}, "created": {"createdAt": "x"}, "depth": {"delegationDepth": None}, "cwd": {"cwd": "a"},
    "no cwd": {"cwd": None}, "origin": {"origin": "me"}, "preset": {"agentPreset": 1}, "retired": {"sandboxMode": "x"},
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_dsh_refuses_is_told(name: str) -> None:
    assert writing.header_fault(Log().header) is None
    assert writing.header_fault({**Log().header, **HEADERS[name]}) is not None


def test_folders_are_named_as_dsh_names_them() -> None:
    assert dsh_project("/tmp/demo/proj") == PROJECT
    assert [dsh_project(cwd) for cwd in (None, "/", "/a-/b", "C:\\x y")] == [
        "_no-cwd", "--root--", "--a--b--", "--C-x~0020y--",
    ]  # fmt: skip
    assert dsh_project("/" + "x" * 300) == f"--{'x' * 251}--"
    assert [dsh_segment(name) for name in ("a~1", "..", "é😀")] == ["a~007E1", "~002E~002E", "~00E9~D83D~DE00"]
    assert dsh.id_of_folder(f"/r/p/{dsh_segment('é~')}/session.jsonl") == "é~"


# Driving


def driven(root: Path, log: Log | None = None, **how: Any) -> tuple[Session, Driver]:
    session = opened(root, log or story(), **how)
    return session, Driver(session)


def our_turn(session: Session, driver: Driver, *, tool: bool = True) -> int:
    begun = driver.start_turn("hello")
    put(session, begun.prepared)
    step = driver.start_step(begun.number, {"config": CONFIG})
    put(session, step.prepared)
    where = {"turn": begun.number, "step": step.number}
    content = [{"type": "tool-call", "id": "c1", "name": "bash", "arguments": "{}"}] if tool else []
    said = {"role": "assistant", "content": content, "source": ANSWERED_BY, "id": "a1"}
    put(
        session,
        driver.append([{"type": "assistant/message", "data": {**where, "message": said}, "surfaceOp": "append"}]),
    )
    if tool:
        call = {"type": "tool/call", "data": {**where, "callId": "c1", "name": "bash", "arguments": "{}"}}
        put(session, driver.append([call]))
    return begun.number


@pytest.mark.parametrize("zstd", [True, False])
def test_a_turn_is_written_as_dsh_writes_one_and_read_back(tmp_path: Path, zstd: bool) -> None:
    session, driver = driven(tmp_path, zstd=zstd)
    before = Path(session.path or "").read_bytes()
    resumed = driver.resume()
    assert (resumed.prepared.lines, resumed.repaired) == (b"", [])
    turn = our_turn(session, driver)
    with pytest.raises(StepOpen):
        driver.end_turn(turn, {"kind": "completed"})
    put(session, driver.end_step(turn, 1))
    step = driver.start_step(turn, {"config": CONFIG})
    put(session, step.prepared)
    put(session, driver.end_turn(turn, {"kind": "error", "message": "no network"}))
    put(session, driver.rename("Named"))
    data = Path(session.path or "").read_bytes()
    assert data.startswith(before)
    made = events_in(session.path or "")[len(story().events) :]
    assert [event["type"] for event in made] == [
        "session/end-seed", "turn/start", "user/message", "step/start", "request/header", "assistant/message",
        "tool/call", "step/end", "step/start", "step/end", "turn/end", "session/title",
    ]  # fmt: skip
    assert made[4]["data"]["reason"] == "resume"
    assert made[1]["data"] == {"turn": 5}
    error = {"message": "no network", "code": "UNKNOWN"}
    assert made[-2]["data"]["reason"] == {"kind": "error", "message": "no network", "error": error}
    ledger_of(session.path or "")
    assert (session.title(), session.faults()) == ("Named", [])
    again = Session.open(session.path or "")
    assert [again.stored(i) for i in range(len(again.index))] == [session.stored(i) for i in range(len(session.index))]
    if zstd:
        parts = frames_of(data)
        assert parts[0].count(b"\n") == 1
        assert all(part.endswith(b"\n") for part in parts)
        assert zstandard.get_frame_parameters(data[len(before) :]).has_checksum


def test_the_mark_of_what_was_found_is_written_once_and_before_everything(tmp_path: Path) -> None:
    session, driver = driven(tmp_path)
    driver.resume()
    note = {"type": "from/elsewhere", "data": {"n": 1}, "ignorable": True}
    prepared = driver.append([note])
    assert prepared.ids == [str(len(story().events) + 1)]
    put(session, prepared)
    put(session, driver.append([note]))
    fresh = Driver(session)
    fresh.resume()
    put(session, fresh.append([note]))
    kinds = [event["type"] for event in events_in(session.path or "")][len(story().events) :]
    assert kinds == ["session/end-seed", "from/elsewhere", "from/elsewhere", "session/end-seed", "from/elsewhere"]
    child = Driver(opened(tmp_path / "other", story().fork("child", len(story().events) - 1)))
    child.resume()
    assert child.append([note]).lines.count(b"\n") == 1  # there is such a mark


SAID = {"role": "user", "content": [], "source": {"kind": "user"}}
WRONG: dict[str, tuple[Event, str]] = {
    "mark": ({"type": "turn/start", "data": {"turn": 9}}, "type"),
    "row": ({"type": "text-chunks", "data": {}}, "type"),
    "inbox": ({"type": "agent/inbox/spliced", "data": {}}, "type"),
    "unknown": ({"type": "from/elsewhere", "data": {}}, "type"),
    "id": ({"type": "todo/write", "data": {}, "id": "x"}, "id"),
    "no type": ({"data": {}}, "type"),
    "no data": ({"type": "todo/write"}, "data"),
    "NaN": ({"type": "goal/change", "data": {"a": [float("nan")]}}, "data.a.0"),
    "minus zero": ({"type": "goal/change", "data": -0.0}, "data"),
    "great number": ({"type": "goal/change", "data": 2**53}, "data"),
    "half a character": ({"type": "goal/change", "data": "\ud800"}, "data"),
    "half a name": ({"type": "goal/change", "data": {"\ud800": 1}}, "data"),
    "outside of a turn": ({"type": "todo/write", "data": {}}, "type"),
    "outside of a step": ({"type": "tool/call", "data": {"turn": 1, "step": 1, "callId": "c"}}, "data.turn"),
    "no id": (user(data=SAID), "data.id"),
    "image": (user(data={**SAID, "id": "m", "content": [{"type": "image", "data": "AA"}]}), "data.content"),
    "result without a flag": (user(data={**SAID, "id": "m", "content": [{"type": "tool-result"}]}), "data.content"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_dsh_would_not_read_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    event, field = WRONG[name]
    event = {key: value for key, value in event.items() if key not in {"seq", "time"}}
    _, driver = driven(tmp_path)
    good = {"type": "goal/change", "data": {}}
    with pytest.raises(InvalidEntry) as refused:
        driver.append([good, event])
    assert (refused.value.data["index"], refused.value.data["field"]) == (1, field)
    assert refused.value.data["reason"]


def test_what_nests_too_deeply_is_refused(tmp_path: Path) -> None:
    _, driver = driven(tmp_path)
    data: Any = 1
    for _ in range(300):
        data = [data]
    with pytest.raises(InvalidEntry):
        driver.append([{"type": "goal/change", "data": data}])


def test_turns_and_steps_keep_their_order(tmp_path: Path) -> None:
    session, driver = driven(tmp_path)
    driver.resume()
    for call in (
        lambda: driver.end_turn(4, {"kind": "completed"}),
        lambda: driver.start_step(4),
        lambda: driver.end_step(4, 1),
    ):
        with pytest.raises(NoOpenTurn):
            call()
    turn = our_turn(session, driver, tool=False)
    with pytest.raises(InvalidEntry) as refused:
        driver.end_turn(turn, {"kind": "blocked", "by": "us"})
    assert refused.value.data["field"] == "data.reason"
    with pytest.raises(StepOpen):
        driver.start_step(turn)
    with pytest.raises(NoOpenTurn):
        driver.end_step(turn, 2)
    put(session, driver.end_step(turn, 1))
    put(session, driver.start_step(turn).prepared)
    with pytest.raises(InvalidEntry):
        driver.end_step(turn, 2)
    with pytest.raises(InvalidEntry) as refused:
        driver.start_turn([{"type": "image", "data": "AA"}])
    assert refused.value.data["index"] == 0
    assert (driver.ledger().open, driver.ledger().turn) == (True, turn)
    put(session, driver.interrupt().prepared)
    assert not driver.ledger().open
    begun = driver.start_turn([{"type": "text", "text": "x"}])
    put(session, begun.prepared)
    with pytest.raises(InvalidEntry) as refused:
        driver.start_step(begun.number, {"config": {}})
    assert refused.value.data["field"] == "header.config.provider"


def test_events_that_another_program_wrote_meanwhile_come_first(tmp_path: Path) -> None:
    session, driver = driven(tmp_path)
    driver.resume()
    prepared = driver.rename("one")
    log = story()
    log.title("between")
    with open(session.path or "", "ab") as file:
        file.write(frame(dump(log.events[-1])))
    with pytest.raises(Outdated):
        session.write(prepared.lines)
    session.refresh()
    put(session, driver.rename("two"))
    ledger_of(session.path or "")
    assert [event["data"]["title"] for event in events_in(session.path or "")[-3:] if "title" in event["data"]] == [
        "between",
        "two",
    ]


def cut_somewhere(dice: random.Random) -> Log:
    """A log that ends inside of a turn, anywhere."""
    log = Log()
    log.talk("first", "answer")
    log.prompt("second")
    log.header_event()
    for step in range(1, dice.randrange(1, 4) + 1):
        if step > 1:
            log.add("step/end", {"turn": log.turn, "step": log.step})
            log.begin(step)
        calls = [(f"c{step}{k}", "bash", "{}") for k in range(dice.randrange(0, 4))]
        log.answer("well", calls)
        for id_, name, given in calls:
            if dice.random() < 0.6:
                log.call(id_, name, given)
                if dice.random() < 0.6:
                    log.result(id_, "done")
    first = next(
        k for k, event in enumerate(log.events) if event["type"] == "turn/start" and event["data"]["turn"] == 2
    )
    del log.events[dice.randrange(first + 1, len(log.events)) + 1 :]
    return log


@pytest.mark.parametrize("seed", range(60))
def test_a_turn_that_was_cut_off_anywhere_is_closed_once(tmp_path: Path, seed: int) -> None:
    log = cut_somewhere(random.Random(seed))
    session, driver = driven(tmp_path, log, zstd=seed % 2 == 0, packed=seed % 3 == 0)
    resumed = driver.resume()
    put(session, resumed.prepared)
    made = events_in(session.path or "")[len(log.events) :]
    assert made[-1]["type"] == "session/end-seed"
    assert {event["time"] for event in made[:-1]} == {log.events[-1]["time"]}
    assert [repair["kind"] for repair in resumed.repaired] == [
        {"tool/result": "toolResult", "step/end": "stepEnd", "turn/end": "turnEnd"}[event["type"]]
        for event in made[:-1]
    ]
    kinds = [event["type"] for event in log.events]
    since = len(kinds) - 1 - kinds[::-1].index("step/end") if kinds[-1] == "step/end" else 0
    since = max(since, *(k for k, kind in enumerate(kinds) if kind == "step/start"))
    answered = [e["data"]["message"]["source"]["callId"] for e in log.events if e["type"] == "tool/result"]
    answers = [e["data"]["message"] for e in log.events[since:] if e["type"] == "assistant/message"]
    here = [block["id"] for message in answers for block in message["content"] if "id" in block]
    closed = [repair["callId"] for repair in resumed.repaired if repair["kind"] == "toolResult"]
    assert closed == [id_ for id_ in here if id_ not in answered]
    begun = {e["data"]["callId"] for e in log.events if e["type"] == "tool/call"}
    for repair in resumed.repaired:
        if repair["kind"] == "toolResult":
            assert (repair["code"] == "TOOL_OUTCOME_UNKNOWN") == (repair["callId"] in begun)
    assert made[-2]["data"] == {"turn": 2, "reason": {"kind": "interrupted"}}
    ledger = ledger_of(session.path or "")
    assert not ledger.open
    again = Driver(Session.open(session.path or "")).resume()
    assert (again.prepared.lines, again.repaired) == (b"", [])


def test_an_unknown_event_ends_the_agents_work_and_is_named(tmp_path: Path) -> None:
    log = story()
    log.add("newer/thing", {})
    _, driver = driven(tmp_path, log)
    with pytest.raises(NotSupportedByFormat) as refused:
        driver.resume()
    assert refused.value.data["eventType"] == "newer/thing"


# Frames


def test_a_torn_last_frame_is_written_again_with_its_whole_lines(tmp_path: Path) -> None:
    log = story()
    path = log.write(tmp_path, batch=40)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    session = Session.open(str(path))
    known = session.index.size
    kept = len(session.index) - session.index.provisional
    line = dump({"type": "session/end-seed", "seq": session.index.surface.next, "time": 1, "data": {}})
    offset, end = session.write(line)
    session.take_written(offset, end, CAUSE)
    assert end <= known + len(line)
    assert session.journal.read(offset, end - offset) == line
    assert session.journal.faults() == []
    assert len(session.index) == kept + 1
    start = sum(len(part) for part in frame_parts(whole)[:-1])
    assert path.read_bytes()[:start] == whole[:start]
    assert text_of(path) == session.journal.read(0, session.journal.size())


def frame_parts(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    while data:
        reader = zstandard.ZstdDecompressor().decompressobj()
        reader.decompress(data)
        found.append(data[: len(data) - len(reader.unused_data)])
        data = reader.unused_data
    return found


def test_nothing_is_written_behind_a_damaged_last_frame(tmp_path: Path) -> None:
    path = story().write(tmp_path)
    path.write_bytes(path.read_bytes() + b"not a frame")
    before = path.read_bytes()
    session = Session.open(str(path))
    with pytest.raises(DamagedRegion):
        session.write(b"{}\n")
    assert path.read_bytes() == before


def cutting_the_first(real: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
    left = [5]
    return lambda fd, data: real(fd, data[: left.pop()] if left else data)


def test_a_short_write_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = story().write(tmp_path)
    torn = path.read_bytes()[:-5]
    for data in (path.read_bytes(), torn):
        path.write_bytes(data)
        session = Session.open(str(path))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", cutting_the_first(os.write))
            with pytest.raises(Fault):
                session.write(b'{"type":"session/title"}\n')
        assert path.read_bytes() == data


# Fork


@pytest.mark.parametrize("zstd", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_a_fork_is_the_beginning_of_its_source_in_dshs_layout(tmp_path: Path, zstd: bool, packed: bool) -> None:
    log = story()
    log.header["agentPreset"] = "general"
    session = opened(tmp_path, log, zstd=zstd, packed=packed)
    source = Path(session.path or "").read_bytes()
    ends = [e["seq"] for e in log.events if e["type"] == "turn/end"]
    for number, boundary in enumerate([*ends, ends[0] + 1, len(log.events) - 1]):
        if boundary == ends[0] + 1:
            continue  # a turn begins there
        made = dsh_fork.fork(session, session.find(str(boundary)), f"child~{number}")
        assert made.path == str(tmp_path / PROJECT / f"child~007E{number}" / Path(session.path or "").name)
        assert made.seed_length == boundary + 1
        header = json.loads(text_of(made.path).split(b"\n")[0])
        assert {**header, "createdAt": 0} == {
            "type": "session", "version": 0, "id": f"child~{number}", "createdAt": 0, "cwd": "/tmp/demo/proj",
            "parentSession": "session-a", "seedLength": boundary + 1, "delegationDepth": 0, "agentPreset": "general",
        }  # fmt: skip
        events = events_in(made.path)
        assert events[:-1] == log.events[: boundary + 1]
        assert timeless(events[-1:]) == [{"type": "session/end-seed", "seq": boundary + 1, "data": {}}]
        ledger_of(made.path)
        assert stat.S_IMODE(os.stat(made.path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(made.path)).st_mode) == 0o700
        assert os.listdir(os.path.dirname(made.path)) == [os.path.basename(made.path)]
        if zstd:
            assert [part.count(b"\n") for part in frames_of(Path(made.path).read_bytes())][:1] == [1]
        child = Session.open(made.path)
        assert (child.header.parent, child.index.inherited > 0, child.faults()) == ("session-a", True, [])
    assert Path(session.path or "").read_bytes() == source


def test_a_fork_of_nothing_and_one_with_another_folder_and_a_new_name(tmp_path: Path) -> None:
    session = opened(tmp_path, Log())
    made = dsh_fork.fork(session, NONE, cwd="/else where")
    assert made.session_id.startswith("session-")
    assert made.path == str(tmp_path / "--else~0020where--" / made.session_id / "session.jsonl.zstd")
    assert (made.seed_length, [event["seq"] for event in events_in(made.path)]) == (0, [0])
    assert stat.S_IMODE((tmp_path / "--else~0020where--").stat().st_mode) == 0o700


def test_a_fork_inside_of_a_turn_is_refused_with_the_nearest_place(tmp_path: Path) -> None:
    log = story()
    session = opened(tmp_path, log)
    first = next(e["seq"] for e in log.events if e["type"] == "turn/end")
    call = next(e["seq"] for e in log.events if e["type"] == "tool/call")
    with pytest.raises(BoundaryInTurn) as refused:
        dsh_fork.fork(session, session.find(str(call)))
    assert (refused.value.data["turn"], refused.value.data["nearestClosed"]) == (2, str(first))
    assert os.listdir(tmp_path / PROJECT) == ["session-a"]


def test_a_fork_never_takes_a_place_that_is_taken(tmp_path: Path) -> None:
    session = opened(tmp_path, story())
    for cwd in (None, "/another"):
        with pytest.raises(AlreadyExists):
            dsh_fork.fork(session, NONE, "session-a", cwd)
    other = Log("other")
    other.write(tmp_path, zstd=False)
    with pytest.raises(DamagedRegion) as refused:
        dsh_fork.fork(session, NONE, "new")
    assert refused.value.data["diagnostic"] == "mixed_encodings"
    assert sorted(os.listdir(tmp_path / PROJECT)) == ["other", "session-a"]


def test_a_fork_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(tmp_path, story())

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        with pytest.raises(Fault):
            dsh_fork.fork(session, len(session.index) - 1, "child", "/new/place")
    assert os.listdir(tmp_path) == [PROJECT]


def test_what_follows_the_boundary_may_be_damaged_and_what_precedes_it_may_not(tmp_path: Path) -> None:
    log = story()
    path = log.write(tmp_path, batch=5)
    parts = frame_parts(path.read_bytes())
    hole = bytearray(parts[-3])
    hole[-1] ^= 0xFF
    path.write_bytes(b"".join([*parts[:-3], hole, *parts[-2:]]))
    session = Session.open(str(path))
    first = next(e["seq"] for e in log.events if e["type"] == "turn/end")
    assert dsh_fork.fork(session, session.find(str(first))).seed_length == first + 1
    with pytest.raises(DamagedRegion):
        dsh_fork.fork(session, len(session.index) - 1)


# Repaired copies


def flipped(parts: list[bytes], k: int) -> bytes:
    hole = bytearray(parts[k])
    hole[-1] ^= 0xFF
    return b"".join([*parts[:k], bytes(hole), *parts[k + 1 :]])


def again(data: bytes, *seqs: int) -> bytes:
    return data + b"".join(
        frame(dump({"type": "session/title", "seq": n, "time": 1, "data": {"title": str(n)}})) for n in seqs
    )


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda data: data[:-7],
    "very torn": lambda data: data[: -len(frame_parts(data)[-1]) + 2],
    "garbage behind": lambda data: data + b"not a frame",
    "last frame": lambda data: flipped(frame_parts(data), -1),
    "frame in the middle": lambda data: flipped(frame_parts(data), 7),
    "two frames": lambda data: flipped(frame_parts(flipped_out(data, 4)), 9),
    "one frame": lambda data: frame(unpacked(data)),
    "second numbering": lambda data: again(data, 3, 4, 5),
    "a gap": lambda data: again(data, 500, 501),
    "a great gap": lambda data: again(data, 10**12),
    "a field of ours": lambda data: data + frame(dump({**MARK, "seq": len(story().events), "id": "x"})),
    "blank line": lambda data: data + frame(b"\n"),
    "half a line": lambda data: data + frame(b'{"type":"goal/ch'),
}  # fmt: skip


def flipped_out(data: bytes, k: int) -> bytes:
    parts = frame_parts(data)
    return b"".join([*parts[:k], *parts[k + 1 :]])


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_log_is_not_written_and_its_repaired_copy_is_sound(tmp_path: Path, name: str) -> None:
    log = story()
    path = log.write(tmp_path, batch=5, packed=False)
    path.write_bytes(broken := DAMAGE[name](path.read_bytes()))
    session = Session.open(str(path))
    with pytest.raises((DamagedRegion, DamagedHeader)):
        Driver(session).resume()
    assert dsh_repair.fault(session) is not None
    done = dsh_repair.repair(session)
    assert done is not None
    assert Path(done.kept).read_bytes() == broken
    assert os.path.dirname(done.kept) == os.path.dirname(done.path)
    assert not done.kept.endswith((".jsonl", ".zstd"))
    ledger_of(path)
    fresh = Session.open(str(path))
    assert fresh.faults() == []
    assert frames_of(path.read_bytes())[0].count(b"\n") == 1
    assert dsh_repair.fault(fresh) is None
    assert dsh_repair.repair(fresh) is None
    events = events_in(path)
    said = [
        session.stored(i)["data"]
        for i in range(len(session.index))
        if session.stored(i)["type"] in dsh.MESSAGES - {"tool/result"}
    ]
    assert [event["data"] for event in events if event["type"] in dsh.MESSAGES - {"tool/result"}] == said
    for event in events:
        if event["seq"] < len(log.events) and event["type"] == log.events[event["seq"]]["type"]:
            assert event == log.events[event["seq"]]
    Driver(fresh).resume()


def test_a_call_whose_result_is_lost_has_one_in_the_copy_and_a_result_without_its_call_is_none(tmp_path: Path) -> None:
    for lost, kinds in (("tool/result", ["tool/result"]), ("assistant/message", [])):
        log = Log()
        log.tool_turn("look", "ls", "seen")
        log.talk("and", "on")
        place = next(k for k, event in enumerate(log.events) if event["type"] == lost)
        del log.events[place]
        path = log.write(tmp_path / lost.replace("/", "-"), packed=False)
        done = dsh_repair.repair(Session.open(str(path)))
        assert done is not None
        events = events_in(path)
        assert [event["type"] for event in events if event["type"] == "tool/result"] == kinds
        assert events[-1] == log.events[-1]
        ledger_of(path)


def test_nothing_that_waited_runs_after_something_was_lost(tmp_path: Path) -> None:
    log = story()
    path = log.write(tmp_path, batch=5, packed=False)
    path.write_bytes(flipped(frame_parts(path.read_bytes()), 7))
    dsh_repair.repair(Session.open(str(path)))
    assert "agent/inbox/spliced" not in {event["type"] for event in events_in(path)}
    path = log.write(tmp_path / "whole", batch=5, packed=False)
    path.write_bytes(frame(unpacked(path.read_bytes())))
    dsh_repair.repair(Session.open(str(path)))
    assert events_in(path) == log.events


def test_a_second_run_keeps_its_own_references(tmp_path: Path) -> None:
    log = story()
    first = log.events[:20]
    second = [dict(event) for event in log.events[len(log.events) - 12 :]]
    start = second[0]["seq"]
    for event in second:
        event["seq"] -= start - 10
        if "sourceEventSeqs" in event:
            event["sourceEventSeqs"] = [seq - start + 10 for seq in event["sourceEventSeqs"] if seq >= start]
    log.events = [*first, *second]
    path = log.write(tmp_path, packed=False)
    assert dsh_repair.repair(Session.open(str(path))) is not None
    events = events_in(path)
    ledger_of(path)
    made = next(event for event in events[20:] if event["type"] == "assistant/message")
    was = next(event for event in second if event["type"] == "assistant/message")
    assert made["sourceEventSeqs"] == [seq - 10 + 20 for seq in was["sourceEventSeqs"]]


def test_a_plain_log_with_a_torn_tail_is_repaired_too(tmp_path: Path) -> None:
    path = story().write(tmp_path, zstd=False)
    path.write_bytes(path.read_bytes()[:-9])
    session = Session.open(str(path))
    with pytest.raises(DamagedRegion) as refused:
        Driver(session).resume()
    assert refused.value.data["diagnostic"] == "torn_tail"
    assert dsh_repair.repair(session) is not None
    ledger_of(path)


def test_what_is_not_broken_is_not_repaired(tmp_path: Path) -> None:
    assert dsh_repair.repair(opened(tmp_path / "a", story())) is None
    log = story()
    log.add("newer/thing", {})
    assert dsh_repair.repair(opened(tmp_path / "b", log)) is None
    newer = Log(version=1)
    session = opened(tmp_path / "c", newer)
    assert dsh_repair.repair(session) is None
    with pytest.raises(UnsupportedVersion):
        Driver(session).resume()


@pytest.mark.parametrize("seed", range(40))
def test_random_damage_is_refused_or_harmless_and_repaired(tmp_path: Path, seed: int) -> None:
    """Whatever was done to the file: the copy is sound, or it cannot be told which log it was."""
    dice = random.Random(seed)
    path = story().write(tmp_path, batch=4, packed=seed % 2 == 0)
    path.write_bytes(damaged(path.read_bytes(), dice)[0])
    session = Session.open(str(path))
    if session.header.format != "dsh" or dsh_repair.mended_header(session) is None:
        return
    try:
        Driver(session).resume()
    except (DamagedRegion, DamagedHeader):
        assert dsh_repair.repair(session) is not None
    ledger_of(path)
