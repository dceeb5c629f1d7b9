"""What a person sees: sessions, rows, entries and facts as lines of text, cut by the terminal's width."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import IO, Any, cast

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from dsh_daemon.wire.words import home, plural

Row = dict[str, Any]
Info = dict[str, Any]
Part = tuple[str, str]  # text, name of its style

_STYLES = {
    "title": Style(bold=True),
    "strong": Style(bold=True),
    "user": Style(bold=True, color="cyan"),
    "assistant": Style(color="green"),
    "kind": Style(color="blue"),
    "dim": Style(dim=True),
    "label": Style(color="magenta"),
    "leaf": Style(bold=True, color="yellow"),
    "error": Style(color="red"),
    "warn": Style(color="yellow"),
    "good": Style(color="green"),
    "command": Style(color="cyan"),
    "hit": Style(bold=True, color="yellow"),
}
COMMON = "session-"  # how the ids begin that dsh makes
MOST_OF_AN_ID = 24  # characters of an id that a column holds; what needs more is shown whole
WIDEST = 120  # cells; what hangs at the edge of a line stays within reading distance of its text
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_INVISIBLE = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]+")
_BULLETS = {
    "done": ("●", "good"),
    "open": ("◐", "warn"),
    "interrupted": ("◐", "warn"),
    "pendingTool": ("◐", "warn"),
    "aborted": ("✗", "error"),
    "error": ("✗", "error"),
    "empty": ("○", "dim"),
}
_TAILS = {"pendingTool": "tool pending", "open": "turn open"}
_FLAGS = {"error", "aborted", "interrupted", "dangling", "orphan", "shadowed"}


def clean(text: str) -> str:
    """One printable line: no control character, no line break, nothing that turns the text's direction."""
    if text.isprintable():
        return text
    return _CONTROL.sub(" ", _INVISIBLE.sub("", text))


def clean_lines(text: str) -> Iterator[str]:
    """The lines of a longer text, each printable, tabs as spaces."""
    for line in text.replace("\r\n", "\n").split("\n"):
        yield clean(line.expandtabs(4))


def content_text(content: Any) -> str:
    """The text of a message's content, pictures as a word."""
    if isinstance(content, str):
        return content
    return " ".join(str(block.get("text") or f"[{block.get('type')}]") for block in content)


def cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def cut(text: str, width: int | None) -> str:
    """Cut to `width` cells with a final ellipsis; None cuts nothing."""
    if width is None or cells(text) <= width:
        return text
    if width < 1:
        return ""
    return set_cell_size(text, width - 1).rstrip() + "…"


def cut_parts(parts: Sequence[Part], width: int) -> list[Part]:
    """The same of a text of several styles."""
    room = width if _width(parts) <= width else width - 1
    shown: list[Part] = []
    for text, style in parts:
        if cells(text) > room:
            shown.append((set_cell_size(text, room).rstrip() + "…" if room >= 0 else "", style))
            break
        shown.append((text, style))
        room -= cells(text)
    return shown


def _width(parts: Iterable[Part]) -> int:
    return sum(cells(text) for text, _ in parts)


def pad(text: str, width: int) -> str:
    return text + " " * max(0, width - cells(text))


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns that stand two blanks apart."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(pad, row, widths)).rstrip() for row in rows]


def age(stamp: str | None, now: datetime | None = None) -> str:
    """`2 h ago` for an ISO time, its date after a month, `no time` for None."""
    when = _instant(stamp)
    if when is None:
        return "no time"
    seconds = ((now or datetime.now(UTC)) - when).total_seconds()
    if seconds < 60:
        return "just now"
    for unit, size, limit in (("min", 60, 60), ("h", 3600, 24), ("d", 86_400, 31)):
        if seconds < size * limit:
            return f"{int(seconds // size)} {unit} ago"
    return when.date().isoformat()


def clock(stamp: str | None) -> str:
    """Local time of day of an ISO time, blanks for None."""
    when = _instant(stamp)
    return when.astimezone().strftime("%H:%M:%S") if when else " " * 8


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def _instant(stamp: str | None) -> datetime | None:
    if not stamp:
        return None
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


