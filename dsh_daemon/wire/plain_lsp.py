"""The methods of LSP itself, for editors without a plugin: their words, our service.

Lines are those of the log as it is on the disk; what an editor did to its copy of it is never looked at.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args
from urllib.parse import unquote, urlsplit

from dsh_daemon import reading, transcript
from dsh_daemon.errors import EntryNotFound, Fault, InvalidReference
from dsh_daemon.log.formats.peek import Peek, peek
from dsh_daemon.log.places import Span, Units, entry_at, spans
from dsh_daemon.markup import Piece, Plain, Popup
from dsh_daemon.text import one_line, row_text
from dsh_daemon.types import Kind

from . import types as t

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsh_daemon.items import Item
    from dsh_daemon.service import Service
    from dsh_daemon.session import Session
    from dsh_daemon.types import Row, SessionInfo

    from .connection import Connection

SESSIONS = 100  # of a workspace/symbol
HITS = 20
LEVELS = 32  # of an outline: encoders and editors give up at a few hundred
NAME = 120  # code points of a symbol's name
SYMBOL = 400  # bytes that are read in the time in which one is made
POPUP = 6_000  # code points of a hover
SUFFIXES = (".jsonl", ".jsonl.zstd")
SAID = [kind for kind in get_args(Kind) if kind != "title"]  # sessions are found by their titles already
FILTERS = ("default", "no-tools", "user-only")  # from the finest outline to the coarsest

# Numbers of LSP's SymbolKind, which choose an icon.
FILE, NAMESPACE, METHOD, PROPERTY, FUNCTION, STRING, OBJECT, OPERATOR = 1, 3, 6, 7, 12, 15, 19, 25
_ICONS: dict[Kind, int] = {
    "user": STRING, "assistant": METHOD, "tool": FUNCTION, "bash": OPERATOR,
    "summary": NAMESPACE, "compaction": NAMESPACE, "custom": OBJECT,
}  # fmt: skip


class Editor(NamedTuple):
    """What a client says that it can do, as far as we answer otherwise for it."""

    units: Units = "utf-16"  # in which columns are counted
    nested: bool = False  # it takes DocumentSymbol
    markup: Literal["markdown", "plaintext"] = "plaintext"
    shows: bool = False  # it opens documents on request

    @classmethod
    def of(cls, capabilities: dict[str, Any]) -> Editor:
        """What `capabilities` of initialize say; what is wrong in them says nothing."""
        encodings = _at(capabilities, "general", "positionEncodings")
        formats = _at(capabilities, "textDocument", "hover", "contentFormat")
        markdown = isinstance(formats, list) and "markdown" in cast("list[Any]", formats)[:1]
        return cls(
            "utf-8" if isinstance(encodings, list) and "utf-8" in encodings else "utf-16",
            _at(capabilities, "textDocument", "documentSymbol", "hierarchicalDocumentSymbolSupport") is True,
            "markdown" if markdown else "plaintext",
            _at(capabilities, "window", "showDocument", "support") is True,
        )


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return value


class PlainLsp:
    """The handlers. A file that is no session, or not yet saved, gets an empty answer: it may be any file."""

    def __init__(self, service: Any) -> None:
        self.service: Service = service

    async def workspace_symbol(self, client: Connection, params: t.WorkspaceSymbolParams) -> list[t.SymbolInformation]:
        listed = t.SessionListParams.model_validate({"query": params.query, "limit": SESSIONS})
        sessions = (await self.service.session_list(client, listed))["items"]
        start = _range(Span(0, 0, 0))
        found = [
            _symbol(info, info["title"], FILE, start, info["cwd"]) for info in sessions if info["path"] is not None
        ]
        words = params.query.replace('"', " ").strip()
        if len(words) < 2:
            return found
        await self.service.search.wait(client, params.work_done_token)
        return found + await self._hits(params.query, client.editor.units)

    async def _hits(self, query: str, units: Units) -> list[t.SymbolInformation]:
        """Entries in which the words are found, the strongest of each session, at their lines."""
        asked = t.SearchSessionsParams.model_validate({"query": query, "limit": HITS, "where": {"roles": SAID}})
        found: list[t.SymbolInformation] = []
        for group in (await self.service.off_loop(self.service.search.page, asked))["items"]:
            info, hit = group["session"], group["best"]
            if info["path"] is None:
                continue  # no file to open
            place = Span(0, 0, 0)
            with suppress(Fault):  # a session that went since is not worth an error
                place = await self._place(info["sessionId"], hit["entryId"], units)
            name = one_line(hit["snippet"], NAME) or hit["kind"]
            found.append(_symbol(info, name, _ICONS.get(hit["kind"], PROPERTY), _range(place), info["title"]))
        return found

    async def _place(self, session_id: str, entry_id: str, units: Units) -> Span:
        session = (await self.service.opened(session_id)).session
        return (await _spans(session, [session.find(entry_id)], units))[0]

    async def text_document_document_symbol(
        self, client: Connection, params: t.TextDocumentDocumentSymbolParams
    ) -> list[t.DocumentSymbol] | list[t.SymbolInformation]:
        try:
            info = await self._session_in(params.text_document.uri)
            if info is None:
                return []
            rows = await self._rows(client, info["sessionId"])
            session = (await self.service.opened(info["sessionId"])).session
            ordinal = session.index.ordinal
            rows = [row for row in rows if row["id"] in ordinal]
            chosen = sorted(ordinal[row["id"]] for row in rows)
            places = dict(zip(chosen, await _spans(session, chosen, client.editor.units), strict=True))
        except Fault:
            return []
        drawn = [(row, places[ordinal[row["id"]]]) for row in rows]
        if client.editor.nested:
            return await reading.off_loop(len(drawn) * SYMBOL, nested, drawn)
        return [_symbol(info, _name(row), _icon(row), _range(place), _detail(row)) for row, place in drawn]

    async def _rows(self, client: Connection, session_id: str) -> list[Row]:
        """The tree of a session, of a long one without its details; of one that is longer still what is at the leaf."""
        asked: dict[str, Any] = {"sessionId": session_id, "count": t.MAX_ROWS, "textLimit": NAME}
        page = await self._tree(client, asked)
        for mode in FILTERS[1:]:
            if page["total"] > t.MAX_ROWS:
                asked["filter"] = mode
                page = await self._tree(client, asked)
        if page["total"] > t.MAX_ROWS and page["leafId"] is not None:
            page = await self._tree(client, {**asked, "around": page["leafId"]})
        return page["rows"]

    async def _tree(self, client: Connection, asked: dict[str, Any]) -> t.TreeResult:
        return await self.service.session_tree(client, t.SessionTreeParams.model_validate(asked))

    async def text_document_hover(self, client: Connection, params: t.TextDocumentHoverParams) -> t.Hover | None:
        try:
            info = await self._session_in(params.text_document.uri)
            if info is None:
                return None
            session = (await self.service.opened(info["sessionId"])).session
            found = await _entry_at(session, params.position, client.editor.units)
            if found is None:
                return _header(session, info, params.position.line, client.editor)
            return await _hover(session, found, client.editor)
        except Fault:
            return None

    async def workspace_execute_command(
        self, client: Connection, params: t.WorkspaceExecuteCommandParams
    ) -> dict[str, Any]:
        target = params.target
        if target is None:
            request = params.request()
        else:
            request = await self._request_at(client, params, target)
        handlers: dict[str, Callable[..., Any]] = {
            "session/navigate": self.service.session_navigate,
            "session/branch": self.service.session_branch,
            "session/fork": self.service.session_fork,
            "session/label": self.service.session_label,
            "session/resume": self.service.session_resume,
            "session/launch": self.service.session_launch,
        }
        result = await handlers[params.row.method](client, request)
        made: str | None = result.get("session", {}).get("path")
        if made is not None and client.editor.shows:
            client.show(Path(made).as_uri())
        return result

    async def _request_at(
        self, client: Connection, params: t.WorkspaceExecuteCommandParams, target: t.Target
    ) -> t.SessionParams:
        """The request of a command that was given in a document. Raises InvalidReference, EntryNotFound and others."""
        uri = target.text_document.uri
        path = path_of(uri)
        if path is None:
            raise InvalidReference(f"{uri}: not the log of a session", ref=uri, reason="notASession: no local file")
        await self.service.background.up_to_date()
        info = self.service.store.info(await self.service.off_loop(self.service.store.open_path, path))
        session_id = info["sessionId"]
        if target.position is None or params.row.place is None:
            return params.request(session_id)
        session = (await self.service.opened(session_id)).session
        found = await _entry_at(session, target.position, client.editor.units)
        on_header = found is None and target.position.line <= session.header.slot
        if found is None and not (on_header and params.row.method == "session/navigate"):
            text = f"there is no entry on line {target.position.line + 1}"
            raise EntryNotFound(text, sessionId=session_id, entryId="")
        return params.request(session_id, None if found is None else session.index.ids[found])

    async def _session_in(self, uri: str) -> SessionInfo | None:
        """The session whose log a document is. One outside of the roots is listed for as long as the daemon runs."""
        path = path_of(uri)
        if path is None:
            return None
        await self.service.background.up_to_date()
        store = self.service.store
        item: Item | None = store.at(path)
        if item is None and (real := await self.service.off_loop(_unlisted, path)) is not None:
            await self.service.background.refresh([real])
            item = store.at(real)
        return None if item is None else store.info(item)


def path_of(uri: str) -> str | None:
    """The path that a file URI names, where it may be the log of a session."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or "\0" in path:
        return None
    return path if path.startswith("/") and path.endswith(SUFFIXES) else None


