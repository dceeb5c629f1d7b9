"""What a client may send (pydantic, refused when wrong) and what it gets (TypedDict, never validated)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, Self, TypedDict, TypeVar, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema

from dsh_daemon.types import (
    Change,
    Diagnostic,
    Entry,
    FilterMode,
    Format,
    Kind,
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


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be blank")
    return value


def _table(value: Any) -> Any:
    return {} if value == [] else value  # how Lua encodes an empty table


def _object(value: Any) -> Any:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _time(value: str) -> str:
    datetime.fromisoformat(value)
    return value


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
NotBlank = Annotated[str, Field(json_schema_extra={"pattern": r"\S"}), AfterValidator(_not_blank)]
Words = Annotated[str, Field(max_length=4096)]
Query = Annotated[str, Field(max_length=4096, pattern=r"[^\s\"]")]  # with something to look for in it
Time = Annotated[str, Field(max_length=40), AfterValidator(_time)]
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
    capabilities: Annotated[dict[str, Any], BeforeValidator(_object)] = {}
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


class SyncCapability(TypedDict):
    openClose: bool
    change: int


class CommandCapability(TypedDict):
    commands: list[str]


class Capabilities(TypedDict):
    positionEncoding: Literal["utf-8", "utf-16"]
    textDocumentSync: SyncCapability  # nothing: logs are read where they are
    workspaceSymbolProvider: bool
    documentSymbolProvider: bool
    hoverProvider: bool
    executeCommandProvider: CommandCapability
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
    main_line: bool = False
    family: bool = False
    start: Count = 0
    count: Annotated[int, BeforeValidator(_integral), Field(ge=0, le=MAX_ROWS)] = 1000
    around: Opt[Id] = None
    text_limit: Annotated[int, BeforeValidator(_integral), Field(ge=1, le=MAX_TEXT)] = TEXT_LIMIT


class SessionLeavesParams(SessionParams):
    pass


class SessionEntriesParams(SessionParams):
    """`start`: a place in the order of the log, or the entry that stands there."""

    ids: Opt[Annotated[list[Id], Field(max_length=MAX_IDS)]] = None
    around: Opt[Id] = None
    before: Opt[Few] = None
    after: Opt[Few] = None
    since: Opt[Since] = None
    start: Opt[Count | Id] = None
    count: Opt[Annotated[Few, Field(ge=1)]] = None
    max_bytes: Opt[Annotated[int, BeforeValidator(_integral), Field(ge=1024)]] = None

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if sum(choice is not None for choice in (self.ids, self.around, self.since, self.start)) != 1:
            raise ValueError("exactly one of ids, around, since and start is needed")
        if self.start is None and self.count is not None:
            raise ValueError("count goes with start")
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
    start: NotRequired[int]  # of a window in the order of the log: the place of its first entry, and how many there are
    total: NotRequired[int]


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


class SessionTouchedParams(Params):
    """`path`: absolute, or relative to a session's cwd; any ending of it that begins at a folder finds it too."""

    path: Path
    session_id: Opt[Id] = None
    cwd: Opt[Folder] = None
    changes: bool = False
    limit: Opt[Limit] = None
    cursor: Opt[str] = None


class TouchedItem(TypedDict):
    sessionId: str
    entryId: str
    callId: NotRequired[str]
    action: Literal["read", "write", "edit", "shell"]
    path: str  # as the call spells it; of a shell command what it names
    renamedFrom: NotRequired[str]
    renamedTo: NotRequired[str]
    turn: NotRequired[int]
    step: NotRequired[int]
    timestamp: str | None
    text: str
    branch: Literal["active", "abandoned"]
    failed: NotRequired[Literal[True]]
    change: NotRequired[str]  # as a unified diff, where the call holds it and `changes` asked for it


class TouchedResult(TypedDict):
    items: list[TouchedItem]
    nextCursor: NotRequired[str]
    coverage: Coverage


class SessionClosed(TypedDict):
    sessionId: str
    reason: Literal["deleted", "moved", "replaced"]
    path: NotRequired[str]


# --- search


class Where(Wire):
    """Which entries count; each given one must hold. `roles` compares with an entry's role and with its kind.

    A time without a zone is UTC, an `until` that names a day only means its end.
    """

    cwd: Opt[Folder] = None
    scope: Opt[Literal["exact", "subtree", "repo", "all"]] = None
    formats: Opt[list[Format]] = None
    roles: Opt[list[str]] = None
    types: Opt[list[str]] = None
    since: Opt[Time] = None
    until: Opt[Time] = None
    labeled: Opt[bool] = None
    branch: Opt[Literal["active", "abandoned"]] = None
    archived: bool = False
    subagents: bool = False

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.cwd is None and self.scope not in {None, "all"}:
            raise ValueError(f'scope "{self.scope}" needs cwd')
        return self


