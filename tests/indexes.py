"""Logs in memory: entries as dicts -> the index that the scan makes of them, and a reader of their bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from dsh_daemon import turns
from dsh_daemon.log.index import Index
from dsh_daemon.log.recover import clean, loads
from dsh_daemon.log.scan import scan
from tests import support
from tests.support import assistant, header, line, tool_result, user

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Log(NamedTuple):
    index: Index
    read: Callable[[int], dict[str, Any]]
    raw: Callable[[int], bytes]
    data: bytes


class Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    def readinto(self, offset: int, buffer: memoryview) -> int:
        piece = self.data[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)


def log_of_bytes(data: bytes) -> Log:
    index = Index()
    scan(index, Bytes(data), len(data))

    def raw(i: int) -> bytes:
        return data[index.offset[i] : index.offset[i] + index.length[i]]

    return Log(index, lambda i: clean(loads(raw(i))), raw, data)


def log_of(entries: list[dict[str, Any]], head: dict[str, Any] | None = None) -> Log:
    return log_of_bytes(line(head or header()) + b"".join(line(entry) for entry in entries))


def index_of(entries: list[dict[str, Any]]) -> tuple[Index, Callable[[int], dict[str, Any]]]:
    log = log_of(entries)
    return log.index, log.read


FILLERS = (
    "model_change",
    "custom",
    "session_info",
    "turn_start",
    "from_the_future",
    "branch_summary",
    "custom_message",
)


@st.composite
def trees(draw: st.DrawFn, most: int = 30, *, shuffled: bool = False) -> list[dict[str, Any]]:
    """Entries of a random tree: every kind, several roots, labels set and cleared, clocks that stop or go back."""
    n = draw(st.integers(1, most))
    entries: list[dict[str, Any]] = []
    for k in range(n):
        id_ = f"e{k}"
        # Mostly chains, as real logs are, with jumps back to anywhere.
        parent = draw(st.sampled_from([f"e{k - 1}"] * 3 + [f"e{j}" for j in range(k)] + [None])) if k else None
        second = draw(st.integers(0, 5))
        kind = draw(st.sampled_from(["user", "assistant", "calls", "failed", "tool", "label", *FILLERS]))
        if kind == "user":
            entry = user(id_, parent, f"Ask {k}", second)
        elif kind == "assistant":
            entry = assistant(id_, parent, f"Answer {k}", second)
        elif kind in {"calls", "failed"}:
            call = {"id": f"c{k}", "name": "bash", "arguments": {"command": "ls"}}
            entry = assistant(id_, parent, "", second, [call], **({"stopReason": "error"} if kind == "failed" else {}))
        elif kind == "tool":
            entry = tool_result(id_, parent, f"c{k - 1}", "out", second)
        elif kind == "label":
            target = draw(st.sampled_from([f"e{j}" for j in range(n)]))
            entry = support.entry("label", id_, parent, second, targetId=target)
            if draw(st.booleans()):
                entry["label"] = f"mark {k}"
        else:
            entry = support.entry(kind, id_, parent, second)
        if draw(st.integers(0, 9)) == 0:
            entry["timestamp"] = draw(st.sampled_from([None, "yesterday", second * 1000, "1970-01-01T00:00:00+14:00"]))
        entries.append(entry)
    return draw(st.permutations(entries)) if shuffled else entries


def turns_of(index: Index, path: Sequence[int], read: Callable[[int], dict[str, Any]]) -> list[turns.Turn]:
    """All turns of a path (ordinals, root first), oldest first, with their numbers and how they ended."""
    found = turns.spans(index, path)
    turns.give_numbers(found, read)
    for turn in found:
        turns.settle(turn, index, read, last=turn is found[-1])
    return found
