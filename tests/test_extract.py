"""What is handed to the index: all of a log, in pieces, and after an addition only what came."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from dsh_daemon import extract, tree, turns
from dsh_daemon.catalog import Stamp
from dsh_daemon.errors import Fault
from dsh_daemon.extract import Done, Job, Part, receive, send, work
from dsh_daemon.fulltext import text_of
from dsh_daemon.search_index import SPEAKER_BITS, Known, SearchIndex
from dsh_daemon.session import Session, SessionClosed
from dsh_daemon.state import LeafMemory
from dsh_daemon.tokens import Word, expression, fold, words
from tests import dsh_logs
from tests.support import CORPUS, assistant, entry, header, line, tool_result, user, write_log

SAID = ["alpha", "beta gamma", "마이그레이션을", "データベース", "", "Ünïcode x_y"]
QUERIES = ["alpha", "gam", "그레", "ベ", "unicode", "beta gamma", "y"]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "TEXT_AT_ONCE", 20)
    monkeypatch.setattr(extract, "READ_AT_ONCE", 3)
    monkeypatch.setattr(extract, "FEW", 2)
    monkeypatch.setattr("dsh_daemon.search_index.CHUNK", 4)


@st.composite
def logs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Entries of all kinds on several branches; some under a parent that comes later, or never."""
    found: list[dict[str, Any]] = []
    count = draw(st.integers(0, 24))
    for n in range(count):
        under = None if not n else draw(st.sampled_from([*range(max(0, n - 3), n), *range(n), count - 1, 99]))
        id_, parent = f"e{n:02}", None if under is None else f"e{under:02}"
        parent = None if parent == id_ else parent
        text, second = draw(st.sampled_from(SAID)), n * 7 % 50
        kind = draw(st.sampled_from(["user", "assistant", "result", "mark", "label", "compaction"]))
        if kind == "user":
            found.append(user(id_, parent, text, second))
        elif kind == "assistant":
            found.append(assistant(id_, parent, text, second, [{"id": "c", "name": "bash", "arguments": {"a": text}}]))
        elif kind == "result":
            found.append(tool_result(id_, parent or "", "c", text, second))
        elif kind == "mark":
            type_ = draw(st.sampled_from(["turn_start", "turn_end", "model_change"]))
            found.append(entry(type_, id_, parent, second, turn=draw(st.sampled_from([0, 3, 9]))))
        elif kind == "label":
            found.append(
                entry("label", id_, parent, second, targetId="e01", label=draw(st.sampled_from(["here", None])))
            )
        else:
            kept = f"e{draw(st.integers(0, count)):02}"
            found.append(entry("compaction", id_, parent, second, summary=text, firstKeptEntryId=kept, tokensBefore=1))
    return found


def put_all(index: SearchIndex, session: Session, known: Known | None) -> Known:
    path = session.path or "memory"
    for piece in extract.pieces(session, Stamp.of(os.stat(path)), known):
        assert index.put(path, known, piece)
        known = piece.known
    assert known is not None
    return known


def content(index: SearchIndex, path: str) -> dict[str, Any]:
    """All that is in an index of one file."""
    columns = index.columns(path)
    assert columns is not None
    return {
        "time": list(columns.time),
        "shape": [columns.shapes[code] for code in columns.shape],
        "active": [i for i in range(len(columns)) if columns.is_active(i)],
        "compacted": [i for i in range(len(columns)) if columns.is_compacted(i)],
        "labels": columns.labels,
        "places": [tuple(place) for _, place in sorted(index.places(path, range(len(columns))).items())],
        **{query: sorted(index.matches(expression(words(query))).get(path, [])) for query in QUERIES},
    }


def stands(text: str, word: Word) -> bool:
    at = -1
    while (at := text.find(word.atoms[0].text, at + 1)) >= 0:
        if word.end(text, at) >= 0:
            return True
    return False


