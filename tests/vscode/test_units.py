"""The client's own tests: its pure parts under node, the whole of it inside the extension host of a real VS Code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.support import assistant, user

from . import client
from .editor import CLIENT, DRIVEN, Server
from .world import World

pytestmark = pytest.mark.timeout(600)  # the first test may have to install VS Code

HOST = CLIENT / "out" / "test" / "host"


def test_the_pure_parts_do_what_their_tests_say() -> None:
    client.npm("test")


@pytest.fixture
def driven(modules: Path, tmp_path: Path) -> Iterator[Server]:
    server = Server(modules, tmp_path / "vscode")
    server.start(DRIVEN)
    yield server
    server.stop()


def test_everything_in_the_extension_host_does_what_its_tests_say(
    driven: Server, browser: Browser, tmp_path: Path
) -> None:
    """Started as VS Code's own test runner does it; the page hears what the extension host prints and how it ends."""
    client.dependencies()
    client.npm("run", "build")
    client.compile_tests()
    world = World(tmp_path, driven, browser)
    session = world.sample()
    pi = world.session("pi-session", [user("a", None, "Start"), assistant("b", "a", "Started.", 2)])
    long = world.session(
        "long-session", [user(f"e{n}", f"e{n - 1}" if n else None, "word " * 4_000) for n in range(100)]
    )
    agent = world.project / "pi"  # an editor's terminal looks there too
    agent.write_text("#!/bin/sh\nexec sleep 60\n")
    agent.chmod(0o755)
    world.daemon.start()
    report = tmp_path / "report.json"

    try:
        sessions = {"DSH_TEST_SESSION": session, "DSH_TEST_PI": pi, "DSH_TEST_LONG": long}
        code, said = world.run_in_host(HOST, DSH_TEST_REPORT=str(report), **sessions)
    finally:
        world.close()

    results: list[dict[str, Any]] = json.loads(report.read_text()) if report.exists() else []
    failed = [f"{one['suite']}: {one['title']}\n{one.get('error', '')}" for one in results if one["state"] != "passed"]
    assert not failed, "\n\n".join(failed)
    assert code == 0, said
    assert results, said
