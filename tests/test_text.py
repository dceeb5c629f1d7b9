"""One line of an entry: clean, cut where a reader would cut it, and there whatever the entry holds."""

from __future__ import annotations

import copy
import json
import unicodedata
from typing import Any

import pytest
import regex
from hypothesis import given, settings, strategies as st

from dsh_daemon.log.index import NO_TIME
from dsh_daemon.log.times import instant
from dsh_daemon.rows import Layout, View, window
from dsh_daemon.text import call_text, iso, message_text, one_line, plain_text, row_text
from tests.indexes import log_of
from tests.support import assistant, entry, tool_result, user

IMAGE = {"type": "image", "mimeType": "image/png", "data": "A" * 16_000}
CALL = {"id": "c1", "name": "bash", "arguments": {"timeout": 5, "command": "npm test"}}

# One entry of each type that pi, omp and we write, with the text of its row.
SAMPLES: list[tuple[dict[str, Any], str]] = [
    (user("u", None, "Fix\n\n  it"), "Fix it"),
    (assistant("a", "u", "Done."), "Done."),
    (assistant("a", "u", "On it", calls=[CALL]), "On it"),
    (assistant("a", "u", "", calls=[CALL, {"id": "c2", "name": "read", "arguments": {"path": "a.py"}}]),
     "[bash: npm test] [read: a.py]"),
    (assistant("a", "u", "", content=[]), "(no content)"),
    (assistant("a", "u", "", content=[], stopReason="error", errorMessage="400: no"), "400: no"),
    (assistant("a", "u", "", content=[], stopReason="aborted"), "(aborted)"),
    (assistant("a", "u", "", content=[{"type": "thinking", "thinking": "hm"}]), "(no content)"),
    (tool_result("t", "a", "c1", "out"), "[bash]"),
    (entry("message", "b", "a", message={"role": "bashExecution", "command": "ls -l", "output": "x"}), "$ ls -l"),
    (entry("message", "b", "a", message={"role": "pythonExecution", "code": "1 + 1"}), ">>> 1 + 1"),
    (entry("message", "b", "a", message={"role": "custom", "customType": "note", "content": "hi"}), "hi"),
    (entry("message", "b", "a", message={"role": "system", "sections": {"rules": "Be kind"}}), "Be kind"),
    (entry("message", "b", "a", message={"role": "fileMention", "files": [{"path": "a.md"}]}), "[file: a.md]"),
    (entry("compaction", "k", "a", summary="## Goal", tokensBefore=45_081, firstKeptEntryId="a"),
     "[compaction: 45k tokens] ## Goal"),
    (entry("branch_summary", "k", "a", summary="Tried it", fromId="a"), "[branch summary] Tried it"),
    (entry("custom", "k", "a", customType="todo", data={"n": 1}), "[todo]"),
    (entry("custom_message", "k", "a", customType="note", content=[{"type": "text", "text": "see"}]), "see"),
    (entry("label", "k", "a", targetId="a", label="best"), "label: best"),
    (entry("label", "k", "a", targetId="a"), "label cleared"),
    (entry("model_change", "k", "a", provider="mock", modelId="m-2"), "model: mock/m-2"),
    (entry("model_change", "k", "a", model="mock/m-2", role="smol"), "model: mock/m-2 (smol)"),
    (entry("thinking_level_change", "k", "a", thinkingLevel="high"), "thinking: high"),
    (entry("mode_change", "k", "a", mode="plan"), "mode: plan"),
    (entry("session_info", "k", "a", name="Parser"), "title: Parser"),
    (entry("session_info", "k", "a", name=""), "title cleared"),
    (entry("title_change", "k", "a", title="Parser", source="auto"), "title: Parser"),
    (entry("context_edit", "k", "a", targetId="a", replacement=None), "[context edit: removed]"),
    (entry("usage", "k", "a", kind="title", usage={}), "[usage] title"),
    (entry("ttsr_injection", "k", "a", injectedRules=["a", "b"]), "[rules] a, b"),
    (entry("turn_start", "k", "a", turn=3), "turn 3"),
    (entry("turn_end", "k", "a", turn=3, reason={"kind": "completed"}), "turn 3 ended: completed"),
    (entry("step_start", "k", "a", turn=3, step=1), "step 3.1"),
    (entry("step_end", "k", "a", turn=3, step=1), "step 3.1 ended"),
    (entry("tool_call", "k", "a", turn=1, step=1, callId="c", name="grep", arguments='{"pattern": "x"}'), "[grep: x]"),
    (entry("assistant_chunks", "k", "a", kind="text", texts=["Hel", "lo"], dt=[0, 1]), "Hello"),
    (entry("request_header", "k", "a", header={}, reason="initial"), "[request header] initial"),
    (entry("end_seed", "k", "a"), "[end of what was inherited]"),
    (entry("reset_boundary", "k", "a"), "[reset_boundary]"),
    (entry("from_the_future", "k", "a", x=1), "[from_the_future]"),
]  # fmt: skip


