"""Several tools on one session, and other programs on the same file, at the same time."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from dsh_daemon.client import RpcError
from tests.running import Daemon, Follower, clients, eventually
from tests.support import assistant, line, user, write_log

OTHER_WRITER = """
import json, os, sys, time
path, count = sys.argv[1], int(sys.argv[2])
parent = sys.argv[3]
for n in range(count):
    entry = {"type": "message", "id": f"x{n:07x}", "parentId": parent, "timestamp": "2026-01-01T01:00:00.000Z",
             "message": {"role": "user", "content": f"outside {n}", "timestamp": 1}}
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, json.dumps(entry).encode() + b"\\n")
    os.close(fd)
    parent = entry["id"]
    time.sleep(0.003)
"""


def note(text: str) -> dict[str, object]:
    return {"type": "custom", "customType": "note", "data": text}


def store(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of pi sessions with one session of two entries."""
    root = tmp_path / "sessions"
    path = write_log(
        root / "--tmp-demo-proj--" / "2026-01-01T00-00-00-000Z_s1.jsonl",
        [user("u1", None, "one"), assistant("a1", "u1", "two", 2)],
    )
    return root, path


def on_disk(path: Path) -> list[dict[str, object]]:
    return [json.loads(part) for part in path.read_bytes().split(b"\n") if part]


def test_two_clients_append_a_hundred_times_each_and_branch_only_where_asked(tmp_path: Path) -> None:
    """A031: one owner serialises appends; every client hears of the other's entries."""
    root, path = store(tmp_path)

    async def story(daemon: Daemon) -> None:
        async with clients(daemon, 2) as (one, two):
            followers = [Follower(one, "s1"), Follower(two, "s1")]
            for follower in followers:
                await follower.open()

            async def work(client: object, name: str) -> None:
                for n in range(100):
                    await client.request("session/append", sessionId="s1", entries=[note(f"{name} {n}")])  # type: ignore[attr-defined]

            await asyncio.gather(work(one, "one"), work(two, "two"))
            await eventually(lambda: all(len(f.entries) == 202 for f in followers))
            for follower in followers:
                assert follower.gaps == 0

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))
    entries = on_disk(path)[1:]
    assert len(entries) == 202
    # A chain: nobody named an older parent, so nobody made a branch.
    for before, after in pairwise(entries):
        assert after["parentId"] == before["id"]


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_clients_and_other_programs_do_at_once_nothing_is_lost_and_all_see_the_same(
    tmp_path: Path, seed: int
) -> None:
    """A031, A033, A113: appends, moves and labels of many clients while another process appends to the same file."""
    root, path = store(tmp_path)
    chance = random.Random(seed)

    async def story(daemon: Daemon) -> None:
        async with clients(daemon, 5) as connected:
            followers = [Follower(client, "s1") for client in connected]
            for follower in followers:
                await follower.open()
            acknowledged: list[str] = []

            async def work(client: object, number: int) -> None:
                ask = client.request  # type: ignore[attr-defined]
                for n in range(40):
                    known = list(followers[number].entries)
                    what = chance.random()
                    try:
                        if what < 0.5:
                            done = await ask(
                                "session/append", sessionId="s1", entries=[note(f"{number} {n}"), note("next")]
                            )
                            acknowledged.extend(done["ids"])
                        elif what < 0.7:
                            await ask("session/moveLeaf", sessionId="s1", entryId=chance.choice(known))
                        elif what < 0.85:
                            done = await ask(
                                "session/label", sessionId="s1", entryId=chance.choice(known), label=f"L{number}.{n}"
                            )
                            if "labelEntryId" in done:
                                acknowledged.append(done["labelEntryId"])
                        else:
                            done = await ask(
                                "session/append",
                                sessionId="s1",
                                parentId=chance.choice(known),
                                entries=[note(f"{number} {n} elsewhere")],
                            )
                            acknowledged.extend(done["ids"])
                    except RpcError as error:
                        if error.kind != "busy":
                            raise

            outside = subprocess.Popen([sys.executable, "-c", OTHER_WRITER, str(path), "100", "a1"])
            await asyncio.gather(*(work(client, n) for n, client in enumerate(connected)))
            assert await asyncio.to_thread(outside.wait, 20) == 0

            truth = {str(e["id"]): e["parentId"] for e in on_disk(path)[1:]}
            assert len(truth) == len(on_disk(path)) - 1
            assert set(acknowledged) <= set(truth)
            assert {f"x{n:07x}" for n in range(100)} <= set(truth)
            await eventually(lambda: all(set(f.entries) == set(truth) for f in followers))
            for follower in followers:
                await follower.settled()
            state = await connected[0].request("session/open", sessionId="s1")
            labels = await connected[0].request("session/labels", sessionId="s1")
            for follower in followers:
                assert follower.entries == truth
                assert follower.revision == state["revision"]
                assert follower.leaf == state["leafId"]
                assert follower.labels == {item["entryId"]: item["label"] for item in labels["items"]}

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))


