"""One listed session: what was read of its file and what we know of it beside, as the wire shows it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from .catalog import Counts, Record, Stamp
from .cwd import Places
from .holders import Watch
from .log.formats.peek import Peek
from .roots import Root
from .state import Flags
from .text import iso, one_line
from .types import Can, Live, SessionInfo, TitleSource

SERVED = ("native", "pi", "omp", "dsh")  # formats that can be opened; others are only listed
IN_MEMORY = "memory:"  # begins the path of a session that is in no file
TITLE_LIMIT = 240  # code points
_RECENT = 3600.0  # seconds within which a change makes it likely that a running agent is at it
_READABLE = frozenset({"ok", "recovered", "damaged", "headerless", "empty"})
_OPEN_TAILS = frozenset({"open", "pendingTool"})


class Facts(NamedTuple):
    """What several items share."""

    places: Places
    watch: Watch
    drivers: dict[str, Live]  # by path: the connected agents
    summarize: Callable[[], bool] = lambda: False  # whether there is a model


class Seen(NamedTuple):
    """One look at a session file."""

    root: Root
    stamp: Stamp
    record: Record
    flags: Flags
    nested: bool  # it stands in the artifacts folder of another session


class Item:
    """A session file as listed. It is the same object as long as the file is listed; the store updates it."""

    __slots__ = (
        "_base", "activity", "counts", "created", "flags", "id", "parent", "path", "peek", "raw_id", "recent", "record",
        "root", "seen", "stamp", "subagent", "title", "title_source", "words", "writable",
    )  # fmt: skip

    def __init__(self, path: str, seen: Seen) -> None:
        self.path = path
        self.parent: Item | None = None
        self.seen = 0  # generation of the table in which this was last updated
        self.id = ""  # as listed
        self.update(seen)

    def update(self, seen: Seen) -> None:
        """Take in a new look at the file or at our own state of it."""
        peek, counts = seen.record.peek, seen.record.counts
        assert peek is not None
        self.root, self.stamp, self.record, self.flags = seen.root, seen.stamp, seen.record, seen.flags
        self.peek: Peek = peek
        self.counts: Counts | None = counts
        self.raw_id = peek.session_id
        self.subagent = peek.subagent or seen.nested
        self.writable = self.path.startswith(IN_MEMORY) or os.access(self.path, os.W_OK)
        self.created = peek.created
        known = peek.activity, counts and counts.activity, peek.created
        self.activity: int = next((at for at in known if at is not None), seen.stamp.mtime_ns // 1_000_000)
        self.recent = max(self.activity, peek.created or 0)  # a new branch holds old talk, and is looked for on top
        self.title: str
        self.title_source: TitleSource
        self.title, self.title_source = self._title()
        first = one_line(peek.first or "", TITLE_LIMIT * 2)
        self.words = "\n".join((self.title, self.raw_id, peek.cwd or "", first)).casefold()
        self._base: SessionInfo | None = None

    @property
    def openable(self) -> bool:
        return self.peek.health in _READABLE

    @property
    def fresh(self) -> bool:
        """Whether the counts are those of the file as it is now."""
        return self.counts is not None and self.record.counted == self.stamp

    def _title(self) -> tuple[str, TitleSource]:
        peek, counts = self.peek, self.counts
        if self.flags.title and (title := one_line(self.flags.title, TITLE_LIMIT)):
            return title, "user"
        name, by = peek.name, peek.name_source
        if counts is not None and not peek.name_sure:
            name, by = counts.name, counts.name_source
        if name and (title := one_line(name, TITLE_LIMIT)):
            source: TitleSource = "user" if by == "user" else "agent"
            return title, source
        if peek.first and (title := one_line(peek.first, TITLE_LIMIT)):
            return title, "firstMessage"
        return one_line(self.raw_id, TITLE_LIMIT) or os.path.basename(self.path), "id"

    @property
    def parent_session_id(self) -> str | None:
        """Id of the parent as listed; of one that is not listed, what the child's header says of it."""
        if self.parent is not None:
            return self.parent.id
        named = parent_id(self.peek.parent) if self.peek.parent else None
        return named if named != self.raw_id else None  # nobody who follows parents is to walk in a circle

    def info(self, facts: Facts) -> SessionInfo:
        """Show what the wire shows; what changes beside the file (who holds it) as it is now."""
        base = self._base
        if base is None:
            base = self._base = self._make()
        info = base.copy()
        info["sessionId"] = self.id
        info["cwdExists"] = facts.places.exists(self.peek.cwd)
        info["parentSessionId"] = self.parent_session_id
        live = info["live"] = self._live(facts)
        holder = live if self.peek.format == "omp" else None
        info["can"] = self._can(
            held=holder is not None, open_there=holder is not None and holder["certain"], model=facts.summarize()
        )
        return info

    def _make(self) -> SessionInfo:
        peek, counts = self.peek, self.counts
        health = peek.health
        if counts is not None and health in {"ok", "recovered"}:
            health = "damaged" if counts.damaged else "recovered" if counts.recovered else health
        info = SessionInfo(
            sessionId=self.id,
            path=None if self.path.startswith(IN_MEMORY) else self.path,
            format=peek.format,
            version=peek.version,
            cwd=peek.cwd,
            cwdExists=False,
            title=self.title,
            titleSource=self.title_source,
            createdAt=None if self.created is None else iso(self.created),
            lastActivityAt=iso(self.activity),
            sizeBytes=self.stamp.size,
            scanned=counts is not None,
            tail=peek.tail,
            parentSessionId=None,
            archived=self.flags.archived,
            pinned=self.flags.pinned,
            health=health,
            live=None,
            can=_NOTHING,
        )
        if self.subagent:
            info["origin"] = "subagent"
        if counts is not None:
            info["entryCount"] = counts.entries
            info["messageCount"] = counts.messages
            info["diagnosticCount"] = counts.diagnostics
            info["costTotal"] = counts.cost
            if model := counts.model or peek.model:
                info["model"] = model
            if counts.fork_point is not None:
                info["forkPoint"] = counts.fork_point
            if counts.fork_text:
                info["forkText"] = counts.fork_text
        return info

    def _live(self, facts: Facts) -> Live | None:
        return facts.drivers.get(self.path) or self.holder(facts)

    def holder(self, facts: Facts) -> Live | None:
        """A program that has the session, or may have it, without asking us."""
        format_ = self.peek.format
        status = "running" if self.peek.tail in _OPEN_TAILS else "idle"
        if format_ == "omp":
            if (pid := facts.watch.holder(self.stamp.dev, self.stamp.ino)) is not None:
                return Live(client="omp", pid=pid, status=status, certain=True)
            pid = facts.watch.loader(self.path, self.peek.cwd, self.raw_id)
            return None if pid is None else Live(client="omp", pid=pid, status=status, certain=False)
        if format_ not in {"pi", "dsh"} or not self.peek.cwd:
            return None
        if time.time() - self.stamp.mtime_ns / 1e9 > _RECENT:
            return None
        for agent in facts.watch.agents(format_):
            if facts.places.key(agent.cwd) == facts.places.key(self.peek.cwd):
                return Live(client=format_, pid=agent.pid, status=status, certain=False)
        return None

    def _can(self, *, held: bool, open_there: bool, model: bool) -> Can:
        format_ = self.peek.format
        ours = format_ in {"native", "pi", "omp"} and self.openable
        dsh = format_ == "dsh" and self.openable  # it takes labels and titles in our state, all else from its agent
        sound = (ours or dsh) and self.peek.state == "ok"
        append = sound and ours and self.writable and not held
        resume = sound and self.writable and format_ in {"native", "dsh"} and not self.path.startswith(IN_MEMORY)
        launch = format_ in {"pi", "omp", "dsh"} and self.peek.state in {"ok", "foreign"} and not open_there
        return Can(
            append=append, navigate=ours, branch=sound, fork=sound, label=append or dsh, rename=append or dsh,
            resume=resume, launch=launch, summarize=append and model,
        )  # fmt: skip


_NOTHING = Can(
    append=False, navigate=False, branch=False, fork=False, label=False, rename=False, resume=False, launch=False,
    summarize=False,
)  # fmt: skip


def parent_id(parent: str) -> str:
    """Id that a stored parent names: it is an id, or a path whose file name holds one."""
    if "/" not in parent and "\\" not in parent and not parent.endswith(".jsonl"):
        return parent
    name = parent.replace("\\", "/").rpartition("/")[2].removesuffix(".jsonl")
    return name.partition("_")[2] or name
