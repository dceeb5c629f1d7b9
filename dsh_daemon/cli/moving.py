"""Commands that go somewhere: navigate, move, branch, and what each of them prints."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from .agents import copy_params, go_on_lines, make_copy
from .arguments import EntryOrNone, Expect, Json, Place, PlaceOrNone, Ref, RefOrLast
from .call import (
    Client,
    Refusal,
    RpcError,
    argument,
    expect_leaf,
    find_entry,
    folder,
    program,
    put,
    put_json,
    read_state,
    resolve,
    run,
    screen,
)
from .render import Info, Screen, clean, clean_lines, new_lines, plural, short_id
from .summarising import Instructions, asked, left_out, offer, stop

AGENTS = ("pi", "omp")  # they start at the last line of their file
T = TypeVar("T")
PIN = {"type": "custom", "customType": "dsh-daemon/leaf"}  # says nothing; it makes a place the last line of its file


def navigate(
    ref: RefOrLast = "last",
    entry: PlaceOrNone = None,
    *,
    back: Annotated[bool, typer.Option("--back", help="To where the last move came from.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Make the place the last line of the file.")] = False,
    label: Annotated[str | None, typer.Option("--label", metavar="NAME", help="Set this label on the entry.")] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Say what would happen and do nothing.")] = False,
    summarize: Annotated[
        bool | None,
        typer.Option(
            "--summarize/--no-summary", help="Whether a model sums up what is left behind.", show_default="asks"
        ),
    ] = None,
    instructions: Instructions = None,
    expect: Expect = None,
    json: Json = False,
) -> None:
    """Go to an entry: the next one hangs from there, the old way stays.

    A user's message gives its text back and the leaf is the entry before it; `root` goes before the first entry.

    Clients of the daemon go on from there. pi and omp start at the last line of their file: `--label NAME` writes a
    label at the place, so that they start there too; `--keep` writes an entry that says nothing (without ENTRY: where
    the leaf is). A dsh log has one path: there `dshd fork` takes another way.

    Where there is a model (`[summarizer]` in the settings, or a client that offers one), a summary of what is left
    behind can be put at the new place, so that the next answer knows of it; on a terminal you are asked.

    Examples: `dshd navigate last 4f2a`, `dshd navigate last root`, `dshd navigate last --back`
    """
    stay = keep and entry is None and not back and label is None
    if entry is None and not back and not stay and ref != "last":
        raise typer.BadParameter(
            f"`{clean(ref)}` was read as the session: `{program()} navigate last {clean(ref)}`", param_hint="ENTRY"
        )
    if (entry is None) != back and not stay:
        raise typer.BadParameter("name an entry, `root` or --back (one of them)", param_hint="ENTRY")

    if instructions is not None and summarize is False:
        raise typer.BadParameter("instructions are for a summary", param_hint="--no-summary")

    async def work(client: Client) -> None:
        session = await resolve(client, ref)
        params: dict[str, Any] = {"sessionId": session}
        if back:
            params["back"] = True
        elif not stay:
            assert entry is not None
            params["targetId"] = None if entry == "root" else await find_entry(client, session, entry)
        if label is not None:
            params["label"] = argument(label)
        if preview:
            params["preview"] = True
        await expect_leaf(client, params, expect)
        if instructions is not None:
            params["summarize"] = {"instructions": argument(instructions)}
        elif summarize:
            params["summarize"] = True
        elif summarize is None and not (preview or stay or json):
            await _moving(offer(client, params), ref)
        moving = asked(client, "session/navigate", params)
        result = await (_stay(client, session) if stay else _moving(moving, ref))
        stopped = result["outcome"] in {"refused", "cancelled"}
        if not json:
            for line in move_lines(screen(), result, back=back):
                put(line)
        if not stopped and not preview:
            info = await read_state(client, session)
            pinned = await pin_leaf(client, info) if keep else None
            if json:
                put_json(result if pinned is None else {**result, **pinned})
            else:
                for line in after_lines(screen(), info, pinned, ref):
                    put(line)
        elif json:
            put_json(result)
        if stopped:
            raise stop(result, "the leaf is where it was")

    run(work)


async def _moving(move: Awaitable[T], ref: str) -> T:
    """Move the leaf; of a log that has one path, say which fork takes the other way."""
    try:
        return await move
    except RpcError as exc:
        if exc.data.get("instead") != "session/fork":
            raise
        boundary, text = exc.data["boundary"], f"a {exc.data['format']} log has one path and cannot go back in it"
        if boundary is None:
            raise Refusal(exc.kind, f"{text}, and no turn is closed before that place") from None
        line = f"`{program()} fork {shlex.quote(argument(ref))} {short_id(boundary)}`"
        raise Refusal(exc.kind, f"{text}; this takes the other way, in a session of its own: {line}") from None


async def _stay(client: Client, session: str) -> dict[str, Any]:
    state = await read_state(client, session)
    leaf = state["leafId"]
    ids = {"oldLeafId": leaf, "leafId": leaf, "commonAncestorId": leaf}
    return {"outcome": "unchanged", **ids, "abandoned": 0, "revision": state["revision"]}


def move_lines(view: Screen, result: dict[str, Any], *, back: bool = False) -> Iterator[str]:
    """What a move did: from where to where, what was left, the prompt that came back."""
    old, new = (short_id(id_) if id_ else "root" for id_ in (result["oldLeafId"], result["leafId"]))
    match result["outcome"]:
        case "unchanged":
            yield "nothing to go back to" if back else f"already at {new}"
        case "moved" | "preview":
            left = result["abandoned"]
            note = f"{plural(left, 'entry', 'entries')} left behind, still there" if left else ""
            verb = "would move" if result["outcome"] == "preview" else "moved"
            moved = [(verb, "dim"), (f" {old} → {new}", "strong")]
            if view.width is None or len(f"{verb} {old} → {new}  {note}") <= view.width:
                yield view.join([*moved, (f"  {note}" if note else "", "dim")])
            else:
                yield view.join(moved)
                yield from view.note(note)
            if (summary := result.get("summaryEntryId")) is not None:
                yield from view.note(f"{short_id(summary)} sums them up")
                yield from left_out(view, result)
        case _:
            return
    yield from prompt_lines(view, result)


def after_lines(view: Screen, info: Info, pinned: dict[str, Any] | None, ref: str) -> Iterator[str]:
    """Where the agent itself would start: a move without a line in the file is known to the daemon only."""
    if pinned:
        yield from view.note(f"written as the last line of the file, {info['format']} starts there too")
    elif info["format"] in AGENTS and not is_last(info):
        agent = info["format"]
        yield from view.note(
            f"clients of the daemon go on from there; {agent} starts at the last line of its file, this leads it there:"
        )
        yield view.paint(f"  `{program()} navigate {clean(shlex.quote(ref))} --keep`", "dim")


async def pin_leaf(client: Client, info: Info) -> dict[str, Any] | None:
    """Make the leaf the last line of its file where it is not; None where nothing was to be written."""
    if is_last(info):
        return None
    params = {"sessionId": info["sessionId"], "entries": [PIN], "expectedLeafId": info["leafId"]}
    result = await client.request("session/append", params)
    return {"leafId": result["leafId"], "pinnedEntryId": result["ids"][0], "revision": result["revision"]}


def is_last(info: Info) -> bool:
    """Whether the leaf is the last line of the session's file, or no agent reads one."""
    return info["path"] is None or not info.get("entryCount") or info["lastEntryId"] == info["leafId"]


