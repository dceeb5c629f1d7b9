"""Stream deltas <-> `assistant_chunks` entries: what a model said piece by piece, packed without loss.

    {"turn": 2, "step": 1, "index": 0, "kind": "text", "t0": 1796033520697, "dt": [0, 31], "texts": ["Hel", "lo"]}

Piece k was heard at `t0` plus the first k+1 members of `dt` (milliseconds).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

from .text import as_str

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .types import Entry


Kind = Literal["text", "reasoning", "toolCall"]
_KINDS = frozenset(get_args(Kind))


class Delta(NamedTuple):
    """One piece of an answer."""

    block: int  # which block of the answer it belongs to
    kind: Kind
    text: str  # of a tool call: a piece of its arguments
    time: int  # milliseconds since 1970
    call_id: str | None = None
    name: str | None = None


def pack(turn: int, step: int, deltas: Iterable[Delta]) -> list[Entry]:
    """Pack the deltas of one step, in the order in which they came, into entries for `session/append`."""
    found: list[Entry] = []
    before: Delta | None = None
    for delta in deltas:
        if before is None or delta[:2] + delta[4:] != before[:2] + before[4:]:
            entry: dict[str, Any] = {
                "type": "assistant_chunks", "turn": turn, "step": step, "index": delta.block, "kind": delta.kind,
                "t0": delta.time, "dt": [], "texts": [],
            }  # fmt: skip
            if delta.call_id is not None:
                entry["callId"] = delta.call_id
            if delta.name is not None:
                entry["name"] = delta.name
            found.append(entry)
            before = None
        found[-1]["dt"].append(delta.time - before.time if before else 0)
        found[-1]["texts"].append(delta.text)
        before = delta
    return found


def unpack(entry: Mapping[str, Any]) -> list[Delta]:
    """The deltas of one `assistant_chunks` entry; what is damaged in it is left out."""
    kind, index, time = as_str(entry.get("kind")), _number(entry.get("index")), _number(entry.get("t0"))
    call_id, name = as_str(entry.get("callId")) or None, as_str(entry.get("name")) or None
    if kind not in _KINDS:
        return []
    found: list[Delta] = []
    waits = _list(entry.get("dt"))
    for k, text in enumerate(_list(entry.get("texts"))):
        time += _number(waits[k]) if k < len(waits) else 0
        if isinstance(text, str):
            found.append(Delta(index, cast("Kind", kind), text, time, call_id, name))
    return found


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
