"""Agents and daemons that die at any moment of their work: what was answered is there, what was open gets closed."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.client import Client, RpcError
from tests.running import Daemon
from tests.test_providers import anthropic_faults, openai_faults

STEPS = 1_000
DEATHS = 0.04  # of the steps end with one
HEADERS = [{"config": {"model": name}, "system": f"You are {name}."} for name in ("m-1", "m-2")]


class Driver:
    """An agent that does something random but allowed next, and remembers what it was told is done."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.client: Client | None = None
        self.session = ""
        self.known: list[str] = []  # ids that an answer named
        self.turn = self.step = 0  # those open, 0 for none
        self.calls: list[str] = []  # without a result
        self.number = itertools.count(1)

    async def ask(self, method: str, **params: Any) -> Any:
        assert self.client is not None
        return await self.client.request(method, {"sessionId": self.session, **params})

    async def append(self, *entries: dict[str, Any]) -> None:
        self.known += (await self.ask("session/append", entries=list(entries)))["ids"]

    async def do(self) -> None:
        choices = [self.call, self.answer, self.end_step] if self.step else [self.begin_step, self.steer, self.end_turn]
        await self.random.choice(
            choices if self.turn else [self.begin_turn] * 4 + [self.go, self.compact, self.label]
        )()

    async def begin_turn(self) -> None:
        result = await self.ask("turn/start", content=f"prompt {next(self.number)}")
        self.known.append(result["entryId"])
        self.turn, self.calls = result["turn"], []

    async def begin_step(self) -> None:
        result = await self.ask("step/start", turn=self.turn, header=self.random.choice(HEADERS))
        self.known.append(result["entryId"])
        self.step = result["step"]

    async def call(self) -> None:
        made = [f"call_{next(self.number)}" for _ in range(self.random.randint(1, 3))]
        content = [{"type": "toolCall", "id": id_, "name": "bash", "arguments": {"command": "ls"}} for id_ in made]
        await self.append({"type": "message", "message": {"role": "assistant", "content": content}})
        self.calls += made

    async def answer(self) -> None:
        if not self.calls:
            text = self.random.choice(["", "Done.", "It works."])
            content = [{"type": "text", "text": text}] if text else []
            await self.append({"type": "message", "message": {"role": "assistant", "content": content}})
            return
        id_ = self.calls[0]
        begun = {"type": "tool_call", "turn": self.turn, "step": self.step, "callId": id_, "name": "bash"}
        await self.append(begun)
        content = [{"type": "text", "text": "a file"}]
        await self.append({"type": "message", "message": {"role": "toolResult", "toolCallId": id_, "content": content}})
        self.calls.remove(id_)

    async def steer(self) -> None:
        await self.append({"type": "message", "message": {"role": "user", "content": f"and {next(self.number)}"}})

    async def end_step(self) -> None:
        outcome = self.random.choice(["completed", "error", "aborted"])
        try:
            await self.ask("step/end", turn=self.turn, step=self.step, outcome=outcome)
        except RpcError as refused:
            if (refused.kind, outcome) != ("invalidEntry", "completed"):
                raise
        else:
            self.step = 0

    async def end_turn(self) -> None:
        kind = self.random.choice(["completed", "aborted", "error", "blocked", "max-tokens"])
        await self.ask("turn/end", turn=self.turn, reason={"kind": kind})
        self.turn, self.calls = 0, []

    async def go(self) -> None:
        if self.known:
            await self.ask("session/navigate", targetId=self.random.choice(self.known))

    async def compact(self) -> None:
        ids = (await self.ask("session/path"))["ids"]
        if ids:
            kept = self.random.choice(ids)
            await self.append({"type": "compaction", "summary": "so far", "firstKeptEntryId": kept, "tokensBefore": 9})

    async def label(self) -> None:
        if self.known:
            await self.ask("session/label", entryId=self.random.choice(self.known), label="here")


@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_dies_when_every_resume_gives_what_a_provider_takes(tmp_path: Path, seed: int):
    """Kills of the agent's connection and of the daemon at random points of 1,000 steps."""
    asyncio.run(work(Driver(seed), Daemon(tmp_path / "home")))


async def work(driver: Driver, daemon: Daemon) -> None:
    daemon.start()
    try:
        driver.client = await daemon.client("agent")
        created = await driver.ask("session/create", cwd="/tmp", sessionId="driven")
        driver.session = created["sessionId"]
        await driver.ask("session/resume")
        for _ in range(STEPS // 2):
            if driver.random.random() > DEATHS:
                await driver.do()
                continue
            await die(driver, daemon)
            await resumed(driver)
    finally:
        if driver.client is not None:
            await driver.client.close()
        daemon.stop()


async def die(driver: Driver, daemon: Daemon) -> None:
    """In the middle of a request end the agent, or the daemon, or both; come back."""
    assert driver.client is not None
    task = asyncio.create_task(driver.do())
    await asyncio.sleep(driver.random.choice([0, 0, 0.001, 0.002, 0.004]))
    if driver.random.random() < 0.4:
        daemon.kill()
        await asyncio.wait([task])
        await driver.client.close()
        daemon.start()
    else:
        await driver.client.close()
        await asyncio.wait([task])
    assert task.exception() is None or isinstance(task.exception(), ConnectionError)
    driver.client = await daemon.client("agent")


async def resumed(driver: Driver) -> None:
    """Take the session again and look at everything that must hold then."""
    assert driver.client is not None
    before = await driver.ask("session/open", subscribe=False)
    while True:
        try:
            state = await driver.ask("session/resume")
            break
        except RpcError as refused:  # the daemon is still seeing the old connection off
            if refused.kind != "agentBusy":
                raise
            await asyncio.sleep(0.01)
    assert state["openTurn"] is None
    assert state["sessionId"] == before["sessionId"]
    for some in chunks(driver.known):
        assert (await driver.ask("session/entries", ids=some))["missing"] == []
    if state["repaired"]:
        assert state["repaired"][-1]["kind"] == "turnEnd"
        assert (await driver.ask("session/turns"))["turns"][-1]["reason"] == {"kind": "interrupted"}
    listed = (await driver.ask("session/turns"))["turns"]
    numbers = [turn["turn"] for turn in listed]
    assert numbers == sorted(set(numbers))
    assert state["nextTurn"] == max(numbers, default=0) + 1
    assert openai_faults((await driver.ask("session/context", format="openai"))["messages"]) == []
    assert anthropic_faults((await driver.ask("session/context", format="anthropic"))["messages"]) == []
    path = Path(state["path"])
    bytes_ = path.read_bytes()
    await driver.ask("session/release")
    again = await driver.ask("session/resume")
    assert again["repaired"] == []
    assert path.read_bytes() == bytes_
    driver.turn = driver.step = 0
    driver.calls = []


def chunks(ids: list[str]) -> list[list[str]]:
    return [ids[i : i + 200] for i in range(0, len(ids), 200)]
