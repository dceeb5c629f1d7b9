"""Faults: what can go wrong, each with the kind and the typed details that travel on the wire."""

from __future__ import annotations

import errno
from typing import Any, ClassVar

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Fault(Exception):
    """A refused operation. `kind` is one of the closed set of the protocol, `data` its details."""

    kind: ClassVar[str]
    code: ClassVar[int]

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data: dict[str, Any] = {"kind": self.kind, **data}


class SessionNotFound(Fault):
    kind, code = "sessionNotFound", 1001


class EntryNotFound(Fault):
    kind, code = "entryNotFound", 1002


class AmbiguousSession(Fault):
    kind, code = "ambiguousSession", 1003


class InvalidReference(Fault):
    kind, code = "invalidReference", 1004


class AlreadyExists(Fault):
    kind, code = "alreadyExists", 1005


class LeafMoved(Fault):
    kind, code = "leafMoved", 1006


class TurnOpen(Fault):
    kind, code = "turnOpen", 1007


class NoOpenTurn(Fault):
    kind, code = "noOpenTurn", 1008


class StepOpen(Fault):
    kind, code = "stepOpen", 1008


class BoundaryInTurn(Fault):
    kind, code = "boundaryInTurn", 1009


class NotAUserMessage(Fault):
    kind, code = "notAUserMessage", 1010


class NoActiveModel(Fault):
    kind, code = "noActiveModel", 1011


class SummaryFailed(Fault):
    kind, code = "summaryFailed", 1012


class PersistenceUnavailable(Fault):
    kind, code = "persistenceUnavailable", 1013


class DamagedHeader(Fault):
    kind, code = "damagedHeader", 1014


class DamagedRegion(Fault):
    kind, code = "damagedRegion", 1015


class SessionGone(Fault):
    kind, code = "sessionGone", 1016


class AgentBusy(Fault):
    kind, code = "agentBusy", 1017


class NotTheAgent(Fault):
    kind, code = "notTheAgent", 1018


class Busy(Fault):
    kind, code = "busy", 1019


class ReadOnly(Fault):
    kind, code = "readOnly", 1020


class StorageFull(Fault):
    kind, code = "storageFull", 1021


class StorageError(Fault):
    kind, code = "storageError", 1022


class UnsupportedVersion(Fault):
    kind, code = "unsupportedVersion", 1023


class VersionMismatch(Fault):
    kind, code = "versionMismatch", 1024


class Unauthorized(Fault):
    kind, code = "unauthorized", 1025


class CursorExpired(Fault):
    kind, code = "cursorExpired", 1026


class Overloaded(Fault):
    kind, code = "overloaded", 1027


class NotSupportedByFormat(Fault):
    kind, code = "notSupportedByFormat", 1028


class NotRecorded(Fault):
    kind, code = "notRecorded", 1029


class InvalidEntry(Fault):
    """`index` in the batch, `field` where one is at fault, `reason` for people."""

    kind, code = "invalidEntry", 1030

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message, **data, reason=message)


class NothingToCompact(Fault):
    kind, code = "nothingToCompact", 1031


class NoAgent(Fault):
    kind, code = "noAgent", 1032


def storage_fault(exc: OSError, path: str, *, reading: bool = False) -> Fault:
    """Name what the operating system refused: no space, no right to write, or something else."""
    name = errno.errorcode.get(exc.errno or 0, "?")
    text = f"{path}: {exc.strerror or exc}"
    if exc.errno in NO_SPACE:
        return StorageFull(f"no space left to write {text}", path=path)
    if not reading and exc.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        return ReadOnly(f"cannot write {text}", reason=name, path=path)
    if exc.errno == errno.ENOENT:
        return SessionGone(f"the file is gone: {path}", path=path)
    return StorageError(f"the system refused {text}", errno=name, path=path)
