"""Where a window may be: several folders, none, one that is not trusted, another machine; and links from outside."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.support import user

from .test_tree import PATH
from .world import EMPTY, World

pytestmark = pytest.mark.timeout(600)  # the first test may have to install VS Code


def test_the_sessions_of_each_folder_of_a_workspace_stand_under_its_name(world: World) -> None:
    world.sample()
    site = world.project.parent / "site"
    site.mkdir()
    world.session("of-site", [user("a", None, "Make the site faster")], cwd=site)
    world.session("of-nobody", [user("a", None, "Somewhere else")], cwd=world.project.parent / "gone")
    place = world.project.parent / "both.code-workspace"
    place.write_text(json.dumps({"folders": [{"path": "shop"}, {"path": "site"}]}))

    window = world.window(place)
    explorer = window.page.locator(".part.sidebar")
    expect(explorer).to_contain_text(re.compile("site|No Folder Opened"))
    while "No Folder Opened" in explorer.inner_text():  # now and then VS Code has not read the workspace file yet
        window.page.reload()
        expect(explorer).to_contain_text(re.compile("site|No Folder Opened"))
    window.open_container()

    expect(window.sessions.row("Make the site faster")).to_be_visible()
    window.shot("multi-root")
    texts = window.sessions.texts()
    assert texts.index("shop") < texts.index("Fix the login redirect") < texts.index("site")
    assert texts.index("site") < texts.index("Make the site faster")
    assert "Somewhere else" not in texts[: texts.index("Make the site faster")]


def test_without_a_folder_the_sessions_of_all_projects_are_there(world: World) -> None:
    world.sample()
    window = world.window(EMPTY).open_container()

    expect(window.sessions.row("shop")).to_be_visible()
    expect(window.sessions.row("Fix the login redirect")).to_be_visible()
    window.shot("other-projects")


def test_a_workspace_that_is_not_trusted_can_be_read_and_not_changed(world: World) -> None:
    session = world.sample()
    before = world.file(session).read_bytes()
    trust = {"security__workspace__trust__enabled": True, "security__workspace__trust__startupPrompt": "never"}
    window = world.opened(**trust)

    window.sessions.row("Fix the login redirect").click()
    expect(window.tree.row(PATH[-1])).to_be_visible()
    window.tree.row(PATH[2]).hover()
    window.shot("untrusted")

    expect(window.tree.row(PATH[2]).get_by_role("button")).to_have_count(0)
    assert not window.offered("Agent Sessions: Navigate Here")
    assert window.offered("Agent Sessions: Open Transcript")
    window.tree.row(PATH[2]).click(button="right")
    menu = window.page.locator(".monaco-menu").get_by_role("menuitem")
    expect(menu.filter(has_text="Open Entry")).to_be_visible()
    expect(menu.filter(has_text=re.compile("Label|Navigate|Fork|Branch"))).to_have_count(0)
    assert world.file(session).read_bytes() == before


def test_a_workspace_that_is_not_trusted_runs_no_dshd_of_its_own(world: World) -> None:
    world.sample()
    ran = world.project / "ran"
    program = world.project / ".venv" / "bin" / "dshd"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    trust = {"security__workspace__trust__enabled": True, "security__workspace__trust__startupPrompt": "never"}

    window = world.window(configure=False, **trust).open_container()

    expect(window.sessions.welcome).to_contain_text("was not found")
    assert not ran.exists()


def test_a_link_opens_its_entry(world: World) -> None:
    session = world.sample()
    window = world.opened()
    window.sessions.row("Fix the login redirect").click()
    window.tree.menu(window.tree.row(PATH[2]), "Copy Link")
    link = window.copied()
    assert re.fullmatch(rf"[a-z-]+://dsh-daemon\.dsh-sessions/session/{session}#7d25fb90", link), link

    other = world.opened()
    other.command("Developer: Open URL")
    other.asked("URL to open").fill(link)
    other.keys.press("Enter")
    other.dialog.get_by_role("button", name="Open").click()

    expect(other.tree.row(PATH[2])).to_have_class(re.compile("selected"))
    other.shot("link")
