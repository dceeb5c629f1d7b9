"""Where a move leads, what comes back into the editor, what is left behind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon.log.index import NONE
from dsh_daemon.navigation import plan_navigation
from dsh_daemon.tree import path
from dsh_daemon.turns import before_prompt
from tests.indexes import index_of, trees
from tests.support import assistant, entry, user

IMAGE = {"type": "image", "mimeType": "image/png", "data": "AAAA"}


def session():
    ask = user("u2", "a1", "try ")
    ask["message"]["content"] += [IMAGE, {"type": "text", "text": "this"}]
    return index_of([
        user("u1", None, "start"),
        assistant("a1", "u1", "ok"),
        ask,
        assistant("a2", "u2", "done"),
        entry("custom_message", "n", "a1", customType="note", content="a note", display=True),
        assistant("a3", "n", "other way"),
        entry("model_change", "m", "a3", provider="p", modelId="q"),
    ])  # fmt: skip


def move(leaf: str | None, target: str | None):
    index, read = session()
    at = {id_: i for i, id_ in enumerate(index.ids)} | {None: NONE}
    plan = plan_navigation(index, read, at[leaf], at[target])
    names = [index.ids[i] for i in plan.abandoned]
    return plan.outcome, index.id_of(plan.leaf), index.id_of(plan.common_ancestor), names, plan.prompt


@pytest.mark.parametrize(
    ("leaf", "target", "expected"),
    [
        ("a2", "a3", ("moved", "a3", "a1", ["u2", "a2"], None)),
        ("a2", "a1", ("moved", "a1", "a1", ["u2", "a2"], None)),
        ("a1", "a2", ("moved", "a2", "a1", [], None)),
        ("a2", "a2", ("unchanged", "a2", "a2", [], None)),
        ("a2", None, ("moved", None, None, ["u1", "a1", "u2", "a2"], None)),
        (None, None, ("unchanged", None, None, [], None)),
        (None, "a2", ("moved", "a2", None, [], None)),
        ("a2", "m", ("moved", "m", "a1", ["u2", "a2"], None)),
        ("m", "m", ("unchanged", "m", "m", [], None)),
        ("a2", "u1", ("moved", None, "u1", ["a1", "u2", "a2"], ("start", []))),
        ("a3", "u2", ("moved", "a1", "a1", ["n", "a3"], ("try this", [IMAGE]))),
        ("a1", "u2", ("moved", "a1", "a1", [], ("try this", [IMAGE]))),
        ("u2", "u2", ("moved", "a1", "u2", [], ("try this", [IMAGE]))),
        ("a2", "n", ("moved", "a1", "a1", ["u2", "a2"], ("a note", []))),
        ("n", "n", ("unchanged", "n", "n", [], None)),
    ],
)
def test_a_move_leads_where_the_protocol_says(leaf, target, expected):
    assert move(leaf, target) == expected


@given(trees(25, shuffled=True), st.data())
@settings(max_examples=80, deadline=None)
def test_what_is_abandoned_is_the_old_path_without_the_shared_part(entries, data):
    index, read = index_of(entries)
    places = st.integers(NONE, len(index) - 1)
    leaf, target = data.draw(places), data.draw(places)
    plan = plan_navigation(index, read, leaf, target)
    old, new = path(index, leaf), path(index, target)
    assert plan.abandoned == [i for i in old if i not in new]
    if plan.outcome == "unchanged":
        assert plan.leaf == leaf == target
    assert (plan.leaf in {target, before_prompt(index, target)}) if target >= 0 else plan.leaf == NONE
