"""One client: bytes <-> messages. pygls keeps the books (in flight, cancel, requests to the client)."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
import traceback
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from inspect import iscoroutine
from typing import Any, Literal, Protocol, cast

from pydantic import ValidationError
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInvalidParams,
    JsonRpcInvalidRequest,
    JsonRpcMethodNotFound,
    JsonRpcParseError,
    JsonRpcServerNotInitialized,
)
from pygls.protocol.json_rpc import JsonRPCProtocol

from dsh_daemon.config import Limits
from dsh_daemon.errors import Fault, Overloaded, ReadOnly, Unauthorized

from .codec import MAX_HEADER, Malformed, Notification, decode, encode, header_field
from .methods import ADMIN, METHODS, NOTIFICATIONS, Method, Note
from .outbox import OWED, Outbox
from .plain_lsp import Editor

log = logging.getLogger("dshd.wire")

Transport = Literal["unix", "tcp", "stdio"]
Message = dict[str, Any]

LINGER_S = 1.0  # how long the rest of a refused stream is read away, so that the error arrives
LEAVING_S = 0.5  # what a client that has stopped sending still waits for
BURST = 16  # messages of one client that are taken before others have their turn
MAX_NOTE = 1 << 20  # bytes of a notification that is passed on to others
READS_AT_ONCE = 8  # of one client; what they answer is held until it is read


class Host(Protocol):
    """What a connection needs of the server."""

    limits: Limits

    def handler(self, row: Method) -> Callable[..., Any] | None: ...
    def take(self, note: Note, connection: Connection, params: Any) -> None: ...
    def closed_to(self, connection: Connection) -> Fault | None: ...
    def leaving(self, connection: Connection) -> None: ...
    def left(self, connection: Connection) -> None: ...


class Connection(JsonRPCProtocol):
    """Satisfies the service's `Client`: id, name, pid, read_only, summarizer, push()."""

    def __init__(
        self,
        host: Host,
        id_: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        transport: Transport,
        pid: int | None = None,
    ) -> None:
        super().__init__(server=self, converter=None)  # type: ignore[arg-type]
        self.host, self.id, self.name, self.pid, self.transport = host, id_, id_, pid, transport
        self.read_only = self.summarizer = False
        self.hooks: tuple[str, ...] = ()
        self.events: tuple[str, ...] = ()
        self.editor = Editor()
        self.initialized = self.authorized = self.shut = False
        self.leaving = self.gone = False
        self.outbox = Outbox(writer, host.limits.max_backlog_bytes, self.abort)
        self._reader, self._stream = reader, writer
        self._burst = 0
        self._ending = False
        self._asked: set[Any] = set()  # ids of our own requests
        self._reading: set[int | str] = set()  # requests that wait for their turn
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self._writing: set[int | str] = set()  # requests that change something: they end, whoever leaves

    # --- what the service uses

    def push(self, method: str, params: Message | Notification, key: str | None = None) -> None:
        """Send a notification; those with one `key` may be coalesced for a client that reads slowly."""
        self.outbox.tell(params if isinstance(params, Notification) else Notification(method, params), key)

    async def ask(self, method: str, params: Message) -> Any:
        """Ask the client. Raises ConnectionError where it leaves or cannot answer.

        Cancelling the call cancels the request there.
        """
        if self.leaving:
            raise ConnectionError(f"{self.name} is leaving")
        msg_id = str(uuid.uuid4())
        self._asked.add(msg_id)
        try:
            return await self.send_request_async(method, params, msg_id=msg_id)
        except JsonRpcException as exc:
            raise ConnectionError(f"{self.name} answered {method} with error {exc.code}") from None
        except asyncio.CancelledError:
            self.notify("$/cancelRequest", {"id": msg_id})
            raise
        finally:
            self._asked.discard(msg_id)
            self._request_futures.pop(msg_id, None)
            self._result_types.pop(msg_id, None)

    def show(self, uri: str) -> None:
        """Ask the editor to open a document; whether it does is its own affair, so nobody waits for the answer."""
        params = {"uri": uri, "takeFocus": True}
        request = {"jsonrpc": "2.0", "id": str(uuid.uuid4()), "method": "window/showDocument", "params": params}
        self.outbox.answer(encode(request))

    @property
    def busy(self) -> bool:
        """A request of this client is in flight."""
        return len(self._request_futures) > len(self._asked)

    def cancel(self, *, reads_only: bool = False) -> None:
        """Cancel the requests in flight; with `reads_only` those that change something go on."""
        for msg_id, future in list(self._request_futures.items()):
            if msg_id not in self._asked and not (reads_only and msg_id in self._writing):
                future.cancel()

    # --- the stream

    async def serve(self) -> None:
        """Read and start requests in order until the client leaves; what changes something is let finish."""
        try:
            while not self._ending:
                body = await self._body()
                message = self._parse(body)
                if message is None:
                    continue
                if "id" in message and "method" in message:
                    await self._room()
                self._receive(message, len(body))
                self._burst = (self._burst + 1) % BURST
                if not self._burst:
                    await asyncio.sleep(0)
            await self._linger()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Malformed as exc:
            self._answer(None, error=JsonRpcInvalidRequest(str(exc)))
            await self._linger()
        finally:
            await self._leave()

    async def _body(self) -> bytes:
        size, length = 0, -1
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                raise Malformed(f"a header of more than {MAX_HEADER} bytes") from None
            size += len(line)
            if size > MAX_HEADER:
                raise Malformed(f"a header of more than {MAX_HEADER} bytes")
            line = line.rstrip(b"\r\n")
            if not line:
                break
            value = header_field(line)
            if value is not None and length >= 0:
                raise Malformed("Content-Length stands twice")
            length = length if value is None else value
        if length < 0:
            raise Malformed("the header has no Content-Length")
        if length > (limit := self.host.limits.max_message_bytes):
            raise Malformed(f"a message of {length} bytes is over the limit of {limit}")
        return await self._reader.readexactly(length)

    async def _room(self) -> None:
        # A client that does not read its answers is not read from; one message ahead, so that a cancel gets through.
        box = self.outbox
        while box.owed > OWED or (box.congested() and len(self._request_futures) > 64):
            box.moved.clear()
            await box.moved.wait()

    async def _linger(self) -> None:
        # Closing with unread input would take the error with it.
        await self.outbox.flush()
        self.outbox.close()  # it may still be followed by pushes: after the end of the stream there is no writing
        if self._stream.can_write_eof():
            self._stream.write_eof()
        try:
            async with asyncio.timeout(LINGER_S):
                while await self._reader.read(1 << 16):
                    pass
        except (TimeoutError, ConnectionError):
            pass

    async def _leave(self) -> None:
        self.leaving = True
        self.host.leaving(self)
        tasks = {i: f for i, f in self._request_futures.items() if isinstance(f, asyncio.Task)}
        if tasks and not self._stream.is_closing():
            await asyncio.wait(tasks.values(), timeout=LEAVING_S)
        for msg_id, future in list(self._request_futures.items()):
            if msg_id in self._asked and not future.done():
                future.set_exception(ConnectionError("the client left"))
        self.cancel(reads_only=True)
        if not self._stream.is_closing():
            try:
                async with asyncio.timeout(LEAVING_S):
                    await self.outbox.flush()
            except TimeoutError:
                pass
        self.outbox.close()
        self._stream.close()
        self.gone = True
        self.host.left(self)
        if writing := [tasks[msg_id] for msg_id in self._writing if msg_id in tasks]:
            await asyncio.wait(writing)

    def abort(self, reason: str) -> None:
        """Drop the connection at once."""
        log.warning("client %s (%s) is dropped: %s", self.id, self.transport, reason)
        self.outbox.close()
        self._stream.transport.abort()

    # --- messages

    def _parse(self, body: bytes) -> Message | None:
        try:
            message = decode(body)
        except ValueError as exc:
            self._answer(None, error=JsonRpcParseError(f"not JSON: {exc}"))
            return None
        if isinstance(message, dict):
            return cast("Message", message)
        what = "batches are not supported" if isinstance(message, list) else "a message is an object"
        self._answer(None, error=JsonRpcInvalidRequest(what))
        return None

    def _receive(self, message: Message, size: int) -> None:
        msg_id, method = message.get("id"), message.get("method")
        known = isinstance(msg_id, str | int) and not isinstance(msg_id, bool)
        if method is None and known and ("result" in message or "error" in message):
            self._handle_response(msg_id, message.get("result"), message.get("error"))
        elif not isinstance(method, str) or message.get("jsonrpc") != "2.0":
            what = 'a message needs "jsonrpc": "2.0" and a method'
            self._answer(msg_id if known else None, error=JsonRpcInvalidRequest(what))
        elif known:
            self._request(msg_id, method, message.get("params"))
        elif "id" in message:
            self._answer(None, error=JsonRpcInvalidRequest("an id is a string or an integer"))
        elif method == "exit":
            self._ending = self.leaving = True
        elif method == "$/cancelRequest" and isinstance(params := message.get("params"), dict):
            self._handle_cancel_notification(params.get("id"))  # pyright: ignore[reportUnknownMemberType]
        elif (note := NOTIFICATIONS.get(method)) is not None and note.params is not None:
            self._note(note, message.get("params"), size)
        elif method in METHODS:
            log.info("client %s sent %s without an id: ignored", self.id, method)

    def _note(self, note: Note, raw: Any, size: int) -> None:
        """Hand a notification to the service; nothing is answered, so what is wrong with it goes to the log."""
        if not self.initialized or self.shut:
            return
        if size > MAX_NOTE:
            log.info("client %s sent a %s of %d bytes, which was ignored", self.id, note.name, size)
            return
        try:
            params = note.params.model_validate({} if raw is None or raw == [] else raw) if note.params else None
            self.host.take(note, self, params)
        except (ValidationError, Fault, RecursionError) as exc:
            log.info("client %s sent a %s that was ignored: %s", self.id, note.name, type(exc).__name__)

    def _request(self, msg_id: Any, method: str, raw: Any) -> None:
        try:
            if msg_id in self._request_futures:
                raise JsonRpcInvalidRequest(f"a request with the id {msg_id!r} is in flight")
            row = self._admit(method)
            params = row.params.model_validate({} if raw is None or raw == [] else raw)
            if row.changes(params):
                if self.read_only:
                    raise ReadOnly("this client connected as readOnly", reason="client")
                if not row.asks:
                    self._writing.add(msg_id)
            elif row.scope in {"catalog", "session"} and not row.waits:
                self._reading.add(msg_id)
            contextvars.copy_context().run(self._handle_request, msg_id, method, params)
        except ValidationError as exc:
            self._answer(msg_id, error=invalid_params(exc, method, raw))
        except (JsonRpcException, Fault) as exc:
            self._answer(msg_id, error=exc)

    def _admit(self, method: str) -> Method:
        if self.transport == "tcp" and not self.authorized and method != "initialize":
            raise Unauthorized("over TCP the first request is initialize with the token")
        if method not in ADMIN and (fault := self.host.closed_to(self)):
            raise fault
        if self.shut:
            raise JsonRpcInvalidRequest("the connection is shut down")
        if self.initialized and method == "initialize":
            raise JsonRpcInvalidRequest("initialize was already answered on this connection")
        if not self.initialized and method != "initialize" and method not in ADMIN:
            raise JsonRpcServerNotInitialized("the first request is initialize")
        row = METHODS.get(method)
        if row is None or self.host.handler(row) is None:
            raise JsonRpcMethodNotFound(f"there is no method {method}")
        if len(self._request_futures) >= self.host.limits.max_requests_in_flight:
            raise Overloaded("too many requests in flight", retryAfterMs=100)
        return row

    def _answer(self, msg_id: Any, result: Any = None, error: BaseException | None = None) -> None:
        outcome: Message = {"result": result} if error is None else {"error": refusal(error)}
        try:
            frame = encode({"jsonrpc": "2.0", "id": msg_id} | outcome)
        except (TypeError, ValueError, RecursionError) as exc:  # a result that JSON cannot say; nobody hangs
            frame = encode({"jsonrpc": "2.0", "id": msg_id, "error": refusal(exc)})
        self.outbox.answer(frame)
        if isinstance(error, Unauthorized):
            self._ending = True

    # --- seams of JsonRPCProtocol (pinned below 2.2; tests/test_connection.py exercises each)

    def _get_handler(self, feature_name: str) -> Callable[..., Any]:
        handler = self.host.handler(METHODS[feature_name])
        assert handler is not None
        return partial(handler, self)

    def _execute_handler(
        self,
        msg_id: int | str,
        handler: Callable[..., Any],
        callback: Callable[[Any], None],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        future: Future[Any] = Future()
        try:
            call = partial(handler, *(args or ()), **(kwargs or {}))
            result = self._in_turn(call) if msg_id in self._reading else call()
        except Exception as exc:  # noqa: BLE001 - the guard of a connection: every request is answered
            future.set_exception(exc)
        else:
            if iscoroutine(result):
                task = asyncio.ensure_future(result)
                self._request_futures[msg_id] = task  # type: ignore[assignment]
                task.add_done_callback(callback)
                return
            future.set_result(result)
        callback(future)

    async def _in_turn(self, call: Callable[[], Any]) -> Any:
        """Read while few others of this client do, and while it takes the answers that it has."""
        async with self._turns:
            while self.outbox.owed > OWED:
                self.outbox.moved.clear()
                await self.outbox.moved.wait()
            result = call()
            return await result if iscoroutine(result) else result

    def _send_handler_result(self, future: Any, *, msg_id: int | str) -> None:
        self._request_futures.pop(msg_id, None)
        self._writing.discard(msg_id)
        self._reading.discard(msg_id)
        self.outbox.moved.set()
        if future.cancelled():
            self._answer(msg_id, error=asyncio.CancelledError())
        elif error := future.exception():
            self._answer(msg_id, error=error)
        else:
            self._answer(msg_id, future.result())

    def _handle_cancel_notification(self, msg_id: Any) -> None:
        future = self._request_futures.get(msg_id) if isinstance(msg_id, str | int) else None
        if isinstance(future, asyncio.Task):
            future.cancel()

    def _handle_response(self, msg_id: Any, result: Any = None, error: Any = None) -> None:
        if msg_id not in self._asked:
            return
        fault = None
        if error is not None:
            details = cast("Message", error) if isinstance(error, dict) else {}
            code = details.get("code")
            fault = JsonRpcException(
                str(details.get("message")), code if isinstance(code, int) else -32603, details.get("data")
            )
        super()._handle_response(msg_id, result, fault)  # type: ignore[arg-type]

    def _send_data(self, data: Any) -> None:  # notify() and send_request() end here
        if hasattr(data, "id"):
            self.outbox.answer(encode({"jsonrpc": "2.0", "id": data.id, "method": data.method, "params": data.params}))
        else:
            self.push(data.method, data.params)

    def _report_server_error(self, error: Exception, source: Any) -> None:
        """JsonRPCProtocol tells its server; `refusal` has logged it."""


def refusal(error: BaseException) -> Message:
    """Make the error member for an exception; one that nobody foresaw is logged and gets an incident number."""
    if isinstance(error, Fault | JsonRpcException):
        return {"code": error.code, "message": error.message} | ({} if error.data is None else {"data": error.data})
    if isinstance(error, asyncio.CancelledError):
        return {"code": -32800, "message": "the request was cancelled"}
    incident = secrets.token_hex(4)
    # The text of an exception may quote a message: it is logged for debugging only.
    log.error("incident %s: %s\n%s", incident, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    log.debug("incident %s: %s", incident, error)
    message = f"internal error: the log says more under incident {incident}"
    return {"code": -32603, "message": message, "data": {"incident": incident}}


def invalid_params(error: ValidationError, method: str, raw: Any) -> JsonRpcInvalidParams:
    """Make the refusal that names each parameter at fault by its path in what was sent."""
    issues: list[Message] = []
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        if item["type"] == "none_required":
            continue  # the other member of an optional field's union: null is not wanted either
        text = "unknown parameter" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")
        issues.append({"path": _path(item["loc"], raw, missing=item["type"] == "missing"), "message": text})
    where = ".".join(str(part) for part in issues[0]["path"])
    text = f"{where}: {issues[0]['message']}" if where else issues[0]["message"]
    return JsonRpcInvalidParams(f"invalid params of {method}: {text}", data={"issues": issues})


def _path(loc: tuple[int | str, ...], raw: Any, *, missing: bool) -> list[int | str]:
    # pydantic puts the names of union members among the keys; those are not in what was sent.
    path: list[int | str] = []
    for number, part in enumerate(loc):
        if (isinstance(raw, dict) and part in raw) or (isinstance(raw, list) and isinstance(part, int)):
            raw = cast("Any", raw)[part]
            path.append(part)
        elif missing and number == len(loc) - 1:
            path.append(part)
    return path
