"""Editors without a plugin: what LSP itself asks, from clients that nobody here wrote and from a raw one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from lsprotocol import types as lsp
from markdown_it import MarkdownIt
from pygls.lsp.client import LanguageClient

from dsh_daemon.log import places
from dsh_daemon.log.journal import MemoryJournal
from dsh_daemon.log.places import Span, Units
from dsh_daemon.session import Session
from dsh_daemon.wire.plain_lsp import LEVELS, Editor, nested, path_of
from dsh_daemon.wire.types import COMMANDS, MAX_ROWS

from .dsh_logs import Log
from .examples import SAMPLE, SAMPLE_ID, SPEC
from .lines import Line
from .nvim import BIN, Editor as Neovim
from .running import Daemon
from .support import assistant, entry, header, line, tool_result, user, write_log

MODERN = {
    "general": {"positionEncodings": ["utf-16"]},
    "textDocument": {
        "documentSymbol": {"hierarchicalDocumentSymbolSupport": True},
        "hover": {"contentFormat": ["markdown", "plaintext"]},
    },
    "window": {"showDocument": {"support": True}},
}


class House:
    """A daemon over one folder of logs, and raw clients of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "sessions"
        self.daemon = Daemon(tmp_path / "home", self.root)
        self.lines: list[Line] = []

    def write(self, *entries: dict[str, Any], name: str = "s1", **head: Any) -> Path:
        return write_log(self.root / "--tmp-demo-proj--" / f"{name}.jsonl", list(entries), header(name, **head))

    def editor(self, capabilities: dict[str, Any] | None = None, **options: Any) -> Line:
        if self.daemon.process is None:
            self.daemon.start()
        client = Line.unix(self.daemon.socket)
        self.lines.append(client)
        params = {"processId": None, "capabilities": MODERN if capabilities is None else capabilities}
        assert "result" in client.call("initialize", {**params, "initializationOptions": options or None})
        return client

    def close(self) -> None:
        for client in self.lines:
            client.close()
        self.daemon.stop()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


def in_document(path: Path | str, line: int | None = None, character: int = 0) -> dict[str, Any]:
    uri = path if isinstance(path, str) else path.as_uri()
    place = {} if line is None else {"position": {"line": line, "character": character}}
    return {"textDocument": {"uri": uri}, **place}


def ask(client: Line, method: str, params: dict[str, Any]) -> Any:
    answer = client.call(method, params)
    assert "result" in answer, answer
    return answer["result"]


def hover(client: Line, path: Path, line: int, character: int = 0) -> str:
    found = ask(client, "textDocument/hover", in_document(path, line, character))
    return "" if found is None else found["contents"]["value"]


def command(client: Line, name: str, **arguments: Any) -> dict[str, Any]:
    return client.call("workspace/executeCommand", {"command": name, "arguments": [arguments]})


# --- where entries stand

TEXTS = st.lists(
    st.sampled_from(["\n", "\r\n", "\n\n", ""]).flatmap(
        lambda end: st.text("a\u00e9\ud55c\U0001f600", max_size=12).map(lambda text: (text, end))
    ),
    min_size=1,
    max_size=12,
)


def log_of(pieces: list[tuple[str, str]]) -> bytes:
    """Entries with these texts, some glued to the one before them."""
    made = b"".join(
        line(user(f"e{n}", None, text)).rstrip(b"\n") + end.encode() for n, (text, end) in enumerate(pieces)
    )
    return line(header()) + made


def units_of(text: str, units: Units) -> int:
    return len(text.encode()) if units == "utf-8" else len(text.encode("utf-16-le")) // 2


@given(TEXTS, st.sampled_from(["utf-8", "utf-16"]), st.integers(1, 400))
def test_entries_stand_where_an_editor_counts_them(pieces: list[tuple[str, str]], units: Units, chunk: int) -> None:
    data = log_of(pieces)
    session = Session(MemoryJournal(data))
    session.load()
    index = session.index
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "CHUNK", chunk)
        found = places.spans(session.journal, index, range(len(index)), units)
        for i, span in enumerate(found):
            before = data[: index.offset[i]].decode()
            begin = before[before.rfind("\n") + 1 :]
            stop = begin + data[index.offset[i] : index.offset[i] + index.length[i]].decode()
            assert span == Span(before.count("\n"), units_of(begin, units), units_of(stop, units))
            for column in (span.start, span.end - 1):
                assert places.entry_at(session.journal, index, span.line, column, units) == i
        beyond = data.count(b"\n") + 1
        assert places.entry_at(session.journal, index, beyond, 0, units) is None
        assert places.entry_at(session.journal, index, 0, 0, units) is None


