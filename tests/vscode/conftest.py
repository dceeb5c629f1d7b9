"""One VS Code and one browser for all these tests; each test has windows, sessions and a daemon of its own.

Their scope is the package, not the session: while Playwright's synchronous API is in use, this thread has a running
event loop, and the tests of other folders use `asyncio.run`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.peers.install import PeersUnavailableError
from tests.support import STRICT

from . import client
from .editor import Server, launch
from .install import install
from .world import World


@pytest.fixture(scope="package")
def modules() -> Path:
    try:
        return install()
    except (PeersUnavailableError, subprocess.SubprocessError, OSError) as error:
        if STRICT:
            raise
        pytest.skip(f"VS Code cannot be installed: {error}")


@pytest.fixture(scope="package")
def vsix() -> Path:
    """The .vsix that a person installs, made from what is in the tree."""
    return client.package()


@pytest.fixture(scope="package")
def server(modules: Path, vsix: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(modules, tmp_path_factory.mktemp("vscode"))
    server.install(vsix)
    with server:
        yield server


@pytest.fixture(scope="package")
def browser(modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch(playwright, modules, tmp_path_factory.mktemp("chromium"))
        yield browser
        browser.close()


@pytest.fixture
def world(tmp_path: Path, server: Server, browser: Browser, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(tmp_path, server, browser)
    failed = request.session.testsfailed
    try:
        yield world
        if request.session.testsfailed > failed:
            for number, window in enumerate(world.windows):
                window.shot(f"failed-{request.node.name}-{number}")
    finally:
        world.close()
