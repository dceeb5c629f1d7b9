"""A daemon on the sessions of a dsh home: listed, opened, followed while dsh writes; none of that writes."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from dsh_daemon.client import Client, RpcError

from .dsh_logs import START, Log, dump, frame, story
from .running import Daemon, Follower, eventually

Story = Callable[[Client], Awaitable[None]]


class Home:
    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "dsh" / "sessions"
        self.root.mkdir(parents=True)
        self.daemon = Daemon(tmp_path / "home", f"dsh={self.root}")

    def play(self, *stories: Story, mends: bool = False) -> None:
        async def tell() -> None:
            for one in stories:
                async with self.daemon.client("teller") as client:
                    await one(client)

        before = self.files()
        with self.daemon:
            asyncio.run(tell())
        after = self.files()
        assert set(before.values()) <= set(after.values())
        assert mends or before.items() <= after.items()

    def files(self) -> dict[str, str]:
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.root.rglob("*") if path.is_file() and "grows" not in str(path)
        }  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


async def refused(call: Awaitable[Any]) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("zstd", [True, False])
def test_a_dsh_session_is_listed_and_read_like_any_other(home: Home, zstd: bool) -> None:
    log = story()
    log.write(home.root, zstd=zstd)

    async def reads(client: Client) -> None:
        ask = client.request
        listed = await ask("session/list")
        (info,) = listed["items"]
        assert (info["sessionId"], info["format"], info["version"]) == ("session-a", "dsh", 0)
        assert (info["title"], info["titleSource"], info["tail"], info["health"]) == (
            "The real title",
            "user",
            "done",
            "ok",
        )
        can = {name for name, on in info["can"].items() if on}
        assert can == {"label", "rename", "branch", "fork", "resume", "launch"}
        state = await ask("session/open", sessionId="session-a")
        assert state["diagnostics"] == []
        assert (state["nextTurn"], state["thinkingLevel"], state["openTurn"]) == (5, "high", None)
        assert state["leafId"] == str(len(log.events) - 1)
        assert state["model"] == "deepseek-v4-flash"
        spoken = [e for e in log.events if e["type"] in {"user/message", "assistant/message", "tool/result"}]
        assert state["messageCount"] == len(spoken)
        tree = await ask("session/tree", sessionId="session-a")
        assert tree["rows"][0]["text"] == "First thing, naïve 한국어 🙂"
        taken = [row["text"] for row in tree["rows"] if "shadowed" in row.get("flags", [])]
        assert taken[-1] == "[compaction] what happened at first"
        found = await ask("session/tree", sessionId="session-a", query="second")
        assert [row["text"] for row in found["rows"]] == ["Second thing", "second answer"]
        (entry,) = (await ask("session/entries", sessionId="session-a", ids=["4"]))["entries"]
        assert entry == {**log.events[4], "id": "4", "parentId": "3", "timestamp": "2026-11-30T10:12:32.004Z"}
        row = next(e["seq"] for e in log.events if e["type"] == "assistant/chunk" and "text" in e["data"]["chunk"])
        wanted = [str(row + 1), "4", "x", str(row)]
        answer = await ask("session/entries", sessionId="session-a", ids=wanted)
        assert ([entry["id"] for entry in answer["entries"]], answer["missing"]) == ([wanted[0], "4", str(row)], ["x"])
        assert answer["entries"][0].items() >= log.events[row + 1].items()
        context = await ask("session/context", sessionId="session-a")
        assert context["messages"][-1] == log.events[int(context["sources"][-1][0])]["data"]["message"]
        request = await ask("session/request", sessionId="session-a", turn=1, step=1)
        assert request["header"]["system"] == "You help."
        assert [message["role"] for message in request["messages"]] == ["user", "user"]
        path = await ask("session/path", sessionId="session-a", entryId="3")
        assert path["ids"] == ["0", "1", "2", "3"]
        leaves = await ask("session/leaves", sessionId="session-a")
        assert [item["entryId"] for item in leaves["items"]] == [state["leafId"]]

    home.play(reads)


def test_going_back_is_refused_and_says_where_a_fork_begins(home: Home) -> None:
    log = Log()
    one = log.talk("one", "first")
    two = log.prompt("two")
    log.answer("second")
    log.end()
    log.write(home.root)

    async def asks(client: Client) -> None:
        call = client.request("session/navigate", sessionId="session-a", targetId=str(two))
        fault = await refused(call)
        assert fault.data["kind"] == "notSupportedByFormat"
        assert (fault.data["instead"], fault.data["boundary"]) == ("session/fork", str(one))
        fault = await refused(client.request("session/moveLeaf", sessionId="session-a", entryId=str(one)))
        assert (fault.data["kind"], fault.data["boundary"]) == ("notSupportedByFormat", str(one))
        fault = await refused(client.request("session/navigate", sessionId="session-a", targetId=None))
        assert fault.data["boundary"] is None
        leaf = (await client.request("session/open", sessionId="session-a"))["leafId"]
        here = await client.request("session/navigate", sessionId="session-a", targetId=leaf)
        assert here["outcome"] == "unchanged"
        entry = {"type": "custom", "customType": "x"}
        fault = await refused(client.request("session/append", sessionId="session-a", entries=[entry]))
        assert (fault.data["kind"], fault.data["holder"]) == ("notTheAgent", None)

    home.play(asks)


def test_labels_and_titles_are_kept_beside_the_log_and_outlive_the_daemon(home: Home) -> None:
    log = Log()
    said = log.prompt("one")
    log.answer("first")
    log.end()
    log.title("From the log")
    log.write(home.root)

    async def sets(client: Client) -> None:
        ask = client.request
        follower = Follower(client, "session-a")
        await follower.open()
        before = await ask("session/open", sessionId="session-a")
        answer = await ask("session/label", sessionId="session-a", entryId=str(said), label=" plan  a ")
        assert (answer["stored"], answer["leafId"]) == ("state", before["leafId"])
        assert answer["revision"] == before["revision"] + 1
        again = await ask("session/label", sessionId="session-a", entryId=str(said), label="plan a")
        assert again["revision"] == answer["revision"]
        tree = await ask("session/tree", sessionId="session-a")
        assert tree["rows"][0]["label"] == "plan a"
        assert tree["rows"][0]["labelAt"] > "2026"
        (labeled,) = (await ask("session/labels", sessionId="session-a"))["items"]
        assert (labeled["entryId"], labeled["label"]) == (str(said), "plan a")
        assert (await ask("session/tree", sessionId="session-a", filter="labeled-only"))["total"] == 1
        named = await ask("session/rename", sessionId="session-a", title="My name")
        assert named["stored"] == "state"
        assert named["revision"] == again["revision"] + 1
        assert (await ask("session/list"))["items"][0]["title"] == "My name"
        fault = await refused(ask("session/label", sessionId="session-a", entryId="999", label="x"))
        assert fault.data["kind"] == "entryNotFound"

    async def finds(client: Client) -> None:
        ask = client.request
        assert (await ask("session/list"))["items"][0]["title"] == "My name"
        tree = await ask("session/tree", sessionId="session-a")
        assert tree["rows"][0]["label"] == "plan a"
        await ask("session/label", sessionId="session-a", entryId=str(said), label=None)
        assert "label" not in (await ask("session/tree", sessionId="session-a"))["rows"][0]
        await ask("session/rename", sessionId="session-a", title=None)
        assert (await ask("session/list"))["items"][0]["title"] == "From the log"

    home.play(sets)
    home.play(finds)


@pytest.mark.parametrize("zstd", [True, False])
def test_what_a_running_dsh_appends_is_pushed(home: Home, zstd: bool) -> None:
    log = Log("grows")
    log.talk("one", "first")
    path = log.write(home.root, zstd=zstd, packed=False)

    async def follows(client: Client) -> None:
        follower = Follower(client, "grows")
        await follower.open()
        epoch = follower.epoch
        for turn in range(5):
            before = len(log.events)
            log.talk(f"more {turn}", "and more")
            data = b"".join(log.lines()[before:])
            data = frame(data) if zstd else data
            with open(path, "ab") as file:
                for part in (data[: len(data) // 3], data[len(data) // 3 :]):  # seen in the middle of a write, too
                    file.write(part)
                    file.flush()
                    await asyncio.sleep(0.05)
            await eventually(lambda: follower.leaf == str(len(log.events) - 1))
            state = await client.request("session/open", sessionId="grows")
            assert (state["leafId"], state["epoch"]) == (follower.leaf, epoch)
        assert follower.gaps == 0
        assert list(follower.entries) == [str(n) for n in range(len(log.events))]

    home.play(follows)


def test_a_family_hangs_at_the_turns_where_its_forks_left(home: Home) -> None:
    log = Log()
    end = log.talk("one", "first")
    log.talk("two", "parent's")
    log.write(home.root)
    child = log.fork("session-b", end)
    child.talk("two", "fork's")
    child.write(home.root)
    helper = Log("0-helper", parentSession="session-a", origin="subagent", delegationDepth=1)
    helper.talk("help", "helped")
    helper.write(home.root)

    async def reads(client: Client) -> None:
        ask = client.request
        listed = (await ask("session/list"))["items"]
        assert {info["sessionId"] for info in listed} == {"session-a", "session-b"}
        every = (await ask("session/list", subagents=True))["items"]
        assert [info["sessionId"] for info in every if info.get("origin") == "subagent"] == ["0-helper"]
        state = await ask("session/open", sessionId="session-b")
        assert (state["parentSessionId"], state["forkPoint"]) == ("session-a", str(end))
        family = await ask("session/family", sessionId="session-b")
        assert (family["root"], family["ancestors"]) == ("session-a", ["session-a"])
        tree = await ask("session/tree", sessionId="session-b", family=True)
        shown = {row["text"]: row for row in tree["rows"]}
        assert shown["fork's"]["active"]
        assert shown["parent's"]["sessionId"] == "session-a"
        twos = [row["parentId"] for row in tree["rows"] if row["text"] == "two"]
        assert twos == [shown["first"]["id"]] * 2

    home.play(reads)


def test_damage_is_shown_beside_what_can_be_read(home: Home) -> None:
    """A146, A151, A153: no log hides another one."""
    good = Log("session-good")
    good.talk("one", "first")
    good.write(home.root)
    early = Log("session-early")
    early.talk("one", "first")
    path = early.write(home.root)
    path.write_bytes(frame(early.plain()))
    gap = Log("session-gap")
    gap.talk("one", "first")
    del gap.events[2]
    gap.write(home.root)
    both = Log("session-both")
    both.talk("one", "first")
    both.write(home.root)
    both.write(home.root, zstd=False)
    folder = home.root / "--tmp-demo-proj--" / "session-lost"
    folder.mkdir()
    lines = good.lines()
    (folder / "session.jsonl.zstd").write_bytes(frame(dump(good.header))[:-3] + frame(b"".join(lines)))
    (home.root / "--tmp-demo-proj--" / "session-junk").mkdir()
    (home.root / "--tmp-demo-proj--" / "session-junk" / "session.jsonl.zstd").write_bytes(os.urandom(3_000))

    async def reads(client: Client) -> None:
        ask = client.request
        listed = await ask("session/list")
        assert [os.path.basename(os.path.dirname(s["path"])) for s in listed["skipped"]] == ["session-junk"]
        names = sorted(info["sessionId"].partition("@")[0] for info in listed["items"])
        assert names == ["session-both", "session-both", "session-early", "session-gap", "session-good", "session-lost"]
        expected = {
            "session-good": set(), "session-early": {"header_frame_contract"}, "session-gap": {"seq_gap"},
            "session-both": {"mixed_encodings"}, "session-lost": {"damaged_frame", "no_header"},
        }  # fmt: skip
        for info in listed["items"]:
            state = await ask("session/open", sessionId=info["sessionId"])
            assert {d["code"] for d in state["diagnostics"]} == expected[info["sessionId"].partition("@")[0]]
            tree = await ask("session/tree", sessionId=info["sessionId"])
            assert tree["rows"][-1]["text"] == "first"
        health = {i["sessionId"]: i["health"] for i in (await ask("session/list"))["items"]}
        assert (health["session-good"], health["session-gap"]) == ("ok", "damaged")
        problems = (await ask("daemon/doctor"))["problems"]
        assert "mixed_encodings" in {p["code"] for p in problems if p["path"] == str(home.root)}
        fixed = await ask("daemon/doctor", fix=True)
        mended = {os.path.basename(os.path.dirname(each["path"])): each["code"] for each in fixed["fixed"]}
        assert mended == {"session-early": "header_frame_contract", "session-gap": "seq_gap"}

    home.play(reads, mends=True)


def test_a_long_log_takes_little_room_in_the_daemon(home: Home) -> None:
    """A152: a log of 200 MB of text."""
    log = Log()
    log.talk("one", "first")
    folder = home.root / "--tmp-demo-proj--" / "session-a"
    folder.mkdir(parents=True)
    with open(folder / "session.jsonl.zstd", "wb") as file:
        file.write(log.zstd())
        seq = len(log.events)
        for _ in range(1_000):
            batch: list[bytes] = []
            for _ in range(10):
                data = {"todos": [{"content": f"{seq} " + "word " * 4_000}]}
                batch.append(dump({"type": "todo/write", "seq": seq, "time": START + seq, "data": data}))
                seq += 1
            file.write(frame(b"".join(batch)))
        log.events = [{}] * seq
        log.talk("two", "the end")
        file.write(frame(b"".join(dump(event) for event in log.events[seq:])))

    async def reads(client: Client) -> None:
        assert home.daemon.process is not None
        process = psutil.Process(home.daemon.process.pid)
        before = process.memory_info().rss
        state = await client.request("session/open", sessionId="session-a")
        assert state["entryCount"] == len(log.events)
        tree = await client.request("session/tree", sessionId="session-a", around=state["leafId"], count=50)
        assert tree["rows"][-1]["text"] == "the end"
        every = await client.request("session/tree", sessionId="session-a", filter="all", start=5_000, count=50)
        assert len(every["rows"]) == 50
        context = await client.request("session/context", sessionId="session-a")
        assert len(context["messages"]) == 4
        assert process.memory_info().rss - before < 80 << 20

    home.play(reads)


def test_a_log_that_is_cut_or_written_anew_begins_a_new_epoch(home: Home) -> None:
    log = Log("grows")
    log.talk("one", "first")
    path = log.write(home.root, batch=3)

    async def follows(client: Client) -> None:
        follower = Follower(client, "grows")
        await follower.open()
        epoch = follower.epoch
        whole = path.read_bytes()
        path.write_bytes(whole[:-200])
        await eventually(lambda: follower.epoch != epoch)
        state = await client.request("session/open", sessionId="grows")
        assert state["leafId"] != str(len(log.events) - 1)
        epoch = state["epoch"]
        other = Log("grows")
        other.talk("another", "story, which is longer")
        other.talk("with", "two turns")
        temp = path.with_name("new")
        temp.write_bytes(other.zstd())
        temp.rename(path)
        await eventually(lambda: follower.epoch not in {"", epoch} and follower.leaf == str(len(other.events) - 1))
        tree = await client.request("session/tree", sessionId="grows")
        assert tree["rows"][0]["text"] == "another"

    home.play(follows)


@pytest.mark.parametrize("others", [{}, {"workspace.json": "{", "settings.yaml": "x: 1", ".anonymous-user-id": "u"}])
def test_whatever_else_a_dsh_home_holds_its_sessions_are_found(home: Home, others: dict[str, str]) -> None:
    """A154: with a workspace file, broken as it is, and without one."""
    story().write(home.root, zstd=True)
    for name, text in others.items():
        for folder in (home.root, home.root.parent):
            (folder / name).write_text(text)

    async def reads(client: Client) -> None:
        listed = await client.request("session/list")
        assert [info["sessionId"] for info in listed["items"]] == ["session-a"]
        assert listed["skipped"] == []

    home.play(reads)
