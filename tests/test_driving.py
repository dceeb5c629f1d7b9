"""Agents, drivers and followers at once: who may do what and when, and a log that is in order whatever they do."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from dsh_daemon.client import Client, RpcError
from dsh_daemon.wire.methods import METHODS

from .lines import Line
from .running import Daemon, Follower, clients, eventually

Entries = dict[str, dict[str, Any]]  # by id, in file order


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("driving") / "home") as running:
        yield running


# --- what a log must look like


def read(path: str) -> Entries:
    whole = Path(path).read_bytes().rpartition(b"\n")[0]  # a line that is just being written is none yet
    lines = [json.loads(part) for part in whole.split(b"\n")[1:]]
    assert len({entry["id"] for entry in lines}) == len(lines)
    return {entry["id"]: entry for entry in lines}


def path_to(entries: Entries, leaf: str | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while leaf is not None:
        found.append(entries[leaf])
        leaf = entries[leaf]["parentId"]
    return found[::-1]


def role_of(entry: dict[str, Any]) -> str:
    return entry.get("message", {}).get("role", "")


def calls_of(entry: dict[str, Any]) -> set[str]:
    content = entry["message"]["content"] if role_of(entry) == "assistant" else []
    return {block["id"] for block in content if block["type"] == "toolCall"}


@dataclass
class Turns:
    """The turns of one path, read the slow and simple way."""

    last: int = 0  # number of the last turn
    start: str | None = None  # turn_start of the recorded one that is open
    step: int = 0  # the open one
    steps: int = 0
    answered: bool = False  # the open step has its assistant message
    calls: set[str] = field(default_factory=set)  # of the open turn, without a result

    @classmethod
    def along(cls, path: list[dict[str, Any]]) -> Turns:
        """Fails where the marks of the path are not in order."""
        now = cls()
        for entry in path:
            kind, role = entry["type"], role_of(entry)
            if kind == "turn_start":
                assert now.start is None, "a turn in a turn"
                assert entry["turn"] > now.last, "numbers do not grow"
                now = cls(last=entry["turn"], start=entry["id"])
            elif kind == "turn_end":
                assert (now.start is not None, now.last, now.step) == (True, entry["turn"], 0), "it ends nothing"
                assert not now.calls, "a call was left unanswered"
                now = cls(last=now.last)
            elif kind == "step_start":
                assert now.start is not None
                assert (entry["turn"], entry["step"], now.step) == (now.last, now.steps + 1, 0)
                now.step = now.steps = entry["step"]
                now.answered = False
            elif kind == "step_end":
                assert (entry["turn"], entry["step"]) == (now.last, now.step)
                assert now.answered or entry.get("outcome") in {"error", "aborted"}
                now.step = 0
            elif role == "user" and now.start is None:
                now.last += 1
            elif role == "assistant":
                now.answered = True
                now.calls |= calls_of(entry)
            elif role == "toolResult":
                now.calls.discard(entry["message"]["toolCallId"])
        return now


def in_order(entries: Entries) -> None:
    for tip in entries.keys() - {entry["parentId"] for entry in entries.values()}:
        Turns.along(path_to(entries, tip))


# --- one thing after the other, in any order, against a model


class Session:
    """A session, the clients that work with it, and what the model says of it."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.clients: list[Client] = []
        self.id = self.file = ""
        self.entries: Entries = {}
        self.leaf: str | None = None
        self.agent: int | None = None  # which client it is
        self.begun: str | None = None  # the turn_start that the agent wrote last
        self.waiting: list[dict[str, Any]] = []
        self.claimed: list[dict[str, Any]] = []
        self.names = itertools.count()
        self.inbox: list[dict[str, Any]] = []  # as the follower was told

    async def open(self) -> None:
        for n in range(3):
            self.clients.append(await self.daemon.client(f"client-{n}"))
        made = await self.clients[0].request("session/create", cwd="/tmp")
        self.id, self.file = made["sessionId"], made["path"]
        self.watcher = await self.daemon.client("watcher")
        self.watcher.on("agent/inbox", lambda params: setattr(self, "inbox", params["messages"]))
        self.follower = Follower(self.watcher, self.id)
        await self.follower.open()

    async def close(self) -> None:
        for client in [*self.clients, self.watcher]:
            await client.close()

    @property
    def now(self) -> Turns:
        return Turns.along(path_to(self.entries, self.leaf))

    @property
    def running(self) -> bool:
        """Whether the agent runs the turn in which the leaf is."""
        return self.agent is not None and self.begun is not None and self.now.start == self.begun

    async def ask(self, who: int, method: str, **params: Any) -> Any:
        return await self.clients[who].request(method, sessionId=self.id, **params)

    async def refused(self, kind: str, who: int, method: str, **params: Any) -> None:
        """It is refused with this kind, and nothing happens."""
        before = self.entries
        with pytest.raises(RpcError) as caught:
            await self.ask(who, method, **params)
        assert caught.value.kind == kind, (caught.value.kind, kind, method, params)
        assert kind in METHODS[method].errors
        assert read(self.file) == before

    def wrote(self, *types: str) -> list[str]:
        """The log grew by entries of these types, as a chain under the leaf; the last one is the leaf."""
        new = {id_: entry for id_, entry in read(self.file).items() if id_ not in self.entries}
        assert [entry["type"] for entry in new.values()] == list(types)
        parent = self.leaf
        for entry in new.values():
            assert entry["parentId"] == parent
            parent = entry["id"]
        self.entries |= new
        self.leaf = parent
        return list(new)

    def closers(self) -> list[str]:
        """Types of what closes the turn in which the leaf is."""
        now = self.now
        if now.start is None:
            return []
        return ["message"] * len(now.calls) + ["step_end"] * bool(now.step) + ["turn_end"]

    def gone(self) -> None:
        self.agent, self.begun = None, None
        self.waiting[:0] = self.claimed
        self.claimed.clear()

    def pick(self, n: int) -> str | None:
        """Some place: an entry, or the one before the first."""
        places = [None, *self.entries]
        return places[n % len(places)]

    # What clients do

    async def resume(self, who: int, n: int) -> None:
        takeover = n % 3 == 0
        if self.agent not in {None, who} and not takeover:
            await self.refused("agentBusy", who, "session/resume", takeover=False)
            return
        expected = [] if self.agent == who else self.closers()
        result = await self.ask(who, "session/resume", takeover=takeover)
        kinds = {"message": "toolResult", "step_end": "stepEnd", "turn_end": "turnEnd"}
        assert [repair["kind"] for repair in result["repaired"]] == [kinds[type_] for type_ in expected]
        assert [repair["entryId"] for repair in result["repaired"]] == self.wrote(*expected)
        assert result["live"] == {"client": f"client-{who}", "pid": result["live"]["pid"], "status": "idle",
                                  "certain": True} or self.running  # fmt: skip
        if self.agent != who:
            self.gone()
            self.agent = who

    async def release(self, who: int, n: int) -> None:
        del n
        expected = self.closers() if self.agent == who and self.running else []
        assert await self.ask(who, "session/release") == {}
        self.wrote(*expected)
        if self.agent == who:
            self.gone()

    async def disconnect(self, who: int, n: int) -> None:
        del n
        expected = self.closers() if self.agent == who and self.running else []
        await self.clients[who].close()
        self.clients[who] = await self.daemon.client(f"client-{who}")
        if self.agent == who:

            async def nobody() -> bool:
                state = await self.ask(who, "session/open", subscribe=False)
                return state["live"] is None and not (expected and state["openTurn"])

            await eventually(nobody)
            self.gone()
        self.wrote(*expected)

    async def start_turn(self, who: int, n: int) -> None:
        mail = [*self.claimed, *self.waiting]
        message = mail[n % len(mail)] if mail and n % 2 else None
        params = {"content": f"prompt {n}"} if message is None else {"messageId": message["messageId"]}
        if self.agent != who:
            await self.refused("notTheAgent", who, "turn/start", **params)
        elif self.running:
            await self.refused("turnOpen", who, "turn/start", **params)
        else:
            number, closers = self.now.last + 1, self.closers()
            result = await self.ask(who, "turn/start", **params)
            ids = self.wrote(*closers, "turn_start", "message")
            assert (result["turn"], result["entryId"]) == (number, ids[-1])
            self.begun = ids[-2]
            if message is not None:
                assert self.entries[ids[-1]]["message"]["content"] == message["content"]
                self.waiting = [other for other in self.waiting if other is not message]
                self.claimed = [other for other in self.claimed if other is not message]

    async def start_step(self, who: int, n: int) -> None:
        now = self.now
        header = {"config": {"model": f"m{n % 2}"}}
        params = {"turn": now.last or 1} | ({"header": header} if n % 3 else {})
        if self.agent != who:
            await self.refused("notTheAgent", who, "step/start", **params)
        elif not self.running:
            await self.refused("noOpenTurn", who, "step/start", **params)
        elif now.step:
            await self.refused("stepOpen", who, "step/start", **params)
        else:
            before = [e["header"] for e in path_to(self.entries, self.leaf) if e["type"] == "request_header"]
            new = "header" in params and before[-1:] != [header]
            result = await self.ask(who, "step/start", **params)
            ids = self.wrote(*["request_header"] * new, "step_start")
            assert (result["step"], result["entryId"]) == (now.steps + 1, ids[-1])

    async def end_step(self, who: int, n: int) -> None:
        now, outcome = self.now, ("completed", "error", "aborted")[n % 3]
        params = {"turn": now.last or 1, "step": now.step or 1, "outcome": outcome}
        if self.agent != who:
            await self.refused("notTheAgent", who, "step/end", **params)
        elif not self.running or not now.step:
            await self.refused("noOpenTurn", who, "step/end", **params)
        elif outcome == "completed" and not now.answered:
            await self.refused("invalidEntry", who, "step/end", **params)
        else:
            await self.ask(who, "step/end", **params)
            self.wrote("step_end")

    async def end_turn(self, who: int, n: int) -> None:
        now, kind = self.now, ("completed", "aborted", "error", "blocked", "max-tokens")[n % 5]
        params = {"turn": now.last or 1, "reason": {"kind": kind}}
        if self.agent != who:
            await self.refused("notTheAgent", who, "turn/end", **params)
        elif not self.running:
            await self.refused("noOpenTurn", who, "turn/end", **params)
        elif kind == "completed" and now.step:
            await self.refused("stepOpen", who, "turn/end", **params)
        else:
            closers = self.closers()
            await self.ask(who, "turn/end", **params)
            ids = self.wrote(*closers)
            assert self.entries[ids[-1]]["reason"] == {"kind": kind}
            self.begun = None  # on a path that leads back into it, nobody runs it

    async def append(self, who: int, n: int) -> None:
        """At the leaf, whoever does it: an answer, a result, a word of somebody's."""
        call = f"call-{next(self.names)}"
        missing = sorted(self.now.calls)
        message = [
            {"role": "assistant", "content": [{"type": "text", "text": "words"}]},
            {"role": "assistant", "content": [{"type": "toolCall", "id": call, "name": "bash", "arguments": {}}]},
            {"role": "toolResult", "toolCallId": missing[0] if missing else "none", "content": []},
            {"role": "user", "content": "a word"},
        ][n % 4]
        entries = [{"type": "message", "message": message}]
        if self.running and who != self.agent and message["role"] != "user":
            await self.refused("notTheAgent", who, "session/append", entries=entries)
            return
        await self.ask(who, "session/append", entries=entries)
        self.wrote("message")

    async def append_elsewhere(self, who: int, n: int) -> None:
        parent = self.pick(n)
        params = {"parentId": parent, "entries": [{"type": "custom", "customType": "note"}]}
        inside = any(entry["id"] == self.begun for entry in path_to(self.entries, parent))
        if self.running and parent != self.leaf and not inside:
            await self.refused("turnOpen", who, "session/append", **params)
        else:
            await self.ask(who, "session/append", **params)
            self.leaf = parent
            self.wrote("custom")

    async def move(self, who: int, n: int) -> None:
        target = self.pick(n)
        if self.running and target != self.leaf:
            await self.refused("turnOpen", who, "session/moveLeaf", entryId=target)
        else:
            await self.ask(who, "session/moveLeaf", entryId=target)
            self.leaf = target

    async def navigate(self, who: int, n: int) -> None:
        target = leaf = self.pick(n)
        if target is not None and role_of(self.entries[target]) == "user":
            leaf = self.entries[target]["parentId"]
            if leaf is not None and self.entries[leaf]["type"] == "turn_start":
                leaf = self.entries[leaf]["parentId"]
        if self.running and leaf != self.leaf:
            await self.refused("turnOpen", who, "session/navigate", targetId=target)
        else:
            result = await self.ask(who, "session/navigate", targetId=target)
            assert result["leafId"] == leaf
            self.leaf = leaf

    async def label(self, who: int, n: int) -> None:
        target = self.pick(n)
        if target is not None:
            await self.ask(who, "session/label", entryId=target, label=f"name {next(self.names)}")
            self.wrote("label")

    async def send(self, who: int, n: int) -> None:
        mode = ("queue", "steer")[n % 2]
        params = {"content": f"message {n}", "mode": mode}
        if self.agent is None:
            await self.refused("noAgent", who, "agent/send", **params)
        else:
            id_ = (await self.ask(who, "agent/send", **params))["messageId"]
            self.waiting.append({"messageId": id_, **params, "from": f"client-{who}"})

    async def claim(self, who: int, n: int) -> None:
        if self.agent != who:
            await self.refused("notTheAgent", who, "agent/claim")
            return
        mode = (None, None, "queue", "steer")[n % 4]
        wanted = [mode] if mode else ["steer", "queue"]
        expected = next((m for kind in wanted for m in self.waiting if m["mode"] == kind), None)
        result = await self.ask(who, "agent/claim", **({"mode": mode} if mode else {}))
        assert result["message"] == expected
        if expected is not None:
            self.waiting = [other for other in self.waiting if other is not expected]
            self.claimed.append(expected)

    async def abort(self, who: int, n: int) -> None:
        del n
        assert await self.ask(who, "session/abort") == {"aborted": "turn" if self.running else None}

    async def check(self) -> None:
        """The daemon, the file and the follower say what the model says."""
        assert read(self.file) == self.entries
        in_order(self.entries)
        now = self.now
        state = await self.watcher.request("session/open", sessionId=self.id)
        assert state["leafId"] == self.leaf
        assert state["nextTurn"] == now.last + 1
        assert state["openTurn"] == (now.start and {"turn": now.last, "entryId": now.start})
        live = state["live"]
        assert (live and live["client"]) == (None if self.agent is None else f"client-{self.agent}")
        assert live is None or (live["status"] == "running") == self.running
        await self.follower.settled()
        assert self.follower.leaf == self.leaf
        assert self.follower.entries.keys() == self.entries.keys()
        if self.agent is not None:
            assert self.inbox == self.waiting


