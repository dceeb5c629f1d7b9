"""Whose log a file is, and what a list shows of it without reading it whole."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from dsh_daemon.log.formats.header import id_from_name, is_title_slot, readable
from dsh_daemon.log.formats.legacy import made_up_id, migrate
from dsh_daemon.log.formats.peek import Peek, peek
from dsh_daemon.log.formats.recognise import recognise
from dsh_daemon.log.index import Header

from .support import CORPUS, assistant, entry, header, line, stamp, tool_result, user, write_log

NAME = "2026-01-01T00-00-00-000Z_abc_def.jsonl"


def slot(title: str = "", **more: object) -> bytes:
    record = {"type": "title", "v": 1, "title": title, "updatedAt": stamp(0), **more, "pad": ""}
    record["pad"] = " " * (255 - len(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()))
    return line(record)


OMP_MODEL = {"type": "model_change", "id": "m1", "parentId": None, "timestamp": stamp(1), "model": "mock/mock-1"}
PI_MODEL = {
    "type": "model_change",
    "id": "m1",
    "parentId": None,
    "timestamp": stamp(1),
    "provider": "p",
    "modelId": "m",
}
V1_MESSAGE = {"type": "message", "timestamp": stamp(1), "message": {"role": "user", "content": "hi"}}
DSH = {
    "type": "session",
    "version": 0,
    "id": "session-1",
    "createdAt": 1796033512205,
    "cwd": "/p",
    "delegationDepth": 0,
}
CLAUDE = {
    "parentUuid": None, "isSidechain": False, "cwd": "/p", "sessionId": "c1", "type": "user", "uuid": "u1",
    "timestamp": stamp(1), "message": {"role": "user", "content": "hello claude"},
}  # fmt: skip
CODEX = {"timestamp": stamp(1), "type": "session_meta", "payload": {"id": "x1", "cwd": "/p", "timestamp": stamp(1)}}


@pytest.mark.parametrize(
    ("lines", "format_", "state", "id_"),
    [
        ([header()], "pi", "ok", "s1"),
        ([header(), PI_MODEL], "pi", "ok", "s1"),
        ([{"type": "session", "id": "v1", "timestamp": stamp(0), "cwd": "/p"}, V1_MESSAGE], "pi", "ok", "v1"),
        ([header(generator="dsh-daemon/1"), entry("mode_change", "a", None, mode="plan")], "native", "ok", "s1"),
        ([header(), OMP_MODEL], "omp", "ok", "s1"),
        (
            [header(), entry("thinking_level_change", "a", None, thinkingLevel="high", configured=None)],
            "omp",
            "ok",
            "s1",
        ),
        ([header(), user("a", None, "x"), entry("title_change", "b", "a", title="T")], "omp", "ok", "s1"),
        ([header(titleSource="auto")], "omp", "ok", "s1"),
        ([header(previousSessionFiles=[])], "omp", "ok", "s1"),
        ([DSH], "dsh", "ok", "session-1"),
        (
            [{**DSH, "version": 3}, {"type": "turn/start", "seq": 0, "time": 1, "data": {}}],
            "dsh",
            "ok",
            "session-1",
        ),
        ([header(), {"type": "turn/start", "seq": 0, "time": 1, "data": {}}], "dsh", "ok", "s1"),
        ([{"type": "turn/start", "seq": 4, "time": 1, "data": {}}], "dsh", "headerless", "abc_def"),
        ([user("a", None, "x")], "pi", "headerless", "abc_def"),
        ([V1_MESSAGE], "pi", "headerless", "abc_def"),
        ([OMP_MODEL], "omp", "headerless", "abc_def"),
        ([CLAUDE], "claude", "foreign", "abc_def"),
        ([{"type": "summary", "summary": "s", "leafUuid": "u"}, CLAUDE], "claude", "foreign", "abc_def"),
        ([{"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}], "claude", "foreign", "abc_def"),
        ([CODEX], "codex", "foreign", "x1"),
        ([{"id": "old", "timestamp": stamp(0), "instructions": None}], "codex", "foreign", "old"),
        ([{"type": "session", "version": 3, "cwd": "/p"}], "pi", "broken", "abc_def"),
    ],
)
def test_a_log_is_told_by_its_content(lines: list[dict], format_: str, state: str, id_: str) -> None:
    """A155: many programs begin with the same header line; its fields and the next lines decide."""
    found = recognise(b"".join(map(line, lines)), NAME)
    assert isinstance(found, Header), found
    assert (format_, state, id_) == (found.format, found.state, found.session_id)


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\n\r\n  \n", b"\xef\xbb\xbf\n"])
def test_a_bom_and_blank_lines_may_stand_first(before: bytes) -> None:
    found = recognise(before + line(header()), NAME)
    assert isinstance(found, Header)
    assert (found.format, found.state, found.session_id) == ("pi", "ok", "s1")


def test_a_title_slot_makes_it_omp() -> None:
    raw = slot("Kitchen 中文", source="user")
    assert len(raw) == 256
    found = recognise(raw + line(header()), NAME)
    assert isinstance(found, Header)
    assert (found.format, found.slot, found.slot_title, found.offset) == ("omp", True, "Kitchen 中文", 256)
    assert is_title_slot(line(user("a", None, '"title"'))) is None


def test_a_first_line_that_is_broken_is_a_session_when_entries_follow() -> None:
    """A005: it is listed as damaged and never taken for an empty file."""
    found = recognise(b"{broken header\n" + line(user("a", None, "x")), NAME)
    assert isinstance(found, Header)
    assert (found.state, found.session_id) == ("broken", "abc_def")
    torn = recognise(b'{"type":"session","version":3,"id":"s', NAME)
    assert isinstance(torn, Header)
    assert torn.state == "broken"


def test_the_event_stream_of_pi_mode_json_is_no_session() -> None:
    events = [{"type": "agent_start"}, {"type": "turn_start"}, {"type": "message_start", "message": {"role": "user"}}]
    reason = recognise(b"".join(map(line, [header(), *events])), NAME)
    assert isinstance(reason, str)
    assert "--mode json" in reason
    ours = [header(generator="dsh-daemon/1"), entry("turn_start", "a", None, turn=1)]
    assert isinstance(recognise(b"".join(map(line, ours)), NAME), Header)


@pytest.mark.parametrize(
    "data", [b'hello world\n{"a":1}\n', b"\n\n\n", b"[1]\n", b"{}\n", b"\xff\xfea\0", b'{"type":"x"}\n', b"\0" * 9]
)  # fmt: skip
def test_what_is_no_session_has_a_reason(data: bytes) -> None:
    reason = recognise(data, NAME)
    assert isinstance(reason, str)
    assert reason


def test_a_compressed_dsh_log_is_told_by_its_first_frame() -> None:
    packed = zstandard.compress(line(DSH)) + zstandard.compress(os.urandom(200))
    found = recognise(packed, "session.jsonl.zstd")
    assert isinstance(found, Header)
    assert (found.format, found.state, found.session_id, found.cwd) == ("dsh", "ok", "session-1", "/p")
    assert isinstance(recognise(packed[:-20], "session.jsonl.zstd"), Header)
    assert isinstance(recognise(b"no zstd at all", "session.jsonl.zstd"), str)
    assert isinstance(recognise(zstandard.compress(b"text"), "session.jsonl.zstd"), str)


def test_an_empty_file_is_listed_as_empty() -> None:
    found = recognise(b"", NAME, hint="omp")
    assert isinstance(found, Header)
    assert (found.state, found.format, found.session_id) == ("empty", "omp", "abc_def")


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_no_bytes_make_it_raise(data: bytes) -> None:
    for name in (NAME, "x.jsonl.zstd"):
        recognise(data, name)


KEYS = [
    "type", "id", "parentId", "timestamp", "message", "title", "cwd", "version", "name", "reason", "parentSession",
    "createdAt", "payload", "sessionId", "customType", "v",
]  # fmt: skip
INNER_KEYS = ["role", "content", "type", "id", "kind", "text", "stopReason"]
WORDS = ["session", "message", "user", "assistant", "title", "turn_end", "session_info"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER_KEYS), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6), max_size=4))
@settings(max_examples=150, deadline=None)
def test_no_shape_of_record_makes_a_peek_raise(tmp_path_factory: pytest.TempPathFactory, records: list[dict]) -> None:
    path = tmp_path_factory.getbasetemp() / "shape_x.jsonl"
    path.write_bytes(b"".join(json.dumps(r).encode() + b"\n" for r in records))
    peek(str(path))
    path.write_bytes(line(header()) + path.read_bytes())
    assert isinstance(peek(str(path))[1], Peek | str)


# -- peek -------------------------------------------------------------------------------------------------------------


def look(path: Path) -> Peek:
    _, found = peek(str(path))
    assert isinstance(found, Peek), found
    return found


def test_a_peek_knows_title_first_message_model_and_last_activity(tmp_path: Path) -> None:
    path = write_log(tmp_path / NAME, [
        user("a", None, "Fix the bug", 1), assistant("b", "a", "done", 2),
        entry("session_info", "c", "b", 50, name="My name"),
    ])  # fmt: skip
    found = look(path)
    assert (found.name, found.first, found.model, found.tail) == ("My name", "Fix the bug", "mock-1", "done")
    assert found.activity == 1767225602000, "A088: a name does not count as activity"
    assert found.created == 1767225600000


def test_neither_touching_nor_labelling_changes_the_last_activity(tmp_path: Path) -> None:
    """A088."""
    path = write_log(tmp_path / NAME, [user("a", None, "x", 1), assistant("b", "a", "y", 2)])
    before = look(path).activity
    with path.open("ab") as file:
        file.write(line(entry("label", "l", "b", 3000, targetId="a", label="mark")))
        file.write(line(entry("session_info", "n", "l", 3001, name="N")))
    os.utime(path, (1, 1))
    assert before == look(path).activity


CALL = [{"id": "c1", "name": "bash", "arguments": {"command": "ls"}}]
EXIT = {"customType": "session_exit", "data": {"kind": "normal"}}


@pytest.mark.parametrize(
    ("tail", "entries"),
    [
        ("empty", []),
        ("empty", [PI_MODEL]),
        ("open", [user("a", None, "x")]),
        ("done", [user("a", None, "x"), assistant("b", "a", "y")]),
        ("done", [user("a", None, "x"), assistant("b", "a", "y"), entry("label", "l", "b", targetId="a", label="z")]),
        ("pendingTool", [user("a", None, "x"), assistant("b", "a", calls=CALL)]),
        ("open", [user("a", None, "x"), assistant("b", "a", calls=CALL), tool_result("c", "b", "c1", "out")]),
        ("aborted", [user("a", None, "x"), assistant("b", "a", "part", stopReason="aborted")]),
        ("error", [user("a", None, "x"), assistant("b", "a", stopReason="error")]),
        ("interrupted", [user("a", None, "x"), entry("custom", "e", "a", **EXIT)]),
        ("done", [user("a", None, "x"), assistant("b", "a", "y"), entry("custom", "e", "b", **EXIT)]),
        # the leaf's path counts: the open prompt is on an abandoned branch
        ("done", [
            user("a", None, "x"), assistant("b", "a", "y"), user("c", "b", "again"),
            entry("label", "l", "b", targetId="a", label="z"),
        ]),
    ],
)  # fmt: skip
def test_the_tail_says_how_the_path_of_the_leaf_ends(tmp_path: Path, tail: str, entries: list[dict]) -> None:
    assert tail == look(write_log(tmp_path / NAME, entries)).tail


@pytest.mark.parametrize(
    ("tail", "reason"),
    [("done", "completed"), ("aborted", "aborted"), ("interrupted", "interrupted"), ("error", "error")],
)
def test_a_recorded_turn_says_itself_how_it_ended(tmp_path: Path, tail: str, reason: str) -> None:
    turn = [entry("turn_start", "t", None, turn=1), user("a", "t", "x"), assistant("b", "a", "y")]
    head = header(generator="dsh-daemon/1")
    assert look(write_log(tmp_path / NAME, turn, head)).tail == "open"
    closed = [*turn, entry("turn_end", "e", "b", turn=1, reason={"kind": reason})]
    assert tail == look(write_log(tmp_path / NAME, closed, head)).tail
    assert (
        look(write_log(tmp_path / NAME, [*closed, user("c", "e", "q"), assistant("d", "c", "r")], head)).tail == "done"
    )


def test_a_large_file_is_read_at_its_ends_only(tmp_path: Path) -> None:
    middle = [assistant(f"m{i}", "a" if i == 0 else f"m{i - 1}", "w" * 50_000, 10 + i) for i in range(40)]
    last = [user("u2", "m39", "more", 100), assistant("z", "u2", calls=CALL, second=101)]
    path = write_log(tmp_path / NAME, [user("a", None, "First", 1), *middle, *last])
    found = look(path)
    assert (found.first, found.tail, found.activity) == ("First", "pendingTool", 1767225701000)
    assert not found.name_sure


def test_a_name_in_the_tail_of_a_large_file_is_sure(tmp_path: Path) -> None:
    long = [assistant("m", "a", "w" * 900_000, 2), entry("session_info", "n", "m", 3, name="Late name")]
    found = look(write_log(tmp_path / NAME, [user("a", None, "First", 1), *long]))
    assert (found.name, found.name_sure) == ("Late name", True)


def test_the_first_message_is_known_although_an_image_makes_its_line_huge(tmp_path: Path) -> None:
    message = user("a", None, "What is this?")
    message["message"]["content"].append({"type": "image", "data": "A" * 3_000_000, "mimeType": "image/png"})
    found = look(write_log(tmp_path / NAME, [message, assistant("b", "a", "a cat", 2)]))
    assert (found.first, found.tail) == ("What is this?", "done")


def test_padding_with_nul_bytes_does_not_hide_a_session(tmp_path: Path) -> None:
    """A009."""
    path = write_log(tmp_path / NAME, [user("a", None, "x"), assistant("b", "a", "y")])
    path.write_bytes(path.read_bytes()[:-1] + b"\0" * 9_000 + b"\n" + b"\0" * 143_000)
    found = look(path)
    assert (found.health, found.tail, found.first) == ("recovered", "done", "x")


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert peek(str(tmp_path / "pipe.jsonl"))[1] == "not a regular file"


def test_ids_from_names() -> None:
    assert id_from_name("/x/2026-11-30T09-46-15-898Z_my.custom_id-1.jsonl") == "my.custom_id-1"
    assert id_from_name("v1.jsonl") == "v1"
    assert id_from_name("/a/s~0020x/session.jsonl.zstd") == "s x", "dsh names the folder for the id"
    assert readable("a\ud800b") == "a\ufffdb"


# -- versions 1 and 2 -------------------------------------------------------------------------------------------------


def test_version_1_gets_ids_and_kept_ids() -> None:
    ids = [None, "e1", "e2", "e3"]
    old = {"type": "compaction", "summary": "s", "firstKeptEntryIndex": 2}
    new = migrate(old, 1, "e3", "e2", lambda n: ids[n] if n < len(ids) else None)
    assert new == {"type": "compaction", "summary": "s", "firstKeptEntryId": "e2", "id": "e3", "parentId": "e2"}
    assert "firstKeptEntryIndex" in old, "the stored entry is left alone"
    assert made_up_id("s", 10) == made_up_id("s", 10) != made_up_id("s", 11)
    assert len(made_up_id("s\ud800", 10)) == 8


def test_version_2_loses_the_hook_role() -> None:
    old = {**user("a", None, "x"), "message": {"role": "hookMessage", "content": "c"}}
    assert migrate(old, 2, "a", None, lambda _: None)["message"]["role"] == "custom"
    assert old["message"]["role"] == "hookMessage"
    assert migrate(old, 3, "a", None, lambda _: None) is old


# -- the corpus -------------------------------------------------------------------------------------------------------


KILLED = {
    "01a22bd6-dcc6": "open",
    "01a22be0-0e15": "open",
    "01a22bdf-c99b": "pendingTool",
    "01a22bd6-ea20": "pendingTool",
}


@pytest.mark.skipif(CORPUS is None, reason="needs the corpus")
def test_every_file_of_the_corpus_is_told_and_left_as_it_is() -> None:
    assert CORPUS is not None
    files = sorted(p for p in CORPUS.rglob("*") if p.name.endswith((".jsonl", ".jsonl.zstd")))
    before = {p: hashlib.sha256(p.read_bytes()).digest() for p in files}
    assert files
    for path in files:
        kind = path.relative_to(CORPUS).parts[0]
        found = peek(str(path))[1]
        if path.name == "not_session.jsonl":
            assert isinstance(found, str)
            continue
        assert isinstance(found, Peek), (path, found)
        if kind in {"pi", "omp"}:
            assert kind == found.format, path
        elif "dsh" in path.parts:
            assert (found.format, found.health) == ("dsh", "ok"), path
        else:
            assert ("omp" if path.name.startswith("title_slot") else "pi") == found.format, path
        if kind in {"pi", "omp"}:
            killed = {
                "01a22bd6-dcc6": "open",
                "01a22be0-0e15": "open",
                "01a22bdf-c99b": "pendingTool",
                "01a22bd6-ea20": "pendingTool",
            }
            expected = next((t for i, t in killed.items() if i in path.name and "resumed" not in str(path)), None)
            assert expected is None or expected == found.tail, path
    assert before == {p: hashlib.sha256(p.read_bytes()).digest() for p in files}
