"""What others do appears by itself, and the daemon may come, go and be absent."""

from __future__ import annotations

import re
import sys
import time

import pytest
from playwright.sync_api import expect

from tests.support import user

from .editor import wait_until
from .test_tree import ABANDONED, FOLDED, PATH
from .world import World, write_program

pytestmark = pytest.mark.timeout(600)  # the first test may have to install VS Code


def test_what_a_second_client_appends_appears_without_a_click(world: World) -> None:
    session = world.sample()
    window = world.opened()
    window.sessions.row("Fix the login redirect").click()
    window.tree.row(PATH[-1]).wait_for()

    message = {"role": "user", "content": [{"type": "text", "text": "And now the logout"}]}
    world.ask("session/append", sessionId=session, entries=[{"type": "message", "message": message}])

    row = window.tree.row("And now the logout")
    expect(row).to_be_visible()
    expect(row).to_have_attribute("aria-label", re.compile("leaf"))
    window.shot("second-client")


def test_what_another_program_writes_appears_and_a_new_file_is_listed(world: World) -> None:
    session = world.sample()
    window = world.opened()
    window.sessions.row("Fix the login redirect").click()
    window.tree.row(PATH[-1]).wait_for()

    world.written_by_others(session, user("0a0a0a0a", "3b72d8ee", "Written by the agent itself", 40_000))
    expect(window.tree.row("Written by the agent itself")).to_be_visible()

    world.session("another", [user("a", None, "A session of its own")])
    expect(window.sessions.row("A session of its own")).to_be_visible()
    window.shot("another-program")


def test_a_change_leaves_folds_selection_and_focus_as_they_are(world: World) -> None:
    session = world.sample()
    window = world.opened(dsh__tree__followLeaf=False)
    window.sessions.row("Fix the login redirect").click()
    window.tree.row(ABANDONED[0]).wait_for()
    window.tree.unfold(ABANDONED[0])
    window.tree.row("I keep the search part.").click()
    window.page.evaluate(WATCH_ROWS)

    for number in range(5):
        entry = user(f"0a0a0a0{number}", f"0a0a0a0{number - 1}" if number else "3b72d8ee", f"More {number}", 40_000)
        world.written_by_others(session, entry)
        expect(window.tree.row(f"More {number}")).to_be_visible()

    assert window.tree.selected() == ["I keep the search part."]
    expect(window.tree.focused).to_contain_text("I keep the search part.")
    expect(window.tree.row(ABANDONED[0])).to_have_attribute("aria-expanded", "true")
    assert window.page.evaluate("() => window.emptied") == 0, "the tree was empty for a moment"


WATCH_ROWS = """() => {
    const pane = document.querySelector(".pane-header[aria-label^='Tree']").closest('.pane');
    window.emptied = 0;
    new MutationObserver(() => { if (!pane.querySelector('.monaco-list-row')) window.emptied += 1 })
        .observe(pane, { childList: true, subtree: true });
}"""


def test_a_killed_daemon_is_found_again_with_the_tree_in_its_place(world: World) -> None:
    session = world.sample()
    world.daemon.start()
    window = world.opened()
    window.sessions.row("Fix the login redirect").click()
    window.tree.row(PATH[-1]).wait_for()
    before = world.pid()

    world.daemon.kill()
    wait_until(window.page, world.daemon.answers, "no daemon answers again", 30)
    assert world.pid() != before
    world.written_by_others(session, user("0a0a0a0a", "3b72d8ee", "Written after the kill", 40_000))

    expect(window.tree.row("Written after the kill")).to_be_visible()
    assert window.tree.texts()[: len(FOLDED)] == FOLDED
    assert window.toasts.count() == 0
    window.shot("found-again")


def test_a_window_that_nobody_looks_at_starts_no_daemon(world: World) -> None:
    world.sample()
    window = world.window()

    window.command("View: Show Explorer")
    window.page.wait_for_timeout(500)

    assert not world.daemon.answers()


def test_a_second_window_uses_the_daemon_that_runs_from_wherever_it_is(world: World) -> None:
    """A115: one well-known address per user."""
    world.sample()
    world.daemon.start()
    other = world.project / "elsewhere"
    other.mkdir()

    world.opened()
    world.window(other).open_container().sessions.rows.first.wait_for()

    status = world.ask("daemon/status")
    names = [one["name"] for one in status["connections"]]
    assert status["pid"] == world.daemon.process.pid  # pyright: ignore[reportOptionalMemberAccess]
    assert len([name for name in names if name != "second"]) == 2, names


