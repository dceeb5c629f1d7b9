"""The sidebar of the Neovim client: how it looks, and what each of its keys does to lines, cursor and disk (A118)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .dsh_logs import story
from .nvim import Desk, Editor
from .support import assistant, entry, header, line, stamp, tool_result, user, write_log

ROWS = [
    "user       Find why the redirect drops the query",
    "[read: src/auth/login.ts]",
    "assistant  The handler rebuilds the URL",
    "├─ user       Try the conservative way",
    "│  assistant  Done, the old handler stays",
    "└─ user       Fix it and add a test",
    "   assistant  All tests pass",
    "   user       Now refactor",
]
NOW = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
READ = [{"id": "c1", "name": "read", "arguments": {"path": "src/auth/login.ts"}}]


def tree_entries() -> list[dict[str, Any]]:
    return [
        user("u1", None, "Find why the redirect drops the query", 1),
        assistant("a1", "u1", calls=READ, second=2),
        tool_result("r1", "a1", "c1", "export const login", 3, name="read"),
        assistant("a2", "r1", "The handler rebuilds the URL", 4),
        user("u2", "a2", "Fix it and add a test", 5),
        assistant("a3", "u2", "All tests pass", 6),
        user("u3", "a3", "Now refactor", 7),
        user("u4", "a2", "Try the conservative way", 8),
        assistant("a4", "u4", "Done, the old handler stays", 9),
    ]


class Sidebar:
    """The sidebar of an editor, and the log that it shows."""

    def __init__(self, desk: Desk, editor: Editor, log: Path, session_id: str) -> None:
        self.desk, self.editor, self.log, self.session_id = desk, editor, log, session_id

    @property
    def lines(self) -> list[str]:
        return self.editor.lua("return vim.api.nvim_buf_get_lines(require('dsh.view').ids(), 0, -1, false)")

    @property
    def row(self) -> str | None:
        """Id of the row under the cursor."""
        return self.editor.lua("local row = require('dsh.view').row() return row and row.id")

    @property
    def leaf(self) -> str | None:
        return self.desk.ask("session/open", sessionId=self.session_id, subscribe=False)["leafId"]

    def go(self, row: str) -> None:
        self.editor.lua("require('dsh.view').go_to(...)", row)
        self.at(row)

    def at(self, row: str) -> None:
        self.editor.wait(lambda: self.row == row, f"the cursor on {row}")

    def shows(self, lines: list[str]) -> None:
        self.editor.wait(lambda: self.lines == lines, f"lines {lines}, not {self.lines}")

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.log.read_text().splitlines()]


def shown(desk: Desk, log: Path, session_id: str, *, init: str = "", size: tuple[int, int] = (120, 40)) -> Sidebar:
    editor = desk.editor(init=init, size=size)
    editor.command(f"DshTree {session_id}")
    sidebar = Sidebar(desk, editor, log, session_id)
    editor.wait(lambda: sidebar.row is not None, "rows")
    return sidebar


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(tmp_path) as made:
        yield made


@pytest.fixture
def log(desk: Desk) -> Path:
    return write_log(desk.folder / "pi" / "--shop--" / "tree.jsonl", tree_entries(), header("tree", str(desk.project)))


@pytest.fixture
def sidebar(desk: Desk, log: Path) -> Sidebar:
    return shown(desk, log, "tree")


# How it looks


def test_the_lines_are_the_rows_that_dshd_tree_prints(sidebar: Sidebar) -> None:
    """A119"""
    command = [sys.executable, "-m", "dsh_daemon", "tree", "tree", "--no-ids"]
    printed = subprocess.run(command, env=sidebar.desk.daemon.env, capture_output=True, text=True, check=True).stdout
    assert sidebar.lines == ROWS
    for row, text in zip(ROWS, printed.splitlines()[1:], strict=True):
        assert text.removesuffix("  ← leaf") == row


def test_the_cursor_begins_on_the_leaf_which_is_marked_at_the_edge(sidebar: Sidebar) -> None:
    assert sidebar.row == "a4"
    row = next(text for text in sidebar.editor.screen().lines if "Done, the old handler" in text)
    assert row.rpartition("│")[0].rstrip().endswith("← leaf")


def test_the_path_to_the_leaf_stands_out_and_other_branches_are_dim(sidebar: Sidebar) -> None:
    screen = sidebar.editor.screen()
    assert "Comment" not in screen.groups_at("The handler rebuilds")
    assert "Title" in screen.groups_at("Try the conservative")
    assert "Comment" in screen.groups_at("All tests pass")
    assert "Comment" in screen.groups_at("Fix it and add")
    assert "WarningMsg" in screen.groups_at("← leaf")


def test_the_groups_link_to_those_of_the_colour_scheme_and_a_person_may_set_their_own(desk: Desk, log: Path) -> None:
    mine = "vim.api.nvim_set_hl(0, 'DshLeaf', { link = 'ErrorMsg' })"
    editor = shown(desk, log, "tree", init=mine).editor
    link = "return vim.api.nvim_get_hl(0, { name = ... }).link"
    wanted = {"DshActive": "Normal", "DshInactive": "Comment", "DshUser": "Title", "DshLabel": "Special"}
    wanted |= {"DshError": "DiagnosticError", "DshLeaf": "ErrorMsg"}
    assert {name: editor.lua(link, name) for name in wanted} == wanted
    editor.command("colorscheme blue")
    assert editor.lua(link, "DshInactive") == "Comment"


def test_errors_and_interrupted_turns_are_marked(desk: Desk) -> None:
    entries = [
        user("u1", None, "Go on", 1),
        assistant("a1", "u1", "half", 2, stopReason="aborted"),
        assistant("a2", "a1", "", 3, stopReason="error", errorMessage="overloaded"),
    ]
    path = write_log(desk.folder / "pi" / "--shop--" / "bad.jsonl", entries, header("bad", str(desk.project)))
    screen = shown(desk, path, "bad").editor.wait_screen("overloaded")
    assert any("half" in text and "aborted" in text for text in screen.lines)
    assert "DiagnosticError" in screen.groups_at("overloaded")


def test_the_bar_names_the_session_and_says_how_old_and_large_it_is(desk: Desk, log: Path) -> None:
    bar = shown(desk, log, "tree", size=(200, 40)).editor.wait_screen("9 entries").lines[0]
    assert bar.startswith(" ● Find why the redirect drops the query ")
    assert "pi · 2026-01-01 · 9 entries │" in bar


def test_in_a_narrow_window_the_bar_cuts_the_title_before_it_drops_the_facts(desk: Desk, log: Path) -> None:
    narrow = shown(desk, log, "tree", size=(120, 40)).editor.screen().lines[0]
    assert "Find why the redirect" in narrow
    assert "…  pi · 2026-01-01 │" in narrow
    tiny = shown(desk, log, "tree", size=(60, 40)).editor.screen().lines[0]
    assert "Find why the redi" in tiny
    assert "2026" not in tiny


def test_dsh_shows_the_sessions_of_this_directory_above_the_tree_of_the_latest(desk: Desk) -> None:
    editor = desk.editor()
    editor.command("Dsh")
    lines = editor.wait_screen("← leaf").lines
    assert lines[0].startswith(" Sessions of ")
    assert "● Fix the login redirect" in lines[1]
    assert "● Add a dark mode" in lines[2]
    assert "◐ Why does the te" in lines[3]
    assert "omp · " in lines[2]
    assert "user       Find why" in lines[5]
    assert editor.lua("return vim.api.nvim_win_get_cursor(0)[1]") > 5


def test_a_directory_without_sessions_says_so(desk: Desk) -> None:
    empty = desk.folder / "empty"
    empty.mkdir()
    editor = desk.editor(empty)
    editor.command("Dsh")
    editor.wait_screen("no sessions of")
    editor.wait_screen(":DshSessions! picks from all directories")


def test_more_sessions_than_fit_are_counted_and_a_press_lists_them(desk: Desk) -> None:
    editor = desk.editor(init="require('dsh').setup({ sidebar = { sessions = 1 } })")
    editor.command("Dsh")
    editor.wait_screen("… 2 more")
    editor.wait_screen("← leaf")
    editor.keys("gg")
    editor.lua("vim.ui.select = function(items) _G.asked = #items end")
    editor.keys("j<CR>")
    editor.wait(lambda: editor.lua("return _G.asked") == 3, "the picker")


def test_long_text_is_whole_in_the_buffer_and_cut_by_the_window(desk: Desk) -> None:
    entries = [user("u1", None, "word " * 47 + "end", 1)]
    path = write_log(desk.folder / "pi" / "--shop--" / "long.jsonl", entries, header("long", str(desk.project)))
    sidebar = shown(desk, path, "long", size=(80, 20))
    assert sidebar.lines == ["user       " + "word " * 47 + "end"]
    lines = sidebar.editor.screen().lines
    assert "word" in lines[1]
    assert "word" not in lines[2]
    assert "← leaf" in lines[1]


def test_the_order_of_sessions_ages_and_titles_follow_the_catalogue(desk: Desk, log: Path) -> None:
    editor = desk.editor()
    editor.command("Dsh")
    editor.wait_screen("← leaf")
    desk.ask("session/rename", sessionId="tree", title="The other way round")
    editor.wait_screen("The other way round")


# Keys


def test_enter_moves_the_leaf_and_writes_nothing_to_the_log(sidebar: Sidebar) -> None:
    before = sidebar.log.read_bytes()
    sidebar.go("a3")
    sidebar.editor.keys("<CR>")
    sidebar.shows(
        [
            *ROWS[:3],
            "├─ user       Fix it and add a test",
            "│  assistant  All tests pass",
            "│  user       Now refactor",
            "└─ user       Try the conservative way",
            "   assistant  Done, the old handler stays",
        ]
    )
    sidebar.at("a3")
    assert sidebar.leaf == "a3"
    assert sidebar.log.read_bytes() == before


def test_enter_on_the_leaf_says_so_and_sends_nothing(sidebar: Sidebar) -> None:
    sidebar.editor.lua("require('dsh.client').request = function() _G.sent = true end")
    sidebar.editor.keys("<CR>")
    sidebar.editor.wait_message("already here")
    assert sidebar.editor.lua("return _G.sent") is None


def test_enter_on_a_prompt_goes_before_it_and_opens_it_to_be_edited(sidebar: Sidebar) -> None:
    sidebar.go("u2")
    sidebar.editor.keys("<CR>")
    prompt = sidebar.editor.wait(lambda: sidebar.editor.named("^dsh%-prompt://"), "the prompt buffer")
    assert sidebar.editor.lines(prompt) == ["Fix it and add a test"]
    sidebar.at("a2")
    assert sidebar.leaf == "a2"


def test_enter_on_a_session_shows_its_tree(desk: Desk) -> None:
    other = "Add a dark mode"
    editor = desk.editor()
    editor.command("Dsh")
    editor.wait_screen("← leaf")
    editor.keys("ggj<CR>")
    editor.wait(
        lambda: editor.lua("local state = require('dsh.view').state() return state and state.title") == other, "it"
    )
    editor.wait_screen("← leaf")
    assert "Title" in editor.screen().groups_at(other)


def test_e_edits_the_prompt_again_even_when_it_is_the_leaf(sidebar: Sidebar) -> None:
    sidebar.desk.ask(
        "session/append", sessionId="tree", entries=[entry("custom", "x1", "u3", customType="note")], parentId="u3"
    )
    sidebar.desk.ask("session/moveLeaf", sessionId="tree", entryId="u3")
    sidebar.editor.wait(lambda: "Now refactor" in sidebar.lines[5], "the move")
    sidebar.go("u3")
    sidebar.editor.keys("e")
    prompt = sidebar.editor.wait(lambda: sidebar.editor.named("^dsh%-prompt://"), "the prompt buffer")
    assert sidebar.editor.lines(prompt) == ["Now refactor"]
    sidebar.editor.wait(lambda: sidebar.leaf == "a3", "the leaf before it")
    sidebar.at("a3")


def test_e_on_an_answer_is_refused_in_words(sidebar: Sidebar) -> None:
    sidebar.editor.keys("e")
    sidebar.editor.wait_message("not a prompt")
    assert sidebar.leaf == "a4"


def test_u_undoes_the_last_move(sidebar: Sidebar) -> None:
    sidebar.go("a3")
    sidebar.editor.keys("<CR>")
    sidebar.editor.wait(lambda: sidebar.leaf == "a3", "the move")
    sidebar.at("a3")
    sidebar.editor.keys("u")
    sidebar.shows(ROWS)
    sidebar.at("a4")
    assert sidebar.leaf == "a4"
    sidebar.editor.keys("u")
    sidebar.editor.wait_message("there is no move to undo")


def test_b_makes_a_new_file_and_leaves_the_old_one_as_it_was(sidebar: Sidebar) -> None:
    before = sidebar.log.read_bytes()
    files = set(sidebar.log.parent.iterdir())
    sidebar.go("u2")
    sidebar.editor.keys("b")
    prompt = sidebar.editor.wait(lambda: sidebar.editor.named("^dsh%-prompt://"), "the prompt buffer")
    assert sidebar.editor.lines(prompt) == ["Fix it and add a test"]
    (made,) = set(sidebar.log.parent.iterdir()) - files
    kept = [json.loads(text) for text in made.read_text().splitlines()]
    assert [one["id"] for one in kept[1:]] == ["u1", "a1", "r1", "a2"]
    assert kept[0]["parentSession"] == str(sidebar.log)
    assert sidebar.log.read_bytes() == before
    sidebar.shows(ROWS[:3])
    assert sidebar.editor.lua("return require('dsh.view').session_id()") == kept[0]["id"]


def test_b_on_an_answer_is_refused_in_words(sidebar: Sidebar) -> None:
    files = set(sidebar.log.parent.iterdir())
    sidebar.editor.keys("b")
    sidebar.editor.wait_message("wants a user's message")
    assert set(sidebar.log.parent.iterdir()) == files


def test_f_forks_up_to_the_entry_and_shows_the_fork(sidebar: Sidebar) -> None:
    before = sidebar.log.read_bytes()
    files = set(sidebar.log.parent.iterdir())
    sidebar.go("a2")
    sidebar.editor.keys("f")
    sidebar.shows(ROWS[:3])
    (made,) = set(sidebar.log.parent.iterdir()) - files
    assert [json.loads(text)["id"] for text in made.read_text().splitlines()[1:5]] == ["u1", "a1", "r1", "a2"]
    assert sidebar.log.read_bytes() == before


def test_f_within_a_turn_offers_the_end_of_the_turn_before(sidebar: Sidebar) -> None:
    sidebar.editor.lua("vim.ui.select = function(items, options, go) _G.asked = options.prompt; go(items[1]) end")
    files = set(sidebar.log.parent.iterdir())
    sidebar.go("u4")
    sidebar.editor.keys("f")
    sidebar.shows(ROWS[:3])
    assert "is not over there" in sidebar.editor.lua("return _G.asked")
    assert len(set(sidebar.log.parent.iterdir()) - files) == 1


def test_r_starts_the_agent_in_a_terminal(sidebar: Sidebar) -> None:
    fake = sidebar.desk.bin / "pi"
    fake.write_text('#!/bin/sh\necho "agent with $*"\nread -r line\n')
    fake.chmod(0o755)
    sidebar.editor.keys("r")
    sidebar.editor.wait_screen("agent with")
    assert sidebar.editor.lua("return vim.bo.buftype") == "terminal"


def test_capital_l_labels_in_place_and_a_blank_label_takes_it_away(sidebar: Sidebar) -> None:
    sidebar.go("u2")
    sidebar.editor.type("L")
    sidebar.editor.wait_screen("┌ label ")
    sidebar.editor.type("before-refactor<CR>")
    sidebar.editor.wait_screen("⚑ before-refactor")
    last = sidebar.entries()[-1]
    assert (last["type"], last["targetId"], last["label"]) == ("label", "u2", "before-refactor")
    assert sidebar.row == "u2"
    assert sidebar.lines == ROWS

    sidebar.editor.type("L")
    sidebar.editor.wait(lambda: "before-refactor" in sidebar.editor.lua("return vim.api.nvim_get_current_line()"), "it")
    sidebar.editor.type("<C-u><CR>")
    sidebar.editor.wait(lambda: "⚑" not in sidebar.editor.screen().text, "no label")
    assert "label" not in sidebar.entries()[-1]
    assert sidebar.entries()[-1]["targetId"] == "u2"


def test_escape_leaves_the_label_as_it_was(sidebar: Sidebar) -> None:
    before = sidebar.log.read_bytes()
    sidebar.editor.type("L")
    sidebar.editor.wait_screen("┌ label ")
    sidebar.editor.type("not this<Esc>")
    sidebar.editor.wait(lambda: "┌ label" not in sidebar.editor.screen().text, "the float closed")
    assert sidebar.log.read_bytes() == before
    assert sidebar.editor.lua("return require('dsh.view').is_current() and vim.api.nvim_get_mode().mode") == "n"


def test_o_goes_through_the_filters(sidebar: Sidebar) -> None:
    sidebar.editor.keys("o")
    sidebar.shows([ROWS[0], *ROWS[2:]])
    sidebar.at("a4")
    sidebar.editor.keys("o")
    sidebar.shows(
        [
            "user       Find why the redirect drops the query",
            "├─ user       Try the conservative way",
            "└─ user       Fix it and add a test",
            "   user       Now refactor",
        ]
    )
    sidebar.at("u4")
    sidebar.editor.wait_screen("user-only")
    sidebar.editor.keys("o")
    sidebar.shows(["no rows here (o: other filter, /: other words)"])
    sidebar.editor.keys("o")
    sidebar.shows([ROWS[0], "[read: src/auth/login.ts]", *ROWS[1:]])
    sidebar.editor.keys("o")
    sidebar.shows(ROWS)
    sidebar.at("a4")


def test_slash_keeps_the_rows_that_hold_the_words_and_marks_them(sidebar: Sidebar) -> None:
    sidebar.editor.type("/tests<CR>")
    sidebar.shows(["assistant  All tests pass"])
    assert "Search" in sidebar.editor.screen().groups_at("tests pass")
    sidebar.editor.type("/<C-u><CR>")
    sidebar.shows(ROWS)


def test_capital_s_opens_the_search_of_everything(sidebar: Sidebar) -> None:
    sidebar.editor.lua("require('dsh.pick').search = function(query) _G.searched = query end")
    sidebar.editor.keys("S")
    assert sidebar.editor.lua("return _G.searched") == ""


def test_za_folds_a_branch_to_one_line_with_its_size_and_unfolds_it(sidebar: Sidebar) -> None:
    sidebar.go("u2")
    sidebar.editor.keys("za")
    sidebar.shows([*ROWS[:5], "└─ ▸ user       Fix it and add a test"])
    assert sidebar.row == "u2"
    assert any("Fix it and add" in text and "(2)" in text for text in sidebar.editor.screen().lines)
    sidebar.editor.keys("za")
    sidebar.shows(ROWS)
    assert sidebar.row == "u2"


def test_za_on_the_end_of_a_branch_folds_what_it_hangs_from(sidebar: Sidebar) -> None:
    sidebar.go("u3")
    sidebar.editor.keys("za")
    sidebar.shows([*ROWS[:6], "   ▸ assistant  All tests pass"])
    sidebar.at("a3")


def test_zc_and_zo_fold_and_unfold(sidebar: Sidebar) -> None:
    sidebar.go("u2")
    sidebar.editor.keys("zc")
    folded = [*ROWS[:5], "└─ ▸ user       Fix it and add a test"]
    sidebar.shows(folded)
    sidebar.editor.keys("zc")
    assert sidebar.lines == folded
    sidebar.editor.keys("zo")
    sidebar.shows(ROWS)


def test_capital_zm_folds_every_other_branch_and_zr_unfolds_all(sidebar: Sidebar) -> None:
    sidebar.editor.keys("zM")
    sidebar.shows([*ROWS[:5], "└─ ▸ user       Fix it and add a test"])
    sidebar.at("a4")
    sidebar.editor.keys("zR")
    sidebar.shows(ROWS)


def test_gl_goes_to_the_leaf_even_when_it_is_folded_away(sidebar: Sidebar) -> None:
    sidebar.go("a2")
    sidebar.editor.keys("za")
    sidebar.shows([*ROWS[:2], "▸ assistant  The handler rebuilds the URL"])
    sidebar.editor.keys("gg")
    sidebar.editor.keys("gl")
    sidebar.shows(ROWS)
    sidebar.at("a4")


def test_capital_gl_goes_to_the_tip_of_another_branch(sidebar: Sidebar) -> None:
    sidebar.editor.lua(
        """vim.ui.select = function(items, options, go)
          _G.offered = vim.tbl_map(options.format_item or tostring, items)
          go(items[#items], #items)
        end"""
    )
    sidebar.editor.keys("gL")
    sidebar.at("u3")
    assert "Now refactor" in sidebar.editor.lua("return _G.offered")[-1]
    assert sidebar.leaf == "a4"


def test_brackets_go_to_branching_points(desk: Desk) -> None:
    entries = [user("p0", None, "top", 1)]
    for n in range(1, 4):
        entries += [
            user(f"p{n}", f"p{n - 1}", f"trunk {n}", 10 * n),
            user(f"s{n}", f"p{n - 1}", f"side {n}", 10 * n + 5),
        ]
    entries += [assistant("end", "p3", "the end", 90)]
    path = write_log(desk.folder / "pi" / "--shop--" / "many.jsonl", entries, header("many", str(desk.project)))
    sidebar = shown(desk, path, "many")
    sidebar.at("end")
    sidebar.editor.keys("[b")
    sidebar.at("p2")
    sidebar.editor.keys("2[b")
    sidebar.at("p0")
    sidebar.editor.keys("[b")
    sidebar.editor.wait_message("no branching point above")
    sidebar.editor.keys("]b")
    sidebar.at("p1")
    sidebar.editor.keys("2]b")
    sidebar.editor.wait_message("no branching point below")
    sidebar.at("p1")


def test_p_shows_the_whole_entry_and_q_closes_it(sidebar: Sidebar) -> None:
    sidebar.go("r1")
    sidebar.editor.keys("p")
    sidebar.editor.wait_screen("export const login")
    sidebar.editor.keys("q")
    sidebar.editor.wait(lambda: "export const login" not in sidebar.editor.screen().text, "the preview closed")
    assert sidebar.editor.lua("return require('dsh.view').is_current()")


def test_y_yanks_the_text(sidebar: Sidebar) -> None:
    sidebar.go("u1")
    sidebar.editor.keys("y")
    sidebar.editor.wait_message("1 line yanked")
    assert "Find why the redirect drops the query" in sidebar.editor.lua("return vim.fn.getreg('\"')")


def test_capital_k_tells_the_exact_time_and_id(sidebar: Sidebar) -> None:
    sidebar.editor.keys("K")
    screen = sidebar.editor.wait_screen("message  a4")
    when = sidebar.editor.lua("return os.date('%Y-%m-%d %H:%M:%S', 1767225609)")
    assert when in screen.text
    assert stamp(9) == "2026-01-01T00:00:09.000Z"


def test_s_says_when_there_is_no_model(sidebar: Sidebar) -> None:
    sidebar.go("a3")
    sidebar.editor.keys("s")
    sidebar.editor.wait_message("there is no model to summarise with")
    assert sidebar.leaf == "a4"


def test_capital_r_fetches_everything_anew_and_keeps_the_cursor(sidebar: Sidebar) -> None:
    sidebar.go("a2")
    sidebar.editor.lua(
        """vim.api.nvim_buf_set_option(0, 'modifiable', true)
        vim.api.nvim_buf_set_lines(0, 0, 1, false, { 'spoiled' })"""
    )
    sidebar.editor.keys("R")
    sidebar.shows(ROWS)
    sidebar.at("a2")


def test_q_closes_the_sidebar_and_nothing_is_followed_any_more(sidebar: Sidebar) -> None:
    sidebar.editor.keys("q")
    assert sidebar.editor.lua("return #vim.api.nvim_list_wins()") == 1
    mine = "neovim"

    def subscriptions() -> int:
        status = sidebar.desk.ask("daemon/status")
        return sum(one["subscriptions"] for one in status["connections"] if one["name"] == mine)

    sidebar.editor.wait(lambda: subscriptions() == 0, "no subscription")
    sidebar.editor.command("DshTree tree")
    sidebar.shows(ROWS)


def test_q_in_the_last_window_leaves_an_editor_behind(sidebar: Sidebar) -> None:
    sidebar.editor.command("only")
    sidebar.editor.keys("q")
    assert sidebar.editor.lua("return #vim.api.nvim_list_wins()") == 1
    assert sidebar.editor.lua("return vim.api.nvim_buf_get_name(0)") == ""


def test_the_help_lists_each_key(sidebar: Sidebar) -> None:
    sidebar.editor.keys("g?")
    sidebar.editor.wait(lambda: sidebar.editor.named("^dsh%-keys://"), "the help")
    text = "\n".join(sidebar.editor.lines())
    keys = sidebar.editor.lua("return vim.tbl_map(function(key) return key.lhs end, require('dsh.keys').list)")
    assert [key for key in keys if key + " " not in text] == []


def test_keys_can_be_moved_and_taken_away(desk: Desk, log: Path) -> None:
    init = "require('dsh').setup({ keys = { filter = 'F', search = false } })"
    sidebar = shown(desk, log, "tree", init=init)
    sidebar.editor.keys("F")
    sidebar.shows([ROWS[0], *ROWS[2:]])
    mapped = sidebar.editor.lua(
        "return vim.tbl_map(function(map) return map.lhs end, vim.api.nvim_buf_get_keymap(0, 'n'))"
    )
    assert "F" in mapped
    assert not {"o", "/"} & set(mapped)


# What happens meanwhile


def append(log: Path, *entries: dict[str, Any]) -> None:
    with log.open("ab") as file:
        file.write(b"".join(map(line, entries)))


def test_a_cursor_on_the_leaf_goes_with_an_agent_that_appends(sidebar: Sidebar) -> None:
    append(sidebar.log, user("n1", "a4", "And now the docs", 20))
    sidebar.at("n1")
    append(sidebar.log, assistant("n2", "n1", "Written", 21))
    sidebar.at("n2")
    assert sidebar.lines[5:7] == ["│  user       And now the docs", "│  assistant  Written"]


def test_a_cursor_elsewhere_stays_on_its_entry_while_rows_come_and_go_above(sidebar: Sidebar) -> None:
    sidebar.go("u3")
    where = sidebar.editor.lua("return vim.fn.winline()")
    append(sidebar.log, *(user(f"n{n}", "a4" if n == 0 else f"n{n - 1}", f"line {n}", 20 + n) for n in range(100)))
    sidebar.editor.wait(lambda: len(sidebar.lines) == 108, "the new rows")
    assert sidebar.row == "u3"
    assert sidebar.editor.lua("return vim.fn.winline()") == where


def test_following_can_be_turned_off(desk: Desk, log: Path) -> None:
    sidebar = shown(desk, log, "tree", init="require('dsh').setup({ sidebar = { follow = false } })")
    append(log, user("n1", "a4", "And now the docs", 20))
    sidebar.editor.wait(lambda: len(sidebar.lines) == 9, "the new row")
    assert sidebar.row == "a4"


def test_the_sidebar_follows_while_the_cursor_is_in_another_window(sidebar: Sidebar) -> None:
    sidebar.editor.command("wincmd p")
    append(sidebar.log, user("n1", "a4", "And now the docs", 20))
    sidebar.at("n1")
    screen = sidebar.editor.wait_screen("And now the docs")
    assert any("And now the docs" in text and "← leaf" in text for text in screen.lines)


def test_events_tell_of_changes_and_moves(sidebar: Sidebar) -> None:
    sidebar.editor.lua(
        """_G.heard = {}
        for _, name in ipairs({ 'DshSessionChanged', 'DshNavigated' }) do
          vim.api.nvim_create_autocmd('User', { pattern = name, callback = function(event)
            table.insert(_G.heard, { name, event.data.session_id, event.data.leaf_id or '' })
          end })
        end"""
    )
    sidebar.go("a3")
    sidebar.editor.keys("<CR>")
    wanted = [["DshSessionChanged", "tree", ""], ["DshNavigated", "tree", "a3"]]
    sidebar.editor.wait(lambda: sidebar.editor.lua("return _G.heard") == wanted, "the events")


def test_the_statusline_names_the_session_the_label_of_the_leaf_and_what_runs(sidebar: Sidebar) -> None:
    editor = sidebar.editor
    status = "return require('dsh').statusline()"
    assert editor.lua(status) == "⑂ Find why the redirect drops the query"
    sidebar.desk.ask("session/rename", sessionId="tree", title="100% %{v:version}")
    sidebar.desk.ask("session/label", sessionId="tree", entryId="a4", label="good")
    wanted = "⑂ 100%% %%{v:version} · good"
    editor.wait(lambda: editor.lua(status) == wanted, "title and label")
    assert editor.lua("return vim.api.nvim_eval_statusline(..., {}).str", wanted) == "⑂ 100% %{v:version} · good"
    editor.keys("q")
    assert editor.lua(status) == ""


def test_a_deleted_session_leaves_a_line_and_no_error(sidebar: Sidebar) -> None:
    sidebar.desk.ask("session/delete", sessionId="tree")
    sidebar.shows(["this session was deleted"])
    assert "Error" not in sidebar.editor.messages


def test_a_session_that_cannot_be_opened_says_why(desk: Desk) -> None:
    editor = desk.editor()
    editor.command("DshTree no-such-session")
    editor.wait_message("no-such-session")
    assert "stack traceback" not in editor.messages


# Hostile logs


BAD = (
    "\x1b[31mred\x1b[0m \x07bell \u202egnp.exe\u202c \u0085next\u2028line\r\n"
    "vim: set modifiable:\ttab \ud800 %#Error#%{1+1}"
)


def test_nothing_in_a_log_can_do_anything_to_the_editor(desk: Desk) -> None:
    entries = [
        {**user("u1", None, BAD, 1), "extra": BAD},
        assistant("a1", "u1", "vim: set foldmethod=expr foldexpr=execute('let\\ g:owned=1'):", 2),
        entry("custom_message", "c1", "a1", 3, customType="<script>" + BAD, content=BAD, display=True),
        entry("label", "l1", "c1", 4, targetId="u1", label=BAD),
        entry("session_info", "i1", "l1", 5, name=BAD),
        user("u2", "i1", "x" * 2_000_000, 6),
    ]
    path = desk.folder / "pi" / "--shop--" / "bad.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in [header("bad", str(desk.project)), *entries]))
    sidebar = shown(desk, path, "bad", init="vim.o.modeline = true; vim.o.modelines = 5")
    editor = sidebar.editor
    text = "\n".join(sidebar.lines) + editor.screen().text + editor.lua("return vim.wo.winbar")
    text += editor.lua("return require('dsh').statusline()")
    forbidden = {"\x1b", "\x07", "\u202e", "\u202c", "\u0085", "\u2028", "\r", "\t"}
    assert not forbidden & set(text)
    assert len(sidebar.lines) == 4
    assert max(map(len, sidebar.lines)) < 300
    assert editor.lua("return require('dsh').statusline()").count("%%{1+1}") == 1
    assert editor.lua("return { vim.g.owned or 0, vim.bo.modifiable, vim.wo.foldmethod }") == [0, False, "manual"]
    for row in ("u1", "a1", "c1", "u2"):
        sidebar.go(row)
        editor.keys("p")
        editor.wait(lambda row=row: editor.named("^dsh%-entry://.*" + row), "the preview")
        assert not (forbidden - {"\t"}) & set("".join(editor.lines()))
        assert editor.lua("return vim.g.owned") is None
        editor.keys("q")
    editor.type("L")
    editor.wait_screen("┌ label ")
    editor.type("<Esc>")
    assert "Error" not in editor.messages


def test_messages_of_the_daemon_are_one_harmless_line(desk: Desk) -> None:
    editor = desk.editor()
    editor.lua("require('dsh.say').error({ kind = 'x', message = 'first\\nsecond\\27[2J' })")
    editor.wait_message("dsh: first second [2J")


# Long sessions


def test_a_long_session_has_a_line_for_each_row_and_holds_only_those_near_the_window(desk: Desk) -> None:
    count = 20_000
    entries = [user(f"u{n}", f"u{n - 1}" if n else None, f"message {n}", n) for n in range(count)]
    path = write_log(desk.folder / "pi" / "--shop--" / "long.jsonl", entries, header("long", str(desk.project)))
    sidebar = shown(desk, path, "long")
    editor = sidebar.editor
    assert len(sidebar.lines) == count
    assert sidebar.row == f"u{count - 1}"

    def held() -> int:
        return sum(1 for text in sidebar.lines if text)

    assert held() < 1000
    editor.keys("gg")
    editor.wait_screen("message 0")
    for _ in range(12):
        editor.keys("<C-f>")
        top, bottom = editor.lua("return { vim.fn.line('w0'), vim.fn.line('w$') }")
        editor.wait(lambda top=top: sidebar.lines[top - 1] == f"user       message {top - 1}", "the first line")
        editor.wait(lambda bottom=bottom: sidebar.lines[bottom - 1] == f"user       message {bottom - 1}", "the last")
    editor.keys("10000G")
    editor.wait_screen("message 9999")
    assert sidebar.row == "u9999"
    assert held() < 1000
    marks = "return #vim.api.nvim_buf_get_extmarks(0, vim.api.nvim_create_namespace('dsh.view'), 0, -1, {})"
    assert editor.lua(marks) < 5000
    append(path, user("new", f"u{count - 1}", "one more", count))
    editor.wait(lambda: len(sidebar.lines) == count + 1, "the new row")
    assert sidebar.row == "u9999"
    editor.keys("G")
    editor.wait_screen("one more")


# Formats, summaries, tab pages


def test_where_the_log_has_one_path_a_move_offers_a_fork(desk: Desk) -> None:
    path = story().write(desk.folder / "dsh", zstd=False)
    editor = desk.editor()
    editor.command(f"DshTree {path}")
    sidebar = Sidebar(desk, editor, path, "session-a")
    editor.wait(lambda: sidebar.row, "rows")
    before = path.read_bytes()
    editor.lua("vim.ui.select = function(items, options, go) _G.asked = options.prompt; go(items[1], 1) end")
    second = editor.lua(
        """local prompts = vim.tbl_filter(function(row) return row.kind == 'user' end, require('dsh.view').tree().rows)
        return prompts[2].id"""
    )
    sidebar.go(second)
    editor.keys("<CR>")
    editor.wait(lambda: editor.lua("return require('dsh.view').session_id()") not in {None, "session-a"}, "the fork")
    assert "has one path" in editor.lua("return _G.asked")
    assert path.read_bytes() == before


SELECT = """
vim.ui.select = function(items, options, go)
  _G.asked = { items = items, prompt = options.prompt }
  go(items[_G.choice], _G.choice)
end
vim.ui.input = function(_, go)
  go("look at the tests")
end
"""


class Model:
    """A client that summarises, when it is let."""

    def __init__(self, desk: Desk) -> None:
        self.let = threading.Event()
        self.asked: list[str | None] = []
        self.given_up = 0
        desk.client("model", summarizer=True).serve("hook/summarize", self.summarise)

    async def summarise(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request.get("instructions"))
        try:
            while not self.let.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return {"text": "Tried the conservative way."}


@pytest.mark.parametrize(("choice", "instructions"), [(2, None), (3, "look at the tests")])
def test_s_asks_how_to_summarise_what_is_left_behind(
    desk: Desk, log: Path, choice: int, instructions: str | None
) -> None:
    model = Model(desk)
    sidebar = shown(desk, log, "tree", init=f"_G.choice = {choice}" + SELECT)
    model.let.set()
    sidebar.go("a3")
    sidebar.editor.keys("s")
    sidebar.editor.wait(lambda: sidebar.entries()[-1]["type"] == "branch_summary", "the summary")
    last = sidebar.entries()[-1]
    assert last["summary"].endswith("Tried the conservative way.")
    assert last["parentId"] == "a3"
    assert [asked or None for asked in model.asked] == [instructions]
    sidebar.at(last["id"])
    assert any("[branch summary]" in text for text in sidebar.lines)
    asked = sidebar.editor.lua("return _G.asked")
    assert asked["prompt"] == "2 entries are left behind"
    assert asked["items"] == ["No summary", "Summary", "Summary with instructions"]


def test_s_without_a_summary_moves_and_asks_no_model(desk: Desk, log: Path) -> None:
    model = Model(desk)
    sidebar = shown(desk, log, "tree", init="_G.choice = 1" + SELECT)
    before = log.read_bytes()
    sidebar.go("a3")
    sidebar.editor.keys("s")
    sidebar.editor.wait(lambda: sidebar.leaf == "a3", "the move")
    assert (log.read_bytes(), model.asked) == (before, [])


def test_escape_gives_a_summary_up_and_the_leaf_stays(desk: Desk, log: Path) -> None:
    model = Model(desk)
    sidebar = shown(desk, log, "tree", init="_G.choice = 2" + SELECT)
    before = log.read_bytes()
    sidebar.go("a3")
    sidebar.editor.keys("s")
    sidebar.editor.wait(lambda: model.asked, "the request for a summary")
    sidebar.editor.wait_screen("(<Esc> cancels)")
    sidebar.editor.keys("<Esc>")
    sidebar.editor.wait_message("cancelled, the leaf is where it was")
    assert model.given_up == 1
    assert (sidebar.leaf, log.read_bytes()) == ("a4", before)
    mapped = sidebar.editor.lua("return vim.fn.maparg('<Esc>', 'n')")
    assert mapped == ""


def test_the_sidebar_comes_to_the_tab_page_where_it_is_called(sidebar: Sidebar) -> None:
    editor = sidebar.editor
    sidebar.go("a3")
    editor.command("tabnew")
    editor.command("Dsh")
    editor.wait_screen("← leaf")
    assert editor.lua("return vim.fn.tabpagenr()") == 2
    assert editor.lua("return #vim.api.nvim_tabpage_list_wins(vim.api.nvim_list_tabpages()[1])") == 1
    sidebar.at("a3")
    editor.command("Dsh")
    assert editor.lua("return #vim.api.nvim_tabpage_list_wins(0)") == 1


@pytest.mark.parametrize("command", ["bdelete", "bwipeout", "edit"])
def test_a_sidebar_that_lost_its_buffer_comes_back_with_keys_and_session(sidebar: Sidebar, command: str) -> None:
    editor = sidebar.editor
    editor.command(command)
    if command != "edit":
        editor.command("Dsh")
    sidebar.at("a4")
    assert editor.lua("return { vim.bo.buftype, vim.bo.modifiable, vim.bo.modified }") == ["nofile", False, False]
    assert editor.lua("return require('dsh.view').session_id()") == "tree"
    editor.keys("<CR>")
    editor.wait_message("already here")


def test_where_two_windows_show_the_sidebar_keys_work_in_the_one_they_are_typed_in(sidebar: Sidebar) -> None:
    editor = sidebar.editor
    first = editor.lua("return vim.api.nvim_get_current_win()")
    editor.command("split")
    sidebar.go("a3")
    editor.lua("vim.api.nvim_set_current_win(...)", first)
    sidebar.at("a4")
    editor.command("close")
    sidebar.at("a3")
    editor.keys("<CR>")
    editor.wait(lambda: sidebar.leaf == "a3", "the move")
    editor.command("tab split")
    editor.command("Dsh")
    assert editor.lua("return vim.fn.win_findbuf((require('dsh.view').ids()))") == []


def test_a_label_or_a_new_window_is_not_taken_for_the_sidebar(sidebar: Sidebar) -> None:
    editor = sidebar.editor
    window = editor.lua("return select(2, require('dsh.view').ids())")
    editor.command("new")
    editor.command("Dsh open")
    editor.type("L")
    editor.wait_screen("label")
    editor.type("<Esc>")
    editor.wait(lambda: editor.lua("return vim.api.nvim_get_current_win()") == window, "the sidebar")
    assert editor.lua("return select(2, require('dsh.view').ids())") == window
    assert editor.messages == ""


def test_a_session_file_brings_sidebar_and_prompt_back(sidebar: Sidebar) -> None:
    sidebar.go("u2")
    sidebar.editor.keys("<CR>")
    sidebar.editor.wait_screen("prompt · :w sends it")
    sidebar.editor.command(f"mksession {sidebar.desk.folder / 'Session.vim'}")
    editor = sidebar.desk.editor()
    editor.command(f"source {sidebar.desk.folder / 'Session.vim'}")
    editor.wait_screen("← leaf")
    editor.wait(lambda: editor.lines(editor.named("^dsh%-prompt://")) == ["Fix it and add a test"], "the draft")
    kinds = {"dsh://sidebar": "nofile", "dsh-prompt://tree": "acwrite"}
    for name, kind in kinds.items():
        assert editor.lua("return vim.bo[vim.fn.bufnr(...)].buftype", name) == kind
    assert editor.lua("return #vim.api.nvim_list_wins()") == 3


def test_in_a_narrow_sidebar_titles_come_before_facts(desk: Desk) -> None:
    editor = desk.editor(init="require('dsh').setup({ sidebar = { width = 36 } })")
    editor.command("Dsh")
    row = editor.wait_screen("Why does the test").text
    assert "2 d ago" in row
    assert "tool pending" not in row
    editor.command("vertical resize 80")
    editor.wait_screen("pi · 2 d ago · tool pending")


def test_a_model_that_came_after_the_session_was_opened_can_summarise(desk: Desk, log: Path) -> None:
    sidebar = shown(desk, log, "tree", init="_G.choice = 2" + SELECT)
    model = Model(desk)
    model.let.set()
    sidebar.go("a3")
    sidebar.editor.keys("s")
    sidebar.editor.wait(lambda: sidebar.entries()[-1]["type"] == "branch_summary", "the summary")


def test_what_a_compaction_took_from_the_model_is_not_marked_as_an_error(desk: Desk) -> None:
    editor = desk.editor()
    marks = editor.lua(
        """return require('dsh.render').row({ id = 'a', kind = 'user', type = 'message', text = 'x', gutter = '',
          children = 0, depth = 0, active = true, flags = { 'shadowed' } }).marks"""
    )
    assert marks == [["  ", "DshHint"], ["shadowed", "DshFacts"]]


# What is under the cursor is what a key means


def under_cursor(editor: Editor) -> str:
    return editor.lua("return require('dsh.view').listed_session().sessionId")


def test_the_cursor_stays_on_its_session_when_the_list_is_sorted_again(desk: Desk, log: Path) -> None:
    editor = desk.editor()
    editor.command("Dsh")
    editor.wait_screen("← leaf")
    editor.keys("gg3j")
    assert under_cursor(editor) == "tree"
    editor.keys("k")
    chosen = under_cursor(editor)
    desk.ask("session/append", sessionId="tree", entries=[{**user("n1", "a4", "Now"), "timestamp": NOW}])
    editor.wait(lambda: "Find why" in editor.lines(editor.named("^dsh://sidebar"))[0], "the other order")
    assert under_cursor(editor) == chosen
    assert editor.lua("return vim.api.nvim_win_get_cursor(0)[1]") == 4


def test_the_cursor_leaves_the_list_with_a_session_that_is_not_listed_any_more(desk: Desk, log: Path) -> None:
    editor = desk.editor()
    editor.command("Dsh")
    editor.wait_screen("← leaf")
    editor.keys("gg2j")
    desk.ask("session/delete", sessionId=under_cursor(editor))
    editor.wait(lambda: editor.lua("return require('dsh.view').listed_session() == nil"), "the cursor below the list")
    assert editor.lua("return vim.api.nvim_win_get_cursor(0)[1]") == 4


@pytest.mark.parametrize("hide", ["filter", "fold"])
def test_the_mark_of_a_leaf_that_is_hidden_is_not_taken_for_the_leaf(sidebar: Sidebar, hide: str) -> None:
    if hide == "filter":
        sidebar.editor.keys("oo")
        sidebar.at("u4")
    else:
        sidebar.go("u4")
        sidebar.editor.keys("zc")
    sidebar.editor.wait(lambda: sidebar.editor.lua("return require('dsh.view').row().leaf"), "the mark")
    sidebar.editor.keys("<CR>")
    prompt = sidebar.editor.wait(lambda: sidebar.editor.named("^dsh%-prompt://"), "the prompt buffer")
    assert sidebar.editor.lines(prompt) == ["Try the conservative way"]
    assert sidebar.leaf == "a2"


def test_an_entry_that_was_chosen_is_shown_whatever_words_and_filter_are_in_force(sidebar: Sidebar) -> None:
    editor = sidebar.editor
    editor.type("/conservative<CR>")
    sidebar.shows(["user       Try the conservative way"])
    editor.lua("require('dsh.view').open({ session_id = 'tree', entry_id = 'a3' })")
    sidebar.at("a3")
    editor.wait_message("all rows again: the entry does not hold “conservative”")
    assert sidebar.lines == ROWS
    editor.keys("oo")
    editor.wait(lambda: len(sidebar.lines) == 4, "prompts only")
    editor.lua("require('dsh.view').open({ session_id = 'tree', entry_id = 'a2' })")
    sidebar.at("a2")
    editor.wait_message("filter default: user-only does not show the entry")
    editor.keys("oo")
    editor.wait(lambda: len(sidebar.lines) == 4, "prompts only")
    editor.keys("ggGgl")
    sidebar.at("u4")
    assert len(sidebar.lines) == 4


def test_a_session_of_another_directory_is_shown_to_run(desk: Desk) -> None:
    elsewhere = desk.folder / "elsewhere"
    elsewhere.mkdir()
    agent = desk.client("agent")
    session_id = agent.ask("session/create", cwd=str(desk.project))["sessionId"]
    agent.ask("session/resume", sessionId=session_id)
    editor = desk.editor(elsewhere)
    editor.command("Dsh")
    editor.wait_screen("no sessions of")
    editor.lua("require('dsh.view').open({ session_id = ... })", session_id)
    editor.wait_screen("nothing was said yet")
    agent.ask("turn/start", sessionId=session_id, content="Do it")
    editor.wait(lambda: "running" in editor.lua("return require('dsh').statusline()"), "running")
    assert editor.lines(editor.named("^dsh://sidebar"))[0].startswith("no sessions of")


# Prompts


def test_an_unsent_prompt_is_not_replaced_unasked(sidebar: Sidebar) -> None:
    editor = sidebar.editor
    sidebar.desk.ask("session/draft", sessionId="tree", text="Half written\nby hand")
    editor.lua("vim.ui.select = function(items, options, go) _G.asked = options.prompt; go(items[_G.choice]) end")
    editor.lua("_G.choice = 2")
    sidebar.go("u2")
    editor.keys("e")
    editor.wait(lambda: editor.lua("return _G.asked"), "the question")
    assert editor.lua("return _G.asked") == "An unsent prompt would be lost: “Half written”"
    assert sidebar.leaf == "a4"
    assert sidebar.desk.ask("session/draft", sessionId="tree")["text"] == "Half written\nby hand"
    editor.lua("_G.choice = 1")
    editor.keys("e")
    editor.wait(lambda: editor.named("^dsh%-prompt://"), "the prompt buffer")
    assert sidebar.leaf == "a2"


def test_a_prompt_that_nobody_has_typed_on_is_replaced_without_a_question(sidebar: Sidebar) -> None:
    editor = sidebar.editor
    editor.lua("vim.ui.select = function() _G.asked = true end")
    for row, text in (("u2", "Fix it and add a test"), ("u4", "Try the conservative way")):
        editor.command("Dsh open")
        sidebar.go(row)
        editor.keys("e")
        editor.wait(lambda text=text: editor.lines(editor.named("^dsh%-prompt://")) == [text], "the prompt")
    assert editor.lua("return _G.asked") is None


@pytest.mark.parametrize("key", ["e", "b"])
def test_pictures_that_a_prompt_loses_are_told(desk: Desk, key: str) -> None:
    prompt = user("u1", None, "What is this?", 1)
    prompt["message"]["content"].append({"type": "image", "mimeType": "image/png", "data": "aGk="})
    entries = [prompt, assistant("a1", "u1", "A cat", 2)]
    path = write_log(desk.folder / "pi" / "--shop--" / "cat.jsonl", entries, header("cat", str(desk.project)))
    sidebar = shown(desk, path, "cat")
    sidebar.go("u1")
    sidebar.editor.keys(key)
    sidebar.editor.wait_message("1 picture of this prompt cannot be shown here; it is sent without")


# Rooms and terminals


def test_a_long_label_is_cut_so_that_it_and_the_leaf_are_seen(desk: Desk, log: Path) -> None:
    sidebar = shown(desk, log, "tree", init="require('dsh').setup({ sidebar = { width = 44 } })")
    label = "a label of thirty-six characters, so"
    desk.ask("session/label", sessionId="tree", entryId="a4", label=label)
    text = sidebar.editor.wait_screen("⚑ a label of thirty").text
    assert "← leaf" in text
    assert label not in text
    sidebar.editor.command("vertical resize 100")
    sidebar.editor.wait_screen(label)


def test_r_again_goes_to_the_terminal_where_the_agent_runs(sidebar: Sidebar) -> None:
    fake = sidebar.desk.bin / "pi"
    fake.write_text('#!/bin/sh\necho "agent with $*"\nread -r line\n')
    fake.chmod(0o755)
    editor = sidebar.editor
    editor.keys("rr")
    editor.wait_screen("agent with")
    terminals = """return vim.tbl_filter(function(buf)
      return vim.bo[buf].buftype == 'terminal'
    end, vim.api.nvim_list_bufs())"""
    (terminal,) = editor.lua(terminals)
    editor.command("close")
    editor.command("Dsh open")
    editor.keys("r")
    editor.wait(lambda: editor.lua("return vim.api.nvim_get_current_buf()") == terminal, "the terminal")
    assert editor.lua(terminals) == [terminal]
    editor.lua("vim.fn.jobstop(vim.bo.channel)")
    editor.wait(lambda: editor.lua("return vim.fn.jobwait({ vim.bo.channel }, 0)[1]") != -1, "the end of the agent")
    editor.command("stopinsert")
    editor.command("Dsh open")
    editor.keys("r")
    editor.wait(lambda: len(editor.lua(terminals)) == 2, "another terminal")


def test_a_terminal_that_comes_while_a_person_types_elsewhere_does_not_take_the_keys(sidebar: Sidebar) -> None:
    fake = sidebar.desk.bin / "pi"
    fake.write_text('#!/bin/sh\necho "agent with $*"\nread -r line\n')
    fake.chmod(0o755)
    editor = sidebar.editor
    editor.command("wincmd p")
    editor.type("i")
    editor.wait(lambda: editor.nvim.api.get_mode()["mode"] == "i", "Insert mode")
    editor.lua("require('dsh.terminal').resume('tree')")
    editor.wait_screen("agent with")
    editor.type("code<Esc>")
    editor.wait(lambda: editor.lines() == ["code"], "the letters")


def test_a_key_on_escape_is_there_again_after_a_summary(desk: Desk, log: Path) -> None:
    model = Model(desk)
    model.let.set()
    init = "_G.choice = 2; require('dsh').setup({ keys = { close = '<Esc>' } })" + SELECT
    sidebar = shown(desk, log, "tree", init=init)
    sidebar.go("a3")
    sidebar.editor.keys("s")
    sidebar.editor.wait(lambda: sidebar.entries()[-1]["type"] == "branch_summary", "the summary")
    sidebar.at(sidebar.entries()[-1]["id"])
    sidebar.editor.keys("<Esc>")
    assert sidebar.editor.lua("return require('dsh.view').is_shown()") is False


def test_a_document_beside_a_lone_sidebar_gets_all_the_room_there(sidebar: Sidebar) -> None:
    editor = sidebar.editor
    editor.command("only")
    editor.command("DshTranscript")
    editor.wait(lambda: editor.named("^dsh%-transcript://"), "the transcript")
    assert editor.lua("return #vim.api.nvim_list_wins()") == 2
    assert editor.lua("return vim.api.nvim_win_get_width(0)") > 50


def test_a_log_that_came_back_is_shown_again(sidebar: Sidebar) -> None:
    kept = sidebar.log.read_bytes()
    sidebar.log.unlink()
    sidebar.shows(["this session was deleted"])
    sidebar.log.write_bytes(kept)
    sidebar.editor.wait(
        lambda: any(one["sessionId"] == "tree" for one in sidebar.desk.ask("session/list")["items"]), "the session"
    )
    sidebar.editor.keys("R")
    sidebar.shows(ROWS)
