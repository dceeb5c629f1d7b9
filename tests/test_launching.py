"""session/launch: the command that continues a session where its agent keeps it, from where the leaf is."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.client import Client, RpcError
from tests.running import Daemon
from tests.support import assistant, header, user, write_log
from tests.wire import in_loop

OMP = {"title": "T", "titleSource": "user"}
DSH = {"type": "session", "version": 0, "id": "d", "createdAt": 1, "cwd": "/work", "delegationDepth": 0}


class Home:
    """The home of a user with sessions of pi, omp and dsh, and a daemon that finds them as it does by itself."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "home"
        self.path.mkdir()
        self.pi = self.path / ".pi" / "agent" / "sessions" / "--work--"
        self.omp = self.path / ".omp" / "agent" / "sessions" / "--work--"

    def log(self, folder: Path, name: str, **more: Any) -> Path:
        talk = [user("u1", None, "one"), assistant("a1", "u1", "yes", 2), user("u2", "a1", "two", 3)]
        head = header(name, **{"cwd": "/work", **more})
        return write_log(folder / f"2026-01-01T00-00-00-000Z_{name}.jsonl", talk, head)

    def daemon(self, roots: str | None = None, **more: str) -> Daemon:
        daemon = Daemon(self.path / "dshd", roots or "", **more)
        daemon.env["HOME"] = str(self.path)
        if roots is None:
            del daemon.env["DSHD_ROOTS"]
        for name in ("PI_CODING_AGENT_DIR", "PI_CODING_AGENT_SESSION_DIR"):
            if name not in more:
                daemon.env.pop(name, None)
        return daemon


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(part) for part in path.read_bytes().split(b"\n") if part]


async def refused(call: Awaitable[Any]) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await call
    return caught.value


async def launch(client: Client, session: str, **params: Any) -> dict[str, Any]:
    return await client.request("session/launch", sessionId=session, **params)


@in_loop
async def test_each_agent_is_started_as_it_is_started(home: Home) -> None:
    """Sessions in the agents' own stores need no variables."""
    pi, omp = home.log(home.pi, "p"), home.log(home.omp, "o", **OMP)
    profile = home.log(home.path / ".omp" / "profiles" / "my work" / "agent" / "sessions" / "--work--", "w", **OMP)
    dsh = home.path / ".dsh" / "sessions" / "--work--" / "d"
    dsh.mkdir(parents=True)
    (dsh / "session.jsonl").write_text(json.dumps(DSH) + "\n")
    with home.daemon() as daemon:
        async with daemon.client() as client:
            for session, action, argv in (
                ("p", "resume", ["pi", "--session", str(pi)]),
                ("p", "fork", ["pi", "--fork", str(pi)]),
                ("o", "resume", ["omp", "--resume", str(omp)]),
                ("o", "fork", ["omp", "--fork", str(omp)]),
                ("w", "resume", ["omp", "--profile", "my work", "--resume", str(profile)]),
                ("d", "resume", ["dsh", "web"]),
                ("d", "fork", ["dsh", "web"]),
            ):
                assert await launch(client, session, action=action) == {"argv": argv, "cwd": "/work"}
            states = {item["sessionId"]: item["can"] for item in (await client.request("session/list"))["items"]}
            assert all(can["launch"] for can in states.values())
            native = (await client.request("session/create", cwd="/work"))["sessionId"]
            memory = (await client.request("session/create", cwd="/work", persist=False))["sessionId"]
            for session in (native, memory):
                error = await refused(launch(client, session))
                assert (error.kind, error.data["instead"]) == ("notSupportedByFormat", "session/resume")


@in_loop
async def test_a_copy_stays_in_a_store_that_the_agent_does_not_know(home: Home) -> None:
    """It names the folder; to go on in a file in its place takes no more than the path."""
    other = home.path / "other" / "--work--"
    home.log(other, "p")
    home.log(other, "o", **OMP)
    with home.daemon(str(other.parent)) as daemon:
        async with daemon.client() as client:
            for session in ("p", "o"):
                assert "env" not in await launch(client, session)
                forked = await launch(client, session, action="fork")
                assert forked["env"] == {"PI_CODING_AGENT_SESSION_DIR": str(other)}


