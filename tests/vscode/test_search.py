"""Search over everything that was ever said, in VS Code's quick pick, with results while one types."""

from __future__ import annotations

import re
import subprocess

import pytest
from playwright.sync_api import expect

from tests.support import assistant, entry, user

from .world import World

pytestmark = pytest.mark.timeout(600)  # the first test may have to install VS Code


def store(world: World) -> None:
    world.sample()
    talk = [user("a", None, "Why is the parser slow?"), assistant("b", "a", "It copies each line.", 2)]
    world.session("parser", talk)
    world.session("emoji", [user("a", None, "🙂🙂 naïve 한국어 redirect test")], cwd=world.project / "other")


def test_results_come_while_one_types_and_enter_opens_the_entry(world: World) -> None:
    store(world)
    window = world.opened()

    window.search("wrapzebra")
    expect(window.picks).to_have_text(["Nothing found for “wrapzebra”"])
    for _ in "zebra":
        window.keys.press("Backspace")
    hit = window.picks.filter(has_text="a wrapper keeps the query").first
    expect(hit).to_be_visible()
    window.shot("search")
    assert "wrap" in hit.locator(".highlight").first.inner_text().lower()
    window.keys.press("ArrowDown")
    window.keys.press("Enter")

    expect(window.tree.row("Done: the old handler stays")).to_be_visible()
    expect(window.palette).to_be_hidden()


def test_a_click_on_a_result_opens_an_entry_of_a_branch_that_is_folded(world: World) -> None:
    store(world)
    window = world.opened()

    window.sessions.button("Search Sessions").click()
    window.asked("Words").fill("split into parse")
    window.picks.filter(has_text="The handler is split").first.click()

    row = window.tree.row("The handler is split into parse and redirect.")
    expect(row).to_be_visible()
    expect(row).to_have_class(re.compile("selected"))
    window.shot("search-opened")


def test_ranges_are_right_after_wide_characters(world: World) -> None:
    """Ranges come in code points, VS Code counts UTF-16; where words stand apart the list itself marks none."""
    store(world)
    window = world.opened()

    window.search("naïve redirect")
    hit = window.picks.filter(has_text="한국어").first
    for word in ("naïve", "redirect"):
        expect(hit).to_contain_text(f"\u2039{word}\u203a")
    window.shot("search-wide")


def test_a_session_that_is_found_by_its_title_shows_its_hits_and_is_shown_itself(world: World) -> None:
    store(world)
    talk = [user("a", None, "Where does the sink go?"), assistant("b", "a", "The kitchen plans say: left.", 2)]
    world.session("kitchen", [*talk, entry("session_info", "t", "b", 3, name="Kitchen plans")])
    window = world.opened()

    window.search("kitchen plans")
    found = window.picks.filter(has_text="Kitchen plans").first
    expect(found).to_contain_text("1 hit")
    found.hover()
    found.get_by_role("button", name="All hits in this session").click()
    expect(window.picks).to_have_count(2)
    expect(window.picks.first).to_contain_text("title")
    expect(window.picks.last).to_contain_text("say: left")
    window.picks.first.click()

    expect(window.tree.row("Where does the sink go?")).to_be_visible()
    expect(window.palette).to_be_hidden()


def test_what_touched_the_open_file_is_found(world: World) -> None:
    store(world)
    target = world.project / "src" / "auth" / "login.ts"
    target.parent.mkdir(parents=True)
    target.write_text("export const login = 1\n")
    window = world.opened()

    window.keys.press("Control+p")
    window.asked("Search files by name").fill("login.ts")
    window.picks.filter(has_text="login.ts").first.click()
    window.editor.wait_for()
    window.command("Agent Sessions: Find What Touched This File")

    expect(window.picks.filter(has_text="edit").first).to_be_visible()
    window.shot("touched")


def test_the_search_in_this_folder_finds_what_the_view_lists_under_it(world: World) -> None:
    subprocess.run(["git", "init", "-q", world.project], check=True)
    world.session("above", [user("a", None, "A zebra in the folder")])
    world.session("below", [user("a", None, "A zebra below it")], cwd=world.project / "below")
    world.session("elsewhere", [user("a", None, "A zebra elsewhere")], cwd=world.project.parent / "elsewhere")
    (world.project / "below").mkdir()
    window = world.opened()

    window.search("zebra")
    expect(window.picks).to_have_count(3)
    window.palette.get_by_role("button", name="Search shop only").click()

    expect(window.picks).to_have_count(2)
    expect(window.picks.filter(has_text="A zebra below it")).to_have_count(1)
