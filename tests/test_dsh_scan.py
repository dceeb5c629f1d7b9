"""The events of a dsh log as an index: every stored line is an entry, in one chain; what is wrong is named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from dsh_daemon.entries import Flag
from dsh_daemon.log import snapshot
from dsh_daemon.log.formats import dsh
from dsh_daemon.log.formats.peek import Peek, peek
from dsh_daemon.log.frames import open_journal
from dsh_daemon.log.index import Index
from dsh_daemon.log.scan import scan
from dsh_daemon.session import Session

from .dsh_logs import START, Log, damaged, dump, frame, story
from .indexes import Bytes
from .support import CORPUS

PLAIN = story()


def indexed(data: bytes) -> Index:
    index = Index()
    scan(index, Bytes(data), len(data))
    return index


def codes(index: Index) -> list[str]:
    return [diagnostic["code"] for diagnostic in index.diagnostics]


def chained(*numbers: int, log: Log | None = None) -> bytes:
    """Events of these numbers, in this order."""
    made = [
        {"type": "todo/write", "seq": n, "time": START + k, "data": {"todos": [{"content": f"{k}"}]}}
        for k, n in enumerate(numbers)
    ]
    return dump((log or Log()).header) + b"".join(map(dump, made))


def test_every_line_is_an_entry_and_the_child_of_the_one_before() -> None:
    index = indexed(PLAIN.plain(packed=True))
    records = [dump(event) for event in PLAIN.events]
    assert codes(index) == []
    assert (index.header.format, index.header.state, index.header.version) == ("dsh", "ok", 0)
    assert list(index.parent) == list(range(-1, len(index) - 1))
    assert index.surface.next == len(PLAIN.events)
    assert len(index) == len(PLAIN.lines(packed=True)) < len(records)
    for i, name in enumerate(index.ids):
        assert index.ordinal[name] == i
        assert index.time[i] == START + int(name)
    assert (index.facts.title, index.facts.title_source) == ("The real title", "user")
    assert index.facts.model == "deepseek-v4-flash"
    assert index.ids[index.facts.first_user] == "4"
    spoken = [event for event in PLAIN.events if event["type"] in dsh.MESSAGES]
    assert index.facts.messages == len(spoken)
    assert index.facts.last_activity == spoken[-1]["time"]


def test_rows_are_the_events_that_they_stand_for() -> None:
    """A150: fewer lines than events; nothing is lost."""
    index = indexed(PLAIN.plain(packed=True))
    text = PLAIN.plain(packed=True)
    stored = [text[index.offset[i] : index.offset[i] + index.length[i]] for i in range(len(index))]
    events = [event for line in stored for event in dsh.expand(json.loads(line))]
    assert events == PLAIN.events
    unpacked = indexed(PLAIN.plain())
    shown = [(i.ids[k], i.shape_of(k)) for i in (index, unpacked) for k in range(len(i)) if not hidden(i, k)]
    assert shown[: len(shown) // 2] == shown[len(shown) // 2 :]
    assert [index.ids[i] for i in index.surface.shown] == [unpacked.ids[i] for i in unpacked.surface.shown]


def hidden(index: Index, i: int) -> bool:
    return index.type_of(i) == "assistant_chunks"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("batch", [1, 3, 50])
def test_plain_and_compressed_logs_are_the_same(tmp_path: Path, batch: int, packed: bool) -> None:
    """A149."""
    paths = [PLAIN.write(tmp_path / str(z), zstd=z, packed=packed, batch=batch) for z in (False, True)]
    plain, zstd = (Session.open(str(path)) for path in paths)
    assert list(plain.index.ids) == list(zstd.index.ids)
    assert plain.index.offset == zstd.index.offset
    for i in range(len(plain.index)):
        assert plain.stored(i) == zstd.stored(i)
        assert plain.entry(i) == zstd.entry(i)
    assert plain.faults() == zstd.faults() == []
    looks = [peek(str(path))[1] for path in paths]
    assert looks[0] == looks[1]
    assert isinstance(looks[0], Peek)
    assert (looks[0].name, looks[0].first, looks[0].tail) == ("The real title", "First thing, naïve 한국어 🙂", "done")


def test_a_gap_is_named_and_both_sides_are_shown() -> None:
    """A146: a small gap made a whole history unavailable."""
    index = indexed(chained(0, 1, 2, 7, 8))
    assert list(index.ids) == ["0", "1", "2", "7", "8"]
    assert [(d["code"], d.get("line"), d.get("expected"), d.get("got")) for d in index.diagnostics] == [
        ("seq_gap", 5, 3, 7)
    ]
    assert index.diagnostics[0]["severity"] == "error"
    assert index.damage == [(index.offset[3], 0)]


def test_numbers_that_start_anew_are_a_second_run_and_nothing_is_lost() -> None:
    """A146, A147: two writers, or one that was restarted with an old number."""
    index = indexed(chained(0, 1, 2, 3, 4, 5, 3, 4, 5, 6))
    assert list(index.ids) == ["0", "1", "2", "3", "4", "5", "3~2", "4~2", "5~2", "6"]
    assert [(d["code"], d.get("expected"), d.get("got")) for d in index.diagnostics if d["code"] == "seq_gap"] == [
        ("seq_gap", 6, 3)
    ]
    assert index.ordinal["3"] == 3
    assert index.ordinal["3~2"] == 6
    assert list(index.parent) == list(range(-1, 9))
    assert "03" not in index.ordinal
    assert "99" not in index.ordinal
    again = indexed(chained(0, 1, 5, 6, 3, 4, 7))
    assert list(again.ids) == ["0", "1", "5", "6", "3", "4", "7"]
    assert [again.ordinal[name] for name in again.ids] == list(range(7))


def test_lines_that_came_twice_are_one_entry() -> None:
    lines = PLAIN.lines()
    index = indexed(dump(PLAIN.header) + b"".join([*lines[:9], *lines[6:]]))
    assert list(index.ids) == [str(n) for n in range(len(lines))]
    assert codes(index) == ["seq_gap"]


def test_a_compaction_stands_in_the_place_of_what_it_replaces() -> None:
    log = Log()
    first = log.prompt("one")
    log.answer("first", stream=False)
    kept = log.prompt("two")
    later = log.compact(first, kept - 4, "summary")
    index = indexed(log.plain())
    shown = [index.ids[i] for i in index.surface.shown]
    assert shown == [str(later), str(kept)]
    assert {index.ids[old]: index.ids[new] for old, new in index.surface.shadowed.items()} == {
        str(first): str(later), str(first + 1): str(later)
    }  # fmt: skip
    assert [index.type_of(index.ordinal[name]) for name in shown] == ["compaction", "message"]


def test_a_replacement_of_what_is_not_there_is_told_and_stands_at_the_end() -> None:
    log = Log()
    log.prompt("one")
    made = log.compact(900, 901, "of nothing")
    index = indexed(log.plain())
    assert codes(index) == ["surface_range"]
    assert index.ids[index.surface.shown[-1]] == str(made)


def test_an_unknown_event_is_kept_and_named_unless_it_may_be_ignored() -> None:
    log = Log()
    log.talk("hello", "answer")
    log.add("future/event", {"deep": [1]}, ignorable=True)
    log.add("future/other", {"x": 1})
    log.add("future/other", {"x": 2})
    log.add("label", {"targetId": "1"})
    index = indexed(log.plain())
    told = [(d["code"], d.get("entryId")) for d in index.diagnostics]
    assert told == [("unknown_event", str(len(log.events) - 3)), ("unknown_event", str(len(log.events) - 1))]
    assert set(index.surface.required) == {"future/other", "label"}
    last = len(index) - 1
    assert index.shape_of(last - 3).flags & Flag.UNKNOWN
    assert (index.shape_of(last - 1).own_type, index.type_of(last)) == ("future/other", "dsh:label")
    assert not index.labels


def test_a_line_without_its_newline_does_not_count() -> None:
    """dsh writes something else in its place when it resumes."""
    data = PLAIN.plain()
    index = indexed(data[:-1])
    assert len(index) == len(PLAIN.events) - 1
    assert codes(index) == ["torn_tail"]
    scan(index, Bytes(data), len(data))
    assert len(index) == len(PLAIN.events)
    assert codes(index) == []


@pytest.mark.parametrize(
    ("change", "code", "state"),
    [
        (lambda data: data.split(b"\n", 1)[1], "no_header", "headerless"),
        (lambda data: b"{broken" + data[7:], "broken_header", "broken"),
        (lambda data: data.replace(b"\n", b"\r\n"), "crlf", "ok"),
        (lambda data: b"\xef\xbb\xbf" + data, "bom", "ok"),
        (lambda data: data.replace(b'"version":0', b'"version":1', 1), "future_version", "ok"),
        (lambda data: data + dump(PLAIN.header), "extra_header", "ok"),
        (lambda data: data + b'{"type":"turn/start","time":3,"data":{"turn":9}}\n', "missing_id", "ok"),
        (lambda data: data + b"Killed: 9\n", "unreadable_line", "ok"),
    ],
)
def test_damage_costs_what_is_damaged(change: Callable[[bytes], bytes], code: str, state: str) -> None:
    index = indexed(change(PLAIN.plain()))
    assert (index.header.format, index.header.state) == ("dsh", state)
    assert codes(index) == [code]
    assert list(index.ids)[: len(PLAIN.events)] == [str(n) for n in range(len(PLAIN.events))]


def test_a_glued_or_cut_line_gives_what_can_be_read_of_it() -> None:
    lines = PLAIN.lines()
    head = dump(PLAIN.header)
    glued = indexed(head + b"".join(lines[:5]) + lines[5][:-1] + b"".join(lines[6:]))
    assert codes(glued) == ["glued_records"] or "glued_records" in codes(glued)
    cut = indexed(head + b"".join(lines[:5]) + lines[5][:20] + b"".join(lines[6:]))
    assert {"fragment", "seq_gap"} <= set(codes(cut))
    assert list(cut.ids) == [str(n) for n in range(len(lines)) if n != 5]


def test_fields_of_other_kinds_are_shown_as_far_as_they_go() -> None:
    odd: list[dict[str, Any]] = [
        {"type": "user/message", "seq": 0, "time": "noon", "data": "text", "surfaceOp": "append"},
        {"type": "assistant/message", "seq": 1, "time": 1.5, "data": {"message": 3}, "surfaceOp": 7},
        {"type": "tool/result", "seq": 2, "time": None, "data": {"message": {"content": "x"}}, "surfaceOp": {"op": 1}},
        {"type": "session/title", "seq": 3, "time": 10**30, "data": [1]},
        {"type": "text-chunks", "seq0": 4, "time0": 1, "data": {"texts": "x", "dt": 1}},
        {"type": "turn/end", "seq": 5, "data": None},
        {"type": 7, "seq": 6, "time": 1, "data": {}},
    ]
    data = dump(Log().header) + b"".join(map(dump, odd))
    index = indexed(data)
    assert list(index.ids) == ["0", "1", "2", "3", "4", "5", "6"]
    for i in range(len(index)):
        record = dsh.as_entry(odd[i], dsh.View(index.ids[i], None, index.time.iso(i)))
        assert record["id"] == str(i)


def test_a_long_run_of_damage_is_told_in_short() -> None:
    index = indexed(chained(*range(0, 40_000, 2)))
    assert len(index) == 20_000
    assert len(index.diagnostics) == 1_000


def test_the_index_comes_back_from_its_snapshot_and_goes_on(tmp_path: Path) -> None:
    log = story()
    path = log.write(tmp_path, packed=True)
    journal = open_journal(str(path))
    index = Index()
    scan(index, journal, journal.size())
    blob = snapshot.dump(index, journal)
    assert blob is not None
    kept = snapshot.load(blob, journal, journal.size())
    assert kept is not None
    log.talk("one more", "thing")
    with open(path, "ab") as file:
        file.write(frame(b"".join(log.lines()[-9:])))
    for one in (index, kept):
        scan(one, journal, journal.size())
    fresh = Session.open(str(path)).index
    for one in (index, kept):
        assert (list(one.ids), one.offset, one.surface) == (list(fresh.ids), fresh.offset, fresh.surface)
        assert [one.shape_of(i) for i in range(len(one))] == [fresh.shape_of(i) for i in range(len(one))]


@given(st.integers(0, 2**32))
@example(178622)  # the type of the header is damaged, and it still looks like a record
@settings(max_examples=250, deadline=None)
def test_random_damage_of_text_never_raises_and_loses_only_the_lines_that_it_touches(seed: int) -> None:
    dice = random.Random(seed)
    whole = PLAIN.plain(packed=True)
    data, at, stop = damaged(whole, dice)
    index = indexed(data)
    read = {data[index.offset[i] : index.offset[i] + index.length[i]].strip() for i in range(len(index))}
    start = whole.index(b"\n") + 1
    for line in PLAIN.lines(packed=True):
        end = start + len(line)
        if end <= at or start > max(stop, at + 1):
            assert line.strip() in read
        start = end


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_an_index_that_grows_is_the_index_of_the_whole(seed: int) -> None:
    dice = random.Random(seed)
    log = Log()
    for _ in range(dice.randrange(1, 5)):
        log.tool_turn("do", "ls", "done") if dice.random() < 0.5 else log.talk("say", "a long answer" * 3)
        if dice.random() < 0.4:
            shown = indexed(log.plain())
            names = [int(shown.ids[i]) for i in shown.surface.shown]
            low, high = sorted(dice.choices(range(len(names)), k=2))
            log.compact(names[low], names[high], "short")
    data = log.plain(packed=dice.random() < 0.5)
    grown = Index()
    for end in sorted({*dice.choices(range(len(data)), k=6), len(data)}):
        scan(grown, Bytes(data[:end]), end)
    whole = indexed(data)
    assert (list(grown.ids), grown.surface, grown.facts) == (list(whole.ids), whole.surface, whole.facts)
    assert grown.time.tobytes() == whole.time.tobytes()
    assert codes(whole) == []
    assert all(a < b for a, b in pairwise(whole.offset))


@pytest.mark.skipif(CORPUS is None, reason="needs the corpus")
def test_every_dsh_log_of_the_corpus_is_read_and_left_as_it_is() -> None:
    assert CORPUS is not None
    paths = sorted(path for part in ("dsh", "edge/dsh") for path in (CORPUS / part).rglob("session.jsonl*"))
    assert paths
    expected = {
        "flip_middle": {"damaged_frame", "seq_gap"}, "garbage_tail": {"damaged_frame"}, "plain_crlf": {"crlf"},
        "plain_no_nl": {"torn_tail"}, "plain_torn": {"torn_tail"}, "plain_version1": {"future_version"},
        "plain_wrong_id": {"wrong_folder"}, "torn_frame_big": {"torn_frame"},
    }  # fmt: skip
    for path in paths:
        before = path.read_bytes()
        session = Session.open(str(path))
        case = path.relative_to(CORPUS / "edge" / "dsh").parts[0] if "edge" in path.parts else ""
        assert {fault["code"] for fault in session.faults()} == expected.get(case, set()), path
        assert session.header.format == "dsh"
        assert len(session.index) > 20
        for i in range(len(session.index)):
            assert session.entry(i)["id"] == session.stored(i)["id"] == session.index.ids[i]
        assert path.read_bytes() == before


@pytest.mark.skipif(CORPUS is None, reason="needs the corpus")
def test_a_log_of_two_writers_is_read_whole() -> None:
    """A146: dsh never opens it again."""
    assert CORPUS is not None
    for path in sorted((CORPUS / "dsh").rglob("*two-writers*/**/session.jsonl*")):
        session = Session.open(str(path))
        assert "seq_gap" in {fault["code"] for fault in session.faults()}
        assert session.damaged
