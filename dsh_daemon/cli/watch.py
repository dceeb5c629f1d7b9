"""`dshd watch`: what changes, as it happens, one line each."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from dsh_daemon.entries import HIDDEN_BY_DEFAULT

from .arguments import Json
from .call import Client, RpcError, connect, dump, flush, guard, here, put, resolve, screen
from .complete import refs
from .render import (
    Row,
    Screen,
    cells,
    clean,
    clock,
    content_text,
    kind_column,
    pad,
    plural,
    row_marks,
    session_facts,
    short_id,
)

MOST_WINDOWS = 5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
FINAL = frozenset({"sessionNotFound", "versionMismatch"})  # waiting changes nothing
Note = tuple[str, dict[str, Any]]


def watch(
    ref: Annotated[
        str | None, typer.Argument(metavar="REF", help="A session; none for all of them.", autocompletion=refs)
    ] = None,
    *,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, max=1000, help="First so many rows of before.")
    ] = 10,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Entries that the tree hides, too.")] = False,
    here_: Annotated[bool, typer.Option("--here", help="Without REF: only sessions of the current folder.")] = False,
    json: Json = False,
) -> None:
    """Follow a session, or all of them, until Ctrl-C. A daemon that ends is waited for.

    Of a session it tells the new entries, what its agent says of itself and what waits for that one; on a terminal
    the last line shows the answer that is being written. With --json each notification is one document on one line.

    Examples: `dshd watch`, `dshd watch last`, `dshd watch last --json`
    """
    if ref is None:
        follower: Follower = CatalogFollower({"cwd": here()} if here_ else {}, json=json)
    else:
        follower = SessionFollower(ref, "all" if all_ else "default", lines, json=json)
    guard(lambda: asyncio.run(follower.follow()))


class Follower:
    """Stays connected: subscribes again with what it knows after each loss, with longer and longer pauses."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.screen = screen()
        self.stream = ""  # what a model says, in the last line of a terminal until the entry itself is there

    async def follow(self) -> None:
        pause = 0.0
        begun = lost = False
        while True:
            try:
                # Started once, for the person who asks; afterwards `stop` means stop.
                async with connect(name="dshd watch", start=not begun) as client:
                    notes = await _listen(client)
                    if lost:
                        self.aside("connected again")
                    followed = await self.begin(client)
                    if not begun and sys.stdout.isatty() and sys.stderr.isatty():
                        sys.stderr.write(self.screen.paint(f"  following {followed}, Ctrl-C ends", "dim") + "\n")
                    flush()
                    begun, lost, pause = True, False, FIRST_PAUSE_S
                    async for method, params in notes:
                        if not await self.heard(client, method, params):
                            return
                        flush()
            except (OSError, RpcError) as exc:
                if not begun or (isinstance(exc, RpcError) and exc.kind in FINAL):
                    raise
            if not lost:
                self.aside("the daemon ended; waiting")
                lost = True
            await asyncio.sleep(pause)
            pause = min(max(pause * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)

    def aside(self, text: str) -> None:
        """Tell of the connection, which is no event of a session."""
        if not self.json:
            self.say(text)
            flush()

    async def begin(self, client: Client) -> str:
        """Subscribe; what is followed."""
        raise NotImplementedError

    async def heard(self, client: Client, method: str, params: dict[str, Any]) -> bool:
        """Tell of one notification; False ends the watch."""
        raise NotImplementedError

    def say(self, text: str, style: str = "dim") -> None:
        self.wipe()
        put(self.screen.fit([(clock(None), "dim"), ("  ", "")], (clean(text), style)))

    def wipe(self) -> None:
        """Take away the line of the stream; what comes next stands in its place."""
        if self.stream:
            sys.stdout.write("\r\x1b[K")
            self.stream = ""

    def put_note(self, method: str, params: dict[str, Any]) -> None:
        put(dump({"method": method, "params": params}, pretty=False))


async def _listen(client: Client) -> AsyncIterator[Note]:
    """The notifications from this moment on: what comes before the answer to `subscribe` counts too."""
    queue: asyncio.Queue[Note | None] = asyncio.Queue()

    async def pump() -> None:
        async for note in client.notifications():
            queue.put_nowait(note)
        queue.put_nowait(None)

    task = asyncio.create_task(pump())
    await asyncio.sleep(0)

    async def notes() -> AsyncIterator[Note]:
        try:
            while note := await queue.get():
                yield note
        finally:
            task.cancel()

    return notes()


class CatalogFollower(Follower):
    """Tells which sessions appear, change and go."""

    def __init__(self, filters: dict[str, Any], *, json: bool) -> None:
        super().__init__(json=json)
        self.filters = filters

    async def begin(self, client: Client) -> str:
        page = await client.request("catalog/subscribe", self.filters)
        return plural(page["total"], "session")

    async def heard(self, client: Client, method: str, params: dict[str, Any]) -> bool:
        del client
        if method != "catalog/changed":
            return True
        if self.json:
            self.put_note(method, params)
            return True
        for info in params["upserts"]:
            about = " · ".join(session_facts(info))
            left = [(clock(info["lastActivityAt"]) + "  ", "dim")]
            put(self.screen.fit(left, (clean(info["title"]), "title"), [(clean(about), "dim")]))
        for gone in params["removed"]:
            self.say(f"gone: {gone}")
        return True


class SessionFollower(Follower):
    """Tells which entries come into one session and where its leaf goes, by the rules of resynchronising."""

    def __init__(self, ref: str, filter_: str, lines: int, *, json: bool) -> None:
        super().__init__(json=json)
        self.ref = ref
        self.filter = filter_
        self.lines = lines
        self.session = ""
        self.epoch = ""
        self.revision = -1
        self.leaf: str | None = None

    async def begin(self, client: Client) -> str:
        if self.session:
            await self.catch_up(client)
            return "this session"
        self.session = await resolve(client, self.ref)
        state = await client.request("session/open", {"sessionId": self.session})
        self._take(state)
        if self.json:
            return "this session"
        put(head_line(self.screen, state))
        if self.lines and self.leaf:
            params = {"sessionId": self.session, "filter": self.filter, "around": self.leaf, "count": 4 * self.lines}
            page = await client.request("session/tree", params)
            for row in [row for row in page["rows"] if row["active"]][-self.lines :]:
                put(event_line(self.screen, row))
        return "this session"

    def _take(self, state: dict[str, Any]) -> None:
        self.epoch, self.revision, self.leaf = state["epoch"], state["revision"], state["leafId"]

    async def heard(self, client: Client, method: str, params: dict[str, Any]) -> bool:
        if params.get("sessionId") != self.session:
            return True
        if method == "session/closed":
            if self.json:
                self.put_note(method, params)
            else:
                self.say(f"the session was {params['reason']}")
            return False
        if method.startswith("agent/"):
            self.agent_says(method, params)
            return True
        if method != "session/changed":
            return True
        self.wipe()
        if params["epoch"] != self.epoch or params.get("resync"):
            if self.json:
                self.put_note(method, params)
            await self.catch_up(client)
        elif params["revision"] > self.revision:
            if params["fromRevision"] == self.revision:
                await self.apply(client, params)
            else:
                await self.catch_up(client)
        return True

    def agent_says(self, method: str, params: dict[str, Any]) -> None:
        if self.json:
            self.put_note(method, params)
        elif method == "agent/delta":
            text = params["chunk"].get("text")
            self.show_stream(f" … {text}" if "skipped" in params and isinstance(text, str) else text)
        elif method == "agent/status":
            self.say(f"the agent is {params['status']}" + (f": {params['detail']}" if "detail" in params else ""))
        elif waiting := params.get("messages"):
            last = waiting[-1]
            self.say(
                f"{plural(len(waiting), 'message')} for the agent; {last['from']}: {content_text(last['content'])}"
            )

    def show_stream(self, text: Any) -> None:
        if not self.screen.is_terminal or not isinstance(text, str):
            return
        self.stream = clean(self.stream + text)
        while cells(self.stream) > (self.screen.width or 80) - 12:
            self.stream = self.stream[1:]
        sys.stdout.write(f"\r\x1b[K{' ' * 8}  {self.screen.paint(self.stream, 'dim')}")

    async def catch_up(self, client: Client) -> None:
        known = {"epoch": self.epoch, "revision": self.revision}
        state = await client.request("session/open", {"sessionId": self.session, "since": known})
        if "changes" in state:
            for change in state["changes"]:
                if change["revision"] > self.revision:
                    await self.apply(client, change)
            self._take(state)
            return
        before = self.leaf
        self._take(state)
        if self.json:
            put(dump({"method": "session/open", "result": state}, pretty=False))
            return
        if self.leaf is None or self.leaf == before:
            return
        ids = (await client.request("session/path", {"sessionId": self.session}))["ids"]
        self.say("read anew")
        await self.show(client, ids[ids.index(before) + 1 :] if before in ids else ids[-self.lines :])

    async def apply(self, client: Client, change: dict[str, Any]) -> None:
        before, self.leaf = self.leaf, change["leafId"]
        self.revision = change["revision"]
        if self.json:
            self.put_note("session/changed", change)
            return
        cause = change["cause"]
        by = "another program" if cause == "external" else f"{cause['client']} ({cause['method']})"
        entries = change["entries"]
        if entries and entries[0]["parentId"] != before:
            self.say(f"a branch at {short_id(entries[0]['parentId'] or 'root')}, by {by}")
        hidden = HIDDEN_BY_DEFAULT if self.filter == "default" else ()
        await self.show(client, [entry["id"] for entry in entries if entry["type"] not in hidden])
        for id_, text in change.get("labels", {}).items():
            self.say(f"⚑ {text}  on {short_id(id_)}" if text else f"no label on {short_id(id_)}", "label")
        if title := change.get("info", {}).get("title"):
            self.say(f"title: {title}")
        if not entries and self.leaf != before:
            self.say(f"leaf → {short_id(self.leaf or 'root')}, by {by}")

    async def show(self, client: Client, ids: list[str]) -> None:
        """Print the rows of these entries, those that the filter shows."""
        rows: dict[str, Row] = {}
        asked = 0
        for id_ in reversed(ids):
            # A window around the last holds them all, unless they hang from different branches or some are hidden.
            if id_ in rows or asked == MOST_WINDOWS:
                continue
            asked += 1
            count = min(1000, 4 * len(ids) + 40)
            params = {"sessionId": self.session, "filter": self.filter, "around": id_, "count": count}
            rows |= {row["id"]: row for row in (await client.request("session/tree", params))["rows"]}
        for id_ in ids:
            if id_ in rows:
                put(event_line(self.screen, rows[id_]))


def head_line(view: Screen, state: dict[str, Any]) -> str:
    about = " · ".join(session_facts(state))
    return view.fit([], (clean(state["title"]), "title"), [(clean(about), "dim")])


def event_line(view: Screen, row: Row) -> str:
    """A row without its place in the tree: time, kind, text, marks."""
    text = clean(row["text"])
    kind, style = kind_column(row, text)
    left = [(clock(row["timestamp"]) + "  ", "dim")]
    if kind:
        left.append((pad(kind, 9) + "  ", style))
    failed = not {"error", "aborted"}.isdisjoint(row.get("flags", ()))
    return view.fit(left, (text, "error" if failed else ""), row_marks({**row, "leaf": False}))
