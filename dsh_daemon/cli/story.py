"""The sample sessions of `dshd demo`, written as pi and omp write theirs, and what its own agent does."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

LOGIN = "019cadd3-8790-7c41-9d0e-5f2a61b8c3d4"
READ, FIX, DONE, REFACTOR, BROKEN = "9a3c41d7", "40ab6c1e", "f25a90b7", "0c9e2a58", "d4617b3f"

_NO_COST = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}
_USAGE = {"input": 1200, "output": 80, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 1280, "cost": _NO_COST}


class Work(NamedTuple):
    """What the agent of the demo does for a prompt; a tool without a result never comes back."""

    prompt: str
    calls: tuple[tuple[str, dict[str, str], str | None], ...]
    answer: str


BREAKS = Work(
    "What of this breaks with Vue 3?",
    (("read", {"path": "package.json"}, '{"dependencies":{"vue":"2.7"}}'),),
    "The router, the store and two plugins.",
)
ROUTER = Work(
    "Migrate the router",
    (("edit", {"path": "src/router.ts"}, "Edited"), ("bash", {"command": "npm test"}, "38 passed")),
    "The router is done; all 38 tests pass.",
)
REST = Work("Now all the rest", (("bash", {"command": "npx vue-codemod src"}, None),), "")
LOOK = Work(
    "See what the codemod did before it was cut off",
    (("bash", {"command": "git status --short"}, " M src/store.ts"),),
    "One file of 61; I run it again for the others.",
)
COMPAT = Work(
    "The conservative way: @vue/compat first",
    (("edit", {"path": "package.json"}, "Edited"),),
    "It runs in compat mode; nothing else had to change.",
)
WORKS = {work.prompt: work for work in (BREAKS, ROUTER, REST, LOOK, COMPAT)}


def stamp(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Log:
    """A session file in the making: each entry hangs from the one before unless it names its parent."""

    def __init__(self, session_id: str, cwd: str, began: datetime) -> None:
        self.session_id = session_id
        self.began = self.clock = began
        self.lines: list[dict[str, Any]] = [
            {"type": "session", "version": 3, "id": session_id, "timestamp": stamp(began), "cwd": cwd},
        ]
        self.last: str | None = None

    def add(self, type_: str, id_: str | None = None, parent: str | None = None, **fields: Any) -> str:
        self.clock += timedelta(seconds=20)
        id_ = id_ or sha256(f"{self.session_id} {len(self.lines)}".encode()).hexdigest()[:8]
        base = {"type": type_, "id": id_, "parentId": parent or self.last, "timestamp": stamp(self.clock)}
        self.lines.append({**base, **fields})
        self.last = id_
        return id_

    def message(
        self, role: str, content: list[dict[str, Any]], id_: str | None, parent: str | None, **fields: Any
    ) -> str:
        time = int(self.clock.timestamp() * 1000)
        return self.add("message", id_, parent, message={"role": role, "content": content, **fields, "timestamp": time})

    def user(self, text: str, id_: str | None = None, parent: str | None = None) -> str:
        return self.message("user", [{"type": "text", "text": text}], id_, parent)

    def assistant(self, text: str, id_: str | None = None, parent: str | None = None) -> str:
        return self._answer([{"type": "text", "text": text}], "stop", id_, parent)

    def tool(self, name: str, result: str, *, parent: str | None = None, error: bool = False, **arguments: str) -> str:
        """A call and its result."""
        call = self.call(name, parent, **arguments)
        content = [{"type": "text", "text": result}]
        return self.message("toolResult", content, None, None, toolCallId=call, toolName=name, isError=error)

    def call(self, name: str, parent: str | None = None, **arguments: str) -> str:
        call = f"call_{len(self.lines)}"
        self._answer([{"type": "toolCall", "id": call, "name": name, "arguments": arguments}], "toolUse", None, parent)
        return call

    def _answer(self, content: list[dict[str, Any]], stop: str, id_: str | None, parent: str | None) -> str:
        about = {"api": "anthropic-messages", "provider": "anthropic", "model": "claude-sonnet-4-5"}
        return self.message("assistant", content, id_, parent, **about, usage=_USAGE, stopReason=stop)

    def write(self, folder: Path, slot: bytes = b"") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        name = stamp(self.began).replace(":", "-").replace(".", "-")
        path = folder / f"{name}_{self.session_id}.jsonl"
        body = (json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in self.lines)
        path.write_bytes(slot + "".join(body).encode())
        return path


def title_slot(title: str, when: datetime) -> bytes:
    """Make omp's first line: 256 bytes, so that it can be written again in place."""
    head = (
        json.dumps({"type": "title", "v": 1, "title": title, "source": "user", "updatedAt": stamp(when)})[:-1]
        + ', "pad": "'
    )
    return head.encode() + b" " * (256 - len(head) - 3) + b'"}\n'


