"""Writes through a real daemon: what is asked, what stands in the file afterwards, what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.client import Client, RpcError
from tests.running import Daemon, eventually
from tests.support import CORPUS, assistant, entry, header, line, stamp, tool_result, user, write_log

Story = Callable[[Client], Awaitable[None]]


class Place:
    """A root of sessions and a daemon on it."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "sessions" / "--tmp-demo-proj--"
        self.root.mkdir(parents=True)
        self.home = tmp_path / "home"

    def log(self, session_id: str, entries: list[dict[str, Any]], **head: Any) -> Path:
        return write_log(
            self.root / f"2026-01-01T00-00-00-000Z_{session_id}.jsonl", entries, header(session_id, **head)
        )

    def raw(self, session_id: str, data: bytes) -> Path:
        path = self.root / f"2026-01-01T00-00-00-000Z_{session_id}.jsonl"
        path.write_bytes(data)
        old = time.time() - 60
        os.utime(path, (old, old))
        return path

    def play(self, *stories: Story) -> None:
        """Each story is told to a client of its own, one after the other, by one daemon."""

        async def tell(daemon: Daemon) -> None:
            for story in stories:
                async with daemon.client("teller") as client:
                    await story(client)

        with Daemon(self.home, self.root.parent) as daemon:
            asyncio.run(tell(daemon))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(part) for part in path.read_bytes().split(b"\n") if part]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def talk() -> list[dict[str, Any]]:
    return [
        user("u1", None, "Find the bug", 1),
        assistant("a1", "u1", "", 2, [{"id": "c1", "name": "read", "arguments": {"path": "calc.py"}}]),
        tool_result("t1", "a1", "c1", "def add(a, b): return a - b", 3, "read"),
        assistant("a2", "t1", "add subtracts", 4),
        user("u2", "a2", "Fix it", 5),
        assistant("a3", "u2", "Fixed", 6),
    ]


async def refused(call: Awaitable[Any]) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await call
    return caught.value


def test_navigating_to_a_prompt_gives_it_back_for_editing_and_writes_nothing(place: Place) -> None:
    path = place.log("s1", talk())
    before = digest(path)

    async def story(client: Client) -> None:
        ask = client.request
        preview = await ask("session/navigate", sessionId="s1", targetId="u2", preview=True)
        assert (preview["outcome"], preview["abandoned"], preview["editorText"]) == ("preview", 1, "Fix it")
        done = await ask("session/navigate", sessionId="s1", targetId="u2")
        assert (done["outcome"], done["leafId"], done["editorText"]) == ("moved", "a2", "Fix it")
        assert done["commonAncestorId"] == "u2"
        assert (await ask("session/draft", sessionId="s1"))["text"] == "Fix it"
        again = await ask("session/navigate", sessionId="s1", targetId="a2")
        assert again["outcome"] == "unchanged"
        back = await ask("session/navigate", sessionId="s1", back=True)
        assert (back["outcome"], back["leafId"]) == ("moved", "a3")
        assert (await ask("session/navigate", sessionId="s1", back=True))["outcome"] == "unchanged"
        first = await ask("session/navigate", sessionId="s1", targetId="u1")
        assert first["leafId"] is None
        assert (
            await refused(ask("session/navigate", sessionId="s1", targetId="a1", summarize=True))
        ).kind == "noActiveModel"
        assert (await refused(ask("session/navigate", sessionId="s1", targetId="nope"))).kind == "entryNotFound"

    place.play(story)
    assert digest(path) == before


def test_what_is_appended_after_a_move_hangs_there_and_the_old_way_stays(place: Place) -> None:
    path = place.log("s1", talk())

    async def story(client: Client) -> None:
        await client.request("session/moveLeaf", sessionId="s1", entryId="a2")
        message = {"role": "user", "content": "Another way"}
        done = await client.request(
            "session/append", sessionId="s1", entries=[{"type": "message", "message": message, "id": "u3"}]
        )
        assert done["leafId"] == "u3"
        tree = await client.request("session/tree", sessionId="s1")
        assert [(row["id"], row["gutter"]) for row in tree["rows"]] == [
            ("u1", ""), ("t1", ""), ("a2", ""), ("u3", "├─ "), ("u2", "└─ "), ("a3", "   "),
        ]  # fmt: skip

    place.play(story)
    assert [e["id"] for e in lines(path)[1:]] == ["u1", "a1", "t1", "a2", "u2", "a3", "u3"]
    assert lines(path)[-1]["parentId"] == "a2"
    assert isinstance(lines(path)[-1]["message"]["timestamp"], int)


