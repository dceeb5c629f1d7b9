"""Commands that account for a session: turns, request, stats, transcript, and what a model would see of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from .arguments import EntryOrNone, Json, Ref, RefOrLast
from .call import (
    Client,
    Refusal,
    RpcError,
    argument,
    dump,
    find_entry,
    program,
    put,
    put_json,
    remark,
    resolve,
    run,
    screen,
)
from .complete import turn_numbers
from .render import Screen, cells, clean, cut, facts, home, message_lines, pad, plural, size, table

_ENDS = {
    "completed": ("done", "dim"),
    "interrupted": ("interrupted", "warn"),
    "aborted": ("aborted", "error"),
    "error": ("error", "error"),
}
_TOKENS = {"input": "input", "output": "output", "cacheRead": "cache read", "cacheWrite": "cache write"}

_LEAST = ("messages", "cache write", "cache read", "turns", "input", "output")  # columns, the least useful first
_NAMES = 20  # cells that names keep before a column is left out


class Document(StrEnum):
    markdown = "markdown"
    html = "html"
    jsonl = "jsonl"


def turns(ref: RefOrLast = "last", entry: EntryOrNone = None, *, json: Json = False) -> None:
    """List the turns on the way to the leaf, or to ENTRY: number, where it was closed, how it ended, its prompt.

    A turn reaches from a prompt to the last answer to it. The number goes to `dshd fork --turn` and `dshd request`.

    Example: `dshd turns last`
    """

    async def work(client: Client) -> None:
        result = await client.request("session/turns", await _at(client, ref, entry))
        if json:
            put_json(result)
            return
        view = screen()
        for line in turn_lines(view, result["turns"]):
            put(line)
        if view.is_terminal:
            derived = "by the messages alone: no marks of turns were written"
            for line in view.note(derived if result["turns"] else "no turns yet") if result["derived"] else ():
                put(line)
        elif not result["turns"]:
            remark("no turns yet")

    run(work)


async def _at(client: Client, ref: str, entry: str | None) -> dict[str, Any]:
    """Params that name a session, and an entry of it where one is meant."""
    session = await resolve(client, ref)
    place = {} if entry is None else {"entryId": await find_entry(client, session, entry)}
    return {"sessionId": session, **place}


def turn_lines(view: Screen, shown: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One line for each turn; a narrow terminal loses the least useful columns."""
    room = view.width or 1_000
    digits = max((len(str(turn["turn"])) for turn in shown), default=1)
    longest = max((cells(view.entry_id(turn["boundary"] or "")) for turn in shown), default=0)
    for turn in shown:
        kind = None if turn["reason"] is None else str(turn["reason"].get("kind"))
        word, style = ("open", "warn") if kind is None else _ENDS.get(kind, (clean(kind), "warn"))
        left = [(f"{turn['turn']:>{digits}}  ", "strong")]
        if room >= 50:
            left.append((pad(view.entry_id(turn["boundary"] or ""), longest) + "  ", "dim"))
        left.append((pad(word, 11) + "  ", style))
        if room >= 70:
            left.append((pad(plural(turn["steps"], "step"), 8) + "  ", "dim"))
        yield view.fit(left, (clean(turn["text"]), ""))


def request(
    ref: Ref,
    turn: Annotated[int, typer.Argument(metavar="TURN", min=1, help="Number of a turn.", autocompletion=turn_numbers)],
    step: Annotated[int, typer.Argument(metavar="STEP", min=1, help="Number of a step of it.")] = 1,
    *,
    at: Annotated[
        str | None, typer.Option("--at", metavar="ENTRY", help="On the way to this entry, not to the leaf.")
    ] = None,
    json: Json = False,
) -> None:
    """Show what was sent to the model in a recorded step, rebuilt from the log alone.

    Agents that work through the daemon record the header of each request; logs of other agents have none.

    Examples: `dshd request last 3`, `dshd request last 3 2 --json`
    """

    async def work(client: Client) -> None:
        params = {**await _at(client, ref, at), "turn": turn, "step": step}
        result = await _recorded(client, params)
        if json:
            put_json(result)
            return
        view = screen()
        _put_all(header_lines(view, result["header"]))
        show_messages(view, result["messages"])

    run(work)


async def _recorded(client: Client, params: dict[str, Any]) -> dict[str, Any]:
    """A request of the log; where it has none, say what it has instead. Raises Refusal."""
    try:
        return await client.request("session/request", params)
    except RpcError as exc:
        if exc.kind != "notRecorded":
            raise
        line = f"`{program()} show {shlex.quote(params['sessionId'])} ENTRY --context`"
        raise Refusal(exc.kind, f"{exc.message}; {line} shows what a model would see there") from None


def header_lines(view: Screen, header: dict[str, Any]) -> Iterator[str]:
    """The envelope of a request as its agent recorded it: settings, names of tools, system prompt."""
    config, tools = header.get("config"), header.get("tools")
    settings = cast("dict[str, Any]", config) if isinstance(config, dict) else {}
    pairs = [(clean(name), value if isinstance(value, str) else dump(value)) for name, value in settings.items()]
    if isinstance(tools, list):
        pairs.append(("tools", ", ".join(_tool(tool) for tool in cast("list[Any]", tools))))
    yield from facts(view, pairs, indent="  ")
    if system := header.get("system"):
        yield ""
        yield from message_lines(view, {"role": "system", "content": system})


def _tool(tool: Any) -> str:
    """Name of a tool in any provider's form."""
    fields = cast("dict[str, Any]", tool) if isinstance(tool, dict) else {}
    return str(fields.get("name") or _tool(fields.get("function")) if fields else "?")


