from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.support import CORPUS

from . import DshProcess, MockModel, OracleError, dsh, headless
from .dsh_checks import (
    CWD,
    PROJECT,
    TOOL,
    assert_of_a_piece,
    codes,
    conversation,
    decoded,
    frames,
    kinds,
    log_of,
    opened,
    wait_for_event,
)
from .dsh_events import header, plain
from .dsh_peer import fork, write

pytestmark = pytest.mark.timeout(600)  # the first test may have to install the peers

NOT_STARTED, UNKNOWN = "TOOL_NOT_STARTED", "TOOL_OUTCOME_UNKNOWN"

# The damaged logs of the corpus that dsh does not open, and why.
REFUSED = {
    "flip_middle": "failed validation",
    "garbage_tail": "invalid frame magic",
    "plain_version1": "log format v1",
    "plain_wrong_id": "does not match header id",
}


@pytest.mark.skipif(CORPUS is None, reason="the corpus is not here")
def test_every_good_log_of_the_corpus_is_listed_read_and_resumed(tmp_path: Path) -> None:
    assert CORPUS is not None
    part = CORPUS / "dsh" / "0.1.1-rc.2"
    killed = shutil.copytree(part / "killed-unrepaired", tmp_path / PROJECT, copy_function=shutil.copyfile)
    roots = [part / name for name in ("sessions", "sessions-plain", "sessions-unpacked")]
    paths = sorted(path for root in (*roots, killed) for path in root.rglob("session.jsonl*"))
    for seen in dsh().load(paths):
        assert_of_a_piece(seen)
        assert seen["kept"]
        assert decoded(seen["raw"]) == seen["stored"]["events"]
    assert len(paths) > 15


@pytest.mark.skipif(CORPUS is None, reason="the corpus is not here")
def test_damage_is_refused_or_cut_off_as_it_was_observed() -> None:
    assert CORPUS is not None
    paths = sorted((CORPUS / "edge" / "dsh").rglob("session.jsonl*"))
    seen = {answer["path"].parents[3].name: answer for answer in dsh().load(paths)}
    assert {name for name, answer in seen.items() if "error" in answer["resumed"]} == REFUSED.keys()
    for name, message in REFUSED.items():
        assert message in seen[name]["resumed"]["error"]
        assert seen[name]["kept"]
    whole = len(seen["plain_good"]["stored"]["events"])
    for name in seen.keys() - REFUSED.keys() - {"plain_unknown_ignorable"}:
        lost = name in {"plain_torn", "plain_no_nl"}
        assert len(seen[name]["stored"]["events"]) == whole - lost
        assert_of_a_piece(seen[name])
        assert kinds(seen[name]["written"]) == ["turn/end"] * lost + ["session/end-seed"]


@pytest.mark.parametrize(("compression", "suffix"), [("zstd", ".zstd"), ("none", "")])
def test_a_log_is_the_same_conversation_in_every_encoding(compression: str, suffix: str, tmp_path: Path) -> None:
    events = conversation()
    paths: list[Path] = []
    for pack in (True, False):
        root = tmp_path / str(pack)
        batches = [events[:3], events[3:20], events[20:]]
        dsh().make(root, [write(header("one", CWD), *batches)], compression=compression, pack=pack)
        paths.append(log_of(root, "one", suffix=suffix))
    packed, loose = dsh().load(paths)

    for seen in (packed, loose):
        assert_of_a_piece(seen)
        assert seen["stored"]["events"] == events
        assert seen["kept"]
    assert loose["raw"].encode() == plain(header("one", CWD), events)
    assert '"text-chunks"' in packed["raw"]
    assert [message["content"][0]["text"] for message in packed["stored"]["messages"]] == [
        "what was said",
        "three",
        "the third answer",
    ]


def test_a_log_has_one_frame_for_its_header_and_one_for_each_batch_and_is_private(tmp_path: Path) -> None:
    events = conversation()
    dsh().make(tmp_path / "root", [write(header("one", CWD), events[:5], events[5:30], events[30:])])
    path = log_of(tmp_path / "root", "one")
    parts = [zstandard.get_frame_parameters(frame).has_checksum for frame in frames(path.read_bytes())]

    assert parts == [True] * 4
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in path.parents[:3]} == {0o700}
    assert os.listdir(path.parent) == [path.name]


