"""What a model sees of a dsh session, and what a person does: contexts, requests, turns, rows, places to fork."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from dsh_daemon import surface, tree
from dsh_daemon.chunks import unpack
from dsh_daemon.errors import NotRecorded, NotSupportedByFormat
from dsh_daemon.family import unite
from dsh_daemon.log.formats import dsh
from dsh_daemon.log.formats.peek import peek
from dsh_daemon.log.index import NONE
from dsh_daemon.log.journal import MemoryJournal
from dsh_daemon.rows import Layout, View, window
from dsh_daemon.session import Session

from .dsh_logs import Log, damaged, on_surface, story
from .indexes import turns_of
from .support import CORPUS


def opened(log: Log, *, packed: bool = True) -> Session:
    session = Session(MemoryJournal(log.plain(packed=packed)))
    session.load()
    return session


def context(session: Session, entry_id: str | None = None, **more: Any) -> Any:
    i = session.leaf if entry_id is None else session.find(entry_id)
    return surface.context_of(session.index, session.stored, i, **more)


def rows_of(session: Session, mode: Any = "default") -> list[Any]:
    return window(session.index, View(Layout(session.index, session.leaf, mode)), session.entry, 0, 10_000)


def derived(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages by the plainest reading of the rules."""
    shown = on_surface(events)
    messages = [e["data"] if e["type"] == "user/message" else e["data"]["message"] for e in shown]
    return [message for message in messages if message["content"]]


def test_the_context_is_the_surface_at_every_place_of_the_log() -> None:
    log = story()
    session = opened(log)
    for i, name in enumerate(session.index.ids[:-1]):
        found = surface.context_of(session.index, session.stored, i)
        assert found["messages"] == derived(log.events[: int(name) + 1])
        assert [session.stored(session.find(ids[0]))["seq"] for ids in found["sources"]] == [
            int(ids[0]) for ids in found["sources"]
        ]
    found = context(session)
    assert found["messages"] == derived(log.events)
    assert found["model"] == {"provider": "deepseek-official", "modelId": "deepseek-v4-flash"}
    assert found["thinkingLevel"] == "high"
    assert session.index.type_of(session.find(found["compactedFrom"])) == "compaction"


def test_an_answer_without_content_is_no_message() -> None:
    log = Log()
    log.prompt("one")
    log.answer("", stream=False)
    log.end("max-tokens")
    assert [message["role"] for message in context(opened(log))["messages"]] == ["user"]


def test_the_context_in_our_words_has_calls_and_results() -> None:
    log = Log()
    log.tool_turn("Do it", "ls", "done")
    messages = context(opened(log), ours=True)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "toolResult", "assistant"]
    call = messages[1]["content"][0]
    assert (call["type"], call["name"], call["arguments"]) == ("toolCall", "bash", {"command": "ls"})
    assert messages[2]["toolCallId"] == call["id"]


def test_a_log_that_ends_within_a_turn_is_read_with_the_results_that_dsh_will_write() -> None:
    log = Log()
    log.talk("one", "answer")
    log.prompt("two")
    asking = log.answer("", [("c1", "bash", "{}"), ("c2", "bash", "{}"), ("c3", "bash", "{}")])
    for call in ("c1", "c2"):
        log.call(call, "bash", "{}")
    log.result("c1", "done")
    session = opened(log)
    found = context(session)
    end = found["messages"][-2:]
    number = len(log.events)
    assert [message["id"] for message in end] == [
        f"interrupted-tool-result-c2-{number}", f"interrupted-tool-result-c3-{number + 1}",
    ]  # fmt: skip
    texts = [message["content"][0]["content"][0]["text"] for message in end]
    assert "outcome is unknown" in texts[0]
    assert "before the Harness recorded it as started" in texts[1]
    assert found["sources"][-2:] == [[str(asking)], [str(asking)]]
    assert session.open_turn() == {"turn": 2, "entryId": str(asking - 3)}
    assert session.next_turn() == 3
    assert len(context(session, str(asking))["messages"]) == len(found["messages"]) - 3


def test_the_request_of_a_step_is_its_header_and_what_was_said_before_the_answer() -> None:
    log = Log()
    log.prompt("one")
    log.header_event("m1")
    log.answer("", [("c1", "bash", "{}")])
    log.call("c1", "bash", "{}")
    log.result("c1", "done")
    log.add("step/end", {"turn": 1, "step": 1})
    log.begin(2)
    log.header_event("m2", "change")
    log.answer("two")
    log.end()
    session = opened(log)
    index, leaf = session.index, session.leaf
    first = surface.request_of(index, session.stored, leaf, 1, 1)
    second = surface.request_of(index, session.stored, leaf, 1, 2)
    assert (first.header["config"]["model"], second.header["config"]["model"]) == ("m1", "m2")
    assert [message["role"] for message in first.messages] == ["user"]
    assert [message["role"] for message in second.messages] == ["user", "assistant", "user"]
    assert first.sources == [["3"]]
    for turn, step in ((1, 3), (2, 1)):
        with pytest.raises(NotRecorded):
            surface.request_of(index, session.stored, leaf, turn, step)
    bare = Log()
    bare.prompt("one")
    with pytest.raises(NotRecorded):
        surface.request_of(opened(bare).index, opened(bare).stored, 3, 1, 1)


