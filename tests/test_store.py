"""All sessions: complete lists, names that find one session or say which ones, families, the trash."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon.catalog import Catalog, Counts
from dsh_daemon.cwd import Places
from dsh_daemon.database import LOOK_AGAIN
from dsh_daemon.errors import (
    AmbiguousSession,
    Busy,
    CursorExpired,
    Fault,
    InvalidReference,
    SessionGone,
    SessionNotFound,
)
from dsh_daemon.holders import holders
from dsh_daemon.listing import Filters
from dsh_daemon.naming import check_id, file_name, folder_name
from dsh_daemon.roots import Root
from dsh_daemon.state import State
from dsh_daemon.store import Page, Store

from .support import CORPUS, assistant, entry, header, line, stamp, user, write_log

Open = Callable[..., Store]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def opened(tmp_path: Path, root: Path) -> Iterator[Open]:
    stores: list[Store] = []

    def make(*roots: Path, places: Places | None = None) -> Store:
        state, catalog = State(str(tmp_path / "state.db")), Catalog(str(tmp_path / "cache.db"))
        found = [Root(str(path), None, "test") for path in roots or (root,)]
        stores.append(Store(found, catalog, state, places))
        stores[-1].refresh()
        return stores[-1]

    yield make
    for store in stores:
        store.catalog.close()
        store.state.close()


def session(
    root: Path, id_: str, text: str = "hello", second: int = 1, name: str | None = None, **head: object
) -> Path:
    path = root / f"2026-01-01T00-00-00-000Z_{name or id_}.jsonl"
    return write_log(path, [user("a", None, text, second), assistant("b", "a", "ok", second + 1)], header(id_, **head))


def ids(page: Page) -> list[str]:
    return [item["sessionId"] for item in page["items"]]


# -- complete and explained -------------------------------------------------------------------------------------------


def test_every_file_is_listed_or_skipped_with_a_reason(root: Path, opened: Open) -> None:
    """A047, A051: one odd file never hides another, from 0 bytes to 20 MB."""
    session(root / "p", "good")
    write_log(root / "p" / "t_only-header.jsonl", [], header("only-header"))
    (root / "p" / "t_zero.jsonl").write_bytes(b"")
    (root / "p" / "t_garbage.jsonl").write_bytes(os.urandom(5_000))
    (root / "p" / "t_text.jsonl").write_text("hello world\n")
    (root / "p" / "t_broken.jsonl").write_bytes(b"{broken header\n" + line(user("a", None, "x")))
    (root / "p" / "t_headless.jsonl").write_bytes(line(user("a", None, "x")))
    write_log(root / "deep/er/still" / "t_big.jsonl", [assistant("b", None, "w" * 20_000_000)], header("big"))
    (root / "fake.jsonl.zstd").write_bytes(b"not zstd")
    os.mkfifo(root / "pipe.jsonl")
    (root / "folder.jsonl").mkdir()
    session(root / "folder.jsonl", "inside")
    page = opened().list()
    assert sorted(ids(page)) == ["big", "broken", "good", "headless", "inside", "only-header", "zero"]
    assert page["complete"]
    assert {os.path.basename(s["path"]): s["reason"] for s in page["skipped"]}.keys() == {
        "t_garbage.jsonl", "t_text.jsonl", "fake.jsonl.zstd", "pipe.jsonl",
    }  # fmt: skip
    assert all(s["reason"] for s in page["skipped"])
    health = {item["sessionId"]: item["health"] for item in page["items"]}
    assert (health["broken"], health["headless"], health["zero"], health["only-header"]) == (
        "damaged", "headerless", "empty", "ok",
    )  # fmt: skip
    on_disk = sum(p.is_file() or p.is_fifo() for pattern in ("*.jsonl", "*.jsonl.zstd") for p in root.rglob(pattern))
    assert page["total"] + len(page["skipped"]) == on_disk


def test_links_are_followed_only_inside_a_root(tmp_path: Path, root: Path, opened: Open) -> None:
    """A096, A108: nothing outside of the roots is opened, and a link is no second session."""
    secret = session(tmp_path / "outside", "secret")
    inner = session(root / "p", "inner")
    (root / "out.jsonl").symlink_to(secret)
    (root / "outdir").symlink_to(secret.parent)
    (root / "again.jsonl").symlink_to(inner)
    (root / "loop").symlink_to(root)
    (root / "nowhere.jsonl").symlink_to(root / "gone.jsonl")
    os.link(inner, root / "p" / "z_hard.jsonl")
    store = opened()
    page = store.list()
    assert ids(page) == ["inner"]
    reasons = {os.path.basename(s["path"]): s["reason"] for s in page["skipped"]}
    assert reasons.keys() == {"out.jsonl", "outdir", "again.jsonl", "nowhere.jsonl", "z_hard.jsonl"}
    assert "out of the roots" in reasons["out.jsonl"]
    assert not store.refresh_paths([str(root / "out.jsonl")]).upserts
    assert store.list()["total"] == 1


def test_a_root_that_is_linked_or_named_twice_lists_a_session_once(tmp_path: Path, root: Path, opened: Open) -> None:
    """A096."""
    session(root / "p", "one")
    (tmp_path / "link").symlink_to(root)
    store = opened(tmp_path / "link", root, root / "p")
    assert ids(store.list()) == ["one"]
    assert store.at(f"{root}/p/{os.path.basename(store.get('one').path)}") is store.get("one")


def test_names_that_are_no_text_are_reported(root: Path, opened: Open) -> None:
    session(root, "good")
    with open(os.fsencode(root) + b"/bad\xff.jsonl", "wb") as file:
        file.write(line(header("x")))
    page = opened().list()
    assert ids(page) == ["good"]
    assert [s["reason"] for s in page["skipped"]] == ["its name is not UTF-8"]
    page["skipped"][0]["path"].encode()


def test_a_watcher_that_names_what_is_no_text_stops_nothing(root: Path, opened: Open) -> None:
    """The name comes as the system has it, or with U+FFFD where the watcher could not spell it."""
    store = opened()
    for n, spell in enumerate((os.fsdecode, lambda name: name.decode(errors="replace"))):
        name = os.fsencode(root) + b"/bad%d\xff.jsonl" % n
        Path(os.fsdecode(name)).write_bytes(line(header("x")))
        good = session(root, f"good{n}")
        store.refresh_paths([spell(name), str(good)])
        page = store.list()
        assert f"good{n}" in ids(page)
        assert [s["reason"] for s in page["skipped"]] == ["its name is not UTF-8"]
        os.unlink(name)
        store.refresh_paths([spell(name)])
        assert store.list()["skipped"] == []
    folder = Path(os.fsdecode(os.fsencode(root) + b"/dir\xff"))
    session(folder, "inside")
    store.refresh_paths([str(folder)])
    page = store.list()
    assert (page["total"], [s["reason"] for s in page["skipped"]]) == (2, ["its name is not UTF-8"])


def test_a_locked_state_or_catalog_hides_no_session(tmp_path: Path, root: Path, opened: Open) -> None:
    path = session(root, "before")
    store = opened()
    store.state.set_pinned(str(path), True)
    store.reflag(str(path))
    store.state.close()
    store.catalog.close()
    locks = [apsw.Connection(str(tmp_path / name)) for name in ("state.db", "cache.db")]
    for lock in locks:
        lock.execute("PRAGMA locking_mode = EXCLUSIVE")
        lock.execute("BEGIN EXCLUSIVE")
    late = opened()
    session(root, "after")
    late.refresh_paths([str(root)])
    assert sorted(ids(late.list())) == ["after", "before"]
    assert late.state.problem is not None
    assert late.catalog.problem is not None
    with pytest.raises(Busy):
        late.state.set_pinned(str(path), False)
    for lock in locks:
        lock.close()
    time.sleep(LOOK_AGAIN)
    assert [item.raw_id for item in late.refresh_paths([]).upserts] == ["before"]
    assert {item["sessionId"]: item["pinned"] for item in late.list()["items"]} == {"before": True, "after": False}
    session(root, "third")
    late.refresh()
    assert (late.state.problem, late.catalog.problem) == (None, None)


def test_reading_leaves_every_byte_as_it_was(root: Path, opened: Open) -> None:
    """P1, A088: neither bytes nor times of the files change."""
    paths = [session(root / "p", f"s{n}") for n in range(5)]
    before = [(p.read_bytes(), p.stat().st_mtime_ns) for p in paths]
    store = opened()
    store.list(Filters(query="hello", group="family"))
    store.resolve("s1")
    store.family(store.get("s1"))
    assert [(p.read_bytes(), p.stat().st_mtime_ns) for p in paths] == before


def test_4000_files_are_listed_quickly(root: Path, opened: Open) -> None:
    """A065: the numbers are measured by the benchmarks; this guards the order of magnitude."""
    for n in range(4_000):
        session(root / f"p{n % 40}", f"s{n:04}", second=n % 3_000, cwd=f"/tmp/demo/p{n % 40}")
    start = time.perf_counter()
    store = opened()
    page = store.list(limit=100)
    cold = time.perf_counter() - start
    assert (page["total"], len(page["items"])) == (4_000, 100)
    start = time.perf_counter()
    assert store.list(Filters(cwd="/tmp/demo/p7"))["total"] == 100
    assert store.resolve("s3999").raw_id == "s3999"
    warm = time.perf_counter() - start
    assert cold < 6, cold
    assert warm < 0.5, warm


def test_subagents_stand_aside(root: Path, opened: Open) -> None:
    parent = session(root, "main")
    folder = root / parent.name.removesuffix(".jsonl")
    write_log(folder / "Alpha.jsonl", [user("a", None, "sub")], header("alpha", parentSession=str(parent)))
    (folder / "Alpha.md").write_text("x")
    store = opened()
    assert ids(store.list()) == ["main"]
    everything = store.list(Filters(subagents=True))["items"]
    assert {item["sessionId"]: item.get("origin") for item in everything} == {"main": None, "alpha": "subagent"}
    assert everything[[i["sessionId"] for i in everything].index("alpha")]["parentSessionId"] == "main"


# -- order and filters ------------------------------------------------------------------------------------------------


def test_order_is_that_of_the_last_message(root: Path, opened: Open) -> None:
    """A088, A089: neither copying, touching, renaming nor labelling makes a session young."""
    old, young = session(root, "old", second=10), session(root, "young", second=20)
    store = opened()
    assert ids(store.list()) == ["young", "old"]
    os.utime(old)
    with old.open("ab") as file:
        file.write(line(entry("label", "l", "b", 5_000, targetId="a", label="x")))
        file.write(line(entry("session_info", "n", "l", 5_001, name="Renamed")))
    assert [i.raw_id for i in store.refresh_paths([str(old)]).upserts] == ["old"]
    page = store.list()
    assert ids(page) == ["young", "old"]
    assert (page["items"][1]["title"], page["items"][1]["titleSource"]) == ("Renamed", "user")
    assert page["items"][1]["lastActivityAt"] == stamp(11)
    with old.open("ab") as file:
        file.write(line(user("c", "n", "again", 30)))
    store.refresh_paths([str(old)])
    assert ids(store.list()) == ["old", "young"]
    assert young.exists()


def test_without_any_time_the_file_time_serves(root: Path, opened: Open) -> None:
    path = root / "t_x.jsonl"
    path.write_bytes(line({"type": "session", "version": 3, "id": "x", "timestamp": "?", "cwd": "/p"}))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    item = opened().list()["items"][0]
    assert (item["createdAt"], item["lastActivityAt"]) == (None, "2023-11-14T22:13:20.000Z")


def test_sorts_and_orders(root: Path, opened: Open) -> None:
    session(root, "a", "zebra", 1, timestamp=stamp(30))
    session(root, "b", "Apple" + "x" * 500, 2, timestamp=stamp(20))
    session(root, "c", "mango", 3, timestamp=stamp(10))
    store = opened()
    assert ids(store.list(Filters(order="asc"))) == ["c", "b", "a"]
    assert ids(store.list(Filters(sort="created"))) == ["a", "b", "c"]
    assert ids(store.list(Filters(sort="title", order="asc"))) == ["b", "c", "a"]
    assert ids(store.list(Filters(sort="size")))[0] == "b"


def test_filters(root: Path, opened: Open) -> None:
    session(root, "one", "Fix the Parser", 3, cwd="/w/a")
    named = session(root, "two", "other", 2, cwd="/w/a/sub")
    with named.open("ab") as file:
        file.write(line(entry("session_info", "n", "b", name="Named")))
    write_log(root / "t_three.jsonl", [user("a", None, "cut", 1)], header("three", cwd="/w/b"))
    store = opened()
    assert ids(store.list(Filters(cwd="/w/a"))) == ["one"]
    assert ids(store.list(Filters(cwd="/w/a/", scope="subtree"))) == ["one", "two"]
    assert ids(store.list(Filters(cwd="/w/a", scope="all"))) == ["one", "two", "three"]
    assert ids(store.list(Filters(query="PARSER fix"))) == ["one"]
    assert ids(store.list(Filters(query="parser nothing"))) == []
    assert ids(store.list(Filters(query="/w/b"))) == ["three"]
    assert ids(store.list(Filters(query="thr"))) == ["three"]
    assert ids(store.list(Filters(tail=("open", "interrupted", "pendingTool")))) == ["three"]
    assert ids(store.list(Filters(named=True))) == ["two"]
    assert ids(store.list(Filters(named=False))) == ["one", "three"]
    assert ids(store.list(Filters(formats=("omp",)))) == []
    assert store.list(Filters(formats=("pi",)))["total"] == 3


def test_a_session_without_a_prompt_is_listed_by_its_id(root: Path, opened: Open) -> None:
    """A043."""
    write_log(root / "t_x.jsonl", [entry("model_change", "m", None, provider="p", modelId="m")], header("the-id"))
    item = opened().list(Filters(cwd="/tmp/demo/proj"))["items"][0]
    assert (item["title"], item["titleSource"], item["tail"]) == ("the-id", "id", "empty")


def test_titles_are_one_clean_line(root: Path, opened: Open) -> None:
    """A086."""
    session(root, "x", "\x1b]0;evil\x07 \r\n 漢字 👩‍👩‍👧\u202e" + "y" * 1_000)
    title = opened().list()["items"][0]["title"]
    assert title.startswith("漢字 👩‍👩‍👧y")
    assert len(title) <= 240
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c == "\u202e" for c in title)


def test_archived_sessions_are_hidden_and_come_back(root: Path, opened: Open) -> None:
    path = str(session(root, "x"))
    before = Path(path).read_bytes()
    store = opened()
    store.state.set_archived(path, True)
    store.state.set_pinned(path, True)
    assert [i.raw_id for i in store.reflag(path).upserts] == ["x"]
    assert ids(store.list()) == []
    item = store.list(Filters(archived=True))["items"][0]
    assert (item["archived"], item["pinned"]) == (True, True)
    again = opened()
    assert ids(again.list()) == []
    assert Path(path).read_bytes() == before


def test_pages_follow_each_other_without_gap_or_repeat(root: Path, opened: Open) -> None:
    for n in range(25):
        session(root, f"s{n:02}", second=n // 3)
    store = opened()
    whole = ids(store.list())
    for group in ("none", "family"):
        got, cursor = [], None
        while True:
            page = store.list(Filters(group=group), 7, cursor)  # type: ignore[arg-type]
            got += ids(page)
            assert ("skipped" in page) == (cursor is None)
            assert page["total"] == 25
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        assert got == whole


def test_a_cursor_is_bound_to_its_request(root: Path, opened: Open) -> None:
    for n in range(4):
        session(root, f"s{n}", second=n)
    store = opened()
    cursor = store.list(limit=2)["nextCursor"]
    for filters, bad in (
        (Filters(query="hello"), cursor),
        (Filters(), "nonsense"),
        (Filters(), cursor[:-4]),
        (Filters(), "é"),
    ):
        with pytest.raises(CursorExpired):
            store.list(filters, 2, bad)
    (root / "2026-01-01T00-00-00-000Z_s2.jsonl").unlink()
    store.refresh()
    with pytest.raises(CursorExpired):
        store.list(limit=2, cursor=cursor)


# -- names ------------------------------------------------------------------------------------------------------------


def test_last_is_the_first_of_the_same_list(root: Path, opened: Open) -> None:
    """A041, A042: what is listed and what "last" takes never differ; nothing found is an error."""
    session(root, "a-new", second=50, cwd="/w/a")
    session(root, "b-old", second=5, cwd="/w/b")
    store = opened()
    for cwd in ("/w/a", "/w/b", None):
        assert store.resolve("last", cwd).id == ids(store.list(Filters(cwd=cwd)))[0]
    with pytest.raises(SessionNotFound):
        store.resolve("last", "/w/nothing")
    assert len(list(root.rglob("*"))) == 2, "and nothing is created"


def test_last_is_one_with_messages_then_one_that_opens(root: Path, opened: Open) -> None:
    """A041, A047: what holds nothing, or what nobody can open, never stands in the way of a session that goes on."""
    claude = {"sessionId": "claude", "timestamp": stamp(90), "cwd": "/w/a", "uuid": "u", "parentUuid": None}
    (root / "claude.jsonl").write_bytes(line({"type": "user", "message": {"role": "user", "content": "x"}, **claude}))
    store = opened()
    assert store.resolve("last").peek.health == "unsupported"
    write_log(root / "t_hollow.jsonl", [], header("hollow", timestamp=stamp(80)))
    store.refresh()
    assert store.resolve("last").id == "hollow"
    session(root, "talk", second=5)
    session(root, "older", second=2)
    store.refresh()
    assert ids(store.list()) == ["claude", "hollow", "talk", "older"]
    assert store.resolve("last").id == "talk"


def test_a_new_branch_stands_above_what_it_was_made_from(root: Path, opened: Open) -> None:
    """Its messages are old; a person who has just made it looks for it on top."""
    session(root, "source", second=50)
    session(root, "branch", second=10, timestamp=stamp(60))
    store = opened()
    assert ids(store.list()) == ["branch", "source"]
    assert [item["lastActivityAt"] for item in store.list()["items"]] == [stamp(11), stamp(51)]
    assert store.resolve("last").id == "branch"


def test_what_a_person_types(root: Path, opened: Open) -> None:
    path = session(root, "01ab-first", "Fix the parser", 1)
    session(root, "01ac-second", "fix the parser again", 2)
    session(root, "02-third", "write a/b docs", 3)
    store = opened()
    found = {
        "01ab-first": "01ab-first", "01AB": "01ab-first", "02": "02-third", "FIX  the parser": "01ab-first",
        "again": "01ac-second", "a/b docs": "02-third", "docs write": "02-third", str(path): "01ab-first",
        path.name: "01ab-first", f"./{path.name}": "01ab-first",
    }  # fmt: skip
    for typed, expected in found.items():
        assert store.resolve(typed, str(root)).id == expected, typed
    for typed in ("", "  \n"):
        with pytest.raises(InvalidReference):
            store.resolve(typed)
    with pytest.raises(InvalidReference):
        store.resolve("/etc/passwd")
    for typed in ("nothing like it", "/no/such.jsonl", "x\0y", "a" * 5_000):
        with pytest.raises(SessionNotFound):
            store.resolve(typed)


def test_a_name_that_several_have_is_an_error_with_candidates(root: Path, opened: Open) -> None:
    """A081."""
    one, two = session(root, "x1", "auth", 1), session(root, "x2", "auth", 2)
    store = opened()
    for typed in ("auth", "x", "aut"):
        with pytest.raises(AmbiguousSession) as caught:
            store.resolve(typed)
        assert caught.value.data["candidates"] == [
            {"sessionId": "x2", "title": "auth", "path": str(two)},
            {"sessionId": "x1", "title": "auth", "path": str(one)},
        ]  # fmt: skip


def test_two_files_of_one_id_are_told_apart(root: Path, opened: Open) -> None:
    """An id that was handed out keeps naming its file; the bare id of two is ambiguous."""
    first = session(root / "p", "same")
    store = opened()
    assert ids(store.list()) == ["same"]
    second = session(root / "q", "same", "other")
    delta = store.refresh_paths([str(second)])
    hashed = {p: f"same@{hashlib.sha256(str(p).encode()).hexdigest()[:8]}" for p in (first, second)}
    assert delta.removed == ["same"]
    assert sorted(i.id for i in delta.upserts) == sorted(hashed.values())
    assert sorted(ids(store.list())) == sorted(hashed.values())
    for path, id_ in hashed.items():
        assert store.get(id_).path == str(path)
    assert store.get("same").path == str(first), "it was handed out for this file"
    with pytest.raises(AmbiguousSession) as caught:
        store.resolve("same")
    assert {c["sessionId"] for c in caught.value.data["candidates"]} == set(hashed.values())
    other = opened()
    with pytest.raises(AmbiguousSession):
        other.get("same")

    second.unlink()
    delta = store.refresh_paths([str(second)])
    assert (delta.removed, [i.id for i in delta.upserts]) == (sorted(hashed.values()), ["same"])
    assert ids(store.list()) == ["same"]
    assert store.get(hashed[first]).path == str(first)
    assert store.knows("same")
    assert not store.knows("new")


@pytest.mark.parametrize("bad", ["../../etc/passwd", "a/b", "..", "x" * 300, "a\0b", "", ".hidden", "a\n"])
def test_ids_cannot_lead_out_of_a_folder(root: Path, opened: Open, bad: str) -> None:
    """A108: as a name for a new file they are refused; in a header they are only text."""
    with pytest.raises(InvalidReference):
        check_id(bad)
    with pytest.raises(InvalidReference):
        file_name(bad)
    if bad:
        write_log(root / "t_x.jsonl", [user("a", None, "x")], header(bad))
        store = opened()
        assert store.get(bad).path == str(root / "t_x.jsonl")


def test_a_file_outside_the_roots_is_remembered(tmp_path: Path, opened: Open) -> None:
    """A046."""
    path = session(tmp_path / "elsewhere", "far")
    store = opened()
    with pytest.raises(SessionNotFound):
        store.get("far")
    assert store.open_path(str(path)).id == "far"
    assert ids(store.list()) == ["far"]
    again = opened()
    assert again.resolve("far").path == str(path)
    path.unlink()
    again.refresh()
    assert ids(again.list()) == []
    with pytest.raises(SessionNotFound, match="no such file"):
        again.open_path(str(path))
    (tmp_path / "elsewhere" / "no.jsonl").write_text("hello")
    with pytest.raises(InvalidReference, match="JSON"):
        again.open_path(str(tmp_path / "elsewhere" / "no.jsonl"))


# -- families ---------------------------------------------------------------------------------------------------------


def test_a_family_by_paths_and_ids(root: Path, opened: Open) -> None:
    """A055."""
    top = session(root, "top", second=1, timestamp=stamp(1))
    session(root, "kid", second=2, timestamp=stamp(2), parentSession=str(top))
    session(root, "grandkid", second=9, timestamp=stamp(3), parentSession="kid")
    moved = f"/elsewhere/{top.name}"
    session(root, "second-kid", second=4, timestamp=stamp(4), branchedFrom=moved)
    session(root, "stranger", second=5)
    store = opened()
    family = store.family(store.get("grandkid"))
    assert (family["root"], family["ancestors"], family["complete"]) == ("top", ["kid", "top"], True)
    assert [(m["sessionId"], m["parentSessionId"]) for m in family["sessions"]] == [
        ("top", None), ("kid", "top"), ("grandkid", "kid"), ("second-kid", "top"),
    ]  # fmt: skip
    assert ids(store.list(Filters(group="family"))) == ["top", "kid", "grandkid", "second-kid", "stranger"] or ids(
        store.list(Filters(group="family"))
    ) == ["top", "second-kid", "kid", "grandkid", "stranger"]
    assert ids(store.list(Filters(group="family", query="grandkid"))) == ["grandkid"]


def test_families_end_on_cycles_and_say_what_is_missing(root: Path, opened: Open) -> None:
    session(root, "a", parentSession="b")
    session(root, "b", parentSession="a")
    session(root, "self", parentSession="self")
    session(root, "lost", parentSession="/gone/2026-01-01T00-00-00-000Z_the-parent.jsonl")
    store = opened()
    loop = store.family(store.get("a"))
    assert sorted(m["sessionId"] for m in loop["sessions"]) == ["a", "b"]
    assert (loop["root"], loop["ancestors"]) == ("a", [])
    assert store.family(store.get("b"))["ancestors"] == ["a"]
    assert store.family(store.get("self"))["sessions"] == [{"sessionId": "self", "parentSessionId": None}]
    lost = store.family(store.get("lost"))
    assert (lost["complete"], lost["sessions"][0]["parentSessionId"]) == (False, "the-parent")
    assert sorted(ids(store.list(Filters(group="family")))) == ["a", "b", "lost", "self"]

    session(root, "the-parent")
    delta = store.refresh_paths([str(root / "2026-01-01T00-00-00-000Z_the-parent.jsonl")])
    assert sorted(i.id for i in delta.upserts) == ["lost", "the-parent"], "the child is shown anew"
    assert store.family(store.get("lost"))["complete"]


def test_a_chain_of_thousands_is_no_problem(root: Path, opened: Open) -> None:
    for n in range(1_500):
        session(root, f"s{n:04}", second=n, **({"parentSession": f"s{n - 1:04}"} if n else {}))
    store = opened()
    assert len(store.family(store.get("s1499"))["ancestors"]) == 1_499
    assert len(ids(store.list(Filters(group="family")))) == 1_500


# -- what changes -----------------------------------------------------------------------------------------------------


names = st.sampled_from(["a.jsonl", "b.jsonl", "notes.txt"])
places = st.sampled_from([".", "p", "p/q", "r", "s/t"])
steps = st.one_of(
    st.tuples(st.just("write"), places, names),
    st.tuples(st.just("remove"), places, st.one_of(names, st.just(""))),
    st.tuples(st.just("move"), places, places),
    st.tuples(st.just("ask"), st.just(""), st.just("")),
)


@given(st.lists(steps, min_size=1, max_size=12))
@settings(deadline=None)
def test_whatever_comes_and_goes_is_listed_at_once_without_a_watcher(taken: list[tuple[str, str, str]]) -> None:
    with TemporaryDirectory() as at:
        root = Path(at) / "root"
        root.mkdir()
        state, catalog = State(f"{at}/state.db"), Catalog(f"{at}/cache.db")
        known, anew = (Store([Root(str(root), None, "test")], catalog, state) for _ in range(2))
        known.refresh()
        for number, (what, place, other) in enumerate(taken):
            if what == "write" and other == "notes.txt":
                (root / place).mkdir(parents=True, exist_ok=True)
                (root / place / other).touch()
            elif what == "write":
                write_log(root / place / other, [user("a", None, "hello")], header(f"s{number}"))
            elif what == "remove" and other:
                (root / place / other).unlink(missing_ok=True)
            elif what == "remove":
                shutil.rmtree(root / place, ignore_errors=True)
            elif what == "move" and (root / place).is_dir() and not (root / other).exists() and place != ".":
                (root / other).parent.mkdir(parents=True, exist_ok=True)
                with suppress(OSError):  # into itself
                    (root / place).rename(root / other)
            root.mkdir(exist_ok=True)
            if what == "ask":
                known.refresh_folders()
        known.refresh_folders()
        anew.refresh()
        assert known.items().keys() == anew.items().keys()
        for store in (catalog, state):
            store.close()


def test_only_folders_in_which_names_came_or_went_are_looked_through_again(
    root: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = session(root / "changed", "one")
    session(root / "quiet", "two")
    store = opened()
    asked: list[str] = []
    below = store.walker.below
    monkeypatch.setattr(store.walker, "below", lambda folder, apart=(): asked.append(folder) or below(folder, apart))
    time.sleep(0.06)  # a folder that changed just before it was looked through may change again in the same tick
    store.refresh_folders()
    asked.clear()
    store.refresh_folders()
    assert asked == []
    session(root / "changed", "three")
    assert [item.id for item in store.refresh_folders().upserts] == ["three"]
    assert asked == [str(changed.parent)]


def test_of_a_folder_that_changed_the_folders_in_it_that_did_not_are_left_alone(
    root: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(root / "quiet" / "deep", "one")
    store = opened()
    time.sleep(0.06)
    store.refresh_folders()
    session(root / "new", "two")
    scanned: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: scanned.append(folder) or scandir(folder))
    assert [item.id for item in store.refresh_folders().upserts] == ["two"]
    assert sorted(scanned) == [str(root), str(root / "new")]
    assert sorted(store.items()) == sorted(str(path) for path in root.rglob("*.jsonl"))


def test_a_root_that_is_a_link_keeps_its_sessions(tmp_path: Path, opened: Open) -> None:
    session(tmp_path / "real", "one")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    store = opened(link)
    assert not store.refresh_paths([str(link)]).removed
    session(tmp_path / "real", "two")
    assert [item.id for item in store.refresh_folders().upserts] == ["two"]
    assert sorted(ids(store.list())) == ["one", "two"]


def test_a_folder_with_a_time_to_come_is_looked_through_once(
    root: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(root, "one")
    later = time.time() + 3_600
    os.utime(root, (later, later))
    store = opened()
    monkeypatch.setattr(store.walker, "below", lambda *_: pytest.fail("it is looked through again"))
    store.refresh_folders()


def test_a_folder_that_could_not_be_read_is_tried_again(
    root: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(root / "shut", "one")
    time.sleep(0.06)
    scandir = os.scandir
    with monkeypatch.context() as patch:

        def refusing(folder: str) -> Any:
            if folder == str(root / "shut"):
                raise PermissionError(errno.EACCES, "Permission denied")
            return scandir(folder)

        patch.setattr(os, "scandir", refusing)
        store = opened()
        assert [skipped["reason"] for skipped in store.list()["skipped"]] == ["Permission denied"]
    store.refresh_folders()
    assert ids(store.list()) == ["one"]


@pytest.mark.parametrize("way", ["refresh_folders", "refresh_paths"])
def test_what_stands_in_a_folder_is_a_subagents_as_long_as_there_is_a_session_of_that_name(
    root: Path, opened: Open, way: str
) -> None:
    session(root / "2026-01-01T00-00-00-000Z_p", "inner")
    store = opened()
    look = store.refresh_folders if way == "refresh_folders" else lambda: store.refresh_paths([str(path)])
    assert ids(store.list()) == ["inner"]
    path = session(root, "p")
    look()
    assert ids(store.list()) == ["p"]
    path.unlink()
    look()
    assert ids(store.list()) == ["inner"]


def test_a_watcher_brings_news_of_files_and_folders(tmp_path: Path, root: Path, opened: Open) -> None:
    path = session(root / "p", "x")
    store = opened()
    assert not store.refresh_paths([str(path)]), "unchanged"
    new = session(root / "q", "y")
    assert [i.id for i in store.refresh_paths([str(new.parent)]).upserts] == ["y"]
    shutil.move(root / "p", tmp_path / "away")
    assert store.refresh_paths([str(root / "p")]).removed == ["x"]
    new.write_text("no session any more\n")
    assert store.refresh_paths([str(new)]).removed == ["y"]
    assert [s["path"] for s in store.list()["skipped"]] == [str(new)]
    session(root / "q", "y")
    assert [i.id for i in store.refresh_paths([str(new)]).upserts] == ["y"]
    assert store.list()["skipped"] == []
    other = session(root / "q", "z", name="y")
    delta = store.refresh_paths([str(other)])
    assert ([i.id for i in delta.upserts], delta.removed) == (["z"], ["y"])


def test_what_we_know_of_a_file_goes_with_it_when_it_is_renamed(root: Path, opened: Open) -> None:
    path = session(root / "p", "x")
    store = opened()
    store.list()
    store.state.set_pinned(str(path), True)
    store.reflag(str(path))
    for step in ("seen at once", "seen after a restart"):
        new = path.with_name(f"t_{step[-3:]}.jsonl")
        path.rename(new)
        if step == "seen at once":
            delta = store.refresh_paths([str(new)])
            assert ([i.id for i in delta.upserts], delta.removed) == (["x"], [])
        else:
            store = opened()
        assert store.get("x").path == str(new)
        assert store.list()["items"][0]["pinned"], step
        path = new


def test_looking_again_at_a_folder_does_not_list_a_file_twice(tmp_path: Path, root: Path, opened: Open) -> None:
    path = session(root / "p", "x")
    os.link(path, root / "p" / "z.jsonl")
    (tmp_path / "link").symlink_to(root)
    store = opened(root, tmp_path / "link")
    for place in (root, tmp_path / "link", root / "p"):
        assert not store.refresh_paths([str(place)]), place
    assert ids(store.list()) == ["x"]


def test_counts_come_with_a_scan_and_stay(root: Path, opened: Open) -> None:
    path = session(root, "x")
    store = opened()
    assert not store.list()["items"][0]["scanned"]
    assert "entryCount" not in store.list()["items"][0]
    item = store.get("x")
    assert not item.fresh
    assert store.put_scanned(str(path), item.stamp, Counts(2, 2, 0, 0.25, "mock-1", recovered=True)) is item
    info = store.list()["items"][0]
    assert (info["scanned"], info["entryCount"], info["costTotal"], info["model"]) == (True, 2, 0.25, "mock-1")
    assert info["health"] == "recovered"
    assert item.fresh
    again = opened()
    assert again.list()["items"][0]["entryCount"] == 2, "kept in the catalog"
    with path.open("ab") as file:
        file.write(line(user("c", "b", "more", 9)))
    again.refresh()
    assert again.list()["items"][0]["scanned"]
    assert not again.get("x").fresh, "it grew, so it is to be counted again"
    write_log(path, [], header("x"))
    again.refresh()
    assert not again.list()["items"][0]["scanned"], "another file at this place"


@pytest.mark.parametrize("damage", ["delete", "garbage", "rows"])
def test_the_list_does_not_depend_on_the_catalog(tmp_path: Path, root: Path, opened: Open, damage: str) -> None:
    """A049, A138, A143, A144."""
    for n in range(30):
        session(root / f"p{n % 3}", f"s{n}", second=n)
    (root / "bad.jsonl").write_text("x")
    first = opened()
    before = first.list()
    first.catalog.close()
    cache = tmp_path / "cache.db"
    if damage == "delete":
        for path in tmp_path.glob("cache.db*"):
            path.unlink()
    elif damage == "garbage":
        cache.write_bytes(os.urandom(20_000))
    else:
        connection = sqlite3.connect(cache)
        connection.execute("UPDATE file SET record = substr(record, 1, 20) WHERE path LIKE '%1%'")
        connection.execute("UPDATE file SET ino = ino + 1 WHERE path LIKE '%2%'")
        connection.execute("DELETE FROM file WHERE path LIKE '%3%'")
        connection.commit()
        connection.close()
    assert opened().list() == before


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home/data"))
    return tmp_path / "home"


def test_deleting_moves_a_session_and_what_belongs_to_it_to_the_trash(
    tmp_path: Path, root: Path, opened: Open, home: Path
) -> None:
    """A140, A141: nothing is unlinked, siblings go along, an undo is a move."""
    path = session(root, "x", title="omp's")
    content = path.read_bytes()
    folder = root / path.name.removesuffix(".jsonl")
    write_log(folder / "Alpha.jsonl", [user("a", None, "x")], header("alpha"))
    (root / f"{path.name}.123.bak").write_text("old")
    other = session(root, "y")
    store = opened()
    target, delta = store.trash(store.get("x"), str(tmp_path / "own"))
    assert sorted(delta.removed) == ["alpha", "x"]
    assert sorted(p.name for p in root.iterdir()) == [other.name]
    assert target == str(home / "data/Trash/files" / path.name)
    assert Path(target).read_bytes() == content
    assert sorted(p.name for p in (home / "data/Trash/files").iterdir()) == [
        folder.name,
        path.name,
        f"{path.name}.123.bak",
    ]
    note = (home / "data/Trash/info" / f"{path.name}.trashinfo").read_text()
    assert note.startswith(f"[Trash Info]\nPath={path}\nDeletionDate=20")
    assert (home / "data/Trash").stat().st_mode & 0o777 == 0o700
    session(root, "x")
    store.refresh()
    assert store.trash(store.get("x"), str(tmp_path / "own"))[0] != target, "an older one of this name stays"
    assert Path(target).read_bytes() == content
    gone = session(root, "gone")
    store.refresh_paths([str(gone)])
    gone.unlink()
    with pytest.raises(SessionGone):
        store.trash(store.get("gone"), str(tmp_path / "own"))


def test_deleting_takes_nothing_along_that_only_has_the_name_of_the_session(
    tmp_path: Path, root: Path, opened: Open, home: Path
) -> None:
    """Only omp keeps a folder beside a session, and calls both by time and id."""
    write_log(root / "project.jsonl", [user("a", None, "x")], header("p"))
    write_log(root / "named.jsonl", [user("a", None, "x")], header("omp-1", title="omp's"))
    for name in ("project", "named", "2026-01-01T00-00-00-000Z_pi-1", "2026-01-01T00-00-00-000Z_other"):
        (root / name).mkdir()
        (root / name / "main.c").write_text("int main;")
    session(root, "pi-1")
    session(root, "omp-2", name="other", title="omp's")
    session(root, "omp-3", title="omp's")
    (root / "2026-01-01T00-00-00-000Z_omp-3").write_text("my own notes")
    (root / "project.jsonl.d.bak").mkdir()
    store = opened()
    for id_ in ("p", "omp-1", "pi-1", "omp-2", "omp-3"):
        store.trash(store.get(id_), str(tmp_path / "own"))
    assert sorted(path.name for path in root.iterdir()) == [
        "2026-01-01T00-00-00-000Z_omp-3", "2026-01-01T00-00-00-000Z_other", "2026-01-01T00-00-00-000Z_pi-1",
        "named", "project", "project.jsonl.d.bak",
    ]  # fmt: skip


def test_an_id_that_was_handed_out_never_comes_to_name_another_session(
    tmp_path: Path, root: Path, opened: Open, home: Path
) -> None:
    """The file of X is moved away and Y takes its place: X goes where its file went, or is gone."""
    path, moved = root / "s.jsonl", root / "moved.jsonl"
    write_log(path, [user("x0", None, "I am X")], header("X"))
    store = opened()
    store.list()
    store.state.set_draft(str(path), "the draft of X")
    path.rename(moved)
    write_log(path, [user("y0", None, "I am Y")], header("Y"))
    store.refresh_paths([str(path), str(moved)])
    assert (store.get("X").path, store.get("Y").path) == (str(moved), str(path))
    assert (store.state.draft(str(moved)), store.state.draft(str(path))) == ("the draft of X", None)
    moved.unlink()
    store.refresh_paths([str(moved)])
    with pytest.raises(SessionNotFound):
        store.get("X")
    write_log(root / "again.jsonl", [user("x0", None, "I am X again")], header("X"))
    store.refresh()
    store.list()
    shutil.copy(root / "again.jsonl", root / "copy.jsonl")
    store.refresh()
    assert store.get("X").path == str(root / "again.jsonl"), "listed anew, and told of, before the copy came"
    y = store.get("Y")
    path.unlink()
    write_log(path, [user("z0", None, "I am Z")], header("Z"))
    with pytest.raises(SessionGone):
        store.trash(y, str(tmp_path / "own"))
    assert path.exists(), "nobody looked at this path since another session took it"


def test_an_id_that_was_handed_out_goes_along_when_its_file_is_renamed(root: Path, opened: Open) -> None:
    """One of two files of an id stays the one that was told of, under any name."""
    path = session(root / "p", "x")
    store = opened()
    store.list()
    shutil.copy(path, root / "copy.jsonl")
    store.refresh()
    (marked,) = {item.id for item in store.items().values() if item.path == str(path)}
    store.list()
    new = root / "p" / "renamed.jsonl"
    path.rename(new)
    for paths in ([str(path)], [str(new)]):
        store.refresh_paths(paths)
    assert {store.get("x").path, store.get(marked).path} == {str(new)}


def test_without_a_desktop_trash_our_own_is_used(tmp_path: Path, root: Path, opened: Open, home: Path) -> None:
    home.parent.joinpath("home").write_text("a file where the folder should be")
    store = opened()
    session(root, "x")
    store.refresh()
    target, _ = store.trash(store.get("x"), str(tmp_path / "own"))
    assert target.startswith(f"{tmp_path}/own/files/")


def test_backups_are_shown_and_never_restored(root: Path, opened: Open) -> None:
    """A141, A145."""
    (root / "x.jsonl.123.bak").write_bytes(line(header("x")))
    (root / ".y.jsonl.77.tmp").write_bytes(line(header("y")))
    store = opened()
    page = store.list()
    assert (page["items"], page["skipped"]) == ([], [])
    found = {os.path.basename(left.path): (os.path.basename(left.of), left.size > 0) for left in store.leftovers}
    assert found == {"x.jsonl.123.bak": ("x.jsonl", True), ".y.jsonl.77.tmp": ("y.jsonl", True)}
    assert len(list(root.iterdir())) == 2


def test_new_files_have_the_names_their_agent_gives() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6_000, UTC)
    assert file_name("my.id_1", moment) == "2026-01-02T03-04-05-006Z_my.id_1.jsonl"
    assert folder_name("pi", "/tmp/demo/proj", "/home/me") == "--tmp-demo-proj--"
    assert folder_name("native", r"C:\Users\a", "/home/me") == "--C--Users-a--"
    assert folder_name("omp", "/tmp/demo/proj", "/home/me") == "-tmp-demo-proj"
    assert folder_name("omp", "/home/me/work/x", "/home/me") == "-work-x"
    assert folder_name("omp", "/home/me", "/home/me") == "-"
    assert folder_name("omp", "/srv/x", "/home/me") == "--srv-x--"


def test_names_stay_within_what_a_file_system_takes(tmp_path: Path) -> None:
    """A104."""
    deep = "/" + "/".join(["ü" * 60] * 10)
    for format_ in ("native", "pi", "omp"):
        assert len(folder_name(format_, deep, "/home/me").encode()) <= 200
    assert folder_name("native", deep, "/h") != folder_name("native", deep + "/x", "/h")
    name = file_name("a" * 250)
    assert len(name.encode()) <= 255
    assert name.endswith(".jsonl")
    assert name != file_name("a" * 249 + "b", datetime.now(UTC))
    (tmp_path / name).write_text("")


def test_what_can_be_done_follows_from_format_and_health(root: Path, opened: Open) -> None:
    session(root, "pi")
    (root / "t_head.jsonl").write_bytes(line(user("a", None, "x")))
    (root / "t_claude.jsonl").write_bytes(
        line({"type": "user", "sessionId": "c", "uuid": "u", "message": {"role": "user"}})
    )
    can = {item["sessionId"]: item["can"] for item in opened().list()["items"]}
    assert (can["pi"]["append"], can["pi"]["navigate"], can["pi"]["branch"]) == (True, True, True)
    assert (can["head"]["append"], can["head"]["navigate"], can["head"]["branch"]) == (False, True, False)
    assert not any(can["claude"][verb] for verb in ("append", "navigate", "branch", "label"))


# -- who holds it -----------------------------------------------------------------------------------------------------

HOLD = "import sys, os; fd = os.open(sys.argv[1], int(sys.argv[2])); print('ready', flush=True); sys.stdin.read()"


def hold(path: Path, flags: int, **more: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(flags)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more,  # type: ignore[call-overload]
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_that_holds_an_omp_session_open_is_seen(root: Path, opened: Open) -> None:
    """A037."""
    path = session(root, "x", titleSource="auto")
    store = opened()
    assert holders(str(path)) == []
    assert store.list()["items"][0]["live"] is None
    with hold(path, os.O_RDONLY) as reader:
        assert holders(str(path)) == [], "reading does no harm"
        reader.communicate()
    with hold(path, os.O_WRONLY | os.O_APPEND) as writer:
        assert holders(str(path)) == [writer.pid]
        fresh = opened().list()["items"][0]
        assert fresh["live"] == {"client": "omp", "pid": writer.pid, "status": "idle", "certain": True}
        assert not fresh["can"]["append"]
        writer.communicate()
    assert holders(str(path)) == []
    assert holders("/no/such") == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_pi_process_in_the_same_directory_is_likely_but_not_certain(tmp_path: Path, root: Path, opened: Open) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/pi").symlink_to(sys.executable)
    session(root, "x", cwd=str(work))
    session(root, "y", cwd=str(tmp_path))
    agent = subprocess.Popen(
        [str(tmp_path / "bin/pi"), "-c", "import sys; print(1, flush=True); sys.stdin.read()"],
        cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        live = {item["sessionId"]: item["live"] for item in opened().list()["items"]}
        agent.communicate()
    assert live == {"x": {"client": "pi", "pid": agent.pid, "status": "idle", "certain": False}, "y": None}


# -- the corpus -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(CORPUS is None, reason="needs the corpus")
def test_the_whole_corpus_is_listed(opened: Open) -> None:
    assert CORPUS is not None
    files = sorted(p for p in CORPUS.rglob("*") if p.name.endswith((".jsonl", ".jsonl.zstd")))
    before = {p: hashlib.sha256(p.read_bytes()).digest() for p in files}
    store = opened(CORPUS)
    page = store.list(Filters(subagents=True))
    assert [s["path"].rpartition("/")[2] for s in page["skipped"]] == ["not_session.jsonl"]
    assert {item["path"] for item in page["items"]} == {str(p) for p in files if p.name != "not_session.jsonl"}
    assert len(set(ids(page))) == len(page["items"])
    for item in page["items"]:
        assert store.resolve(item["sessionId"]).path == item["path"]
        try:
            store.family(store.get(item["sessionId"]))
        except Fault as fault:
            pytest.fail(str(fault))
    assert before == {p: hashlib.sha256(p.read_bytes()).digest() for p in files}
