"""Where our own files live, and how a private one is made."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

APP = "dsh-daemon"
MAX_SOCKET_BYTES = 100  # sun_path holds 104 on macOS and 108 on Linux


class UnsafeFolder(OSError):
    """A folder that must be ours alone is somebody else's, a link, or no folder."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Every place that we keep something in; computed, nothing is created."""

    run: Path
    socket: Path
    sessions: Path
    trash: Path
    cache: Path
    state: Path
    config_file: Path
    explicit_socket: bool = False  # named by the user: its folder is theirs, we neither make nor change it

    @property
    def lock(self) -> Path:
        return self.socket.with_name(self.socket.name + ".lock")

    @property
    def token(self) -> Path:
        return self.socket.with_name(self.socket.name + ".token")

    @property
    def log(self) -> Path:
        return self.state / "daemon.log"

    @property
    def catalog_db(self) -> Path:
        return self.cache / "catalog.db"

    @property
    def search_db(self) -> Path:
        return self.cache / "search.db"

    @property
    def state_db(self) -> Path:
        return self.state / "state.db"


def folders(env: Mapping[str, str] = os.environ, socket: str | None = None) -> Folders:
    """Give the folders for this environment; `socket` (or DSHD_SOCKET) names another socket path."""
    if home := env.get("DSHD_HOME"):
        base = _absolute(home)
        run, data, cache, state, config = base / "run", base, base / "cache", base / "state", base
    else:
        data = _xdg(env, "XDG_DATA_HOME", ".local/share") / APP
        cache = _xdg(env, "XDG_CACHE_HOME", ".cache") / APP
        state = _xdg(env, "XDG_STATE_HOME", ".local/state") / APP
        config = _xdg(env, "XDG_CONFIG_HOME", ".config") / APP
        run = _runtime(env) or cache / f"run-{host()}"
    named = socket or env.get("DSHD_SOCKET")
    return Folders(
        run=run,
        socket=_absolute(named) if named else _short(run / "dshd.sock"),
        sessions=data / "sessions",
        trash=data / "trash",
        cache=cache,
        state=state,
        config_file=config / "config.toml",
        explicit_socket=bool(named),
    )


def host() -> str:
    """Name this machine as a file name does: two machines may share one home folder."""
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return "".join(c if c.isalnum() or c in "-._" else "_" for c in name).strip(".") or "localhost"


def make_folders(path: Path) -> None:
    """Make `path` and its missing parents, 0700 whatever the umask; existing ones stay as they are. Raises OSError."""
    missing: list[Path] = []
    at = path
    while not at.exists() and not at.is_symlink():
        missing.append(at)
        at = at.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(0o700)
        except FileExistsError:
            continue  # another starter was faster
        folder.chmod(0o700)


def private_folder(path: Path, *, links: bool = True) -> Path:
    """Make `path` and its missing parents, 0700 whatever the umask; an existing one must be ours.

    With `links=False` it may not be a symbolic link and loses the rights of others. Raises UnsafeFolder, OSError.
    """
    make_folders(path)
    info = path.stat() if links else path.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise UnsafeFolder(f"{path} is not a folder" + ("" if links else " (links are not followed here)"))
    if hasattr(os, "getuid") and info.st_uid != os.getuid():
        raise UnsafeFolder(f"{path} belongs to uid {info.st_uid}, not to us (uid {os.getuid()})")
    if not links and info.st_mode & 0o077:
        path.chmod(0o700)
    return path


def open_private(path: Path, flags: int) -> int:
    """Open `path`, made 0600 whatever the umask where it is missing (must be, with O_EXCL). Returns the descriptor."""
    flags |= getattr(os, "O_CLOEXEC", 0)
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags | os.O_CREAT, 0o600)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, 0o600)
    return fd


def _absolute(text: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(text)))


def _xdg(env: Mapping[str, str], name: str, default: str) -> Path:
    # The XDG specification: a value that is not absolute is to be ignored.
    value = env.get(name, "")
    return Path(value) if os.path.isabs(value) else _absolute(env.get("HOME") or "~") / default


def _runtime(env: Mapping[str, str]) -> Path | None:
    # After `su` or in a container the variable may name a folder that is not there or not ours.
    value = env.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(value) or not hasattr(os, "getuid"):
        return None
    try:
        info = os.stat(value)
    except OSError:
        return None
    return Path(value) / APP if stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() else None


def _short(socket: Path) -> Path:
    raw = os.fsencode(socket)
    if len(raw) <= MAX_SOCKET_BYTES:
        return socket
    from hashlib import sha256  # rarely needed, and every `dshd` command passes here

    uid = os.getuid() if hasattr(os, "getuid") else 0
    return Path("/tmp") / f"dshd-{uid}-{sha256(raw).hexdigest()[:12]}" / "dshd.sock"  # noqa: S108
