"""We and a running pi or omp on one session file: each keeps what the other wrote."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.client import Client, RpcError
from dsh_daemon.holders import loaders
from dsh_daemon.log.formats.omp_lock import omp_lock
from tests.peers import MockModel, OmpProcess, PiProcess, assistant, holds, omp, op, pi, user
from tests.peers_support import daemon_view, differences, our_view
from tests.running import Daemon, Follower, eventually
from tests.wire import in_loop, wait_for

pytestmark = pytest.mark.timeout(600)  # the first test may have to install the peers

TOOL = 'CALL bash {"command":"seq 2000"}\nTHEN\nSAY counted'


class Place:
    """A home and a project for a peer, and a daemon that looks into the sessions of that home."""

    def __init__(self, tmp_path: Path) -> None:
        self.home, self.cwd = tmp_path / "home", tmp_path / "project"
        agents = [self.home / ".pi" / "agent" / "sessions", self.home / ".omp" / "agent" / "sessions"]
        self.daemon = Daemon(tmp_path / "dshd", ":".join(map(str, agents)))

    def omp(self, model: MockModel, resume: Path | None = None) -> OmpProcess:
        return OmpProcess(model, self.home, self.cwd, resume=resume)

    def pi(self, model: MockModel, session: Path | None = None) -> PiProcess:
        return PiProcess(model, self.home, self.cwd, session=session)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(part) for part in path.read_bytes().split(b"\n") if part]


def texts(path: Path) -> list[str]:
    """What was said, in file order."""
    messages = [record["message"] for record in records(path) if record["type"] == "message"]
    return [block["text"] for message in messages for block in blocks(message) if block["type"] == "text"]


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


async def elsewhere(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A peer's blocking call, while the loop goes on receiving from the daemon."""
    return await asyncio.to_thread(function, *args, **options)


async def session_of(client: Client, path: Path) -> str:
    return (await client.request("session/open", path=str(path), subscribe=False))["sessionId"]


async def listed(client: Client, path: Path) -> dict[str, Any] | None:
    items = (await client.request("session/list"))["items"]
    return next((item for item in items if item["path"] == str(path)), None)


@in_loop
async def test_omp_goes_on_saving_and_keeps_our_label_even_when_it_rewrites_the_whole_file(place: Place) -> None:
    with MockModel() as model, place.daemon as daemon:
        with place.omp(model) as process:
            process.prompt(TOOL)
            for turn in range(6):  # more than omp protects from its own pruning
                process.prompt("SAY " + " ".join(f"word{turn}{number}" for number in range(600)))
            path = process.session_file
            assert holds(process, path)
        async with daemon.client() as client:
            session = await session_of(client, path)
            state = await client.request("session/open", sessionId=session)
            label = await client.request("session/label", sessionId=session, entryId=state["leafId"], label="here")
            note = {"type": "custom", "customType": "note", "data": 1}
            sent = {"type": "message", "message": {"role": "user", "content": "from outside"}}
            added = await client.request("session/append", sessionId=session, entries=[note, sent])
            assert label["stored"] == "log"

            with place.omp(model, resume=path) as process:
                assert process.session_file == path
                await elsewhere(process.prompt, "SAY still here")
                before = path.stat().st_ino, path.stat().st_size
                await elsewhere(process.request, "prompt", message="/shake elide")
                await eventually(lambda: path.stat().st_ino != before[0] and path.stat().st_size < before[1])
                await elsewhere(process.prompt, "SAY after the rewrite")

            view = await daemon_view(client, session)
        (seen,) = omp().load([path])

    assert {"from outside", "still here", "after the rewrite"} <= set(texts(path))
    assert seen["labels"] == {state["leafId"]: "here"} == view["labels"]
    assert {label["labelEntryId"], *added["ids"]} <= set(seen["paths"][seen["leafId"]])
    assert seen["context"]["messages"][-1]["content"] == [{"type": "text", "text": "after the rewrite"}]
    assert differences(seen, view) == []
    assert differences(seen, our_view(path)) == []


