"""What a person may rely on, over a real daemon: looking changes nothing, lists stay calm, nothing is made in error."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.client import RpcError
from dsh_daemon.wire.methods import METHODS
from tests import dsh_logs
from tests.running import Daemon, clients, eventually
from tests.support import assistant, header, line, user, write_log


def store(tmp_path: Path, count: int = 2) -> Path:
    root = tmp_path / "sessions"
    for n in range(1, count + 1):
        entries = [user("u1", None, f"question {n}", n), assistant("a1", "u1", f"answer {n}", n + 1)]
        write_log(root / "--p--" / f"2026-01-01T00-00-0{n}-000Z_s{n}.jsonl", entries, header(f"s{n}", "/p"))
    return root


def picture(root: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in root.rglob("*") if p.is_file()}


def test_opening_following_and_leaving_writes_nothing_and_moves_nothing_in_the_list(tmp_path: Path) -> None:
    """A050, A089, A091: looking is not working; a client that comes back changes nothing."""
    root = store(tmp_path)
    before = picture(root)

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            first = await client.request("session/list")
        for _ in range(3):
            async with daemon.client() as client:
                await client.request("catalog/subscribe")
                for session_id in ("s1", "s2"):
                    await client.request("session/open", sessionId=session_id)
                    await client.request("session/tree", sessionId=session_id)
                    await client.request("session/close", sessionId=session_id)
        async with daemon.client() as client:
            again = await client.request("session/list")
        order = [(i["sessionId"], i["lastActivityAt"]) for i in first["items"]]
        assert [(i["sessionId"], i["lastActivityAt"]) for i in again["items"]] == order

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))
    assert picture(root) == before


def test_naming_what_is_not_there_is_an_error_and_makes_no_file(tmp_path: Path) -> None:
    """A052: a missing source is an error, never an empty session."""
    root = store(tmp_path)
    before = picture(root)

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            for method, params in [
                ("session/open", {"path": "/nope.jsonl"}),
                ("session/open", {"sessionId": "nope"}),
                ("session/branch", {"sessionId": "nope", "entryId": "u1"}),
                ("session/append", {"sessionId": "nope", "entries": [{"type": "custom"}]}),
                ("session/resolve", {"ref": "/nope.jsonl"}),
                ("session/create", {"cwd": "/p", "parentSessionId": "nope"}),
            ]:
                with pytest.raises(RpcError) as caught:
                    await client.request(method, params)
                assert caught.value.kind == "sessionNotFound", method

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))
    assert picture(root) == before
    assert not any((tmp_path / "home" / "sessions").rglob("*.jsonl"))


def test_a_busy_store_tells_a_list_at_most_four_times_a_second(tmp_path: Path) -> None:
    """A090: several sessions that stream do not make the list jump."""
    root = store(tmp_path)

    async def story(daemon: Daemon) -> None:
        async with clients(daemon, 3) as (watcher, one, two):
            told: list[float] = []
            await watcher.request("catalog/subscribe")
            watcher.on("catalog/changed", lambda _: told.append(time.monotonic()))

            async def stream(client: Any, session_id: str) -> None:
                for n in range(20):
                    await client.request(
                        "session/append",
                        sessionId=session_id,
                        entries=[{"type": "custom", "customType": "x", "data": n}],
                    )
                    await asyncio.sleep(0.1)

            began = time.monotonic()
            await asyncio.gather(stream(one, "s1"), stream(two, "s2"))
            spent = time.monotonic() - began
            assert 1 <= len(told) <= 4 * spent + 2

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))


def test_a_pin_and_an_archive_stay_over_a_restart_and_leave_the_file_alone(tmp_path: Path) -> None:
    """A078, A082: star and put away, in our own state."""
    root = store(tmp_path)
    before = picture(root)
    daemon = Daemon(tmp_path / "home", root)

    async def mark() -> None:
        async with daemon.client() as client:
            await client.request("session/pin", sessionId="s1", on=True)
            await client.request("session/archive", sessionId="s2", on=True)

    async def look() -> None:
        async with daemon.client() as client:
            shown = (await client.request("session/list"))["items"]
            assert [(i["sessionId"], i["pinned"]) for i in shown] == [("s1", True)]
            every = (await client.request("session/list", archived=True))["items"]
            assert {i["sessionId"]: i["archived"] for i in every} == {"s1": False, "s2": True}

    with daemon:
        asyncio.run(mark())
    with daemon:
        asyncio.run(look())
    assert picture(root) == before


def test_the_verbs_that_people_ask_for_are_methods() -> None:
    """A082, A156: tree, rows, navigate, label, pin, archive, trash, branch, repair are all there."""
    wanted = {"tree", "path", "children", "navigate", "label", "pin", "archive", "delete", "branch", "list", "resolve"}
    assert {f"session/{verb}" for verb in wanted} | {"daemon/doctor"} <= set(METHODS)


def test_opening_a_session_sends_its_state_and_no_history(tmp_path: Path) -> None:
    """A157: a client that comes back asks for what it missed, not for everything."""
    root = store(tmp_path)

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            state = await client.request("session/open", sessionId="s1")
            assert "entries" not in state
            assert "changes" not in state
            await client.request("session/append", sessionId="s1", entries=[{"type": "custom", "customType": "x"}])
        async with daemon.client() as client:
            since = {"epoch": state["epoch"], "revision": state["revision"]}
            again = await client.request("session/open", sessionId="s1", since=since)
            assert [len(change["entries"]) for change in again["changes"]] == [1]
            assert again["changes"][0]["cause"] == {"method": "session/append", "client": "test"}
            gone = await client.request("session/open", sessionId="s1", since={"epoch": "another", "revision": 1})
            assert "changes" not in gone

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))


def test_a_session_without_a_prompt_or_a_model_is_listed_and_read(tmp_path: Path) -> None:
    """A043, A054: reading needs no provider, a list no first message."""
    root = store(tmp_path, 0)
    path = write_log(root / "--p--" / "2026-01-01T00-00-00-000Z_bare.jsonl", [], header("bare", "/p"))
    with open(path, "ab") as file:
        file.write(
            line(
                {
                    "type": "model_change",
                    "id": "m1",
                    "parentId": None,
                    "timestamp": "2026-01-01T00:00:01.000Z",
                    "provider": "gone",
                    "modelId": "gone-1",
                }
            )
        )

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            (info,) = (await client.request("session/list"))["items"]
            assert (info["title"], info["titleSource"], info["tail"]) == ("bare", "id", "empty")
            context = await client.request("session/context", sessionId="bare")
            assert context["messages"] == []
            assert context["model"] == {"provider": "gone", "modelId": "gone-1"}

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))


def test_counts_that_were_never_made_arrive_by_themselves(tmp_path: Path) -> None:
    root = store(tmp_path)

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            seen: dict[str, dict[str, Any]] = {}
            client.on("catalog/changed", lambda change: seen.update({i["sessionId"]: i for i in change["upserts"]}))
            page = await client.request("catalog/subscribe")
            seen.update({i["sessionId"]: {**i, **seen.get(i["sessionId"], {})} for i in page["items"]})
            await eventually(lambda: all(i.get("scanned") for i in seen.values()))
            assert {i["entryCount"] for i in seen.values()} == {2}
            status = await client.request("daemon/status")
            assert status["index"]["state"] in {"idle", "building"}

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))


def test_a_list_is_there_before_anything_was_counted_and_a_window_around_the_leaf_before_all_is_read(
    tmp_path: Path,
) -> None:
    """A066, A067: big files are listed by their ends, and read where somebody looks."""
    root = store(tmp_path, 0)
    for n in range(3):
        entries = [user(f"u{k}", f"u{k - 1}" if k else None, "word " * 400, k) for k in range(5_000)]
        write_log(root / "--p--" / f"2026-01-01T00-00-0{n}-000Z_b{n}.jsonl", entries, header(f"b{n}", "/p"))

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            page = await client.request("session/list")
            assert [info["sizeBytes"] > 10_000_000 for info in page["items"]] == [True] * 3
            assert not all(info["scanned"] for info in page["items"])
            near = await client.request("session/entries", sessionId="b0", around="u4999", before=49)
            assert [e["id"] for e in near["entries"]] == [f"u{k}" for k in range(4950, 5000)]

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))


READS = {
    "session/tree": lambda answer: answer["rows"],
    "session/leaves": lambda answer: answer["items"],
    "session/path": lambda answer: answer["ids"],
    "session/children": lambda answer: answer["ids"],
    "session/context": lambda answer: answer["messages"],
    "session/turns": lambda answer: answer["turns"],
    "session/transcript": lambda answer: answer["text"],
    "session/stats": lambda answer: answer["messages"],
    "search/entries": lambda answer: answer["items"],
}


def test_what_is_listed_opens_with_all_of_its_messages_and_no_agent_need_be_installed(tmp_path: Path) -> None:
    """A117, A120: a title with an empty body is none; browsing needs no program of anybody's."""
    root = store(tmp_path)
    slot = {"type": "title", "v": 1, "title": "", "updatedAt": "2026-01-01T00:00:00.000Z", "pad": ""}
    slot["pad"] = " " * (255 - len(line(slot)) + 1)
    of_omp = root / "--p--" / "2026-01-01T00-00-03-000Z_s2.jsonl"
    of_omp.write_bytes(line(slot) + line(header("omp-1", "/p")) + line(user("u1", None, "a question for omp")))
    log = dsh_logs.story()
    folder = tmp_path / "dsh" / "sessions"
    log.write(folder)

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:
            listed = (await client.request("session/list"))["items"]
            assert {info["format"] for info in listed} == {"pi", "omp", "dsh"}
            for info in listed:
                session = info["sessionId"]
                for method, found in READS.items():
                    more = (
                        {"query": "question" if info["format"] != "dsh" else "a"} if method == "search/entries" else {}
                    )
                    more |= {"entryId": None} if method == "session/children" else {}
                    assert found(await client.request(method, sessionId=session, **more)), (method, info["format"])
                path = (await client.request("session/path", sessionId=session))["ids"]
                entries: list[str] = []
                for k in range(0, len(path), 200):
                    page = await client.request("session/entries", sessionId=session, ids=path[k : k + 200])
                    assert not page["missing"]
                    entries += [entry.get("id", str(entry.get("seq"))) for entry in page["entries"]]
                assert entries == path

    with Daemon(tmp_path / "home", f"{root}:dsh={folder}", PATH=str(tmp_path / "nothing")) as daemon:
        asyncio.run(story(daemon))
