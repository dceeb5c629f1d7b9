"""What a person changes: the leaf, labels, titles, new sessions. The disk or a second client tells that it happened."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.support import assistant, user

from .editor import Window, wait_until
from .test_tree import ABANDONED, PATH
from .world import World

pytestmark = pytest.mark.timeout(600)  # the first test may have to install VS Code

PROMPT = "Now refactor the handler"


def tree(world: World) -> tuple[str, Window]:
    """The sample's tree on the screen, the branch that is not active unfolded."""
    session = world.sample()
    window = world.opened()
    window.sessions.row("Fix the login redirect").click()
    window.tree.row(ABANDONED[0]).wait_for()
    window.tree.unfold(ABANDONED[0])
    return session, window


def leaf(world: World, session: str) -> str | None:
    return world.ask("session/open", sessionId=session, subscribe=False)["leafId"]


def entries(world: World, session: str) -> list[dict[str, object]]:
    return [json.loads(text) for text in world.file(session).read_text().splitlines()[1:]]


def test_navigating_to_a_prompt_by_mouse_puts_its_text_into_a_prompt_to_edit(world: World) -> None:
    session, window = tree(world)
    before = world.file(session).read_bytes()

    window.tree.press(window.tree.row(PROMPT), "Navigate Here")

    wait_until(window.page, lambda: leaf(world, session) == "83d7e64c", "the leaf does not move")
    wait_until(window.page, lambda: window.editor_text() == PROMPT, "the prompt does not open")
    expect(window.tree.row("All 12 tests pass.")).to_have_attribute("aria-label", re.compile("leaf"))
    window.shot("navigated")
    assert world.file(session).read_bytes() == before


def test_navigating_with_the_keyboard_and_back_again(world: World) -> None:
    session, window = tree(world)
    old = leaf(world, session)

    window.tree.row("I keep the search part.").click()
    window.keys.press("Control+Enter")
    wait_until(window.page, lambda: leaf(world, session) == "b83f57d2", "the leaf does not move")

    window.command("Agent Sessions: Undo the Last Move")
    wait_until(window.page, lambda: leaf(world, session) == old, "the leaf does not come back")


def test_navigating_to_the_leaf_says_that_one_is_there(world: World) -> None:
    session, window = tree(world)
    old = leaf(world, session)

    window.tree.row(PATH[-1]).click()
    window.command("Agent Sessions: Navigate Here")

    expect(window.status).to_contain_text(re.compile("already", re.IGNORECASE))
    assert leaf(world, session) == old


def test_branching_from_a_row_makes_a_session_that_opens_with_the_prompt(world: World) -> None:
    session, window = tree(world)
    before = world.file(session).read_bytes()

    window.tree.menu(window.tree.row(PROMPT), "Branch into a New Session")

    wait_until(window.page, lambda: world.ask("session/list")["total"] == 2, "there is no new session")
    wait_until(window.page, lambda: window.editor_text() == PROMPT, "the prompt does not open")
    child = next(one for one in world.ask("session/list")["items"] if one["sessionId"] != session)
    assert child["parentSessionId"] == session
    expect(window.tree.row("All 12 tests pass.")).to_have_attribute("aria-label", re.compile("leaf"))
    expect(window.tree.row(PATH[-1])).to_have_count(0)
    window.shot("branched")
    assert world.file(session).read_bytes() == before


def test_branching_from_the_palette_asks_for_a_prompt_of_any_branch(world: World) -> None:
    _, window = tree(world)
    window.tree.pane.click(position={"x": 20, "y": 400})

    window.command("Agent Sessions: Branch into a New Session")
    expect(window.picks.first).to_be_visible()
    window.shot("branch-picker")
    for text in (PATH[0], ABANDONED[0], PROMPT, PATH[4]):
        expect(window.picks.filter(has_text=text)).to_have_count(1)
    window.asked("The prompt to write anew").press_sequentially("conservative")
    expect(window.picks).to_have_count(1)
    window.keys.press("Enter")

    wait_until(window.page, lambda: window.editor_text() == PATH[4], "the prompt does not open")
    assert world.ask("session/list")["total"] == 2


def test_forking_copies_the_way_to_the_end_of_a_turn(world: World) -> None:
    session, window = tree(world)
    before = world.file(session).read_bytes()

    window.tree.menu(window.tree.row("All 12 tests pass."), "Fork into a New Session")

    wait_until(window.page, lambda: world.ask("session/list")["total"] == 2, "there is no new session")
    child = next(one for one in world.ask("session/list")["items"] if one["sessionId"] != session)
    expect(window.tree.row("All 12 tests pass.")).to_have_attribute("aria-label", re.compile("leaf"))
    window.shot("forked")
    assert [row["text"] for row in world.rows(child["sessionId"])] == [*PATH[:3], *ABANDONED[:4]]
    assert world.file(session).read_bytes() == before


