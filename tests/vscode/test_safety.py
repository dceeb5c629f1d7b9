"""What stands in a log is text: whatever it looks like, it does nothing to the editor and is not taken for markup."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.support import assistant, user

from .world import World

pytestmark = pytest.mark.timeout(600)  # the first test may have to install VS Code

COMMAND = "[run](command:workbench.action.closeAllEditors)"
HTML = '<img src=x onerror="document.title=`owned`"><b>bold</b><script>document.title="owned"</script>'
ICON = "$(rocket) $(sync~spin)"
ICON_TEXT = re.compile("\\$\u2060?\\(rocket\\)")  # a joiner that is not seen may keep it text
TURNED = "abc\u202edef\u2066ghi \x1b[31mred\x07"
HOSTILE = [
    user("a", None, f"{COMMAND} prompt"),
    assistant("b", "a", f"{HTML} answer", 2),
    user("c", "b", f"{ICON} icons", 3),
    assistant("d", "c", f"{TURNED} turned", 4),
    user("e", "d", "**strong** `code` # head ![x](http://127.0.0.1:9/x.png) mark", 5),
]


def test_rows_and_their_hovers_show_what_is_there_as_text(world: World) -> None:
    world.session("hostile", HOSTILE)
    asked: list[str] = []
    window = world.opened()
    window.page.on("request", lambda request: asked.append(request.url))
    window.sessions.rows.last.click()

    for text in (COMMAND, HTML[:40], ICON, "**strong** `code`"):
        expect(window.tree.row(text)).to_be_visible()
    assert all(not {"\u202e", "\u2066", "\x1b", "\x07"} & set(text) for text in window.tree.texts())
    assert window.tree.pane.locator(".codicon-rocket, .codicon-sync").count() == 0

    for part in ("prompt", "answer", "icons", "mark"):
        window.tree.row(part).hover()
        hover = window.page.locator(".monaco-hover:visible, .workbench-hover:visible")
        expect(hover.last).to_contain_text(part)
        assert hover.locator("a[href^='command:'], img, b, script, .codicon-rocket").count() == 0
        window.shot(f"hostile-hover-{part}")
        window.sessions.header.hover()
    assert not [url for url in asked if ":9/" in url]
    assert window.page.title() != "owned"


def test_the_search_shows_icons_of_a_log_as_text(world: World) -> None:
    world.session("hostile", HOSTILE)
    window = world.opened()

    window.search("rocket")

    expect(window.picks.filter(has_text=ICON_TEXT).first).to_be_visible()
    assert window.picks.locator(".codicon-rocket, .codicon-sync").count() == 0
    window.shot("hostile-search")


def test_an_entry_opens_as_a_document_that_cannot_be_edited(world: World) -> None:
    world.session("hostile", HOSTILE)
    window = world.opened()
    window.sessions.rows.last.click()

    window.tree.menu(window.tree.row("icons"), "Open Entry")
    window.editor.wait_for()
    window.shot("hostile-entry")
    assert ICON in window.editor_text()
    before = window.editor_text()
    window.editor.click()
    window.keys.type("x")

    assert window.editor_text() == before


def test_a_transcript_is_a_preview_in_which_nothing_runs(world: World) -> None:
    world.session("hostile", HOSTILE)
    asked: list[str] = []
    window = world.opened()
    window.page.on("request", lambda request: asked.append(request.url))
    window.sessions.rows.last.click()
    window.tree.row("mark").wait_for()

    window.command("Agent Sessions: Open Transcript")
    preview = window.page.frame_locator("iframe.webview").frame_locator("iframe")
    expect(preview.locator("body")).to_contain_text("answer", timeout=30_000)
    window.shot("hostile-transcript")

    expect(preview.locator("body")).to_contain_text("<script>")
    expect(preview.locator("body")).to_contain_text(f"{ICON} icons")
    assert preview.locator("img, a[href^='command:'], a[data-href^='command:']").count() == 0
    assert not [url for url in asked if ":9/" in url]
    assert window.page.title() != "owned"


def test_a_title_from_a_log_is_text_in_the_list_the_status_bar_and_the_dialogs(world: World) -> None:
    world.session("hostile", [user("a", None, f"{ICON} {COMMAND} <b>x</b>\nsecond line")])
    window = world.opened()
    row = window.sessions.rows.last
    row.click()
    expect(row).to_contain_text(ICON)
    expect(window.status).to_contain_text(ICON_TEXT)
    window.sessions.menu(row, "Delete")

    expect(window.dialog).to_contain_text(ICON_TEXT)
    window.shot("hostile-title")
    assert window.page.locator(".codicon-rocket, .codicon-sync").count() == 0
    assert window.dialog.locator("b, a[href]").count() == 0
