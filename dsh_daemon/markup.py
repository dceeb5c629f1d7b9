"""How a document is written: pieces as Markdown, or as a page of HTML that needs nothing else and runs nothing."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from .text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_PROSE = 50_000  # code points; what is longer is shown as it is written: parsing would take too long
MOST_BRACKETS = 1_000  # in prose; each open one may be looked at again for each that follows
LINES_IN_VIEW = 15  # of something verbatim; more are folded away
_SPECIAL = re.compile(r"[\\`*_\[\]<>#|~&!$]")
# What would be more than text: a tag, a picture, a link (or its definition) to anywhere but the web, a formula.
_WEB = r"\s*<?(?:https?://|mailto:)"
_ACTIVE = re.compile(
    rf"<(?=[A-Za-z/!?])(?!https?://[^\s<>`]+>)|!(?=\[)|\](?=\((?!{_WEB})|:(?!{_WEB}))|\$", re.IGNORECASE
)
_ENTITIES = {"<": "&lt;", "!": "&#33;", "]": "&#93;", "$": "&#36;"}
_FENCE = re.compile("(`{3,})[^`]*$|(~{3,})")
_CLOSING = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*")
_LINK = re.compile(r"(https?|mailto):", re.IGNORECASE)


class Piece(NamedTuple):
    """What a document is made of: a heading, prose, something verbatim, or a remark."""

    kind: str  # "turn" | "head" | "text" | "thinking" | "code" | "note" | "error"
    text: str  # of "turn" and "head" the heading, else what is said
    title: str = ""  # of "code" its title; of headings what stands beside them, small
    style: str = ""  # of "head" the role; of "code" what it is: "call", "result", "failed" or "made-up"


class Markdown:
    """CommonMark. Prose stands in quotes, so that no heading, list or open fence of it reaches into the rest."""

    def head(self, title: str, facts: Sequence[tuple[str, str]]) -> str:
        lines = [f"- {name}: {_plain(value)}" for name, value in facts]
        return f"# {_plain(title)}\n\n" + "\n".join(lines) + "\n"

    def piece(self, piece: Piece) -> str:
        match piece.kind:
            case "turn":
                return f"\n---\n\n## {_plain(piece.text)}{_aside(piece.title)}\n"
            case "head":
                return f"\n### {_plain(piece.text)}{_aside(piece.title)}\n"
            case "text":
                return "\n" + _quoted(_inert(piece.text), "> ")
            case "thinking":
                return "\n> *Thinking*\n>\n" + _quoted(_inert(piece.text), "> > ")
            case "code":
                return f"\n**{_plain(piece.title)}**\n" + (f"\n{_fenced(piece.text)}" if piece.text else "")
            case "error":
                return f"\n**⚠ {_plain(piece.text)}**\n"
            case _:
                return f"\n*{_plain(piece.text)}*\n"

    def tail(self) -> str:
        return ""


class Popup(Markdown):
    """Markdown for a small window: all that a log says stands in fences, so that none of it is a link or an image."""

    def piece(self, piece: Piece) -> str:
        match piece.kind:
            case "turn" | "head":
                return f"\n**{_plain(piece.text)}**{_aside(piece.title)}\n"
            case "text":
                return f"\n{_fenced(piece.text)}"
            case "thinking":
                return f"\n*Thinking*\n\n{_fenced(piece.text)}"
            case _:
                return super().piece(piece)


class Plain:
    """The same for what shows text and nothing else."""

    def piece(self, piece: Piece) -> str:
        match piece.kind:
            case "turn" | "head":
                return f"\n{piece.text}{f' · {piece.title}' if piece.title else ''}\n"
            case "thinking":
                return f"\nThinking:\n{piece.text}\n"
            case "code":
                return f"\n{piece.title}\n" + (f"{piece.text}\n" if piece.text else "")
            case "error":
                return f"\n⚠ {piece.text}\n"
            case _:
                return f"\n{piece.text}\n"


def _plain(text: str) -> str:
    """One line in which nothing means anything to Markdown."""
    return _SPECIAL.sub(r"\\\g<0>", one_line(text, 2_000))


def _aside(text: str) -> str:
    return f" · {_plain(text)}" if text else ""


def _quoted(text: str, mark: str) -> str:
    return "".join((mark + line).rstrip(" ") + "\n" for line in text.split("\n"))


def _fenced(text: str) -> str:
    """`text` in a fence that is longer than any in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}\n"


def _inert(text: str) -> str:
    """Markdown in which nothing runs, loads or leads astray; code is left as it is where that is surely code.

    Surely: a fence that begins at the edge, or a span that ends on its line, with every span before it in its
    paragraph ended too.
    """
    if not _ACTIVE.search(text):
        return text
    lines: list[str] = []
    fence = ""
    sound = True
    for line in text.split("\n"):
        if fence:
            if found := _CLOSING.fullmatch(line):
                # A tab is as wide as its place in the line says, and the line is about to get another place.
                indent = found[1].replace("\t", "    ")
                line = indent + found[2]  # noqa: PLW2901
                if len(indent) <= 3 and found[2].startswith(fence):
                    fence = ""
            lines.append(line)
            continue
        if found := _FENCE.match(line):
            fence = found[1] or found[2]
            sound = True
            lines.append(line if found[1] else _disarmed(line))
            continue
        sound = sound or not line.strip()
        escaped, ended = _escaped(line) if sound and "\\`" not in line else (_disarmed(line), "`" not in line)
        sound = sound and ended
        if line.startswith(("    ", "\t")):  # code, as a rule, in which an entity would be read as it is written
            escaped = escaped.replace(_ENTITIES["$"], "$")
        lines.append(escaped)
    return "\n".join(lines)