def test_a_fork_in_the_middle_of_a_turn_offers_the_nearest_end(world: World) -> None:
    session, window = tree(world)

    window.tree.menu(window.tree.row("[read: src/auth/login.ts]"), "Fork into a New Session")

    expect(window.toasts.first).to_contain_text("turn")
    window.shot("fork-in-a-turn")
    assert world.ask("session/list")["total"] == 1
    assert session


def test_a_label_is_set_by_menu_and_changed_and_cleared_with_the_keyboard(world: World) -> None:
    session, window = tree(world)
    row = window.tree.row(PATH[2])

    window.tree.menu(row, "Label")
    window.asked("The label of this entry")
    window.keys.type("found it")
    window.shot("label-input")
    window.keys.press("Enter")
    expect(row).to_contain_text("⚑ found it")
    assert world.ask("session/labels", sessionId=session)["items"][-1]["label"] == "found it"

    row.click()
    window.keys.press("F2")
    expect(window.input).to_have_value("found it")
    window.input.fill("the cause")
    window.keys.press("Enter")
    expect(row).to_contain_text("⚑ the cause")
    window.shot("labeled")

    row.click()
    window.keys.press("F2")
    expect(window.input).to_have_value("the cause")
    window.input.fill("")
    window.keys.press("Enter")
    expect(row).not_to_contain_text("⚑")
    assert [one["label"] for one in world.ask("session/labels", sessionId=session)["items"]] == ["before-refactor"]


def test_escape_changes_nothing(world: World) -> None:
    session, window = tree(world)
    before = world.file(session).read_bytes()

    window.tree.menu(window.tree.row(PATH[2]), "Label")
    window.asked("The label of this entry")
    window.keys.type("never")
    window.keys.press("Escape")
    expect(window.palette).to_be_hidden()

    assert world.file(session).read_bytes() == before


def test_a_session_is_renamed_archived_shown_again_and_deleted(world: World) -> None:
    session, window = tree(world)
    row = window.sessions.row("Fix the login redirect")

    window.sessions.menu(row, "Rename")
    expect(window.input).to_have_value("Fix the login redirect")
    window.input.fill("Login, second try")
    window.keys.press("Enter")
    renamed = window.sessions.row("Login, second try")
    expect(renamed).to_be_visible()

    window.sessions.menu(renamed, "Archive")
    expect(renamed).to_have_count(0)
    assert world.ask("session/list", archived=True)["items"][0]["archived"]

    window.command("Agent Sessions: Show Archived Sessions")
    expect(renamed).to_be_visible()
    window.shot("archived")

    window.sessions.menu(renamed, "Delete")
    expect(window.dialog).to_be_visible()
    window.shot("delete-asks")
    window.keys.press("Escape")
    assert world.file(session).exists()
    window.sessions.menu(renamed, "Delete")
    window.dialog.get_by_role("button", name=re.compile("Trash|Delete")).click()
    wait_until(window.page, lambda: not world.file(session).exists(), "the session is still there")
    expect(renamed).to_have_count(0)


def test_a_prompt_is_kept_as_the_draft_and_sent_to_the_agent(world: World) -> None:
    session = world.created("Plan the work")
    window = world.opened()
    window.sessions.row("Plan the work").click()
    window.command("Agent Sessions: Open Prompt")
    window.editor.click()
    window.keys.type("stuck")

    with world.agent(session) as reached:
        window.keys.press("Control+Enter")
        reached("stuck")
        expect(window.tree.row("stuck")).to_be_visible()
        window.shot("prompt-sent")
    assert [row["text"] for row in world.rows(session) if row["kind"] == "user"] == ["stuck"]


def test_without_an_agent_the_prompt_is_copied_and_said_so(world: World) -> None:
    session, window = tree(world)
    window.tree.press(window.tree.row(PROMPT), "Navigate Here")
    wait_until(window.page, lambda: window.editor_text() == PROMPT, "the prompt does not open")

    window.editor.click()
    window.keys.press("Control+End")
    window.keys.type(" again")
    window.keys.press("Control+Enter")

    expect(window.toasts.first).to_contain_text("The prompt was copied")
    assert window.copied() == f"{PROMPT} again"
    assert world.ask("session/draft", sessionId=session)["text"] == f"{PROMPT} again"
    window.shot("prompt-copied")


def test_an_agent_that_is_not_installed_is_named_with_where_it_has_to_be(world: World) -> None:
    world.session("of-pi", [user("a", None, "Work in pi"), assistant("b", "a", "Done.", 2)])
    window = world.opened()

    window.sessions.press(window.sessions.row("Work in pi"), "Resume")

    expect(window.toasts.filter(has_text="“pi” could not be started: it has to be on the PATH")).to_be_visible()
    window.shot("agent-missing")
