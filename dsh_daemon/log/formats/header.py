"""The first lines of a log: session headers of the agents that we know, and omp's title slot."""

from __future__ import annotations

import os
from typing import Any, cast

import orjson

from dsh_daemon.log.index import Header
from dsh_daemon.log.recover import loads

from .dsh import id_of_folder

SLOT_BYTES = 256  # omp rewrites its title slot in place: the line with its newline never has another length

_OMP_HEADER_FIELDS = ("title", "titleSource", "additionalDirectories", "previousSessionFiles", "providerPromptCacheKey")
OMP_TYPES = frozenset({
    "title_change", "session_init", "model_usage", "service_tier_change", "credential_pin", "ttsr_injection",
    "mode_change", "reset_boundary",
})  # fmt: skip
OMP_ROLES = frozenset({"developer", "pythonExecution", "fileMention"})


def header_of(obj: dict[str, Any], slot: dict[str, Any] | None = None) -> Header | None:
    """Header of a pi, omp, native or dsh log from its first record (after omp's title slot); None when it is no header.

    Which of pi and omp wrote a bare version 3 header only its entries tell: see `is_omp_entry`.
    """
    if obj.get("type") != "session":
        return None
    id_, stamp, created = obj.get("id"), obj.get("timestamp"), obj.get("createdAt")
    if not isinstance(id_, str) or not id_:
        return None
    version = obj.get("version")
    parent = obj.get("parentSession") or obj.get("branchedFrom")
    cwd = obj.get("cwd")
    header = Header(
        version=version if isinstance(version, int) and not isinstance(version, bool) and version >= 0 else 1,
        session_id=readable(id_),
        cwd=readable(cwd) if isinstance(cwd, str) and cwd else None,
        timestamp=stamp if isinstance(stamp, str | int) and not isinstance(stamp, bool) else None,
        parent=readable(parent) if isinstance(parent, str) and parent else None,
        raw=obj,
    )
    if isinstance(created, int) and not isinstance(created, bool) and not isinstance(stamp, str):
        header.format, header.timestamp = "dsh", created
        header.version = version if isinstance(version, int) else 0
    elif str(obj.get("generator", "")).startswith("dsh-daemon"):
        header.format = "native"
    elif slot is not None or any(name in obj for name in _OMP_HEADER_FIELDS):
        header.format = "omp"
    if slot is not None:
        take_slot(header, slot)
    return header


def take_slot(header: Header, slot: dict[str, Any]) -> None:
    """Note omp's title slot in the header of the log that it stands in."""
    title = slot.get("title")
    header.slot = True
    header.slot_title = readable(title) if isinstance(title, str) and title else None


def is_title_slot(line: bytes) -> dict[str, Any] | None:
    """Give the record of omp's title slot when `line` (newline or not) is one.

    Only a slot of `SLOT_BYTES` can be rewritten in place; this accepts other lengths too, since they can be read.
    """
    if b'"title"' not in line[:64] or not line.lstrip().startswith(b"{"):
        return None
    try:
        obj = loads(line)
    except ValueError:
        return None
    return slot_of(obj)


def slot_of(obj: object) -> dict[str, Any] | None:
    """`obj` when it is a title slot record, else None."""
    if not isinstance(obj, dict):
        return None
    record = cast("dict[str, Any]", obj)
    if record.get("type") == "title" and isinstance(record.get("title"), str) and "id" not in record:
        return record
    return None


def title_slot(title: str, now: str) -> bytes:
    """Omp's first line with its newline: always `SLOT_BYTES` long, so that another title can be written over it."""
    record = {"type": "title", "v": 1, "title": title, "source": "user", "updatedAt": now, "pad": ""}
    while (room := SLOT_BYTES - 1 - len(orjson.dumps(record))) < 0:
        record["title"] = str(record["title"])[: -max(1, -room // 6)]
    record["pad"] = " " * room
    return orjson.dumps(record) + b"\n"


def record_of(line: bytes) -> dict[str, Any] | None:
    """Decode a line leniently; None where it is no object. A `type` that is no string is dropped."""
    line = line.strip(b" \t\r\n\0")
    if not line.startswith(b"{"):
        return None
    try:
        record = cast("dict[str, Any]", loads(line))
    except ValueError:
        return None
    if not isinstance(record.get("type", ""), str):
        del record["type"]
    return record


def is_omp_entry(entry: dict[str, Any]) -> bool:
    """Whether only omp writes an entry of this shape (native logs are known by their header before this is asked)."""
    type_ = entry.get("type")
    if not isinstance(type_, str):
        return False
    if type_ in OMP_TYPES:
        return True
    if type_ == "model_change":
        return "model" in entry
    if type_ == "thinking_level_change":
        return "configured" in entry
    if type_ == "message":
        message = entry.get("message")
        if not isinstance(message, dict):
            return False
        fields = cast("dict[str, Any]", message)
        role = fields.get("role")
        return (isinstance(role, str) and role in OMP_ROLES) or "contextSnapshot" in fields or "attribution" in fields
    return type_ == "custom_message" and "attribution" in entry


def is_entry(obj: dict[str, Any]) -> bool:
    """Whether a first line is itself an entry: `id` and `parentId`, or a version 1 message."""
    if not isinstance(obj.get("type"), str) or obj["type"] == "session":
        return False
    if isinstance(obj.get("id"), str) and "parentId" in obj:
        return True
    message = obj.get("message")
    return (
        obj["type"] == "message"
        and isinstance(message, dict)
        and isinstance(cast("dict[str, Any]", message).get("role"), str)
    )


def id_from_name(path: str) -> str:
    """Id of a session whose header does not give one: the part of the file name after the first `_`, else its stem.

    dsh gives all of its logs one name, and their folders the ids.
    """
    if (id_ := id_of_folder(path)) is not None:
        return readable(id_)
    name = os.path.basename(path)
    for suffix in (".zstd", ".jsonl"):
        name = name.removesuffix(suffix)
    return readable(name.partition("_")[2] or name)


def readable(text: str) -> str:
    """`text` with U+FFFD for lone surrogates, so that it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    return text
