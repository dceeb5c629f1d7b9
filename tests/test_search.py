"""Search over real stores: what is found, in which order, how pages fit together, and what is never found."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.client import Client, RpcError
from dsh_daemon.fulltext import text_of
from dsh_daemon.query import Query
from dsh_daemon.tokens import fold
from tests.dsh_logs import Log
from tests.running import Daemon, clients, eventually
from tests.support import assistant, entry, header, line, stamp, tool_result, user, write_log

FOUND_WITHIN = 1.0  # seconds after an append
SLOW_MACHINE = 4.0  # what a loaded one may take in the place of that

Story = Callable[[Client], Coroutine[Any, Any, None]]


def place(root: Path, session_id: str, cwd: str = "/tmp/demo/proj") -> Path:
    return root / cwd.replace("/", "-") / f"2026-01-01T00-00-00-000Z_{session_id}.jsonl"


def session(root: Path, session_id: str, entries: list[dict[str, Any]], **head: Any) -> Path:
    path = place(root, session_id, head.get("cwd", "/tmp/demo/proj"))
    return write_log(path, entries, header(session_id, **head))


def chain(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    """Entries that hang from each other in this order, a second apart."""
    above = None
    for n, one in enumerate(entries):
        one["parentId"] = above
        one["timestamp"] = stamp(n + 1)
        above = one["id"]
    return list(entries)


async def settled(client: Client, total: int) -> None:
    """Wait until so many sessions are in the index."""

    async def done() -> bool:
        found = await client.request("search/sessions", query="settled", where={"archived": True, "subagents": True})
        return found["coverage"] == {"indexed": total, "total": total}

    await eventually(done)


@asynccontextmanager
async def serving(home: Path, roots: Path | str, total: int, **more: str) -> AsyncIterator[Client]:
    """A client of a daemon that has so many sessions in its index."""
    with Daemon(home / "home", roots, **more) as daemon:
        async with clients(daemon, 1) as (client,):
            await settled(client, total)
            yield client


def told(home: Path, roots: Path | str, total: int, story: Story, **more: str) -> None:
    async def run() -> None:
        async with serving(home, roots, total, **more) as client:
            await story(client)

    asyncio.run(run())


async def names(client: Client, query: str, **where: Any) -> list[str]:
    found = await client.request("search/sessions", query=query, where=where)
    return [item["session"]["sessionId"] for item in found["items"]]


async def hits(client: Client, session_id: str, query: str, limit: int = 20, **where: Any) -> list[dict[str, Any]]:
    """All hits in a session, page by page."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = await client.request(
            "search/entries", sessionId=session_id, query=query, where=where, limit=limit, **cursor
        )
        found += page["items"]
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}


async def ids(client: Client, session_id: str, query: str, **where: Any) -> list[str]:
    return [hit["entryId"] for hit in await hits(client, session_id, query, **where)]


async def refused(client: Client, method: str, **params: Any) -> str:
    with pytest.raises(RpcError) as caught:
        await client.request(method, **params)
    return caught.value.kind


def marked(hit: dict[str, Any]) -> list[str]:
    return [hit["snippet"][a:b] for a, b in hit["ranges"]]


# --- what is found


def test_a_word_of_one_old_message_in_another_project_is_found(tmp_path: Path) -> None:
    """A073: over the whole text of all projects, with the coverage of the answer."""
    root = tmp_path / "sessions"
    talk = [user(f"u{n}", None, "talk") if n % 2 else assistant(f"a{n}", None, "more talk") for n in range(60)]
    talk[36] = assistant("it", None, "The culprit is Quokkafier, as so often.")
    session(root, "old", chain(*talk), cwd="/srv/other", timestamp="2019-01-01T00:00:00.000Z")
    for n in range(5):
        session(root, f"new{n}", chain(user("u", None, "hello"), assistant("a", None, "hi")))

    async def story(client: Client) -> None:
        found = await client.request("search/sessions", query="quokka")

        assert found["coverage"] == {"indexed": 6, "total": 6}
        (item,) = found["items"]
        assert item["session"]["sessionId"] == "old"
        assert item["session"]["cwd"] == "/srv/other"
        assert item["hits"] == 1
        assert item["best"] == {
            "entryId": "it", "turn": 18, "role": "assistant", "kind": "assistant", "branch": "active",
            "compacted": False, "snippet": "The culprit is Quokkafier, as so often.", "ranges": [[15, 21]],
            "timestamp": stamp(37),
        }  # fmt: skip
        assert await names(client, "quokka", cwd="/tmp/demo/proj") == []
        assert await names(client, "quokka", cwd="/srv", scope="subtree") == ["old"]

    told(tmp_path, root, 6, story)


