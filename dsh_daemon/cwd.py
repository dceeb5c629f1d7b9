"""When two working directories are the same project. Recorded spellings count, folder names are never decoded."""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Mapping
from typing import Literal

Scope = Literal["exact", "subtree", "repo", "all"]

_WINDOWS = re.compile(r"^(?:[A-Za-z]:(?:[\\/]|$)|\\\\|//[^/])")
_KEEP = 10.0  # seconds for which what the file system said is believed


def is_windows(path: str) -> bool:
    """Whether a path is spelled as on Windows: a drive or a share."""
    return _WINDOWS.match(path) is not None


def normal(path: str) -> str:
    """One spelling for a path, by its text alone: `/` between parts, none at the end; Windows paths without case."""
    if is_windows(path):
        text = path.replace("\\", "/").casefold()
        head = "//" if text.startswith("//") else ""
        parts = [part for part in text.split("/") if part and part != "."]
        return head + "/".join(parts)
    if path.startswith("/"):
        return posixpath.normpath("/" + path.lstrip("/"))
    return path.rstrip("/") or path


def within(path: str, folder: str) -> bool:
    """Whether normalised `path` is `folder` or below it."""
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


class Places:
    """Compare working directories by text, by `aliases` (spelling -> spelling, subfolders too) and by real path."""

    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        pairs = ((normal(old), normal(new)) for old, new in (aliases or {}).items())
        self._aliases = sorted(pairs, key=lambda pair: -len(pair[0]))
        self._keys: dict[str, str] = {}
        self._repos: dict[str, str | None] = {}
        self._exists: dict[str, bool] = {}
        self._since = 0.0

    def key(self, cwd: str) -> str:
        """Text that is equal for two spellings of one directory."""
        self._refresh()
        key = self._keys.get(cwd)
        if key is None:
            key = self._keys[cwd] = self._key(cwd)
        return key

    def spelled(self, cwd: str) -> str:
        """The spelling that counts here, where an alias says so; links are not followed."""
        key = normal(cwd)
        spelled = self._aliased(key)
        return cwd if spelled == key else spelled

    def exists(self, cwd: str | None) -> bool:
        if not cwd:
            return False
        self._refresh()
        found = self._exists.get(cwd)
        if found is None:
            found = self._exists[cwd] = "\0" not in cwd and os.path.isdir(cwd)
        return found

    def repository(self, cwd: str) -> str | None:
        """Key of the nearest folder at or above `cwd` that holds `.git`; None outside of repositories."""
        key = self.key(cwd)
        if key not in self._repos:
            self._repos[key] = _repository(key)
        return self._repos[key]

    def matches(self, cwd: str | None, wanted: str, scope: Scope) -> bool:
        """Whether a session recorded in `cwd` belongs to `wanted`. "repo" outside of a repository means "exact"."""
        if scope == "all":
            return True
        if not cwd:
            return False
        key, target = self.key(cwd), self.key(wanted)
        if scope == "subtree":
            return within(key, target)
        if key == target:
            return True
        return (
            scope == "repo"
            and (repository := self.repository(wanted)) is not None
            and repository == self.repository(cwd)
        )

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._since > _KEEP:
            self._since = now
            for cache in (self._keys, self._repos, self._exists):
                cache.clear()

    def _aliased(self, key: str) -> str:
        found = next(((old, new) for old, new in self._aliases if within(key, old)), None)
        return key if found is None else found[1] + key[len(found[0]) :]

    def _key(self, cwd: str) -> str:
        key = self._aliased(normal(cwd))
        if key.startswith("/") and not is_windows(key) and "\0" not in key:
            key = os.path.realpath(key)
        return key


def _repository(folder: str) -> str | None:
    if not folder.startswith("/") or "\0" in folder:
        return None
    while not os.path.lexists(folder + "/.git"):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return folder
