"""What a client may send (pydantic, refused when wrong) and what it gets (TypedDict, never validated)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Self, TypedDict, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema

from dsh_daemon.types import (
    Change,
    Diagnostic,
    Entry,
    FilterMode,
    Format,
    Row,
    SessionInfo,
    SessionState,
    Tail,
)

MAX_ROWS = 5000
MAX_IDS = 200
TEXT_LIMIT = 240
MAX_TEXT = 10_000
MAX_WAIT_MS = 600_000
MAX_TITLE = 1_000  # code points; also of a label


def _integral(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("must not be null")
    return value


def _table(value: Any) -> Any:
    return {} if value == [] else value  # how Lua encodes an empty table


T = TypeVar("T")
# May be left out; null says something only where the protocol gives it a meaning.
Opt = Annotated[T | SkipJsonSchema[None], BeforeValidator(_not_null)]
Int = Annotated[int, BeforeValidator(_integral)]  # Lua and JavaScript have one kind of number
Count = Annotated[int, BeforeValidator(_integral), Field(ge=0)]
Few = Annotated[int, BeforeValidator(_integral), Field(ge=0, le=MAX_IDS)]
Limit = Annotated[int, BeforeValidator(_integral), Field(ge=1, le=10_000)]
Positive = Annotated[int, BeforeValidator(_integral), Field(ge=1)]
Id = Annotated[str, Field(min_length=1, max_length=4096)]
# What a client chooses becomes a file name.
NewSessionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$")]
Title = Annotated[str, Field(max_length=MAX_TITLE)]
Words = Annotated[str, Field(max_length=4096)]
Path = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
Folder = Annotated[str, Field(max_length=4096, pattern=r"^/[^\x00]*$")]


class Wire(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=False, extra="forbid", frozen=True, strict=True, defer_build=True
    )


class Params(Wire):
    work_done_token: str | Int | None = None


class SessionParams(Params):
    session_id: Id


# --- lifecycle


class ClientInfo(Wire):
    model_config = ConfigDict(extra="ignore")

    name: str
    version: str | None = None


class InitializationOptions(Wire):
    model_config = ConfigDict(extra="ignore")

    protocol_version: Int = 1
    token: str | None = None
    hooks: list[str] = []
    events: list[str] = []
    summarizer: bool = False
    read_only: bool = False


class InitializeParams(Params):
    """LSP's, of which we read little; an editor may send anything else beside."""

    model_config = ConfigDict(extra="ignore")

    process_id: Int | None = None
    client_info: ClientInfo | None = None
    initialization_options: Annotated[InitializationOptions | None, BeforeValidator(_table)] = None


class DaemonStopParams(Params):
    drain: bool = True
    force: bool = False


class DaemonDoctorParams(Params):
    fix: bool = False


class DaemonIdentity(TypedDict):
    pid: int
    startedAt: str
    build: str


class LimitsInfo(TypedDict):
    maxMessageBytes: int
    maxHeaderBytes: int
    maxBacklogBytes: int
    maxRows: int
    maxIds: int
    textLimit: int


class DshCapabilities(TypedDict):
    protocolVersion: int
    methods: list[str]
    formats: list[Format]
    limits: LimitsInfo
    hooks: list[str]
    summarizer: bool
    daemon: DaemonIdentity


class Experimental(TypedDict):
    dsh: DshCapabilities


class Capabilities(TypedDict):
    experimental: Experimental


class ServerInfo(TypedDict):
    name: str
    version: str


class InitializeResult(TypedDict):
    capabilities: Capabilities
    serverInfo: ServerInfo


class PingResult(TypedDict):
    pid: int
    version: str
    protocolVersion: int


class ConnectionInfo(TypedDict):
    id: str
    name: str
    pid: NotRequired[int]
    subscriptions: int  # sessions followed, and one for the catalogue


class RootInfo(TypedDict):
    path: str
    format: Format | Literal["any"]
    origin: Literal["native", "default", "environment", "config", "opened"]
    exists: bool
    readable: bool
    sessions: int


class WatchInfo(TypedDict):
    mode: Literal["native", "polling"]
    reason: NotRequired[str]


