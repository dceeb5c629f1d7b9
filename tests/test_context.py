"""What a model would see at a place in the log, and from which entries it comes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon import reading, tree
from dsh_daemon.context import build_context
from dsh_daemon.session import Session
from tests.indexes import trees
from tests.support import assistant, entry, stamp, tool_result, user, write_log


def said(context):
    """Role and text of each message, for reading."""
    lines = []
    for message in context["messages"]:
        content = message.get("content", message.get("summary"))
        text = content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
        lines.append(f"{message['role']}: {text}")
    return lines


def test_messages_stand_as_they_are_in_the_log():
    path = [user("u", None, "hi"), assistant("a", "u", "hello"), tool_result("t", "a", "c", "out")]
    context = build_context(path)
    assert context["messages"] == [e["message"] for e in path]
    assert context["sources"] == [["u"], ["a"], ["t"]]
    assert (context["thinkingLevel"], context["mode"], context["injectedRules"]) == ("off", "none", [])
    assert "compactedFrom" not in context


def test_bookkeeping_leaves_no_trace():
    path = [
        user("u", None, "hi"),
        *(entry(type_, type_, "u", targetId="u", label="x", name="n", data={}, turn=1, step=1) for type_ in (
            "label", "custom", "session_info", "model_change", "thinking_level_change", "mode_change", "usage",
            "turn_start", "turn_end", "step_start", "step_end", "tool_call", "assistant_chunks", "request_header",
            "end_seed", "credential_pin", "session_init", "from_the_future",
        )),
        assistant("empty", "u", "", content=[]),
        assistant("blank", "u", "", content=[{"type": "text", "text": " "}]),
        assistant("null", "u", "", content=None),
        entry("message", "bash", "u", message={"role": "bashExecution", "command": "ls", "excludeFromContext": True}),
        entry("branch_summary", "none", "u", summary="", fromId="u"),
    ]  # fmt: skip
    assert said(build_context(path)) == ["user: hi"]


def test_summaries_and_custom_messages_are_messages_of_their_own_roles():
    context = build_context([
        entry("custom_message", "n", None, 3, customType="note", content="look", display=True, details={"x": 1}),
        entry("branch_summary", "b", "n", 4, summary="tried", fromId="n"),
        entry("message", "s", "b", message={"role": "bashExecution", "command": "ls", "output": "x"}),
    ])  # fmt: skip
    assert context["messages"] == [
        {"role": "custom", "customType": "note", "content": "look", "display": True, "details": {"x": 1},
         "timestamp": 1_767_225_603_000},
        {"role": "branchSummary", "summary": "tried", "fromId": "n", "timestamp": 1_767_225_604_000},
        {"role": "bashExecution", "command": "ls", "output": "x"},
    ]  # fmt: skip
    assert context["sources"] == [["n"], ["b"], ["s"]]


def compacted(first, **more):
    return [
        user("u1", None, "one"),
        entry("compaction", "k0", "u1", summary="older", firstKeptEntryId="u1", tokensBefore=1),
        user("u2", "k0", "two"),
        entry("message", "s", "u2", message={"role": "system", "content": "rules"}),
        entry("compaction", "k", "s", 9, summary="so far", firstKeptEntryId=first, tokensBefore=45_000, **more),
        user("u3", "k", "three"),
    ]


@pytest.mark.parametrize(
    ("first", "kept"),
    [("u1", ["user: one", "user: two"]), ("u2", ["user: two"]), ("k", []), ("gone", []), (None, []), ("u3", [])],
)
def test_the_newest_compaction_stands_for_what_it_does_not_keep(first, kept):
    context = build_context(compacted(first))
    assert said(context) == ["compactionSummary: so far", *kept, "user: three"]
    assert context["messages"][0] == {
        "role": "compactionSummary", "summary": "so far", "tokensBefore": 45_000, "timestamp": 1_767_225_609_000,
    }  # fmt: skip
    assert context["sources"][0] == ["k"]
    assert context["compactedFrom"] == "k"


def test_a_compaction_brings_its_own_system_message():
    context = build_context(compacted("u2", systemMessage={"role": "system", "content": "new rules"}))
    assert said(context)[:2] == ["system: new rules", "compactionSummary: so far"]
    assert context["sources"][:2] == [["k"], ["k"]]


def test_a_reset_cuts_off_what_stands_before_it():
    context = build_context([*compacted("u1"), entry("reset_boundary", "r", "u3"), user("u4", "r", "four")])
    assert said(context) == ["user: four"]
    assert "compactedFrom" not in context


def test_a_compaction_after_a_reset_rules_again():
    path = [
        user("u1", None, "one"),
        entry("reset_boundary", "r", "u1"),
        user("u2", "r", "two"),
        entry("compaction", "k", "u2", summary="so far", firstKeptEntryId="u2", tokensBefore=1),
    ]
    assert said(build_context(path)) == ["compactionSummary: so far", "user: two"]


def test_the_last_edit_of_an_entry_counts():
    edits = [
        entry("context_edit", "e1", "t", targetId="u", replacement={"content": "first"}),
        entry("context_edit", "e2", "e1", targetId="u", replacement={"content": "second"}),
        entry("context_edit", "e3", "e2", targetId="a", replacement={"content": "shorter"}),
        entry("context_edit", "e4", "e3", targetId="t", replacement=None),
    ]
    path = [user("u", None, "hi"), assistant("a", "u", "long"), tool_result("t", "a", "c", "out"), *edits]
    context = build_context(path)
    assert said(context) == ["user: second", "assistant: shorter"]
    assert context["messages"][1]["content"] == [{"type": "text", "text": "shorter"}]
    assert context["sources"] == [["u", "e2"], ["a", "e3"]]
    assert path[0]["message"]["content"] == [{"type": "text", "text": "hi"}]


def test_an_edit_that_a_compaction_took_with_it_is_done():
    path = [
        user("u", None, "hi"),
        entry("context_edit", "e", "u", targetId="v", replacement=None),
        user("v", "e", "kept"),
        entry("compaction", "k", "v", summary="so far", firstKeptEntryId="v", tokensBefore=1),
    ]
    assert said(build_context(path)) == ["compactionSummary: so far", "user: kept"]


def test_an_edit_may_take_away_the_summary_of_a_compaction():
    path = [*compacted("u2"), entry("context_edit", "e", "u3", targetId="k", replacement=None)]
    context = build_context(path)
    assert said(context) == ["user: two", "user: three"]
    assert context["compactedFrom"] == "k"


def test_settings_are_the_last_on_the_path():
    """A054: the recorded model is data; nothing needs to know its provider."""
    context = build_context([
        entry("model_change", "m", None, provider="p", modelId="one"),
        entry("thinking_level_change", "t", "m", thinkingLevel="high"),
        entry("mode_change", "o", "t", mode="plan", data={}),
        entry("ttsr_injection", "i", "o", injectedRules=["a", "b"]),
        entry("ttsr_injection", "j", "i", injectedRules=["b", "c"]),
        assistant("a", "j", "hi"),
    ])  # fmt: skip
    assert context["model"] == {"provider": "mock", "modelId": "mock-1"}
    assert context["models"] == {"default": "mock/mock-1"}
    assert (context["thinkingLevel"], context["mode"]) == ("high", "plan")
    assert context["injectedRules"] == ["a", "b", "c"]


def test_a_model_chosen_by_role_stays_when_another_one_answered():
    context = build_context([
        entry("model_change", "m", None, model="p/main"),
        entry("model_change", "s", "m", model="p/small", role="smol"),
        assistant("a", "s", "hi"),
        entry("thinking_level_change", "t", "a", thinkingLevel=None, configured=None),
    ])  # fmt: skip
    assert context["model"] == {"provider": "p", "modelId": "main"}
    assert context["models"] == {"default": "p/main", "smol": "p/small"}
    assert context["thinkingLevel"] == "off"


def test_the_header_of_a_request_names_the_model_before_any_answer_does(tmp_path):
    def asks(id_, parent, **config):
        return entry("request_header", id_, parent, header={"config": config}, reason="initial")

    log = [user("a", None, "hello"), asks("h", "a", model="echo-1")]
    assert build_context(log)["models"] == {"default": "echo-1"}
    assert build_context(log)["model"] == {"provider": "", "modelId": "echo-1"}
    answered = [*log, assistant("b", "h", "hi"), asks("i", "b", provider="p", model="m/2")]
    assert build_context(answered[:3])["models"] == {"default": "mock/mock-1"}
    assert build_context(answered)["model"] == {"provider": "p", "modelId": "m/2"}
    session = Session.open(str(write_log(tmp_path / "t_s.jsonl", answered)))
    read = reading.context_path(session, tree.path(session.index, session.leaf))
    assert build_context(read)["model"] == {"provider": "p", "modelId": "m/2"}
    session.journal.close()


def test_oh_my_pi_sends_no_broken_answers():
    calls = [{"id": "c1", "name": "bash", "arguments": {}}, {"id": "c2", "name": "bash", "arguments": {}}]
    half = assistant("a", "u", "on it", calls=calls)
    half["message"]["content"].insert(0, {"type": "thinking", "thinking": "hm", "thinkingSignature": "s"})
    path = [
        user("u", None, "hi"),
        half,
        tool_result("t", "a", "c1", "out"),
        assistant("f", "t", "", calls=[{"id": "c3", "name": "bash", "arguments": {}}], stopReason="aborted"),
        tool_result("g", "f", "c3", "aborted"),
        assistant("l", "g", "", calls=[{"id": "c4", "name": "bash", "arguments": {}}]),
    ]
    context = build_context(path, omp=True)
    assert context["sources"] == [["u"], ["a"], ["t"]]
    assert [block["type"] for block in context["messages"][1]["content"]] == ["thinking", "text", "toolCall"]
    assert context["messages"][1]["content"][0] == {"type": "thinking", "thinking": "hm"}
    assert len(build_context(path)["messages"]) == 6


def test_oh_my_pi_keeps_an_aborted_answer_only_right_before_the_note_on_its_thoughts():
    note = entry("custom_message", "n", "f", customType="interrupted-thinking", content="it was thinking")
    failed = assistant("f", "u", "half", stopReason="aborted")
    assert build_context([user("u", None, "hi"), failed, note], omp=True)["sources"] == [["u"], ["f"], ["n"]]
    empty = assistant("e", "f", "", content=[])
    assert build_context([user("u", None, "hi"), failed, empty, note], omp=True)["sources"] == [["u"], ["n"]]


@given(trees(30), st.booleans())
@settings(max_examples=80, deadline=None)
def test_each_message_names_its_entries(entries, omp):
    context = build_context(entries, omp=omp)
    known = {e["id"] for e in entries}
    assert len(context["sources"]) == len(context["messages"])
    assert all(ids and known.issuperset(ids) for ids in context["sources"])


def of_every_kind(id_, parent, other):
    """One entry of each kind that a context depends on; `other` is the id of one somewhere."""
    return [
        user(id_, parent, f"ask {id_}"),
        user(id_, parent, f"ask {id_}"),
        assistant(id_, parent, f"answer {id_}", model=f"m-{id_}"),
        assistant(id_, parent, f"answer {id_}", model=None, provider=None),
        entry("compaction", id_, parent, summary=f"so far {id_}", firstKeptEntryId=other),
        entry("reset_boundary", id_, parent),
        entry("context_edit", id_, parent, targetId=other, replacement={"content": "new"}),
        entry("custom_message", id_, parent, customType="n", content=f"note {id_}"),
        entry("branch_summary", id_, parent, summary=f"left {id_}", fromId=other),
        entry("model_change", id_, parent, provider="p", modelId=f"m-{id_}"),
        entry("model_change", id_, parent, model=f"p/m-{id_}", role="smol"),
        entry("model_change", id_, parent, model=f"p/m-{id_}"),
        entry("thinking_level_change", id_, parent, thinkingLevel=f"level {id_}"),
        entry("mode_change", id_, parent, mode=f"mode {id_}"),
        entry("ttsr_injection", id_, parent, injectedRules=[f"rule {id_}"]),
        entry("turn_start", id_, parent, turn=1),
        entry("request_header", id_, parent, header={"config": {"model": f"m-{id_}"}}, reason="change"),
        entry("request_header", id_, parent, header={"system": "Be brief."}, reason="change"),
    ]


@st.composite
def paths(draw):
    count = draw(st.integers(1, 25))
    ids = [f"e{n}" for n in range(count)]
    return [
        draw(st.sampled_from(of_every_kind(id_, parent, draw(st.sampled_from([*ids, "nowhere"])))))
        for id_, parent in zip(ids, [None, *ids], strict=False)
    ]


@given(paths())
@settings(max_examples=300, deadline=None)
def test_only_what_a_context_depends_on_is_read(tmp_path_factory, entries):
    session = Session.open(str(write_log(tmp_path_factory.mktemp("log") / "s.jsonl", entries)))
    for n in range(len(entries)):
        path = tree.path(session.index, n)
        assert build_context(reading.context_path(session, path)) == build_context(entries[: n + 1])
    session.journal.close()


def test_wrong_types_never_raise():
    """A013: the context of a damaged path is what can still be read of it."""
    from tests.test_text import JUNK, SAMPLES, places, replaced

    for sample, _ in SAMPLES:
        for place in places(sample):
            for junk in JUNK:
                damaged = replaced(sample, place, junk)
                for omp in (False, True):
                    context = build_context([user("u0", None, "hi"), damaged, user("z", "k", "on")], omp=omp)
                    assert len(context["sources"]) == len(context["messages"])


def test_times_of_made_messages_are_milliseconds():
    assert stamp(3) == "2026-01-01T00:00:03.000Z"
    (message,) = build_context([entry("custom_message", "n", None, customType="x", content="y", timestamp=17)])[
        "messages"
    ]
    assert message["timestamp"] == 17
    (message,) = build_context([entry("custom_message", "n", None, customType="x", content="y", timestamp="?")])[
        "messages"
    ]
    assert "timestamp" not in message
