"""A daemon that goes on with sessions of a dsh home: driven by agents of ours, forked, branched, named, mended."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dsh_daemon.client import Client

from .dsh_logs import ANSWERED_BY, Log, dump, frame, story, text
from .running import Daemon, Follower, eventually
from .test_dsh_daemon import refused
from .wire import in_loop

CONFIG = {"provider": "deepseek-official", "model": "deepseek-v4-flash"}


class Home:
    """A dsh home, with a daemon that looks into its sessions."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.cwd = tmp_path / "dsh" / "sessions", tmp_path / "project"
        self.cwd.mkdir()
        self.root.mkdir(parents=True)
        self.daemon = Daemon(tmp_path / "home", f"dsh={self.root}")

    def talk(self, *turns: tuple[str, str], name: str = "session-a") -> Log:
        log = Log(name, cwd=str(self.cwd))
        for words, answer in turns:
            log.talk(words, answer)
        return log


class Agent:
    """A client with one session, whose turns it runs."""

    def __init__(self, client: Client, session: str = "session-a") -> None:
        self.client, self.session = client, session
        self.lost: list[dict[str, Any]] = []
        client.on("agent/lost", self.lost.append)

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.client.request(method, sessionId=self.session, **params)

    async def refusal(self, method: str, **params: Any) -> dict[str, Any]:
        return (await refused(self.ask(method, **params))).data

    async def calls(self, words: str = "go on") -> dict[str, int]:
        """Begin a turn whose first step has called a tool and waits for it; the numbers of both."""
        turn = (await self.ask("turn/start", content=words))["turn"]
        step = (await self.ask("step/start", turn=turn, header={"config": CONFIG}))["step"]
        where = {"turn": turn, "step": step}
        call = {"type": "tool-call", "id": "call_1", "name": "bash", "arguments": "{}"}
        started = {"type": "tool/call", "data": {**where, "callId": "call_1", "name": "bash", "arguments": "{}"}}
        await self.ask("session/append", entries=[answered(where, call), started])
        return where

    async def ends(self, where: dict[str, int], words: str = "done so") -> None:
        """Give the call its result, answer, and end the turn."""
        block = {"type": "tool-result", "toolCallId": "call_1", "content": [text("found")], "isError": False}
        message = {"role": "user", "source": {"kind": "tool", "callId": "call_1"}, "content": [block], "id": "r1"}
        entry = {"type": "tool/result", "data": {**where, "message": message}, "surfaceOp": "append"}
        await self.ask("session/append", entries=[entry])
        await self.ask("step/end", **where)
        where = {**where, "step": (await self.ask("step/start", turn=where["turn"]))["step"]}
        await self.ask("session/append", entries=[answered(where, text(words))])
        await self.ask("step/end", **where)
        await self.ask("turn/end", turn=where["turn"], reason={"kind": "completed"})


def answered(where: dict[str, int], *content: dict[str, Any]) -> dict[str, Any]:
    name = f"m-{where['turn']}-{where['step']}"
    message = {"role": "assistant", "content": [*content], "source": ANSWERED_BY, "id": name}
    usage = {"inputTokens": 50, "outputTokens": 5, "cacheReadTokens": 2}
    return {"type": "assistant/message", "data": {**where, "message": message, "usage": usage}, "surfaceOp": "append"}


