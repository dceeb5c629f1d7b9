"""What others write is heard of within a second, whatever the system allows."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dsh_daemon.watch import Watcher

from .running import Daemon
from .support import assistant, header, line, user, write_log


class Ear:
    """Collects what a watcher says."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.heard: set[str] = set()

    async def listen(self) -> None:
        async for paths in self.watcher.changes():
            self.heard |= paths

    async def hears(self, path: Path, within: float = 5.0) -> float:
        start = time.monotonic()
        while str(path) not in self.heard:
            assert time.monotonic() - start < within, (path, self.heard, self.watcher.reason)
            await asyncio.sleep(0.02)
        return time.monotonic() - start


def run(watcher: Watcher, story: Callable[[Ear], Awaitable[None]], settle: float = 0.8) -> None:
    async def main() -> None:
        ear = Ear(watcher)
        task = asyncio.create_task(ear.listen())
        await asyncio.sleep(settle)
        ear.heard.clear()
        try:
            await story(ear)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("wanted", ["auto", "polling"])
def test_an_append_and_a_new_file_are_heard_within_a_second(tmp_path: Path, wanted: str) -> None:
    path = write_log(tmp_path / "p" / "a.jsonl", [user("a", None, "x")])

    async def story(ear: Ear) -> None:
        with path.open("ab") as file:
            file.write(line(user("b", "a", "y")))
        assert await ear.hears(path) < (2.0 if wanted == "auto" else 4.0)
        (tmp_path / "p" / "note.md").write_text("no session")
        new = write_log(tmp_path / "p" / "new.jsonl", [])
        await ear.hears(new)
        path.unlink()
        ear.heard.clear()
        await ear.hears(path)
        assert str(tmp_path / "p" / "note.md") not in ear.heard

    watcher = Watcher([str(tmp_path)], wanted=wanted)  # type: ignore[arg-type]
    run(watcher, story)
    assert watcher.mode == ("native" if wanted == "auto" else "polling")
    assert (watcher.reason is None) == (wanted == "auto")


