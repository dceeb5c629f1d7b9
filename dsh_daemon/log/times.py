"""Times of a log -> milliseconds since 1970 UTC.

Programs write ISO strings, with or without an offset, and epoch milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import cast

NO_TIME = -(2**63)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_USUAL = re.compile(r"\d{4}-\d\d-\d\dT([01]\d|2[0-3]):\d\d:\d\d\.\d{3}Z", re.ASCII).fullmatch
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999: what an ISO string can say


def instant(value: object) -> int:
    """Milliseconds of an ISO string (naive = UTC) or of an epoch-millisecond number; NO_TIME where it is neither."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
            since = (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment) - _EPOCH
        except ValueError:
            return NO_TIME
        time = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
        return time if _FIRST <= time <= _LAST else NO_TIME  # 9999-12-31T23:59-14:00 is a string that says more
    if isinstance(value, int | float) and not isinstance(value, bool) and _FIRST <= value <= _LAST:
        return int(value)
    return NO_TIME


class Times:
    """A column of instants: kept as ISO text of 24 characters each, as they come, and converted when one is asked for.

    Converting takes longer than all else that a scan does with an entry, and few are ever looked at.
    """

    __slots__ = ("text",)

    def __init__(self, text: bytes = b"") -> None:
        self.text: bytearray = bytearray(text)

    def __len__(self) -> int:
        return len(self.text) // 24

    def __getitem__(self, i: int) -> int:
        """Milliseconds since 1970 UTC, NO_TIME where unreadable. `i` is not negative."""
        return instant(self.text[24 * i : 24 * i + 24].decode())

    def iso(self, i: int) -> str | None:
        """The same as an ISO string in UTC; None where unreadable."""
        text = self.text[24 * i : 24 * i + 24].decode()
        if _USUAL(text) is None:
            return _text(text).decode().strip() or None
        try:
            datetime.fromisoformat(text)
        except ValueError:
            return None
        return text

    def __delitem__(self, part: slice) -> None:
        """Forget all from `part.start` on."""
        del self.text[24 * part.start :]

    def tobytes(self) -> bytes:
        return bytes(self.text)

    def extend(self, values: Sequence[object]) -> bool:
        """Add times as they stand in a log; whether all of them have the one form that sorts as it is."""
        texts = cast("Sequence[str]", values)
        try:
            joined = "".join(texts).encode("ascii")
            same = set(map(len, texts)) == {24}
        except (TypeError, UnicodeEncodeError):  # something else than text is among them, which is rare
            same, joined = False, b""
        self.text += joined if same else b"".join(map(_text, values))
        return same and joined.translate(None, b"0123456789") == b"--T::.Z" * len(values)


def latest(values: Sequence[object], *, uniform: bool) -> int:
    """The greatest of times as they stand in a log, NO_TIME when none is readable.

    `uniform`: what `Times.extend` said of them.
    """
    if uniform and (found := instant(max(cast("Sequence[str]", values)))) != NO_TIME:
        return found
    return max(map(instant, values), default=NO_TIME)


def _text(value: object) -> bytes:
    time = instant(value)
    if time == NO_TIME:
        return b" " * 24
    moment = _EPOCH + timedelta(milliseconds=time)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00").encode() + b"Z"