def expected(session: Session) -> dict[str, Any]:
    """The same, entry by entry from the log."""
    index = session.index
    every = range(len(index))
    path = tree.path(index, session.leaf)
    said = {i: text_of(session.entry(i)) for i in every}
    return {
        "time": [index.time[i] for i in every],
        "shape": [index.shape_of(i) for i in every],
        "active": sorted(path),
        "compacted": sorted(path[: turns.first_shown(index, path, session.entry)]),
        "labels": {i: label.text for i, label in index.labels.items()},
        "places": [
            (index.ids[i], index.offset[i], index.length[i],
             turns.number_at(index, session.runs(), session.entry, i)) for i in every
        ],
        **{
            query: sorted(
                i << SPEAKER_BITS | text.speaker
                for i, text in said.items()
                if text is not None and all(stands(fold(text.text), word) for word in words(query))
            )
            for query in QUERIES
        },
    }  # fmt: skip


fixture_once = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fixture_once
@given(entries=logs(), data=st.data())
def test_a_log_that_grew_is_indexed_as_one_that_was_always_so(
    entries: list[dict[str, Any]], data: st.DataObject, tmp_path: Path
) -> None:
    raw = line(header()) + b"".join(map(line, entries))
    path, index = tmp_path / "s.jsonl", SearchIndex(None)
    known: Known | None = None
    cuts = data.draw(st.lists(st.integers(1, len(raw)), max_size=5))
    for size in [*sorted(cuts), len(raw)]:
        path.write_bytes(raw[:size])
        session = Session.open(str(path))
        known = put_all(index, session, known)
        assert known.whole
        assert content(index, str(path)) == expected(session)
        session.journal.close()
    index.close()


@fixture_once
@given(entries=logs(), data=st.data())
def test_a_moved_leaf_changes_what_is_active_and_nothing_else(
    entries: list[dict[str, Any]], data: st.DataObject, tmp_path: Path
) -> None:
    path, index = write_log(tmp_path / "s.jsonl", entries), SearchIndex(None)
    session = Session.open(str(path))
    known = put_all(index, session, None)
    before = content(index, str(path))
    session.leaf = data.draw(st.integers(-1, len(session.index) - 1))
    put_all(index, session, known)
    after = content(index, str(path))
    assert after == expected(session)
    assert {**after, "active": 0, "compacted": 0} == {**before, "active": 0, "compacted": 0}
    session.journal.close()
    index.close()


def test_only_what_came_is_read_again(tmp_path: Path) -> None:
    path = write_log(tmp_path / "s.jsonl", [user(f"e{n}", f"e{n - 1}" if n else None, "alpha") for n in range(20)])
    index = SearchIndex(None)
    session = Session.open(str(path))
    known = put_all(index, session, None)
    with path.open("ab") as file:
        file.write(line(user("new", "e19", "beta gamma")))
    session.refresh()
    (piece,) = extract.pieces(session, Stamp.of(os.stat(path)), known)
    assert (piece.first, piece.ids, [said[0] for said in piece.said]) == (20, ["new"], [20])


def test_a_log_that_was_rewritten_is_indexed_anew(tmp_path: Path) -> None:
    path = write_log(tmp_path / "s.jsonl", [user("a", None, "alpha"), user("b", "a", "alpha")])
    index = SearchIndex(None)
    known = put_all(index, Session.open(str(path)), None)
    write_log(path, [user("x", None, "beta gamma"), user("y", "x", "beta"), user("z", "y", "gamma")])
    session = Session.open(str(path))
    put_all(index, session, known)
    assert content(index, str(path)) == expected(session)
    assert not index.matches(expression(words("alpha")))


def test_a_place_that_is_put_by_two_is_put_once(tmp_path: Path) -> None:
    """Two daemons of one user, or a daemon and `dshd stdio --standalone`, have one index."""
    path = write_log(tmp_path / "s.jsonl", [user("a", None, "alpha")])
    session = Session.open(str(path))
    first, second = (SearchIndex(str(tmp_path / "search.db")) for _ in range(2))
    (piece,) = extract.pieces(session, Stamp.of(os.stat(path)), None)
    assert first.put(str(path), None, piece)
    assert not second.put(str(path), None, piece)
    assert second.files() == {str(path): piece.known}
    assert len(second.matches(expression(words("alpha")))[str(path)]) == 1
    first.close()
    second.close()


