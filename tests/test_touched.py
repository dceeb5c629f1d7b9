"""`session/touched`: which calls of which sessions touched a file, asked of a real daemon over logs of every agent."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.client import Client, RpcError
from dsh_daemon.session import Session
from dsh_daemon.touched import Request, Source, look
from dsh_daemon.touches import Wanted

from .dsh_logs import Log
from .running import Daemon
from .support import CORPUS, STRICT, assistant, entry, header, line, tool_result, user, write_log

CWD = "/tmp/demo/proj"
FILE = "src/config.ts"
Item = dict[str, Any]


def call(id_: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id_, "name": name, "arguments": arguments}


def edit(id_: str, old: str, new: str, path: str = FILE) -> dict[str, Any]:
    return call(id_, "edit", path=path, edits=[{"oldText": old, "newText": new}])


class Logs:
    """Logs of pi, omp and dsh below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def roots(self) -> str:
        return os.pathsep.join(f"{kind}={self.folder / kind}" for kind in ("pi", "omp", "dsh"))

    def write(self, id_: str, entries: list[dict[str, Any]], kind: str = "pi", **head: Any) -> Path:
        path = self.folder / kind / "--tmp-demo-proj--" / f"2026-01-01T00-00-00-000Z_{id_}.jsonl"
        return write_log(path, entries, header(id_, **head))

    def bytes(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "logs")


def asked(logs: Logs, work: Callable[[Client], Awaitable[Any]], *, grow: bool = False) -> Any:
    """What `work` finds with a client of a new daemon over the logs; they stay as they are, or `grow`."""

    async def connected(daemon: Daemon) -> Any:
        client = await daemon.client()
        try:
            return await work(client)
        finally:
            await client.close()

    before = logs.bytes()
    with Daemon(logs.folder.parent / "home", logs.roots) as daemon:
        found = asyncio.run(connected(daemon))
    after = logs.bytes()
    assert after.keys() == before.keys()
    assert all(after[path].startswith(data) if grow else after[path] == data for path, data in before.items())
    return found


async def touched(client: Client, path: str = FILE, **params: Any) -> Item:
    return await client.request("session/touched", path=path, **params)


def named(result: Item) -> list[tuple[str, str]]:
    return [(item["sessionId"], item["entryId"]) for item in result["items"]]


def a_day(logs: Logs) -> None:
    """A file that is written by pi, moved by omp, edited by dsh and read in between."""
    logs.write("pi-1", [
        user("u1", None, "Write it", 10),
        assistant("a1", "u1", "", 11, calls=[call("c1", "write", path=FILE, content="port: 80\n")]),
        tool_result("r1", "a1", "c1", "ok", 12, name="write"),
        assistant("a2", "r1", "", 13, calls=[edit("c2", "port: 81", "port: 8080"), edit("c3", "80", "8080")]),
        tool_result("r2", "a2", "c2", "no such text", 14, name="edit", isError=True),
        tool_result("r3", "r2", "c3", "ok", 14, name="edit"),
        assistant("a3", "r3", "Done", 15),
        user("u2", "a3", "And a check", 16),
        assistant("a4", "u2", "", 17, calls=[call("c4", "bash", command=f"cat {FILE}")]),
        tool_result("r4", "a4", "c4", "port: 8080", 18),
        user("u3", "a3", "No, read it", 19),
        assistant("a5", "u3", "", 20, calls=[call("c5", "read", path=f"{CWD}/{FILE}")]),
        tool_result("r5", "a5", "c5", "port: 8080", 21, name="read"),
        assistant("a6", "r5", "Fine", 22),
    ])  # fmt: skip
    logs.write("omp-1", [
        user("u1", None, "Rename it", 30),
        assistant("a1", "u1", "", 31, calls=[call("c1", "bash", command=f"git mv {FILE} src/settings.ts")]),
        tool_result("r1", "a1", "c1", "", 32),
        assistant("a2", "r1", "Done", 33),
    ], "omp")  # fmt: skip
    log = Log("dsh-1")
    log.talk("hello", "hi")
    log.prompt("Edit it")
    log.answer("", [("x", "todo_write", "{}")])
    log.add("step/end", {"turn": 2, "step": 1})
    log.begin(2)
    given = json.dumps({"file_path": "src/settings.ts", "old_string": "8080", "new_string": "8O80"})
    log.answer("", [("y", "edit", given)])
    log.call("y", "edit", given)
    log.result("y", "ok")
    log.end()
    log.write(logs.folder / "dsh")


