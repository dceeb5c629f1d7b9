"""Commands that look and change nothing: list, tree, leaves, show, family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from .arguments import (
    Archived,
    EntryOrNone,
    Format,
    HereOnly,
    InFolder,
    InScope,
    Json,
    OfFormats,
    Ref,
    RefOrLast,
    Subagents,
    choices,
    place_of,
)
from .call import (
    Client,
    Refusal,
    dump,
    find_entry,
    program,
    put,
    put_json,
    read_state,
    remark,
    resolve,
    run,
    screen,
    whole_list,
    windows,
)
from .complete import entries
from .render import (
    Screen,
    age,
    clean,
    entry_lines,
    facts,
    home,
    pad,
    plural,
    prefixes,
    row_line,
    session_facts,
    session_line,
    session_lines,
    size,
)
from .reporting import show_context

ON_SCREEN = 30  # sessions that a terminal shows when no limit is named


class Sort(StrEnum):
    by_activity = "lastActivity"
    by_birth = "created"
    by_title = "title"
    by_size = "size"


class Tail(StrEnum):
    done = "done"
    open = "open"
    interrupted = "interrupted"
    aborted = "aborted"
    error = "error"
    pending_tool = "pendingTool"
    empty = "empty"


class ContextFormat(StrEnum):
    agent = "agent"
    openai = "openai"
    anthropic = "anthropic"


class Filter(StrEnum):
    default = "default"
    no_tools = "no-tools"
    user_only = "user-only"
    labeled_only = "labeled-only"
    all = "all"


def list_sessions(
    *,
    query: Annotated[
        str | None, typer.Option("--query", "-q", metavar="WORDS", help="In title, prompt, folder or id.")
    ] = None,
    here_: HereOnly = False,
    cwd: InFolder = None,
    scope: InScope = None,
    format_: OfFormats = None,
    tail: Annotated[
        list[str] | None,
        typer.Option("--tail", metavar="TAIL", help=f"How it ends: {', '.join(Tail)}; several by commas."),
    ] = None,
    named: Annotated[bool, typer.Option("--named", help="Only sessions that somebody gave a title.")] = False,
    archived: Archived = False,
    subagents: Subagents = False,
    sort: Annotated[Sort, typer.Option(metavar="KEY", help=f"{', '.join(Sort)}.")] = Sort.by_activity,
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="Smallest or oldest first.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", metavar="N", min=0, help="At most so many, 0 for all.", show_default="30 on a terminal"
        ),
    ] = None,
    skipped: Annotated[bool, typer.Option("--skipped", help="Show the files that are not listed, and why.")] = False,
    json: Json = False,
) -> None:
    """List the sessions of every agent, the latest first.

    What did the restart cut off? `dshd list --tail open,interrupted,pendingTool`

    Examples: `dshd list`, `dshd list --here`, `dshd list -q redirect -f pi`
    """
    params: dict[str, Any] = {"sort": sort.value, "order": "asc" if reverse else "desc"}
    place = place_of(here_, cwd, scope)
    formats, tails = choices(Format, format_, "--format"), choices(Tail, tail, "--tail")
    options = {"query": query, "formats": formats, "tail": tails, "cwd": place, "scope": scope if place else None}
    filters: dict[str, Any] = {name: value for name, value in options.items() if value}
    flags = {"named": named, "archived": archived, "subagents": subagents}
    filters |= {name: True for name, on in flags.items() if on}
    params |= filters

    async def work(client: Client) -> None:
        view = screen()
        most = ON_SCREEN if limit is None and view.is_terminal and not json else limit or None
        result = await whole_list(client, params, most)
        if json:
            put_json(result)
        elif skipped:
            for item in result["skipped"]:
                put(f"{clean(item['path'])}  {clean(item['reason'])}")
        else:
            for line in list_lines(view, result, filtered=bool(filters)):
                put(line)
            if not result["items"] and not view.is_terminal:
                remark(_nothing(filtered=bool(filters)))

    run(work)


def list_lines(view: Screen, result: dict[str, Any], *, filtered: bool) -> Iterator[str]:
    """The sessions, and on a terminal what is not among them."""
    yield from session_lines(view, result["items"])
    if not view.is_terminal:
        return
    notes: list[str] = []
    if not result["items"]:
        notes.append(_nothing(filtered=filtered))
    elif result["total"] > len(result["items"]):
        notes.append(f"{len(result['items'])} of {plural(result['total'], 'session')}, `--limit 0` shows all")
    if result["skipped"]:
        notes.append(f"{plural(len(result['skipped']), 'file')} skipped, `--skipped` says why")
    if notes:
        yield from view.note(" · ".join(notes))


def _nothing(*, filtered: bool) -> str:
    """What is said where no session is listed."""
    nothing = f"no sessions; `{program()} config` shows where they are looked for, `{program()} demo` how it looks"
    return "no session matches" if filtered else nothing


def tree(
    ref: RefOrLast = "last",
    *,
    filter_: Annotated[
        Filter, typer.Option("--filter", "-f", metavar="FILTER", help=f"{', '.join(Filter)}.")
    ] = Filter.default,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Every entry; the same as --filter all.")] = False,
    query: Annotated[
        str | None, typer.Option("--query", "-q", metavar="WORDS", help="Words that a row must hold.")
    ] = None,
    around: Annotated[
        str | None,
        typer.Option("--around", metavar="ENTRY", help="Only a window around this entry.", autocompletion=entries),
    ] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="ENTRY", help="Only the rows below this entry.")] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Each branch without the leaf as one line.")] = False,
    family: Annotated[bool, typer.Option("--family", help="Branches that are files of their own, too.")] = False,
    start: Annotated[int | None, typer.Option("--start", metavar="N", min=0, help="First row of the window.")] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, max=5000, help="Rows in it.")
    ] = None,
    ids: Annotated[bool, typer.Option("--ids/--no-ids", help="The column of entry ids.")] = True,
    json: Json = False,
) -> None:
    """Draw the tree of a session: the branch with the leaf first, other branches dim.

    Examples: `dshd tree`, `dshd tree last --fold`, `dshd tree redirect --around leaf -n 20`
    """
    params: dict[str, Any] = {"filter": "all" if all_ else filter_.value}
    params |= {name: value for name, value in {"query": query, "family": family}.items() if value}

    async def work(client: Client) -> None:
        session = params["sessionId"] = await resolve(client, ref)
        if at:
            params["at"] = await find_entry(client, session, at)
        if fold:
            params["collapsed"] = await other_branches(client, params)
        if around is None and start is None and count is None:
            await (_whole_json(client, params) if json else show_tree(client, params, ids=ids))
            return
        if around:
            params["around"] = await find_entry(client, session, around)
        window = {"start": start, "count": count or (_screenful() if around else None)}
        params.update({name: value for name, value in window.items() if value is not None})
        page = await client.request("session/tree", params)
        if json:
            put_json(page)
        else:
            _show_window(page, ids=ids)

    run(work)


def _screenful() -> int:
    import shutil

    return max(10, shutil.get_terminal_size().lines - 4)


def _show_window(page: dict[str, Any], *, ids: bool) -> None:
    view = screen()
    for row in page["rows"]:
        put(row_line(view, row, ids=ids))
    if view.is_terminal and len(page["rows"]) < page["total"]:
        last = page["start"] + len(page["rows"])
        put(view.paint(f"  rows {page['start'] + 1:,} to {last:,} of {page['total']:,}", "dim"))


async def show_tree(client: Client, params: dict[str, Any], *, ids: bool = True) -> None:
    """Print a whole tree window by window under the line of its session."""
    view = screen()
    put(session_line(view, await read_state(client, params["sessionId"])))
    drawn = 0
    async for page in windows(client, params):
        for row in page["rows"]:
            put(row_line(view, row, ids=ids))
        drawn += len(page["rows"])
    if not drawn and view.is_terminal:
        more = "" if params["filter"] == "all" else "; `--all` shows hidden entries too"
        put(view.paint("  nothing to draw" + more, "dim"))


async def _whole_json(client: Client, params: dict[str, Any]) -> None:
    # Windows of different revisions do not fit together, so a change in between starts over.
    for _ in range(5):
        parts: list[str] = []
        head: dict[str, Any] = {}
        async for page in windows(client, params, count=5000):
            if head and (page["epoch"], page["revision"]) != (head["epoch"], head["revision"]):
                break
            head = head or {name: value for name, value in page.items() if name != "rows"}
            parts += [dump(page["rows"], pretty=False)[1:-1]] if page["rows"] else []
        else:
            put(dump(head, pretty=False)[:-1] + ',"rows":[' + ",".join(parts) + "]}")
            return
    raise Refusal("busy", "the session keeps changing; `--count` asks for one window")


async def other_branches(client: Client, params: dict[str, Any]) -> list[str]:
    """Where each branch leaves the path to the leaf."""
    active: set[str] = set()
    tops: list[str] = []
    async for page in windows(client, {**params, "textLimit": 1}, count=5000):
        for row in page["rows"]:
            if row["active"]:
                active.add(row["id"])
            elif row["children"] and (row["parentId"] is None or row["parentId"] in active):
                tops.append(row["id"])
    return tops


def leaves(ref: RefOrLast = "last", *, json: Json = False) -> None:
    """List the tips of all branches; any of them is a place to go back to.

    Example: `dshd leaves last`, then `dshd navigate last ENTRY`
    """

    async def work(client: Client) -> None:
        result = await client.request("session/leaves", {"sessionId": await resolve(client, ref)})
        if json:
            put_json(result)
            return
        view = screen()
        for item in result["items"]:
            when = pad(age(item["timestamp"]), 11)
            left = [(pad(view.entry_id(item["entryId"]), 8), "dim"), (f"  {when}  {item['entries']:>6,}  ", "dim")]
            marks = [("⚑ " + clean(item["label"]), "label")] if item.get("label") else []
            if item["active"]:
                marks += [("  ", ""), ("← leaf", "leaf")] if marks else [("← leaf", "leaf")]
            put(view.fit(left, (clean(item["text"]), "" if item["active"] else "dim"), marks))
        if not result["items"]:
            put(view.paint("  no entries yet", "dim")) if view.is_terminal else remark("no entries yet")

    run(work)


def show(
    ref: RefOrLast = "last",
    entry: EntryOrNone = None,
    *,
    context: Annotated[
        bool, typer.Option("--context", help="What a model would see at the leaf, or at the entry.")
    ] = False,
    format_: Annotated[
        ContextFormat | None,
        typer.Option("--format", "-f", metavar="FORMAT", help=f"Of --context: {', '.join(ContextFormat)}."),
    ] = None,
    json: Json = False,
) -> None:
    """Show what is known of a session, one entry in full, or the context of a model.

    Examples: `dshd show last`, `dshd show last leaf`, `dshd show last --context --format openai --json`
    """
    if format_ is not None and not context:
        raise typer.BadParameter("it goes with --context", param_hint="--format")

    async def work(client: Client) -> None:
        if context:
            await show_context(client, ref, entry, format_ or ContextFormat.agent, json=json)
            return
        session = await resolve(client, ref)
        if entry is None:
            state = await read_state(client, session)
            if json:
                put_json(state)
            else:
                _show_state(state)
            return
        params = {"sessionId": session, "ids": [await find_entry(client, session, entry)]}
        result = await client.request("session/entries", params)
        if json:
            put_json(result)
            return
        for found in result["entries"]:
            for line in entry_lines(screen(), found):
                put(line)

    run(work)


def _show_state(state: dict[str, Any]) -> None:
    view = screen()
    put(session_line(view, state))
    turn = state["openTurn"]
    pairs = [
        ("id", state["sessionId"]),
        ("file", home(state["path"]) if state["path"] else "in memory"),
        ("folder", home(state["cwd"] or "-") + ("" if state["cwdExists"] else " (gone)")),
        ("created", state["createdAt"] or "-"),
        ("last activity", state["lastActivityAt"] or "-"),
        ("size", size(state["sizeBytes"])),
        ("entries", f"{state.get('entryCount', 0):,}, of these {plural(state.get('messageCount', 0), 'message')}"),
        ("model", state.get("model") or "-"),
        ("leaf", state["leafId"] or "before the first entry"),
        ("parent", state["parentSessionId"] or "-"),
        ("turn", f"{turn['turn']} is open" if turn else "none open"),
    ]
    for line in facts(view, pairs, indent="  ", whole=("id", "file")):
        put(line)
    for problem in state.get("diagnostics", []):
        style = {"error": "error", "warning": "warn"}.get(problem["severity"], "dim")
        where = f"line {problem['line']}: " if "line" in problem else ""
        put(view.fit([("  ! ", style)], (clean(f"{where}{problem['message']}"), style), [(problem["code"], "dim")]))


def family(ref: Ref, *, json: Json = False) -> None:
    """Show the sessions that were branched or forked from one another."""

    async def work(client: Client) -> None:
        session = await resolve(client, ref)
        result = await client.request("session/family", {"sessionId": session})
        if json:
            put_json(result)
            return
        listed = await whole_list(client, {"archived": True, "subagents": True})
        for line in family_lines(screen(), result, listed["items"], session):
            put(line)

    run(work)


def family_lines(view: Screen, family: dict[str, Any], listed: list[dict[str, Any]], this: str) -> Iterator[str]:
    """Each session below the one that it came from, with what the list says of it."""
    infos = {info["sessionId"]: info for info in listed}
    ids = [member["sessionId"] for member in family["sessions"]]
    short = dict(zip(ids, prefixes(ids), strict=True))
    for id_, rails in _descent(family["sessions"], family["root"]):
        info = infos.get(id_)
        title, about = (info["title"], " · ".join(session_facts(info))) if info else (id_, "not listed")
        about = " · ".join(filter(None, (about, short.get(id_, ""))))
        marks = [(clean(about), "dim")] + ([("  ← this", "leaf")] if id_ == this else [])
        yield view.fit([(rails, "dim")], (clean(title), "title" if id_ == this else ""), marks)


def _descent(sessions: Iterable[dict[str, Any]], root: str) -> Iterable[tuple[str, str]]:
    """Each session below its parent, with what is drawn before it."""
    below: dict[str | None, list[str]] = {}
    for item in sessions:
        below.setdefault(item["parentSessionId"], []).append(item["sessionId"])
    waiting = [(root, "", "")]
    seen: set[str] = set()
    while waiting:
        id_, rails, under = waiting.pop()
        if id_ in seen:
            continue
        seen.add(id_)
        yield id_, rails
        children = [child for child in below.get(id_, []) if child not in seen]
        for child in reversed(children):
            last = child == children[-1]
            waiting.append((child, under + ("└─ " if last else "├─ "), under + ("   " if last else "│  ")))
