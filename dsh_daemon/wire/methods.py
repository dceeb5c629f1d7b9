"""The method table: what a client may ask, who answers, what can go wrong. Dispatch, schema and docs read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from dsh_daemon.types import Change, Format, SessionState

from . import types as t

Scope = Literal["connection", "daemon", "catalog", "session"]
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")

NAMED = ("sessionNotFound", "ambiguousSession", "sessionGone")
READ = (*NAMED, "notSupportedByFormat", "storageError")
WRITE = (*READ, "agentBusy", "readOnly", "damagedHeader", "storageFull", "busy")
STATE = ("readOnly", "storageFull", "busy")  # what is kept in our own database
DRIVE = (*READ, "readOnly", "damagedHeader", "damagedRegion", "storageFull", "busy", "notTheAgent", "invalidEntry")
HANG = (*WRITE, "entryNotFound", "leafMoved", "damagedRegion")  # what names an entry that a line then refers to


@cache
def _attribute(name: str) -> str:
    return _HUMP.sub("_", name.replace("/", "_")).lower()


def _sent(field: str) -> Callable[[Any], bool]:
    return lambda params: field in params.model_fields_set


@dataclass(frozen=True, slots=True)
class Method:
    """One request. `writes` says whether these params change anything: a readOnly client is refused then.

    One that `waits` for something to happen takes no turn from the reads of its client; one that `asks` hooks or a
    model before it writes can be cancelled until then.
    """

    name: str
    params: type[t.Params]
    result: Any
    scope: Scope
    summary: str
    errors: tuple[str, ...] = ()
    writes: bool | Callable[[Any], bool] = False
    waits: bool = False
    asks: bool = False

    @property
    def attribute(self) -> str:
        """Name of the handler: session/moveLeaf -> session_move_leaf."""
        return _attribute(self.name)

    def changes(self, params: t.Params) -> bool:
        return self.writes if isinstance(self.writes, bool) else self.writes(params)


@dataclass(frozen=True, slots=True)
class Push:
    """One notification that the daemon sends."""

    name: str
    params: Any
    summary: str


_ROWS = [
    # --- lifecycle
    Method("initialize", t.InitializeParams, t.InitializeResult, "connection",
           "Introduces the client: LSP InitializeParams, ours in initializationOptions.",
           ("versionMismatch", "unauthorized", "overloaded")),
    Method("shutdown", t.Params, type(None), "connection", "Ends this client's work; the daemon stays."),
    Method("daemon/ping", t.Params, t.PingResult, "daemon", "Answers at once, also before initialize."),
    Method("daemon/status", t.Params, t.StatusResult, "daemon", "Who is connected, what is open, roots, watching."),
    Method("daemon/stop", t.DaemonStopParams, t.Nothing, "daemon",
           "Answers, then ends the process: after the requests in flight (drain), or at once (force).",
           ("readOnly",), writes=True),
    Method("daemon/doctor", t.DaemonDoctorParams, t.DoctorResult, "daemon",
           "Checks every session file and our own state; `fix` repairs what can be, with the original kept.",
           ("readOnly",), writes=lambda params: params.fix),
    # --- catalog
    Method("session/list", t.SessionListParams, t.ListResult, "catalog", "Sessions that the filters let through.",
           ("cursorExpired",)),
    Method("session/resolve", t.SessionResolveParams, t.ResolveResult, "catalog",
           'What a person types (an id prefix, a title, a path, "last") to one session.',
           ("invalidReference", "ambiguousSession", "sessionNotFound")),
    Method("session/create", t.SessionCreateParams, SessionState, "catalog", "A new native session.",
           (*NAMED, "alreadyExists", "readOnly", "storageFull", "storageError"),
           writes=True),
    Method("session/rename", t.SessionRenameParams, t.RenameResult, "session", "Sets the title, or (null) clears it.",
           (*WRITE, "damagedRegion"), writes=True),
    Method("session/archive", t.SessionArchiveParams, t.Nothing, "session", "Hides it from lists, not from the disk.",
           (*NAMED, "notSupportedByFormat", *STATE), writes=True),
    Method("session/pin", t.SessionPinParams, t.Nothing, "session", "Marks it as pinned; the file is untouched.",
           (*NAMED, "notSupportedByFormat", *STATE), writes=True),
    Method("session/delete", t.SessionDeleteParams, t.DeleteResult, "session", "Moves the file to the trash.",
           (*NAMED, "agentBusy", "readOnly", "storageFull", "storageError"), writes=True),
    Method("session/family", t.SessionFamilyParams, t.FamilyResult, "session",
           "Ancestors and descendants by branch and fork.", NAMED),
    Method("session/draft", t.SessionDraftParams, t.DraftResult, "session", "The unsent prompt: read it, or store it.",
           (*NAMED, *STATE), writes=_sent("text")),
    Method("catalog/subscribe", t.CatalogSubscribeParams, t.ListResult, "catalog",
           "The first page, and from now on catalog/changed for what the filters let through."),
    Method("catalog/unsubscribe", t.CatalogUnsubscribeParams, t.Nothing, "catalog", "No more catalog/changed."),
    # --- reading a session
    Method("session/open", t.SessionOpenParams, t.OpenResult, "session",
           "State and diagnostics, and from now on session/changed; `since` asks for the changes missed.",
           (*READ, "invalidReference")),
    Method("session/close", t.SessionCloseParams, t.Nothing, "session", "No more session/changed.", NAMED[:2]),
    Method("session/tree", t.SessionTreeParams, t.TreeResult, "session", "A window of the drawn tree.",
           (*READ, "entryNotFound")),
    Method("session/leaves", t.SessionLeavesParams, t.LeavesResult, "session", "The tips of all branches.", READ),
    Method("session/entries", t.SessionEntriesParams, t.EntriesResult, "session",
           "Entries by id, around one on its path, after a revision, or from a place in the order of the log on.",
           (*READ, "entryNotFound", "cursorExpired")),
    Method("session/path", t.SessionPathParams, t.IdsResult, "session", "Ids from the root to an entry.",
           (*READ, "entryNotFound")),
    Method("session/children", t.SessionChildrenParams, t.IdsResult, "session", "Ids of the children, oldest first.",
           (*READ, "entryNotFound")),
    Method("session/context", t.SessionContextParams, t.ContextResult, "session",
           "What a model would be given at an entry.", (*READ, "entryNotFound")),
    Method("session/request", t.SessionRequestParams, t.RequestResult, "session",
           "The model request of a recorded step, rebuilt from the log alone.",
           (*READ, "entryNotFound", "notRecorded")),
    Method("session/turns", t.SessionTurnsParams, t.TurnsResult, "session",
           "The turns of a path: recorded ones, or those that the messages tell of.", (*READ, "entryNotFound")),
    Method("session/transcript", t.SessionTranscriptParams, t.TranscriptResult, "session",
           "A path as a document to read or to keep.", (*READ, "entryNotFound")),
    Method("session/stats", t.SessionStatsParams, t.StatsResult, "session",
           "Turns, messages, tokens and cost; what a fork inherited is counted apart.", READ),
    Method("session/touched", t.SessionTouchedParams, t.TouchedResult, "catalog",
           "Which entries read, wrote or edited a file, and the shell commands that name it, latest first.",
           (*READ, "cursorExpired")),
    Method("session/labels", t.SessionLabelsParams, t.LabelsResult, "session", "Labels in force.", READ),
    # --- search
    Method("search/sessions", t.SearchSessionsParams, t.SearchSessionsResult, "catalog",
           "Sessions in which a query is found, each with its strongest hit; the query is data.", ("cursorExpired",)),
    Method("search/entries", t.SearchEntriesParams, t.SearchEntriesResult, "session",
           "Entries of one session in which a query is found.", (*READ, "cursorExpired")),
    # --- changing a session
    Method("session/append", t.SessionAppendParams, t.AppendResult, "session", "Appends entries as a chain.",
           (*HANG, "alreadyExists", "invalidEntry", "turnOpen", "notTheAgent"), writes=True),
    Method("session/moveLeaf", t.SessionMoveLeafParams, t.MoveLeafResult, "session",
           "Moves the leaf, with a summary of what is left if given: branch, resetLeaf, branchWithSummary.",
           (*HANG, "invalidEntry", "turnOpen"), writes=True),
    Method("session/navigate", t.SessionNavigateParams, t.NavigateResult, "session",
           "What a person does: go to an entry, a user message comes back as text to edit.",
           (*HANG, "noActiveModel", "summaryFailed", "turnOpen"),
           writes=lambda params: not params.preview, asks=True),
    Method("session/branch", t.SessionBranchParams, t.BranchResult, "session",
           "A new session file from the path to an entry; the source stays byte-identical.",
           (*READ, "readOnly", "damagedHeader", "storageFull", "notAUserMessage", "entryNotFound", "alreadyExists",
            "damagedRegion", "turnOpen", "boundaryInTurn", "unsupportedVersion", "busy"), writes=True, asks=True),
    Method("session/compact", t.SessionCompactParams, t.CompactResult, "session",
           "Puts a summary in the place of the older part of the context; the log and search keep all of it.",
           (*HANG, "noActiveModel", "nothingToCompact", "summaryFailed", "turnOpen"), writes=True, asks=True),
    Method("session/fork", t.SessionForkParams, t.ForkResult, "session",
           "A new session from the path to a closed turn; the source stays byte-identical.",
           (*READ, "readOnly", "damagedHeader", "storageFull", "boundaryInTurn", "entryNotFound", "alreadyExists",
            "damagedRegion", "unsupportedVersion"), writes=True),
    Method("session/launch", t.SessionLaunchParams, t.LaunchResult, "session",
           "The command that continues a session in the agent that owns it; keepLeaf makes it start at the leaf.",
           (*WRITE, "damagedRegion"), writes=lambda params: params.keep_leaf),
    Method("session/label", t.SessionLabelParams, t.LabelResult, "session",
           "Sets or (null, blank) clears an entry's label.", HANG, writes=True),
    # --- driving a session
    Method("session/resume", t.SessionResumeParams, t.ResumeResult, "session",
           "Makes the caller the agent of a session; a turn that nobody runs any more is closed first.",
           (*READ, "readOnly", "damagedHeader", "damagedRegion", "busy", "persistenceUnavailable", "agentBusy",
            "unsupportedVersion"), writes=True),
    Method("session/release", t.SessionReleaseParams, t.Nothing, "session",
           "The caller is no longer the agent; its open turn is closed as interrupted.",
           (*NAMED, "readOnly", "damagedRegion", "storageFull", "storageError", "busy"), writes=True),
    Method("session/abort", t.SessionAbortParams, t.AbortResult, "session",
           "Stops a running summary, or asks the agent to stop its turn, whoever started it.", (*NAMED, "readOnly"),
           writes=True),
    Method("turn/start", t.TurnStartParams, t.TurnStartResult, "session",
           "Begins a turn with a message: of the inbox, or given here.",
           (*DRIVE, "turnOpen", "invalidReference"), writes=True),
    Method("turn/end", t.TurnEndParams, t.EndResult, "session",
           "Ends the turn; a call without a result gets one that says so.",
           (*DRIVE, "noOpenTurn", "stepOpen"), writes=True),
    Method("step/start", t.StepStartParams, t.StepStartResult, "session",
           "Begins a model request; its header is recorded where it differs from the last one.",
           (*DRIVE, "noOpenTurn", "stepOpen"), writes=True),
    Method("step/end", t.StepEndParams, t.EndResult, "session", "Ends a model request and its tools.",
           (*DRIVE, "noOpenTurn"), writes=True),
    Method("agent/send", t.AgentSendParams, t.AgentSendResult, "session",
           "Leaves a message for the agent, in memory.",
           (*NAMED, "readOnly", "noAgent", "invalidEntry", "overloaded"), writes=True),
    Method("agent/claim", t.AgentClaimParams, t.AgentClaimResult, "session",
           "Takes the next message out of the inbox; steering ones come first.", (*NAMED, "notTheAgent"),
           waits=True),
    # --- plain LSP, for editors without a plugin
    Method("workspace/symbol", t.WorkspaceSymbolParams, list[t.SymbolInformation], "catalog",
           "Sessions by title, id, folder or prompt, and entries that hold the words."),
    Method("textDocument/documentSymbol", t.TextDocumentDocumentSymbolParams,
           list[t.DocumentSymbol] | list[t.SymbolInformation], "session",
           "The tree of a session whose log is open in the editor; nothing for any other file."),
    Method("textDocument/hover", t.TextDocumentHoverParams, t.Hover | None, "session", "The entry under the cursor."),
]  # fmt: skip
_GIVEN = {command.method for command in t.COMMANDS.values()}
_ROWS.append(
    Method("workspace/executeCommand", t.WorkspaceExecuteCommandParams,
           t.NavigateResult | t.BranchResult | t.ForkResult | t.LabelResult | t.ResumeResult | t.LaunchResult,
           "session", "One of our methods as a command of the editor.",
           ("invalidReference", *dict.fromkeys(kind for row in _ROWS if row.name in _GIVEN for kind in row.errors)),
           writes=lambda params: METHODS[params.row.method].changes(params.request())),
)  # fmt: skip

FORMATS: list[Format] = ["native", "pi", "omp", "dsh"]  # those that are opened

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}

PUSHES: dict[str, Push] = {
    row.name: row
    for row in (
        Push("session/changed", Change, "An open session has a new revision; the caller hears it before its answer."),
        Push("session/closed", t.SessionClosed, "The file of an open session is gone or is another one now."),
        Push("catalog/changed", t.CatalogChanged, "Sessions that came, changed or went; at most four a second."),
        Push("agent/abortRequested", t.AbortRequested, "To the agent: somebody wants the turn to stop."),
        Push("agent/lost", t.AgentLost, "To an agent that was taken over."),
        Push("agent/inbox", t.AgentInbox,
             "To the agent and all followers: the whole queue, when it changed; also to who begins to follow."),
        Push("agent/delta", t.AgentDelta, "To all followers: what the model says right now; not in the log."),
        Push("agent/status", t.AgentStatus, "To all followers: whether the agent works; also to who begins to follow."),
        Push("event/sessionTree", t.SessionTreeEvent, "To clients that named it: the leaf was moved by navigate."),
        Push("event/sessionBranch", t.SessionBranchEvent, "To clients that named it: a branch was made."),
        Push("event/sessionCompact", t.SessionCompactEvent, "To clients that named it: a compaction was written."),
        Push("$/progress", t.ProgressParams, "Progress of a request that carried a workDoneToken."),
        Push("$/cancelRequest", t.CancelParams, "A request of ours is no longer wanted."),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hook:
    """One request that the daemon sends to clients that named it in `initialize`."""

    name: str
    params: Any
    answer: Any
    summary: str


ASKS: dict[str, Hook] = {
    row.name: row
    for row in (
        Hook("hook/sessionBeforeTree", t.BeforeTree, t.TreeAnswer,
             "Before navigate moves the leaf: nothing, a veto, or the summary of what is left."),
        Hook("hook/sessionBeforeBranch", t.BeforeBranch, t.BranchAnswer, "Before a branch is made: nothing or a veto."),
        Hook("hook/sessionBeforeCompact", t.BeforeCompact, t.CompactAnswer,
             "Before a compaction: nothing, a veto, or its summary."),
        Hook("hook/sessionCompacting", t.BeforeCompact, t.CompactingAnswer,
             "Before a model summarises for a compaction: what it should know besides, or another prompt."),
        Hook("hook/summarize", t.SummarizeRequest, t.HookSummary,
             "To a client that said `summarizer: true`: a summary of these entries."),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Note:
    """One notification that a client may send; nothing is answered. With `params` the service gets it."""

    name: str
    summary: str
    params: type[t.Params] | None = None

    @property
    def attribute(self) -> str:
        return _attribute(self.name)


NOTIFICATIONS: dict[str, Note] = {
    row.name: row
    for row in (
        Note("initialized", "The answer to initialize was read; nothing follows from it."),
        Note("exit", "Ends this connection; the daemon stays."),
        Note("$/cancelRequest",
             "A request is no longer wanted: it answers -32800, or with its own cancelled outcome."),
        Note("agent/delta", "From the agent: passed on to all followers.", t.AgentDeltaParams),
        Note("agent/status", "From the agent: whether it works; passed on to all followers.", t.AgentStatusParams),
    )
}  # fmt: skip

# On stdio and the unix socket these are answered before initialize, whatever the client's version.
ADMIN = frozenset({"daemon/ping", "daemon/status", "daemon/stop"})