class Screen:
    """Where lines go: their width (None where nothing is cut) and whether they may be coloured."""

    def __init__(self, out: IO[str]) -> None:
        console = Console(file=out)
        self.out = out
        self.is_terminal = console.is_terminal
        self.width: int | None = console.width if self.is_terminal or os.environ.get("COLUMNS", "").isdigit() else None
        colour = self.is_terminal and not os.environ.get("NO_COLOR") and not console.is_dumb_terminal
        self._system = _SYSTEMS.get(console.color_system or "") if colour else None

    def paint(self, text: str, style: str = "") -> str:
        if self._system is None or not style or not text:
            return text
        return _STYLES[style].render(text, color_system=self._system)

    def join(self, parts: Iterable[Part]) -> str:
        return "".join(self.paint(text, style) for text, style in parts)

    def fit(self, left: Sequence[Part], text: Part, right: Sequence[Part] = ()) -> str:
        """One line of `left`, as much of `text` as fits, and `right` at the edge of a terminal."""
        return self.fit_all(left, [text], right)

    def fit_all(self, left: Sequence[Part], middle: Sequence[Part], right: Sequence[Part] = ()) -> str:
        """The same with a text of several styles."""
        room = self.room(left, right)
        if room is None:
            return self.join([*left, *middle, ("  " if right else "", ""), *right])
        if room < 8 and right:  # too narrow for both: the text is worth more than what hangs from it
            return self.fit_all(left, middle)
        shown = cut_parts(middle, max(room, 1))
        gap = max(2, room + 2 - _width(shown)) if right else 0
        return self.clip([*left, *shown, (" " * gap, ""), *right])

    def room(self, left: Sequence[Part], right: Sequence[Part] = ()) -> int | None:
        """Cells that a text has between the two; None where nothing is cut."""
        if self.width is None:
            return None
        edge = min(self.width, WIDEST) if right else self.width
        return edge - _width(left) - (_width(right) + 2 if right else 0)

    def note(self, text: str, style: str = "dim", indent: str = "  ") -> Iterator[str]:
        """Lines of a remark, wrapped where the width is known; nothing of it is cut."""
        width = None if self.width is None else min(self.width, WIDEST) - len(indent)
        for line in [text] if width is None else wrap(text, max(width, 16), break_on_hyphens=False):
            yield indent + self.paint(line, style)

    def column(self, text: str, width: int) -> str:
        """Padded where nothing is aligned at an edge."""
        return pad(text, width) if self.width is None else text

    def entry_id(self, entry_id: str) -> str:
        """Short on a terminal, whole where nothing is cut."""
        return clean(entry_id) if self.width is None else short_id(entry_id)

    def clip(self, parts: Sequence[Part]) -> str:
        """Join the parts, dropping what stands beyond the width (a gutter of many levels can be that wide)."""
        if self.width is None:
            return self.join(parts)
        kept: list[Part] = []
        room = self.width
        for text, style in parts:
            piece = cut(text, room)
            kept.append((piece, style))
            room -= cells(piece)
            if room <= 0:
                break
        return self.join(kept)


_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
    "windows": ColorSystem.WINDOWS,
}


def short_id(entry_id: str) -> str:
    """What of an entry's id is shown, enough to type: eight characters, all of a `<id>~2`."""
    return clean(entry_id if "~" in entry_id else entry_id[:8])


def session_facts(info: Info) -> list[str]:
    """`pi`, `2 h ago`, `214 entries` and what else is worth a word."""
    count = info.get("entryCount")
    amount = plural(count, "entry", "entries") if count is not None else size(info["sizeBytes"])
    return [info["format"], age(info["lastActivityAt"]), amount, *session_state(info)]


def session_state(info: Info) -> list[str]:
    """Words for what is not as usual: running, how it ended, damage, pin, archive."""
    words: list[str] = []
    live = info.get("live")
    if live and live["status"] == "running":
        words.append("running" if live["certain"] else "perhaps running")
    elif info["tail"] not in {"done", "empty"}:
        words.append(str(_TAILS.get(info["tail"], info["tail"])))
    if info["health"] not in {"ok", "empty"}:
        words.append(info["health"])
    words += [word for word in ("pinned", "archived") if info[word]]
    return words


def bullet(info: Info) -> Part:
    live = info.get("live")
    if live and live["status"] == "running":
        return "▶", "good"
    return _BULLETS.get(info["tail"], ("●", "dim"))


