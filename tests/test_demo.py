"""`dshd demo`: the first thing that a stranger runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from .support import CORPUS, assistant, header, user, write_log

DEMO = [sys.executable, "-m", "dsh_daemon", "demo"]


def interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job of a shell inherits that it is ignored


class Stranger:
    """Somebody with a home folder and a temporary folder that nothing else uses."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.temp = folder / "tmp"
        self.home.mkdir()
        self.temp.mkdir()
        dropped = re.compile("DSHD_|XDG_|PI_|DSH_|CLAUDE_|CODEX_|(NO_COLOR|FORCE_COLOR|COLUMNS)$")
        keep = {name: value for name, value in os.environ.items() if not dropped.match(name)}
        self.env = keep | {
            "HOME": str(self.home),
            "TMPDIR": str(self.temp),
            "PYTHONPATH": str(Path(os.path.abspath(__file__)).parents[1]),
        }

    @contextmanager
    def start(self, *args: str) -> Generator[subprocess.Popen[str]]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(
            [*DEMO, *args],
            **pipes,
            env=self.env,
            cwd=self.home,
            text=True,
            preexec_fn=interruptible,  # noqa: PLW1509
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def demo(self, *args: str) -> str:
        with self.start(*args) as process:
            out, err = process.communicate(timeout=60)
            assert (process.returncode, err) == (0, "")
        self.is_clean()
        return out

    def is_clean(self) -> None:
        """Nothing is left in the temporary folder, and no daemon that was started there runs."""
        assert list(self.temp.iterdir()) == []
        assert self.daemons() == []

    def daemons(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                if str(self.temp) in process.environ().get("DSHD_HOME", ""):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def files(self) -> dict[str, tuple[bytes, int]]:
        return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in self.home.rglob("*") if p.is_file()}


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


def test_the_demo_shows_every_move_and_cleans_up(stranger: Stranger) -> None:
    began = time.monotonic()
    out = stranger.demo()
    assert time.monotonic() - began < 20
    for command in (
        "list",
        "tree redirect",
        "navigate 019cadd3",
        "label 019cadd3",
        "watch 019cadd3",
        "branch 019cadd3",
        "tree vue",
        "agent vue",
        "list --tail open,interrupted,pendingTool",
        "resume vue",
        "fork vue --turn 2",
        "family ",
    ):
        assert f"$ dshd {command}" in out, command
    assert re.search(r"\$ kill -9 \d+\n", out)
    assert "│ Now refactor the handler" in out
    assert "pi starts at the last line of its file" in out
    assert "⚑ before-refactor  on f25a90b7" in out
    assert re.search(r"A second tool heard of it \d+ ms after", out)
    assert "Refactor the parsing only" in out
    assert re.search(r"continue with `.+ resume [0-9a-f]{8,}`", out)
    assert "4 sessions, the leaf below f25a90b7, ⚑ before-refactor" in out
    assert "bash npx vue-codemod src" in out
    assert re.search(r"\$ kill -9 \d+ \d+\n", out)
    assert "turn 3 was cut off, it is closed now" in out
    assert "TOOL_OUTCOME_UNKNOWN" in out
    assert "the next turn is 4" in out
    assert "The agent, started again, did turn 4" in out
    assert "An agent did turn 3 there" in out
    assert "└─ Migrate the shop to Vue 3" in out
    assert "No sessions of your own" in out
    assert "\x1b" not in out
    assert stranger.files() == {}


def test_the_demo_counts_the_persons_own_sessions_and_leaves_them_alone(stranger: Stranger) -> None:
    folder = stranger.home / ".pi" / "agent" / "sessions" / "--home-me--"
    for name in ("one", "two"):
        entries = [user("aaaa0001", None, f"My own {name}", 1), assistant("aaaa0002", "aaaa0001", "Yes.", 2)]
        write_log(folder / f"2026-01-01T00-00-00-000Z_{name}.jsonl", entries, header(name, str(stranger.home)))
    before = stranger.files()
    out = stranger.demo()
    assert "you have 2 sessions of your own" in out
    assert "My own one" in out
    assert stranger.files() == before


def test_the_demo_as_json_is_one_document(stranger: Stranger) -> None:
    steps = json.loads(stranger.demo("--json"))["steps"]
    assert [step["method"] for step in steps if step["method"]] == [
        "session/list",
        "session/tree",
        "session/navigate",
        "session/label",
        "session/changed",
        "session/tree",
        "session/branch",
        "session/navigate",
        "session/open",
        "session/tree",
        "session/open",
        "session/list",
        "session/resume",
        "session/fork",
        "session/family",
    ]


@pytest.mark.parametrize(
    ("number", "status", "moment"),
    [(signal.SIGINT, 130, "kill -9"), (signal.SIGTERM, 143, "Three sessions"), (signal.SIGTERM, 143, "agent vue")],
)
def test_an_interrupted_demo_cleans_up_too(
    stranger: Stranger, number: signal.Signals, status: int, moment: str
) -> None:
    with stranger.start() as process:
        assert process.stdout
        while moment not in (line := process.stdout.readline()):
            assert line
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (status, "")
    stranger.is_clean()


def test_a_reader_that_leaves_ends_the_demo_quietly(stranger: Stranger) -> None:
    with stranger.start() as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(20) == 0
    stranger.is_clean()


@pytest.mark.skipif(CORPUS is None, reason="needs the corpus")
def test_the_demo_lists_a_whole_store_of_sessions(stranger: Stranger) -> None:
    assert CORPUS
    (stranger.home / ".pi" / "agent").mkdir(parents=True)
    (stranger.home / ".pi" / "agent" / "sessions").symlink_to(CORPUS)
    out = stranger.demo("--fast")
    assert re.search(r"you have \d+ sessions of your own", out)