@pytest.mark.parametrize("zstd", [False, True])
def test_a_log_of_dsh_is_indexed_as_it_is_shown(zstd: bool, tmp_path: Path) -> None:
    log = dsh_logs.story()
    known, index = None, SearchIndex(None)
    for _ in range(2):
        path = log.write(tmp_path, zstd=zstd)
        session = Session.open(str(path))
        known = put_all(index, session, known)
        assert content(index, str(path)) == {
            **expected(session), "compacted": sorted(session.index.surface.shadowed)
        }  # fmt: skip
        log.talk("Another thing", "another answer")
    assert index.matches(expression(words("한국")))


def test_the_leaf_is_where_it_was_left(tmp_path: Path) -> None:
    path = write_log(tmp_path / "s.jsonl", [user("a", None, "alpha"), user("b", "a", "x"), user("c", "b", "x")])
    memory = LeafMemory(path.stat().st_size, "c", "a", [])
    part, done = work(Job(str(path), Stamp.of(os.stat(path)), memory=memory))
    assert isinstance(part, Part)
    assert isinstance(done, Done)
    assert part.piece.known.leaf == "a"
    assert part.piece.facts.active == [0, 1]
    assert done.counts is not None
    assert done.counts.entries == 3


def test_a_long_log_that_grew_is_not_read_again_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "SNAPSHOT_AFTER", 1_000)
    path = write_log(tmp_path / "s.jsonl", [user(f"e{n}", f"e{n - 1}" if n else None, "alpha") for n in range(50)])
    *parts, done = work(Job(str(path), Stamp.of(os.stat(path))))
    assert isinstance(done, Done)
    assert done.snapshot is not None
    assert isinstance(parts[-1], Part)
    with path.open("ab") as file:
        file.write(line(user("new", "e49", "beta")))
    part, done = work(Job(str(path), Stamp.of(os.stat(path)), parts[-1].piece.known, snapshot=done.snapshot))
    assert isinstance(part, Part)
    assert (part.piece.first, part.piece.ids) == (50, ["new"])
    assert isinstance(done, Done)
    assert done.snapshot is None, "so little was read that what is stored is good enough"


def test_a_file_that_cannot_be_read_has_no_counts(tmp_path: Path) -> None:
    assert list(work(Job(str(tmp_path / "gone.jsonl"), Stamp(0, 0, 0, 0)))) == [Done()]


def test_a_process_does_the_same_and_ends_with_its_input(tmp_path: Path) -> None:
    path = write_log(tmp_path / "s.jsonl", [user("a", None, "alpha 마이그레이션")])
    job = Job(str(path), Stamp.of(os.stat(path)))
    process = subprocess.Popen(
        [sys.executable, "-m", "dsh_daemon.extract"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for _ in range(2):
            send(process.stdin, job)
            assert [receive(process.stdout), receive(process.stdout)] == list(work(job))
        process.stdin.close()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stdout.close()


def test_half_a_message_is_the_end() -> None:
    whole = io.BytesIO()
    send(whole, Done())
    for size in range(len(whole.getvalue())):
        with pytest.raises(EOFError):
            receive(io.BytesIO(whole.getvalue()[:size]))


@pytest.mark.skipif(CORPUS is None, reason="the corpus is not here")
def test_every_log_of_the_corpus_is_indexed_as_it_is() -> None:
    assert CORPUS is not None
    index, checked = SearchIndex(None), 0
    for path in sorted(CORPUS.rglob("*.jsonl*")):
        try:
            session = Session.open(str(path))
        except (Fault, SessionClosed):
            continue
        put_all(index, session, None)
        found, wanted = content(index, str(path)), expected(session)
        if session.header.format == "dsh":
            wanted["compacted"] = sorted(session.index.surface.shadowed)
        assert found == wanted, path
        session.journal.close()
        checked += 1
    assert checked > 20
