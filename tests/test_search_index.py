"""The index by itself: what is put in is found, what is taken out is gone, and a bad file is begun anew."""

from __future__ import annotations

import os
import random
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from dsh_daemon import database
from dsh_daemon.catalog import Stamp
from dsh_daemon.errors import Fault
from dsh_daemon.search_index import SPEAKER_BITS, Facts, Known, Piece, SearchIndex
from dsh_daemon.tokens import expression, indexed, words

STAMP = Stamp(1, 2, 3, 4)
SECRET = "zyzzyvaquux"


def piece(texts: list[str], first: int = 0, *, labels: dict[int, str] | None = None) -> Piece:
    n = len(texts)
    known = Known(STAMP, first + n, 10 * (first + n), b"mark", whole=True, leaf=f"e{first + n - 1}", cwd="/tmp")
    return Piece(
        first, known, Facts([("message", "user", 0, None)], [0, first + n], []), labels or {},
        [(first + i, i % 3, indexed(text)) for i, text in enumerate(texts)],
        array("q", range(first, first + n)).tobytes(), array("H", [0] * n).tobytes(),
        array("q", [10 * (first + i) for i in range(n)]).tobytes(), array("q", [9] * n).tobytes(),
        array("i", [1] * n).tobytes(), [f"e{first + i}" for i in range(n)],
    )  # fmt: skip


def found(index: SearchIndex, query: str, path: str | None = None) -> dict[str, list[int]]:
    rows = index.matches(expression(words(query)), path)
    return {name: [row >> SPEAKER_BITS for row in column] for name, column in rows.items()}


def on_disk(folder: Path, word: str) -> bool:
    return any(word.encode() in path.read_bytes() for path in folder.iterdir())


@pytest.fixture
def index(tmp_path: Path):
    index = SearchIndex(str(tmp_path / "search.db"))
    yield index
    index.close()


def test_files_are_told_apart_and_one_can_be_searched_alone(index: SearchIndex) -> None:
    for name in ("a", "b"):
        assert index.put(name, None, piece(["alpha beta", "beta"]))
    assert found(index, "beta") == {"a": [0, 1], "b": [0, 1]}
    assert found(index, "alpha", "b") == {"b": [0]}
    assert found(index, "beta", "c") == {}


def test_a_piece_follows_the_one_before_it(index: SearchIndex) -> None:
    first = piece(["alpha"] * 300)
    assert index.put("a", None, first)
    second = piece(["beta", "alpha"], 300, labels={301: "here"})
    assert not index.put("a", None, second), "somebody else put something there"
    assert index.put("a", first.known, second)
    assert found(index, "alpha")["a"] == [*range(300), 301]
    columns = index.columns("a")
    assert columns is not None
    assert list(columns.time) == list(range(302))
    assert columns.labels == {301: "here"}
    assert index.labels() == {"a": {301: "here"}}
    assert index.places("a", [0, 255, 256, 301, 302])[301] == ("e301", 3010, 9, 1)
    assert sorted(index.places("a", [0, 255, 256, 301, 302])) == [0, 255, 256, 301]


def test_what_comes_again_takes_the_place_of_what_was_there(index: SearchIndex) -> None:
    first = piece(["alpha"] * 600)
    assert index.put("a", None, first)
    assert index.put("b", None, piece(["alpha"]))
    assert index.put("a", first.known, piece(["beta"] * 3, 299))
    assert found(index, "alpha") == {"a": list(range(299)), "b": [0]}
    assert found(index, "beta") == {"a": [299, 300, 301]}
    columns = index.columns("a")
    assert columns is not None
    assert len(columns) == 302


def test_the_columns_are_those_of_the_last_piece(index: SearchIndex) -> None:
    first = piece(["alpha"])
    assert index.put("a", None, first)
    before = index.columns("a")
    assert index.columns("a") is before
    assert index.put("a", first.known, piece(["beta"], 1))
    after = index.columns("a")
    assert after is not None
    assert len(after) == 2
    assert index.columns("b") is None


def test_a_file_that_is_forgotten_is_not_found_and_another_may_have_its_name(index: SearchIndex) -> None:
    for name in ("a", "b"):
        assert index.put(name, None, piece(["alpha"]))
    index.forget(["a", "nobody"])
    assert found(index, "alpha") == {"b": [0]}
    assert set(index.files()) == {"b"}
    index.moved("b", "a")
    assert found(index, "alpha") == {"a": [0]}
    assert index.put("b", None, piece(["beta"]))
    assert found(index, "beta") == {"b": [0]}


def test_clear_leaves_no_byte_of_what_was_there(index: SearchIndex, tmp_path: Path) -> None:
    assert index.put("a", None, piece([SECRET]))
    assert on_disk(tmp_path, SECRET)
    before = index.opened()
    index.clear()
    assert not on_disk(tmp_path, SECRET)
    assert index.opened() != before
    assert index.files() == {}
    assert index.put("a", None, piece(["alpha"]))


def test_one_in_memory_is_in_no_file(tmp_path: Path) -> None:
    index = SearchIndex(None)
    first = piece([SECRET])
    assert index.put("a", None, first)
    assert found(index, SECRET) == {"a": [0]}
    assert index.put("a", first.known, piece([SECRET], 1))
    columns = index.columns("a")
    assert columns is not None
    assert len(columns) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["noise", "cut", "version", "empty", "other"])
