"""Rows of the tree: order, depth, gutters, filters, folds, queries; against a plain, recursive oracle."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon.entries import FILTERS, HIDDEN_BY_DEFAULT
from dsh_daemon.layout import MARKS
from dsh_daemon.log.index import NONE
from dsh_daemon.log.times import NO_TIME, instant
from dsh_daemon.rows import Layout, MainLine, View, around, dangling, grow, matching, visible, window, words_of
from tests.indexes import log_of, trees
from tests.support import CORPUS, assistant, entry, tool_result, user

DRAWN = ("id", "parentId", "depth", "gutter", "active", "leaf", "children")


class Oracle:
    """The rules of the contract for rows on plain dicts, recursively, without a thought for speed."""

    def __init__(self, entries, leaf, mode):
        self.by_id = {e["id"]: e for e in entries}
        self.mode = mode
        work = leaf  # where it stands: what marks turns and steps says nothing itself
        while work is not None and self.by_id[work]["type"] in MARKS:
            work = self.by_id[work]["parentId"]
        self.leaf = leaf if work is None else work
        self.labels = {}
        for e in entries:
            if e["type"] == "label":
                self.labels.pop(e["targetId"], None)
                if e.get("label"):
                    self.labels[e["targetId"]] = e["label"]
        self.path = []
        while leaf is not None:
            self.path.insert(0, leaf)
            leaf = self.by_id[leaf]["parentId"]
        self.families = {}
        for e in entries:
            self.families.setdefault(e["parentId"], []).append(e["id"])
        for parent, family in self.families.items():
            age, times = NO_TIME, {}
            for id_ in family:
                own = instant(self.by_id[id_]["timestamp"])
                age = times[id_] = own if own != NO_TIME else age
            self.families[parent] = sorted(family, key=lambda id_: (id_ not in self.path, times[id_]))
        self.rows = []
        for id_ in self.shown_below(None):
            self.draw(id_, None, 0, "", "")
        standing = [id_ for id_ in self.path if self.visible(id_)]
        for row in self.rows:
            row["leaf"] = bool(standing) and row["id"] == standing[-1]

    def visible(self, id_):
        e = self.by_id[id_]
        message = e.get("message", {})
        role = message.get("role")
        if self.mode == "all":
            return True
        if role == "assistant" and id_ != self.leaf and message["stopReason"] not in {"error", "aborted"}:
            kinds = {block["type"] for block in message["content"]}
            if kinds == {"toolCall"}:
                return False
        if self.mode == "labeled-only":
            return id_ in self.labels
        if self.mode == "user-only":
            return role == "user"
        return e["type"] not in HIDDEN_BY_DEFAULT and not (self.mode == "no-tools" and role == "toolResult")

    def shown_below(self, id_):
        for child in self.families.get(id_, []):
            if self.visible(child):
                yield child
            else:
                yield from self.shown_below(child)

    def draw(self, id_, parent, depth, head, rest):
        below = list(self.shown_below(id_))
        self.rows.append({
            "id": id_, "parentId": parent, "depth": depth, "gutter": head,
            "active": id_ in self.path, "children": len(below),
        })  # fmt: skip
        for child in below:
            if len(below) == 1:
                self.draw(child, id_, depth, rest, rest)
            else:
                last = child == below[-1]
                self.draw(child, id_, depth + 1, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def drawn(log, leaf, mode, *, collapsed=(), at=NONE, start=0, count=100_000, **more):
    view = View(Layout(log.index, leaf, mode), collapsed, at)
    return window(log.index, view, log.read, start, count, **more)


def main_line(log, leaf, mode, *, at=NONE, start=0, count=100_000):
    return window(log.index, MainLine(Layout(log.index, leaf, mode), at), log.read, start, count)


def picked(rows, *names):
    return [{name: row[name] for name in names or DRAWN} for row in rows]


@pytest.mark.parametrize("mode", FILTERS)
@given(entries=trees(40, shuffled=True), data=st.data())
@settings(max_examples=50, deadline=None)
def test_rows_of_each_filter_equal_a_naive_oracle(mode, entries, data):
    """A022, A156: visible edges are the transitive edges of the whole tree, drawn as the protocol says."""
    log = log_of(entries)
    leaf = data.draw(st.integers(NONE, len(entries) - 1))
    expected = Oracle(entries, log.index.id_of(leaf), mode).rows
    assert picked(drawn(log, leaf, mode)) == picked(expected)


@given(trees(40, shuffled=True), st.data())
@settings(max_examples=50, deadline=None)
def test_the_filter_all_shows_every_entry_exactly_once(entries, data):
    """A015, A018"""
    log = log_of(entries)
    leaf = data.draw(st.integers(NONE, len(entries) - 1))
    assert sorted(row["id"] for row in drawn(log, leaf, "all")) == sorted(e["id"] for e in entries)


@given(trees(30), st.randoms(use_true_random=False), st.data())
@settings(max_examples=40, deadline=None)
def test_the_order_of_lines_does_not_change_the_rows(entries, rng, data):
    """A026: only siblings of the same second may change places, so here each second is another one."""
    entries = [{**e, "timestamp": k * 1000} for k, e in enumerate(entries) if e["type"] != "label"]
    known = {e["id"] for e in entries}
    entries = [{**e, "parentId": e["parentId"] if e["parentId"] in known else None} for e in entries]
    if not entries:
        return
    leaf_id = data.draw(st.sampled_from(sorted(known)))
    mode = data.draw(st.sampled_from(FILTERS))
    shuffled = entries[:]
    rng.shuffle(shuffled)
    one, other = (log_of(some) for some in (entries, shuffled))
    rows = [picked(drawn(log, log.index.ordinal[leaf_id], mode)) for log in (one, other)]
    assert rows[0] == rows[1]


@given(trees(40), st.data())
@settings(max_examples=60, deadline=None)
def test_windows_put_together_are_the_whole(entries, data):
    log = log_of(entries)
    leaf = len(entries) - 1
    collapsed = data.draw(st.sets(st.integers(0, leaf), max_size=5))
    whole = drawn(log, leaf, "all", collapsed=collapsed)
    size = data.draw(st.integers(1, 7))
    parts = [drawn(log, leaf, "all", collapsed=collapsed, start=k, count=size) for k in range(0, len(whole) + 1, size)]
    assert [row for part in parts for row in part] == whole


@given(trees(40, shuffled=True), st.data())
@settings(max_examples=200, deadline=None)
def test_the_main_line_goes_to_the_leaf_and_shows_each_other_branch_where_it_leaves(entries, data):
    log = log_of(entries)
    leaf = data.draw(st.integers(NONE, len(entries) - 1))
    mode = data.draw(st.sampled_from(FILTERS))
    whole = {row["id"]: row for row in drawn(log, leaf, mode)}
    below: dict[str | None, list[str]] = {}
    for row in whole.values():
        below.setdefault(row["parentId"], []).append(row["id"])

    def expected(at):
        """Ids in order; those of other branches with a mark."""
        at_leaf = at is None and leaf == NONE
        while ids := below.get(at, []):
            if at_leaf:
                yield from ((id_, True) for id_ in ids)
                return
            at, *others = ids
            at_leaf = whole[at]["leaf"]
            yield from ((other, True) for other in others)
            yield at, False

    def size(at):
        return sum(1 + size(child) for child in below.get(at, []))

    at = data.draw(st.sampled_from([None, *whole]))
    place = log.index.ordinal[at] if at else NONE
    line = main_line(log, leaf, mode, at=place)
    assert [row["id"] for row in line] == [id_ for id_, _ in expected(at)]
    for row, (id_, other) in zip(line, expected(at), strict=True):
        hidden = size(id_) if other else 0
        assert row == {**whole[id_], **({"hidden": hidden, "collapsed": True} if hidden else {})}
    count = data.draw(st.integers(1, 7))
    parts = [main_line(log, leaf, mode, at=place, start=k, count=count) for k in range(0, len(line) + 1, count)]
    assert [row for part in parts for row in part] == line
    # Every entry below has a place: its own row, that of its nearest visible ancestor, or of the branch it is on.
    view = MainLine(Layout(log.index, leaf, mode), place)
    for id_ in whole:
        up = id_
        while up is not None and up not in {row["id"] for row in line}:
            up = whole[up]["parentId"]
        found = next((k for k, row in enumerate(line) if row["id"] == up), NONE)
        assert view.place(log.index.ordinal[id_]) == found


@pytest.mark.parametrize(("at", "first"), [(NONE, 0), (1, 2)])
def test_what_goes_on_behind_the_leaf_is_folded_in_the_main_line(at, first):
    log = log_of([user("e0", None, "x"), *(user(f"e{k}", f"e{k - 1}", "x") for k in range(1, 7))])
    rows = main_line(log, 3, "default", at=at)

    assert [row["id"] for row in rows] == [f"e{k}" for k in range(first, 5)]
    assert [row["id"] for row in rows if row["leaf"]] == ["e3"]
    assert {row["id"]: row["hidden"] for row in rows if "hidden" in row} == {"e4": 2}


@given(trees(40, shuffled=True), st.data())
@settings(max_examples=80, deadline=None)
def test_a_fold_hides_what_is_below_and_counts_it(entries, data):
    log = log_of(entries)
    leaf = data.draw(st.integers(NONE, len(entries) - 1))
    mode = data.draw(st.sampled_from(FILTERS))
    collapsed = data.draw(st.sets(st.integers(0, len(entries) - 1), max_size=6))
    names = {log.index.ids[i] for i in collapsed}
    whole = drawn(log, leaf, mode)
    parents = {row["id"]: row["parentId"] for row in whole}

    def above(id_):
        while (id_ := parents[id_]) is not None:
            yield id_

    expected = [row["id"] for row in whole if names.isdisjoint(above(row["id"]))]
    folded = drawn(log, leaf, mode, collapsed=collapsed)
    assert [row["id"] for row in folded] == expected
    for row in folded:
        below = sum(row["id"] in above(other) for other in parents)
        assert row.get("hidden", 0) == (below if row["id"] in names else 0)
        assert row.get("collapsed", False) == (row["id"] in names and below > 0)
    shape = {row["id"]: picked([row], "parentId", "depth", "gutter", "children", "active") for row in whole}
    assert all(picked([row], "parentId", "depth", "gutter", "children", "active") == shape[row["id"]] for row in folded)
    # The leaf inside a fold is carried by the row under which it is folded.
    standing = next((row["id"] for row in whole if row["leaf"]), None)
    if standing is not None:
        while standing not in expected:
            standing = parents[standing]
    assert [row["id"] for row in folded if row["leaf"]] == ([standing] if standing else [])


@given(trees(40, shuffled=True), st.data())
@settings(max_examples=60, deadline=None)
def test_rows_below_an_entry_are_the_part_of_the_whole_that_hangs_from_it(entries, data):
    log = log_of(entries)
    index = log.index
    places = st.integers(0, len(entries) - 1)
    leaf, at = data.draw(places), data.draw(places)
    mode = data.draw(st.sampled_from(FILTERS))

    def below(i):
        while (i := index.parent[i]) >= 0:
            if i == at:
                return True
        return False

    whole = drawn(log, leaf, mode)
    expected = [row for row in whole if below(index.ordinal[row["id"]])]
    assert picked(drawn(log, leaf, mode, at=at)) == picked(expected)


@given(trees(40, shuffled=True), st.data())
@settings(max_examples=60, deadline=None)
def test_an_entry_is_found_by_itself_or_its_nearest_visible_ancestor(entries, data):
    log = log_of(entries)
    index = log.index
    mode = data.draw(st.sampled_from(FILTERS))
    collapsed = data.draw(st.sets(st.integers(0, len(entries) - 1), max_size=3))
    view = View(Layout(index, len(entries) - 1, mode), collapsed)
    place = {row["id"]: k for k, row in enumerate(window(index, view, log.read, 0, 1000))}
    for i in range(len(index)):
        step = i
        while step >= 0 and index.ids[step] not in place:
            step = index.parent[step]
        assert view.place(i) == (place[index.ids[step]] if step >= 0 else NONE)
        assert 0 <= around(view, i, 5) <= max(0, view.total - 5)


@given(trees(40), st.integers(1, 12), st.sampled_from(FILTERS))
@settings(max_examples=100, deadline=None)
def test_a_grown_layout_equals_a_full_one(entries, more, mode):
    old_log = log_of(entries[:-more])  # which may be none
    new_log = log_of(entries)
    old = Layout(old_log.index, len(old_log.index) - 1, mode)
    before = picked(window(old_log.index, View(old), old_log.read, 0, 1000))
    grown = grow(old, new_log.index, len(entries) - 1)
    if grown is not None:
        full = Layout(new_log.index, len(entries) - 1, mode)
        rows = [window(new_log.index, View(layout), new_log.read, 0, 1000) for layout in (grown, full)]
        assert rows[0] == rows[1]
        assert grown.below(0) == full.below(0)
    assert picked(window(old_log.index, View(old), old_log.read, 0, 1000)) == before


@pytest.mark.parametrize("mode", FILTERS)
def test_a_long_conversation_grows_without_a_new_layout(mode):
    entries = [user("e0", None, "x"), assistant("e1", "e0", "y")]
    for k in range(2, 30, 3):
        call = {"id": f"c{k}", "name": "read", "arguments": {"path": "a.py"}}
        entries.append(assistant(f"e{k}", f"e{k - 1}", "", calls=[call]))
        entries.append(tool_result(f"e{k + 1}", f"e{k}", f"c{k}", "out"))
        entries.append(assistant(f"e{k + 2}", f"e{k + 1}", "done"))
    layout = Layout(log_of(entries[:2]).index, 1, mode)
    for n in range(3, len(entries) + 1):
        index = log_of(entries[:n]).index
        grown = grow(layout, index, n - 1)
        layout = Layout(index, n - 1, mode)
        if mode == "labeled-only":
            assert grown is None
        else:
            assert grown is not None
            assert grown.order == layout.order
            assert grown.leaf_row == layout.leaf_row


def test_the_tree_of_the_handbook():
    """The picture that clients draw: a level per branching point, the branch of the leaf first, the other folded."""
    log = log_of([
        user("u1", None, "Find why the redirect drops the query string", 1),
        assistant("a1", "u1", "", 2, [{"id": "c1", "name": "read", "arguments": {"path": "src/auth/login.ts"}}]),
        tool_result("r1", "a1", "c1", "…", 3, name="read"),
        assistant("a2", "r1", "The handler rebuilds the URL", 4),
        user("u2", "a2", "Fix it and add a test", 5),
        user("u3", "u2", "Try the conservative way", 6),
        assistant("a3", "u3", "Kept", 7),
        assistant("a4", "u2", "", 8, [{"id": "c2", "name": "edit", "arguments": {"path": "src/auth/login.ts"}}]),
        tool_result("r2", "a4", "c2", "…", 9, name="edit"),
        assistant("a5", "r2", "All 12 tests pass.", 10),
        entry("label", "l1", "a5", 11, targetId="a5", label="before-refactor"),
        user("u4", "l1", "Now refactor the handler", 12),
    ])  # fmt: skip
    rows = drawn(log, log.index.ordinal["u4"], "default", collapsed=[log.index.ordinal["u3"]])
    lines = [
        f"{row['gutter']}{row['kind']}: {row['text']}"
        + (f" ⚑ {row['label']}" if "label" in row else "")
        + (" ← leaf" if row["leaf"] else "")
        + (f" ({row['hidden']})" if "hidden" in row else "")
        for row in rows
    ]
    assert lines == [
        "user: Find why the redirect drops the query string",
        "tool: [read: src/auth/login.ts]",
        "assistant: The handler rebuilds the URL",
        "user: Fix it and add a test",
        "├─ tool: [edit: src/auth/login.ts]",
        "│  assistant: All 12 tests pass. ⚑ before-refactor",
        "│  user: Now refactor the handler ← leaf",
        "└─ user: Try the conservative way (1)",
    ]
    assert rows[1]["toolName"] == "read"
    assert rows[5]["labelAt"] == "2026-01-01T00:00:11.000Z"


def test_leaf_is_never_hidden_by_a_filter():
    log = log_of([user("u", None, "hi"), assistant("a", "u", "yes"), entry("label", "l", "a", targetId="u", label="x")])
    for mode, carrier in (("default", "a"), ("no-tools", "a"), ("user-only", "u"), ("labeled-only", "u"), ("all", "l")):
        assert [row["id"] for row in drawn(log, 2, mode) if row["leaf"]] == [carrier]


def test_an_assistant_of_calls_only_shows_where_it_is_the_leaf_or_failed():
    call = [{"id": "c", "name": "bash", "arguments": {"command": "ls"}}]
    log = log_of([
        user("u", None, "hi"),
        assistant("a1", "u", "", calls=call),
        assistant("a2", "a1", "", calls=call, stopReason="aborted"),
        assistant("a3", "a2", "", calls=call),
    ])  # fmt: skip
    assert [row["id"] for row in drawn(log, 3, "default")] == ["u", "a2", "a3"]
    assert [row["id"] for row in drawn(log, 0, "default")] == ["u", "a2"]
    assert [row["id"] for row in drawn(log, 3, "user-only")] == ["u"]
    assert [row["id"] for row in drawn(log, 0, "all")] == ["u", "a1", "a2", "a3"]


def test_what_an_agent_is_just_doing_shows_although_it_has_written_marks_since():
    call = [{"id": "c", "name": "bash", "arguments": {"command": "ls"}}]
    entries = [
        entry("turn_start", "t", None, turn=1),
        user("u", "t", "hi"),
        entry("step_start", "s", "u", turn=1, step=1),
        assistant("a", "s", "", calls=call),
        entry("tool_call", "k", "a", turn=1, step=1, callId="c", name="bash"),
    ]
    rows = drawn(log_of(entries), 4, "default")
    assert picked(rows, "id", "leaf") == [{"id": "u", "leaf": False}, {"id": "a", "leaf": True}]
    done = log_of([*entries, tool_result("r", "k", "c", "out")])
    assert [row["id"] for row in drawn(done, 5, "default")] == ["u", "r"]


@pytest.mark.parametrize("mode", FILTERS)
def test_an_agents_work_grows_as_it_would_be_laid_out_anew(mode):
    entries = [entry("turn_start", "e0", None, turn=1), user("e1", "e0", "x")]
    for k in range(2, 32, 6):
        call = {"id": f"c{k}", "name": "read", "arguments": {"path": "a.py"}}
        entries.append(entry("step_start", f"e{k}", f"e{k - 1}", turn=1, step=k))
        entries.append(assistant(f"e{k + 1}", f"e{k}", "", calls=[call]))
        entries.append(entry("tool_call", f"e{k + 2}", f"e{k + 1}", turn=1, step=k, callId=f"c{k}", name="read"))
        entries.append(tool_result(f"e{k + 3}", f"e{k + 2}", f"c{k}", "out"))
        entries.append(entry("step_end", f"e{k + 4}", f"e{k + 3}", turn=1, step=k))
        entries.append(assistant(f"e{k + 5}", f"e{k + 4}", "done"))
    for size in (1, 2, 3):  # entries that come at once
        layout = Layout(log_of(entries[:2]).index, 1, mode)
        for n in range(2 + size, len(entries) + 1, size):
            index = log_of(entries[:n]).index
            grown, layout = grow(layout, index, n - 1), Layout(index, n - 1, mode)
            assert grown is None or (grown.order, grown.leaf_row) == (layout.order, layout.leaf_row)


def test_unknown_types_are_rows_and_keep_their_children():
    """A029: an entry from the future is a row of kind "other"."""
    log = log_of([user("u", None, "hi"), entry("from_the_future", "x", "u", payload=[1]), user("v", "x", "on")])
    rows = drawn(log, 2, "default")
    assert picked(rows, "id", "parentId", "kind", "type") == [
        {"id": "u", "parentId": None, "kind": "user", "type": "message"},
        {"id": "x", "parentId": "u", "kind": "other", "type": "from_the_future"},
        {"id": "v", "parentId": "x", "kind": "user", "type": "message"},
    ]
    assert rows[1]["flags"] == ["unknown"]


@pytest.mark.parametrize(
    ("tail", "broken"),
    [
        ([assistant("a", "u", "", calls=[{"id": "c", "name": "bash", "arguments": {}}])], "a"),
        ([assistant("a", "u", "on it", calls=[{"id": "c", "name": "bash", "arguments": {}}])], "a"),
        ([assistant("a", "u", "", content=[])], "a"),
        ([assistant("a", "u", "", content=[]), entry("custom", "x", "a", customType="session_exit")], "a"),
        ([assistant("a", "u", "", content=[], stopReason="error")], None),
        ([assistant("a", "u", "done")], None),
        (
            [
                assistant("a", "u", "", calls=[{"id": c, "name": "bash", "arguments": {}} for c in ("c", "d")]),
                tool_result("r", "a", "c", "out"),
            ],
            "a",
        ),
        (
            [
                assistant("a", "u", "", calls=[{"id": "c", "name": "bash", "arguments": {}}]),
                tool_result("r", "a", "c", "out"),
            ],
            None,
        ),
    ],
)
def test_an_answer_that_breaks_off_is_dangling(tail, broken):
    """A014: empty answers and calls without a result are marked."""
    log = log_of([user("u", None, "hi"), *tail])
    leaf = len(log.index) - 1
    assert log.index.id_of(dangling(log.index, log.read, leaf)) == broken
    marked = [row["id"] for row in drawn(log, leaf, "all") if "dangling" in row.get("flags", [])]
    assert marked == ([broken] if broken else [])


def test_faults_are_flags():
    log = log_of([
        user("u", None, "hi"),
        user("o", "lost", "orphan"),
        assistant("e", "o", "", content=[], stopReason="error", errorMessage="400: no"),
        assistant("b", "e", "half", stopReason="aborted"),
        tool_result("t", "b", "nothing", "boom", isError=True),
        entry("turn_end", "x", "t", turn=1, reason={"kind": "interrupted"}),
    ])  # fmt: skip
    flags = {row["id"]: row.get("flags") for row in drawn(log, 5, "all")}
    assert flags == {
        "u": None, "o": ["orphan"], "e": ["error"], "b": ["aborted"], "t": ["error"], "x": ["interrupted"],
    }  # fmt: skip


def kept_by(log, leaf, mode, query):
    seen = visible(log.index, leaf, mode)
    search = matching(log.index, log.read, seen, words_of(query))
    while True:
        try:
            next(search)
        except StopIteration as end:
            return end.value


def searched(row):
    return "\n".join(row.get(name, "") for name in ("text", "label", "role")).lower()


QUERIES = ("ask", "ANSWER 1", "2", "mark user", "assistant", "tool", "bash ls", "nothing")


@given(trees(30), st.sampled_from(QUERIES), st.data())
@settings(max_examples=60, deadline=None)
def test_a_query_keeps_the_rows_that_hold_all_its_words(entries, query, data):
    log = log_of(entries)
    leaf = len(entries) - 1
    mode = data.draw(st.sampled_from(FILTERS))
    expected = [
        row["id"]
        for row in drawn(log, leaf, mode)
        if all(
            word in f"{row['text']}\n{row.get('label', '')}\n{row.get('role', '')}".lower()
            for word in query.lower().split()
        )
    ]
    layout = Layout(log.index, leaf, mode, kept_by(log, leaf, mode, query))
    rows = window(log.index, View(layout), log.read, 0, 1000, words=words_of(query))
    assert [row["id"] for row in rows] == expected
    for row in rows:
        marked = {place for start, end in row.get("matches", []) for place in range(start, end)}
        found = (re.finditer(re.escape(word), row["text"].lower()) for word in words_of(query))
        assert marked == {place for matches in found for match in matches for place in range(*match.span())}


def test_matches_are_code_points_of_the_text():
    log = log_of([user("u", None, "😀 Straße und STRASSE, x😀x")])
    layout = Layout(log.index, 0, "default", kept_by(log, 0, "default", "strasse x"))
    (row,) = window(log.index, View(layout), log.read, words=words_of("strasse x"))
    assert [row["text"][a:b] for a, b in row["matches"]] == ["Straße", "STRASSE", "x", "x"]


def test_a_query_can_be_given_up_between_slices():
    log = log_of([user(f"e{k}", f"e{k - 1}" if k else None, "x") for k in range(1_000)])
    search = matching(log.index, log.read, visible(log.index, 999, "default"), ["x"])
    assert [next(search), next(search)] == [128, 256]
    search.close()


def test_a_deep_gutter_is_cut_at_the_left():
    ladder = [user("b0", None, "r")]
    for k in range(1, 101):
        ladder += [user(f"a{k}", f"b{k - 1}", "x", 2 * k), user(f"b{k}", f"b{k - 1}", "x", 2 * k + 1)]
    log = log_of(ladder)
    rows = {row["id"]: row for row in drawn(log, log.index.ordinal["b100"], "default")}
    assert rows["b100"]["depth"] == 100
    assert rows["b100"]["gutter"] == "⋯ " + "│  " * 31 + "├─ "
    assert rows["b32"]["gutter"] == "│  " * 31 + "├─ "
    assert rows["a1"]["gutter"] == "└─ "


def test_rows_are_linear_in_the_log():
    """A068: twice the entries take about twice the time, for a chain, a star and a ladder."""

    def chain(n):
        return [user(f"e{k}", f"e{k - 1}" if k else None, "x", k % 3600) for k in range(n)]

    def star(n):
        return [user("root", None, "r")] + [user(f"e{k}", "root", "x", k % 3600) for k in range(n)]

    def ladder(n):
        return [user("e0", None, "r")] + [user(f"e{k}", f"e{(k - 1) // 2 * 2}", "x", k % 3600) for k in range(1, n)]

    for make in (chain, star, ladder):
        seconds = []
        for n in (10_000, 20_000):
            index = log_of(make(n)).index
            took = []
            for _ in range(5):
                began = time.perf_counter()
                view = View(Layout(index, len(index) - 1, "default"), range(0, n, 100))
                took.append(time.perf_counter() - began)
            assert view.total
            seconds.append(min(took))
        assert seconds[1] < 4 * seconds[0] + 0.01


def test_a_picture_of_64_mb_leaves_a_small_row():
    """A070: no blob travels in a list or a tree."""
    picture = {"type": "image", "mimeType": "image/png", "data": "A" * 64_000_000}
    big = user("u", None, "look")
    big["message"]["content"].append(picture)
    log = log_of([big])
    rows = drawn(log, 0, "default")
    assert rows[0]["text"] == "look [image 48 MB]"
    assert len(json.dumps(rows)) < 2_000


@pytest.mark.skipif(CORPUS is None, reason="the corpus is not here")
def test_every_entry_of_the_corpus_is_a_row_once():
    from tests.indexes import log_of_bytes

    for path in sorted(
        [*CORPUS.glob("pi/**/*.jsonl"), *CORPUS.glob("omp/**/*.jsonl"), *CORPUS.glob("edge/pi-omp-v3/*.jsonl")]
    ):
        log = log_of_bytes(path.read_bytes())
        if not len(log.index):
            continue
        rows = drawn(log, len(log.index) - 1, "all")
        assert sorted(row["id"] for row in rows) == sorted(log.index.ids), path
        for row in rows:
            assert len(row["text"]) <= 240
            assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", row["text"])