def _unlisted(path: str) -> str | None:
    """The real path of a file that is a session; of any other one the list is to know nothing."""
    try:
        return os.path.realpath(path) if isinstance(peek(path)[1], Peek) else None
    except OSError:
        return None


def _range(place: Span) -> t.LspRange:
    return {
        "start": {"line": place.line, "character": place.start},
        "end": {"line": place.line, "character": place.end},
    }


def _symbol(info: SessionInfo, name: str, kind: int, where: t.LspRange, within: str | None) -> t.SymbolInformation:
    made: t.SymbolInformation = {
        "name": name,
        "kind": kind,
        "location": {"uri": Path(cast("str", info["path"])).as_uri(), "range": where},
    }
    return {**made, "containerName": within} if within else made


def _name(row: Row) -> str:
    return row["text"] if row["text"].strip() else f"[{row['type']}]"


def _icon(row: Row) -> int:
    return _ICONS.get(row["kind"], PROPERTY)


def _detail(row: Row) -> str:
    marks = [flag for flag in row.get("flags", ()) if flag in {"error", "aborted", "interrupted", "dangling"}]
    label = [f"⚑ {row['label']}"] if "label" in row else []
    return " · ".join([row["kind"], *marks, *label, *["← leaf"] * row["leaf"]])


def nested(drawn: Sequence[tuple[Row, Span]]) -> list[t.DocumentSymbol]:
    """The outline: a chain is a list, what hangs from a branching point stands inside of it, which reaches over it all.

    So an editor that looks for the symbol at its cursor finds the way down to it.
    """
    top: list[t.DocumentSymbol] = []
    above: list[tuple[int, t.DocumentSymbol]] = []
    for row, place in drawn:
        depth = min(row["depth"], LEVELS - 1)
        _leave(above, depth)
        symbol: t.DocumentSymbol = {
            "name": _name(row),
            "detail": _detail(row),
            "kind": _icon(row),
            "range": _range(place),
            "selectionRange": _range(place),
        }
        (above[-1][1].setdefault("children", []) if above else top).append(symbol)  # pyright: ignore[reportArgumentType]
        above.append((depth, symbol))
    _leave(above, 0)
    return top


