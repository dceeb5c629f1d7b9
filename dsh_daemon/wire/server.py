"""All clients and the one service: listeners, `initialize`, `daemon/*`, idle exit, drain."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from typing import Any, Protocol

import psutil

from dsh_daemon import PROTOCOL_VERSION, __version__
from dsh_daemon.config import Settings
from dsh_daemon.errors import Fault, Overloaded, Unauthorized, VersionMismatch
from dsh_daemon.paths import Folders, open_private

from . import types as t
from .codec import MAX_HEADER
from .connection import Connection, Transport
from .lifecycle import Bound, peer
from .methods import ASKS, FORMATS, METHODS, NOTIFICATIONS, Method, Note
from .plain_lsp import Editor, PlainLsp

log = logging.getLogger("dshd.server")

CHECK_S = 2.0  # how often the socket file, the slow clients and the clock are looked at
DRAIN_S = 10.0  # what a draining daemon grants to requests in flight
READS_S = 2.0  # of this to those that change nothing
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Served(Protocol):
    """What the server needs of the service, beside one handler per row of the method table."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    def connected(self, client: Any) -> None: ...
    def disconnected(self, client: Any) -> None: ...
    def wake(self, client: Any | None = None) -> None:
        """End the requests that only wait for something: of a client that leaves, or of all when the daemon stops."""
        ...

    def status_parts(self) -> dict[str, Any]:
        """Give openSessions, roots, watch, index, and subscriptions: {client id: number}."""
        ...

    @property
    def busy(self) -> bool: ...

    @property
    def summarizes(self) -> bool: ...


