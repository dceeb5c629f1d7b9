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
HANG = (*WRITE, "entryNotFound", "leafMoved", "damagedRegion")  # what names an entry that a line then refers to


@cache
def _attribute(name: str) -> str:
    return _HUMP.sub("_", name.replace("/", "_")).lower()


def _sent(field: str) -> Callable[[Any], bool]:
    return lambda params: field in params.model_fields_set


@dataclass(frozen=True, slots=True)
class Method:
    """One request. `writes` says whether these params change anything: a readOnly client is refused then."""

    name: str
    params: type[t.Params]
    result: type[Any]
    scope: Scope
    summary: str
    errors: tuple[str, ...] = ()
    writes: bool | Callable[[Any], bool] = False

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
           WRITE, writes=True),
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
           "Entries by id, around one on its path, or those after a revision.",
           (*READ, "entryNotFound", "cursorExpired")),
    Method("session/path", t.SessionPathParams, t.IdsResult, "session", "Ids from the root to an entry.",
           (*READ, "entryNotFound")),
    Method("session/children", t.SessionChildrenParams, t.IdsResult, "session", "Ids of the children, oldest first.",
           (*READ, "entryNotFound")),
    Method("session/context", t.SessionContextParams, t.ContextResult, "session",
           "What a model would be given at an entry.", (*READ, "entryNotFound")),
    Method("session/labels", t.SessionLabelsParams, t.LabelsResult, "session", "Labels in force.", READ),
    # --- changing a session
    Method("session/append", t.SessionAppendParams, t.AppendResult, "session", "Appends entries as a chain.",
           (*HANG, "alreadyExists", "invalidEntry"), writes=True),
    Method("session/moveLeaf", t.SessionMoveLeafParams, t.MoveLeafResult, "session",
           "Moves the leaf, with a summary of what is left if given: branch, resetLeaf, branchWithSummary.",
           (*HANG, "invalidEntry"), writes=True),
    Method("session/navigate", t.SessionNavigateParams, t.NavigateResult, "session",
           "What a person does: go to an entry, a user message comes back as text to edit.",
           (*HANG, "noActiveModel"),
           writes=lambda params: not params.preview),
    Method("session/branch", t.SessionBranchParams, t.BranchResult, "session",
           "A new session file from the path to an entry; the source stays byte-identical.",
           (*READ, "readOnly", "damagedHeader", "storageFull", "notAUserMessage", "entryNotFound", "alreadyExists",
            "damagedRegion"), writes=True),
    Method("session/label", t.SessionLabelParams, t.LabelResult, "session",
           "Sets or (null, blank) clears an entry's label.", HANG, writes=True),
]  # fmt: skip

FORMATS: list[Format] = ["native", "pi", "omp"]  # those that are opened

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}

PUSHES: dict[str, Push] = {
    row.name: row
    for row in (
        Push("session/changed", Change, "An open session has a new revision; the caller hears it before its answer."),
        Push("session/closed", t.SessionClosed, "The file of an open session is gone or is another one now."),
        Push("catalog/changed", t.CatalogChanged, "Sessions that came, changed or went; at most four a second."),
        Push("$/progress", t.ProgressParams, "Progress of a request that carried a workDoneToken."),
        Push("$/cancelRequest", t.CancelParams, "A request of ours is no longer wanted."),
    )
}

# What a client may send without an answer.
NOTIFICATIONS = {
    "initialized": "The answer to initialize was read; nothing follows from it.",
    "exit": "Ends this connection; the daemon stays.",
    "$/cancelRequest": "A request is no longer wanted: it answers -32800, or with its own cancelled outcome.",
}

# On stdio and the unix socket these are answered before initialize, whatever the client's version.
ADMIN = frozenset({"daemon/ping", "daemon/status", "daemon/stop"})
