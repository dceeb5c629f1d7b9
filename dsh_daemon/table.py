"""The listed sessions: their ids, who descends from whom, what a typed name finds. No file is touched here."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple, NotRequired, TypedDict

from .errors import AmbiguousSession, SessionNotFound
from .items import Item, Seen, parent_id

MAX_CANDIDATES = 20


class Delta(NamedTuple):
    """What changed in the list."""

    upserts: list[Item]
    removed: list[str]  # ids

    def __bool__(self) -> bool:
        return bool(self.upserts or self.removed)


class Member(TypedDict):
    sessionId: str
    parentSessionId: str | None
    forkPoint: NotRequired[str]


class Family(TypedDict):
    root: str
    ancestors: list[str]
    sessions: list[Member]
    complete: bool


class Table:
    """Items by path. An id is a file's own one, or `<id>@<hash of path>` for each of several files that carry it."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.handed: dict[str, str] = {}  # id that somebody was told -> path
        self.generation = 0
        self._same: dict[str, set[str]] = {}  # own id -> paths
        self._listed: dict[str, str] = {}  # id as listed -> path
        self._names: dict[str, list[str]] = {}  # file name -> paths
        self._left: dict[tuple[int, int, str], str] = {}  # device, inode, own id of what went -> where it was

    def apply(self, put: Iterable[tuple[str, Seen]], gone: Iterable[str]) -> Delta:
        self.generation += 1
        before: dict[str, dict[str, str]] = {}  # own id -> path -> id as listed
        changed: set[str] = set()
        moved: dict[str, str] = {}  # where a file was -> where it is
        family = False

        def touch(own: str) -> None:
            if own not in before:
                before[own] = {path: self.items[path].id for path in self._same.get(own, ())}

        for path in gone:
            if (item := self.items.get(path)) is not None:
                touch(item.raw_id)
                self._drop(item)
                family = True
        for path, seen in put:
            assert seen.record.peek is not None
            own = seen.record.peek.session_id
            touch(own)
            item = self.items.get(path)
            if item is not None and item.raw_id != own:
                touch(item.raw_id)
                self._drop(item)
                item = None
            if item is None:
                item = self.items[path] = Item(path, seen)
                if (was := self._left.pop(_identity(item), path)) != path:
                    moved[was] = path
                self._same.setdefault(own, set()).add(path)
                self._names.setdefault(os.path.basename(path), []).append(path)
                family = True
            else:
                family = family or item.peek.parent != seen.record.peek.parent
                item.update(seen)
            item.seen = self.generation
            changed.add(path)

        removed: set[str] = set()
        for ids in before.values():
            for listed in ids.values():
                if self._listed.pop(listed, None) is not None:
                    removed.add(listed)
        for own, ids in before.items():
            paths = self._same.get(own, set())
            for path in paths:
                item = self.items[path]
                item.id = own if len(paths) == 1 else f"{own}@{_hash(path)}"
                self._listed[item.id] = path
                if ids.get(path) != item.id:
                    changed.add(path)
        if moved:
            self.handed |= {id_: moved[was] for id_, was in self.handed.items() if was in moved}
        if family:
            changed |= self._relate()
        upserts = [self.items[path] for path in sorted(changed) if path in self.items]
        return Delta(upserts, sorted(removed - self._listed.keys()))

    def _drop(self, item: Item) -> None:
        del self.items[item.path]
        self._left[_identity(item)] = item.path
        for index, key in ((self._same, item.raw_id), (self._names, os.path.basename(item.path))):
            paths = index[key]
            paths.remove(item.path)
            if not paths:
                del index[key]

    # -- ids ----------------------------------------------------------------------------------------------------------

    def get(self, session_id: str) -> Item:
        """Find a session by an id that was listed. Raises SessionNotFound, AmbiguousSession."""
        item = self._held(session_id) or self.items.get(self._listed.get(session_id, ""))
        if item is not None:
            return item
        self.only(session_id)
        own, mark, digest = session_id.rpartition("@")
        for path in self._same.get(own, ()) if mark else ():
            if _hash(path) == digest:
                return self.items[path]
        raise SessionNotFound(f"there is no session {session_id}", sessionId=session_id)

    def only(self, own: str) -> None:
        """Raise AmbiguousSession where several files carry this id."""
        paths = self._same.get(own, ())
        if len(paths) > 1:
            raise self.ambiguous(own, [self.items[path] for path in paths])

    def knows(self, session_id: str) -> bool:
        return session_id in self._same or session_id in self._listed

    def hand_out(self, item: Item) -> str:
        """Return the id of an item; from now on it names this file, whatever else comes to carry it."""
        if self._held(item.id) is None:
            self.handed[item.id] = item.path
        return item.id

    def _held(self, session_id: str) -> Item | None:
        """The file that an id was handed out for, while it is there and still holds that session."""
        item = self.items.get(self.handed.get(session_id, ""))
        return item if item is not None and item.raw_id in {session_id, session_id.rpartition("@")[0]} else None

    def by_text(self, reference: str) -> Item:
        """Find the start of an id, a title, a part or words of one. Raises SessionNotFound, AmbiguousSession."""
        text = " ".join(reference.split()).casefold()
        for items in ([i for i in self.items.values() if not i.subagent], list(self.items.values())):
            by_id = [i for i in items if i.raw_id.casefold().startswith(text) or i.id.casefold().startswith(text)]
            if len(by_id) == 1:
                return by_id[0]
            exact = [i for i in items if i.title.casefold() == text]
            if len(exact) == 1:
                return exact[0]
            found = exact or by_id or [i for i in items if text in i.title.casefold()]
            found = found or [i for i in items if all(word in i.title.casefold() for word in text.split())]
            if len(found) == 1:
                return found[0]
            if found:
                raise self.ambiguous(reference, found)
        raise SessionNotFound(f"no session is called {reference!r}", ref=reference)

    def ambiguous(self, reference: str, items: list[Item]) -> AmbiguousSession:
        items = sorted(items, key=lambda item: (-item.recent, item.path))
        candidates = [{"sessionId": self.hand_out(i), "title": i.title, "path": i.path} for i in items[:MAX_CANDIDATES]]
        return AmbiguousSession(f"{reference!r} names {len(items)} sessions", candidates=candidates)

    # -- families -----------------------------------------------------------------------------------------------------

    def family(self, item: Item) -> Family:
        """Gather everything that descends from the same first session. Ends on cycles."""
        line, places = [item], {item.path: 0}
        while (above := line[-1].parent) is not None and above.path not in places:
            places[above.path] = len(line)
            line.append(above)
        top = line[-1]
        if above is not None:  # each of a circle descends from all others: the oldest counts as the first
            top = min(line[places[above.path] :], key=lambda i: (i.created or 0, i.path))
        ancestors = line[1 : places[top.path] + 1]
        children: dict[str, list[Item]] = {}
        for other in sorted(self.items.values(), key=lambda i: (i.created or 0, i.path)):
            if other.parent is not None:
                children.setdefault(other.parent.path, []).append(other)
        members: list[Member] = []
        complete, placed, stack = True, {top.path}, [top]
        while stack:
            one = stack.pop()
            member = Member(sessionId=self.hand_out(one), parentSessionId=one.parent_session_id)
            if one.counts is not None and one.counts.fork_point is not None:
                member["forkPoint"] = one.counts.fork_point
            members.append(member)
            complete = complete and (one.parent is not None or not one.peek.parent)
            below = [child for child in children.get(one.path, []) if child.path not in placed]
            placed.update(child.path for child in below)
            stack += reversed(below)
        return Family(
            root=self.hand_out(top),
            ancestors=[self.hand_out(a) for a in ancestors],
            sessions=members,
            complete=complete,
        )

    def _relate(self) -> set[str]:
        """Find every parent anew -> paths of the items that got another one."""
        changed: set[str] = set()
        for item in self.items.values():
            if item.peek.parent or item.parent is not None:
                parent = self._parent(item) if item.peek.parent else None
                if parent is not item.parent:
                    item.parent = parent
                    changed.add(item.path)
        return changed

    def _parent(self, item: Item) -> Item | None:
        named = item.peek.parent or ""
        paths: Iterable[str] = ()
        if "/" in named or "\\" in named:
            exact = self.items.get(named)
            if exact is not None:
                return exact if exact is not item else None
            # A store that was moved or copied keeps its file names.
            paths = self._names.get(named.replace("\\", "/").rpartition("/")[2], ())
        others = [path for path in paths or self._same.get(parent_id(named), ()) if path != item.path]
        near = [path for path in others if os.path.dirname(path) == os.path.dirname(item.path)] or others
        return self.items[near[0]] if len(near) == 1 else None


def _identity(item: Item) -> tuple[int, int, str]:
    return item.stamp.dev, item.stamp.ino, item.raw_id


def _hash(path: str) -> str:
    return sha256(path.encode()).hexdigest()[:8]
