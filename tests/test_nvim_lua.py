"""The Lua of the Neovim client: its view of the protocol is the published one, and its form is the agreed one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.wire.generate import LUA
from dsh_daemon.wire.methods import METHODS, NOTIFICATIONS, PUSHES

from .examples import examples
from .nvim import PLUGIN
from .peers.install import installed, npm

STYLUA = Path(__file__).parent / "stylua"
FILES = sorted(PLUGIN.rglob("*.lua"))
TYPES = LUA.read_text()
PLAIN = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "table": (dict, list)}


def classes() -> dict[str, dict[str, str]]:
    """The fields of each class with their types; `?` at the end of a name is kept."""
    found: dict[str, dict[str, str]] = {}
    for block in re.split(r"\n\n+", TYPES):
        name = re.search(r"^---@class (\S+)$", block, re.MULTILINE)
        if name:
            found[name[1]] = dict(re.findall(r"^---@field (\S+|\[string\]) (.+)$", block, re.MULTILINE))
    return found


CLASSES = classes()
REQUESTS = {
    name: (params, result)
    for name, params, result in re.findall(
        r'---@overload fun\(method: "([^"]+)", params: ([\w.]+), callback: fun\(.*?, result\?: (.+)\)\): integer', TYPES
    )
}


def parts(kind: str) -> list[str]:
    """The alternatives of a union, those in brackets and in `table<…>` as one."""
    found, depth = [""], 0
    for letter in kind:
        depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(letter, 0)
        if letter == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found


def fits(value: Any, kind: str, place: str) -> Iterator[str]:
    """What of a value, as Lua has it, is not as its type says."""
    alternatives = parts(kind)
    if len(alternatives) > 1:
        if all(list(fits(value, one, place)) for one in alternatives):
            yield f"{place}: {value!r} is no {kind}"
    elif kind.endswith("[]"):
        if not isinstance(value, list):
            yield f"{place}: {value!r} is no list"
            return
        inner = kind[:-2].removeprefix("(").removesuffix(")")
        for number, one in enumerate(value):
            yield from fits(one, inner, f"{place}[{number}]")
    elif kind.startswith("table<string, "):
        for name, one in value.items():
            if one is not None:
                yield from fits(one, kind.removeprefix("table<string, ").removesuffix(">"), f"{place}.{name}")
    elif kind in CLASSES:
        yield from fits_class(value, CLASSES[kind], place)
    elif kind.startswith('"') or kind in {"true", "false"}:
        if f'"{value}"' != kind and str(value).lower() != kind:
            yield f"{place}: {value!r} is not {kind}"
    elif kind != "any" and (not isinstance(value, PLAIN[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{place}: {value!r} is no {kind}"


def fits_class(value: Any, fields: dict[str, str], place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place}: {value!r} is no table"
        return
    known = {name.removesuffix("?"): kind for name, kind in fields.items()}
    for name, one in value.items():
        if one is None:  # nil in Lua
            if name in fields and "[string]" not in fields:
                yield f"{place}.{name} is nil"
        elif name in known:
            yield from fits(one, known[name], f"{place}.{name}")
        elif "[string]" not in fields:
            yield f"{place}.{name} is not known"
    yield from (f"{place}.{name} is missing" for name in fields if name[-1] != "?" and name not in {*value, "[string]"})


def test_the_generated_types_hold_for_every_published_example() -> None:
    assert set(REQUESTS) == set(METHODS)
    seen, misfits = 0, []
    for example in examples():
        if example.accepted and example.method in REQUESTS and example.answer and example.answer["result"] is not None:
            params, result = REQUESTS[example.method]
            if (
                METHODS[example.method].params.model_config["extra"] == "forbid"
            ):  # an editor may send more to the others
                misfits += fits(example.request.get("params") or {}, params, f"{example.name}: params")
            misfits += fits(example.answer["result"], result, f"{example.name}: result")
            seen += 1
    assert seen > 100
    assert misfits == []


def test_the_types_can_say_no() -> None:
    row = {"id": "a", "depth": 0, "gutter": "", "kind": "user", "type": "message", "text": "", "active": True}
    assert list(fits({**row, "leaf": True, "children": 0}, "dsh.Row", "row")) == []
    assert list(fits({**row, "leaf": 1, "kind": "human", "more": 1}, "dsh.Row", "row")) == [
        "row.kind: 'human' is no " + CLASSES["dsh.Row"]["kind"],
        "row.leaf: 1 is no boolean",
        "row.more is not known",
        "row.children is missing",
    ]


def test_the_client_names_no_method_that_the_protocol_has_not() -> None:
    known = {*METHODS, *NOTIFICATIONS, *PUSHES}
    areas = "|".join(sorted({name.split("/")[0] for name in known if name[0] != "$"}))
    named = {name for path in FILES if path != LUA for name in re.findall(rf'"((?:{areas}|\$)/\w+)"', path.read_text())}
    assert len(named) > 20
    assert named - known == set()


def test_lua_is_formatted_by_stylua() -> None:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("node and npm are needed")
    manifests = [STYLUA / "package.json", STYLUA / "package-lock.json"]
    modules = installed("stylua", manifests, lambda folder: npm(folder, "ci"))
    command = [node, str(STYLUA / "format.mjs"), "--check", str(modules), str(PLUGIN / "stylua.toml")]
    done = subprocess.run([*command, *map(str, FILES)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
