"""The index of a running daemon is complete whatever happens to either, and costs nobody's time."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import apsw
import psutil
import pytest

from dsh_daemon.client import Client
from dsh_daemon.search_index import SearchIndex
from dsh_daemon.tokens import expression, words
from tests import generate
from tests.running import Daemon, eventually
from tests.support import assistant, header, line, tool_result, user, write_log

SECRET = "zyzzyvaquux"


def story(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


def session(root: Path, name: str, *texts: str, cwd: str = "/tmp/demo/proj") -> Path:
    entries = [user(f"{name}{n}", f"{name}{n - 1}" if n else None, text, n) for n, text in enumerate(texts)]
    return write_log(root / "--tmp-demo-proj--" / f"2026-01-01T00-00-00-000Z_{name}.jsonl", entries, header(name, cwd))


def append(path: Path, *entries: dict[str, Any]) -> None:
    with path.open("ab") as file:
        file.write(b"".join(map(line, entries)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def daemon(tmp_path: Path, root: Path):
    daemon = Daemon(tmp_path / "home", f"pi={root}")
    yield daemon
    daemon.stop()


@asynccontextmanager
async def running(daemon: Daemon) -> AsyncIterator[Client]:
    daemon.start()
    client = await daemon.client()
    try:
        yield client
    finally:
        await client.close()
        daemon.stop()


async def say(client: Client, session_id: str, text: str) -> None:
    message = {"role": "user", "content": text, "timestamp": 1}
    await client.request("session/append", sessionId=session_id, entries=[{"type": "message", "message": message}])


async def settled(client: Client) -> None:
    async def idle() -> bool:
        return (await client.request("daemon/status"))["index"]["state"] == "idle"

    await eventually(idle, 60)


async def ids(client: Client, query: str, **where: Any) -> list[str]:
    """Sessions in which a query is found."""
    result = await client.request("search/sessions", query=query, where=where)
    return sorted(item["session"]["sessionId"] for item in result["items"])


async def found_in_time(client: Client, query: str, session_id: str) -> None:
    """A second is what is promised; on a machine with more to do it is some more."""
    began = time.monotonic()

    async def there() -> bool:
        return session_id in await ids(client, query)

    await eventually(there)
    assert time.monotonic() - began < 1 + os.getloadavg()[0]


def everything(home: Path) -> dict[str, dict[str, Any]]:
    """All that the index on the disk holds, by path."""
    index = SearchIndex(str(home / "cache" / "search.db"))
    try:
        assert index.problem is None
        rows = {query: index.matches(expression(words(query))) for query in ("function", "한국어", "tree", "q", "test")}
        result: dict[str, dict[str, Any]] = {}
        for path, known in index.files().items():
            columns = index.columns(path)
            assert columns is not None
            assert known.whole
            assert len(columns) == known.entries
            found = {query: sorted(there.get(path, [])) for query, there in rows.items()}
            places = [tuple(place) for _, place in sorted(index.places(path, range(len(columns))).items())]
            result[path] = {**found, "places": places, "time": list(columns.time), "active": columns.active}
        return result
    finally:
        index.close()


def helpers(daemon: Daemon) -> list[psutil.Process]:
    assert daemon.process is not None
    return psutil.Process(daemon.process.pid).children()


# An addition is found within a second


@story
async def test_an_append_through_us_is_found_in_time(daemon: Daemon, root: Path) -> None:
    session(root, "s", "alpha", "beta")
    async with running(daemon) as client:
        await settled(client)
        await say(client, "s", "마이그레이션을 했다")
        await found_in_time(client, "그레이", "s")


@pytest.mark.parametrize("opened", [False, True])
@story
async def test_an_append_of_another_program_is_found_in_time(opened: bool, daemon: Daemon, root: Path) -> None:
    path = session(root, "s", "alpha", "beta")
    async with running(daemon) as client:
        await settled(client)
        if opened:
            await client.request("session/open", sessionId="s")
        append(path, user("new", "s1", "gamma rays"))
        await found_in_time(client, "gamma", "s")
        append(path, user("newer", "new", "delta"))
        await found_in_time(client, "delta", "s")


@story
async def test_an_append_to_a_long_session_is_found_in_time(daemon: Daemon, root: Path) -> None:
    path = root / "long.jsonl"
    generate.big(path, 6_000, 6_000_000)
    async with running(daemon) as client:
        await settled(client)
        append(path, user("new", None, SECRET))
        item = (await client.request("session/list"))["items"][0]
        await found_in_time(client, SECRET, item["sessionId"])


@story
async def test_a_new_session_is_found_and_a_deleted_one_is_not(daemon: Daemon, root: Path) -> None:
    session(root, "s", "alpha")
    async with running(daemon) as client:
        await settled(client)
        path = session(root, "t", "alpha too")
        await found_in_time(client, "alpha", "t")
        path.unlink()

        async def gone() -> bool:
            return await ids(client, "alpha") == ["s"]

        await eventually(gone)
        await eventually(lambda: not any(name.endswith("_t.jsonl") for name in everything(daemon.home)))


@story
async def test_whoever_waits_for_the_index_finds_what_came_just_before(daemon: Daemon, root: Path) -> None:
    session(root, "s", "alpha")
    async with running(daemon) as client:
        await settled(client)
        for number in range(20):
            name = f"late{number}"
            await asyncio.sleep(number * 0.007)  # at any moment of what the daemon does by itself
            session(root, name, f"omega{number}")
            query = f"omega{number}"
            found = await client.request("search/sessions", query=query, workDoneToken=name)
            assert [item["session"]["sessionId"] for item in found["items"]] == [name]
            assert found["coverage"] == {"indexed": number + 2, "total": number + 2}


@story
async def test_sessions_that_are_open_are_in_an_index_that_is_begun_anew(daemon: Daemon, root: Path) -> None:
    for name in ("one", "two"):
        session(root, name, "alpha")
    async with running(daemon) as client:
        await settled(client)
        for name in ("one", "two"):
            await client.request("session/open", sessionId=name)
        for file in (daemon.home / "cache").glob("search.db*"):
            file.unlink()

        async def complete() -> bool:
            found = await client.request("search/sessions", query="alpha")
            return found["coverage"] == {"indexed": 2, "total": 2} and len(found["items"]) == 2

        await eventually((daemon.home / "cache" / "search.db").exists)
        await eventually(complete)


@story
async def test_a_session_that_is_given_another_name_need_not_be_read_again(daemon: Daemon, root: Path) -> None:
    path = session(root, "s", "alpha")
    async with running(daemon) as client:
        await settled(client)
        path.rename(path.with_name("renamed.jsonl"))

        async def there() -> bool:
            result = await client.request("search/sessions", query="alpha")
            return [item["session"]["path"] for item in result["items"]] == [str(path.with_name("renamed.jsonl"))]

        await eventually(there)


@story
async def test_a_rewritten_session_is_found_by_what_it_says_now(daemon: Daemon, root: Path) -> None:
    path = session(root, "s", "alpha", "beta")
    async with running(daemon) as client:
        await settled(client)
        other = path.with_suffix(".tmp")
        other.write_bytes(path.read_bytes().replace(b"alpha", b"omega"))
        other.replace(path)
        await found_in_time(client, "omega", "s")
        assert await ids(client, "alpha") == []


@story
async def test_a_moved_leaf_changes_what_is_abandoned_also_after_a_kill(daemon: Daemon, root: Path) -> None:
    session(root, "s", "alpha", "beta", "gamma")

    async def abandoned(client: Client) -> list[str]:
        return await ids(client, "gamma", branch="abandoned")

    async with running(daemon) as client:
        await settled(client)
        assert await abandoned(client) == []
        await client.request("session/moveLeaf", sessionId="s", entryId="s1")
        assert await abandoned(client) == ["s"]
        daemon.kill()
    async with running(daemon) as client:
        await settled(client)
        assert await abandoned(client) == ["s"]
    (content,) = everything(daemon.home).values()
    assert content["active"] == [0, 2]


# It is complete whatever happens


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    generate.store(root / "many", 30)
    generate.big(root / "big.jsonl", 5_000, 5_000_000)
    return root


@pytest.fixture(scope="module")
def whole(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What an index holds that was built in peace."""
    daemon = Daemon(tmp_path_factory.mktemp("peace") / "home", f"pi={store}")

    async def build() -> None:
        async with running(daemon) as client:
            await settled(client)

    asyncio.run(build())
    found = everything(daemon.home)
    assert len(found) == 31
    assert any(content["function"] for content in found.values())
    return found