def test_a_summary_hangs_at_the_new_position_with_both_names_for_hooks_in_pi_files(place: Place) -> None:
    path = place.log("s1", talk())

    async def story(client: Client) -> None:
        summary = {"text": "  tried a fix\n", "details": {"readFiles": []}, "fromExtension": True}
        done = await client.request("session/moveLeaf", sessionId="s1", entryId="a2", summary=summary)
        assert done["oldLeafId"] == "a3"
        root = await client.request("session/moveLeaf", sessionId="s1", entryId=None, summary={"text": "all"})
        assert root["leafId"] == root["summaryEntryId"]
        back = await client.request("session/navigate", sessionId="s1", back=True)
        assert back["leafId"] == done["summaryEntryId"]

    place.play(story)
    first, second = lines(path)[-2:]
    assert (first["parentId"], first["fromId"], first["summary"]) == ("a2", "a2", "  tried a fix\n")
    assert (first["fromHook"], first["fromExtension"]) == (True, True)
    assert (second["parentId"], second["fromId"]) == (None, "root")


def test_a_repeated_append_gives_the_first_answer_again_and_writes_once(place: Place) -> None:
    path = place.log("s1", talk())

    async def story(client: Client) -> None:
        ask = client.request
        sent = {"type": "custom", "customType": "x", "data": {"n": 1}, "id": "mine1"}
        first = await ask("session/append", sessionId="s1", entries=[sent], expectedLeafId="a3")
        again = await ask("session/append", sessionId="s1", entries=[sent], expectedLeafId="a3")
        assert again["ids"] == first["ids"]
        assert (
            await refused(ask("session/append", sessionId="s1", entries=[{**sent, "data": 2}]))
        ).kind == "alreadyExists"
        error = await refused(ask("session/append", sessionId="s1", entries=[{"type": "custom"}], expectedLeafId="a3"))
        assert (error.kind, error.data["actual"]) == ("leafMoved", "mine1")

    place.play(story)
    assert len(lines(path)) == 8


def test_entries_that_would_break_pi_are_refused_by_field(place: Place) -> None:
    place.log("s1", talk())

    async def story(client: Client) -> None:
        async def error(entry: dict[str, Any]) -> RpcError:
            return await refused(client.request("session/append", sessionId="s1", entries=[entry]))

        for bad, field in [
            ({"type": "message", "message": {"role": "assistant", "content": []}}, "message.provider"),
            ({"type": "message", "message": {"content": "x"}}, "message.role"),
            ({"type": "message", "message": {"role": "user", "content": 5}}, "message.content"),
            ({"type": "turn_start", "turn": 1}, "type"),
            ({"type": "session"}, "type"),
            ({"type": "custom", "timestamp": "yesterday"}, "timestamp"),
            ({"type": "custom", "id": "a b"}, "id"),
            ({"type": "custom", "id": "root"}, "id"),
        ]:
            found = await error(bad)
            assert (found.kind, found.data["field"]) == ("invalidEntry", field), bad
        assert (await error({"type": "custom", "parentId": "nope"})).kind == "entryNotFound"

    place.play(story)


def test_labels_are_set_cleared_and_never_written_twice(place: Place) -> None:
    """A079: blank clears; the latest label entry of the file wins."""
    path = place.log("s1", talk())

    async def story(client: Client) -> None:
        ask = client.request
        one = await ask("session/label", sessionId="s1", entryId="a2", label=" before \n the fix ")
        again = await ask("session/label", sessionId="s1", entryId="a2", label="before the fix")
        assert again["labelEntryId"] == one["labelEntryId"]
        assert (await ask("session/labels", sessionId="s1"))["items"][0]["label"] == "before the fix"
        await ask("session/label", sessionId="s1", entryId="a2", label=" ")
        assert (await ask("session/labels", sessionId="s1"))["items"] == []
        nothing = await ask("session/label", sessionId="s1", entryId="a2", label=None)
        assert "labelEntryId" not in nothing

    place.play(story)
    written = lines(path)[7:]
    assert [(e["type"], e.get("label")) for e in written] == [("label", "before the fix"), ("label", None)]
    assert written[0]["parentId"] == "a3"


