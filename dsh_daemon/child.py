"""The file of a branch: its header, and its bytes in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .branching import BranchPlan
from .errors import DamagedRegion
from .log.formats.header import title_slot
from .session import GENERATOR, Session, dumps, new_id, now

PIECE = 1 << 20


def child_header(session: Session, session_id: str, cwd: str | None, title: str | None, copied: int) -> dict[str, Any]:
    """Header of a branch that takes `copied` entries along, with the fields that the owner of the format writes."""
    source = session.header
    header: dict[str, Any] = {
        "type": "session",
        "version": 3,
        "id": session_id,
        "timestamp": now(),
        "cwd": cwd or source.cwd or "",
    }
    if source.format == "native":
        header["generator"] = GENERATOR
        header["seedLength"] = copied
    elif source.format == "omp" and title:
        header["title"] = title
    if session.path is not None:
        header["parentSession"] = session.path
    return header


def content(session: Session, plan: BranchPlan, header: dict[str, Any], title: str | None) -> Iterator[bytes]:
    """The bytes of the new file; what is copied is read from the source in pieces."""
    if session.header.format == "omp":
        yield title_slot(title or "", now())
    yield dumps(header) + b"\n"
    for piece in plan.pieces(session.index):
        if isinstance(piece, bytes):
            yield piece + b"\n"
            continue
        offset, length = piece
        while length > 0:
            data = session.journal.read(offset, min(length, PIECE))
            if not data:
                raise DamagedRegion("the source was cut off while it was copied", path=session.path)
            yield data
            offset, length = offset + len(data), length - len(data)
        yield b"\n"
    if title is not None and session.header.format != "omp" and title != title_on(session, plan.kept):
        last = plan.labels[-1]["id"] if plan.labels else session.index.id_of(plan.kept[-1]) if plan.kept else None
        entry = {
            "type": "session_info",
            "id": new_id(session.index.ordinal),
            "parentId": last,
            "timestamp": now(),
            "name": title,
        }
        yield dumps(entry) + b"\n"


def title_on(session: Session, kept: list[int]) -> str | None:
    """The name that the copied entries give the session."""
    for i in reversed(kept):
        if session.index.type_of(i) == "session_info":
            return str(session.entry(i).get("name") or "").strip() or None
    return None
