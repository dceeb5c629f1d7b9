"""`SessionManager` in a script, without a daemon: pi's names, over real files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from dsh_daemon import SessionManager
from dsh_daemon.errors import EntryNotFound
from tests.support import assistant, user, write_log


def talk(tmp_path: Path) -> Path:
    entries = [user("u1", None, "one"), assistant("a1", "u1", "two", 2), user("u2", "a1", "three", 3)]
    return write_log(tmp_path / "2026-01-01T00-00-00-000Z_s1.jsonl", entries)


def test_a_branch_moves_the_leaf_and_writes_nothing_and_the_next_entry_hangs_there(tmp_path: Path) -> None:
    path = talk(tmp_path)
    before = path.read_bytes()
    manager = SessionManager.open(path)
    manager.branch("u1")

    assert path.read_bytes() == before
    new = manager.append_message({"role": "user", "content": "another way"})
    assert [e["id"] for e in manager.get_branch()] == ["u1", new]
    assert [e["id"] for e in manager.get_branch("u2")] == ["u1", "a1", "u2"]
    assert [e["id"] for e in manager.get_children("u1")] == ["a1", new]
    assert json.loads(path.read_bytes().split(b"\n")[-2])["id"] == new


def test_branch_refuses_none_and_reset_leaf_makes_the_next_entry_a_root(tmp_path: Path) -> None:
    manager = SessionManager.open(talk(tmp_path))
    for nothing in (None, "nope"):
        with pytest.raises(EntryNotFound):
            manager.branch(nothing)  # type: ignore[arg-type]

    manager.reset_leaf()
    root = manager.append_custom("note", {"n": 1})
    assert manager.get_entry(root)["parentId"] is None
    assert [node["entry"]["id"] for node in manager.get_tree()] == ["u1", root]


def test_a_summary_of_what_is_left_hangs_at_the_new_position_and_names_it_or_the_root(tmp_path: Path) -> None:
    manager = SessionManager.open(talk(tmp_path))
    for place, origin in (("u1", "u1"), (None, "root")):
        made = manager.get_entry(manager.branch_with_summary(place, "left", {"readFiles": []}, from_extension=True))
        assert (made["parentId"], made["fromId"], made["summary"]) == (place, origin, "left")
        assert manager.leaf_id == made["id"]


def test_labels_are_set_and_cleared_by_entries(tmp_path: Path) -> None:
    manager = SessionManager.open(talk(tmp_path))
    manager.append_label_change("a1", "here")
    assert manager.get_label("a1") == "here"
    manager.append_label_change("a1")
    assert manager.get_label("a1") is None
    with pytest.raises(EntryNotFound):
        manager.append_label_change("nope", "x")


def test_a_branched_session_is_a_new_file_with_its_labels_and_the_source_stays(tmp_path: Path) -> None:
    path = talk(tmp_path)
    manager = SessionManager.open(path)
    manager.append_label_change("u1", "start")
    before = hashlib.sha256(path.read_bytes()).digest()

    made = manager.create_branched_session("a1")
    assert made == manager.session_file
    assert [e["id"] for e in manager.get_branch("a1")] == ["u1", "a1"]
    assert manager.get_label("u1") == "start"
    assert hashlib.sha256(path.read_bytes()).digest() == before


def test_in_memory_a_branched_session_has_no_path(tmp_path: Path) -> None:
    manager = SessionManager.in_memory(str(tmp_path))
    first = manager.append_message({"role": "user", "content": "one"})
    manager.append_message({"role": "user", "content": "two"})

    assert manager.create_branched_session(first) is None
    assert [e["id"] for e in manager.get_entries()] == [first]
    assert list(tmp_path.iterdir()) == []


def test_the_context_begins_with_the_last_compaction(tmp_path: Path) -> None:
    manager = SessionManager.open(talk(tmp_path))
    manager.append_compaction("what was said", "u2", 100)
    context = manager.build_session_context()
    assert [m["role"] for m in context["messages"]] == ["compactionSummary", "user"]
    assert context["sources"][1] == ["u2"]
