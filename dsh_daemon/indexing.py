"""Keeps the index as the sessions are: what was never looked through, what grew, where a leaf moved; the latest first.

Little is done in a thread of this process, much in a process of its own, which hands it over piece by piece. Only this
process writes to the index, one piece at a time: whoever is killed costs a piece, and who searches never waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from re import compile as compiled
from typing import TYPE_CHECKING, Any, TypeVar

from .catalog import Stamp
from .errors import Busy, Fault
from .extract import SNAPSHOT_AFTER, Done, Job, Part, continues, end_of, pieces, receive, send, work
from .items import IN_MEMORY, SERVED
from .search_index import Known, Piece, SearchIndex

if TYPE_CHECKING:
    from .items import Item
    from .live import LiveSession
    from .service import Service
    from .session import Session

LITTLE = 1 << 20  # bytes of files, or of a log, that are looked through in a thread
AHEAD = 2  # jobs that the helper has been given, so that it need not wait for us
FREE_DEATHS = 3  # of a helper at one file, after which it is tried again later and later: it may be the file
LONGEST = 600.0  # seconds
IDLE = 10.0  # seconds after which a helper with nothing to do is ended
LOOK = 2.0  # seconds between two looks whether the index is still there
PAUSE = 0.001  # seconds between two pieces, for whoever asks for something
AGAIN = 0.25  # seconds between two looks at what is to be done
SHARE = 5  # times what it takes to take in what came to open sessions is left to others
LOCKED, HINDERED = 0.5, 5.0  # seconds until an index that is locked, or cannot be written, is tried again

T = TypeVar("T")
log = logging.getLogger(__name__)


class Outdated(Exception):
    """The index does not hold what we believed: another daemon wrote to it, or it was begun anew."""


class Indexing:
    """Two indexes, of the sessions in files and of those in memory, and the work that keeps them right."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.kept = SearchIndex(str(service.folders.search_db))
        self.memory = SearchIndex(None)
        self.indexes = (self.kept, self.memory)
        self.building = True
        self.progress = (0, 0)  # sessions in files that are in the index as they are now, and that can be
        self._known: dict[str, Known] = {}
        self._in_memory: dict[str, Known] = {}
        self._opened: object = None
        self._stale = False  # what we know may not be so
        self._trouble: str | None = None
        self._changed: dict[str, None] = {}  # keys of open sessions of which something may not be in the index
        self._fresh: set[str] = set()  # paths that changed since we last looked at what is to be done
        self._again: set[str] = set()  # paths of which more than their size tells changed
        # The state of a file in which it was looked through in vain, and until when it is left alone.
        self._failed: dict[str, tuple[Stamp, float]] = {}
        self._deaths: dict[str, int] = {}  # of helpers that looked through a file
        self._wake = asyncio.Event()
        self._begun, self._done = 0, -1  # rounds: the one that goes on, the last that took in all that it found
        self._thread = ThreadPoolExecutor(1, "dshd-index")
        self._helper: Helper | None = None
        self._excluded = _matcher(service.settings.search.exclude)

    # What is asked of it

    def excluded(self, item: Item) -> bool:
        """Whether the user wants nothing of a session to be searched."""
        return self._excluded(item.path, item.peek.cwd or "")

    @staticmethod
    def served(item: Item) -> bool:
        """Whether a session can be read, and so be indexed."""
        return item.openable and item.peek.format in SERVED

    def index_of(self, path: str) -> SearchIndex:
        return self.memory if path.startswith(IN_MEMORY) else self.kept

    def coverage(self, items: Iterable[Item]) -> tuple[int, int]:
        """How many of these sessions are in the index as they are now, and how many can be."""
        known, live, some = self._known, self.service.live, bool(self.service.settings.search.exclude)
        replaced = self._opened != self.kept.opened()  # another index came in the place of what we know
        done = total = 0
        for item in items:  # of which there are thousands, at each search
            if not item.openable or item.peek.format not in SERVED or (some and self.excluded(item)):
                continue
            total += 1
            if replaced and not item.path.startswith(IN_MEMORY):
                continue
            if item.path in live:
                done += self._is_done(item)
            elif (there := known.get(item.path)) is not None:
                done += there.whole and there.stamp == item.stamp and item.path not in self._again
        return done, total

    def covered(self, live: LiveSession) -> int:
        """How many of the first entries of an open session are in the index for good."""
        known = self._known_of(live.key)
        return known.entries if known is not None and continues(live.session, known) else 0

    def round(self) -> int:
        """The round in which all is taken in that we were told of until now."""
        return self._begun + self._wake.is_set()

    def is_done(self, round_: int) -> bool:
        return self._done >= round_

    def info(self) -> dict[str, Any]:
        done, total = self.progress
        return {"state": "building" if self.building else "idle", "indexed": done, "total": total}

    @property
    def problem(self) -> str | None:
        return self._trouble or self.kept.problem

    # What it is told

    def changed(self, key: str) -> None:
        """Entries came to an open session, its leaf moved, or it is not open any more."""
        self._changed[key] = None
        self._wake.set()

    def noticed(self, paths: Iterable[str]) -> None:
        """Files came, changed or went."""
        self._fresh.update(paths)
        self._wake.set()

    # The work

    async def keep_up(self) -> None:
        """Do what is to be done, for ever."""
        await self.service.background.walked.wait()
        await self._off(self._compare_leaves)
        while True:
            self._wake.clear()
            self._begun += 1
            try:
                await self._open_ones()
                jobs = await self._off(self._to_do)
                if jobs or self._changed or self._helper_works():
                    self.building = True
                    if await self._look_through(deque(jobs)):
                        self._done = self._begun
                    continue
            except Outdated as exc:
                log.info("%s", exc)
                await self._begin_again()
                continue
            except Fault as fault:
                if fault.message != self._trouble:  # it may last, and what is full is not to be filled with this
                    log.warning("the search index: %s", fault.message)
                self._trouble = fault.message
                await self._begin_again(LOCKED if isinstance(fault, Busy) else HINDERED)
                continue
            self.building, self._trouble, self._done = False, None, self._begun
            await self._rest()

    async def _begin_again(self, seconds: float = LOCKED) -> None:
        """Find out what is in the index after something could not be put there."""
        self._end_helper()
        self._stale = True
        await asyncio.sleep(seconds)

    async def _rest(self) -> None:
        """Wait until there is something to do, and see to it that the index does not go away meanwhile."""
        began = time.monotonic()
        while not self._wake.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LOOK)
            if time.monotonic() - began > IDLE:
                self._end_helper()
            if self._to_try_again() or await self._off(self._is_lost):
                return

    def _to_try_again(self) -> bool:
        now = time.monotonic()
        over = [path for path, (_, until) in self._failed.items() if until < now]
        for path in over:
            del self._failed[path]
        return bool(over)

    def _is_lost(self) -> bool:
        self.kept.look_after()
        return self._stale or self._opened != self.kept.opened()

    async def stop(self) -> None:
        """Let what is being written be written, and close."""
        self._end_helper()
        await asyncio.to_thread(self._thread.shutdown)
        self.kept.close()
        self.memory.close()

    async def _off(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def _look_through(self, items: deque[Item]) -> bool:
        """Look through files until all is done, or (False) something else comes up and some time has gone by."""
        until = time.monotonic() + AGAIN
        fresh, self._fresh = self._fresh, set()
        much = self._helper_works() or sum(item.stamp.size for item in items) > LITTLE
        while items or self._helper_works():
            await self._open_ones()
            if self._fresh and time.monotonic() > until:
                return False
            first = items[0] if items else None
            little = first is not None and first.stamp.size <= LITTLE and (not much or first.path in fresh)
            if first is not None and (little or not await self._has_helper()):
                await self._do(items.popleft())
            elif self._helper is not None:
                await self._by_helper(self._helper, items)
            await asyncio.sleep(PAUSE)
        await self._open_ones()
        return True

    async def _do(self, item: Item) -> None:
        """Look through a file in our thread."""
        job = await self._off(self._job, item)
        found, expected = work(job), job.known
        self._failed[job.path] = job.stamp, time.monotonic() + LONGEST  # a bug is not to keep all other files waiting
        try:
            while (message := await self._off(_message, found)) is not None:
                expected = await self._off(self._take, job, expected, message)
        except (Fault, Outdated):
            self._failed.pop(job.path, None)
            raise
        self._tell(job.path)

    async def _has_helper(self) -> bool:
        """Have a helper, where that may be and can be."""
        if self._helper is None and self.service.helpers:
            with suppress(OSError):
                self._helper = await asyncio.to_thread(Helper)
        return self._helper is not None

    async def _by_helper(self, helper: Helper, items: deque[Item]) -> None:
        """Let the helper have something to do, and take in what it has done next, unless something else comes up."""
        while items and len(helper.given) < AHEAD:
            await asyncio.to_thread(helper.give, await self._off(self._job, items.popleft()))
        job, expected = helper.given[0]
        try:
            message = await helper.next(self._wake)
        except (EOFError, OSError):
            log.warning("a helper ended while it looked through %s", job.path)
            self._deaths[job.path] = deaths = self._deaths.get(job.path, 0) + 1
            self._failed[job.path] = job.stamp, time.monotonic() + min(LONGEST, 2.0 ** (deaths - FREE_DEATHS))
            self._end_helper()
            return
        if message is None:
            return
        helper.given[0] = job, await self._off(self._take, job, expected, message)
        if isinstance(message, Done):
            helper.given.popleft()
            self._tell(job.path)
            if job.path in self.service.live:
                self._changed[job.path] = None  # more may have come to it meanwhile

    def _take(self, job: Job, expected: Known | None, message: Part | Done) -> Known | None:
        """Keep what came of a job; what is known of the file now. Runs in our thread."""
        if isinstance(message, Part):
            self._put(self.kept, self._known, job.path, expected, message.piece)
            return message.piece.known
        if message.counts is None:
            self._failed[job.path] = job.stamp, math.inf
        else:
            self._failed.pop(job.path, None)
            self._deaths.pop(job.path, None)
            self.service.store.put_scanned(job.path, job.stamp, message.counts)
        if message.snapshot is not None:
            self.service.catalog.put_snapshot(job.path, job.stamp, message.snapshot)
        return expected

    @staticmethod
    def _put(index: SearchIndex, known: dict[str, Known], path: str, expected: Known | None, piece: Piece) -> None:
        if not index.put(path, expected, piece):
            raise Outdated(f"{path} is there otherwise than it was put")
        known[path] = piece.known

    def _tell(self, path: str) -> None:
        """A file was looked through: the lists may show more of it."""
        self._again.discard(path)
        item = self.service.store.items().get(path)
        if item is not None:
            self.service.background.counted(item)
            if self._is_done(item):
                done, total = self.progress
                self.progress = min(done + 1, total), total

    def _job(self, item: Item) -> Job:
        path, service = item.path, self.service
        job = Job(path, item.stamp, self._known.get(path), self._wants(item))
        with suppress(Fault):  # our own state may be locked: then it is as if nothing were known
            if item.peek.format == "dsh":
                job.labels = service.state.labels(path)
            else:
                job.memory = service.state.leaf(path)
        if item.stamp.size > SNAPSHOT_AFTER:
            job.snapshot = service.snapshot(path)
        return job

    # Open sessions

    async def _open_ones(self) -> None:
        """Take in what came to open sessions."""
        began = time.monotonic()
        if not self._changed:
            return
        while self._changed:
            key = next(iter(self._changed))
            del self._changed[key]
            live = self.service.live.get(key)
            if live is not None:
                try:
                    await self._open_one(live)
                except (Fault, Outdated):
                    self._changed[key] = None
                    raise
            elif key in self._known:
                self._again.add(key)  # its leaf may have moved at last
        # One that is written to all the time is not all that this process has to do.
        await asyncio.sleep(min(AGAIN, SHARE * (time.monotonic() - began)))

    async def _open_one(self, live: LiveSession) -> None:
        session = live.session
        if self._excluded(live.key, session.header.cwd or "") or live.key in self._given():
            return
        if session.path is not None and self._missing(session, live.key) > LITTLE:
            return  # it is looked through as a file
        index, known = (self.kept, self._known) if session.path is not None else (self.memory, self._in_memory)
        found: Iterator[Piece] | None = None
        expected: Known | None = known.get(live.key)
        epoch = session.epoch
        while True:
            async with live.lock:  # nothing must come to the log as it is read
                if live.closed is not None or live.session.epoch != epoch:
                    break
                try:
                    if found is None:
                        found = pieces(live.session, await self._off(_stamp, live.session), expected)
                    piece = await self._off(_piece, found)
                except (Fault, OSError):
                    break  # whoever finds out why tells us
            if piece is None:
                return
            if piece.ids or piece.known != expected or piece.labels != index.labels().get(live.key, {}):
                await self._off(self._put, index, known, live.key, expected, piece)
            expected = piece.known

    # What is to be done

    def _to_do(self) -> list[Item]:
        """The sessions in files that are to be looked through, the latest first. Runs in our thread."""
        if self._is_lost():
            self._load()
        items = self.service.store.items()
        if self._holds_excluded(items):
            self.kept.clear()
            self._load()
        for key in [key for key in self._in_memory if key not in self.service.live]:
            del self._in_memory[key]
            self.memory.forget([key])
        self._forget({path for path in self._known if path not in items}, items)
        given = self._given()
        waiting: list[Item] = []
        done = total = 0
        for path, item in items.items():
            if not item.openable or path.startswith(IN_MEMORY):
                continue
            wanted = self._wants(item)
            there = not wanted or self._is_done(item)
            total += wanted
            done += wanted and there
            if (not there or not item.fresh or path in self._again) and path not in given and not self._in_vain(item):
                live = self.service.live.get(path)
                if live is None or not item.fresh or self._missing(live.session, path) > LITTLE:
                    waiting.append(item)
        self.progress = done, total
        return sorted(waiting, key=lambda item: -item.recent)

    def _holds_excluded(self, items: Mapping[str, Item]) -> bool:
        """Whether a session that is in the index came, by name or folder, to where nothing is to be searched."""
        if not self.service.settings.search.exclude:
            return False
        hidden = {path: item.stamp for path, item in items.items() if self.excluded(item)}
        stamps = set(hidden.values())
        return any(path in hidden if path in items else known.stamp in stamps for path, known in self._known.items())

    def _load(self) -> None:
        """Find out what is in the index; nothing of what is excluded now may be left there."""
        known = self.kept.files()
        if any(self._excluded(path, one.cwd or "") for path, one in known.items()):
            self.kept.clear()
            known = {}
        self._known = known
        self._changed.update(dict.fromkeys(self.service.live.copy()))  # nothing else tells what is not there of these
        self._opened, self._stale = self.kept.opened(), False

    def _forget(self, gone: set[str], items: dict[str, Item]) -> None:
        """Take out what is not listed any more, but for files that have another name now."""
        if not gone:
            return
        names = {item.stamp: path for path, item in items.items() if path not in self._known and self._wants(item)}
        for path in gone:
            known = self._known.pop(path)
            if (name := names.pop(known.stamp, None)) is not None:
                self.kept.moved(path, name)
                self._known[name] = known
            else:
                self.kept.forget([path])

    def _compare_leaves(self) -> None:
        """A leaf may have been moved just before we were killed, after the log was indexed."""
        with suppress(Fault):
            for path, known in self.kept.files().items():
                memory = self.service.state.leaf(path)
                if memory is not None and memory.size == known.stamp.size and memory.leaf != known.leaf:
                    self._again.add(path)

    def _wants(self, item: Item) -> bool:
        return self.served(item) and not self.excluded(item)

    def _known_of(self, key: str) -> Known | None:
        return (self._in_memory if key.startswith(IN_MEMORY) else self._known).get(key)

    def _is_done(self, item: Item) -> bool:
        """Whether all of a session is in the index as it is now, as far as we know."""
        known = self._known_of(item.path)
        if known is None or not known.whole:
            return False
        live = self.service.live.get(item.path)
        return known.stamp == item.stamp if live is None else not self._missing(live.session, item.path)

    def _missing(self, session: Session, key: str) -> int:
        """Bytes of an open session's entries that are not in the index."""
        known, index = self._known_of(key), session.index
        solid = len(index) - index.provisional
        if known is None or known.entries > solid or end_of(session, known.entries) != known.end:
            return index.size
        return end_of(session, solid) - known.end

    def _in_vain(self, item: Item) -> bool:
        stamp, until = self._failed.get(item.path, (item.stamp, 0.0))
        return stamp == item.stamp and time.monotonic() < until

    def _given(self) -> set[str]:
        return {job.path for job, _ in self._helper.given} if self._helper is not None else set()

    def _helper_works(self) -> bool:
        return self._helper is not None and bool(self._helper.given)

    def _end_helper(self) -> None:
        if self._helper is not None:
            self._helper.end()
            self._helper = None


class Helper:
    """A process that looks through files for us. It ends when we do. Raises OSError."""

    def __init__(self) -> None:
        root = Path(__file__).resolve().parents[1]
        code = (
            # Nobody waits for it, and others wait for us.
            f"import os, sys; os.nice(10); sys.path.append({str(root)!r})\nfrom dsh_daemon.extract import main; main()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._to, self._from = self.process.stdin, self.process.stdout
        self.given: deque[tuple[Job, Known | None]] = deque()  # with what was put into the index of it last
        self._reading: asyncio.Task[Part | Done] | None = None

    def give(self, job: Job) -> None:
        with suppress(BrokenPipeError):  # it is found dead when it is to answer
            send(self._to, job)
        self.given.append((job, job.known))

    async def next(self, wake: asyncio.Event) -> Part | Done | None:
        """The next message, None where something else comes up before. Raises EOFError."""
        if self._reading is None:
            self._reading = asyncio.create_task(asyncio.to_thread(receive, self._from))
        waking = asyncio.create_task(wake.wait())
        try:
            await asyncio.wait({self._reading, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        wake.clear()
        if not self._reading.done():
            return None
        message, self._reading = self._reading, None
        return message.result()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._reading is not None:
            self._reading.add_done_callback(lambda task: task.exception())  # that it ended we know
        for stream in (self._to, self._from):
            with suppress(OSError):
                stream.close()


def _piece(found: Iterator[Piece]) -> Piece | None:
    return next(found, None)


def _message(found: Iterator[Part | Done]) -> Part | Done | None:
    return next(found, None)


def _stamp(session: Session) -> Stamp:
    """The state of the file of an open session; one that no file has where it is not what was read of it."""
    if session.path is None:
        return Stamp(0, 0, session.index.size, 0)
    status = os.stat(session.path)
    return Stamp.of(status) if status.st_size == session.file_size else Stamp(0, 0, 0, 0)


def _matcher(globs: Iterable[str]) -> Callable[[str, str], bool]:
    """Tell by path and cwd whether a session is meant by one of `globs`, or stands below what is meant."""
    whole = [os.path.expanduser(glob).rstrip("/") for glob in globs]
    wanted = [compiled(translate(glob)).match for place in whole for glob in (place, f"{place}/*")]

    @lru_cache(1 << 14)
    def matches(path: str, cwd: str) -> bool:
        return any(match(place) or match(f"{place}/") for match in wanted for place in (path, cwd) if place)

    return matches