class IndexInfo(TypedDict):
    state: Literal["idle", "building"]
    indexed: int
    total: int


class TcpInfo(TypedDict):
    host: str
    port: int
    tokenFile: str


class StatusResult(TypedDict):
    state: Literal["ready", "draining"]
    pid: int
    version: str
    protocolVersion: int
    startedAt: str
    uptimeMs: int
    connections: list[ConnectionInfo]
    openSessions: int
    memoryBytes: int
    roots: list[RootInfo]
    watch: WatchInfo
    index: IndexInfo
    logFile: str | None
    socketPath: str | None
    tcp: NotRequired[TcpInfo]


class Problem(TypedDict):
    path: str
    code: str
    detail: str
    fixable: bool


class Fixed(TypedDict):
    path: str
    code: str
    detail: str


class DoctorResult(TypedDict):
    checked: int
    problems: list[Problem]
    fixed: list[Fixed]


class Nothing(TypedDict):
    """An empty object."""


# --- catalog


class Filters(Params):
    cwd: Opt[Folder] = None
    scope: Opt[Literal["exact", "subtree", "repo", "all"]] = None
    query: Opt[Words] = None
    formats: Opt[list[Format]] = None
    tail: Opt[list[Tail]] = None
    named: Opt[bool] = None
    archived: bool = False
    subagents: bool = False
    sort: Literal["lastActivity", "created", "title", "size"] = "lastActivity"
    order: Literal["desc", "asc"] = "desc"
    group: Literal["none", "family"] = "none"
    limit: Opt[Limit] = None

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.cwd is None and self.scope not in {None, "all"}:
            raise ValueError(f'scope "{self.scope}" needs cwd')
        return self


class SessionListParams(Filters):
    cursor: Opt[str] = None


class CatalogSubscribeParams(Filters):
    pass


class CatalogUnsubscribeParams(Params):
    pass


class SessionResolveParams(Params):
    ref: str
    cwd: Opt[Folder] = None


class SessionCreateParams(Params):
    cwd: Folder
    session_id: Opt[NewSessionId] = None
    title: Opt[Title] = None
    persist: bool = True
    parent_session_id: Opt[Id] = None


class SessionRenameParams(SessionParams):
    title: Title | None


class SessionArchiveParams(SessionParams):
    on: bool


class SessionPinParams(SessionParams):
    on: bool


class SessionDeleteParams(SessionParams):
    pass


class SessionFamilyParams(SessionParams):
    pass


class SessionDraftParams(SessionParams):
    """`text` sent = stored (null = none); omitted = read."""

    text: str | None = None


class Skipped(TypedDict):
    path: str
    reason: str


class ListResult(TypedDict):
    items: list[SessionInfo]
    total: int
    nextCursor: NotRequired[str]
    skipped: NotRequired[list[Skipped]]  # whole, with the first page
    complete: bool


class ResolveResult(TypedDict):
    sessionId: str
    path: str | None


class RenameResult(TypedDict):
    stored: Literal["log", "state"]
    revision: int


class DeleteResult(TypedDict):
    trashPath: str | None


class FamilyMember(TypedDict):
    sessionId: str
    parentSessionId: str | None
    forkPoint: NotRequired[str]


class FamilyResult(TypedDict):
    root: str
    ancestors: list[str]
    sessions: list[FamilyMember]
    complete: bool


class DraftResult(TypedDict):
    text: str | None


class CatalogChanged(TypedDict):
    upserts: list[SessionInfo]
    removed: list[str]


# --- reading a session


class Since(Wire):
    epoch: str
    revision: Int


class SessionOpenParams(Params):
    session_id: Opt[Id] = None
    path: Opt[Path] = None
    subscribe: bool = True
    since: Opt[Since] = None

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        if (self.session_id is None) == (self.path is None):
            raise ValueError("exactly one of sessionId and path is needed")
        return self


class SessionCloseParams(SessionParams):
    pass


