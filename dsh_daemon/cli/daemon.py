"""Commands about the daemon and its surroundings: status, serve, stdio, stop, doctor, config, socket-path."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from .arguments import Json
from .call import Client, Refusal, connect, guard, program, put, put_json, run, screen
from .render import Part, Screen, cells, clean, cut, ending, facts, home, pad, plural

if TYPE_CHECKING:
    from dsh_daemon.config import Settings
    from dsh_daemon.paths import Folders
    from dsh_daemon.roots import Root

PREFIX = "DSHD_"
ERRORS = frozenset({"unreadable", "unreadable_line", "no_header", "broken_header", "database"})


def doctor(
    *,
    fix: Annotated[
        bool, typer.Option("--fix", help="Repair what can be repaired; the original is kept beside it.")
    ] = False,
    json: Json = False,
) -> None:
    """Check every session file and our own state; nothing is changed without --fix.

    The exit status is 0 whatever is found (1 where the check itself fails); `--json` is for scripts.
    """

    async def work(client: Client) -> None:
        result = await client.request("daemon/doctor", {"fix": True} if fix else {})
        if json:
            put_json(result)
        else:
            for line in doctor_lines(screen(), result, fix=fix):
                put(line)

    run(work)


def doctor_lines(view: Screen, result: dict[str, Any], *, fix: bool) -> Iterator[str]:
    """Each problem in two lines, then how many there are of each sort."""
    count = {"error": 0, "warning": 0, "skipped": 0}
    for problem in result["problems"]:
        code = problem["code"]
        sort = "error" if code in ERRORS else "skipped" if code == "skipped" else "warning"
        count[sort] += 1
        mark: Part = ("✗ ", "error") if sort == "error" else ("! ", "warn")
        note = [(f"{program()} doctor --fix", "dim")] if problem["fixable"] and not fix else []
        right = [(code, "dim")]
        path = ending(clean(home(problem["path"])), view.room([mark], right))
        yield view.fit([mark], (path, ""), right)
        if not note:
            yield from view.note(clean(problem["detail"]))
        else:
            yield view.fit([("  ", "")], (clean(problem["detail"]), "dim"), note)
    for problem in result["fixed"]:
        path = clean(home(problem["path"]))
        yield view.fit([("✓ ", "good")], (path, ""), [("repaired: " + problem["code"], "dim")])
    words = [f"{count['skipped']} skipped"] if count["skipped"] else []
    words += [plural(count[sort], sort) for sort in ("error", "warning") if count[sort]]
    words += [f"{len(result['fixed'])} repaired"] if result["fixed"] else []
    yield view.paint(f"{plural(result['checked'], 'file')} checked: {', '.join(words) or 'no problems'}", "dim")


def config(*, json: Json = False) -> None:
    """Print the settings in force, where each comes from, our folders, and the roots that are read.

    Counts are a running daemon's; none is started.
    """
    guard(lambda: _config(json))


def _config(json: bool) -> None:
    import asyncio

    from dsh_daemon.paths import folders

    where = folders()
    roots = [_root(root) for root in roots_in_force(where)]
    counted = {root["path"]: root["sessions"] for root in asyncio.run(_counted())}
    for root in roots:
        if root["path"] in counted:
            root["sessions"] = counted[root["path"]]
    settings, places = settings_in_force(where), _places(where)
    if json:
        put_json({"settings": settings, "folders": places, "roots": roots})
        return
    view = screen()
    put(view.paint("settings", "title"))
    for line in columns(view, [(name, _written(name, s["value"]), home(s["origin"])) for name, s in settings.items()]):
        put(line)
    put(view.paint("folders", "title"))
    shown = {name: home(path) for name, path in places.items()}
    shown["trash"] += " (ours)" if places["trash"] == str(where.trash) else " (the desktop's)"
    for line in facts(view, list(shown.items()), indent="  ", whole=shown):
        put(line)
    put(view.paint("roots", "title"))
    for line in columns(
        view, [(root["format"] or "any", home(root["path"]), root["origin"], _state(root)) for root in roots]
    ):
        put(line)


def columns(view: Screen, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows whose first and last cells are dim; a narrow terminal cuts the second, in which the place is."""
    rows = [tuple(map(clean, row)) for row in rows]
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    if view.width is not None:
        others = sum(widths) - widths[1] + 2 * len(widths)
        widths[1] = max(min(widths[1], view.width - others), 12)
    for row in rows:
        first, second, *rest = (pad(cut(text, width), width) for text, width in zip(row, widths, strict=True))
        yield view.clip(
            [(f"  {first}  ", "dim"), (second, ""), ("".join(f"  {text}" for text in rest).rstrip(), "dim")]
        )