def test_every_touch_is_told_latest_first_with_its_turn_and_step(logs: Logs) -> None:
    a_day(logs)

    async def work(client: Client) -> tuple[Item, Item]:
        return await touched(client, changes=True), await touched(client, "src/settings.ts", changes=True)

    before, after = asked(logs, work)
    told = [
        (i["sessionId"], i["entryId"], i["action"], i["turn"], i["step"], i["branch"], "failed" in i)
        for i in before["items"]
    ]
    assert told == [
        ("omp-1", "a1", "shell", 1, 1, "active", False),
        ("pi-1", "a5", "read", 2, 1, "active", False),
        ("pi-1", "a4", "shell", 2, 1, "abandoned", False),
        ("pi-1", "a2", "edit", 1, 2, "active", False),
        ("pi-1", "a2", "edit", 1, 2, "active", True),
        ("pi-1", "a1", "write", 1, 1, "active", False),
    ]
    assert before["coverage"] == {"indexed": 3, "total": 3}
    assert before["items"][0]["renamedTo"] == "src/settings.ts"
    assert [i.get("callId") for i in before["items"]] == ["c1", "c5", "c4", "c3", "c2", "c1"]
    assert before["items"][1]["path"] == f"{CWD}/{FILE}"
    # The text is followed from where it was written: the hunk that went in has its place, the one that failed has none.
    assert before["items"][3]["change"].split("\n")[2:] == ["@@ -1,1 +1,1 @@", "-port: 80", "+port: 8080"]
    assert before["items"][4]["change"].split("\n")[2:] == ["@@ @@", "-port: 81", "+port: 8080"]
    settings = [(i["sessionId"], i["action"], i["turn"], i["step"]) for i in after["items"]]
    assert settings == [("dsh-1", "edit", 2, 2), ("omp-1", "shell", 1, 1)]
    assert after["items"][0]["change"].endswith("-8080\n+8O80")
    assert after["items"][1]["renamedFrom"] == FILE


def test_a_log_is_looked_into_however_a_command_spells_the_name(logs: Logs) -> None:
    commands = ["rm src/{config,other}.ts", "cat src/con'fig'.ts", "git -C src checkout config.ts", "cat lib/config.ts"]
    for n, command in enumerate(commands):
        logs.write(f"s{n}", [
            user("u", None, "Do it", 10 + n),
            assistant("a", "u", "", 10 + n, calls=[call("c", "bash", command=command)]),
        ])  # fmt: skip

    async def work(client: Client) -> Item:
        return await touched(client, f"{CWD}/{FILE}")

    result = asked(logs, work)
    assert named(result) == [("s2", "a"), ("s1", "a"), ("s0", "a")]
    assert [item["path"] for item in result["items"]] == ["config.ts", FILE, FILE]
    assert result["coverage"] == {"indexed": 4, "total": 4}


def test_changes_are_sent_when_they_are_asked_for(logs: Logs) -> None:
    a_day(logs)
    assert not any("change" in item for item in asked(logs, touched)["items"])


def test_what_a_person_ran_and_files_that_they_named_are_touches(logs: Logs) -> None:
    run = {"role": "bashExecution", "command": f"vim {FILE}", "output": "", "exitCode": 1, "cancelled": False}
    mention = {"role": "fileMention", "files": [{"path": FILE, "content": "port"}], "timestamp": 1}
    logs.write("s1", [
        entry("message", "b1", None, 1, message=run),
        entry("message", "f1", "b1", 2, message=mention),
    ])  # fmt: skip
    items = asked(logs, touched)["items"]
    assert [(i["entryId"], i["action"], "failed" in i, "turn" in i) for i in items] == [
        ("f1", "read", False, False),
        ("b1", "shell", True, False),
    ]
    assert items[1]["text"] == f"$ vim {FILE}"


def test_pages_hold_every_touch_once_even_while_sessions_grow(logs: Logs) -> None:
    paths = [
        logs.write(f"s{n}", [
            assistant(f"a{k}", f"a{k - 1}" if k else None, "", 10 * k + n, calls=[call(f"c{k}", "read", path=FILE)])
            for k in range(7)
        ])
        for n in range(4)
    ]  # fmt: skip

    async def work(client: Client) -> tuple[Item, list[tuple[str, str]]]:
        whole = await touched(client)
        page = await touched(client, limit=3)
        found = named(page)
        while "nextCursor" in page:
            with paths[0].open("ab") as file:
                file.write(line(assistant("new", "a6", "", 99, calls=[call("n", "read", path=FILE)])))
            page = await touched(client, limit=3, cursor=page["nextCursor"])
            found += named(page)
        for foreign in ({"path": "config.ts"}, {"sessionId": "s1"}, {"cwd": CWD}):
            first = await touched(client, limit=1)
            with pytest.raises(RpcError, match="cursor"):
                await client.request("session/touched", {"path": FILE, "cursor": first["nextCursor"], **foreign})
        return whole, found

    whole, found = asked(logs, work, grow=True)
    assert found == named(whole)
    assert len(found) == 28


