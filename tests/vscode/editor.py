"""A real VS Code with the packaged client, in a real browser, and what a person does and sees there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from playwright.sync_api import Browser, Error as PlaywrightError, Locator, Page, Playwright, ViewportSize, expect

from tests.running import PATIENCE

from .install import BROWSER, FONTS, MORE_FONTS, NODE, SERVER

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
CLIENT = REPOSITORY / "clients" / "vscode"
ARTIFACTS = Path(os.environ.get("DSHD_ARTIFACTS") or REPOSITORY / "artifacts") / "vscode"
SOON = 15_000  # milliseconds that a test waits for what a person sees at once
SLOW = 60_000  # and for a new window, on a busy machine
PRESSES = 8  # how often a button that went away is looked for again
SIZE = ViewportSize(width=1280, height=800)
DRIVEN = "--enable-smoke-test-driver"
BROWSER_FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
PLAIN = {
    "chat.disableAIFeatures": True,
    "extensions.autoCheckUpdates": False,
    "extensions.ignoreRecommendations": True,
    "git.enabled": False,
    "security.workspace.trust.enabled": False,
    "telemetry.telemetryLevel": "off",
    "update.mode": "none",
    "window.commandCenter": False,
    "workbench.editor.languageDetection": False,
    "workbench.enableExperiments": False,
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.startupEditor": "none",
}
FONTCONFIG = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{modules}/{fonts}</dir>
  <dir>{modules}/{more}</dir>
  <cachedir>{cache}</cachedir>
  <alias binding="same"><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias>
  <alias binding="same"><family>sans-serif</family><prefer><family>Open Sans</family></prefer></alias>
  <alias binding="same"><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""
READ_LINES = "lines => lines.map(line => [parseFloat(line.style.top), line.textContent.replaceAll('\\u00a0', ' ')])"
READ_ROWS = """rows => rows.map(row => [
    row.dataset.index, (row.querySelector('.label-name')?.textContent ?? '').replaceAll('\u00a0', ' ')
])"""

expect.set_options(timeout=SOON)


class Server:
    """The VS Code server with nothing of this machine's own settings; its windows run their extensions in it."""

    def __init__(self, modules: Path, state: Path) -> None:
        self.modules = modules
        self.state = state
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def install(self, package: Path) -> None:
        """What `code --install-extension` does."""
        command = [*self._command(), "--install-extension", str(package), "--force"]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=120)
        assert "successfully installed" in done.stdout, done.stdout + done.stderr

    def start(self, *flags: str) -> None:
        self.configure()
        log = self.state / "log"
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*self._command(), "--host", "127.0.0.1", "--port", "0", "--without-connection-token",
                 "--reconnection-grace-time", "5", "--force-disable-user-env", *flags],
                env=self._environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + PATIENCE
        while (found := re.search(r"listening on (\d+)", log.read_text())) is None:
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.02)
        self.port = int(found[1])

    def stop(self) -> None:
        """End its process group: the server and whatever its windows have started."""
        if self.process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, number)
                try:
                    self.process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    continue

    def configure(self, **settings: Any) -> None:
        """The person's own settings, for windows that are opened from now on; `__` stands for a dot."""
        named = {name.replace("__", "."): value for name, value in settings.items()}
        for place in ("User", "Machine"):  # what belongs to a machine is read from that of the server only
            folder = self.state / "data" / place
            folder.mkdir(parents=True, exist_ok=True)
            fresh = folder / "settings.fresh"
            fresh.write_text(json.dumps({**PLAIN, **named}))
            fresh.rename(folder / "settings.json")  # VS Code watches the file: it must not see half of it

    def address(self, place: Path, **payload: str) -> str:
        """Where a window of a folder or workspace file is; `payload` as VS Code's own test runner gives it.

        A server heeds what a payload says of tests when it was started with `DRIVEN`; then it shows no notifications.
        """
        kind = "workspace" if place.suffix == ".code-workspace" else "folder"
        where = "ew=true" if place == Path() else f"{kind}={quote(str(place))}"
        options = quote(json.dumps([["skipWelcome", "true"], *payload.items()]))
        return f"http://127.0.0.1:{self.port}/?{where}&payload={options}"

    def remote(self, path: Path) -> str:
        return f"vscode-remote://127.0.0.1:{self.port}{path}"

    def _command(self) -> list[str]:
        folders = {"user-data-dir": "data", "server-data-dir": "server", "extensions-dir": "extensions"}
        places = [f"--{option}={self.state / name}" for option, name in folders.items()]
        main = self.modules / SERVER / "out" / "server-main.js"
        return [str(self.modules / NODE), str(main), *places, "--accept-server-license-terms", "--disable-telemetry"]

    def _environment(self) -> dict[str, str]:
        # VS Code leaves sockets in XDG_RUNTIME_DIR; the PATH has no dshd, so that a test says where it is.
        run = self.state / "run"
        run.mkdir(parents=True, exist_ok=True, mode=0o700)
        keep = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TMPDIR") if name in os.environ}
        own = {"HOME": str(self.state), "PATH": "/usr/local/bin:/usr/bin:/bin", "SHELL": "/bin/sh"}
        return {**keep, **own, "XDG_RUNTIME_DIR": str(run), "EXTENSIONS_GALLERY": "{}"}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()