ACTIONS = [
    *["resume", "start_turn", "start_step", "end_step", "end_turn", "append"] * 3,
    *["release", "disconnect", "append_elsewhere", "move", "navigate", "label", "send", "claim", "abort"],
]
# Mostly one client, so that turns come to something.
OPERATION = st.tuples(
    st.sampled_from(ACTIONS), st.sampled_from([0, 0, 0, 0, 1, 2]), st.integers(min_value=0, max_value=59)
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(OPERATION, min_size=5, max_size=60))
def test_whatever_order_clients_do_things_in_each_is_done_or_refused_as_the_model_says(
    daemon: Daemon, operations: list[tuple[str, int, int]]
) -> None:
    async def story() -> None:
        session = Session(daemon)
        try:
            await session.open()
            for action, who, n in operations:
                await getattr(session, action)(who, n)
                await session.check()
        finally:
            await session.close()

    asyncio.run(story())


@pytest.mark.parametrize("seed", range(4))
def test_whatever_clients_do_at_once_the_log_stays_in_order(daemon: Daemon, seed: int) -> None:
    """Agents come, go and take over while all others work; nobody waits for anybody."""
    chance = random.Random(seed)

    async def work(client: Client, id_: str, file: str) -> set[tuple[str, str | None]]:
        kinds: set[tuple[str, str | None]] = set()
        for _ in range(120):
            state = await client.request("session/open", sessionId=id_, subscribe=False)
            open_ = state["openTurn"] or {"turn": state["nextTurn"]}
            places = [None, *read(file)]
            answer = {"role": "assistant", "content": [{"type": "toolCall", "id": f"{chance.random()}", "name": "x"}]}
            method, params = chance.choice(
                [
                    ("session/resume", {"takeover": chance.random() < 0.5}),
                    ("session/release", {}),
                    ("turn/start", {"content": "go"}),
                    ("turn/start", {"content": "go"}),
                    ("step/start", {"turn": open_["turn"]}),
                    ("step/start", {"turn": open_["turn"]}),
                    ("session/append", {"entries": [{"type": "message", "message": answer}]}),
                    ("step/end", {"turn": open_["turn"], "step": chance.randint(1, 2), "outcome": "error"}),
                    ("turn/end", {"turn": open_["turn"], "reason": {"kind": "aborted"}}),
                    ("session/append", {"entries": [{"type": "custom"}], "parentId": chance.choice(places)}),
                    ("session/navigate", {"targetId": chance.choice(places)}),
                    ("agent/send", {"content": "hello"}),
                    ("agent/claim", {"waitMs": 5}),
                ]
            )
            try:
                await client.request(method, sessionId=id_, **params)
            except RpcError as error:
                kinds.add((method, error.kind))
        return kinds

    async def story() -> None:
        async with clients(daemon, 4) as connected, daemon.client("watcher") as watcher:
            made = await connected[0].request("session/create", cwd="/tmp")
            id_, file = made["sessionId"], made["path"]
            follower = Follower(watcher, id_)
            await follower.open()
            kinds = set().union(*await asyncio.gather(*(work(client, id_, file) for client in connected)))
            assert {"agentBusy", "notTheAgent", "noOpenTurn", "turnOpen"} <= {kind for _, kind in kinds}
            assert all(kind in METHODS[method].errors for method, kind in kinds), kinds
            for client in connected:
                await client.close()

            async def nobody() -> bool:
                return (await watcher.request("session/open", sessionId=id_))["live"] is None

            await eventually(nobody)
            entries = read(file)
            in_order(entries)
            await eventually(lambda: follower.entries.keys() == entries.keys())

    asyncio.run(story())


