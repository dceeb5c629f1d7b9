"""The stories of a session's life, told by real processes.

Work that was cut off goes on; another way is taken; yesterday's log tells at which step something broke.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.client import Client, RpcError

from .dsh_logs import Log
from .running import PATIENCE, Daemon, Follower, eventually
from .support import assistant, header, tool_result, user, write_log

ROOT = Path(__file__).parents[1]
INTERRUPTED = {"kind": "interrupted"}
Entry = dict[str, Any]


class Agent:
    """A process of `tests/agent.py`: what it prints is what it reached."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid

    async def says(self, *wanted: str) -> str:
        """The first line from now on that begins with one of these."""
        assert self.process.stdout is not None
        while line := (await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)).decode().strip():
            if line.startswith(wanted):
                return line
        raise AssertionError(f"the agent ended before it said {wanted}")

    async def die(self) -> None:
        """End as `kill -9` ends."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


class Stage:
    """A daemon, a session in its own store, and whoever takes part."""

    def __init__(self, daemon: Daemon, client: Client, session: str, path: Path) -> None:
        self.daemon = daemon
        self.client = client  # a person's tool, which follows
        self.session = session
        self.path = path
        self.agents: list[Agent] = []

    async def agent(self, *options: str) -> Agent:
        """Start an agent process and wait until it has the session."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ROOT / "tests/agent.py"), self.daemon.socket, self.session, *options),
            env=self.daemon.env | {"PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
        )
        self.agents.append(Agent(process))
        await self.agents[-1].says("ready")
        return self.agents[-1]

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.client.request(method, sessionId=self.session, **params)

    async def send(self, content: str, **params: Any) -> str:
        return (await self.ask("agent/send", content=content, **params))["messageId"]

    async def state(self) -> dict[str, Any]:
        return await self.ask("session/open", subscribe=False)

    async def restarted(self) -> None:
        """Kill the daemon like a power cut and start another one."""
        self.daemon.kill()
        await self.client.close()
        self.daemon.start()
        self.client = await self.daemon.client("ui")

    async def dshd(self, *args: str, code: int = 0) -> str:
        """Run `dshd`; what it prints."""
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "dsh_daemon", *args],
            env=self.daemon.env | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, (args, done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def entries(self) -> list[Entry]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()][1:]

    def of_type(self, *types: str) -> list[Entry]:
        return [entry for entry in self.entries() if entry["type"] in types]


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    with Daemon(folder / "home") as daemon:
        client = await daemon.client("ui")
        made = await client.request("session/create", cwd=str(folder), title="Migrate to Vue 3")
        found = Stage(daemon, client, made["sessionId"], Path(made["path"]))
        try:
            yield found
        finally:
            for agent in found.agents:
                await agent.die()
            await found.client.close()


def play(folder: Path, story: Callable[[Stage], Awaitable[None]]) -> None:
    async def told() -> None:
        async with stage(folder) as at:
            await story(at)

    asyncio.run(told())


async def refused(work: Awaitable[Any]) -> RpcError:
    with pytest.raises(RpcError) as raised:
        await work
    return raised.value


async def released(at: Stage) -> None:
    async def nobody() -> bool:
        return (await at.state())["live"] is None

    await eventually(nobody)


async def cut_off(at: Stage, where: str) -> Agent:
    """An agent that did two turns and stands in the third, in the middle of a tool call."""
    agent = await at.agent()
    for content in ("read edit", "edit", f"read {where}"):
        await at.send(content)
    await agent.says(where)
    return agent


# --- the first story: the machine restarts in the middle of the work