def _written(name: str, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return ", ".join(f"{home(str(one))} = {home(str(other))}" for one, other in pairs) or "none"
    if isinstance(value, list):
        none = "none added" if name == "roots" else "none"
        return ", ".join(home(str(item)) for item in cast("list[Any]", value)) or none
    return "none" if value is None else str(value)


def _places(where: Folders) -> dict[str, str]:
    places = {
        "config_file": where.config_file,
        "sessions": where.sessions,
        "trash": _trash(where),
        "catalog": where.catalog_db,
        "search": where.search_db,
        "state": where.state_db,
        "log": where.log,
        "socket": where.socket,
    }
    return {name: str(path) for name, path in places.items()}


def _trash(where: Folders) -> Path:
    """The trash for what lies on the disk of our own store: the desktop's where that is on it, else ours."""
    data = os.environ.get("XDG_DATA_HOME", "")
    desktop = Path(data if os.path.isabs(data) else os.path.expanduser("~/.local/share")) / "Trash"
    return desktop if _device(desktop) == _device(where.sessions) else where.trash


def _device(path: Path) -> int:
    return next(folder.stat().st_dev for folder in (path, *path.parents) if folder.exists())


def _root(root: Root) -> dict[str, Any]:
    return {
        "path": root.path,
        "format": root.format,
        "origin": root.source,
        "reason": root.origin,
        "exists": root.exists,
        "readable": root.readable,
    }


def _state(root: dict[str, Any]) -> str:
    if not root["exists"]:
        return "not there"
    if not root["readable"]:
        return "not readable"
    return plural(root["sessions"], "session") if "sessions" in root else ""


async def _counted() -> list[dict[str, Any]]:
    try:
        async with connect(name="dshd", start=False) as client:
            return (await client.request("daemon/status"))["roots"]
    except OSError:
        return []


def roots_in_force(where: Folders) -> list[Root]:
    """The roots that a daemon started now would read."""
    from dsh_daemon.roots import discover

    return discover(str(where.sessions), os.environ, _settings(where).roots)


def _settings(where: Folders) -> Settings:
    from dsh_daemon.config import ConfigError, load

    try:
        return load(where)
    except ConfigError as exc:
        raise Refusal("config", str(exc)) from None


def settings_in_force(where: Folders) -> dict[str, dict[str, Any]]:
    """Each setting, dotted, with its value and origin: a variable's name, the file, or `default`."""
    values = _flat(_settings(where).model_dump(mode="json", by_alias=False))
    try:
        in_file = _flat(tomllib.loads(where.config_file.read_text()))
    except OSError:
        in_file = {}
    known = {name.replace("_", "").lower() for name in in_file}
    result: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        variable = PREFIX + name.replace(".", "__").upper()
        origin = "default"
        if variable in os.environ:
            origin = variable
        elif name.replace("_", "") in known:
            origin = str(where.config_file)
        result[name] = {"value": value, "origin": origin}
    return result


TABLES = {"cwd_aliases"}  # whose keys are the person's own


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and name not in TABLES:
            flat |= _flat(cast("dict[str, Any]", value), f"{before}{name}.")
        else:
            flat[before + name] = value
    return flat


def status(*, json: Json = False) -> None:
    """Say whether the daemon runs, who is connected, what it reads and watches. Starts none."""
    _direct("status", json=json)


def serve(
    *,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay in the terminal.")] = False,
    socket: Annotated[str | None, typer.Option("--socket", metavar="PATH", help="Listen here instead.")] = None,
    tcp: Annotated[str | None, typer.Option("--tcp", metavar="HOST:PORT", help="Loopback too, with a token.")] = None,
) -> None:
    """Start the daemon; other commands do this by themselves.

    One that runs already is left as it is: it must be stopped first to listen elsewhere.

    Example: `dshd serve --foreground --tcp 127.0.0.1:0`
    """
    _direct("serve", foreground=foreground, socket=socket, tcp=tcp)


def stdio(
    *,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Serve in this process, without any socket.")
    ] = False,
) -> None:
    """Connect standard input and output to the daemon: what an editor starts."""
    _direct("stdio", standalone=standalone)


def stop(
    *,
    force: Annotated[bool, typer.Option("--force", help="At once, whatever is under way.")] = False,
    no_drain: Annotated[bool, typer.Option("--no-drain", help="Answer nothing more; writes are finished.")] = False,
    json: Json = False,
) -> None:
    """End the daemon once what was asked is answered, and wait until it has."""
    _direct("stop", force=force, no_drain=no_drain, json=json)


def socket_path(*, json: Json = False) -> None:
    """Print where the daemon listens."""
    _direct("socket-path", json=json)


def _direct(command: str, **options: bool | str | None) -> None:
    from dsh_daemon.__main__ import main

    arguments = [command]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value:
            arguments += [flag] if value is True else [flag, str(value)]
    raise SystemExit(main(arguments))
