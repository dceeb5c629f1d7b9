"""Words that every command of `dshd` uses alike. Standard library only: the quick commands load it."""

from __future__ import annotations

import os
import re
import sys

_NAMED = re.compile("(config|unreachable|storageError|invalidParams): ")


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def home(path: str) -> str:
    """`~/x` for a path below the home folder."""
    base = os.path.expanduser("~")
    return "~" + path[len(base) :] if base != "/" and (path == base or path.startswith(base + "/")) else path


def program() -> str:
    """`dshd`, or what a shell that does not find it must be told instead."""
    from shutil import which

    started = sys.argv[0]
    if which("dshd"):
        return "dshd"
    if os.path.basename(started) != "dshd":
        return f"{os.path.basename(sys.executable) or 'python'} -m dsh_daemon"
    near = os.path.relpath(started)
    return home(os.path.abspath(started)) if near.startswith("..") else near


def failure(exc: OSError) -> tuple[str, str]:
    """Kind and message of what the system refused; the message of a failed start begins with its own kind."""
    text = (exc.strerror or str(exc)).strip() or type(exc).__name__
    if isinstance(exc, ConnectionError) and (named := _NAMED.match(text)):
        return named[1], text[named.end() :]
    kind = "unreachable" if isinstance(exc, ConnectionError | TimeoutError | FileNotFoundError) else "storageError"
    return kind, (f"{exc.filename}: " if exc.filename else "") + text


def one_line(text: str) -> str:
    """The first and the last line of a longer message."""
    lines = text.split("\n")
    return " … ".join(dict.fromkeys((lines[0], lines[-1])))


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
