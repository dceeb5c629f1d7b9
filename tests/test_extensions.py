"""Extensions inside the daemon: a small real package with an entry point, in a real daemon."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.model import model
from tests.running import Daemon, environment, eventually
from tests.test_asking import entries, of, written

BOOKKEEPER = """
import asyncio
import json
import os
import time

NOTES = os.environ["NOTES"]


def note(**what):
    with open(NOTES, "a") as file:
        file.write(json.dumps(what) + "\\n")


def setup(extension):
    @extension.on("session_before_tree")
    async def before(event, context):
        target = event.params["preparation"]["targetId"]
        if target == "r1":
            return {"cancel": True, "reason": "not into the middle of work"}
        if target == "a1":
            try:
                await context.set_label("a2", "from inside")
            except Exception as exc:
                note(inside=exc.kind)
            rows = (await context.request("session/tree"))["total"]
            note(rows=rows)
        if target == "u1":
            raise RuntimeError("a bug")
        if event.params["preparation"]["userWantsSummary"]:
            return {"summary": {"text": "what the extension thinks"}}

    @extension.on("session_before_branch")
    def slow(event, context):
        for _ in range(200):
            if event.signal.is_set():
                note(signal=True)
                return None
            time.sleep(0.02)

    @extension.on("session_tree")
    async def after(event, context):
        if event.params["newLeafId"] == "a2":
            id_ = await context.append_custom("bookkeeper", {"from": event.params["oldLeafId"]})
            note(custom=id_)

    @extension.on("session_tree")
    def plain(event, context):
        if event.params["newLeafId"] == "r1":
            context.set_label("a2", "by a plain one")
            note(plain=context.append_custom("plain"), rows=context.request("session/tree")["total"])

    @extension.on("session_tree")
    async def elsewhere(event, context):
        if event.params["newLeafId"] == "a1":
            def foreign():
                try:
                    asyncio.run(context.set_label("a2", "from another loop"))
                except RuntimeError as exc:
                    note(foreign=str(exc))

            await asyncio.to_thread(foreign)

    @extension.on("session.compacting")
    def compacting(event, context):
        return {"context": ["The extension was here."]}
"""


def package(folder: Path, name: str, code: str) -> None:
    """A distribution of one module with an entry point, as an installer leaves it."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dsh_daemon.extensions]\n{name} = {name}:setup\n")


@asynccontextmanager
async def running(tmp_path: Path, **more: str):
    root, path = written(tmp_path)
    folder = tmp_path / "site"
    folder.mkdir()
    package(folder, "bookkeeper", BOOKKEEPER)
    package(folder, "broken", "def setup(extension):\n    raise ValueError('no')\n")
    package(folder, "missing", "nothing = 1\n")
    notes = tmp_path / "notes"
    notes.touch()
    found = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    with Daemon(tmp_path / "home", f"native={root}", PYTHONPATH=found, NOTES=str(notes), **more) as daemon:
        yield daemon, path, lambda: [json.loads(line) for line in notes.read_text().splitlines()]


def test_an_extension_vetoes_reads_and_is_told(tmp_path):
    async def scenario():
        async with running(tmp_path) as (daemon, path, notes), daemon.client() as client:
            session = await of(client, path)
            before = path.read_bytes()
            refused = await client.request("session/navigate", sessionId=session, targetId="r1")
            assert (refused["outcome"], refused["refusedBy"]) == ("refused", "extension bookkeeper")
            assert path.read_bytes() == before
            await client.request("session/navigate", sessionId=session, targetId="a1")
            assert {"inside": "busy"} in notes()
            assert any("rows" in one for one in notes())
            await client.request("session/navigate", sessionId=session, targetId="a2")
            await eventually(lambda: any("custom" in one for one in notes()))
            last = entries(path)[-1]
            assert (last["type"], last["customType"], last["data"]) == ("custom", "bookkeeper", {"from": "a1"})

    asyncio.run(scenario())