class Server:
    """Give it a service and listeners, then `run()`; it ends by `stop()`, `daemon/stop`, or when idle."""

    def __init__(self, service: Served, settings: Settings, where: Folders | None = None) -> None:
        self.service, self.where, self.limits = service, where, settings.limits
        self._plain = PlainLsp(service)
        self._idle_timeout = settings.idle_timeout
        self._started = datetime.now(UTC)
        self._clock = asyncio.get_running_loop().time
        self._active_at = self._clock()
        self._ids = count(1)
        self._connections: dict[str, Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[asyncio.Server] = []
        self._bound: Bound | None = None
        self._token = ""
        self._tcp: t.TcpInfo | None = None
        self._stopping = asyncio.Event()
        self._drain, self._force = True, False

    # --- listeners

    async def listen(self, bound: Bound) -> None:
        """Take clients on the bound unix socket."""
        self._bound = bound
        self._listeners.append(await asyncio.start_unix_server(self._accept_unix, sock=bound.sock, limit=MAX_HEADER))

    async def listen_tcp(self, address: str) -> t.TcpInfo:
        """Take clients on HOST:PORT (loopback; port 0 = any free one) that bring the token. Raises ValueError."""
        assert self.where is not None
        host, colon, port = address.rpartition(":")
        host = host.strip("[]")
        if not colon or host not in LOOPBACK or not port.isdigit():
            raise ValueError(f"{address}: TCP is HOST:PORT with a loopback host ({', '.join(sorted(LOOPBACK))})")
        listener = await asyncio.start_server(self._accept_tcp, host, int(port), limit=MAX_HEADER)
        self._listeners.append(listener)
        self._token = secrets.token_urlsafe(32)
        self.where.token.unlink(missing_ok=True)
        with os.fdopen(open_private(self.where.token, os.O_WRONLY | os.O_EXCL), "w") as file:
            file.write(self._token)
        bound_to = listener.sockets[0].getsockname()
        self._tcp = {"host": bound_to[0], "port": bound_to[1], "tokenFile": str(self.where.token)}
        return self._tcp

    async def serve_stdio(self) -> None:
        """Serve the one client on this process's standard input and output until it leaves."""
        loop = asyncio.get_running_loop()
        stdin, stdout = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
        os.dup2(2, 1)  # what anything prints must not get between the messages
        sys.stdout = sys.stderr
        reader = asyncio.StreamReader(limit=MAX_HEADER)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), stdout
        )
        self._attach(reader, asyncio.StreamWriter(transport, protocol, None, loop), "stdio", os.getppid())
        await asyncio.wait(self._tasks)

    def _accept_unix(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid, uid = peer(writer.get_extra_info("socket"))
        if uid is not None and uid != os.getuid():
            log.warning("refused a connection of uid %d", uid)
            writer.transport.abort()
            return
        self._attach(reader, writer, "unix", pid)

    def _accept_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._attach(reader, writer, "tcp", None)

    def _attach(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, transport: Transport, pid: int | None
    ) -> None:
        connection = Connection(self, f"c{next(self._ids)}", reader, writer, transport=transport, pid=pid)
        self._connections[connection.id] = connection
        # A plain callback and our own task: on 3.11 a cancelled coroutine callback logs a traceback each time.
        task = asyncio.create_task(connection.serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what a connection asks

    def handler(self, row: Method) -> Callable[..., Any] | None:
        ours = self if row.scope in {"connection", "daemon"} else self._plain
        return getattr(ours, row.attribute, None) or getattr(self.service, row.attribute, None)

    def take(self, note: Note, connection: Connection, params: Any) -> None:
        getattr(self.service, note.attribute)(connection, params)

    def closed_to(self, connection: Connection) -> Fault | None:
        if self._stopping.is_set():
            return Overloaded("the daemon is stopping", retryAfterMs=500)
        if not connection.initialized and len(self._connections) > self.limits.max_connections:
            return Overloaded(f"{self.limits.max_connections} clients are connected", retryAfterMs=1000)
        return None

    def leaving(self, connection: Connection) -> None:
        if connection.initialized:
            self.service.wake(connection)

    def left(self, connection: Connection) -> None:
        self._connections.pop(connection.id, None)
        self._active_at = self._clock()
        if connection.initialized:
            self.service.disconnected(connection)

    # --- methods

    def initialize(self, client: Connection, params: t.InitializeParams) -> t.InitializeResult:
        """Answer in line, so that the next request of the same buffer finds the client introduced."""
        options = params.initialization_options or t.InitializationOptions()
        if client.transport == "tcp" and not hmac.compare_digest((options.token or "").encode(), self._token.encode()):
            raise Unauthorized("wrong or missing token")
        client.authorized = True
        theirs = options.protocol_version
        if theirs != PROTOCOL_VERSION:
            older, action = ("client", "updateClient") if theirs < PROTOCOL_VERSION else ("daemon", "updateDaemon")
            raise VersionMismatch(
                f"the daemon speaks protocol {PROTOCOL_VERSION}, the client {theirs}: the {older} is older, update it"
                + (" and restart it (dshd stop)" if older == "daemon" else ""),
                daemon=PROTOCOL_VERSION, client=theirs, action=action,
            )  # fmt: skip
        if params.client_info and params.client_info.name:
            client.name = params.client_info.name
        client.pid = client.pid or params.process_id
        client.read_only, client.summarizer = options.read_only, options.summarizer
        client.hooks, client.events = tuple(options.hooks), tuple(options.events)
        client.editor = Editor.of(params.capabilities)
        client.initialized = True
        self.service.connected(client)
        served = [row.name for row in METHODS.values() if self.handler(row)]
        dsh: t.DshCapabilities = {
            "protocolVersion": PROTOCOL_VERSION,
            "methods": sorted([*served, *NOTIFICATIONS]),
            "formats": FORMATS,
            "limits": {
                "maxMessageBytes": self.limits.max_message_bytes,
                "maxHeaderBytes": MAX_HEADER,
                "maxBacklogBytes": self.limits.max_backlog_bytes,
                "maxRows": t.MAX_ROWS,
                "maxIds": t.MAX_IDS,
                "textLimit": t.TEXT_LIMIT,
            },
            "hooks": [name.partition("/")[2] for name in ASKS],
            "summarizer": self.service.summarizes,
            "daemon": {"pid": os.getpid(), "startedAt": self._started_at(), "build": __version__},
        }
        return {
            "serverInfo": {"name": "dsh-daemon", "version": __version__},
            "capabilities": {
                "positionEncoding": client.editor.units,
                "textDocumentSync": {"openClose": False, "change": 0},
                "workspaceSymbolProvider": True,
                "documentSymbolProvider": True,
                "hoverProvider": True,
                "executeCommandProvider": {"commands": list(t.COMMANDS)},
                "experimental": {"dsh": dsh},
            },
        }

    def shutdown(self, client: Connection, _params: t.Params) -> None:
        client.shut = True

    def daemon_ping(self, _client: Connection, _params: t.Params) -> t.PingResult:
        return {"pid": os.getpid(), "version": __version__, "protocolVersion": PROTOCOL_VERSION}

    def daemon_status(self, _client: Connection, _params: t.Params) -> t.StatusResult:
        parts = self.service.status_parts()
        subscriptions: dict[str, int] = parts.pop("subscriptions", {})
        connections: list[t.ConnectionInfo] = []
        for connection in self._connections.values():
            info: t.ConnectionInfo = {
                "id": connection.id, "name": connection.name, "subscriptions": subscriptions.get(connection.id, 0),
            }  # fmt: skip
            if connection.pid:
                info["pid"] = connection.pid
            connections.append(info)
        status: dict[str, Any] = {
            "state": "draining" if self._stopping.is_set() else "ready",
            "pid": os.getpid(),
            "version": __version__,
            "protocolVersion": PROTOCOL_VERSION,
            "startedAt": self._started_at(),
            "uptimeMs": int((datetime.now(UTC) - self._started).total_seconds() * 1000),
            "connections": connections,
            "memoryBytes": psutil.Process().memory_info().rss,
            "logFile": str(self.where.log) if self.where else None,
            "socketPath": str(self.where.socket) if self.where else None,
            **({"tcp": self._tcp} if self._tcp else {}),
            **parts,
        }
        return status  # pyright: ignore[reportReturnType]

    def daemon_stop(self, _client: Connection, params: t.DaemonStopParams) -> t.Nothing:
        self.stop(drain=params.drain, force=params.force)
        return {}

    # --- life

    def stop(self, *, drain: bool = True, force: bool = False) -> None:
        """End `run()`: after the requests in flight (drain), after the writes among them, or (force) at once."""
        if self._stopping.is_set():
            force = True  # asked twice
        self._drain, self._force = drain, force
        self._stopping.set()

    @property
    def forced(self) -> bool:
        return self._force

    async def run(self) -> None:
        """Serve until stopped or idle, then end: no new clients, requests in flight, service, connections."""
        warming = asyncio.create_task(_build_models())
        interval = min(CHECK_S, self._idle_timeout / 4 or CHECK_S, self.limits.stall_seconds / 4)
        try:
            while not self._stopping.is_set():
                try:
                    await asyncio.wait_for(self._stopping.wait(), interval)
                except TimeoutError:
                    await self._check()
        finally:
            warming.cancel()
            await self.close()

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._bound:
            self._bound.unlink()
        if self._tcp and self.where:
            self.where.token.unlink(missing_ok=True)
        await asyncio.sleep(0)  # the answer to daemon/stop
        self.service.wake()
        if not self._force:
            await self._drained()
        for connection in self._connections.values():
            if self._force:
                connection.cancel()
        await self.service.close()
        flushes = [asyncio.create_task(connection.outbox.flush()) for connection in self._connections.values()]
        if flushes:
            _, late = await asyncio.wait(flushes, timeout=0.05 if self._force else 1.0)
            for flush in late:
                flush.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.2 if self._force else DRAIN_S)

    async def _drained(self) -> None:
        start = self._clock()
        while any(connection.busy for connection in self._connections.values()):
            waited = self._clock() - start
            if waited > (READS_S if self._drain else 0):
                for connection in self._connections.values():
                    connection.cancel(reads_only=True)
            if waited > DRAIN_S:
                log.warning("requests are still in flight after %g s", DRAIN_S)
                return
            await asyncio.sleep(0.005)

    async def _check(self) -> None:
        now = self._clock()
        for connection in list(self._connections.values()):
            if connection.outbox.stalled(now, self.limits.stall_seconds):
                connection.abort(f"it has read nothing for {self.limits.stall_seconds:g} s")
        if self._tasks or self.service.busy:
            self._active_at = now
        elif self._idle_timeout and now - self._active_at >= self._idle_timeout:
            log.info("no clients for %g s: leaving", self._idle_timeout)
            self.stop()
        if self._bound and not self._bound.intact():
            await self._reappear(self._bound)

    async def _reappear(self, bound: Bound) -> None:
        old = self._listeners[0]
        try:
            again = bound.rebind()
        except OSError as exc:
            log.warning("the socket is gone and cannot be made again: %s", exc)
            if not self._tasks:
                self.stop()  # nobody here, and nobody can come
            return
        if not again:
            log.warning("another daemon has the socket: finishing")
            self.stop()
            return
        log.warning("the socket file was removed: listening again")
        self._listeners[0] = await asyncio.start_unix_server(self._accept_unix, sock=bound.sock, limit=MAX_HEADER)
        old.close()

    def _started_at(self) -> str:
        return self._started.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _build_models() -> None:
    """Build the params models one after the other, so that no client's first request waits for all that it needs."""
    for row in METHODS.values():
        row.params.model_rebuild()
        await asyncio.sleep(0.005)