def records(path: Path | str) -> list[dict[str, Any]]:
    """The lines of a log behind its header, as any program reads them."""
    data = Path(path).read_bytes()
    if str(path).endswith(".zstd"):
        reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
        data = reader.read()
    return [json.loads(line) for line in data.splitlines()[1:]]


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.parametrize("zstd", [True, False])
@in_loop
async def test_a_turn_of_our_agent_goes_into_the_log_as_events_of_dsh(home: Home, zstd: bool) -> None:
    log = home.talk(("one", "first answer"), ("two", "second answer"))
    path = log.write(home.root, zstd=zstd)
    source = path.read_bytes()
    with home.daemon as daemon:
        async with daemon.client("agent") as client, daemon.client("other") as other:
            agent, reader = Agent(client), Agent(other)
            follower = Follower(other, "session-a")
            await follower.open()
            state = await agent.ask("session/resume")
            assert (state["repaired"], state["nextTurn"], state["live"]["client"]) == ([], 3, "agent")
            assert path.read_bytes() == source
            assert (await agent.ask("session/resume"))["repaired"] == []
            where = await agent.calls()
            assert where == {"turn": 3, "step": 1}
            state = await reader.ask("session/open")
            assert (state["openTurn"]["turn"], state["live"]["status"]) == (3, "running")
            running = (await reader.ask("session/turns"))["turns"][-1]
            assert (running["turn"], running["reason"], running["endId"]) == (3, None, None)
            context = await reader.ask("session/context")
            assert context["messages"][-1]["content"][0]["type"] == "tool-call"  # nothing is made up for it
            assert (await agent.refusal("turn/start", content="x"))["kind"] == "turnOpen"
            assert (await agent.refusal("step/start", turn=3))["kind"] == "stepOpen"
            assert (await agent.refusal("turn/end", turn=3, reason={"kind": "completed"}))["kind"] == "stepOpen"
            assert (await reader.refusal("turn/end", turn=3, reason={"kind": "aborted"}))["kind"] == "notTheAgent"
            await agent.ends(where)
            assert (await agent.refusal("turn/end", turn=3, reason={"kind": "aborted"}))["kind"] == "noOpenTurn"
            moved = {"entries": [{"type": "x", "data": {}, "ignorable": True}], "parentId": "0"}
            assert (await agent.refusal("session/append", **moved))["instead"] == "session/fork"
            assert (await agent.refusal("session/append", **moved | {"expectedLeafId": "0"}))["kind"] == "leafMoved"
            made = await agent.ask("turn/start", content=[text("four")])
            assert made["turn"] == 4
            await agent.ask("turn/end", turn=4, reason={"kind": "error", "message": "no more"})
            await eventually(lambda: follower.leaf == str(len(records_of(path)) - 1))
            assert follower.gaps == 0
            (entry,) = (await reader.ask("session/entries", ids=[made["entryId"]]))["entries"]
            assert (entry["type"], entry["data"]["content"]) == ("user/message", [text("four")])
            request = await reader.ask("session/request", turn=3, step=2)
            assert request["header"]["config"] == CONFIG
            assert request["messages"][-1]["content"][0]["content"] == [text("found")]
            listed = (await reader.ask("session/turns"))["turns"]
            ends = [(turn["turn"], turn["reason"]["kind"], turn["text"]) for turn in listed[2:]]
            assert ends == [(3, "completed", "go on"), (4, "error", "four")]
    assert path.read_bytes().startswith(source)
    ours = records_of(path)[len(log.events) :]
    assert [event["seq"] for event in ours] == list(range(len(log.events), len(log.events) + len(ours)))
    assert types(ours) == [
        "session/end-seed", "turn/start", "user/message", "step/start", "request/header", "assistant/message",
        "tool/call", "tool/result", "step/end", "step/start", "assistant/message", "step/end", "turn/end",
        "turn/start", "user/message", "turn/end",
    ]  # fmt: skip


def records_of(path: Path) -> list[dict[str, Any]]:
    """Events of a log, rows of several unpacked."""
    found: list[dict[str, Any]] = []
    for record in records(path):
        count = len(record["data"]["texts"]) if "seq0" in record else 1
        found += [{**record, "seq": record["seq0"] + k} for k in range(count)] if "seq0" in record else [record]
    return found