async def show_context(client: Client, ref: str, entry: str | None, format_: str, *, json: bool) -> None:
    """Print what a model would see at a place (`dshd show --context`)."""
    result = await client.request("session/context", {**await _at(client, ref, entry), "format": format_})
    if json:
        put_json(result)
        return
    view = screen()
    pairs = [
        ("model", clean(result["models"].get("default", "-"))),
        ("thinking", result["thinkingLevel"]),
        ("mode", result["mode"]),
        ("messages", f"{len(result['messages']):,}"),
    ]
    pairs += [("rules", ", ".join(result["injectedRules"]))] if result["injectedRules"] else []
    pairs += [("compacted", f"from {result['compactedFrom']} on")] if "compactedFrom" in result else []
    _put_all(facts(view, pairs, indent="  "))
    if result.get("system"):
        put("")
        _put_all(message_lines(view, {"role": "system", "content": result["system"]}))
    show_messages(view, result["messages"])


def show_messages(view: Screen, messages: Sequence[dict[str, Any]]) -> None:
    for message in messages:
        put("")
        _put_all(message_lines(view, message))


def _put_all(lines: Iterator[str]) -> None:
    for line in lines:
        put(line)


def stats(ref: RefOrLast = "last", *, json: Json = False) -> None:
    """Show what a session took: turns, messages, tokens and cost, by model.

    What a fork or branch copied from its parent stands apart: it was paid for there.

    Example: `dshd stats last`
    """

    async def work(client: Client) -> None:
        result = await client.request("session/stats", {"sessionId": await resolve(client, ref)})
        if json:
            put_json(result)
            return
        view = screen()
        for number, line in enumerate(stats_lines(result, view.width)):
            put(view.paint(line, "" if number else "dim"))

    run(work)


def stats_lines(result: dict[str, Any], width: int | None) -> list[str]:
    """The table of what a session took; where it is too wide numbers are rounded, then names cut, then columns left."""
    rows = _stats_rows(result)
    if width is None or _wide(rows) <= width:
        return table(rows)
    rows = _stats_rows(result, rounded=True)
    for dropped in (*_LEAST, ""):
        names = max(cells(row[0]) for row in rows)
        room = width - (_wide(rows) - names)
        if room >= min(names, _NAMES) or not dropped:
            return table([[cut(row[0], max(room, 1)), *row[1:]] for row in rows])
        column = rows[0].index(next(head for head in rows[0] if head.strip() == dropped))
        rows = [row[:column] + row[column + 1 :] for row in rows]
    raise AssertionError("what is left after the last column is shown")


def _wide(rows: Sequence[Sequence[str]]) -> int:
    return max(map(cells, table(rows)))


def _stats_rows(result: dict[str, Any], *, rounded: bool = False) -> list[list[str]]:
    """Cells: the session, the way to its leaf, what it inherited, then each model."""
    rows = [["", "cost", "turns", "messages", *_TOKENS.values()]]
    named = [("this session", result), ("way to the leaf", result["activePath"]), ("inherited", result["inherited"])]
    rows += [[name, *_sums(sums, rounded=rounded)] for name, sums in named if name != "inherited" or sums["messages"]]
    models = sorted(result["models"].items(), key=lambda item: (-item[1]["cost"], item[0]))
    rows += [[f"  {clean(name)}", *_sums(sums, rounded=rounded)] for name, sums in models]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in rows]


def _sums(sums: dict[str, Any], *, rounded: bool) -> list[str]:
    shown = _rounded if rounded else "{:,}".format
    counts = [shown(sums[name]) if name in sums else "" for name in ("turns", "messages")]
    return [f"${sums['cost']:,.{2 if rounded else 4}f}", *counts, *(shown(sums["tokens"][name]) for name in _TOKENS)]


def _rounded(number: int) -> str:
    """`12345` as `12.3k`: three digits and what they count."""
    value = float(number)
    for unit in ("", "k", "M", "G"):
        if value < 1000 or unit == "G":
            return f"{value:.3g}{unit}"
        value /= 1000
    raise AssertionError("the last unit takes all")


def transcript(
    ref: RefOrLast = "last",
    entry: EntryOrNone = None,
    *,
    format_: Annotated[
        Document | None,
        typer.Option(
            "--format", "-f", metavar="FORMAT", help=f"{', '.join(Document)}.", show_default="by the name of the file"
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there, readable by you alone.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    json: Json = False,
) -> None:
    """Write the way to the leaf, or to ENTRY, as a document to read, to keep or to pass on.

    `html` is one page that needs nothing else and runs nothing; `jsonl` is the entries as they are stored.

    Examples: `dshd transcript last | less`, `dshd transcript last -o talk.html`
    """
    if output is not None and json:
        raise typer.BadParameter("--json goes to standard output", param_hint="--output")
    suffix = output.suffix.lstrip(".").lower() if output is not None else ""
    chosen = format_ or (Document(suffix) if suffix in list(Document) else Document.markdown)

    async def work(client: Client) -> None:
        result = await client.request("session/transcript", {**await _at(client, ref, entry), "format": chosen.value})
        if json:
            put_json(result)
        elif output is None:
            put(result["text"].removesuffix("\n"))
        else:
            data = result["text"].encode()
            _write(output, data, force=force)
            put(f"{clean(argument(home(str(output))))}  {size(len(data))}")

    run(work)


def _write(path: Path, data: bytes, *, force: bool) -> None:
    """Make a file that only its owner can read. Raises Refusal."""
    name = clean(argument(home(str(path))))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if force else os.O_EXCL), 0o600)
        with open(fd, "wb") as file:
            if force and os.path.isfile(path):
                os.fchmod(fd, 0o600)
            file.write(data)
    except FileExistsError:
        raise Refusal("alreadyExists", f"{name} is there already; --force overwrites it") from None
    except OSError as exc:
        raise Refusal("storageError", f"{name}: {exc.strerror}") from None
