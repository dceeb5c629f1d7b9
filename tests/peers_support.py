"""One picture of a session file, ours and its owner's, and files for both to read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dsh_daemon import SessionManager
from dsh_daemon.client import Client
from tests.peers import Oracle, OracleError, assistant, op, tool_call, tool_result, user
from tests.support import header, line, stamp

Facts = dict[str, Any]
TREE = ("entries", "leafId", "tips", "paths", "labels", "roots", "tree")
CONTEXT = ("name", "contexts")
SETTINGS = {  # our name: the peers'
    "model": "model", "models": "models", "thinkingLevel": "thinkingLevel", "mode": "mode",
    "injectedRules": "injectedTtsrRules",
}  # fmt: skip


def our_view(path: Path) -> Facts:
    """What we make of a file, in the shape of `Oracle.load`."""
    manager = SessionManager.open(path)
    entries = manager.get_entries()
    parents = {entry["parentId"] for entry in entries}
    tips = [entry["id"] for entry in entries if entry["id"] not in parents]
    roots = manager.get_tree()
    return {
        "entries": [{key: entry.get(key) for key in ("id", "type", "parentId")} for entry in entries],
        "leafId": manager.leaf_id,
        "tips": tips,
        "paths": {tip: [entry["id"] for entry in manager.get_branch(tip)] for tip in tips},
        "labels": {entry["id"]: label for entry in entries if (label := manager.get_label(entry["id"])) is not None},
        "roots": [node["entry"]["id"] for node in roots],
        "tree": list(preorder(roots)),
        "name": manager.name,
        "contexts": {tip: manager.build_session_context(tip) for tip in tips},
    }


def preorder(roots: Sequence[Any]) -> Iterator[str]:
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        yield node["entry"]["id"]
        stack += reversed(node["children"])


async def daemon_view(client: Client, session_id: str) -> Facts:
    """The same as a client of the daemon sees it, without the order of the tree: rows begin with the active branch."""

    async def ask(verb: str, **params: Any) -> Any:
        return await client.request(f"session/{verb}", sessionId=session_id, **params)

    state = await ask("open", subscribe=False)
    rows = (await ask("tree", filter="all"))["rows"]
    ids = [row["id"] for row in rows]
    entries = (await ask("entries", ids=ids))["entries"] if ids else []
    tips = [item["entryId"] for item in (await ask("leaves"))["items"]]
    contexts = {tip: await ask("context", entryId=tip) for tip in tips}
    return {
        "entries": [{key: entry.get(key) for key in ("id", "type", "parentId")} for entry in entries],
        "leafId": state["leafId"],
        "tips": tips,
        "paths": {tip: (await ask("path", entryId=tip))["ids"] for tip in tips},
        "labels": {item["entryId"]: item["label"] for item in (await ask("labels"))["items"]},
        "name": state["title"] if state["titleSource"] in {"user", "agent"} else None,
        "contexts": contexts,
    }


def differences(owner: Facts, ours: Facts, *, leave: Sequence[str] = ()) -> list[str]:
    """Where our picture of a file is not its owner's; what is not in `ours`, or is in `leave`, is not compared."""
    if "error" in owner:
        return [f"refused: {owner['error']}"]
    names = dict(zip([e["id"] for e in owner["entries"]], [e["id"] for e in ours["entries"]], strict=False))
    if "tree" not in ours or {e["id"] for e in owner["entries"]} == {e["id"] for e in ours["entries"]}:
        names = {}  # only the ids of version 1 entries are made up, by each reader its own
    owner = _renamed({key: owner[key] for key in (*TREE, *CONTEXT)}, names)
    found: list[str] = []
    for key in (*TREE, "name"):
        if key in ours and key not in leave and (was := _sorted(key, owner[key])) != (own := _sorted(key, ours[key])):
            found.append(f"{key}: {was} != {own}"[:2000])
    for tip, context in owner["contexts"].items() if "contexts" not in leave else ():
        own = ours["contexts"].get(tip, {})
        model = own.get("model")
        own = {**own, "model": model and f"{model['provider']}/{model['modelId']}"}
        for key, theirs in SETTINGS.items():
            if theirs in context and context[theirs] != own.get(key):
                found.append(f"{key} at {tip}: {context[theirs]} != {own.get(key)}")
        if (was := visible(context["messages"])) != (got := visible(own.get("messages", []))):
            pair = next(((a, b) for a, b in zip(was, got, strict=False) if a != b), (len(was), len(got)))
            found.append(f"messages at {tip}: {pair[0]} != {pair[1]}"[:2000])
    return found


def visible(messages: Iterable[Facts]) -> list[Facts]:
    """Messages that are sent, without what omp renders from its archives of compacted history."""
    return [
        {key: value for key, value in message.items() if key not in {"blocks", "images"} and value is not None}
        for message in messages
        if not (message.get("excludeFromContext") or (message["role"] == "assistant" and _is_empty(message)))
    ]


