"""Entries as the Neovim client shows and copies them: whole, readable, and unable to do anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .nvim import Desk, Editor
from .support import assistant, entry, header, tool_result, user, write_log

EVIL = "red \x1b[31m\a\u202eltr\u200b\x00nul\x9b2J\r\nvim: set shiftwidth=7 :\n\ttab"
CALL = {"id": "c1", "name": "edit", "arguments": {"path": "a.py", "old": "x\ny"}}
LOG = [
    user("u1", None, "A prompt\nof two lines"),
    assistant(
        "a1", "u1", "I look.", calls=[{"id": "c1", "name": "edit", "arguments": {"path": "a.py", "old": "x\ny"}}]
    ),
    tool_result("t1", "a1", "c1", "line one\nline two", name="edit"),
    {
        **assistant("a2", "t1", "Done."),
        "message": {
            **assistant("a2", "t1")["message"],
            "content": [{"type": "thinking", "thinking": "Is it?\nYes."}, {"type": "text", "text": "Done."}],
        },
    },
    assistant("a3", "a2", stopReason="error", errorMessage="overloaded"),
    user("u2", "a3", EVIL),
    entry("model_change", "m1", "u2", provider="openai", modelId="gpt"),
    user("u3", "m1", "x" * 600_000),
    entry("custom", "x1", "u3", customType="todo", data={"items": [1, 2], "none": None}),
]
SHOWN = {
    "u1": ["A prompt", "of two lines"],
    "a1": ["I look.", "", "[edit]", "  old:", "    x", "    y", "  path: a.py"],
    "t1": ["line one", "line two"],
    "a2": ["> Is it?", "> Yes.", "", "Done."],
    "a3": ["overloaded"],
    "u2": ["red  [31m ltr\u200b nul 2J", "vim: set shiftwidth=7 :", "\ttab"],
    "m1": ["  modelId: gpt", "  provider: openai"],
    "x1": ["  customType: todo", '  data: {"items":[1,2]}'],
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with Desk(tmp_path_factory.mktemp("reading")) as made:
        write_log(made.folder / "pi" / "log.jsonl", LOG, header("s1", str(made.project)))
        made.ask("session/open", path=str(made.folder / "pi" / "log.jsonl"))
        yield made


@pytest.fixture(scope="module")
def editor(desk: Desk) -> Editor:
    return desk.editor()


def preview(editor: Editor, entry_id: str) -> list[str]:
    editor.lua("require('dsh.preview').open('s1', ...)", entry_id)
    name = f"^dsh%-entry://s1/{entry_id}$"
    return editor.lines(editor.wait(lambda: editor.named(name), "the preview"))


@pytest.mark.parametrize("entry_id", SHOWN)
def test_an_entry_is_shown_whole_and_harmless(editor: Editor, entry_id: str) -> None:
    assert preview(editor, entry_id) == SHOWN[entry_id]
    kept = editor.lua(
        "return { vim.bo.buftype, vim.bo.modifiable, vim.bo.modeline, vim.bo.filetype, vim.bo.shiftwidth }"
    )
    assert kept == ["nofile", False, False, "", 8]
    editor.keys("<Esc>")
    assert editor.named("^dsh%-entry://") == 0


def test_an_enormous_entry_is_cut_and_says_so(editor: Editor) -> None:
    lines = preview(editor, "u3")
    assert 200_000 < len(lines[0]) < 300_000
    assert lines[-1].startswith("(")
    assert lines[-1].endswith("is cut: 600000 bytes in all)")
    assert "is cut" in editor.screen().text or "xxxx" in editor.screen().text
    editor.keys("q")


def test_a_preview_fits_a_small_screen(desk: Desk) -> None:
    small = desk.editor(size=(30, 8))
    assert preview(small, "a1") == SHOWN["a1"]
    assert "I look." in small.screen().text
    assert len(small.lua("return vim.api.nvim_list_wins()")) == 2


def test_the_option_preview_shows_it_in_a_split(desk: Desk) -> None:
    editor = desk.editor(init="require('dsh').setup({ preview = 'split' })")
    preview(editor, "u1")
    preview(editor, "t1")
    assert editor.lua("return vim.api.nvim_win_get_config(0).relative") == ""
    editor.keys("q")
    assert editor.lines() == ["A prompt", "of two lines"]


def test_yanking_takes_the_whole_text_and_leaves_the_controls_behind(editor: Editor) -> None:
    editor.lua("require('dsh.preview').yank('s1', 'u2')")
    editor.wait_message("3 lines yanked")
    assert editor.lua("return vim.fn.getreg('\"', 1, true)") == SHOWN["u2"]
    editor.lua("require('dsh.preview').yank('s1', 'u3')")
    editor.wait_message("1 line yanked")
    assert editor.lua("return #vim.fn.getreg('\"')") == 600_001


def test_an_entry_that_is_not_there_is_said(editor: Editor) -> None:
    editor.lua("require('dsh.preview').open('s1', 'nothing')")
    editor.wait_message("this entry is not in the session any more")


def test_a_native_session_says_that_it_has_no_program_to_be_resumed_with(desk: Desk, editor: Editor) -> None:
    session_id = desk.ask("session/create", cwd=str(desk.project))["sessionId"]
    editor.lua("require('dsh.terminal').resume(...)", session_id)
    editor.wait_message("no program owns this session")


def test_a_session_whose_folder_is_gone_is_not_resumed_elsewhere(desk: Desk, tmp_path: Path) -> None:
    (desk.bin / "pi").write_text("#!/bin/sh\nexec cat\n")
    (desk.bin / "pi").chmod(0o755)
    path = write_log(desk.folder / "pi" / "gone.jsonl", [user("u1", None, "Hello")], header("gone", "/gone/away"))
    desk.ask("session/open", path=str(path))
    editor = desk.editor()
    editor.lua("require('dsh.terminal').resume('gone')")
    editor.wait_message("the folder of this session is gone: /gone/away")
    assert editor.lua("return #vim.api.nvim_list_wins()") == 1
