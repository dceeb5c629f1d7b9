"""What stands around a write to a file of an agent that minds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .errors import AgentBusy, Busy
from .holders import holders, loaders
from .log.formats.omp_lock import omp_lock
from .session import Session


def guards(session: Session) -> tuple[Callable[[], AbstractContextManager[Any]], Callable[[], None]]:
    """What stands around a write: the lock of the program that owns the file, and a last look whether it holds it.

    omp stops saving for good when somebody else appends to a file that it has open.
    """
    path = session.path
    if path is None or session.header.format != "omp":
        return nullcontext, lambda: None

    header = session.header
    return (lambda: omp_lock(path)), (lambda: nobody_holds(path, header.cwd, header.session_id))


def nobody_holds(path: str, cwd: str | None, session_id: str) -> None:
    """Refuse while an omp process has the session, in an open file or in its memory alone. Raises AgentBusy, Busy."""
    try:
        pids = holders(path) or loaders(path, cwd, session_id)
    except OSError as exc:
        raise Busy(f"cannot see whether omp has this session: {exc.strerror}", retryAfterMs=1000) from exc
    if pids:
        text = f"omp has this session open (process {pids[0]}); it would stop saving if somebody else wrote to it"
        raise AgentBusy(text, holder={"client": "omp", "pid": pids[0]})