def test_turns_are_those_that_dsh_recorded() -> None:
    session = opened(story())
    path = tree.path(session.index, session.leaf)
    found = turns_of(session.index, path, session.entry)
    assert [(turn.number, turn.kind, turn.steps, turn.recorded) for turn in found] == [
        (1, "completed", 1, True), (2, "completed", 2, True), (3, "aborted", 1, True), (4, "completed", 1, True),
    ]  # fmt: skip
    assert [session.index.shape_of(turn.prompt).role for turn in found] == ["user"] * 4
    assert session.next_turn() == 5


def test_rows_show_what_was_said_and_what_a_compaction_took_from_the_model() -> None:
    session = opened(story())
    shown = rows_of(session)
    assert [(row["kind"], row["type"]) for row in shown[:4]] == [
        ("user", "user/message"), ("custom", "user/message"), ("assistant", "assistant/message"),
        ("user", "user/message"),
    ]  # fmt: skip
    assert shown[0]["text"] == "First thing, naïve 한국어 🙂"
    assert [row["text"] for row in shown if row["kind"] == "tool"] == ["[bash: cat calc.py]"]
    assert [row["toolName"] for row in shown if row["kind"] == "tool"] == ["bash"]
    taken = [row["text"] for row in shown if "shadowed" in row.get("flags", [])]
    assert taken == [
        "First thing, naïve 한국어 🙂", "The time is now.", "The first answer, which is long enough",
        "[compaction] what happened at first",
    ]  # fmt: skip
    assert [row["flags"] for row in shown if row["text"] == "parti"] == [["aborted"]]
    assert [row["id"] for row in rows_of(session, "user-only")] == [
        row["id"] for row in shown if row["kind"] == "user"
    ]  # fmt: skip
    assert len(rows_of(session, "all")) == len(session.index)
    marks = [row for row in rows_of(session, "all") if row["kind"] == "turn"]
    assert marks[0]["text"] == "turn 1"
    assert [row.get("flags") for row in marks if row["type"] == "turn/end"] == [None, None, ["aborted"], None]


def test_packed_rows_read_as_the_deltas_that_they_hold() -> None:
    log = Log()
    log.prompt("one")
    log.answer("words that came piece by piece")
    session = opened(log)
    row = next(i for i in range(len(session.index)) if session.index.shape_of(i).own_type == "text-chunks")
    deltas = unpack(session.entry(row))
    events = [e for e in log.events if e["type"] == "assistant/chunk" and "text" in e["data"]["chunk"]]
    assert [(d.text, d.time) for d in deltas] == [(e["data"]["chunk"]["text"], e["time"]) for e in events]
    assert session.stored(row)["seq0"] == events[0]["seq"]
    for event in events[1:]:
        found = session.inside(str(event["seq"]))
        assert found is not None
        assert found.items() >= event.items()
        assert (found["id"], found["parentId"]) == (str(event["seq"]), str(event["seq"] - 1))
    assert session.inside(str(events[-1]["seq"] + 1)) is None
    assert session.inside("x") is None


def test_a_fork_shows_what_it_inherited_and_hangs_where_it_left() -> None:
    """A152: what a fork copied is counted apart."""
    log = Log()
    end = log.talk("one", "first answer")
    log.talk("two", "in the parent")
    child = log.fork("session-b", end)
    child.talk("two", "in the fork")
    parent, fork = opened(log), opened(child, packed=False)
    assert fork.fork_point() == str(end)
    assert [row["text"] for row in rows_of(fork) if "inherited" in row.get("flags", [])] == ["one", "first answer"]
    for first, second in ((parent, fork), (fork, parent)):
        union = unite([first, second])
        shown = window(union.index, View(Layout(union.index, first.leaf, "default")), union.reader([first, second]))
        ours, others = ("in the parent", "in the fork") if first is parent else ("in the fork", "in the parent")
        assert [row["text"] for row in shown] == ["one", "first answer", "two", ours, "two", others]
        assert shown[2]["parentId"] == shown[4]["parentId"] == shown[1]["id"]


def test_going_back_names_the_turn_at_which_a_fork_begins() -> None:
    log = Log()
    first = log.prompt("one")
    log.answer("answer", stream=False)
    one = log.end()
    second = log.prompt("two")
    answer = log.answer("more", stream=False)
    two = log.end()
    third = log.prompt("three")
    index = opened(log).index
    for target, boundary in ((first, NONE), (second, one), (answer, two), (third, two), (one, one)):
        assert surface.boundary_for(index, target) == boundary
    assert surface.boundary_for(index, len(index) - 1) == two


