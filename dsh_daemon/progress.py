"""Progress of a request that asked for it: begin, a few reports a second, end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from .live import Client

EVERY = 0.1  # seconds between two reports


class Progress:
    """Tells the client of a request how far it is, from the first report on; without a token nothing is told."""

    def __init__(self, client: Client | None, token: str | int | None, title: str) -> None:
        self._client = client if token is not None else None
        self._token, self._title = token, title
        self._said: float | None = None

    def __enter__(self) -> Self:
        return self

    def report(self, message: str) -> None:
        now = time.monotonic()
        if self._said is None or now - self._said >= EVERY:
            self._tell("begin" if self._said is None else "report", title=self._title, message=message)
            self._said = now

    def __exit__(self, *_raised: object) -> None:
        if self._said is not None:
            self._tell("end")

    def _tell(self, kind: str, **more: str) -> None:
        if self._client is not None:
            self._client.push("$/progress", {"token": self._token, "value": {"kind": kind, **more}})