def test_what_a_fork_took_along_is_told_of_its_parent_only(logs: Logs) -> None:
    entries = [
        user("u1", None, "Go", 10),
        assistant("a1", "u1", "", 11, calls=[call("c1", "write", path=FILE, content="a")]),
        tool_result("r1", "a1", "c1", "ok", 12, name="write"),
        assistant("a2", "r1", "Done", 13),
    ]
    parent = logs.write("parent", entries)
    more = [user("u2", "a2", "More", 100), assistant("a3", "u2", "", 101, calls=[edit("c2", "a", "b")])]
    logs.write("child", entries + more, timestamp="2026-01-01T00:01:00.000Z", parentSession=str(parent))

    async def work(client: Client) -> tuple[Item, Item]:
        return await touched(client), await touched(client, sessionId="child")

    everywhere, child = asked(logs, work)
    assert named(everywhere) == [("child", "a3"), ("parent", "a1")]
    assert named(child) == [("child", "a3"), ("child", "a1")]
    assert child["coverage"] == {"indexed": 1, "total": 1}


def test_a_folder_limits_it_to_its_own_sessions_and_those_below(logs: Logs) -> None:
    for name, cwd in (("here", CWD), ("below", f"{CWD}/packages/a"), ("elsewhere", "/tmp/demo/other")):
        logs.write(name, [assistant("a1", None, "", 1, calls=[call("c1", "read", path=FILE)])], cwd=cwd)

    async def work(client: Client) -> list[Item]:
        return [await touched(client, **more) for more in ({}, {"cwd": CWD}, {"path": f"{CWD}/{FILE}"})]

    whole, inside, exact = asked(logs, work)
    assert {session for session, _ in named(whole)} == {"here", "below", "elsewhere"}
    assert {session for session, _ in named(inside)} == {"here", "below"}
    assert inside["coverage"] == {"indexed": 2, "total": 2}
    assert named(exact) == [("here", "a1")]


def test_sessions_that_a_list_leaves_out_and_those_in_memory_are_asked_too(logs: Logs) -> None:
    read = assistant("a1", None, "", 1, calls=[call("c1", "read", path=FILE)])
    logs.write("main", [read])
    nested = logs.folder / "pi/--tmp-demo-proj--/2026-01-01T00-00-00-000Z_main/sub.jsonl"
    write_log(nested, [read], header("sub"))

    async def work(client: Client) -> tuple[Item, Item]:
        await client.request("session/archive", sessionId="main", on=True)
        await client.request("session/create", cwd=CWD, persist=False, sessionId="memory")
        said = {"type": "message", "message": read["message"]}
        await client.request("session/append", sessionId="memory", entries=[said])
        return await touched(client), await client.request("session/list")

    found, listed = asked(logs, work)
    assert {session for session, _ in named(found)} == {"main", "sub", "memory"}
    assert [info["sessionId"] for info in listed["items"]] == ["memory"]


def test_a_session_that_cannot_be_read_is_not_counted_as_looked_through(logs: Logs) -> None:
    logs.write("good", [assistant("a1", None, "", 1, calls=[call("c1", "read", path=FILE)])])
    logs.write("gone", [assistant("a1", None, "", 1, calls=[call("c1", "read", path=FILE)])])

    def unreadable() -> Any:
        from dsh_daemon.errors import StorageError

        raise StorageError("the disk does not answer")

    session = Session.open(str(next(logs.folder.rglob("*good.jsonl"))))
    request = Request(Wanted(FILE, "/"), "name", None, 10, changes=False)
    found = look(
        [Source(lambda: "good", 10**15, lambda: nullcontext(session)), Source(lambda: "gone", 5, unreadable)], request
    )
    assert (len(found["items"]), found["coverage"]) == (1, {"indexed": 1, "total": 2})


def test_a_page_is_full_without_a_look_at_older_sessions(logs: Logs) -> None:
    path = logs.write("new", [
        assistant(f"a{k}", None, "", 1_000 + k, calls=[call("c", "read", path=FILE)]) for k in range(3)
    ])  # fmt: skip
    session = Session.open(str(path))
    newest = session.index.time[2]

    def older() -> Any:
        raise AssertionError("an older session was opened")

    request = Request(Wanted(FILE, "/"), "name", None, 2, changes=False)
    found = look(
        [Source(lambda: "new", newest, lambda: nullcontext(session)), Source(lambda: "old", newest - 9_000, older)],
        request,
    )
    assert [item["entryId"] for item in found["items"]] == ["a2", "a1"]
    assert "nextCursor" in found


