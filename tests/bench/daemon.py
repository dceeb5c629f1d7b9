"""A daemon process of our own, in folders of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import psutil

from tests.bench.wire import Client

if TYPE_CHECKING:
    from pathlib import Path


class Daemon:
    """`python -m dsh_daemon serve --foreground` under `home`; `seconds` is what it took to the first answer."""

    def __init__(self, home: Path, roots: str = "") -> None:
        self.home = home
        self.socket_path = home / "run" / "dshd.sock"
        home.mkdir(parents=True, exist_ok=True)
        # An installed package has its bytecode; a checkout has it after the first start.
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("DSHD_") and key != "PYTHONDONTWRITEBYTECODE"
        }
        self.env = kept | {"DSHD_HOME": str(home), "DSHD_ROOTS": roots}
        self.log = (home / "stderr.log").open("ab")
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dsh_daemon", "serve", "--foreground"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        self.client().request("daemon/ping")
        self.seconds = time.perf_counter() - started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is not None:
            print((self.home / "stderr.log").read_text(errors="replace")[-3_000:], file=sys.stderr)

    def client(self, name: str = "bench") -> Client:
        deadline = time.monotonic() + 30
        while True:
            try:
                return Client(self.socket_path, name)
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    text = (self.home / "stderr.log").read_text(errors="replace")[-2_000:]
                    raise RuntimeError(f"the daemon did not come up (exit {self.process.poll()}):\n{text}") from None
                time.sleep(0.002)

    def settle(self, timeout: float = 60.0) -> None:
        """Wait until nothing is indexed in the background."""
        deadline = time.monotonic() + timeout
        with self.client() as client:
            while client.request("daemon/status")["index"]["state"] != "idle" and time.monotonic() < deadline:
                time.sleep(0.05)

    def memory(self) -> int:
        """Resident bytes of the daemon and of the workers that it keeps, pages that they share counted once."""
        me = psutil.Process(self.process.pid)
        total = me.memory_info().rss
        for child in me.children(recursive=True):
            with suppress(psutil.Error):
                total += child.memory_full_info().uss
        return total

    def cli(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "dsh_daemon", *args]

    def run(self, *args: str) -> float:
        """Seconds that one `dshd` command takes."""
        started = time.perf_counter()
        kept: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        done = subprocess.run(self.cli(*args), env=self.env, **kept)
        seconds = time.perf_counter() - started
        if done.returncode:
            raise RuntimeError(f"dshd {' '.join(args)}: exit {done.returncode}\n{done.stderr.decode()[-1_000:]}")
        return seconds

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
