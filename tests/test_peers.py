"""We and the real pi and omp make the same of a session file, whoever wrote it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon import SessionManager
from dsh_daemon.client import Client
from dsh_daemon.log.formats.recognise import recognise
from tests import support
from tests.peers import Oracle, assistant, omp, op, pi, tool_call, tool_result, user
from tests.peers_support import CONTEXT, RandomScript, daemon_view, differences, our_view, random_log, scripts
from tests.running import Daemon
from tests.support import CORPUS, entry, header, line, write_log
from tests.wire import in_loop

pytestmark = pytest.mark.timeout(600)  # the first test may have to install the peers

# Of damaged files, where the owner does not see what we see.
KNOWN = {
    ("pi", "bom.jsonl"): "refuses a byte order mark",
    ("pi", "dup_ids.jsonl"): "lets the last of one id win",
    ("omp", "dup_ids.jsonl"): "lets the last of one id win",
    ("omp", "two_headers.jsonl"): "takes a second header for a root",
    ("pi", "not_session.jsonl"): "refuses it, as we do",
    ("omp", "not_session.jsonl"): "refuses it, as we do",
    ("pi", "title_slot_first.jsonl"): "refuses omp's files",
}
CIRCLE = "cycle.jsonl"  # pi does not survive it


def stamped(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.skipif(CORPUS is None, reason="the corpus is not here")
@pytest.mark.parametrize("owner", ["pi", "omp"])
def test_every_file_of_the_corpus_is_read_as_its_owner_reads_it(owner: str) -> None:
    assert CORPUS is not None
    paths = sorted(
        path
        for part in (owner, "public", "edge/pi-omp-v3")
        for path in (CORPUS / part).rglob("*.jsonl")
        if path.name != CIRCLE and not (part == "public" and owner == "omp")
    )
    before = {path: stamped(path) for path in paths}
    found: dict[str, list[str]] = {}
    for seen in {"pi": pi, "omp": omp}[owner]().load(paths):
        path = seen["path"]
        if seen.get("error") and (owner, path.name) in KNOWN:
            continue
        if differing := differences(seen, our_view(path)):
            found[path.name] = differing

    assert found.keys() == {name for who, name in KNOWN if who == owner and name in found}, found
    assert len(paths) > 20
    assert {path: stamped(path) for path in paths} == before


@pytest.mark.parametrize("owner", ["pi", "omp"])
def test_what_a_peer_wrote_is_read_as_it_reads_it_itself(owner: str, tmp_path: Path) -> None:
    peer = {"pi": pi, "omp": omp}[owner]()
    jobs = {
        tmp_path / f"2026-01-01T00-00-00-000Z_s{seed}.jsonl": RandomScript(owner, seed).make(80) for seed in range(12)
    }
    scripts(peer, jobs)

    for seen in peer.load(jobs):
        path = seen["path"]
        assert differences(seen, our_view(path)) == [], path.name
        assert len(seen["entries"]) > 60
        found = recognise(path.read_bytes()[:4096], str(path))
        assert found.format == owner


def test_a_log_with_shuffled_times_lines_and_broken_lines_is_the_same_tree_to_us_and_to_them(tmp_path: Path) -> None:
    for peer in (pi(), omp()):
        paths = [tmp_path / f"{peer.name}_random-{seed}.jsonl" for seed in range(16)]
        for seed, path in enumerate(paths):
            path.write_bytes(random_log(seed, fragments=peer.name == "pi"))

        for seen in peer.load(paths):
            leave = () if peer.name == "pi" else CONTEXT
            assert differences(seen, our_view(seen["path"]), leave=leave) == [], (peer.name, seen["path"].name)


# What we write


def native(path: Path) -> None:
    manager = SessionManager.create("/tmp/demo/proj", str(path.parent))
    manager.append_message(user("Find the bug"))
    manager.append_message(assistant("Looking", tool_call("c1", "bash", command="ls")))
    manager.append_message(tool_result("c1", "bash", "calc.py"))
    manager.append_message(assistant("It is in calc.py"))
    assert manager.session_file is not None
    Path(manager.session_file).rename(path)


def of_pi(path: Path) -> None:
    pi().script(path, [op("appendMessage", user("Find the bug")), op("appendMessage", assistant("It is in calc.py"))])


def of_omp(path: Path) -> None:
    omp().script(path, [op("appendMessage", user("Find the bug")), op("appendMessage", assistant("It is in calc.py"))])


def turn() -> list[dict[str, Any]]:
    return [support.user("aaaaaaa1", None, "one"), support.assistant("aaaaaaa2", "aaaaaaa1", "two", 2)]


def of_version_1(path: Path) -> None:
    """No ids; a compaction that names a line by its number."""
    records = [user("one"), assistant("two"), user("three"), assistant("four")]
    lines: list[dict[str, Any]] = [
        {"type": "message", "timestamp": support.stamp(n), "message": m} for n, m in enumerate(records)
    ]
    compaction = {"type": "compaction", "summary": "so far", "firstKeptEntryIndex": 3, "tokensBefore": 99}
    lines.append({**compaction, "timestamp": support.stamp(9)})
    first = {key: value for key, value in header("v1-session").items() if key != "version"}
    path.write_bytes(b"".join(map(line, [first, *lines])))


def of_version_2(path: Path) -> None:
    hook = {"role": "hookMessage", "customType": "note", "content": "from a hook", "display": True, "timestamp": 3000}
    write_log(
        path,
        [*turn(), entry("message", "aaaaaaa3", "aaaaaaa2", 3, message=hook)],
        {**header("v2-session"), "version": 2},
    )


def with_a_torn_tail(path: Path) -> None:
    write_log(
        path,
        [support.user("aaaaaaa1", None, "one"), support.assistant("aaaaaaa2", "aaaaaaa1", "two", 2)],
        header("torn"),
    )
    with path.open("ab") as file:
        file.write(line(support.user("aaaaaaa3", "aaaaaaa2", "never finished", 3))[:70])
    os.utime(path, (1e9, 1e9))  # nobody is still writing it


def without_a_last_newline(path: Path) -> None:
    write_log(
        path,
        [support.user("aaaaaaa1", None, "one"), support.assistant("aaaaaaa2", "aaaaaaa1", "two", 2)],
        header("no-nl"),
    )
    path.write_bytes(path.read_bytes()[:-1])
    os.utime(path, (1e9, 1e9))


async def work(client: Client, session: str) -> None:
    """Every way in which a client changes a session."""

    async def ask(verb: str, **params: Any) -> Any:
        return await client.request(f"session/{verb}", sessionId=session, **params)

    def message(body: dict[str, Any]) -> dict[str, Any]:
        return {"type": "message", "message": body}

    old = (await ask("open"))["leafId"]
    answer = assistant("Fixing", tool_call("c9", "edit", path="calc.py"))
    sent = [message(user("Fix it 中文 \u2028")), message(answer), message(tool_result("c9", "edit", "done"))]
    prompt, call, result = (await ask("append", entries=sent))["ids"]
    await ask("label", entryId=prompt, label="plan a")
    await ask("label", entryId=call, label="soon gone")
    await ask("moveLeaf", entryId=old, summary={"text": "Went one way", "details": {"readFiles": ["calc.py"]}})
    await ask("append", entries=[message(user("Otherwise")), message(assistant("Other answer"))])
    await ask("label", entryId=prompt, label="plan b")
    await ask("label", entryId=call, label=None)
    await ask("rename", title="Two ways")
    await ask("navigate", targetId=result)
    compaction = {"type": "compaction", "summary": "in short", "firstKeptEntryId": call, "tokensBefore": 1234}
    note = {"type": "custom_message", "customType": "note", "content": "see", "display": True, "details": {"n": 1}}
    await ask("append", entries=[compaction, note, {"type": "custom", "customType": "state", "data": {"n": 1}}])
    await ask("append", entries=[{"type": "thinking_level_change", "thinkingLevel": "high"}, message(user("Go on"))])
    kept = (await ask("append", entries=[message(assistant("Gone on")), message(user("And on"))]))["ids"][1]
    await ask("compact", summary="What was done so far", firstKeptEntryId=kept)
    await ask("append", entries=[message(assistant("Done"))])
    await ask("moveLeaf", entryId=None)
    await ask("append", entries=[message(user("A new root")), message(assistant("Yes"))])


MADE: dict[str, tuple[Callable[[Path], None], tuple[Callable[[], Oracle], ...]]] = {
    "native": (native, (pi, omp)),
    "pi": (of_pi, (pi,)),
    "omp": (of_omp, (omp,)),
    "version-1": (of_version_1, (pi,)),
    "version-2": (of_version_2, (pi,)),
    "torn": (with_a_torn_tail, (pi,)),
    "unterminated": (without_a_last_newline, (pi,)),
}


@in_loop
async def test_what_we_wrote_into_files_of_every_kind_is_read_by_their_owners_as_by_our_clients(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    paths = {name: root / f"2026-01-01T00-00-00-000Z_{name}.jsonl" for name in MADE}
    root.mkdir()
    for name, (make, _) in MADE.items():
        make(paths[name])
    views: dict[Path, Any] = {}
    branches: dict[str, list[Path]] = {name: [] for name in MADE}
    with Daemon(tmp_path / "dshd", root) as daemon:
        async with daemon.client() as client:
            for name, path in paths.items():
                state = await client.request("session/open", path=str(path), subscribe=False)
                await work(client, state["sessionId"])
                views[path] = await daemon_view(client, state["sessionId"])
                for child in await branched(client, state["sessionId"], views[path]):
                    branches[name].append(Path(child["path"]))
                    views[Path(child["path"])] = await daemon_view(client, child["sessionId"])

    for who in (pi, omp):
        mine = [path for name, (_, peers) in MADE.items() if who in peers for path in (paths[name], *branches[name])]
        for seen in who().load(mine):
            path = seen["path"]
            # omp knows no session_info; a slot or header names its sessions.
            leave = ("name",) if who is omp and b"generator" in path.read_bytes() else ()
            assert differences(seen, views[path], leave=leave) == [], (who.__name__, path.name)
            assert differences(seen, our_view(path), leave=leave) == [], (who.__name__, path.name)
            assert not seen["rewritten"], (who.__name__, path.name)
            assert seen["name"] == "Two ways" or leave
    assert all(len(children) == 2 for children in branches.values())


async def branched(client: Client, session: str, view: dict[str, Any]) -> list[dict[str, Any]]:
    """A branch at the labelled prompt's last tip, and one before the prompt."""
    labelled = next(iter(view["labels"]))
    below = next(tip for tip in view["tips"] if labelled in view["paths"][tip])
    made = [
        await client.request("session/branch", sessionId=session, entryId=below, position="at", force=True),
        await client.request("session/branch", sessionId=session, entryId=labelled, position="before", force=True),
    ]
    return [result["session"] for result in made]