# --- the hold and the file


def test_resuming_an_intact_session_writes_nothing_and_makes_no_other(daemon: Daemon) -> None:
    """A050, A064: however often it is taken and let go."""

    async def story() -> None:
        async with clients(daemon, 2) as (agent, other):
            made = await agent.request("session/create", cwd="/tmp/often")
            id_, path = made["sessionId"], Path(made["path"])
            await agent.request("session/append", sessionId=id_, entries=[{"type": "custom", "customType": "note"}])
            before = path.read_bytes()
            for client in [agent, other] * 25:
                assert (await client.request("session/resume", sessionId=id_))["repaired"] == []
                assert (await client.request("session/resume", sessionId=id_))["repaired"] == []
                await client.request("session/release", sessionId=id_)
            assert path.read_bytes() == before
            listed = await agent.request("session/list", cwd="/tmp/often")
            assert [info["sessionId"] for info in listed["items"]] == [id_]

    asyncio.run(story())


def test_a_log_that_is_removed_under_its_agent_is_not_made_again(daemon: Daemon) -> None:
    """A006: a file without a header would come of it."""

    async def story() -> None:
        async with clients(daemon, 2) as (agent, follower):
            id_, file = await working(daemon, [agent])
            await follower.request("session/open", sessionId=id_)
            told = heard(agent, "session/closed")
            Path(file).unlink()
            for method, params in {
                "session/append": {"entries": [{"type": "custom"}]},
                "step/end": {"turn": 1, "step": 1, "outcome": "error"},
                "turn/end": {"turn": 1, "reason": {"kind": "error"}},
                "turn/start": {"content": "again"},
                "session/resume": {},
            }.items():
                with pytest.raises(RpcError) as caught:
                    await agent.request(method, sessionId=id_, **params)
                assert caught.value.kind == "sessionGone", method
            await eventually(lambda: bool(told))
            assert told[0][1]["reason"] == "deleted"
        assert not Path(file).exists()

    asyncio.run(story())


