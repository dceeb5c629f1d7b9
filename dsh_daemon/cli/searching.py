"""`dshd search`: where something was said, the strongest hit of each session; without a query one types it live."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from .arguments import (
    Archived,
    Format,
    HereOnly,
    InFolder,
    InScope,
    Json,
    OfFormats,
    Subagents,
    choices,
    place_of,
)
from .call import (
    Client,
    argument,
    interactive,
    program,
    progress,
    put,
    put_json,
    read_state,
    remark,
    resolve,
    run,
    screen,
)
from .complete import refs
from .render import Info, Part, Screen, age, bullet, cells, clean, pad, plural, prefixes, session_state

ON_SCREEN = 20  # sessions, or entries of one, that are shown when no limit is named
Hit = dict[str, Any]
Result = dict[str, Any]

_AGO = re.compile(r"(\d{1,5})\s*(min|h|d|w)")
_UNITS = {"min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


Role = StrEnum("Role", ["user", "assistant", "tool", "bash", "summary", "compaction", "custom", "title", "label"])


class Branch(StrEnum):
    active = "active"
    abandoned = "abandoned"


def moment(text: str | None, option: str, *, end: bool = False) -> str | None:
    """The time that a person means: so long ago, a day (its `end`) or a time, of here where it names no zone."""
    if text is None:
        return None
    if ago := _AGO.fullmatch(text.strip()):
        when = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    else:
        try:
            when = datetime.fromisoformat(text.strip()).astimezone()
            if end and _is_day(text.strip()):
                when += timedelta(days=1, milliseconds=-1)
            return when.astimezone(UTC).isoformat(timespec="milliseconds")
        except (ValueError, OverflowError):
            what = f"{clean(text)!r} is no time: 2026-03-01, 2026-03-01T14:30, 3h, 2d, 1w"
            raise typer.BadParameter(what, param_hint=option) from None
    return when.isoformat(timespec="milliseconds")


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def search(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUERY", help="Words that one entry holds, or their beginnings; '\"a phrase\"'."),
    ] = None,
    *,
    in_: Annotated[
        str | None, typer.Option("--in", "-i", metavar="REF", help="Every hit of one session.", autocompletion=refs)
    ] = None,
    here_: HereOnly = False,
    cwd: InFolder = None,
    scope: InScope = None,
    format_: OfFormats = None,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", "-r", metavar="ROLE", help=f"Who says it: {', '.join(Role)}; several by commas."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From then on: 2026-03-01, 3h, 2d, 1w ago.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Up to then, a whole day too.")] = None,
    labeled: Annotated[bool, typer.Option("--labeled", help="Only entries that have a label.")] = False,
    branch: Annotated[
        Branch | None,
        typer.Option("--branch", metavar="BRANCH", help="On the way to the leaf (active), or elsewhere (abandoned)."),
    ] = None,
    archived: Archived = False,
    subagents: Subagents = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="At most so many, 0 for all.")
    ] = ON_SCREEN,
    json: Json = False,
) -> None:
    """Find what was said and done in all sessions: prompts, answers, tool calls and results, titles and labels.

    Every branch is searched, what was compacted away too. Nothing in a query is an operator. On a terminal without
    a QUERY you type it live, choose with the arrows, and Enter shows the entry.

    Examples: `dshd search redirect`, `dshd search '"query string"' --role user --since 2w`, `dshd search 마이그레이`
    """
    query = argument(" ".join(words or []))
    if not query.replace('"', "").strip() and (json or not interactive()):
        raise typer.BadParameter("what to look for? (without it a terminal is needed, to type it)", param_hint="QUERY")
    place = place_of(here_, cwd, scope)
    where: dict[str, Any] = {
        "cwd": place, "scope": scope if place else None,
        "formats": choices(Format, format_, "--format"), "roles": choices(Role, role, "--role"),
        "since": moment(since, "--since"), "until": moment(until, "--until", end=True),
        "labeled": labeled, "branch": branch, "archived": archived, "subagents": subagents,
    }  # fmt: skip
    params: dict[str, Any] = {"query": query, "where": {name: value for name, value in where.items() if value}}

    async def work(client: Client) -> None:
        if in_ is not None:
            params["sessionId"] = await resolve(client, in_)
        if not query.replace('"', "").strip():
            from .picker import pick

            await pick(client, params)
        elif json:
            put_json(await pages(client, params, limit or None))
        else:
            await _show(client, params, limit or None)

    run(work)


async def pages(client: Client, params: dict[str, Any], most: int | None) -> Result:
    """The hits of one session, or the sessions with hits: the pages of all cursors joined, at most so many items.

    It is waited for the index while that is built (for a while); a terminal is told how far it is.
    """
    method = "search/entries" if "sessionId" in params else "search/sessions"
    asked = {**params, "workDoneToken": "search"}
    if sys.stderr.isatty():
        client.on("$/progress", progress)
    merged: Result = {"items": []}
    while True:
        left = 1_000 if most is None else most - len(merged["items"])
        page = await client.request(method, {**asked, "limit": left})
        merged = {**page, "items": merged["items"] + page["items"]}
        if "nextCursor" not in page or (most is not None and len(merged["items"]) >= most):
            return merged
        asked["cursor"] = merged.pop("nextCursor")


async def _show(client: Client, params: dict[str, Any], most: int | None) -> None:
    view = screen()
    result = await pages(client, params, most)
    items, alone = result["items"], "sessionId" in params
    if alone:
        info = await read_state(client, params["sessionId"])
        lines = [head_line(view, info, info["sessionId"]), *(hit_line(view, hit) for hit in items)] if items else []
    else:
        lines = list(session_hits(view, items))
    for line in lines:
        put(line)
    notes = _notes(result, "hit" if alone else "session", shown=len(items))
    for note in notes if view.is_terminal else ():
        for line in view.note(note):
            put(line)
    if not view.is_terminal:
        for note in filter(None, ("" if items else next(notes), unsearched(result))):
            remark(note)


def _notes(result: Result, what: str, shown: int) -> Iterator[str]:
    if not shown:
        yield f"no {what} has that" if what == "session" else "nothing in this session has that"
    elif "nextCursor" in result:
        yield f"the strongest {plural(shown, what)}; `--limit 0` shows all"
    if shown and what == "session" and any(_has_more(item) for item in result["items"]):
        yield f"every hit of one: `{program()} search … --in ID`"
    if unread := unsearched(result):
        yield unread


def _has_more(item: Result) -> bool:
    """Whether a session has hits beside the one that is shown: a title is not counted among them."""
    return item["hits"] > (item["best"]["role"] != "title")


def unsearched(result: Result) -> str:
    """Which part of what was asked for is not in the index yet, in words; "" where all is."""
    coverage = result.get("coverage", {"indexed": 0, "total": 0})
    left = coverage["total"] - coverage["indexed"]
    return f"{left:,} of {plural(coverage['total'], 'session')} are not searched yet: the index is being built" * (
        left > 0
    )


def session_hits(view: Screen, items: Sequence[Result]) -> Iterator[str]:
    """Each session with its strongest hit."""
    ids = [str(item["session"]["sessionId"]) for item in items]
    for item, ref in zip(items, ids if view.width is None else prefixes(ids), strict=True):
        yield head_line(view, item["session"], ref, item["hits"])
        yield hit_line(view, item["best"])


def head_line(view: Screen, info: Info, ref: str, hits: int = 0, *, mark: Sequence[Part] = ()) -> str:
    """The line of a session: its title, then what tells it from others and what names it to other commands."""
    about = [info["format"], age(info["lastActivityAt"]), *session_state(info)]
    about += [plural(hits, "hit")] if hits else []
    return view.fit(
        [*mark, bullet(info), (" ", "")],
        (clean(info["title"]), "dim" if info["archived"] else "title"),
        [(clean(" · ".join([*about, ref])), "dim")],
    )


def hit_line(view: Screen, hit: Hit, *, mark: str = "  ", ids: bool = True) -> str:
    """A hit: its entry, who says it, the words around what was found; at the edge turn and time, or where it hangs."""
    left: list[Part] = [(mark, "leaf")]
    if ids and (view.width is None or view.width >= 60):
        left.append((pad(view.entry_id(hit["entryId"] or ""), 8) + "  ", "dim"))
    word = hit["role"] if hit["role"] in {"title", "label"} else hit["kind"]
    left.append((pad(clean(word), 9) + "  ", word if word in {"user", "assistant", "label"} else "kind"))
    right = _marks(hit) if view.width is None or view.width >= 72 else []
    return view.fit_all(left, list(marked(hit["snippet"], hit["ranges"], view.room(left, right))), right)


def _marks(hit: Hit) -> list[Part]:
    words = [f"turn {hit['turn']}"] if "turn" in hit else []
    words += ["other branch"] if hit["branch"] == "abandoned" else ["compacted"] if hit["compacted"] else []
    return [(" · ".join([*words, age(hit["timestamp"])]), "dim")]


def marked(text: str, ranges: Sequence[Sequence[int]], room: int | None) -> Iterator[Part]:
    """A snippet with what was found in it; of one that is too long for `room` cells the first find is seen."""
    start = 0
    if room is not None and ranges and cells(text) > room and cells(text[: ranges[0][1]]) > room - 2:
        start = _start(text, ranges[0], room)
        yield "…", "dim"
    for begin, end in ranges:
        yield clean(text[start:begin]), ""
        yield clean(text[max(begin, start) : end]), "hit"
        start = max(end, start)
    yield clean(text[start:]), ""


def _start(text: str, find: Sequence[int], room: int) -> int:
    """Where a snippet may begin so that the find is in its middle, or its end at the edge."""
    start = find[0]
    while start > 0 and (cells(text[start - 1 : find[1]]) <= max(room // 2, 1) or cells(text[start - 1 :]) <= room - 1):
        start -= 1
    while text[start].isspace():
        start += 1
    return start
