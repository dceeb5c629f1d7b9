"""An async client of the running daemon: `async with connect() as client: await client.request(...)`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import orjson

from . import PROTOCOL_VERSION, __version__

if TYPE_CHECKING:
    from .paths import Folders

Params = dict[str, Any]
_HEAD = 4096
_INITIALIZE_S = 10.0
_GOODBYE_S = 1.0
_LINK_ERRORS = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError)


class RpcError(Exception):
    """A refused request: the protocol's `kind` (or "invalidParams", "cancelled", …), `code`, `message` and `data`."""

    def __init__(self, code: int, message: str, data: Params | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data or {}
        self.kind: str = self.data.get("kind") or _KINDS.get(code, "error")


_KINDS = {
    -32700: "parseError",
    -32600: "invalidRequest",
    -32601: "methodNotFound",
    -32602: "invalidParams",
    -32603: "internalError",
    -32002: "notInitialized",
    -32800: "cancelled",
}


class Client:
    """One connection. After the daemon's end every call raises ConnectionError; it does not reconnect."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._methods: dict[int, str] = {}  # of those
        self._callbacks: dict[str, list[Callable[[Params], None]]] = {}
        self._served: dict[str, Callable[[Params], Awaitable[Any]]] = {}
        self._serving: dict[Any, asyncio.Task[None]] = {}  # requests of the daemon, by their ids
        self._streams: set[asyncio.Queue[tuple[str, Params] | None]] = set()
        self._end: ConnectionError | None = None
        self._task = asyncio.create_task(self._read())
        self.capabilities: Params = {}  # what the daemon announced: capabilities.experimental.dsh

    async def request(self, method: str, params: Params | None = None, /, **fields: Any) -> Any:
        """Give the result of `method`. Raises RpcError where refused; cancelling the call cancels the request."""
        if self._end:
            raise self._end
        msg_id = next(self._ids)
        future = self._waiting[msg_id] = asyncio.get_running_loop().create_future()
        self._methods[msg_id] = method
        self._send({"jsonrpc": "2.0", "id": msg_id, "method": method, "params": {**(params or {}), **fields}})
        try:
            await self._writer.drain()
            return await future
        except asyncio.CancelledError:
            if not self._end:
                self.notify("$/cancelRequest", {"id": msg_id})
            raise
        finally:
            self._waiting.pop(msg_id, None)
            self._methods.pop(msg_id, None)

    def call_off(self, method: str) -> None:
        """Ask the daemon to stop the requests of `method` in flight; their answers say whether that came in time."""
        for msg_id, name in self._methods.items():
            if name == method and not self._end:
                self.notify("$/cancelRequest", {"id": msg_id})

    def notify(self, method: str, params: Params | None = None, /, **fields: Any) -> None:
        """Send a notification; nothing is answered."""
        self._send({"jsonrpc": "2.0", "method": method, "params": {**(params or {}), **fields}})

    def on(self, method: str, callback: Callable[[Params], None]) -> Callable[[], None]:
        """Call `callback(params)` for each notification of `method`; returns what takes it off again."""
        self._callbacks.setdefault(method, []).append(callback)
        return lambda: self._callbacks[method].remove(callback)

    def serve(self, method: str, handler: Callable[[Params], Awaitable[Any]]) -> None:
        """Answer the daemon's requests of `method` (a hook that was named in `connect`) with what `handler` gives.

        It is cancelled when the request is; what it raises is answered as an error, which counts as no opinion.
        """
        self._served[method] = handler

    def notifications(self) -> AsyncIterator[tuple[str, Params]]:
        """Give each `(method, params)` that arrives from this call on; ends with the connection."""
        queue: asyncio.Queue[tuple[str, Params] | None] = asyncio.Queue()
        if self._end:
            queue.put_nowait(None)
        self._streams.add(queue)
        return self._drain(queue)

    async def _drain(self, queue: asyncio.Queue[tuple[str, Params] | None]) -> AsyncIterator[tuple[str, Params]]:
        try:
            while item := await queue.get():
                yield item
        finally:
            self._streams.discard(queue)

    @property
    def closed(self) -> bool:
        return self._end is not None

    async def close(self) -> None:
        """Leave; the daemon stays, and knows it when this returns: whoever asks next finds no agent here."""
        if not self._end:
            self.notify("exit")
            await asyncio.wait([self._task], timeout=_GOODBYE_S)
        self._writer.close()
        self._task.cancel()
        await asyncio.wait([self._task])
        self._finish(ConnectionError("this client was closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    def _send(self, message: Params) -> None:
        self._write(orjson.dumps(message))

    def _write(self, body: bytes) -> None:
        self._writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                self._receive(orjson.loads(await self._reader.readexactly(length)))
        except _LINK_ERRORS:
            self._finish(ConnectionError("the daemon closed the connection"))

    def _receive(self, message: Params) -> None:
        method, msg_id = message.get("method"), message.get("id")
        if method is None:
            future = self._waiting.get(msg_id) if isinstance(msg_id, int) else None
            if future is None or future.done():
                return
            if error := message.get("error"):
                future.set_exception(RpcError(error["code"], error["message"], error.get("data")))
            else:
                future.set_result(message.get("result"))
        elif msg_id is not None:
            task = asyncio.create_task(self._answer(msg_id, method, message.get("params") or {}))
            self._serving[msg_id] = task
            task.add_done_callback(lambda _: self._serving.pop(msg_id, None))
        elif method == "$/cancelRequest":
            called_off: Params = message.get("params") or {}
            task = self._serving.get(called_off.get("id"))
            if task is not None:
                task.cancel()
        else:
            params: Params = message.get("params") or {}
            for callback in list(self._callbacks.get(method, ())):
                callback(params)
            for queue in self._streams:
                queue.put_nowait((method, params))

    async def _answer(self, msg_id: Any, method: str, params: Params) -> None:
        handler = self._served.get(method)
        answer: Params = {"jsonrpc": "2.0", "id": msg_id}
        try:
            if handler is None:
                body = orjson.dumps(answer | _error(-32601, f"this client does not serve {method}"))
            else:
                body = orjson.dumps(answer | {"result": await handler(params)})
        except asyncio.CancelledError:
            body = orjson.dumps(answer | _error(-32800, "the request was cancelled"))
        except Exception as exc:  # noqa: BLE001  (whoever asked must not wait for an answer that never comes)
            text = f"{type(exc).__name__}: {exc}".encode(errors="replace").decode()
            body = orjson.dumps(answer | _error(-32603, text))
        if not self._end:
            self._write(body)

    def _finish(self, reason: ConnectionError) -> None:
        if self._end:
            return
        self._end = reason
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(reason)
        for queue in self._streams:
            queue.put_nowait(None)
        for task in self._serving.values():
            task.cancel()
        self._writer.close()


def _error(code: int, message: str) -> Params:
    return {"error": {"code": code, "message": message}}


class Connecting:
    """What `connect` returns: await it for a Client, or enter it with `async with`."""

    def __init__(self, socket: str | None, name: str, start: bool, options: Params) -> None:
        self._arguments = socket, name, start, options
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return _connect(*self._arguments).__await__()

    async def __aenter__(self) -> Client:
        self._client = await self
        return self._client

    async def __aexit__(self, *_raised: object) -> None:
        if self._client:
            await self._client.close()


def connect(socket: str | None = None, *, name: str = "python", start: bool = True, **options: Any) -> Connecting:
    """Connect to the daemon on `socket` (default: this user's), started first where none runs, if `start`.

    `options` go into `initializationOptions` (`readOnly=True`, `events=[…]`). Raises ConnectionError or another
    OSError where no daemon can be reached, RpcError where it refuses us.
    """
    return Connecting(socket, name, start, options)


async def _connect(socket: str | None, name: str, start: bool, options: Params) -> Client:
    from .paths import folders
    from .wire.lifecycle import peer

    where = folders(socket=socket)
    for last in (False, False, True):
        try:
            reader, writer = await asyncio.open_unix_connection(str(where.socket), limit=_HEAD)
        except (FileNotFoundError, ConnectionRefusedError) as exc:
            if not start or last:
                raise type(exc)(exc.errno, "no daemon runs here", str(where.socket)) from None
            await _launched("start_daemon", where)
            continue
        except OSError as exc:
            raise type(exc)(exc.errno, exc.strerror or str(exc), str(where.socket)) from None
        uid = peer(writer.get_extra_info("socket"))[1]
        if uid is not None and uid != os.getuid():
            writer.close()
            raise PermissionError(13, f"a process of uid {uid} listens there", str(where.socket))
        client = Client(reader, writer)
        try:
            async with asyncio.timeout(_INITIALIZE_S):
                client.capabilities = await _introduce(client, name, options)
        except TimeoutError:
            await client.close()
            raise TimeoutError(110, "the daemon accepts but does not answer", str(where.socket)) from None
        except ConnectionError:
            await client.close()
            if not start or last:
                raise
            continue  # it was leaving: the next look finds no daemon, or the next one
        except RpcError as exc:
            await client.close()
            outdated = exc.kind == "versionMismatch" and exc.data.get("action") == "updateDaemon"
            if start and not last and outdated and await _launched("replace_daemon", where):
                continue
            raise
        return client
    raise AssertionError("the last attempt returns or raises")


async def _launched(step: str, where: Folders) -> Any:
    from .wire import launch  # only where there is something to start

    return await asyncio.to_thread(getattr(launch, step), where)


async def _introduce(client: Client, name: str, options: Params) -> Params:
    result = await client.request(
        "initialize",
        processId=os.getpid(),
        clientInfo={"name": name, "version": __version__},
        capabilities={},
        initializationOptions={"protocolVersion": PROTOCOL_VERSION, **options},
    )
    client.notify("initialized")
    return result["capabilities"]["experimental"]["dsh"]