def test_a_branch_takes_the_path_the_labels_and_the_title_and_leaves_the_source_alone(place: Place) -> None:
    """A023: every parent resolves; A079: a label keeps its time."""
    path = place.log(
        "s1",
        [
            *talk()[:4],
            entry("label", "l1", "a2", 7, targetId="a1", label="reading"),
            entry("session_info", "n1", "l1", 8, name="Calc"),
            user("u2", "n1", "Fix it", 9),
            assistant("a3", "u2", "Fixed", 10),
        ],
    )
    before = digest(path)

    async def story(client: Client) -> None:
        ask = client.request
        done = await ask("session/branch", sessionId="s1", entryId="u2", childSessionId="kid")
        assert (done["outcome"], done["editorText"], done["previousSessionId"]) == ("branched", "Fix it", "s1")
        assert done["session"]["sessionId"] == "kid"
        assert done["session"]["title"] == "Calc"
        assert done["session"]["parentSessionId"] == "s1"
        again = await ask("session/branch", sessionId="s1", entryId="u2", childSessionId="kid")
        assert again["path"] == done["path"]
        assert (
            await refused(ask("session/branch", sessionId="s1", entryId="u1", childSessionId="kid"))
        ).kind == "alreadyExists"
        assert (await refused(ask("session/branch", sessionId="s1", entryId="a2"))).kind == "notAUserMessage"
        made = lines(Path(done["path"]))
        assert made[0]["parentSession"] == str(path)
        assert [e["id"] for e in made[1:6]] == ["u1", "a1", "t1", "a2", "n1"]
        assert made[5]["parentId"] == "a2"
        assert (made[6]["type"], made[6]["targetId"], made[6]["timestamp"]) == ("label", "a1", stamp(7))
        assert (await ask("session/draft", sessionId="kid"))["text"] == "Fix it"
        root = await ask("session/branch", sessionId="s1", entryId="u1")
        assert [e["type"] for e in lines(Path(root["path"]))] == ["session", "session_info"]
        family = await ask("session/family", sessionId="kid")
        assert family["root"] == "s1"
        assert family["ancestors"] == ["s1"]

    place.play(story)
    assert digest(path) == before
    assert not [p for p in place.root.iterdir() if p.suffix != ".jsonl"]


def test_what_stands_between_copied_entries_and_cannot_be_read_needs_force(place: Place) -> None:
    """A011: reading goes on over damage, copying across it is asked for."""
    head, *rest = [line(e) for e in [header("s1"), *talk()]]
    path = place.raw("s1", head + rest[0] + rest[1] + b'{"type":"message","id":"lost\n' + b"".join(rest[2:]))

    async def story(client: Client) -> None:
        state = await client.request("session/open", sessionId="s1")
        assert [d["code"] for d in state["diagnostics"]] == ["unreadable_line"]
        assert (await client.request("session/tree", sessionId="s1"))["total"] == 5
        error = await refused(client.request("session/branch", sessionId="s1", entryId="u2"))
        assert error.kind == "damagedRegion"
        done = await client.request("session/branch", sessionId="s1", entryId="u2", force=True)
        assert [e["id"] for e in lines(Path(done["path"]))[1:]] == ["u1", "a1", "t1", "a2"]

    before = digest(path)
    place.play(story)
    assert digest(path) == before