@in_loop
async def test_what_omp_holds_is_refused_and_untouched_and_taken_as_soon_as_it_has_gone(place: Place) -> None:
    with MockModel() as model, place.daemon as daemon:
        async with daemon.client() as client:
            with place.omp(model) as process:
                process.prompt("SAY hello")
                path, pid = process.session_file, process.pid
                await is_refused_unheld(client, process, path)
                process.prompt("SAY again")
                assert holds(process, path)
                session = await session_of(client, path)
                state = await client.request("session/open", sessionId=session)
                before = path.read_bytes()
                entry = {"type": "custom", "customType": "note", "data": 1}
                writes: dict[str, dict[str, Any]] = {
                    "append": {"entries": [entry]},
                    "label": {"entryId": state["leafId"], "label": "mine"},
                    "rename": {"title": "Mine"},
                    "moveLeaf": {"entryId": state["leafId"], "summary": {"text": "left"}},
                    "delete": {},
                }
                for verb, params in writes.items():
                    refused = await refusal(client.request(f"session/{verb}", sessionId=session, **params))
                    assert refused is not None, verb
                    assert refused.kind == "agentBusy", verb
                    holder = refused.data["holder"]
                    assert (holder["client"], holder["pid"]) == ("omp", pid), verb
                assert path.read_bytes() == before
                assert not path.with_name(f".{path.name}.lock").exists()
                item = await listed_when(client, path, lambda live: live is not None and live["certain"])
                assert (item["live"]["client"], item["live"]["pid"]) == ("omp", pid)
                assert not any(item["can"][verb] for verb in ("append", "label", "rename"))
                await client.request("session/moveLeaf", sessionId=session, entryId=None)  # writes nothing
                await client.request("session/moveLeaf", sessionId=session, entryId=state["leafId"])

                await elsewhere(process.stop)
            for verb, params in writes.items():
                if verb in {"label", "append", "rename"}:
                    await client.request(f"session/{verb}", sessionId=session, **params)
            await listed_when(client, path, lambda live: live is None)

        (seen,) = omp().load([path])
        assert seen["labels"] == {state["leafId"]: "mine"}
        assert seen["name"] == "Mine"
        kinds = {item["id"]: item["type"] for item in seen["entries"]}
        assert [kinds[id_] for id_ in seen["paths"][seen["leafId"]]][-3:] == ["custom", "label", "title_change"]


@in_loop
async def test_a_session_that_omp_has_in_its_memory_alone_is_refused_and_the_one_beside_it_is_not(place: Place) -> None:
    """omp opens its file at the first append after a start or a rewrite; it minds foreign lines all the same."""
    folder = place.home / ".omp" / "agent" / "sessions" / "-project"
    path, beside = folder / "2026-01-01T00-00-00-000Z_one.jsonl", folder / "2026-01-01T00-00-00-000Z_two.jsonl"
    place.cwd.mkdir()
    for made in (path, beside):
        omp().script(made, [op("appendMessage", user("begin")), op("appendMessage", assistant("yes"))], cwd=place.cwd)
    with MockModel() as model, place.daemon as daemon:
        async with daemon.client() as client:
            with place.omp(model, path) as process:
                await is_refused_unheld(client, process, path)
                await elsewhere(process.prompt, "SAY now it holds one")
                assert holds(process, path)
                await label(client, beside)
            await label(client, path)

    for seen in omp().load([path, beside]):
        assert list(seen["labels"].values()) == ["mine"]


async def label(client: Client, path: Path) -> Any:
    state = await client.request("session/open", path=str(path), subscribe=False)
    return await client.request("session/label", sessionId=state["sessionId"], entryId=state["leafId"], label="mine")


async def is_refused_unheld(client: Client, process: OmpProcess, path: Path) -> None:
    assert not holds(process, path)
    before = path.read_bytes()
    refused = await refusal(label(client, path))
    assert refused is not None
    assert (refused.kind, refused.data["holder"]["pid"]) == ("agentBusy", process.pid)
    assert path.read_bytes() == before
    item = await listed(client, path)
    assert item is not None
    assert item["live"] is not None
    assert (item["live"]["pid"], item["live"]["certain"], item["can"]["label"]) == (process.pid, False, False)


async def refusal(request: Awaitable[Any]) -> RpcError | None:
    try:
        await request
    except RpcError as error:
        return error
    return None


