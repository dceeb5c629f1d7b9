"""Makes the picture in the client's README from the real thing: `python -m tests.vscode.screenshot`."""

import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from dsh_daemon.cli import story

from . import client
from .editor import CLIENT, Server, launch
from .install import install
from .world import World

PICTURE = CLIENT / "media" / "screenshot.png"
SETTINGS = {"workbench__colorTheme": "Default Dark Modern"}


def main() -> None:
    modules = install()
    vsix = client.package()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        place = Path(folder)
        server = Server(modules, place / "vscode")
        server.install(vsix)
        with server:
            browser = launch(playwright, modules, place / "chromium")
            world = World(place, server, browser)
            try:
                take(world)
            finally:
                world.close()
                browser.close()


def take(world: World) -> None:
    log = story.write_sessions(world.store / "pi", world.store / "omp", str(world.project))
    story.append_as_pi(log, story.DONE)
    world.daemon.start()
    world.ask("session/label", sessionId=story.LOGIN, entryId=story.DONE, label="before-refactor")
    window = world.opened(**SETTINGS)
    window.page.set_viewport_size({"width": 1280, "height": 760})
    window.sessions.row("Fix the login redirect").click()
    window.tree.unfold("Now refactor the handler")
    window.tree.row("Three tests fail").wait_for()
    widen(window.page, 520)
    window.command("Agent Sessions: Open Transcript")
    preview = window.page.frame_locator("iframe.webview").frame_locator("iframe")
    preview.get_by_text("Find why the redirect drops").first.wait_for()
    window.tree.row("Parsing is its own function").hover()
    window.page.mouse.move(900, 600)
    window.page.screenshot(path=PICTURE)
    print(PICTURE)


def widen(page: Page, width: int) -> None:
    """Drag the edge of the side bar."""
    box = page.locator(".part.sidebar").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"], box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + width, box["y"] + 300, steps=4)
    page.mouse.up()


if __name__ == "__main__":
    main()