def test_an_append_after_a_torn_tail_starts_a_line_of_its_own(place: Place) -> None:
    """A001: the unfinished bytes stay, the new entry can be read."""
    head, *rest = [line(e) for e in [header("s1"), *talk()]]
    torn = b'{"type":"message","id":"c3'
    path = place.raw("s1", head + b"".join(rest) + torn)

    async def story(client: Client) -> None:
        state = await client.request("session/open", sessionId="s1")
        assert [d["code"] for d in state["diagnostics"]] == ["torn_tail"]
        assert digest(path) == before
        await client.request("session/label", sessionId="s1", entryId="a2", label="here")

    before = digest(path)
    place.play(story)
    data = path.read_bytes()
    assert data.startswith(head + b"".join(rest) + torn + b"\n")
    assert json.loads(data.split(b"\n")[-2])["label"] == "here"


def test_a_line_that_is_still_being_written_is_waited_for(place: Place) -> None:
    path = place.log("s1", talk())

    async def story(client: Client) -> None:
        await client.request("session/open", sessionId="s1")
        with open(path, "ab") as file:
            file.write(b'{"type":"message","id":"c3",')
        error = await refused(client.request("session/label", sessionId="s1", entryId="a2", label="x"))
        assert error.kind == "busy"
        assert 0 < error.data["retryAfterMs"] <= 2001
        with open(path, "ab") as file:
            file.write(
                b'"parentId":"a3","timestamp":"2026-01-01T00:00:09.000Z","message":{"role":"user","content":"hi"}}\n'
            )
        await client.request("session/label", sessionId="s1", entryId="a2", label="x")

    place.play(story)
    assert [e["id"] for e in lines(path)[7:8]] == ["c3"]
    assert lines(path)[8]["parentId"] == "c3"


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("broken", b'{"type":"session","vers\n' + line(user("u1", None, "still here")), "damagedHeader"),
        ("headerless", line(user("u1", None, "no header")) + line(assistant("a1", "u1", "yes")), "damagedHeader"),
        ("empty", b"", "damagedHeader"),
    ],
)
def test_a_file_without_a_sound_header_is_read_and_never_written(
    place: Place, name: str, data: bytes, kind: str
) -> None:
    """A005, A006, A007."""
    path = place.raw(name, data)

    async def story(client: Client) -> None:
        page = await client.request("session/list")
        assert [i["health"] for i in page["items"]] == [{"broken": "damaged"}.get(name, name)]
        session_id = page["items"][0]["sessionId"]
        tree = await client.request("session/tree", sessionId=session_id)
        assert tree["total"] == data.count(b"\n") - (name == "broken")
        append = client.request("session/append", sessionId=session_id, entries=[{"type": "custom"}])
        assert (await refused(append)).kind == kind
        if tree["total"]:
            assert (
                await refused(client.request("session/label", sessionId=session_id, entryId="u1", label="x"))
            ).kind == kind

    place.play(story)
    assert path.read_bytes() == data


def test_a_file_that_is_no_session_is_skipped_with_a_reason_and_refused_by_path(place: Place) -> None:
    """A007, A047: foreign content is left alone and explained; others are listed beside it."""
    path = place.raw("x", b"hello\n")
    place.log("s1", [])

    async def story(client: Client) -> None:
        page = await client.request("session/list")
        assert [i["sessionId"] for i in page["items"]] == ["s1"]
        assert page["items"][0]["tail"] == "empty"
        assert [s["path"] for s in page["skipped"]] == [str(path)]
        assert (await refused(client.request("session/open", path=str(path)))).kind == "invalidReference"
        assert (await refused(client.request("session/open", path=str(path) + "nope"))).kind == "sessionNotFound"

    place.play(story)
    assert path.read_bytes() == b"hello\n"


