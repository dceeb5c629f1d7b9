"""Versions 1 and 2 of the session file, read as version 3, in memory: pi and omp rewrite the file on load, we do not.

v1 -> v2   entries get `id` and `parentId` (a chain in file order); `firstKeptEntryIndex` -> `firstKeptEntryId`
v2 -> v3   a message of role "hookMessage" gets role "custom"
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, cast

CURRENT = 3


def made_up_id(session_id: str, offset: int) -> str:
    """Id of an entry that has none, from the byte at which it stands: the same at every reading of the file."""
    return sha256(f"{session_id}:{offset}".encode("utf-8", "replace")).hexdigest()[:8]


def migrate(
    entry: dict[str, Any],
    version: int,
    entry_id: str,
    parent_id: str | None,
    id_at: Callable[[int], str | None],
) -> dict[str, Any]:
    """`entry` of a log of `version` as version 3 has it; the given dict is left alone.

    `id_at(n)` names the n-th record of the file, the header being record 0 (None for the header or none): that is how
    version 1 counts `firstKeptEntryIndex`.
    """
    if version >= CURRENT and "id" in entry:
        return entry
    result = dict(entry)
    if "id" not in entry:
        result["id"] = entry_id
    result.setdefault("parentId", parent_id)
    index = result.get("firstKeptEntryIndex")
    if version < 2 and isinstance(index, int) and not isinstance(index, bool):
        del result["firstKeptEntryIndex"]
        kept = id_at(index)
        if kept is not None:
            result.setdefault("firstKeptEntryId", kept)
    message = result.get("message")
    if version < CURRENT and isinstance(message, dict):
        fields = cast("dict[str, Any]", message)
        if fields.get("role") == "hookMessage":
            result["message"] = {**fields, "role": "custom"}
    return result