# --- what is told and never logged


async def working(daemon: Daemon, connected: list[Client]) -> tuple[str, str]:
    """A session whose agent, the first of these clients, is in a step; its id and file."""
    agent = connected[0]
    made = await agent.request("session/create", cwd="/tmp")
    id_ = made["sessionId"]
    await agent.request("session/resume", sessionId=id_)
    await agent.request("turn/start", sessionId=id_, content="go")
    await agent.request("step/start", sessionId=id_, turn=1)
    return id_, made["path"]


def delta(id_: str, text: str, **more: Any) -> dict[str, Any]:
    return {"sessionId": id_, "turn": 1, "step": 1, "chunk": {"kind": "text", "text": text}, **more}


def heard(client: Client, *methods: str) -> list[tuple[str, Any]]:
    """What a client is told from now on, in its order."""
    found: list[tuple[str, Any]] = []
    for method in methods:
        client.on(method, lambda params, method=method: found.append((method, params)))
    return found


def test_what_an_agent_says_comes_to_all_followers_in_order_and_not_back_nor_into_the_log(daemon: Daemon) -> None:
    async def story() -> None:
        async with clients(daemon, 4) as connected:
            agent, *others = connected
            id_, file = await working(daemon, connected)
            for follower in (agent, *others[:2]):
                await follower.request("session/open", sessionId=id_)
            told = [heard(client, "agent/delta", "agent/status") for client in connected]
            before = read(file)
            said: list[tuple[str, Any]] = []
            for n in range(200):
                said.append(("agent/delta", delta(id_, f"piece {n}")))
                if n % 50 == 0:
                    said.append(("agent/status", {"sessionId": id_, "status": "running", "detail": f"{n}"}))
            for method, params in said:
                agent.notify(method, params)
            await eventually(lambda: len(told[1]) == len(told[2]) == len(said))
            assert told == [[], said, said, []]
            assert read(file) == before

    asyncio.run(story())


