"""Deleting means moving to the trash: the desktop's, or one of ours on the same disk. Nothing is ever unlinked."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from .errors import SessionGone, storage_fault
from .paths import private_folder

_STAMP = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z"


def trash(path: str, own: str, env: Mapping[str, str] = os.environ, *, omp_id: str | None = None) -> str:
    """Move a session file, its artifacts folder and its backups to the trash -> where the file is now.

    `own` is our trash folder, for where there is no desktop's; `omp_id` the id of a session of omp, the only one that
    has artifacts. Raises SessionGone, ReadOnly, StorageError.
    """
    try:
        device = os.lstat(path).st_dev
        target = _move(path, _folder(device, path, own, env))
    except FileNotFoundError as exc:
        raise SessionGone(f"the file is gone: {path}", path=path) from exc
    except OSError as exc:
        raise storage_fault(exc, path) from exc
    for sibling in siblings(path, omp_id):
        # The session itself is in the trash by now; what cannot follow it is found by the doctor.
        with suppress(OSError):
            _move(sibling, _folder(device, path, own, env))
    return target


def siblings(path: str, omp_id: str | None = None) -> list[str]:
    """List the backups of a session file, and the artifacts folder of a session of omp that is called `omp_id`."""
    folder, name = os.path.split(path)
    found: list[str] = []
    with suppress(OSError):
        found = [other for other in os.listdir(folder) if other.startswith(f"{name}.") and other.endswith(".bak")]
    paths = [other for other in (os.path.join(folder, other) for other in found) if os.path.isfile(other)]
    # A folder of any other name may be a person's own, which only happens to be called like the file.
    if omp_id is not None and re.fullmatch(f"{_STAMP}_{re.escape(omp_id)}\\.jsonl", name):
        artifacts = path.removesuffix(".jsonl")
        if os.path.isdir(artifacts) and not os.path.islink(artifacts):
            paths.append(artifacts)
    return paths


def _folder(device: int, path: str, own: str, env: Mapping[str, str]) -> Path:
    """Choose the trash folder on the disk of `path`: a rename does not cross disks."""
    home = env.get("HOME") or os.path.expanduser("~")
    data = env.get("XDG_DATA_HOME", "")
    for candidate in (Path(data if os.path.isabs(data) else f"{home}/.local/share") / "Trash", Path(own)):
        if _device(candidate) == device:
            with suppress(OSError):
                return private_folder(candidate)
    top = path
    while not os.path.ismount(top):
        top = os.path.dirname(top)
    return private_folder(Path(top) / f".Trash-{os.getuid()}")


def _device(path: Path) -> int | None:
    """Device of a folder that may not exist yet."""
    for folder in (path, *path.parents):
        with suppress(OSError):
            return folder.stat().st_dev
    return None


def _move(path: str, folder: Path) -> str:
    """Move into a trash folder by the freedesktop.org rules: first the note, then the file, names never reused."""
    files, notes = private_folder(folder / "files"), private_folder(folder / "info")
    stem, dot, suffix = os.path.basename(path).partition(".")
    note = f"[Trash Info]\nPath={quote(path)}\nDeletionDate={datetime.now(UTC).astimezone():%Y-%m-%dT%H:%M:%S}\n"
    for n in range(1, 10_000):
        name = f"{stem}{f' {n}' if n > 1 else ''}{dot}{suffix}"
        info = notes / f"{name}.trashinfo"
        if os.path.lexists(files / name):
            continue
        try:
            fd = os.open(info, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        try:
            os.write(fd, note.encode())
        finally:
            os.close(fd)
        try:
            os.rename(path, files / name)
        except OSError:
            os.unlink(info)
            raise
        return str(files / name)
    raise OSError(errno.EEXIST, "no free name in the trash", path)
