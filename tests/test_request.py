"""What a model was shown is in the log, and the log shows it nothing else: both ways, for every recorded request."""

from __future__ import annotations

import itertools
import json
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from dsh_daemon import reading, tree
from dsh_daemon.client import Client, RpcError
from dsh_daemon.errors import NotRecorded
from dsh_daemon.session import Session
from tests.running import Daemon
from tests.support import assistant, entry, header, line, tool_result, user, write_log
from tests.test_providers import anthropic_faults, openai_faults
from tests.wire import in_loop

HEADERS = [
    {"config": {"model": "m-1", "temperature": 0.5}, "system": "Be kind.", "tools": [{"name": "bash"}]},
    {"config": {"model": "m-1", "temperature": 0.5}, "system": "Be kind, 中文.", "tools": []},
    {"config": {"model": "m-2"}},
]


class Sent(NamedTuple):
    """A request that a driver made at the beginning of a step."""

    turn: int
    step: int
    entry_id: str  # the step_start
    request: dict[str, Any]


class Driver:
    """An agent that does what may come next, and keeps what it sent; each of its messages has a word of its own."""

    def __init__(self, client: Client, seed: int) -> None:
        self.random = random.Random(seed)
        self.client = client
        self.session = ""
        self.turn = self.step = 0
        self.header: dict[str, Any] | None = None
        self.open: list[str] = []  # calls without a result
        self.numbers = itertools.count()
        self.words: dict[str, str] = {}  # by entry: what a model reads of it
        self.kept: dict[str, str | None] = {}  # by compaction: the first entry that it keeps
        self.sent: dict[str, list[Sent]] = {}  # by session

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.client.request(method, sessionId=self.session, **params)

    async def take(self, session: str) -> None:
        self.session, self.turn, self.step, self.open = session, 0, 0, []
        self.sent.setdefault(session, [])
        await self.ask("session/resume")
        await self.learn()

    def word(self) -> str:
        return f"<word{next(self.numbers)}>"

    async def say(self, role: str, **more: Any) -> None:
        word = self.word()
        content = [{"type": "text", "text": word}, *more.pop("calls", ())]
        message = {"role": role, "content": content, **more}
        (id_,) = (await self.ask("session/append", entries=[{"type": "message", "message": message}]))["ids"]
        self.words[id_] = word

    async def act(self) -> None:
        moves = {self.begin_turn: 6, self.go: 2, self.compact: 1, self.branch: 1, self.fork: 1, self.leave: 1}
        if self.turn:
            moves = {self.begin_step: 5, self.end_turn: 1, self.leave: 1, self.steer: 1, self.compact: 1}
        if self.step:
            moves = {self.answer: 3, self.empty: 1, self.call: 3, self.result: 4, self.end_step: 4, self.note: 1}
        await self.random.choices(list(moves), list(moves.values()))[0]()

    async def begin_turn(self) -> None:
        word = self.word()
        begun = await self.ask("turn/start", content=word)
        self.words[begun["entryId"]] = word
        self.turn, self.header = begun["turn"], None
        await self.learn()  # the leaf may have been moved into a turn

    async def begin_step(self) -> None:
        if self.header is None or self.random.random() < 0.3:
            self.header = self.random.choice(HEADERS)
            begun = await self.ask("step/start", turn=self.turn, header=self.header)
        else:
            begun = await self.ask("step/start", turn=self.turn)
        self.step = begun["step"]
        context = await self.ask("session/context")
        self.sent[self.session].append(
            Sent(self.turn, self.step, begun["entryId"], {"header": self.header, "messages": context["messages"]})
        )
        await self.check_words(context)

    async def check_words(self, context: dict[str, Any]) -> None:
        """All that was said on the path, from its last compaction on, and nothing else; each word from its entry."""
        path = (await self.ask("session/path"))["ids"]
        last = max((k for k, id_ in enumerate(path) if id_ in self.kept), default=0)
        shown = path[last:]
        if path[last] in self.kept:
            first = path.index(self.kept[path[last]])
            shown = [path[last], *path[first:last], *path[last + 1 :]]
        shown = [id_ for k, id_ in enumerate(shown) if k == 0 or id_ not in self.kept]
        assert [text_of(message) for message in context["messages"]] == [
            self.words[id_] for id_ in shown if id_ in self.words
        ]
        assert context["sources"] == [[id_] for id_ in shown if id_ in self.words]

    async def answer(self) -> None:
        await self.say("assistant", stopReason=self.random.choice(["stop", "error", "aborted"]))

    async def empty(self) -> None:
        message = {"role": "assistant", "content": [], "usage": {"input": 7, "output": 0}}
        await self.ask("session/append", entries=[{"type": "message", "message": message}])

    async def call(self) -> None:
        made = [f"call-{next(self.numbers)}" for _ in range(self.random.randint(1, 3))]
        await self.say(
            "assistant", calls=[{"type": "toolCall", "id": c, "name": "bash", "arguments": {}} for c in made]
        )
        self.open += made

    async def result(self) -> None:
        if self.open:
            call = self.open.pop(self.random.randrange(len(self.open)))
            mark = {"type": "tool_call", "turn": self.turn, "step": self.step, "callId": call, "name": "bash"}
            await self.ask("session/append", entries=[mark])
            await self.say("toolResult", toolCallId=call, toolName="bash", isError=False)

    async def steer(self) -> None:
        await self.say("user")

    async def note(self) -> None:
        word = self.word()
        said = {"type": "custom_message", "customType": "note", "content": word, "display": True}
        chunks = {"type": "assistant_chunks", "kind": "text", "texts": ["not sent"], "dt": [0]}
        ids = (await self.ask("session/append", entries=[chunks, said]))["ids"]
        self.words[ids[1]] = word

    async def end_step(self) -> None:
        await self.ask("step/end", turn=self.turn, step=self.step, outcome="error")
        self.step = 0

    async def end_turn(self) -> None:
        await self.ask("turn/end", turn=self.turn, reason={"kind": "completed"})
        await self.learn()
        self.turn = 0

    async def leave(self) -> None:
        """The daemon closes what is open; work goes on."""
        await self.ask("session/release")
        await self.learn()
        self.turn = 0
        await self.ask("session/resume")

    async def learn(self) -> None:
        """Read the results by which the daemon closed a turn."""
        ids = (await self.ask("session/path"))["ids"]
        for found in (await self.ask("session/entries", ids=ids[-60:]))["entries"] if ids else ():
            if found["type"] == "message" and "code" in found["message"].get("details", {}):
                self.words[found["id"]] = text_of(found["message"])
        self.open = []

    async def go(self) -> None:
        ids = [sent.entry_id for sent in self.sent[self.session]]
        if ids:
            await self.ask("session/navigate", targetId=self.random.choice(ids))
            await self.ask("session/label", entryId=self.random.choice(ids), label="here")

    async def compact(self) -> None:
        path = (await self.ask("session/path"))["ids"]
        if path:
            kept, word = self.random.choice(path[-12:]), self.word()
            made = {"type": "compaction", "summary": word, "firstKeptEntryId": kept, "tokensBefore": 1}
            (id_,) = (await self.ask("session/append", entries=[made]))["ids"]
            self.words[id_], self.kept[id_] = word, kept

    async def branch(self) -> None:
        path = (await self.ask("session/path"))["ids"]
        if path:
            made = await self.ask("session/branch", entryId=path[-1], position="at")
            await self.follow(made["session"]["sessionId"])

    async def fork(self) -> None:
        try:
            made = await self.ask("session/fork")
        except RpcError as refused:  # the leaf was moved into a turn
            made = await self.ask("session/fork", boundary=refused.data["nearestClosed"])
        await self.follow(made["session"]["sessionId"])

    async def follow(self, child: str) -> None:
        """Go on in a session that was made from this one; it has the steps of its path."""
        before = self.sent[self.session]
        await self.ask("session/release")
        await self.take(child)
        path = (await self.ask("session/path"))["ids"]
        self.sent[child] = [sent for sent in before if sent.entry_id in path]


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or message.get("summary") or ""
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