def write_sessions(pi: Path, omp: Path, cwd: str) -> Path:
    """Write three sessions below the roots of two agents; the path of the main one, which pi wrote."""
    now = datetime.now(UTC)
    folder = "--" + cwd.strip("/").replace("/", "-") + "--"

    dark = Log("019ca1e0-52b4-7d0a-8a11-30c5d2ef9b07", cwd, now - timedelta(days=1, hours=3))
    dark.add("model_change", model="anthropic/claude-sonnet-4-5", resolvedModelIsFallback=False)
    dark.user("Add a dark mode that follows the system")
    dark.tool("edit", "Edited src/theme.css", path="src/theme.css")
    dark.assistant("The page follows prefers-color-scheme now.")
    dark.write(omp / folder, title_slot("Add a dark mode", dark.clock))

    slow = Log("019c97c2-11f0-7b3e-b6d5-8e40a7c1f2aa", cwd, now - timedelta(days=3))
    slow.user("Why does the test suite take four minutes?")
    slow.tool("bash", "241 passed in 238.20s", command="npm test -- --durations")
    slow.assistant("One fixture starts a browser for each test. I will share it.")
    slow.call("edit", path="test/browser.ts")
    slow.write(pi / folder)

    return _login(cwd, now - timedelta(hours=2, minutes=10)).write(pi / folder)


def _login(cwd: str, began: datetime) -> Log:
    log = Log(LOGIN, cwd, began)
    log.add("model_change", provider="anthropic", modelId="claude-sonnet-4-5")
    log.user("Find why the redirect drops the query string", READ)
    log.tool("read", "export function back(url: URL) {\n  return redirect(url.pathname)\n}", path="src/auth/login.ts")
    log.assistant("The handler rebuilds the URL from pathname only; the query is lost.")
    log.add("session_info", name="Fix the login redirect")
    log.user("Fix it and add a test", FIX)
    log.user("Try the conservative way: keep the old handler", parent=FIX)
    log.tool("edit", "Edited src/auth/compat.ts", path="src/auth/compat.ts")
    log.assistant("A wrapper keeps the query; the old handler is untouched.")
    log.tool("edit", "Edited src/auth/login.ts", parent=FIX, path="src/auth/login.ts")
    log.tool("bash", "12 passed", command="npm test -- login")
    log.assistant("All 12 tests pass.", DONE)
    log.user("Now refactor the handler", REFACTOR)
    log.tool("edit", "Edited src/auth/login.ts", path="src/auth/login.ts")
    log.tool("bash", "3 failed, 9 passed", error=True, command="npm test -- login")
    log.assistant("Three tests fail: the new handler is called twice.", BROKEN)
    return log


def append_as_pi(path: Path, leaf: str) -> list[str]:
    """Append a prompt and its answer below `leaf`, as a pi that was started now does; their ids."""
    log = Log(LOGIN, "", datetime.now(UTC) - timedelta(minutes=1))
    log.lines.clear()
    log.last = leaf
    ids = [
        log.user("Refactor the parsing only", "c41e07ba"),
        log.assistant("Parsing is its own function; all tests pass.", "ee93d5f0"),
    ]
    with path.open("ab") as file:
        for line in log.lines:
            file.write((json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
    return ids
