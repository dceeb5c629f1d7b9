"""One session in a script, without a daemon: the names that pi's SessionManager has, in Python spelling."""

from __future__ import annotations

import os
from typing import Any, TypedDict

from . import tree
from .branching import plan_branch
from .child import child_header, content
from .context import Context, build_context
from .errors import EntryNotFound
from .log.formats.writing import summary_entry
from .log.index import NONE
from .log.journal import MemoryJournal, publish
from .naming import file_name, folder_name, new_session_id
from .paths import folders
from .session import GENERATOR, Session, dumps, new_id, now
from .types import Diagnostic, Entry


class SessionTreeNode(TypedDict):
    entry: Entry
    children: list[SessionTreeNode]
    label: str | None


class SessionManager:
    """A session and its leaf. Appends are durable when they return; moving the leaf writes nothing.

    Another program may append to the same file meanwhile: what it wrote is taken in before each write, and by
    `refresh()`.
    """

    def __init__(self, session: Session | None = None) -> None:
        self._session = session or Session.in_memory(_header(os.getcwd()))

    @classmethod
    def create(cls, cwd: str | None = None, folder: str | None = None, *, title: str | None = None) -> SessionManager:
        """A new native session file in our own store, or in `folder`."""
        cwd = os.path.abspath(cwd or os.getcwd())
        header = _header(cwd)
        if title:
            header["title"] = " ".join(title.split())
        where = folder or os.path.join(folders().sessions, folder_name("native", cwd, os.path.expanduser("~")))
        path = os.path.join(where, file_name(header["id"]))
        publish(path, dumps(header) + b"\n")
        return cls(Session.open(path))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SessionManager:
        """The session file at `path`, whichever agent wrote it. Raises SessionGone and other storage faults."""
        return cls(Session.open(os.path.abspath(path)))

    @classmethod
    def in_memory(cls, cwd: str | None = None) -> SessionManager:
        """A session that is never written to a file."""
        return cls(Session.in_memory(_header(os.path.abspath(cwd or os.getcwd()))))

    # What it is

    @property
    def session_id(self) -> str:
        return self._session.header.session_id

    @property
    def session_file(self) -> str | None:
        return self._session.path

    @property
    def cwd(self) -> str | None:
        return self._session.header.cwd

    @property
    def name(self) -> str | None:
        return self._session.title()

    @property
    def diagnostics(self) -> list[Diagnostic]:
        return self._session.diagnostics()

    def refresh(self) -> None:
        """Take in what other programs appended; the leaf moves to their last entry."""
        self._session.refresh()

    # The tree

    @property
    def leaf_id(self) -> str | None:
        return self._session.leaf_id

    def get_entry(self, entry_id: str) -> Entry | None:
        i = self._session.index.ordinal.get(entry_id)
        return None if i is None else self._session.entry(i)

    def get_entries(self) -> list[Entry]:
        """All entries in file order."""
        return [self._session.entry(i) for i in range(len(self._session.index))]

    def get_branch(self, from_id: str | None = None) -> list[Entry]:
        """Entries from the root down to `from_id` (default: the leaf). Raises EntryNotFound."""
        session = self._session
        end = session.leaf if from_id is None else session.find(from_id)
        return [session.entry(i) for i in tree.path(session.index, end)]

    def get_tree(self) -> list[SessionTreeNode]:
        """The roots with everything below them; children oldest first, entries without a known parent are roots."""
        session = self._session
        below = tree.child_map(session.index)
        nodes: dict[int, SessionTreeNode] = {
            i: {"entry": session.entry(i), "children": [], "label": self._label(i)} for i in range(len(session.index))
        }
        for i, children in below.items():
            if i != NONE:
                nodes[i]["children"] = [nodes[child] for child in children]
        return [nodes[i] for i in below.get(NONE, [])]

    def get_children(self, parent_id: str | None) -> list[Entry]:
        """Direct children, oldest first; the roots for None. Raises EntryNotFound."""
        session = self._session
        return [session.entry(i) for i in tree.children(session.index, session.find(parent_id))]

    def get_label(self, entry_id: str) -> str | None:
        i = self._session.index.ordinal.get(entry_id)
        return None if i is None else self._label(i)

    def _label(self, i: int) -> str | None:
        label = self._session.index.labels.get(i)
        return label.text if label is not None else None

    # Moving the leaf

    def branch(self, entry_id: str) -> None:
        """Work goes on under `entry_id`. Raises EntryNotFound; before the first entry leads `reset_leaf`."""
        if entry_id is None:  # pyright: ignore[reportUnnecessaryComparison]  # scripts are not always typed
            raise EntryNotFound("branch() needs an entry; reset_leaf() leads before the first one", entryId=None)
        self._session.leaf = self._session.find(entry_id)

    def reset_leaf(self) -> None:
        """The next entry will be a new root."""
        self._session.leaf = NONE

    def branch_with_summary(
        self, branch_from_id: str | None, summary: str, details: Any = None, from_extension: bool | None = None
    ) -> str:
        """Move the leaf and hang a summary of what is left under it; the id of the summary. Raises EntryNotFound."""
        session = self._session
        target = session.find(branch_from_id)
        entry = summary_entry(session.header.format, branch_from_id, summary, details, from_extension)
        return session.append([entry], target)[0]

    # Appending

    def append(self, *entries: dict[str, Any]) -> list[str]:
        """Append entries as a chain under the leaf; their ids. Raises InvalidEntry and write faults."""
        return self._session.append(entries)

    def append_message(self, message: dict[str, Any]) -> str:
        return self.append({"type": "message", "message": message})[0]

    def append_custom(self, custom_type: str, data: Any = None) -> str:
        return self.append({"type": "custom", "customType": custom_type, "data": data})[0]

    def append_session_info(self, name: str) -> str:
        return self.append({"type": "session_info", "name": " ".join(name.split())})[0]

    def append_compaction(self, summary: str, first_kept_entry_id: str, tokens_before: int, details: Any = None) -> str:
        entry = {
            "type": "compaction", "summary": summary, "firstKeptEntryId": first_kept_entry_id,
            "tokensBefore": tokens_before,
        }  # fmt: skip
        return self.append(entry if details is None else {**entry, "details": details})[0]

    def append_label_change(self, target_id: str, label: str | None = None) -> str:
        """Set the label of an entry, or clear it (None or blank). Raises EntryNotFound."""
        self._session.find(target_id)
        text = " ".join((label or "").split())
        entry: dict[str, Any] = {"type": "label", "targetId": target_id}
        return self.append({**entry, "label": text} if text else entry)[0]

    # Other sessions

    def create_branched_session(self, leaf_id: str) -> str | None:
        """Copy the path to `leaf_id` into a session of its own and go on there; its path, None in memory.

        Labels are written again at the end of the copy. Raises EntryNotFound.
        """
        session = self._session
        ordinals = tree.path(session.index, session.find(leaf_id))
        plan = plan_branch(session.index, ordinals, session.entry, session.raw, lambda: new_id(session.index.ordinal))
        title = session.title()
        if session.path is None:
            header = {**session.header.raw, "timestamp": now()}
            fresh = Session(MemoryJournal(b"".join(content(session, plan, header, title))))
            fresh.load()
            self._session = fresh
            return None
        child_id = new_session_id()
        path = os.path.join(os.path.dirname(session.path), file_name(child_id))
        publish(path, b"", content(session, plan, child_header(session, child_id, None, title, len(plan.kept)), title))
        self._session = Session.open(path)
        return path

    def build_session_context(self, entry_id: str | None = None) -> Context:
        """What a model is given at the leaf, or at another entry."""
        return build_context(self.get_branch(entry_id), omp=self._session.header.format == "omp")


def _header(cwd: str) -> dict[str, Any]:
    return {
        "type": "session", "version": 3, "id": new_session_id(), "timestamp": now(), "cwd": cwd, "generator": GENERATOR,
    }  # fmt: skip
