"""All session files of this user: found under the roots, read a little, listed, named, put in the trash."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from typing import Any, NotRequired, TypedDict

from . import trash
from .catalog import Catalog, Counts, Record, Stamp
from .cwd import Places
from .errors import Fault, InvalidReference, SessionGone, SessionNotFound
from .holders import Watch
from .items import IN_MEMORY, Facts, Item, Seen
from .listing import Filters, accepts, arrange, page
from .log.formats.header import id_from_name, readable
from .log.formats.peek import Peek, peek
from .roots import Root
from .state import Flags, State
from .table import Delta, Family, Table
from .types import SessionInfo
from .walk import SUFFIXES, Leftover, Walker

log = logging.getLogger(__name__)
_NO_FLAGS = Flags()
_EVERYTHING = Filters()


class Skipped(TypedDict):
    path: str
    reason: str


class Page(TypedDict):
    items: list[SessionInfo]
    total: int
    nextCursor: NotRequired[str]
    skipped: NotRequired[list[Skipped]]
    complete: bool


class Store:
    """Every method may be called from any thread; a `refresh` does its reading without the lock.

    An id that was handed out (by `info`, in a list, as a candidate) goes on naming its file as long as this object
    lives.
    """

    def __init__(self, roots: Iterable[Root], catalog: Catalog, state: State, places: Places | None = None) -> None:
        self.walker = Walker(roots)
        self.catalog = catalog
        self.state = state
        self.facts = Facts(places or Places(), Watch(), {})
        self.complete = False  # the roots were looked through once
        self.leftovers: list[Leftover] = []  # backups and temporary files, for the doctor
        self._lock = threading.RLock()
        self._refreshing = threading.Lock()
        self._looking = threading.Lock()
        self._around = threading.Lock()
        self._folders: dict[str, int] = {}  # under the roots, as they were when they were last looked through
        self._table = Table()
        self._skipped: dict[str, str] = {}
        self._rejected: dict[str, Stamp] = {}  # state in which a file was found to be no session
        self._flagged = -1  # which opening of the state our flags are from; -1: they are to be read anew

    # -- what is there ------------------------------------------------------------------------------------------------

    def refresh(self, on_progress: Callable[[int, int], None] | None = None) -> Delta:
        """Look through all roots, reading only files that changed since they were last read.

        `on_progress(done, total)` is called now and then, in this thread.
        """
        with self._refreshing:
            with self._lock:
                start = self._table.generation
                known = dict(self._rejected)
                listed = dict(self._table.items)
            for path, item in listed.items():
                if item.peek.health != "unreadable":  # a permission may have changed without a trace
                    known[path] = item.stamp
            cached = {} if self.complete else self.catalog.load()
            found = self.walker.all()
            files = found.files | self._remembered(found.files)
            flags = self._all_flags()
            put: dict[str, Seen] = {}
            fresh: list[tuple[str, Stamp, Record]] = []
            for number, (path, (root, status)) in enumerate(files.items()):
                stamp = Stamp.of(status)
                if known.get(path) == stamp:
                    continue
                then, record = cached.get(path, (None, None))
                if record is None or then != stamp:
                    before = listed[path].record if path in listed else record
                    stamp, record = _read(path, root, stamp, before)
                    fresh.append((path, stamp, record))
                nested = os.path.dirname(path) + ".jsonl" in files
                put[path] = Seen(root, stamp, record, flags.get(path, _NO_FLAGS), nested)
                if on_progress is not None and number % 100 == 0:
                    on_progress(number, len(files))
            moved = _moved({path: row for path, row in cached.items() if path not in files}, put)
            for path, old in moved.items():
                self._move_state(old, path)
                put[path] = put[path]._replace(flags=self._flags(path))
            with self._lock:
                items = self._table.items
                for path in listed.keys() - items.keys():
                    if not os.path.lexists(path):
                        put.pop(path, None)  # it went while we looked
                late = {path for path, item in items.items() if item.seen > start}  # looked at again in the meantime
                self.leftovers, self._folders = found.leftovers, found.folders
                self._skipped = found.skipped | {p: r for p, r in self._skipped.items() if p in files}
                gone = [
                    path for path in (*items, *self._rejected)
                    if path not in files and path not in late and not path.startswith(IN_MEMORY)
                ]  # fmt: skip
                delta = self._apply({path: seen for path, seen in put.items() if path not in late}, gone)
                self.complete = True
            self._cache(fresh, [path for path in {*cached, *gone} if path not in files])
            return delta

    def refresh_folders(self) -> Delta:
        """Look again where names came or went, which no watcher may have told yet. For after the first `refresh`."""
        with self._around:  # who asks meanwhile is to have what is being found, too
            with self._lock:
                folders = self._folders
            changed = self.walker.changed(folders)
            return self._look_again(changed, folders) if changed else Delta([], [])

    def refresh_paths(self, paths: Iterable[str]) -> Delta:
        """Look again at what a watcher named: files, folders that came, files or folders that went."""
        return self._look_again(paths, {})

    def _look_again(self, paths: Iterable[str], apart: Container[str]) -> Delta:
        """Look at `paths`, but not into the folders in them that are looked at `apart`."""
        put: dict[str, Seen] = {}
        gone: list[str] = []
        with self._looking:
            anew = self.state.opened() != self._flagged
            flags = self._all_flags() if anew else {}
            paths = [*paths, *self._remembered(self.items())] if anew else paths
            names: dict[tuple[int, int], str] | None = None
            for path in paths:
                for file, (root, status) in self._named(path, gone, apart).items():
                    stamp = Stamp.of(status)
                    with self._lock:
                        item = self._table.items.get(file)
                        known = self._rejected.get(file) if item is None else item.stamp
                    if known == stamp:
                        continue
                    if item is None:
                        names = self._inodes() if names is None else names
                        other = names.setdefault(stamp[:2], file)
                        if other != file and self._is_twin(other, file, stamp, gone):
                            continue
                    stamp, record = _read(file, root, stamp, None if item is None else item.record)
                    put[file] = Seen(root, stamp, record, self._flags(file), _is_nested(file))
            fresh = [(path, seen.stamp, seen.record) for path, seen in put.items()]
            with self._lock:
                if anew:
                    for path, item in self._table.items.items():
                        now = flags.get(path, _NO_FLAGS)
                        if path not in put and path not in gone and item.flags != now:
                            put[path] = Seen(item.root, item.stamp, item.record, now, item.subagent)
                put |= self._nested_by({*put.keys() - self._table.items.keys(), *gone}, put)
                delta = self._apply(put, gone)
        self._cache(fresh, gone)
        return delta

    def _nested_by(self, changed: set[str], put: Container[str]) -> dict[str, Seen]:
        """What stands in the artifacts folder of a file that came or went, where that makes a difference."""
        found: dict[str, Seen] = {}
        if not changed:
            return found
        for path, item in self._table.items.items():
            if path not in put and path not in changed and os.path.dirname(path) + ".jsonl" in changed:
                nested = _is_nested(path)
                if nested != item.subagent and not item.peek.subagent:
                    found[path] = Seen(item.root, item.stamp, item.record, item.flags, nested)
        return found

    def reflag(self, path: str) -> Delta:
        """Take in what changed in our own state of a file (archive, pin, title)."""
        flags = self.state.flags(path)
        with self._lock:
            item = self._table.items.get(path)
            if item is None:
                return Delta([], [])
            return self._apply({path: Seen(item.root, item.stamp, item.record, flags, item.subagent)}, [])

    def put_scanned(self, path: str, stamp: Stamp, counts: Counts) -> Item | None:
        """Note what a full scan counted in the file as it was at `stamp`; None when the file is not listed."""
        item = self.items().get(path)
        if item is not None and item.stamp != stamp:
            self.refresh_paths([path])
        with self._lock:
            item = self._table.items.get(path)
            if item is None:
                return None
            record = Record(item.record.peek, None, counts, stamp)
            self._apply({path: Seen(item.root, item.stamp, record, item.flags, item.subagent)}, [])
        self._cache([(path, item.stamp, record)], [])
        return item

    def put_memory(self, path: str, record: Record, stamp: Stamp) -> Delta:
        """List a session that is in no file, or bring its row up to date; `path` begins with `IN_MEMORY`."""
        with self._lock:
            return self._apply({path: Seen(Root("", "native", "memory"), stamp, record, _NO_FLAGS, nested=False)}, [])

    def drop_memory(self, path: str) -> Delta:
        with self._lock:
            return self._apply({}, [path])

    def items(self) -> dict[str, Item]:
        """Everything that is listed, by path."""
        with self._lock:
            return dict(self._table.items)

    def roots_status(self) -> list[dict[str, Any]]:
        """Say of each root where it comes from, whether it is there, and how many sessions it holds."""
        holding = [item.root.path for item in self.items().values()]
        return [
            {
                "path": root.path, "format": root.format or "any", "origin": root.source, "exists": root.exists,
                "readable": root.readable, "sessions": holding.count(root.path),
            }
            for root in self.walker.roots
        ]  # fmt: skip

    # -- lists and names ----------------------------------------------------------------------------------------------

    def list(self, filters: Filters = _EVERYTHING, limit: int | None = None, cursor: str | None = None) -> Page:
        """One page of `session/list`; what was skipped comes with the first. Raises CursorExpired."""
        with self._lock:
            ordered = arrange(filter(self.accepts(filters), self._table.items.values()), filters)
            chosen, following = page(ordered, filters, limit, cursor)
            result = Page(items=[self.info(item) for item in chosen], total=len(ordered), complete=self.complete)
            if following is not None:
                result["nextCursor"] = following
            if cursor is None:
                result["skipped"] = [Skipped(path=p, reason=r) for p, r in sorted(self._skipped.items())]
            return result

    def accepts(self, filters: Filters) -> Callable[[Item], bool]:
        """Build the test by which a list, and a subscriber to it, takes an item."""
        return accepts(filters, self.facts.places)

    def info(self, item: Item) -> SessionInfo:
        """Show an item as the wire does; its id is handed out by this."""
        self._table.hand_out(item)
        return item.info(self.facts)

    def get(self, session_id: str) -> Item:
        """Find a session by an id that was listed. Raises SessionNotFound, AmbiguousSession."""
        with self._lock:
            return self._table.get(session_id)

    def handed_out(self, session_id: str) -> str | None:
        """Path of the file that an id was handed out for, also where it is there no more."""
        with self._lock:
            return self._table.handed.get(session_id)

    def at(self, path: str) -> Item | None:
        """Return the listed session that this path names, whatever its spelling."""
        items = self.items()
        item = items.get(path) or items.get(os.path.realpath(path))
        if item is not None:
            return item
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        same = (status.st_dev, status.st_ino)
        return next((i for i in items.values() if (i.stamp.dev, i.stamp.ino) == same), None)

    def open_path(self, path: str) -> Item:
        """Find or take in the session file at `path`; one outside the roots is remembered. Raises SessionNotFound."""
        if "\0" in path:
            raise SessionNotFound("a path has no NUL byte", path=path)
        path = os.path.abspath(os.path.expanduser(path))
        item = self.at(path)
        if item is None:
            path = os.path.realpath(path)
            if os.path.isfile(path):
                self.refresh_paths([path])
            item = self.at(path)
        if item is None:
            if not os.path.exists(path):
                raise SessionNotFound(f"{path}: there is no such file", path=path)
            reason = self._skipped.get(path, "not a session file")
            raise InvalidReference(f"{path}: {reason}", ref=path, reason=f"notASession: {reason}")
        self.keep(item.path)
        return item

    def keep(self, path: str) -> None:
        """Let a session outside of the roots be listed after a restart, too."""
        if self.walker.root_of(path) is None:
            with suppress(Fault):  # it can be read all the same
                self.state.remember(path)

    def resolve(self, reference: str, cwd: str | None = None) -> Item:
        """Find what a person typed: an id or the start of one, a title or a part of one, a path, or "last".

        "last" is the first of `list` with the same `cwd`; one without messages only when there is no other, and one
        that cannot be opened only when there is none of these either. Raises InvalidReference, AmbiguousSession,
        SessionNotFound.
        """
        reference = reference.strip()
        if not reference:
            raise InvalidReference("nothing was named", ref=reference, reason="empty")
        if reference == "last":
            return self._last(cwd)
        with self._lock:
            self._table.only(reference)
            if self._table.knows(reference) or reference in self._table.handed:
                return self._table.get(reference)
        if "\0" not in reference and (os.sep in reference or reference.endswith(SUFFIXES)):
            path = os.path.join(cwd or os.getcwd(), os.path.expanduser(reference))
            if os.path.exists(path) or reference.startswith((os.sep, "~", ".")):
                return self.open_path(path)
        with self._lock:
            return self._table.by_text(reference)

    def knows(self, session_id: str) -> bool:
        """Whether a file carries this id, or a session is listed under it."""
        with self._lock:
            return self._table.knows(session_id)

    def family(self, item: Item) -> Family:
        """Answer `session/family`."""
        with self._lock:
            return self._table.family(item)

    def trash(self, item: Item, own: str) -> tuple[str, Delta]:
        """Move a session, its artifacts and its backups to the trash (`own` is ours) -> where the file is now.

        Raises SessionGone, ReadOnly, StorageError.
        """
        self.refresh_paths([item.path])
        if self.items().get(item.path) is not item:
            raise SessionGone(f"the file of this session is gone: {item.path}", path=item.path)
        target = trash.trash(item.path, own, omp_id=item.raw_id if item.peek.format == "omp" else None)
        return target, self.refresh_paths([item.path, item.path.removesuffix(".jsonl")])

    # -- inside -------------------------------------------------------------------------------------------------------

    def _last(self, cwd: str | None) -> Item:
        filters = Filters(cwd=cwd)
        accept = self.accepts(filters)
        ordered = arrange(filter(accept, self.items().values()), filters)
        if not ordered:
            hint = f"there is no session in {cwd}; one of another folder is named by its title or id"
            raise SessionNotFound(hint if cwd else "there is no session", ref="last")
        return min(ordered, key=lambda item: (not item.openable, item.peek.tail == "empty"))

    # Our own state may be locked or on a full disk; no file is hidden by that.

    def _all_flags(self) -> dict[str, Flags]:
        try:
            opened, flags = self.state.opened(), self.state.all_flags()
        except Fault:
            return {path: item.flags for path, item in self.items().items()}
        self._flagged = opened
        return flags

    def _flags(self, path: str) -> Flags:
        if self._flagged != -1:  # else the next look reads all of them
            try:
                return self.state.flags(path)
            except Fault:
                self._flagged = -1
        item = self.items().get(path)
        return _NO_FLAGS if item is None else item.flags

    def _move_state(self, old: str, new: str) -> None:
        try:
            self.state.moved(old, new)
        except Fault as fault:
            log.warning("what was known of %s does not follow it to %s: %s", old, new, fault)

    def _remembered(self, found: Container[str]) -> dict[str, tuple[Root, os.stat_result]]:
        files: dict[str, tuple[Root, os.stat_result]] = {}
        try:
            remembered = self.state.remembered()
        except Fault:
            return files
        for path in remembered:
            if path not in found and not self.walker.inside(path):
                try:
                    files[path] = self._root(path), os.stat(path)
                except OSError:
                    continue
        return files

    def _inodes(self) -> dict[tuple[int, int], str]:
        return {item.stamp[:2]: path for path, item in self.items().items()}

    def _is_twin(self, other: str, file: str, stamp: Stamp, gone: list[str]) -> bool:
        """Whether `file` is but another name of the listed `other`; where that name went, what we know moves along."""
        status = None
        with suppress(OSError):
            status = os.stat(other)
        if status is None or (status.st_dev, status.st_ino) != stamp[:2]:
            was = self.items().get(other)
            with suppress(OSError):  # the number of a file that went is soon another file's
                found = peek(file)[1]
                if was is not None and isinstance(found, Peek) and found.session_id == was.raw_id:
                    self._move_state(other, file)
            if status is None:
                gone.append(other)
            return False
        with self._lock:
            self._skipped[file] = f"the same file as {other}"
        return True

    def _named(self, path: str, gone: list[str], apart: Container[str]) -> dict[str, tuple[Root, os.stat_result]]:
        """Files that a watcher's `path` stands for; what went with it is added to `gone`."""
        name = readable(path)
        if name != path or ("\ufffd" in path and not os.path.lexists(path)):  # so the system's watcher spells it
            # Neither a database nor an answer can hold a name that is not UTF-8; its folder tells of it.
            skipped = self.walker.below(path if os.path.isdir(path) else os.path.dirname(path)).skipped
            with self._lock:
                self._skipped |= skipped
            gone += [p for p in (name, *self._below(name)) if p not in skipped and not os.path.lexists(p)]
            return {}
        inside = path.rstrip("/") + "/"
        if os.path.isdir(path) and (self.walker.is_root(path) or not os.path.islink(path)):
            found = self.walker.below(path, apart)

            def looked_at(place: str) -> bool:
                folder = os.path.dirname(place)
                return place.startswith(inside) and (folder == path or folder not in apart)

            with self._lock:
                self._skipped |= found.skipped
                self.leftovers = [it for it in self.leftovers if not looked_at(it.path)] + found.leftovers
                self._folders = {it: at for it, at in self._folders.items() if it in apart or not it.startswith(inside)}
                self._folders |= found.folders
            # What the walk did not give may be outside the roots, or have come after it; what is there is not gone.
            mine = filter(looked_at, self._below(path))
            gone += [p for p in mine if p in found.skipped or not os.path.lexists(p)]
            return found.files
        if not path.endswith(SUFFIXES) or not os.path.lexists(path):
            gone += [path, *self._below(path)]
            with self._lock:
                self._folders = {it: at for it, at in self._folders.items() if not f"{it}/".startswith(inside)}
            return {}
        if os.path.islink(path) and self.walker.root_of(path) is not None:
            found = self.walker.below(os.path.dirname(path))
            with self._lock:
                self._skipped |= found.skipped
            return {path: found.files[path]} if path in found.files else {}
        try:
            return {path: (self._root(path), os.stat(path))}
        except OSError:
            return {}

    def _root(self, path: str) -> Root:
        return self.walker.root_of(path) or Root(os.path.dirname(path), None, "opened by path")

    def _below(self, folder: str) -> list[str]:
        start = folder.rstrip("/") + "/"
        with self._lock:
            return [path for path in (*self._table.items, *self._rejected) if path.startswith(start)]

    def _apply(self, put: dict[str, Seen], gone: Iterable[str]) -> Delta:
        """Change the table and what is skipped. The lock is held."""
        gone = list(gone)
        for path in (*gone, *put):
            self._skipped.pop(path, None)
            self._rejected.pop(path, None)
        sessions: list[tuple[str, Seen]] = []
        for path, seen in put.items():
            if seen.record.peek is None:
                self._skipped[path] = seen.record.reason or "not a session"
                self._rejected[path] = seen.stamp
                gone.append(path)
            else:
                sessions.append((path, seen))
        return self._table.apply(sessions, gone)

    def _cache(self, rows: Iterable[tuple[str, Stamp, Record]], gone: Iterable[str]) -> None:
        self.catalog.put(
            (path, stamp, record) for path, stamp, record in rows
            if record.peek is None or record.peek.health != "unreadable"
        )  # fmt: skip
        self.catalog.drop(gone)


