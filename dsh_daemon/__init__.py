"""Session logs of coding agents: one owner, every tool at once.

`SessionManager` works on one session without a daemon; `connect()` gives a client of the running daemon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
PROTOCOL_VERSION = 1

if TYPE_CHECKING:
    from .client import Client as Client, connect as connect
    from .manager import SessionManager as SessionManager
    from .session import Session as Session

__all__ = ["PROTOCOL_VERSION", "Client", "Session", "SessionManager", "__version__", "connect"]

_HOMES = {"Client": ".client", "connect": ".client", "SessionManager": ".manager", "Session": ".session"}


def __getattr__(name: str) -> Any:
    # Loaded on first use: `dshd status` must not pay for the log readers, nor a script for the client.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name], __name__), name)