def test_who_begins_to_follow_hears_what_the_others_heard_before(daemon: Daemon) -> None:
    async def story() -> None:
        async with clients(daemon, 3) as (agent, early, late):
            id_, _ = await working(daemon, [agent])
            told = [heard(client, "agent/status", "agent/inbox") for client in (early, late)]
            await early.request("session/open", sessionId=id_)
            assert told[0] == []  # nothing was said yet
            agent.notify("agent/status", sessionId=id_, status="running", detail="npm test")
            await early.request("agent/send", sessionId=id_, content="and the linter")
            await eventually(lambda: len(told[0]) == 2)
            await late.request("session/open", sessionId=id_, subscribe=False)
            assert told[1] == []
            await late.request("session/open", sessionId=id_)
            assert told[1] == told[0]

    asyncio.run(story())


IGNORED: dict[str, Any] = {
    "of a session that is not there": lambda id_: delta("nobody", "x"),
    "without params": lambda id_: None,
    "a list for params": lambda id_: [1, 2],
    "without a chunk": lambda id_: {"sessionId": id_, "turn": 1, "step": 1},
    "with a chunk that is a text": lambda id_: {"sessionId": id_, "turn": 1, "step": 1, "chunk": "x"},
    "with a turn of no number": lambda id_: delta(id_, "x", turn=0),
    "with something more": lambda id_: delta(id_, "x", skipped=3),
    "of more than a megabyte": lambda id_: delta(id_, "x" * (1 << 20)),
}


