"""What a person reads of an entry: one clean line, times, the text of a message."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import regex

if TYPE_CHECKING:
    from collections.abc import Callable

    from .types import Entry

# Sequences first, so that a colour code leaves no "[31m" behind; then every character that moves, hides or reorders.
_ESCAPES = re.compile("(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\\]|\x9d)[^\x07\x1b\x9c\x9d\n]*(?:\x07|\x1b\\\\|\x9c)")
_UNSAFE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")
_BREAKS = re.compile("\r\n|[\x0b-\r\x85\u2028\u2029]")
_SEPARATORS = re.compile("[\x1c-\x1f]")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  (naive, so that isoformat adds no offset)
_GRAPHEME = regex.compile(r"\X")
# Two characters that never join: ASCII, Latin, Greek, Cyrillic, Japanese, Chinese.
_LETTERS = re.compile("[ -~\u00a0-\u02ff\u0370-\u0482\u048a-\u052f\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff]{2}")
_ARGUMENTS = ("path", "file_path", "command", "pattern", "query", "url")


def one_line(text: str, limit: int) -> str:
    """`text` as one line of at most `limit` code points, cut between graphemes.

    White space becomes single spaces; control and bidi characters go, lone surrogates become U+FFFD.
    """
    for size in (limit + 40, limit * 4 + 1_000):
        piece = text[:size]
        line = " ".join(piece.split())
        # What is printable holds nothing that has to go: so are most texts, and they are far longer than a row.
        if not line.isprintable():
            break
        if len(line) > limit or len(piece) == len(text):
            return _cut(line, limit)
    piece = text[: limit * 4 + 1_000]
    clean = _clean(piece)
    if len(clean) <= limit and len(piece) < len(text):
        clean = _clean(text)
    return _cut(clean, limit)


def _clean(text: str) -> str:
    text = _UNSAFE.sub("", _ESCAPES.sub("", text))
    return _SURROGATES.sub("\ufffd", " ".join(text.split()))


def many_lines(text: str) -> str:
    """`text` with its lines, tabs and blanks; every line ends with a newline, and what `one_line` takes away goes."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    text = _SEPARATORS.sub("", _UNSAFE.sub("", _ESCAPES.sub("", _BREAKS.sub("\n", text))))
    return _SURROGATES.sub("\ufffd", text)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    # Graphemes are slow to find: look only at what comes after the last place where one surely ends, and at one code
    # point more than fits, to see whether the grapheme before it goes on.
    end = limit
    while end > 0 and not _LETTERS.match(text, end - 1):
        end -= 1
    for match in _GRAPHEME.finditer(text, end, limit + 1):
        if match.end() > limit:
            break
        end = match.end()
    return text[:end].rstrip()


def iso(ms: int) -> str | None:
    """Milliseconds since 1970 as an ISO 8601 UTC string; None where that is no time a calendar has."""
    minute, rest = divmod(ms, 60_000)
    prefix = _minute(minute)
    return prefix and f"{prefix}{rest // 1000:02}.{rest % 1000:03}Z"


@lru_cache(256)
def _minute(minute: int) -> str | None:
    # Rows that are drawn together are often of one minute.
    try:
        return (_EPOCH + timedelta(minutes=minute)).isoformat(timespec="minutes") + ":"
    except OverflowError:
        return None