class SessionTreeParams(SessionParams):
    filter: FilterMode = "default"
    query: Opt[Words] = None
    at: Opt[Id] = None
    collapsed: list[Id] = []
    family: bool = False
    start: Count = 0
    count: Annotated[int, BeforeValidator(_integral), Field(ge=0, le=MAX_ROWS)] = 1000
    around: Opt[Id] = None
    text_limit: Annotated[int, BeforeValidator(_integral), Field(ge=1, le=MAX_TEXT)] = TEXT_LIMIT


class SessionLeavesParams(SessionParams):
    pass


class SessionEntriesParams(SessionParams):
    ids: Opt[Annotated[list[Id], Field(max_length=MAX_IDS)]] = None
    around: Opt[Id] = None
    before: Opt[Few] = None
    after: Opt[Few] = None
    since: Opt[Since] = None
    max_bytes: Opt[Annotated[int, BeforeValidator(_integral), Field(ge=1024)]] = None

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if sum(choice is not None for choice in (self.ids, self.around, self.since)) != 1:
            raise ValueError("exactly one of ids, around and since is needed")
        if self.around is None and (self.before is not None or self.after is not None):
            raise ValueError("before and after go with around")
        return self


class SessionPathParams(SessionParams):
    entry_id: Opt[Id] = None


class SessionChildrenParams(SessionParams):
    entry_id: Id | None


class SessionContextParams(SessionParams):
    entry_id: Opt[Id] = None
    format: Literal["agent", "openai", "anthropic"] = "agent"


class SessionLabelsParams(SessionParams):
    pass


class OpenResult(SessionState):
    changes: NotRequired[list[Change]]
    diagnostics: list[Diagnostic]


class TreeResult(TypedDict):
    epoch: str
    revision: int
    leafId: str | None
    total: int
    start: int
    rows: list[Row]
    selected: NotRequired[int]


class LeafItem(TypedDict):
    entryId: str
    timestamp: str | None
    text: str
    label: NotRequired[str]
    entries: int
    active: bool


class LeavesResult(TypedDict):
    items: list[LeafItem]


class EntriesResult(TypedDict):
    entries: list[Entry]
    missing: list[str]


class IdsResult(TypedDict):
    ids: list[str]


class ContextResult(TypedDict):
    messages: list[dict[str, Any]]
    system: NotRequired[str]  # format "anthropic", which does not take it as a message
    model: NotRequired[dict[str, Any]]
    models: dict[str, Any]
    thinkingLevel: str
    mode: str
    injectedRules: list[str]
    sources: list[list[str]]
    compactedFrom: NotRequired[str]


class SessionRequestParams(SessionParams):
    """`entry_id` names the path: the step is looked for from there upwards."""

    turn: Positive
    step: Positive
    entry_id: Opt[Id] = None


class RequestHeader(TypedDict):
    config: dict[str, Any]
    system: NotRequired[Any]
    tools: NotRequired[list[Any]]


class RequestResult(TypedDict):
    header: RequestHeader
    messages: list[dict[str, Any]]
    sources: list[list[str]]


class SessionTurnsParams(SessionParams):
    entry_id: Opt[Id] = None


class TurnItem(TypedDict):
    turn: int
    startId: str
    endId: str | None
    boundary: str | None  # where a fork of it begins; null while it is open
    reason: dict[str, Any] | None
    steps: int
    text: str


class TurnsResult(TypedDict):
    turns: list[TurnItem]
    derived: bool


class SessionTranscriptParams(SessionParams):
    entry_id: Opt[Id] = None
    format: Literal["markdown", "html", "jsonl"] = "markdown"


class TranscriptResult(TypedDict):
    text: str


class SessionStatsParams(SessionParams):
    pass


class Tokens(TypedDict):
    input: int
    output: int
    cacheRead: int
    cacheWrite: int


class ModelSums(TypedDict):
    tokens: Tokens
    cost: float


class Sums(TypedDict):
    turns: int
    messages: int
    tokens: Tokens
    cost: float
    models: dict[str, ModelSums]


class StatsResult(Sums):
    activePath: Sums
    inherited: Sums


class LabelItem(TypedDict):
    entryId: str
    label: str
    timestamp: str | None