@pytest.mark.parametrize("how", ["deleted", "replaced", "truncated", "rewritten", "renamed"])
def test_a_file_that_changes_under_us_is_noticed_before_the_next_read_and_write(place: Place, how: str) -> None:
    """A006, A033: nothing is recreated, nothing is written to a stranger, and the session can be left."""
    path = place.log("s1", talk())

    async def story(client: Client) -> None:
        ask = client.request
        heard: list[tuple[str, dict[str, Any]]] = []
        for method in ("session/closed", "session/changed"):
            client.on(method, lambda params, method=method: heard.append((method, params)))
        state = await ask("session/open", sessionId="s1")
        if how == "deleted":
            path.unlink()
        elif how == "renamed":
            path.rename(path.with_name("2026-01-01T00-00-00-000Z_moved.jsonl"))
        elif how == "replaced":
            other = path.with_suffix(".new")
            write_log(other, [user("z1", None, "stranger")], header("other"))
            other.replace(path)
        elif how == "rewritten":
            other = path.with_suffix(".new")
            write_log(other, talk()[:2], header("s1"))
            other.replace(path)
        else:
            os.truncate(path, len(line(header("s1"))) + len(line(talk()[0])))
        if how in {"rewritten", "truncated"}:
            tree = await ask("session/tree", sessionId="s1", filter="all")
            assert tree["epoch"] != state["epoch"]
            assert tree["total"] == {"rewritten": 2, "truncated": 1}[how]
            assert heard[0][1]["resync"] is True
            await ask("session/append", sessionId="s1", entries=[{"type": "custom", "customType": "x"}])
        elif how == "renamed":
            await refused(ask("session/append", sessionId="s1", entries=[{"type": "custom", "customType": "x"}]))
            await eventually(lambda: any(method == "session/closed" for method, _ in heard))
            assert heard[-1][1]["reason"] == "moved"
        else:
            error = await refused(
                ask("session/append", sessionId="s1", entries=[{"type": "custom", "customType": "x"}])
            )
            assert error.kind in {"sessionGone", "sessionNotFound"}
            await eventually(lambda: any(method == "session/closed" for method, _ in heard))
            assert heard[-1][1]["reason"] == how
        await ask("session/close", sessionId="s1")

    place.play(story)
    assert path.exists() == (how not in {"deleted", "renamed"})
    if how == "replaced":
        assert [e.get("id") for e in lines(path)] == ["other", "z1"]


def test_a_version_1_file_is_read_as_it_is_and_migrated_by_the_first_write_with_the_original_kept(place: Place) -> None:
    def v1(e: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in e.items() if k not in {"id", "parentId"}}

    head = {"type": "session", "id": "old", "timestamp": stamp(0), "cwd": "/tmp/demo/proj"}
    compaction = {
        "type": "compaction",
        "timestamp": stamp(7),
        "summary": "s",
        "firstKeptEntryIndex": 4,
        "tokensBefore": 9,
    }
    data = b"".join(line(e) for e in [head, *map(v1, talk()), compaction])
    path = place.raw("old", data)

    async def read(client: Client) -> None:
        tree = await client.request("session/tree", sessionId="old", filter="all")
        assert tree["total"] == 7
        ids = [row["id"] for row in tree["rows"]]
        found = await client.request("session/entries", sessionId="old", ids=[ids[-1]])
        assert found["entries"][0]["firstKeptEntryId"] == ids[3]
        assert path.read_bytes() == data
        known.extend(ids)

    async def write(client: Client) -> None:
        await client.request("session/label", sessionId="old", entryId=known[0], label="start")
        tree = await client.request("session/tree", sessionId="old", filter="all")
        assert [row["id"] for row in tree["rows"]][:7] == known

    known: list[str] = []
    place.play(read, write)
    after = lines(path)
    assert after[0]["version"] == 3
    assert [e["id"] for e in after[1:8]] == known
    assert after[7]["firstKeptEntryId"] == known[3]
    kept = [p for p in place.root.iterdir() if p.name.endswith(".bak")]
    assert [p.read_bytes() for p in kept] == [data]


def test_a_title_of_an_omp_session_is_written_over_its_slot_and_no_entry_moves(place: Place) -> None:
    slot = {"type": "title", "v": 1, "title": "Old", "updatedAt": stamp(0), "pad": ""}
    slot["pad"] = " " * (255 - len(line(slot).rstrip()))
    path = place.raw("o1", line(slot) + line(header("o1")) + b"".join(line(e) for e in talk()))
    assert len(line(slot)) == 256

    async def story(client: Client) -> None:
        assert (await client.request("session/list"))["items"][0]["title"] == "Old"
        done = await client.request("session/rename", sessionId="o1", title="Neu: 수정\n잘")
        assert done["stored"] == "log"
        state = await client.request("session/open", sessionId="o1")
        assert (state["format"], state["title"], state["titleSource"]) == ("omp", "Neu: 수정 잘", "user")
        await client.request("session/rename", sessionId="o1", title="x" * 400)

    before = path.read_bytes()
    place.play(story)
    after = path.read_bytes()
    assert after[256 : len(before)] == before[256:]
    assert len(after.split(b"\n")[0]) == 255
    assert [e["type"] for e in lines(path)[-2:]] == ["title_change", "title_change"]
    assert not (place.root / f".{path.name}.lock").exists()