async def check(client: Client, session: str, all_sent: list[Sent]) -> None:
    """Each request that was sent is the one that its session rebuilds, and each of its messages is in the log."""
    path = (await client.request("session/path", sessionId=session))["ids"]
    for sent in all_sent:
        which = {"sessionId": session, "turn": sent.turn, "step": sent.step}
        rebuilt = await client.request("session/request", which, entryId=sent.entry_id)
        assert {"header": rebuilt["header"], "messages": rebuilt["messages"]} == sent.request
        if sent.entry_id in path:
            assert await client.request("session/request", which) == rebuilt
        named = list(itertools.chain(*rebuilt["sources"]))
        found: dict[str, Any] = {}
        for n in range(0, len(named), 200):
            read = await client.request("session/entries", sessionId=session, ids=named[n : n + 200])
            assert read["missing"] == []
            found |= {item["id"]: json.dumps(item, ensure_ascii=False) for item in read["entries"]}
        assert len(rebuilt["sources"]) == len(rebuilt["messages"])
        for message, sources in zip(rebuilt["messages"], rebuilt["sources"], strict=True):
            assert sources
            assert all(json.dumps(text_of(message), ensure_ascii=False)[1:-1] in found[id_] for id_ in sources)


@pytest.mark.parametrize("seed", range(4))
@in_loop
async def test_what_was_sent_is_what_the_log_rebuilds_and_nothing_else(tmp_path: Path, seed: int) -> None:
    with Daemon(tmp_path / "dshd") as daemon:
        async with daemon.client("agent") as client:
            driver = Driver(client, seed)
            await driver.take((await client.request("session/create", cwd="/tmp"))["sessionId"])
            for _ in range(250):
                await driver.act()
            for session, sent in driver.sent.items():
                await check(client, session, sent)
            for make, faults in (("openai", openai_faults), ("anthropic", anthropic_faults)):
                assert faults((await driver.ask("session/context", format=make))["messages"]) == []
            assert sum(map(len, driver.sent.values())) > 20
        daemon.kill()
        daemon.start()
        async with daemon.client("reader") as client:
            for session, sent in driver.sent.items():
                await check(client, session, sent)


