"""A path as a document to read, to keep or to pass on: Markdown, a page of HTML, or the entries themselves.

Entries become pieces, which know nothing of either language; each language says how it writes a piece. What a log says
is never trusted: in Markdown it stands in quotes and fences that it cannot leave, in HTML all of it is escaped.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

import orjson

from . import aside, turns
from .entries import Flag
from .log.index import NONE
from .markup import Html, Markdown, Piece
from .session import dumps
from .text import as_dict, as_str, blocks, image_text, many_lines, message_of, one_line, row_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .log.index import Index
    from .session import Session
    from .types import Entry

BATCH = 256  # entries that are read at once
RESULT_LIMIT = 10_000  # code points of a tool's arguments or result
TEXT_LIMIT = 1_000_000  # of anything else
LINE_LIMIT = 240
ENVELOPE = 1024  # bytes of a message beside the text
MADE_UP = {"kind": "interrupted"}

_ROLES = {
    "user": "User",
    "assistant": "Assistant",
    "bashExecution": "Shell",
    "pythonExecution": "Python",
    "custom": "Note",
    "hookMessage": "Note",
    "developer": "Developer",
    "fileMention": "Files",
    "branchSummary": "Summary of another branch",
    "compactionSummary": "Compaction",
}
_SMALL = frozenset({"model_change", "thinking_level_change", "mode_change"})
# The surroundings of JSON that stands in a log as it does: escapes mean the same as these characters.
_STEERING = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


def transcript(session: Session, path: Sequence[int], format_: str, limit: int, *, cut_off: bool = False) -> str:
    """The document of a path (ordinals, root first) that takes at most `limit` bytes as a JSON string.

    What does not fit is left out from the beginning on, with a note. `cut_off`: whether the turn at the end of the path
    is to be shown as interrupted.
    """
    return "".join(parts(session, path, format_, limit, cut_off=cut_off))


def parts(session: Session, path: Sequence[int], format_: str, limit: int, *, cut_off: bool = False) -> list[str]:
    """The same in parts: one string of them all takes four times the memory where one character is no Latin one."""
    if format_ == "jsonl":
        return _lines(session, path, limit)
    language = Html() if format_ == "html" else Markdown()
    index = session.index
    found = turns.spans(index, path)
    turns.give_numbers(found, session.fetch(turn.start for turn in found if turn.recorded))
    headings = {turn.start: _turn(index, found, k) for k, turn in enumerate(found)}
    head = language.head(_title(session), _facts(session, path, len(found)))
    room = limit - ENVELOPE - _size(head) - _size(language.tail())
    made: list[str] = [language.tail()]  # last first
    shown = len(path)
    if cut_off:
        made.append(_written(language, _closing(session, found[-1])))
        room -= _size(made[-1])
    for start in range(len(path), 0, -BATCH):
        aside.go_on()
        batch = path[max(0, start - BATCH) : start]
        read = session.fetch(batch)
        for i in reversed(batch):
            pieces = [*headings.get(i, ()), *pieces_of(index, i, read(i))]
            text = _written(language, pieces)
            room -= _size(text)
            if room < 0:
                break
            if text:
                made.append(text)
            shown -= 1
        if room < 0:
            break
    if shown:
        text = f"The first {shown:,} of {len(path):,} entries are left out: the whole would be too long."
        made.append(_written(language, [Piece("note", text)]))
    if not path:
        made.append(_written(language, [Piece("note", "Nothing was said yet.")]))
    return [head, *reversed(made)]


def _written(language: Html | Markdown, pieces: Iterable[Piece]) -> str:
    return "".join(language.piece(piece) for piece in pieces)


def _size(text: str) -> int:
    return len(orjson.dumps(text))


def _lines(session: Session, path: Sequence[int], limit: int) -> list[str]:
    """The entries as they are stored, one on each line; where some are left out, the first line says how many."""
    room = limit - ENVELOPE
    lines: list[str] = []  # last first
    for i in reversed(path):
        aside.go_on()
        text = _stored(session, i)
        room -= _size(text)
        if room < 0:
            note = {"type": "custom", "customType": "dsh-daemon/left-out", "data": {"entries": len(path) - len(lines)}}
            lines.append(dumps(note).decode() + "\n")
            break
        lines.append(text)
    lines.reverse()
    return lines


def _stored(session: Session, i: int) -> str:
    raw = session.raw(i)
    try:
        text = raw.decode()
        orjson.loads(raw)
    except ValueError:  # a damaged record, as far as it can be read
        text = dumps(session.entry(i)).decode()
    text = text.strip().replace("\n", " ").replace("\r", " ")  # between tokens; inside a string neither can stand
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


# What stands above it all


def _title(session: Session) -> str:
    first = session.index.facts.first_user
    named = session.title() or (row_text(session.entry(first), LINE_LIMIT) if first != NONE else "")
    return one_line(named, LINE_LIMIT) or session.wire_id


def _facts(session: Session, path: Sequence[int], count: int) -> list[tuple[str, str]]:
    index, header = session.index, session.header
    times = [time for i in (*path[:1], *path[-1:]) if (time := _time(index, i))]
    entries = "entry" if len(path) == 1 else "entries"
    pairs = [
        ("Session", session.wire_id),
        ("Agent", header.format),
        ("Folder", header.cwd or ""),
        ("Time", " to ".join(dict.fromkeys(times))),
        ("Length", f"{len(path):,} {entries}, {count:,} {'turn' if count == 1 else 'turns'}"),
        ("Parent", header.parent or ""),
    ]
    return [(name, one_line(value, 1_000)) for name, value in pairs if value]


def _time(index: Index, i: int) -> str:
    stamp = index.time.iso(i)
    return f"{stamp[:10]} {stamp[11:16]} UTC" if stamp else ""


def _turn(index: Index, found: Sequence[turns.Turn], k: int) -> list[Piece]:
    """The heading of a turn; before it, that the one above was not ended."""
    turn = found[k]
    pieces: list[Piece] = []
    if k and found[k - 1].recorded and found[k - 1].end == NONE:
        pieces.append(_interrupted(found[k - 1]))
    return [*pieces, Piece("turn", f"Turn {turn.number:,}", _time(index, turn.start))]


def _interrupted(turn: turns.Turn) -> Piece:
    return Piece("error", f"Turn {turn.number:,} was interrupted: the log does not say how it ended.")


def _closing(session: Session, turn: turns.Turn) -> Iterator[Piece]:
    """What would end a turn that nobody runs any more; none of it is in the log."""
    calls = turns.unanswered(turn, session.index, session.fetch(turn.exchange))
    for entry in turns.closers(turn, 0, calls, MADE_UP):
        if entry["type"] == "message":
            message = message_of(entry)
            title = f"Result of {message['toolName'] or 'tool'} (interrupted, not in the log)"
            yield _code(title, _said(message["content"]), "made-up")
    yield _interrupted(turn)


# Entries as pieces


def pieces_of(index: Index, i: int, entry: Entry) -> Iterator[Piece]:
    """What a document says of one entry; nothing where that is only of use to programs."""
    type_ = as_str(entry.get("type"))
    mark = f"⚑ {one_line(index.labels[i].text, LINE_LIMIT)}" if i in index.labels else ""
    if type_ == "message":
        yield from _message(message_of(entry), mark)
        return
    match type_:
        case "custom_message":
            yield from _message({**entry, "role": "custom"}, mark)
        case "compaction":
            yield from _summary("Compaction", entry, mark)
        case "branch_summary":
            yield from _summary("Summary of another branch", entry, mark)
        case "turn_end":
            kind = turns.kind_of_end(entry)
            if kind != "completed":
                yield Piece("error", f"{row_text(entry, LINE_LIMIT)}{_why(entry)}")
        case _ if type_ in _SMALL or index.flags_of(i) & Flag.UNKNOWN:
            yield Piece("note", row_text(entry, LINE_LIMIT))
        case _:
            pass
    if mark and type_ not in {"custom_message", "compaction", "branch_summary"}:
        yield Piece("note", mark)


def _why(entry: Entry) -> str:
    """What went wrong in a turn, where its end tells."""
    error = as_dict(as_dict(entry.get("reason")).get("error"))
    text = one_line(as_str(error.get("message")), LINE_LIMIT)
    return f": {text}" if text else ""


def _message(message: dict[str, Any], mark: str) -> Iterator[Piece]:
    role = as_str(message.get("role"))
    if role == "toolResult":
        yield from _result(message, mark)
        return
    if role in {"branchSummary", "compactionSummary"}:
        yield from _summary(_ROLES[role], message, mark)
        return
    if role == "system":
        parts = [_said(message.get("content")), *map(as_str, as_dict(message.get("sections")).values())]
        yield _code("System prompt", "\n\n".join(filter(None, parts)), "result")
        return
    name = _ROLES.get(role) or one_line(role, 40) or "Message"
    custom = one_line(as_str(message.get("customType")), LINE_LIMIT) if name == "Note" else ""
    yield Piece("head", name, " ".join(filter(None, (custom, mark))), role)
    if role in {"bashExecution", "pythonExecution"}:
        yield from _execution(message)
    elif role == "fileMention":
        yield Piece("note", row_text({"type": "message", "message": message}, LINE_LIMIT))
    for block in blocks(message.get("content")):
        yield from _block(block)
    if role == "assistant":
        yield from _ending(message)


def _ending(message: dict[str, Any]) -> Iterator[Piece]:
    """How an answer ended, where that is not as usual."""
    stop = as_str(message.get("stopReason"))
    if stop in {"error", "aborted"}:
        word = "Error" if stop == "error" else "Aborted"
        text = one_line(as_str(message.get("errorMessage")), 2_000)
        yield Piece("error", f"{word}: {text}" if text else word)
    elif stop in {"length", "max_tokens", "max-tokens"}:
        yield Piece("error", "Cut off: the answer was longer than allowed")


def _block(block: dict[str, Any]) -> Iterator[Piece]:
    type_ = as_str(block.get("type"))
    if type_ == "text":
        if text := _cut(as_str(block.get("text")), TEXT_LIMIT):
            yield Piece("text", text)
    elif type_ == "thinking":
        if text := _cut(as_str(block.get("thinking")), TEXT_LIMIT):
            yield Piece("thinking", text)
    elif type_ == "toolCall":
        name = one_line(as_str(block.get("name")), 100) or "tool"
        yield _code(f"Call of {name}", _arguments(block.get("arguments")), "call")
    elif type_ == "image":
        yield Piece("note", image_text(block))
    elif type_:
        yield Piece("note", f"[{one_line(type_, 40)}]")


def _result(message: dict[str, Any], mark: str) -> Iterator[Piece]:
    name = one_line(as_str(message.get("toolName")), 100) or "tool"
    failed = message.get("isError") is True
    code = as_str(as_dict(message.get("details")).get("code"))
    state = " (interrupted)" if code in {turns.NOT_STARTED, turns.OUTCOME_UNKNOWN} else " (failed)" if failed else ""
    title = " ".join(filter(None, (f"Result of {name}{state}", mark)))
    yield _code(title, _said(message.get("content")), "failed" if failed else "result")
    for block in blocks(message.get("content")):
        if block.get("type") == "image":
            yield Piece("note", image_text(block))


def _execution(message: dict[str, Any]) -> Iterator[Piece]:
    command = as_str(message.get("command")) or as_str(message.get("code"))
    yield _code("Command", command, "call")
    output = as_str(message.get("output"))
    code = message.get("exitCode")
    failed = bool(message.get("cancelled")) or (isinstance(code, int) and code != 0)
    state = " (cancelled)" if message.get("cancelled") else f" (exit {code})" if failed else ""
    yield _code(f"Output{state}", output, "failed" if failed else "result")


def _summary(name: str, entry: dict[str, Any], mark: str) -> Iterator[Piece]:
    before = entry.get("tokensBefore")
    size = f"{before:,} tokens" if type(before) is int and 0 < before < 10**15 else ""
    yield Piece("head", name, " ".join(filter(None, (size, mark))), "summary")
    if text := _cut(as_str(entry.get("summary")), TEXT_LIMIT):
        yield Piece("text", text)


def _said(content: object) -> str:
    """All text of a content."""
    return "\n".join(as_str(block.get("text")) for block in blocks(content) if block.get("type") == "text")


def _arguments(arguments: object) -> str:
    """Arguments of a call as a person reads them: a line for each, long texts as they are."""
    if isinstance(arguments, str):
        return arguments
    if not isinstance(arguments, dict):
        return "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    lines: list[str] = []
    for name, value in cast("dict[str, Any]", arguments).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        several = "\n" in text.strip()
        lines.append(f"{name}:\n{text}" if several else f"{name}: {text}")
    return "\n".join(lines)


def _code(title: str, text: str, style: str) -> Piece:
    return Piece("code", _cut(text, RESULT_LIMIT), title, style)


def _cut(text: str, limit: int) -> str:
    """`text` clean, of a long one its beginning and its end, with a note between."""
    if len(text) > limit:
        left = len(text) - limit
        end = limit // 4
        text = f"{text[: limit - end]}\n… {left:,} characters are left out here …\n{text[-end:]}"
    return many_lines(text).strip("\n")
