"""The prompt buffer of the Neovim client: what is typed there is never lost, and goes to the agent or is copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh_daemon.cli.story import LOGIN

from .nvim import Desk, Editor, Peer

OPEN = "require('dsh.prompt').open(...)"
COPIED = 'the prompt was copied to the register "'


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(tmp_path) as made:
        yield made


def opened(desk: Desk, session_id: str, *text: str) -> Editor:
    editor = desk.editor()
    editor.lua(OPEN, session_id, *text)
    editor.wait(lambda: editor.named("^dsh%-prompt://"), "the prompt buffer")
    return editor


def draft(desk: Desk, session_id: str) -> str | None:
    return desk.ask("session/draft", sessionId=session_id)["text"]


def test_what_is_typed_is_kept_as_the_draft_and_found_by_another_editor(desk: Desk) -> None:
    first = opened(desk, LOGIN, "Try it\nagain")
    assert first.lines() == ["Try it", "again"]
    first.keys("A with care<Esc>")
    first.wait(lambda: draft(desk, LOGIN) == "Try it\nagain with care", "the draft")
    assert first.lua("return vim.bo.modified") is False

    second = opened(desk, LOGIN)
    assert second.lines() == ["Try it", "again with care"]

    second.keys("ccand slowly<Esc>")
    second.wait(lambda: draft(desk, LOGIN) == "Try it\nand slowly", "the draft of the second")
    first.command("close")
    first.command(f"DshPrompt {LOGIN}")
    first.wait(lambda: first.lines() == ["Try it", "and slowly"], "the draft of the second in the first")


def test_an_editor_that_ends_while_something_is_typed_keeps_it(desk: Desk) -> None:
    editor = opened(desk, LOGIN, "Begun")
    editor.type("A and typed on")
    editor.wait(lambda: editor.lines() == ["Begun and typed on"], "the text")
    editor.lua("vim.schedule(function() vim.cmd('quitall!') end)")
    editor.process.wait(20)
    assert draft(desk, LOGIN) == "Begun and typed on"


def test_a_draft_that_could_not_be_kept_is_not_taken_for_saved(desk: Desk) -> None:
    editor = opened(desk, LOGIN, "Begun")
    desk.login.unlink()
    editor.keys("A and lost<Esc>")
    editor.wait(lambda: editor.lua("return vim.bo.modified"), "the mark of a changed buffer")


def test_without_an_agent_writing_copies_the_prompt_and_says_so(desk: Desk) -> None:
    editor = opened(desk, LOGIN, "Two\nlines")
    editor.command("write")
    editor.wait_message(COPIED)
    assert editor.lua("return vim.fn.getreg('\"')") == "Two\nlines\n"
    assert editor.lines() == ["Two", "lines"]


def test_with_a_clipboard_the_prompt_is_copied_there(desk: Desk) -> None:
    clipboard = """
        vim.g.loaded_clipboard_provider = nil
        local function copy(lines) vim.g.copied = table.concat(lines, "|") end
        local function paste() return {} end
        vim.g.clipboard = {
          name = "test",
          copy = { ["+"] = copy, ["*"] = copy },
          paste = { ["+"] = paste, ["*"] = paste },
        }"""
    editor = desk.editor(init=clipboard)
    editor.lua(OPEN, LOGIN, "Two\nlines")
    editor.command("write")
    editor.wait_message("the prompt was copied to the clipboard")
    assert editor.lua("return vim.g.copied") == "Two|lines|"


def test_the_key_sends_from_insert_mode_too(desk: Desk) -> None:
    editor = opened(desk, LOGIN, "Sent by key")
    editor.keys("A now<C-CR>")
    editor.wait_message(COPIED)
    assert editor.lua("return vim.fn.getreg('\"')") == "Sent by key now\n"


def test_an_empty_prompt_is_not_sent(desk: Desk) -> None:
    editor = opened(desk, LOGIN, "  \n")
    editor.command("write")
    editor.wait_message("the prompt is empty")


def test_with_an_agent_writing_sends_it_and_ends_the_draft(desk: Desk) -> None:
    agent = desk.client("agent")
    session_id = agent.ask("session/create", cwd=str(desk.project))["sessionId"]
    agent.ask("session/resume", sessionId=session_id)
    editor = opened(desk, session_id, "Do it")
    editor.command("write")

    claimed = agent.ask("agent/claim", sessionId=session_id, waitMs=10_000)["message"]
    assert (claimed["content"], claimed["from"]) == ("Do it", "neovim")
    editor.wait_message("sent to the agent")
    assert editor.named("^dsh%-prompt://") == 0
    assert editor.lua("return #vim.api.nvim_list_wins()") == 1
    assert draft(desk, session_id) is None


def test_writing_to_another_file_writes_the_file(desk: Desk, tmp_path: Path) -> None:
    editor = opened(desk, LOGIN, "Keep me")
    editor.command(f"write {tmp_path / 'prompt.md'}")
    assert (tmp_path / "prompt.md").read_text() == "Keep me\n"
    assert "copied" not in editor.messages


def test_a_text_from_a_log_can_do_nothing_to_the_editor(desk: Desk) -> None:
    editor = opened(desk, LOGIN, "red \x1b[31m\a\u202eevil\r\nvim: set shiftwidth=7:\n\x00nul")
    assert editor.lines() == ["red  [31m evil", "vim: set shiftwidth=7:", " nul"]
    assert editor.lua("return vim.bo.shiftwidth") == 8


@pytest.mark.parametrize("command", ["bdelete", "edit!"])
def test_a_prompt_that_was_closed_or_read_again_comes_back_whole(desk: Desk, command: str) -> None:
    editor = opened(desk, LOGIN, "Begun")
    editor.keys("A and typed on<Esc>")
    editor.command(command)
    editor.command(f"DshPrompt {LOGIN}")
    editor.wait_screen("Begun and typed on")
    editor.wait(lambda: editor.lua("return vim.bo.buftype") == "acwrite", "the prompt")
    editor.command("write")
    editor.wait_message(COPIED)
    assert draft(desk, LOGIN) == "Begun and typed on"


def test_undo_ends_at_the_text_that_the_prompt_began_with(desk: Desk) -> None:
    editor = opened(desk, LOGIN, "Begun")
    editor.keys("A and typed on<Esc>")
    editor.keys("uu")
    assert editor.lines() == ["Begun"]


# With an agent


@pytest.fixture
def agent(desk: Desk) -> tuple[Peer, str]:
    """An agent that has a session."""
    peer = desk.client("agent")
    session_id = peer.ask("session/create", cwd=str(desk.project))["sessionId"]
    peer.ask("session/resume", sessionId=session_id)
    return peer, session_id


def claimed(agent: tuple[Peer, str]) -> list[str]:
    """What was sent to the agent."""
    peer, session_id = agent
    found: list[str] = []
    while message := peer.ask("agent/claim", sessionId=session_id)["message"]:
        found.append(message["content"])
    return found


def test_after_sending_from_insert_mode_keys_do_not_go_into_the_text_behind(
    desk: Desk, agent: tuple[Peer, str]
) -> None:
    code = desk.project / "code.py"
    code.write_text("print(1)\n")
    editor = desk.editor()
    editor.command(f"edit {code}")
    editor.lua(OPEN, agent[1], "Do it")
    editor.wait_screen("prompt · :w sends it")
    editor.type("A now<C-CR>")
    editor.wait_message("sent to the agent")
    editor.wait(lambda: editor.lua("return vim.api.nvim_buf_get_name(0)") == str(code), "the code")
    assert editor.nvim.api.get_mode()["mode"] == "n"
    editor.type("ix<Esc>")
    editor.wait(lambda: editor.lines() == ["xprint(1)"], "one letter")


def test_a_prompt_that_is_on_its_way_is_not_sent_again(desk: Desk, agent: tuple[Peer, str]) -> None:
    editor = opened(desk, agent[1], "Do it")
    editor.type("A once<C-CR><C-CR>")
    editor.wait_message("sent to the agent")
    assert claimed(agent) == ["Do it once"]


def test_what_is_typed_while_a_prompt_is_on_its_way_stays(desk: Desk, agent: tuple[Peer, str]) -> None:
    editor = opened(desk, agent[1], "Do it")
    editor.lua(
        """require('dsh.prompt')
        vim.cmd.write()
        vim.api.nvim_buf_set_lines(0, 0, -1, false, { 'Do it', 'and more' })"""
    )
    editor.wait_message("what was typed since is still here")
    assert editor.lines() == ["Do it", "and more"]
    assert claimed(agent) == ["Do it"]


def test_saveas_writes_a_file_and_sends_nothing(desk: Desk, agent: tuple[Peer, str]) -> None:
    note = desk.project / "note.md"
    editor = opened(desk, agent[1], "A note")
    editor.command(f"saveas {note}")
    assert note.read_text() == "A note\n"
    editor.keys("A of mine<Esc>")
    editor.command("write")
    assert note.read_text() == "A note of mine\n"
    assert editor.lua("return { vim.bo.buftype, vim.bo.modified, vim.wo.winbar }") == ["", False, ""]
    assert claimed(agent) == []
    editor.command(f"DshPrompt {agent[1]}")
    editor.wait_screen("prompt · :w sends it")
    editor.command("write")
    assert editor.lua("return vim.bo.buftype") == "acwrite"


def test_a_file_that_cannot_be_written_is_said_in_one_line(desk: Desk) -> None:
    editor = opened(desk, LOGIN, "A note")
    editor.command(f"write {desk.project / 'nodir' / 'x.md'}")
    editor.wait_message("dsh: E482: Can't open file")
    assert "traceback" not in editor.messages


@pytest.mark.parametrize("leave", ["ZZ", ":x<CR>", ":wqall<CR>", "u:x<CR>"])
def test_leaving_a_prompt_without_writing_it_sends_nothing_and_says_that_it_is_kept(
    desk: Desk, agent: tuple[Peer, str], leave: str
) -> None:
    editor = opened(desk, agent[1], "Do it")
    editor.keys("A now<Esc>")
    editor.wait(lambda: draft(desk, agent[1]) == "Do it now", "the draft")
    if leave == ":wqall<CR>":
        editor.type(leave)
        editor.process.wait(20)
    else:
        editor.keys(leave)
        editor.wait_message("the prompt was not sent, it is kept as a draft")
    assert claimed(agent) == []
    assert draft(desk, agent[1]) in {"Do it now", "Do it"}


def test_a_text_that_is_the_draft_again_is_no_changed_buffer(desk: Desk) -> None:
    editor = opened(desk, LOGIN, "Begun")
    editor.type("Ax<BS><Esc>")
    editor.wait(lambda: editor.lua("return vim.fn.mode() == 'n' and not vim.bo.modified"), "an unchanged buffer")


def test_what_is_typed_is_kept_before_insert_mode_is_left(desk: Desk) -> None:
    editor = opened(desk, LOGIN, "Begun")
    editor.type("A and typed on")
    editor.wait(lambda: draft(desk, LOGIN) == "Begun and typed on", "the draft")
    assert editor.nvim.api.get_mode()["mode"] == "i"
    editor.process.terminate()
    editor.process.wait(20)
    assert draft(desk, LOGIN) == "Begun and typed on"


def test_an_editor_does_not_write_over_the_draft_of_another(desk: Desk) -> None:
    first, second = opened(desk, LOGIN), opened(desk, LOGIN)
    first.keys("iA long text<Esc>")
    first.wait(lambda: draft(desk, LOGIN) == "A long text", "the draft")
    second.keys("ix<Esc>")
    second.wait_message("another editor has changed this draft")
    assert draft(desk, LOGIN) == "A long text"
    assert second.lua("return vim.bo.modified") is True
    second.command("edit!")
    second.wait(lambda: second.lines() == ["A long text"], "the text of the first")
    second.keys("A and more<Esc>")
    second.wait(lambda: draft(desk, LOGIN) == "A long text and more", "the draft of the second")


def test_coming_back_to_a_prompt_shows_what_another_editor_wrote(desk: Desk) -> None:
    first, second = opened(desk, LOGIN), opened(desk, LOGIN)
    second.command("wincmd p")
    first.keys("iA long text<Esc>")
    first.wait(lambda: draft(desk, LOGIN) == "A long text", "the draft")
    second.command("wincmd p")
    second.wait(lambda: second.lines() == ["A long text"], "the text of the first")


def test_a_prompt_that_comes_while_a_person_types_elsewhere_does_not_take_the_keys(desk: Desk) -> None:
    editor = desk.editor()
    editor.type("i")
    editor.wait(lambda: editor.nvim.api.get_mode()["mode"] == "i", "Insert mode")
    editor.lua(OPEN, LOGIN, "Begun")
    editor.wait_screen("prompt · :w sends it")
    editor.type("code<Esc>")
    editor.wait(lambda: editor.lines() == ["code"], "the letters")
    assert editor.lines(editor.named("^dsh%-prompt://")) == ["Begun"]


def test_a_prompt_beside_a_lone_sidebar_has_the_whole_height(desk: Desk) -> None:
    editor = desk.editor()
    editor.command("Dsh")
    editor.command("only")
    editor.lua(OPEN, LOGIN, "Begun")
    assert editor.lua("return #vim.api.nvim_list_wins()") == 2