def test_a_session_in_memory_is_never_written_anywhere(place: Place) -> None:
    async def story(client: Client) -> None:
        ask = client.request
        state = await ask("session/create", cwd="/tmp/demo/proj", persist=False, sessionId="mem")
        assert state["path"] is None
        await ask("session/open", sessionId="mem")
        first = {"type": "message", "id": "u1", "message": {"role": "user", "content": "hello"}}
        await ask("session/append", sessionId="mem", entries=[first])
        await ask(
            "session/append",
            sessionId="mem",
            entries=[{"type": "message", "id": "u2", "message": {"role": "user", "content": "more"}}],
        )
        assert (await ask("session/list"))["items"][0]["sessionId"] == "mem"
        done = await ask("session/branch", sessionId="mem", entryId="u2")
        assert (done["path"], done["editorText"], done["session"]["sessionId"]) == (None, "more", "mem")
        after = await ask("session/open", sessionId="mem")
        assert after["epoch"] != state["epoch"]
        assert (await ask("session/tree", sessionId="mem"))["total"] == 1
        assert (await ask("session/delete", sessionId="mem"))["trashPath"] is None
        assert (await refused(ask("session/open", sessionId="mem"))).kind in {"sessionGone", "sessionNotFound"}

    place.play(story)
    assert list(place.root.iterdir()) == []
    assert not any((place.home / "sessions").rglob("*.jsonl"))


def test_a_created_session_is_on_disk_before_the_answer_and_private(place: Place) -> None:
    """A045, A105."""

    async def story(client: Client) -> None:
        state = await client.request("session/create", cwd="/no/such/dir", title="Mine\nown", sessionId="new.1")
        path = Path(state["path"])
        assert lines(path)[0] == {
            **lines(path)[0],
            "id": "new.1",
            "cwd": "/no/such/dir",
            "title": "Mine own",
            "version": 3,
        }
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert (state["title"], state["titleSource"], state["cwdExists"]) == ("Mine own", "user", False)
        assert (await refused(client.request("session/create", cwd="/x", sessionId="new.1"))).kind == "alreadyExists"
        assert (
            await refused(client.request("session/create", cwd="/x", sessionId="../../etc"))
        ).kind == "invalidParams"

    place.play(story)


def test_a_deleted_session_is_in_the_trash_with_its_bytes(place: Place) -> None:
    """A140: nothing is ever unlinked."""
    path = place.log("s1", talk())
    data = path.read_bytes()

    async def story(client: Client) -> None:
        closed: list[dict[str, Any]] = []
        client.on("session/closed", closed.append)
        await client.request("session/open", sessionId="s1")
        done = await client.request("session/delete", sessionId="s1")
        assert Path(done["trashPath"]).read_bytes() == data
        assert (await client.request("session/delete", sessionId="s1")) == done
        assert closed[0]["reason"] == "deleted"
        assert (await refused(client.request("session/tree", sessionId="s1"))).kind == "sessionGone"
        assert (await client.request("session/list"))["total"] == 0

    place.play(story)
    assert not path.exists()


def test_the_doctor_looks_from_the_leaf_that_is_in_force(place: Place) -> None:
    chain = [user("m0", None, "x"), *(user(f"m{k}", f"m{k - 1}", "x", k) for k in range(1, 50))]
    place.log("s1", [*chain, user("u", None, "again")])

    async def story(client: Client) -> None:
        async def codes() -> list[str]:
            return [problem["code"] for problem in (await client.request("daemon/doctor"))["problems"]]

        assert await codes() == ["short_active_path"]
        await client.request("session/moveLeaf", sessionId="s1", entryId="m49")
        assert await codes() == []

    place.play(story)