def prompt_lines(view: Screen, result: dict[str, Any]) -> Iterator[str]:
    """The prompt that came back, for editing and sending again."""
    images = result.get("editorImages")
    if "editorText" not in result and not images:
        return
    yield view.paint("  the prompt, to edit and send again:", "dim")
    for line in clean_lines(result.get("editorText", "")):
        yield "  │ " + line
    if images:
        yield view.paint(f"  │ with {plural(len(images), 'image')}", "dim")


def move(
    ref: Ref,
    entry: Place,
    *,
    summary: Annotated[
        str | None, typer.Option("--summary", metavar="TEXT", help="A summary of the way left, kept in the session.")
    ] = None,
    expect: Expect = None,
    json: Json = False,
) -> None:
    """Set the leaf, for scripts: no prompt comes back, no hook is asked.

    `root` stands before the first entry. With --summary a `branch_summary` entry is written there.

    Example: `dshd move last 4f2a --summary "The refactoring broke the tests."`
    """

    async def work(client: Client) -> None:
        session = await resolve(client, ref)
        target = None if entry == "root" else await find_entry(client, session, entry)
        params: dict[str, Any] = {"sessionId": session, "entryId": target}
        if summary is not None:
            params["summary"] = {"text": argument(summary)}
        await expect_leaf(client, params, expect)
        result = await _moving(client.request("session/moveLeaf", params), ref)
        if json:
            put_json(result)
        else:
            old, new = (short_id(id_) if id_ else "root" for id_ in (result["oldLeafId"], result["leafId"]))
            put(screen().join([("leaf", "dim"), (f" {old} → {new}", "strong")]))

    run(work)


def branch(
    ref: RefOrLast = "last",
    entry: EntryOrNone = None,
    *,
    at: Annotated[
        bool, typer.Option("--at", help="Keep the entry itself; without it, the path ends before it.")
    ] = False,
    cwd: Annotated[Path | None, typer.Option("--cwd", metavar="DIR", help="Folder of the new session.")] = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id of the new session; a repeat is harmless.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Copy across damage.")] = False,
    json: Json = False,
) -> None:
    """Make a new session file from the path up to a user's message, whose text comes back for editing.

    Without ENTRY the whole path to the leaf is copied. The source stays as it is, byte for byte. Of a dsh session
    whole turns are copied.

    Examples: `dshd branch last 4f2a`, `dshd branch last 4f2a --at`, `dshd branch last`
    """

    async def work(client: Client) -> None:
        session = await resolve(client, ref)
        params: dict[str, Any] = {"sessionId": session, "position": "at" if at or entry is None else "before"}
        if entry is not None:
            params["entryId"] = await find_entry(client, session, entry)
        if cwd:
            params["cwd"] = folder(str(cwd))
        await make_copy(client, "session/branch", params | copy_params(id_, cwd, force), ref, branch_lines, json=json)

    run(work)


def branch_lines(view: Screen, result: dict[str, Any], ref: str) -> Iterator[str]:
    """The new session, the prompt that came back, and how to go on."""
    yield from new_lines(view, result["session"])
    yield from prompt_lines(view, result)
    yield from go_on_lines(view, result, ref)