@in_loop
async def test_what_a_variable_says_about_the_store_is_said_to_the_agent_too(home: Home) -> None:
    elsewhere = home.path / "pi-home"
    home.log(elsewhere / "sessions" / "--work--", "p")
    with home.daemon(PI_CODING_AGENT_DIR=str(elsewhere)) as daemon:
        async with daemon.client() as client:
            for action in ("resume", "fork"):
                assert (await launch(client, "p", action=action))["env"] == {"PI_CODING_AGENT_DIR": str(elsewhere)}


@in_loop
async def test_the_folder_is_the_one_that_counts_here(home: Home) -> None:
    home.log(home.pi, "p", cwd="/workspace/app")
    home.log(home.pi, "q", cwd="/elsewhere//app/")
    home.log(home.pi, "none", cwd="")
    with home.daemon(DSHD_CWD_ALIASES=json.dumps({"/workspace": "/home/me/code"})) as daemon:
        async with daemon.client() as client:
            assert (await launch(client, "p"))["cwd"] == "/home/me/code/app"
            assert (await launch(client, "q"))["cwd"] == "/elsewhere//app/"
            assert (await launch(client, "none"))["cwd"] is None


@pytest.mark.parametrize("agent", ["pi", "omp"])
@in_loop
async def test_the_leaf_is_made_the_last_line_once_and_only_where_it_is_not(home: Home, agent: str) -> None:
    folder, more = {"pi": (home.pi, {}), "omp": (home.omp, OMP)}[agent]
    path = home.log(folder, "s", **more)
    before = path.read_bytes()
    with home.daemon() as daemon:
        async with daemon.client() as client:
            assert "pinnedEntryId" not in await launch(client, "s")
            await client.request("session/navigate", sessionId="s", targetId="a1")
            state = await client.request("session/open", sessionId="s")
            assert (state["leafId"], state["lastEntryId"]) == ("a1", "u2")
            assert "pinnedEntryId" not in await launch(client, "s", keepLeaf=False)
            assert path.read_bytes() == before

            done = await launch(client, "s")
            assert path.read_bytes().startswith(before)
            pin = records(path)[-1]
            assert pin["id"] == done["pinnedEntryId"]
            assert {key: pin[key] for key in ("type", "customType", "parentId")} == {
                "type": "custom", "customType": "dsh-daemon/leaf", "parentId": "a1",
            }  # fmt: skip
            state = await client.request("session/open", sessionId="s")
            assert state["leafId"] == state["lastEntryId"] == pin["id"]
            size = path.stat().st_size
            assert "pinnedEntryId" not in await launch(client, "s")
            assert "pinnedEntryId" not in await launch(client, "s", action="fork")
            assert path.stat().st_size == size
            tree = await client.request("session/tree", sessionId="s")
            assert [row["id"] for row in tree["rows"]] == ["u1", "a1", "u2"]

            await client.request("session/navigate", sessionId="s", targetId="u1")  # before the first entry
            assert records(path)[-1]["id"] == pin["id"]
            await launch(client, "s")
            assert records(path)[-1]["parentId"] is None


@in_loop
async def test_what_cannot_be_written_is_launched_where_nothing_is_to_be_written(home: Home) -> None:
    path = home.log(home.pi, "s")
    broken = home.pi / "2026-01-01T00-00-00-000Z_broken.jsonl"
    broken.write_bytes(path.read_bytes().partition(b"\n")[2])
    path.chmod(0o400)
    with home.daemon() as daemon:
        async with daemon.client() as client, daemon.client("looker", readOnly=True) as looker:
            assert (await launch(client, "s"))["argv"][0] == "pi"
            assert (await launch(looker, "s", keepLeaf=False))["argv"][0] == "pi"
            assert (await refused(launch(looker, "s"))).kind == "readOnly"
            assert (await refused(launch(client, "broken"))).kind == "damagedHeader"
            await client.request("session/moveLeaf", sessionId="s", entryId="u1")
            if os.geteuid() != 0:
                assert (await refused(launch(client, "s"))).kind == "readOnly"
            assert (await launch(client, "s", keepLeaf=False))["argv"][0] == "pi"