def _is_empty(message: Facts) -> bool:
    return all(block["type"] == "text" and not block["text"].strip() for block in message["content"])


def _sorted(key: str, value: Any) -> Any:
    if key == "entries":
        return sorted(value, key=lambda entry: entry["id"])
    return sorted(value) if key == "tips" else value


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(item, names) for key, item in value.items()}
    return value


def scripts(oracle: Oracle, jobs: dict[Path, list[Facts]]) -> None:
    """`Oracle.script` for many files in one process."""
    for path in jobs:
        path.parent.mkdir(parents=True, exist_ok=True)
    home = next(iter(jobs)).parent
    requests = [{"path": str(path), "cwd": str(path.parent), "ops": ops} for path, ops in jobs.items()]
    for answer in oracle._ask(requests, home):
        if "error" in answer:
            raise OracleError(answer["error"])


class RandomScript:
    """Calls of a peer's SessionManager that make a session of every kind of entry, the same for the same seed."""

    TEXTS = ("plain", "two\nlines", "中文 😀", " \u2028 ", "", "  spaced  out  ", 'quoted "\\" \x7f')

    def __init__(self, peer: str, seed: int) -> None:
        self.peer = peer
        self.random = random.Random(f"{peer}{seed}")
        self.ops: list[Facts] = []
        self.parent: dict[str, str | None] = {}
        self.kind: dict[str, str] = {}
        self.leaf: str | None = None

    def make(self, count: int) -> list[Facts]:
        self.add("appendMessage", user("begin"), kind="user")
        self.add("appendMessage", assistant("answer"), kind="assistant")
        kinds: dict[Callable[[], None], int] = {
            self.turn: 6, self.turn_with_tool: 3, self.broken_turn: 2, self.branch: 4, self.summary: 2, self.label: 3,
            self.name: 1, self.compaction: 2, self.custom: 2, self.settings: 2, self.shell: 1,
        }  # fmt: skip
        kinds |= {self.context_edit: 4, self.system: 1} if self.peer == "pi" else {self.omp_only: 3}
        for make in self.random.choices(list(kinds), list(kinds.values()), k=count):
            make()
        return self.ops

    def add(self, method: str, *args: Any, kind: str = "other", at: Any = ...) -> str:
        name = f"n{len(self.ops)}"
        self.ops.append(op(method, *args, name=name))
        self.parent[name] = self.leaf if at is ... else at
        self.kind[name] = kind
        self.leaf = name
        return name

    def text(self) -> str:
        return self.random.choice(self.TEXTS)

    def path(self) -> list[str]:
        found: list[str] = []
        name = self.leaf
        while name is not None:
            found.append(name)
            name = self.parent[name]
        return found

    def any(self) -> str:
        return self.random.choice(list(self.parent))

    def turn(self) -> None:
        self.add("appendMessage", user(self.text()), kind="user")
        self.add("appendMessage", assistant(self.text()), kind="assistant")

    def turn_with_tool(self) -> None:
        call = tool_call(f"c{len(self.ops)}", "bash", command=self.text())
        self.add("appendMessage", assistant(self.text(), call), kind="assistant")
        if self.random.random() < 0.7:
            result = tool_result(call["id"], "bash", self.text(), is_error=self.random.random() < 0.3)
            self.add("appendMessage", result, kind="toolResult")

    def broken_turn(self) -> None:
        calls = [tool_call(f"c{len(self.ops)}", "bash", command="x")] if self.random.random() < 0.5 else []
        message = assistant(self.text(), *calls, stop=self.random.choice(("error", "aborted")))
        message["content"][:0] = [{"type": "thinking", "thinking": "hm", "thinkingSignature": "s"}]
        message["content"].append({"type": "redactedThinking", "data": "x"})
        self.add("appendMessage", {**message, "errorMessage": "it broke"}, kind="assistant")
        if calls and self.random.random() < 0.7:
            self.add("appendMessage", tool_result(calls[0]["id"], "bash", "skipped", is_error=True), kind="toolResult")
        if self.peer == "omp" and self.random.random() < 0.5:
            self.add("appendCustomMessageEntry", "interrupted-thinking", "it was thinking", False)
        if self.peer == "omp":
            retried = {"retryRecovery": {"note": "again"}} if self.random.random() < 0.5 else {}
            self.add("appendMessage", {**assistant("another try"), **retried}, kind="assistant")

    def branch(self) -> None:
        if self.random.random() < 0.1:
            self.ops.append(op("resetLeaf"))
            self.leaf = None
        else:
            self.leaf = self.any()
            self.ops.append(op("branch", f"${self.leaf}"))

    def summary(self) -> None:
        at = None if self.random.random() < 0.1 else self.any()
        self.add("branchWithSummary", at and f"${at}", self.text(), {"readFiles": [self.text()]}, True, at=at)

    def label(self) -> None:
        self.add("appendLabelChange", f"${self.any()}", self.random.choice(("here", "there", "中文", "", None)))

    def name(self) -> None:
        title = self.text()
        if self.peer == "pi":
            self.add("appendSessionInfo", title)
        else:
            self.ops.append(op("setSessionName", title, self.random.choice(("user", "auto"))))
            # The entry that this appends has no name here; the next one hangs from it.

    def compaction(self) -> None:
        path = self.path()
        first = f"${self.random.choice(path)}" if path and self.random.random() < 0.7 else f"${self.any()}"
        if self.peer == "pi":
            self.add(
                "appendCompaction", self.text(), self.random.choice((first, first, None)), 12_345, {"readFiles": []}
            )
        else:
            self.add("appendCompaction", self.text(), "in short", first, 12_345, {"tokensAfter": 99, "method": "soft"})

    def custom(self) -> None:
        self.add("appendCustomEntry", "state", {"n": self.text()})
        content: Any = self.random.choice((self.text(), [{"type": "text", "text": self.text()}]))
        self.add("appendCustomMessageEntry", "note", content, self.random.random() < 0.5, {"why": 1}, kind="custom")

    def settings(self) -> None:
        self.add("appendThinkingLevelChange", self.random.choice(("low", "high", "off")))
        model = f"mock-{self.random.randrange(9)}"
        if self.peer == "pi":
            self.add("appendModelChange", "mock", model)
        else:
            self.add("appendModelChange", f"mock/{model}", self.random.choice(("default", "smol", None)))

    def shell(self) -> None:
        message = {"role": "bashExecution", "command": "echo x", "output": "x\n", "exitCode": 0, "cancelled": False}
        hidden = self.random.random() < 0.5
        more = {"truncated": False, "timestamp": 5, **({"excludeFromContext": True} if hidden else {})}
        self.add("appendMessage", {**message, **more})

    def context_edit(self) -> None:
        known = {"user", "assistant", "toolResult", "custom"}
        if targets := [name for name in self.path() if self.kind[name] in known]:
            replacement = self.random.choice(
                (None, {"content": "edited"}, {"content": [{"type": "text", "text": "it"}]})
            )
            self.add("appendContextEdit", f"${self.random.choice(targets)}", replacement)

    def system(self) -> None:
        self.add("appendMessage", {"role": "system", "content": "", "sections": {"a": self.text()}, "timestamp": 7})

    def omp_only(self) -> None:
        method, *args = self.random.choice((
            ("appendResetBoundary",),
            ("appendModeChange", "plan", {"planFile": "x"}),
            ("appendModeChange", "none"),
            ("appendTtsrInjection", ["rule-a", self.text()]),
            ("appendCredentialPin", "mock", "abc"),
            ("appendCustomMessageEntry", self.random.choice(("vibe-mode-context", "prewalk-plan")), "shown only", True),
        ))  # fmt: skip
        self.add(method, *args)