def test_the_doctor_repairs_a_nul_tail_and_a_lost_header_once_and_keeps_the_originals(place: Place) -> None:
    """A009, A005: a repair is asked for, keeps what was there, and is not repeated."""
    nul = place.raw("n1", line(header("n1")) + b"".join(line(e) for e in talk()) + b"\0" * 9000)
    lost = place.raw(
        "h1", b'{"type":"session","id":"h1","cwd":"/tmp/demo/proj","vers\n' + b"".join(line(e) for e in talk())
    )
    originals = {nul.read_bytes(), lost.read_bytes()}

    async def story(client: Client) -> None:
        items = {i["path"]: i for i in (await client.request("session/list"))["items"]}
        assert items[str(nul)]["health"] == "recovered"
        found = await client.request("daemon/doctor")
        assert {(p["path"], p["code"]) for p in found["problems"] if p["fixable"]} == {
            (str(nul), "nul_run"),
            (str(lost), "broken_header"),
        }
        assert found["fixed"] == []
        done = await client.request("daemon/doctor", fix=True)
        assert {p["path"] for p in done["fixed"]} == {str(nul), str(lost)}
        again = await client.request("daemon/doctor", fix=True)
        assert again["fixed"] == []
        state = await client.request("session/open", sessionId="h1")
        assert (state["cwd"], state["entryCount"]) == ("/tmp/demo/proj", 6)
        await client.request("session/label", sessionId="h1", entryId="u1", label="saved")

    place.play(story)
    assert not nul.read_bytes().endswith(b"\0")
    assert {p.read_bytes() for p in place.root.iterdir() if p.name.endswith(".bak")} == originals


