"""Lines that are not one clean record."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon.log.recover import MAX_DEPTH, clean, loads, lone_surrogate, recover, shallow
from tests.support import assistant, line, user

A = line(user("u1", None, 'a }{ "b" \\ {"type":"message"'))[:-1]
B = line(assistant("a1", "u1", "답 🙂"))[:-1]


def found(text: bytes) -> list[Any]:
    result = recover(text)
    for record, offset, length in result.found:
        assert orjson.dumps(clean(loads(text[offset : offset + length]))) == orjson.dumps(clean(record))
    for damage in result.damage:
        assert 0 <= damage.offset <= damage.offset + damage.length <= len(text)
    return [record["id"] for record, _, _ in result.found]


def codes(text: bytes) -> list[str]:
    return [damage.code for damage in recover(text).damage]


@pytest.mark.parametrize(
    ("text", "ids", "damage"),
    [
        (A, ["u1"], []),
        (A + B, ["u1", "a1"], ["glued_records"]),
        (A + b"  " + B + A, ["u1", "a1", "u1"], ["glued_records"]),
        (A[:20] + A, ["u1"], ["fragment"]),
        (A[:-3] + B, ["a1"], ["fragment", "fragment"]),
        (A + B[:30], ["u1"], ["fragment"]),
        (A + b"garbage", ["u1"], ["fragment"]),
        (b"garbage" + A, ["u1"], ["fragment"]),
        (A[:40] + B[:50] + A, ["u1"], ["fragment", "fragment"]),
        (A[:40], [], ["unreadable_line"]),
        (b"[" + A + b"]", [], ["unreadable_line"]),
        (A + b"\0" * 9, ["u1"], ["nul_run"]),
        (b"\0" * 9 + A, ["u1"], ["nul_run"]),
        (A + b"\0" + B, ["u1", "a1"], ["nul_run"]),
        (A.replace(b"a }{", b"a\0\0{"), ["u1"], ["nul_run"]),
        (A[:-20] + b"\0" * 20, [], ["unreadable_line", "nul_run"]),
        (b"\0\0\0", [], ["nul_run"]),
        (b"", [], []),
        (b"  \t\r", [], []),
        (b"\xef\xbb\xbf" + A, ["u1"], ["fragment"]),
        (A + b"\r", ["u1"], []),
        (B.replace("답".encode(), b"\xeb\x8b"), ["a1"], ["invalid_utf8"]),
        (B.replace("답".encode(), b"\\ud83d"), ["a1"], ["lone_surrogate"]),
        (B.replace(b'"output":1', b'"output":NaN'), ["a1"], ["nan"]),
        (B.replace(b'"output":1', b'"output":1e999'), ["a1"], []),
    ],
)
def test_what_a_line_holds_is_found_and_what_it_lacks_is_named(text: bytes, ids: list[str], damage: list[str]):
    assert found(text) == ids
    assert codes(text) == damage


def test_parts_of_a_torn_record_are_no_records_of_their_own():
    """A content block or a tool call has a type too; showing it as an entry would invent one."""
    torn = line(assistant("a1", None, "x", calls=[{"id": "c1", "name": "bash", "arguments": {"type": "x"}}]))[:-9]
    for cut in range(1, len(torn)):
        assert found(torn[cut:]) == []


@settings(deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_arbitrary_bytes_around_records_never_raise(before: bytes, between: bytes, after: bytes):
    found(before + A + between + B + after)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"18446744073709551615", 2**64 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"[NaN,18446744073709551616]", 1.8446744073709552e19),
        (b"[NaN," + b"9" * 5_000 + b"]", float("inf")),
        (b'"a\tb\0"', "a\tb\0"),
        (b'"\xff"', "\ufffd"),
    ],
)
def test_values_that_the_strict_decoder_refuses_are_read(raw: bytes, value: Any):
    read = loads(raw)
    assert (read[1] if isinstance(read, list) else read) == value


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[" * 100_000, b'"\\x"', b"01", b"tru", b"'a'", b"{}{}", b"[" * 2_000 + b'"']
)
def test_what_is_not_json_is_a_value_error(raw: bytes):
    with pytest.raises(ValueError):
        loads(raw)


@pytest.mark.parametrize("depth", [1, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 260, 1_000, 50_000])
def test_no_depth_of_nesting_is_too_deep_to_show(depth: int):
    raw = b'{"a":[' * (depth // 2) + b"1" + b"]}" * (depth // 2)
    shown = orjson.dumps([[[clean(loads(raw))]]])
    assert (b"null" in shown) == (depth > MAX_DEPTH + 40) or depth in range(MAX_DEPTH, MAX_DEPTH + 41)


@settings(deadline=None)
@given(st.recursive(st.none() | st.text(max_size=5) | st.integers(-9, 9), lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=12))  # fmt: skip
def test_what_is_not_deep_stays_as_it_is(value: Any):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert shallow(text) == text


def test_brackets_in_strings_do_not_count_as_depth():
    text = json.dumps({"a": "[" * 500 + '"' + "{" * 500 + "\\"})
    assert shallow(text) == text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (rb'"\ud83d"', 1),
        (rb'"\ude00"', 1),
        (rb'"ab\ud83d\ude00\ud83d"', 15),
        (rb'"\ud83dx\ude00"', 1),
        (rb'"\ud83d\n"', 1),
        (rb'"\ud83d\ude00"', None),
        (rb'"\\ud83d"', None),
        (rb'"\\\ud83d"', 3),
        (rb'"\u0041\uDBFF\uDFFF"', None),
        (rb'"plain"', None),
    ],
)
def test_a_half_character_is_found_where_it_stands(text: bytes, place: int | None):
    assert lone_surrogate(text) == place


def test_clean_leaves_sound_values_alone_and_mends_keys_too():
    sound = {"a": ["한"]}
    assert clean(sound) is sound
    assert clean({"k\ud83d": ["\ude00", 1, None]}) == {"k\ufffd": ["\ufffd", 1, None]}
