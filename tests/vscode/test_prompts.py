"""Prompts that were not sent yet: nothing that was written is lost or sent twice, whatever happens meanwhile."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from .editor import Window, wait_until
from .test_asking import leave, summarizer
from .test_changing import PROMPT, leaf, tree
from .world import World

pytestmark = pytest.mark.timeout(600)  # the first test may have to install VS Code


def draft(world: World, session: str) -> str | None:
    return world.ask("session/draft", sessionId=session)["text"]


def shows(window: Window, text: str) -> None:
    wait_until(window.page, lambda: window.editor_text() == text, f"the editor does not show {text!r}")


def write(window: Window, text: str) -> None:
    """Open the prompt, and go on at its end."""
    window.command("Agent Sessions: Open Prompt")
    expect(window.page.locator(".tab.active")).to_have_attribute("data-resource-name", "Plan the work")
    window.keys.press("Control+End")
    window.keys.type(text)


@contextmanager
def sending(world: World, window: Window) -> Iterator[None]:
    """The prompt is on its way to a daemon that hangs until the end of the block."""
    pid = world.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        window.keys.press("Control+Enter")
        expect(window.status).to_contain_text("Sending the prompt")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_what_one_types_or_turns_to_while_a_prompt_is_sent_stays_and_it_is_sent_once(world: World) -> None:
    session = world.created("Plan the work")
    code = world.project / "code.py"
    code.write_text("original = 1\n")
    window = world.opened(files__autoSave="off")
    tabs, dirty = window.page.locator(".tab"), window.page.locator(".tab.dirty")
    window.sessions.row("Plan the work").click()
    window.keys.press("Control+p")
    window.asked("Search files by name").fill("code.py")
    window.picks.filter(has_text="code.py").first.click()
    shows(window, "original = 1\n")
    window.keys.press("Control+End")
    window.keys.type("unsaved = 2")

    with world.agent(session) as reached:
        write(window, "read")
        with sending(world, window):
            window.keys.type(" edit")
        reached("ended 1")
        expect(window.status).to_contain_text("Sent.")
        shows(window, "read edit")

        with sending(world, window):
            window.keys.press("Control+Enter")
            tabs.filter(has_text="code.py").click()
            shows(window, "original = 1\nunsaved = 2")
        reached("ended 2")
        expect(tabs).to_have_count(1)
        window.shot("prompt-sent-meanwhile")

    assert [row["text"] for row in world.rows(session) if row["kind"] == "user"] == ["read", "read edit"]
    shows(window, "original = 1\nunsaved = 2")
    expect(dirty).to_have_count(1)
    assert code.read_text() == "original = 1\n"
    assert draft(world, session) is None


@pytest.mark.parametrize(("answer", "left"), [("Keep It", "A long prompt"), ("Replace It", PROMPT)])
def test_a_written_prompt_gives_way_to_the_one_of_a_move_only_where_one_agrees(
    world: World, answer: str, left: str
) -> None:
    session, window = tree(world)
    old = leaf(world, session)
    window.command("Agent Sessions: Open Prompt")
    window.editor.click()
    window.keys.type("A long prompt")
    shows(window, "A long prompt")

    window.tree.select(PROMPT)
    window.command("Agent Sessions: Navigate Here")
    expect(window.dialog).to_contain_text("A long prompt")
    assert leaf(world, session) == old
    window.shot("prompt-replace-asks")
    window.dialog.get_by_role("button", name=answer).click()

    wait_until(window.page, lambda: leaf(world, session) != old, "the leaf does not move")
    shows(window, left)
    wait_until(window.page, lambda: draft(world, session) == left, "another prompt is kept")
    window.command("Agent Sessions: Undo the Last Move")
    wait_until(window.page, lambda: leaf(world, session) == old, "the leaf does not come back")
    shows(window, left)


def test_what_is_typed_while_a_move_is_made_stays(world: World) -> None:
    world.daemon.start()
    session, window = tree(world)
    old = leaf(world, session)
    window.command("Agent Sessions: Open Prompt")
    window.editor.click()

    with summarizer(world) as asked:
        leave(window)
        window.picks.filter(has_text=re.compile("^Summarize$")).click()
        expect(window.toasts.first).to_contain_text("Summarizing what is left behind")
        window.editor.click()
        window.keys.type("Meanwhile")
        shows(window, "Meanwhile")
        asked.let.set()
        wait_until(window.page, lambda: leaf(world, session) != old, "the leaf does not move")
        expect(window.toasts).to_have_count(0)

    window.command("Agent Sessions: Undo the Last Move")  # after what the move did to the prompt
    wait_until(window.page, lambda: leaf(world, session) == old, "the leaf does not come back")
    shows(window, "Meanwhile")
    wait_until(window.page, lambda: draft(world, session) == "Meanwhile", "another prompt is kept")


def test_what_another_window_wrote_into_a_prompt_shows_and_is_not_overwritten_without_a_word(world: World) -> None:
    session = world.created("Plan the work")
    world.ask("session/draft", sessionId=session, text="one")
    window = world.opened(files__autoSave="off")
    window.sessions.row("Plan the work").click()
    write(window, "")
    shows(window, "one")

    world.ask("session/draft", sessionId=session, text="one, two")
    write(window, "")
    shows(window, "one, two")

    world.ask("session/draft", sessionId=session, text="one, two, important")
    window.keys.type(", three")
    window.keys.press("Control+s")
    expect(window.toasts.first).to_contain_text("Failed to save")
    window.shot("prompt-conflict")
    assert draft(world, session) == "one, two, important"
    shows(window, "one, two, three")
