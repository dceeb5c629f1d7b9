"""Builders of dsh logs: events, packed rows, compactions, forks; plain and in zstd frames."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import zstandard

from dsh_daemon.naming import dsh_project

Event = dict[str, Any]
START = 1_796_033_552_000
ANSWERED_BY = {"kind": "model", "provider": "deepseek-official", "model": "deepseek-v4-flash"}
PROJECT = "--tmp-demo-proj--"


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


class Log:
    """A log as it grows; every event is a millisecond after the one before."""

    def __init__(self, session_id: str = "session-a", **header: Any) -> None:
        self.header: dict[str, Any] = {
            "type": "session", "version": 0, "id": session_id, "createdAt": START, "cwd": "/tmp/demo/proj",
            "delegationDepth": 0, **header,
        }  # fmt: skip
        self.events: list[Event] = []
        self.turn = 0
        self.step = 0

    def add(self, type_: str, data: Any, **more: Any) -> int:
        seq = len(self.events)
        self.events.append({"type": type_, "seq": seq, "time": START + seq, "data": data, **more})
        return seq

    def prompt(self, words: str) -> int:
        """Begin a turn with what the user says; the number of the message."""
        self.turn += 1
        self.add("agent/inbox/spliced", {"target": "next-turn", "start": 0, "inserted": [text(words)]})
        self.add("turn/start", {"turn": self.turn})
        self.begin(1)
        return self.says({"kind": "user"}, words)

    def begin(self, step: int) -> int:
        self.step = step
        return self.add("step/start", {"turn": self.turn, "step": step})

    def says(self, source: dict[str, Any], words: str, op: Any = "append", **more: Any) -> int:
        content = [text(words)] if source.get("plugin") != "compact" else [text("<s>"), text(words), text("</s>")]
        data = {"content": content, "source": source, "role": "user", "id": f"m{len(self.events)}"}
        return self.add("user/message", data, **more, surfaceOp=op)

    def header_event(self, model: str = "deepseek-v4-flash", reason: str = "initial") -> int:
        config = {"provider": "deepseek-official", "model": model, "reasoningEffort": "high"}
        return self.add("request/header", {"header": {"config": config, "system": "You help."}, "reason": reason})

    def deltas(self, words: Sequence[str], kind: str = "text-delta") -> list[int]:
        place = {"turn": self.turn, "step": self.step}
        made = [self.add("assistant/chunk", {**place, "chunk": {"type": "block-start", "index": 0}})]
        for word in words:
            made.append(self.add("assistant/chunk", {**place, "chunk": {"type": kind, "index": 0, "text": word}}))
        return made

    def answer(
        self, words: str, calls: Iterable[tuple[str, str, str]] = (), *, stream: bool = True, **more: Any
    ) -> int:
        """What a model answers; a call is (id, name, arguments)."""
        cited = self.deltas([words[k : k + 4] for k in range(0, len(words), 4)]) if stream and words else []
        content = [text(words)] if words else []
        content += [{"type": "tool-call", "id": i, "name": name, "arguments": given} for i, name, given in calls]
        message = {"role": "assistant", "content": content, "source": ANSWERED_BY, "id": f"m{len(self.events)}"}
        usage = {"inputTokens": 100, "outputTokens": 7, "cacheReadTokens": 3}
        data = {"turn": self.turn, "step": self.step, "message": message, "usage": usage, **more}
        return self.add("assistant/message", data, sourceEventSeqs=cited, surfaceOp="append")

    def call(self, id_: str, name: str, given: str) -> int:
        place = {"turn": self.turn, "step": self.step}
        return self.add("tool/call", {**place, "callId": id_, "name": name, "arguments": given})

    def result(self, id_: str, words: str, *, failed: bool = False) -> int:
        block = {"type": "tool-result", "toolCallId": id_, "content": [text(words)], "isError": failed}
        message = {
            "source": {"kind": "tool", "callId": id_}, "content": [block], "role": "user", "id": f"m{len(self.events)}",
        }  # fmt: skip
        data = {"turn": self.turn, "step": self.step, "message": message}
        return self.add("tool/result", data, surfaceOp="append")

    def end(self, kind: str = "completed") -> int:
        self.add("step/end", {"turn": self.turn, "step": self.step})
        reason: dict[str, Any] = {"kind": kind} | ({"reason": {"kind": "user"}} if kind == "aborted" else {})
        return self.add("turn/end", {"turn": self.turn, "reason": reason})

    def talk(self, words: str, answer: str) -> int:
        """A whole turn; the number of its end."""
        self.prompt(words)
        self.header_event()
        self.answer(answer)
        return self.end()

    def tool_turn(self, words: str, command: str, answer: str) -> int:
        self.prompt(words)
        given = json.dumps({"command": command})
        id_ = f"call_{len(self.events)}"
        self.answer("", [(id_, "bash", given)])
        self.call(id_, "bash", given)
        self.result(id_, "done")
        self.add("step/end", {"turn": self.turn, "step": 1})
        self.begin(2)
        self.answer(answer)
        return self.end()

    def compact(self, start: int, end: int, summary: str) -> int:
        """Replace what stands from `start` to `end` on the surface; the number of the summary."""
        shown = [event["seq"] for event in on_surface(self.events)]
        taken = shown[shown.index(start) : shown.index(end) + 1] if {start, end} <= {*shown} else []
        cited = [self.add("compaction/start", {"compactionId": "c", "turn": None})]
        cited.append(self.add("compaction/summary", {"compactionId": "c", "summary": [text(summary)]}))
        op = {"op": "replace", "start": start, "end": end}
        made = self.says({"kind": "plugin", "plugin": "compact"}, summary, op, sourceEventSeqs=[*cited, *taken])
        self.add("compaction/end", {"compactionId": "c", "turn": None})
        return made

    def title(self, words: str, by: str = "provider") -> int:
        return self.add("session/title", {"title": words, "messageSeqs": [], "source": {"kind": by}})

    def fork(self, session_id: str, boundary: int) -> Self:
        """A session that begins with this one's events up to `boundary`."""
        child = type(self)(
            session_id, parentSession=self.header["id"], seedLength=boundary + 1, createdAt=START + 10**6
        )
        child.events = [dict(event) for event in self.events[: boundary + 1]]
        child.turn = max((e["data"]["turn"] for e in child.events if e["type"] == "turn/start"), default=0)
        child.add("session/end-seed", {})
        return child

    # As it is written

    def lines(self, *, packed: bool = False) -> list[bytes]:
        """The stored lines behind the header."""
        return [dump(record) for record in (pack(self.events) if packed else self.events)]

    def plain(self, *, packed: bool = False) -> bytes:
        return dump(self.header) + b"".join(self.lines(packed=packed))

    def zstd(self, *, packed: bool = False, batch: int = 5) -> bytes:
        lines = self.lines(packed=packed)
        batches = [b"".join(lines[k : k + batch]) for k in range(0, len(lines), batch)]
        return b"".join(frame(piece) for piece in [dump(self.header), *batches])

    def write(self, root: Path, *, zstd: bool = True, packed: bool = True, batch: int = 5) -> Path:
        folder = root / dsh_project(self.header["cwd"]) / self.header["id"]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / ("session.jsonl.zstd" if zstd else "session.jsonl")
        path.write_bytes(self.zstd(packed=packed, batch=batch) if zstd else self.plain(packed=packed))
        return path