def test_a_plain_handlers_calls_are_done_when_they_return_and_another_event_loop_is_refused(tmp_path):
    async def scenario():
        async with running(tmp_path) as (daemon, path, notes), daemon.client() as client:
            session = await of(client, path)
            await client.request("session/moveLeaf", sessionId=session, entryId="a3")
            moved = await client.request("session/navigate", sessionId=session, targetId="u1")
            assert moved["outcome"] == "moved"  # the handler that vetoes is switched off by its bug
            await client.request("session/navigate", sessionId=session, targetId="r1")
            await eventually(lambda: any("plain" in one for one in notes()))
            custom = next(one["plain"] for one in notes() if "plain" in one)
            assert [entry["id"] for entry in entries(path) if entry.get("customType") == "plain"] == [custom]
            labels = (await client.request("session/labels", sessionId=session))["items"]
            assert [(item["entryId"], item["label"]) for item in labels] == [("a2", "by a plain one")]
            before = path.read_bytes()
            await client.request("session/navigate", sessionId=session, targetId="a1")
            await eventually(lambda: any("foreign" in one for one in notes()))
            assert path.read_bytes() == before

    asyncio.run(scenario())


def test_its_summary_comes_before_the_models_and_its_context_reaches_it(tmp_path):
    async def scenario():
        async with model() as mock:
            more = {**mock.settings, "DSHD_SUMMARIZER__KEEP_TOKENS": "0"}
            async with running(tmp_path, **more) as (daemon, path, _), daemon.client() as client:
                session = await of(client, path)
                await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
                assert not mock.heard
                await eventually(lambda: any(e.get("summary") == "what the extension thinks" for e in entries(path)))
                await client.request("session/compact", sessionId=session)
                assert "The extension was here." in mock.heard[0]["messages"][1]["content"]

    asyncio.run(scenario())


def test_one_that_fails_is_reported_and_switched_off_for_that_event_only(tmp_path):
    async def scenario():
        async with running(tmp_path) as (daemon, path, notes), daemon.client() as client:
            session = await of(client, path)
            result = await client.request("session/navigate", sessionId=session, targetId="u1")
            assert result["outcome"] == "moved"  # the bug is no opinion
            # Not asked any more before a move, but told after it.
            result = await client.request("session/navigate", sessionId=session, targetId="r1")
            assert result["outcome"] == "moved"
            await client.request("session/navigate", sessionId=session, targetId="a2")
            await eventually(lambda: any("custom" in one for one in notes()))
            told = [
                p["detail"] for p in (await client.request("daemon/doctor"))["problems"] if p["code"] == "extension"
            ]
            assert any("bookkeeper" in text and "RuntimeError" in text for text in told)
            assert any("broken" in text for text in told)
            assert any("missing" in text for text in told)

    asyncio.run(scenario())


@pytest.mark.parametrize("by", ["cancel", "abort"])
def test_a_plain_handler_sees_the_signal_when_the_move_is_called_off(tmp_path, by):
    async def scenario():
        async with running(tmp_path) as (daemon, path, notes), daemon.client() as client:
            session = await of(client, path)
            files = sorted(path.parent.iterdir())
            made = asyncio.create_task(client.request("session/branch", sessionId=session, entryId="u2"))
            if by == "abort":

                async def aborted() -> bool:
                    return (await client.request("session/abort", sessionId=session))["aborted"] == "summary"

                await eventually(aborted)
            else:
                await asyncio.sleep(0.3)
                client.notify("$/cancelRequest", {"id": next(iter(client._waiting))})
            assert (await made)["outcome"] == "cancelled"
            await eventually(lambda: {"signal": True} in notes())
            assert sorted(path.parent.iterdir()) == files

    asyncio.run(scenario())