async def listed_when(client: Client, path: Path, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """How the session is listed as soon as its `live` is as wished; a list looks at processes every two seconds."""
    found: list[dict[str, Any]] = []

    async def look() -> bool:
        item = await listed(client, path)
        found[:] = [] if item is None else [item]
        return bool(found) and wanted(found[0]["live"])

    await eventually(look)
    return found[0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_an_omp_in_a_terminal_has_the_session_that_it_noted_for_that_terminal(tmp_path: Path) -> None:
    """The note is omp's own (`terminal-sessions`); the process only has its name and a terminal."""
    folder = tmp_path / "agent" / "sessions" / "-project"
    one, two = folder / "one.jsonl", folder / "two.jsonl"
    main, terminal = os.openpty()
    note = tmp_path / "agent" / "terminal-sessions" / os.ttyname(terminal).removeprefix("/dev/").replace("/", "-")
    note.parent.mkdir(parents=True)
    process = subprocess.Popen(["omp", "60"], executable=shutil.which("sleep"), stdin=terminal, cwd=tmp_path)
    try:
        wait_for(lambda: process.pid in loaders(str(one), str(tmp_path), "one"))
        assert process.pid in loaders(str(two), str(tmp_path), "two")
        note.write_text(f"{tmp_path}\n{one}\n")
        assert process.pid in loaders(str(one), "/elsewhere", "one")
        assert process.pid not in loaders(str(two), str(tmp_path), "two")
    finally:
        process.kill()
        process.wait()
        os.close(main)
        os.close(terminal)


def test_omp_waits_for_our_lock_and_we_for_its_lock(place: Place) -> None:
    with MockModel() as model, place.omp(model) as process:
        process.prompt("SAY hello")
        path = process.session_file
        size = path.stat().st_size
        answered = threading.Event()

        def prompt() -> None:
            process.prompt("SAY while you held it")
            answered.set()

        with omp_lock(str(path)):
            thread = threading.Thread(target=prompt)
            thread.start()
            time.sleep(0.3)  # omp gives up after 0.5 s
            assert path.stat().st_size == size
        thread.join(30)
        assert answered.is_set()
        wait_for_text(path, "while you held it")

        # Both in turn, many times, while omp writes a turn of many lines.
        taken, busy = 0, threading.Event()

        def take() -> None:
            nonlocal taken
            while not busy.is_set():
                with omp_lock(str(path)):
                    taken += 1

        thread = threading.Thread(target=take)
        thread.start()
        try:
            process.prompt(
                "\nTHEN\n".join([*(f'CALL bash {{"command":"echo {n}"}}' for n in range(8)), "SAY many lines"])
            )
        finally:
            busy.set()
            thread.join()
        wait_for_text(path, "many lines")
        results = [record for record in records(path) if record.get("message", {}).get("role") == "toolResult"]
        assert len(results) == 8
        assert taken > 10
        assert process.stop() == 0
    assert "SessionLockError" not in process.stderr.read_text(errors="replace")


def wait_for_text(path: Path, text: str) -> None:
    wait_for(lambda: text in texts(path), 20)


@in_loop
async def test_what_a_running_pi_writes_is_with_our_followers_in_a_second_and_our_label_stays(place: Place) -> None:
    with MockModel() as model, place.daemon as daemon:
        async with daemon.client() as client, daemon.client("other") as other:
            with place.pi(model) as process:
                await elsewhere(process.prompt, "SAY hello")
                path = process.session_file
                session = await session_of(client, path)
                followers = [Follower(client, session), Follower(other, session)]
                for follower in followers:
                    await follower.open()

                await elsewhere(process.prompt, TOOL)
                written = {record["id"] for record in records(path)[1:]}
                await eventually(lambda: all(written <= set(follower.entries) for follower in followers), within=1)
                assert all(change["cause"] == "external" for change in followers[0].changes)

                prompt = next(record["id"] for record in records(path) if "seq 2000" in str(record))
                label = await client.request("session/label", sessionId=session, entryId=prompt, label="counted")
                item = await listed(client, path)
                assert item is not None
                assert item["live"] is not None
                assert (item["live"]["client"], item["live"]["certain"]) == ("pi", False)
                assert item["can"]["label"]

                await elsewhere(process.prompt, "SAY and on")
                written = {record["id"] for record in records(path)[1:]}
                await eventually(lambda: all(written == set(follower.entries) for follower in followers), within=1)
                assert label["labelEntryId"] in written
                assert all(follower.labels == {prompt: "counted"} for follower in followers)
                assert all(follower.gaps == 0 for follower in followers)
                own = await elsewhere(process.request, "get_entries")
            view = await daemon_view(client, session)

        (seen,) = pi().load([path])
    # The running pi does not see our line; the next one does.
    assert {entry["id"] for entry in own["entries"]} == written - {label["labelEntryId"]}
    assert seen["labels"] == {prompt: "counted"}
    assert {"hello", "counted", "and on"} <= set(texts(path))
    assert differences(seen, view) == []


@pytest.mark.parametrize("owner", ["pi", "omp"])
@in_loop
async def test_a_branch_that_we_made_is_listed_and_resumed_by_the_owner_of_its_source(owner: str, place: Place) -> None:
    start, oracle = {"pi": (place.pi, pi()), "omp": (place.omp, omp())}[owner]
    with MockModel() as model, place.daemon as daemon:
        with start(model) as process:
            process.prompt("first\nSAY one")
            process.prompt("second\nSAY two")
            path = process.session_file
        prompts = [record for record in records(path) if record.get("message", {}).get("role") == "user"]
        second = prompts[1]["id"]
        async with daemon.client() as client:
            session = await session_of(client, path)
            await client.request("session/label", sessionId=session, entryId=second, label="fork here")
            await client.request("session/rename", sessionId=session, title="The source")
            source = path.read_bytes()
            made = [
                await client.request("session/branch", sessionId=session, entryId=second, position=position)
                for position in ("before", "at")
            ]
        assert path.read_bytes() == source
        children = [Path(result["path"]) for result in made]
        with start(model, children[1]) as process:
            assert process.session_file == children[1]
            process.prompt("third\nSAY three")

    found = oracle.script(path, [op("list", str(place.cwd), str(path.parent), name="list")])["results"]["list"]
    assert {str(path), *map(str, children)} == {item["path"] for item in found}
    before, at = oracle.load(children)
    assert said(before) == ["first\nSAY one", "one"]
    assert said(at) == ["first\nSAY one", "one", "second\nSAY two", "third\nSAY three", "three"]
    assert (before["labels"], at["labels"]) == ({}, {second: "fork here"})
    for seen in (before, at):
        assert seen["header"]["parentSession"] == str(path)
        assert seen["name"] == "The source"
        assert not seen["rewritten"]
        assert differences(seen, our_view(seen["path"])) == []


def said(seen: dict[str, Any]) -> list[str]:
    messages = [message for message in seen["context"]["messages"] if message["role"] != "system"]
    return [block["text"] for message in messages for block in blocks(message) if "text" in block]
