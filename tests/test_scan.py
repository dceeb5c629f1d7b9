"""The scan of a log: what it keeps of damaged ones, and that it does not matter when it looks."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from dataclasses import asdict
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import example, given, settings, strategies as st

from dsh_daemon.entries import Flag
from dsh_daemon.log.index import NO_TIME, NONE, Index
from dsh_daemon.log.journal import FileJournal, MemoryJournal
from dsh_daemon.log.scan import continues, scan
from dsh_daemon.session import Session
from tests import generate
from tests.damage import CLEAN, DAMAGES, ENTRIES, Damage
from tests.indexes import trees
from tests.support import CORPUS, assistant, entry, header, line, tool_result, user

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def opened(data: bytes) -> Session:
    session = Session(MemoryJournal(data))
    session.load()
    return session


def scanned(data: bytes, *stops: int) -> Index:
    """Index of `data`, scanned up to each of `stops` in turn and then to the end."""
    index, source = Index(), MemoryJournal(data)
    for stop in (*sorted(stops), len(data)):
        scan(index, source, stop)
    return index


def log(entries: Iterable[dict[str, Any]], **head: Any) -> bytes:
    return line(header(**head)) + b"".join(line(e) for e in entries)


def state(index: Index) -> dict[str, Any]:
    """All that anybody sees of an index."""
    names = (
        "ids", "ordinal", "parent", "offset", "length", "orphans", "waiting", "cuts", "forward", "knotted", "label_log",
        "labels", "diagnostics", "damage", "crlf", "end", "line", "mark", "pending", "provisional", "slot",
        "header_seen",
    )  # fmt: skip
    found = {name: getattr(index, name) for name in names}
    found["time"] = bytes(index.time.text)
    found["shapes"] = [index.shape_of(i) for i in range(len(index))]
    found["copies"] = {id_: count for id_, count in index.copies.items() if count > 1}
    return found | {"facts": asdict(index.facts), "header": asdict(index.header)}


def codes(index: Index) -> set[str]:
    found = {d["code"] for d in index.diagnostics}
    return found | ({"unknown_parent"} if index.orphans else set()) | ({"cycle"} if index.cuts else set())


def parents(index: Index) -> dict[str, str | None]:
    return {id_: index.id_of(index.parent[i]) for i, id_ in enumerate(index.ids)}


def check_whole(session: Session) -> None:
    """What holds of every index: a forest, no entry twice, every body readable and fit for the wire."""
    index = session.index
    n = len(index)
    assert {len(c) for c in (index.ids, index.parent, index.offset, index.length, index.time, index.shape)} == {n}
    assert index.ordinal == {id_: i for i, id_ in enumerate(index.ids)}
    ends = [*index.offset[1:], index.size]
    assert all(a + b <= c for a, b, c in zip(index.offset, index.length, ends, strict=False))
    done: set[int] = {NONE}
    for i in range(n):
        walk: list[int] = []
        while i not in done:
            done.add(i)
            walk.append(i)
            i = index.parent[i]  # noqa: PLW2901
            assert i not in walk
    for i in range(n):
        shown = session.entry(i)
        assert shown["id"] == index.ids[i]
        orjson.dumps(shown)
    assert sum(len(waiting) for waiting in index.waiting.values()) == len(index.orphans)
    orjson.dumps(index.diagnostics)
    lines = session.journal.read(0, session.journal.size()).count(b"\n") + 1
    for found in index.diagnostics:
        assert 0 <= found["offset"] <= found["offset"] + found["length"] <= index.size
        assert 1 <= found["line"] <= lines


light = pytest.mark.parametrize("damage", [d for d in DAMAGES if not d.heavy], ids=lambda d: d.name)


@light
def test_damage_costs_what_is_damaged_and_is_named(damage: Damage):
    session = opened(damage.apply(CLEAN))
    index = session.index

    assert codes(index) == set(damage.codes)
    assert len(index) == ENTRIES - len(damage.lost) + damage.added
    kept = [id_ for i, id_ in enumerate(opened(CLEAN).index.ids) if i not in {n % ENTRIES for n in damage.lost}]
    assert set(kept) - set(index.ids) <= ({"00000004"} if "missing_id" in damage.codes else set())
    check_whole(session)


@light
def test_a_damaged_log_reads_the_same_however_it_grew(damage: Damage):
    data = damage.apply(CLEAN)
    whole = state(scanned(data))
    rng = random.Random(damage.name)
    for _ in range(60):
        stops = rng.sample(range(len(data) + 1), rng.randrange(1, 4))
        assert state(scanned(data, *stops)) == whole, stops


def test_each_damage_of_two_together_is_named():
    pairs = random.Random(1).sample([(a, b) for a in DAMAGES for b in DAMAGES if not a.heavy and not b.heavy], 150)
    for first, second in pairs:
        try:
            data = second.apply(first.apply(CLEAN))
        except (ValueError, IndexError, TypeError):
            continue  # the second needs a line that the first has destroyed
        session = opened(data)
        check_whole(session)
        cut = len(data) // 2
        assert state(scanned(data, cut)) == state(session.index), (first.name, second.name)


@settings(max_examples=60, deadline=None)
@given(trees(12, shuffled=True), st.data())
def test_any_prefix_of_a_log_opens_with_every_entry_whose_line_is_complete(
    entries: list[dict[str, Any]], data: st.DataObject
):
    whole = log(entries)
    cut = data.draw(st.integers(0, len(whole)))
    session = opened(whole[:cut])

    complete = max(whole[:cut].count(b"\n") - 1, 0)
    assert session.index.ids[:complete] == [e["id"] for e in entries[:complete]]
    assert len(session.index) - complete in {0, 1}
    check_whole(session)


def test_every_prefix_of_the_sample_opens():
    for cut in range(len(CLEAN)):
        index = scanned(CLEAN[:cut])
        assert len(index) - index.provisional == max(CLEAN[:cut].count(b"\n") - 1, 0)


@settings(max_examples=60, deadline=None)
@given(trees(14, shuffled=True), st.data())
def test_a_log_reads_the_same_however_it_grew(entries: list[dict[str, Any]], data: st.DataObject):
    whole = log(entries)
    stops = data.draw(st.lists(st.integers(0, len(whole)), max_size=3))
    assert state(scanned(whole, *stops)) == state(scanned(whole))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(-1, 7), st.booleans()), max_size=12), st.data())
def test_knots_repeats_and_orphans_read_the_same_however_they_grew(
    links: list[tuple[int, int, bool]], data: st.DataObject
):
    """Ids and parents from a small pool: cycles, self-parents, duplicates and forward parents are all frequent."""
    whole = log(
        [
            user(f"e{a}", None if b < 0 else f"e{b}", "same" if same else f"text {k}")
            for k, (a, b, same) in enumerate(links)
        ]
    )
    stops = data.draw(st.lists(st.integers(0, len(whole)), max_size=4))
    assert state(scanned(whole, *stops)) == state(scanned(whole))
    check_whole(opened(whole))


@settings(max_examples=50, deadline=None)
@given(trees(10), st.randoms(use_true_random=False))
def test_a026_the_order_of_lines_does_not_change_the_tree(entries: list[dict[str, Any]], rng: random.Random):
    shuffled = rng.sample(entries, len(entries))
    assert parents(scanned(log(shuffled))) == parents(scanned(log(entries)))


def test_a026_a_result_may_stand_before_its_call():
    made = [tool_result("t1", "a1", "c", "out"), assistant("a1", "u1", "x"), user("u1", None, "hi")]
    index = scanned(log(made))
    assert parents(index) == {"t1": "a1", "a1": "u1", "u1": None}
    assert codes(index) == set()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 600))
@example(b"\xff", b"", 1)
@example(b"{", b'{"type":"session","id":"s"}\n{"type":"message"', 3)
def test_no_bytes_at_all_make_the_scan_raise(before: bytes, after: bytes, cut: int):
    for data in (before + after, line(header()) + before + b"\n" + after, before + b"\n" + CLEAN + after):
        session = opened(data)
        check_whole(session)
        assert state(scanned(data, min(cut, len(data)))) == state(session.index)


_PIECES = st.sampled_from([
    b'{"type":"message"', b',"id":"e1"', b',"id":"e2"', b',"parentId":"e1"', b',"parentId":null',
    b"}", b"{", b"[", b"]", b'"', b"\n", b"\r\n", b"\0", b" ", b"\\", b"\\ud83d", b"\xff", b",", b":", b"NaN", b"7",
    b'{"type":"session","id":"s"}', b',"timestamp":"2026-01-01T00:00:00.000Z"', b"123456789012345678901234567890",
    b',"message":{"role":"assistant","content":[', b'{"type":"toolCall"}', b"1e999", b"\xef\xbb\xbf",
    b'{"type":"label","id":"l","targetId":"e1","label":"x","parentId":null}',
])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(_PIECES, max_size=40), st.integers(0, 400))
def test_no_pieces_of_records_make_the_scan_raise(pieces: list[bytes], cut: int):
    data = line(header()) + b"".join(pieces)
    session = opened(data)
    check_whole(session)
    assert state(scanned(data, min(cut, len(data)))) == state(session.index)


MB = 1 << 20
HOSTILE = {
    "a type that never ends": b'{"type":"' * (10 * MB // 9),
    "open braces": b"{" * (10 * MB),
    "open objects": b'{"a":' * (10 * MB // 5),
    "open arrays in records": b'{"type":[' * (10 * MB // 9),
    "one endless string": b'{"type":"message","id":"x","parentId":null,"text":"' + b"a" * (10 * MB),
    "one endless string of escapes": b'{"type":"message","id":"x","text":"' + b'\\"' * (5 * MB),
    "deep, then an endless string of escapes": b"[" * 5_000 + b'"' + b'\\"' * (5 * MB),
    "records that open one another": b'{"id":[' * 200 + b"1," * (5 * MB),
    "numbers": b"1 " * (5 * MB),
    "one number": b'{"type":"message","id":"x","parentId":null,"n":' + b"7" * (10 * MB) + b"}",
    "empty objects": b"{}" * (5 * MB),
    "objects that are no records": b'{"id":1}' * (10 * MB // 8),
    "tiny records": b'{"type":"a","id":"%d","parentId":null}' * (2 * MB // 38),
    "NULs and braces": b"\0{" * (2 * MB),
    "spaces": b" " * (10 * MB),
    "quotes": b'"' * (10 * MB),
    "backslashes": b"\\" * (10 * MB),
    "half characters": b'{"type":"message","id":"x","parentId":null,"t":"' + b"\\ud83d" * (10 * MB // 6) + b'"}',
    "bad bytes": b'{"type":"message","id":"x","parentId":null,"t":"' + b"\xff" * (10 * MB) + b'"}',
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("end", [b"", b"\n"], ids=["torn", "whole"])
def test_a_hostile_line_of_10_mb_takes_seconds_at_most(name: str, end: bytes):
    started = time.process_time()
    index = scanned(line(header()) + line(user("u1", None, "before")) + HOSTILE[name] + end)

    assert index.ids[0] == "u1"
    assert time.process_time() - started < 8


@pytest.mark.parametrize("text", [b"\n", b"x\n", b"{}\n", b'{"type":"message","id":"a","parentId":null}\n', b"\0\n"])
def test_lines_of_nothing_are_stepped_over_in_no_time(text: bytes):
    started = time.process_time()
    index = scanned(line(header()) + text * 40_000)

    assert len(index) <= 1
    assert len(index.diagnostics) <= 1_000
    assert time.process_time() - started < 4


def test_a_different_line_of_one_id_each_time_is_linear():
    made = b"".join(line(user("same", None, f"text {k}")) for k in range(5_000))
    index = scanned(line(header()) + made)
    assert index.ids[:3] == ["same", "same~2", "same~3"]
    assert len(index) == 5_000


@pytest.mark.parametrize("depth", [150, 300, 900, 5_000, 100_000])
def test_a_record_that_is_nested_deeply_is_still_an_entry_with_its_neighbours(depth: int):
    deep = (
        line(user("u2", "u1", "@"))[:-2] + b',"data":' + b'{"a":[' * (depth // 2) + b"1" + b"]}" * (depth // 2) + b"}\n"
    )
    session = opened(line(header()) + line(user("u1", None, "x")) + deep + line(user("u3", "u2", "y")))
    assert parents(session.index) == {"u1": None, "u2": "u1", "u3": "u2"}
    check_whole(session)


def test_a003_glued_records_are_split_outside_of_strings_only():
    made = [user("u1", None, 'a }{ "b" }{"type":"message","id":"no","parentId":null}'), assistant("a1", "u1", "}{")]
    session = opened(line(header()) + line(made[0])[:-1] + line(made[1]))
    assert [session.entry(i) for i in range(2)] == made


def test_a004_a_fragment_before_its_full_record_makes_no_second_entry():
    made = [user(f"u{k}", None, "text " * 9) for k in range(3)]
    lines = b"".join(line(e)[: 30 + 9 * k] + line(e) for k, e in enumerate(made))
    session = opened(line(header()) + lines)
    assert session.index.ids == ["u0", "u1", "u2"]
    assert [d["code"] for d in session.index.diagnostics] == ["fragment"] * 3


def test_two_hundred_fragments_on_one_line_are_stepped_over():
    full = line(user("u1", None, "x"))
    index = scanned(line(header()) + full[:40] * 199 + full + line(user("u2", "u1", "y")))
    assert index.ids == ["u1", "u2"]


def test_a011_a_bad_line_is_a_damaged_region_and_a_torn_tail_is_not():
    bad = log([user("u1", None, "x")]) + b"Killed: 9\n" + line(user("u2", "u1", "y"))
    assert scanned(bad).damage == [(bad.index(b"Killed"), 9)]
    assert scanned(bad[:-20]).damage == [(bad.index(b"Killed"), 9)]
    assert scanned(log([user("u1", None, "x")]) + b'{"type":"mess').damage == []


def test_a012_blank_lines_are_no_fault_and_a_printed_record_is_one():
    pretty = json.dumps(user("u2", "u1", "y"), indent=2).encode() + b"\n"
    index = scanned(log([user("u1", None, "x")]) + b"\n  \n\t\n" + pretty + line(user("u3", "u1", "z")))
    assert [d["code"] for d in index.diagnostics] == ["unreadable_line"]
    assert (index.diagnostics[0]["line"], index.diagnostics[0]["length"]) == (6, len(pretty) - 1)
    assert index.ids == ["u1", "u3"]


@pytest.mark.parametrize("k", range(30))
def test_a013_any_scalar_may_be_null(k: int):
    call = {"id": "c1", "name": "bash", "arguments": {"command": "ls"}}
    made = [user("u1", None, "x"), assistant("a1", "u1", "y", 2, [call])]
    places: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            places.append((value, key))
            if isinstance(inner, dict | list):
                collect(inner)

    collect(made[1])
    value, key = places[k % len(places)]
    value[key] = None
    session = opened(log(made))
    assert len(session.index) == 2
    check_whole(session)


def test_a017_the_same_line_again_is_one_entry_and_another_line_is_a_second():
    first, other = user("u1", None, "x"), user("u1", None, "other")
    index = scanned(log([first, first, other, user("u2", "u1", "y"), other, first, user("u1", None, "third")]))
    assert index.ids == ["u1", "u1~2", "u2", "u1~3"]
    assert parents(index)["u2"] == "u1"
    assert [(d["code"], d["entryId"], d["line"]) for d in index.diagnostics] == [
        ("duplicate_id", "u1~2", 4),
        ("duplicate_id", "u1~3", 8),
    ]


def test_a018_an_orphan_is_a_root_until_its_parent_turns_up():
    made = [user("u1", None, "a"), assistant("a1", "u1", "b"), user("u2", "lost", "c"), assistant("a2", "u2", "d")]
    data = log(made)
    session = opened(data)
    assert parents(session.index) == {"u1": None, "a1": "u1", "u2": None, "a2": "u2"}
    assert session.index.orphans == {2: "lost"}
    assert session.index.flags_of(2) & Flag.ORPHAN

    more = data + line(assistant("lost", "a1", "late"))
    assert parents(scanned(more, len(data)))["u2"] == "lost"
    assert scanned(more, len(data)).orphans == {}


def test_a015_a_cycle_is_cut_at_the_entry_that_stands_first():
    made = [
        user("r", None, "root"),
        user("a", "c", "1"),
        user("b", "a", "2"),
        user("c", "b", "3"),
        user("s", "s", "self"),
    ]
    index = scanned(log(made))
    assert parents(index) == {"r": None, "a": None, "b": "a", "c": "b", "s": None}
    assert index.cuts == {1: "c", 4: "s"}


def test_a_cycle_through_an_unfinished_line_is_undone_with_it():
    data = log([user("a", "b", "1")])
    closing = line(user("b", "a", "2"))[:-1]
    index, source = Index(), MemoryJournal(data + closing)
    scan(index, source, len(data + closing))
    assert index.cuts == {0: "b"}

    source.data[:] = data + b"garbage\n"
    scan(index, source, len(source.data))
    assert (index.cuts, index.orphans) == ({}, {0: "b"})


def test_a020_records_without_an_id_of_their_own_reach_nobody():
    made = [user("x", None, "a"), {"type": "file-history-snapshot", "messageId": "x"}, assistant("y", "x", "b")]
    index = scanned(log(made))
    assert parents(index) == {"x": None, "y": "x"}
    assert codes(index) == {"not_an_entry"}


def test_a028_the_first_header_counts_and_entries_of_both_parts_are_there():
    data = log([user("u1", None, "a")]) + line(header("other")) + line(assistant("a1", "u1", "b"))
    index = scanned(data)
    assert index.header.session_id == "s1"
    assert [(d["code"], d["line"]) for d in index.diagnostics] == [("extra_header", 3)]
    assert index.ids == ["u1", "a1"]


def test_a029_types_of_the_future_are_entries():
    made = [user("u1", None, "a"), entry("unknown_future_entry_type", "f1", "u1", fields=[1]), user("u2", "f1", "b")]
    session = opened(log(made))
    assert parents(session.index) == {"u1": None, "f1": "u1", "u2": "f1"}
    shape = session.index.shape_of(1)
    assert (shape.kind, shape.flags) == ("other", Flag.UNKNOWN)
    assert session.raw(1) == line(made[1])[:-1]


def test_a070_an_image_of_64_mb_is_one_entry_and_leaves_no_copy_behind():
    damage = next(d for d in DAMAGES if d.heavy)
    data = damage.apply(CLEAN)
    index = scanned(data)
    assert codes(index) == {"huge_line"}
    assert len(index) == ENTRIES
    tracemalloc.start()
    scanned(data)
    left, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < MB
    assert peak < 4 * len(data)


def test_a083_lines_end_at_newlines_only():
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh"
    made = [user("u1", None, text), assistant("a1", "u1", text)]
    session = opened(log(made))
    assert [session.entry(i) for i in range(2)] == made


def test_a084_half_a_character_is_named_and_reads_as_the_replacement_character():
    broken = line(user("u1", None, "abc@ def")).replace(b"@", b"\\ud83d")
    data = line(header()) + line(user("u0", None, "x")) + broken
    session = opened(data)
    assert [(d["code"], d["line"], d["offset"]) for d in session.index.diagnostics] == [
        ("lone_surrogate", 3, data.index(b"\\ud83d"))
    ]
    assert session.entry(1)["message"]["content"][0]["text"] == "abc\ufffd def"


@pytest.mark.parametrize(
    "escaped", [b"\\ud83d\\ude00", b"\\\\ud83d", b"\\\\\\\\ude00", b"\\u005cud83d", b"\\uD83D\\uDE00"]
)
def test_whole_characters_and_escaped_backslashes_are_no_half_characters(escaped: bytes):
    data = line(header()) + line(user("u1", None, "@")).replace(b"@", escaped)
    assert codes(scanned(data)) == set()


TIMES = {
    "2026-01-01T00:00:00.001Z": 1_767_225_600_001,
    "2026-01-01T14:00:00+14:00": 1_767_225_600_000,
    "2026-01-01T00:00:00": 1_767_225_600_000,
    "2026-01-01": 1_767_225_600_000,
    1_767_225_600_000: 1_767_225_600_000,
    1_767_225_600_000.9: 1_767_225_600_000,
    0: 0,
    "1970-01-01T00:00:00.000Z": 0,
    "1969-12-31T23:59:59.999Z": -1,
    "0001-01-01T00:00:00.000Z": -62_135_596_800_000,
    "9999-12-31T23:59:59.999Z": 253_402_300_799_999,
    "9999-12-31T23:59:59-14:00": NO_TIME,
    "0001-01-01T00:00:00+14:00": NO_TIME,
    None: NO_TIME,
    "": NO_TIME,
    "yesterday": NO_TIME,
    "2026-13-01T00:00:00.000Z": NO_TIME,
    "2026-01-01T00:00:99.000Z": NO_TIME,
    "2026-01-01T00:00:+1.000Z": NO_TIME,
    "\uff12026-01-01T00:00:00.00Z": NO_TIME,
    1e300: NO_TIME,
    10**30: NO_TIME,
    True: NO_TIME,
}


@pytest.mark.parametrize("among", [0, 3])
@pytest.mark.parametrize("stamp", TIMES, ids=repr)
def test_a093_times_of_every_form_are_read_and_nothing_raises(stamp: Any, among: int):
    others = [user(f"o{k}", None, "x", k) for k in range(among)]
    index = scanned(log([*others, user("u1", None, "x") | {"timestamp": stamp}]))
    assert index.time[among] == TIMES[stamp]
    assert [index.time[k] for k in range(among)] == [1_767_225_600_000 + 1000 * k for k in range(among)]
    assert index.facts.last_activity == max(TIMES[stamp], 1_767_225_602_000 if among else NO_TIME)


def test_a094_the_last_activity_is_the_latest_time_of_a_message_whatever_the_order():
    made = [user("u1", None, "x", 50), user("u2", "u1", "y", 20), entry("custom", "c1", "u2", 90)]
    assert scanned(log(made)).facts.last_activity == 1_767_225_650_000


def test_a_last_line_without_newline_is_an_entry_for_now():
    data = log([user("u1", None, "x"), user("u2", "u1", "y")])[:-1]
    index = scanned(data)
    assert (index.ids, index.provisional, index.size) == (["u1", "u2"], 1, len(data))
    assert [d["code"] for d in index.diagnostics] == ["missing_newline"]

    grown = data + b"\n" + line(user("u3", "u2", "z"))
    assert state(scanned(grown, len(data))) == state(scanned(grown))
    assert codes(scanned(grown, len(data))) == set()


def test_an_unfinished_last_line_gives_way_to_what_it_becomes():
    first = log([user("u1", None, "x")])
    for last in (
        user("u2", "u1", "y"),
        entry("session_info", "n1", "u1", name="Name"),
        entry("label", "l1", "u1", targetId="u1", label="L"),
    ):
        whole = first + line(last)
        for cut in range(len(first), len(whole)):
            assert state(scanned(whole, cut)) == state(scanned(whole))


def test_the_last_label_in_the_file_counts_whichever_branch_it_is_on():
    made = [
        entry("label", "l0", None, targetId="late", label="before its target"),
        user("u1", None, "a"),
        entry("label", "l1", "u1", targetId="u1", label="one"),
        assistant("a1", "u1", "b"),
        entry("label", "l2", "a1", targetId="u1", label=" two "),
        entry("label", "l3", "l2", targetId="a1", label="x"),
        entry("label", "l4", "l3", targetId="a1", label="  "),
        entry("label", "l5", "l4", targetId="nobody", label="x"),
        user("late", "l5", "c"),
    ]
    data = log(made)
    for cut in range(0, len(data), 7):
        index = scanned(data, cut)
        assert {index.ids[i]: (label.text, index.ids[label.by]) for i, label in index.labels.items()} == {
            "u1": ("two", "l2"),
            "late": ("before its target", "l0"),
        }
    assert scanned(data + line(entry("label", "l6", "late", targetId="u1")), len(data)).labels.keys() == {8}


def test_what_an_answer_is_made_of_is_noted():
    call = {"id": "c", "name": "bash", "arguments": {}}
    thought = {"type": "thinking", "thinking": "hm"}
    cases: list[tuple[dict[str, Any], int]] = [
        (assistant("a", None, "text"), 0),
        (assistant("a", None, "", calls=[call]), Flag.CALLS | Flag.TOOLS_ONLY),
        (assistant("a", None, "  \n", calls=[call]), Flag.CALLS | Flag.TOOLS_ONLY),
        (assistant("a", None, "text", calls=[call]), Flag.CALLS),
        (assistant("a", None, "　。", calls=[call]), Flag.CALLS),
        (assistant("a", None, ""), Flag.EMPTY),
        (assistant("a", None, "", stopReason="aborted"), Flag.EMPTY | Flag.ABORTED),
        (assistant("a", None, "x", stopReason="error"), Flag.ERROR),
        (assistant("a", None, content=[thought, {"type": "toolCall", **call}]), Flag.CALLS | Flag.TOOLS_ONLY),
        (assistant("a", None, content=[{"type": "image"}, {"type": "toolCall", **call}]), Flag.CALLS),
        (assistant("a", None, content=[{"type": "text"}, {"type": "toolCall", **call}]), Flag.CALLS | Flag.TOOLS_ONLY),
        (assistant("a", None, content="plain"), 0),
        (assistant("a", None, content=None), Flag.EMPTY),
        (tool_result("a", "x", "c", "out"), 0),
        (tool_result("a", "x", "c", "out", isError=True), Flag.ERROR),
    ]
    for made, flags in cases:
        for data in (log([made]), log([made])[:-1], line(header()) + b"  NaN" + line(made)):
            assert scanned(data).shape_of(0)[:3] == ("message", made["message"]["role"], flags), made["message"]


def test_facts_add_up():
    made = [
        user("u1", None, "x"),
        assistant("a1", "u1", "y", usage={"cost": {"total": 0.5}}),
        entry("message", "b1", "a1", message={"role": "bashExecution", "command": "ls"}),
        entry("session_info", "n1", "b1", name=" First "),
        assistant("a2", "n1", "z", model="m2", usage={"cost": {"total": 0.25}}),
        entry("model_change", "m1", "a2", provider="p", modelId="m3"),
        entry("session_info", "n2", "m1", name="Second"),
    ]
    index = scanned(log(made))
    facts = index.facts
    assert (facts.title, facts.model, facts.cost, facts.messages, facts.first_user) == ("Second", "m3", 0.75, 4, 0)
    assert index.header.format == "pi"


def test_a_log_with_omps_own_entries_is_omps():
    for own in (
        entry("title_change", "t1", "u1", title="T", source="user"),
        entry("model_change", "m1", "u1", model="p/m"),
        entry("message", "d1", "u1", message={"role": "developer", "content": "x"}),
    ):
        assert scanned(log([user("u1", None, "x"), own])).header.format == "omp"


def v1(*entries: dict[str, Any]) -> bytes:
    head = {name: value for name, value in header().items() if name != "version"}
    bare = [{name: value for name, value in e.items() if name not in {"id", "parentId"}} for e in entries]
    return line(head) + b"".join(line(e) for e in bare)


def test_version_1_reads_as_a_chain_with_ids_that_stay():
    made = [
        user("", None, "a"),
        assistant("", None, "b"),
        entry("compaction", "", None, firstKeptEntryIndex=2),
        user("", None, "c"),
    ]
    data = v1(*made)
    session = opened(data)
    ids = session.index.ids
    assert len(set(ids)) == 4
    assert list(session.index.parent) == [-1, 0, 1, 2]
    assert session.entry(2)["firstKeptEntryId"] == ids[1]
    assert session.entry(3)["parentId"] == ids[2]
    assert codes(session.index) == set()
    for cut in range(0, len(data), 11):
        assert state(scanned(data, cut)) == state(session.index)


def test_made_up_ids_differ_even_where_chance_repeats_one(monkeypatch: pytest.MonkeyPatch):
    """Eight digits do repeat in a log of 100,000 entries; with three we need not wait for it."""
    monkeypatch.setattr(
        "dsh_daemon.log.scan.made_up_id", lambda name, offset: sha256(f"{name}:{offset}".encode()).hexdigest()[:3]
    )
    data = v1(*[user("", None, f"{k}") for k in range(1_000)])
    index = scanned(data)
    assert len(index) == 1_000
    assert codes(index) == set()
    assert not any("~" in id_ for id_ in index.ids)
    assert scanned(data, len(data) // 2).ids == index.ids


def test_a_root_without_an_id_stays_a_root():
    bare = {name: value for name, value in user("", None, "b").items() if name != "id"}
    index = scanned(log([user("u1", None, "a"), bare]))
    assert list(index.parent) == [-1, -1]


def test_a_headerless_log_is_read_from_its_first_line_on():
    index = scanned(b"\n" + line(user("u1", None, "a")) + line(assistant("a1", "u1", "b")))
    assert (index.header.state, index.ids) == ("headerless", ["u1", "a1"])


def test_a005_entries_behind_a_broken_header_are_served():
    index = scanned(b"{broken header\n" + line(user("u1", None, "a")))
    assert (index.header.state, index.ids) == ("broken", ["u1"])
    assert [d["code"] for d in index.diagnostics] == ["broken_header"]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b"\0" * 10, b"  "])
def test_a007_nothing_is_an_empty_session(data: bytes):
    index = scanned(data)
    assert (len(index), index.header.state) == (0, "empty")


def test_lines_are_counted_from_one_whatever_stands_before():
    data = (
        b"\n"
        + line(header())
        + line(user("u1", None, "x"))
        + b"\n"
        + b"bad\n"
        + line(user("u2", "u1", "y")).replace(b"y", b"\xff")
    )
    found = [(d["code"], d["line"]) for d in scanned(data).diagnostics]
    assert found == [("unreadable_line", 5), ("invalid_utf8", 6)]
    for cut in range(len(data)):
        assert [(d["code"], d["line"]) for d in scanned(data, cut).diagnostics] == found


def test_bad_bytes_across_a_block_border_are_found(tmp_path: Path):
    for size in (131_000, 131_060, 131_072, 131_080, 262_144):
        filler = line(user("f", None, "x" * size))
        data = (
            line(header())
            + filler
            + line(user("u1", None, "ok 한국어"))
            + line(user("u2", None, "@")).replace(b"@", b"\xed\xa0\x80")
        )
        index = scanned(data)
        assert [(d["code"], d["line"]) for d in index.diagnostics] == [("invalid_utf8", 4)]


def test_a_log_that_was_rewritten_in_place_does_not_pass_for_a_grown_one():
    data = log([user("u1", None, "x"), user("u2", "u1", "y")])
    index, source = Index(), MemoryJournal(data)
    scan(index, source, len(data))
    source.data += line(user("u3", "u2", "z"))
    assert continues(index, source)
    source.data[:] = log([user("u1", None, "another, longer text"), user("u2", "u1", "y"), user("u3", "u2", "z")])
    assert not continues(index, source)


def test_a_cancelled_scan_goes_on_where_it_stopped():
    data = log([user(f"u{k}", f"u{k - 1}" if k else None, "x" * 1_000) for k in range(600)])
    asked = iter([False, False, True])
    index, source = Index(), MemoryJournal(data)
    scan(index, source, len(data), lambda: next(asked, True))
    assert 0 < len(index) < 600
    scan(index, source, len(data))
    assert state(index) == state(scanned(data))


def test_an_entry_costs_at_most_250_bytes(tmp_path: Path):
    path = generate.big(tmp_path / "big.jsonl", 20_000, 20_000_000)
    source = FileJournal(str(path))
    tracemalloc.start()
    index = Index()
    scan(index, source, source.size())
    left, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    source.close()
    assert len(index) == 20_000
    assert left / len(index) < 250
    assert peak - left < 8 * MB


def genuine() -> list[Path]:
    if CORPUS is None:
        return []
    found = [p for name in ("pi", "omp", "edge/pi-omp-v3", "public") for p in sorted((CORPUS / name).rglob("*.jsonl"))]
    return [path for path in found if path.stat().st_size]


@pytest.mark.skipif(CORPUS is None, reason="the corpus is not here")
@pytest.mark.parametrize("path", genuine(), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_genuine_files_show_every_entry_once_and_stay_as_they_are(path: Path):
    before = path.read_bytes()
    session = Session.open(str(path))
    session.journal.close()
    session.journal = MemoryJournal(before)
    check_whole(session)
    if "edge" not in path.parts:
        records = [json.loads(text) for text in before.split(b"\n") if text.strip()]
        kept = [r for r in records if r["type"] not in {"session", "title"}]
        assert len(session.index) == len(kept)
        if all("id" in r for r in kept):
            assert session.index.ids == [r["id"] for r in kept]
        assert codes(session.index) == set()
    step = max(1, len(before) // 20)
    if len(before) < 2 * MB:
        for cut in range(0, len(before), step):
            assert state(scanned(before, cut)) == state(session.index)
    assert path.read_bytes() == before