HOSTILE = """
import asyncio
import sys
import time

print("not for the client's eyes", flush=True)


def setup(extension):
    @extension.on("session_before_tree")
    async def before(event, context):
        preparation = event.params["preparation"]
        preparation["entriesToSummarize"].clear()
        match preparation["targetId"]:
            case "r1":
                return 7
            case "a1":
                return {"summary": {"text": "mine", "details": {1, 2}}}
            case "a2":
                await context.request("session/open")
                raise asyncio.CancelledError
            case "u1":
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    await asyncio.sleep(60)

    @extension.on("session_tree")
    async def leave(event, context):
        sys.exit(3)

    @extension.on("session_before_branch")
    def hang(event, context):
        time.sleep(1_000)
"""


@asynccontextmanager
async def hostile(tmp_path: Path, **more: str):
    root, path = written(tmp_path)
    folder = tmp_path / "site"
    folder.mkdir()
    package(folder, "hostile", HOSTILE)
    found = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    with Daemon(tmp_path / "home", f"native={root}", PYTHONPATH=found, **more) as daemon:
        yield daemon, path


def test_nothing_that_an_extension_answers_raises_or_changes_reaches_anybody_else(tmp_path):
    async def scenario():
        async with (
            model() as mock,
            hostile(tmp_path, **mock.settings) as (daemon, path),
            daemon.client() as client,
            daemon.client("after it", hooks=["sessionBeforeTree"]) as owner,
        ):
            told = []

            async def hook(params):
                told.append([entry["id"] for entry in params["preparation"]["entriesToSummarize"]])
                return {}

            owner.serve("hook/sessionBeforeTree", hook)
            session = await of(client, path)
            for target in ("r1", "a1"):
                await client.request("session/moveLeaf", sessionId=session, entryId="a3")
                move = {"sessionId": session, "targetId": target, "summarize": target == "a1"}
                assert (await client.request("session/navigate", move))["outcome"] == "moved"
            assert entries(path)[-1]["summary"] == "## Goal\nFix the login."
            assert told[0] == ["a2", "u2", "a3"]
            await client.request("session/moveLeaf", sessionId=session, entryId="a3")
            result = await client.request("session/navigate", sessionId=session, targetId="a2")
            assert result["outcome"] == "moved"  # it cancelled itself, not the move

            async def reported() -> bool:
                found = (await client.request("daemon/doctor"))["problems"]
                text = " ".join(problem["detail"] for problem in found if problem["code"] == "extension")
                return "SystemExit" in text and "CancelledError" in text

            await eventually(reported)
            status = await client.request("daemon/status")
            assert sum(one["subscriptions"] for one in status["connections"]) == 0

    asyncio.run(scenario())


def test_one_that_hangs_holds_up_a_move_once_takes_no_threads_and_lets_the_daemon_end(tmp_path):
    async def scenario():
        async with hostile(tmp_path, DSHD_LIMITS__HOOK_SECONDS="0.3") as (daemon, path):
            async with daemon.client() as client:
                session = await of(client, path)
                began = asyncio.get_running_loop().time()
                for _ in range(2):
                    moved = await client.request("session/navigate", sessionId=session, targetId="u1")
                    assert moved["outcome"] == "moved"
                    await client.request("session/moveLeaf", sessionId=session, entryId="a3")
                for _ in range(40):  # more than the daemon has threads
                    await client.request("session/branch", sessionId=session, entryId="u1")
                assert asyncio.get_running_loop().time() - began < 15
            daemon.process.terminate()
            assert await asyncio.to_thread(daemon.process.wait, 10) == 0

    asyncio.run(scenario())


def test_what_an_extension_prints_does_not_get_between_the_messages_of_a_client_on_stdio(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    package(folder, "hostile", HOSTILE)
    found = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "dsh_daemon", "stdio", "--standalone"],
        env=environment(tmp_path, PYTHONPATH=found), input=b"", capture_output=True, timeout=30,
    )  # fmt: skip
    assert done.stdout == b""
    assert b"not for the client" in done.stderr
