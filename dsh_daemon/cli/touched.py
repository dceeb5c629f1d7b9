"""`dshd touched`: what the sessions did to a file, in the order in which they did it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from .arguments import Json
from .call import Client, argument, folder, program, put, put_json, remark, resolve, run, screen, short_ref, whole_list
from .complete import refs
from .render import (
    Part,
    Screen,
    bullet,
    cells,
    clean,
    clean_lines,
    home,
    pad,
    plural,
    prefixes,
    session_facts,
    short_id,
)

ON_SCREEN = 100  # touches that a terminal shows when no limit is named
Item = dict[str, Any]

_ANCHORED = ("/", "~", "./", "../")
_STYLES = {"read": "dim", "write": "strong", "edit": "strong", "shell": "kind"}
_SIGNS = {"+": "good", "-": "error", "@": "kind", "\\": "dim"}


def touched(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A file, or any end of its path: `src/config.ts`, `config.ts`.")
    ],
    *,
    in_: Annotated[
        str | None, typer.Option("--in", metavar="REF", help="Only in this session.", autocompletion=refs)
    ] = None,
    changes: Annotated[
        bool, typer.Option("--changes", "-c", help="Only what may have changed it, each with its change.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", metavar="N", min=0, help="Only the latest N, 0 for all.", show_default="100 on a terminal"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Tell which sessions read, wrote or edited a file, or named it in a shell command, the latest last.

    At which step did it break? `dshd touched src/config.ts --changes` has every change with its turn and step. Calls
    that failed and other branches are marked. Without --in, a PATH that is there from the current folder means that
    file; where nobody touched that one, and for any other PATH, every file whose path ends in it is meant.

    Examples: `dshd touched src/config.ts`, `dshd touched config.ts --in last -c`
    """
    meant = meanings(path, anywhere=in_ is not None)

    async def work(client: Client) -> None:
        view = screen()
        params: Item = {"changes": changes or not json}
        if in_ is not None:
            params["sessionId"] = await resolve(client, in_)
        most = ON_SCREEN if limit is None and view.is_terminal and not json else limit or None
        result, found = await _asked(client, params, meant, most)
        if json:
            put_json(result)
            return
        elsewhere = found != meant[0] and bool(result["items"])
        notes = _notes(result, path, meant[0] if elsewhere else "") if view.is_terminal else ()
        await _show(client, view, result["items"][::-1], notes, changes=changes)
        if not result["items"] and not view.is_terminal:
            remark(f"no session touched {argument(path)}")

    run(work)


def meanings(path: str, *, anywhere: bool) -> list[str]:
    """What a person may mean by a path, the likeliest first; `anywhere`: it is not theirs to say from which folder."""
    typed = argument(path)
    if typed.startswith(_ANCHORED):
        return [folder(typed)]
    return [folder(typed), typed] if os.path.lexists(typed) and not anywhere else [typed]


async def _asked(client: Client, params: Item, meant: Sequence[str], most: int | None) -> tuple[Item, str]:
    """The touches of the first of these paths that has any, and that path."""
    for path in meant[:-1]:
        result = await _pages(client, {**params, "path": path}, most)
        if result["items"]:
            return result, path
    return await _pages(client, {**params, "path": meant[-1]}, most), meant[-1]


async def _pages(client: Client, params: Item, most: int | None) -> Item:
    """`session/touched` with the pages of all cursors joined, at most so many items."""
    merged: Item = {}
    cursor: Item = {}
    while True:
        left = {} if most is None else {"limit": most - len(merged.get("items", ()))}
        page = await client.request("session/touched", {**params, **left, **cursor})
        page["items"] = [*merged.get("items", ()), *page["items"]]
        merged = page
        if "nextCursor" not in page or (most is not None and len(page["items"]) >= most):
            return merged
        cursor = {"cursor": page.pop("nextCursor")}


async def _show(client: Client, view: Screen, every: list[Item], notes: Iterable[str], *, changes: bool) -> None:
    items = [item for item in every if not changes or item["action"] != "read"]
    infos = await _infos(client) if items else {}
    for line in touched_lines(view, items, infos, changes=changes):
        put(line)
    for note in notes:
        for line in view.note(note):
            put(line)
    last = next((item for item in reversed(items) if item["action"] != "read" and "failed" not in item), None)
    if last is not None and view.is_terminal:
        ref = await short_ref(client, last["sessionId"])
        put("")
        for line in way_lines(view, ref, last, infos.get(last["sessionId"])):
            put(line)


async def _infos(client: Client) -> dict[str, Item]:
    listed = await whole_list(client, {"archived": True, "subagents": True})
    return {info["sessionId"]: info for info in listed["items"]}


def _notes(result: Item, path: str, untouched: str) -> Iterator[str]:
    """What else a person should know; `untouched`: the file that was meant, where only others are listed."""
    if not result["items"]:
        yield f"no session touched {clean(path)}"
    elif all(item["action"] == "read" for item in result["items"]):
        yield f"no session changed {clean(path)}"
    if untouched:
        yield f"no session touched {clean(home(untouched))}; these are other files of that name"
    for name, words in (("renamedFrom", "before, it was"), ("renamedTo", "after that, it is")):
        for other in dict.fromkeys(item[name] for item in result["items"] if name in item and "failed" not in item):
            yield f"{words} {clean(other)}: `{program()} touched {_typed(clean(other))}`"
    if "nextCursor" in result:
        yield f"the latest {len(result['items']):,} only, `--limit 0` shows all"
    coverage = result["coverage"]
    if unread := coverage["total"] - coverage["indexed"]:
        yield f"{plural(unread, 'session')} could not be read"


