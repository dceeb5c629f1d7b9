"""What a daemon, other windows and other programs may do to a person: hang, delete, replace, fill the list."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from playwright.sync_api import expect

from tests.support import assistant, user

from .editor import Window, wait_until
from .test_tree import ABANDONED, PATH
from .world import World

pytestmark = pytest.mark.timeout(600)  # the first test may have to install VS Code

MANY = 2_000


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def shown(world: World) -> tuple[str, Window]:
    session = world.sample()
    window = world.opened()
    window.sessions.row("Fix the login redirect").click()
    window.tree.row(PATH[-1]).wait_for()
    return session, window


def test_a_daemon_that_hangs_is_said_to_and_its_answer_is_waited_for(world: World) -> None:
    world.daemon.start()
    _, window = shown(world)

    with frozen(world.pid()):
        window.tree.row(PATH[2]).click()
        expect(window.toasts.filter(has_text="does not answer")).to_have_count(1, timeout=30_000)
        expect(window.status.locator("[id='dsh-daemon.dsh-sessions.dsh.status']")).to_have_class(re.compile("warning"))
        window.shot("daemon-hangs")

    wait_until(window.page, lambda: window.editor_text() == PATH[2], "the answer is lost")
    expect(window.status.locator("[id='dsh-daemon.dsh-sessions.dsh.status']")).not_to_have_class(re.compile("warning"))
    expect(window.status).to_contain_text("Fix the login redirect")


def test_a_daemon_that_hangs_is_ended_where_one_agrees_and_another_one_serves(world: World) -> None:
    world.daemon.start()
    session, window = shown(world)
    before = world.pid()

    with frozen(before):
        window.command("Agent Sessions: Restart the Daemon")
        expect(window.dialog).to_contain_text(f"process {before}", timeout=40_000)
        window.shot("daemon-stuck")
        window.dialog.get_by_role("button", name="End It").click()
        world.daemon.process.wait(20)  # pyright: ignore[reportOptionalMemberAccess]
        wait_until(window.page, world.daemon.answers, "no daemon answers again", 30)
    assert world.pid() != before
    world.written_by_others(session, user("0a0a0a0a", "3b72d8ee", "Written after the restart", 40_000))
    expect(window.tree.row("Written after the restart")).to_be_visible()


def test_what_one_window_does_the_other_one_shows(world: World) -> None:
    world.daemon.start()
    _, one = shown(world)
    other = world.opened()
    other.sessions.row("Fix the login redirect").click()
    other.tree.row(ABANDONED[0]).wait_for()

    one.tree.menu(one.tree.row(PATH[2]), "Label")
    one.asked("The label of this entry")
    one.keys.type("seen by both")
    one.keys.press("Enter")
    expect(other.tree.row(PATH[2])).to_contain_text("⚑ seen by both")

    one.tree.unfold(ABANDONED[0])
    one.tree.press(one.tree.row("I keep the search part."), "Navigate Here")
    expect(other.tree.row("I keep the search part.")).to_have_attribute("aria-label", re.compile("leaf"))
    other.shot("two-windows")
    other.command("Agent Sessions: Undo the Last Move")
    expect(one.tree.row(PATH[-1])).to_have_attribute("aria-label", re.compile("leaf"))


def test_a_session_that_is_deleted_replaced_or_renamed_while_it_is_shown(world: World) -> None:
    world.daemon.start()
    session, window = shown(world)
    path = world.file(session)
    assert window.offered("Agent Sessions: Find in Tree…")
    head, *rest = path.read_text().splitlines(keepends=True)

    fresh = path.with_suffix(".fresh")
    fresh.write_text("".join([head, *rest[:3]]))
    fresh.rename(path)
    expect(window.tree.row(PATH[-1])).to_have_count(0)
    expect(window.tree.row(PATH[0])).to_be_visible()

    world.ask("session/rename", sessionId=session, title="Another name")
    expect(window.sessions.row("Another name")).to_be_visible()
    expect(window.tree.header).to_contain_text("Another name")
    expect(window.status).to_contain_text("Another name")

    path.unlink()
    expect(window.tree.pane).to_contain_text("The session is gone")
    expect(window.tree.rows).to_have_count(0)
    expect(window.sessions.row("Another name")).to_have_count(0)
    assert window.toasts.count() == 0
    window.shot("deleted-while-shown")

    assert not window.offered("Agent Sessions: Find in Tree…")


def many(world: World) -> None:
    for number in range(MANY):
        title = f"Task {number} of many"
        world.session(
            f"s{number:04}", [user("a", None, title, number), assistant("b", "a", f"xylo {number}", number + 1)]
        )


def test_two_thousand_sessions_are_listed_and_the_last_one_is_found_while_the_index_is_built(world: World) -> None:
    many(world)
    window = world.opened()

    expect(window.sessions.row("This workspace")).to_contain_text("2,000", timeout=30_000)
    window.search("xylo 7")
    expect(window.picks.filter(has_text="xylo 7").first).to_be_visible(timeout=60_000)
    window.shot("many-searching")
    window.input.fill("xylo 1999")
    hit = window.picks.filter(has_text="xylo 1999").first  # it comes by itself, however long the index takes
    expect(hit).to_be_visible(timeout=60_000)
    expect(window.picks.filter(has_text="not searched yet")).to_have_count(0, timeout=60_000)
    hit.click()
    expect(window.tree.row("xylo 1999")).to_be_visible()

    window.sessions.row("Task 1999").click()
    window.keys.press("End")
    expect(window.sessions.row("… 1,800 more")).to_be_visible()
    window.shot("many-end")
    window.keys.press("Enter")
    expect(window.sessions.row("Task 1799")).to_be_visible()
    window.keys.press("End")
    expect(window.sessions.row("… 1,600 more")).to_be_visible()

    window.command("Agent Sessions: Open Session")
    window.asked("The session to open").fill("Task 3 of many")
    expect(window.picks.first).to_contain_text("Task 3 of many")
    window.keys.press("Enter")
    expect(window.tree.header).to_contain_text("Task 3 of many")
    expect(window.sessions.row("Task 3 of many")).to_have_class(re.compile("selected"))


@pytest.mark.parametrize("theme", ["Default Dark Modern", "Default High Contrast", "Default High Contrast Light"])
def test_in_each_theme_and_a_narrow_side_bar_the_leaf_the_failure_and_the_titles_can_be_told(
    world: World, theme: str
) -> None:
    world.sample()
    failed = {**assistant("b", "a", "It broke.", 2), "id": "b"}
    failed["message"] = {**failed["message"], "stopReason": "error", "errorMessage": "overloaded"}
    world.session("failed", [user("a", None, "A prompt whose answer failed after a while"), failed])
    window = world.opened(workbench__colorTheme=theme)
    window.sessions.row("Fix the login redirect").click()
    window.tree.row(ABANDONED[0]).wait_for()
    window.tree.unfold(ABANDONED[0])

    sash = window.page.locator(".monaco-sash.vertical").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).filter(box => box.height > 500 && box.x > 100)"
        ".map(box => box.x + box.width / 2)[0]"
    )
    window.page.mouse.move(sash, 400)
    window.page.mouse.down()
    window.page.mouse.move(300, 400, steps=5)
    window.page.mouse.up()
    window.tree.row(PATH[2]).hover()
    window.page.wait_for_timeout(800)
    window.shot(f"narrow-{theme.replace(' ', '-')}")
    assert window.tree.row(PATH[-1]).bounding_box()["width"] < 260  # pyright: ignore[reportOptionalSubscript]


def test_everything_in_the_views_can_be_done_with_the_keyboard(world: World) -> None:
    session = world.sample()
    world.daemon.start()
    window = world.opened()  # a view that is opened by a command takes the focus whenever it is ready
    window.tree.row(ABANDONED[0]).wait_for()
    window.command("Agent Sessions: Focus on Sessions View")
    expect(window.sessions.pane.locator(".monaco-list:focus")).to_have_count(1)
    window.sessions.from_the_top("ArrowDown", to="Fix the login redirect")
    window.keys.press("Enter")
    window.tree.row(ABANDONED[0]).wait_for()
    window.command("Agent Sessions: Focus on Tree View")
    expect(window.tree.pane.locator(".monaco-list:focus")).to_have_count(1)
    window.tree.from_the_top("ArrowDown", to=PATH[1])
    window.keys.press("ArrowDown")
    expect(window.tree.focused).to_contain_text(PATH[2])
    window.keys.press("ArrowDown")
    window.keys.press("ArrowRight")
    window.tree.row(ABANDONED[-1]).wait_for()
    window.keys.press("ArrowDown")
    expect(window.tree.focused).to_contain_text("I keep the search part.")
    window.shot("keyboard")

    window.keys.press("F2")
    window.asked("The label of this entry")
    window.keys.type("by keys")
    window.keys.press("Enter")
    expect(window.tree.row("I keep the search part.")).to_contain_text("⚑ by keys")
    window.keys.press("Control+Enter")
    wait_until(
        window.page,
        lambda: world.ask("session/open", sessionId=session, subscribe=False)["leafId"] == "b83f57d2",
        "the leaf does not move",
    )


TITLE = "$(rocket) [x](command:workbench.action.closeWindow)\n<b>bold</b> \u202edrawkcab https://example.org/x"

LINKS = [f"a[{name}*='{to}']" for name in ("href", "data-href") for to in ("command:", "example.org")]
DONE = ", ".join([".codicon-rocket", *LINKS])


def test_a_hostile_title_is_text_wherever_it_is_shown(world: World) -> None:
    world.daemon.start()
    world.session("hostile", [user("a", None, TITLE), user("b", "a", TITLE, 2)])
    world.ask("session/label", sessionId="hostile", entryId="a", label=TITLE.replace("\n", " "))
    window = world.opened()
    window.sessions.row("rocket").click()
    window.tree.row("rocket").wait_for()

    def harmless(where: str) -> None:
        window.page.wait_for_timeout(300)
        window.shot(f"title-{where}")
        found = window.page.locator(DONE)
        assert found.count() == 0, (where, found.first.evaluate("e => e.outerHTML"))
        assert "\u202e" not in window.page.locator("body").inner_text(), where

    harmless("views")
    window.status.hover()
    window.sessions.row("rocket").hover()
    expect(window.page.locator(".monaco-hover:visible, .workbench-hover:visible").last).to_contain_text("rocket")
    harmless("session-hover")
    window.tree.rows.first.hover()
    window.page.wait_for_timeout(1000)
    harmless("row-hover")
    window.status.get_by_text("rocket").first.hover()
    window.page.wait_for_timeout(1000)
    harmless("status-hover")
    for command in ("Open Session", "Rename", "Branch into a New Session", "Label", "Find in Tree"):
        window.command(f"Agent Sessions: {command}")
        expect(window.palette).to_be_visible()
        harmless(command.split()[0])
        window.keys.press("Escape")
    window.command("Agent Sessions: Open Prompt")
    window.editor.wait_for()
    harmless("prompt")
    window.command("Agent Sessions: Resume")
    window.page.locator(".terminal-wrapper, .terminal-tab, .monaco-dialog-box, .notification-toast").first.wait_for()
    harmless("terminal")
