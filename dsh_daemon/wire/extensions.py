"""Extensions inside the daemon: what entry points of the group `dsh_daemon.extensions` bring.

An entry point names a function that is called once with an `Extension`:

    def setup(extension):
        @extension.on("session_before_tree")
        async def before(event, context):
            if event.params["preparation"]["userWantsSummary"]:
                return {"summary": {"text": "..."}}

Events and answers are those of the hooks on the wire. A handler may be a plain function, which runs in a thread and
whose context waits for each answer; an async one awaits them on the daemon's event loop and must not block it. One
that fails is reported and not called again; one that was called off and goes on all the same is not called before it
has ended.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, redirect_stdout, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

import orjson

from .codec import valid
from .methods import METHODS

if TYPE_CHECKING:
    from dsh_daemon.service import Service

GROUP = "dsh_daemon.extensions"
BEFORE = {
    "session_before_tree": "sessionBeforeTree",
    "session_before_branch": "sessionBeforeBranch",
    "session_before_compact": "sessionBeforeCompact",
    "session_compacting": "sessionCompacting",
}
AFTER = {
    "session_tree": "sessionTree",
    "session_branch": "sessionBranch",
    "session_compact": "sessionCompact",
}

Handler = Callable[["Event", Any], Any]  # the context is an ExtensionContext, or a ThreadContext
Outcome = tuple[Any, BaseException | None]  # what a handler gave, or raised
log = logging.getLogger("dshd.extensions")


@dataclass(frozen=True)
class Event:
    """What happens, or is about to: `params` as on the wire. `signal` is set when it was called off meanwhile."""

    name: str
    params: dict[str, Any]
    signal: threading.Event = field(default_factory=threading.Event)


class Extension:
    """One extension as the daemon sees it: an owner of hooks like a connected client."""

    read_only = summarizer = leaving = gone = False
    pid = None

    def __init__(self, name: str, service: Service) -> None:
        self.id = self.name = f"extension {name}"
        self._service = service
        self._handlers: dict[str, list[Handler]] = {}
        self._told: set[asyncio.Task[None]] = set()
        self._late: Counter[Handler] = Counter()  # calls that were called off and go on

    def on(self, event: str, handler: Handler | None = None) -> Any:
        """Call `handler(event, context)` at each such event; without a handler this is a decorator.

        `session_before_*` and `session_compacting` are asked (an answer of the hook, or None), the others told.
        Raises ValueError for an event that there is not.
        """
        name = event.replace(".", "_")
        if name not in BEFORE and name not in AFTER:
            raise ValueError(f"there is no event {event!r}; there are {', '.join([*BEFORE, *AFTER])}")

        def add(handler: Handler) -> Handler:
            self._handlers.setdefault(BEFORE.get(name) or AFTER[name], []).append(handler)
            return handler

        return add if handler is None else add(handler)

    # --- what an owner of hooks is

    @property
    def hooks(self) -> tuple[str, ...]:
        return tuple(name for name in BEFORE.values() if self._handlers.get(name))

    @property
    def events(self) -> tuple[str, ...]:
        return tuple(name for name in AFTER.values() if self._handlers.get(name))

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Ask all handlers of a hook: a veto ends it, later answers go over earlier ones."""
        answer: dict[str, Any] = {}
        for handler in list(self._handlers[name := method.partition("/")[2]]):
            answer |= self._opinion(name, await self._call(name, handler, params))
            if answer.get("cancel"):
                break
        return answer

    def push(self, method: str, params: Any, key: str | None = None) -> None:
        """Tell the handlers of an event, one after the other, without anybody waiting for them."""
        del key
        if (name := method.partition("/")[2]) in self._handlers and method.startswith("event/"):
            task = asyncio.create_task(self._tell(name, params))
            self._told.add(task)
            task.add_done_callback(self._told.discard)

    async def _tell(self, name: str, params: dict[str, Any]) -> None:
        for handler in list(self._handlers[name]):
            try:
                async with asyncio.timeout(self._service.hooks.seconds):
                    await self._call(name, handler, params)
            except TimeoutError:
                log.warning("%s did not come to an end with event/%s", self.name, name)

    def _opinion(self, name: str, said: Any) -> dict[str, Any]:
        """An answer as it would come over the wire; what could not come so is no opinion."""
        if said is None:
            return {}
        try:
            answer = orjson.loads(orjson.dumps(valid(said)))
        except (TypeError, ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict):
            return answer  # pyright: ignore[reportUnknownVariableType]
        log.warning("%s answered hook/%s with what it does not mean: %s", self.name, name, type(said).__name__)
        return {}

    async def _call(self, name: str, handler: Handler, params: dict[str, Any]) -> Any:
        """Call a handler with an event of its own. A cancel does not wait for it."""
        if self._late[handler]:
            log.warning("%s is not asked %s: its last call goes on", self.name, name)
            return None
        event = Event(name, deepcopy(params))
        context = ExtensionContext(self, self._service, event.params["sessionId"])
        call = (
            _on_loop(handler, event, context)
            if iscoroutinefunction(handler)
            else _in_thread(handler, event, ThreadContext(context))
        )
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError:
            event.signal.set()
            self._late[handler] += 1
            call.add_done_callback(lambda _: self._late.subtract([handler]))
            if isinstance(call, asyncio.Task):
                call.cancel()
            raise
        said, raised = call.result()
        if raised is None:
            return said
        report(self._service, f"{self.name} is switched off for {name}", raised)
        with suppress(ValueError):  # two calls at once failed
            self._handlers[name].remove(handler)
        return None