def test_columns_are_counted_in_utf_8_only_for_a_client_that_offers_it(house: House) -> None:
    path = house.write(user("u1", None, "한글 😀"))
    length = path.read_text().split("\n")[1]
    for offered, width in ((["utf-8", "utf-16"], len(length.encode())), (["utf-16"], units_of(length, "utf-16"))):
        client = house.editor({**MODERN, "general": {"positionEncodings": offered}})
        found = ask(client, "textDocument/documentSymbol", in_document(path))
        assert found[0]["range"] == {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": width}}


def test_of_records_glued_into_one_line_the_one_under_the_cursor_is_shown(house: House) -> None:
    path = house.write()
    torn = b'{"type":"mess'
    path.write_bytes(
        path.read_bytes() + torn + line(user("u1", None, "first")).strip() + line(user("u2", "u1", "second"))
    )
    client = house.editor()
    text = path.read_text().split("\n")[1]
    assert "first" in hover(client, path, 1, text.index("first"))
    assert "second" in hover(client, path, 1, text.index("second"))


# --- what a client says that it can do


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        ({}, Editor()),
        (MODERN, Editor("utf-16", nested=True, markup="markdown", shows=True)),
        ({"general": {"positionEncodings": ["utf-32", "utf-8"]}}, Editor("utf-8")),
        ({"textDocument": {"hover": {"contentFormat": ["plaintext", "markdown"]}}}, Editor()),
        ({"general": 3, "textDocument": {"hover": {"contentFormat": {}}}, "window": []}, Editor()),
    ],
)
def test_what_is_wrong_in_capabilities_says_nothing(said: dict[str, Any], understood: Editor) -> None:
    assert Editor.of(said) == understood


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///tmp/a%20b.jsonl", "/tmp/a b.jsonl"),
        ("file://localhost/tmp/%ED%95%9C.jsonl.zstd", "/tmp/한.jsonl.zstd"),
        ("file://elsewhere/tmp/a.jsonl", None),
        ("file:///tmp/a.json", None),
        ("file:///tmp/%00.jsonl", None),
        ("untitled:Untitled-1", None),
        ("http://[", None),
        ("", None),
    ],
)
def test_only_the_uri_of_a_local_log_names_a_path(uri: str, path: str | None) -> None:
    assert path_of(uri) == path


# --- the outline


def row(depth: int, name: str = "x") -> Any:
    return {"id": name, "text": name, "kind": "user", "type": "message", "depth": depth, "leaf": False}


@given(st.lists(st.integers(0, 3), max_size=60), st.randoms())
def test_the_outline_holds_each_row_once_and_ranges_hold_what_is_in_them(steps: list[int], chance: Any) -> None:
    """Depths as trees have them: one deeper at most from row to row."""
    depths: list[int] = []
    for step in steps:
        depths.append(min(step, depths[-1] + 1 if depths else 0))
    lines = list(range(len(depths)))
    chance.shuffle(lines)
    drawn = [(row(depth, f"r{n}"), Span(at, 0, 9)) for n, (depth, at) in enumerate(zip(depths, lines, strict=True))]
    names: list[str] = []

    def walk(symbols: list[Any], outer: tuple[int, int]) -> None:
        for symbol in symbols:
            names.append(symbol["name"])
            first, last = symbol["range"]["start"]["line"], symbol["range"]["end"]["line"]
            assert outer[0] <= first <= symbol["selectionRange"]["start"]["line"] <= last <= outer[1]
            walk(symbol.get("children", []), (first, last))

    walk(nested(drawn), (0, len(lines)))
    assert names == [f"r{n}" for n in range(len(depths))]


def test_the_outline_of_a_tree_of_a_thousand_levels_is_no_deeper_than_encoders_go() -> None:
    made = nested([(row(n), Span(n, 0, 1)) for n in range(1_000)])
    depth, level = 0, made
    while level:
        depth, widest = depth + 1, level
        level = level[0].get("children", [])
    assert depth == LEVELS
    assert len(widest) == 1_000 - LEVELS + 1
    assert json.loads(json.dumps(made)) == made