def _disarmed(text: str) -> str:
    return _ACTIVE.sub(lambda found: _ENTITIES[found[0]], text)


def _escaped(line: str) -> tuple[str, bool]:
    """A line that is disarmed outside its spans of code, and whether all of its spans are ended."""
    parts = re.split("(`+)", line)  # text, run, text, run, …
    done: list[str] = []
    at = 0
    ended = True
    while at < len(parts):
        if at % 2 == 0:
            done.append(_disarmed(parts[at]))
            at += 1
            continue
        close = next((k for k in range(at + 2, len(parts), 2) if parts[k] == parts[at]), 0)
        ended = ended and bool(close)
        done += parts[at : close + 1] if close else parts[at : at + 1]
        at = close + 1 if close else at + 1
    return "".join(done), ended


class Html:
    """One page without scripts; it loads nothing, and follows the reader's choice of light or dark."""

    def __init__(self) -> None:
        from markdown_it import MarkdownIt

        # Images would tell somebody else that the page is read. Lines stay lines: most prompts are no Markdown.
        prose = (
            MarkdownIt("commonmark", {"html": False, "breaks": True})
            .enable(["table", "strikethrough"])
            .disable("image")
        )
        prose.validateLink = _is_link
        prose.add_render_rule("link_open", _link_open)
        self._prose = prose

    def head(self, title: str, facts: Sequence[tuple[str, str]]) -> str:
        rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
        name = escape(one_line(title, 240))
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            '<meta name="referrer" content="no-referrer">\n'
            f"<title>{name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
            f'<header>\n<h1 dir="auto">{name}</h1>\n<dl>{rows}</dl>\n</header>\n'
        )

    def piece(self, piece: Piece) -> str:
        text, title = piece.text, f" <small>{escape(piece.title)}</small>" if piece.title else ""
        match piece.kind:
            case "turn":
                return f"<h2>{escape(text)}{title}</h2>\n"
            case "head":
                style = piece.style if piece.style in {"user", "assistant", "summary"} else "other"
                return f'<h3 class="{style}">{escape(text)}{title}</h3>\n'
            case "text":
                return self._text(text)
            case "thinking":
                return f'<details class="thinking"><summary>Thinking</summary>\n{self._text(text)}</details>\n'
            case "code":
                return self._code(piece)
            case "error":
                return f'<p class="error">⚠ {escape(text)}</p>\n'
            case _:
                return f'<p class="note">{escape(text)}</p>\n'

    def _text(self, text: str) -> str:
        if len(text) > LONGEST_PROSE or text.count("[") > MOST_BRACKETS:
            return f'<pre class="long" dir="auto">{escape(text)}</pre>\n'
        return f'<div class="text" dir="auto">{self._prose.render(text)}</div>\n'

    def _code(self, piece: Piece) -> str:
        if not piece.text:
            return f'<p class="{piece.style} bare">{escape(piece.title)}</p>\n'
        shown = "" if piece.text.count("\n") >= LINES_IN_VIEW else " open"
        summary = f"<summary>{escape(piece.title)}</summary>"
        return f'<details class="{piece.style}"{shown}>{summary}\n<pre>{escape(piece.text)}</pre></details>\n'

    def tail(self) -> str:
        return "</main>\n</body>\n</html>\n"


def _is_link(url: str) -> bool:
    return _LINK.match(url.strip()) is not None


def _link_open(renderer: Any, tokens: Any, at: int, options: Any, env: Any) -> str:
    tokens[at].attrSet("rel", "noopener noreferrer nofollow")
    return renderer.renderToken(tokens, at, options, env)


_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --dim: #656d76; --back: #fff; --box: #f6f8fa; --line: #d1d9e0;
  --user: #0969da; --bot: #1a7f37; --bad: #cf222e; --sum: #8250df; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --dim: #8d96a0; --back: #0d1117; --box: #161b22;
  --line: #30363d; --user: #58a6ff; --bot: #3fb950; --bad: #ff7b72; --sum: #d2a8ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); line-height: 1.55;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 52rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 0; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: .95rem; margin: 1.5rem 0 .25rem; color: var(--dim); }
h3.user { color: var(--user); } h3.assistant { color: var(--bot); } h3.summary { color: var(--sum); }
small { font-weight: 400; color: var(--dim); margin-left: .5em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0; font-size: .9rem; }
dt { color: var(--dim); } dd { margin: 0; }
.text h1, .text h2, .text h3, .text h4 { font-size: 1rem; color: inherit; border: 0; margin: 1rem 0 .5rem; padding: 0; }
.text > :first-child { margin-top: 0; } .text > :last-child { margin-bottom: 0; }
a { color: var(--user); }
blockquote { margin: 0 0 1rem; padding-left: 1rem; border-left: 3px solid var(--line); color: var(--dim); }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: .25rem .6rem; text-align: left; }
pre, code { font: .85em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
code { background: var(--box); padding: .1em .3em; border-radius: 4px; }
pre { background: var(--box); padding: .75rem 1rem; border-radius: 6px; overflow: auto;
  max-height: 40rem; margin: .4rem 0; }
pre code { background: none; padding: 0; font-size: 1em; }
pre.long { white-space: pre-wrap; }
details, p.bare { margin: .5rem 0; padding-left: .75rem; border-left: 3px solid var(--line); font-size: .95em; }
details.failed, details.made-up { border-color: var(--bad); }
summary { cursor: pointer; color: var(--dim); }
details.failed summary, details.made-up summary { color: var(--bad); }
.thinking { color: var(--dim); font-style: italic; }
.note { color: var(--dim); font-size: .9em; margin: .5rem 0; }
.error { color: var(--bad); margin: .5rem 0; }
@media print { pre { max-height: none; white-space: pre-wrap; } }
"""
