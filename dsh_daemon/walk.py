"""The files under the roots: each session file is found once, what is left out has a reason."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .log.formats.header import readable
from .roots import Root

SUFFIXES = (".jsonl", ".jsonl.zstd")
NOT_TEXT = "its name is not UTF-8"
_TICK = 50_000_000  # nanoseconds within which two changes of a folder may carry the same time


class Leftover(NamedTuple):
    """A backup or temporary file beside sessions. It is shown to a person, never restored."""

    path: str
    size: int  # bytes
    mtime: float
    of: str  # the session file that it belongs to, there or not


@dataclass(slots=True)
class Found:
    files: dict[str, tuple[Root, os.stat_result]] = field(default_factory=dict[str, tuple[Root, os.stat_result]])
    skipped: dict[str, str] = field(default_factory=dict[str, str])  # path -> reason
    leftovers: list[Leftover] = field(default_factory=list[Leftover])
    folders: dict[str, int] = field(default_factory=dict[str, int])  # when names last came or went, ns; 0: not certain


class Walker:
    """Walks folders for `roots`. Links are followed nowhere: what they lead to inside a root is found there."""

    def __init__(self, roots: Iterable[Root]) -> None:
        self.roots = list(roots)
        self._real = [os.path.realpath(root.path) for root in self.roots]

    def all(self) -> Found:
        found = Found()
        seen: set[tuple[int, int]] = set()
        for root in self.roots:
            self._walk(root.path, root, found, seen)
        _once(found)
        return found

    def below(self, folder: str, apart: Container[str] = ()) -> Found:
        """Only what is in `folder`, which is inside a root, but for the folders in it that are looked at `apart`."""
        found = Found()
        root = self.root_of(folder)
        if root is not None:
            self._walk(folder, root, found, set(), apart)
        return found

    def changed(self, folders: Mapping[str, int]) -> list[str]:
        """Those of `folders` (as in `Found`), and the roots that are not among them, that are not as they were."""
        asked = {root.path: -1 for root in self.roots} | dict(folders)
        return [folder for folder, then in asked.items() if _changed_at(folder) != then]

    def root_of(self, path: str) -> Root | None:
        """Return the innermost root that holds `path` as spelled."""
        holding = [root for root in self.roots if path == root.path or path.startswith(root.path.rstrip("/") + "/")]
        return max(holding, key=lambda root: len(root.path), default=None)

    def is_root(self, path: str) -> bool:
        return any(path == root.path for root in self.roots)

    def inside(self, path: str) -> bool:
        """Whether `path`, all links followed, is under a root."""
        real = os.path.realpath(path)
        return any(real == root or real.startswith(root.rstrip("/") + "/") for root in self._real)

    def _walk(self, top: str, root: Root, found: Found, seen: set[tuple[int, int]], apart: Container[str] = ()) -> None:
        stack = [top]
        while stack:
            folder = stack.pop()
            if folder in apart and folder != top:
                continue
            try:
                status = os.stat(folder)
                recent = abs(time.time_ns() - status.st_mtime_ns) < _TICK
                found.folders[folder] = 0 if recent else status.st_mtime_ns
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                with os.scandir(folder) as entries:
                    for entry in entries:
                        self._look(entry, root, found, stack)
            except FileNotFoundError:
                continue
            except OSError as exc:
                found.folders[folder] = 0  # what hinders us may end without a trace in the folder
                found.skipped[readable(folder)] = exc.strerror or str(exc)

    def _look(self, entry: os.DirEntry[str], root: Root, found: Found, stack: list[str]) -> None:
        path = entry.path
        if entry.is_dir(follow_symlinks=False):
            stack.append(path)
            return
        named = entry.name.endswith(SUFFIXES)
        if entry.is_symlink():
            self._link(entry, root, found, named=named)
            return
        if not named:
            if ".jsonl." in entry.name and entry.name.endswith((".bak", ".tmp")):
                status = entry.stat(follow_symlinks=False)
                name = entry.name[: entry.name.index(".jsonl.") + 6].lstrip(".")
                found.leftovers.append(
                    Leftover(path, status.st_size, status.st_mtime, os.path.join(os.path.dirname(path), name))
                )
            return
        if readable(path) != path:
            found.skipped[readable(path)] = NOT_TEXT
            return
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError as exc:
            found.skipped[path] = exc.strerror or str(exc)
            return
        if stat.S_ISREG(status.st_mode):
            found.files[path] = root, status
        else:
            found.skipped[path] = "not a regular file"

    def _link(self, entry: os.DirEntry[str], root: Root, found: Found, *, named: bool) -> None:
        path = readable(entry.path)
        try:
            status = os.stat(entry.path)
        except OSError:
            if named:
                found.skipped[path] = "a link that leads nowhere"
            return
        folder = stat.S_ISDIR(status.st_mode)
        if not named and not folder:
            return
        target = os.path.realpath(entry.path)
        if not self.inside(entry.path):
            found.skipped[path] = "a link that leads out of the roots"
        elif not folder and target.endswith(SUFFIXES):
            found.skipped[path] = f"a link to {readable(target)}"
        elif not folder and stat.S_ISREG(status.st_mode) and path == entry.path:
            found.files[path] = root, status


def _changed_at(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except (OSError, ValueError):
        return -1


def _once(found: Found) -> None:
    """Two names of one file (hard links, a root reached in two spellings) are one session."""
    first: dict[tuple[int, int], str] = {}
    for path in sorted(found.files):
        status = found.files[path][1]
        if status.st_nlink > 1 or (status.st_dev, status.st_ino) in first:
            other = first.setdefault((status.st_dev, status.st_ino), path)
            if other != path:
                found.skipped[path] = f"the same file as {other}"
                del found.files[path]