def on_surface(events: Iterable[Event]) -> list[Event]:
    """The events that a model sees, by the plainest reading of the rules."""
    shown: list[Event] = []
    for event in events:
        op = event.get("surfaceOp")
        if op == "append":
            shown.append(event)
        elif op is not None:
            places = [k for k, one in enumerate(shown) if one["seq"] in (op["start"], op["end"])]
            shown[min(places) : max(places) + 1] = [event]
    return shown


def dump(record: Event) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def frame(data: bytes) -> bytes:
    """A frame as dsh writes it: with a checksum, without the length of its text."""
    return zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(data)


def pack(events: Sequence[Event]) -> list[Event]:
    """Three or more text deltas of one block in a row become one line."""
    found: list[Event] = []
    run: list[Event] = []

    def flush() -> None:
        if len(run) < 3:
            found.extend(run)
        else:
            times = [event["time"] for event in run]
            place = {name: run[0]["data"][name] for name in ("turn", "step")}
            waits = [b - a for a, b in pairwise(times)]
            texts = [event["data"]["chunk"]["text"] for event in run]
            data = {**place, "index": 0, "dt": waits, "texts": texts}
            found.append({"type": "text-chunks", "seq0": run[0]["seq"], "time0": times[0], "data": data})
        run.clear()

    for event in events:
        if event["type"] == "assistant/chunk" and event["data"]["chunk"]["type"] == "text-delta":
            run.append(event)
        else:
            flush()
            found.append(event)
    flush()
    return found


def story() -> Log:
    """A session with everything in it: tools, a failure, an abort, two compactions, titles, what nobody knows."""
    log = Log()
    log.add("permission/preset", {"preset": "danger-full-access"})
    first = log.prompt("First thing, naïve 한국어 🙂")
    context = log.says({"kind": "plugin", "plugin": "@deepseek-ai/dsh-system-prompt"}, "The time is now.")
    log.title("First thing", "fallback")
    log.header_event()
    log.add("request/context", {"provider": "deepseek-official", "model": "deepseek-v4-flash", "contextWindow": 10})
    answer = log.answer("The first answer, which is long enough")
    log.end()
    log.tool_turn("Second thing", "cat calc.py", "second answer")
    summary = log.compact(first, context, "what happened at first")
    log.prompt("Third thing")
    log.answer("parti", interrupted=True)
    log.end("aborted")
    log.title("The real title", "user")
    log.compact(summary, answer, "what happened until the third")
    log.add("future/event", {"x": 1}, ignorable=True)
    log.talk("Fourth thing", "fourth answer")
    return log


def damaged(data: bytes, dice: random.Random) -> tuple[bytes, int, int]:
    """`data` with a few bytes changed, lost or added at one place, and where that begins and ends in the original."""
    at = dice.randrange(len(data))
    size = dice.choice((1, 1, 1, 2, 7, 40))
    stop = min(len(data), at + size)
    kind = dice.randrange(3)
    if kind == 0:
        new = bytes(byte ^ dice.randrange(1, 256) for byte in data[at:stop])
    elif kind == 1:
        new = b""
    else:
        new, stop = bytes(dice.randrange(256) for _ in range(size)), at
    return data[:at] + new + data[stop:], at, stop