def session_line(screen: Screen, info: Info) -> str:
    """`● title   pi · 2 h ago · 214 entries`, the head of a tree."""
    facts = " · ".join(session_facts(info))
    return screen.fit([bullet(info), (" ", "")], (clean(info["title"]), "title"), [(clean(facts), "dim")])


def new_lines(screen: Screen, info: Info) -> Iterator[str]:
    """A session that was made: its line, its id, its file."""
    yield session_line(screen, info)
    yield screen.paint(clean(f"  {info['sessionId']}"), "dim")
    if info["path"]:
        room = None if screen.width is None else screen.width - 2
        yield screen.paint("  " + ending(clean(home(info["path"])), room), "dim")


def session_lines(screen: Screen, items: Sequence[Info]) -> Iterator[str]:
    """One line for each session, its facts in columns; a narrow terminal loses the least useful columns first."""
    titles = [clean(info["title"]) for info in items]
    longest = max((cells(title) for title in titles), default=0)
    columns = _columns(items, whole=screen.width is None)
    for dropped in ("place", "amount", "state", "format", "age", "id"):
        used = 4 + sum(2 + cells(column[0]) for column in columns.values())
        if screen.width is None or used + min(longest, 24) <= min(screen.width, WIDEST):
            break
        columns.pop(dropped, None)
    for number, (info, title) in enumerate(zip(items, titles, strict=True)):
        facts = "  ".join(column[number] for column in columns.values())
        if screen.width is None:
            facts = facts.rstrip()
        shown = screen.column(title, longest)
        yield screen.fit([bullet(info), (" ", "")], (shown, "dim" if info["archived"] else "title"), [(facts, "dim")])


def _columns(items: Sequence[Info], *, whole: bool) -> dict[str, list[str]]:
    """The columns that say something, each padded to one width."""
    rows = [session_facts(info) for info in items]
    ids = [str(info["sessionId"]) for info in items]
    columns = {
        "place": [ending(home(info["cwd"] or "-"), None if whole else 24) for info in items],
        "format": [row[0] for row in rows],
        "age": [row[1] for row in rows],
        "amount": [row[2] for row in rows],
        "state": [" ".join(row[3:]) for row in rows],
        "id": ids if whole else prefixes(ids),
    }
    if len(set(columns["place"])) < 2:
        del columns["place"]
    widths = {name: max((cells(text) for text in column), default=0) for name, column in columns.items()}
    return {
        name: [pad(clean(text), widths[name]) for text in column] for name, column in columns.items() if widths[name]
    }


def ending(text: str, width: int | None) -> str:
    """Cut to `width` cells from the left: the end of a path tells more than its beginning."""
    if width is None or cells(text) <= width:
        return text
    while text and cells(text) >= width:
        text = text[1:]
    return "…" + text


def prefixes(ids: Sequence[str]) -> list[str]:
    """As much of each id as names it among these, at least eight characters of what tells it from others."""
    shown: dict[str, str] = {}
    ordered = sorted(set(ids))
    for before, one, after in zip(["", *ordered], ordered, [*ordered[1:], ""], strict=False):
        least = len(COMMON) + 8 if one.startswith(COMMON) else 8
        length = max(least, 1 + max(_shared(before, one), _shared(one, after)))
        shown[one] = one[:length] if length <= MOST_OF_AN_ID else one
    return [shown[one] for one in ids]


