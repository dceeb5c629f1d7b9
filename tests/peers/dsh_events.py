"""Events of dsh sessions as its agent would append them, for logs that `DshOracle.make` or a test writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]
START = 1_796_000_000_000
MODEL_SOURCE = {"kind": "model", "provider": "deepseek-official", "model": "deepseek-v4-flash"}


class Events(list[Event]):
    """A log under construction; one millisecond goes by from event to event."""

    turns = 0

    def add(self, kind: str, data: Any, **more: Any) -> int:
        """Append one event and return its seq; `more` is surfaceOp, sourceEventSeqs, ignorable."""
        seq = len(self)
        self.append({"type": kind, "seq": seq, "time": START + seq, "data": data, **more})
        return seq

    def say(self, text: str) -> int:
        """A message of the user."""
        content = [{"type": "text", "text": text}]
        data = {"content": content, "source": {"kind": "user"}, "role": "user", "id": f"m{len(self)}"}
        return self.add("user/message", data, surfaceOp="append")

    def answer(self, text: str, *calls: tuple[str, str], parts: int = 4, step: int = 1) -> int:
        """What the model streamed, in `parts` deltas, and the message of it; a call is (id, arguments)."""
        where = {"turn": self.turns, "step": step}
        blocks: list[Event] = [{"type": "text", "text": text}] if text else []
        blocks += [{"type": "tool-call", "id": id_, "name": "bash", "arguments": given} for id_, given in calls]
        first = len(self)
        for index, block in enumerate(blocks):
            self._chunk(where, {"type": "block-start", "index": index, "blockType": block["type"]})
            delta = {"type": "text-delta", "index": index}
            if block["type"] == "tool-call":
                delta = {"type": "tool-call-delta", "index": index, "id": block["id"], "name": block["name"]}
            whole = block.get("text", block.get("arguments"))
            size = max(1, -(-len(whole) // parts))
            for start in range(0, len(whole), size):
                piece = whole[start : start + size]
                self._chunk(where, delta | {"text" if "text" in block else "argumentsDelta": piece})
            self._chunk(where, {"type": "block-end", "index": index, "block": block})
        message = {"role": "assistant", "content": blocks, "source": MODEL_SOURCE, "id": f"m{len(self)}"}
        data = {**where, "message": message, "usage": {"inputTokens": 10, "outputTokens": 5}}
        sources = list(range(first, len(self)))
        return self.add("assistant/message", data, sourceEventSeqs=sources, surfaceOp="append")

    def call(self, call_id: str, given: str, *, step: int = 1) -> int:
        return self.add("tool/call", self._where(step) | {"callId": call_id, "name": "bash", "arguments": given})

    def result(self, call_id: str, text: str, called: int, *, step: int = 1) -> int:
        block = {"type": "tool-result", "toolCallId": call_id, "content": [{"type": "text", "text": text}]}
        source = {"kind": "tool", "callId": call_id}
        message = {"source": source, "content": [block | {"isError": False}], "role": "user", "id": f"m{len(self)}"}
        data = self._where(step) | {"message": message}
        return self.add("tool/result", data, sourceEventSeqs=[called], surfaceOp="append")

    def begin(self, prompt: str) -> int:
        """Open a turn and its first step with a prompt; the seq of the prompt."""
        self.turns += 1
        self.add("turn/start", {"turn": self.turns})
        self.add("step/start", self._where(1))
        return self.say(prompt)

    def end(self, *, step: int = 1, kind: str = "completed") -> int:
        self.add("step/end", self._where(step))
        return self.add("turn/end", {"turn": self.turns, "reason": {"kind": kind}})

    def turn(self, prompt: str, reply: str) -> int:
        """A whole turn without tools; the seq of its end."""
        self.begin(prompt)
        self.answer(reply)
        return self.end()

    def turn_with_tool(self, prompt: str, reply: str) -> int:
        self.begin(prompt)
        call_id, given = f"call_{self.turns}_0", json.dumps({"command": "echo found", "description": "look"})
        self.answer("", (call_id, given))
        self.result(call_id, "found\n", self.call(call_id, given))
        self.add("step/end", self._where(1))
        self.add("step/start", self._where(2))
        self.answer(reply, step=2)
        return self.end(step=2)

    def compact(self, shadowed: Sequence[int], summary: str) -> int:
        """Replace the messages `shadowed`, neighbours in the history, by a summary; the seq of the message with it."""
        identity = f"c{len(self)}"
        block = {"type": "text", "text": summary}
        started = self.add("compaction/start", {"compactionId": identity, "turn": None})
        told: Event = {"compactionId": identity, "summary": [block], "rawOutput": [block], "llmStreamCall": True}
        told |= {"shadowedRange": {"start": shadowed[0], "end": shadowed[-1]}, "shadowedSeqs": list(shadowed)}
        told |= {"shadowedTokenCount": 100, "provider": "deepseek-official", "model": "deepseek-v4-flash"}
        summarised = self.add("compaction/summary", told)
        source = {"kind": "plugin", "plugin": "compact", "compactionId": identity}
        data = {"content": [block], "source": source, "role": "user", "id": f"m{len(self)}"}
        replace = {"op": "replace", "start": shadowed[0], "end": shadowed[-1]}
        message = self.add("user/message", data, sourceEventSeqs=[started, summarised, *shadowed], surfaceOp=replace)
        self.add("compaction/end", {"compactionId": identity, "turn": None})
        return message

    def title(self, text: str) -> int:
        return self.add("session/title", {"title": text, "messageSeqs": [], "source": {"kind": "user"}})

    def _where(self, step: int) -> Event:
        return {"turn": self.turns, "step": step}

    def _chunk(self, where: Event, chunk: Event) -> None:
        self.add("assistant/chunk", {**where, "chunk": chunk})


def header(session_id: str, cwd: str, **more: Any) -> Event:
    """Of a new session; `more` is parentSession, seedLength, origin, agentPreset."""
    return {"id": session_id, "createdAt": START, "cwd": cwd, "delegationDepth": 0, **more}


def plain(header: Event, events: Sequence[Event]) -> bytes:
    """The log as text, one event a line, as `compression: none` has it without packed rows."""
    lines = [{"type": "session", "version": 0, **header}, *events]
    return b"".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for line in lines)
