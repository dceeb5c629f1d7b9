"""Does a value have the shape that the TypedDicts of the wire name? Stricter than a client: nothing may be added."""

from __future__ import annotations

import types
from typing import (
    Any,
    Literal,
    NotRequired,
    Required,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from dsh_daemon import types as shapes
from dsh_daemon.wire import types as wire


class Truncated(TypedDict):
    field: str
    bytes: int


class Entry(TypedDict):
    """What every entry has beside the fields of its type."""

    type: str
    id: str
    parentId: str | None
    truncated: NotRequired[Truncated]


def shape_of(name: str) -> Any:
    if name == "Entry":
        return Entry
    return getattr(shapes, name, None) or getattr(wire, name)


def misfits(shape: Any, value: Any, at: str = "") -> list[str]:
    """Where `value` is not what `shape` says, one text each."""
    origin = get_origin(shape)
    if shape is Any:
        return []
    if origin is Literal:
        fits = any(value == allowed and type(value) is type(allowed) for allowed in get_args(shape))
        return [] if fits else [f"{at}: {value!r} is none of {get_args(shape)}"]
    if origin in {Union, types.UnionType}:
        tried = [misfits(member, value, at) for member in get_args(shape)]
        return [] if any(not found for found in tried) else min(tried, key=len)
    if is_typeddict(shape):
        return _object(shape, value, at)
    if origin is list:
        if not isinstance(value, list):
            return [f"{at}: not a list"]
        return [text for n, item in enumerate(value) for text in misfits(get_args(shape)[0], item, f"{at}.{n}")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{at}: not an object"]
        return [text for key, item in value.items() for text in misfits(get_args(shape)[1], item, f"{at}.{key}")]
    if shape is None or shape is type(None):
        return [] if value is None else [f"{at}: not null"]
    if shape is float and isinstance(value, int) and not isinstance(value, bool):
        return []
    return [] if type(value) is shape else [f"{at}: {value!r} is no {shape.__name__}"]


def _object(shape: Any, value: Any, at: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{at}: not an object"]
    found: list[str] = []
    hints = get_type_hints(shape, include_extras=True)
    for name, hint in hints.items():
        optional = get_origin(hint) is NotRequired
        inner = get_args(hint)[0] if get_origin(hint) in {NotRequired, Required} else hint
        if name in value:
            found += misfits(inner, value[name], f"{at}.{name}")
            if name == "matches":
                found += [f"{at}.{name}: {match} is no pair" for match in value[name] if len(match) != 2]
        elif not optional:
            found.append(f"{at}.{name}: missing")
    if shape is Entry:
        return found
    return found + [f"{at}.{name}: unknown" for name in value if name not in hints]
