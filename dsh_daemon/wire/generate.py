"""Write what is made from the method table, for readers and for clients: `python -m dsh_daemon.wire.generate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from dsh_daemon import PROTOCOL_VERSION, errors, types

from . import lua_types, ts_types
from .methods import ASKS, METHODS, NOTIFICATIONS, PUSHES

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "protocol-spec"
LUA = ROOT / "clients" / "nvim" / "lua" / "dsh" / "protocol.lua"
TYPESCRIPT = ROOT / "clients" / "vscode" / "src" / "protocol.ts"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
SHAPES = (types.Change, types.Diagnostic, types.Row, types.SessionInfo, types.SessionState)


def documents() -> dict[str, dict[str, Any]]:
    """Give the contents of the files in protocol-spec by name."""
    known: dict[Any, Any] = {}
    shapes: list[tuple[Any, Any]] = [((row.name, "params"), row.params) for row in METHODS.values()]
    shapes += [((row.name, "result"), row.result) for row in METHODS.values()]
    shapes += [((push.name, "params"), push.params) for push in PUSHES.values()]
    shapes += [((hook.name, "params"), hook.params) for hook in ASKS.values()]
    shapes += [((hook.name, "answer"), hook.answer) for hook in ASKS.values()]
    shapes += [((note.name, "sent"), note.params) for note in NOTIFICATIONS.values() if note.params]
    shapes += [(shape.__name__, shape) for shape in SHAPES]
    inputs: list[tuple[Any, Literal["validation"], TypeAdapter[Any]]] = [
        (key, "validation", TypeAdapter(_checked(shape, known))) for key, shape in shapes
    ]
    references, schema = TypeAdapter.json_schemas(inputs, ref_template="#/$defs/{model}")

    def of(name: str, part: str) -> Any:
        reference = references[(name, part), "validation"]
        return json.loads(json.dumps(reference).replace('"#/$defs/', '"schema.json#/$defs/'))

    requests = {
        row.name: {
            "summary": row.summary,
            "scope": row.scope,
            "params": of(row.name, "params"),
            "result": of(row.name, "result"),
            "errors": list(row.errors),
            "writes": row.writes if isinstance(row.writes, bool) else "depends on the params",
        }
        for row in METHODS.values()
    }
    pushes = {p.name: {"summary": p.summary, "params": of(p.name, "params")} for p in PUSHES.values()}
    faults = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.Fault)]
    hooks = {
        h.name: {"summary": h.summary, "params": of(h.name, "params"), "answer": of(h.name, "answer")}
        for h in ASKS.values()
    }
    table = {
        "protocolVersion": PROTOCOL_VERSION,
        "requests": requests,
        "hooks": hooks,
        "notifications": {
            "client": {
                note.name: {"summary": note.summary, **({"params": of(note.name, "sent")} if note.params else {})}
                for note in NOTIFICATIONS.values()
            },
            "daemon": pushes,
        },
        "errors": [{"code": cls.code, "kind": cls.kind} for cls in faults if cls is not errors.Fault],
    }
    return {"protocol.json": table, "schema.json": {"$schema": DIALECT, **schema}}


def stale() -> list[Path]:
    """Give the generated files that are not what the method table says."""
    return [path for path, text in _texts().items() if not path.exists() or path.read_text() != text]


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        old = stale()
        sys.stdout.write("".join(f"{path} is not fresh\n" for path in old))
        return int(bool(old))
    for path, text in _texts().items():
        path.write_text(text)
    return 0


def _texts() -> dict[Path, str]:
    contents = documents()
    texts = {SPEC / name: json.dumps(one, indent=1, ensure_ascii=False) + "\n" for name, one in contents.items()}
    texts[LUA] = lua_types.module(contents["protocol.json"], contents["schema.json"])
    texts[TYPESCRIPT] = ts_types.module(contents["protocol.json"], contents["schema.json"])
    return texts


def _checked(shape: Any, known: dict[Any, Any]) -> Any:
    """Rebuild a shape from TypedDicts of typing_extensions: pydantic takes no others before Python 3.12."""
    if is_typeddict(shape):
        if shape not in known:
            fields: dict[str, Any] = {}
            for name, hint in get_type_hints(shape, include_extras=True).items():
                optional = get_origin(hint) is NotRequired
                inner = _checked(get_args(hint)[0] if optional else hint, known)
                fields[name] = NotRequired[inner] if optional else inner
            known[shape] = TypedDict(shape.__name__, fields)  # type: ignore[operator]
        return known[shape]
    origin: Any = get_origin(shape)
    if origin is None or origin in {Literal, Annotated}:
        return shape
    inner = tuple(_checked(part, known) for part in get_args(shape))
    remade: Any = origin if origin in {list, dict, tuple} else Union
    return remade[inner]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
