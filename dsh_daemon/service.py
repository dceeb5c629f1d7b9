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
from contextlib import ExitStack, nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import (
    asking as operations,
    changing,
    driving,
    elsewhere,
    forks,
    launching,
    reading,
    search,
    summarizer,
    touched,
    tree,
)
from .background import Background
from .catalog import Catalog, Stamp
from .config import ConfigError, load
from .cwd import Places
from .doctor import examine
from .errors import (
    AlreadyExists,
    AmbiguousSession,
    Busy,
    Fault,
    InvalidReference,
    NoActiveModel,
    NotSupportedByFormat,
    SessionGone,
    SessionNotFound,
)
from .extract import SNAPSHOT_AFTER, count
from .guards import nobody_holds
from .holders import Watch
from .hooks import Hooks
from .indexing import Indexing
from .items import IN_MEMORY, SERVED
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
from .summarizer import Summarizer
from .types import Change, Live, MethodCause, SessionInfo, SessionState

if TYPE_CHECKING:
    from .config import Settings
    from .paths import Folders
    from .wire import types as t

IDLE_SESSION = 120.0  # seconds that a session without followers stays open
IN_USE = 10.0  # seconds for which whoever asked for a session may still be at it
OPEN_SESSIONS = 64  # sessions without followers that stay open at most
BYTES_OF_TEXT = 16  # of a message, for each code point of its rows: at most 6 are needed for one

LEFT_AT_ONCE = 16  # sessions that an agent which hung up is taken from at a time
THREADS = 32
LOOKS = 6  # how often a read looks again while another program rewrites the file
WRITES_END = 10.0  # seconds that writes under way get when the daemon stops

Handler = TypeVar("Handler", bound=Callable[..., Coroutine[Any, Any, Any]])
log = logging.getLogger(__name__)


def whole(handler: Handler) -> Handler:
    """A handler that runs to its end once it began: who cancels a write stops waiting for it, no more."""

    @wraps(handler)
    async def shielded(service: Service, client: Client, params: Any) -> Any:
        service.refuse_inside(client, params)
        return await asyncio.shield(service.finish(handler(service, client, params)))

    return shielded  # pyright: ignore[reportReturnType]  # the same parameters, by another name