def as_dict(value: object) -> dict[str, Any]:
    """`value` if it is an object, else an empty one: a field of a damaged entry can be anything."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_str(value: object) -> str:
    return value if isinstance(value, str) else ""


def blocks(content: object) -> list[dict[str, Any]]:
    """Content of a message as blocks; a string is one text block."""
    if isinstance(content, list):
        return [block for block in cast("list[Any]", content) if isinstance(block, dict)]
    return [{"type": "text", "text": content}] if isinstance(content, str) else []


def message_of(entry: Entry) -> dict[str, Any]:
    return as_dict(entry.get("message"))


def content_of(entry: Entry) -> object:
    """Content of a message, or of an entry that is one (`custom_message`)."""
    return message_of(entry).get("content") if "message" in entry else entry.get("content")


def plain_text(content: object) -> str:
    """Join the text blocks of `content` as pi and omp join them for the editor."""
    return "".join(as_str(block.get("text")) for block in blocks(content) if block.get("type") == "text")


def images(content: object) -> list[dict[str, Any]]:
    return [block for block in blocks(content) if block.get("type") == "image"]


def calls_of(entry: Entry) -> list[dict[str, Any]]:
    """Tool call blocks of an assistant message."""
    return [block for block in blocks(content_of(entry)) if block.get("type") == "toolCall"]


def call_text(call: dict[str, Any]) -> str:
    """Write a call as `[name: main argument]`; the name alone when no argument is a string."""
    name = as_str(call.get("name")) or as_str(call.get("toolName")) or "tool"
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return f"[{name}: {arguments}]" if arguments else f"[{name}]"
    fields = as_dict(arguments)
    for key in _ARGUMENTS:
        value = fields.get(key)
        if isinstance(value, str) and value and not value.isspace():
            return f"[{name}: {value}]"
    for value in fields.values():
        if isinstance(value, str) and value and not value.isspace():
            return f"[{name}: {value}]"
    return f"[{name}]"


def image_text(block: dict[str, Any]) -> str:
    """Write an image as `[image 12 kB]`; `[image]` where the data is kept elsewhere."""
    data = as_str(block.get("data")) or as_str(as_dict(block.get("source")).get("data"))
    size = 0 if data.startswith("blob:") else len(data) * 3 // 4
    if (beside := as_dict(block.get("attachment")).get("bytes")) and isinstance(beside, int):
        size = beside
    if size >= 1_000_000:
        return f"[image {size / 1_000_000:.0f} MB]"
    return f"[image {max(1, round(size / 1000))} kB]" if size else "[image]"


def message_text(message: dict[str, Any]) -> str:
    """Text and images of a message for a row, not yet cut; for an assistant without text, what there is instead."""
    content = message.get("content")
    parts: list[str] = []
    for block in blocks(content):
        type_ = block.get("type")
        if type_ == "text":
            text = as_str(block.get("text"))
            if text and not text.isspace():
                parts.append(text)
        elif type_ == "image":
            parts.append(image_text(block))
    text = "\n".join(parts)
    if text or message.get("role") != "assistant":
        return text or "(no content)"
    stop = as_str(message.get("stopReason"))
    if stop in {"error", "aborted"}:
        return as_str(message.get("errorMessage")) or f"({stop})"
    calls = [call_text(block) for block in blocks(content) if block.get("type") == "toolCall"]
    return " ".join(calls) or "(no content)"


def _tokens(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        return ""
    return f"{value / 1000:.0f}k tokens" if value >= 1000 else f"{value:.0f} tokens"


def _tagged(tag: str, text: str) -> str:
    return f"[{tag}] {text}" if text else f"[{tag}]"


def _named(word: str, value: object) -> str:
    return f"{word}: {value}" if isinstance(value, str) and value.strip() else f"{word} cleared"


def _compaction(e: dict[str, Any]) -> str:
    size = _tokens(e.get("tokensBefore"))
    return _tagged(f"compaction: {size}" if size else "compaction", as_str(e.get("summary")))


def _bash(m: dict[str, Any]) -> str:
    return (
        f"$ {as_str(m.get('command'))}".rstrip() if m.get("role") == "bashExecution" else f">>> {as_str(m.get('code'))}"
    )


def _custom(e: dict[str, Any]) -> str:
    text = message_text({"content": e.get("content")})
    return text if text != "(no content)" else f"[{as_str(e.get('customType')) or 'custom'}]"


def _system(m: dict[str, Any]) -> str:
    text = message_text({"content": m.get("content")})
    if text != "(no content)":
        return text
    sections = as_dict(m.get("sections")).values()
    return "\n".join(as_str(section) for section in sections) or "[system prompt]"


def _files(m: dict[str, Any]) -> str:
    files = m.get("files")
    names = [as_str(as_dict(item).get("path")) for item in cast("list[Any]", files)] if isinstance(files, list) else []
    return " ".join(f"[file: {name}]" for name in names if name) or message_text(m)


_ROLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "bashExecution": _bash,
    "pythonExecution": _bash,
    "custom": _custom,
    "hookMessage": _custom,
    "system": _system,
    "developer": _system,
    "fileMention": _files,
    "branchSummary": lambda m: _tagged("branch summary", as_str(m.get("summary"))),
    "compactionSummary": _compaction,
}


def _model(e: dict[str, Any]) -> str:
    model = as_str(e.get("model")) or "/".join(filter(None, (as_str(e.get("provider")), as_str(e.get("modelId")))))
    role = as_str(e.get("role"))
    return f"model: {model or '?'}" + (f" ({role})" if role and role != "default" else "")


def _turn_end(e: dict[str, Any]) -> str:
    reason = as_str(as_dict(e.get("reason")).get("kind"))
    return f"turn {_number(e, 'turn')} ended" + (f": {reason}" if reason else "")


def _number(e: dict[str, Any], key: str) -> str:
    value = e.get(key)
    return str(value) if isinstance(value, int) and abs(value) < 2**63 else "?"


def _chunks(e: dict[str, Any]) -> str:
    texts = e.get("texts")
    joined = "".join(as_str(text) for text in cast("list[Any]", texts)) if isinstance(texts, list) else ""
    return joined or "[chunks]"


def _rules(e: dict[str, Any]) -> str:
    rules = e.get("injectedRules")
    names = ", ".join(as_str(rule) for rule in cast("list[Any]", rules)) if isinstance(rules, list) else ""
    return _tagged("rules", names)


_TYPES: dict[str, Callable[[dict[str, Any]], str]] = {
    "compaction": _compaction,
    "branch_summary": lambda e: _tagged("branch summary", as_str(e.get("summary"))),
    "custom": lambda e: f"[{as_str(e.get('customType')) or 'custom'}]",
    "custom_message": _custom,
    "label": lambda e: _named("label", e.get("label")),
    "model_change": _model,
    "thinking_level_change": lambda e: f"thinking: {as_str(e.get('thinkingLevel')) or 'default'}",
    "mode_change": lambda e: f"mode: {as_str(e.get('mode')) or 'none'}",
    "session_info": lambda e: _named("title", e.get("name")),
    "title_change": lambda e: _named("title", e.get("title")),
    "context_edit": lambda e: "[context edit: replaced]" if e.get("replacement") else "[context edit: removed]",
    "usage": lambda e: _tagged("usage", as_str(e.get("kind"))),
    "ttsr_injection": _rules,
    "turn_start": lambda e: f"turn {_number(e, 'turn')}",
    "turn_end": _turn_end,
    "step_start": lambda e: f"step {_number(e, 'turn')}.{_number(e, 'step')}",
    "step_end": lambda e: f"step {_number(e, 'turn')}.{_number(e, 'step')} ended",
    "tool_call": call_text,
    "assistant_chunks": _chunks,
    "request_header": lambda e: _tagged("request header", as_str(e.get("reason"))),
    "end_seed": lambda _: "[end of what was inherited]",
}


def row_text(entry: Entry, limit: int, call: dict[str, Any] | None = None) -> str:
    """Text of an entry's row: one line, at most `limit` code points. `call` is the call that a tool result answers."""
    type_ = as_str(entry.get("type"))
    if type_ == "message":
        message = message_of(entry)
        role = as_str(message.get("role"))
        if role == "toolResult":
            text = call_text(call or {"name": message.get("toolName")})
        else:
            text = _ROLES.get(role, message_text)(message)
    else:
        text = _TYPES.get(type_, lambda _: f"[{type_ or '?'}]")(entry)
    return one_line(text, limit)
