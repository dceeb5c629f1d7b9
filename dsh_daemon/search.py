"""Search over all sessions and in one of them: what the index finds, the strongest first, page by page."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from . import aside, reading
from .errors import Fault
from .hits import Kept, Open, Shown, show
from .listing import Filters
from .orders import Order, Orders
from .progress import Progress
from .query import Quality, Query
from .ranking import (
    TITLE,
    Filter,
    Strongest,
    by_rows,
    counting,
    expressions,
    labelled,
    ordered,
    scan,
    strongest,
    strongest_of_all,
    within,
)
from .session import SessionClosed
from .text import iso
from .tokens import fold

if TYPE_CHECKING:
    from .items import Item
    from .live import Client, LiveSession
    from .search_index import Listing, SearchIndex
    from .service import Service
    from .wire import types as t

PATIENCE = 10.0  # seconds that a search whose client asked for progress waits for the index
REPORT_EVERY = 0.05
NO_ENTRY = -1  # in the place of an ordinal: it is the title that was found
RANKED_BYTES = 120


class Ranked(NamedTuple):
    """A session in the order of results."""

    path: str
    best: int  # ordinal of its strongest hit
    hits: int


class Search:
    """Answers searches, of any number of clients at a time."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.orders = Orders()

    async def sessions(self, client: Client, params: t.SearchSessionsParams) -> t.SearchSessionsResult:
        await self.wait(client, params.work_done_token)
        return await reading.set_aside(reading.THREADED, self.page, params)

    async def wait(self, client: Client, token: str | int | None) -> None:
        """Where the client wants to know how far the index is, let it be built first."""
        service = self.service
        await service.background.up_to_date(client, token)
        until, round_ = time.monotonic() + PATIENCE, service.indexing.round()
        with Progress(client, token, "Indexing") as progress:
            while token is not None and not service.indexing.is_done(round_) and time.monotonic() < until:
                done, total = service.indexing.progress
                progress.report(f"{done}/{total}")
                await asyncio.sleep(REPORT_EVERY)

    def page(self, params: t.SearchSessionsParams) -> t.SearchSessionsResult:
        """One page of sessions. Takes its time: for a thread."""
        look = Look(self.service, Query(params.query), Filter(params.where))
        items, request = self._covered(params.where), request_of(params)
        if params.cursor is not None:
            name, place, order = self.orders.find(params.cursor, request)
        else:
            name, place = "", 0
            indexing, opened = self.service.indexing, self.service.indexing.kept.opened()
            indexed, total = indexing.coverage(items.values())  # before: more may be found than that, never less
            ranking = look.ranking(items)
            if indexing.kept.opened() != opened:  # it was bad, and begun anew as it was read
                indexed, total = indexing.coverage(items.values())
            order = Order(request, ranking, RANKED_BYTES, {"indexed": indexed, "total": total})
        found: list[t.SessionHits] = []
        while place < len(order.content) and len(found) < params.limit:
            ranked: Ranked = order.content[place]
            place += 1
            item = items.get(ranked.path)
            best = None if item is None else look.best(item, ranked.best)
            if item is not None and best is not None:
                found.append({"session": self.service.store.info(item), "hits": ranked.hits, "best": best})
        result: t.SearchSessionsResult = {"items": found, "coverage": order.about}
        if place < len(order.content):
            result["nextCursor"] = f"{name or self.orders.keep(order)}-{place}"
        return result

    def _covered(self, where: t.Where) -> dict[str, Item]:
        """The sessions that a search looks for, by path."""
        formats = None if where.formats is None else tuple(where.formats)
        filters = Filters(where.cwd, where.scope, None, formats, archived=where.archived, subagents=where.subagents)
        accepts, excluded = self.service.store.accepts(filters), self.service.indexing.excluded
        items = {path: item for path, item in self.service.store.items().items() if accepts(item)}
        if not self.service.settings.search.exclude:
            return items
        return {path: item for path, item in items.items() if not excluded(item)}