class LabelsResult(TypedDict):
    items: list[LabelItem]


class SessionClosed(TypedDict):
    sessionId: str
    reason: Literal["deleted", "moved", "replaced"]
    path: NotRequired[str]


# --- changing a session


if TYPE_CHECKING:
    NewEntry = dict[str, Any]
else:
    from typing import Required

    from typing_extensions import TypedDict as CheckedDict  # pydantic takes none but this one before Python 3.12

    class NewEntry(CheckedDict):
        """An entry to append: any fields beside the type."""

        __pydantic_config__ = ConfigDict(extra="allow", strict=True)

        type: Annotated[str, Field(min_length=1)]


class SessionAppendParams(SessionParams):
    """`parent_id` omitted = the leaf, null = a new root; what an entry holds is checked by the log's format."""

    entries: Annotated[list[NewEntry], Field(min_length=1, max_length=10_000)]
    parent_id: Id | None = None
    expected_leaf_id: Id | None = None
    force: bool = False


class Summary(Wire):
    text: str
    details: Any = None
    from_extension: Opt[bool] = None


class SessionMoveLeafParams(SessionParams):
    entry_id: Id | None
    summary: Opt[Summary] = None
    expected_leaf_id: Id | None = None


class Summarize(Wire):
    instructions: Opt[str] = None
    replace: bool = False


class SessionNavigateParams(SessionParams):
    target_id: Id | None = None
    summarize: Annotated[bool | Summarize, BeforeValidator(_table)] = False
    label: Opt[Title] = None
    preview: bool = False
    back: bool = False
    expected_leaf_id: Id | None = None

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if ("target_id" in self.model_fields_set) == self.back:
            raise ValueError("exactly one of targetId and back: true is needed")
        return self


class SessionBranchParams(SessionParams):
    entry_id: Opt[Id] = None
    position: Literal["before", "at"] = "before"
    cwd: Opt[Folder] = None
    child_session_id: Opt[NewSessionId] = None
    force: bool = False

    @model_validator(mode="after")
    def _user_message(self) -> Self:
        if self.position == "before" and self.entry_id is None:
            raise ValueError('entryId is needed (position "before" wants a user message)')
        return self


class SessionLabelParams(SessionParams):
    entry_id: Id
    label: Title | None
    expected_leaf_id: Id | None = None


class AppendResult(TypedDict):
    ids: list[str]
    leafId: str | None
    revision: int


class MoveLeafResult(TypedDict):
    oldLeafId: str | None
    leafId: str | None
    summaryEntryId: NotRequired[str]
    revision: int


class NavigateResult(TypedDict):
    outcome: Literal["moved", "unchanged", "cancelled", "refused", "preview"]
    oldLeafId: str | None
    leafId: str | None
    commonAncestorId: str | None
    abandoned: int
    editorText: NotRequired[str]
    editorImages: NotRequired[list[Any]]
    summaryEntryId: NotRequired[str]
    refusedBy: NotRequired[str]
    revision: int


class BranchResult(TypedDict):
    outcome: Literal["branched", "cancelled", "refused"]
    session: SessionInfo
    path: str | None
    editorText: NotRequired[str]
    editorImages: NotRequired[list[Any]]
    previousSessionId: str


class LabelResult(TypedDict):
    stored: Literal["log", "state"]
    labelEntryId: NotRequired[str]
    leafId: str | None
    revision: int


class SessionForkParams(SessionParams):
    """`boundary`: an entry, or its place on the active path counted from 0; the fork takes it along."""

    boundary: Opt[Id | Count] = None
    child_session_id: Opt[NewSessionId] = None
    cwd: Opt[Folder] = None
    force: bool = False


class ForkResult(TypedDict):
    outcome: Literal["forked", "cancelled", "refused"]
    session: SessionInfo
    seedLength: int
    boundary: str | None


class SessionLaunchParams(SessionParams):
    action: Literal["resume", "fork"] = "resume"
    keep_leaf: bool = True


class LaunchResult(TypedDict):
    argv: list[str]
    cwd: str | None
    env: NotRequired[dict[str, str]]
    pinnedEntryId: NotRequired[str]