def _on_loop(handler: Handler, event: Event, context: ExtensionContext) -> asyncio.Task[Outcome]:
    async def run() -> Outcome:
        with caught() as raised:
            return await handler(event, context), None
        return None, raised[0]

    return asyncio.create_task(run())


def _in_thread(handler: Handler, event: Event, context: ThreadContext) -> asyncio.Future[Outcome]:
    """Run a plain function in a thread of its own: one that hangs takes none from the daemon, and does not hold it."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Outcome] = loop.create_future()

    def run() -> None:
        said = None
        with caught() as raised:
            said = handler(event, context)
        with suppress(RuntimeError):  # the daemon ended meanwhile
            loop.call_soon_threadsafe(ended.set_result, (said, raised[0] if raised else None))

    threading.Thread(target=run, name=event.name, daemon=True).start()
    return ended


@contextmanager
def caught() -> Generator[list[BaseException]]:
    """Keep what somebody else's code raises: it must not take the daemon along, and SystemExit would."""
    raised: list[BaseException] = []
    try:
        yield raised
    except BaseException as exc:  # noqa: BLE001 - the guard of a worker
        raised.append(exc)


def report(service: Service, consequence: str, exc: BaseException) -> None:
    """Tell of what an extension raised, in the log and to the doctor."""
    where = traceback.extract_tb(exc.__traceback__)[-1]
    problem = f"{consequence}: {type(exc).__name__} at {where.filename}:{where.lineno}"
    service.hooks.problems.append(problem)
    log.error("%s: %s", problem, exc)


class ExtensionContext:
    """What an extension may do, in the session that an event is about.

    Reads and changes go through the same methods as those of a client, and raise the same faults. Inside of a
    `session_before_*` event the session cannot be changed: Busy. Every call is awaited, on the daemon's event loop;
    RuntimeError on another one.
    """

    def __init__(self, owner: Extension, service: Service, session_id: str) -> None:
        self.session_id = session_id
        self._owner = owner
        self._service = service
        self._loop = asyncio.get_running_loop()

    async def request(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol by its wire name and params; `sessionId` is this session's unless given.

        Raises Fault, pydantic.ValidationError, KeyError for an unknown method.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the context of an extension is used on the daemon's event loop")
        row = METHODS[method]
        if "session_id" in row.params.model_fields:
            params.setdefault("sessionId", self.session_id)
        if "subscribe" in row.params.model_fields:
            params.setdefault("subscribe", False)  # an extension hears of events, and would never unsubscribe
        handler: Callable[..., Coroutine[Any, Any, Any]] | None = getattr(self._service, row.attribute, None)
        if handler is None:
            raise KeyError(method)
        return await handler(self._owner, row.params.model_validate(params))

    async def branch(self, entry_id: str, *, position: str = "before") -> dict[str, Any]:
        """Make a new session file from the path to an entry."""
        return await self.request("session/branch", entryId=entry_id, position=position)

    async def navigate_tree(
        self, target_id: str | None, *, summarize: bool | dict[str, Any] = False, label: str | None = None
    ) -> dict[str, Any]:
        """Move the leaf of this session as a person does."""
        more = {} if label is None else {"label": label}
        return await self.request("session/navigate", targetId=target_id, summarize=summarize, **more)

    async def append_custom(self, custom_type: str, data: Any = None) -> str:
        """Append a `custom` entry, which no model sees; its id."""
        entry = {"type": "custom", "customType": custom_type, "data": data}
        return (await self.request("session/append", entries=[entry]))["ids"][0]

    async def set_label(self, entry_id: str, label: str | None) -> None:
        """Name an entry; None takes the name away."""
        await self.request("session/label", entryId=entry_id, label=label)


class ThreadContext:
    """What `ExtensionContext` is, for a plain handler, which runs in a thread: each call waits for its answer."""

    def __init__(self, context: ExtensionContext) -> None:
        self.session_id = context.session_id
        self._context = context
        self._loop = asyncio.get_running_loop()

    def request(self, method: str, **params: Any) -> Any:
        return self._answer(self._context.request(method, **params))

    def branch(self, entry_id: str, *, position: str = "before") -> dict[str, Any]:
        return self._answer(self._context.branch(entry_id, position=position))

    def navigate_tree(
        self, target_id: str | None, *, summarize: bool | dict[str, Any] = False, label: str | None = None
    ) -> dict[str, Any]:
        return self._answer(self._context.navigate_tree(target_id, summarize=summarize, label=label))

    def append_custom(self, custom_type: str, data: Any = None) -> str:
        return self._answer(self._context.append_custom(custom_type, data))

    def set_label(self, entry_id: str, label: str | None) -> None:
        self._answer(self._context.set_label(entry_id, label))

    def _answer(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def load(service: Service) -> None:
    """Set up every installed extension; one that cannot be is reported and left out."""
    for entry_point in entry_points(group=GROUP):
        extension = Extension(entry_point.name, service)
        with caught() as raised, redirect_stdout(sys.stderr):  # stdout may be a client's
            entry_point.load()(extension)
            service.hooks.add(extension)
            log.info("%s is loaded", extension.name)
        if raised:
            report(service, f"{extension.name} ({entry_point.value}) is left out", raised[0])