def _shared(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def row_line(screen: Screen, row: Row, *, ids: bool = True) -> str:
    """A row of the tree: its id, gutter, kind, text, and at the edge its label, flags and the leaf's mark."""
    active = row["active"] or row["leaf"]
    left: list[Part] = [(pad(screen.entry_id(row["id"]), 8) + "  ", "dim")] if ids else []
    left.append((row["gutter"], "dim"))
    if row.get("collapsed"):
        left.append(("▸ ", "strong" if active else "dim"))
    text = clean(row["text"])
    kind, style = kind_column(row, text)
    failed = not {"error", "aborted"}.isdisjoint(row.get("flags", ()))
    if kind:
        left.append((pad(kind, 9) + "  ", style if active else "dim"))
    text_style = "dim" if not active else "error" if failed else ""
    if active and not failed and row["kind"] == "user":
        text_style = "strong"
    return screen.fit(left, (text, text_style), row_marks(row))


def kind_column(row: Row, text: str) -> Part:
    """The word before the text; none where the text names itself in brackets."""
    kind = row["kind"]
    if kind == "tool" or text.startswith("["):
        return "", ""
    word = clean(row["type"])[:16] if kind == "other" else kind
    return word, kind if kind in {"user", "assistant"} else "kind"


def row_marks(row: Row) -> list[Part]:
    marks: list[Part] = []
    if row.get("collapsed") and row.get("hidden"):
        marks.append((f"({row['hidden']:,})", "dim"))
    marks += [(flag, "error" if flag != "interrupted" else "warn") for flag in row.get("flags", ()) if flag in _FLAGS]
    if row.get("label"):
        marks.append((f"⚑ {clean(row['label'])}", "label"))
    if row["leaf"]:
        marks.append(("← leaf", "leaf"))
    return [part for mark in marks for part in (("  ", ""), mark)][1:]


def facts(
    screen: Screen, pairs: Sequence[tuple[str, str]], *, indent: str = "", whole: Iterable[str] = ()
) -> Iterator[str]:
    """Two columns, names dim; the values of `whole` are for copying and never cut."""
    width = max((cells(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        left = (indent + pad(name, width) + "  ", "dim")
        shown = (clean(value), "")
        yield screen.join([left, shown]) if name in whole else screen.fit([left], shown)


def entry_lines(screen: Screen, entry: dict[str, Any]) -> Iterator[str]:
    """An entry as stored, read by a person: a line of facts, then its text; unknown shapes as JSON."""
    message = _table(entry.get("message"))
    head = [str(part) for part in (entry.get("type"), message.get("role"), entry.get("timestamp")) if part]
    yield screen.join([(short_id(str(entry.get("id", ""))), "strong"), ("  " + clean("  ".join(head)), "dim")])
    body = message or entry
    error = body.get("errorMessage")
    shown = list(_blocks(body)) or ([] if error else [(json.dumps(entry, ensure_ascii=False, indent=2), "")])
    for text, style in ([(str(error), "error")] if error else []) + shown:
        for line in clean_lines(text) if text.strip() else ():
            yield screen.paint(line, style)
    if cut_off := _table(entry.get("truncated")):
        yield screen.paint(clean(f"… {cut_off.get('field')} is {cut_off.get('bytes')} bytes, cut here"), "dim")


def message_lines(screen: Screen, message: dict[str, Any]) -> Iterator[str]:
    """A message as a model gets it, in any provider's form: who speaks, then what is said, a little to the right."""
    role = clean(str(message.get("role")))
    about = next((str(message[name]) for name in ("toolName", "customType", "tool_call_id") if message.get(name)), "")
    yield screen.join(
        [(role, role if role in {"user", "assistant"} else "kind"), (clean(about and f"  {about}"), "dim")]
    )
    calls = message.get("tool_calls")
    asked = [_block(call) for call in cast("list[Any]", calls)] if isinstance(calls, list) else []
    for text, style in [*_blocks(message), *asked]:
        for line in clean_lines(text) if text.strip() else ():
            yield ("  " + screen.paint(line, style)).rstrip()


def _table(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _blocks(body: dict[str, Any]) -> Iterator[Part]:
    for field in ("content", "summary", "label", "name", "command", "output"):
        content = body.get(field)
        if isinstance(content, str):
            yield content, ""
        elif isinstance(content, list):
            for block in cast("list[Any]", content):
                yield _block(block)
    for section in _table(body.get("sections")).values():  # of a system prompt
        yield str(section), ""


def _block(block: Any) -> Part:
    fields = _table(block)
    match fields.get("type"):
        case "text":
            return str(fields.get("text", "")), ""
        case "thinking":
            return str(fields.get("thinking", "")), "dim"
        case "toolCall":
            return f"[{fields.get('name')}] {json.dumps(fields.get('arguments'), ensure_ascii=False)}", "kind"
        case "image":
            kind = fields.get("mimeType") or _table(fields.get("source")).get("media_type")
            return f"[image {kind or ''}]", "dim"
        case "image_url":
            return "[image]", "dim"
        case "tool_use":
            return f"[{fields.get('name')}] {json.dumps(fields.get('input'), ensure_ascii=False)}", "kind"
        case "function":
            function = _table(fields.get("function"))
            return f"[{function.get('name')}] {function.get('arguments')}", "kind"
        case "tool_result":
            return "\n".join(text for text, _ in _blocks(fields)), ""
        case _:
            return json.dumps(block, ensure_ascii=False), "dim"
