"""What can still be read of a line that is not one clean JSON object: the damage that real logs show.

Linear in the length of the line: every attempt starts behind what the one before consumed, and attempts that fail are
limited in number and in what they may look at in vain.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, cast

import orjson

from dsh_daemon.entries import KNOWN_TYPES

MAX_ATTEMPTS = 200
MAX_DEPTH = 200  # levels of nesting that our own encoder and most readers take

_START = re.compile(r'\{\s*"(?:type|id|parentId|timestamp|customType|message|seq)"')
_SPACE = re.compile(r"[ \t\r\n]*")
_NULS = re.compile(rb"\0+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile("[\udc80-\udcff]")  # a byte that was not UTF-8, as "surrogateescape" keeps it
_ESCAPES = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
ENDLESS = 1_000_000  # levels that no record has: a few packed bytes may hold many more
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)  # possessive: a string may be endless
_FRAGMENT = "an unfinished record was skipped"
_NO_RECORD = "this line is not a record"
_NAN = "NaN or Infinity stands where JSON has a number"
_DEEP = f"what is nested more than {MAX_DEPTH} levels deep reads as null"


class Found(NamedTuple):
    record: dict[str, Any]
    offset: int  # in bytes from the start of the line
    length: int


class Damage(NamedTuple):
    code: str
    severity: str
    offset: int
    length: int
    message: str


@dataclass(slots=True)
class Recovered:
    found: list[Found] = field(default_factory=list[Found])
    damage: list[Damage] = field(default_factory=list[Damage])


class _Decoder(json.JSONDecoder):
    """The standard decoder, which also takes what JavaScript and Python write by mistake, and notes NaN."""

    def __init__(self) -> None:
        self.saw_nan = False
        super().__init__(strict=False, parse_constant=self._constant, parse_int=_integer)

    def _constant(self, name: str) -> float:
        self.saw_nan = True
        return float(name)


def _integer(digits: str) -> int | float:
    """As our fast decoder reads it: what 64 bits do not hold is a float."""
    value = int(digits) if len(digits) <= 20 else 1 << 64
    return value if -(2**63) <= value < 2**64 else float(digits)


def loads(raw: bytes) -> Any:
    """Decode one JSON value leniently: bad bytes become U+FFFD, NaN and lone surrogates are accepted.

    What is nested too deeply for our encoder reads as null. Raises ValueError when it is not JSON.
    """
    try:
        return orjson.loads(raw)
    except ValueError:
        pass
    text = raw.decode("utf-8", "replace")
    try:
        return _Decoder().decode(text)
    except RecursionError:
        return _Decoder().decode(shallow(text))


def clean(value: Any) -> Any:
    """`value` so that it can be encoded: U+FFFD for lone surrogates, null for what is nested too deeply.

    The same object if it has neither.
    """
    probe = value
    for _ in range(16):  # a response holds it some levels deep
        probe = [probe]
    try:
        orjson.dumps(probe)
    except TypeError:
        return _tidied(value, 0)
    return value


def _tidied(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if not isinstance(value, dict | list):
        return value
    if depth == MAX_DEPTH:
        return None
    if isinstance(value, list):
        return [_tidied(item, depth + 1) for item in cast("list[Any]", value)]
    return {_tidied(k, depth): _tidied(v, depth + 1) for k, v in cast("dict[str, Any]", value).items()}


def shallow(text: str) -> str:
    """JSON text with null in the place of every value that is nested deeper than MAX_DEPTH. Linear, no recursion."""
    parts: list[str] = []
    depth = start = 0
    for token in _TOKENS.finditer(text):
        mark = token.group()
        if mark in "[{":
            depth += 1
            if depth > ENDLESS:
                raise ValueError("nested without end")
            if depth == MAX_DEPTH + 1:
                parts += (text[start : token.start()], "null")
        elif mark in "]}":
            if depth == MAX_DEPTH + 1:
                start = token.end()
            depth -= 1
    if depth <= MAX_DEPTH:
        parts.append(text[start:])
    return "".join(parts)


def lone_surrogate(raw: bytes) -> int | None:
    """Offset of the first escape of half a character in `raw` whose other half is missing; None when there is none."""
    high: int | None = None  # where a first half stands that the next escape must complete
    end = 0
    for escape in _ESCAPES.finditer(raw):
        code = int(escape[1], 16) if escape[1] else 0
        second = 0xDC00 <= code < 0xE000
        if high is not None:
            if not second or escape.start() != end:
                return high
            high = None
        elif second:
            return escape.start()
        elif 0xD800 <= code < 0xDC00:
            high = escape.start()
        end = escape.end()
    return high


def recover(line: bytes) -> Recovered:
    """Read a line (without its newline) that the fast decoder refused."""
    result = Recovered()
    if b"\0" not in line:
        if line.strip():
            _records(line, 0, result)
        return result
    body = line.strip(b"\0 \t\r")
    runs = [m.span() for m in islice(_NULS.finditer(line), MAX_ATTEMPTS)]
    if b"\0" not in body or _is_object(body):  # strings may hold them
        pieces = [(line.index(body), len(line.rstrip(b"\0 \t\r")))]
    else:
        pieces = list(zip([0, *(end for _, end in runs)], [*(start for start, _ in runs), len(line)], strict=True))
    for start, end in pieces:
        if line[start:end].strip():
            _records(line[start:end], start, result)
    for start, end in runs:
        text = f"{end - start} NUL byte{'s were' if end - start > 1 else ' was'} skipped"
        result.damage.append(Damage("nul_run", "warning", start, end - start, text))
    result.damage.sort(key=lambda damage: damage.offset)
    return result


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(loads(body), dict)
    except ValueError:
        return False


def _records(piece: bytes, base: int, result: Recovered) -> None:
    """Add the records of `piece`, which stands at `base` in its line."""
    if b"{" not in piece:
        result.damage.append(Damage("unreadable_line", "error", base, len(piece), _NO_RECORD))
        return
    text = piece.decode("utf-8", "surrogateescape")  # keeps every byte, so that offsets can be counted back
    broken = _ESCAPED.search(text)
    damage: list[Damage] = []
    found: list[Found] = []
    decoder = _Decoder()
    at = failed = wasted = 0  # in characters
    offset = 0  # of `at`, in bytes

    def advance(to: int) -> int:
        return offset + len(text[at:to].encode("utf-8", "surrogateescape"))

    def lost(to: int) -> None:
        damage.append(Damage("fragment", "warning", base + offset, advance(to) - offset, _FRAGMENT))

    while True:
        start = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string too
        offset, at = advance(start), start
        if at == len(text):
            break
        if failed >= MAX_ATTEMPTS or wasted > 2 * len(text):
            lost(len(text))
            break
        decoder.saw_nan = False
        try:
            value, end = decoder.raw_decode(text, at)
        except RecursionError:
            value, end = _deep(text, at)
            wasted += len(text)
            if value is not None:
                damage.append(Damage("deep", "info", base + offset, len(piece) - offset, _DEEP))
        except ValueError as exc:
            value, end = None, at
            stopped = getattr(exc, "pos", at)
            wasted += (len(text) if "Unterminated" in str(exc) else stopped) - at
        if isinstance(value, dict) and (
            is_record(cast("dict[str, Any]", value)) or (at == 0 and end == len(text.rstrip(" \t\r\n")))
        ):
            if broken:  # as everybody else will read it
                value = loads(piece[offset : advance(end)])
            found.append(Found(cast("dict[str, Any]", value), base + offset, advance(end) - offset))
            if decoder.saw_nan:
                damage.append(Damage("nan", "info", base + offset, advance(end) - offset, _NAN))
        else:
            failed += 1
            following = _START.search(text, max(end, at + 1))
            end = following.start() if following else len(text)
            lost(end)
        offset, at = advance(end), end

    if not found:
        result.damage.append(Damage("unreadable_line", "error", base, len(piece), _NO_RECORD))
        return
    if broken:
        place = len(text[: broken.start()].encode("utf-8", "surrogateescape"))
        damage.append(Damage("invalid_utf8", "warning", base + place, 1, "bytes that are not UTF-8 read as U+FFFD"))
    if (half := lone_surrogate(piece)) is not None:
        text = "half of a character pair reads as U+FFFD"
        damage.append(Damage("lone_surrogate", "info", base + half, 6, text))
    if len(found) > 1 and not any(d.code == "fragment" for d in damage):
        damage.append(Damage("glued_records", "warning", base, len(piece), "several records share this line"))
    result.found += found
    result.damage += damage


def _deep(text: str, at: int) -> tuple[Any, int]:
    """The value at `at`, which is nested too deeply, to the end of the text; None when there is more than that."""
    try:
        return _Decoder().decode(shallow(text[at:])), len(text)
    except ValueError:
        return None, at


def is_record(record: dict[str, Any]) -> bool:
    """Whether an object found inside a line is a record of its own and not a part of one (a content block, a call)."""
    type_ = record.get("type")
    return isinstance(type_, str) and (
        "parentId" in record
        or (type_ in KNOWN_TYPES and "timestamp" in record)
        or (type_ == "session" and "id" in record)
        or ("data" in record and ("seq" in record or "seq0" in record))
    )