def test_nothing_is_appended_to_a_dsh_session() -> None:
    session = opened(story())
    with pytest.raises(NotSupportedByFormat):
        session.append([{"type": "custom", "customType": "x"}])


@given(st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_any_order_of_replacements_gives_the_surface_that_the_rules_give(seed: int) -> None:
    dice = random.Random(seed)
    log = Log()
    for n in range(dice.randrange(1, 8)):
        log.talk(f"prompt {n}", "answer")
        shown = on_surface(log.events)
        if dice.random() < 0.6:
            low, high = sorted(dice.choices(range(len(shown)), k=2))
            log.compact(shown[low]["seq"], shown[high]["seq"], f"summary {n}")
    session = opened(log, packed=dice.random() < 0.5)
    assert context(session)["messages"] == derived(log.events)
    i = dice.randrange(len(session.index) - 1)
    found = surface.context_of(session.index, session.stored, i)
    assert found["messages"] == derived(log.events[: int(session.index.ids[i]) + 1])


@pytest.mark.skipif(CORPUS is None, reason="needs the corpus")
def test_a_killed_session_is_read_as_dsh_repaired_it() -> None:
    """What was made up in memory is what dsh wrote when it resumed the very same log."""
    assert CORPUS is not None
    root = CORPUS / "dsh" / "0.1.1-rc.2"
    for path in sorted((root / "killed-unrepaired").rglob("session.jsonl.zstd")):
        repaired = Session.open(str(root / "sessions" / "--tmp-demo-proj--" / path.parent.name / path.name))
        end = next(i for i in range(len(repaired.index)) if repaired.index.type_of(i) == "end_seed")
        expected = surface.context_of(repaired.index, repaired.stored, end)["messages"]
        assert context(Session.open(str(path)))["messages"] == expected


@pytest.mark.skipif(CORPUS is None, reason="needs the corpus")
def test_contexts_of_the_corpus_are_what_the_rules_give() -> None:
    assert CORPUS is not None
    for path in sorted((CORPUS / "dsh").rglob("sessions*/**/session.jsonl*")):
        events = stored_events(path)
        session = Session.open(str(path))
        assert context(session)["messages"] == derived(events)
        forked = session.header.raw.get("seedLength")
        if forked:
            assert int(session.fork_point() or 0) <= forked - 1 < int(session.index.ids[session.index.inherited])


def stored_events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    if path.name.endswith(".zstd"):
        data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return [json.loads(line) for line in data.split(b"\n")[1:] if line]


@given(st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_nothing_that_is_shown_raises_whatever_was_damaged(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    dice = random.Random(seed)
    zstd = dice.random() < 0.4
    log = story()
    data = log.zstd(packed=True) if zstd else log.plain(packed=True)
    for _ in range(dice.randrange(1, 6)):
        data = damaged(data, dice)[0] if data else data
    path = tmp_path_factory.mktemp("damaged") / ("session.jsonl.zstd" if zstd else "session.jsonl")
    path.write_bytes(data)
    peek(str(path))
    session = Session.open(str(path))
    if session.header.format != "dsh":
        return
    index = session.index
    assert len(rows_of(session, "all")) == len(index)
    rows_of(session)
    turns_of(index, tree.path(index, session.leaf), session.entry)
    session.diagnostics()
    session.open_turn()
    session.next_turn()
    for i in {session.leaf, *(dice.randrange(-1, len(index)) for _ in range(4))}:
        context = surface.context_of(index, session.stored, i)
        surface.context_of(index, session.stored, i, ours=True)
        assert len(context["messages"]) == len(context["sources"])
        surface.boundary_for(index, i)
        session.inside(str(i))
    for turn in (1, 2):
        with suppress(NotRecorded):
            surface.request_of(index, session.stored, session.leaf, turn, 1)


FIELDS = (
    "message", "content", "source", "kind", "plugin", "type", "text", "id", "name", "arguments", "toolCallId", "callId",
    "isError", "turn", "step", "chunk", "texts", "args", "dt", "index", "usage", "inputTokens", "reason", "header",
    "config", "model", "title", "op", "start", "end", "error", "code", "interrupted",
)  # fmt: skip
ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.sampled_from(sorted(dsh.KNOWN)), ODD, ODD), max_size=12))
@settings(max_examples=200, deadline=None)
def test_events_of_any_shape_are_shown(events: list[tuple[str, Any, Any]]) -> None:
    log = Log()
    for type_, data, op in events:
        log.add(type_, data, surfaceOp=op)
    session = opened(log, packed=False)
    assert len(session.index) == len(events)
    assert len(rows_of(session, "all")) == len(events)
    turns_of(session.index, tree.path(session.index, session.leaf), session.entry)
    for i in range(-1, len(events)):
        surface.context_of(session.index, session.stored, i)
        surface.context_of(session.index, session.stored, i, ours=True)
        surface.boundary_for(session.index, i)
    session.diagnostics()
