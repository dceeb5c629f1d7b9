"""What an entry says, as search knows it: the one text that is indexed, looked through and quoted from."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .text import as_dict, as_str, blocks, content_of, many_lines, message_of
from .tokens import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .types import Entry

SAID = 64 << 10  # code points of what a person or model says that count
HEAD, TAIL = 16 << 10, 8 << 10  # the same of what a tool is given, and of what it gives
ENTRY = 128 << 10  # of all parts of one entry together
RUN = 256  # of characters without a break, as base64 has them: nobody looks for a piece of such data

_PATHS = ("path", "file_path", "filePath", "command", "pattern", "query", "url")  # what stands first of a call
_run = re.compile(rf"[A-Za-z0-9+/=_-]{{{RUN},}}").sub
_half = re.compile(rf"[A-Za-z0-9+/=_-]{{{RUN // 2}}}").match


class Speaker(IntEnum):
    """Who says it, by weight: a match in what a person asked is worth more than one in what a tool printed."""

    USER = 0
    ANSWER = 1  # of a model, and what sums up: compactions, branch summaries, messages of extensions
    TOOL = 2  # calls alone, results, commands that a person ran


class Said(NamedTuple):
    speaker: Speaker
    text: str  # parts with BLOCK between them


def text_of(entry: Entry) -> Said | None:
    """What an entry says to a person who searches; None where that is nothing.

    Reasoning, images, headers, stream chunks and marks say nothing. The length is bounded whatever the entry holds.
    """
    type_ = as_str(entry.get("type"))
    parts_of = _ROLES.get(as_str(message_of(entry).get("role"))) if type_ == "message" else _TYPES.get(type_)
    if parts_of is None:
        return None
    speaker, parts = parts_of(message_of(entry) if type_ == "message" else entry)
    text = BLOCK.join(filter(None, map(_clean, parts)))[:ENTRY]
    return Said(speaker, text) if text else None


def says_something(type_: str, role: str | None) -> bool:
    """Whether entries of this shape can say something at all."""
    return (role or "") in _ROLES if type_ == "message" else type_ in _TYPES


def _clean(text: str) -> str:
    text = many_lines(text)
    # A long run holds half of its least length from some multiple of that on, so a few looks tell most texts.
    if any(_half(text, k) for k in range(0, len(text) - RUN // 2 + 1, RUN // 2)):
        text = _run(BLOCK, text)
    return text.strip()


def _ends(text: str) -> tuple[str, ...]:
    """Beginning and end of a long text: what a tool prints in between is rarely what somebody remembers."""
    return (text,) if len(text) <= HEAD + TAIL else (text[:HEAD], text[-TAIL:])


def _texts(content: object) -> list[str]:
    return [as_str(block.get("text")) for block in blocks(content) if block.get("type") == "text"]


def _user(message: dict[str, Any]) -> tuple[Speaker, Iterable[str]]:
    return Speaker.USER, [text[:SAID] for text in _texts(message.get("content"))]


def _assistant(message: dict[str, Any]) -> tuple[Speaker, Iterable[str]]:
    content = message.get("content")
    said = [text[:SAID] for text in [*_texts(content), as_str(message.get("errorMessage"))] if text]
    called = [part for block in blocks(content) if block.get("type") == "toolCall" for part in _call(block)]
    return (Speaker.ANSWER if said else Speaker.TOOL), said + called


def _call(block: dict[str, Any]) -> list[str]:
    arguments = block.get("arguments")
    fields = as_dict(arguments)
    ordered = [fields[name] for name in _PATHS if name in fields]
    ordered += [value for name, value in fields.items() if name not in _PATHS]
    found = [as_str(block.get("name")), *([arguments] if isinstance(arguments, str) else _leaves(ordered))]
    return [piece for text in found for piece in _ends(text)]


def _leaves(values: list[Any]) -> list[str]:
    """The texts and numbers in a JSON value, in its order."""
    found: list[str] = []
    size = 0
    waiting = values[::-1]
    while waiting and size < ENTRY:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*cast("dict[str, Any]", value).values()][::-1]
        elif isinstance(value, list):
            waiting += cast("list[Any]", value)[::-1]
        elif isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
            found.append(str(value))
            size += len(found[-1])
    return found


def _result(message: dict[str, Any]) -> tuple[Speaker, Iterable[str]]:
    return Speaker.TOOL, [piece for text in _texts(message.get("content")) for piece in _ends(text)]


def _command(message: dict[str, Any]) -> tuple[Speaker, Iterable[str]]:
    run = as_str(message.get("command")) or as_str(message.get("code"))
    return Speaker.TOOL, [*_ends(run), *_ends(as_str(message.get("output")))]


def _files(message: dict[str, Any]) -> tuple[Speaker, Iterable[str]]:
    files = message.get("files")
    listed = [as_dict(item) for item in cast("list[Any]", files)] if isinstance(files, list) else []
    named = [as_str(item.get("path")) for item in listed]
    return Speaker.TOOL, [*named, *(piece for item in listed for piece in _ends(as_str(item.get("content"))))]


def _custom(entry: dict[str, Any]) -> tuple[Speaker, Iterable[str]]:
    shown = _texts(content_of(entry)) if entry.get("display") is not False else []
    return Speaker.ANSWER, [text[:SAID] for text in shown]


def _summary(entry: dict[str, Any]) -> tuple[Speaker, Iterable[str]]:
    return Speaker.ANSWER, [as_str(entry.get("summary"))[:SAID]]


_ROLES: dict[str, Callable[[dict[str, Any]], tuple[Speaker, Iterable[str]]]] = {
    "user": _user,
    "assistant": _assistant,
    "toolResult": _result,
    "bashExecution": _command,
    "pythonExecution": _command,
    "custom": _custom,
    "hookMessage": _custom,
    "fileMention": _files,
    "branchSummary": _summary,
    "compactionSummary": _summary,
}
_TYPES: dict[str, Callable[[dict[str, Any]], tuple[Speaker, Iterable[str]]]] = {
    "custom_message": _custom,
    "compaction": _summary,
    "branch_summary": _summary,
}