# What is not in the log

MARKED = [
    entry("turn_start", "t1", None, turn=1),
    user("u1", "t1", "hi"),
    entry("step_start", "s0", "u1", turn=1, step=1),
    entry("step_end", "e0", "s0", turn=1, step=1, outcome="error"),
    entry("request_header", "h1", "e0", header={"config": {"model": "m"}}, reason="initial"),
    entry("step_start", "s1", "h1", turn=1, step=2),
    assistant("a1", "s1", "", content=[], usage={"input": 9, "output": 0}),
    assistant("a2", "a1", "hello"),
    entry("step_end", "e1", "a2", turn=1, step=2),
    entry("request_header", "h2", "e1", header="damaged", reason="change"),
    entry("step_start", "s2", "h2", turn=1, step=3),
]


def opened(tmp_path: Path, entries: list[dict[str, Any]]) -> Session:
    return Session.open(str(write_log(tmp_path / "s.jsonl", entries, header(generator="dsh-daemon/1"))))


@in_loop
async def test_a_step_is_rebuilt_with_the_header_and_the_messages_of_its_beginning(tmp_path: Path) -> None:
    """An empty answer is in the log with its usage, and in no message."""
    session = opened(tmp_path, [*MARKED, entry("step_start", "s3", "e1", turn=1, step=3)])

    assert await reading.request(session, session.leaf, 1, 2) == {
        "header": {"config": {"model": "m"}},
        "messages": [MARKED[1]["message"]],
        "sources": [["u1"]],
    }
    assert (await reading.request(session, session.leaf, 1, 3))["sources"] == [["u1"], ["a2"]]
    assert session.entry(session.find("a1"))["message"]["usage"] == {"input": 9, "output": 0}


@pytest.mark.parametrize(
    ("at", "turn", "step"), [("s2", 1, 1), ("s2", 1, 3), ("s2", 2, 1), ("s2", 1, 4), ("e0", 1, 2), (None, 1, 1)]
)
@in_loop
async def test_what_is_not_on_the_path_is_not_recorded(tmp_path: Path, at: str | None, turn: int, step: int) -> None:
    """No header before the step, a damaged one, no such turn or step, a step further down, no path at all."""
    session = opened(tmp_path, MARKED)
    with pytest.raises(NotRecorded) as refused:
        await reading.request(session, session.find(at), turn, step)
    assert refused.value.data == {"kind": "notRecorded", "turn": turn, "step": step}


@in_loop
async def test_logs_without_marks_have_no_requests(tmp_path: Path) -> None:
    session = Session.open(str(write_log(tmp_path / "s.jsonl", [user("u", None, "hi"), assistant("a", "u", "hello")])))
    with pytest.raises(NotRecorded):
        await reading.request(session, session.leaf, 1, 1)


@in_loop
async def test_any_step_of_a_path_of_100_000_entries_is_rebuilt_at_once(tmp_path: Path) -> None:
    lines = [line(header(generator="dsh-daemon/1"))]
    before: str | None = None
    first = {"type": "request_header", "header": {"config": {"model": "m"}}, "reason": "initial"}
    chain: list[dict[str, Any]] = [first]
    for turn in range(1, 10_001):
        chain += [
            {"type": "turn_start", "turn": turn},
            {"type": "message", "message": {"role": "user", "content": f"prompt {turn}"}},
        ]
        for step in (1, 2):
            chain += [
                {"type": "step_start", "turn": turn, "step": step},
                {"type": "message", "message": {"role": "assistant", "content": [{"type": "text", "text": "so"}]}},
                {"type": "step_end", "turn": turn, "step": step},
            ]
        chain += [{"type": "turn_end", "turn": turn, "reason": {"kind": "completed"}}]
        if turn % 100 == 0:
            chain += [{"type": "compaction", "summary": f"so far {turn}", "firstKeptEntryId": "none"}]
    for n, item in enumerate(chain):
        lines.append(line({"id": f"e{n}", "parentId": before, "timestamp": "2026-01-01T00:00:00.000Z", **item}))
        before = f"e{n}"
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"".join(lines))
    session = Session.open(str(path))
    assert len(tree.path(session.index, session.leaf)) > 90_000

    began = time.monotonic()
    late, early = [
        orjson.loads(orjson.dumps(await reading.request(session, session.leaf, *step)))
        for step in ((10_000, 2), (1, 1))
    ]
    assert len(late["messages"]) == 3 * 99 + 1 + 2
    assert [text_of(message) for message in early["messages"]] == ["prompt 1"]
    assert time.monotonic() - began < 5