def launch(playwright: Playwright, modules: Path, state: Path) -> Browser:
    """Chromium with the libraries and fonts that were installed with it."""
    state.mkdir(parents=True, exist_ok=True)
    fonts = state / "fonts.conf"
    fonts.write_text(FONTCONFIG.format(modules=modules, fonts=FONTS, more=MORE_FONTS, cache=state / "fontconfig"))
    libraries = modules / BROWSER / "lib"
    env: dict[str, str | float | bool] = {
        **os.environ,
        "LD_LIBRARY_PATH": str(libraries),
        "FONTCONFIG_FILE": str(fonts),
    }
    program = modules / BROWSER / "chromium"
    return playwright.chromium.launch(executable_path=program, args=list(BROWSER_FLAGS), env=env)


class Window:
    """One window of VS Code. What it does, a person could do: mouse, keyboard, command palette."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.keys = page.keyboard
        self.sessions = Pane(page, "Sessions")
        self.tree = Pane(page, "Tree")
        self.status = page.locator(".part.statusbar")
        self.palette = page.locator(".quick-input-widget")
        self.picks = self.palette.locator(".monaco-list-row")
        self.input = self.palette.locator("input[type=text]")
        self.toasts = page.locator(".notification-toast")
        self.dialog = page.locator(".monaco-dialog-box")
        self.editor = page.locator(".editor-instance .view-lines")

    def drawn(self) -> Self:
        self.page.locator(".monaco-workbench .part.activitybar").wait_for(timeout=SLOW)
        return self

    def open_container(self) -> Self:
        """A click on our icon in the activity bar."""
        self.page.locator(".part.activitybar").get_by_role("tab", name="Agent Sessions").click(timeout=SLOW)
        self.sessions.header.wait_for(timeout=SLOW)
        return self

    def command(self, title: str) -> None:
        """Run a command of the palette, which may come to be enabled."""
        pick = self.picks.filter(has_text=title).first

        def offers() -> bool:
            self.keys.press("F1")
            expect(self.input).to_be_visible()
            self.input.fill(f">{title}")
            with suppress(PlaywrightError):
                pick.wait_for(timeout=3_000)
                return True
            self.keys.press("Escape")
            return False

        wait_until(self.page, offers, f"there is no command {title!r}")
        self.keys.press("Enter") if "focused" in (pick.get_attribute("class") or "") else pick.click()

    def asked(self, question: str) -> Locator:
        """The input that asks this: what is typed before it is there would go to the one that is just closing."""
        self.palette.get_by_placeholder(question).or_(self.palette.get_by_text(question)).first.wait_for()
        expect(self.input).to_be_focused()
        return self.input

    def search(self, words: str) -> None:
        """Open the search and type as a person does."""
        self.command("Agent Sessions: Search Sessions")
        self.asked("Words")
        self.keys.type(words, delay=20)

    def copied(self) -> str:
        """What is copied next, or was just before."""
        wait_until(self.page, lambda: self._clipboard() != "", "nothing is copied")
        return self._clipboard()

    def _clipboard(self) -> str:
        return self.page.evaluate("() => navigator.clipboard.readText()")

    def offered(self, title: str) -> bool:
        """Whether the palette has a command of just this title."""
        self.keys.press("F1")
        self.input.fill(f">{title}")
        self.page.wait_for_function(
            "() => document.querySelectorAll('.quick-input-widget .monaco-list-row').length > 0"
        )
        found = self.picks.locator(".monaco-highlighted-label").all_text_contents()
        self.keys.press("Escape")
        return title in [text.strip() for text in found]

    def editor_text(self) -> str:
        """The lines of the active editor that are on the screen; VS Code draws a space as a no-break space."""
        lines = self.page.locator(".editor-group-container.active .view-line")
        found: list[tuple[float, str]] = [tuple(one) for one in lines.evaluate_all(READ_LINES)]
        return "\n".join(text for _, text in sorted(found))

    def shot(self, name: str) -> Path:
        """A picture of the window, kept for people to look at."""
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        path = ARTIFACTS / f"{name}.png"
        self.page.screenshot(path=path)
        return path


class Pane:
    """One view of the side bar: its header with buttons, and its rows."""

    def __init__(self, page: Page, title: str) -> None:
        self.page = page
        self.pane = page.locator(".pane", has=page.locator(f".pane-header[aria-label^='{title}']"))
        self.header = self.pane.locator(".pane-header")
        self.rows = self.pane.locator(".monaco-list-row")
        self.welcome = self.pane.locator(".welcome-view-content")

    def row(self, text: str | re.Pattern[str]) -> Locator:
        return self.rows.filter(has_text=text).first

    def texts(self) -> list[str]:
        """The names of the rows that are on the screen, from top to bottom; VS Code keeps them in any order."""
        found: list[tuple[int, str]] = [(int(place), text) for place, text in self.rows.evaluate_all(READ_ROWS)]
        return [text for _, text in sorted(found)]

    @staticmethod
    def text_of(row: Locator) -> str:
        """The name of a row, without what stands beside it."""
        return row.locator(".label-name").first.inner_text().replace("\xa0", " ")

    def select(self, text: str) -> None:
        """Click on a row; one that a redraw takes from under the mouse is clicked again."""

        def selected() -> bool:
            self.row(text).click()
            with suppress(AssertionError):
                expect(self.row(text)).to_have_class(re.compile("selected"), timeout=1_500)
                return True
            return False

        wait_until(self.page, selected, f"{text!r} cannot be selected")

    def unfold(self, text: str) -> None:
        """Open a folded row with the mouse."""
        self.row(text).locator(".monaco-tl-twistie").click()
        expect(self.row(text)).to_have_attribute("aria-expanded", "true")

    def button(self, title: str | re.Pattern[str]) -> Locator:
        """A button of the title bar; they show while the mouse is over the view."""
        self.header.hover()
        return self.header.get_by_role("button", name=title)

    def inline(self, row: Locator, title: str) -> Locator:
        """A button at the end of a row."""
        row.hover()
        return row.get_by_role("button", name=title)

    def press(self, row: Locator, title: str) -> None:
        """Press a button at the end of a row; one that a redraw takes from under the mouse is looked for again."""
        for _ in range(PRESSES):
            with suppress(PlaywrightError):
                self.inline(row, title).click(timeout=1_500)
                return
        self.inline(row, title).click()

    def menu(self, row: Locator, title: str) -> None:
        """Choose from the context menu of a row."""
        row.click(button="right")
        item = self.page.locator(".monaco-menu").get_by_role("menuitem", name=re.compile(f"^{re.escape(title)}"))
        item.wait_for()
        while item.is_visible():  # VS Code takes no click in the first tenth of a second of a menu
            with suppress(PlaywrightError):
                item.click(timeout=1_000)

    @property
    def focused(self) -> Locator:
        return self.pane.locator(".monaco-list-row.focused")

    def from_the_top(self, *keys: str, to: str) -> None:
        """Go to the first row and with keys on to another; VS Code loses keys just after a view took the focus."""

        def there() -> bool:
            for key in ("Home", *keys):
                self.page.keyboard.press(key)
            return self.focused.filter(has_text=to).count() == 1

        wait_until(self.page, there, f"the keys do not lead to {to!r}")

    def selected(self) -> list[str]:
        return [self.text_of(row) for row in self.pane.locator(".monaco-list-row.selected").all()]


def wait_until(page: Page, check: Callable[[], bool], what: str, within: float = PATIENCE) -> None:
    """Wait while the page goes on; for what no locator can say."""
    until = time.monotonic() + within
    while not check():
        assert time.monotonic() < until, what
        page.wait_for_timeout(50)