class SearchParams(Params):
    query: Query
    where: Annotated[Where, BeforeValidator(_table)] = Where()
    limit: Limit = 20
    cursor: Opt[str] = None


class SearchSessionsParams(SearchParams):
    pass


class SearchEntriesParams(SearchParams):
    session_id: Id


class Hit(TypedDict):
    entryId: str | None  # of a title the leaf; null where there is none, or it is not known without reading the log
    turn: NotRequired[int]
    role: str  # of the message; of what is none, its kind; "label" or "title" where that is what was found
    kind: Kind
    branch: Literal["active", "abandoned"]
    compacted: bool
    snippet: str
    ranges: list[list[int]]
    timestamp: str | None


class SessionHits(TypedDict):
    session: SessionInfo
    hits: int  # entries in which it was found; 0 where it is the title alone
    best: Hit


class Coverage(TypedDict):
    """How many of the sessions that were asked about were in the index as they are now."""

    indexed: int
    total: int


class SearchSessionsResult(TypedDict):
    items: list[SessionHits]
    nextCursor: NotRequired[str]
    coverage: Coverage


class SearchEntriesResult(TypedDict):
    items: list[Hit]
    nextCursor: NotRequired[str]


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
    leftOut: NotRequired[int]  # of the oldest entries, which whoever wrote the summary was not shown: too many
    refusedBy: NotRequired[str]
    reason: NotRequired[str]
    revision: int


class BranchResult(TypedDict):
    outcome: Literal["branched", "cancelled", "refused"]
    session: NotRequired[SessionInfo]  # where it was made
    path: str | None
    editorText: NotRequired[str]
    editorImages: NotRequired[list[Any]]
    previousSessionId: str
    refusedBy: NotRequired[str]
    reason: NotRequired[str]


class SessionCompactParams(SessionParams):
    """`summary`: the text itself; without it a hook or a model writes one."""

    instructions: Opt[str] = None
    summary: Opt[NotBlank] = None
    first_kept_entry_id: Opt[Id] = None
    expected_leaf_id: Id | None = None


class CompactResult(TypedDict):
    outcome: Literal["compacted", "cancelled", "refused"]
    entryId: NotRequired[str]
    leftOut: NotRequired[int]  # of the oldest entries, which whoever wrote the summary was not shown: too many
    refusedBy: NotRequired[str]
    reason: NotRequired[str]
    revision: int


# What owners of hooks are asked and told


class TreePreparation(TypedDict):
    targetId: str | None
    oldLeafId: str | None
    commonAncestorId: str | None
    entriesToSummarize: list[Entry]
    userWantsSummary: bool


class BeforeTree(TypedDict):
    sessionId: str
    preparation: TreePreparation
    instructions: NotRequired[str]


class BeforeBranch(TypedDict):
    sessionId: str
    entryId: str
    position: Literal["before", "at"]


class CompactPreparation(TypedDict):
    firstKeptEntryId: str
    entriesToSummarize: list[Entry]
    tokensBefore: int


class BeforeCompact(TypedDict):
    sessionId: str
    preparation: CompactPreparation


class SummarizeRequest(TypedDict):
    sessionId: str
    entries: list[Entry]
    instructions: NotRequired[str]
    replace: NotRequired[bool]  # the instructions stand in place of what would be asked for
    context: NotRequired[list[str]]  # what hooks say that it should know besides
    prompt: NotRequired[str]  # a hook's, in place of what would be asked for


class HookSummary(TypedDict):
    text: str
    details: NotRequired[Any]


class BranchAnswer(TypedDict):
    cancel: NotRequired[bool]
    reason: NotRequired[str]


class TreeAnswer(BranchAnswer):
    summary: NotRequired[HookSummary]
    label: NotRequired[str]


class CompactAnswer(BranchAnswer):
    summary: NotRequired[str]
    details: NotRequired[Any]


class CompactingAnswer(TypedDict):
    context: NotRequired[list[str]]
    prompt: NotRequired[str]


class SessionTreeEvent(TypedDict):
    sessionId: str
    newLeafId: str | None
    oldLeafId: str | None
    summaryEntry: NotRequired[Entry]
    fromExtension: bool


