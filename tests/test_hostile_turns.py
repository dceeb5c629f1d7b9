"""What a hostile tester found in turns and long reads: absurd numbers, mixed logs, reads that hold up all others."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from dsh_daemon import aside, reading, transcript, tree
from dsh_daemon.client import RpcError
from dsh_daemon.session import Rewritten, Session
from tests.running import Daemon, environment, eventually
from tests.support import assistant, entry, header, line, tool_result, user, write_log

NATIVE = {"generator": "dsh-daemon/1"}


def place(tmp_path: Path, entries: list[dict[str, Any]], name: str = "s1") -> tuple[Path, Path]:
    root = tmp_path / "sessions"
    return root, write_log(root / "--p--" / f"2026-01-01T00-00-00-000Z_{name}.jsonl", entries, header(name, **NATIVE))


def turns_of(count: int, tag: str = "") -> list[dict[str, Any]]:
    """So many closed turns with a call each."""
    entries: list[dict[str, Any]] = []
    parent = None
    for k in range(count):
        ids = [f"{kind}{tag}{k}" for kind in "tuare"]
        entries += [
            entry("turn_start", ids[0], parent, k, turn=k + 1),
            user(ids[1], ids[0], "please " * 20, k),
            assistant(ids[2], ids[1], "so " * 50, k, calls=[{"id": f"c{k}", "name": "bash", "arguments": {}}]),
            tool_result(ids[3], ids[2], f"c{k}", "done", k),
            entry("turn_end", ids[4], ids[3], k, turn=k + 1, reason={"kind": "completed"}),
        ]
        parent = ids[4]
    return entries


@pytest.mark.parametrize("number", [2**64 - 1, 2**63, 2**53, 10**9 + 1, -1, 0, "3", None, [], 1e300])
def test_a_turn_number_that_no_turn_can_have_leaves_one_for_the_next(tmp_path: Path, number: object) -> None:
    open_turn = [user("u0", None, "one"), assistant("a0", "u0", "two"), entry("turn_start", "t1", "a0", 3, turn=number)]
    root, _ = place(tmp_path, [*open_turn, user("u1", "t1", "three", 4)])

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as agent:
            state = await agent.request("session/resume", sessionId="s1")
            assert (state["openTurn"], state["nextTurn"]) == (None, 3)
            assert (await agent.request("turn/start", sessionId="s1", content="go"))["turn"] == 3
            found = (await agent.request("session/turns", sessionId="s1"))["turns"]
            assert [turn["turn"] for turn in found] == [1, 2, 3]

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))


def test_long_reads_take_no_thread_from_writes_and_those_nobody_waits_for_never_begin() -> None:
    go_on, ran = threading.Event(), list[int]()

    def work(n: int) -> None:
        ran.append(n)
        assert go_on.wait(20)

    async def story() -> None:
        reads = [asyncio.create_task(reading.set_aside(aside.LONG, work, n)) for n in range(100)]
        while len(ran) < aside.AT_ONCE:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(asyncio.to_thread(lambda: None), 10)
        for read in reads:
            read.cancel()
        await asyncio.wait(reads)
        go_on.set()
        assert await reading.set_aside(aside.LONG, lambda: 7) == 7

    asyncio.run(story())
    assert sorted(ran) == list(range(aside.AT_ONCE))


def test_work_that_began_is_given_up_when_its_caller_is_cancelled() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        try:
            while True:
                aside.go_on()
                time.sleep(0.001)
        finally:
            ended.set()

    async def story() -> None:
        task = asyncio.create_task(reading.set_aside(aside.LONG, work))
        assert await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        assert await asyncio.to_thread(ended.wait, 10)

    asyncio.run(story())


def test_a_transcript_that_nobody_waits_for_is_given_up(tmp_path: Path) -> None:
    session = Session.open(str(write_log(tmp_path / "s.jsonl", turns_of(3), header(**NATIVE))))
    path = tree.path(session.index, session.leaf)
    token = aside.unwanted.set(lambda: True)
    try:
        for format_ in ("markdown", "html", "jsonl"):
            with pytest.raises(aside.Unwanted):
                transcript.transcript(session, path, format_, 1 << 20)
    finally:
        aside.unwanted.reset(token)


def test_the_garbage_collector_rests_during_long_reads_and_works_again_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with aside.uncollected():
        with aside.uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    monkeypatch.setattr(aside, "REST_S", 0.0)
    with aside.uncollected():
        with aside.uncollected():
            pass
        assert gc.isenabled()  # one read after the other must not stop it for ever


@pytest.mark.parametrize("text", ["", "plain", 'é\n"\\\x00😀' * 3, "x" * (3 * aside.SLICE + 1)])
def test_what_is_encoded_aside_is_the_same_json(text: str) -> None:
    items = [{"a": [text, 1, None, True]}, [], text]
    made = {
        "list": aside.packed(list(items)),
        "text": aside.packed_text([text[:3], text[3:]]),
        "none": aside.packed([]),
    }
    assert orjson.loads(orjson.dumps(made)) == {"list": items, "text": text, "none": []}


def test_what_json_has_no_words_for_is_left_to_the_slow_encoder() -> None:
    assert aside.packed([2**70, "\ud800"]) == [2**70, "\ud800"]
    assert aside.packed_text(["a", "\ud800"]) == "a\ud800"


def test_a_read_of_two_logs_at_once_is_no_answer(tmp_path: Path) -> None:
    """The path was that of the old log; its ordinals name other entries of the new one, or none."""
    log = write_log(tmp_path / "s.jsonl", turns_of(3), header(**NATIVE))
    other = Session.open(str(write_log(tmp_path / "t.jsonl", turns_of(1, "z"), header(**NATIVE))))

    @reading.of_one_log
    async def read(session: Session, place: int) -> str:
        path = tree.path(session.index, session.leaf)
        session.become(other.index, "external")
        return session.index.ids[path[place]]

    for at in (0, -1):
        with pytest.raises(Rewritten):
            asyncio.run(read(Session.open(str(log)), at))


def test_reads_of_a_file_that_is_rewritten_all_the_time_are_of_one_log_or_refused(tmp_path: Path) -> None:
    root, path = place(tmp_path, turns_of(600))
    whole = path.read_bytes()
    other = line(header("s1", **NATIVE)) + b"".join(line(item) for item in turns_of(200, "z"))
    kinds: dict[str, int] = {}

    async def story(daemon: Daemon) -> None:
        async with daemon.client() as client:

            async def read(method: str, **params: Any) -> None:
                while time.monotonic() < until:
                    try:
                        await client.request(method, sessionId="s1", **params)
                    except RpcError as exc:
                        kinds[exc.kind] = kinds.get(exc.kind, 0) + 1

            await client.request("session/open", sessionId="s1")
            until = time.monotonic() + 2
            reads = [
                asyncio.create_task(read(method, **params))
                for method, params in (
                    ("session/context", {"format": "openai"}),
                    ("session/turns", {}),
                    ("session/stats", {}),
                    ("session/transcript", {"format": "html"}),
                )
            ]
            while time.monotonic() < until:
                for data in (other, whole, whole[: len(whole) // 3]):
                    fresh = tmp_path / "fresh"
                    fresh.write_bytes(data)
                    os.replace(fresh, path)
                    await asyncio.sleep(0.02)
            await asyncio.gather(*reads)

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))
    assert kinds.keys() <= {"busy", "sessionGone"}


def test_an_agent_of_hundreds_of_sessions_that_hangs_up_leaves_no_turn_open(tmp_path: Path) -> None:
    async def story(daemon: Daemon) -> None:
        agent = await daemon.client("agent")
        made = [agent.request("session/create", cwd="/tmp") for _ in range(200)]
        ids = [state["sessionId"] for state in await asyncio.gather(*made)]
        await asyncio.gather(*(agent.request("session/resume", sessionId=id_) for id_ in ids))
        await asyncio.gather(*(agent.request("turn/start", sessionId=id_, content="go") for id_ in ids))
        await agent.close()
        async with daemon.client() as client:
            for id_ in ids:

                async def closed(id_: str = id_) -> bool:
                    state = await client.request("session/open", sessionId=id_)
                    return state["openTurn"] is None and state["live"] is None and state["tail"] == "interrupted"

                await eventually(closed)

    with Daemon(tmp_path / "home") as daemon:
        asyncio.run(story(daemon))


def test_a_full_disk_in_the_middle_of_a_turn_costs_no_line_and_the_turn_is_closed_when_there_is_room(
    tmp_path: Path,
) -> None:
    async def story(daemon: Daemon) -> None:
        assert daemon.process is not None
        pid = daemon.process.pid
        async with daemon.client("agent") as agent, daemon.client("other") as other:
            state = await agent.request("session/create", cwd="/tmp")
            session, path = state["sessionId"], Path(state["path"])
            await agent.request("session/resume", sessionId=session)
            await agent.request("turn/start", sessionId=session, content="go")
            call = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {}}
            answer = {"type": "message", "message": {"role": "assistant", "content": [call]}}
            await agent.request("session/append", sessionId=session, entries=[answer])
            before = path.read_bytes()
            hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (len(before) + 100, hard))
            reason = {"kind": "aborted"}
            with pytest.raises(RpcError, match="no space") as full:
                await agent.request("turn/end", sessionId=session, turn=1, reason=reason)
            assert full.value.kind == "storageFull"
            with pytest.raises(RpcError) as refused:
                await other.request("session/resume", sessionId=session, takeover=True)
            assert refused.value.kind == "persistenceUnavailable"
            assert (await other.request("session/open", sessionId=session))["live"]["client"] == "agent"
            assert path.read_bytes() == before
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
            await agent.request("turn/end", sessionId=session, turn=1, reason=reason)
            lines = [json.loads(item) for item in path.read_bytes().splitlines()]
            assert [item["type"] for item in lines[-2:]] == ["message", "turn_end"]

    with Daemon(tmp_path / "home") as daemon:
        asyncio.run(story(daemon))


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", ">&- 2>&- <&-"])
def test_a_command_whose_streams_were_closed_ends_well(tmp_path: Path, closed: str) -> None:
    """The next file that is opened would get their number, and what is printed."""
    for command in ("--version", "socket-path"):
        done = subprocess.run(
            ["sh", "-c", f'exec "$0" -m dsh_daemon {command} {closed}', sys.executable],
            env=environment(tmp_path), capture_output=True, timeout=30, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")


def test_what_an_agent_says_too_late_does_not_get_into_the_turn_of_the_next(tmp_path: Path) -> None:
    """A035: the one that was taken over may not have heard of it yet; it stays a follower and may still label."""
    root, path = place(tmp_path, [user("u1", None, "one"), assistant("a1", "u1", "two")])
    late = {"type": "message", "message": {"role": "toolResult", "toolCallId": "c", "content": "late"}}

    async def story(daemon: Daemon) -> None:
        async with daemon.client("old") as old, daemon.client("new") as new:
            await old.request("session/resume", sessionId="s1")
            await old.request("turn/start", sessionId="s1", content="go")
            await new.request("session/resume", sessionId="s1", takeover=True)
            turn = (await new.request("turn/start", sessionId="s1", content="go on"))["turn"]
            before = path.read_bytes()
            for entry_ in (late, {"type": "tool_call", "callId": "c", "name": "bash"}):
                with pytest.raises(RpcError) as refused:
                    await old.request("session/append", sessionId="s1", entries=[entry_])
                assert (refused.value.kind, refused.value.data["holder"]["client"]) == ("notTheAgent", "new")
            assert path.read_bytes() == before
            await old.request("session/label", sessionId="s1", entryId="a1", label="here")
            await new.request("turn/end", sessionId="s1", turn=turn, reason={"kind": "completed"})
            await old.request("session/append", sessionId="s1", entries=[late])

    with Daemon(tmp_path / "home", root) as daemon:
        asyncio.run(story(daemon))