def test_a_fork_is_a_verbatim_prefix_with_an_end_and_an_open_turn_is_no_place_for_it(tmp_path: Path) -> None:
    events = conversation()
    first = next(event["seq"] for event in events if event["type"] == "turn/end")
    root = tmp_path / "root"
    dsh().make(root, [write(header("one", CWD, agentPreset="general"), events), fork("one", "two", first)])
    (seen,) = dsh().load([log_of(root, "two")])

    assert dsh().listed(root) == ["one", "two"]
    assert_of_a_piece(seen)
    assert seen["written"] == []
    about = seen["stored"]["header"]
    assert {key: about[key] for key in about if key not in {"version", "createdAt"}} == {
        "id": "two",
        "cwd": CWD,
        "parentSession": "one",
        "seedLength": first + 1,
        "delegationDepth": 0,
    }
    assert seen["stored"]["events"][:-1] == events[: first + 1]
    assert kinds(seen["stored"]["events"][-1:]) == ["session/end-seed"]
    with pytest.raises(OracleError, match="ends inside open turn 2"):
        dsh().make(root, [fork("one", "three", first + 3)])


def test_an_interrupted_turn_is_closed_call_by_call_in_the_time_of_the_last_event(tmp_path: Path) -> None:
    logs = {"called": opened(called=True), "not": opened(called=False)}
    dsh().make(tmp_path / "root", [write(header(name, CWD), events) for name, events in logs.items()])
    called, not_called = dsh().load([log_of(tmp_path / "root", name) for name in logs])

    for seen in (called, not_called):
        assert_of_a_piece(seen)
        assert seen["kept"]
        assert kinds(seen["written"]) == ["tool/result", "tool/result", "step/end", "turn/end", "session/end-seed"]
        assert seen["written"][3]["data"] == {"turn": 2, "reason": {"kind": "interrupted"}}
        ids = [event["data"]["message"]["id"] for event in seen["written"][:2]]
        last = len(seen["stored"]["events"])
        assert ids == [f"interrupted-tool-result-call_a-{last}", f"interrupted-tool-result-call_b-{last + 1}"]
    assert codes(called["written"]) == [UNKNOWN, NOT_STARTED]
    assert codes(not_called["written"]) == [NOT_STARTED, NOT_STARTED]
    assert [event.get("sourceEventSeqs") for event in called["written"][:2]] == [[len(logs["called"]) - 1], None]


def without(key: str, kind: str) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        del next(line for line in lines if line["type"] == kind)[key]

    return change


def with_(kind: str, **more: Any) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        next(line for line in lines if line["type"] == kind).update(more)

    return change


REFUSALS: dict[str, tuple[Callable[[list[Any]], None], str]] = {
    "a gap in the numbers": (lambda lines: lines.pop(4), "seq gap"),
    "an unknown event that is required": (with_("turn/start", type="from/elsewhere"), "unknown to this harness"),
    "a field more in an event": (with_("turn/start", id="x"), "invalid event envelope"),
    "ignorable that is not true": (with_("turn/start", ignorable=False), "invalid event envelope"),
    "a message without its place": (without("surfaceOp", "user/message"), "requires a surfaceOp"),
    "a place for what has none": (with_("turn/start", surfaceOp="append"), "not surface-eligible"),
    "no sources for an answer of a tool": (with_("user/message", sourceEventSeqs=[]), "must not be empty"),
    "a source that comes later": (with_("user/message", sourceEventSeqs=[900]), "must reference earlier events"),
    "sources twice": (with_("user/message", sourceEventSeqs=[0, 0]), "must not contain duplicates"),
    "a replacement of nothing": (
        with_("user/message", surfaceOp={"op": "replace", "start": 0, "end": 0}),
        "not found in surface",
    ),
    "a time with a fraction": (with_("turn/start", time=1.5), "invalid event envelope"),
    "no delegation depth": (without("delegationDepth", "session"), "not a session header"),
    "a relative folder": (with_("session", cwd="tmp/demo/proj"), "absolute path"),
    "another folder": (with_("session", cwd="/tmp/other"), "identify"),
    "retired fields": (with_("session", sandboxMode="none"), "retired"),
    "another origin": (with_("session", origin="human"), "not a session header"),
}


