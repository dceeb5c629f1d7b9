"""The whole screen of the Neovim client, as a person sees it."""

from __future__ import annotations

from pathlib import Path

from dsh_daemon.cli import story

from .nvim import Desk

INIT = "require('dsh').setup({ sidebar = { width = 70 } })\nvim.o.laststatus = 0\nvim.o.ruler = false"
SIDEBAR = """\
 ● Fix the login redirect                                 pi · 2 h ago│
 ● Add a dark mode                                       omp · 1 d ago│
 ◐ Why does the test suite take four minu  pi · 2 d ago · tool pending│
                                                                      │
 user       Find why the redirect drops the query string              │
 [read: src/auth/login.ts]                                            │
 assistant  The handler rebuilds the URL from pathname only; the query│
 user       Fix it and add a test                                     │
 ├─ [edit: src/auth/login.ts]                                         │
 │  [bash: npm test -- login]                                         │
 │  assistant  All 12 tests pass.                    ⚑ before-refactor│
 │  user       Now refactor the handler                               │
 │  [edit: src/auth/login.ts]                                         │
 │  [bash: npm test -- login]                                    error│
 │  assistant  Three tests fail: the new handler is called twi  ← leaf│
 └─ user       Try the conservative way: keep the old handler         │
    [edit: src/auth/compat.ts]                                        │
    assistant  A wrapper keeps the query; the old handler is untouched│
"""
PROMPT = """\
prompt · :w sends it · <Esc><Esc> branches from another one
Try the conservative way: keep the old handler
"""


def test_the_sidebar_shows_sessions_and_tree_beside_the_text_and_a_prompt_below_it(tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        desk.ask("session/label", sessionId=story.LOGIN, entryId=story.DONE, label="before-refactor")
        editor = desk.editor(size=(130, 30), init=INIT)
        editor.command("Dsh")
        screen = editor.wait_screen("← leaf")
        assert screen.lines[0].startswith(" Sessions of ")
        assert [line[:71] for line in screen.lines[1:19]] == SIDEBAR.splitlines()
        assert screen.groups_at("Three tests fail") & {"Comment"} == set()
        assert screen.groups_at("A wrapper keeps") >= {"Comment"}

        (line,) = [row for row in editor.screen().cells if "Three tests" in "".join(text for text, _ in row)]
        marked = {editor.screen().highlights[number].get("background") for _, number in line[1:70]}
        assert len(marked) == 1, "the line of the cursor is marked from end to end"

        editor.keys("G2k<CR>")
        editor.wait_screen("prompt · :w sends it")
        right = [line[71:] for line in editor.screen().lines]
        at = right.index(PROMPT.splitlines()[0])
        assert right[at : at + 2] == PROMPT.splitlines()