def test_an_agent_that_is_killed_in_a_tool_call_leaves_a_closed_turn(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        agent = await cut_off(at, "stuck")
        assert (await at.state())["openTurn"]["turn"] == 3
        await agent.die()
        await released(at)
        result, step_end, turn_end = at.entries()[-3:]
        assert result["message"]["details"] == {"code": "TOOL_OUTCOME_UNKNOWN"}
        assert (step_end["type"], step_end["outcome"]) == ("step_end", "aborted")
        assert (turn_end["turn"], turn_end["reason"]) == (3, INTERRUPTED)
        state = await at.state()
        assert (state["live"], state["nextTurn"], state["tail"]) == (None, 4, "interrupted")

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("where", "code", "advice"),
    [("stuck", "TOOL_OUTCOME_UNKNOWN", "look at what"), ("unstarted", "TOOL_NOT_STARTED", "call it again if")],
)
def test_after_a_restart_resume_closes_what_was_cut_off_and_the_next_turn_has_the_next_number(
    tmp_path: Path, where: str, code: str, advice: str
) -> None:
    async def story(at: Stage) -> None:
        agent = await cut_off(at, where)
        at.daemon.kill()
        await agent.die()
        before = at.path.read_bytes()
        await at.restarted()

        listed = json.loads(await at.dshd("list", "--tail", "open,interrupted,pendingTool", "--json"))
        assert [item["sessionId"] for item in listed["items"]] == [at.session]
        assert json.loads(await at.dshd("list", "--tail", "done", "--json"))["items"] == []
        assert at.path.read_bytes() == before, "reading repairs nothing"

        said = await at.dshd("resume", at.session)
        assert "turn 3 was cut off, it is closed now" in said
        assert code in said
        assert advice in said
        assert "the next turn is 4" in said
        assert at.path.read_bytes().startswith(before)
        assert [entry["type"] for entry in at.entries()[-3:]] == ["message", "step_end", "turn_end"]
        repaired = at.path.read_bytes()

        again = json.loads(await at.dshd("resume", at.session, "--json"))
        assert (again["repaired"], again["nextTurn"]) == ([], 4)
        assert "is closed already; the next turn is 4" in await at.dshd("resume", at.session)
        assert at.path.read_bytes() == repaired, "a second resume adds no byte"
        assert (await at.state())["live"] is None, "the command has let go"

        agent = await at.agent()
        await at.send("read")
        assert await agent.says("ended") == "ended 4"
        assert [mark["turn"] for mark in at.of_type("turn_start")] == [1, 2, 3, 4]
        assert at.of_type("request_header")[-1]["reason"] == "initial", "the same header is recorded once"

    play(tmp_path, story)


def test_looking_and_resuming_write_nothing_where_nothing_was_cut_off(tmp_path: Path) -> None:
    """A048, A050, A064: resume, open and close without an append leave the number of files and their bytes alone."""

    async def story(at: Stage) -> None:
        agent = await at.agent()
        await at.send("read")
        await agent.says("ended 1")
        await agent.die()
        await released(at)
        folder = at.path.parent

        def files() -> dict[str, bytes]:
            return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

        before = files()
        for _ in range(100):
            await at.ask("session/open")
            await at.ask("session/close")
        for takeover in (False, True):
            assert (await at.ask("session/resume", takeover=takeover))["repaired"] == []
            await at.ask("session/release")
        for args in (["resume"], ["resume", "--takeover"], ["agent"], ["tree"], ["show"]):
            await at.dshd(args[0], at.session, *args[1:])
        await at.restarted()
        assert (await at.ask("session/resume"))["repaired"] == []
        assert files() == before

    play(tmp_path, story)