class Look:
    """One look through the index, as it was when it began."""

    def __init__(self, service: Service, query: Query, only: Filter) -> None:
        self.service = service
        self.indexing = service.indexing
        self.query = query
        self.only = only

    @cached_property
    def listings(self) -> dict[SearchIndex, Listing]:
        return {index: index.listing() for index in self.indexing.indexes}

    def ranking(self, items: Mapping[str, Item]) -> list[Ranked]:
        """The sessions in which it is found, the strongest hit first, where that is equal the latest."""
        found = self.found()
        labels = self._labelled()
        titles = self.titled(items)
        live = self.service.live
        order: list[tuple[int, int, Ranked]] = []
        for path in {*chain.from_iterable(rows for _, rows in found), *labels, *titles} & items.keys():
            aside.go_on()
            rows = [(quality, by_path[path]) for quality, by_path in found if path in by_path]
            if self.only.everything and path not in labels and path not in live and within(rows, self._straight(path)):
                best = strongest_of_all(rows)
            else:
                best = self._strongest(path, rows, labels=path in labels)
            if path in titles:
                best = Strongest(TITLE, NO_ENTRY, 0 if best is None else best.hits)
            if best is not None:
                order.append((best.rank, -items[path].recent, Ranked(path, best.ordinal, best.hits)))
        order.sort()
        return [ranked for _, _, ranked in order]

    def found(self, path: str | None = None) -> list[tuple[Quality, dict[str, list[int]]]]:
        """What the index has, in all sessions or in one: by quality, path -> rows."""
        found: list[tuple[Quality, dict[str, list[int]]]] = []
        for quality, expression in expressions(self.query):
            rows: dict[str, list[int]] = {}
            for index, listing in self.listings.items():
                rows |= index.matches(expression, path, listing)
            found.append((quality, rows))
        return found

    def texts(self, path: str, count: int) -> dict[int, int] | None:
        """Of the first `count` entries of a session those whose text fits; None where the index cannot tell."""
        try:
            index = self.indexing.index_of(path)
            columns = index.columns(path, self.listings[index])
            if columns is None or len(columns) < count:
                return None  # it was begun anew
            return by_rows([(quality, rows.get(path, [])) for quality, rows in self.found(path)], count)
        except Fault:
            return None

    def _labelled(self) -> set[str]:
        """Paths of the sessions that have a label which fits."""
        known: dict[str, Iterable[str]] = {}
        for listing in self.listings.values():
            known |= {path: labels.values() for path, labels in listing.labels.items()}
        for path, live in self.service.live.copy().items():
            known[path] = [label.text for label in live.session.index.labels.copy().values()]
        return {path for path, labels in known.items() if any(map(self._fits, labels))}

    def titled(self, items: Mapping[str, Item]) -> set[str]:
        """Paths of the sessions whose title fits: one that was given, or any where the text is not indexed."""
        if not self.only.titles:
            return set()
        given, served = {"user", "agent"}, self.indexing.served
        some = ((path, item) for path, item in items.items() if item.title_source in given or not served(item))
        return {path for path, item in some if self._fits(item.title)}

    def _fits(self, title: str) -> bool:
        return self.query.fits(_folded(title)) is not None

    def _straight(self, path: str) -> int:
        index = self.indexing.index_of(path)
        return index.straight(path, self.listings[index])

    def _strongest(self, path: str, rows: Sequence[tuple[Quality, list[int]]], *, labels: bool) -> Strongest | None:
        standing = self._standing(path)
        if standing is None:
            return None
        try:
            return strongest(standing, rows, labelled(standing, self.query) if labels else {}, self.only)
        except IndexError:
            if isinstance(standing, Open) and standing.session.index is not standing.index:
                return None  # it was rewritten meanwhile
            raise

    def _standing(self, path: str, shown: Sequence[int] = (), *, of_dsh: bool = False) -> Shown | None:
        """A session as it is: the open one, or what the index knows, with the places of the entries to be shown."""
        live = self.service.live.get(path)
        if live is not None:
            return Open(live.session)
        index = self.indexing.index_of(path)
        columns = index.columns(path, self.listings[index])
        places = index.places(path, shown, self.listings[index]) if shown else {}
        return None if columns is None or len(places) < len(shown) else Kept(path, columns, places, of_dsh=of_dsh)

    def best(self, item: Item, best: int) -> t.Hit | None:
        """The strongest hit of a session; looked for anew where the file is not what was indexed."""
        if best == NO_ENTRY:
            return self.title(item)
        try:
            of_dsh = item.peek.format == "dsh"
            if item.path in self.service.live or of_dsh or item.peek.version == 3:
                standing = self._standing(item.path, [best], of_dsh=of_dsh)
                if standing is not None and (hit := next(show(standing, self.query, [best]), None)) is not None:
                    return hit
            return self._read(item, best)
        except (Fault, SessionClosed, OSError, LookupError):
            return None  # it goes away, or is being rewritten

    def _read(self, item: Item, best: int) -> t.Hit | None:
        """The same from the whole log, as for older versions, whose entries are not shown as they are stored."""
        live = self.service.live.get(item.path)
        session = live.session if live is not None else self.service.load(item.path)
        try:
            standing = Open(session)
            hit = next(show(standing, self.query, [best]), None) if best < len(standing) else None
            if hit is None:
                ranks = counting(standing, scan(session, self.query), labelled(standing, self.query), self.only)
                hit = next(show(standing, self.query, ordered(ranks)[:1]), None)
            return hit
        finally:
            if live is None:
                session.journal.close()

    def title(self, item: Item) -> t.Hit | None:
        """The title of a session as a hit; None where it has another one now."""
        ranges = self.query.ranges(item.title)
        if ranges is None:
            return None
        return {
            "entryId": self._leaf(item.path), "role": "title", "kind": "title", "branch": "active", "compacted": False,
            "snippet": item.title, "ranges": ranges, "timestamp": iso(item.activity),
        }  # fmt: skip

    def _leaf(self, path: str) -> str | None:
        """Id of the leaf of a session, where that is known without reading its log."""
        live = self.service.live.get(path)
        if live is not None:
            return live.session.leaf_id
        index = self.indexing.index_of(path)
        columns = index.columns(path, self.listings[index])
        if columns is None or not columns.active:
            return None
        last = columns.active[-1] - 1
        place = index.places(path, [last], self.listings[index]).get(last)
        return place and place.id