@pytest.mark.parametrize("what", IGNORED)
def test_a_notification_that_is_wrong_is_ignored_and_harms_nobody(daemon: Daemon, what: str) -> None:
    async def story() -> None:
        async with clients(daemon, 2) as (agent, follower):
            id_, file = await working(daemon, [agent, follower])
            await follower.request("session/open", sessionId=id_)
            told = heard(follower, "agent/delta")
            before = read(file)
            agent.notify("agent/delta", delta(id_, "first"))
            agent._send({"jsonrpc": "2.0", "method": "agent/delta", "params": IGNORED[what](id_)})  # type: ignore[reportPrivateUsage]
            agent.notify("agent/delta", delta(id_, "last"))
            await agent.request("daemon/ping")
            await eventually(lambda: len(told) == 2)
            assert [params["chunk"]["text"] for _, params in told] == ["first", "last"]
            assert read(file) == before
            assert (await agent.request("step/end", sessionId=id_, turn=1, step=1, outcome="error"))["revision"] > 1

    asyncio.run(story())


@pytest.mark.parametrize("chunk", ['{"n": 1180591620717411303424}', "[" * 900 + "]" * 900, '{"s": "\\ud83d"}'])
def test_a_chunk_of_any_json_ends_nothing(daemon: Daemon, chunk: str) -> None:
    with Line.unix(daemon.socket) as agent:
        agent.initialize()
        id_ = agent.call("session/create", {"cwd": "/tmp"})["result"]["sessionId"]
        for method, params in {"session/resume": {}, "turn/start": {"content": "go"}}.items():
            assert "result" in agent.call(method, {"sessionId": id_, **params})
        with Line.unix(daemon.socket) as follower:
            follower.initialize()
            follower.call("session/open", {"sessionId": id_})
            body = json.dumps({"jsonrpc": "2.0", "method": "agent/delta", "params": delta(id_, "?")})
            agent.send_bytes(body.replace('"?"', chunk).encode())
            assert "result" in agent.call("turn/end", {"sessionId": id_, "turn": 1, "reason": {"kind": "error"}})
            assert "result" in follower.call("daemon/ping")