def asking(handler: Handler) -> Handler:
    """A handler that may ask others before it writes, and can be cancelled until it does."""

    @wraps(handler)
    async def outside(service: Service, client: Client, params: Any) -> Any:
        service.refuse_inside(client, params)
        return await handler(service, client, params)

    return outside  # pyright: ignore[reportReturnType]


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
        self.indexing = Indexing(self)
        self.search = search.Search(self)
        self.helpers = helpers
        self.scanner = scan_by_two if helpers else scan
        self.hooks = Hooks(settings.limits.hook_seconds)
        self.model = self._model()
        self._settings_at = self._settings_time()
        self.store.facts = self.store.facts._replace(summarize=lambda: self.summarizes)

    # Life

    async def start(self) -> None:
        """Read the catalog and begin to watch; answers are given from the first moment on."""
        # Appends may wait for other programs' locks; those of one client must not take all threads.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "dshd"))
        await self.background.start()

    async def close(self) -> None:
        """Let agents go, stop following files, wait for writes under way, close what is open."""
        for live in list(self.live.values()):
            if live.agent is not None:
                self.finish(driving.left(live, live.agent.client))
        if self.writing:
            await asyncio.wait(self.writing, timeout=WRITES_END)
        await self.background.stop()
        await self.indexing.stop()
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
            "index": self.indexing.info(),
        }

    def _settings_time(self) -> int:
        try:
            return os.stat(self.folders.config_file).st_mtime_ns
        except OSError:
            return 0

    def take_settings(self) -> None:
        """Take over what was written into `[summarizer]` since. All else counts from the next start on."""
        if (at := self._settings_time()) == self._settings_at:
            return
        self._settings_at = at
        with suppress(ConfigError):  # the doctor tells
            found = load(self.folders).summarizer
            if found != self.settings.summarizer:
                self.settings = self.settings.model_copy(update={"summarizer": found})
                self.model = self._model()

    def _model(self) -> Summarizer | None:
        """The configured summarizer, where it can be used."""
        settings = self.settings.summarizer
        if settings.model is None:
            return None
        if (problem := summarizer.problem(settings)) is not None:
            log.warning("%s", problem)
            return None
        return Summarizer(settings)

    @property
    def summarizes(self) -> bool:
        """Whether there is an active model: a configured one, or a client that summarises."""
        return self.model is not None or bool(self.hooks.summarizers)

    def check_model(self) -> None:
        """Raise NoActiveModel where nobody can summarise."""
        self.take_settings()
        if self.summarizes:
            return
        settings = self.settings.summarizer
        problem = summarizer.problem(settings) if settings.model is not None else None
        raise NoActiveModel(
            problem
            or "there is no model to summarise with: none is configured ([summarizer] in the settings) "
            "and no connected client offers one"
        )

    def refuse_inside(self, client: Client, params: Any) -> None:
        """Refuse what a hook's owner would change while it is asked about the same session. Raises Busy."""
        session_id: str | None = getattr(params, "session_id", None)
        if session_id is not None:
            with suppress(SessionNotFound, AmbiguousSession):
                self.hooks.refuse_inside(client, self.store.get(session_id).path)

    def connected(self, client: Client) -> None:
        """A client is there; nothing is pushed to it before it asks."""
        if client.hooks or client.events or client.summarizer:
            self.hooks.add(client)

    def disconnected(self, client: Client) -> None:
        """Forget everything of a connection that ended."""
        self.hooks.drop(client)
        self.background.subscribers.pop(client, None)
        driven: list[LiveSession] = []
        for live in self.live.values():
            live.followers.pop(client, None)
            if live.agent is not None and live.agent.client is client:
                driven.append(live)
        if driven:
            self.finish(self._let_go(client, driven))

    async def _let_go(self, client: Client, driven: list[LiveSession]) -> None:
        """End what an agent that left was doing, in a few sessions at a time: others have the event loop in between."""
        for k in range(0, len(driven), LEFT_AT_ONCE):
            await asyncio.wait([self.finish(driving.left(live, client)) for live in driven[k : k + LEFT_AT_ONCE]])

    def wake(self, client: Client | None = None) -> None:
        """End what only waits: the claims of a client that leaves, or all of them for good when the daemon stops."""
        for live in self.live.values():
            if client is None or (live.agent is not None and live.agent.client is client):
                live.inbox.closed = live.inbox.closed or client is None
                live.inbox.wake()

    def finish(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a write to its end, whoever leaves; the daemon waits for it."""
        task = asyncio.create_task(work)
        self.writing.add(task)
        task.add_done_callback(self.writing.discard)
        return task

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
        with suppress(SessionNotFound):
            return self.store.get(session_id).path
        await self.background.up_to_date()
        try:
            return self.store.get(session_id).path
        except SessionNotFound:
            if (path := self.was_at.get(session_id) or self.store.handed_out(session_id)) is not None:
                text = f"the file of this session is gone: {path}"
                place = None if path.startswith(IN_MEMORY) else path
                raise SessionGone(text, sessionId=session_id, path=place) from None
            raise

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
        live = self._live(path, session, durable=durable)
        live.layouts |= layouts
        self.live[path] = live
        if session.scanned > SNAPSHOT_AFTER:
            self.background.keep_index(live)
        self.background.touched(live)
        self._close_idle()
        return live

    def _live(self, key: str, session: Session, *, durable: bool) -> LiveSession:
        return LiveSession(key, session, self.publish, self.gone, self.noticed, self.notification, durable=durable)

    def _load(self, path: str) -> tuple[Session, dict[Any, Any]]:
        """Open a file as `load` does; its first layout."""
        session = self.load(path)
        return session, reading.first_layout(session)

    def load(self, path: str) -> Session:
        """Open a file, by its index snapshot and what was added since, where there is one; its leaf as remembered."""
        session = Session.open(path, self.snapshot(path), scanner=self.scanner)
        self.recall(session, path)
        return session

    def recall(self, session: Session, path: str) -> None:
        """Let a session that was just opened be as it was left: what of it is in our own state, not in its log."""
        if session.header.format == "dsh":
            with suppress(Fault):  # our own state may be locked; the log can be read all the same
                session.keep_labels(self.state.labels(path))
            return
        memory = self.state.leaf(path)
        if memory is not None:
            session.restore(memory)

    def snapshot(self, path: str) -> bytes | None:
        """The stored index of a file that is the same or has only grown, as far as the system tells."""
        kept = self.catalog.snapshot(path)
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
            (live.used, key) for key, live in self.live.items() if not live.needed and live.session.path is not None
        ]
        idle.sort()
        present = time.monotonic()
        for n, (used, key) in enumerate(idle):
            if present - used < (IDLE_SESSION if len(idle) - n <= OPEN_SESSIONS else IN_USE):
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
            if live.operation is not None:
                live.operation.stop()  # nobody could call it off any more
            self.was_at[live.id] = path
            self.store.facts.drivers.pop(path, None)
            if session.path is not None:  # nothing is above one that is in memory
                await self.background.refresh([path, os.path.dirname(path)])
            moved = self._moved_to(live) if reason == "deleted" else None
            params: dict[str, Any] = {"sessionId": live.id, "reason": "moved" if moved else reason}
            if moved:
                params["path"] = moved
            live.tell("session/closed", params)
            live.followers.clear()
            live.agent = None
            live.inbox.wake()
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
        self.noticed(live)

    def noticed(self, live: LiveSession) -> None:
        """Let the lists show who drives a session, and what it is like now."""
        drivers = self.store.facts.drivers
        if live.agent is None:
            drivers.pop(live.key, None)
        else:
            drivers[live.key] = live.agent.live(running=live.running() is not None)
        self.background.touched(live)

    async def off_loop(self, function: Any, *args: Any) -> Any:
        return await asyncio.to_thread(function, *args)

    # Catalog

    async def session_list(self, client: Client, params: t.SessionListParams) -> t.ListResult:
        await self.background.up_to_date(client, params.work_done_token)
        return await self.off_loop(self.store.list, filters_of(params), params.limit, params.cursor)

    async def catalog_subscribe(self, client: Client, params: t.CatalogSubscribeParams) -> t.ListResult:
        await self.background.up_to_date(client, params.work_done_token)
        filters = filters_of(params)
        page = self.store.list(filters)
        self.background.subscribe(client, filters, [info["sessionId"] for info in page["items"]])
        return page if params.limit is None else self.store.list(filters, params.limit)

    async def catalog_unsubscribe(self, client: Client, params: t.CatalogUnsubscribeParams) -> t.Nothing:
        del params
        self.background.subscribers.pop(client, None)
        return {}

    async def session_resolve(self, client: Client, params: t.SessionResolveParams) -> t.ResolveResult:
        await self.background.up_to_date(client, params.work_done_token)
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
            parent = await self.path_of(params.parent_session_id)
            header["parentSession"] = params.parent_session_id if parent.startswith(IN_MEMORY) else parent
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
                await self.info(self.take_in(Session.in_memory(header)))
        if not new:
            return await self._created_before(session_id, header, in_file=params.persist)
        return await self.session_state(await self.opened(session_id))

    def take_in(self, session: Session) -> LiveSession:
        """Keep a new session that is in no file."""
        key = IN_MEMORY + session.wire_id
        live = self.live[key] = self._live(key, session, durable=False)
        return live

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
        await self.background.up_to_date()
        if not self.store.knows(session_id):
            return None
        return self.store.info(self.store.get(session_id))

    @whole
    async def session_rename(self, client: Client, params: t.SessionRenameParams) -> t.RenameResult:
        live = await self.opened(params.session_id)
        if elsewhere.keeps_nothing(live.session):
            cause = self.cause(client, "session/rename")
            named = None
            if params.title and live.agent is not None and live.agent.client is client:
                named = await driving.rename(live, client, params.title, cause)
            # A title of our own would hide the one that is in the log now.
            title = params.title if named is None else None
            result, delta = await elsewhere.rename(live, self.state, self.store, title, cause)
            if delta is not None:
                self.background.collect(delta)
            return result if named is None else {**result, "stored": "log"}
        result = await changing.rename(live, params.title, self.cause(client, "session/rename"))
        with suppress(Fault):  # it is renamed, whatever became of the file since then
            await self.info(live)  # whoever was answered finds it by its name
        return result

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
        if (done := self.trashed.get(params.session_id)) is not None and not self.store.knows(params.session_id):
            return {"trashPath": done or None}
        key = await self.path_of(params.session_id)
        live = self.live.get(key)
        if live is not None and live.agent is not None and live.agent.client is not client:
            raise driving.driven_by(live.agent)
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
        await self.background.up_to_date(client, params.work_done_token)
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
        self.take_settings()  # it is told whether there is a model
        if params.path is not None:
            live = await self.opened_path(None, await self.off_loop(self._path_to_open, params.path))
        else:
            live = await self.opened(params.session_id or "")
        if live.closed is not None:
            raise SessionGone("the file of this session is gone", path=live.session.path)
        session = live.session
        state = await self.session_state(live)
        result: t.OpenResult = {**state, "diagnostics": session.diagnostics()}
        if params.subscribe and client not in live.followers:
            live.followers[client] = None
            driving.brief(live, client)
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
        await self.background.up_to_date()
        family = self.store.family(self.store.get(params.session_id))
        relatives: list[Session] = []
        with ExitStack() as opened:
            opened.enter_context(live.kept_open())
            for member in family["sessions"]:
                if member["sessionId"] != live.id:
                    with suppress(Fault):  # one that cannot be read hides none of the others
                        relative = await self.opened(member["sessionId"])
                        opened.enter_context(relative.kept_open())
                        relatives.append(relative.session)
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
        live = await self.opened(params.session_id)
        return await reading.context(live, self.entry_or_leaf(live.session, params), params.format)

    @steady
    async def session_request(self, client: Client, params: t.SessionRequestParams) -> t.RequestResult:
        del client
        session = (await self.opened(params.session_id)).session
        return await reading.request(session, self.entry_or_leaf(session, params), params.turn, params.step)

    @steady
    async def session_turns(self, client: Client, params: t.SessionTurnsParams) -> t.TurnsResult:
        del client
        live = await self.opened(params.session_id)
        return await reading.turn_list(live, self.entry_or_leaf(live.session, params))

    @steady
    async def session_transcript(self, client: Client, params: t.SessionTranscriptParams) -> t.TranscriptResult:
        del client
        live = await self.opened(params.session_id)
        limit = self.settings.limits.max_message_bytes
        return await reading.document(live, self.entry_or_leaf(live.session, params), params.format, limit)

    @steady
    async def session_stats(self, client: Client, params: t.SessionStatsParams) -> t.StatsResult:
        del client
        session = (await self.opened(params.session_id)).session
        return await reading.sums(session)

    async def session_labels(self, client: Client, params: t.SessionLabelsParams) -> t.LabelsResult:
        del client
        return reading.labels((await self.opened(params.session_id)).session)

    @steady
    async def session_touched(self, client: Client, params: t.SessionTouchedParams) -> t.TouchedResult:
        del client
        if params.session_id is None:
            return await touched.everywhere(self, params)
        return await touched.in_session(self, await self.opened(params.session_id), params)

    # Search

    async def search_sessions(self, client: Client, params: t.SearchSessionsParams) -> t.SearchSessionsResult:
        return await self.search.sessions(client, params)

    @steady
    async def search_entries(self, client: Client, params: t.SearchEntriesParams) -> t.SearchEntriesResult:
        del client
        return await search.entries(await self.opened(params.session_id), self.search, params)

    @staticmethod
    def entry_or_leaf(session: Session, params: Any) -> int:
        return session.leaf if params.entry_id is None else session.find(params.entry_id)

    # Changing

    @whole
    async def session_append(self, client: Client, params: t.SessionAppendParams) -> t.AppendResult:
        live = await self.opened(params.session_id)
        cause = self.cause(client, "session/append")
        if live.session.header.format == "dsh":
            return await driving.append(live, client, params, cause)
        return await changing.append(live, client, params, cause)

    @whole
    async def session_move_leaf(self, client: Client, params: t.SessionMoveLeafParams) -> t.MoveLeafResult:
        live = await self.opened(params.session_id)
        if elsewhere.keeps_nothing(live.session):
            target = live.session.find(params.entry_id)
            if target != live.session.leaf or params.summary is not None:
                elsewhere.refuse_move(live.session, target)
        return await changing.move_leaf(live, self.state, params, self.cause(client, "session/moveLeaf"))

    @asking
    async def session_navigate(self, client: Client, params: t.SessionNavigateParams) -> t.NavigateResult:
        live = await self.opened(params.session_id)
        if elsewhere.keeps_nothing(live.session):
            plan = changing.plan_of(live.session, params)
            if plan.outcome != "unchanged" or params.label is not None:
                elsewhere.refuse_move(live.session, live.session.find(params.target_id))
        return await operations.navigate(self, live, client, params, self.cause(client, "session/navigate"))

    @whole
    async def session_label(self, client: Client, params: t.SessionLabelParams) -> t.LabelResult:
        live = await self.opened(params.session_id)
        if elsewhere.keeps_nothing(live.session):
            return await elsewhere.label(live, self.state, params, self.cause(client, "session/label"))

        def expect() -> None:
            if "expected_leaf_id" in params.model_fields_set:
                live.session.expect_leaf(params.expected_leaf_id)

        return await changing.label(live, params.entry_id, params.label, self.cause(client, "session/label"), expect)

    @asking
    async def session_branch(self, client: Client, params: t.SessionBranchParams) -> t.BranchResult:
        live = await self.opened(params.session_id)
        return await operations.branch(self, live, client, params, self.cause(client, "session/branch"))

    @asking
    async def session_compact(self, client: Client, params: t.SessionCompactParams) -> t.CompactResult:
        live = await self.opened(params.session_id)
        return await operations.compact(self, live, client, params, self.cause(client, "session/compact"))

    @whole
    async def session_fork(self, client: Client, params: t.SessionForkParams) -> t.ForkResult:
        del client
        return await forks.fork(self, await self.opened(params.session_id), params)

    @whole
    async def session_launch(self, client: Client, params: t.SessionLaunchParams) -> t.LaunchResult:
        return await launching.launch(self, params, self.cause(client, "session/launch"))

    # Driving

    @whole
    async def session_resume(self, client: Client, params: t.SessionResumeParams) -> t.ResumeResult:
        live = await self.opened(params.session_id)
        cause = self.cause(client, "session/resume")
        holder = await self.off_loop(self.dsh_at, live) if live.session.header.format == "dsh" else None
        repaired = await driving.resume(live, client, cause, takeover=params.takeover, holder=holder)
        return {**await self.session_state(live), "repaired": repaired}

    def dsh_at(self, live: LiveSession) -> Live | None:
        """A dsh process that may have a session in its memory: it would corrupt the log if both of us wrote."""
        item = self.store.at(live.key)
        return None if item is None else item.holder(self.store.facts._replace(watch=Watch()))  # as it is right now

    @whole
    async def session_release(self, client: Client, params: t.SessionReleaseParams) -> t.Nothing:
        if (live := await self.driven(params.session_id)) is not None:
            await driving.leave(live, client, self.cause(client, "session/release"))
        return {}

    async def session_abort(self, client: Client, params: t.SessionAbortParams) -> t.AbortResult:
        del client
        live = self.live.get(await self.path_of(params.session_id))
        if live is not None and live.operation is not None and live.operation.stop():
            return {"aborted": "summary"}
        return driving.abort(live)

    @whole
    async def turn_start(self, client: Client, params: t.TurnStartParams) -> t.TurnStartResult:
        live = await self.opened(params.session_id)
        return await driving.start_turn(live, client, params, self.cause(client, "turn/start"))

    @whole
    async def turn_end(self, client: Client, params: t.TurnEndParams) -> t.EndResult:
        live = await self.opened(params.session_id)
        return await driving.end_turn(live, client, params, self.cause(client, "turn/end"))

    @whole
    async def step_start(self, client: Client, params: t.StepStartParams) -> t.StepStartResult:
        live = await self.opened(params.session_id)
        return await driving.start_step(live, client, params, self.cause(client, "step/start"))

    @whole
    async def step_end(self, client: Client, params: t.StepEndParams) -> t.EndResult:
        live = await self.opened(params.session_id)
        return await driving.end_step(live, client, params, self.cause(client, "step/end"))

    async def agent_send(self, client: Client, params: t.AgentSendParams) -> t.AgentSendResult:
        return driving.send(await self.driven(params.session_id), client, params)

    async def agent_claim(self, client: Client, params: t.AgentClaimParams) -> t.AgentClaimResult:
        return await driving.claim(await self.driven(params.session_id), client, params)

    def agent_delta(self, client: Client, params: t.AgentDeltaParams) -> None:
        driving.pass_on(self.driven_now(params.session_id), client, "agent/delta", params)

    def agent_status(self, client: Client, params: t.AgentStatusParams) -> None:
        driving.pass_on(self.driven_now(params.session_id), client, "agent/status", params)

    async def driven(self, session_id: str) -> LiveSession | None:
        """The open session of an id, where an agent drives it. Raises what names of sessions raise."""
        live = self.live.get(await self.path_of(session_id))
        return live if live is not None and live.agent is not None else None

    def driven_now(self, session_id: str) -> LiveSession | None:
        """The same without waiting, of a session that is known."""
        found = (live for live in self.live.values() if live.agent is not None and live.id == session_id)
        return next(found, None)

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
            "lastEntryId": session.index.id_of(len(session.index) - 1),
            "openTurn": session.open_turn(),
            "nextTurn": session.next_turn(),
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
        """What lists show of a file that was just made; the counts of a big one come when it is scanned in its turn."""
        counts = None
        with suppress(OSError):
            if os.stat(path).st_size <= SNAPSHOT_AFTER:
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
