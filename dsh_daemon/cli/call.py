"""How a command talks: one client, results as text or one JSON document, refusals as one line and an exit status."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn, cast

from dsh_daemon.client import Client, RpcError, connect
from dsh_daemon.wire.words import failure, one_line, program

from .render import Screen, age, clean, table

WINDOW = 1000
MOST_CANDIDATES = 8
_RAW = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

Result = dict[str, Any]


class Refusal(Exception):
    """A refusal that the terminal client itself pronounces."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class PipeClosed(Exception):
    """Nobody reads our output any more."""


def run(work: Callable[[Client], Awaitable[None]], *, start: bool = True) -> None:
    """Do `work` with a connected client (a daemon is started where none runs, if `start`) and end the command."""
    guard(lambda: asyncio.run(_connected(work, start=start)))


async def _connected(work: Callable[[Client], Awaitable[None]], *, start: bool) -> None:
    client = await connect(name="dshd", start=start)
    try:
        await work(client)
    finally:
        await client.close()


def guard(work: Callable[[], None]) -> None:
    """Turn what can end a command into its exit status: 0 done, 1 refused, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    try:
        work()
        flush()
    except PipeClosed:
        _silence()
        raise SystemExit(0) from None
    except KeyboardInterrupt:
        _silence()
        raise SystemExit(130) from None
    except Refusal as exc:
        fail(exc.kind, exc.message)
    except RpcError as exc:
        found = exc.data.get("candidates", [])
        fail(exc.kind, exc.message + (", name one by its id:" if found else ""), _candidates(found))
    except OSError as exc:
        kind, message = failure(exc)
        fail(kind, one_line(message))


def _candidates(found: list[Any]) -> list[str]:
    """A line for each of a few sessions to choose from: no title tells them apart."""
    items = [cast("Result", item) for item in found[:MOST_CANDIDATES]]
    names = ("ref", "title", "format", "age")
    rows = [[clean(str(item.get(name, ""))) for name in names] for item in items]
    return table(rows) + ["…"] * (len(found) > len(items))


def fail(kind: str, message: str, more: Sequence[str] = ()) -> NoReturn:
    try:
        sys.stdout.flush()
    except OSError:
        _silence()
    sys.stderr.write(f"dshd: {clean(kind)}: {clean(message.replace('Value error, ', ''))}\n")
    sys.stderr.write("".join(f"  {line}\n" for line in more))
    raise SystemExit(1)


def _silence() -> None:
    # The interpreter flushes stdout once more at its end and would complain about the closed pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise PipeClosed from None


def put(line: str) -> None:
    write(line + "\n")


def remark(text: str) -> None:
    """Say on stderr what is no result: in a pipe nothing but results goes on."""
    sys.stderr.write(f"dshd: {clean(text)}\n")


def write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise PipeClosed from None


def dump(result: Any, *, pretty: bool | None = None) -> str:
    """One JSON document: indented on a terminal, one line elsewhere; characters that steer a terminal are escaped."""
    indent = 2 if (sys.stdout.isatty() if pretty is None else pretty) else None
    separators = None if indent else (",", ":")
    text = json.dumps(result, ensure_ascii=False, indent=indent, separators=separators)
    return _RAW.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def put_json(result: Any) -> None:
    put(dump(result))


def screen() -> Screen:
    return Screen(sys.stdout)


def interactive() -> bool:
    """Whether somebody sits before a terminal that can be drawn on."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def argument(text: str) -> str:
    """A command line's argument as valid Unicode: bytes that were none become U+FFFD."""
    return os.fsencode(text).decode("utf-8", "replace")


def here() -> str:
    return argument(os.getcwd())


def folder(path: str) -> str:
    return argument(os.path.abspath(os.path.expanduser(path)))


async def resolve(client: Client, ref: str) -> str:
    """Session id of what a person typed; a path may be relative to the current folder."""
    ref = argument(ref)
    try:
        return (await client.request("session/resolve", {"ref": _absolute(ref), "cwd": here()}))["sessionId"]
    except RpcError as exc:
        if exc.kind == "sessionNotFound":
            there = "shows those of all folders" if ref == "last" else "shows those that there are"
            raise Refusal(exc.kind, f"{exc.message}; `{program()} list` {there}") from None
        if exc.kind == "ambiguousSession":
            await _describe(client, ref, exc.data.get("candidates", []))
        raise


