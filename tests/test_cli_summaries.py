"""Summaries from the terminal: asked for, offered, shown while they come, called off by Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsh_daemon.cli.summarising import asked

from .model import Model, model
from .running import PATIENCE, Daemon
from .test_asking import entries, written

DSHD = [sys.executable, "-m", "dsh_daemon"]


@contextmanager
def a_model() -> Iterator[Model]:
    """The model of `tests.model`, on a loop of its own."""
    ready, over = threading.Event(), asyncio.Event()
    found: list[Model] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        async with model() as running:
            found.append(running)
            loops.append(asyncio.get_running_loop())
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield found[0]
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join(PATIENCE)


class Terminal:
    """`dshd` on a terminal of 80 by 24."""

    def __init__(self, daemon: Daemon, *args: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.clear()
            os.environ.update(daemon.env | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"})
            os.execv(DSHD[0], [*DSHD, *args])
        self.seen = ""

    def until(self, text: str) -> None:
        end = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            self._read(0.1)

    def _read(self, patience: float) -> bool:
        if not select.select([self.fd], [], [], patience)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data.decode()
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        while self._read(PATIENCE):
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def mock() -> Iterator[Model]:
    with a_model() as running:
        yield running


@pytest.fixture
def stage(tmp_path: Path, mock: Model) -> Iterator[tuple[Daemon, Path]]:
    root, path = written(tmp_path)
    with Daemon(tmp_path / "home", f"native={root}", **mock.settings, DSHD_SUMMARIZER__KEEP_TOKENS="10") as daemon:
        yield daemon, path


def run(daemon: Daemon, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DSHD, *args], env=daemon.env, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("answer", "told"), [("n", None), ("", None), ("y", "## Next steps"), ("Name the tests", "Name the tests")]
)
def test_a_person_is_offered_the_three_choices_where_something_would_be_left(stage, mock, answer, told):
    daemon, path = stage
    before = path.read_bytes()
    terminal = Terminal(daemon, "navigate", "s1", "a2")
    terminal.until("2 entries left behind?")
    terminal.type(answer + "\r")
    assert terminal.end() == 0, terminal.seen
    assert "moved a3" in terminal.seen
    if told is None:
        assert not mock.heard
        assert path.read_bytes() == before
    else:
        assert told in mock.heard[0]["messages"][1]["content"]
        assert entries(path)[-1]["type"] == "branch_summary"
        assert "sums them up" in terminal.seen


def test_nothing_is_asked_where_nothing_is_left_or_nobody_sits_there(stage, mock):
    daemon, path = stage
    run(daemon, "navigate", "s1", "a2")  # in a pipe
    before = path.read_bytes()
    terminal = Terminal(daemon, "navigate", "s1", "a3")  # forward: nothing is left
    assert terminal.end() == 0
    assert "Summarise" not in terminal.seen
    assert not mock.heard
    assert path.read_bytes() == before


def test_progress_is_shown_and_ctrl_c_calls_the_summary_off(stage, mock):
    daemon, path = stage
    mock.plan = [["some words", 0.3, "and more", 30.0]]
    before = path.read_bytes()
    terminal = Terminal(daemon, "navigate", "s1", "a2", "--summarize")
    terminal.until("Summarising 2 entries")
    terminal.until("characters")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "cancelled: nothing was changed" in terminal.seen
    assert "Traceback" not in terminal.seen
    assert path.read_bytes() == before
    state = json.loads(run(daemon, "show", "s1", "--json").stdout)
    assert state["leafId"] == "a3"


def test_a_summary_is_asked_for_by_an_option_and_a_failure_is_one_line(stage, mock):
    daemon, path = stage
    done = run(daemon, "navigate", "s1", "a2", "--instructions", "Name the tests", "--json")
    assert json.loads(done.stdout)["summaryEntryId"] == entries(path)[-1]["id"]
    mock.plan = [[400]]
    failed = run(daemon, "navigate", "s1", "u1", "--summarize")
    assert failed.returncode == 1
    assert failed.stderr.startswith("dshd: summaryFailed: mock-1 answered 400")
    assert failed.stderr.count("\n") == 1


def test_compact_says_what_is_kept_and_refuses_what_is_not_there(stage):
    daemon, path = stage
    done = run(daemon, "compact", "s1")
    assert done.returncode == 0, done.stderr
    assert "everything from a3 on stays" in done.stdout
    assert entries(path)[-1]["type"] == "compaction"
    again = run(daemon, "compact", "s1")
    assert (again.returncode, again.stderr.partition(": ")[2].partition(":")[0]) == (1, "nothingToCompact")
    early = run(daemon, "compact", "s1", "--summary", "by hand", "--keep", "u1")
    assert early.returncode == 1
    assert "nothing stands before" in early.stderr
    shown = run(daemon, "show", "s1", "--context", "--json")
    assert [m["role"] for m in json.loads(shown.stdout)["messages"]] == ["compactionSummary", "assistant"]


@pytest.mark.parametrize(("typed", "status"), [("\x03", 130), ("\x04", 1), ("\x1b\r", 1)], ids=["^C", "^D", "Escape"])
def test_the_question_can_be_left_without_moving(stage, mock, typed, status):
    daemon, path = stage
    before = path.read_bytes()
    terminal = Terminal(daemon, "navigate", "s1", "a2")
    terminal.until("should mind: ")
    terminal.type(typed)
    assert terminal.end() == status, terminal.seen
    assert "Traceback" not in terminal.seen
    assert not mock.heard
    assert path.read_bytes() == before
    assert json.loads(run(daemon, "show", "s1", "--json").stdout)["leafId"] == "a3"


@pytest.mark.parametrize("outcome", ["moved", "cancelled"])
def test_ctrl_c_says_whether_it_came_in_time(outcome, capsys):
    class Late:
        """A daemon that had decided already, or had not."""

        def __init__(self) -> None:
            self.called_off = asyncio.Event()

        async def request(self, method: str, params: dict) -> dict:
            await self.called_off.wait()
            return {"outcome": outcome}

        def call_off(self, method: str) -> None:
            self.called_off.set()

    async def scenario() -> None:
        asking = asyncio.create_task(asked(Late(), "session/navigate", {}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(scenario())
    late = "too late to cancel" in capsys.readouterr().err
    assert late == (outcome == "moved")


def test_instructions_and_no_summary_contradict_each_other(stage, mock):
    daemon, _ = stage
    done = run(daemon, "navigate", "s1", "a2", "--no-summary", "--instructions", "x")
    assert done.returncode == 2
    assert not mock.heard


def test_compact_keeps_a_call_with_its_result_and_takes_no_blank_summary(stage):
    daemon, path = stage
    blank = run(daemon, "compact", "s1", "--summary", " ")
    assert blank.returncode == 1
    assert "summary: must not be blank" in blank.stderr
    done = run(daemon, "compact", "s1", "--summary", "by hand", "--keep", "r1")
    assert done.returncode == 0, done.stderr
    assert "everything from a1 on stays" in done.stdout
    assert entries(path)[-1]["firstKeptEntryId"] == "a1"


@pytest.mark.parametrize("args", [("compact", "s1", "--keep", "u2"), ("navigate", "s1", "u1", "--summarize")])
def test_a_summary_of_less_than_it_stands_for_says_so(tmp_path, mock, args):
    root, path = written(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"The query is lost.", b"x" * 20_000))
    window = {"DSHD_SUMMARIZER__CONTEXT_WINDOW": "2048"}
    with Daemon(tmp_path / "home", f"native={root}", **mock.settings, **window) as daemon:
        done = run(daemon, *args)
        assert done.returncode == 0, done.stderr
        assert "oldest entries: more did not fit" in " ".join(done.stdout.split())
