"""Commands that change something: create, label, rename, append, draft, archive, pin, delete."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from .arguments import Entry, Expect, Json, Ref, RefOrLast
from .call import (
    Client,
    argument,
    expect_leaf,
    fail,
    find_entry,
    folder,
    here,
    put,
    put_json,
    resolve,
    run,
    screen,
)
from .render import Screen, clean, clean_lines, home, new_lines, short_id

On = Annotated[bool, typer.Option("--on/--off", help="Set it or take it back.")]


def create(
    *,
    cwd: Annotated[
        Path | None, typer.Option("--cwd", metavar="DIR", help="Folder of the session.", show_default="here")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", "-t", metavar="TEXT", help="Its title.")] = None,
    id_: Annotated[str | None, typer.Option("--id", metavar="ID", help="Its id; a repeat is harmless.")] = None,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="REF", help="The session that it came from.")
    ] = None,
    json: Json = False,
) -> None:
    """Make an empty session in our own store.

    Example: `dshd create --title "Try the other way"`
    """

    async def work(client: Client) -> None:
        params: dict[str, Any] = {"cwd": folder(str(cwd)) if cwd else here()}
        if title:
            params["title"] = argument(title)
        if id_:
            params["sessionId"] = argument(id_)
        if parent:
            params["parentSessionId"] = await resolve(client, parent)
        state = await client.request("session/create", params)
        if json:
            put_json(state)
            return
        for line in new_lines(screen(), state):
            put(line)

    run(work)


def label(
    ref: Ref,
    entry: Entry,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The label; none takes it away.", show_default=False)
    ] = None,
    *,
    expect: Expect = None,
    json: Json = False,
) -> None:
    """Put a label on an entry, or take it away; `leaf` is the row that the tree marks so.

    Examples: `dshd label last leaf before-refactor`, `dshd label last 4f2a`
    """

    async def work(client: Client) -> None:
        session = await resolve(client, ref)
        target = await find_entry(client, session, entry, drawn=True)
        params: dict[str, Any] = {"sessionId": session, "entryId": target, "label": argument(text) if text else None}
        await expect_leaf(client, params, expect)
        result = await client.request("session/label", params)
        if json:
            put_json(result)
        else:
            put(label_line(screen(), target, text))

    run(work)


def label_line(view: Screen, entry_id: str, text: str | None) -> str:
    if not text or not text.strip():
        return f"no label on {short_id(entry_id)}"
    return view.join([(f"⚑ {clean(text)}", "label"), (f"  on {short_id(entry_id)}", "dim")])


def rename(
    ref: Ref,
    title: Annotated[
        str, typer.Argument(metavar="TITLE", help="The title; an empty one takes it away.", show_default=False)
    ],
    *,
    json: Json = False,
) -> None:
    """Give a session a title.

    Example: `dshd rename last "Fix the login redirect"`
    """

    async def work(client: Client) -> None:
        params = {"sessionId": await resolve(client, ref), "title": argument(title) if title.strip() else None}
        result = await client.request("session/rename", params)
        if json:
            put_json(result)
        else:
            put(f"renamed to {clean(title)}" if title.strip() else "title taken away")

    run(work)


def append(
    ref: Ref,
    *,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="ENTRY", help="Hang them from here; `root` for none.")
    ] = None,
    expect: Expect = None,
    force: Annotated[bool, typer.Option("--force", help="Append even where the daemon warns.")] = False,
    json: Json = False,
) -> None:
    """Append entries from standard input: one JSON object, an array of them, or one a line.

    Example: `echo '{"type":"message","message":{"role":"user","content":"Go on"}}' | dshd append last`
    """
    entries = read_entries(sys.stdin.buffer.read())

    async def work(client: Client) -> None:
        session = await resolve(client, ref)
        params: dict[str, Any] = {"sessionId": session, "entries": entries}
        if parent is not None:
            params["parentId"] = None if parent == "root" else await find_entry(client, session, parent)
        if force:
            params["force"] = True
        await expect_leaf(client, params, expect)
        result = await client.request("session/append", params)
        if json:
            put_json(result)
        else:
            for id_ in result["ids"]:
                put(clean(id_))

    run(work)


def read_entries(data: bytes) -> list[Any]:
    """Entries from JSON or JSON lines; ends the command with status 1 where it is neither."""
    text = data.decode("utf-8", "replace").strip()
    try:
        whole = jsonlib.loads(text)
    except ValueError:
        try:
            whole = [jsonlib.loads(line) for line in text.split("\n") if line.strip()]
        except ValueError as exc:
            fail("invalidEntry", f"standard input is not JSON: {exc}")
    found = cast("list[Any]", whole) if isinstance(whole, list) else [whole]
    if not found:
        fail("invalidEntry", "standard input holds no entries")
    return found


def draft(
    ref: RefOrLast = "last",
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Keep this as the draft.", show_default=False)
    ] = None,
    *,
    clear: Annotated[bool, typer.Option("--clear", help="Forget the draft.")] = False,
    json: Json = False,
) -> None:
    """Print the prompt that was not sent yet, or keep one.

    Examples: `dshd draft last`, `dshd draft last "Now the tests"`, `dshd draft last --clear`
    """
    if clear and text is not None:
        raise typer.BadParameter("name a text or --clear, not both", param_hint="TEXT")

    async def work(client: Client) -> None:
        params: dict[str, Any] = {"sessionId": await resolve(client, ref)}
        if clear or text is not None:
            params["text"] = None if text is None else argument(text)
        result = await client.request("session/draft", params)
        if json:
            put_json(result)
        elif result["text"] is not None:
            for line in clean_lines(result["text"]):
                put(line)
        elif not clear and screen().is_terminal:
            put(screen().paint("  no draft", "dim"))

    run(work)


def archive(ref: Ref, *, on: On = True, json: Json = False) -> None:
    """Take a session out of the list (`list --archived` shows it); its file is untouched."""
    _mark("session/archive", ref, on, json, ("archived", "no longer archived"))


def pin(ref: Ref, *, on: On = True, json: Json = False) -> None:
    """Mark a session as one to keep at hand; its file is untouched."""
    _mark("session/pin", ref, on, json, ("pinned", "no longer pinned"))


def _mark(method: str, ref: str, on: bool, json: bool, words: tuple[str, str]) -> None:
    async def work(client: Client) -> None:
        result = await client.request(method, {"sessionId": await resolve(client, ref), "on": on})
        if json:
            put_json(result)
        else:
            put(words[0] if on else words[1])

    run(work)


def delete(ref: Ref, *, json: Json = False) -> None:
    """Move a session's file to the trash."""

    async def work(client: Client) -> None:
        result = await client.request("session/delete", {"sessionId": await resolve(client, ref)})
        if json:
            put_json(result)
        else:
            where = result["trashPath"]
            put(f"moved to {clean(home(where))}" if where else "gone; it was in memory")

    run(work)