# --- turns, steps and the agent of a session


if TYPE_CHECKING:
    Block = dict[str, Any]
    Header = dict[str, Any]
    Reason = dict[str, Any]
else:

    class Block(CheckedDict):
        """A content block: any fields beside the type."""

        __pydantic_config__ = ConfigDict(extra="allow", strict=True)

        type: Annotated[str, Field(min_length=1)]

    class Header(CheckedDict, total=False):
        """The envelope of a model request."""

        __pydantic_config__ = ConfigDict(extra="allow", strict=True)

        config: Required[dict[str, Any]]
        system: Any
        tools: list[Any]

    class Reason(CheckedDict):
        """How a turn ended: any fields beside the kind."""

        __pydantic_config__ = ConfigDict(extra="allow", strict=True)

        kind: Literal["completed", "aborted", "error", "blocked", "max-tokens"]


Content = str | list[Block]


class SessionResumeParams(SessionParams):
    takeover: bool = False


class Repair(TypedDict):
    entryId: str
    kind: Literal["toolResult", "stepEnd", "turnEnd"]
    callId: NotRequired[str]
    code: NotRequired[Literal["TOOL_NOT_STARTED", "TOOL_OUTCOME_UNKNOWN"]]


class ResumeResult(SessionState):
    repaired: list[Repair]


class SessionReleaseParams(SessionParams):
    pass


class SessionAbortParams(SessionParams):
    pass


class AbortResult(TypedDict):
    aborted: Literal["turn"] | None


class TurnStartParams(SessionParams):
    message_id: Opt[Id] = None
    content: Opt[Content] = None

    @model_validator(mode="after")
    def _one_message(self) -> Self:
        if (self.message_id is None) == (self.content is None):
            raise ValueError("exactly one of messageId and content is needed")
        return self


class TurnStartResult(TypedDict):
    turn: int
    entryId: str  # of the user message
    revision: int


class StepStartParams(SessionParams):
    turn: Positive
    header: Opt[Header] = None


class StepStartResult(TypedDict):
    step: int
    entryId: str
    revision: int


class StepEndParams(SessionParams):
    turn: Positive
    step: Positive
    outcome: Literal["completed", "error", "aborted"] = "completed"


class TurnEndParams(SessionParams):
    turn: Positive
    reason: Reason


class EndResult(TypedDict):
    revision: int


class AgentSendParams(SessionParams):
    content: Content
    mode: Literal["queue", "steer"] = "queue"


class AgentSendResult(TypedDict):
    messageId: str


class AgentClaimParams(SessionParams):
    """`wait_ms`: how long to wait for a message where there is none."""

    wait_ms: Annotated[int, BeforeValidator(_integral), Field(ge=0, le=MAX_WAIT_MS)] = 0
    mode: Opt[Literal["queue", "steer"]] = None


# `from` is the name of the client that sent it.
InboxMessage = TypedDict(
    "InboxMessage",
    {"messageId": str, "content": Any, "mode": Literal["queue", "steer"], "from": str},
)


class AgentClaimResult(TypedDict):
    message: InboxMessage | None


class AgentInbox(TypedDict):
    sessionId: str
    messages: list[InboxMessage]


class AgentDelta(TypedDict):
    sessionId: str
    turn: int
    step: int
    chunk: dict[str, Any]
    skipped: NotRequired[int]  # deltas left out just before this one, for a follower that reads slowly


class AgentStatus(TypedDict):
    sessionId: str
    status: Literal["idle", "running"]
    detail: NotRequired[str]


class AbortRequested(TypedDict):
    sessionId: str
    turn: int


class AgentLost(TypedDict):
    sessionId: str
    by: str


class AgentDeltaParams(SessionParams):
    turn: Positive
    step: Positive
    chunk: dict[str, Any]


class AgentStatusParams(SessionParams):
    status: Literal["idle", "running"]
    detail: Opt[Words] = None


# --- both ways


class CancelParams(TypedDict):
    id: int | str


class ProgressParams(TypedDict):
    token: int | str
    value: dict[str, Any]
