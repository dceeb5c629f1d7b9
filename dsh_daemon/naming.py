"""What a new session file is called, as the agent that owns the format would name it."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import time
from datetime import UTC, datetime
from hashlib import sha256
from uuid import UUID

from .errors import InvalidReference
from .types import Format

MAX_FOLDER = 200  # bytes
MAX_NAME = 255  # bytes: what file systems allow for one component

_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_SEPARATORS = re.compile(r"[/\\:]")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def check_id(session_id: str) -> str:
    """`session_id` if it can be part of a file name (pi's rule). Raises InvalidReference otherwise."""
    if len(session_id) > MAX_NAME or _ID.fullmatch(session_id) is None:
        raise InvalidReference(
            "a session id is letters, digits, '.', '_' and '-', with a letter or digit at both ends",
            ref=session_id[:MAX_NAME],
            reason="not a session id",
        )
    return session_id


def new_session_id() -> str:
    """Make a UUID of version 7, as pi and omp do: it sorts by time."""
    ms = time.time_ns() // 1_000_000
    value = (ms << 80) | (7 << 76) | (secrets.randbits(12) << 64) | (2 << 62) | secrets.randbits(62)
    return str(UUID(int=value))


def folder_name(format_: Format, cwd: str, home: str) -> str:
    """Name of the folder that keeps the sessions of `cwd`; bounded, so that it is not always reversible."""
    if format_ == "omp":
        real = os.path.realpath(cwd)
        for base, prefix in ((os.path.realpath(home), "-"), (os.path.realpath(tempfile.gettempdir()), "-tmp-")):
            if real == base or real.startswith(base.rstrip("/") + "/"):
                return _bounded(prefix + _flat(os.path.relpath(real, base).removeprefix(".")))
        cwd = real
    return _bounded(f"--{_flat(cwd)}--")


def dsh_project(cwd: str | None) -> str:
    """Name of the folder in which dsh keeps the sessions of `cwd`."""
    if cwd is None:
        return "_no-cwd"
    name = _escaped(re.sub(r"[/\\:]+", "-", cwd)).lstrip("-")
    return f"--{(name or 'root')[:251]}--"


def dsh_segment(session_id: str) -> str:
    """Name of the folder that dsh gives a session. Raises InvalidReference where there can be none."""
    dots = session_id in {".", ".."}
    name = session_id.replace(".", "~002E") if dots else _escaped(session_id)
    if not name or len(name) > MAX_NAME:
        text = "dsh names a folder for the id of a session: it is not empty, and at most 255 bytes long"
        raise InvalidReference(text, ref=session_id[:MAX_NAME], reason="not a session id")
    return name


def _escaped(text: str) -> str:
    """`text` with what is not a plain letter, digit, '.', '_' or '-' as the numbers of its UTF-16 units."""

    def units(match: re.Match[str]) -> str:
        data = match[0].encode("utf-16-be", "surrogatepass")
        return "".join(f"~{data[k]:02X}{data[k + 1]:02X}" for k in range(0, len(data), 2))

    return _UNSAFE.sub(units, text)


def file_name(session_id: str, moment: datetime | None = None) -> str:
    """`<timestamp>_<id>.jsonl`. Raises InvalidReference for an id that cannot be part of a name."""
    moment = (moment or datetime.now(UTC)).astimezone(UTC)
    stamp = moment.strftime("%Y-%m-%dT%H-%M-%S-") + f"{moment.microsecond // 1000:03}Z"
    room = MAX_NAME - len(f"{stamp}_.jsonl")
    name = check_id(session_id)
    if len(name) > room:
        name = f"{name[: room - 9]}-{_hash(name)}"
    return f"{stamp}_{name}.jsonl"


def _flat(cwd: str) -> str:
    return _SEPARATORS.sub("-", cwd.lstrip("/\\"))


def _bounded(name: str) -> str:
    raw = name.encode("utf-8", "replace")
    if len(raw) <= MAX_FOLDER:
        return raw.decode()
    return raw[: MAX_FOLDER - 9].decode("utf-8", "ignore") + "-" + _hash(name)


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
