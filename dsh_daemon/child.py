"""The file of a branch or fork: its header, and its bytes in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .branching import BranchPlan
from .errors import DamagedRegion
from .log.formats.header import title_slot
from .session import GENERATOR, Session, dumps, new_id, now

PIECE = 1 << 20


def child_header(session: Session, session_id: str, cwd: str | None, title: str | None, copied: int) -> dict[str, Any]:
    """Header of a session that takes `copied` entries along, with the fields that the owner of the format writes."""
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
    header["parentSession"] = session.path or session.wire_id
    return header


def content(
    session: Session, plan: BranchPlan, header: dict[str, Any], title: str | None, *, sealed: bool = False
) -> Iterator[bytes]:
    """The bytes of the new file; what is copied is read from the source in pieces.

    `sealed`: an `end_seed` says where the copy ends, in the format that knows this mark.
    """
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
    added: list[dict[str, Any]] = []
    known = title_on(session, plan.kept) or header.get("title")
    if title is not None and session.header.format != "omp" and title != known:
        added.append({"type": "session_info", "name": title})
    if sealed and session.header.format == "native":
        added.append({"type": "end_seed"})
    taken = {label["id"] for label in plan.labels}
    last = plan.last
    for fields in added:
        id_ = new_id(session.index.ordinal, taken)
        taken.add(id_)
        yield dumps({"type": fields.pop("type"), "id": id_, "parentId": last, "timestamp": now(), **fields}) + b"\n"
        last = id_


def title_on(session: Session, kept: list[int]) -> str | None:
    """The name that the copied entries give the session."""
    for i in reversed(kept):
        if session.index.type_of(i) == "session_info":
            return str(session.entry(i).get("name") or "").strip() or None
    return None
