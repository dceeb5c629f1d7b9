"""Sums over a session: every request counted once, what was inherited apart, nothing odd ever raises."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon.log.journal import MemoryJournal
from dsh_daemon.session import Session
from dsh_daemon.stats import MOST, sums

from .running import Daemon
from .support import CORPUS, assistant, entry, header, line, tool_result, user, write_log

Entry = dict[str, Any]


def session_of(entries: list[Entry], **head: Any) -> Session:
    session = Session(MemoryJournal(line(header(**head)) + b"".join(map(line, entries))))
    session.load()
    return session


def usage(input_: int = 0, output: int = 0, read: int = 0, write: int = 0, cost: float = 0.0) -> Entry:
    parts = {"input": input_, "output": output, "cacheRead": read, "cacheWrite": write}
    return {"usage": {**parts, "totalTokens": sum(parts.values()), "cost": {"total": cost}}}


def tokens(input_: int = 0, output: int = 0, read: int = 0, write: int = 0) -> dict[str, int]:
    return {"input": input_, "output": output, "cacheRead": read, "cacheWrite": write}


NOTHING = {"turns": 0, "messages": 0, "tokens": tokens(), "cost": 0, "models": {}}


def test_an_empty_session_took_nothing() -> None:
    assert sums(session_of([])) == {**NOTHING, "activePath": NOTHING, "inherited": NOTHING}


def test_every_request_counts_whichever_entry_tells_of_it() -> None:
    found = sums(session_of([
        user("a1", None, "go"),
        assistant("a2", "a1", "yes", **usage(100, 10, 5, 1, cost=0.5)),
        entry("usage", "a3", "a2", kind="cache_warm", provider="mock", model="mock-1", **usage(read=7, cost=0.25)),
        entry("model_usage", "a4", "a3", purpose="title", provider="mock", model="tiny", **usage(3, 2, cost=0.125)),
        entry("compaction", "a5", "a4", summary="s", firstKeptEntryId="a2", **usage(50, 20, cost=1.0)),
        entry("branch_summary", "a6", "a5", summary="s", **usage(1, 1, cost=2.0)),
    ]))  # fmt: skip

    assert found["tokens"] == tokens(154, 33, 12, 1)
    assert found["cost"] == 3.875
    assert found["models"] == {
        # a summary is made by the model that answered before it
        "mock/mock-1": {"tokens": tokens(151, 31, 12, 1), "cost": 3.75},
        "mock/tiny": {"tokens": tokens(3, 2), "cost": 0.125},
    }
    assert (found["turns"], found["messages"]) == (1, 2)
    assert found["activePath"] == {name: found[name] for name in NOTHING}


def test_the_active_path_is_one_of_the_ways() -> None:
    found = sums(session_of([
        user("a1", None, "go"),
        assistant("a2", "a1", "yes", **usage(1)),
        user("b1", "a2", "left"),
        assistant("b2", "b1", "yes", **usage(10)),
        user("c1", "a2", "right"),
        assistant("c2", "c1", "yes", **usage(100)),
    ]))  # fmt: skip

    assert (found["turns"], found["messages"], found["tokens"]["input"]) == (3, 6, 111)
    active = found["activePath"]
    assert (active["turns"], active["messages"], active["tokens"]["input"]) == (2, 4, 101)


def test_what_a_fork_inherited_is_not_counted_again_a152() -> None:
    entries = [
        user("a1", None, "go"),
        assistant("a2", "a1", "yes", **usage(1, cost=1)),
        entry("end_seed", "a3", "a2"),
        user("b1", "a3", "more"),
        assistant("b2", "b1", "yes", **usage(10, cost=2)),
    ]
    found = sums(session_of(entries, parentSession="/gone.jsonl", seedLength=3, generator="dsh-daemon/1"))

    assert (found["turns"], found["messages"], found["tokens"]["input"], found["cost"]) == (1, 2, 10, 2)
    inherited = found["inherited"]
    assert (inherited["turns"], inherited["messages"], inherited["tokens"]["input"], inherited["cost"]) == (1, 2, 1, 1)
    assert found["activePath"]["tokens"]["input"] == 11


def test_the_same_line_twice_counts_once() -> None:
    answer = assistant("a2", "a1", "yes", **usage(10, cost=1))
    found = sums(session_of([user("a1", None, "go"), answer, answer]))

    assert (found["messages"], found["cost"]) == (2, 1)


def test_a_turn_counts_once_though_its_mark_and_its_prompt_stand_in_the_log() -> None:
    found = sums(session_of([
        entry("turn_start", "a1", None, turn=1),
        user("a2", "a1", "go"),
        user("a3", "a2", "steered"),
        entry("turn_end", "a4", "a3", turn=1, reason={"kind": "completed"}),
        user("b1", "a4", "derived"),
        entry("turn_start", "c1", "a4", turn=2),
    ]))  # fmt: skip

    assert found["turns"] == 3
    assert found["activePath"]["turns"] == 2


@pytest.mark.parametrize(
    "spelled",
    [
        {"input": 5, "output": 4, "cacheRead": 3, "cacheWrite": 2},
        {"inputTokens": 5, "outputTokens": 4, "cacheReadTokens": 3, "cacheWriteTokens": 2},
        {"input_tokens": 5, "output_tokens": 4, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2},
    ],
)
def test_tokens_are_found_however_they_are_spelled(spelled: dict[str, int]) -> None:
    found = sums(session_of([assistant("a1", None, "yes", usage={**spelled, "cost": 0.5})]))

    assert found["tokens"] == tokens(5, 4, 3, 2)
    assert found["cost"] == 0.5


def test_a_model_that_names_only_half_of_itself() -> None:
    half = session_of([assistant("a1", None, "x", provider=None), assistant("a2", "a1", "x", provider=7, model=None)])

    assert set(sums(half)["models"]) == {"mock-1", "unknown"}


@pytest.mark.parametrize(
    "odd", [-1, True, "12", None, [], {}, 1e300, float("nan"), float("inf"), 1 << 70, "\ud800", {"total": {"total": 1}}]
)
def test_odd_values_count_nothing_and_raise_nothing(odd: Any) -> None:
    good = {"input": 1, "output": 1, "cacheRead": 1, "cacheWrite": 1, "cost": {"total": 1.0}}
    entries = [assistant("a0", None, "yes", usage=good)]
    for n, name in enumerate([*good, "total", "usage", "provider", "model"], 1):
        broken = {
            **good,
            name: odd,
            "cost": {"total": odd} if name == "total" else odd if name == "cost" else good["cost"],
        }
        more: Entry = {"usage": good, name: odd} if name in {"usage", "provider", "model"} else {"usage": broken}
        entries.append(assistant(f"a{n}", f"a{n - 1}", "yes", **more))
    session = Session(MemoryJournal(line(header()) + b"".join(json.dumps(e).encode() + b"\n" for e in entries)))
    session.load()
    found = sums(session)

    assert found["tokens"]["input"] == 8  # each but the one whose input is odd, and the one without usage
    assert found["cost"] == 7
    json.dumps(found, allow_nan=False).encode()


def test_sums_stay_numbers_that_every_reader_takes() -> None:
    huge = [assistant(f"a{n}", f"a{n - 1}" if n else None, "x", **usage(10**15 - 1)) for n in range(20)]

    assert sums(session_of(huge))["tokens"]["input"] == MOST


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["input", "cost", "total"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["message", "usage", "compaction"]), values, values, values), max_size=6))
def test_no_usage_raises(rows: list[tuple[str, Any, Any, Any]]) -> None:
    lines = [line(header())]
    for n, (type_, used, provider, message) in enumerate(rows):
        fields = {"usage": used, "provider": provider, "model": provider}
        body = {"role": "assistant", "content": [], **fields} if n % 2 else message
        head = {"type": type_, "id": f"e{n}", "parentId": f"e{n - 1}" if n else None, "timestamp": "x"}
        lines.append(json.dumps({**head, **fields, "message": body}).encode() + b"\n")
    session = Session(MemoryJournal(b"".join(lines)))
    session.load()
    found = sums(session)

    counts: dict[str, Any] = {**found["tokens"]}
    assert all(0 <= count <= MOST for count in counts.values())
    assert found["cost"] >= 0


def test_children_that_stand_before_their_parents_are_counted_too() -> None:
    found = sums(session_of([
        entry("compaction", "c1", "a2", summary="s", **usage(10)),
        assistant("a2", "a1", "yes", **usage(1)),
        user("a1", None, "go"),
    ]))  # fmt: skip

    assert found["models"] == {"mock/mock-1": {"tokens": tokens(11), "cost": 0}}


def test_a_log_of_a_hundred_megabytes_takes_about_as_long_as_its_scan(tmp_path: Path) -> None:
    """What cannot name a cost is not even read."""
    lines = [line(header())]
    parent: str | None = None
    for n in range(2_500):
        prompt, call, result, answer = (f"{n:06}{k}" for k in "abcd")
        calls = [{"id": call, "name": "bash", "arguments": {"command": "x" * 500}}]
        lines += map(line, (
            user(prompt, parent, "go on"),
            assistant(call, prompt, "x" * 500, calls=calls, **usage(5, 1, cost=0.5)),
            tool_result(result, call, call, "y" * 38_000),
            assistant(answer, result, "x" * 500, **usage(5, 1, cost=0.5)),
        ))  # fmt: skip
        parent = answer
    path = tmp_path / "large.jsonl"
    path.write_bytes(b"".join(lines))
    began = time.process_time()
    session = Session.open(str(path))
    scanned = time.process_time() - began
    began = time.process_time()
    found = sums(session)
    took = time.process_time() - began

    assert path.stat().st_size > 95_000_000
    assert (found["turns"], found["tokens"]["input"], found["cost"]) == (2_500, 25_000, 2_500)
    assert took < scanned + 0.1


@pytest.mark.skipif(CORPUS is None, reason="no corpus")
def test_the_sums_of_real_sessions_are_those_of_the_list() -> None:
    """What a list shows as cost is what assistant messages name, inherited ones too."""
    assert CORPUS is not None
    compared = 0
    for path in sorted(CORPUS.glob("[po][im]*/**/*.jsonl")):
        session = Session.open(str(path))
        if not {"usage", "model_usage", "compaction", "branch_summary"} & {s.type for s in session.index.shapes.items}:
            found = sums(session)
            assert found["cost"] + found["inherited"]["cost"] == pytest.approx(session.index.facts.cost), path
            assert found["messages"] + found["inherited"]["messages"] == session.index.facts.messages, path
            compared += found["cost"] > 0
    assert compared > 10


def test_the_method_answers_what_the_list_says(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    write_log(root / "--x--" / "2026-01-01T00-00-00-000Z_s1.jsonl", [
        user("a1", None, "go"),
        assistant("a2", "a1", "yes", **usage(10, 2, cost=0.5)),
    ])  # fmt: skip

    async def ask(daemon: Daemon) -> tuple[Entry, Entry]:
        client = await daemon.client()
        found = await client.request("session/stats", sessionId="s1")
        state = await client.request("session/open", sessionId="s1")
        await client.close()
        return found, state

    with Daemon(tmp_path / "home", f"pi={root}") as daemon:
        found, state = asyncio.run(ask(daemon))

    assert (found["turns"], found["messages"], found["cost"]) == (1, 2, 0.5)
    assert found["inherited"] == NOTHING
    assert (state["messageCount"], state["costTotal"]) == (2, 0.5)
