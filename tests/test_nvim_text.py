"""Text of logs in the Neovim client: harmless before it is shown, in code points on the wire and bytes in Lua."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from .nvim import Editor
from .running import environment

HARMFUL = [chr(n) for n in (*range(32), *range(127, 160), 0x2028, 0x2029)]
INVISIBLE = [chr(n) for n in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF)]


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    home = tmp_path_factory.mktemp("text")
    with Editor(environment(home), home) as made:
        yield made


def call(editor: Editor, name: str, *arguments: Any) -> Any:
    return editor.lua(f"return require('dsh.text').{name}(...)", *arguments)


def test_a_line_has_a_blank_for_each_control_character_and_nothing_for_what_turns_text(editor: Editor) -> None:
    for char in HARMFUL:
        assert call(editor, "line", f"a{char}b") == "a b", repr(char)
    for char in INVISIBLE:
        assert call(editor, "line", f"a{char}b") == "ab", repr(char)


@pytest.mark.parametrize(
    "text", ["", "plain", "naïve 한국어 🙂", "e\u0301", "👩\u200d💻", "\u00a0\u00ad", "עברית", "\ufffd"]
)
def test_other_text_stays_as_it_is(editor: Editor, text: str) -> None:
    assert call(editor, "line", text) == text
    assert call(editor, "lines", text) == [text]


def test_bytes_that_are_no_text_become_a_sign_for_it(editor: Editor) -> None:
    made = editor.lua("return require('dsh.text').line('a\\255b\\226\\130c')")
    assert made.startswith("a\ufffdb\ufffd")
    assert made.endswith("c")


def test_lines_keep_tabs_and_end_at_line_breaks_of_both_kinds(editor: Editor) -> None:
    assert call(editor, "lines", "a\tb\r\nc\rd\n\ne\x1b[0m") == ["a\tb", "c d", "", "e [0m"]


@pytest.mark.parametrize("text", ["plain words", "naïve 한국어 🙂 end", ""])
def test_a_range_of_code_points_is_found_in_bytes(editor: Editor, text: str) -> None:
    for start in range(len(text) + 1):
        for end in range(start, len(text) + 1):
            wanted = [len(text[:start].encode()), len(text[:end].encode())]
            assert editor.lua("return { require('dsh.text').byte_range(...) }", text, start, end) == wanted
    whole = len(text.encode())
    assert editor.lua("return { require('dsh.text').byte_range(...) }", text, 0, len(text) + 9) == [0, whole]


def test_cutting_counts_cells_and_says_that_it_cut(editor: Editor) -> None:
    assert call(editor, "cut", "plain", 5) == "plain"
    assert call(editor, "cut", "plain", 4) == "pla…"
    assert call(editor, "cut", "한국어", 6) == "한국어"
    assert call(editor, "cut", "한국어", 5) == "한국…"
    assert call(editor, "cut", "한국어", 4) == "한…"


def test_ages_read_as_in_dshd(editor: Editor) -> None:
    now = datetime.now(UTC)

    def age(**ago: float) -> str:
        return call(editor, "age", (now - timedelta(**ago)).strftime("%Y-%m-%dT%H:%M:%S.000Z"))

    assert age(seconds=5) == "just now"
    assert age(seconds=-50) == "just now"
    assert age(minutes=5, seconds=5) == "5 min ago"
    assert age(hours=3, minutes=1) == "3 h ago"
    assert age(days=4, minutes=1) == "4 d ago"
    assert age(days=40) == (now - timedelta(days=40)).astimezone().strftime("%Y-%m-%d")
    assert editor.lua("return require('dsh.text').age(nil)") == "no time"
    assert call(editor, "age", "yesterday") == "no time"


@pytest.mark.parametrize(
    "when", ["1970-01-01T00:00:00", "2000-02-29T12:00:00", "2024-03-01T00:00:01", "2026-12-31T23:59:59"]
)
def test_exact_times_are_those_of_the_calendar(editor: Editor, when: str) -> None:
    local = datetime.fromisoformat(when + "+00:00").astimezone().strftime("%Y-%m-%d %H:%M:%S")
    assert call(editor, "exact", when + ".000Z") == local


def test_numbers_have_their_thousands_apart(editor: Editor) -> None:
    assert [call(editor, "number", n) for n in (0, 999, 1000, 123456, 1234567)] == [
        "0",
        "999",
        "1,000",
        "123,456",
        "1,234,567",
    ]
    assert call(editor, "plural", 1, "entry", "entries") == "1 entry"
    assert call(editor, "plural", 2000, "entry", "entries") == "2,000 entries"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("{ sidebar = { colour = 1 } }", "option sidebar.colour is not known"),
        ("{ sidebar = { width = 'wide' } }", "option sidebar.width must be a number, not a string"),
        ("{ sidebar = { width = 0 } }", "option sidebar.width must be more than 0"),
        ("{ sidebar = { position = 'top' } }", "option sidebar.position must be one of left, right"),
        ("{ keys = { navigat = '<CR>' } }", "option keys.navigat is not known"),
        ("{ keys = { navigate = 5 } }", "option keys.navigate must be a key or false"),
        ("{ prompt = { keys = { send = 5 } } }", "option prompt.keys.send must be a key or false"),
        ("{ daemon = 'dshd' }", "option daemon must be a table, not a string"),
    ],
)
def test_an_option_that_is_not_right_is_refused_by_its_name(editor: Editor, options: str, problem: str) -> None:
    ok, said = editor.lua(f"return {{ pcall(require('dsh').setup, {options}) }}")
    assert not ok
    assert said == f"dsh: {problem}"


def test_options_are_merged_with_the_defaults(editor: Editor) -> None:
    editor.lua("require('dsh').setup({ keys = { close = 'Q', search = false }, daemon = { cmd = { 'x', 'y' } } })")
    options = editor.lua("return require('dsh.config').get()")
    assert (options["keys"]["close"], options["keys"]["search"], options["keys"]["navigate"]) == ("Q", False, "<CR>")
    assert options["daemon"]["cmd"] == ["x", "y"]
    assert options["sidebar"]["follow"] is True


def test_a_message_wider_than_the_screen_asks_for_nothing_and_is_whole_in_messages(editor: Editor) -> None:
    long = "it's " + "so wide " * 40 + "end"
    editor.lua("require('dsh.say').error(...)", long)
    editor.wait(lambda: editor.asks or long in editor.messages, "the message")
    assert not editor.asks
    assert "so wide" in editor.screen().lines[-1]
    assert "end" not in editor.screen().lines[-1]
    editor.lua("vim.notify = function(text, level, options) _G.noted = { text, level, options.title } end")
    editor.lua("require('dsh.say').warn(...)", long)
    editor.wait(lambda: editor.lua("return _G.noted") == ["dsh: " + long, 3, "dsh"], "the notification")
