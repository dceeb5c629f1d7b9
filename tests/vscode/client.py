"""The client's own build, with npm, in its own folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .editor import CLIENT

PACKAGE = CLIENT / "dsh-sessions.vsix"


def npm(*arguments: str, timeout: float = 300) -> str:
    """Run npm in the client's folder; what it printed is in the error when it fails."""
    found = shutil.which("npm")
    assert found is not None, "npm is not on PATH"
    done = subprocess.run([found, *arguments], cwd=CLIENT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"npm {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout


def dependencies() -> None:
    """`npm ci`, unless what the lock says is there already."""
    there = CLIENT / "node_modules" / ".package-lock.json"
    if not there.exists() or there.stat().st_mtime < (CLIENT / "package-lock.json").stat().st_mtime:
        npm("ci", "--no-audit", "--no-fund")


def compile_tests() -> None:
    subprocess.run(["node", "test/build.mjs"], cwd=CLIENT, check=True, timeout=120)


def package() -> Path:
    dependencies()
    npm("run", "package")
    return PACKAGE
