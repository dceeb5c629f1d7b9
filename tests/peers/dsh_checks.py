"""What tests of dsh logs have in common: logs to make, and what must hold of an answer of the oracle."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import zstandard

from .dsh_events import Event, Events
from .dsh_peer import Facts

CWD = "/tmp/demo/proj"
PROJECT = "--tmp-demo-proj--"
TOOL = 'look\nCALL bash {"command":"echo found","description":"look"}\nTHEN\nSAY seen'


def decoded(raw: str) -> list[Event]:
    """The events of a log's text, packed rows expanded."""
    return [event for line in raw.split("\n")[1:] if line for event in expanded(json.loads(line))]


def expanded(record: Event) -> Iterator[Event]:
    if "seq0" not in record:
        yield record
        return
    data = record["data"]
    kind = record["type"].removesuffix("-chunks")
    name = "argumentsDelta" if kind == "tool-call" else "text"
    same = {key: data[key] for key in ("index", "id", "name") if key in data}
    when = record["time0"]
    for number, text in enumerate(data.get("args") or data["texts"]):
        when += data["dt"][number - 1] if number else 0
        chunk = {"type": f"{kind}-delta", **same, name: text}
        where = {"turn": data["turn"], "step": data["step"], "chunk": chunk}
        yield {"type": "assistant/chunk", "seq": record["seq0"] + number, "time": when, "data": where}


def told(events: Sequence[Event], surface: Sequence[int]) -> list[Event]:
    """The messages that stand at these places."""
    messages = [events[seq]["data"] for seq in surface]
    messages = [data if "content" in data else data["message"] for data in messages]
    return [message for message in messages if message["content"]]


def assert_of_a_piece(seen: Facts) -> None:
    """The pieces of an answer say the same of one session that dsh can go on with."""
    stored, inspected, after = seen["stored"], seen["inspected"], seen["after"]
    session = stored["header"]["id"]
    assert seen["listed"] == [session]
    assert after["header"] == stored["header"]
    for view in (stored, inspected, after):
        assert [event["seq"] for event in view["events"]] == list(range(len(view["events"])))
        assert view["messages"] == told(view["events"], view["surface"])
    known = len(stored["events"])
    assert inspected["events"][:known] == stored["events"]
    closers = inspected["events"][known:]
    assert {event["time"] for event in closers} <= {stored["events"][-1]["time"]}
    assert seen["resumed"]["messages"] == after["messages"] == inspected["messages"]
    assert after["events"] == seen["resumed"]["events"]
    assert decoded(seen["rawAfter"]) == after["events"]
    seed = seen["written"][len(closers) :]
    assert seen["written"][: len(closers)] == closers
    ended = bool(closers) or stored["events"][-1]["type"] != "session/end-seed"
    assert [(event["type"], event["data"]) for event in seed] == [("session/end-seed", {})] * ended


def kinds(events: Sequence[Event]) -> list[str]:
    return [event["type"] for event in events]


def codes(events: Sequence[Event]) -> list[str]:
    return [event["data"]["error"]["code"] for event in events if event["type"] == "tool/result"]


def conversation() -> Events:
    events = Events()
    events.turn("one", "the first answer")
    events.turn_with_tool("two \u2028 中文 😀", "seen")
    shadowed = [event["seq"] for event in events if "surfaceOp" in event]
    events.compact(shadowed, "what was said")
    events.title("a title")
    events.turn("three", "the third answer")
    return events


def log_of(root: Path, session: str, *, suffix: str = ".zstd") -> Path:
    return root / PROJECT / session / f"session.jsonl{suffix}"


def frames(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    while data:
        reader = zstandard.ZstdDecompressor().decompressobj()
        reader.decompress(data)
        found.append(data[: len(data) - len(reader.unused_data)])
        data = reader.unused_data
    return found


def opened(*, called: bool) -> Events:
    events = Events()
    events.turn("one", "first")
    events.begin("two")
    events.answer("", ("call_a", "{}"), ("call_b", "{}"))
    if called:
        events.call("call_a", "{}")
    return events


def wait_for_event(path: Path, size: int, text: str) -> None:
    """Until what was written behind `size` has the text; a frame that is not whole yet is not looked at."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        reader = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()[size:], read_across_frames=True)
        if text.encode() in reader.read():
            return
        time.sleep(0.05)
    raise AssertionError(f"{text} was not written in 30 s")