def random_log(seed: int, *, fragments: bool = True) -> bytes:
    """A version 3 log whose times, branches and line order no program would write: children before parents too.

    `fragments`: with pieces of records among the lines that are no entries; omp loses the record behind some.
    """
    rng = random.Random(seed)
    ids = [f"{n:08x}" for n in rng.sample(range(1 << 32), 60)]
    records: list[Facts] = []
    for n, id_ in enumerate(ids):
        parent = rng.choice(ids[:n]) if n and rng.random() < 0.6 else ids[n - 1] if n else None
        parent = f"lost{n:04}" if rng.random() < 0.03 else parent
        base = {"id": id_, "parentId": parent, "timestamp": stamp(rng.randrange(9))}
        message = user(f"prompt {n}") if rng.random() < 0.5 else assistant(f"answer {n}")
        records.append(rng.choice((
            {"type": "message", **base, "message": message},
            {"type": "message", **base, "message": message},
            {"type": "label", **base, "targetId": rng.choice([*ids, "nowhere"]), "label": rng.choice(("a", "b", ""))},
            {"type": "branch_summary", **base, "fromId": rng.choice(ids), "summary": rng.choice(("left", ""))},
            {"type": "from_the_future", **base, "payload": {"n": n}},
        )))  # fmt: skip
    if seed % 2:
        rng.shuffle(records)
    lines = [line(record) for record in records]
    broken = [b"\n", b"\0\0\0\n", b"not json\n", *([b'{"type":"message","id":\n'] if fragments else [])]
    for item in rng.sample(broken, 3):
        lines.insert(rng.randrange(len(lines)), item)
    roots = {record["id"] for record in records if record["parentId"] not in ids}
    first = header(f"random-{seed}")
    return line(first) + b"".join(_with_time(item, roots) for item in lines)


def _with_time(item: bytes, roots: set[str]) -> bytes:
    """Roots all at one time: the peers leave them in file order, we sort them as we sort other siblings."""
    try:
        record = json.loads(item)
    except ValueError:
        return item
    if not isinstance(record, dict) or record["id"] not in roots:
        return item
    return line({**record, "timestamp": stamp(0)})