# A turn that nobody runs any more


@in_loop
async def test_a_turn_cut_off_by_a_crash_is_read_as_resume_will_close_it(tmp_path: Path) -> None:
    """A014: every later request can be sent, before and after the repair."""
    with Daemon(tmp_path / "dshd") as daemon:
        async with daemon.client("agent") as client:
            session = (await client.request("session/create", cwd="/tmp"))["sessionId"]

            async def ask(method: str, **params: Any) -> Any:
                return await client.request(method, sessionId=session, **params)

            await ask("session/resume")
            await ask("turn/start", content="go")
            await ask("step/start", turn=1, header=HEADERS[0])
            calls = [{"type": "toolCall", "id": f"c{n}", "name": "bash", "arguments": {}} for n in (1, 2)]
            said = {"type": "message", "message": {"role": "assistant", "content": calls}}
            mark = {"type": "tool_call", "turn": 1, "step": 1, "callId": "c2", "name": "bash"}
            answer, _ = (await ask("session/append", entries=[said, mark]))["ids"]
            running = await ask("session/context")
            daemon.kill()
        assert len(running["messages"]) == 2
        daemon.start()
        async with daemon.client("agent") as client:
            before = await ask("session/context")
            assert before["sources"][2:] == [[], []]
            codes = [message["details"]["code"] for message in before["messages"][2:]]
            assert codes == ["TOOL_NOT_STARTED", "TOOL_OUTCOME_UNKNOWN"]
            assert (await ask("session/context", entryId=answer))["messages"] == running["messages"]
            assert (await ask("session/request", turn=1, step=1))["messages"] == running["messages"][:1]
            assert openai_faults((await ask("session/context", format="openai"))["messages"]) == []
            assert anthropic_faults((await ask("session/context", format="anthropic"))["messages"]) == []
            repaired = (await ask("session/resume"))["repaired"]
            after = await ask("session/context")

    assert [item["kind"] for item in repaired] == ["toolResult", "toolResult", "stepEnd", "turnEnd"]
    assert after["sources"][2:] == [[repaired[0]["entryId"]], [repaired[1]["entryId"]]]
    assert [{k: v for k, v in m.items() if k != "timestamp"} for m in after["messages"][2:]] == before["messages"][2:]


@in_loop
async def test_sessions_of_pi_show_what_pi_shows(tmp_path: Path) -> None:
    """Only our own marks say that a turn is open; derived turns get no results that nobody wrote."""
    call = {"id": "c1", "name": "bash", "arguments": {}}
    log = [user("u", None, "hi"), assistant("a", "u", calls=[call]), tool_result("t", "a", "c0", "of another")]
    write_log(tmp_path / "sessions" / "--p--" / "2026-01-01T00-00-00-000Z_s1.jsonl", log)
    with Daemon(tmp_path / "dshd", tmp_path / "sessions") as daemon:
        async with daemon.client() as client:
            shown = await client.request("session/context", sessionId="s1")
            for_openai = await client.request("session/context", sessionId="s1", format="openai")
            with pytest.raises(RpcError) as refused:
                await client.request("session/request", sessionId="s1", turn=1, step=1)

    assert shown["messages"] == [item["message"] for item in log]
    assert refused.value.kind == "notRecorded"
    assert for_openai["sources"] == [["u"], ["a"], [], ["t"]]
    assert "system" not in for_openai


@in_loop
async def test_the_system_prompt_stands_apart_for_anthropic(tmp_path: Path) -> None:
    system = entry("message", "s", None, message={"role": "system", "content": "Be kind"})
    write_log(tmp_path / "sessions" / "--p--" / "2026-01-01T00-00-00-000Z_s1.jsonl", [system, user("u", "s", "hi")])
    with Daemon(tmp_path / "dshd", tmp_path / "sessions") as daemon:
        async with daemon.client() as client:
            shown = await client.request("session/context", sessionId="s1", format="anthropic")

    assert shown["system"] == "Be kind"
    assert shown["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert shown["sources"] == [["u"]]
