"""Navigate with us, go on in the real pi or omp by the command of session/launch: it starts where the leaf is."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.client import Client, RpcError
from tests.peers import MockModel, OmpProcess, PiProcess, on_path
from tests.running import Daemon
from tests.wire import in_loop

pytestmark = pytest.mark.timeout(600)  # the first test may have to install the peers

START = {"pi": PiProcess, "omp": OmpProcess}
ONCE = {"pi": ["--offline"], "omp": ["--no-title", "--no-lsp"]}  # beside -p: ask once and leave


class Place:
    """A session of three turns that a real agent wrote, and a daemon that sees it."""

    def __init__(self, agent: str, tmp_path: Path, model: MockModel) -> None:
        self.agent, self.model = agent, model
        self.home, self.cwd = tmp_path / "home", tmp_path / "project"
        self.daemon = Daemon(tmp_path / "dshd", self.home / f".{agent}" / "agent" / "sessions")
        with START[agent](model, self.home, self.cwd) as process:
            for number in ("one", "two", "three"):
                process.prompt(f"prompt {number}\nSAY answer {number}")
            self.path = process.session_file

    def answers(self, path: Path | None = None) -> dict[str, str]:
        """Ids of what the model said."""
        messages = [r for r in records(path or self.path) if r.get("message", {}).get("role") == "assistant"]
        return {record["message"]["content"][0]["text"]: record["id"] for record in messages}

    async def run(self, told: dict[str, Any], prompt: str) -> list[str]:
        """Start the agent as told, for one prompt; what the model was asked with: the texts of user and assistant."""
        self.model.requests.clear()
        argv = [*told["argv"], *ONCE[self.agent], "-p", prompt]
        environment = {**on_path(self.model, self.home), **told.get("env", {})}
        done = await asyncio.to_thread(
            subprocess.run, argv, cwd=told["cwd"], env=environment, capture_output=True, stdin=subprocess.DEVNULL,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        said = [m for m in self.model.requests[-1]["messages"] if m["role"] in {"user", "assistant"}]
        return [text(message) for message in said]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(part) for part in path.read_bytes().split(b"\n") if part]


def text(message: dict[str, Any]) -> str:
    content = message["content"]
    parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    # omp tells the date in front of the first prompt.
    return "\n".join(parts).rpartition("</system-reminder>\n")[2].partition("\nSAY")[0]


def above(path: Path, id_: str) -> list[str]:
    """Ids from an entry up to the root."""
    parents = {record["id"]: record.get("parentId") for record in records(path) if "parentId" in record}
    found = [id_]
    while (parent := parents[found[-1]]) is not None:
        found.append(parent)
    return found


async def at_first_answer(client: Client, place: Place) -> str:
    """Navigate to the first answer; the id of the session."""
    session = (await client.request("session/open", path=str(place.path)))["sessionId"]
    await client.request("session/navigate", sessionId=session, targetId=place.answers()["answer one"])
    return session


PROMPT = "another way\nSAY here"


@pytest.mark.parametrize("agent", ["pi", "omp"])
@in_loop
async def test_the_agent_goes_on_at_the_place_to_which_we_navigated(agent: str, tmp_path: Path) -> None:
    with MockModel() as model:
        place = Place(agent, tmp_path, model)
        first, before = place.answers()["answer one"], place.path.read_bytes()
        with place.daemon as daemon:
            async with daemon.client() as client:
                session = await at_first_answer(client, place)
                told = await client.request("session/launch", sessionId=session)
                assert told["cwd"] == str(place.cwd)
                assert "env" not in told
                asked = await place.run(told, PROMPT)
                tree = await client.request("session/leaves", sessionId=session)
    assert asked == ["prompt one", "answer one", "another way"]
    assert place.path.read_bytes().startswith(before)
    line = above(place.path, place.answers()["here"])
    assert told["pinnedEntryId"] in line
    assert line.index(told["pinnedEntryId"]) == line.index(first) - 1
    assert place.answers()["answer three"] not in line
    assert len(tree["items"]) == 2


@pytest.mark.parametrize("agent", ["pi", "omp"])
@in_loop
async def test_without_keeping_the_leaf_it_goes_on_at_the_last_line(agent: str, tmp_path: Path) -> None:
    with MockModel() as model:
        place = Place(agent, tmp_path, model)
        before = place.path.read_bytes()
        with place.daemon as daemon:
            async with daemon.client() as client:
                session = await at_first_answer(client, place)
                told = await client.request("session/launch", sessionId=session, keepLeaf=False)
                assert place.path.read_bytes() == before
                asked = await place.run(told, PROMPT)
    assert asked[-3:] == ["prompt three", "answer three", "another way"]
    assert place.answers()["answer three"] in above(place.path, place.answers()["here"])


@pytest.mark.parametrize("agent", ["pi", "omp"])
@in_loop
async def test_the_agents_own_fork_starts_there_too_and_leaves_the_source_alone(agent: str, tmp_path: Path) -> None:
    with MockModel() as model:
        place = Place(agent, tmp_path, model)
        folder = place.path.parent
        with place.daemon as daemon:
            async with daemon.client() as client:
                session = await at_first_answer(client, place)
                told = await client.request("session/launch", sessionId=session, action="fork")
                before = place.path.read_bytes()
                assert await place.run(told, PROMPT) == ["prompt one", "answer one", "another way"]
                (made,) = set(folder.glob("*.jsonl")) - {place.path}
                child = await client.request("session/open", path=str(made))
                family = await client.request("session/family", sessionId=session)
    assert place.path.read_bytes() == before
    assert child["parentSessionId"] == session
    assert [member["sessionId"] for member in family["sessions"]] == [session, child["sessionId"]]
    assert place.answers(made).keys() >= {"answer three", "here"}


@in_loop
async def test_what_omp_has_open_is_not_started_a_second_time(tmp_path: Path) -> None:
    with MockModel() as model:
        place = Place("omp", tmp_path, model)
        with place.daemon as daemon, OmpProcess(model, place.home, place.cwd, resume=place.path) as process:
            await asyncio.to_thread(process.prompt, "SAY I hold it")
            async with daemon.client() as client:
                session = await at_first_answer(client, place)
                before = place.path.read_bytes()
                for params in ({}, {"keepLeaf": False}, {"action": "fork"}):
                    with pytest.raises(RpcError, match="omp has this session open") as caught:
                        await client.request("session/launch", sessionId=session, **params)
                    assert caught.value.data["holder"]["pid"] == process.pid
                assert place.path.read_bytes() == before
                told = await client.request("session/launch", sessionId=session, action="fork", keepLeaf=False)
                assert told["argv"] == ["omp", "--fork", str(place.path)]


@pytest.mark.parametrize("agent", ["pi", "omp"])
@in_loop
async def test_a_fork_that_we_made_is_continued_by_its_owner(agent: str, tmp_path: Path) -> None:
    """By a derived turn; the owner lists it as a child of its source."""
    with MockModel() as model:
        place = Place(agent, tmp_path, model)
        before = place.path.read_bytes()
        with place.daemon as daemon:
            async with daemon.client() as client:
                session = (await client.request("session/open", path=str(place.path)))["sessionId"]
                boundary = place.answers()["answer two"]
                done = await client.request("session/fork", sessionId=session, boundary=boundary)
                told = await client.request("session/launch", sessionId=done["session"]["sessionId"])
                assert "pinnedEntryId" not in told
                asked = await place.run(told, PROMPT)
    assert asked == ["prompt one", "answer one", "prompt two", "answer two", "another way"]
    assert place.path.read_bytes() == before
    made = Path(done["session"]["path"])
    assert place.answers(made).keys() == {"answer one", "answer two", "here"}
