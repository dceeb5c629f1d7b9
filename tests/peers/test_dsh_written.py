"""What we write into a DSH home is to the real dsh as if it had written it itself."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dsh_daemon.client import Client, RpcError
from tests.running import Daemon, eventually
from tests.wire import in_loop

from . import DshProcess, MockModel, dsh
from .dsh_checks import TOOL, assert_of_a_piece, conversation, frames, kinds, opened, wait_for_event
from .dsh_events import MODEL_SOURCE, Event, Events, header
from .dsh_peer import COMPRESSION, Facts, fork, session_id, write

pytestmark = pytest.mark.timeout(600)  # the first test may have to install the peers


class Place:
    """A DSH home with a project, a daemon that looks into its sessions, and dsh itself there."""

    def __init__(self, tmp_path: Path) -> None:
        self.home, self.cwd = tmp_path / "home", tmp_path / "project"
        self.cwd.mkdir()
        self.root = self.home / ".dsh" / "sessions"
        self.daemon = Daemon(tmp_path / "dshd", self.root)

    def make(self, name: str, *batches: Sequence[Event], compression: str = "zstd", **more: Any) -> Path:
        """A session that dsh's own packages wrote into this home."""
        dsh().make(self.root, [write(header(name, str(self.cwd), **more), *batches)], compression=compression)
        (path,) = self.root.glob(f"*/{name}/session.jsonl*")
        return path

    def dsh(self, model: MockModel, resume: str | None = None) -> DshProcess:
        return DshProcess(model, self.home, self.cwd, resume=resume)

    def goes_on(self, path: Path) -> None:
        """dsh lists and loads the log of `path`, says something in it, and has all that was said before."""
        (seen,) = dsh().load([path])
        assert_of_a_piece(seen)
        assert seen["kept"]
        name = session_id(path.parent.name)
        assert name in dsh().listed(self.root)
        turns = [event["data"]["turn"] for event in seen["stored"]["events"] if event["type"] == "turn/start"]
        with MockModel() as model:
            with self.dsh(model, resume=name) as process:
                assert process.messages() == seen["inspected"]["messages"]
                process.prompt("SAY and on")
                messages = process.messages()
            assert len(model.requests) == 1
        assert messages[-1]["content"] == [{"type": "text", "text": "and on"}]
        (then,) = dsh().load([path])
        assert_of_a_piece(then)
        events = then["stored"]["events"]
        assert events[: len(seen["stored"]["events"])] == seen["stored"]["events"]
        last = [event["data"]["turn"] for event in events if event["type"] == "turn/start"][-1]
        assert last == max(turns, default=0) + 1


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def session_of(client: Client, path: Path) -> str:
    return (await client.request("session/open", path=str(path), subscribe=False))["sessionId"]


async def refusal(client: Client, method: str, **params: Any) -> RpcError:
    with pytest.raises(RpcError) as refused:
        await client.request(method, **params)
    return refused.value


def ends(events: Sequence[Event]) -> list[int]:
    return [event["seq"] for event in events if event["type"] == "turn/end"]


def timeless(events: Sequence[Event]) -> list[Event]:
    """Without the time of the marks that whoever opens a session makes at that moment."""
    return [{**event, "time": 0} if event["type"] == "session/end-seed" else event for event in events]


