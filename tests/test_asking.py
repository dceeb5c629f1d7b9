"""Hooks, summaries and compaction over the wire: real daemons, real clients, a model on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dsh_daemon import live
from dsh_daemon.client import RpcError
from dsh_daemon.session import Session
from tests.model import model
from tests.running import Daemon, eventually
from tests.support import assistant, entry, header, tool_result, user, write_log

FORMATS = ("native", "pi", "omp")


def story(format_: str) -> list[dict]:
    """Two prompts, work with a tool, and a third way that was begun."""
    head = header("s1")
    if format_ == "native":
        head["generator"] = "dsh-daemon/0"
    call = {"id": "call-1", "name": "read", "arguments": {"path": "src/login.ts"}}
    first = [entry("model_change", "m0", None, model="mock/mock-1")] if format_ == "omp" else []
    return [
        head,
        *first,
        user("u1", "m0" if first else None, "Fix the login redirect", 1),
        assistant("a1", "u1", "", 2, calls=[call]),
        tool_result("r1", "a1", "call-1", "the file", 3, "read"),
        assistant("a2", "r1", "The query is lost.", 4),
        user("u2", "a2", "Refactor the handler", 5),
        assistant("a3", "u2", "Three tests fail.", 6),
    ]


def written(tmp_path: Path, format_: str = "native") -> tuple[Path, Path]:
    root = tmp_path / "sessions" / "--tmp-demo-proj--"
    root.mkdir(parents=True, exist_ok=True)
    lines = story(format_)
    return root.parent, write_log(root / "2026-01-01T00-00-00-000Z_s1.jsonl", lines[1:], lines[0])


@asynccontextmanager
async def running(tmp_path: Path, format_: str = "native", **more: str):
    root, path = written(tmp_path, format_)
    with Daemon(tmp_path / "home", f"{format_}={root}", **more) as daemon:
        yield daemon, path


async def of(client, path: Path) -> str:
    return (await client.request("session/resolve", ref=str(path)))["sessionId"]


def entries(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_summary_hangs_at_the_new_position_and_names_the_position_it_left_for(tmp_path, format_):
    async def scenario():
        async with (
            model() as mock,
            running(tmp_path, format_, **mock.settings) as (daemon, path),
            daemon.client() as client,
        ):
            session = await of(client, path)
            before = path.read_bytes()
            info = await client.request("session/open", sessionId=session)
            assert info["can"]["summarize"]
            result = await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            assert result["outcome"] == "moved"
            assert result["leafId"] == result["summaryEntryId"]
            assert path.read_bytes().startswith(before)
            last = entries(path)[-1]
            assert (last["type"], last["parentId"], last["fromId"]) == ("branch_summary", "a2", "a2")
            assert last["summary"] == "## Goal\nFix the login."
            assert last["fromExtension"] is False
            assert last.get("fromHook") == (False if format_ == "pi" else None)
            told = mock.heard[0]["messages"][1]["content"]
            assert "Refactor the handler" in told
            assert "Fix the login redirect" not in told  # only what is left is summarised
            seen = await client.request("session/context", sessionId=session)
            assert "branchSummary" in [message["role"] for message in seen["messages"]]

    asyncio.run(scenario())


def test_without_a_model_a_summarising_move_fails_at_once_and_nothing_happens(tmp_path):
    async def scenario():
        async with running(tmp_path) as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            before = path.read_bytes()
            asked = []

            async def hook(params):
                asked.append(params)
                return {"summary": {"text": "mine"}}

            async with daemon.client("hooks", hooks=["sessionBeforeTree"]) as owner:
                owner.serve("hook/sessionBeforeTree", hook)
                with pytest.raises(RpcError) as refused:
                    await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            assert refused.value.kind == "noActiveModel"
            assert not asked
            assert path.read_bytes() == before
            assert (await client.request("session/open", sessionId=session))["leafId"] == "a3"

    asyncio.run(scenario())


def test_a_model_that_is_configured_while_the_daemon_runs_is_asked_and_other_settings_are_told_of(tmp_path):
    async def scenario():
        async with model() as mock, running(tmp_path) as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            with pytest.raises(RpcError) as refused:
                await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            assert refused.value.kind == "noActiveModel"

            async def problems():
                found = (await client.request("daemon/doctor"))["problems"]
                return [problem["detail"] for problem in found if problem["code"] == "settings"]

            config = daemon.home / "config.toml"
            url = mock.settings["DSHD_SUMMARIZER__BASE_URL"]
            config.write_text(f'[summarizer]\nbase_url = "{url}"\nmodel = "late"\n')
            assert (await client.request("session/open", sessionId=session))["can"]["summarize"]
            assert await problems() == []
            await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            assert mock.heard[0]["model"] == "late"

            config.write_text(f'durability = "flush"\n[summarizer]\nbase_url = "{url}"\nmodel = "late"\n')
            assert [detail.split(":")[0] for detail in await problems()] == ["durability"]
            config.write_text("durability = 'perhaps'\n")
            (broken,) = await problems()
            assert "durability" in broken
            assert "goes on with what it read before" in broken

    asyncio.run(scenario())


def test_a_hook_is_told_what_is_left_and_its_summary_comes_before_the_models(tmp_path):
    async def scenario():
        async with (
            model() as mock,
            running(tmp_path, "pi", **mock.settings) as (daemon, path),
            daemon.client() as client,
            daemon.client("hooks", hooks=["sessionBeforeTree"], events=["sessionTree"]) as owner,
        ):
            session = await of(client, path)
            asked, told = [], []

            async def hook(params):
                asked.append(params)
                return {"summary": {"text": "It failed.", "details": {"n": 1}}, "label": "tried"}

            owner.serve("hook/sessionBeforeTree", hook)
            owner.on("event/sessionTree", told.append)
            result = await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            preparation = asked[0]["preparation"]
            assert [entry["id"] for entry in preparation.pop("entriesToSummarize")] == ["u2", "a3"]
            assert preparation == {
                "targetId": "a2", "oldLeafId": "a3", "commonAncestorId": "a2", "userWantsSummary": True,
            }  # fmt: skip
            summary, label = entries(path)[-2:]
            assert (summary["summary"], summary["details"]) == ("It failed.", {"n": 1})
            assert (summary["fromExtension"], summary["fromHook"]) == (True, True)
            assert (label["targetId"], label["label"]) == (summary["id"], "tried")
            assert not mock.heard
            await eventually(lambda: bool(told))
            assert told[0]["fromExtension"] is True
            assert told[0]["summaryEntry"]["id"] == summary["id"]
            assert (told[0]["oldLeafId"], told[0]["newLeafId"]) == ("a3", result["leafId"])

    asyncio.run(scenario())


def test_a_veto_stops_the_move_and_those_after_it_are_not_asked(tmp_path):
    async def scenario():
        async with running(tmp_path) as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            before = path.read_bytes()
            asked = []
            async with (
                daemon.client("first", hooks=["sessionBeforeTree"]) as first,
                daemon.client("second", hooks=["sessionBeforeTree"]) as second,
                daemon.client("third", hooks=["sessionBeforeTree"]) as third,
            ):

                def answering(name, answer):
                    async def hook(_params):
                        asked.append(name)
                        return answer

                    return hook

                first.serve("hook/sessionBeforeTree", answering("first", {}))
                second.serve("hook/sessionBeforeTree", answering("second", {"cancel": True, "reason": "not now"}))
                third.serve("hook/sessionBeforeTree", answering("third", {}))
                result = await client.request("session/navigate", sessionId=session, targetId="a2")
            assert asked == ["first", "second"]
            assert (result["outcome"], result["refusedBy"], result["reason"]) == ("refused", "second", "not now")
            assert result["leafId"] == result["oldLeafId"] == "a3"
            assert path.read_bytes() == before

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["hangs", "fails", "leaves", "answers nonsense"])
def test_an_owner_that_does_not_answer_has_no_opinion(tmp_path, how):
    async def scenario():
        async with running(tmp_path, DSHD_LIMITS__HOOK_SECONDS="0.5") as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            cancelled = []
            owner = await daemon.client("odd", hooks=["sessionBeforeTree"])

            async def hook(_params):
                if how == "fails":
                    raise ValueError("broken")
                if how == "answers nonsense":
                    return {"summary": 7}
                if how == "leaves":
                    owner._writer.transport.abort()
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    cancelled.append(1)
                    raise

            owner.serve("hook/sessionBeforeTree", hook)
            result = await client.request("session/navigate", sessionId=session, targetId="a2")
            assert (result["outcome"], result["leafId"]) == ("moved", "a2")
            if how == "hangs":
                await eventually(lambda: bool(cancelled))
            await owner.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("where", ["hook", "model", "client"])
@pytest.mark.parametrize("by", ["the caller", "session/abort", "the caller's leaving"])
def test_a_cancel_leaves_everything_as_it_was_down_to_the_byte(tmp_path, where, by):
    async def scenario():
        async with model() as mock, running(tmp_path, **(mock.settings if where == "model" else {})) as (daemon, path):
            mock.plan = [["## Go", 30.0]]
            async with daemon.client("other", summarizer=where == "client", hooks=["sessionBeforeTree"]) as other:
                session = await of(other, path)
                before = path.read_bytes()
                waiting, cancelled = [], []

                async def hang(_params):
                    waiting.append(1)
                    try:
                        await asyncio.sleep(30)
                    except asyncio.CancelledError:
                        cancelled.append(1)
                        raise

                async def agree(_params):
                    return {}

                other.serve("hook/sessionBeforeTree", hang if where == "hook" else agree)
                other.serve("hook/summarize", hang)
                client = await daemon.client("person")
                asks = {"targetId": "a2", "summarize": where != "hook"}
                move = asyncio.create_task(client.request("session/navigate", sessionId=session, **asks))
                await eventually(lambda: bool(waiting) or bool(mock.heard))
                if by == "session/abort":
                    answer = await other.request("session/abort", sessionId=session)
                    assert answer == {"aborted": "summary"}
                    result = await move
                    assert (result["outcome"], result["leafId"]) == ("cancelled", "a3")
                elif by == "the caller":
                    client.notify("$/cancelRequest", {"id": next(iter(client._waiting))})
                    result = await move
                    assert (result["outcome"], result["leafId"]) == ("cancelled", "a3")
                else:
                    await client.close()
                    with pytest.raises(ConnectionError):
                        await move
                await eventually(lambda: bool(cancelled) or bool(mock.hung_up))
                assert path.read_bytes() == before
                state = await other.request("session/open", sessionId=session)
                assert (state["leafId"], state["revision"]) == ("a3", 1)
                assert (await other.request("session/abort", sessionId=session)) == {"aborted": None}
                await client.close()

    asyncio.run(scenario())


def test_a_hook_may_read_and_a_change_of_the_same_session_from_inside_is_busy_at_once(tmp_path):
    async def scenario():
        async with running(tmp_path) as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            async with daemon.client("hooks", hooks=["sessionBeforeTree"]) as owner:
                seen = {}

                async def hook(_params):
                    seen["rows"] = (await owner.request("session/tree", sessionId=session))["total"]
                    for method, params in (
                        ("session/navigate", {"targetId": "a1"}),
                        ("session/label", {"entryId": "a1", "label": "x"}),
                        ("session/moveLeaf", {"entryId": "a1"}),
                        ("session/append", {"entries": [{"type": "custom", "customType": "x"}]}),
                    ):
                        try:
                            await owner.request(method, sessionId=session, **params)
                        except RpcError as exc:
                            seen[method] = exc.kind
                    return {}

                owner.serve("hook/sessionBeforeTree", hook)
                result = await client.request("session/navigate", sessionId=session, targetId="a2")
                assert result["leafId"] == "a2"
                assert seen.pop("rows") > 0
                assert set(seen.values()) == {"busy"}
                assert len(seen) == 4
                # Afterwards it may.
                await owner.request("session/label", sessionId=session, entryId="a1", label="x")

    asyncio.run(scenario())


def test_a_session_that_went_on_meanwhile_is_not_moved(tmp_path):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path):
            mock.plan = [["## Goal", 0.5]]
            async with daemon.client() as client, daemon.client("agent") as other:
                session = await of(client, path)
                move = asyncio.create_task(
                    client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
                )
                await eventually(lambda: bool(mock.heard))
                more = user("u9", "a3", "And then?", 9)
                await other.request("session/append", sessionId=session, entries=[more])
                with pytest.raises(RpcError) as refused:
                    await move
                assert refused.value.kind == "leafMoved"
                assert refused.value.data["expected"] == "a3"
                assert entries(path)[-1]["id"] == "u9"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ([[400]], "refused"),
        ([[500], [500], [500], [500], [500]], "refused"),
        ([["half", None]], "brokenOff"),
        ([[" "]], "empty"),
        ([["x", 5.0]], "timeout"),
    ],
)
def test_what_a_model_cannot_do_is_a_failed_summary_and_nothing_moves(tmp_path, plan, reason):
    async def scenario():
        async with model() as mock:
            limits = {"DSHD_SUMMARIZER__TIMEOUT": "2"} if reason == "timeout" else {}
            async with running(tmp_path, **mock.settings, **limits) as (daemon, path), daemon.client() as client:
                mock.plan = plan
                session = await of(client, path)
                before = path.read_bytes()
                with pytest.raises(RpcError) as failed:
                    await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
                assert failed.value.kind == "summaryFailed"
                assert failed.value.data["reason"] == reason
                assert path.read_bytes() == before

    asyncio.run(scenario())


def test_a_passing_refusal_and_a_cut_connection_are_tried_again(tmp_path):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path), daemon.client() as client:
            mock.plan = [[429], [503], ["half of", None], ["## Goal\n", "Done."]]
            session = await of(client, path)
            result = await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            assert result["outcome"] == "moved"
            assert entries(path)[-1]["summary"] == "## Goal\nDone."
            assert len(mock.heard) == 4

    asyncio.run(scenario())


def test_instructions_are_added_or_stand_instead(tmp_path):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            for wishes in ({"instructions": "Name the tests."}, {"instructions": "One line only.", "replace": True}):
                await client.request("session/moveLeaf", sessionId=session, entryId="a3")
                await client.request("session/navigate", sessionId=session, targetId="a2", summarize=wishes)
            added, instead = (request["messages"][1]["content"] for request in mock.heard)
            assert "Name the tests." in added
            assert "## Next steps" in added
            assert "One line only." in instead
            assert "## Next steps" not in instead

    asyncio.run(scenario())


def test_progress_is_told_at_most_ten_times_a_second(tmp_path):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path), daemon.client() as client:
            mock.plan = [[step for _ in range(60) for step in ("word ", 0.01)]]
            told = []
            client.on("$/progress", told.append)
            session = await of(client, path)
            params = {"sessionId": session, "targetId": "a2", "summarize": True, "workDoneToken": "t"}
            await client.request("session/navigate", params)
            kinds = [one["value"]["kind"] for one in told]
            assert (kinds[0], kinds[-1]) == ("begin", "end")
            assert 2 <= len(kinds) - 2 <= 25

    asyncio.run(scenario())


@pytest.mark.parametrize("format_", FORMATS)
def test_a_compaction_keeps_the_newest_and_loses_nothing(tmp_path, format_):
    async def scenario():
        async with (
            model() as mock,
            running(tmp_path, format_, **mock.settings, DSHD_SUMMARIZER__KEEP_TOKENS="10") as (daemon, path),
            daemon.client() as client,
            daemon.client("o", events=["sessionCompact"]) as other,
        ):
            told = []
            other.on("event/sessionCompact", told.append)
            session = await of(client, path)
            before = path.read_bytes()
            result = await client.request("session/compact", sessionId=session)
            assert result["outcome"] == "compacted"
            assert path.read_bytes().startswith(before)
            last = entries(path)[-1]
            assert (last["type"], last["id"], last["parentId"]) == ("compaction", result["entryId"], "a3")
            assert last["firstKeptEntryId"] == "a3"
            assert last["tokensBefore"] > 0
            assert last["details"] == {"readFiles": ["src/login.ts"], "modifiedFiles": []}
            await eventually(lambda: bool(told))
            assert told[0]["entry"]["id"] == last["id"]
            context = await client.request("session/context", sessionId=session)
            assert context["compactedFrom"] == last["id"]
            assert [m["role"] for m in context["messages"]] == ["compactionSummary", "assistant"]
            with pytest.raises(RpcError) as refused:
                await client.request("session/compact", sessionId=session)
            assert refused.value.kind == "nothingToCompact"

    asyncio.run(scenario())


def test_the_caller_or_a_hook_may_write_the_compaction_and_a_hook_may_forbid_it(tmp_path):
    async def scenario():
        async with running(tmp_path) as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            hooks = ["sessionBeforeCompact"]
            async with daemon.client("hooks", hooks=hooks, summarizer=True) as owner:
                answers = [{"cancel": True, "reason": "no"}, {"summary": "a hook's", "details": [1]}, {}]
                asked = []

                async def hook(params):
                    asked.append(params["preparation"])
                    return answers.pop(0)

                owner.serve("hook/sessionBeforeCompact", hook)
                compact = {"sessionId": session, "firstKeptEntryId": "u2"}
                before = path.read_bytes()
                result = await client.request("session/compact", compact)
                assert (result["outcome"], result["refusedBy"], result["reason"]) == ("refused", "hooks", "no")
                assert path.read_bytes() == before
                await client.request("session/compact", compact)
                last = entries(path)[-1]
                assert (last["summary"], last["details"], last["fromExtension"]) == ("a hook's", [1], True)
                assert asked[0]["firstKeptEntryId"] == "u2"
                assert [e["id"] for e in asked[0]["entriesToSummarize"]] == ["u1", "a1", "r1", "a2"]
                await client.request("session/compact", sessionId=session, summary="mine", firstKeptEntryId="a3")
                assert entries(path)[-1]["summary"] == "mine"

    asyncio.run(scenario())


def test_what_should_be_known_besides_reaches_the_model(tmp_path):
    async def scenario():
        async with (
            model() as mock,
            running(tmp_path, **mock.settings, DSHD_SUMMARIZER__KEEP_TOKENS="0") as (daemon, path),
            daemon.client() as client,
            daemon.client("h", hooks=["sessionCompacting"]) as owner,
        ):
            session = await of(client, path)

            async def hook(_params):
                return {"context": ["The branch is called login-2."]}

            owner.serve("hook/sessionCompacting", hook)
            await client.request("session/compact", sessionId=session, instructions="Mind the tests.")
            told = mock.heard[0]["messages"][1]["content"]
            assert "The branch is called login-2." in told
            assert "Mind the tests." in told

    asyncio.run(scenario())


def test_a_key_is_sent_and_never_shown(tmp_path):
    async def scenario():
        async with model() as mock:
            secret = {"DSHD_SUMMARIZER__API_KEY": "sk-secret-1"}
            async with running(tmp_path, **mock.settings, **secret) as (daemon, path), daemon.client() as client:
                session = await of(client, path)
                await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
                assert mock.keys == ["Bearer sk-secret-1"]
                logged = "".join(p.read_text(errors="replace") for p in tmp_path.rglob("*.log"))
                assert "sk-secret-1" not in logged
                config = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "dsh_daemon", "config", env=daemon.env, stdout=asyncio.subprocess.PIPE
                )
                out, _ = await config.communicate()
                assert b"sk-secret-1" not in out
                assert b"summarizer" in out

    asyncio.run(scenario())


def test_branch_is_asked_about_and_told_of(tmp_path):
    async def scenario():
        async with running(tmp_path) as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            async with daemon.client("h", hooks=["sessionBeforeBranch"], events=["sessionBranch"]) as owner:
                answers, told = [{"cancel": True}, {}], []

                async def hook(params):
                    assert params == {"sessionId": session, "entryId": "u2", "position": "before"}
                    return answers.pop(0)

                owner.serve("hook/sessionBeforeBranch", hook)
                owner.on("event/sessionBranch", told.append)
                files = len(list(path.parent.iterdir()))
                result = await client.request("session/branch", sessionId=session, entryId="u2")
                assert (result["outcome"], result["refusedBy"], result["path"]) == ("refused", "h", None)
                assert len(list(path.parent.iterdir())) == files
                made = await client.request("session/branch", sessionId=session, entryId="u2")
                await eventually(lambda: bool(told))
                assert told[0]["newSessionId"] == made["session"]["sessionId"]
                assert os.path.exists(told[0]["path"])

    asyncio.run(scenario())


def test_an_abort_that_comes_after_the_decision_says_so(tmp_path):
    async def scenario():
        async with (
            running(tmp_path) as (daemon, path),
            daemon.client() as client,
            daemon.client("hooks", hooks=["sessionBeforeTree"]) as owner,
        ):

            async def agree(_params):
                return {}

            owner.serve("hook/sessionBeforeTree", agree)
            session = await of(client, path)
            for n in range(40):
                request = client.request(
                    "session/navigate", sessionId=session, targetId=("a2", "a3")[n % 2], label=f"{n}"
                )
                move = asyncio.create_task(request)
                await asyncio.sleep(0.0005 * (n % 12))
                aborted = (await owner.request("session/abort", sessionId=session))["aborted"]
                assert ((await move)["outcome"] == "cancelled") == (aborted == "summary")

    asyncio.run(scenario())


def test_a_file_that_is_cut_while_a_model_is_asked_is_a_leaf_that_moved(tmp_path):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            summary = {"sessionId": session, "targetId": "a2", "summarize": True}
            await client.request("session/open", sessionId=session)
            whole = path.read_bytes()
            other = path.with_suffix(".new")

            def replace(data: bytes) -> None:
                other.write_bytes(data)
                os.replace(other, path)

            mock.plan = [["x", 0.5, "y"]]
            move = asyncio.create_task(client.request("session/navigate", summary))
            await eventually(lambda: bool(mock.heard))
            short = b"".join(whole.splitlines(keepends=True)[:3])
            replace(short)
            with pytest.raises(RpcError) as refused:
                await move
            assert refused.value.kind == "leafMoved"
            assert path.read_bytes() == short

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["session/navigate", "session/compact"])
def test_a_session_that_is_deleted_calls_its_summary_off(tmp_path, method):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path), daemon.client() as client:
            mock.plan = [["x", 30.0]]
            session = await of(client, path)
            navigate = method == "session/navigate"
            params = {"targetId": "a2", "summarize": True} if navigate else {"firstKeptEntryId": "u2"}
            asked = asyncio.create_task(client.request(method, sessionId=session, **params))
            await eventually(lambda: bool(mock.heard))
            await client.request("session/delete", sessionId=session)
            with pytest.raises(RpcError) as refused:
                await asked
            assert (refused.value.kind, refused.value.data["reason"]) == ("sessionGone", "deleted")
            await eventually(lambda: mock.hung_up == 1)

    asyncio.run(scenario())


def test_what_cannot_be_written_is_refused_before_a_model_is_asked(tmp_path):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path), daemon.client() as client:
            path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))  # no header
            session = await of(client, path)
            with pytest.raises(RpcError) as refused:
                await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            assert refused.value.kind == "damagedHeader"
            assert not mock.heard

    asyncio.run(scenario())


def test_a_label_for_the_place_before_the_first_entry_moves_nothing_and_a_hooks_is_left_out(tmp_path):
    async def scenario():
        async with (
            running(tmp_path) as (daemon, path),
            daemon.client() as client,
            daemon.client("hooks", hooks=["sessionBeforeTree"]) as owner,
        ):

            async def naming(_params):
                return {"label": "start"}

            owner.serve("hook/sessionBeforeTree", naming)
            session = await of(client, path)
            for label in ({"label": "x"}, {}):
                root = client.request("session/navigate", {"sessionId": session, "targetId": None, **label})
                if label:
                    with pytest.raises(RpcError) as refused:
                        await root
                    assert refused.value.kind == "entryNotFound"
                    assert (await client.request("session/open", sessionId=session))["leafId"] == "a3"
                else:
                    assert (await root)["leafId"] is None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        {"summary": {"text": "mine", "details": 1 << 70}},
        {"label": "x" * 1001},
        {"summary": {"text": "half \ud83d"}},
        {"summary": {"text": object()}},
    ],
    ids=["a number beyond 64 bits", "a long label", "half a character", "no JSON"],
)
def test_an_answer_that_no_log_could_hold_is_no_opinion_and_holds_nobody_up(tmp_path, answer):
    async def scenario():
        async with (
            model() as mock,
            running(tmp_path, **mock.settings) as (daemon, path),
            daemon.client() as client,
            daemon.client("hooks", hooks=["sessionBeforeTree"]) as owner,
        ):

            async def hook(_params):
                return answer

            owner.serve("hook/sessionBeforeTree", hook)
            session = await of(client, path)
            asked = client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            result = await asyncio.wait_for(asked, 10)
            assert result["leafId"] == result["summaryEntryId"]
            assert entries(path)[-1]["summary"] == "## Goal\nFix the login."

    asyncio.run(scenario())


def test_an_empty_summary_of_a_client_is_none(tmp_path):
    async def scenario():
        async with (
            running(tmp_path) as (daemon, path),
            daemon.client() as client,
            daemon.client("writer", summarizer=True) as owner,
        ):

            async def nothing(_params):
                return {"text": " "}

            owner.serve("hook/summarize", nothing)
            session = await of(client, path)
            before = path.read_bytes()
            with pytest.raises(RpcError) as failed:
                await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            assert (failed.value.kind, failed.value.data["reason"]) == ("summaryFailed", "empty")
            assert path.read_bytes() == before

    asyncio.run(scenario())


def test_whoever_is_leaving_is_not_waited_for(tmp_path):
    async def scenario():
        async with running(tmp_path, DSHD_LIMITS__HOOK_SECONDS="60") as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            owner = await daemon.client("hooks", hooks=["sessionBeforeTree"])
            owner.notify("exit")
            await asyncio.sleep(0.1)
            asked = client.request("session/navigate", sessionId=session, targetId="a2")
            assert (await asyncio.wait_for(asked, 5))["leafId"] == "a2"
            await owner.close()

    asyncio.run(scenario())


def test_hooks_that_move_each_others_session_end_as_busy(tmp_path):
    async def scenario():
        async with running(tmp_path) as (daemon, path), daemon.client() as client:
            lines = [{**story("native")[0], "id": "s2"}, *story("native")[1:]]
            other = write_log(path.with_name("2026-01-01T00-00-00-000Z_s2.jsonl"), lines[1:], lines[0])
            first, second = await of(client, path), await of(client, other)
            async with (
                daemon.client("one", hooks=["sessionBeforeTree"]) as one,
                daemon.client("two", hooks=["sessionBeforeTree"]) as two,
            ):
                said = []

                def moving(owner):
                    async def hook(params):
                        target = second if params["sessionId"] == first else first
                        try:
                            await owner.request("session/navigate", sessionId=target, targetId="a1")
                        except RpcError as exc:
                            said.append(exc.kind)
                        return {}

                    return hook

                one.serve("hook/sessionBeforeTree", moving(one))
                two.serve("hook/sessionBeforeTree", moving(two))
                asked = client.request("session/navigate", sessionId=first, targetId="a2")
                assert (await asyncio.wait_for(asked, 10))["leafId"] == "a2"
                assert said
                assert set(said) == {"busy"}

    asyncio.run(scenario())


def test_a_cancelled_look_at_a_grown_file_keeps_the_lock_until_the_index_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "THREADED", 0)

    async def scenario():
        _, path = written(tmp_path)
        session = Session.open(str(path))
        told, entered, go_on = [], threading.Event(), threading.Event()

        async def gone(_live, reason):
            raise AssertionError(reason)

        opened = live.LiveSession("k", session, lambda _live, change: told.append(change), gone, durable=False)
        refresh = session.refresh

        def slowly():
            entered.set()
            assert go_on.wait(10)
            return refresh()

        session.refresh = slowly
        with path.open("ab") as file:
            file.write(json.dumps(user("u9", "a3", "And then?", 9)).encode() + b"\n")

        async def look():
            async with opened.lock:
                await opened.catch_up()

        first = asyncio.create_task(look())
        await asyncio.to_thread(entered.wait)
        first.cancel()
        await asyncio.sleep(0.05)
        assert opened.lock.locked()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert len(told) == 1  # and its followers heard of it
        assert session.leaf_id == "u9"
        session.journal.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ([["word " * 5_000, "word " * 50_000, 30.0]], "brokenOff"),
        ([["half", None], ["x", 30.0]], "timeout"),
    ],
    ids=["without end", "broken off, then slow"],
)
def test_a_model_takes_no_longer_and_says_no_more_than_it_may(tmp_path, plan, reason):
    async def scenario():
        async with model() as mock:
            limits = {"DSHD_SUMMARIZER__TIMEOUT": "3", "DSHD_SUMMARIZER__MAX_TOKENS": "1000"}
            async with running(tmp_path, **mock.settings, **limits) as (daemon, path), daemon.client() as client:
                mock.plan = plan
                session = await of(client, path)
                began = asyncio.get_running_loop().time()
                with pytest.raises(RpcError) as failed:
                    await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
                assert failed.value.data["reason"] == reason
                assert asyncio.get_running_loop().time() - began < 6

    asyncio.run(scenario())


def test_a_character_that_comes_in_two_chunks_is_whole(tmp_path):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path), daemon.client() as client:
            mock.plan = [["done \ud83d", "\ude00"]]
            session = await of(client, path)
            await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            assert entries(path)[-1]["summary"] == "done \U0001f600"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (
            b'data: {"choices": 7}\n\ndata: {"choices": [{"delta": {"content": [1]}, "finish_reason": "stop"}]}\n\n',
            "empty",
        ),
        (b"data: null\n\ndata: [1]\n\n", "brokenOff"),
        (b"data: {nonsense\n\n", "brokenOff"),
    ],
)
def test_what_is_no_answer_of_a_model_is_a_failed_summary(tmp_path, raw, reason):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path), daemon.client() as client:
            mock.plan = [[raw]]
            session = await of(client, path)
            with pytest.raises(RpcError) as failed:
                await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            assert (failed.value.kind, failed.value.data["reason"]) == ("summaryFailed", reason)

    asyncio.run(scenario())


def test_an_endpoint_that_answers_with_a_page_is_named_at_once(tmp_path):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path), daemon.client() as client:
            mock.plan = [[b"<html>hello</html>"]]
            mock.content_type = "text/html"
            session = await of(client, path)
            with pytest.raises(RpcError) as failed:
                await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            assert "base_url" in str(failed.value)
            assert len(mock.heard) == 1

    asyncio.run(scenario())


def test_a_hook_is_sent_the_newest_of_very_many_entries(tmp_path):
    async def scenario():
        root, path = written(tmp_path)
        with path.open("ab") as file:
            for n in range(10_500):
                parent = f"b{n - 1}" if n else "a3"
                file.write(json.dumps(user(f"b{n}", parent, "x", 9)).encode() + b"\n")
        with Daemon(tmp_path / "home", f"native={root}") as daemon:
            async with daemon.client() as client, daemon.client("h", hooks=["sessionBeforeTree"]) as owner:
                told = []

                async def hook(params):
                    told.extend(entry["id"] for entry in params["preparation"]["entriesToSummarize"])
                    return {}

                owner.serve("hook/sessionBeforeTree", hook)
                session = await of(client, path)
                result = await client.request("session/navigate", sessionId=session, targetId="a2")
                assert result["abandoned"] == 10_502
                assert told == [f"b{n}" for n in range(500, 10_500)]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("plan", "end", "reason", "says"),
    [
        ([["## Goal\n", "Fix the"]], "length", "brokenOff", "summarizer.max_tokens = 4096; raise it"),
        ([[""]], "length", "empty", "summarizer.max_tokens = 4096; raise it"),
        ([["## Goal\n"]], "content_filter", "refused", "content filter"),
    ],
    ids=["too long", "thoughts only", "filtered"],
)
def test_a_summary_that_the_model_did_not_end_is_none_and_says_what_to_do(tmp_path, plan, end, reason, says):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path), daemon.client() as client:
            mock.plan, mock.end = plan, end
            session = await of(client, path)
            before = path.read_bytes()
            with pytest.raises(RpcError) as failed:
                await client.request("session/compact", sessionId=session, firstKeptEntryId="u2")
            assert (failed.value.kind, failed.value.data["reason"]) == ("summaryFailed", reason)
            assert says in str(failed.value)
            assert len(mock.heard) == 1
            assert path.read_bytes() == before

    asyncio.run(scenario())


def test_a_model_that_knows_the_newer_name_of_the_limit_only_is_asked_by_that_from_then_on(tmp_path):
    async def scenario():
        async with model() as mock, running(tmp_path, **mock.settings) as (daemon, path), daemon.client() as client:
            mock.newer = True
            session = await of(client, path)
            for kept in ("u2", "a3"):
                await client.request("session/compact", sessionId=session, firstKeptEntryId=kept)
            sent = [[name for name in heard if name.startswith("max")] for heard in mock.heard]
            assert sent == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]
            assert mock.heard[-1]["max_completion_tokens"] == 4096

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://me:pass@127.0.0.1:9/v1", ["at http://127.0.0.1:9/v1: ", "Connect"]),
        ("http://no-such-host.invalid/v1", ["at http://no-such-host.invalid/v1: ", "Name or service"]),
        ("http://\u2603.invalid/v1", ["summarizer.base_url http://\u2603.invalid/v1"]),
    ],
    ids=["closed port", "unknown host", "no name of a host"],
)
def test_an_endpoint_that_cannot_be_reached_is_named_with_the_cause(tmp_path, url, says):
    async def scenario():
        settings = {"DSHD_SUMMARIZER__BASE_URL": url, "DSHD_SUMMARIZER__MODEL": "m", "DSHD_SUMMARIZER__TIMEOUT": "30"}
        async with running(tmp_path, **settings) as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            with pytest.raises(RpcError) as failed:
                await client.request("session/compact", sessionId=session, firstKeptEntryId="u2")
            assert (failed.value.kind, failed.value.data["reason"]) == ("summaryFailed", "unreachable")
            assert all(part in str(failed.value) for part in says), str(failed.value)
            assert "pass" not in str(failed.value)

    asyncio.run(scenario())


def test_a_client_that_summarises_too_slowly_is_told_the_limit(tmp_path):
    async def scenario():
        limit = {"DSHD_SUMMARIZER__TIMEOUT": "0.5"}
        async with (
            running(tmp_path, **limit) as (daemon, path),
            daemon.client() as client,
            daemon.client("hooky", summarizer=True) as owner,
        ):

            async def hang(_params):
                await asyncio.sleep(30)

            owner.serve("hook/summarize", hang)
            session = await of(client, path)
            with pytest.raises(RpcError) as failed:
                await client.request("session/compact", sessionId=session, firstKeptEntryId="u2")
            assert failed.value.data["reason"] == "client"
            assert "hooky" in str(failed.value)
            assert "within 0.5 s (summarizer.timeout)" in str(failed.value)

    asyncio.run(scenario())


@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_a_blank_summary_is_none(tmp_path, blank):
    async def scenario():
        async with (
            model() as mock,
            running(tmp_path, **mock.settings) as (daemon, path),
            daemon.client() as client,
            daemon.client("hooks", hooks=["sessionBeforeCompact", "sessionBeforeTree"]) as owner,
        ):

            async def of_compact(_params):
                return {"summary": blank}

            async def of_tree(_params):
                return {"summary": {"text": blank}}

            owner.serve("hook/sessionBeforeCompact", of_compact)
            owner.serve("hook/sessionBeforeTree", of_tree)
            session = await of(client, path)
            before = path.read_bytes()
            with pytest.raises(RpcError) as refused:
                await client.request("session/compact", sessionId=session, summary=blank, firstKeptEntryId="u2")
            assert refused.value.code == -32602
            assert refused.value.data["issues"][0]["path"] == ["summary"]
            assert path.read_bytes() == before
            await client.request("session/compact", sessionId=session, firstKeptEntryId="u2")
            assert entries(path)[-1]["summary"] == "## Goal\nFix the login."
            await client.request("session/navigate", sessionId=session, targetId="a2", summarize=True)
            assert entries(path)[-1]["summary"] == "## Goal\nFix the login."

    asyncio.run(scenario())


def test_what_would_be_kept_without_its_call_is_kept_with_it(tmp_path):
    async def scenario():
        async with running(tmp_path) as (daemon, path), daemon.client() as client:
            session = await of(client, path)
            await client.request("session/compact", sessionId=session, summary="so far", firstKeptEntryId="r1")
            assert entries(path)[-1]["firstKeptEntryId"] == "a1"
            with pytest.raises(RpcError) as refused:
                await client.request("session/compact", sessionId=session, summary="more", firstKeptEntryId="r1")
            assert refused.value.kind == "nothingToCompact"
            assert "a2 is the first entry" in str(refused.value)

    asyncio.run(scenario())


def test_a_second_compaction_passes_on_the_first_and_says_what_it_left_out(tmp_path):
    async def scenario():
        async with model() as mock:
            window = {"DSHD_SUMMARIZER__CONTEXT_WINDOW": "2500", "DSHD_SUMMARIZER__MAX_TOKENS": "500"}
            async with running(tmp_path, **mock.settings, **window) as (daemon, path), daemon.client() as client:
                session = await of(client, path)
                rule = "Never touch the migrations."
                await client.request("session/compact", sessionId=session, summary=rule, firstKeptEntryId="u2")
                more = [user(f"m{n}", None, "x" * 1_000, 9) for n in range(40)]
                for one in more:
                    del one["parentId"]
                await client.request("session/append", sessionId=session, entries=more)
                told = []
                client.on("$/progress", told.append)
                asked = {"sessionId": session, "firstKeptEntryId": "m39", "workDoneToken": "t"}
                result = await client.request("session/compact", asked)
                request = mock.heard[0]["messages"][1]["content"]
                assert rule in request
                shown = request.count("Person: x")
                assert 0 < shown < 39
                assert result["leftOut"] == 2 + 39 - shown
                assert any("oldest" in one["value"].get("message", "") for one in told)

    asyncio.run(scenario())


def test_a_client_that_summarises_is_sent_the_summary_so_far_with_the_newest(tmp_path):
    async def scenario():
        root, path = written(tmp_path)
        with path.open("ab") as file:
            so_far = entry("compaction", "c1", "a3", 9, summary="so far", firstKeptEntryId="u2", tokensBefore=1)
            file.write(json.dumps(so_far).encode() + b"\n")
            for n in range(10_500):
                file.write(json.dumps(user(f"b{n}", f"b{n - 1}" if n else "c1", "x", 9)).encode() + b"\n")
        with Daemon(tmp_path / "home", f"native={root}") as daemon:
            async with daemon.client() as client, daemon.client("h", summarizer=True) as owner:
                told = []

                async def write(params):
                    told.extend(entry["id"] for entry in params["entries"])
                    return {"text": "all of it"}

                owner.serve("hook/summarize", write)
                session = await of(client, path)
                result = await client.request("session/compact", sessionId=session, firstKeptEntryId="b10499")
                assert told == ["c1", *(f"b{n}" for n in range(500, 10_499))]
                assert result["leftOut"] == 502

    asyncio.run(scenario())
