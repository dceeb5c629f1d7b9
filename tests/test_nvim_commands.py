"""Each command of the Neovim client, in a real Neovim, against a real daemon and what is on the disk afterwards."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.cli import story
from dsh_daemon.cli.story import LOGIN

from .nvim import PLUGIN, Desk, Editor
from .support import header, user, write_log

# The window with results is the float that cannot be typed in.
WINDOW = """(function()
  return vim.iter(vim.api.nvim_list_wins()):find(function(win)
    return vim.api.nvim_win_get_config(win).relative ~= "" and win ~= vim.api.nvim_get_current_win()
  end)
end)()"""
CHOSEN = f"return vim.api.nvim_win_get_cursor({WINDOW})[1]"
RESULTS = f"return vim.api.nvim_win_get_buf({WINDOW})"
ASKS = "Type number"  # of the list that Neovim shows for vim.ui.select


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(tmp_path) as made:
        yield made


@pytest.fixture
def editor(desk: Desk) -> Editor:
    return desk.editor()


def sidebar(editor: Editor) -> list[str]:
    return editor.lines(editor.named("^dsh://sidebar"))


def tree_of(editor: Editor, text: str) -> list[str]:
    """The lines of the sidebar once `text` is among them."""
    editor.wait(lambda: any(text in line for line in sidebar(editor)), f"{text!r} in the sidebar")
    return sidebar(editor)


def row_text(editor: Editor) -> str:
    """The text of the row under the cursor of the sidebar."""
    return editor.lua("return (require('dsh.view').row() or { text = '' }).text")


def choose(editor: Editor, number: int) -> str:
    """Take an item of a vim.ui.select list; what the screen showed."""
    shown = editor.wait_screen(ASKS).text
    editor.type(f"{number}<CR>")
    return shown


def sessions(desk: Desk) -> dict[str, Any]:
    return {info["sessionId"]: info for info in desk.ask("session/list")["items"]}


def entries(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines() if line.startswith(b'{"')]


def elsewhere(desk: Desk) -> None:
    """Add a session of another directory."""
    log = [user("a1", None, "Water the plants")]
    write_log(desk.folder / "pi" / "other.jsonl", log, header("other", "/srv/garden"))


# --- before anything is used


def test_the_stubs_cost_little(editor: Editor) -> None:
    stub = str(PLUGIN / "plugin" / "dsh.lua")
    milliseconds = editor.lua(
        """local path, best = ..., math.huge
        for _ = 1, 20 do
          vim.g.loaded_dsh = nil
          local began = vim.uv.hrtime()
          dofile(path)
          best = math.min(best, (vim.uv.hrtime() - began) / 1e6)
        end
        return best""",
        stub,
    )
    assert milliseconds < 2


# --- lists and trees


def test_dsh_shows_the_sessions_of_this_directory_and_the_tree_of_the_latest(editor: Editor) -> None:
    """A118"""
    editor.command("Dsh")
    lines = tree_of(editor, "Now refactor the handler")
    titles = ["● Fix the login redirect", "● Add a dark mode", "◐ Why does the test suite take four minutes?"]
    assert lines[:3] == titles
    editor.command("Dsh toggle")
    assert editor.lua("return #vim.api.nvim_list_wins()") == 1


def test_dsh_sessions_shows_the_tree_of_the_one_that_is_picked(editor: Editor) -> None:
    """A118"""
    editor.command("DshSessions")
    shown = choose(editor, 2)
    assert "1: ● Fix the login redirect  (pi · 2 h ago" in shown
    tree_of(editor, "prefers-color-scheme")
    editor.command("DshSessions suite")
    assert "Add a dark mode  (" not in choose(editor, 1)
    tree_of(editor, "One fixture starts a browser")


def test_dsh_sessions_with_a_bang_lists_those_of_all_directories(desk: Desk, editor: Editor) -> None:
    elsewhere(desk)
    editor.command("DshSessions plants")
    editor.wait_message("no session matches “plants” in this directory")
    editor.command("DshSessions! plants")
    assert "Water the plants  (pi" in (shown := choose(editor, 1))
    assert "/srv/garden" in shown
    tree_of(editor, "Water the plants")


@pytest.mark.parametrize("ref", ["", "last", LOGIN[:13], "login redirect"])
def test_dsh_tree_takes_what_names_a_session(editor: Editor, ref: str) -> None:
    editor.command(f"DshTree {ref}")
    tree_of(editor, "Now refactor the handler")


def test_a_reference_that_names_nothing_is_said_in_one_line(editor: Editor) -> None:
    editor.command("DshTree nothing like it")
    editor.wait_message("dsh: ")
    assert len(editor.messages.splitlines()) == 1


def test_completion_offers_sessions_entries_and_labels(desk: Desk, editor: Editor) -> None:
    desk.ask("session/label", sessionId=LOGIN, entryId=story.DONE, label="before-refactor")

    def completed(typed: str) -> list[str]:
        return editor.lua("return vim.fn.getcompletion(..., 'cmdline')", typed)

    assert LOGIN in completed("DshTree 019cadd3")
    assert "Add a dark mode" in completed("DshTree Add")
    editor.command("DshTree")
    tree_of(editor, "Now refactor the handler")
    assert completed("DshFork before") == ["before-refactor"]
    assert completed("DshLabel before") == ["before-refactor"]
    assert completed(f"DshBranch {story.FIX[:4]}") == [story.FIX]
    assert completed("Dsh to") == ["toggle"]
    desk.ask("session/label", sessionId=LOGIN, entryId=story.FIX, label="good enough for now")
    assert completed("DshLabel good en") == ["enough for now"]
    assert completed("DshTree Fix the lo") == ["login redirect"]
    assert completed("DshTranscript Fix the ") == ["login redirect"]


# --- new sessions


def test_dsh_branch_makes_a_file_without_touching_the_source_and_opens_the_prompt(desk: Desk, editor: Editor) -> None:
    """A118"""
    source, known = desk.login.read_bytes(), set(sessions(desk))
    editor.command("DshTree")
    tree_of(editor, "Now refactor the handler")
    editor.command(f"DshBranch {story.REFACTOR}")
    prompt = editor.wait(lambda: editor.named("^dsh%-prompt://"), "the prompt")
    assert editor.lines(prompt) == ["Now refactor the handler"]

    (child,) = set(sessions(desk)) - known
    branch = sessions(desk)[child]
    assert branch["parentSessionId"] == LOGIN
    assert story.REFACTOR not in {entry.get("id") for entry in entries(branch["path"])}
    assert desk.login.read_bytes() == source
    assert desk.ask("session/draft", sessionId=child)["text"] == "Now refactor the handler"


def test_dsh_branch_without_a_prompt_offers_those_of_all_branches(desk: Desk, editor: Editor) -> None:
    editor.command("DshBranch")
    shown = choose(editor, 4)
    assert "4: └─ user       Try the conservative way: keep the old handler" in shown
    prompt = editor.wait(lambda: editor.named("^dsh%-prompt://"), "the prompt")
    assert editor.lines(prompt) == ["Try the conservative way: keep the old handler"]


def test_escape_twice_in_the_prompt_branches_from_another_one(desk: Desk, editor: Editor) -> None:
    editor.command("DshPrompt")
    editor.wait(lambda: editor.named("^dsh%-prompt://"), "the prompt")
    editor.type("<Esc><Esc>")
    assert "Branch from:" in choose(editor, 1)
    editor.wait(lambda: len(sessions(desk)) == 4, "the new session")


def test_dsh_fork_takes_everything_up_to_a_closed_turn(desk: Desk, editor: Editor) -> None:
    """A118"""
    source = desk.login.read_bytes()
    editor.command("DshTree")
    tree_of(editor, "Now refactor the handler")
    editor.command(f"DshFork {story.DONE}")
    fork = editor.wait(lambda: [one for one in sessions(desk).values() if one["parentSessionId"] == LOGIN], "the fork")
    kept = {entry.get("id") for entry in entries(fork[0]["path"])}
    assert story.DONE in kept
    assert story.REFACTOR not in kept
    assert desk.login.read_bytes() == source


# --- labels and titles


def test_dsh_label_writes_a_label_and_with_a_bang_takes_it_away(desk: Desk, editor: Editor) -> None:
    """A118"""
    editor.command("DshTree")
    tree_of(editor, "Now refactor the handler")
    editor.lua("require('dsh.view').go_to(...)", story.DONE)
    editor.wait(lambda: editor.lua("return (require('dsh').current() or {}).entry_id") == story.DONE, "the cursor")
    editor.command("DshLabel before refactor")
    editor.wait_screen("⚑ before refactor")
    last = entries(desk.login)[-1]
    assert (last["type"], last["targetId"], last["label"]) == ("label", story.DONE, "before refactor")
    editor.command("DshLabel!")
    editor.wait(lambda: "⚑" not in editor.screen().text, "no label")
    assert desk.ask("session/labels", sessionId=LOGIN)["items"] == []


def test_dsh_rename_gives_the_session_another_title(desk: Desk, editor: Editor) -> None:
    editor.command("DshTree")
    tree_of(editor, "Now refactor the handler")
    editor.command("DshRename Keep the query")
    editor.wait_screen("● Keep the query")
    assert entries(desk.login)[-1]["name"] == "Keep the query"


# --- reading


def test_dsh_transcript_shows_the_path_as_a_document(editor: Editor) -> None:
    editor.command("DshTranscript")
    buffer = editor.wait(lambda: editor.named("^dsh%-transcript://"), "the transcript")
    lines = editor.lines(buffer)
    assert lines[0] == "# Fix the login redirect"
    assert "> Now refactor the handler" in lines
    assert "> Try the conservative way: keep the old handler" not in lines
    assert editor.lua("return { vim.bo[...].modifiable, vim.bo[...].buftype, vim.bo[...].filetype }", buffer) == [
        False, "nofile", "",
    ]  # fmt: skip


def test_dsh_resume_runs_the_agent_in_its_folder_with_the_session(desk: Desk, editor: Editor) -> None:
    agent = desk.bin / "pi"
    agent.write_text('#!/bin/sh\necho "pi in $(pwd -P)" "$@" > "$HOME/started"\nexec cat\n')
    agent.chmod(0o755)
    editor.command("DshResume")
    started = desk.daemon.home / "started"
    editor.wait(lambda: started.exists() and started.read_text(), "the agent")
    assert started.read_text() == f"pi in {desk.project.resolve()} --session {desk.login}\n"
    assert editor.lua("return { vim.bo.buftype, vim.b.dsh_session }") == ["terminal", LOGIN]


def test_an_agent_that_is_not_installed_is_said(desk: Desk) -> None:
    editor = desk.editor(init=f"vim.env.PATH = {str(Path(sys.executable).parent)!r}")
    editor.command("DshResume")
    editor.wait_message("dsh: pi is not on the PATH")


def test_dsh_touched_finds_the_entries_that_changed_this_file(desk: Desk, editor: Editor) -> None:
    editor.command(f"edit {desk.project / 'src/auth/compat.ts'}")
    editor.command("DshTouched")
    shown = choose(editor, 1)
    assert "1: edit" in shown
    tree_of(editor, "[edit: src/auth/compat.ts]")
    editor.wait(
        lambda: "compat.ts" in editor.lua("return (require('dsh.view').row() or { text = '' }).text"),
        "the cursor there",
    )


def test_dsh_search_shows_results_while_typing_and_opens_the_one_that_is_chosen(editor: Editor) -> None:
    """A118"""
    editor.command("DshSearch")
    editor.wait_screen("Search everywhere")
    editor.type("prefers")
    screen = editor.wait_screen("Add a dark mode  omp · ")
    assert "Search" in screen.groups_at("prefers-color")  # what DshMatch links to
    editor.type("<C-u>wrapper qu")
    editor.wait_screen("another branch")
    editor.type("<CR>")
    tree_of(editor, "A wrapper keeps the query")
    editor.wait(
        lambda: "A wrapper" in editor.lua("return (require('dsh.view').row() or { text = '' }).text"),
        "the cursor there",
    )


def test_dsh_search_with_a_bang_looks_into_the_session_in_use_only(editor: Editor) -> None:
    editor.command("DshTree")
    tree_of(editor, "Now refactor the handler")
    editor.command("DshSearch! handler")
    text = editor.wait_screen("Now refactor the handler  (").text
    assert "Search in this session" in text
    assert "hits" not in text
    editor.type("<C-n><C-n>")
    chosen = editor.wait(lambda: (at := editor.lua(CHOSEN)) != 1 and at, "another result")
    expected = editor.lines(editor.lua(RESULTS))[chosen - 1].split("  ")[2]
    editor.type("<CR>")
    editor.wait(lambda: row_text(editor) == expected, "the cursor there")


def test_a_session_found_by_its_title_is_opened_where_its_leaf_is(desk: Desk, editor: Editor) -> None:
    for name, moved in (("kitchen-1", None), ("kitchen-2", "empty")):
        desk.ask("session/create", cwd=str(desk.project), sessionId=name)
        said = {"type": "message", "message": {"role": "user", "content": f"Hello from {name}"}}
        desk.ask("session/append", sessionId=name, entries=[said])
        desk.ask("session/rename", sessionId=name, title=f"Kitchen plans {name}")
        if moved:
            desk.ask("session/moveLeaf", sessionId=name, entryId=None)
    for name in ("kitchen-1", "kitchen-2"):
        editor.command(f"DshSearch plans {name}")
        editor.wait_screen("title  Kitchen")
        editor.type("<CR>")
        tree_of(editor, f"Hello from {name}")
        editor.command("DshSearch! plans")
        editor.wait_screen("title  Kitchen")
        editor.type("<CR>")
        editor.wait(lambda: editor.lua("return #vim.api.nvim_list_wins()") == 2, "the end of the search")
        tree_of(editor, f"Hello from {name}")


def test_a_search_that_finds_nothing_says_so_and_escape_closes_it(editor: Editor) -> None:
    editor.command("DshSearch zyzzyva")
    editor.wait_screen("nothing found")
    editor.type("<Esc>")
    editor.wait(lambda: editor.lua("return #vim.api.nvim_list_wins()") == 1, "the end of the search")
    assert editor.lua("return vim.fn.mode()") == "n"


# --- the daemon


def test_dsh_status_shows_the_daemons_account(desk: Desk, editor: Editor) -> None:
    desk.ask("session/list")  # every session was found
    editor.command("DshStatus")
    text = editor.wait_screen("Connections").text
    assert f"process {desk.daemon.process.pid}" in text
    assert "pi       " in text
    assert "(2 sessions)" in text
    editor.keys("q")
    assert editor.lua("return #vim.api.nvim_list_wins()") == 1


@pytest.mark.parametrize("command", ["DshStop", "DshStop!"])
def test_dsh_stop_ends_the_daemon_and_it_is_left_in_peace(desk: Desk, editor: Editor, command: str) -> None:
    editor.command("DshTree")
    tree_of(editor, "Now refactor the handler")
    editor.command(command)
    editor.wait(lambda: desk.daemon.process.poll() is not None, "the end of the daemon")
    editor.wait_message("the daemon is stopped")
    assert "reconnecting" not in editor.messages
    time.sleep(0.3)  # nothing may start it again
    assert not desk.daemon.answers()


def test_checkhealth_says_what_is_there(desk: Desk, editor: Editor) -> None:
    editor.command("checkhealth dsh")
    text = "\n".join(editor.lines())
    assert f"(process {desk.daemon.process.pid}, protocol 1)" in text
    assert f"pi: {desk.folder / 'pi'} (2 sessions)" in text
    assert "ERROR" not in text


def test_checkhealth_says_how_to_get_what_is_missing(desk: Desk) -> None:
    editor = desk.editor(init="require('dsh').setup({ daemon = { cmd = { 'no-dshd' } } })")
    editor.command("checkhealth dsh")
    text = "\n".join(editor.lines())
    assert "ERROR no-dshd is not on the PATH of Neovim" in text
    assert "pipx install ." in text
