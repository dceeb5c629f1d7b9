"""What of an entry can be found: what people, models and tools say, within bounds, and nothing else."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon.fulltext import ENTRY, HEAD, RUN, SAID, TAIL, Speaker, says_something, text_of
from dsh_daemon.log.formats import dsh
from dsh_daemon.tokens import BLOCK
from tests.support import assistant, entry, tool_result, user

CALL = {"id": "c1", "name": "edit", "arguments": {"n": 7, "deep": [{"a": "old"}, True, None], "path": "src/a.py"}}

SAID_BY: list[tuple[dict[str, Any], Speaker, list[str]]] = [
    (user("u", None, "Fix it"), Speaker.USER, ["Fix it"]),
    (assistant("a", "u", "Done."), Speaker.ANSWER, ["Done."]),
    (assistant("a", "u", "On it", calls=[CALL]), Speaker.ANSWER, ["On it", "edit", "src/a.py", "7", "old"]),
    (assistant("a", "u", calls=[CALL]), Speaker.TOOL, ["edit", "src/a.py", "7", "old"]),
    (assistant("a", "u", calls=[{"id": "c", "name": "x", "arguments": "{torn"}]), Speaker.TOOL, ["x", "{torn"]),
    (assistant("a", "u", stopReason="error", errorMessage="400: no"), Speaker.ANSWER, ["400: no"]),
    (tool_result("t", "a", "c1", "3 passed"), Speaker.TOOL, ["3 passed"]),
    (entry("message", "b", "a", message={"role": "bashExecution", "command": "ls", "output": "x.py"}),
     Speaker.TOOL, ["ls", "x.py"]),
    (entry("message", "b", "a", message={"role": "pythonExecution", "code": "1 + 1", "output": "2"}),
     Speaker.TOOL, ["1 + 1", "2"]),
    (entry("message", "f", "a", message={"role": "fileMention", "files": [{"path": "a.md", "content": "# Hi"}]}),
     Speaker.TOOL, ["a.md", "# Hi"]),
    (entry("message", "c", "a", message={"role": "custom", "content": "note"}), Speaker.ANSWER, ["note"]),
    (entry("custom_message", "c", "a", content="note", display=True), Speaker.ANSWER, ["note"]),
    (entry("compaction", "k", "a", summary="## Goal"), Speaker.ANSWER, ["## Goal"]),
    (entry("branch_summary", "k", "a", summary="Tried it"), Speaker.ANSWER, ["Tried it"]),
]  # fmt: skip

SILENT = [
    entry("custom_message", "c", "a", content="kept from people", display=False),
    entry("message", "s", "a", message={"role": "system", "sections": {"rules": "Be kind"}}),
    assistant("a", "u", content=[{"type": "thinking", "thinking": "hm"}]),
    user("u", None, " \n\t"),
    entry("message", "u", None, message={"role": "user", "content": [{"type": "image", "data": "A" * 99}]}),
    entry("custom", "c", "a", customType="todo", data={"text": "x"}),
    entry("label", "l", "a", targetId="a", label="best"),
    entry("session_info", "t", "a", name="Parser"),
    entry("model_change", "m", "a", provider="mock", modelId="m-2"),
    entry("request_header", "h", "a", header={"system": "x"}),
    entry("assistant_chunks", "h", "a", texts=["x"]),
    entry("tool_call", "h", "a", name="bash", arguments={"command": "ls"}),
    entry("later/type", "x", "a", text="x"),
    {"type": "message", "message": "x"},
    {"type": 7},
    {},
]


@pytest.mark.parametrize(("stored", "speaker", "parts"), SAID_BY)
def test_what_was_said_is_found_part_by_part(stored: dict[str, Any], speaker: Speaker, parts: list[str]) -> None:
    assert text_of(stored) == (speaker, BLOCK.join(parts))


@pytest.mark.parametrize("stored", SILENT)
def test_reasoning_images_headers_chunks_and_marks_say_nothing(stored: dict[str, Any]) -> None:
    assert text_of(stored) is None


@pytest.mark.parametrize("stored", [stored for stored, _, _ in SAID_BY])
def test_the_shape_alone_tells_that_an_entry_may_say_something(stored: dict[str, Any]) -> None:
    assert says_something(stored["type"], stored.get("message", {}).get("role"))


def test_events_of_dsh_say_what_the_same_entries_say() -> None:
    view = dsh.View("3", "2", None)
    call = {"type": "tool-call", "id": "c1", "name": "read", "arguments": '{"path": "calc.py"}'}
    content = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "I look"}, call]
    event = {"type": dsh.ANSWER, "seq": 3, "data": {"message": {"role": "assistant", "content": content}}}

    assert text_of(dsh.as_entry(event, view)) == (Speaker.ANSWER, BLOCK.join(["I look", "read", "calc.py"]))


def test_of_what_tools_print_the_beginning_and_the_end_count() -> None:
    printed = "begin " + "x " * HEAD + "middle " + "y " * HEAD + "end"

    said = text_of(tool_result("t", "a", "c1", printed))

    assert said is not None
    assert len(said.text) <= HEAD + TAIL + 1
    assert said.text.startswith("begin")
    assert said.text.endswith("end")
    assert "middle" not in said.text
    assert said.text.count(BLOCK) == 1  # no phrase goes over the gap


def test_a_message_counts_up_to_its_bound_and_many_calls_together_up_to_theirs() -> None:
    long = text_of(user("u", None, "word " * SAID))
    many = text_of(assistant("a", "u", calls=[{**CALL, "arguments": {"a": "word " * 9_000}}] * 40))

    assert long is not None
    assert SAID - 5 < len(long.text) <= SAID
    assert many is not None
    assert len(many.text) <= ENTRY


def test_unbroken_data_is_no_text() -> None:
    said = text_of(tool_result("t", "a", "c1", f"before {'iVBORw0KGgo/' * 400} after"))

    assert said == (Speaker.TOOL, f"before {BLOCK} after")


@given(st.integers(0, 600), st.integers(200, 700), st.integers(0, 600))
@settings(max_examples=200, deadline=None)
def test_a_run_is_found_wherever_it_stands_and_only_from_its_length_on(before: int, length: int, after: int) -> None:
    said = text_of(user("u", None, "b " + "a " * before + "+" * length + " z" * after))

    assert said is not None
    assert ("+" in said.text) == (length < RUN)


def test_colours_and_controls_of_a_terminal_are_not_part_of_words() -> None:
    said = text_of(tool_result("t", "a", "c1", "\x1b[31mFAILED\x1b[0m tests\x00/a.py\u202e\x1e\ud800x"))

    assert said == (Speaker.TOOL, "FAILED tests/a.py\ufffdx")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
_role = st.sampled_from(["user", "assistant", "toolResult", "bashExecution", "custom", "fileMention", "system", None])
_block = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "toolCall", "image"])},
    optional={"text": _json, "name": _json, "arguments": _json},
)
_message = st.fixed_dictionaries(
    {"role": _role}, optional={"content": st.lists(_block | _json, max_size=4) | _json, "files": _json, "output": _json}
)
_entry = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["message", "compaction", "custom_message", "branch_summary"]),
        "message": _message | _json,
    },
    optional={"summary": _json, "content": _json, "display": _json},
)


@given(_entry)
@settings(max_examples=300, deadline=None)
def test_whatever_an_entry_holds_its_text_is_clean_and_bounded(stored: dict[str, Any]) -> None:
    said = text_of(stored)

    if said is not None:
        assert 0 < len(said.text) <= ENTRY
        assert said.text.encode()  # no half of a character
        assert all(char.isprintable() or char.isspace() for char in said.text if ord(char) < 0x20)
        assert says_something(stored["type"], stored["message"].get("role") if stored["type"] == "message" else None)


def test_arguments_nested_a_thousand_deep_are_read() -> None:
    deep: Any = "needle"
    for _ in range(1_000):
        deep = [deep]

    said = text_of(assistant("a", "u", calls=[{**CALL, "arguments": {"x": deep}}]))

    assert said is not None
    assert said.text.endswith("needle")


def test_a_huge_entry_takes_no_longer_than_its_bounds() -> None:
    huge = tool_result("t", "a", "c1", "line of output é\n" * 4_000_000)

    began = time.perf_counter()
    said = text_of(huge)

    assert said is not None
    assert time.perf_counter() - began < 0.5
