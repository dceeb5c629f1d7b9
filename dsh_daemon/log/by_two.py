"""A long log read by two processes at once: we scan from its beginning, a helper piece by piece from its end.

Nobody waits for the helper: what it has not done when we get there we do ourselves. It lives for one log only, gets
nothing of ours but the open file, and ends by itself when we end.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import IO

from . import snapshot
from .index import Index
from .journal import FileJournal
from .pieces import join, joinable
from .scan import Source, scan

WORTH_IT = 32 << 20  # bytes from which on a helper saves more than its start costs
PIECE = 4 << 20  # bytes of a piece at least: what one of both may scan in vain in the end
MOST_PIECES = 64
LONGEST_LINE = 1 << 20  # bytes in which a place between two lines is looked for

_PACKAGE = Path(__file__).resolve().parents[1]
_one_at_a_time = threading.Lock()
log = logging.getLogger(__name__)


def scan_by_two(index: Index, source: Source, size: int, cancelled: Callable[[], bool] = lambda: False) -> None:
    """What `scan` does, in little more than half the time where a file is long and there is a second processor.

    The sum of costs may differ from that of `scan` by a rounding error.
    """
    worth_it = size - index.end >= WORTH_IT and _processors() > 1
    if isinstance(source, FileJournal) and source.plain and worth_it and _one_at_a_time.acquire(blocking=False):
        try:
            _scan_by_two(index, source, size, cancelled)
        finally:
            _one_at_a_time.release()
    scan(index, source, size, cancelled)


def _scan_by_two(index: Index, source: FileJournal, size: int, cancelled: Callable[[], bool]) -> None:
    """Get as far as two can, which may be nowhere."""
    places = _between_lines(source, index.end, size)
    try:
        with tempfile.TemporaryFile() as output:
            helper = _helper(source, places, output)
            try:
                blobs = _meet(index, source, places, _Output(output, helper), cancelled)
            finally:
                helper.kill()
                helper.wait()
    except (OSError, subprocess.SubprocessError) as exc:
        log.warning("a long log is read without help: %s", exc)
        return
    rest = places[len(places) - 1 - len(blobs) :]
    for blob, start, stop in zip(reversed(blobs), rest, rest[1:], strict=False):
        if index.end != start:
            return
        piece = snapshot.load(blob, source, size)
        if piece is None or piece.end != stop or not join(index, piece):
            scan(index, source, stop, cancelled)


def _meet(
    index: Index, source: Source, places: list[int], output: _Output, cancelled: Callable[[], bool]
) -> list[bytes]:
    """Scan piece by piece until the helper has done the rest, which is given: the last piece first."""
    for start, stop in pairwise(places):
        if index.end != start or (start and not joinable(index)) or cancelled():
            return []
        blobs = output.blobs()
        left = sum(place > start for place in places)
        if len(blobs) >= left:
            return blobs[:left]
        scan(index, source, stop, cancelled)
    return []


class _Output:
    """What the helper has done so far. Raises SubprocessError where it has failed."""

    def __init__(self, file: IO[bytes], helper: subprocess.Popen[bytes]) -> None:
        self.fd, self.helper = file.fileno(), helper
        self.at = 0
        self.found: list[bytes] = []

    def blobs(self) -> list[bytes]:
        failed = self.helper.poll()
        while len(head := os.pread(self.fd, 8, self.at)) == 8:
            length = int.from_bytes(head)
            blob = os.pread(self.fd, length, self.at + 8)
            if len(blob) < length:
                break
            self.found.append(blob)
            self.at += 8 + length
        if failed:
            raise subprocess.SubprocessError(f"the helper ended with {failed}")
        return self.found


def _between_lines(source: Source, start: int, size: int) -> list[int]:
    """Offsets from `start` to the end of the last whole line at which a line starts, about a piece from each other."""
    step = max(PIECE, (size - start) // MOST_PIECES)
    found = {start}
    for place in (*range(start + step, size, step), size):
        data = source.read(max(start, place - LONGEST_LINE), min(LONGEST_LINE, place - start))
        if b"\n" in data:
            found.add(place - len(data) + data.rindex(b"\n") + 1)
    return sorted(found)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _helper(source: FileJournal, places: list[int], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """A process that indexes the pieces between `places`, all but the first. Raises OSError."""
    code = (
        # Nobody waits for the helper, and others wait for us.
        f"import os, sys; os.nice(19); sys.path.append({str(_PACKAGE.parent)!r})\n"
        f"from dsh_daemon.log.pieces import help_out; help_out({places[1:]}, {os.getpid()})"
    )
    file = source.descriptor()  # held until the helper has it
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=file.number,
        stdout=output,
        stderr=subprocess.DEVNULL,
    )