def test_a_daemon_that_is_asked_to_end_closes_the_open_turn_first(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        await cut_off(at, "stuck")
        await asyncio.to_thread(at.daemon.stop)
        assert at.daemon.process is not None
        assert at.daemon.process.returncode == 0
        result, _, turn_end = at.entries()[-3:]
        assert result["message"]["details"]["code"] == "TOOL_OUTCOME_UNKNOWN"
        assert turn_end["reason"] == INTERRUPTED
        await at.client.close()
        at.daemon.start()
        at.client = await at.daemon.client("ui")
        assert (await at.ask("session/resume"))["repaired"] == []

    play(tmp_path, story)


def test_an_agent_that_waits_for_work_does_not_hold_up_the_end_of_the_daemon(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        agent = await at.agent()
        before = at.path.read_bytes()
        began = asyncio.get_running_loop().time()
        await asyncio.to_thread(at.daemon.stop)
        assert asyncio.get_running_loop().time() - began < 3
        await asyncio.wait_for(agent.process.wait(), PATIENCE)
        assert at.path.read_bytes() == before

    play(tmp_path, story)


# --- the second story: another way, without giving up the first


def test_a_fork_at_an_earlier_turn_takes_another_way_and_the_first_stays(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        first = await at.agent()
        for content in ("read edit", "edit", "edit edit"):
            await at.send(content)
        await first.says("ended 3")
        before = at.path.read_bytes()

        forked = json.loads(await at.dshd("fork", at.session, "--turn", "1", "--json"))
        child = Stage(at.daemon, at.client, forked["session"]["sessionId"], Path(forked["session"]["path"]))
        assert at.path.read_bytes() == before, "the source stays byte for byte"
        assert forked["boundary"] == at.of_type("turn_end")[0]["id"]
        boundary = [entry["id"] for entry in at.entries()].index(forked["boundary"])
        assert forked["seedLength"] == boundary + 1
        assert child.entries()[: boundary + 1] == at.entries()[: boundary + 1]

        second = await child.agent()
        at.agents += child.agents
        await child.send("read")
        assert await second.says("ended") == "ended 2", "numbers go on along the path"
        assert at.path.read_bytes() == before
        await at.send("edit")
        assert await first.says("ended") == "ended 4"

        family = json.loads(await at.dshd("family", at.session, "--json"))
        assert family["root"] == at.session
        assert {item["sessionId"]: item["parentSessionId"] for item in family["sessions"]} == {
            at.session: None,
            child.session: at.session,
        }
        again = json.loads(await at.dshd("fork", at.session, "--turn", "1", "--id", "again", "--json"))
        assert json.loads(await at.dshd("fork", at.session, "--turn", "1", "--id", "again", "--json")) == again

    play(tmp_path, story)


def test_a_fork_within_a_turn_is_refused_with_the_nearest_closed_place(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        await cut_off(at, "stuck")
        nearest = at.of_type("turn_end")[1]["id"]
        files = sorted(at.path.parent.iterdir())
        for args in (["fork", at.session], ["fork", at.session, "--turn", "3"], ["fork", at.session, "leaf"]):
            said = await at.dshd(*args, code=1)
            assert said.startswith("dshd: boundaryInTurn: turn 3 is not closed there")
            assert said.rstrip().endswith(f"fork {at.session} {nearest}`")
        assert (await at.dshd("fork", at.session, "--turn", "9", code=1)).startswith("dshd: invalidReference: ")
        assert sorted(at.path.parent.iterdir()) == files
        assert "up to " + nearest in await at.dshd("fork", at.session, nearest)

    play(tmp_path, story)


# --- who drives


def test_a_takeover_closes_the_turn_and_tells_the_one_before(tmp_path: Path) -> None:
    """A035, A036: one agent, any number of followers; a marker closes only the turn it names."""

    async def story(at: Stage) -> None:
        follower = Follower(at.client, at.session)
        await follower.open()
        one = await cut_off(at, "stuck")
        busy = await refused(at.ask("session/resume"))
        assert (busy.kind, busy.data["holder"]) == ("agentBusy", {"client": "agent", "pid": one.pid})
        assert "--takeover takes it away" in await at.dshd("resume", at.session, code=1)

        left = await at.send("read")  # waits for whoever drives
        two = await at.agent("takeover")
        assert await one.says("lost") == "lost to agent"
        assert await two.says("ended") == "ended 4"
        assert left, "what waited was worked on by the next agent"
        assert [(end["turn"], end["reason"]["kind"]) for end in at.of_type("turn_end")][2:] == [
            (3, "interrupted"),
            (4, "completed"),
        ]
        assert (await at.state())["live"]["pid"] == two.pid

        await follower.settled()
        assert list(follower.entries) == [entry["id"] for entry in at.entries()]
        assert follower.leaf == at.entries()[-1]["id"]

    play(tmp_path, story)


def test_what_an_agent_lost_it_cannot_write_to_any_more(tmp_path: Path) -> None:
    """A036: two that begin turns do not cut off one another; the number belongs to the one who has the session."""

    async def story(at: Stage) -> None:
        async with at.daemon.client("one") as one, at.daemon.client("two") as two:
            lost: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            one.on("agent/lost", lost.put_nowait)
            one.on("session/changed", heard.put_nowait)
            await one.request("session/open", sessionId=at.session)
            await one.request("session/resume", sessionId=at.session)
            began = await one.request("turn/start", sessionId=at.session, content="the first way")
            taken = await two.request("session/resume", sessionId=at.session, takeover=True)
            assert [repair["kind"] for repair in taken["repaired"]] == ["turnEnd"]
            assert await asyncio.wait_for(lost.get(), PATIENCE) == {"sessionId": at.session, "by": "two"}
            for method, params in {
                "turn/end": {"turn": began["turn"], "reason": {"kind": "completed"}},
                "step/start": {"turn": began["turn"]},
                "turn/start": {"content": "the second way"},
                "agent/claim": {},
            }.items():
                fault = await refused(one.request(method, {"sessionId": at.session, **params}))
                assert (fault.kind, fault.data["holder"]["client"]) == ("notTheAgent", "two"), method
            assert (await two.request("turn/start", sessionId=at.session, content="go on"))["turn"] == 2

            seen: list[Entry] = []
            while not any(entry["type"] == "turn_start" for entry in seen[2:]):  # it is a follower still
                seen += (await asyncio.wait_for(heard.get(), PATIENCE))["entries"]

    play(tmp_path, story)


def test_a_stale_owner_is_released_at_once(tmp_path: Path) -> None:
    """A034, A035: when the owner's process is gone, the next one needs neither a takeover nor patience."""

    async def story(at: Stage) -> None:
        for _ in range(5):
            agent = await at.agent()
            await at.send("stuck")
            await agent.says("stuck")
            await agent.die()
            resumed = await asyncio.wait_for(at.ask("session/resume"), 2)
            assert resumed["openTurn"] is None
            await at.ask("session/release")
        assert [end["reason"] for end in at.of_type("turn_end")] == [INTERRUPTED] * 5

    play(tmp_path, story)


def test_release_gives_the_session_to_whoever_asks_next(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        async with at.daemon.client("one") as one, at.daemon.client("two") as two:
            await one.request("session/resume", sessionId=at.session)
            await one.request("turn/start", sessionId=at.session, content="half a turn")
            await two.request("session/release", sessionId=at.session)  # it has nothing to release
            assert (await at.state())["live"]["client"] == "one"
            await one.request("session/release", sessionId=at.session)
            assert (await two.request("session/resume", sessionId=at.session))["repaired"] == []
            assert at.of_type("turn_end")[0]["reason"] == INTERRUPTED
            assert (await at.state())["live"]["client"] == "two"

    play(tmp_path, story)


# --- what waits, and what passes by


def test_messages_wait_for_an_agent_and_survive_its_end(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        assert (await refused(at.send("nobody hears this"))).kind == "noAgent"
        assert (await at.dshd("agent", at.session, "--send", "x", code=1)).startswith("dshd: noAgent: ")
        one = await at.agent()
        await at.send("stuck")
        await one.says("stuck")
        assert await at.dshd("agent", at.session, "--send", "read") == "left for the next turn\n"
        await at.dshd("agent", at.session, "--steer", "edit")

        shown = await at.dshd("agent", at.session)
        assert f"agent (pid {one.pid})" in shown
        assert "running: stuck" in shown
        assert "1 is open" in shown
        assert "2 messages" in shown
        state = json.loads(await at.dshd("agent", at.session, "--json"))
        assert [(m["mode"], m["content"], m["from"]) for m in state["inbox"]] == [
            ("queue", "read", "dshd"),
            ("steer", "edit", "dshd"),
        ]

        two = await at.agent("takeover")
        await two.says("ended 2")
        await two.says("ended 3")
        prompts = [
            entry["message"]["content"] for entry in at.entries() if entry.get("message", {}).get("role") == "user"
        ]
        assert prompts == ["stuck", "edit", "read"], "what steers comes first"
        assert json.loads(await at.dshd("agent", at.session, "--json"))["inbox"] == []

    play(tmp_path, story)


def test_what_was_claimed_and_not_used_waits_again(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        async with at.daemon.client("one") as one:
            await one.request("session/resume", sessionId=at.session)
            sent = [await at.send(word) for word in ("read", "edit")]
            claimed = await one.request("agent/claim", sessionId=at.session)
            assert claimed["message"]["messageId"] == sent[0]
            await at.ask("session/resume", takeover=True)
        waiting = [(await at.ask("agent/claim"))["message"] for _ in range(3)]
        assert [message and message["messageId"] for message in waiting] == [*sent, None]

    play(tmp_path, story)


def test_a_claim_waits_and_is_woken(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        async with at.daemon.client("one") as one:
            await one.request("session/resume", sessionId=at.session)
            waiting = asyncio.create_task(one.request("agent/claim", sessionId=at.session, waitMs=30_000))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            sent = await at.send("read")
            claimed = (await asyncio.wait_for(waiting, 2))["message"]
            assert (claimed["messageId"], claimed["from"]) == (sent, "ui")
            assert (await one.request("agent/claim", sessionId=at.session, waitMs=1))["message"] is None
            waiting = asyncio.create_task(one.request("agent/claim", sessionId=at.session, waitMs=30_000))
            await asyncio.sleep(0.1)
            await at.ask("session/resume", takeover=True)
            assert (await refused(asyncio.wait_for(waiting, 2))).kind == "notTheAgent"

    play(tmp_path, story)


def test_status_and_deltas_reach_every_follower_and_no_log(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        async with at.daemon.client("other") as other:
            heard: dict[str, list[tuple[str, dict[str, Any]]]] = {"ui": [], "other": []}
            for name, client in (("ui", at.client), ("other", other)):
                for method in ("agent/status", "agent/delta"):
                    client.on(method, lambda params, name=name, method=method: heard[name].append((method, params)))
                await client.request("session/open", sessionId=at.session)
            agent = await at.agent()
            await at.send("read")
            await agent.says("ended 1")
            await eventually(lambda: all(len(notes) == 4 for notes in heard.values()))
            assert heard["ui"] == heard["other"]
            assert [params.get("status") or params["chunk"]["text"] for _, params in heard["ui"]] == [
                "running",
                "read",
                "Turn 1 is done.",
                "idle",
            ]
            assert heard["ui"][1][1] == {
                "sessionId": at.session,
                "turn": 1,
                "step": 1,
                "chunk": {"type": "text-delta", "text": "read"},
            }
            assert b"text-delta" not in at.path.read_bytes()
            # Who comes later hears what is still so.
            await at.send("stuck")
            await agent.says("stuck")
            await at.send("later")
            async with at.daemon.client("late") as late:
                told: dict[str, dict[str, Any]] = {}
                for method in ("agent/status", "agent/inbox"):
                    late.on(method, lambda params, method=method: told.update({method: params}))
                await late.request("session/open", sessionId=at.session)
                assert told["agent/status"]["detail"] == "stuck"
                assert [message["content"] for message in told["agent/inbox"]["messages"]] == ["later"]

    play(tmp_path, story)


def test_watch_tells_what_the_agent_says_of_itself(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dsh_daemon", "watch", at.session, "-n", "0"),
            env=at.daemon.env | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdout=asyncio.subprocess.PIPE,
        )
        at.agents.append(watch := Agent(watching))
        await watch.says("Migrate to Vue 3")
        await at.agent()
        await at.send("stuck")
        assert watching.stdout is not None
        lines = [(await asyncio.wait_for(watching.stdout.readline(), PATIENCE)).decode()[10:-1] for _ in range(3)]
        assert lines == ["1 message for the agent; ui: stuck", "user       stuck", "the agent is running: stuck"]

    play(tmp_path, story)


def test_whoever_follows_may_ask_the_agent_to_stop(tmp_path: Path) -> None:
    async def story(at: Stage) -> None:
        assert await at.ask("session/abort") == {"aborted": None}
        agent = await at.agent()
        assert await at.dshd("agent", at.session, "--abort") == "no turn runs\n"
        await at.send("read stuck")
        await agent.says("stuck")
        assert await at.dshd("agent", at.session, "--abort") == "asked to stop\n"
        assert await agent.says("aborted") == "aborted 1"
        result, step_end, turn_end = at.entries()[-3:]
        assert result["message"]["details"]["code"] == "TOOL_OUTCOME_UNKNOWN"
        assert (step_end["outcome"], turn_end["reason"]) == ("aborted", {"kind": "aborted"})
        await at.send("read")
        assert await agent.says("ended") == "ended 2"

    play(tmp_path, story)


# --- yesterday's log: at which step did the configuration break?

CONFIG = "export const config = {\n  port: 8080,\n  host: 'shop',\n};\n"
GOOD, BAD = "  port: 8080,", "  port: env.PROT,"
FILE = "src/config.ts"
Step = tuple[str, list[dict[str, Any]], dict[str, Any]]  # what is said, calls, details of the result


def broken_in(kind: str) -> list[tuple[str, list[Step]]]:
    """Two turns of work; in the second step of the second one a wrong name comes into the configuration."""
    name = "file_path" if kind == "dsh" else "path"
    edit: dict[str, Any] = {"path": FILE, "edits": [{"oldText": GOOD, "newText": BAD}]}
    details: dict[str, Any] = {}
    if kind == "omp":  # it says by number which lines it replaces; what stood there only its result tells
        edit = {"input": f"*** Begin Patch\n[{FILE}#1A2B]\nPUT 2.=2:\n+{BAD}\n*** End Patch"}
        details = {"path": FILE, "oldText": CONFIG, "newText": CONFIG.replace(GOOD, BAD)}
    elif kind == "dsh":
        edit = {"file_path": FILE, "old_string": GOOD, "new_string": BAD}

    def call(tool: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"name": tool, "arguments": arguments}]

    return [
        ("Set up the shop", [
            ("", call("write", {name: FILE, "content": CONFIG}), {}),
            ("The shop is set up.", [], {}),
        ]),
        ("Clean up the code", [
            ("", call("bash", {"command": f"npx prettier --write {FILE}"}), {}),
            ("I name the port.", call("edit", edit), details),
            ("All is clean.", [], {}),
        ]),
    ]  # fmt: skip


def as_messages(turns: list[tuple[str, list[Step]]]) -> list[dict[str, Any]]:
    """The same as pi and omp write it."""
    found: list[dict[str, Any]] = []

    def add(build: Callable[..., dict[str, Any]], *args: Any, **more: Any) -> None:
        parent = found[-1]["id"] if found else None
        found.append(build(f"e{len(found):07}", parent, *args, second=len(found), **more))

    for prompt, steps in turns:
        add(user, prompt)
        for text, calls, details in steps:
            made = [{"id": f"call{len(found)}", **call} for call in calls]
            add(assistant, text, calls=made)
            for call in made:
                add(tool_result, call["id"], "ok", name=call["name"], details=details)
    return found


def as_dsh(turns: list[tuple[str, list[Step]]]) -> Log:
    log = Log("yesterday")
    for prompt, steps in turns:
        log.prompt(prompt)
        for number, (text, calls, _) in enumerate(steps, 1):
            if number > 1:
                log.add("step/end", {"turn": log.turn, "step": number - 1})
                log.begin(number)
            made = [(f"call{len(log.events)}", call["name"], json.dumps(call["arguments"])) for call in calls]
            log.answer(text, made)
            for id_, tool, given in made:
                log.call(id_, tool, given)
                log.result(id_, "ok")
        log.end()
    return log


async def as_native(client: Client, session: str, turns: list[tuple[str, list[Step]]]) -> None:
    """The same as an agent drives it through the daemon."""

    async def ask(method: str, **params: Any) -> Any:
        return await client.request(method, sessionId=session, **params)

    await ask("session/resume")
    for prompt, steps in turns:
        turn = (await ask("turn/start", content=prompt))["turn"]
        for text, calls, details in steps:
            step = (await ask("step/start", turn=turn))["step"]
            made = [{"type": "toolCall", "id": f"call-{turn}-{step}", **call} for call in calls]
            content = [{"type": "text", "text": text}] * bool(text) + made
            said = [{"role": "assistant", "content": content, "stopReason": "toolUse" if made else "stop"}]
            said += [
                {"role": "toolResult", "toolCallId": call["id"], "toolName": call["name"], "content": "ok",
                 "isError": False, "details": details}
                for call in made
            ]  # fmt: skip
            await ask("session/append", entries=[{"type": "message", "message": message} for message in said])
            await ask("step/end", turn=turn, step=step)
        await ask("turn/end", turn=turn, reason={"kind": "completed"})
    await ask("session/release")


@pytest.mark.parametrize("kind", ["pi", "omp", "dsh", "native"])
def test_yesterdays_log_tells_at_which_step_the_configuration_broke(tmp_path: Path, kind: str) -> None:
    turns = broken_in(kind)

    async def story() -> None:
        root, project = tmp_path / "root", str(tmp_path / "shop")
        log = root  # of a native session the daemon says where it is
        if kind in {"pi", "omp"}:
            log = root / "--shop--" / "2026-01-01T00-00-00-000Z_yesterday.jsonl"
            write_log(log, as_messages(turns), header("yesterday", project))
        elif kind == "dsh":
            log = as_dsh(turns).write(root)
        with Daemon(tmp_path / "home", f"{kind}={root}" if kind != "native" else "") as daemon:
            async with daemon.client("ui") as client:
                session = "yesterday"
                if kind == "native":
                    made = await client.request("session/create", cwd=project, title="The shop")
                    session, log = made["sessionId"], Path(made["path"])
                    await as_native(client, session, turns)
                await told(Stage(daemon, client, session, log))

    async def told(at: Stage) -> None:
        before = at.path.read_bytes()
        # Which steps touched it, in their order; which of them brought in the wrong name.
        lines = (await at.dshd("touched", FILE)).splitlines()
        assert [line.split()[1:4:2] for line in lines[1:]] == [["1.1", "write"], ["2.1", "shell"], ["2.2", "edit"]]
        changed = (await at.dshd("touched", FILE, "--changes")).splitlines()
        guilty = max(n for n, line in enumerate(changed) if " 2.2 " in line)
        assert {f"      -{GOOD}", f"      +{BAD}"} <= set(changed[guilty:])
        assert f"      +{GOOD}" in changed[:guilty]
        item = json.loads(await at.dshd("touched", FILE, "--json"))["items"][0]
        assert (item["turn"], item["step"], item["action"]) == (2, 2, "edit")

        # What was said around it.
        around = await at.dshd("replay", at.session, "--turn", "2")
        assert around.index("Clean up the code") < around.index("I name the port.") < around.index("All is clean.")
        assert "The shop is set up." not in around
        assert (await at.dshd("replay", at.session, "--from", item["entryId"])).count("I name the port.") == 1
        assert at.path.read_bytes() == before, "looking writes nothing"

        # And on from before it: in a session of its own, or in the same one where the log is a tree.
        fork = json.loads(await at.dshd("fork", at.session, "--turn", "1", "--json"))
        child = json.loads(await at.dshd("touched", FILE, "--in", fork["session"]["sessionId"], "--json"))
        assert [touch["action"] for touch in child["items"]] == ["write"]
        assert at.path.read_bytes() == before
        if kind != "dsh":
            await at.dshd("navigate", at.session, item["entryId"])
            assert (await at.state())["leafId"] == item["entryId"]

    asyncio.run(story())