def test_the_change_reaches_the_caller_before_the_result(tmp_path: Path) -> None:
    root, _ = store(tmp_path)

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            await client.request("session/open", sessionId="s1")
            heard: list[int] = []
            client.on("session/changed", lambda change: heard.append(change["revision"]))
            for _ in range(20):
                done = await client.request("session/append", sessionId="s1", entries=[note("x")])
                assert done["revision"] in heard

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))


def test_an_append_by_another_program_arrives_within_a_second(tmp_path: Path) -> None:
    root, path = store(tmp_path)

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            follower = Follower(client, "s1")
            await follower.open()
            for n in range(3):
                with open(path, "ab") as file:
                    file.write(line(user(f"out{n}", "a1", "from outside", 10 + n)))
                await eventually(lambda n=n: follower.leaf == f"out{n}", within=1.0)
            assert follower.changes[-1]["cause"] == "external"

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))


def test_a_session_file_that_appears_is_listed_without_asking_and_one_that_goes_is_taken_off(tmp_path: Path) -> None:
    root, path = store(tmp_path)

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            page = await client.request("catalog/subscribe")
            listed = {info["sessionId"] for info in page["items"]}
            assert listed == {"s1"}

            def on_change(change: dict[str, object]) -> None:
                listed.difference_update(change["removed"])  # type: ignore[arg-type]
                listed.update(info["sessionId"] for info in change["upserts"])  # type: ignore[union-attr]

            client.on("catalog/changed", on_change)
            other = root / "--elsewhere--" / "2026-01-02T00-00-00-000Z_s2.jsonl"
            write_log(
                other,
                [user("u1", None, "hello")],
                {
                    "type": "session",
                    "version": 3,
                    "id": "s2",
                    "timestamp": "2026-01-02T00:00:00.000Z",
                    "cwd": "/elsewhere",
                },
            )
            await eventually(lambda: listed == {"s1", "s2"}, within=3.0)
            os.unlink(other)
            await eventually(lambda: listed == {"s1"}, within=3.0)

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))
    assert path.exists()


def test_every_acknowledged_append_survives_a_kill_at_a_random_moment(tmp_path: Path) -> None:
    """A123 and the first promise: what was answered is on the disk; the next daemon starts without help."""
    root, path = store(tmp_path)
    chance = random.Random(7)
    daemon = Daemon(tmp_path / "home", root)
    acknowledged: list[str] = []

    async def work(number: int) -> None:
        try:
            async with daemon.client(f"c{number}") as client:
                while True:
                    done = await client.request("session/append", sessionId="s1", entries=[note("a"), note("b")])
                    acknowledged.extend(done["ids"])
        except (ConnectionError, OSError):
            return

    async def story() -> None:
        workers = [asyncio.create_task(work(n)) for n in range(3)]
        enough = len(acknowledged) + chance.randrange(2, 60)
        await eventually(lambda: len(acknowledged) > enough)
        daemon.kill()
        await asyncio.gather(*workers)

    for _ in range(6):
        daemon.start()
        asyncio.run(story())
    ids = [str(e["id"]) for e in on_disk(path)[1:]]
    assert len(acknowledged) > 20
    assert set(acknowledged) <= set(ids)
    assert len(ids) == len(set(ids))


def test_a_move_of_the_leaf_survives_a_restart_until_somebody_appends(tmp_path: Path) -> None:
    root, path = store(tmp_path)
    before = path.read_bytes()
    daemon = Daemon(tmp_path / "home", root)

    async def leaf(**more: object) -> object:
        async with daemon.client() as client:
            if more:
                await client.request("session/moveLeaf", sessionId="s1", **more)
            return (await client.request("session/open", sessionId="s1"))["leafId"]

    with daemon:
        assert asyncio.run(leaf(entryId="u1")) == "u1"
    assert path.read_bytes() == before
    with daemon:
        assert asyncio.run(leaf()) == "u1"
        daemon.kill()
    with open(path, "ab") as file:
        file.write(line(user("u2", "a1", "more", 5)))
    with daemon:
        assert asyncio.run(leaf()) == "u2"
