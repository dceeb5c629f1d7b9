"""`session/touched`: which calls read or changed a file, in one session or in all of them, the latest first.

No index is asked: an index that cuts long texts would miss a file in the middle of a patch. What of a file's name is
written alike everywhere is looked for in the bytes of each log, the latest session first, and only a log that holds it
is opened. A page is complete as soon as no session that is left was active after its last item.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson

from . import reading
from .aside import LONG
from .errors import CursorExpired, Fault
from .items import IN_MEMORY, SERVED
from .log.frames import open_journal
from .session import Session
from .touches import Wanted
from .traces import items, mentions, time_at, traces

if TYPE_CHECKING:
    from .items import Item
    from .live import LiveSession
    from .service import Service
    from .wire import types as t

LIMIT = 100
MOST = 1_000  # items of a page
BYTES = 8 << 20  # of the changes in a page

Key = tuple[int, str, int, int]  # time, session, ordinal, which touch of the entry
Hit = tuple[Key, "t.TouchedItem"]


class Source(NamedTuple):
    """A session that may have touched the file: what names it, a time after which it did nothing, how to read it."""

    id: Callable[[], str]  # handed out by this, so asked of those only that are told of: there may be thousands more
    active: int
    open: Callable[[], AbstractContextManager[Session | None]]  # None: it does not name the file. Raises Fault
    inherits: bool = False  # what it took from its parent is told of the parent


class Request(NamedTuple):
    wanted: Wanted
    name: str  # of the request, in its cursors
    after: Key | None
    limit: int
    changes: bool


def request_of(service: Service, params: t.SessionTouchedParams) -> Request:
    """Raises CursorExpired."""
    asked = [params.path, params.session_id, params.cwd]
    name = sha256(orjson.dumps(asked)).hexdigest()[:16]
    after = None if params.cursor is None else _key(params.cursor, name)
    wanted = Wanted(params.path, str(Path.home()), service.store.facts.places.spelled)
    return Request(wanted, name, after, min(params.limit or LIMIT, MOST), params.changes)


def _key(cursor: str, name: str) -> Key:
    try:
        made_for, time, session, i, n = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        key = int(time), str(session), int(i), int(n)
    except (ValueError, TypeError):
        raise CursorExpired("this is no cursor of ours") from None
    if made_for != name:
        raise CursorExpired("this cursor belongs to another question")
    return key


async def in_session(service: Service, live: LiveSession, params: t.SessionTouchedParams) -> t.TouchedResult:
    """What one session did to a file."""
    request = request_of(service, params)
    return await _of_one(live.session, request, live.id)


@reading.of_one_log
async def _of_one(session: Session, request: Request, session_id: str) -> t.TouchedResult:
    source = Source(lambda: session_id, 2**62, lambda: nullcontext(session))
    return await reading.set_aside(session.index.size, look, [source], request)


async def everywhere(service: Service, params: t.SessionTouchedParams) -> t.TouchedResult:
    """What all listed sessions did to a file, subagents' and archived ones too: the file is asked about, not a list."""
    request = request_of(service, params)
    await service.background.up_to_date()
    return await reading.set_aside(
        LONG, lambda: look(list(_sources(service, request.wanted, params.cwd)), request)
    )  # the list too, so that many who ask at once do not fill every thread


def _sources(service: Service, wanted: Wanted, cwd: str | None) -> Iterator[Source]:
    """The sessions that can be read, the latest first; with `cwd` those of this folder and of the ones below it."""
    store = service.store
    chosen = {
        item.path: item for item in store.items().values()
        if item.peek.format in SERVED and item.openable
        and (cwd is None or store.facts.places.matches(item.peek.cwd, cwd, "subtree"))
    }  # fmt: skip
    for item in sorted(chosen.values(), key=lambda item: (-item.activity, item.path)):
        opened = partial(_opened, service, item.path, wanted)
        inherits = item.parent is not None and item.parent.path in chosen
        yield Source(partial(_named, service, item), item.activity, opened, inherits)


def _named(service: Service, item: Item) -> str:
    return service.store.info(item)["sessionId"]


@contextmanager
def _opened(service: Service, path: str, wanted: Wanted) -> Generator[Session | None]:
    if path.startswith(IN_MEMORY):
        live = service.live.get(path)
        yield None if live is None else live.session
        return
    journal = open_journal(path)
    try:
        named = mentions(journal, wanted)
    finally:
        journal.close()
    session = service.load(path) if named else None
    try:
        yield session
    finally:
        if session is not None:
            session.journal.close()


def look(sources: Sequence[Source], request: Request) -> t.TouchedResult:
    """One page over sessions, of which those that were active last come first."""
    found: list[Hit] = []  # the latest first, one more than a page
    unread = 0
    for source in sources:
        if len(found) > request.limit and found[-1][0][0] >= source.active:
            break
        try:
            found += _in_one(source, request, found)
        except Fault:
            unread += 1
        found.sort(key=lambda pair: pair[0], reverse=True)
        del found[request.limit + 1 :]
    page, more = _page(found, request.limit)
    result: t.TouchedResult = {
        "items": [item for _, item in page],
        "coverage": {"indexed": len(sources) - unread, "total": len(sources)},
    }
    if more:
        place = base64.urlsafe_b64encode(orjson.dumps([request.name, *page[-1][0]]))
        result["nextCursor"] = place.decode().rstrip("=")
    return result


def _page(found: list[Hit], limit: int) -> tuple[list[Hit], bool]:
    """The first items, as many as may be sent at once, and whether there are more."""
    room = BYTES
    for n, (_, item) in enumerate(found[:limit]):
        room -= len(item.get("change", "").encode())
        if room < 0 and n:
            return found[:n], True
    return found[:limit], len(found) > limit


def _in_one(source: Source, request: Request, found: Sequence[Hit]) -> list[Hit]:
    """What one session adds to the page."""
    last = found[-1][0] if len(found) > request.limit else None
    with source.open() as session:
        if session is None:
            return []
        every = traces(session, request.wanted)
        if not every:
            return []
        session_id = source.id()
        first = session.index.inherited if source.inherits else 0
        # An entry from a future that never came stands where its session was active last: no page begins above it.
        active = max(source.active, time_at(session.index, len(session.index) - 1))
        keyed = {
            key: trace for trace in every
            if (key := (min(trace.time, active), session_id, trace.i, trace.n))[2] >= first
            and (request.after is None or key < request.after)
            and (last is None or key > last)
        }  # fmt: skip
        keys = sorted(keyed, reverse=True)[: request.limit + 1]
        chosen = [keyed[key] for key in keys]
        shown = items(session, session_id, every, chosen, request.wanted, changes=request.changes)
        return list(zip(keys, shown, strict=True))
