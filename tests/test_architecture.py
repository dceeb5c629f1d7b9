"""The house rules that a reader cannot check by eye: which way imports point, and what no module may do."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dsh_daemon"

# From the ground up; a module imports its own layer's neighbours (where the layer allows it) and layers below.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "types", "entries", "text", "cwd", "holders", "aside", "shellwords"),
    ("paths", "naming", "patches", "tokens"),
    ("touches", "fulltext", "query"),
    ("database", "config"),
    ("log",),
    ("tree",),
    ("turns",),
    ("summaries",),
    ("layout", "rows", "context", "providers", "navigation", "branching", "markup"),
    ("compaction",),
    ("surface",),
    ("session",),
    ("driver",),
    ("dsh_driving", "native_driving"),
    ("dsh_fork", "dsh_repair"),
    ("child", "family", "guards", "stats", "transcript", "chunks", "traces"),
    ("agents", "hooks", "summarizer"),
    ("live", "roots", "catalog", "state"),
    ("search_index",),
    ("extract", "ranking", "orders"),
    ("hits",),
    ("walk", "items", "trash", "progress"),
    ("listing", "table", "watch", "doctor"),
    ("store",),
    ("manager",),
    ("reading", "changing", "background", "elsewhere", "indexing"),
    ("branches", "forks", "launching", "driving", "touched", "search"),
    ("asking",),
    ("service",),
    ("wire",),
    ("client",),
    ("cli", "__main__"),
    ("__init__",),
)
# Whose modules must not know what an event loop is.
SYNCHRONOUS = (
    "log",
    "tree",
    "rows",
    "query",
    "ranking",
    "hits",
    "context",
    "providers",
    "surface",
    "navigation",
    "compaction",
    "summaries",
    "text",
    "branching",
    "session",
    "catalog",
    "state",
    "store",
)
# A connection and a worker outlive a bug in one request; nothing else may swallow what it does not know.
BROAD_EXCEPT = {"wire/connection.py", "background.py", "wire/extensions.py", "client.py"}
PYGLS = {"wire/connection.py", "wire/server.py"}
HEAVY = ("pygls", "lsprotocol", "pydantic", "typer", "rich", "apsw", "watchfiles", "psutil", "asyncio")


each_module = pytest.mark.parametrize("name", sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")))


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse((PACKAGE / name).read_bytes())


def dotted(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".")


def layer_of(module: str) -> int | None:
    """The most exact match wins: `wire.types` before `wire`."""
    parts = module.split(".")
    for size in range(len(parts), 0, -1):
        for number, layer in enumerate(LAYERS):
            if ".".join(parts[:size]) in layer:
                return number
    return None


def for_types_only(tree: ast.Module) -> set[ast.AST]:
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            found.update(inner for statement in node.body for inner in ast.walk(statement))
    return found


def imports(name: str, *, with_types: bool = False) -> list[tuple[str, int]]:
    """Absolute names of what a module imports anywhere in it, with line numbers."""
    tree = parsed(name)
    skip = set() if with_types else for_types_only(tree)
    package = ["dsh_daemon", *name.split("/")[:-1]]
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if node in skip:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found += [(f"{source}.{alias.name}", node.lineno) for alias in node.names]
    return found


def inner_target(imported: str) -> str | None:
    """The module of ours that `imported` names (the last part may be a name inside it); None if not ours."""
    if imported != "dsh_daemon" and not imported.startswith("dsh_daemon."):
        return None
    parts = imported.split(".")[1:]
    while parts:
        path = PACKAGE.joinpath(*parts)
        if path.with_suffix(".py").exists() or (path / "__init__.py").exists():
            return ".".join(parts)
        parts.pop()
    return "__init__"


@each_module
def test_every_module_has_a_place_in_the_layers(name: str):
    assert layer_of(dotted(name).removesuffix(".__init__")) is not None, f"{name}: add it to LAYERS"


def test_the_layers_name_only_what_is_there():
    named = [name for layer in LAYERS for name in layer]
    assert len(named) == len(set(named))
    assert [name for name in named if not (PACKAGE / f"{name}.py").exists() and not (PACKAGE / name).is_dir()] == []


@each_module
def test_imports_point_downwards(name: str):
    module = dotted(name).removesuffix(".__init__")
    here = layer_of(module)
    upward = []
    for imported, number in imports(name):
        target = inner_target(imported)
        if target == "__init__" and imported.rpartition(".")[2] in {"PROTOCOL_VERSION", "__version__", "dsh_daemon"}:
            continue
        if target is not None and (there := layer_of(target)) is not None and here is not None and there > here:
            upward.append(f"{name}:{number} imports {imported}")
    assert upward == []


@each_module
def test_broad_excepts_stand_only_at_the_two_guards(name: str):
    broad = []
    for node in ast.walk(parsed(name)):
        if isinstance(node, ast.ExceptHandler) and ast.unparse(node.body[-1]) != "raise":
            caught = "" if node.type is None else ast.unparse(node.type)
            if not caught or re.search(r"\b(Base)?Exception\b", caught):
                broad.append(f"{name}:{node.lineno} except {caught}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            broad += [
                f"{name}:{node.lineno}" for arg in node.args if re.search(r"\b(Base)?Exception\b", ast.unparse(arg))
            ]
    assert len(broad) <= (1 if name in BROAD_EXCEPT else 0), broad


@each_module
def test_lines_are_split_on_newline_only(name: str):
    """A083: str.splitlines also splits on U+2028, U+0085 and others, which stand inside JSON strings."""
    uses = [n.lineno for n in ast.walk(parsed(name)) if isinstance(n, ast.Attribute) and n.attr == "splitlines"]
    assert uses == []


@each_module
def test_log_files_are_never_mapped(name: str):
    """A program that truncates a mapped file kills its reader."""
    assert not [where for where in imports(name) if where[0].split(".")[0] == "mmap"]


@each_module
def test_only_the_connection_knows_pygls(name: str):
    uses = [where for where in imports(name, with_types=True) if where[0].split(".")[0] in {"pygls", "lsprotocol"}]
    assert name in PYGLS or uses == []


@each_module
def test_the_core_knows_no_event_loop(name: str):
    if dotted(name).split(".")[0] in SYNCHRONOUS:
        assert not [where for where in imports(name) if where[0].split(".")[0] in {"asyncio", "pygls", "watchfiles"}]


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_importing_the_package_is_cheap():
    assert loaded_by("import dsh_daemon").isdisjoint(HEAVY)


def test_the_terminal_client_starts_without_the_server():
    """Importing pygls alone takes longer than `dshd status` may."""
    assert loaded_by("import dsh_daemon.__main__").isdisjoint(("pygls", "lsprotocol", "pydantic", "typer", "apsw"))


def tracked_files() -> list[Path]:
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    ours = ("-c", f"safe.directory={ROOT}")
    listed = subprocess.run(["git", *ours, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


# npm puts the address of its registry into lock files; the public one is what others replace by their own.
PRIVATE_REGISTRY = re.compile(
    rb"https?://(?!registry\.npmjs\.org|pypi\.org)[\w.:-]*(?:pypi|npm|registry|artifact|nexus)[\w.-]*[/:]"
)


def places_of_this_machine() -> list[bytes]:
    """Where this checkout and this Python stand, unless that is a place which any text may name."""
    common = ("/usr", "/tmp", tempfile.gettempdir(), "/home/user")
    places = {str(ROOT), sys.prefix, sys.base_prefix}
    return [place.encode() for place in places if place.count("/") > 1 and not place.startswith(common)]


def test_no_file_names_this_machine_or_a_private_registry():
    found = []
    for path in tracked_files():
        data = path.read_bytes()
        found += [f"{path.relative_to(ROOT)}: {place!r}" for place in places_of_this_machine() if place in data]
        found += [f"{path.relative_to(ROOT)}: {hit.group()!r}" for hit in PRIVATE_REGISTRY.finditer(data)]
    assert found == []