def assert_in_the_manner_of_dsh(path: Path) -> None:
    """Private, in whole checksummed frames of which the first is the header alone, with nothing beside it."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in path.parents[:2]} == {0o700}
    assert os.listdir(path.parent) == [path.name]
    if path.suffix != ".zstd":
        assert path.read_bytes().endswith(b"\n")
        return
    parts = frames(path.read_bytes())
    assert all(zstandard.get_frame_parameters(part).has_checksum for part in parts)
    texts = [zstandard.ZstdDecompressor().decompressobj().decompress(part) for part in parts]
    assert [text.count(b"\n") for text in texts[:1]] == [1]
    assert all(text.endswith(b"\n") for text in texts)


# Fork


@pytest.mark.parametrize("compression", COMPRESSION.values())
@in_loop
async def test_our_fork_is_the_fork_that_dsh_makes(compression: str, place: Place) -> None:
    events = conversation()
    path = place.make("one", events[:9], events[9:], compression=compression, agentPreset="general")
    source = path.read_bytes()
    for number, boundary in enumerate([None, ends(events)[0], ends(events)[1] + 2]):
        child, twin = f"ours_{number}", f"theirs-{number}"
        with place.daemon as daemon:
            async with daemon.client() as client:
                session = await session_of(client, path)
                where = {} if boundary is None else {"boundary": str(boundary)}
                made = await client.request("session/fork", sessionId=session, childSessionId=child, **where)
        copied = len(events) if boundary is None else boundary + 1
        assert (made["seedLength"], made["boundary"]) == (copied, str(copied - 1))
        dsh().make(place.root, [fork("one", twin, copied - 1)], compression=compression)
        forked = Path(made["session"]["path"])
        assert forked == path.parent.parent / child / path.name
        assert_in_the_manner_of_dsh(forked)
        ours, theirs = dsh().load([forked, path.parent.parent / twin / path.name], resume=False)
        about = {**theirs["stored"]["header"], "id": child, "createdAt": ours["stored"]["header"]["createdAt"]}
        assert ours["stored"]["header"] == about | {"agentPreset": "general"}  # as the browser's fork keeps it
        assert timeless(ours["stored"]["events"]) == timeless(theirs["stored"]["events"])
        if compression == "zstd":  # the encoding for which dsh is set up there
            place.goes_on(forked)
    assert path.read_bytes().startswith(source)


@in_loop
async def test_a_fork_inside_a_turn_is_refused_as_dsh_refuses_it(place: Place) -> None:
    events = conversation()
    path = place.make("one", events)
    listed = sorted(path.parent.parent.iterdir())
    with place.daemon as daemon:
        async with daemon.client() as client:
            session = await session_of(client, path)
            inside = str(ends(events)[0] + 3)
            refused = await refusal(client, "session/fork", sessionId=session, boundary=inside)
            assert (refused.kind, refused.data["turn"]) == ("boundaryInTurn", 2)
            again = {"boundary": str(ends(events)[0]), "childSessionId": "one"}
            assert (await refusal(client, "session/fork", sessionId=session, **again)).kind == "alreadyExists"
    assert sorted(path.parent.parent.iterdir()) == listed


@in_loop
async def test_a_prompt_that_waited_in_the_source_does_not_run_in_the_fork(place: Place) -> None:
    """dsh plays what waited again, but not from the events that the header calls the seed."""
    events = Events()
    events.turn("one", "first")
    waiting = {"content": [{"type": "text", "text": "SAY waited"}], "source": {"kind": "user"}, "role": "user"}
    spliced = {"target": "next-turn", "start": 0, "inserted": [{**waiting, "id": "q1"}]}
    events.add("agent/inbox/spliced", spliced)
    path = place.make("one", events)
    with place.daemon as daemon:
        async with daemon.client() as client:
            made = await client.request("session/fork", sessionId=await session_of(client, path))
    place.goes_on(Path(made["session"]["path"]))


@in_loop
async def test_a_session_that_dsh_is_running_can_be_forked_but_not_written(place: Place) -> None:
    with MockModel() as model, place.daemon as daemon:
        async with daemon.client() as client:
            with place.dsh(model) as process:
                await asyncio.to_thread(process.prompt, TOOL)
                path = process.session_file
                before = path.read_bytes()
                session = await session_of(client, path)
                refused = await refusal(client, "session/resume", sessionId=session)
                assert (refused.kind, refused.data["holder"]["pid"]) == ("agentBusy", process.pid)
                made = await client.request("session/fork", sessionId=session)
                assert path.read_bytes() == before
                await asyncio.to_thread(process.prompt, "SAY more")
            await eventually(lambda: resumed(client, session))
    place.goes_on(Path(made["session"]["path"]))
    place.goes_on(path)


async def resumed(client: Client, session: str) -> bool:
    try:
        await client.request("session/resume", sessionId=session)
    except RpcError as error:
        if error.kind != "agentBusy":
            raise
        return False
    return True


# Append


async def our_turn(client: Client, session: str, text: str, answer: str) -> None:
    """A turn with a tool, as an agent that is connected to us runs it."""

    async def ask(method: str, **params: Any) -> Any:
        return await client.request(method, sessionId=session, **params)

    config = {"provider": "deepseek-official", "model": "deepseek-v4-flash"}
    turn = (await ask("turn/start", content=text))["turn"]
    step = (await ask("step/start", turn=turn, header={"config": config}))["step"]
    where = {"turn": turn, "step": step}
    call = {"type": "tool-call", "id": "call_ours", "name": "bash", "arguments": "{}"}
    said = {"role": "assistant", "content": [call], "source": MODEL_SOURCE, "id": "ours-1"}
    block = {"type": "tool-result", "toolCallId": "call_ours", "content": [{"type": "text", "text": "done\n"}]}
    source = {"kind": "tool", "callId": "call_ours"}
    result = {"role": "user", "source": source, "content": [block | {"isError": False}], "id": "ours-2"}
    entries = [
        {"type": "assistant/message", "data": {**where, "message": said}, "surfaceOp": "append"},
        {"type": "tool/call", "data": {**where, "callId": "call_ours", "name": "bash", "arguments": "{}"}},
        {"type": "tool/result", "data": {**where, "message": result}, "surfaceOp": "append"},
    ]
    await ask("session/append", entries=entries)
    await ask("step/end", turn=turn, step=step)
    where["step"] = (await ask("step/start", turn=turn))["step"]
    content = [{"type": "text", "text": answer}]
    said = {"role": "assistant", "content": content, "source": MODEL_SOURCE, "id": "ours-3"}
    entry = {"type": "assistant/message", "data": {**where, "message": said}, "surfaceOp": "append"}
    await ask("session/append", entries=[entry])
    await ask("step/end", **where)
    await ask("turn/end", turn=turn, reason={"kind": "completed"})


@pytest.mark.parametrize("compression", COMPRESSION.values())
@in_loop
async def test_a_turn_of_our_agent_is_one_of_dsh_and_each_goes_on_from_the_other(
    compression: str, place: Place
) -> None:
    events = conversation()
    path = place.make("one", events, compression=compression)
    source = path.read_bytes()
    with place.daemon as daemon:
        async with daemon.client("agent") as client:
            session = await session_of(client, path)
            await client.request("session/resume", sessionId=session)
            await our_turn(client, session, "four 中文 \u2028", "ours")
            await client.request("session/rename", sessionId=session, title="By us")
    assert path.read_bytes().startswith(source)
    assert_in_the_manner_of_dsh(path)
    (seen,) = dsh().load([path])
    assert_of_a_piece(seen)
    ours = seen["stored"]["events"][len(events) :]
    assert [kind for kind in kinds(ours) if kind.startswith(("turn", "tool", "assistant"))] == [
        "turn/start",
        "assistant/message",
        "tool/call",
        "tool/result",
        "assistant/message",
        "turn/end",
    ]
    assert {event["data"]["turn"] for event in ours if "turn" in event["data"]} == {4}
    assert [message["role"] for message in seen["stored"]["messages"][-4:]] == ["user", "assistant"] * 2
    assert [event["data"]["title"] for event in ours if event["type"] == "session/title"] == ["By us"]
    if compression == "zstd":
        place.goes_on(path)


@in_loop
async def test_what_dsh_would_not_read_is_not_written(place: Place) -> None:
    events = conversation()
    path = place.make("one", events)
    wrong: list[Facts] = [
        {"type": "from/elsewhere", "data": {}},
        {"type": "turn/start", "data": {"turn": 9}, "surfaceOp": "append"},
        {"type": "user/message", "data": {"role": "user", "content": []}, "surfaceOp": "append"},
        {"type": "session/title", "data": {"title": "x"}, "sourceEventSeqs": [1]},
        {"type": "assistant/chunk"},
    ]
    with place.daemon as daemon:
        async with daemon.client("agent") as client:
            session = await session_of(client, path)
            await client.request("session/resume", sessionId=session)
            before = path.read_bytes()
            for entry in wrong:
                refused = await refusal(client, "session/append", sessionId=session, entries=[entry])
                assert refused.kind == "invalidEntry", entry
            assert path.read_bytes() == before
            note = {"type": "from/elsewhere", "data": {"n": 1}, "ignorable": True}
            await client.request("session/append", sessionId=session, entries=[note])
    (seen,) = dsh().load([path])
    assert_of_a_piece(seen)
    assert seen["stored"]["events"][-1]["data"] == {"n": 1}


# Repair


@pytest.mark.parametrize("compression", COMPRESSION.values())
@pytest.mark.parametrize("called", [True, False])
@in_loop
async def test_we_close_an_interrupted_turn_with_the_events_that_dsh_would_write(
    called: bool, compression: str, place: Place
) -> None:
    path = place.make("one", opened(called=called), compression=compression)
    (theirs,) = dsh().load([path])
    with place.daemon as daemon:
        async with daemon.client("agent") as client:
            state = await client.request("session/resume", sessionId=await session_of(client, path))
    assert [item["kind"] for item in state["repaired"]] == ["toolResult", "toolResult", "stepEnd", "turnEnd"]
    (ours,) = dsh().load([path])
    assert_of_a_piece(ours)
    assert timeless(ours["after"]["events"]) == timeless(theirs["after"]["events"])
    if compression == "zstd":
        place.goes_on(path)


@pytest.mark.parametrize("prompt", ["HOLD half an ans", 'CALL bash {"command":"sleep 20","description":"wait"}'])
@in_loop
async def test_we_close_the_turn_of_a_dsh_that_was_killed(prompt: str, place: Place) -> None:
    with MockModel() as model, place.dsh(model) as process:
        process.prompt("SAY hello")
        path = process.session_file
        size = path.stat().st_size
        process.send_prompt(prompt)
        wait_for_event(path, size, "text-delta" if prompt.startswith("HOLD") else "tool/call")
        process.kill()
    (theirs,) = dsh().load([path])
    with place.daemon as daemon:
        async with daemon.client("agent") as client:
            session = await session_of(client, path)
            await eventually(lambda: resumed(client, session))
    (ours,) = dsh().load([path])
    assert timeless(ours["after"]["events"]) == timeless(theirs["after"]["events"])
    place.goes_on(path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def with_garbage(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"not a frame")


def with_flipped_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 0xFF
    path.write_bytes(data)


def with_events_in_the_first_frame(path: Path) -> None:
    parts = frames(path.read_bytes())
    text = b"".join(zstandard.ZstdDecompressor().decompressobj().decompress(part) for part in parts)
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(text))


def with_second_numbering(path: Path) -> None:
    again = [{"type": "session/title", "seq": 3, "time": 5, "data": {"title": "again"}}]
    text = b"".join(json.dumps(event).encode() + b"\n" for event in again)
    path.write_bytes(path.read_bytes() + zstandard.ZstdCompressor(write_checksum=True).compress(text))


DAMAGE: list[Callable[[Path], None]] = [
    cut,
    with_garbage,
    with_flipped_byte,
    with_events_in_the_first_frame,
    with_second_numbering,
]


@pytest.mark.parametrize("damage", DAMAGE)
@in_loop
async def test_a_damaged_log_is_not_written_and_its_repaired_copy_is_good_to_dsh(
    damage: Callable[[Path], None], place: Place
) -> None:
    events = conversation()
    beside = place.make("two", events)
    path = place.make("one", events[:20], events[20:-5], events[-5:])
    damage(path)
    broken = path.read_bytes()
    with place.daemon as daemon:
        async with daemon.client("agent") as client:
            session = await session_of(client, path)
            await refusal(client, "session/resume", sessionId=session)
            assert path.read_bytes() == broken
            result = await client.request("daemon/doctor", fix=True)
            assert str(path) in str(result["fixed"])
    assert broken in [other.read_bytes() for other in place.home.parent.rglob("*") if other.is_file()]
    (seen,) = dsh().load([path])
    assert_of_a_piece(seen)
    assert seen["kept"]
    assert len(seen["stored"]["events"]) >= 20
    assert set(dsh().listed(place.root)) == {"one", "two"}
    place.goes_on(path)
    place.goes_on(beside)