def _typed(path: str) -> str:
    """A path as an argument on a command line."""
    return ("-- " if path.startswith("-") else "") + shlex.quote(path)


def touched_lines(view: Screen, items: Sequence[Item], infos: dict[str, Item], *, changes: bool) -> Iterator[str]:
    """A line for each touch under its session, and below it what it changed."""
    steps = [_step(item) for item in items]
    width = max(map(cells, steps), default=0)
    ids = [str(item["sessionId"]) for item in items]
    short = dict(zip(ids, ids if view.width is None else prefixes(ids), strict=True))
    session = None
    for item, step in zip(items, steps, strict=True):
        if item["sessionId"] != session:
            session = item["sessionId"]
            yield _head(view, infos.get(session), short[session])
        yield touch_line(view, item, pad(step, width))
        if changes:
            yield from change_lines(view, item.get("change", ""))


def _head(view: Screen, info: Item | None, ref: str) -> str:
    """The line of a session, with what names it to other commands."""
    if info is None:
        return view.paint(clean(ref), "title")
    about = " · ".join([*session_facts(info), ref])
    return view.fit([bullet(info), (" ", "")], (clean(info["title"]), "title"), [(clean(about), "dim")])


def touch_line(view: Screen, item: Item, step: str) -> str:
    """When, in which turn and step, by which entry, what was done; at the edge how much it changed."""
    room = view.width or 1_000
    left: list[Part] = [(f"  {moment(view, item['timestamp'])}  ", "dim"), (f"{step}  ", "strong")]
    if room >= 60:
        left.append((f"{pad(view.entry_id(item['entryId']), 8)}  ", "dim"))
    left.append((f"{pad(item['action'], 5)}  ", _STYLES[item["action"]]))
    text = clean(item["path"])
    if item["action"] == "shell":
        text = clean(_command(item["text"]))
    elif to := item.get("renamedTo"):
        text += f" → {clean(to)}"
    elif old := item.get("renamedFrom"):
        text = f"{clean(old)} → {text}"
    dull = item["action"] == "read" or item["branch"] == "abandoned"
    return view.fit(left, (text, "error" if "failed" in item else "dim" if dull else ""), _marks(item))


def _step(item: Item) -> str:
    """`2.3` for the third step of the second turn."""
    return ".".join(str(item[name]) for name in ("turn", "step") if name in item) or "-"


def moment(view: Screen, stamp: str | None) -> str:
    """Local day and time of day; the whole time where nothing is cut, the time of day where there is little room."""
    if stamp is None or view.width is None:
        return stamp or "no time"
    when = datetime.fromisoformat(stamp).astimezone()
    return when.strftime("%Y-%m-%d %H:%M:%S" if view.width >= 80 else "%H:%M:%S")


def _command(text: str) -> str:
    """The command of a row's text: `[bash: ls]` or `$ ls`."""
    inner = text.partition(": ")[2].removesuffix("]") if text.startswith("[") else text.removeprefix("$ ")
    return inner or text


def _marks(item: Item) -> list[Part]:
    marks: list[Part] = []
    if change := item.get("change"):
        lines = change.split("\n")[2:]
        marks += [(f"+{sum(line[:1] == '+' for line in lines)} -{sum(line[:1] == '-' for line in lines)}", "dim")]
    if item["branch"] == "abandoned":
        marks.append(("other branch", "dim"))
    if "failed" in item:
        marks.append(("failed", "error"))
    return [part for mark in marks for part in (("  ", ""), mark)][1:]


def change_lines(view: Screen, change: str) -> Iterator[str]:
    """The hunks of a unified diff; its two head lines say what the line above says."""
    for line in clean_lines("\n".join(change.split("\n")[2:])) if change else ():
        yield view.fit([("      ", "")], (line, _SIGNS.get(line[:1], "dim")))


def way_lines(view: Screen, ref: str, item: Item, info: Item | None) -> Iterator[str]:
    """The commands that lead to the last change, or to before it."""
    dshd, entry, turn = program(), short_id(item["entryId"]), item.get("turn", 0)
    pairs = [(f"{dshd} replay {ref} --from {entry}", "goes through what happened from the last change on")]
    if info is None or info["format"] != "dsh":
        pairs.append((f"{dshd} navigate {ref} {entry}", "goes there, in the same session"))
    if turn > 1 and item["branch"] == "active":
        pairs.append((f"{dshd} fork {ref} --turn {turn - 1}", f"makes a new session that ends before turn {turn}"))
    width = max(cells(command) for command, _ in pairs)
    if view.width is not None and 4 + width + max(cells(text) for _, text in pairs) > view.width:
        for command, text in pairs:
            yield view.clip([("  ", ""), (command, "command")])
            yield from view.note(text, indent="    ")
        return
    for command, text in pairs:
        yield view.fit([("  ", ""), (pad(command, width), "command"), ("  ", "")], (text, "dim"))
