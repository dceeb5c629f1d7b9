"""Messages <-> bytes: LSP frames around UTF-8 JSON, whatever a log or a client puts into its strings."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

import orjson

MAX_HEADER = 4096
_LONG = re.compile(rb"[0-9]{19}")


class Malformed(Exception):
    """Bytes after which nothing in this stream can be trusted: answered with -32600, then the connection ends."""


class Notification:
    """A notification that is encoded once, however many clients hear it."""

    __slots__ = ("_frame", "method", "params")

    def __init__(self, method: str, params: dict[str, Any]) -> None:
        self.method, self.params = method, params
        self._frame: bytes | None = None

    @property
    def frame(self) -> bytes:
        if self._frame is None:
            self._frame = encode({"jsonrpc": "2.0", "method": self.method, "params": self.params})
        return self._frame


def encode(message: dict[str, Any]) -> bytes:
    """One frame; lone surrogates become U+FFFD. Raises TypeError for what JSON cannot say."""
    try:
        body = orjson.dumps(message)
    except TypeError:
        body = _encode_slowly(message)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _encode_slowly(message: dict[str, Any]) -> bytes:
    # What orjson refuses and a log may hold: lone surrogates, integers beyond 64 bits, nesting beyond 254.
    clean = valid(message)
    try:
        return orjson.dumps(clean)
    except TypeError:
        return json.dumps(clean, ensure_ascii=False, separators=(",", ":")).encode()


def valid(value: Any) -> Any:
    """Copy of a JSON value in which every string is valid Unicode."""
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {valid(key): valid(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [valid(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def decode(body: bytes) -> Any:
    """Read the message in a frame's body. Raises ValueError where it is no JSON in UTF-8."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        # JavaScript writes a cut emoji as a lone \ud83d escape: JSON by its grammar, though no valid text.
        if b"\\ud" not in body and b"\\uD" not in body:
            raise ValueError(str(exc)) from None
        value = None
    else:
        if _LONG.search(body) is None:
            return value
        # An integer beyond 64 bits may have become a float, and nobody could see it.
    try:
        return valid(json.loads(body.decode(), parse_constant=_no_constant, parse_int=_integer, parse_float=_finite))
    except RecursionError:
        if value is None:
            raise ValueError("nested too deeply") from None
        return value


def header_field(line: bytes) -> int | None:
    """Value of a Content-Length line, None for a Content-Type line. Raises Malformed for any other."""
    name, colon, value = line.partition(b":")
    name, value = name.strip().lower(), value.strip()
    if name == b"content-length" and value.isdigit() and len(value) <= 18:
        return int(value)
    if colon and name == b"content-type":
        return None
    raise Malformed("a header is Content-Length: N, with Content-Type at most")


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= 40 else 1 << 64  # as far beyond 64 bits as need be


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise ValueError(f"{digits[:40]} is beyond every number")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