def test_only_the_agent_is_passed_on(daemon: Daemon) -> None:
    """Not another client, not the one that was taken over, not one that only reads, not one that was let go."""

    async def story() -> None:
        async with clients(daemon, 3) as (agent, other, follower):
            id_, _ = await working(daemon, [agent])
            reader = await daemon.client("reader", readOnly=True)
            await follower.request("session/open", sessionId=id_)
            told = heard(follower, "agent/delta", "agent/status")
            for client in (other, reader):
                client.notify("agent/delta", delta(id_, "not mine"))
                client.notify("agent/status", sessionId=id_, status="idle")
                await client.request("daemon/ping")
            await other.request("session/resume", sessionId=id_, takeover=True)
            agent.notify("agent/delta", delta(id_, "lost"))
            await agent.request("daemon/ping")
            other.notify("agent/status", sessionId=id_, status="running")
            await other.request("session/release", sessionId=id_)
            other.notify("agent/status", sessionId=id_, status="running")
            await other.request("daemon/ping")
            await follower.request("daemon/ping")
            assert told == [("agent/status", {"sessionId": id_, "status": "running"})]
            state = await follower.request("session/open", sessionId=id_)
            assert state["live"] is None
            await reader.close()

    asyncio.run(story())


def test_lists_show_what_an_agent_says_of_itself(daemon: Daemon) -> None:
    async def story() -> None:
        async with clients(daemon, 2) as (agent, other):
            made = await agent.request("session/create", cwd="/tmp/lists")
            id_ = made["sessionId"]
            await other.request("catalog/subscribe", cwd="/tmp/lists")
            seen: list[Any] = []
            other.on("catalog/changed", lambda params: seen.extend(info["live"] for info in params["upserts"]))
            await agent.request("session/resume", sessionId=id_)
            await eventually(lambda: bool(seen) and seen[-1] is not None and seen[-1]["status"] == "idle")
            agent.notify("agent/status", sessionId=id_, status="running", detail="compiling")
            await eventually(lambda: seen[-1]["status"] == "running")
            await agent.request("session/release", sessionId=id_)
            await eventually(lambda: seen[-1] is None)

    asyncio.run(story())


def test_before_initialize_and_after_shutdown_nothing_is_passed_on(daemon: Daemon) -> None:
    async def story() -> None:
        async with clients(daemon, 2) as (agent, follower):
            id_, _ = await working(daemon, [agent])
            await follower.request("session/open", sessionId=id_)
            told = heard(follower, "agent/delta")

            def stranger() -> None:
                with Line.unix(daemon.socket) as line:
                    line.send({"jsonrpc": "2.0", "method": "agent/delta", "params": delta(id_, "too early")})
                    assert "result" in line.initialize()

            await asyncio.to_thread(stranger)
            await agent.request("shutdown")
            agent.notify("agent/delta", delta(id_, "too late"))
            await eventually(lambda: _refused(agent))
            await follower.request("daemon/ping")
            assert told == []

    async def _refused(client: Client) -> bool:
        with pytest.raises(RpcError):
            await client.request("session/list")
        return True

    asyncio.run(story())


def test_a_follower_that_reads_slowly_hears_the_latest_and_how_much_it_missed(daemon: Daemon) -> None:
    """Nobody waits for it, and it is not thrown out."""

    async def story() -> None:
        async with clients(daemon, 2) as (agent, healthy):
            id_, _ = await working(daemon, [agent])
            slow = await asyncio.to_thread(Line.unix, daemon.socket)
            try:
                await asyncio.to_thread(slow.initialize)
                await asyncio.to_thread(slow.call, "session/open", {"sessionId": id_})
                await healthy.request("session/open", sessionId=id_)
                told = heard(healthy, "agent/delta")
                for n in range(400):  # 20 MiB: more than may wait for one client
                    agent.notify("agent/delta", delta(id_, "x" * 50_000, turn=n + 1))
                    if n % 20 == 0:
                        await agent.request("daemon/ping")
                await eventually(lambda: len(told) == 400)
                assert not any("skipped" in params for _, params in told)
                got: list[dict[str, Any]] = []
                while not got or got[-1]["turn"] < 400:
                    message = await asyncio.to_thread(slow.receive)
                    assert message is not None, "it was thrown out"
                    if message.get("method") == "agent/delta":
                        got.append(message["params"])
                numbers = [params["turn"] for params in got]
                assert numbers == sorted(numbers)
                assert len(got) + sum(params.get("skipped", 0) for params in got) == 400
                [gap] = [n for n, params in enumerate(got) if "skipped" in params]
                assert numbers[gap] - numbers[gap - 1] == got[gap]["skipped"] + 1
            finally:
                slow.close()

    asyncio.run(story())