def test_a_log_is_refused_for_one_line_that_is_not_as_it_should_be(tmp_path: Path) -> None:
    paths = [log_of(tmp_path / str(number), "one", suffix="") for number in range(len(REFUSALS))]
    for path, (change, _) in zip(paths, REFUSALS.values(), strict=True):
        path.parent.mkdir(parents=True)
        lines = [json.loads(line) for line in plain(header("one", CWD), conversation()).splitlines()]
        change(lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    for what, seen in zip(REFUSALS, dsh().load(paths), strict=True):
        assert REFUSALS[what][1] in seen["resumed"].get("error", "nothing"), what
        assert seen["kept"]


def test_a_log_that_a_newer_dsh_marked_as_dispensable_is_read_with_what_is_unknown(tmp_path: Path) -> None:
    events = conversation()
    events.add("from/elsewhere", {"n": 1}, ignorable=True)
    path = log_of(tmp_path / "root", "one", suffix="")
    path.parent.mkdir(parents=True)
    path.write_bytes(plain({**header("one", CWD), "ours": 1}, events))
    (seen,) = dsh().load([path])

    assert_of_a_piece(seen)
    assert seen["stored"]["events"][-1]["data"] == {"n": 1}
    assert "ours" not in seen["stored"]["header"]


def test_one_log_in_the_other_encoding_or_place_costs_the_whole_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    dsh().make(root, [write(header("one", CWD), conversation())])
    assert dsh().listed(root) == ["one"]
    other = log_of(root, "two", suffix="")
    other.parent.mkdir()
    other.write_bytes(plain(header("two", CWD), conversation()))
    with pytest.raises(OracleError, match=r"uses \.jsonl"):
        dsh().listed(root)
    shutil.rmtree(other.parent)
    flat = root / PROJECT / "two.jsonl"
    flat.write_bytes(plain(header("two", CWD), conversation()))
    with pytest.raises(OracleError, match="flat-file layout"):
        dsh().listed(root)


def test_a_session_that_a_running_dsh_made_is_what_the_oracle_reads(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "project"
    with MockModel() as model:
        with DshProcess(model, home, cwd) as process:
            process.prompt(TOOL)
            process.prompt("SAY " + "many words " * 40)
            path, messages = process.session_file, process.messages()
            child = process.fork("session-child")
        (seen, forked) = dsh().load([path, child])
        assert_of_a_piece(seen)
        assert_of_a_piece(forked)
        assert seen["stored"]["messages"] == forked["stored"]["messages"] == messages
        assert {"type": "text", "text": "found\n"} in messages[3]["content"][0]["content"]
        assert path.is_relative_to(home / ".dsh" / "sessions")

        with DshProcess(model, home, cwd, resume="session-child") as process:
            assert process.messages() == messages
            process.prompt("SAY and on")
            assert process.session_file == child
            assert len(process.messages()) > len(messages)
        assert "and on" in headless(model, home, cwd, "SAY and on")
    assert len(dsh().listed(home / ".dsh" / "sessions")) == 3


@pytest.mark.parametrize(
    ("prompt", "closers"),
    [
        ("HOLD half an ans", ["step/end", "turn/end"]),
        ('CALL bash {"command":"sleep 20","description":"wait"}', ["tool/result", "step/end", "turn/end"]),
    ],
)
def test_a_killed_dsh_leaves_an_open_turn_that_the_next_one_closes(
    prompt: str, closers: list[str], tmp_path: Path
) -> None:
    home, cwd = tmp_path / "home", tmp_path / "project"
    with MockModel() as model:
        with DshProcess(model, home, cwd) as process:
            process.prompt("SAY hello")
            path = process.session_file
            size = path.stat().st_size
            process.send_prompt(prompt)
            awaited = "text-delta" if prompt.startswith("HOLD") else "tool/call"
            wait_for_event(path, size, awaited)
            process.kill()
        (seen,) = dsh().load([path])
        assert_of_a_piece(seen)
        assert seen["kept"]
        assert kinds(seen["written"]) == [*closers, "session/end-seed"]
        assert codes(seen["written"]) == [UNKNOWN] * ("tool/result" in closers)
        model.release()
        with DshProcess(model, home, cwd, resume=seen["stored"]["header"]["id"]) as process:
            process.prompt("SAY again")
            assert process.messages()[-1]["content"] == [{"type": "text", "text": "again"}]
