"""The use cases: what each method of the protocol does. The place that locks, writes and publishes.

A handler gets the connection that asked (`Client`) and validated params, and answers a result or raises a Fault.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import changing, reading, tree
from .background import Background, count
from .branches import branch
from .catalog import Catalog, Stamp
from .context import build_context
from .cwd import Places
from .doctor import examine
from .errors import AlreadyExists, Busy, Fault, InvalidReference, NotSupportedByFormat, SessionGone, SessionNotFound
from .guards import nobody_holds
from .items import IN_MEMORY
from .listing import Filters
from .live import Client, LiveSession
from .log.by_two import scan_by_two
from .log.journal import FileJournal, publish
from .log.scan import scan
from .naming import file_name, folder_name, new_session_id
from .roots import discover
from .session import GENERATOR, Rewritten, Session, dumps, now
from .state import State
from .store import Store
from .types import Change, MethodCause, SessionInfo, SessionState

if TYPE_CHECKING:
    from .config import Settings
    from .paths import Folders
    from .wire import types as t

IDLE_SESSION = 120.0  # seconds that a session without followers stays open
SNAPSHOT_AFTER = 4 << 20  # bytes that opening had to scan, above which the index is kept for the next time
OPEN_SESSIONS = 64  # sessions without followers that stay open at most
BYTES_OF_TEXT = 16  # of a message, for each code point of its rows: at most 6 are needed for one
SERVED = ("native", "pi", "omp")

THREADS = 32
LOOKS = 6  # how often a read looks again while another program rewrites the file
WRITES_END = 10.0  # seconds that writes under way get when the daemon stops

Handler = TypeVar("Handler", bound=Callable[..., Coroutine[Any, Any, Any]])
log = logging.getLogger(__name__)


def whole(handler: Handler) -> Handler:
    """A handler that runs to its end once it began: who cancels a write stops waiting for it, no more."""

    @wraps(handler)
    async def shielded(service: Service, client: Client, params: Any) -> Any:
        task = asyncio.create_task(handler(service, client, params))
        service.writing.add(task)
        task.add_done_callback(service.writing.discard)
        return await asyncio.shield(task)

    return shielded  # pyright: ignore[reportReturnType]  # the same parameters, by another name


def steady(handler: Handler) -> Handler:
    """A read that looks again when an entry was not where it should be: another program is rewriting the file."""

    @wraps(handler)
    async def patient(service: Service, client: Client, params: Any) -> Any:
        for look in range(LOOKS):
            try:
                return await handler(service, client, params)
            except Rewritten:
                await asyncio.sleep(0.02 * 2**look)
        raise Busy("another program is rewriting this session", retryAfterMs=500)

    return patient  # pyright: ignore[reportReturnType]


class Service:
    """All sessions of one user, for any number of clients. Lives on one event loop."""

    def __init__(
        self,
        settings: Settings,
        folders: Folders,
        notification: Callable[[str, Any], Any] = lambda _method, params: params,
        *,
        helpers: bool = True,
    ) -> None:
        """`notification` makes of a method and its params what connections send without encoding it again for each.

        `helpers`: whether other processes may be started for what takes long.
        """
        self.notification = notification
        self.settings = settings
        self.folders = folders
        self.state = State(str(folders.state_db))
        self.catalog = Catalog(str(folders.catalog_db))
        native = str(folders.sessions)
        roots = discover(native, configured=settings.roots)
        self.store = Store(roots, self.catalog, self.state, places=Places(settings.cwd_aliases))
        self.live: dict[str, LiveSession] = {}  # by path; in-memory sessions by id
        self.was_at: dict[str, str] = {}  # id -> where the file of a session was that is gone now
        self.trashed: dict[str, str] = {}  # id -> where it went; a repeated delete gives the same answer
        self.writing: set[asyncio.Task[Any]] = set()
        self.making = asyncio.Lock()  # between asking whether an id is taken and taking it nobody else may
        self.opening: dict[str, asyncio.Task[LiveSession]] = {}
        self.background = Background(self)
        self.scanner = scan_by_two if helpers else scan

    # Life

    async def start(self) -> None:
        """Read the catalog and begin to watch; answers are given from the first moment on."""
        # Appends may wait for other programs' locks; those of one client must not take all threads.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "dshd"))
        await self.background.start()

    async def close(self) -> None:
        """Stop following files, wait for writes under way, close what is open."""
        if self.writing:
            await asyncio.wait(self.writing, timeout=WRITES_END)
        await self.background.stop()
        for live in list(self.live.values()):
            async with live.lock:
                with suppress(Fault):
                    await live.commits.settled()
            live.session.journal.close()
        self.live.clear()
        self.catalog.close()
        self.state.close()

    @property
    def busy(self) -> bool:
        """Whether a write is under way: the daemon does not leave then."""
        return bool(self.writing)

    def status_parts(self) -> dict[str, Any]:
        following = Counter(client.id for live in self.live.values() for client in live.followers)
        following.update(client.id for client in self.background.subscribers)
        return {
            "subscriptions": dict(following),
            "openSessions": len(self.live),
            "roots": self.store.roots_status(),
            "watch": self.background.watch_info(),
            "index": self.background.index_info(),
        }

    def connected(self, client: Client) -> None:
        """A client is there; nothing is pushed to it before it asks."""

    def disconnected(self, client: Client) -> None:
        """Forget everything of a connection that ended."""
        self.background.subscribers.pop(client, None)
        for live in self.live.values():
            live.followers.pop(client, None)

    # Open sessions

    async def opened(self, session_id: str) -> LiveSession:
        """The open session of an id, caught up with its file. Raises SessionNotFound, SessionGone, storage faults."""
        try:
            return await self.opened_path(session_id, await self.path_of(session_id))
        except SessionGone as fault:
            fault.data.setdefault("sessionId", session_id)
            raise

    async def path_of(self, session_id: str) -> str:
        """Key of a session: its path, where it is in a file. Raises SessionNotFound, SessionGone, AmbiguousSession."""
        try:
            return self.store.get(session_id).path
        except SessionNotFound:
            if self.background.walked.is_set():
                if (path := self.was_at.get(session_id) or self.store.handed_out(session_id)) is not None:
                    text = f"the file of this session is gone: {path}"
                    place = None if path.startswith(IN_MEMORY) else path
                    raise SessionGone(text, sessionId=session_id, path=place) from None
                raise
        await self.background.wait_for_walk()
        return self.store.get(session_id).path

    async def opened_path(self, session_id: str | None, path: str) -> LiveSession:
        live = self.live.get(path)
        if live is None:
            task = self.opening.get(path)
            if task is None:
                task = self.opening[path] = asyncio.create_task(self._open(session_id, path))
                task.add_done_callback(lambda _: self.opening.pop(path, None))
            live = await asyncio.shield(task)
        live.used = time.monotonic()
        if live.lock.locked() or live.much_to_read:
            async with live.lock:  # a scan in a thread extends the index, or will
                await live.catch_up()
        else:
            await live.catch_up()
        return live

    async def _open(self, session_id: str | None, path: str) -> LiveSession:
        item = self.store.at(path)
        if item is not None and item.peek.format not in SERVED:
            raise NotSupportedByFormat(f"sessions of {item.peek.format} are not served", format=item.peek.format)
        session, layouts = await asyncio.to_thread(self._load, path)
        if item is not None and session.header.state == "ok" and session.header.session_id != item.raw_id:
            # Another file took this place since it was last looked at; what is asked for is not here.
            session.journal.close()
            await self.background.refresh([path])
            raise SessionGone(f"the file of this session was replaced: {path}", path=path, reason="replaced")
        session.wire_id = session_id or (item.id if item is not None else session.header.session_id)
        durable = self.settings.durability == "fsync"
        live = LiveSession(path, session, self.publish, self.gone, durable=durable)
        live.layouts |= layouts
        self.live[path] = live
        if session.scanned > SNAPSHOT_AFTER:
            self.background.keep_index(live)
        self.background.touched(live)
        self._close_idle()
        return live

    def _load(self, path: str) -> tuple[Session, dict[Any, Any]]:
        """Open a file, by its index snapshot and what was added since, where there is one; its first layout."""
        session = Session.open(path, self._usable(path, self.catalog.snapshot(path)), scanner=self.scanner)
        memory = self.state.leaf(path)
        if memory is not None:
            index = session.index
            session.history = [place for place in memory.history if place is None or place in index.ordinal]
            same = memory.size == index.size and memory.last_entry == index.id_of(len(index) - 1)
            if same and (memory.leaf is None or memory.leaf in index.ordinal):
                session.leaf = session.find(memory.leaf)
        return session, reading.first_layout(session)

    @staticmethod
    def _usable(path: str, kept: tuple[Stamp, bytes] | None) -> bytes | None:
        """The snapshot of a file that is the same or has only grown, as far as the system tells."""
        if kept is None:
            return None
        try:
            then, now = kept[0], Stamp.of(os.stat(path))
        except OSError:
            return None
        same = (then.dev, then.ino) == (now.dev, now.ino)
        return kept[1] if same and (now == then or now.size > then.size) else None

    def _close_idle(self) -> None:
        idle = [
            (live.used, key) for key, live in self.live.items() if not live.followers and live.session.path is not None
        ]
        idle.sort()
        old = time.monotonic() - IDLE_SESSION
        for n, (used, key) in enumerate(idle):
            if used > old and len(idle) - n <= OPEN_SESSIONS:
                break
            live = self.live[key]
            if not live.lock.locked() and not live.commits.busy:
                del self.live[key]
                live.session.journal.close()

    async def gone(self, live: LiveSession, reason: str) -> Fault:
        """The file of an open session went away: its followers hear it once; the fault for whoever asked."""
        session = live.session
        path = live.key
        if self.live.pop(path, None) is live:
            self.was_at[live.id] = path
            await self.background.refresh([path, os.path.dirname(path)])
            moved = self._moved_to(live) if reason == "deleted" else None
            params: dict[str, Any] = {"sessionId": live.id, "reason": "moved" if moved else reason}
            if moved:
                params["path"] = moved
            for client in list(live.followers):
                client.push("session/closed", params)
            live.followers.clear()
            session.journal.close()
        return SessionGone(f"the file of this session was {reason}: {path}", path=path, reason=reason)

    def _moved_to(self, live: LiveSession) -> str | None:
        """Another path at which the list now has the file of this session."""
        journal = live.session.journal
        identity = journal.identity if isinstance(journal, FileJournal) else None
        for item in self.store.items().values():
            if (item.stamp.dev, item.stamp.ino) == identity:
                return item.path
        return None

    def publish(self, live: LiveSession, change: Change) -> None:
        """Tell the followers of a session what changed, then the lists that show it."""
        if live.followers:
            message = self.notification("session/changed", change)
            for client in list(live.followers):
                client.push("session/changed", message, live.id)
        self.background.touched(live)

    async def off_loop(self, function: Any, *args: Any) -> Any:
        return await asyncio.to_thread(function, *args)

    # Catalog

    async def session_list(self, client: Client, params: t.SessionListParams) -> t.ListResult:
        await self.background.wait_for_walk(client, params.work_done_token)
        return await self.off_loop(self.store.list, filters_of(params), params.limit, params.cursor)

    async def catalog_subscribe(self, client: Client, params: t.CatalogSubscribeParams) -> t.ListResult:
        await self.background.wait_for_walk(client, params.work_done_token)
        filters = filters_of(params)
        page = self.store.list(filters)
        self.background.subscribe(client, filters, [info["sessionId"] for info in page["items"]])
        return page if params.limit is None else self.store.list(filters, params.limit)

    async def catalog_unsubscribe(self, client: Client, params: t.CatalogUnsubscribeParams) -> t.Nothing:
        del params
        self.background.subscribers.pop(client, None)
        return {}

    async def session_resolve(self, client: Client, params: t.SessionResolveParams) -> t.ResolveResult:
        await self.background.wait_for_walk(client, params.work_done_token)
        item = await self.off_loop(self.store.resolve, params.ref, params.cwd)
        info = self.store.info(item)
        return {"sessionId": info["sessionId"], "path": info["path"]}

    @whole
    async def session_create(self, client: Client, params: t.SessionCreateParams) -> SessionState:
        del client
        session_id = params.session_id or new_session_id()
        header: dict[str, Any] = {
            "type": "session",
            "version": 3,
            "id": session_id,
            "timestamp": now(),
            "cwd": params.cwd,
        }
        header["generator"] = GENERATOR
        if params.parent_session_id is not None:
            header["parentSession"] = await self.path_of(params.parent_session_id)
        if params.title is not None and (title := " ".join(params.title.split())):
            header["title"] = title
        async with self.making:
            new = await self.known(session_id) is None
            if new and params.persist:
                folder = folder_name("native", params.cwd, str(Path.home()))
                path = os.path.join(str(self.folders.sessions), folder, file_name(session_id))
                await self.off_loop(publish, path, dumps(header) + b"\n")
                await self.background.refresh([path])
            elif new:
                key = IN_MEMORY + session_id
                session = Session.in_memory(header)
                live = self.live[key] = LiveSession(key, session, self.publish, self.gone, durable=False)
                await self.info(live)
        if not new:
            return await self._created_before(session_id, header, in_file=params.persist)
        return await self.session_state(await self.opened(session_id))

    async def _created_before(self, session_id: str, header: dict[str, Any], *, in_file: bool) -> SessionState:
        """State of a session that the same request made already. Raises AlreadyExists for any other one."""
        live = await self.opened(session_id)
        theirs = live.session.header.raw
        sent = header.keys() - {"timestamp"}
        if (live.session.path is not None) != in_file or any(theirs.get(name) != header[name] for name in sent):
            raise AlreadyExists(f"there is already a session {session_id}", id=session_id)
        return await self.session_state(live)

    async def known(self, session_id: str) -> SessionInfo | None:
        """A session that has this id already."""
        await self.background.wait_for_walk()
        if not self.store.knows(session_id):
            return None
        return self.store.info(self.store.get(session_id))

    @whole
    async def session_rename(self, client: Client, params: t.SessionRenameParams) -> t.RenameResult:
        live = await self.opened(params.session_id)
        return await changing.rename(live, params.title, self.cause(client, "session/rename"))

    @whole
    async def session_archive(self, client: Client, params: t.SessionArchiveParams) -> t.Nothing:
        del client
        path = await self.known_path(params.session_id)
        await self.off_loop(self.state.set_archived, path, params.on)
        self.background.collect(self.store.reflag(path))
        return {}

    @whole
    async def session_pin(self, client: Client, params: t.SessionPinParams) -> t.Nothing:
        del client
        path = await self.known_path(params.session_id)
        await self.off_loop(self.state.set_pinned, path, params.on)
        self.background.collect(self.store.reflag(path))
        return {}

    async def known_path(self, session_id: str) -> str:
        """Path of a session that is in a file now."""
        path = await self.path_of(session_id)
        if path in self.live and self.live[path].session.path is None:
            raise NotSupportedByFormat("a session in memory is in no list that could keep this", format="native")
        return path

    @whole
    async def session_delete(self, client: Client, params: t.SessionDeleteParams) -> t.DeleteResult:
        del client
        if (done := self.trashed.get(params.session_id)) is not None and not self.store.knows(params.session_id):
            return {"trashPath": done or None}
        key = await self.path_of(params.session_id)
        live = self.live.get(key)
        async with live.lock if live is not None else nullcontext():
            target = await self._trash(params.session_id, key)
            if live is not None:
                live.closed = "deleted"
                await self.gone(live, "deleted")
        await self.background.refresh([key])
        self.trashed[params.session_id] = target
        return {"trashPath": target or None}

    async def _trash(self, session_id: str, key: str) -> str:
        """Where the file of a session is now; "" for one that had none."""
        if key.startswith(IN_MEMORY):
            self.background.collect(self.store.drop_memory(key))
            return ""
        item = self.store.get(session_id)
        if item.peek.format == "omp":
            await self.off_loop(nobody_holds, key, item.peek.cwd, item.raw_id)
        target, delta = await self.off_loop(self.store.trash, item, str(self.folders.trash))
        self.background.collect(delta)
        self.was_at[session_id] = item.path
        return target

    async def session_family(self, client: Client, params: t.SessionFamilyParams) -> t.FamilyResult:
        await self.background.wait_for_walk(client, params.work_done_token)
        await self.path_of(params.session_id)
        return await self.off_loop(lambda: self.store.family(self.store.get(params.session_id)))

    async def session_draft(self, client: Client, params: t.SessionDraftParams) -> t.DraftResult:
        del client
        path = await self.path_of(params.session_id)
        if "text" in params.model_fields_set:
            await self.off_loop(self.state.set_draft, path, params.text)
            return {"text": params.text}
        return {"text": await self.off_loop(self.state.draft, path)}

    # Reading

    @steady
    async def session_open(self, client: Client, params: t.SessionOpenParams) -> t.OpenResult:
        if params.path is not None:
            live = await self.opened_path(None, await self.off_loop(self._path_to_open, params.path))
        else:
            live = await self.opened(params.session_id or "")
        if live.closed is not None:
            raise SessionGone("the file of this session is gone", path=live.session.path)
        session = live.session
        state = await self.session_state(live)
        result: t.OpenResult = {**state, "diagnostics": session.diagnostics()}
        if params.subscribe:
            live.followers[client] = None
        if params.since is not None:
            changes = session.since(params.since.epoch, params.since.revision)
            if changes is not None:
                result["changes"] = changes
        return result

    def _path_to_open(self, path: str) -> str:
        """The listed path of a session file anywhere. Raises InvalidReference for what is none, SessionNotFound."""
        try:
            return self.store.open_path(path).path
        except SessionNotFound as fault:
            if not os.path.lexists(os.path.expanduser(path)):
                raise
            raise InvalidReference(fault.message, path=path, reason=fault.message) from None

    async def session_close(self, client: Client, params: t.SessionCloseParams) -> t.Nothing:
        with suppress(SessionGone):
            live = self.live.get(await self.path_of(params.session_id))
            if live is not None:
                live.followers.pop(client, None)
        return {}

    @steady
    async def session_tree(self, client: Client, params: t.SessionTreeParams) -> t.TreeResult:
        del client
        live = await self.opened(params.session_id)
        text = self.settings.limits.max_message_bytes // BYTES_OF_TEXT
        if not params.family:
            return await reading.tree_window(live, params, text=text)
        await self.background.wait_for_walk()
        family = self.store.family(self.store.get(params.session_id))
        relatives: list[Session] = []
        for member in family["sessions"]:
            if member["sessionId"] != live.id:
                with suppress(Fault):  # one that cannot be read hides none of the others
                    relatives.append((await self.opened(member["sessionId"])).session)
        return await reading.tree_window(live, params, relatives, text)

    @steady
    async def session_leaves(self, client: Client, params: t.SessionLeavesParams) -> t.LeavesResult:
        del client
        return await reading.leaves((await self.opened(params.session_id)).session)

    @steady
    async def session_entries(self, client: Client, params: t.SessionEntriesParams) -> t.EntriesResult:
        del client
        session = (await self.opened(params.session_id)).session
        return await reading.entries(session, params)

    async def session_path(self, client: Client, params: t.SessionPathParams) -> t.IdsResult:
        del client
        session = (await self.opened(params.session_id)).session
        ids = session.index.ids
        return {"ids": [ids[i] for i in tree.path(session.index, self.entry_or_leaf(session, params))]}

    async def session_children(self, client: Client, params: t.SessionChildrenParams) -> t.IdsResult:
        del client
        session = (await self.opened(params.session_id)).session
        ids = session.index.ids
        return {"ids": [ids[i] for i in tree.children(session.index, session.find(params.entry_id))]}

    @steady
    async def session_context(self, client: Client, params: t.SessionContextParams) -> t.ContextResult:
        del client
        session = (await self.opened(params.session_id)).session
        path = tree.path(session.index, self.entry_or_leaf(session, params))
        needed = reading.for_context(session, path)

        def build() -> Any:
            return build_context(reading.context_path(session, path, needed), omp=session.header.format == "omp")

        return await reading.off_loop(reading.body_size(session.index, needed), build)

    async def session_labels(self, client: Client, params: t.SessionLabelsParams) -> t.LabelsResult:
        del client
        return reading.labels((await self.opened(params.session_id)).session)

    @staticmethod
    def entry_or_leaf(session: Session, params: Any) -> int:
        return session.leaf if params.entry_id is None else session.find(params.entry_id)

    # Changing

    @whole
    async def session_append(self, client: Client, params: t.SessionAppendParams) -> t.AppendResult:
        live = await self.opened(params.session_id)
        return await changing.append(live, params, self.cause(client, "session/append"))

    @whole
    async def session_move_leaf(self, client: Client, params: t.SessionMoveLeafParams) -> t.MoveLeafResult:
        live = await self.opened(params.session_id)
        return await changing.move_leaf(live, self.state, params, self.cause(client, "session/moveLeaf"))

    @whole
    async def session_navigate(self, client: Client, params: t.SessionNavigateParams) -> t.NavigateResult:
        live = await self.opened(params.session_id)
        return await changing.navigate(live, self.state, params, self.cause(client, "session/navigate"))

    @whole
    async def session_label(self, client: Client, params: t.SessionLabelParams) -> t.LabelResult:
        live = await self.opened(params.session_id)

        def expect() -> None:
            if "expected_leaf_id" in params.model_fields_set:
                live.session.expect_leaf(params.expected_leaf_id)

        return await changing.label(live, params.entry_id, params.label, self.cause(client, "session/label"), expect)

    @whole
    async def session_branch(self, client: Client, params: t.SessionBranchParams) -> t.BranchResult:
        live = await self.opened(params.session_id)
        return await branch(self, live, params, self.cause(client, "session/branch"))

    @staticmethod
    def cause(client: Client, method: str) -> MethodCause:
        return {"method": method, "client": client.name}

    # States

    async def session_state(self, live: LiveSession) -> SessionState:
        """State as of the moment in which this returns: nothing is awaited after it was looked up."""
        info = await self.info(live)
        session = live.session
        thinking, mode = reading.thinking_and_mode(session)
        return {
            **info,
            "sessionId": live.id,
            "epoch": session.epoch,
            "revision": session.revision,
            "leafId": session.leaf_id,
            "openTurn": None,
            "nextTurn": 1,
            "thinkingLevel": thinking,
            "mode": mode,
        }

    async def info(self, live: LiveSession) -> SessionInfo:
        """What lists show of an open session, brought up to date first."""
        self.background.collect(await self.off_loop(self.background.note, {live.key}))
        item = self.store.at(live.key)
        if item is None:
            raise SessionGone(f"the file of this session is gone: {live.key}", path=live.key)
        return self.store.info(item)

    async def file_info(self, path: str) -> SessionInfo:
        """What lists show of a file that was just made."""
        counts = await self.off_loop(count, path)
        await self.background.refresh([path])
        item = self.store.at(path)
        if item is not None and counts is not None:
            item = await self.off_loop(self.store.put_scanned, path, item.stamp, counts)
        if item is None:
            raise SessionGone(f"the file of this session is gone: {path}", path=path)
        return self.store.info(item)

    async def daemon_doctor(self, client: Client, params: t.DaemonDoctorParams) -> t.DoctorResult:
        return await examine(self, client, params)


def filters_of(params: t.Filters) -> Filters:
    return Filters(
        cwd=params.cwd,
        scope=params.scope,
        query=params.query,
        formats=None if params.formats is None else tuple(params.formats),
        tail=None if params.tail is None else tuple(params.tail),
        named=params.named,
        archived=params.archived,
        subagents=params.subagents,
        sort=params.sort,
        order=params.order,
        group=params.group,
    )
