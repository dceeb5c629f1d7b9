"""Where session files are looked for: the agents' own folders, what their variables say, our own store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from glob import glob
from typing import Literal, NamedTuple, cast

from .log.recover import loads
from .types import Format

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_FORMATS: tuple[Format, ...] = ("native", "pi", "omp", "dsh", "claude", "codex")


class Root(NamedTuple):
    path: str  # absolute, `~` and variables expanded
    format: Format | None  # what an empty file in it counts as; everything else is told by content
    origin: str  # why it is a root

    @property
    def source(self) -> Literal["native", "default", "environment", "config", "opened"]:
        """Where it comes from, in the word of the protocol."""
        words: dict[str, Literal["native", "config", "opened"]] = {
            "our own store": "native", "config": "config", "opened by path": "opened",
        }  # fmt: skip
        return words.get(self.origin) or ("default" if self.origin.startswith("default ") else "environment")

    @property
    def exists(self) -> bool:
        return os.path.isdir(self.path)

    @property
    def readable(self) -> bool:
        return os.access(self.path, os.R_OK | os.X_OK)


def discover(native: str, env: Mapping[str, str] | None = None, configured: Iterable[str] = ()) -> list[Root]:
    """All roots, our own store `native` first; one of each real folder, the first mention counts.

    With `DSHD_ROOTS` set (also to nothing) only those and our own store. `configured` come from the config file and
    are written like the items of that variable: `path` or `format=path`.
    """
    env = os.environ if env is None else env
    roots = [Root(_absolute(native, env), "native", "our own store")]
    named = env.get("DSHD_ROOTS")
    if named is not None:
        roots += [_named(item, env, "DSHD_ROOTS") for item in named.split(os.pathsep) if item.strip()]
    else:
        roots += [_named(item, env, "config") for item in configured]
        roots += of_agents(env)
    seen: set[str] = set()
    return [root for root in roots if not ((real := os.path.realpath(root.path)) in seen or seen.add(real))]


def expand(path: str, env: Mapping[str, str]) -> str:
    """Expand `~`, `$NAME` and `${NAME}`; unknown names stay as they are."""
    path = _VARIABLE.sub(lambda m: env.get(m[1] or m[2], m[0]), path.strip())
    if path == "~" or path.startswith("~/"):
        return _home(env) + path[1:]
    return os.path.expanduser(path)


def of_agents(env: Mapping[str, str]) -> list[Root]:
    """Where the agents keep their sessions by themselves, and where their variables and settings say."""
    home = _home(env)
    roots: list[Root] = []

    def add(path: str, format_: Format | None, origin: str) -> None:
        roots.append(Root(_absolute(path, env), format_, origin))

    agent = env.get("PI_CODING_AGENT_DIR")
    if agent:  # pi and omp read the same variable
        add(f"{agent}/sessions", None, "PI_CODING_AGENT_DIR")
    if env.get("PI_CODING_AGENT_SESSION_DIR"):
        add(env["PI_CODING_AGENT_SESSION_DIR"], "pi", "PI_CODING_AGENT_SESSION_DIR")
    for folder in filter(None, (agent, f"{home}/.pi/agent")):
        if setting := _session_dir(_absolute(folder, env)):
            add(setting, "pi", f"sessionDir in {folder}/settings.json")
    add(f"{home}/.pi/agent/sessions", "pi", "default of pi")

    omp = f"{home}/{env.get('PI_CONFIG_DIR') or '.omp'}"
    data = env.get("XDG_DATA_HOME") or f"{home}/.local/share"
    add(f"{omp}/agent/sessions", "omp", "default of omp")
    for path in sorted(glob(f"{omp}/profiles/*/agent")):
        add(f"{path}/sessions", "omp", f"omp profile {path.split('/')[-2]}")
    if os.path.isdir(f"{data}/omp"):
        add(f"{data}/omp/sessions", "omp", "omp under XDG_DATA_HOME")
        for path in sorted(glob(f"{data}/omp/profiles/*")):
            add(f"{path}/sessions", "omp", f"omp profile {os.path.basename(path)}")

    for name, folder, below, format_ in (
        ("DSH_HOME", ".dsh", ("sessions",), "dsh"),
        ("CLAUDE_CONFIG_DIR", ".claude", ("projects",), "claude"),
        ("CODEX_HOME", ".codex", ("sessions", "archived_sessions"), "codex"),
    ):
        for last in below:
            if env.get(name):
                add(f"{env[name]}/{last}", cast("Format", format_), name)
            add(f"{home}/{folder}/{last}", cast("Format", format_), f"default of {format_}")
    return roots


def _named(item: str, env: Mapping[str, str], origin: str) -> Root:
    format_, mark, path = item.strip().partition("=")
    if mark and format_ in _FORMATS:
        return Root(_absolute(path, env), format_, origin)
    return Root(_absolute(item, env), None, origin)


def _session_dir(agent: str) -> str | None:
    """Read pi's own setting; a relative one depends on where pi is started and names no root."""
    try:
        with open(f"{agent}/settings.json", "rb") as file:
            settings = loads(file.read(1 << 20))
    except (OSError, ValueError):
        return None
    value = cast("dict[str, object]", settings).get("sessionDir") if isinstance(settings, dict) else None
    return value if isinstance(value, str) and value.startswith(("/", "~", "$")) else None


def _home(env: Mapping[str, str]) -> str:
    return env.get("HOME") or os.path.expanduser("~")


def _absolute(path: str, env: Mapping[str, str]) -> str:
    return os.path.abspath(expand(path, env))
