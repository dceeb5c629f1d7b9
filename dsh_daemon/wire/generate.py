"""Write protocol-spec/protocol.json and schema.json from the method table: `python -m dsh_daemon.wire.generate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from dsh_daemon import PROTOCOL_VERSION, errors, types

from .methods import METHODS, NOTIFICATIONS, PUSHES

SPEC = Path(__file__).resolve().parents[2] / "protocol-spec"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
SHAPES = (types.Change, types.Diagnostic, types.Row, types.SessionInfo, types.SessionState)


def documents() -> dict[str, dict[str, Any]]:
    """Give the contents of the generated files by name."""
    known: dict[Any, Any] = {}
    shapes: list[tuple[Any, Any]] = [((row.name, "params"), row.params) for row in METHODS.values()]
    shapes += [((row.name, "result"), row.result) for row in METHODS.values()]
    shapes += [((push.name, "params"), push.params) for push in PUSHES.values()]
    shapes += [((note.name, "sent"), note.params) for note in NOTIFICATIONS.values() if note.params]
    shapes += [(shape.__name__, shape) for shape in SHAPES]
    inputs: list[tuple[Any, Literal["validation"], TypeAdapter[Any]]] = [
        (key, "validation", TypeAdapter(_checked(shape, known))) for key, shape in shapes
    ]
    references, schema = TypeAdapter.json_schemas(inputs, ref_template="#/$defs/{model}")

    def of(name: str, part: str) -> Any:
        reference = references[(name, part), "validation"]
        return {"$ref": "schema.json" + str(reference["$ref"])} if "$ref" in reference else reference

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
    table = {
        "protocolVersion": PROTOCOL_VERSION,
        "requests": requests,
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


def stale(folder: Path) -> list[str]:
    """Names of the files in `folder` that are not what `documents` gives."""
    return [
        name for name, text in _texts().items() if not (folder / name).exists() or (folder / name).read_text() != text
    ]


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        old = stale(SPEC)
        sys.stdout.write("".join(f"{SPEC / name} is not fresh\n" for name in old))
        return int(bool(old))
    for name, text in _texts().items():
        (SPEC / name).write_text(text)
    return 0


def _texts() -> dict[str, str]:
    return {name: json.dumps(content, indent=1, ensure_ascii=False) + "\n" for name, content in documents().items()}


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