def test_folders_that_come_and_go_are_heard(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    write_log(tmp_path / "away" / "b" / "x.jsonl", [])

    async def story(ear: Ear) -> None:
        write_log(tmp_path / "root/deep/er/a.jsonl", [])
        folder = tmp_path / "root/deep"
        await ear.hears(folder)
        await asyncio.sleep(0.5)
        with (folder / "er/a.jsonl").open("ab") as file:
            file.write(line(user("a", None, "x")))
        await ear.hears(folder / "er/a.jsonl")
        shutil.move(tmp_path / "away/b", tmp_path / "root/b")
        await ear.hears(tmp_path / "root/b")
        ear.heard.clear()
        shutil.move(tmp_path / "root/b", tmp_path / "gone")
        await ear.hears(tmp_path / "root/b")

    run(Watcher([str(tmp_path / "root")]), story)


def test_a_root_that_does_not_exist_yet_is_picked_up(tmp_path: Path) -> None:
    root = tmp_path / "later" / "sessions"

    async def story(ear: Ear) -> None:
        path = write_log(root / "p" / "a.jsonl", [])
        await ear.hears(root)
        await asyncio.sleep(0.5)
        with path.open("ab") as file:
            file.write(line(user("a", None, "x")))
        await ear.hears(path)
        shutil.rmtree(root)
        await asyncio.sleep(1.5)
        again = write_log(root / "q" / "b.jsonl", [])
        ear.heard.clear()
        await ear.hears(root)
        await asyncio.sleep(0.5)
        with again.open("ab") as file:
            file.write(line(user("a", None, "x")))
        await ear.hears(again)

    run(Watcher([str(tmp_path / "never"), str(root)]), story)


def test_an_open_session_is_compared_even_where_no_event_comes(tmp_path: Path) -> None:
    """A114: a lost event is healed."""
    path = write_log(tmp_path / "elsewhere" / "a.jsonl", [])

    async def story(ear: Ear) -> None:
        assert not ear.heard
        with path.open("ab") as file:
            file.write(line(user("a", None, "x")))
        assert await ear.hears(path) < 2.5
        sizes[str(path)] = path.stat().st_size
        ear.heard.clear()
        path.unlink()
        await ear.hears(path)

    sizes = {str(path): path.stat().st_size}
    (tmp_path / "root").mkdir()
    run(Watcher([str(tmp_path / "root")], lambda: sizes), story)


EXHAUSTED = """
import asyncio, sys, time
from dsh_daemon.watch import Watcher

async def main():
    watcher = Watcher([sys.argv[1]])
    async def listen():
        async for paths in watcher.changes():
            if any(p.endswith("a.jsonl") for p in paths):
                return
    task = asyncio.create_task(listen())
    await asyncio.sleep(1.5)
    print(watcher.mode, "|", watcher.reason, flush=True)
    with open(sys.argv[1] + "/a.jsonl", "ab") as file:
        file.write(b"{}\\n")
    start = time.monotonic()
    await asyncio.wait_for(task, 10)
    print("heard", time.monotonic() - start < 5)

asyncio.run(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_without_inotify_it_polls_and_says_why(tmp_path: Path) -> None:
    """A110: in a user namespace that may have no inotify instance at all."""
    write_log(tmp_path / "a.jsonl", [])
    script = tmp_path / "watching.py"
    script.write_text(textwrap.dedent(EXHAUSTED))
    shell = f'echo 0 > /proc/sys/user/max_inotify_instances && exec "{sys.executable}" "{script}" "{tmp_path}"'
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(["unshare", "-Ur", "sh", "-c", shell], env=env, capture_output=True, text=True, timeout=60)
    if "watch" not in done.stdout and "polling" not in done.stdout:
        pytest.skip(f"no user namespaces here: {done.stderr[-200:]}")
    assert done.stdout.startswith("polling | native watching failed: "), done.stdout
    assert done.stdout.endswith("heard True\n")


def test_being_idle_costs_nothing(tmp_path: Path) -> None:
    """A072."""
    for n in range(300):
        write_log(tmp_path / f"p{n % 30}" / f"{n}.jsonl", [], header(f"s{n}"))

    async def story(ear: Ear) -> None:
        before = time.process_time()
        await asyncio.sleep(4)
        assert (time.process_time() - before) / 4 < 0.05
        assert not ear.heard

    run(Watcher([str(tmp_path)]), story)


READ = {"id": "c", "name": "read", "arguments": {"path": "src/a.ts"}}


@pytest.mark.parametrize("mode", ["auto", "polling"])
def test_what_another_program_just_made_is_listed_named_opened_and_searched_for_at_once(
    tmp_path: Path, mode: str
) -> None:
    """No watcher can have told of it yet."""
    roots, home = tmp_path / "roots", tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(f"watch = '{mode}'\n")

    def made(name: str) -> str:
        where = roots / f"--{name}--" / f"2026-01-01T00-00-00-000Z_{name}.jsonl"
        write_log(where, [user("a", None, "hello"), assistant("b", "a", "", calls=[READ])], header(name))
        return name

    async def ask(daemon: Daemon) -> None:
        async with await daemon.client() as client:
            before = await client.request("session/list")
            assert before["items"] == []
            name = made("listed")
            assert [item["sessionId"] for item in (await client.request("session/list"))["items"]] == [name]
            name = made("named")
            assert (await client.request("session/resolve", ref="name"))["sessionId"] == name
            name = made("opened")
            assert (await client.request("session/open", sessionId=name))["entryCount"] == 2
            made("touched")
            assert len((await client.request("session/touched", path="a.ts"))["items"]) == 4
            made("searched")
            assert (await client.request("search/sessions", query="hello"))["coverage"]["total"] == 5

    with Daemon(home, f"pi={roots}") as daemon:
        asyncio.run(ask(daemon))
