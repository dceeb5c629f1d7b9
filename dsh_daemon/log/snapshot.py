"""An index as one blob and back, so that a long log is scanned once and afterwards only where it grew."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Any

import msgspec

from .index import Facts, Header, Index, LabelChange, Shape, Surface
from .numbers import Numbers
from .scan import Source
from .times import Times

VERSION = 3
ENDS = 4096  # bytes at each end of the scanned part that must be the same


class _Blob(msgspec.Struct, array_like=True):
    version: int
    fingerprint: bytes
    end: int
    line: int
    header: Header
    slot: Any
    ids: list[str]
    columns: tuple[bytes, bytes, bytes, bytes, bytes]  # parent, offset, length, time, shape
    shapes: list[tuple[str, str | None, int, str | None]]
    orphans: dict[int, str]
    cuts: dict[int, str]
    copies: dict[str, int]
    forward: bool
    crlf: bool
    label_log: list[tuple[int, str, str | None]]
    facts: Facts
    diagnostics: list[dict[str, Any]]
    damage: list[tuple[int, int]]
    surface: Surface
    numbers: tuple[bytes, dict[int, str]] | None  # the ids of a log that numbers its entries


_decode = msgspec.msgpack.Decoder(_Blob).decode


def dump(index: Index, source: Source) -> bytes | None:
    """The index as bytes; None while its last line has no newline, since that line may still become another one."""
    if index.pending:
        return None
    return msgspec.msgpack.encode(
        _Blob(
            VERSION,
            fingerprint(source, index.end),
            index.end,
            index.line,
            index.header,
            index.slot,
            [] if index.numbers is not None else index.ids,
            (
                index.parent.tobytes(),
                index.offset.tobytes(),
                index.length.tobytes(),
                index.time.tobytes(),
                index.shape.tobytes(),
            ),
            [(shape.type, shape.role, shape.flags, shape.stored) for shape in index.shapes.items],
            index.orphans,
            index.cuts,
            index.copies,
            index.forward,
            index.crlf,
            [(change.by, change.target, change.text) for change in index.label_log],
            index.facts,
            index.diagnostics,  # type: ignore[arg-type]  # a TypedDict is a dict
            index.damage,
            index.surface,
            (index.numbers.values.tobytes(), index.numbers.odd) if index.numbers is not None else None,
        )
    )


def load(blob: bytes, source: Source, size: int) -> Index | None:
    """The index of a log that is `size` bytes long now; None where the blob is not of this log, or not sound."""
    try:
        kept = _decode(blob)
    except msgspec.DecodeError:
        return None
    if kept.version != VERSION or kept.end > size or fingerprint(source, kept.end) != kept.fingerprint:
        return None
    index = Index()
    index.end, index.line = kept.end, kept.line
    index.header, index.header_seen, index.slot = kept.header, kept.header.state != "empty", kept.slot
    if kept.numbers is None:
        index.ids = kept.ids
        index.ordinal = dict(zip(kept.ids, range(len(kept.ids)), strict=True))
    else:
        index.number(Numbers(*kept.numbers))
    for name, code, data in zip(("parent", "offset", "length", "time", "shape"), "iqq H", kept.columns, strict=True):
        column = Times(data) if name == "time" else array(code, data)
        if len(column) != len(index.ids):
            return None
        setattr(index, name, column)
    for shape in kept.shapes:
        index.shapes.codes[shape] = len(index.shapes.items)
        index.shapes.items.append(Shape(*shape))
    index.orphans, index.cuts, index.copies = kept.orphans, kept.cuts, kept.copies
    for i, name in kept.orphans.items():
        index.waiting.setdefault(name, []).append(i)
    index.forward, index.crlf = kept.forward, kept.crlf
    index.label_log = [LabelChange(*change) for change in kept.label_log]
    index.facts = kept.facts
    index.diagnostics = kept.diagnostics  # type: ignore[assignment]
    index.damage = kept.damage
    index.surface = kept.surface
    index.resolve_labels()
    return index


def fingerprint(source: Source, end: int) -> bytes:
    """What the first `end` bytes of a log are known by: both ends of them."""
    ends = source.read(0, min(ENDS, end)) + source.read(max(0, end - ENDS), min(ENDS, end))
    return blake2b(ends, digest_size=16).digest()