def test_without_a_daemon_it_is_said_and_installing_is_offered(world: World) -> None:
    window = world.window(configure=False, dsh__daemon__path="/nowhere/dshd").open_container()

    expect(window.sessions.welcome).to_contain_text("was not found")
    window.shot("daemon-missing")
    expect(window.sessions.welcome.get_by_role("button", name="Install")).to_be_visible()

    world.sample()
    window.sessions.welcome.get_by_role("button", name="Look Again").click()
    expect(window.sessions.welcome).to_contain_text("was not found")


def test_the_dshd_of_the_workspace_s_own_venv_is_found(world: World) -> None:
    world.sample()
    write_program(world.project / ".venv" / "bin" / "dshd", world.daemon.env)

    window = world.window(configure=False).open_container()

    expect(window.sessions.row("Fix the login redirect")).to_be_visible()


def test_a_daemon_of_another_version_is_named_in_plain_words(world: World) -> None:
    answer = {"code": 1024, "message": "versions differ", "data": {
        "kind": "versionMismatch", "daemon": 2, "client": 1, "action": "update the client"}}  # fmt: skip
    world.program.write_text(
        f"#!{sys.executable}\n"
        "import sys, json\n"
        "head = sys.stdin.buffer.readline(); sys.stdin.buffer.readline()\n"
        "ask = json.loads(sys.stdin.buffer.read(int(head.split(b':')[1])))\n"
        f"body = json.dumps({{'jsonrpc': '2.0', 'id': ask['id'], 'error': {answer!r}}}).encode()\n"
        "sys.stdout.buffer.write(b'Content-Length: %d\\r\\n\\r\\n' % len(body) + body); sys.stdout.flush()\n"
        "sys.stdin.read()\n"
    )

    window = world.window().open_container()

    expect(window.sessions.welcome).to_contain_text("different versions")
    window.shot("version-mismatch")


def test_a_daemon_that_cannot_be_reached_is_tried_again_without_a_stream_of_messages(world: World) -> None:
    world.sample()
    tries = world.program.with_name("tries")
    good = world.program.read_text()
    world.program.write_text(f"#!/bin/sh\ndate +%s.%N >> {tries}\nexit 1\n")
    window = world.window().open_container()

    wait_until(window.page, lambda: tries.exists() and len(tries.read_text().split()) >= 3, "it is not tried again")
    times = [float(word) for word in tries.read_text().split()]
    assert window.toasts.count() <= 1
    assert times[2] - times[1] > times[1] - times[0], "the pauses do not grow"
    window.shot("unreachable")

    world.program.write_text(good)
    expect(window.sessions.row("Fix the login redirect")).to_be_visible(timeout=30_000)


def test_closing_the_window_ends_its_connection_and_leaves_the_daemon(world: World) -> None:
    world.sample()
    world.daemon.start()
    window = world.opened()

    window.page.close()

    wait_until_quiet = time.monotonic() + 20
    while len(world.ask("daemon/status")["connections"]) > 1:
        assert time.monotonic() < wait_until_quiet, "the connection stays"
        time.sleep(0.05)
    assert world.daemon.answers()


def test_the_status_bar_tells_of_the_daemon_and_of_the_agent(world: World) -> None:
    session = world.created("Plan the work")
    window = world.opened()
    window.sessions.row("Plan the work").click()
    expect(window.status).to_contain_text("Plan the work")

    with world.agent(session) as reached:
        world.ask("agent/send", sessionId=session, content="stuck")
        reached("stuck")
        expect(window.status).to_contain_text(re.compile("running", re.IGNORECASE))
        window.shot("agent-running")
    expect(window.status).not_to_contain_text(re.compile("running", re.IGNORECASE))


def test_a_transcript_grows_with_its_session_while_the_tree_shows_another_one(world: World) -> None:
    session = world.sample()
    world.session("other", [user("a", None, "Something else")])
    window = world.opened()
    window.sessions.row("Fix the login redirect").click()
    window.tree.row(PATH[-1]).wait_for()
    window.command("Agent Sessions: Open Transcript")
    preview = window.page.frame_locator("iframe.webview").frame_locator("iframe")
    expect(preview.locator("body")).to_contain_text(PATH[-1], timeout=30_000)

    window.sessions.row("Something else").click()
    expect(window.tree.row("Something else")).to_be_visible()
    world.written_by_others(session, user("0a0a0a0a", "3b72d8ee", "Written by the agent itself", 40_000))

    expect(preview.locator("body")).to_contain_text("Written by the agent itself")
