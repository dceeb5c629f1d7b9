"""Summaries from the terminal: the choice before a move, progress, Ctrl-C, and `dshd compact`."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import typer

from .arguments import Expect, Json, RefOrLast
from .call import (
    Client,
    Refusal,
    argument,
    expect_leaf,
    find_entry,
    program,
    progress,
    put,
    put_json,
    read_state,
    resolve,
    run,
    screen,
)
from .render import Screen, clean, plural, short_id

LAST_WORD = 2.0  # seconds that the answer to what was called off may take
LINE = 4096  # bytes; a terminal gives no longer one

Instructions = Annotated[
    str | None,
    typer.Option("--instructions", metavar="TEXT", help="What the summary should mind; a model writes one then."),
]


async def asked(client: Client, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Request what may ask a model; progress goes to a terminal, Ctrl-C calls it off and says whether in time."""
    if sys.stderr.isatty():
        client.on("$/progress", partial(progress, hint="Ctrl-C cancels"))
        params = {**params, "workDoneToken": "summary"}
    answer = asyncio.ensure_future(client.request(method, params))
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        client.call_off(method)
        await asyncio.wait([answer], timeout=LAST_WORD)
        sys.stderr.write(f"{_end(answer)}\n")
        answer.cancel()
        raise


def _end(answer: asyncio.Future[dict[str, Any]]) -> str:
    """What became of a request that was called off."""
    if not answer.done() or isinstance(answer.exception(), ConnectionError):
        return "cancelled, but the daemon does not say whether in time"
    late = answer.exception() is None and answer.result()["outcome"] in {"moved", "compacted"}
    return "too late to cancel: it was done already" if late else "cancelled: nothing was changed"


async def offer(client: Client, params: dict[str, Any]) -> None:
    """Let a person at a terminal choose a summary of what a move would leave, where there is a model for it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    if not (await read_state(client, params["sessionId"]))["can"]["summarize"]:
        return
    look = {name: value for name, value in params.items() if name != "label"}
    preview = await client.request("session/navigate", {**look, "preview": True})
    if preview["abandoned"]:
        left = plural(preview["abandoned"], "entry", "entries")
        sys.stdout.write(f"Summarise the {left} left behind? (Ctrl-C: stay here)\n")
        sys.stdout.write("[n]o, [y]es, or type what the summary should mind: ")
        sys.stdout.flush()
        answer = await _typed()
        if answer and answer.casefold() not in {"n", "no"}:
            params["summarize"] = True if answer.casefold() in {"y", "yes"} else {"instructions": argument(answer)}


async def _typed() -> str:
    """A line that a person types, up to Ctrl-C. Raises Refusal at the end of the input and for Escape."""
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    except asyncio.CancelledError:
        sys.stdout.write("\n")
        raise
    finally:
        loop.remove_reader(fd)
    line = os.read(fd, LINE)
    if not line or b"\x1b" in line:
        raise Refusal("cancelled", "the leaf is where it was")
    return line.decode("utf-8", "replace").strip()


def compact(
    ref: RefOrLast = "last",
    *,
    instructions: Instructions = None,
    summary: Annotated[
        str | None, typer.Option("--summary", metavar="TEXT", help="The summary itself; no model is asked.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="ENTRY", help="Keep everything from this entry on.")
    ] = None,
    expect: Expect = None,
    json: Json = False,
) -> None:
    """Put a summary in the place of the older part of what a model is given.

    Nothing is removed: the tree, `search` and `transcript` go on showing all of it. The newest entries stay as they
    are, and no tool call is parted from its result.

    Examples: `dshd compact last`, `dshd compact last --instructions "keep the file names"`
    """

    async def work(client: Client) -> None:
        session = await resolve(client, ref)
        params: dict[str, Any] = {"sessionId": session}
        if instructions is not None:
            params["instructions"] = argument(instructions)
        if summary is not None:
            params["summary"] = argument(summary)
        if keep is not None:
            params["firstKeptEntryId"] = await find_entry(client, session, keep)
        await expect_leaf(client, params, expect)
        result = await asked(client, "session/compact", params)
        if json:
            put_json(result)
        elif "entryId" in result:
            page = await client.request("session/entries", {"sessionId": session, "ids": [result["entryId"]]})
            view = screen()
            for line in [*_lines(view, page["entries"][0], ref), *left_out(view, result)]:
                put(line)
        if "entryId" not in result:
            raise stop(result, "nothing was written")

    run(work)


def stop(result: dict[str, Any], otherwise: str) -> Refusal:
    """A refused or cancelled operation as a refusal."""
    reason = f" ({result['reason']})" if result.get("reason") else ""
    by = result.get("refusedBy") or "somebody"
    return Refusal(result["outcome"], f"{by} stopped it{reason}; {otherwise}")


def left_out(view: Screen, result: dict[str, Any]) -> Iterator[str]:
    """Say where a summary is of less than it stands for."""
    if missing := result.get("leftOut"):
        oldest = f"{missing:,} oldest entries" if missing > 1 else "oldest entry"
        yield from view.note(f"the summary is without the {oldest}: more did not fit (summarizer.context_window)")


def _lines(view: Screen, entry: dict[str, Any], ref: str) -> Iterator[str]:
    tokens = entry.get("tokensBefore", 0)
    yield view.join([("compacted", "dim"), (f" {short_id(entry['id'])}", "strong")])
    kept = short_id(entry["firstKeptEntryId"])
    yield from view.note(f"about {tokens:,} tokens before; everything from {kept} on stays as it is")
    line = f"{program()} show {clean(shlex.quote(argument(ref)))} {short_id(entry['id'])}"
    yield from view.note(f"`{line}` shows the summary")
