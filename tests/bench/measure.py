"""What a benchmark yields, and where its sessions come from."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tests import generate
from tests.bench.daemon import Daemon
from tests.bench.wire import Bare, Client

clock = time.perf_counter


@dataclass
class Measure:
    """Samples in seconds (bytes for `unit` "MB"); `limit` is what the project promises, against what it is read."""

    what: str
    ours: list[float] = field(default_factory=list)
    raw_what: str = ""
    raw: list[float] = field(default_factory=list)
    unit: str = "ms"
    reach: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return median(self.ours) / median(self.raw) if self.raw and median(self.raw) else None


@dataclass
class Bench:
    """Where the sessions lie, how big they are (`scale` 1 = as promised), how often to measure.

    `scratch`: short, since socket paths lie under it; on the file system of `folder`.
    """

    folder: Path
    scratch: Path
    rounds: int = 3
    scale: float = 1.0

    def __post_init__(self) -> None:
        self.made = 0
        self.settled: Path | None = None

    def entries(self) -> int:
        return max(200, int(100_000 * self.scale))

    def sessions(self) -> int:
        return max(20, int(2_000 * self.scale))

    def big(self) -> Path:
        """The big session, in no root: nothing but `session/open` with its path touches it."""
        path = self.folder / f"big-{self.entries()}.jsonl"
        if not path.exists():
            generate.big(path, self.entries(), int(100_000_000 * self.scale))
        path.read_bytes()
        return path

    def store(self) -> Path:
        folder = self.folder / f"store-{self.sessions()}"
        if not folder.exists():
            generate.store(folder, self.sessions())
        for path in folder.rglob("*.jsonl"):
            path.read_bytes()
        return folder

    def library(self) -> tuple[Path, generate.Words]:
        """Sessions to be searched, 2,000 of 500 MB in all, and the words that they are made of."""
        folder, words = self.folder / f"library-{self.sessions()}", generate.Words(random.Random(6))
        if not folder.exists():
            generate.library(folder, words, self.sessions(), int(500_000_000 * self.scale))
        for path in folder.rglob("*.jsonl"):
            path.read_bytes()
        return folder, words

    def home(self) -> Path:
        """A new folder for a daemon that remembers nothing."""
        self.made += 1
        return self.scratch / f"h{self.made}"

    def knowing_home(self) -> Path:
        """The folder of a daemon that has listed and counted the store."""
        if self.settled is None:
            self.settled = self.home()
            with self.daemon(self.settled, self.store(), keep=True) as daemon, daemon.client() as client:
                list_all(client)
                daemon.settle(120)
        return self.settled

    @contextmanager
    def daemon(self, home: Path | None = None, roots: Path | None = None, *, keep: bool = False) -> Iterator[Daemon]:
        home = home or self.home()
        try:
            with Daemon(home, f"pi={roots}" if roots else "") as daemon:
                yield daemon
        finally:
            if not keep:
                shutil.rmtree(home, ignore_errors=True)

    def bare(self) -> closing[Bare]:
        self.made += 1
        return closing(Bare(self.scratch / f"b{self.made}.sock"))


def timed(work: Callable[..., Any], *args: Any, **named: Any) -> float:
    started = clock()
    work(*args, **named)
    return clock() - started


def percentile(samples: list[float], which: int) -> float:
    return quantiles(samples, n=100, method="inclusive")[which - 1]


def list_all(client: Client, **params: Any) -> int:
    """All pages of `session/list`, asked again while the catalogue says that it is not complete."""
    while True:
        seen, cursor = 0, None
        while True:
            page = client.request("session/list", **params, **({"cursor": cursor} if cursor else {}))
            seen += len(page["items"])
            cursor = page.get("nextCursor")
            if not cursor:
                break
        if page.get("complete", True):
            return seen