@in_loop
async def test_an_agent_that_leaves_has_its_turn_closed(home: Home) -> None:
    log = home.talk(("one", "first"))
    path = log.write(home.root)
    with home.daemon as daemon:
        async with daemon.client("stays") as other:
            reader = Agent(other)
            for way in ("hangs up", "releases"):
                async with daemon.client("leaves") as client:
                    agent = Agent(client)
                    await agent.ask("session/resume")
                    await agent.calls()
                    assert (await reader.refusal("session/resume"))["holder"]["client"] == "leaves"
                    if way == "releases":
                        await agent.ask("session/release")
                await eventually(lambda: records(path)[-1]["type"] == "turn/end")
                assert records(path)[-1]["data"]["reason"] == {"kind": "interrupted"}
                result = records(path)[-3]
                assert (result["type"], result["data"]["error"]["code"]) == ("tool/result", "TOOL_OUTCOME_UNKNOWN")
                state = await reader.ask("session/open")
                assert (state["openTurn"], state["live"]) == (None, None)


@in_loop
async def test_who_takes_a_session_over_closes_the_turn_that_was_open(home: Home) -> None:
    path = home.talk(("one", "first")).write(home.root)
    with home.daemon as daemon:
        async with daemon.client("first") as one, daemon.client("second") as two:
            first, second = Agent(one), Agent(two)
            await first.ask("session/resume")
            where = await first.calls()
            assert (await second.refusal("session/resume"))["kind"] == "agentBusy"
            state = await second.ask("session/resume", takeover=True)
            assert [item["kind"] for item in state["repaired"]] == ["toolResult", "stepEnd", "turnEnd"]
            assert state["repaired"][0]["callId"] == "call_1"
            await eventually(lambda: bool(first.lost))
            assert (await first.refusal("turn/end", turn=2, reason={"kind": "aborted"}))["kind"] == "notTheAgent"
            late = [answered(where, text("too late"))]
            assert (await first.refusal("session/append", entries=late))["kind"] == "notTheAgent"
            await second.ends(await second.calls())
    assert types(records(path)).count("turn/start") == types(records(path)).count("turn/end") == 3
    assert where["turn"] == 2


@in_loop
async def test_a_session_that_a_running_dsh_may_have_is_taken_only_with_takeover(home: Home) -> None:
    log = home.talk(("one", "first"))
    path = log.write(home.root)
    source = path.read_bytes()
    with subprocess.Popen(
        ["dsh", "-c", "import sys; sys.stdin.read()"], executable=sys.executable, cwd=home.cwd, stdin=subprocess.PIPE
    ) as dsh:
        with home.daemon as daemon:
            async with daemon.client("agent") as client:
                agent = Agent(client)
                refusal = await agent.refusal("session/resume")
                assert (refusal["kind"], refusal["holder"]) == ("agentBusy", {"client": "dsh", "pid": dsh.pid})
                (info,) = (await client.request("session/list"))["items"]
                assert (info["live"]["client"], info["live"]["certain"]) == ("dsh", False)
                assert path.read_bytes() == source
                assert (await agent.ask("session/fork"))["outcome"] == "forked"
                state = await agent.ask("session/resume", takeover=True)
                assert state["live"]["client"] == "agent"
        dsh.communicate()


@in_loop
async def test_an_event_that_dsh_would_not_know_stops_its_agents_but_no_reader(home: Home) -> None:
    log = home.talk(("one", "first"))
    log.add("future/thing", {"x": 1})
    end = log.talk("two", "second")
    path = log.write(home.root)
    source = path.read_bytes()
    with home.daemon as daemon:
        async with daemon.client("agent") as client:
            agent = Agent(client)
            refusal = await agent.refusal("session/resume")
            assert (refusal["kind"], refusal["eventType"]) == ("notSupportedByFormat", "future/thing")
            assert (await agent.ask("session/open"))["live"] is None
            assert (await agent.refusal("session/fork", boundary=str(end)))["eventType"] == "future/thing"
            before = str(next(event["seq"] for event in log.events if event["type"] == "turn/end"))
            made = await agent.ask("session/fork", boundary=before)
            assert made["boundary"] == before
            assert (await agent.ask("session/tree"))["rows"][-1]["text"] == "second"
            assert path.read_bytes() == source


