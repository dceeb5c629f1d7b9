"""The copy of a path: the same bytes, no dangling parent, labels where they were."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon.branching import branch_path, plan_branch, with_fields
from dsh_daemon.errors import NotAUserMessage
from dsh_daemon.log.index import NONE
from dsh_daemon.rows import Layout, View, window
from dsh_daemon.tree import path
from dsh_daemon.turns import broken_off, last_closed, spans, unanswered
from tests.indexes import Log, log_of, log_of_bytes, trees
from tests.support import assistant, entry, header, line, tool_result, user


def planned(log: Log, i: int):
    numbers = itertools.count()
    return plan_branch(log.index, path(log.index, i), log.read, log.raw, lambda: f"new{next(numbers)}")


def branched(log: Log, i: int) -> Log:
    """The log that the plan describes, read again."""
    plan = planned(log, i)
    data = line(header("child"))
    for piece in plan.pieces(log.index):
        data += (piece if isinstance(piece, bytes) else log.data[piece[0] : piece[0] + piece[1]]) + b"\n"
    return log_of_bytes(data)


@given(trees(30, shuffled=True), st.data())
@settings(max_examples=150, deadline=None)
def test_a_branch_is_whole_in_itself(entries, data):
    """A023: every parentId resolves inside the new file or is null; what was on the path is there, labels included."""
    log = log_of(entries)
    i = data.draw(st.integers(0, len(entries) - 1))
    kept = [k for k in path(log.index, i) if log.index.type_of(k) != "label"]
    new = branched(log, i)
    assert new.index.diagnostics == []
    assert new.index.orphans == {}
    assert new.index.ids[: len(kept)] == [log.index.ids[k] for k in kept]
    assert list(new.index.parent) == list(range(-1, len(new.index) - 1))
    for place, k in enumerate(kept):
        was, now = log.read(k), new.read(place)
        assert {**was, "parentId": None, "fromId": None} == {**now, "parentId": None, "fromId": None}
    rest = [new.read(k) for k in range(len(kept), len(new.index))]
    assert all(e["type"] == "label" for e in rest)
    had = {log.index.ids[k]: log.index.labels[k] for k in kept if k in log.index.labels}
    assert {e["targetId"]: e["label"] for e in rest} == {id_: label.text for id_, label in had.items()}
    for e in rest:
        assert e["timestamp"] == log.read(had[e["targetId"]].by)["timestamp"]
    assert {new.index.ids[k]: label.text for k, label in new.index.labels.items()} == {
        id_: label.text for id_, label in had.items()
    }


KINDS = (
    "turn_start",
    "turn_end",
    "user",
    "call",
    "result",
    "answer",
    "empty",
    "aborted",
    "label",
    "custom",
    "end_seed",
)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.booleans()), min_size=1, max_size=25), st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_copied_to_a_place_outside_of_turns_is_outside_of_turns(steps, data):
    """A030: whatever stands where, with marks and without; no call of the last turn waits in the copy."""
    entries: list[dict[str, Any]] = []
    turn = 0
    for n, (kind, elsewhere) in enumerate(steps):
        ids = [e["id"] for e in entries]
        parent = data.draw(st.sampled_from(ids)) if elsewhere and ids else ids[-1] if ids else None
        match kind:
            case "user":
                made = user(f"e{n}", parent, "do it")
            case "call" | "answer" | "empty" | "aborted":
                calls = [{"id": f"c{n}", "name": "x", "arguments": {}}] if kind == "call" else []
                more: dict[str, Any] = {"stopReason": "aborted"} if kind == "aborted" else {}
                made = assistant(f"e{n}", parent, "" if kind == "empty" else "yes", calls=calls, **more)
            case "result":
                called = [e["id"].replace("e", "c") for e in entries if "toolCall" in str(e)]
                made = tool_result(f"e{n}", parent or "", called[-1] if called else "c", "done")
                made["parentId"] = parent
            case "label":
                made = entry("label", f"e{n}", parent, targetId=parent or "none", label="x")
            case _:
                turn += kind == "turn_start"
                marks = {"turn_start": {"turn": turn}, "turn_end": {"turn": turn, "reason": {"kind": "completed"}}}
                made = entry(kind, f"e{n}", parent, **marks.get(kind, {}))
        entries.append(made)
    log = log_of(entries)
    for i in range(len(entries)):
        line_ = path(log.index, i)
        near = last_closed(log.index, line_, log.read)
        if broken_off(log.index, line_, log.read) is None:
            new = branched(log, i)
            copy = path(new.index, len(new.index) - 1)
            assert broken_off(new.index, copy, new.read) is None
            if turns := spans(new.index, copy):
                assert turns[-1].recorded or unanswered(turns[-1], new.index, new.read) == []
        elif near != NONE:
            assert broken_off(log.index, path(log.index, near), log.read) is None


@given(trees(30), st.data())
@settings(max_examples=60, deadline=None)
def test_lines_that_need_no_change_are_copied_byte_for_byte(entries, data):
    """A029: unknown types too."""
    log = log_of(entries)
    i = data.draw(st.integers(0, len(entries) - 1))
    plan = planned(log, i)
    new = branched(log, i)
    for place, k in enumerate(plan.kept):
        if k not in plan.changed:
            assert new.raw(place) == log.raw(k)
    before = NONE
    for k in plan.kept:
        assert (k in plan.changed) <= (log.index.parent[k] != before or log.index.type_of(k) == "branch_summary")
        before = k


def test_a_straight_path_is_one_piece():
    """A071: a big log is copied by ranges."""
    log = log_of([user(f"e{k}", f"e{k - 1}" if k else None, "x") for k in range(1_000)])
    (piece,) = planned(log, 999).pieces(log.index)
    assert piece == (log.index.offset[0], len(log.data) - 1 - log.index.offset[0])


def test_what_shared_a_line_gets_a_line_of_its_own():
    one, two = line(user("a", None, "x")), line(user("b", "a", "y"))
    log = log_of_bytes(line(header()) + one[:-1] + b" " + two)
    assert branched(log, 1).data == line(header("child")) + one + two


def test_references_to_a_dropped_label_are_led_on():
    log = log_of([
        user("u1", None, "one"),
        entry("label", "l1", "u1", targetId="u1", label="start"),
        entry("label", "l2", "l1", targetId="u1", label="begin"),
        assistant("a1", "l2", "two"),
        entry("compaction", "k", "a1", summary="s", firstKeptEntryId="l1", tokensBefore=1),
        entry("label", "l3", "k", 7, targetId="k", label="small"),
        entry("branch_summary", "b", "l3", summary="t", fromId="l3"),
        entry("compaction", "k2", "b", summary="s", firstKeptEntryId="k2", tokensBefore=1),
    ])  # fmt: skip
    new = branched(log, 7)
    entries = {id_: new.read(k) for k, id_ in enumerate(new.index.ids)}
    assert [e["parentId"] for e in entries.values()] == [None, "u1", "a1", "k", "b", "k2", "new0"]
    assert entries["k"]["firstKeptEntryId"] == "a1"
    assert entries["k2"]["firstKeptEntryId"] == "k2"
    assert entries["b"]["fromId"] == "k"
    assert [(e["targetId"], e["label"]) for e in entries.values() if e["type"] == "label"] == [
        ("u1", "begin"),
        ("k", "small"),
    ]


def test_labels_are_written_again_in_the_order_in_which_they_were_given():
    log = log_of([
        user("u", None, "x"),
        user("v", "u", "y"),
        entry("label", "l1", "v", targetId="v", label="first"),
        entry("label", "l2", "l1", targetId="u", label="second"),
    ])  # fmt: skip
    assert [label["label"] for label in planned(log, 1).labels] == ["first", "second"]


def test_a_label_at_the_root_leaves_a_root():
    log = log_of([
        entry("label", "l", None, targetId="u", label="x"),
        user("u", "l", "hi"),
        entry("branch_summary", "b", "u", summary="t", fromId="l"),
    ])  # fmt: skip
    new = branched(log, 2)
    assert [new.read(k)["parentId"] for k in range(3)] == [None, "u", "b"]
    assert new.read(1)["fromId"] == "root"


@pytest.mark.parametrize("parent", ["lost", "a", "b"])
def test_a_root_that_named_a_parent_no_longer_does(parent):
    """A023: orphans, and the entry at which a cycle was cut."""
    log = log_of([user("a", parent, "x"), user("b", "a", "y")])
    assert [e["parentId"] for e in map(branched(log, 1).read, range(2))] == [None, "a"]


def test_labels_keep_their_time_and_their_last_text():
    """A079: the latest line in file order wins, wherever it stands; cleared ones are gone."""
    log = log_of([
        user("u", None, "x"),
        entry("label", "l1", "u", 1, targetId="u", label="old"),
        user("v", "u", "y"),
        entry("label", "l2", "v", 2, targetId="v", label="gone"),
        user("w", "u", "other branch"),
        entry("label", "l3", "w", 5, targetId="u", label="new"),
        entry("label", "l4", "l3", 6, targetId="v"),
        entry("label", "l5", "l4", 7, targetId="w", label="not on the path"),
    ])  # fmt: skip
    assert planned(log, log.index.ordinal["v"]).labels == [
        {"type": "label", "id": "new0", "parentId": "v", "timestamp": "2026-01-01T00:00:05.000Z", "targetId": "u",
         "label": "new"}
    ]  # fmt: skip


def test_before_takes_a_user_message_only():
    log = log_of([user("u", None, "x"), assistant("a", "u", "y"), user("v", "a", "z")])
    assert branch_path(log.index, 2, "before") == [0, 1]
    assert branch_path(log.index, 0, "before") == []
    assert branch_path(log.index, 2, "at") == [0, 1, 2]
    with pytest.raises(NotAUserMessage, match=r"a is an assistant message; .* wants a user's message"):
        branch_path(log.index, 1, "before")
    log = log_of([entry("compaction", "c", None, summary="s")])
    with pytest.raises(NotAUserMessage, match="c is a compaction entry; "):
        branch_path(log.index, 0, "before")


def test_damage_between_the_copied_lines_is_told():
    good = [line(user("a", None, "x")), line(user("b", "a", "y")), line(user("c", None, "z"))]
    log = log_of_bytes(line(header()) + good[0] + b"garbage\n" + good[1] + good[2] + b"more garbage\n")
    assert planned(log, 1).crosses_damage(log.index)
    assert not planned(log, 0).crosses_damage(log.index)
    assert not planned(log, 2).crosses_damage(log.index)


def test_a_version_1_log_becomes_a_version_3_copy():
    old = [{"type": "message", "timestamp": 5, "message": {"role": "user", "content": "hi"}}] * 1
    log = log_of_bytes(line({"type": "session", "id": "s", "timestamp": "x", "cwd": "/"}) + b"".join(map(line, old)))
    read = {0: {**log.read(0), "id": log.index.ids[0], "parentId": None}}
    plan = plan_branch(log.index, [0], read.__getitem__, log.raw, lambda: "n")
    (piece,) = plan.pieces(log.index)
    assert json.loads(piece) == read[0]


ODD = [
    (b'{"parentId":"old","s":"\\"parentId\\":\\"no\\""}', b'{"parentId":"new","s":"\\"parentId\\":\\"no\\""}'),
    (b'{ "a" : {"parentId":"old"} , "parentId" : null }', b'{ "a" : {"parentId":"old"} , "parentId" : "new" }'),
    (b'{"parentId":"a","parentId":"b"}', b'{"parentId":"new","parentId":"new"}'),
    (b'{"type":"x"}', b'{"parentId":"new","type":"x"}'),
    (b"{}", b'{"parentId":"new"}'),
    (b'{"p\\u0061rentId":"a","n":NaN,"s":"\\ud83d"}', b'{"p\\u0061rentId":"new","n":NaN,"s":"\\ud83d"}'),
    (b'{"parentId":{"deep":[1,{"x":"}"}]},"b":[{"parentId":1}]}\r', b'{"parentId":"new","b":[{"parentId":1}]}\r'),
    (b'{"s":"\xff\xfe","parentId":"a"}', b'{"s":"\xff\xfe","parentId":"new"}'),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "expected"), ODD)
def test_a_new_parent_changes_no_other_byte(raw, expected):
    assert with_fields(raw, {"parentId": "new"}) == expected


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=6)
    | st.sampled_from(['"', "\\", "parentId", "{"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["parentId", "a", "}"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["parentId", "fromId", "a", "{", ":"]), json_values),
    st.sampled_from([None, (",", ":"), (" ,\t", " : ")]),
)
@settings(max_examples=200, deadline=None)
def test_setting_fields_is_setting_them_in_the_object(value, separators):
    raw = json.dumps(value, separators=separators).encode()
    assert json.loads(with_fields(raw, {"parentId": "p", "fromId": None})) == {**value, "parentId": "p", "fromId": None}


def test_a_branch_shows_the_rows_that_its_path_had():
    log = log_of([user("u", None, "x"), entry("label", "l", "u", targetId="u", label="here"), assistant("a", "l", "y")])
    new = branched(log, 2)
    rows = [
        window(some.index, View(Layout(some.index, len(some.index) - 1, "default")), some.read) for some in (log, new)
    ]
    assert [(r["id"], r["text"], r.get("label"), r["leaf"]) for r in rows[0]] == [
        (r["id"], r["text"], r.get("label"), r["leaf"]) for r in rows[1]
    ]
