"""Parents, children, paths and tips, against what a reader of the protocol would compute by hand."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon.log.index import NONE
from dsh_daemon.tree import (
    abandoned,
    child_map,
    children,
    common_ancestor,
    is_ancestor,
    leaves,
    path,
    runs,
)
from tests.indexes import Log, index_of, log_of, trees
from tests.support import user


def ids(index, ordinals):
    return [index.ids[i] for i in ordinals]


def chain(n: int) -> Log:
    return log_of([user(f"e{k}", f"e{k - 1}" if k else None, "x") for k in range(n)])


@given(trees(shuffled=True))
@settings(max_examples=60, deadline=None)
def test_a_path_is_what_following_parent_ids_gives(entries):
    index, _ = index_of(entries)
    parents = {e["id"]: e["parentId"] for e in entries}
    for i, id_ in enumerate(index.ids):
        expected = []
        step = id_
        while step is not None:
            expected.insert(0, step)
            step = parents[step]
        assert ids(index, path(index, i)) == expected


@given(trees(shuffled=True))
@settings(max_examples=60, deadline=None)
def test_every_entry_is_the_child_of_exactly_one(entries):
    """A018: the sizes of all families add up to the entries of the file."""
    index, _ = index_of(entries)
    families = child_map(index)
    assert sorted(i for family in families.values() for i in family) == list(range(len(index)))
    for i in range(NONE, len(index)):
        assert children(index, i) == families.get(i, [])
        assert all(index.parent[child] == i for child in children(index, i))


@given(trees(shuffled=True), st.data())
@settings(max_examples=80, deadline=None)
def test_the_common_ancestor_is_the_deepest_entry_on_both_paths(entries, data):
    index, _ = index_of(entries)
    places = st.integers(NONE, len(index) - 1)
    a, b = data.draw(places), data.draw(places)
    shared = [i for i in path(index, a) if i in path(index, b)]
    ancestor = common_ancestor(index, a, b)
    assert ancestor == (shared[-1] if shared else NONE)
    assert is_ancestor(index, a, b) == (ancestor == a)
    assert abandoned(index, a, b) == path(index, a)[len(shared) :]


@given(trees(shuffled=True))
@settings(max_examples=60, deadline=None)
def test_tips_are_the_entries_that_nothing_hangs_from(entries):
    index, _ = index_of(entries)
    parents = {e["parentId"] for e in entries}
    assert set(ids(index, leaves(index))) == {e["id"] for e in entries} - parents
    assert leaves(index) == sorted(leaves(index))


@given(trees(shuffled=True))
@settings(max_examples=60, deadline=None)
def test_runs_cover_the_tree_and_the_deepest_path_is_found(entries):
    index, _ = index_of(entries)
    tree = runs(index)
    drawn = [i for run in tree.preorder(NONE) for i in range(tree.starts[run], tree.end(run))]
    assert sorted(drawn) == list(range(len(index)))
    for run, start in enumerate(tree.starts):
        assert all(index.parent[i] == i - 1 for i in range(start + 1, tree.end(run)))
        assert tree.parent[run] == (NONE if index.parent[start] < 0 else tree.of(index.parent[start]))
    ends = {run: tree.end(run) - 1 for run in range(len(tree.starts))}
    assert tree.depths() == {-1: 0} | {run: len(path(index, end)) for run, end in ends.items()}


def test_children_stand_oldest_first_whatever_their_clocks_say():
    """A093: decreasing, missing, ancient, offset and epoch-ms times; the file decides between equals."""
    times = ["2026-01-01T00:00:05.000Z", None, "2026-01-01T00:00:01.000Z", "1970-01-01T00:00:00.000Z"]
    times += ["2026-01-01T14:00:01.000+14:00", 1_767_225_601_000, "nonsense", {"deep": 1}]
    entries = [user("root", None, "r")]
    entries += [{**user(f"c{k}", "root", "x"), "timestamp": value} for k, value in enumerate(times)]
    index, _ = index_of(entries)
    # c1 has no time and counts as old as c0; c2, c4 and c5 are one instant; c6 and c7 count as c5.
    assert ids(index, children(index, 0)) == ["c3", "c2", "c4", "c5", "c6", "c7", "c0", "c1"]


@pytest.mark.parametrize("links", [{"a": "b", "b": "a"}, {"a": "a", "b": "a"}, {"a": "c", "b": "a", "c": "b"}])
def test_a_cycle_is_cut_and_everything_is_reached_once(links):
    """A015: every walk ends, and each entry stands in the tree exactly once."""
    index, _ = index_of([user(id_, parent, "x") for id_, parent in links.items()])
    families = child_map(index)
    assert sorted(i for family in families.values() for i in family) == list(range(len(index)))
    assert all(path(index, i)[-1] == i for i in range(len(index)))


def test_an_orphan_is_a_root_with_its_subtree():
    """A018: the parent was never written; nothing below it is lost."""
    index, _ = index_of([user("a", None, "x"), user("b", "a", "x"), user("c", "lost", "x"), user("d", "c", "x")])
    assert ids(index, children(index, NONE)) == ["a", "c"]
    assert ids(index, path(index, 3)) == ["c", "d"]


@given(trees(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_of_lines_does_not_change_the_shape(entries, rng: random.Random):
    """A026: link by id, not by file order."""
    shuffled = entries[:]
    rng.shuffle(shuffled)
    shapes = []
    for some in (entries, shuffled):
        index, _ = index_of(some)
        shapes.append({id_: index.id_of(index.parent[i]) for i, id_ in enumerate(index.ids)})
    assert shapes[0] == shapes[1]


def test_a_chain_of_100_000_is_walked_without_recursion():
    """A068: nothing grows with the square of the depth."""
    log = chain(100_000)
    last = len(log.index) - 1
    began = time.perf_counter()
    assert path(log.index, last) == list(range(100_000))
    assert common_ancestor(log.index, last, 50_000) == 50_000
    assert len(abandoned(log.index, last, 10)) == last - 10
    assert leaves(log.index) == [last]
    assert runs(log.index).starts == [0]
    assert time.perf_counter() - began < 2


def test_a_star_and_alternating_branches_are_linear():
    star = [user("root", None, "r")] + [user(f"c{k}", "root", "x", k % 3600) for k in range(20_000)]
    ladder = [user("b0", None, "r")]
    for k in range(1, 5_001):
        ladder += [user(f"a{k}", f"b{k - 1}", "x"), user(f"b{k}", f"b{k - 1}", "x")]
    for entries in (star, ladder):
        index, _ = index_of(entries)
        began = time.perf_counter()
        tree = runs(index)
        assert len(tree.preorder(len(index) - 1)) == len(tree.starts)
        assert len(children(index, 0)) == (20_000 if entries is star else 2)
        assert time.perf_counter() - began < 2
