"""What the tests share: where the corpus is, builders of session files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"
CORPUS: Path | None = _CORPUS if _CORPUS.is_dir() else None
STRICT = os.environ.get("DSHD_TEST_STRICT") == "1"


def line(entry: dict[str, Any]) -> bytes:
    """One log line as an agent writes it."""
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def header(session_id: str = "s1", cwd: str = "/tmp/demo/proj", **more: Any) -> dict[str, Any]:
    return {
        "type": "session",
        "version": 3,
        "id": session_id,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "cwd": cwd,
        **more,
    }


def stamp(second: int) -> str:
    return f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000Z"


def user(id_: str, parent: str | None, text: str, second: int = 1) -> dict[str, Any]:
    message = {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": second * 1000}
    return {"type": "message", "id": id_, "parentId": parent, "timestamp": stamp(second), "message": message}


def assistant(
    id_: str,
    parent: str | None,
    text: str = "",
    second: int = 1,
    calls: list[dict[str, Any]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """An assistant message; `calls` are `{"id", "name", "arguments"}`."""
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [{"type": "toolCall", **call} for call in calls or []]
    cost = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}
    message = {
        "role": "assistant",
        "content": content,
        "api": "openai-completions",
        "provider": "mock",
        "model": "mock-1",
        "usage": {"input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 2, "cost": cost},
        "stopReason": "toolUse" if calls else "stop",
        "timestamp": second * 1000,
        **more,
    }
    return {"type": "message", "id": id_, "parentId": parent, "timestamp": stamp(second), "message": message}


def tool_result(
    id_: str, parent: str, call_id: str, text: str, second: int = 1, name: str = "bash", **more: Any
) -> dict[str, Any]:
    message = {
        "role": "toolResult",
        "toolCallId": call_id,
        "toolName": name,
        "content": [{"type": "text", "text": text}],
        "isError": False,
        "timestamp": second * 1000,
        **more,
    }
    return {"type": "message", "id": id_, "parentId": parent, "timestamp": stamp(second), "message": message}


def entry(type_: str, id_: str, parent: str | None, second: int = 1, **fields: Any) -> dict[str, Any]:
    return {"type": type_, "id": id_, "parentId": parent, "timestamp": stamp(second), **fields}


def write_log(path: Path, entries: list[dict[str, Any]], head: dict[str, Any] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(line(head or header()) + b"".join(line(e) for e in entries))
    return path
