"""The stream of a model survives being packed into entries, piece by piece, with its times."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given, strategies as st

from dsh_daemon.chunks import Delta, pack, unpack

KINDS = st.sampled_from(["text", "reasoning", "toolCall"])
NAMES = st.none() | st.text(min_size=1, max_size=3)
DELTAS = st.lists(
    st.builds(Delta, st.integers(0, 3), KINDS, st.text(max_size=5), st.integers(0, 2**45), NAMES, NAMES), max_size=30
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)
)


@given(DELTAS)
def test_packing_loses_nothing(deltas: list[Delta]):
    entries = json.loads(json.dumps(pack(2, 1, deltas)))
    assert [delta for entry in entries for delta in unpack(entry)] == deltas


@given(DELTAS)
def test_neighbours_of_one_block_share_an_entry(deltas: list[Delta]):
    entries = pack(2, 1, deltas)
    keys = [(e["index"], e["kind"], e.get("callId"), e.get("name")) for e in entries]
    assert all(a != b for a, b in itertools.pairwise(keys))
    assert all(len(e["dt"]) == len(e["texts"]) > 0 and e["dt"][0] == 0 for e in entries)


@given(st.dictionaries(st.sampled_from(["index", "kind", "t0", "dt", "texts", "callId", "name"]), JSON))
def test_a_damaged_entry_gives_what_is_whole_in_it(entry: dict[str, Any]):
    texts = entry.get("texts")
    sound = [text for text in texts if isinstance(text, str)] if isinstance(texts, list) else []
    assert [delta.text for delta in unpack(entry)] in ([], sound)