class SessionBranchEvent(TypedDict):
    sessionId: str
    entryId: str
    newSessionId: str
    path: str | None


class SessionCompactEvent(TypedDict):
    sessionId: str
    entry: Entry
    fromExtension: bool


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
    aborted: Literal["summary", "turn"] | None  # "summary": what asks hooks or a model before it writes


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


# --- plain LSP, for editors without a plugin


class LspParams(Params):
    """What an editor may add to (`partialResultToken`, …) as later versions of LSP do."""

    model_config = ConfigDict(extra="ignore")


class TextDocument(Wire):
    model_config = ConfigDict(extra="ignore")

    uri: Annotated[str, Field(min_length=1, max_length=16_384)]


class Position(Wire):
    model_config = ConfigDict(extra="ignore")

    line: Count
    character: Count


class WorkspaceSymbolParams(LspParams):
    query: Words


class TextDocumentDocumentSymbolParams(LspParams):
    text_document: TextDocument


class TextDocumentHoverParams(LspParams):
    text_document: TextDocument
    position: Position


class LspPosition(TypedDict):
    line: int
    character: int


class LspRange(TypedDict):
    start: LspPosition
    end: LspPosition


class LspLocation(TypedDict):
    uri: str
    range: LspRange


class SymbolInformation(TypedDict):
    name: str
    kind: int
    location: LspLocation
    containerName: NotRequired[str]


class DocumentSymbol(TypedDict):
    name: str
    detail: str
    kind: int
    range: LspRange
    selectionRange: LspRange
    children: NotRequired[list[dict[str, Any]]]  # of this shape


class MarkupContent(TypedDict):
    kind: Literal["markdown", "plaintext"]
    value: str


class Hover(TypedDict):
    contents: MarkupContent
    range: LspRange


class Command(NamedTuple):
    """What `workspace/executeCommand` does: the params of the method, and which of them the cursor stands for."""

    method: str
    params: type[SessionParams]
    place: str | None = None


COMMANDS = {
    "dsh.navigate": Command("session/navigate", SessionNavigateParams, "targetId"),
    "dsh.branch": Command("session/branch", SessionBranchParams, "entryId"),
    "dsh.fork": Command("session/fork", SessionForkParams, "boundary"),
    "dsh.label": Command("session/label", SessionLabelParams, "entryId"),
    "dsh.resume": Command("session/resume", SessionResumeParams),
    "dsh.launch": Command("session/launch", SessionLaunchParams),
}
SOMEWHERE = "-"  # a session or entry that is not known yet


class Target(Wire):
    """Where a command is given: a document, and where it matters which entry, a place in it."""

    model_config = ConfigDict(extra="ignore")

    text_document: TextDocument
    position: Opt[Position] = None


class WorkspaceExecuteCommandParams(LspParams):
    """`arguments`: one object, the params of the method; `textDocument` and `position` may name session and entry."""

    command: Literal["dsh.navigate", "dsh.branch", "dsh.fork", "dsh.label", "dsh.resume", "dsh.launch"]
    arguments: Annotated[list[Annotated[dict[str, Any], BeforeValidator(_table)]], Field(min_length=1, max_length=1)]

    @property
    def row(self) -> Command:
        return COMMANDS[self.command]

    @property
    def target(self) -> Target | None:
        """The document that stands for a session, where there is one. Raises ValueError."""
        sent = self.arguments[0]
        return Target.model_validate(sent) if "textDocument" in sent else None

    def request(self, session_id: str = SOMEWHERE, entry_id: str | None = SOMEWHERE) -> SessionParams:
        """The params of the method, those of `target` filled in. Raises ValueError."""
        sent = dict(self.arguments[0])
        target = self.target
        if target is not None:
            if "sessionId" in sent:
                raise ValueError("exactly one of sessionId and textDocument is needed")
            del sent["textDocument"]
            sent["sessionId"] = session_id
            place = self.row.place
            if sent.pop("position", None) is not None and place:
                if place in sent:
                    raise ValueError(f"at most one of position and {place} is allowed: both name an entry")
                sent[place] = entry_id
        return self.row.params.model_validate(sent)

    @model_validator(mode="after")
    def _as_the_method_takes_them(self) -> Self:
        try:
            self.request()
        except ValidationError as exc:
            wrong = exc.errors(include_url=False, include_input=False, include_context=False)[0]
            what = "unknown parameter" if wrong["type"] == "extra_forbidden" else wrong["msg"]
            where = ".".join(map(str, wrong["loc"]))
            raise ValueError(f"{where}: {what}" if where else what) from None
        return self
