"""Fork and branch through a real daemon: what is copied, where a fork may end, and that its source never changes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.branching import plan_branch
from dsh_daemon.client import Client, RpcError
from dsh_daemon.session import Session
from dsh_daemon.turns import broken_off
from tests.running import Daemon
from tests.support import assistant, entry, header, line, stamp, tool_result, user, write_log
from tests.wire import in_loop

CALL = {"id": "c1", "name": "bash", "arguments": {"command": "make"}}
HEADS = {
    "native": {"generator": "dsh-daemon/1"},
    "pi": {},
    "omp": {"title": "Calc", "titleSource": "user"},
}


class Place:
    """A folder of sessions and a daemon on it."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "sessions" / "--work--"
        self.daemon = Daemon(tmp_path / "home", self.root.parent)

    def log(self, name: str, entries: list[dict[str, Any]], format_: str = "pi", **more: Any) -> Path:
        return write_log(self.file(name), entries, header(name, **HEADS[format_], **more))

    def file(self, name: str) -> Path:
        return self.root / f"2026-01-01T00-00-00-000Z_{name}.jsonl"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def lines(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(part) for part in Path(path).read_bytes().split(b"\n") if part]


def digest(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def talk() -> list[dict[str, Any]]:
    """Two turns: the first calls a tool, the second does too and has no answer yet."""
    return [
        user("u1", None, "Find the bug", 1),
        assistant("a1", "u1", "", 2, [CALL]),
        tool_result("t1", "a1", "c1", "add subtracts", 3),
        assistant("a2", "t1", "add subtracts", 4),
        user("u2", "a2", "Fix it", 5),
        assistant("a3", "u2", "", 6, [{**CALL, "id": "c2"}]),
    ]


def recorded() -> list[dict[str, Any]]:
    """The same with the marks of the native format."""
    return [
        entry("turn_start", "s1", None, 1, turn=1),
        user("u1", "s1", "Find the bug", 1),
        entry("step_start", "p1", "u1", 1, turn=1, step=1),
        assistant("a1", "p1", "", 2, [CALL]),
        tool_result("t1", "a1", "c1", "add subtracts", 3),
        entry("step_end", "q1", "t1", 3, turn=1, step=1),
        entry("step_start", "p2", "q1", 3, turn=1, step=2),
        assistant("a2", "p2", "add subtracts", 4),
        entry("step_end", "q2", "a2", 4, turn=1, step=2),
        entry("turn_end", "e1", "q2", 4, turn=1, reason={"kind": "completed"}),
        entry("turn_start", "s2", "e1", 5, turn=2),
        user("u2", "s2", "Fix it", 5),
        entry("step_start", "p3", "u2", 5, turn=2, step=1),
        assistant("a3", "p3", "", 6, [{**CALL, "id": "c2"}]),
    ]


async def refused(call: Awaitable[Any]) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await call
    return caught.value


async def a_turn(client: Client, session: str, text: str, *, end: bool = True) -> int:
    """Run a turn with one answer, as the agent of a session; its number."""
    turn = (await client.request("turn/start", sessionId=session, content=text))["turn"]
    await client.request("step/start", sessionId=session, turn=turn, header={"config": {"model": "m"}})
    said = {"type": "message", "message": {"role": "assistant", "content": [{"type": "text", "text": f"{text}: yes"}]}}
    await client.request("session/append", sessionId=session, entries=[said])
    if end:
        await client.request("step/end", sessionId=session, turn=turn, step=1)
        await client.request("turn/end", sessionId=session, turn=turn, reason={"kind": "completed"})
    return turn


@in_loop
async def test_a_fork_of_a_native_session_ends_where_everything_inherited_ends(place: Place) -> None:
    """A023, A157: every parent resolves, the answer holds the new id; labels and title stand before `end_seed`."""
    with place.daemon as daemon:
        async with daemon.client() as client:
            ask = client.request
            created = await ask("session/create", cwd="/work", title="Calc")
            source, path = created["sessionId"], created["path"]
            await ask("session/resume", sessionId=source)
            await a_turn(client, source, "one")
            leaf = (await ask("session/open", sessionId=source))["leafId"]
            await ask("session/label", sessionId=source, entryId=leaf, label="good")
            await a_turn(client, source, "two")
            before = digest(path)
            done = await ask("session/fork", sessionId=source)
            child = await ask("session/open", sessionId=done["session"]["sessionId"])
            turns = await ask("session/turns", sessionId=child["sessionId"])
            assert digest(path) == before

    made = lines(done["session"]["path"])
    ids = [e["id"] for e in made[1:]]
    assert [e["parentId"] for e in made[1:]] == [None, *ids[:-1]]
    assert [e["type"] for e in made[-3:]] == ["label", "session_info", "end_seed"]
    assert made[-1].keys() == {"type", "id", "parentId", "timestamp"}
    copied = [e for e in lines(path)[1:] if e["type"] != "label"]
    assert (made[0]["parentSession"], made[0]["seedLength"]) == (path, len(copied)) == (path, done["seedLength"])
    assert ids[: len(copied)] == [e["id"] for e in copied]
    assert done["outcome"] == "forked"
    assert done["boundary"] == child["forkPoint"] == copied[-1]["id"]
    assert (child["leafId"], child["openTurn"], child["nextTurn"], child["title"]) == (ids[-1], None, 3, "Calc")
    assert [turn["turn"] for turn in turns["turns"]] == [1, 2]
    assert Path(path).parent == Path(done["session"]["path"]).parent


@pytest.mark.parametrize(
    ("format_", "entries", "closed"),
    [("pi", talk(), ["a2"]), ("omp", talk(), ["a2"]), ("native", talk(), ["a2"]), ("native", recorded(), ["e1"])],
)
@in_loop
async def test_a_fork_ends_outside_of_turns_or_is_told_where_it_could(
    place: Place, format_: str, entries: list[dict[str, Any]], closed: list[str]
) -> None:
    """A030: no fork begins with a call that nobody answers, from whichever entry it is asked for."""
    path = place.log("s", entries, format_)
    before = digest(path)
    with place.daemon as daemon:
        async with daemon.client() as client:
            for place_, e in enumerate(entries):
                for boundary in (e["id"], place_):
                    fork = client.request("session/fork", sessionId="s", boundary=boundary)
                    if e["id"] in closed:
                        done = await fork
                        child = await client.request("session/open", sessionId=done["session"]["sessionId"])
                        assert (done["boundary"], done["seedLength"]) == (e["id"], place_ + 1)
                        assert (child["tail"], child["openTurn"], child["diagnostics"]) == ("done", None, [])
                        assert (child["nextTurn"], child["parentSessionId"]) == (2, "s")
                    else:
                        error = await refused(fork)
                        second = [e["id"] for e in entries].index(closed[0]) < place_
                        assert (error.kind, error.code) == ("boundaryInTurn", 1009)
                        assert error.data["turn"] == 1 + second
                        assert error.data["nearestClosed"] == (closed[0] if second else None)
            assert (await refused(client.request("session/fork", sessionId="s"))).kind == "boundaryInTurn"
            for nowhere in ("nobody", len(entries)):
                error = await refused(client.request("session/fork", sessionId="s", boundary=nowhere))
                assert error.kind == "entryNotFound"
    assert digest(path) == before
    assert len(list(place.root.iterdir())) == 1 + 2 * len(closed)


@pytest.mark.parametrize("format_", ["pi", "omp"])
@in_loop
async def test_a_fork_of_pi_and_omp_is_the_file_that_they_would_write(place: Place, format_: str) -> None:
    """No marks of ours, the parent by its path; omp's title in the slot and in the header, pi's as an entry."""
    entries = [
        *talk()[:4],
        entry("label", "l1", "a2", 7, targetId="a2", label="good"),
        entry("session_info", "n1", "l1", 8, name="Calc"),
        user("u2", "n1", "Fix it", 9),
    ]
    path = place.log("s", entries, format_)
    with place.daemon as daemon:
        async with daemon.client() as client:
            done = await client.request("session/fork", sessionId="s", boundary="a2", cwd="/other")
    raw = Path(done["session"]["path"]).read_bytes()
    made = lines(done["session"]["path"])
    head = made.pop(0)
    if format_ == "omp":
        assert (len(raw.partition(b"\n")[0]), head["type"], head["title"]) == (255, "title", "Calc")
        head = made.pop(0)
    assert head["parentSession"] == str(path)
    assert head.keys() == {"type", "version", "id", "timestamp", "cwd", "parentSession"} | (
        {"title"} if format_ == "omp" else set()
    )
    assert head["cwd"] == "/other"
    assert done["session"]["cwd"] == "/other"
    kinds = [e["type"] for e in made]
    assert kinds == ["message"] * 4 + ["label"] + ["session_info"] * (format_ == "pi")
    assert (made[4]["timestamp"], made[4]["targetId"]) == (stamp(7), "a2")
    assert path.read_bytes().partition(b"\n")[2].startswith(b"".join(line(e) for e in made[:4]))
    assert b"".join(line(e) for e in made[:4]) in raw
    assert done["session"]["title"] == "Calc"
    assert done["session"]["forkText"] == "add subtracts"


@in_loop
async def test_a_repeated_fork_is_the_same_fork(place: Place) -> None:
    place.log("s", talk()[:4])
    place.log("other", talk()[:4])
    with place.daemon as daemon:
        async with daemon.client() as client:
            ask = client.request
            named = {"sessionId": "s", "boundary": "a2", "childSessionId": "kid"}
            at_leaf = {"sessionId": "s", "childSessionId": "leaf"}
            first, open_ended = await ask("session/fork", **named), await ask("session/fork", **at_leaf)
            assert await ask("session/fork", **named) == first
            assert await ask("session/fork", **at_leaf) == open_ended
            # An answer that was lost is asked for again when the source has gone on already.
            more = {"type": "message", "message": {"role": "user", "content": "and now"}}
            await ask("session/append", sessionId="s", entries=[more])
            assert await ask("session/fork", **named) == first
            assert await ask("session/fork", **at_leaf) == open_ended
            assert (await ask("session/fork", **named | {"boundary": 3}))["session"] == first["session"]
            for other in ({"boundary": "u1"}, {"sessionId": "other"}, {"cwd": "/elsewhere"}, {"childSessionId": "s"}):
                assert (await refused(ask("session/fork", **named | other))).kind == "alreadyExists"
            both = [asyncio.create_task(ask("session/fork", sessionId="other", childSessionId="two")) for _ in range(2)]
            one, two = await asyncio.gather(*both)
            assert one == two
    assert len(list(place.root.iterdir())) == 5


@in_loop
async def test_references_in_a_fork_lead_where_they_led(place: Place) -> None:
    entries = [
        user("u1", None, "one", 1),
        assistant("a1", "u1", "yes", 2),
        entry("label", "l1", "a1", 3, targetId="u1", label="start"),
        user("u2", "l1", "two", 4),
        assistant("a2", "u2", "yes", 5),
        entry("compaction", "k", "a2", 6, summary="s", firstKeptEntryId="l1", tokensBefore=1),
        entry("branch_summary", "b", "k", 7, summary="t", fromId="k"),
        entry("from_the_future", "f", "b", 8, payload={"targetId": "l1"}),
    ]
    place.log("s", entries, "native")
    with place.daemon as daemon:
        async with daemon.client() as client:
            done = await client.request("session/fork", sessionId="s")
            contexts = [
                (await client.request("session/context", sessionId=id_))["messages"]
                for id_ in ("s", done["session"]["sessionId"])
            ]
    made = {e["id"]: e for e in lines(done["session"]["path"])[1:]}
    assert [e["type"] for e in made.values()][-2:] == ["label", "end_seed"]
    assert made["k"]["firstKeptEntryId"] == "u2"
    assert made["b"]["fromId"] == "k"
    assert made["f"] == entries[-1]
    assert all(e["parentId"] in made or e["parentId"] is None for e in made.values())
    assert contexts[0] == contexts[1]


@in_loop
async def test_what_the_child_does_never_reaches_the_parent(place: Place) -> None:
    """A060."""
    path = place.log("s", talk()[:4], "native")
    before = digest(path)
    with place.daemon as daemon:
        async with daemon.client() as client:
            child = (await client.request("session/fork", sessionId="s"))["session"]
            for number in range(10):
                said = {"type": "message", "message": {"role": "user", "content": f"{number}"}}
                await client.request("session/append", sessionId=child["sessionId"], entries=[said])
            state = await client.request("session/open", sessionId="s")
            assert (state["leafId"], state["revision"], state["entryCount"]) == ("a2", 1, 4)
    assert digest(path) == before
    assert len(lines(child["path"])) == 1 + 4 + 1 + 10


@in_loop
async def test_a_fork_of_what_an_agent_works_in_leaves_the_agent_where_it_is(place: Place) -> None:
    """A030: in the middle of a turn the last closed place is told; the turn goes on in the source."""
    with place.daemon as daemon:
        async with daemon.client("agent") as agent, daemon.client("other") as other:
            created = await agent.request("session/create", cwd="/work")
            source, path = created["sessionId"], created["path"]
            await agent.request("session/resume", sessionId=source)
            await a_turn(agent, source, "one")
            await a_turn(agent, source, "two", end=False)
            before = digest(path)
            error = await refused(other.request("session/fork", sessionId=source))
            assert (error.kind, error.data["turn"]) == ("boundaryInTurn", 2)
            nearest = error.data["nearestClosed"]
            done = await other.request("session/fork", sessionId=source, boundary=nearest)
            assert digest(path) == before
            assert done["session"]["live"] is None
            state = await other.request("session/open", sessionId=source)
            assert (state["live"]["client"], state["live"]["status"]) == ("agent", "running")
            await agent.request("step/end", sessionId=source, turn=2, step=1)
            await agent.request("turn/end", sessionId=source, turn=2, reason={"kind": "completed"})
            kid = done["session"]["sessionId"]
            resumed = await other.request("session/resume", sessionId=kid)
            assert (resumed["repaired"], resumed["nextTurn"], resumed["live"]["client"]) == ([], 2, "other")
            assert await a_turn(other, kid, "the conservative way") == 2


@in_loop
async def test_a_branch_in_the_middle_of_a_turn_is_an_open_turn_that_nobody_runs(place: Place) -> None:
    """Its numbers go on, and the next agent closes it; before a prompt the mark of its turn stays behind."""
    place.log("s", recorded(), "native")
    with place.daemon as daemon:
        async with daemon.client() as client:
            ask = client.request
            for at, turn, following in (("t1", 1, 2), ("u2", 2, 3), ("e1", None, 2)):
                kid = (await ask("session/branch", sessionId="s", entryId=at, position="at"))["session"]["sessionId"]
                state = await ask("session/open", sessionId=kid)
                assert (state["leafId"], state["nextTurn"]) == (at, following)
                assert (state["openTurn"] or {}).get("turn") == turn
                resumed = await ask("session/resume", sessionId=kid)
                kinds = {"t1": ["stepEnd", "turnEnd"], "u2": ["turnEnd"], "e1": []}[at]
                assert [repair["kind"] for repair in resumed["repaired"]] == kinds
                assert (resumed["openTurn"], resumed["nextTurn"]) == (None, following)
            done = await ask("session/branch", sessionId="s", entryId="u2")
            state = await ask("session/open", sessionId=done["session"]["sessionId"])
            assert (state["leafId"], state["openTurn"], state["nextTurn"]) == ("e1", None, 2)
            assert done["editorText"] == "Fix it"
            state = await ask("session/branch", sessionId="s", entryId="u1")
            assert len(lines(state["path"])) == 1


@in_loop
async def test_a_session_in_memory_forks_into_another_one_in_memory(place: Place) -> None:
    with place.daemon as daemon:
        async with daemon.client() as client:
            ask = client.request
            source = (await ask("session/create", cwd="/work", title="Calc", persist=False))["sessionId"]
            await a_turn(client, source, "one")
            state = await ask("session/open", sessionId=source)
            done = await ask("session/fork", sessionId=source, childSessionId="kid")
            assert await ask("session/fork", sessionId=source, childSessionId="kid") == done
            child = await ask("session/open", sessionId="kid")
            assert (child["path"], child["parentSessionId"], child["title"]) == (None, source, "Calc")
            assert (child["forkPoint"], child["nextTurn"]) == (state["leafId"], 2)
            again = await ask("session/open", sessionId=source)
            assert (again["epoch"], again["leafId"]) == (state["epoch"], state["leafId"])
            family = await ask("session/family", sessionId="kid")
            assert (family["root"], family["ancestors"], family["complete"]) == (source, [source], True)
    assert list(place.root.parent.rglob("*.jsonl")) + list(place.daemon.home.rglob("*.jsonl")) == []


@in_loop
async def test_a_session_in_memory_is_not_replaced_under_a_running_turn(place: Place) -> None:
    with place.daemon as daemon:
        async with daemon.client() as client:
            source = (await client.request("session/create", cwd="/work", persist=False))["sessionId"]
            turn = await a_turn(client, source, "one", end=False)
            error = await refused(client.request("session/branch", sessionId=source, position="at"))
            assert (error.kind, error.data["turn"]) == ("turnOpen", turn)
            assert (await client.request("session/open", sessionId=source))["openTurn"]["turn"] == turn
            await client.request("step/end", sessionId=source, turn=turn, step=1)
            await client.request("turn/end", sessionId=source, turn=turn, reason={"kind": "completed"})
            done = await client.request("session/branch", sessionId=source, position="at")
            assert (done["path"], done["session"]["sessionId"]) == (None, source)
            assert await a_turn(client, source, "two") == 2


@in_loop
async def test_a_fork_across_damage_is_asked_for(place: Place) -> None:
    first, *rest = [line(e) for e in talk()[:4]]
    place.root.mkdir(parents=True)
    path = place.file("s")
    path.write_bytes(line(header("s")) + first + b"\0garbage\n" + b"".join(rest))
    before = digest(path)
    with place.daemon as daemon:
        async with daemon.client() as client:
            assert (await refused(client.request("session/fork", sessionId="s"))).kind == "damagedRegion"
            done = await client.request("session/fork", sessionId="s", force=True)
    assert [e["id"] for e in lines(done["session"]["path"])[1:]] == ["u1", "a1", "t1", "a2"]
    assert digest(path) == before


@in_loop
async def test_a_session_without_turns_forks_whole_or_empty(place: Place) -> None:
    place.log("s", [entry("model_change", "m", None, 1, provider="mock", modelId="mock-1")])
    place.log("none", [])
    with place.daemon as daemon:
        async with daemon.client() as client:
            done = await client.request("session/fork", sessionId="s")
            assert (done["boundary"], done["seedLength"]) == ("m", 1)
            done = await client.request("session/fork", sessionId="none", childSessionId="kid")
            assert (done["boundary"], done["seedLength"]) == (None, 0)
            assert done == await client.request("session/fork", sessionId="none", childSessionId="kid")
            assert "forkPoint" not in done["session"]


@in_loop
async def test_a_fork_before_any_answer_has_one_header(place: Place) -> None:
    """A028."""
    place.log("s", [entry("model_change", "m", None, 1, provider="mock", modelId="mock-1"), user("u", "m", "hi", 2)])
    with place.daemon as daemon:
        async with daemon.client() as client:
            error = await refused(client.request("session/fork", sessionId="s"))
            assert (error.kind, error.data["nearestClosed"]) == ("boundaryInTurn", None)
            done = await client.request("session/fork", sessionId="s", boundary=0)
            child = done["session"]["sessionId"]
            said = {"type": "message", "message": {"role": "user", "content": "again"}}
            await client.request("session/append", sessionId=child, entries=[said])
    assert [e["type"] for e in lines(done["session"]["path"])] == ["session", "model_change", "message"]


@in_loop
async def test_names_stay_short_however_often_a_fork_is_forked(place: Place) -> None:
    """A104: a folder with a name of 250 bytes, and ids as long as they may be."""
    place.root = place.root.with_name("w" * 250)
    place.log("s", talk()[:4])
    with place.daemon as daemon:
        async with daemon.client() as client:
            source = "s"
            for number in range(5):
                child = "k" * 127 + str(number)
                done = await client.request(
                    "session/fork", sessionId=source, childSessionId=child, cwd=f"/{'w' * 240}/{number}"
                )
                assert done["session"]["parentSessionId"] == source
                source = child
            family = await client.request("session/family", sessionId=source)
            assert len(family["ancestors"]) == 5
    assert max(len(os.fsencode(path.name)) for path in place.root.iterdir()) <= 255


@in_loop
async def test_nothing_that_is_not_there_is_forked_and_no_file_is_made(place: Place) -> None:
    """A052."""
    place.log("s", talk()[:4])
    with place.daemon as daemon:
        async with daemon.client() as client:
            for method in ("session/fork", "session/branch", "session/resume", "session/launch", "session/transcript"):
                params = {"position": "at"} if method == "session/branch" else {}
                error = await refused(client.request(method, sessionId="nobody", **params))
                assert error.kind == "sessionNotFound", method
            place.file("s").unlink()
            for method in ("session/fork", "session/resume", "session/launch"):
                error = await refused(client.request(method, sessionId="s"))
                assert error.kind in {"sessionGone", "sessionNotFound"}, method
    assert list(place.root.iterdir()) == []


@in_loop
async def test_a_fork_is_a_method_of_its_own_that_opens_nothing(place: Place) -> None:
    """A056, A061: navigate stays in the file, branch takes a prompt back, fork copies whole turns."""
    path = place.log("s", talk()[:4], "native")
    before = digest(path)
    with place.daemon as daemon:
        async with daemon.client() as client:
            moved = await client.request("session/navigate", sessionId="s", targetId="u1")
            branched = await client.request("session/branch", sessionId="s", entryId="u1")
            forked = await client.request("session/fork", sessionId="s", boundary="a2")
            assert (moved["outcome"], branched["outcome"], forked["outcome"]) == ("moved", "branched", "forked")
            assert moved["editorText"] == branched["editorText"] == "Find the bug"
            assert (await client.request("daemon/status"))["connections"][0]["subscriptions"] == 0
            names = {branched["session"]["sessionId"], forked["session"]["sessionId"], "s"}
            assert len(names) == len(list(place.root.iterdir())) == 3
    assert digest(path) == before


class Counting(Session):
    """Notes which entries are read whole."""

    def __init__(self, journal: Any) -> None:
        super().__init__(journal)
        self.read: list[int] = []

    def raw(self, i: int) -> bytes:
        self.read.append(i)
        return super().raw(i)


def test_a_fork_reads_the_last_turn_and_no_other_entry(tmp_path: Path) -> None:
    """The rest is copied by its place in the file."""
    entries = []
    for n in range(500):
        before = f"a{n - 1}" if n else None
        entries += [user(f"u{n}", before, "x" * 100, n), assistant(f"a{n}", f"u{n}", "y" * 100, n)]
    session = Counting.open(str(write_log(tmp_path / "s.jsonl", entries)))
    assert isinstance(session, Counting)
    path = list(range(1000))
    assert broken_off(session.index, path, session.entry) is None
    plan = plan_branch(session.index, path, session.entry, session.raw, lambda: "new")
    assert len(plan.pieces(session.index)) == 1
    assert session.read == []
    assert broken_off(session.index, path[:999], session.entry) is not None
    assert session.read == []
    session.journal.close()


@in_loop
async def test_a_big_session_is_forked_in_about_the_time_of_copying_it(place: Place) -> None:
    """64 MB: the daemon answers others meanwhile."""
    text = "z" * 16_000
    entries = []
    for n in range(4_000):
        entries.append(assistant(f"a{n}", f"a{n - 1}" if n else None, text, n))
    path = place.log("s", entries)
    with place.daemon as daemon:
        async with daemon.client() as client, daemon.client() as other:
            await client.request("session/open", sessionId="s")
            began = time.monotonic()
            task = asyncio.create_task(client.request("session/fork", sessionId="s"))
            slowest = 0.0
            while not task.done():
                asked = time.monotonic()
                await other.request("daemon/ping")
                slowest = max(slowest, time.monotonic() - asked)
                await asyncio.sleep(0.01)
            done = await task
            took = time.monotonic() - began
    made, source = Path(done["session"]["path"]).read_bytes(), path.read_bytes()
    assert made.partition(b"\n")[2] == source.partition(b"\n")[2]
    assert took < 10
    assert slowest < 1


@in_loop
async def test_going_back_and_returning_writes_nothing_and_hides_nothing(place: Place) -> None:
    """A058: the answer says where one was, and that place gives the same path again."""
    path = place.log("s", talk()[:4])
    before = digest(path)
    with place.daemon as daemon:
        async with daemon.client() as client:
            ask = client.request
            was = (await ask("session/path", sessionId="s"))["ids"]
            moved = await ask("session/navigate", sessionId="s", targetId="a1")
            assert (await ask("session/path", sessionId="s"))["ids"] == was[:2]
            assert (moved["oldLeafId"], moved["abandoned"]) == ("a2", 2)
            assert [row["id"] for row in (await ask("session/tree", sessionId="s", filter="all"))["rows"]] == was
            again = await ask("session/navigate", sessionId="s", targetId=moved["oldLeafId"])
            assert (again["outcome"], (await ask("session/path", sessionId="s"))["ids"]) == ("moved", was)
    assert digest(path) == before


@in_loop
async def test_what_is_named_is_what_is_listed_for_resume_and_for_fork_alike(place: Place) -> None:
    """A041, A042: `last` of a folder is the first of its list, whatever is newer elsewhere; none is an error."""
    for name, cwd, second in (("old", "/b", 10), ("newer", "/b", 20), ("newest", "/a", 30)):
        place.log(name, [user("u", None, "hi", second), assistant("a", "u", "yes", second)], "native", cwd=cwd)
    with place.daemon as daemon:
        async with daemon.client() as client:
            ask = client.request
            found: list[str] = []
            for where, last in (({"cwd": "/a"}, "newest"), ({"cwd": "/b"}, "newer"), ({}, "newest")):
                ref = (await ask("session/resolve", ref="last", **where))["sessionId"]
                assert ref == last == (await ask("session/list", **where))["items"][0]["sessionId"]
                found.append(ref)
            for ref in found[:2]:
                assert (await ask("session/resume", sessionId=ref))["sessionId"] == ref
                assert (await ask("session/fork", sessionId=ref))["session"]["parentSessionId"] == ref
            files = len(list(place.root.iterdir()))
            error = await refused(ask("session/resolve", ref="last", cwd="/nowhere"))
            assert error.kind == "sessionNotFound"
            assert len(list(place.root.iterdir())) == files


@in_loop
async def test_resuming_is_not_forking(place: Place) -> None:
    """A050, A054: no file more, not a byte more; the recorded model comes as data, whether or not anybody has it."""
    head = {"config": {"model": "gone-1", "provider": "cliproxy"}}
    said = assistant("a", "h", "yes", 3, provider="cliproxy", model="gone-1")
    last = [
        entry("step_end", "q", "a", 3, turn=1, step=1),
        entry("turn_end", "e", "q", 3, turn=1, reason={"kind": "x"}),
    ]
    begun = [entry("turn_start", "s", None, 1, turn=1), user("u", "s", "hi", 1)]
    step = entry("step_start", "p", "u", 2, turn=1, step=1)
    place.log("one", [*begun, step, entry("request_header", "h", "p", 2, header=head, reason="initial"), said, *last],
              "native")  # fmt: skip
    place.log("two", talk()[:4], "native")
    before = {path: digest(path) for path in place.root.iterdir()}
    with place.daemon as daemon:
        for name in ("one", "two"):
            for _ in range(3):
                async with daemon.client() as client:
                    resumed = await client.request("session/resume", sessionId=name)
                    assert resumed["repaired"] == []
                    if name == "one":
                        assert resumed["model"] == "gone-1"
                    await client.request("session/close", sessionId=name)
        async with daemon.client() as client:
            assert len((await client.request("session/list"))["items"]) == 2
            context = await client.request("session/context", sessionId="one")
            assert context["model"] == {"provider": "cliproxy", "modelId": "gone-1"}
    assert {path: digest(path) for path in place.root.iterdir()} == before


@in_loop
async def test_an_id_that_was_handed_out_is_found_after_a_restart(place: Place, tmp_path: Path) -> None:
    """A045, A046: one without a turn yet, a fork of it, and one that stands outside of all stores."""
    outside = write_log(tmp_path / "usb" / "x_far.jsonl", talk()[:4], header("far", **HEADS["native"]))
    with place.daemon as daemon:
        async with daemon.client() as client:
            created = (await client.request("session/create", cwd="/work"))["sessionId"]
            forked = (await client.request("session/fork", sessionId=created))["session"]
            await client.request("session/open", path=str(outside))
        daemon.kill()
        daemon.start()
        async with daemon.client() as client:
            for name in (created, forked["sessionId"], "far"):
                assert (await client.request("session/resolve", ref=name))["sessionId"] == name
                assert (await client.request("session/resume", sessionId=name))["nextTurn"] == 1 + (name == "far")
            child = (await client.request("session/fork", sessionId="far"))["session"]
            assert Path(child["path"]).parent == outside.parent
            daemon.kill()
            daemon.start()
        async with daemon.client() as client:
            assert (await client.request("session/resolve", ref=child["sessionId"]))["path"] == child["path"]
            error = await refused(client.request("session/fork", sessionId="far", childSessionId=created))
            assert error.kind == "alreadyExists"
