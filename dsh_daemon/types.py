"""The shapes that the core hands out, named and spelled as on the wire (protocol-spec/README.md, Types)."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Format = Literal["native", "pi", "omp", "dsh", "claude", "codex"]
Tail = Literal["done", "open", "interrupted", "aborted", "error", "pendingTool", "empty"]
Health = Literal["ok", "recovered", "damaged", "headerless", "empty", "unsupported", "unreadable"]
TitleSource = Literal["user", "agent", "firstMessage", "id"]
FilterMode = Literal["default", "no-tools", "user-only", "labeled-only", "all"]
Kind = Literal[
    "user", "assistant", "tool", "bash", "summary", "compaction", "custom", "label",
    "model", "thinking", "mode", "title", "turn", "step", "system", "other",
]  # fmt: skip
RowFlag = Literal["error", "aborted", "dangling", "orphan", "interrupted", "shadowed", "inherited", "unknown"]

Entry = dict[str, Any]


class Live(TypedDict):
    client: str
    pid: NotRequired[int]
    status: Literal["idle", "running"]
    certain: bool


class Can(TypedDict):
    append: bool
    navigate: bool
    branch: bool
    fork: bool
    label: bool
    rename: bool
    resume: bool
    launch: bool
    summarize: bool


class SessionInfo(TypedDict):
    sessionId: str
    path: str | None
    format: Format
    version: int
    cwd: str | None
    cwdExists: bool
    origin: NotRequired[Literal["subagent"]]
    title: str
    titleSource: TitleSource
    createdAt: str | None
    lastActivityAt: str | None
    sizeBytes: int
    scanned: bool
    entryCount: NotRequired[int]
    messageCount: NotRequired[int]
    diagnosticCount: NotRequired[int]
    model: NotRequired[str]
    costTotal: NotRequired[float]
    tail: Tail
    parentSessionId: str | None
    forkPoint: NotRequired[str]
    forkText: NotRequired[str]
    archived: bool
    pinned: bool
    health: Health
    live: Live | None
    can: Can


class OpenTurn(TypedDict):
    turn: int
    entryId: str


class SessionState(SessionInfo):
    epoch: str
    revision: int
    leafId: str | None
    lastEntryId: str | None
    openTurn: OpenTurn | None
    nextTurn: int
    thinkingLevel: str
    mode: str


class Row(TypedDict):
    id: str
    parentId: str | None
    depth: int
    gutter: str
    kind: Kind
    type: str
    role: NotRequired[str]
    text: str
    label: NotRequired[str]
    labelAt: NotRequired[str | None]
    timestamp: str | None
    active: bool
    leaf: bool
    children: int
    hidden: NotRequired[int]
    collapsed: NotRequired[Literal[True]]
    sessionId: NotRequired[str]
    flags: NotRequired[list[RowFlag]]
    toolName: NotRequired[str]
    matches: NotRequired[list[list[int]]]


class Diagnostic(TypedDict):
    code: str
    severity: Literal["info", "warning", "error"]
    line: NotRequired[int]
    offset: NotRequired[int]
    length: NotRequired[int]
    entryId: NotRequired[str]
    expected: NotRequired[int]  # of seq_gap: the number that was due, and the one that came
    got: NotRequired[int]
    message: str


class EntryRef(TypedDict):
    id: str
    parentId: str | None
    type: str


class MethodCause(TypedDict):
    method: str
    client: str


class Change(TypedDict):
    sessionId: str
    epoch: str
    fromRevision: int
    revision: int
    cause: MethodCause | Literal["external"]
    entries: list[EntryRef]
    labels: NotRequired[dict[str, str | None]]
    leafId: str | None
    openTurn: OpenTurn | None
    info: NotRequired[dict[str, Any]]
    resync: NotRequired[Literal[True]]