def _read(path: str, root: Root, stamp: Stamp, before: Record | None) -> tuple[Stamp, Record]:
    """Peek into a file; the counts of its former state stay, where it only grew."""
    try:
        status, result = peek(path, root.format or "pi")
    except OSError as exc:
        unreadable = Peek(root.format or "pi", 0, id_from_name(path), "unreadable", "unreadable")
        return stamp, Record(unreadable, exc.strerror or str(exc))
    now = Stamp.of(status)
    if isinstance(result, str):
        return now, Record(None, result)
    record = Record(result)
    then = None if before is None else before.counted
    if before is not None and then is not None and now[:2] == then[:2] and now.size >= then.size:
        record.counts, record.counted = before.counts, then
    return now, record


def _moved(missing: dict[str, tuple[Stamp, Record]], put: dict[str, Seen]) -> dict[str, str]:
    """Files that have another name since they were last listed: new path -> old path."""
    names = {stamp[:2]: path for path, (stamp, record) in missing.items() if record.peek is not None}
    moved: dict[str, str] = {}
    for path, seen in put.items():
        old = names.get(seen.stamp[:2])
        if old is None or seen.record.peek is None:
            continue
        was = missing[old][1].peek
        # An inode number is given again; an id is not.
        if was is not None and was.session_id == seen.record.peek.session_id:
            moved[path] = old
    return moved


def _is_nested(path: str) -> bool:
    return os.path.lexists(os.path.dirname(path) + ".jsonl")