async def _describe(client: Client, ref: str, candidates: list[Result]) -> None:
    """Fill in what the candidates are told apart by, and what to type for each."""
    params = {"query": ref, "archived": True, "subagents": True, "limit": 200}
    known = {info["sessionId"]: info for info in (await client.request("session/list", params))["items"]}
    for item in candidates[:MOST_CANDIDATES]:
        item["ref"] = await short_ref(client, item["sessionId"])
        if info := known.get(item["sessionId"]):
            item.update(format=info["format"], age=age(info["lastActivityAt"]))


async def short_ref(client: Client, session_id: str) -> str:
    """As much of a session's id as a person must type."""
    for length in (8, 13, 18):
        try:
            found = await client.request("session/resolve", {"ref": session_id[:length]})
        except RpcError:
            continue
        if found["sessionId"] == session_id:
            return session_id[:length]
    return session_id


def _absolute(ref: str) -> str:
    path = ref != "last" and (os.sep in ref or ref.endswith(".jsonl")) and os.path.isfile(ref)
    return folder(ref) if path else ref


async def read_state(client: Client, session_id: str) -> Result:
    return await client.request("session/open", {"sessionId": session_id, "subscribe": False})


async def find_entry(client: Client, session_id: str, ref: str, *, drawn: bool = False) -> str:
    """Entry id of `leaf`, an id or a prefix of one that is unique in the session.

    With `drawn`, `leaf` is the row that the tree marks as the leaf: never an entry that it hides.
    """
    ref = argument(ref)
    if ref == "leaf":
        leaf = (await read_state(client, session_id))["leafId"]
        if leaf is None:
            raise Refusal("entryNotFound", "the session has no leaf: it stands before its first entry")
        return await _marked(client, session_id, leaf) if drawn else leaf
    if ref == "root":
        raise Refusal("invalidReference", "`root` is the place before the first entry; name the first entry by its id")
    exact = await client.request("session/entries", {"sessionId": session_id, "ids": [ref], "maxBytes": 1024})
    if not exact["missing"]:
        return ref
    found = [i async for i in _ids(client, session_id) if i.startswith(ref)] if ref else []
    if len(found) == 1:
        return found[0]
    if not found:
        ids = f"`{program()} tree {shlex.quote(session_id)} --all` shows their ids"
        raise Refusal("entryNotFound", f"no entry of session {session_id} is called {ref!r}; {ids}")
    some = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
    raise Refusal("invalidReference", f"{ref!r} begins {len(found)} entry ids: {some}")


async def _marked(client: Client, session_id: str, leaf: str) -> str:
    page = await client.request("session/tree", {"sessionId": session_id, "around": leaf, "count": 1, "textLimit": 1})
    if "selected" not in page:
        raise Refusal("entryNotFound", "the tree shows no entry at the leaf; name one by its id")
    return page["rows"][page["selected"]]["id"]


async def _ids(client: Client, session_id: str) -> AsyncIterator[str]:
    async for page in windows(client, {"sessionId": session_id, "filter": "all", "textLimit": 1}, count=5000):
        for row in page["rows"]:
            yield row["id"]


async def expect_leaf(client: Client, params: dict[str, Any], expect: str | None) -> None:
    if expect:
        none = expect == "root"
        params["expectedLeafId"] = None if none else await find_entry(client, params["sessionId"], expect)


async def windows(client: Client, params: Result, *, count: int = WINDOW) -> AsyncIterator[Result]:
    """The windows of a whole tree, one held at a time."""
    start = 0
    while True:
        page = await client.request("session/tree", {**params, "start": start, "count": count})
        yield page
        start += len(page["rows"])
        if not page["rows"] or start >= page["total"]:
            return


async def whole_list(client: Client, params: Result, limit: int | None = None) -> Result:
    """`session/list` with the pages of all cursors joined, at most `limit` items; progress goes to a terminal."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        params = {**params, "workDoneToken": "list"}
        client.on("$/progress", progress)
    merged = await client.request("session/list", params if limit is None else {**params, "limit": limit})
    cursor = merged.pop("nextCursor", None) if limit is None else None
    while cursor:
        page = await client.request("session/list", {**params, "cursor": cursor})
        merged["items"] += page["items"]
        merged["complete"] = page["complete"]
        cursor = page.get("nextCursor")
    return merged


def progress(params: Result, hint: str = "") -> None:
    """Show on stderr how far a request is, and what may be done meanwhile."""
    value = params["value"]
    more = f" ({hint})" if hint else ""
    text = "" if value["kind"] == "end" else clean(f"  {value.get('title', '')} {value.get('message', '')}{more}")
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()