@story
async def test_a_daemon_killed_at_any_moment_costs_nothing_but_time(
    store: Path, whole: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    dice = random.Random(7)
    daemon = Daemon(tmp_path / "home", f"pi={store}")
    orphans: list[psutil.Process] = []
    for _ in range(5):
        daemon.start()
        await asyncio.sleep(dice.uniform(0, 0.7))
        orphans += helpers(daemon)
        daemon.kill()
    async with running(daemon) as client:
        await settled(client)
    assert everything(daemon.home) == whole
    await eventually(lambda: not any(map(psutil.Process.is_running, orphans)))


@story
async def test_a_helper_killed_at_any_moment_costs_nothing_but_time(
    store: Path, whole: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    dice = random.Random(8)
    daemon = Daemon(tmp_path / "home", f"pi={store}")
    async with running(daemon) as client:
        killed = 0
        for _ in range(200):
            await asyncio.sleep(dice.uniform(0, 0.1))
            if killed < 5 and (found := helpers(daemon)):
                os.kill(found[0].pid, signal.SIGKILL)
                killed += 1
            if (await client.request("daemon/status"))["index"]["state"] == "idle":
                break
        assert killed

        async def complete() -> bool:
            index = (await client.request("daemon/status"))["index"]
            return index["indexed"] == index["total"] == len(whole)

        await eventually(complete, 60)
    assert everything(daemon.home) == whole


@pytest.mark.parametrize("how", ["deleted", "noise", "version"])
@story
async def test_an_index_that_is_gone_or_bad_is_built_anew(how: str, daemon: Daemon, root: Path) -> None:
    session(root, "s", "alpha")
    async with running(daemon) as client:
        await settled(client)
    path = daemon.home / "cache" / "search.db"
    if how == "deleted":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[60:64] = b"\0\0\0\7"  # the version that is ours to give
        path.write_bytes(data if how == "version" else os.urandom(len(data)))
    async with running(daemon) as client:
        await settled(client)
        assert await ids(client, "alpha") == ["s"]
        problems = (await client.request("daemon/doctor"))["problems"]
    assert [p["path"] for p in problems if p["code"] == "database"] == ([] if how == "deleted" else [str(path)])


@story
async def test_an_index_that_is_taken_away_from_a_running_daemon_is_built_anew(daemon: Daemon, root: Path) -> None:
    session(root, "s", "alpha")
    async with running(daemon) as client:
        await settled(client)
        for path in (daemon.home / "cache").glob("search.db*"):
            path.unlink()
        await eventually(lambda: (daemon.home / "cache" / "search.db").exists() and bool(everything(daemon.home)))
        assert await ids(client, "alpha") == ["s"]


@pytest.mark.parametrize(
    "sql", ["DROP TABLE file", "UPDATE file SET facts = x'c1'", "UPDATE chunk SET columns = x'00'"]
)
@story
async def test_while_a_broken_index_is_built_anew_no_answer_claims_to_be_complete(
    sql: str, daemon: Daemon, root: Path
) -> None:
    for n in range(12):
        session(root, f"s{n}", "alpha", *["talk"] * 20)
    async with running(daemon) as client:
        await settled(client)
        other = apsw.Connection(str(daemon.home / "cache" / "search.db"))
        other.execute(sql)
        other.close()

        async def complete() -> bool:
            found = await client.request("search/sessions", query="alpha")
            covered = found["coverage"]
            assert len(found["items"]) == 12 or covered["indexed"] < covered["total"] == 12
            return len(found["items"]) == covered["indexed"] == 12

        await eventually(complete)
    assert len(everything(daemon.home)) == 12


@story
async def test_what_comes_while_another_program_has_the_index_locked_is_found_afterwards(
    daemon: Daemon, root: Path
) -> None:
    session(root, "s", "alpha")
    path = session(root, "t", "alpha")
    async with running(daemon) as client:
        await settled(client)
        other = apsw.Connection(str(daemon.home / "cache" / "search.db"))
        other.execute("BEGIN IMMEDIATE")
        await say(client, "s", "gamma")
        append(path, user("new", "t0", "gamma"))

        async def told() -> bool:
            problems = (await client.request("daemon/doctor"))["problems"]
            return any(problem["path"].endswith("search.db") for problem in problems)

        await eventually(told)
        assert await ids(client, "alpha") == ["s", "t"]
        other.execute("ROLLBACK")
        other.close()

        async def both() -> bool:
            return await ids(client, "gamma") == ["s", "t"]

        await eventually(both)
        await settled(client)
        assert not await told()


# What is not to be on the disk is not


def on_disk(daemon: Daemon, word: str) -> list[str]:
    return [path.name for path in (daemon.home / "cache").glob("search.db*") if word.encode() in path.read_bytes()]


@story
async def test_what_is_excluded_is_never_indexed_and_leaves_when_the_setting_comes_later(
    tmp_path: Path, root: Path
) -> None:
    session(root, "s", "alpha", cwd="/tmp/demo/open")
    session(root, "t", f"alpha {SECRET}", cwd="/tmp/demo/private/deep")
    path = session(root, "u", f"alpha {SECRET}", cwd="/tmp/demo/open")
    before = Daemon(tmp_path / "home", f"pi={root}")
    async with running(before) as client:
        await settled(client)
        assert await ids(client, SECRET) == ["t", "u"]
    assert on_disk(before, SECRET)
    exclude = json.dumps(["/tmp/demo/private", "*_u.jsonl"])
    for home in ("home", "fresh"):
        daemon = Daemon(tmp_path / home, f"pi={root}", DSHD_SEARCH__EXCLUDE=exclude)
        async with running(daemon) as client:
            await settled(client)
            append(path, user("new", "u0", f"more {SECRET}"))
            await client.request("session/open", sessionId="t")
            await say(client, "t", SECRET)
            append(root / "--tmp-demo-proj--" / "2026-01-01T00-00-00-000Z_s.jsonl", user(home, "s0", f"seen {home}"))
            await found_in_time(client, home, "s")
            await settled(client)
            assert await ids(client, "alpha") == ["s"]
            assert await ids(client, SECRET) == []
            assert len(everything(daemon.home)) == 1
        assert on_disk(daemon, SECRET) == []


@story
async def test_nothing_is_left_of_a_session_that_moves_to_where_nothing_is_searched(tmp_path: Path, root: Path) -> None:
    session(root, "s", "alpha")
    renamed = session(root, "t", f"alpha {SECRET}")
    rewritten = session(root, "u", f"alpha {SECRET}")
    exclude = json.dumps([str(root / "private"), "/tmp/demo/private"])
    daemon = Daemon(tmp_path / "home", f"pi={root}", DSHD_SEARCH__EXCLUDE=exclude)

    async def only(client: Client, *names: str) -> bool:
        return await ids(client, "alpha") == [*names] and everything(daemon.home).keys() == {*map(str, names_of(names))}

    def names_of(names: Iterable[str]) -> list[Path]:
        return [root / "--tmp-demo-proj--" / f"2026-01-01T00-00-00-000Z_{name}.jsonl" for name in names]

    async with running(daemon) as client:
        await settled(client)
        assert await only(client, "s", "t", "u")
        (root / "private").mkdir()
        renamed.rename(root / "private" / renamed.name)
        await eventually(lambda: only(client, "s", "u"))
        os.link(names_of("s")[0], root / "private" / "2026-01-01T00-00-00-000Z_s.jsonl")  # it is where it was, too
        rewritten.write_bytes(rewritten.read_bytes().replace(b"/tmp/demo/proj", b"/tmp/demo/private"))
        await eventually(lambda: only(client, "s"))
        await settled(client)
    assert on_disk(daemon, SECRET) == []


@story
async def test_a_session_in_memory_is_found_and_on_no_disk(daemon: Daemon, root: Path) -> None:
    session(root, "s", "alpha")
    async with running(daemon) as client:
        await settled(client)
        await client.request("session/create", cwd="/tmp/demo", sessionId="m", persist=False)
        await say(client, "m", f"alpha {SECRET}")
        await found_in_time(client, SECRET, "m")
        assert await ids(client, "alpha") == ["m", "s"]
        await client.request("session/delete", sessionId="m")
        assert await ids(client, SECRET) == []
    assert not any(SECRET.encode() in path.read_bytes() for path in daemon.home.rglob("*") if path.is_file())


# Others do not notice


@story
async def test_a_client_is_answered_while_the_index_is_built(daemon: Daemon, root: Path) -> None:
    generate.big(root / "big.jsonl", 8_000, 8_000_000)
    slowest, states = [], set[str]()
    async with running(daemon) as client:
        while "idle" not in states:
            began = time.monotonic()
            status = await client.request("daemon/status")
            slowest.append(time.monotonic() - began)
            states.add(status["index"]["state"])
            await asyncio.sleep(0.002)
    assert "building" in states
    slowest.sort()
    assert slowest[len(slowest) * 9 // 10] < 0.1 * (1 + os.getloadavg()[0])


@story
async def test_what_is_appended_while_the_index_is_built_does_not_wait_for_its_end(daemon: Daemon, root: Path) -> None:
    generate.store(root / "many", 60)
    path = session(root, "s", "alpha")
    os.utime(path, (1, 1))
    async with running(daemon) as client:
        append(path, assistant("a", "s0", SECRET), tool_result("b", "a", "c", "done"))
        await found_in_time(client, SECRET, "s")
        await settled(client)


@story
async def test_the_counts_of_the_list_come_with_the_index(daemon: Daemon, root: Path) -> None:
    session(root, "s", "alpha", "beta", "gamma")
    async with running(daemon) as client:
        await settled(client)
        (item,) = (await client.request("session/list"))["items"]
        assert (item["scanned"], item["entryCount"], item["messageCount"]) == (True, 3, 3)
        status = await client.request("daemon/status")
        assert status["index"] == {"state": "idle", "indexed": 1, "total": 1}