def test_reading_everything_leaves_every_file_of_the_corpus_as_it_is(place: Place) -> None:
    """P1: list, open, tree in every filter, entries, context, leaves, doctor."""
    if CORPUS is None:
        pytest.skip("the corpus is not here")
    for part in ("pi", "omp", "edge/pi-omp-v3", "public"):
        shutil.copytree(CORPUS / part, place.root / part)
    before = {p: digest(p) for p in place.root.rglob("*") if p.is_file()}

    async def story(client: Client) -> None:
        ask = client.request
        page = await ask("session/list", subagents=True)
        listed = {i["path"] for i in page["items"]} | {s["path"] for s in page["skipped"]}
        assert listed == {str(p) for p in before if p.name.endswith(".jsonl")}
        for info in page["items"]:
            session_id = info["sessionId"]
            state = await ask("session/open", sessionId=session_id)
            every = await ask("session/tree", sessionId=session_id, filter="all", count=5000)
            ids = [row["id"] for row in every["rows"]]
            assert len(ids) == len(set(ids)) == every["total"] == state["entryCount"], info["path"]
            for mode in ("default", "no-tools", "user-only", "labeled-only"):
                await ask("session/tree", sessionId=session_id, filter=mode, query="the", count=5000)
            got = await ask("session/entries", sessionId=session_id, ids=ids[:200]) if ids else {"entries": []}
            assert [e["id"] for e in got["entries"]] == ids[:200]
            await ask("session/context", sessionId=session_id)
            await ask("session/leaves", sessionId=session_id)
            await ask("session/path", sessionId=session_id)
            await ask("session/labels", sessionId=session_id)
        await ask("daemon/doctor")

    place.play(story)
    assert {p: digest(p) for p in place.root.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("how", ["pi", "native", "omp"])
def test_a_branch_knows_where_it_left_though_its_entries_are_from_the_future(place: Place, how: str) -> None:
    """A clock that was set back, or another machine's; repeated, the branch is found and not made again."""
    ahead = [{**one, "timestamp": f"2191-01-01T00:00:0{n}.000Z"} for n, one in enumerate(talk()[:4])]
    place.log("s1", ahead, **{"native": {"generator": "dsh-daemon/1"}, "omp": {"title": "x"}}.get(how, {}))
    wanted = {"sessionId": "s1", "entryId": ahead[2]["id"], "position": "at", "childSessionId": "child"}

    async def story(client: Client) -> None:
        made = await client.request("session/branch", **wanted)
        assert made["session"]["forkPoint"] == ahead[2]["id"]
        assert (await client.request("session/branch", **wanted))["path"] == made["path"]
        await client.request("session/append", sessionId="child", entries=[{"type": "custom", "id": "own"}])
        rows = (await client.request("session/tree", sessionId="child", filter="all"))["rows"]
        inherited = [row["id"] for row in rows if "inherited" in row.get("flags", [])]
        assert inherited == [one["id"] for one in ahead[:3]]
        wrong = await refused(client.request("session/branch", **{**wanted, "entryId": ahead[1]["id"]}))
        assert wrong.kind == "alreadyExists"

    async def later(client: Client) -> None:
        assert (await client.request("session/branch", **wanted))["session"]["forkPoint"] == ahead[2]["id"]

    place.play(story)
    shutil.rmtree(place.home / "cache")
    place.play(later)


def test_no_window_of_rows_is_longer_than_a_message(place: Place) -> None:
    place.log("s1", [user(f"e{n}", f"e{n - 1}" if n else None, '"' * 12_000) for n in range(1_500)])

    async def story(client: Client) -> None:
        many = await client.request("session/tree", sessionId="s1", count=5_000, textLimit=10_000)
        assert [len(row["text"]) for row in many["rows"]] == [(4 << 20) // 1_500] * 1_500
        few = await client.request("session/tree", sessionId="s1", count=10, textLimit=10_000)
        assert [len(row["text"]) for row in few["rows"]] == [10_000] * 10
        assert (await refused(client.request("session/tree", sessionId="s1", textLimit=10_001))).code == -32602

    place.play(story)


def test_a_title_or_label_beyond_all_reason_is_refused_and_makes_no_file(place: Place) -> None:
    place.log("s1", talk())

    async def story(client: Client) -> None:
        for method, params in (
            ("session/create", {"cwd": "/w", "sessionId": "new", "title": "T" * 1_001}),
            ("session/rename", {"sessionId": "s1", "title": "T" * 1_001}),
            ("session/label", {"sessionId": "s1", "entryId": "u1", "label": "T" * 1_001}),
            ("session/navigate", {"sessionId": "s1", "targetId": "a1", "label": "T" * 1_001}),
        ):
            assert (await refused(client.request(method, **params))).code == -32602
        long = "\0" * 999 + "漢"
        await client.request("session/create", cwd="/" + "漢" * 1_000, sessionId="new", title=long)
        await client.request("session/rename", sessionId="s1", title=long)
        listed = await client.request("session/list")
        assert sorted(item["sessionId"] for item in listed["items"]) == ["new", "s1"]
        assert listed["skipped"] == []

    place.play(story)
    assert len(list((place.home / "sessions").rglob("*.jsonl"))) == 1


def test_the_family_tree_shows_what_a_branch_added_where_it_left_and_what_it_inherited_once(place: Place) -> None:
    """A025: lineage is a link, not a second copy."""
    place.log("s1", talk())

    async def story(client: Client) -> None:
        ask = client.request
        await ask("session/branch", sessionId="s1", entryId="u2", childSessionId="kid")
        first = {"type": "message", "id": "k1", "message": {"role": "user", "content": "Conservative"}}
        await ask("session/append", sessionId="kid", entries=[first])
        for session_id, other, ours in (("s1", "kid", "u2"), ("kid", "s1", "k1")):
            tree = await ask("session/tree", sessionId=session_id, family=True)
            assert sorted(row["id"] for row in tree["rows"]) == ["a2", "a3", "k1", "t1", "u1", "u2"]
            foreign = {row["id"] for row in tree["rows"] if row.get("sessionId") == other}
            assert foreign == {"u2", "a3", "k1"} - ({"u2", "a3"} if ours == "u2" else {"k1"})
            assert next(row for row in tree["rows"] if row["id"] == "k1")["parentId"] == "a2"
        tree = await ask("session/tree", sessionId="kid")
        assert [row["id"] for row in tree["rows"] if "inherited" in row.get("flags", [])] == ["u1", "t1", "a2"]
        state = await ask("session/open", sessionId="kid")
        assert state["forkPoint"] == "a2"

    place.play(story)
