"""In the continuous integration nothing may be left out: `DSHD_TEST_STRICT=1` turns a skip into a failure.

There a test of an editor that failed is run once more, and the summary says so: on a machine that is busy VS Code and
Neovim lose a key or a click now and then. No other test has a second chance.

Under `-n` the tests that need VS Code go to one worker, since there is one VS Code; the others go where there is room.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support import STRICT

# A shell starts what goes on in the background deaf to Ctrl-C, and so would be every program that is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, though nothing may be: {report.longrepr}"
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if STRICT and item.nodeid.startswith(("tests/vscode/", "tests/test_nvim_")):
            item.add_marker(pytest.mark.flaky(reruns=1))


class OneEditor(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return "tests/vscode" if nodeid.startswith("tests/vscode/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneEditor:
    return OneEditor(config, log)
