"""What a hostile tester found: bytes that reach another session, files rewritten under us, clients that stop others."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.client import RpcError
from dsh_daemon.errors import Busy
from dsh_daemon.log.journal import FileJournal, replace
from dsh_daemon.session import Session
from tests.running import Daemon, clients, eventually
from tests.support import assistant, entry, header, line, user, write_log

LOG = [user("u1", None, "one"), assistant("a1", "u1", "two", 2)]


def place(tmp_path: Path, name: str = "s1") -> tuple[Path, Path]:
    root = tmp_path / "sessions"
    return root, write_log(root / "--p--" / f"2026-01-01T00-00-00-000Z_{name}.jsonl", LOG, header(name))


def test_a_session_closed_during_an_append_still_gets_its_own_bytes(tmp_path: Path) -> None:
    """The number of a closed descriptor is soon another file's: nothing may be written to it."""
    mine, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (mine, other):
        path.write_bytes(line(header(path.stem)))
    journal = FileJournal(str(mine))
    reached, go_on = threading.Event(), threading.Event()

    def ready() -> None:
        reached.set()
        assert go_on.wait(10)

    def work() -> None:
        journal.append(b'{"words":"of a"}\n', mine.stat().st_size, unterminated=False, ready=ready)

    thread = threading.Thread(target=work)
    thread.start()
    assert reached.wait(10)
    journal.close()
    strangers = [open(other, "ab") for _ in range(4)]  # noqa: SIM115
    go_on.set()
    thread.join(10)
    for stranger in strangers:
        stranger.close()

    assert b"of a" in mine.read_bytes()
    assert b"of a" not in other.read_bytes()


def test_a_file_rewritten_in_place_at_the_same_size_is_a_new_epoch(tmp_path: Path) -> None:
    path = write_log(tmp_path / "s.jsonl", LOG)
    session = Session.open(str(path))
    epoch = session.epoch
    data = path.read_bytes().replace(b'"u1"', b'"x1"').replace(b'"a1"', b'"y1"')
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, (time.time() + 5, time.time() + 5))

    assert session.refresh()[0]["resync"] is True
    assert (session.epoch != epoch, session.leaf_id) == (True, "y1")
    session.append([entry("custom", "c1", "y1")])
    assert session.entry(session.find("c1"))["parentId"] == "y1"


def test_a_file_that_was_only_touched_is_no_change(tmp_path: Path) -> None:
    """A088: a new time says nothing."""
    path = write_log(tmp_path / "s.jsonl", LOG)
    session = Session.open(str(path))
    before = (session.epoch, session.revision)
    os.utime(path)

    assert session.refresh() == []
    assert (session.epoch, session.revision) == before


def test_a_time_in_the_future_does_not_cut_another_programs_line_in_two(tmp_path: Path) -> None:
    path = write_log(tmp_path / "s.jsonl", LOG)
    with open(path, "ab") as file:
        file.write(b'{"type":"message","id":"theirs",')
    ahead = time.time() + 3600
    os.utime(path, (ahead, ahead))
    session = Session.open(str(path))

    with pytest.raises(Busy):
        session.append([{"type": "custom"}])
    with open(path, "ab") as file:
        file.write(b'"parentId":"a1","timestamp":"2026-01-01T00:00:09.000Z","message":{"role":"user","content":"x"}}\n')
    session.append([{"type": "custom", "id": "mine"}])
    assert session.index.ids == ["u1", "a1", "theirs", "mine"]


def test_a_replacement_that_a_crash_cut_off_can_be_done_again(tmp_path: Path) -> None:
    """The original was kept already; that is no reason to refuse for ever."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"old\n")
    keep = str(path) + ".bak"
    os.link(path, keep)

    replace(str(path), b"new\n", keep, 4)
    assert (path.read_bytes(), Path(keep).read_bytes()) == (b"new\n", b"old\n")


def test_a_file_that_goes_between_look_and_write_is_told_of_and_served_again_when_it_is_back(tmp_path: Path) -> None:
    root, path = place(tmp_path)

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            closed: list[dict[str, Any]] = []
            client.on("session/closed", closed.append)
            await client.request("session/open", sessionId="s1")
            for _ in range(10):
                data = path.read_bytes()
                one = asyncio.create_task(
                    client.request("session/append", sessionId="s1", entries=[{"type": "custom"}])
                )
                path.unlink()
                with suppress(RpcError):
                    await one
                with pytest.raises(RpcError) as caught:
                    await client.request("session/append", sessionId="s1", entries=[{"type": "custom"}])
                assert caught.value.kind in {"sessionGone", "sessionNotFound"}
                await eventually(lambda: closed != [])
                path.write_bytes(data)

                async def back() -> bool:
                    try:
                        await client.request("session/open", sessionId="s1")
                    except RpcError as error:
                        if error.kind not in {"sessionGone", "sessionNotFound"}:
                            raise
                        return False
                    return True

                await eventually(back)
                closed.clear()
            assert (await client.request("daemon/status"))["openSessions"] == 1

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session/append", {"entries": [{"type": "custom", "customType": "x", "data": n} for n in range(10_000)]}),
        ("session/entries", {"ids": ["big"] * 200}),
        ("session/tree", {"filter": "all", "count": 5000}),
        ("session/context", {}),
    ],
)
def test_a_request_for_much_does_not_stop_the_others(tmp_path: Path, method: str, params: dict[str, Any]) -> None:
    root, path = place(tmp_path)
    with open(path, "ab") as file:
        file.write(line(user("big", "a1", "x" * 8_000_000, 5)))
        file.writelines(line(user(f"m{n}", "big" if n == 0 else f"m{n - 1}", "words " * 30, n)) for n in range(5_000))

    async def story(daemon: Daemon) -> None:
        async with clients(daemon, 2) as (one, two):
            await one.request("session/open", sessionId="s1")
            task = asyncio.create_task(one.request(method, sessionId="s1", **params))
            waits: list[float] = []
            while not task.done():
                began = time.perf_counter()
                await two.request("daemon/ping")
                waits.append(time.perf_counter() - began)
                await asyncio.sleep(0.001)
            await task
            # Not a measurement: a handler that holds the loop for the whole of this would take seconds.
            assert max(waits) < 1.0

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))


def test_more_entries_than_one_request_may_carry_are_refused(tmp_path: Path) -> None:
    root, path = place(tmp_path)
    before = path.read_bytes()

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            with pytest.raises(RpcError) as caught:
                await client.request("session/append", sessionId="s1", entries=[{"type": "custom"}] * 10_001)
            assert caught.value.code == -32602

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))
    assert path.read_bytes() == before