def test_an_entry_from_the_future_is_on_some_page(logs: Logs) -> None:
    read = [call("c", "read", path=FILE)]
    future = {**assistant("a2", "a1", "", 11, calls=read), "timestamp": "2099-01-01T00:00:00.000Z"}
    logs.write("s1", [assistant("a1", None, "", 10, calls=read), future, assistant("a3", "a2", "", 12, calls=read)])
    logs.write("s2", [assistant("b1", None, "", 50, calls=[call("c", "read", path=FILE)])])

    async def work(client: Client) -> list[tuple[str, str]]:
        page = await touched(client, limit=1)
        found = named(page)
        while "nextCursor" in page:
            page = await touched(client, limit=1, cursor=page["nextCursor"])
            found += named(page)
        return found

    assert sorted(asked(logs, work)) == [("s1", "a1"), ("s1", "a2"), ("s1", "a3"), ("s2", "b1")]


def test_a_name_is_found_across_the_pieces_in_which_a_log_is_read(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        assistant(f"a{k}", f"a{k - 1}" if k else None, "x" * k, 1 + k, calls=[call("c", "read", path=FILE)])
        for k in range(60)
    ]
    session = Session.open(str(logs.write("s1", entries)))
    for size in (16, 64, 257, 4096):
        monkeypatch.setattr("dsh_daemon.traces.CHUNK", size)
        request = Request(Wanted(FILE, "/"), "name", None, 100, changes=False)
        found = look([Source(lambda: "s1", 2**60, lambda: nullcontext(session))], request)
        assert len(found["items"]) == 60


def test_a_window_of_the_log_holds_entries_as_they_were_written(logs: Logs) -> None:
    a_day(logs)

    async def work(client: Client) -> None:
        async def ids(session: str, **params: Any) -> tuple[list[str], int, int]:
            page = await client.request("session/entries", sessionId=session, **params)
            return [entry["id"] for entry in page["entries"]], page["start"], page["total"]

        written = ["u1", "a1", "r1", "a2", "r2", "r3", "a3", "u2", "a4", "r4", "u3", "a5", "r5", "a6"]
        assert await ids("pi-1", start=0) == (written, 0, 14)
        assert await ids("pi-1", start="r4", count=2) == (["r4", "u3"], 9, 14)
        assert await ids("pi-1", start=13, count=200) == (["a6"], 13, 14)
        assert await ids("pi-1", start=99) == ([], 99, 14)
        rows, _, total = await ids("dsh-1", start=0, count=200)
        assert rows == sorted(rows, key=int)
        assert total == len(rows)
        with pytest.raises(RpcError, match="nowhere"):
            await ids("pi-1", start="nowhere")

    asked(logs, work)


# --- what real agents wrote


@pytest.mark.skipif(CORPUS is None and not STRICT, reason="needs the corpus beside the repository")
def test_logs_of_real_agents_tell_what_they_did_to_a_file(tmp_path: Path) -> None:
    if CORPUS is None:
        pytest.skip("needs the corpus beside the repository")
    told: dict[str, list[tuple[str, int | None, int | None]]] = {}
    wanted = Wanted("calc.py", "/home/dev")
    for path in sorted(CORPUS.glob("*/*/sessions/*/**/*.jsonl*")):
        session = Session.open(str(path))
        result = look(
            [Source(lambda: "x", 2**60, lambda session=session: nullcontext(session))],
            Request(wanted, "name", None, 100, changes=True),
        )
        told[f"{path.parent.name}/{path.name}"] = [
            (item["action"], item.get("turn"), item.get("step")) for item in reversed(result["items"])
        ]
    del tmp_path
    branched = next(items for name, items in told.items() if "01a22bd4-04ab" in name)
    assert branched == [("read", 1, 1), ("edit", 2, 1), ("shell", 3, 1), ("shell", 4, 1)]
    assert told["session-multi-turn/session.jsonl.zstd"] == [("shell", 1, 1), ("shell", 2, 1)]
    assert sum(bool(items) for items in told.values()) > 8


@pytest.mark.skipif(CORPUS is None and not STRICT, reason="needs the corpus beside the repository")
def test_the_edits_of_a_real_long_session_have_their_changes() -> None:
    if CORPUS is None:
        pytest.skip("needs the corpus beside the repository")
    session = Session.open(str(CORPUS / "public/v1-large.jsonl"))
    wanted = Wanted("coding-agent/src/tui/tui-renderer.ts", "/home/dev")
    request = Request(wanted, "name", None, 1_000, changes=True)
    items = look([Source(lambda: "x", 2**60, lambda: nullcontext(session))], request)["items"]
    edits = [item for item in items if item["action"] == "edit"]
    assert len(edits) > 20
    assert [item for item in edits if "\n-" not in item.get("change", "") and "\n+" not in item.get("change", "")] == []
    assert any(item["action"] == "shell" for item in items)