@pytest.mark.parametrize("damage", ["torn", "gap", "flipped"])
@in_loop
async def test_a_damaged_log_is_gone_on_with_when_it_is_mended(home: Home, damage: str) -> None:
    log = home.talk(("one", "first"), ("two", "second"), ("three", "third"))
    if damage == "gap":
        del log.events[-9]
    path = log.write(home.root)
    data = path.read_bytes()
    if damage == "torn":
        path.write_bytes(data[:-5])
    elif damage == "flipped":
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 0xFF]) + data[-8:])
    broken = path.read_bytes()
    with home.daemon as daemon:
        async with daemon.client("agent") as client:
            agent = Agent(client)
            assert (await agent.refusal("session/resume"))["kind"] == "damagedRegion"
            assert path.read_bytes() == broken
            fixed = (await client.request("daemon/doctor", fix=True))["fixed"]
            assert [each["path"] for each in fixed] == [str(path)]
            assert broken in [other.read_bytes() for other in home.root.parent.parent.rglob("*") if other.is_file()]
            await eventually(lambda: is_ours(agent))
            await agent.ends(await agent.calls())
            assert (await agent.ask("session/open"))["diagnostics"] == []
    assert [event["seq"] for event in records_of(path)] == list(range(len(records_of(path))))


async def is_ours(agent: Agent) -> bool:
    await agent.ask("session/resume")
    return True