def test_a_bad_file_is_deleted_and_begun_anew(how: str, tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    index = SearchIndex(str(path))
    assert index.put("a", None, piece(["alpha"] * 1_000))
    index.close()
    data = path.read_bytes()
    if how == "noise":
        path.write_bytes(os.urandom(len(data)))
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        connection = apsw.Connection(str(path))
        connection.pragma("user_version", 7)
        if how == "other":
            connection.execute("DROP TABLE file")
        connection.close()
    again = SearchIndex(str(path))
    found(again, "alpha")
    assert again.files() == {}
    assert again.put("a", None, piece(["alpha"]))
    assert found(again, "alpha") == {"a": [0]}
    again.close()
    assert [path.name for path in tmp_path.iterdir()] == ["search.db"], "of what it said nothing is kept"


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE file SET facts = x'c1'", "UPDATE file SET labels = x'c1'", "UPDATE chunk SET places = x'c1'",
        "UPDATE chunk SET places = x'9490c403000000c400c400'", "UPDATE chunk SET places = x'9490c408' || zeroblob(8)",
        "UPDATE chunk SET columns = x'0000000000000000ffff'", "UPDATE chunk SET columns = CAST(x'ff' AS TEXT)",
    ],
)  # fmt: skip
def test_damage_that_sqlite_does_not_see_begins_it_anew(sql: str, index: SearchIndex, tmp_path: Path) -> None:
    assert index.put("a", None, piece(["alpha"]))
    other = apsw.Connection(str(tmp_path / "search.db"))
    other.execute(sql)
    other.close()
    before = index.opened()
    listing = index.listing()
    index.columns("a", listing)
    index.places("a", [0], listing)
    assert index.opened() != before
    assert index.files() == {}


def test_one_that_was_cut_under_us_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    index = SearchIndex(str(path))
    assert index.put("a", None, piece([f"alpha word{n}" for n in range(3_000)]))
    index.close()  # all of it is in the one file now
    index = SearchIndex(str(path))
    index.look_after()
    before = index.opened()
    os.truncate(path, 8_192)
    index.look_after()
    assert index.opened() != before
    assert index.put("b", None, piece(["alpha"]))
    assert found(index, "alpha") == {"b": [0]}
    index.close()


def test_who_reads_while_it_is_begun_anew_gets_an_answer(index: SearchIndex) -> None:
    def read() -> None:
        for _ in range(300):
            listing = index.listing()
            for path in index.matches(expression(words("alpha")), None, listing):
                index.columns(path, listing)
                index.places(path, [0], listing)

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(read) for _ in range(2)]
        while not all(reader.done() for reader in readers):
            index.clear()
            index.put("a", None, piece(["alpha"]))
        for reader in readers:
            reader.result()


def test_what_came_while_the_file_was_locked_is_kept_until_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAIT_MS", 10)
    monkeypatch.setattr(database, "LOOK_AGAIN", 0.0)
    path = str(tmp_path / "search.db")
    other = apsw.Connection(path)
    other.execute("BEGIN EXCLUSIVE")
    index = SearchIndex(path)
    assert index.problem is not None
    assert index.put("a", None, piece(["alpha"]))
    before = index.opened()
    assert found(index, "alpha") == {"a": [0]}
    assert index.opened() == before
    other.execute("ROLLBACK")
    assert index.opened() != before
    assert found(index, "alpha") == {}
    assert index.problem is None
    index.close()


def test_damage_anywhere_ends_in_an_index_that_can_be_filled(tmp_path: Path) -> None:
    """Whatever is broken while it is open: it answers, or says why not, and is whole again after it was filled anew."""
    dice = random.Random(5)
    for n in range(12):
        path = tmp_path / f"{n}.db"
        index = SearchIndex(str(path))
        assert index.put("a", None, piece([f"alpha word{i}" for i in range(1_000)]))
        index.close()
        data = bytearray(path.read_bytes())
        for _ in range(40):
            at = dice.randrange(len(data))
            data[at : at + 50] = os.urandom(50)
        path.write_bytes(data)
        index = SearchIndex(str(path))
        for _ in range(3):
            try:
                known = index.files().get("a")
                found(index, "alpha")
                index.columns("a")
                index.put("a", known, piece(["beta"]))
            except Fault:
                continue
        index.clear()
        assert index.put("a", None, piece(["alpha"]))
        assert found(index, "alpha") == {"a": [0]}
        index.close()


def test_a_file_that_was_taken_away_is_begun_anew(index: SearchIndex, tmp_path: Path) -> None:
    assert index.put("a", None, piece(["alpha"]))
    before = index.opened()
    index.look_after()
    assert index.opened() == before
    for path in tmp_path.iterdir():
        path.unlink()
    index.look_after()
    assert index.opened() != before
    assert index.files() == {}
    assert index.put("b", None, piece(["alpha"]))
    assert SearchIndex(str(tmp_path / "search.db")).files().keys() == {"b"}


def test_several_that_make_it_at_once_make_one(tmp_path: Path) -> None:
    for n in range(10):
        path = str(tmp_path / f"{n}.db")
        with ThreadPoolExecutor(6) as threads:
            made = list(threads.map(SearchIndex, [path] * 6))
        there = [index for index in made if index.problem is None]
        assert there, "another one may be locked out for now"
        assert there[0].put("a", None, piece(["alpha"]))
        assert [found(index, "alpha") for index in there] == [{"a": [0]}] * len(there)
        for index in made:
            index.close()
    assert not any(".bad" in path.name for path in tmp_path.iterdir())


def test_it_is_for_its_owner_only(index: SearchIndex, tmp_path: Path) -> None:
    assert index.put("a", None, piece(["alpha"]))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