def test_of_a_long_session_the_outline_leaves_out_the_details_then_what_is_far_from_the_leaf(house: House) -> None:
    chain: list[dict[str, Any]] = []
    for n in range(MAX_ROWS // 2 + 1):
        parent = chain[-1]["id"] if chain else None
        call = [{"id": f"c{n}", "name": "bash", "arguments": {"command": "ls"}}]
        chain += [user(f"u{n}", parent, f"prompt {n}"), assistant(f"a{n}", f"u{n}", "", calls=call)]
        chain.append(tool_result(f"t{n}", f"a{n}", f"c{n}", "fine"))
    much = house.write(*chain, name="much")
    prompts = [user(f"p{n}", f"p{n - 1}" if n else None, f"prompt {n}") for n in range(MAX_ROWS + 10)]
    most = house.write(*prompts, name="most")
    client = house.editor()
    names = [symbol["name"] for symbol in ask(client, "textDocument/documentSymbol", in_document(much))]
    assert names == [f"prompt {n}" for n in range(MAX_ROWS // 2 + 1)]
    names = [symbol["name"] for symbol in ask(client, "textDocument/documentSymbol", in_document(most))]
    assert names == [f"prompt {n}" for n in range(10, MAX_ROWS + 10)]


def test_a_client_that_knows_no_nested_symbols_gets_a_flat_list(house: House) -> None:
    path = house.write(user("u1", None, "one"), user("u2", "u1", "two"), user("u3", "u1", "three", 2))
    found = ask(house.editor({}), "textDocument/documentSymbol", in_document(path))
    assert [(one["name"], one["location"]["range"]["start"]["line"]) for one in found] == [
        ("one", 1), ("three", 3), ("two", 2),
    ]  # fmt: skip
    assert {one["location"]["uri"] for one in found} == {path.as_uri()}


# --- hover

HOSTILE = "![x](https://evil.example/a.png) <img src=https://evil.example> [run](command:rm)\n```\n# loose\n````\n*b*"


def test_nothing_that_a_log_says_is_markdown_in_a_hover(house: House) -> None:
    call = [{"id": "c1", "name": "`*x*`", "arguments": {"command": HOSTILE}}]
    path = house.write(
        user("u1", None, HOSTILE),
        assistant("a1", "u1", HOSTILE, calls=call),
        tool_result("t1", "a1", "c1", HOSTILE, name="[a](b)"),
        entry("label", "l1", "t1", targetId="u1", label="[l](https://evil.example)"),
        entry("compaction", "k1", "l1", summary=HOSTILE, firstKeptEntryId="a1", tokensBefore=3),
        entry("session_info", "i1", "k1", name=HOSTILE),
        entry("acme`*", "x1", "i1"),
    )
    client = house.editor()
    parser = MarkdownIt("commonmark")
    for number in range(8):
        text = hover(client, path, number)
        assert text, number
        inside = [child for token in parser.parse(text) for child in token.children or [] if child.type != "text"]
        assert {token.type for token in inside} <= {"strong_open", "strong_close", "em_open", "em_close", "softbreak"}
        kinds = {token.type for token in parser.parse(text)}
        assert kinds <= {"paragraph_open", "paragraph_close", "inline", "fence"}, kinds


def test_a_long_entry_is_cut_and_says_so(house: House) -> None:
    path = house.write(user("u1", None, "word " * 100_000))
    text = hover(house.editor({}), path, 1)
    assert len(text) < 7_000
    assert "\n…\n" in text
    assert text.endswith("u1 · 2026-01-01T00:00:01.000Z")


def test_the_line_of_what_is_no_entry_shows_nothing(house: House) -> None:
    path = house.write(user("u1", None, "one"))
    with path.open("ab") as file:
        file.write(b"\n" + b"#" * 40 + b"\n" + line(user("u2", "u1", "two")))
    client = house.editor()
    assert [bool(hover(client, path, number)) for number in range(7)] == [True, True, False, False, True, False, False]


# --- files


def test_a_file_that_is_no_session_gets_an_empty_answer_and_is_not_remembered(house: House, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"a": 1}\n{"a": 2}\n')
    client = house.editor()
    for path in (data, tmp_path / "not-saved.jsonl", tmp_path, "untitled:1"):
        assert ask(client, "textDocument/documentSymbol", in_document(path)) == []
        assert ask(client, "textDocument/hover", in_document(path, 0)) is None
    listed = ask(client, "session/list", {})
    assert (listed["items"], listed["skipped"]) == ([], [])


def test_a_session_outside_of_the_roots_is_listed_until_the_daemon_ends(house: House, tmp_path: Path) -> None:
    path = write_log(tmp_path / "backup" / "s7.jsonl", [user("u1", None, "kept")], header("s7"))
    client = house.editor()
    assert ask(client, "session/list", {})["items"] == []
    assert [one["name"] for one in ask(client, "textDocument/documentSymbol", in_document(path))] == ["kept"]
    assert [info["sessionId"] for info in ask(client, "session/list", {})["items"]] == ["s7"]
    house.daemon.stop()
    house.daemon.process = None
    assert ask(house.editor(), "session/list", {})["items"] == []


def test_a_compressed_log_answers_with_the_lines_of_its_text(tmp_path: Path) -> None:
    log = Log("session-z")
    log.talk("Rename the shop", "It has its new name.")
    root = tmp_path / "dsh"
    log.write(root)
    (path,) = root.rglob("*.zstd")
    house = House(tmp_path)
    house.daemon = Daemon(tmp_path / "home", f"dsh={root}")
    try:
        client = house.editor()
        found = ask(client, "textDocument/documentSymbol", in_document(path))
        assert [one["name"] for one in found] == ["Rename the shop", "It has its new name."]
        assert "Rename the shop" in hover(client, path, found[0]["range"]["start"]["line"])
    finally:
        house.close()


def test_what_an_editor_tells_of_its_documents_is_ignored(house: House) -> None:
    path = house.write(user("u1", None, "one"))
    client = house.editor()
    for method in ("didOpen", "didChange", "didSave", "didClose"):
        client.send({"jsonrpc": "2.0", "method": f"textDocument/{method}", "params": {"textDocument": {"uri": "x"}}})
    assert "one" in hover(client, path, 1)


# --- commands


def test_a_command_at_the_cursor_does_what_its_method_does(house: House) -> None:
    path = house.write(user("u1", None, "one"), assistant("a1", "u1", "two"), user("u2", "a1", "three"))
    client = house.editor()
    here = in_document(path, 3)
    moved = command(client, "dsh.navigate", **here)["result"]
    assert (moved["leafId"], moved["editorText"]) == ("a1", "three")
    assert command(client, "dsh.navigate", **in_document(path, 0))["result"]["leafId"] is None
    assert command(client, "dsh.label", **in_document(path, 2), label="good")["result"]["stored"] == "log"
    assert ask(client, "session/labels", {"sessionId": "s1"})["items"][0]["entryId"] == "a1"
    assert command(client, "dsh.fork", **in_document(path, 2))["result"]["outcome"] == "forked"
    leaf = ask(client, "session/tree", {"sessionId": "s1"})["leafId"]
    assert command(client, "dsh.launch", **in_document(path))["result"]["argv"]
    for name, place in (("navigate", "targetId"), ("branch", "entryId"), ("fork", "boundary"), ("label", "entryId")):
        both = command(client, f"dsh.{name}", **here, **{place: "a1"})["error"]
        assert both["code"] == -32602
        assert f"position and {place}" in both["message"]
    assert command(client, "dsh.navigate", **here, targetId=None)["error"]["code"] == -32602  # null is a place too
    assert ask(client, "session/tree", {"sessionId": "s1"})["leafId"] == leaf
    refused = command(client, "dsh.resume", **in_document(path))["error"]["data"]
    assert (refused["kind"], refused["instead"]) == ("notSupportedByFormat", "session/launch")


def test_a_new_log_is_shown_by_the_editor_that_can(house: House) -> None:
    path = house.write(user("u1", None, "one"), assistant("a1", "u1", "two"))
    able, plain = house.editor(), house.editor({})
    request = {"command": "dsh.branch", "arguments": [in_document(path, 1)]}
    able.send({"jsonrpc": "2.0", "id": 9, "method": "workspace/executeCommand", "params": request})
    shown, answer = able.receive(), able.receive()
    assert shown is not None
    assert answer is not None
    assert shown["method"] == "window/showDocument"
    assert shown["params"]["uri"] == Path(answer["result"]["session"]["path"]).as_uri()
    able.send({"jsonrpc": "2.0", "id": shown["id"], "result": {"success": True}})
    plain.send({"jsonrpc": "2.0", "id": 9, "method": "workspace/executeCommand", "params": request})
    answer = plain.receive()
    assert answer is not None
    assert answer["result"]["outcome"] == "branched"
    assert ask(able, "daemon/ping", {})


def test_a_client_that_only_reads_may_ask_what_a_command_would_do(house: House) -> None:
    path = house.write(user("u1", None, "one"), assistant("a1", "u1", "two"))
    client = house.editor(readOnly=True)
    here = in_document(path, 1)
    assert command(client, "dsh.navigate", **here, preview=True)["result"]["outcome"] == "preview"
    assert command(client, "dsh.navigate", **here)["error"]["data"]["kind"] == "readOnly"
    assert command(client, "dsh.label", **here, label="x")["error"]["data"]["kind"] == "readOnly"
    assert ask(client, "session/labels", {"sessionId": "s1"})["items"] == []


def test_entries_are_found_by_their_words_and_lie_at_their_line(house: House) -> None:
    path = house.write(user("u1", None, "one"), assistant("a1", "u1", "마이그레이션을 끝냈다"))
    client = house.editor()
    found = ask(client, "workspace/symbol", {"query": "마이그레이", "workDoneToken": "until all is indexed"})
    assert [(one["name"], one["location"]["range"]["start"]["line"], one["containerName"]) for one in found] == [
        ("마이그레이션을 끝냈다", 2, "one")
    ]
    assert found[0]["location"]["uri"] == path.as_uri()


# --- clients that nobody here wrote


def test_neovim_without_our_plugin_works_with_a_session_log(tmp_path: Path) -> None:
    """The configuration is the one that protocol-spec/README.md shows."""
    (init,) = [part.partition("```")[0] for part in (SPEC / "README.md").read_text().split("```lua\n")[1:]]
    home = tmp_path / "home"
    path = home / "sessions" / "--home-mina-shop--" / f"2026-03-02T09-14-07-120Z_{SAMPLE_ID}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(SAMPLE.read_bytes())
    daemon = Daemon(home)
    env = {**daemon.env, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    with daemon, Neovim(env, tmp_path / "nvim", init=init, plugin=False) as editor:
        editor.command(f"edit {path}")
        editor.wait(lambda: editor.lua("local c = vim.lsp.get_clients({ bufnr = 0 })[1] return c and c.initialized"))
        collect = "{ on_list = function(list) _G.found = list.items end }"
        editor.lua(f"vim.lsp.buf.document_symbol({collect})")
        outline = editor.wait(lambda: editor.lua("return _G.found"), "the outline")
        assert (outline[0]["lnum"], outline[0]["text"]) == (4, "[String] Find why the redirect drops the query string")
        assert len(outline) == 12
        editor.lua(f"_G.found = nil; vim.lsp.buf.workspace_symbol('login redirect', {collect})")
        sessions = editor.wait(lambda: editor.lua("return _G.found"), "the sessions")
        assert sessions[0]["filename"] == str(path)
        editor.command("normal! 12G")
        editor.lua("vim.lsp.buf.hover()")
        editor.wait_screen("Assistant · ⚑ before-refactor")
        editor.command("normal! 14G")
        editor.keys("gn")
        editor.wait(lambda: editor.lua("return vim.fn.getreg('\"')") == "Now refactor the handler", "the prompt")
        assert "rror" not in editor.messages


def test_the_client_of_pygls_understands_every_answer(house: House) -> None:
    """It builds lsprotocol's types from what comes, and refuses what LSP does not allow."""
    path = house.write(user("u1", None, "one"), user("u2", "u1", "two"), user("u3", "u1", "three", 2))
    house.daemon.start()

    async def story() -> None:
        client = LanguageClient("a stranger", "1")
        await client.start_io(str(BIN / "dshd"), "stdio", env=house.daemon.env)
        abilities = lsp.ClientCapabilities(
            text_document=lsp.TextDocumentClientCapabilities(
                document_symbol=lsp.DocumentSymbolClientCapabilities(hierarchical_document_symbol_support=True)
            )
        )
        hello = await client.initialize_async(lsp.InitializeParams(capabilities=abilities))
        assert hello.capabilities.execute_command_provider is not None
        assert hello.capabilities.execute_command_provider.commands == tuple(COMMANDS)
        client.initialized(lsp.InitializedParams())
        document = lsp.TextDocumentIdentifier(uri=path.as_uri())
        outline = await client.text_document_document_symbol_async(lsp.DocumentSymbolParams(text_document=document))
        assert outline is not None
        (top,) = outline
        assert isinstance(top, lsp.DocumentSymbol)
        assert top.children is not None
        assert [child.name for child in top.children] == ["three", "two"]
        place = lsp.Position(line=1, character=0)
        shown = await client.text_document_hover_async(lsp.HoverParams(text_document=document, position=place))
        assert shown is not None
        assert isinstance(shown.contents, lsp.MarkupContent)
        assert "one" in shown.contents.value
        found = await client.workspace_symbol_async(lsp.WorkspaceSymbolParams(query=""))
        assert found is not None
        assert [(one.name, one.kind) for one in found] == [("one", lsp.SymbolKind.File)]
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()

    asyncio.run(story())


def test_dshd_stdio_ends_with_an_editor_that_goes_without_a_word(house: House) -> None:
    house.daemon.start()
    process = subprocess.Popen([str(BIN / "dshd"), "stdio"], env=house.daemon.env, stdin=subprocess.PIPE, stdout=-3)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 0