@in_loop
async def test_a_fork_of_a_dsh_session_is_made_once_and_takes_its_labels_along(home: Home) -> None:
    log = home.talk(("one", "the first answer"), ("two", "the second answer"))
    first, second = (event["seq"] for event in log.events if event["type"] == "turn/end")
    said = [event["seq"] for event in log.events if event["type"] == "user/message"]
    path = log.write(home.root)
    source = path.read_bytes()
    with home.daemon as daemon:
        async with daemon.client() as client:
            agent = Agent(client)
            for entry, label in ((said[0], "begin"), (said[1], "later")):
                await agent.ask("session/label", entryId=str(entry), label=label)
            wanted = {"boundary": str(first), "childSessionId": "child"}
            made = await agent.ask("session/fork", **wanted)
            again = await agent.ask("session/fork", **wanted)
            facts = ("outcome", "seedLength", "boundary")
            assert [made[name] for name in facts] == ["forked", first + 1, str(first)]
            assert [again[name] for name in facts] == [made[name] for name in facts]
            assert again["session"]["path"] == made["session"]["path"]
            assert (made["session"]["parentSessionId"], made["session"]["forkPoint"]) == ("session-a", str(first))
            taken = {"boundary": str(second), "childSessionId": "child"}
            assert (await agent.refusal("session/fork", **taken))["kind"] == "alreadyExists"
            inside = await agent.refusal("session/fork", boundary=str(said[1]))
            assert (inside["kind"], inside["turn"], inside["nearestClosed"]) == ("boundaryInTurn", 2, str(first))
            inside = await agent.refusal("session/fork", boundary=str(said[0]))
            assert (inside["turn"], inside["nearestClosed"]) == (1, None)
            labels = (await client.request("session/labels", sessionId="child"))["items"]
            assert [(item["entryId"], item["label"]) for item in labels] == [(str(said[0]), "begin")]
            family = await client.request("session/family", sessionId="child")
            assert (family["root"], family["ancestors"]) == ("session-a", ["session-a"])
            child = Agent(client, "child")
            await child.ask("session/resume")
            await child.ends(await child.calls("elsewhere"), "another way")
            tree = await child.ask("session/tree", family=True)
            shown = {row["text"]: row for row in tree["rows"]}
            assert shown["two"]["parentId"] == shown["elsewhere"]["parentId"] == shown["the first answer"]["id"]
            whole = await agent.ask("session/fork")
            assert (whole["seedLength"], whole["boundary"]) == (second + 1, str(second))
    assert path.read_bytes() == source
    assert records(made["session"]["path"])[: len(records(path)) // 2] == records(path)[: len(records(path)) // 2]


@in_loop
async def test_a_fork_while_a_turn_is_open_is_refused_at_its_end_only(home: Home) -> None:
    log = home.talk(("one", "first"))
    end = str(len(log.events) - 1)
    log.prompt("two")
    log.write(home.root)
    with home.daemon as daemon:
        async with daemon.client() as client:
            agent = Agent(client)
            refusal = await agent.refusal("session/fork")
            assert (refusal["kind"], refusal["turn"], refusal["nearestClosed"]) == ("boundaryInTurn", 2, end)
            refusal = await agent.refusal("session/branch", position="at")
            assert (refusal["kind"], refusal["nearestClosed"]) == ("boundaryInTurn", end)
            assert (await agent.ask("session/fork", boundary=end))["boundary"] == end


@in_loop
async def test_a_branch_before_a_prompt_is_a_fork_at_the_turn_above_it(home: Home) -> None:
    log = home.talk(("one", "first"), ("two", "second"), ("three", "third"))
    ends = [event["seq"] for event in log.events if event["type"] == "turn/end"]
    said = [event["seq"] for event in log.events if event["type"] == "user/message"]
    answer = next(event["seq"] for event in log.events if event["type"] == "assistant/message")
    log.write(home.root)
    with home.daemon as daemon:
        async with daemon.client() as client:
            agent = Agent(client)
            made = await agent.ask("session/branch", entryId=str(said[1]), childSessionId="child")
            assert (made["outcome"], made["editorText"], made["previousSessionId"]) == ("branched", "two", "session-a")
            assert (made["session"]["sessionId"], made["session"]["forkPoint"]) == ("child", str(ends[0]))
            assert made["path"] == made["session"]["path"]
            again = await agent.ask("session/branch", entryId=str(said[1]), childSessionId="child")
            assert again["path"] == made["path"]
            other = await agent.refusal("session/branch", entryId=str(said[2]), childSessionId="child")
            assert other["kind"] == "alreadyExists"
            state = await client.request("session/open", sessionId="child")
            assert (state["nextTurn"], state["openTurn"]) == (2, None)
            first = await agent.ask("session/branch", entryId=str(said[0]))
            assert first["editorText"] == "one"
            assert types(records(first["path"])) == ["session/end-seed"]
            at = await agent.ask("session/branch", entryId=str(ends[1]), position="at")
            assert (at["session"]["forkPoint"], "editorText" in at) == (str(ends[1]), False)
            assert (await agent.refusal("session/branch", entryId=str(answer)))["kind"] == "notAUserMessage"


@in_loop
async def test_a_name_goes_into_the_log_by_its_agent_and_beside_it_by_others(home: Home) -> None:
    path = home.talk(("one", "first")).write(home.root)
    with home.daemon as daemon:
        async with daemon.client("agent") as client, daemon.client("other") as other:
            agent, reader = Agent(client), Agent(other)

            async def title() -> str:
                return (await reader.ask("session/open"))["title"]

            assert (await reader.ask("session/rename", title="By another"))["stored"] == "state"
            await agent.ask("session/resume")
            named = await agent.ask("session/rename", title="  By its\nagent ")
            assert named["stored"] == "log"
            assert named["revision"] == (await reader.ask("session/open"))["revision"]
            assert await title() == "By its agent"
            assert records(path)[-1]["data"]["title"] == "By its agent"
            assert (await reader.ask("session/rename", title="Mine"))["stored"] == "state"
            assert await title() == "Mine"
            assert (await agent.ask("session/rename", title=None))["stored"] == "state"
            assert await title() == "By its agent"
    assert types(records(path)).count("session/title") == 1


@in_loop
async def test_what_a_dsh_session_took_is_counted_without_what_it_inherited(home: Home) -> None:
    """A152: no token is counted twice in a family."""
    log = home.talk(("one", "first"))
    end = log.tool_turn("two", "ls", "second")
    log.add("compaction/summary", {"summary": [], "usage": {"inputTokens": 9, "outputTokens": 1}, **CONFIG})
    log.write(home.root)
    child = log.fork("child", end)
    child.talk("three", "third")
    child.write(home.root)
    with home.daemon as daemon:
        async with daemon.client() as client:
            source = await client.request("session/stats", sessionId="session-a")
            assert source["tokens"] == {"input": 309, "output": 22, "cacheRead": 9, "cacheWrite": 0}
            assert (source["turns"], source["messages"]) == (2, 6)
            assert list(source["models"]) == ["deepseek-official/deepseek-v4-flash"]
            fork = await client.request("session/stats", sessionId="child")
            assert fork["tokens"] == {"input": 100, "output": 7, "cacheRead": 3, "cacheWrite": 0}
            assert fork["inherited"]["tokens"] == {"input": 300, "output": 21, "cacheRead": 9, "cacheWrite": 0}
            assert fork["activePath"]["tokens"]["input"] == 400
            assert (fork["turns"], fork["messages"], fork["inherited"]["turns"]) == (1, 2, 2)


@in_loop
async def test_turns_and_transcript_of_a_dsh_session_tell_its_story(home: Home) -> None:
    log = story()
    log.write(home.root)
    with home.daemon as daemon:
        async with daemon.client() as client:
            reader = Agent(client)
            listed = await reader.ask("session/turns")
            found = [(turn["turn"], turn["reason"]["kind"], turn["steps"]) for turn in listed["turns"]]
            assert found == [(1, "completed", 1), (2, "completed", 2), (3, "aborted", 1), (4, "completed", 1)]
            assert listed["turns"][0]["text"] == "First thing, naïve 한국어 🙂"
            assert not listed["derived"]
            markdown = (await reader.ask("session/transcript", format="markdown"))["text"]
            for words in ("The real title", "Second thing", "Call of bash", "second answer", "what happened at first"):
                assert words in markdown
            page = (await reader.ask("session/transcript", format="html"))["text"]
            assert "naïve 한국어 🙂" in page
            lines = (await reader.ask("session/transcript", format="jsonl"))["text"].splitlines()
            assert [json.loads(line) for line in lines] == records(next(home.root.glob("*/session-a/*")))
            refusal = await reader.refusal("session/request", turn=9, step=1)
            assert refusal["kind"] == "notRecorded"


@in_loop
async def test_a_crash_of_dsh_is_closed_by_who_resumes_and_shown_closed_until_then(home: Home) -> None:
    log = home.talk(("one", "first"))
    log.prompt("two")
    log.answer("", [("call_1", "bash", "{}"), ("call_2", "bash", "{}")])
    log.call("call_1", "bash", "{}")
    path = log.write(home.root)
    source = path.read_bytes()
    with home.daemon as daemon:
        async with daemon.client("agent") as client:
            agent = Agent(client)
            shown = (await agent.ask("session/context"))["messages"]
            assert path.read_bytes() == source
            repaired = (await agent.ask("session/resume"))["repaired"]
            codes = [item.get("code") for item in repaired]
            assert codes == ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED", None, None]
            assert (await agent.ask("session/context"))["messages"] == shown
    assert path.read_bytes().startswith(source)
    assert types(records(path))[-2:] == ["turn/end", "session/end-seed"]


@in_loop
async def test_two_programs_that_write_are_told_apart(home: Home) -> None:
    """What dsh adds although we have the session: the agent goes on behind it, and numbers stay dense."""
    log = home.talk(("one", "first"))
    path = log.write(home.root)
    with home.daemon as daemon:
        async with daemon.client("agent") as client:
            agent = Agent(client)
            await agent.ask("session/resume")
            known = len(log.events)
            log.title("meanwhile")
            with path.open("ab") as file:
                file.write(frame(b"".join(dump(event) for event in log.events[known:])))
            await asyncio.sleep(0)
            await agent.ends(await agent.calls())
    assert [event["seq"] for event in records_of(path)] == list(range(len(records_of(path))))
