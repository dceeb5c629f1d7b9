"""Whose log a file is, by its first lines and never by its folder; and why a file is no session."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from dsh_daemon.log.frames import MAGIC, head_text
from dsh_daemon.log.index import Header
from dsh_daemon.types import Format

from .dsh import VERSION, is_event
from .header import header_of, id_from_name, is_entry, is_omp_entry, readable, record_of, slot_of, take_slot

HEAD_BYTES = 16 << 10
LOOK_AT = 8  # records after the header that may tell omp from pi

TOO_LONG = "the first line is too long to be a session header"

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n\0"
# What `pi --mode json` prints after a session header; as entries of a log these would have ids.
_EVENTS = frozenset({
    "agent_start", "agent_end", "turn_start", "turn_end", "message_start", "message_update", "message_end",
    "tool_execution_start", "tool_execution_update", "tool_execution_end", "queue_update", "session_settled",
    "auto_retry_start", "auto_retry_end", "auto_compaction_start", "auto_compaction_end", "compaction_start",
    "compaction_end",
})  # fmt: skip
_CLAUDE_TYPES = frozenset({
    "user", "assistant", "system", "summary", "file-history-snapshot", "queue-operation", "progress", "attachment",
    "custom-title", "ai-title", "last-prompt", "permission-mode", "agent-name", "agent-setting", "mode", "pr-link",
})  # fmt: skip
_CODEX_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_CUT_ENTRY = re.compile(rb'\s*\{"type":"message",(?:"id":"[^"]*","parentId"|"timestamp"|"message")')


def recognise(prefix: bytes, name: str, *, whole: bool = True, hint: Format = "pi") -> Header | str:
    """Header of the log whose file `name` starts with `prefix` (`HEAD_BYTES` or more), or the reason why it is none.

    `whole`: the prefix is all of the file. `hint` is the format that an empty file counts as.
    `state` of the result: "ok", "headerless", "broken" (entries follow a first line that is no header), "empty", or
    "foreign" (claude, codex: listed, not opened).
    """
    if prefix.startswith(MAGIC) or (name.endswith(".zstd") and not prefix.lstrip().startswith(b"{")):
        return _in_zstd(prefix, name)
    if not prefix and whole:
        return Header(format=hint, state="empty", session_id=id_from_name(name))
    if prefix.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the text is UTF-16, not UTF-8"
    lines = _lines(prefix)
    first = next(lines, None)
    if first is None:
        return "nothing but blank lines"
    offset, raw = first
    record = record_of(raw)
    slot = slot_of(record)
    if slot is not None:
        first = next(lines, None)
        if first is None:
            return "a title and no session header"
        offset, raw = first
        record = record_of(raw)
    if record is None and not whole and b"\n" not in prefix[offset:]:
        if _CUT_ENTRY.match(raw):
            return _headerless({"id": ""} if b'"parentId"' in raw[:200] else {}, name, slot, [])
        return TOO_LONG
    following = [
        r for _, line in zip(range(LOOK_AT), (line for _, line in lines), strict=False) if (r := record_of(line))
    ]
    if record is not None:
        header = _ours(record, slot, following) or _foreign([record, *following], name)
        if header is not None:
            if isinstance(header, Header):
                header.offset = offset
            return header
        if is_entry(record):
            return _headerless(record, name, slot, following)
        if is_event(record):
            return Header(format="dsh", version=VERSION, state="headerless", session_id=id_from_name(name))
    if any(map(is_event, following)):
        return Header(format="dsh", version=VERSION, state="broken", session_id=id_from_name(name))
    if any(map(is_entry, following)) or (record is None and raw.startswith(b'{"type":"session"')) or _nearly(record):
        return Header(
            format="omp" if slot is not None else "pi",
            state="broken",
            session_id=id_from_name(name),
            slot=slot is not None,
        )
    if record is None:
        return "the first line is not a JSON object"
    return f"the first line is neither a session header nor an entry (type {str(record.get('type'))[:40]!r})"


def _ours(record: dict[str, Any], slot: dict[str, Any] | None, following: list[dict[str, Any]]) -> Header | str | None:
    header = header_of(record, slot)
    if header is None or header.format == "dsh":
        return header
    if following:
        second = following[0]
        if "id" not in second and "parentId" not in second and second.get("type") in _EVENTS:
            return "the printed events of `pi --mode json`, not a session"
        if is_event(second):
            header.format = "dsh"
            return header
    if header.format == "pi" and any(map(is_omp_entry, following)):
        header.format = "omp"
    return header


def _headerless(
    record: dict[str, Any], name: str, slot: dict[str, Any] | None, following: list[dict[str, Any]]
) -> Header:
    header = Header(state="headerless", session_id=id_from_name(name), version=3 if "id" in record else 1)
    if slot is not None:
        take_slot(header, slot)
    if slot is not None or any(map(is_omp_entry, [record, *following])):
        header.format = "omp"
    return header


def _nearly(record: dict[str, Any] | None) -> bool:
    """Whether a record wants to be a session header but has no id."""
    return record is not None and record.get("type") == "session" and ("cwd" in record or "version" in record)


def _foreign(records: list[dict[str, Any]], name: str) -> Header | None:
    for record in records:
        type_ = record.get("type")
        if type_ in _CLAUDE_TYPES and any(key in record for key in ("sessionId", "uuid", "leafUuid", "messageId")):
            # The first lines may lack what a later one says.
            said = [r for r in records if isinstance(r.get("sessionId"), str)]
            places = [r["cwd"] for r in records if isinstance(r.get("cwd"), str)]
            header = Header(format="claude", version=1, state="foreign", raw=record)
            header.session_id = id_from_name(name)
            header.cwd = readable(places[0]) if places else None
            header.timestamp = next((r["timestamp"] for r in said if isinstance(r.get("timestamp"), str)), None)
            return header
        if type_ in _CODEX_TYPES and isinstance(record.get("payload"), dict):
            meta = cast("dict[str, Any]", record["payload"])
        elif type_ is None and isinstance(record.get("id"), str) and "instructions" in record:
            meta = record
        else:
            return None
        header = Header(format="codex", version=1, state="foreign", raw=record)
        header.session_id = readable(meta["id"]) if isinstance(meta.get("id"), str) else id_from_name(name)
        header.cwd = readable(meta["cwd"]) if isinstance(meta.get("cwd"), str) else None
        header.timestamp = stamp if isinstance(stamp := record.get("timestamp"), str) else None
        return header
    return None


def _in_zstd(prefix: bytes, name: str) -> Header | str:
    if not prefix:
        return Header(format="dsh", version=0, state="empty", session_id=id_from_name(name))
    text, _ = head_text(lambda offset, length: prefix[offset : offset + length], len(prefix), HEAD_BYTES)
    if not text:
        return "not readable as zstd"
    header = recognise(text, name.removesuffix(".zstd"), whole=False)
    if isinstance(header, str) or header.format != "dsh":
        return "compressed, and does not start with a DSH session header"
    return header


def _lines(prefix: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of the lines that are not blank."""
    position = len(_BOM) if prefix.startswith(_BOM) else 0
    while position < len(prefix):
        end = prefix.find(b"\n", position)
        if end < 0:
            end = len(prefix)
        line = prefix[position:end].strip(_BLANK)
        if line:
            yield position, line
        position = end + 1