@reading.of_one_log
async def entries(live: LiveSession, search: Search, params: t.SearchEntriesParams) -> t.SearchEntriesResult:
    """Hits in one session, all there are, its title first: what of it is not in the index is looked through."""
    session = live.session
    item = search.service.store.items().get(live.key)
    start = search.service.indexing.covered(live)
    made_for = session.epoch, request_of(params)

    def work() -> t.SearchEntriesResult:
        query, standing = Query(params.query), Open(session)
        look = Look(search.service, query, Filter(params.where))
        if params.cursor is not None:
            name, place, order = search.orders.find(params.cursor, made_for)
        else:
            name, place = "", 0
            title = [NO_ENTRY] if item is not None and look.titled({item.path: item}) else []
            texts = look.texts(live.key, start)
            texts = scan(session, query) if texts is None else texts | scan(session, query, start)
            found = counting(standing, texts, labelled(standing, query), look.only)
            content = array("l", title + ordered(found))
            order = Order(made_for, content, content.itemsize)
        hits: list[t.Hit] = []
        while place < len(order.content) and len(hits) < params.limit:
            some = order.content[place : place + params.limit - len(hits)]
            if some[0] == NO_ENTRY:
                some = some[:1]
                named = None if item is None else look.title(item)
                hits += [] if named is None else [named]
            else:
                hits += show(standing, query, some)
            place += len(some)
        result: t.SearchEntriesResult = {"items": hits}
        if place < len(order.content):
            result["nextCursor"] = f"{name or search.orders.keep(order)}-{place}"
        return result

    unread = reading.body_size(session.index, range(start, len(session.index)))
    return await reading.set_aside(max(unread, reading.THREADED), work)


def request_of(params: t.SearchParams) -> str:
    """What pages of one search have in common."""
    return params.model_dump_json(exclude={"cursor", "limit", "work_done_token"})


_folded = lru_cache(1 << 14)(fold)  # of titles and labels