def _leave(above: list[tuple[int, t.DocumentSymbol]], depth: int) -> None:
    """Go up to what stands above `depth`, whose ranges then hold what was left."""
    while above and above[-1][0] >= depth:
        _, left = above.pop()
        if above:
            _reach_over(above[-1][1]["range"], left["range"])


def _reach_over(outer: t.LspRange, inner: t.LspRange) -> None:
    outer["start"] = min(outer["start"], inner["start"], key=_order)
    outer["end"] = max(outer["end"], inner["end"], key=_order)


def _order(place: t.LspPosition) -> tuple[int, int]:
    return place["line"], place["character"]


@reading.of_one_log
async def _spans(session: Session, chosen: Sequence[int], units: Units) -> list[Span]:
    index = session.index
    size = index.offset[chosen[-1]] if chosen else 0
    return await reading.off_loop(_cost(session, size), spans, session.journal, index, chosen, units)


@reading.of_one_log
async def _entry_at(session: Session, position: t.Position, units: Units) -> int | None:
    size = _cost(session, session.index.size)
    place = position.line, position.character
    return await reading.off_loop(size, entry_at, session.journal, session.index, *place, units)


def _cost(session: Session, size: int) -> int:
    return max(size, reading.THREADED if session.packed else 0)


@reading.of_one_log
async def _hover(session: Session, i: int, editor: Editor) -> t.Hover:
    index = session.index

    def pieces() -> list[Piece]:
        entry = session.entry(i)
        return list(transcript.pieces_of(index, i, entry)) or [Piece("head", row_text(entry, transcript.LINE_LIMIT))]

    said = await reading.off_loop(_cost(session, index.length[i]), pieces)
    facts = [index.ids[i], index.time.iso(i) or "no time"]
    text = _written([*said, Piece("note", " · ".join(facts))], editor)
    return {"contents": text, "range": _range((await _spans(session, [i], editor.units))[0])}


def _header(session: Session, info: SessionInfo, line: int, editor: Editor) -> t.Hover | None:
    """What there is to say of a session, on the line of its header."""
    if line > session.header.slot or session.header.state != "ok":
        return None
    facts = [info["format"], info["cwd"] or "", f"{len(session.index):,} entries", info["tail"]]
    pieces = [Piece("head", info["title"]), Piece("note", " · ".join(filter(None, facts)))]
    return {"contents": _written(pieces, editor), "range": _range(Span(line, 0, 0))}


def _written(pieces: Sequence[Piece], editor: Editor) -> t.MarkupContent:
    language = Popup() if editor.markup == "markdown" else Plain()
    room, parts = POPUP, list[str]()
    for piece in pieces:
        text = piece.text if len(piece.text) <= room else f"{piece.text[:room].rstrip()}\n…"
        room = max(room - len(text), NAME)
        parts.append(language.piece(piece._replace(text=text)))
    return {"kind": editor.markup, "value": "".join(parts).strip("\n")}
