"""What a search over all sessions takes, beside ripgrep over their files."""

from __future__ import annotations

import random
import shutil
import subprocess
from typing import TYPE_CHECKING

from tests import generate
from tests.bench.measure import Bench, Measure, clock, percentile, timed

if TYPE_CHECKING:
    from collections.abc import Iterator


def asked(words: generate.Words, count: int) -> Iterator[tuple[str, str]]:
    """What people look for: a query, and the one string of it that grep can look for; each is asked once."""
    rng = random.Random(7)
    for _ in range(count):
        one, two = rng.choice(words.latin[3_000:20_000]), rng.choice(words.latin[200:3_000])
        other, korean = rng.choice(words.latin[:60]), rng.choice(words.korean[:2_000])[:2]
        phrase, nothing = f"{other} {rng.choice(words.latin[:60])}", f"{one}qq"
        kinds = {
            (one, one): 25, (two, two): 15, (f"{two} {one}", one): 10, (f"{other} {two}", two): 10,
            (two[:3], two[:3]): 10, (korean, korean): 10, (f'"{phrase}"', phrase): 7, (nothing, nothing): 8,
            (other, other): 5,
        }  # fmt: skip
        yield rng.choices([*kinds], [*kinds.values()])[0]


def searching(bench: Bench) -> Iterator[Measure]:
    """Search a library: rare, known and common words, two at once, phrases, beginnings, halves of Korean words."""
    sessions, size = bench.sessions(), int(500_000_000 * bench.scale)
    folder, words = bench.library()
    raw = "rg -F -c" if shutil.which("rg") else ""
    note = "" if raw else "ripgrep is not installed"
    ours: list[float] = []
    theirs: list[float] = []
    found = 0
    with bench.daemon(roots=folder) as daemon, daemon.client() as client:
        covered: dict[str, int] = {}
        while covered.get("indexed") != sessions:
            covered = client.request("search/sessions", query="warm", workDoneToken="bench")["coverage"]
        daemon.settle()
        for query, string in asked(words, max(20, int(200 * bench.scale))):
            if raw:
                command = ["rg", "-F", "-c", "--no-messages", "-e", string, str(folder)]
                theirs.append(timed(subprocess.run, command, stdout=subprocess.DEVNULL))
            began = clock()
            found += bool(client.request("search/sessions", query=query)["items"])
            ours.append(clock() - began)
    yield Measure(
        f"search {sessions:,} sessions, {size // 10**6:,} MB, p50", ours, raw and f"{raw}, p50", theirs,
        reach="10 ms, raw / 10", note=note or f"{found} of {len(ours)} queries found something",
    )  # fmt: skip
    p99 = [percentile(theirs, 99)] if raw else []
    yield Measure("the same, p99", [percentile(ours, 99)], raw and f"{raw}, p99", p99, note=note)