@pytest.mark.parametrize(("sample", "text"), SAMPLES, ids=[text for _, text in SAMPLES])
def test_every_type_has_its_row(sample, text):
    assert row_text(sample, 240) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"command": "ls", "path": "a.py"}, "[x: a.py]"),
        ({"file_path": "b.py"}, "[x: b.py]"),
        ({"n": 1, "note": "first string", "other": "second"}, "[x: first string]"),
        ({"path": "", "url": "http://h"}, "[x: http://h]"),
        ({"n": 1}, "[x]"),
        (None, "[x]"),
        ([], "[x]"),
        ('{"query": "q"}', "[x: q]"),
        ("not json", "[x: not json]"),
    ],
)
def test_a_call_reads_as_its_main_argument(arguments, text):
    """A013: also where an output limit left `arguments: null`."""
    assert call_text({"name": "x", "arguments": arguments}) == text


def test_images_stand_in_the_text_with_their_size():
    content = [{"type": "text", "text": "look"}, IMAGE, {"type": "image", "data": "blob:sha256:ab"}]
    assert message_text({"role": "user", "content": content}) == "look\n[image 12 kB]\n[image]"
    assert plain_text(content) == "look"


@given(st.text(), st.integers(1, 40))
@settings(max_examples=300, deadline=None)
def test_one_line_is_one_clean_line(text, limit):
    line = one_line(text, limit)
    assert len(line) <= limit
    assert line == line.strip()
    line.encode()
    for char in line:
        assert unicodedata.category(char) not in {"Cc", "Cs", "Zl", "Zp"}
        assert unicodedata.bidirectional(char) not in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


GRAPHEMES = ["a", "é", "e\u0301", "漢", "👩\u200d👩\u200d👧", "🇰🇷", "👍🏽", "ก็", "각", " "]


@given(st.lists(st.sampled_from(GRAPHEMES), max_size=30), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_text_is_cut_between_graphemes_and_no_sooner_than_needed(parts, limit):
    """A084: no half of a pair, no emoji in two."""
    whole = " ".join("".join(parts).split())
    cut = one_line(whole, limit)
    assert whole.startswith(cut)
    ends = [0]
    ends += [match.end() for match in regex.finditer(r"\X", whole)]
    assert cut == whole[: max(end for end in ends if end <= limit)].rstrip()


def test_hostile_titles_are_plain_text():
    """A086: escapes, carriage returns and wide characters."""
    assert one_line("\x1b]0;evil\x07 \r\n 漢字 👩\u200d👩\u200d👧", 240) == "漢字 👩\u200d👩\u200d👧"
    assert one_line("\x1b[31mred\x1b[0m \x9b1mbold", 240) == "red bold"
    assert one_line("a\u202egnp.exe\u2066x\u2069", 240) == "agnp.exex"
    assert one_line("abc\ud83d def", 240) == "abc\ufffd def"
    assert one_line("a\u2028b\u0085c\x0bd", 240) == "a b c d"


def test_a_long_text_is_cleaned_no_further_than_it_is_shown():
    assert one_line("\n" * 3_000_000 + "x", 5) == "x"
    assert one_line("x\n" * 3_000_000, 5) == "x x x"


@pytest.mark.parametrize("value", ["2026-01-01T00:00:00.000Z", "0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"])
def test_times_come_back_as_they_were(value):
    """A093"""
    assert iso(instant(value)) == value


def test_times_beyond_the_calendar_are_null():
    assert [iso(ms) for ms in (NO_TIME, 2**62, -(2**61))] == [None] * 3
    assert iso(-1) == "1969-12-31T23:59:59.999Z"


def places(value: Any, at: tuple = ()) -> list[tuple]:
    """Every place inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([at] if at else []), *(place for key, inner in items for place in places(inner, (*at, key)))]


def replaced(value: Any, place: tuple, by: Any) -> Any:
    result = copy.deepcopy(value)
    holder = result
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = by
    return result


JUNK = [None, True, 0, -1.5, 10**30, "", "x", [], [None], {}, {"type": None}, [[1]], {"a": {"b": []}}]


@pytest.mark.parametrize("sample", [sample for sample, _ in SAMPLES], ids=[text for _, text in SAMPLES])
def test_any_field_of_any_type_still_renders(sample):
    """A013: every scalar and subtree replaced by null and by values of another type never raises."""
    for place in places(sample):
        for junk in JUNK:
            line = row_text(replaced(sample, place, junk), 240, CALL)
            assert isinstance(line, str)
            assert len(line) <= 240


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_entry_is_still_a_row_of_the_tree(data):
    """A013: through the scan, the layout and the window."""
    sample = data.draw(st.sampled_from([sample for sample, _ in SAMPLES]))
    place = data.draw(st.sampled_from([place for place in places(sample) if place not in {("id",), ("type",)}]))
    damaged = replaced(sample, place, data.draw(json_values))
    damaged = {**json.loads(json.dumps(damaged)), "id": "x"}
    log = log_of([user("u", None, "hi"), damaged, user("v", "x", "on")])
    for leaf in range(3):
        rows = window(log.index, View(Layout(log.index, leaf, "all")), log.read)
        assert sorted(row["id"] for row in rows) == ["u", "v", "x"]
        assert json.dumps(rows).encode()