def test_no_answer_claims_to_be_complete_while_the_index_is_built(tmp_path: Path) -> None:
    """A073: from the first moment on an answer tells how much it covers, and a complete one misses nothing."""
    root = tmp_path / "sessions"
    for n in range(60):
        session(root, f"s{n}", chain(user("u", None, f"needle {n} " + "hay " * 20_000), assistant("a", None, "ok")))

    async def story(client: Client) -> None:
        partly = 0
        while True:
            found = await client.request("search/sessions", query="needle", limit=100)
            indexed, total = found["coverage"]["indexed"], found["coverage"]["total"]
            assert indexed <= total
            if indexed == total == 60:
                assert len(found["items"]) == 60
                break
            partly += 1
            assert len(found["items"]) <= total
        assert partly, "it is not built before anybody asks"

    async def run() -> None:
        with Daemon(tmp_path / "home", root) as daemon:
            async with clients(daemon, 1) as (client,):
                await story(client)

    asyncio.run(run())


def test_who_gives_a_token_hears_how_far_the_index_is_and_gets_all_of_it(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    for n in range(40):
        session(root, f"s{n}", chain(user("u", None, f"needle {n} " + "hay " * 20_000)))

    async def run() -> None:
        with Daemon(tmp_path / "home", root) as daemon:
            async with clients(daemon, 1) as (client,):
                told: list[dict[str, Any]] = []
                client.on("$/progress", told.append)
                found = await client.request("search/sessions", query="needle", limit=100, workDoneToken="t1")

                assert found["coverage"] == {"indexed": 40, "total": 40}
                assert len(found["items"]) == 40
                kinds = [params["value"]["kind"] for params in told if params["token"] == "t1"]
                assert kinds[0] == "begin"
                assert kinds[-1] == "end"
                assert len(told) < 200

    asyncio.run(run())


def test_words_phrases_and_halves_of_korean_words_find_the_node(tmp_path: Path) -> None:
    """A074: hits are entries; a phrase does not match split words."""
    root = tmp_path / "sessions"
    session(root, "s1", chain(
        user("u1", None, "What happened in week 12?"),
        assistant("a1", None, "In the second week 12 of them failed; week by week, 12 more."),
        user("u2", None, "데이터베이스 마이그레이션을 다시 실행해 주세요"),
        assistant("a2", None, calls=[{"id": "c", "name": "edit", "arguments": {"new": "x = 1", "path": "src/db.ts"}}]),
        tool_result("t2", "", "c", "week: 12 files, 1 édit"),
    ))  # fmt: skip

    async def story(client: Client) -> None:
        assert await ids(client, "s1", '"week 12"') == ["u1", "a1", "t2"]
        assert await ids(client, "s1", "12 week by") == ["a1"]
        assert await ids(client, "s1", '"12 week"') == []
        assert await ids(client, "s1", "마이그레이") == ["u2"]
        assert await ids(client, "s1", "이션") == ["u2"]
        assert await ids(client, "s1", "션") == ["u2"]
        assert await ids(client, "s1", "이션 데이터") == ["u2"]
        assert await ids(client, "s1", "src/db") == ["a2"]
        assert await ids(client, "s1", "EDIT") == ["t2", "a2"]
        (hit,) = await hits(client, "s1", "마이그레이")
        assert marked(hit) == ["마이그레이"]
        assert hit["turn"] == 2

    told(tmp_path, root, 1, story)


def test_hits_before_a_compaction_are_found_and_say_so(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    session(root, "s1", chain(
        user("u1", None, "needle one"), assistant("a1", None, "needle two"), user("u2", None, "needle three"),
        entry("compaction", "c1", None, summary="needle four", firstKeptEntryId="u2", tokensBefore=9),
        user("u3", None, "needle five"),
    ))  # fmt: skip

    async def story(client: Client) -> None:
        found = {
            hit["entryId"]: (hit["compacted"], hit["kind"], hit["role"]) for hit in await hits(client, "s1", "needle")
        }

        assert found == {
            "u1": (True, "user", "user"), "a1": (True, "assistant", "assistant"), "u2": (False, "user", "user"),
            "c1": (False, "compaction", "compaction"), "u3": (False, "user", "user"),
        }  # fmt: skip
        assert (await client.request("search/sessions", query="two"))["items"][0]["best"]["compacted"] is True

    told(tmp_path, root, 1, story)


def forked(root: Path) -> Path:
    """A session with two branches: the second one is active."""
    return session(root, "s1", [
        user("u1", None, "common needle", 1), assistant("a1", "u1", "answer", 2),
        user("u2", "a1", "first needle", 3), assistant("a2", "u2", "first answer", 4),
        user("u3", "a1", "second needle", 5), assistant("a3", "u3", "second answer", 6),
    ])  # fmt: skip


def test_hits_on_abandoned_branches_are_labelled_and_follow_the_leaf(tmp_path: Path) -> None:
    """A077: search knows the tree, prefers the active path, and a navigation changes what is abandoned."""
    root = tmp_path / "sessions"
    forked(root)

    async def branches(client: Client) -> list[tuple[str, str]]:
        return [(hit["entryId"], hit["branch"]) for hit in await hits(client, "s1", "needle")]

    async def story(client: Client) -> None:
        assert await branches(client) == [("u3", "active"), ("u1", "active"), ("u2", "abandoned")]
        assert await ids(client, "s1", "needle", branch="abandoned") == ["u2"]
        assert await ids(client, "s1", "needle", branch="active") == ["u3", "u1"]
        found = await client.request("search/sessions", query="needle", where={"branch": "abandoned"})
        assert [(item["best"]["entryId"], item["hits"]) for item in found["items"]] == [("u2", 1)]
        assert (await client.request("search/sessions", query="needle"))["items"][0]["best"]["entryId"] == "u3"

        await client.request("session/navigate", sessionId="s1", targetId="a2")

        assert await branches(client) == [("u2", "active"), ("u1", "active"), ("u3", "abandoned")]
        assert (await client.request("search/sessions", query="needle"))["items"][0]["best"]["entryId"] == "u2"

    told(tmp_path, root, 1, story)

    async def later(client: Client) -> None:
        found = await client.request("search/sessions", query="needle")
        assert (found["items"][0]["best"]["entryId"], found["items"][0]["best"]["branch"]) == ("u2", "active")
        assert await names(client, "second", branch="abandoned") == ["s1"]

    told(tmp_path, root, 1, later)


# --- order


def test_title_label_phrase_words_beginnings_stand_in_this_order(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    old = {"timestamp": "2020-01-01T00:00:00.000Z"}
    session(root, "title", chain(user("u", None, "x"), entry("session_info", "t", None, name="Blue whale")), **old)
    session(
        root, "label", chain(user("u", None, "x"), entry("label", "l", None, targetId="u", label="blue whale")), **old
    )
    session(root, "phrase", chain(assistant("a", None, "a blue whale")), **old)
    session(root, "words", chain(user("u", None, "whale, blue")))
    session(root, "begins", chain(user("u", None, "bluest whales")))
    session(root, "one", chain(user("u", None, "blue")))

    async def story(client: Client) -> None:
        found = await client.request("search/sessions", query="blue whale")

        assert [
            (item["session"]["sessionId"], item["best"]["role"], item["best"]["entryId"], item["hits"])
            for item in found["items"]
        ] == [
            ("title", "title", "t", 0), ("label", "label", "u", 1), ("phrase", "assistant", "a", 1),
            ("words", "user", "u", 1), ("begins", "user", "u", 1),
        ]  # fmt: skip
        assert [marked(item["best"]) for item in found["items"][:2]] == [["Blue", "whale"], ["blue", "whale"]]
        assert await names(client, "blue whale", roles=["title"]) == ["title"]
        assert await names(client, "blue whale", roles=["label"]) == ["label"]
        assert await names(client, "blue whale", labeled=True) == ["label"]
        assert await ids(client, "label", "blue whale") == ["u"]

    told(tmp_path, root, 6, story)


def test_a_title_is_the_first_hit_of_its_session_too(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    said = [user("u1", None, "blue whale"), assistant("a1", "u1", "blue whale"), user("u2", "a1", "other")]
    session(root, "both", [*said, entry("session_info", "t", "u2", name="A blue whale")])
    session(root, "alone", chain(user("u", None, "x"), entry("session_info", "t", None, name="Blue whale")))
    session(root, "first", chain(user("u", None, "blue whale")))

    async def story(client: Client) -> None:
        async def found(session_id: str, **where: Any) -> list[tuple[str, str | None]]:
            return [(hit["role"], hit["entryId"]) for hit in await hits(client, session_id, "blue whale", **where)]

        assert await found("both") == [("title", "t"), ("user", "u1"), ("assistant", "a1")]
        assert await found("alone") == [("title", "t")]
        assert await found("first") == [("user", "u")]  # what nobody named is called by what it begins with
        groups = (await client.request("search/sessions", query="blue whale"))["items"]
        count = {item["session"]["sessionId"]: item["hits"] for item in groups}
        assert count == {"both": 2, "alone": 0, "first": 1}
        best = {item["session"]["sessionId"]: item["best"] for item in groups}
        for name in ("both", "alone"):
            assert (await hits(client, name, "blue whale"))[0] == best[name]

        assert await found("both", roles=["title"]) == [("title", "t")]
        assert await found("both", roles=["user"]) == [("user", "u1")]
        for more in ({"labeled": False}, {"branch": "active"}, {"types": ["message"]}, {"since": "2020-01-01"}):
            assert await found("both", **more) == [("user", "u1"), ("assistant", "a1")]

        asked = {"sessionId": "both", "query": "blue whale", "limit": 1}
        pages = [await client.request("search/entries", **asked)]
        await client.request("session/rename", sessionId="both", title="Now called otherwise")
        while cursor := pages[-1].get("nextCursor"):
            pages.append(await client.request("search/entries", **asked, cursor=cursor))
        assert [hit["entryId"] for page in pages for hit in page["items"]] == ["t", "u1", "a1"]
        assert await found("both") == [("user", "u1"), ("assistant", "a1")]

    told(tmp_path, root, 3, story)


def test_the_title_of_a_session_without_entries_names_none(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    session(root, "other", chain(user("u", None, "x")))

    async def story(client: Client) -> None:
        await client.request("session/create", cwd="/tmp/demo/proj", sessionId="empty", persist=False)
        await client.request("session/rename", sessionId="empty", title="Blue whale")
        await client.request("session/moveLeaf", sessionId="empty", entryId=None)
        (hit,) = await hits(client, "empty", "whale")
        assert (hit["role"], hit["entryId"], marked(hit)) == ("title", None, ["whale"])

    told(tmp_path, root, 1, story)


def test_who_says_it_counts_before_when_and_the_latest_session_comes_first(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    session(root, "tool", chain(user("u", None, "x", 9), tool_result("t", "", "c", "needle", 9)))
    session(root, "assistant", chain(user("u", None, "x", 8), assistant("a", None, "needle", 8)))
    for n in (2, 4, 3):
        session(root, f"user{n}", [user("u", None, "needle", n), assistant("a", "u", "needle", n)])

    async def story(client: Client) -> None:
        assert await names(client, "needle") == ["user4", "user3", "user2", "assistant", "tool"]

    told(tmp_path, root, 5, story)


# --- filters


def test_every_filter_holds(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    session(root, "one", chain(
        user("u", None, "needle"), assistant("a", None, "needle"), tool_result("t", "", "c", "needle"),
        entry("branch_summary", "s", None, summary="needle", fromId="root"),
        entry("custom_message", "m", None, customType="note", content="needle", display=True),
        entry("label", "l", None, targetId="a", label="keep"),
    ))  # fmt: skip

    async def story(client: Client) -> None:
        every = ["u", "m", "s", "a", "t"]
        assert await ids(client, "one", "needle") == every
        assert await ids(client, "one", "needle", roles=["user", "tool"]) == ["u", "t"]
        assert await ids(client, "one", "needle", roles=["toolResult"]) == ["t"]
        assert await ids(client, "one", "needle", types=["branch_summary", "custom_message"]) == ["m", "s"]
        assert await ids(client, "one", "needle", labeled=True) == ["a"]
        assert await ids(client, "one", "needle", labeled=False) == ["u", "m", "s", "t"]
        assert await ids(client, "one", "needle", since=stamp(2), until=stamp(3)) == ["a", "t"]
        assert await ids(client, "one", "needle", since="2026-01-01T01:00:03+01:00") == ["m", "s", "t"]
        assert await ids(client, "one", "needle", until="2026-01-01") == every
        assert await ids(client, "one", "needle", until="2025-12-31") == []
        some: list[dict[str, Any]] = [
            {"roles": ["tool"]},
            {"since": stamp(3)},
            {"labeled": True},
            {"types": ["message"]},
        ]
        for where in some:
            items = (await client.request("search/sessions", query="needle", where=where))["items"]
            found = await hits(client, "one", "needle", **where)
            assert [(item["hits"], item["best"]) for item in items] == [(len(found), hit) for hit in found[:1]]
        assert await names(client, "needle", formats=["dsh", "omp"]) == []
        assert await names(client, "needle", formats=["pi"]) == ["one"]
        for where in ({"since": "yesterday"}, {"scope": "subtree"}, {"colour": "red"}, {"formats": ["word"]}):
            assert await refused(client, "search/sessions", query="needle", where=where) == "invalidParams"

    told(tmp_path, root, 1, story)


def test_search_covers_what_the_list_shows(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    session(root, "plain", chain(user("u", None, "needle")))
    put_away = session(root, "away", chain(user("u", None, "needle")))
    write_log(put_away.with_suffix("") / "0-Helper.jsonl", chain(user("u", None, "needle")), header("child"))

    async def story(client: Client) -> None:
        await client.request("session/archive", sessionId="away", on=True)
        for where in ({}, {"archived": True}, {"subagents": True}, {"archived": True, "subagents": True}):
            listed = await client.request("session/list", **where)
            found = await client.request("search/sessions", query="needle", where=where)
            assert {item["session"]["sessionId"] for item in found["items"]} == {
                info["sessionId"] for info in listed["items"]
            }
            assert found["coverage"]["total"] == listed["total"]

    told(tmp_path, root, 3, story)


# --- one session, whatever it is


def test_entries_of_a_session_that_is_never_indexed_are_all_found(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    session(root, "open", chain(user("u", None, "needle"), entry("session_info", "t", None, name="needle case")))
    secret = chain(
        *(user(f"u{n}", None, f"needle {n}") for n in range(300)), entry("session_info", "t", None, name="needle")
    )
    session(root, "secret", secret, cwd="/tmp/secret/deep")

    async def story(client: Client) -> None:
        assert await names(client, "needle") == ["open"]
        assert await names(client, "needle", cwd="/tmp/secret/deep") == []
        titled, *rest = await hits(client, "secret", "needle")
        assert (titled["role"], len(rest)) == ("title", 300)
        assert await ids(client, "secret", "needle 299") == ["u299"]

    told(tmp_path, root, 1, story, DSHD_SEARCH__EXCLUDE='["/tmp/secret/**"]')

    everything = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert b"needle 2" not in everything


@pytest.mark.parametrize("zstd", [True, False])
def test_a_session_of_dsh_is_searched_as_the_others_are(tmp_path: Path, *, zstd: bool) -> None:
    log = Log("session-a")
    first = log.prompt("Find the needle")
    answer = log.answer("the needle is here")
    log.end()
    log.tool_turn("And then", "grep needle hay.txt", "no more")
    log.compact(first, answer, "a needle was found")
    log.talk("Now the thread", "a needle and a thread")
    log.write(tmp_path / "dsh", zstd=zstd)

    async def story(client: Client) -> None:
        found = {hit["entryId"]: hit for hit in await hits(client, "session-a", "needle")}
        texts = {id_: (hit["kind"], hit["compacted"], hit.get("turn")) for id_, hit in found.items()}

        assert texts[str(first)] == ("user", True, 1)
        assert texts[str(answer)] == ("assistant", True, 1)
        assert sorted(kind for kind, _, _ in texts.values()) == [
            "assistant",
            "assistant",
            "assistant",
            "compaction",
            "user",
        ]
        (item,) = (await client.request("search/sessions", query="needle"))["items"]
        assert item["hits"] == len(found)
        assert item["best"] == (await hits(client, "session-a", "needle"))[0]

    told(tmp_path, f"dsh={tmp_path / 'dsh'}", 1, story)


def test_old_and_damaged_sessions_and_those_of_omp_are_searched_too(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    old = place(root, "old")
    old.parent.mkdir(parents=True)
    message = {"type": "message", "timestamp": stamp(1), "message": {"role": "user", "content": "old needle"}}
    old.write_bytes(
        line({"type": "session", "id": "old", "timestamp": stamp(0), "cwd": "/tmp/demo/proj"}) + line(message)
    )
    damaged = session(root, "damaged", [user("u1", None, "first needle")])
    with damaged.open("ab") as file:
        file.write(b"\0\0\0{torn" + line(user("u2", "u1", "needle behind")) + b'{"type":"message","id":"u3","mess')
    session(root, "omp", chain(
        user("u1", None, "an omp needle"),
        entry("message", "p1", None, message={"role": "pythonExecution", "code": "needle()", "output": "1"}),
    ), titleSource="auto")  # fmt: skip

    async def story(client: Client) -> None:
        assert set(await names(client, "needle")) == {"old", "damaged", "omp"}
        assert len(await ids(client, "old", "needle")) == 1
        assert await ids(client, "damaged", "needle") == ["u2", "u1"]
        assert await ids(client, "omp", "needle") == ["u1", "p1"]
        (item,) = (await client.request("search/sessions", query='"old needle"'))["items"]
        assert [item["best"]] == await hits(client, "old", '"old needle"')

    told(tmp_path, root, 3, story)


def test_sessions_that_are_only_listed_are_found_by_their_titles(tmp_path: Path) -> None:
    folder = tmp_path / "claude" / "-tmp-demo-proj"
    folder.mkdir(parents=True)
    session_id = "0b6f6a8e-6f0d-4c51-9d0c-0a1b2c3d4e5f"
    said = {
        "parentUuid": None, "isSidechain": False, "userType": "external", "cwd": "/tmp/demo/proj",
        "sessionId": session_id, "version": "2.0.0", "type": "user", "uuid": "11111111-1111-4111-8111-111111111111",
        "timestamp": stamp(1), "message": {"role": "user", "content": "Where is the needle"},
    }  # fmt: skip
    (folder / f"{session_id}.jsonl").write_bytes(line(said))

    async def story(client: Client) -> None:
        (item,) = (await client.request("search/sessions", query="needle"))["items"]

        assert (item["session"]["format"], item["hits"]) == ("claude", 0)
        assert (item["best"]["role"], item["best"]["entryId"], marked(item["best"])) == ("title", None, ["needle"])
        assert await refused(client, "search/entries", sessionId=session_id, query="needle") == "notSupportedByFormat"

    told(tmp_path, f"claude={tmp_path / 'claude'}", 0, story)


def test_turns_of_hits_are_those_of_the_turn_list(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    recorded = chain(
        user("u0", None, "needle"), entry("turn_start", "s2", None, turn=2), user("u2", None, "needle"),
        entry("step_start", "p2", None, turn=2, step=1), assistant("a2", None, "needle"),
        entry("step_end", "q2", None, turn=2, step=1),
        entry("turn_end", "e2", None, turn=2, reason={"kind": "completed"}),
        entry("custom_message", "m", None, customType="x", content="needle"), user("u3", None, "needle"),
    )  # fmt: skip
    session(root, "recorded", recorded, generator="dsh-daemon/1")
    forked(root)

    async def story(client: Client) -> None:
        found = {hit["entryId"]: hit.get("turn") for hit in await hits(client, "recorded", "needle")}
        assert found == {"u0": 1, "u2": 2, "a2": 2, "m": None, "u3": 3}
        for item in (await client.request("search/sessions", query="needle"))["items"]:
            session_id, best = item["session"]["sessionId"], item["best"]
            assert best == (await hits(client, session_id, "needle"))[0]
            turns = await client.request("session/turns", sessionId=session_id)
            assert best["turn"] in [turn["turn"] for turn in turns["turns"]]
        assert {hit["entryId"]: hit["turn"] for hit in await hits(client, "s1", "needle")} == {
            "u1": 1,
            "u2": 2,
            "u3": 2,
        }

    told(tmp_path, root, 2, story)


# --- files come, change and go


def test_a_file_that_is_deleted_is_told_of_and_nothing_that_is_listed_is_forgotten(tmp_path: Path) -> None:
    """A076: no hit for what is not there, and a notification that it went."""
    root = tmp_path / "sessions"
    paths = [session(root, f"s{n}", chain(user("u", None, f"needle {n}"))) for n in range(5)]

    async def story(client: Client) -> None:
        removed: list[str] = []
        client.on("catalog/changed", lambda params: removed.extend(params["removed"]))
        await client.request("catalog/subscribe")
        first = await client.request("search/sessions", query="needle", limit=2)

        paths[2].unlink()

        await eventually(lambda: removed == ["s2"])
        assert set(await names(client, "needle")) == {"s0", "s1", "s3", "s4"}
        rest = await client.request("search/sessions", query="needle", limit=9, cursor=first["nextCursor"])
        shown = [item["session"]["sessionId"] for item in first["items"] + rest["items"]]
        assert {"s0", "s1", "s3", "s4"} <= set(shown)
        assert "s2" not in [item["session"]["sessionId"] for item in rest["items"]]
        assert await refused(client, "search/entries", sessionId="s2", query="needle") == "sessionGone"

    told(tmp_path, root, 5, story)

    async def later(client: Client) -> None:
        assert set(await names(client, "needle")) == {"s0", "s1", "s3", "s4"}

    told(tmp_path, root, 4, later)


def test_what_was_appended_is_found_within_a_second(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    path = session(root, "s1", chain(user("u1", None, "start")))

    async def story(client: Client) -> None:
        for n, write in enumerate(("another program", "a client", "another program")):
            if write == "a client":
                await client.request(
                    "session/append", sessionId="s1",
                    entries=[{"type": "message", "message": {"role": "user", "content": f"needle{n}"}}],
                )  # fmt: skip
            else:
                with path.open("ab") as file:
                    file.write(line(user(f"x{n}", None, f"needle{n}", 9)))
            began = time.monotonic()

            async def found(word: str = f"needle{n}") -> bool:
                return await names(client, word) == ["s1"]

            await eventually(found)
            assert time.monotonic() - began < SLOW_MACHINE * FOUND_WITHIN
            assert len(await ids(client, "s1", f"needle{n}")) == 1

    told(tmp_path, root, 1, story)


def test_a_file_that_was_rewritten_has_its_new_hits_only(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    path = session(root, "s1", chain(user("u1", None, "old needle"), assistant("a1", None, "old thread")))

    async def story(client: Client) -> None:
        new = path.with_suffix(".tmp")
        new.write_bytes(line(header("s1")) + b"".join(map(line, chain(user("u9", None, "new needle")))))
        os.replace(new, path)

        async def done() -> bool:
            return await names(client, "old") == [] and await names(client, "new") == ["s1"]

        await eventually(done)
        assert await ids(client, "s1", "needle") == ["u9"]
        assert await ids(client, "s1", "thread") == []

    told(tmp_path, root, 1, story)


def test_a_session_in_memory_is_found_and_none_of_it_is_on_the_disk(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    session(root, "file", chain(user("u", None, "needle")))

    async def story(client: Client) -> None:
        await client.request("session/create", cwd="/tmp/demo/proj", sessionId="thought", persist=False)
        said = {"type": "message", "message": {"role": "user", "content": "a needle for Zanzibarium"}}
        made = await client.request("session/append", sessionId="thought", entries=[said])

        async def found() -> bool:
            return await names(client, "zanzibar") == ["thought"]

        await eventually(found)
        assert set(await names(client, "needle")) == {"thought", "file"}
        (hit,) = await hits(client, "thought", "zanzibar")
        assert hit["entryId"] == made["ids"][0]
        await client.request("session/delete", sessionId="thought")
        assert await names(client, "needle") == ["file"]

    told(tmp_path, root, 1, story)

    everything = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert b"anzibar" not in everything


# --- queries are data

HOSTILE = [
    "needle OR 1", "NEAR(needle, 2)", "needle*", "-needle", "^needle", "said : needle", "{said} : needle", '"needle',
    'needle"', '""needle""', "needle\x00", "\x00needle\x00thread", "needle'; DROP TABLE text; --", "needle \\",
    "%needle_", "n" * 4_096, "needle " * 585, '"' * 4_095 + "n", "needle\u202e\u2066", "ne\u0301edle\u0301\u0301",
    "\U0001f642 needle \U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f600", "...", "(", ")(", "*", "+", "AND",
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd needle", "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627",
    "\u0301", "\u200b", "\ufffd", "\uac00" * 4_096, "a b c d e f g h i j k l m n o p", "\x1e", "\ue000",
    "needle\u2028thread", "\u0661\u0662\u0663", "\ufb01", "\u0130", "\u01c5", "NOT", "needle AND",
]  # fmt: skip


def test_hostile_queries_are_answered_and_nothing_in_them_is_executed(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    texts = [*HOSTILE, "needle", "thread", "said needle"]
    talk = chain(*(user(f"u{n:03}", None, text) for n, text in enumerate(texts)))
    session(root, "s1", talk)

    async def story(client: Client) -> None:
        for query in HOSTILE:
            wanted = Query(query)
            expected = {
                one["id"] for one in talk if (said := text_of(one)) and wanted.fits(fold(said.text)) is not None
            }
            found = await hits(client, "s1", query)
            assert {hit["entryId"] for hit in found} == expected, query
            over_all = await client.request("search/sessions", query=query)
            assert sum(item["hits"] for item in over_all["items"]) == len(expected), query
            for hit in found:
                assert hit["ranges"], query
                assert all(0 <= a < b <= len(hit["snippet"]) for a, b in hit["ranges"])
        for query in ("", " ", '"', '" "', "\t\n", "x" * 4_097, "\u3000", None, 7):
            assert await refused(client, "search/sessions", query=query) == "invalidParams"
            assert await refused(client, "search/entries", sessionId="s1", query=query) == "invalidParams"

    told(tmp_path, root, 1, story)


def test_half_a_surrogate_pair_in_a_query_or_in_a_file_hurts_nobody(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    path = session(root, "s1", chain(user("u1", None, "needle")))
    with path.open("ab") as file:
        file.write(json.dumps(user("u2", "u1", "half \ud83d needle"), ensure_ascii=True).encode() + b"\n")

    async def run() -> None:
        with Daemon(tmp_path / "home", root) as daemon:
            async with clients(daemon, 1) as (client,):
                await settled(client, 1)
                assert await ids(client, "s1", "needle") == ["u2", "u1"]
                assert (await hits(client, "s1", "half"))[0]["snippet"] == "half \ufffd needle"
            reader, writer = await asyncio.open_unix_connection(daemon.socket)
            start = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"capabilities": {}}}
            for body in (
                json.dumps(start).encode(),
                b'{"jsonrpc":"2.0","id":2,"method":"search/sessions","params":{"query":"needle \\ud83d"}}',
            ):
                writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
                head = await reader.readuntil(b"\r\n\r\n")
                answer = json.loads(await reader.readexactly(int(head.split()[1])))
                assert "result" in answer or answer["error"]["code"] == -32602
            writer.close()

    asyncio.run(run())


# --- pages


def test_pages_together_are_the_whole_without_doubles_while_everything_grows(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    chance = random.Random(5)
    for n in range(60):
        said = chance.choice(["needle", "a needle here", "needles", "needle thread"])
        session(root, f"s{n:02}", [user("u", None, said, n + 1), assistant("a", "u", "needle", n + 1)])
    long = [user(f"u{n:04}", None, f"needle {n}") for n in range(500)]
    session(root, "long", chain(*long))

    async def story(client: Client) -> None:
        before = set(await names(client, "needle")) | set()
        whole: list[str] = []
        cursor: dict[str, str] = {}
        n = 0
        while True:
            page = await client.request("search/sessions", query="needle", limit=7, **cursor)
            whole += [item["session"]["sessionId"] for item in page["items"]]
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
            n += 1
            session(root, f"later{n}", chain(user("u", None, "needle needle")))
            with place(root, chance.choice([f"s{k:02}" for k in range(60)])).open("ab") as file:
                file.write(line(user(f"x{n}", "a", "a needle", 3600 + n)))
            await client.request("session/rename", sessionId=f"s{n:02}", title=f"The needle {n}")
        assert len(whole) == len(set(whole))
        assert {f"s{k:02}" for k in range(60)} | {"long"} <= set(whole)
        assert before <= set(whole)

        seen: list[str] = []
        cursor = {}
        while True:
            page = await client.request("search/entries", sessionId="long", query="needle", limit=33, **cursor)
            seen += [hit["entryId"] for hit in page["items"]]
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
            said = {"type": "message", "message": {"role": "user", "content": "one more needle"}}
            await client.request("session/append", sessionId="long", entries=[said])
        assert len(seen) == len(set(seen))
        assert set(seen) == {one["id"] for one in long}

    told(tmp_path, root, 61, story)


def test_a_cursor_of_another_search_is_expired_and_the_same_one_gives_the_same_page(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    for n in range(6):
        session(root, f"s{n}", chain(user("u", None, "needle"), user("v", None, "needle"), user("w", None, "thread")))

    async def story(client: Client) -> None:
        for method, more in (("search/sessions", {}), ("search/entries", {"sessionId": "s1"})):
            first = await client.request(method, query="needle", limit=1, **more)
            cursor = first["nextCursor"]
            pages = [await client.request(method, query="needle", limit=1, cursor=cursor, **more) for _ in range(2)]
            assert pages[0]["items"] == pages[1]["items"] != first["items"]
            other = {**more, "where": {"roles": ["user"]}}
            malformed = ("", "x", "-", cursor[:-1] + "x", f"{cursor}9" * 99)
            for wrong in (
                {**more, "query": "thread", "cursor": cursor}, {**other, "query": "needle", "cursor": cursor},
                *({**more, "query": "needle", "cursor": text} for text in malformed),
            ):  # fmt: skip
                assert await refused(client, method, **wrong) == "cursorExpired", wrong
        assert await refused(client, "search/entries", sessionId="s2", query="needle", cursor=cursor) == "cursorExpired"

    told(tmp_path, root, 6, story)


WORDS = [
    "alpha",
    "alphabet",
    "beta",
    "bet",
    "gamma-ray",
    "delta",
    "데이터",
    "데이터베이스를",
    "移行",
    "移行中",
    "naïve",
    "🙂",
    "x1",
    "12",
]


@pytest.mark.parametrize("seed", range(3))
def test_the_index_finds_what_looking_through_everything_finds(tmp_path: Path, seed: int) -> None:
    """Random sessions with branches, random queries: the same entries, the same strongest hit, whole pages."""
    chance = random.Random(seed)
    root = tmp_path / "sessions"
    stored: dict[str, list[dict[str, Any]]] = {}
    for n in range(12):
        talk: list[dict[str, Any]] = []
        for k in range(chance.randrange(1, 40)):
            text = " ".join(chance.choices(WORDS, k=chance.randrange(1, 9)))
            above = chance.choice(talk)["id"] if talk and chance.random() < 0.2 else talk[-1]["id"] if talk else None
            make = chance.choice([user, assistant, lambda *args: tool_result(args[0], args[1], "c", args[2], args[3])])
            talk.append(make(f"e{k}", above, text, k + 1))
        stored[f"s{n}"] = talk
        session(root, f"s{n}", talk)

    async def story(client: Client) -> None:
        for _ in range(40):
            some = chance.choices(WORDS, k=chance.choice([1, 1, 2, 3]))
            query = " ".join(word[: chance.randrange(1, 9)] for word in some)
            query = f'"{query}"' if chance.random() < 0.2 else query
            if not Query(query).words:
                continue
            wanted = Query(query)
            expected = {
                name: {e["id"] for e in talk if (said := text_of(e)) and wanted.fits(fold(said.text)) is not None}
                for name, talk in stored.items()
            }
            found = await client.request("search/sessions", query=query, limit=50)
            assert {item["session"]["sessionId"]: item["hits"] for item in found["items"]} == {
                name: len(one) for name, one in expected.items() if one
            }, query
            for item in found["items"]:
                name = item["session"]["sessionId"]
                inside = await hits(client, name, query, limit=7)
                assert [hit["entryId"] for hit in inside if hit["entryId"] not in expected[name]] == []
                assert len(inside) == len(expected[name])
                assert inside[0] == item["best"], query

    told(tmp_path, root, 12, story)


# --- together


def test_many_clients_search_while_an_agent_appends(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    for n in range(20):
        session(root, f"s{n}", chain(*(user(f"u{k}", None, f"hay {k} needle") for k in range(50))))

    async def run() -> None:
        with Daemon(tmp_path / "home", root) as daemon:
            async with clients(daemon, 9) as (agent, *others):
                await settled(agent, 20)
                said = 0
                over = False

                async def append() -> None:
                    nonlocal said, over
                    for n in range(60):
                        entries = [{"type": "message", "message": {"role": "user", "content": f"fresh{n} needle"}}]
                        await agent.request("session/append", sessionId="s3", entries=entries)
                        said = n + 1
                    over = True

                async def look(client: Client) -> int:
                    rounds = last = 0
                    while not over or not rounds:
                        before = said
                        found = await ids(client, "s3", "fresh", limit=100)
                        assert before <= len(found) == len(set(found))
                        assert last <= len(found)
                        last = len(found)
                        everywhere = await client.request("search/sessions", query="needle", limit=30)
                        assert len(everywhere["items"]) == 20
                        rounds += 1
                    return rounds

                done = await asyncio.gather(append(), *(look(client) for client in others))
                assert all(rounds for rounds in done[1:])

                async def all_found() -> bool:
                    (item,) = (await agent.request("search/sessions", query="fresh"))["items"]
                    return item["hits"] == 60

                await eventually(all_found)

    asyncio.run(run())
