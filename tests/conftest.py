"""In the continuous integration nothing may be left out: `DSHD_TEST_STRICT=1` turns a skip into a failure."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.support import STRICT


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, though nothing may be: {report.longrepr}"
    return report
