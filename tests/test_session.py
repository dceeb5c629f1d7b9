"""One open session: revisions, epochs, the leaf, appends and what other programs do to its file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon.errors import (
    AlreadyExists,
    Busy,
    DamagedHeader,
    DamagedRegion,
    EntryNotFound,
    InvalidEntry,
    LeafMoved,
    SessionGone,
)
from dsh_daemon.log.index import NONE
from dsh_daemon.session import Session, SessionClosed
from tests.support import CORPUS, assistant, entry, header, line, tool_result, user, write_log

CAUSE: Any = {"method": "test", "client": "c1"}
LOG = [user("u1", None, "a"), assistant("a1", "u1", "b", 2), user("u2", "a1", "c", 3)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_log(tmp_path / "s.jsonl", LOG)


@pytest.fixture
def session(path: Path) -> Session:
    return Session.open(str(path))


def add(path: Path, *entries: dict[str, Any], raw: bytes = b"") -> None:
    with path.open("ab") as file:
        file.write(b"".join(line(e) for e in entries) + raw)


def note(id_: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "custom", "customType": "note"} | ({"id": id_} if id_ else {}) | more


# Revisions, epochs, the leaf


def test_the_leaf_is_the_last_entry_of_the_file_whatever_its_type(path: Path):
    assert Session.open(str(path)).leaf_id == "u2"
    add(path, entry("label", "l1", "a1", targetId="u1", label="x"))
    assert Session.open(str(path)).leaf_id == "l1"
    add(path, raw=b"garbage\n\n")
    assert Session.open(str(path)).leaf_id == "l1"


def test_every_change_is_one_revision_and_nothing_else_is(session: Session, path: Path):
    assert session.refresh() == []
    add(path, raw=b"\ngarbage\n")
    assert session.refresh() == []
    assert session.move(session.leaf, CAUSE) is None
    assert session.revision == 1
    add(path, user("u3", "u2", "d"), user("u4", "u3", "e"))
    (change,) = session.refresh()
    assert (change["fromRevision"], change["revision"], session.revision) == (1, 2, 2)
    session.append([note()])
    assert session.move(0, CAUSE) is not None
    assert session.revision == 4


def test_what_others_append_is_a_change_with_the_leaf_at_its_last_entry(session: Session, path: Path):
    session.move(0, CAUSE)
    add(path, user("x1", "a1", "theirs"), entry("label", "x2", "x1", targetId="u1", label="mark"))
    (change,) = session.refresh()
    assert change["cause"] == "external"
    assert change["entries"] == [
        {"id": "x1", "parentId": "a1", "type": "message"},
        {"id": "x2", "parentId": "x1", "type": "label"},
    ]
    assert change["labels"] == {"u1": "mark"}
    assert (change["leafId"], session.leaf_id) == ("x2", "x2")


def test_the_changes_since_a_revision_are_all_or_none(session: Session):
    epoch = session.epoch
    for k in range(5):
        session.append([note(f"n{k}")])
    assert session.since(epoch, session.revision) == []
    for revision in range(1, 6):
        found = session.since(epoch, revision)
        assert found is not None
        assert [c["revision"] for c in found] == list(range(revision + 1, 7))
        assert [e["id"] for c in found for e in c["entries"]] == [f"n{k}" for k in range(revision - 1, 5)]
    assert session.since("another", 1) is None
    assert session.since(epoch, 99) is None
    assert session.since(epoch, 0) is None
    for _ in range(1_000):
        session.move(1 - min(session.leaf, 1), CAUSE)
    assert session.since(epoch, 1) is None
    assert session.since(epoch, session.revision - 1_000) is not None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["ours", "theirs", "torn", "move", "refresh"]), max_size=25))
def test_folding_the_changes_gives_the_state(steps: list[str]):
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = write_log(Path(folder) / "s.jsonl", LOG)
        session = Session.open(str(path))
        ids, leaf, revision, epoch = list(session.index.ids), session.leaf_id, session.revision, session.epoch
        for k, step in enumerate(steps):
            if step == "ours":
                os.utime(path, (0, 0))
                session.append([note(f"o{k}")])
            elif step == "theirs":
                add(path, user(f"t{k}", "u1", "x"))
            elif step == "torn":
                add(path, raw=line(user(f"p{k}", "u1", "x"))[:-1])
            elif step == "move":
                session.move(k % len(session.index), CAUSE)
            else:
                session.refresh()
        session.refresh()
        if session.epoch == epoch:
            changes = session.since(epoch, revision)
            assert changes is not None
            for change in changes:
                assert change["fromRevision"] == revision
                revision = change["revision"]
                ids += [e["id"] for e in change["entries"]]
                leaf = change["leafId"]
            assert (ids, leaf, revision) == (session.index.ids, session.leaf_id, session.revision)


def test_moves_remember_where_they_came_from(session: Session, path: Path):
    before = path.read_bytes()
    session.move(0, CAUSE)
    session.move(NONE, CAUSE)
    assert (session.leaf_id, session.history) == (None, ["u2", "u1"])
    session.move(session.find(session.history[-1]), CAUSE, back=True)
    assert (session.leaf_id, session.history) == ("u1", ["u2"])
    for k in range(300):
        session.move(k % 3, CAUSE)
    assert len(session.history) <= 100
    assert path.read_bytes() == before


def test_an_unexpected_leaf_is_an_error_with_the_actual_one(session: Session):
    session.expect_leaf("u2")
    with pytest.raises(LeafMoved) as refused:
        session.expect_leaf("a1")
    assert (refused.value.data["expected"], refused.value.data["actual"]) == ("a1", "u2")


# What others do to the file


def test_a_last_line_is_shown_once_however_it_arrives(session: Session, path: Path):
    text = line(user("u3", "u2", "d"))
    add(path, raw=text[:30])
    assert session.refresh() == []
    add(path, raw=text[30:-1])
    (change,) = session.refresh()
    assert [e["id"] for e in change["entries"]] == ["u3"]
    add(path, raw=b"\n")
    assert session.refresh() == []
    assert (session.index.ids, session.revision) == (["u1", "a1", "u2", "u3"], 2)


def test_a_record_that_was_the_start_of_another_line_begins_a_new_epoch(session: Session, path: Path):
    add(path, raw=b'{"type":"custom","id":"c1"}')
    session.refresh()
    assert session.leaf_id == "c1"
    epoch = session.epoch
    add(path, raw=b"garbage\n")
    (change,) = session.refresh()
    assert change.get("resync")
    assert session.epoch != epoch
    assert session.since(epoch, 1) is None
    assert session.leaf_id == "u2"


def test_a_file_replaced_by_the_same_session_begins_a_new_epoch(session: Session, path: Path, tmp_path: Path):
    epoch, revision = session.epoch, session.revision
    write_log(tmp_path / "new", [*LOG[:2], user("u9", "a1", "other")]).rename(path)
    (change,) = session.refresh()
    assert change.get("resync")
    assert session.epoch != epoch
    assert session.revision > revision
    assert session.index.ids == ["u1", "a1", "u9"]
    assert session.entry(2)["message"]["content"][0]["text"] == "other"
    session.append([note("n1")])
    assert path.read_bytes().endswith(b"\n")
    assert b'"n1"' in path.read_bytes()


def test_a_file_cut_short_or_rewritten_in_place_begins_a_new_epoch(session: Session, path: Path):
    data = path.read_bytes()
    session.entry(2)
    path.write_bytes(data[: data.index(b'{"type":"message","id":"u2"')])
    (change,) = session.refresh()
    assert change.get("resync")
    assert session.index.ids == ["u1", "a1"]

    write_log(path, [user("u1", None, "a longer text than before"), *LOG[1:], user("u3", "u2", "d")])
    (change,) = session.refresh()
    assert change.get("resync")
    assert session.index.ids == ["u1", "a1", "u2", "u3"]
    assert session.entry(0)["message"]["content"][0]["text"] == "a longer text than before"


def test_bodies_that_are_no_longer_there_are_gone_and_never_somebody_elses(session: Session, path: Path):
    data = path.read_bytes()
    path.write_bytes(data[:200])
    with pytest.raises(SessionGone):
        session.entry(2)
    path.write_bytes(b"#" * len(data))
    with pytest.raises(SessionGone):
        session.entry(1)
    swapped = [user("u1", None, "a"), assistant("b1", "u1", "b", 2), user("u2", "b1", "c", 3)]
    write_log(path, swapped)
    assert path.stat().st_size == len(data)
    with pytest.raises(SessionGone):
        session.entry(1)


def test_another_session_in_its_place_closes_it(session: Session, path: Path, tmp_path: Path):
    write_log(tmp_path / "new", LOG, header("another")).rename(path)
    with pytest.raises(SessionClosed) as closed:
        session.refresh()
    assert closed.value.reason == "replaced"


def test_a006_an_append_to_a_file_that_is_gone_makes_no_new_one(session: Session, path: Path):
    path.unlink()
    with pytest.raises(SessionClosed) as closed:
        session.refresh()
    assert closed.value.reason == "deleted"
    with pytest.raises(SessionGone):
        session.append([note()])
    assert not path.exists()


def test_reading_writes_nothing(path: Path):
    for raw in (b"", b'{"torn', b"garbage\n\0\0\0", line(user("u3", None, "x"))[:-1]):
        path.write_bytes(line(header()) + b"".join(map(line, LOG)) + raw)
        os.utime(path, (1_000, 1_000))
        before = (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
        session = Session.open(str(path))
        session.refresh()
        session.diagnostics()
        for i in range(len(session.index)):
            session.entry(i)
        session.move(0, CAUSE)
        session.journal.close()
        assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before


# Appending


def test_entries_of_a_batch_form_a_chain_from_the_leaf(session: Session, path: Path):
    ids = session.append([note(), note("mine"), note(parentId="u1"), note()])
    assert len(set(ids)) == 4
    assert ids[1] == "mine"
    index = session.index
    assert [index.id_of(index.parent[i]) for i in range(3, 7)] == ["u2", ids[0], "u1", ids[2]]
    assert session.leaf_id == ids[3]
    (change,) = session.changes
    assert [e["id"] for e in change["entries"]] == ids
    again = Session.open(str(path))
    assert (again.index.ids, list(again.index.parent)) == (index.ids, list(index.parent))
    assert again.diagnostics() == []


def test_an_entry_may_start_a_new_root_or_hang_from_anywhere(session: Session):
    root = session.append([note()], parent=NONE)[0]
    explicit = session.append([note(parentId=None)])[0]
    child = session.append([note()], parent=session.find("a1"))[0]
    parents = [session.index.id_of(session.index.parent[session.find(id_)]) for id_ in (root, explicit, child)]
    assert parents == [None, None, "a1"]


def test_c8_the_same_append_again_gives_the_first_result(session: Session, path: Path):
    content = {"role": "user", "content": "hi"}
    batch = [
        {"type": "message", "id": "n1", "message": content},
        note("n2", data={"x": 1}, timestamp="2026-01-01T02:00:00+02:00"),
    ]
    assert session.append(batch) == ["n1", "n2"]
    size, revision = path.stat().st_size, session.revision
    session.move(0, CAUSE)
    assert session.append(batch) == ["n1", "n2"]
    assert Session.open(str(path)).append(batch) == ["n1", "n2"]
    assert (path.stat().st_size, session.revision, session.leaf_id) == (size, revision + 1, "u1")

    for other in (
        {"type": "message", "id": "n1", "message": {"role": "user", "content": "other"}},
        {"type": "custom", "id": "n1"},
        note("n2", data={"x": 2}),
        note("n2", parentId="u1", data={"x": 1}),
        note("n2", more=1),
    ):
        with pytest.raises(AlreadyExists):
            session.append([other])
    assert path.stat().st_size == size


def test_c8_holds_for_entries_that_were_completed_and_for_old_ones(session: Session, path: Path):
    add(path, note("old", parentId="u2", timestamp="yesterday", data=1))
    assert session.append([note("old", data=1)]) == ["old"]
    answer = {"role": "assistant", "content": "x", "provider": "p", "model": "m", "usage": {}, "stopReason": "stop"}
    sent = [{"type": "message", "id": "n1", "message": answer}]
    assert session.append(sent) == session.append(sent) == ["n1"]
    assert session.entry(session.find("n1"))["message"]["content"] == [{"type": "text", "text": "x"}]


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        ({}, InvalidEntry),
        ({"type": ""}, InvalidEntry),
        ({"type": 7}, InvalidEntry),
        ({"type": "session"}, InvalidEntry),
        ({"type": "turn_start", "turn": 1}, InvalidEntry),
        (note(id="a~2"), InvalidEntry),
        (note(id=""), InvalidEntry),
        (note(id=7), InvalidEntry),
        (note(id="x" * 200), InvalidEntry),
        (note(id="line\nbreak"), InvalidEntry),
        (note(timestamp="yesterday"), InvalidEntry),
        (note(timestamp=[]), InvalidEntry),
        (note(parentId="nobody"), EntryNotFound),
        (note(parentId=7), InvalidEntry),
        (note(parentId=["u1"]), InvalidEntry),
        ({"type": "message"}, InvalidEntry),
        ({"type": "message", "message": "text"}, InvalidEntry),
        ({"type": "message", "message": {"content": "x"}}, InvalidEntry),
        ({"type": "message", "message": {"role": "user"}}, InvalidEntry),
        ({"type": "message", "message": {"role": "user", "content": [1]}}, InvalidEntry),
        ({"type": "message", "message": {"role": "assistant", "content": "x"}}, InvalidEntry),  # pi reads its usage
        ({"type": "label"}, InvalidEntry),
        ({"type": "label", "targetId": "nobody", "label": "x"}, (InvalidEntry, EntryNotFound)),
    ],
)
def test_what_is_no_sound_entry_is_refused_and_nothing_of_its_batch_is_written(
    session: Session, path: Path, sent: dict[str, Any], fault: Any
):
    before = path.read_bytes()
    with pytest.raises(fault):
        session.append([note(), sent])
    assert path.read_bytes() == before
    assert session.revision == 1


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
def test_a_number_beyond_64_bits_is_refused_with_its_place(session: Session, path: Path, number: int):
    before = path.read_bytes()
    with pytest.raises(InvalidEntry) as caught:
        session.append([note(), note(data={"list": [1, {"n": number}]})])
    assert (caught.value.data["index"], caught.value.data["field"]) == (1, "data.list.1.n")
    assert path.read_bytes() == before
    session.append([note(data=[2**64 - 1, -(2**63), 1e300])])
    assert b"[18446744073709551615,-9223372036854775808,1e+300]" in path.read_bytes()


def test_what_is_nested_too_deeply_to_be_kept_is_refused_and_not_cut(session: Session, path: Path):
    deep: Any = "x"
    for _ in range(260):
        deep = {"k": deep}
    before = path.read_bytes()
    with pytest.raises(InvalidEntry) as caught:
        session.append([note(data=deep)])
    assert caught.value.data["field"] == "data"
    assert path.read_bytes() == before


def test_one_id_twice_in_a_batch_is_refused(session: Session):
    with pytest.raises(AlreadyExists):
        session.append([note("n1"), note("n1")])


def test_a_second_entry_of_one_id_cannot_be_hung_from(session: Session, path: Path):
    add(path, user("u1", None, "another"))
    session.refresh()
    assert session.index.ids[-1] == "u1~2"
    with pytest.raises(DamagedRegion):
        session.append([note(parentId="u1~2")])


def test_pi_files_get_what_pi_needs(session: Session, path: Path):
    session.append(
        [
            {
                "type": "message",
                "id": "n1",
                "timestamp": "2026-01-02T00:00:00.000Z",
                "message": {"role": "user", "content": "x"},
            }
        ]
    )
    assert session.entry(3)["message"]["timestamp"] == 1_767_312_000_000


def test_a001_appends_start_a_new_line_after_whatever_stands_there(path: Path):
    for tail in (b'{"torn', line(user("u3", "u2", "whole"))[:-1], b"\0\0\0", b"  ", b"\xed"):
        path.write_bytes(line(header()) + b"".join(map(line, LOG)) + tail)
        os.utime(path, (time.time() - 5,) * 2)
        session = Session.open(str(path))
        before = path.read_bytes()
        (id_,) = session.append([note()])
        assert path.read_bytes().startswith(before + b"\n{")
        assert session.leaf_id == id_
        again = Session.open(str(path)).index
        assert (again.ids, again.diagnostics) == (session.index.ids, session.index.diagnostics)
        assert [d["line"] for d in again.diagnostics] in ([], [5])


def test_a_tail_that_still_grows_makes_an_append_busy(session: Session, path: Path):
    add(path, raw=b'{"type":')
    with pytest.raises(Busy):
        session.append([note()])
    assert path.read_bytes().endswith(b'{"type":')


@pytest.mark.parametrize("first", [b"", b"{broken header\n", b"hello\n", line(user("u0", None, "x"))])
def test_a005_a007_what_is_not_a_session_with_a_header_is_never_written_to(path: Path, first: bytes):
    path.write_bytes(first + (b"".join(map(line, LOG)) if first else b""))
    before = path.read_bytes()
    session = Session.open(str(path))
    with pytest.raises(DamagedHeader):
        session.append([note()])
    assert path.read_bytes() == before


def test_what_others_wrote_before_our_append_comes_first(session: Session, path: Path):
    prepared = session.prepare([note("ours")], session.leaf)
    offset, end = session.write(prepared.lines)
    add(path, user("later", "u2", "x"))
    changes = session.take_written(offset, end, CAUSE)
    assert [e["id"] for c in changes for e in c["entries"]] == ["ours"]
    (later,) = session.refresh()
    assert (later["cause"], later["leafId"]) == ("external", "later")

    add(path, user("before", "u2", "x"))
    session.append([note("next")])
    assert session.index.ids[-3:] == ["later", "before", "next"]
    assert [c["cause"] == "external" for c in session.changes][-2:] == [True, False]


def test_sessions_in_memory_append_too():
    session = Session.in_memory(header())
    ids = session.append([note(), note()])
    assert (session.index.ids, session.leaf_id, session.path) == (ids, ids[1], None)
    assert session.entry(1)["parentId"] == ids[0]


# What is wrong with a log


def named(session: Session, code: str) -> list[Any]:
    return [d for d in session.diagnostics() if d["code"] == code]


def test_a014_an_answer_that_waits_for_tools_or_is_empty_is_named_with_the_last_safe_entry(path: Path):
    call = {"id": "c1", "name": "bash", "arguments": None}
    label = entry("label", "l1", "a2", targetId="u1", label="x")
    waits, empty = assistant("a2", "u2", "", 4, [call]), assistant("a2", "u2", "", 4)
    for last in ([waits], [empty], [waits, label]):
        session = Session.open(str(write_log(path, [*LOG, *last])))
        (found,) = named(session, "dangling")
        assert found["entryId"] == "a2"
        assert found["message"].endswith(" u2")
    session = Session.open(
        str(write_log(path, [*LOG, assistant("a2", "u2", "", 4, [call]), tool_result("t1", "a2", "c1", "x")]))
    )
    assert named(session, "dangling") == []


def test_a019_a_leaf_on_a_tiny_branch_is_a_warning(path: Path):
    chain = [user("m0", None, "x"), *(user(f"m{k}", f"m{k - 1}", "x", k) for k in range(1, 50))]
    session = Session.open(str(write_log(path, [*chain, entry("custom", "p", None), user("u", "p", "again")])))
    assert session.leaf_id == "u"
    assert [d["entryId"] for d in named(session, "short_active_path")] == ["u"]
    assert named(Session.open(str(write_log(path, chain))), "short_active_path") == []


def test_a018_an_orphan_is_named_with_the_entry_before_it(path: Path):
    session = Session.open(str(write_log(path, [*LOG, user("o", "lost", "x")])))
    (found,) = named(session, "unknown_parent")
    assert found["entryId"] == "o"
    assert "lost" in found["message"]
    assert "u2" in found["message"]


def test_a_file_full_of_faults_lists_a_thousand_and_says_how_many_more_there_are(path: Path):
    session = Session.open(str(write_log(path, [user(f"o{n}", f"lost{n}", "x") for n in range(3_000)])))
    found = session.diagnostics()
    assert [d["code"] for d in found] == ["unknown_parent"] * 1_000 + ["more_faults"]
    assert found[-1]["message"].startswith("2000 more")


def test_a015_the_link_that_was_cut_is_named(path: Path):
    session = Session.open(str(write_log(path, [user("a", "b", "x"), user("b", "a", "y")])))
    (found,) = named(session, "cycle")
    assert found["entryId"] == "a"
    assert "b" in found["message"]


# Old versions


def old(path: Path, version: int) -> Path:
    if version == 2:
        made = [user("u1", None, "a"), entry("message", "h1", "u1", message={"role": "hookMessage", "content": "x"})]
        return write_log(path, made, header(version=2))
    head = {name: value for name, value in header().items() if name != "version"}
    made = [
        user("", None, "a"),
        assistant("", None, "b"),
        entry("compaction", "", None, summary="s", firstKeptEntryIndex=2),
    ]
    return write_log(path, [{n: v for n, v in e.items() if n not in {"id", "parentId"}} for e in made], head)


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_log_keeps_its_ids_when_it_is_upgraded(path: Path, version: int):
    old(path, version)
    before = path.read_bytes()
    session = Session.open(str(path))
    shown = [session.entry(i) for i in range(len(session.index))]
    assert path.read_bytes() == before

    session.upgrade()
    again = Session.open(str(path))
    assert again.header.version == 3
    assert [again.entry(i) for i in range(len(again.index))] == shown
    assert [p.read_bytes() for p in path.parent.glob("*.bak")] == [before]
    session.append([note("n1")])
    assert Session.open(str(path)).index.ids == [*(e["id"] for e in shown), "n1"]


@pytest.mark.skipif(CORPUS is None, reason="the corpus is not here")
@pytest.mark.parametrize("version", ["0.30.2", "0.32.3"])
def test_genuine_old_logs_keep_their_ids_when_they_are_upgraded(tmp_path: Path, version: str):
    assert CORPUS is not None
    for number, source in enumerate(sorted((CORPUS / "pi" / version).rglob("*.jsonl"))):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(source.read_bytes())
        session = Session.open(str(path))
        shown = [session.entry(i) for i in range(len(session.index))]
        session.upgrade()
        again = Session.open(str(path))
        assert (again.header.version, again.diagnostics()) == (3, session.diagnostics())
        assert [again.entry(i) for i in range(len(again.index))] == shown
