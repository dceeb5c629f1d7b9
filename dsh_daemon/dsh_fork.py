"""A fork of a dsh session: a new one in dsh's own layout, which begins with the events of its source.

source  events 0 … boundary │ …
fork    events 0 … boundary │ session/end-seed │ …      the same numbers, times and ids
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from .dsh_driving import PIECE, first_event, follow, now_ms, refuse_header, stored_header
from .errors import AlreadyExists, BoundaryInTurn, DamagedRegion, storage_fault
from .log.formats import dsh_writing as writing
from .log.formats.dsh_ledger import Ledger
from .log.frames import frame, framed
from .log.index import NONE
from .log.journal import publish, sync_folder
from .naming import dsh_project, dsh_segment
from .turns import codes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .log.index import Index
    from .session import Session

PACKED, PLAIN = "session.jsonl.zstd", "session.jsonl"


class Forked(NamedTuple):
    path: str
    session_id: str
    seed_length: int  # events that were copied


def fork(session: Session, boundary: int, session_id: str | None = None, cwd: str | None = None) -> Forked:
    """Make the fork that ends with the entry `boundary` (ordinal; NONE: before the first), durably or not at all.

    It stands in the root of its source, encoded as that. Raises BoundaryInTurn, AlreadyExists, InvalidReference,
    DamagedHeader, DamagedRegion (also for a root of two encodings), UnsupportedVersion, NotSupportedByFormat and
    storage faults. Reads the source twice: nothing is written before all of the copy is known to be sound to dsh.
    """
    path = session.path
    assert path is not None
    root, name = os.path.dirname(os.path.dirname(os.path.dirname(path))), os.path.basename(path)
    refuse_root(root)
    refuse_header(session)
    index, start = session.index, first_event(session)
    stop = start if boundary == NONE else index.offset[boundary] + index.length[boundary]
    ledger = Ledger()
    follow(session, ledger, start, stop)
    if ledger.open:
        raise _in_turn(index, boundary, ledger.turn)
    source = stored_header(session)
    cwd = cwd or source.get("cwd")
    session_id = session_id or f"session-{uuid4()}"
    header = writing.new_header(
        session_id, now_ms(), cwd,
        parentSession=source["id"], seedLength=ledger.next, agentPreset=source.get("agentPreset"),
    )  # fmt: skip
    folder = new_folder(root, cwd, session_id)
    copied = ledger.next
    seed = [] if ledger.seeded else writing.numbered(ledger, [writing.end_seed()], now_ms())

    def text() -> Iterator[bytes]:
        yield from copy(session, start, stop)
        for event in seed:
            yield writing.line_of(event)

    first = writing.line_of(header)
    packed = name == PACKED
    publish_in(root, folder, name, frame(first) if packed else first, framed(text()) if packed else text())
    return Forked(os.path.join(folder, name), session_id, copied)


def refuse_root(root: str) -> None:
    """Refuse a root of two encodings: dsh refuses everything in it. Raises DamagedRegion."""
    found = {os.path.basename(path): path for path in logs_of(root)}
    if len(found) > 1:
        one, other = sorted(found.values())
        text = f"dsh takes logs of one encoding in a root; {root} has {one} and {other}"
        raise DamagedRegion(text, path=root, diagnostic="mixed_encodings", offset=0)


def logs_of(root: str, segment: str | None = None) -> Iterator[str]:
    """Paths of all logs of a root, or of those of a session in it."""
    for project in _folders(root):
        for folder in _folders(project) if segment is None else [os.path.join(project, segment)]:
            for name in (PACKED, PLAIN):
                if os.path.lexists(path := os.path.join(folder, name)):
                    yield path


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as found:
            return [entry.path for entry in found if entry.is_dir()]
    except OSError:
        return []


def _in_turn(index: Index, boundary: int, turn: int) -> BoundaryInTurn:
    ends = codes_of(index, frozenset({"turn_end"}))
    before = boundary
    while before >= 0 and index.shape[before] not in ends:
        before -= 1
    nearest = index.id_of(before)
    where = f"the nearest place before it is {nearest}" if nearest else "no turn before it is closed"
    text = f"{index.ids[boundary]} is inside of turn {turn}; {where}"
    return BoundaryInTurn(text, turn=turn, nearestClosed=nearest)


def new_folder(root: str, cwd: str | None, session_id: str) -> str:
    """Where a new session goes. Raises AlreadyExists where the root has one of this id, InvalidReference."""
    segment = dsh_segment(session_id)
    if (there := next(logs_of(root, segment), None)) is not None:
        raise AlreadyExists(f"there is already a session {session_id}", id=session_id, path=there)
    return os.path.join(root, dsh_project(cwd), segment)


def publish_in(root: str, folder: str, name: str, first: bytes, rest: Iterator[bytes]) -> None:
    """Create a log with all of its first content, and the folders that it needs; nothing stays where that fails."""
    project = os.path.dirname(folder)
    made = [at for at in (project, folder) if not os.path.exists(at)]
    try:
        publish(os.path.join(folder, name), first, rest)
        if made:
            for at in (root, project):
                sync_folder(at)
    except OSError as exc:
        raise storage_fault(exc, folder) from exc
    except BaseException:
        for at in reversed(made):
            with suppress(OSError):
                os.rmdir(at)
        raise


def copy(session: Session, start: int, stop: int) -> Iterator[bytes]:
    """The text of a log from `start` to `stop`, in pieces, with a newline at its end."""
    last = b"\n"
    while start < stop:
        data = session.journal.read(start, min(PIECE, stop - start))
        if not data:
            raise DamagedRegion("the source was cut off while it was copied", path=session.path)
        start, last = start + len(data), data[-1:]
        yield data
    if last != b"\n":
        yield b"\n"