def test_a_flood_of_deltas_does_not_keep_others_waiting(daemon: Daemon) -> None:
    async def story() -> None:
        async with clients(daemon, 6) as (agent, asking, *followers):
            id_, _ = await working(daemon, [agent])
            for follower in followers:
                await follower.request("session/open", sessionId=id_)
            counts = [heard(follower, "agent/delta") for follower in followers]
            flood = delta(id_, "x" * 40)
            loop = asyncio.get_running_loop()
            for _ in range(20_000):
                agent.notify("agent/delta", flood)
            slowest, done = 0.0, loop.create_task(agent.request("daemon/ping"))
            while not done.done():
                start = loop.time()
                await asking.request("session/path", sessionId=id_)
                slowest = max(slowest, loop.time() - start)
            await done
            await eventually(lambda: all(len(c) + sum(p.get("skipped", 0) for _, p in c) == 20_000 for c in counts))
            assert slowest < 1.0

    asyncio.run(story())


def test_a_daemon_that_stops_closes_the_turns_of_its_agents(tmp_path: Path) -> None:
    async def story(daemon: Daemon) -> str:
        async with clients(daemon, 1) as (agent,):
            _, file = await working(daemon, [agent])
            await agent.request("daemon/stop")
            await eventually(lambda: agent.closed)
            return file

    with Daemon(tmp_path / "home") as daemon:
        file = asyncio.run(story(daemon))
        assert daemon.process is not None
        daemon.process.wait(20)
    *_, step, turn = read(file).values()
    assert (step["type"], step["outcome"]) == ("step_end", "aborted")
    assert (turn["type"], turn["reason"]) == ("turn_end", {"kind": "interrupted"})


# --- messages for the agent


def test_a_claim_that_waits_gets_the_next_message_and_ends_with_the_hold(daemon: Daemon) -> None:
    async def story() -> None:
        async with clients(daemon, 2) as (agent, other):
            id_, _ = await working(daemon, [agent])
            loop = asyncio.get_running_loop()
            waiting = loop.create_task(agent.request("agent/claim", sessionId=id_, waitMs=60_000))
            await agent.request("daemon/ping")
            sent = await other.request("agent/send", sessionId=id_, content="now")
            assert (await waiting)["message"] == {
                "messageId": sent["messageId"], "content": "now", "mode": "queue", "from": "client-1",
            }  # fmt: skip
            start = loop.time()
            assert (await agent.request("agent/claim", sessionId=id_, waitMs=150))["message"] is None
            assert loop.time() - start >= 0.15

            waiting = loop.create_task(agent.request("agent/claim", sessionId=id_, waitMs=60_000))
            await agent.request("daemon/ping")
            await other.request("session/resume", sessionId=id_, takeover=True)
            with pytest.raises(RpcError) as caught:
                await waiting
            assert caught.value.kind == "notTheAgent"
            # What was claimed and not used is the new agent's.
            assert (await other.request("agent/claim", sessionId=id_))["message"]["messageId"] == sent["messageId"]

    asyncio.run(story())


def test_a_cancelled_claim_takes_nothing(daemon: Daemon) -> None:
    async def story() -> None:
        async with clients(daemon, 1) as (agent,):
            id_, _ = await working(daemon, [agent])
            waiting = asyncio.create_task(agent.request("agent/claim", sessionId=id_, waitMs=60_000))
            await agent.request("daemon/ping")
            waiting.cancel()
            await asyncio.wait([waiting])
            await agent.request("daemon/ping")
            sent = await agent.request("agent/send", sessionId=id_, content="still there")
            assert (await agent.request("agent/claim", sessionId=id_))["message"]["messageId"] == sent["messageId"]

    asyncio.run(story())


def test_messages_outlive_their_agent(daemon: Daemon) -> None:
    async def story() -> None:
        async with clients(daemon, 2) as (agent, other):
            id_, _ = await working(daemon, [agent])
            ids = [(await other.request("agent/send", sessionId=id_, content=f"{n}"))["messageId"] for n in range(3)]
            assert (await agent.request("agent/claim", sessionId=id_))["message"]["messageId"] == ids[0]
            await agent.request("session/release", sessionId=id_)
            with pytest.raises(RpcError) as caught:
                await other.request("agent/send", sessionId=id_, content="nobody reads this")
            assert caught.value.kind == "noAgent"
            told = heard(agent, "agent/inbox")
            await agent.request("session/resume", sessionId=id_)
            assert [message["messageId"] for message in told[-1][1]["messages"]] == ids

    asyncio.run(story())
