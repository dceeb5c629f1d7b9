"""The real pi and omp as oracles: what their own SessionManager makes of a file, and files that it wrote."""

import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .install import NODE, PeersUnavailableError, install, install_dsh

HERE = Path(__file__).parent
BUN = "@oven/bun-linux-x64-baseline/bin/bun"
PI = "@earendil-works/pi-coding-agent"
PI_OLD = "@mariozechner/pi-coding-agent"
OMP = "@oh-my-pi/pi-coding-agent"


class OracleError(RuntimeError):
    """The peer refused an operation, or its process failed."""


@functools.cache
def modules() -> Path:
    """`node_modules` of the installed peers; skips the calling test when npm is absent, unless DSHD_TEST_STRICT=1."""
    return _or_skip(install)


@functools.cache
def dsh_modules() -> Path:
    """The same of the installed dsh."""
    return _or_skip(install_dsh)


def _or_skip(make: Callable[[], Path]) -> Path:
    try:
        return make()
    except PeersUnavailableError as error:
        if os.environ.get("DSHD_TEST_STRICT") == "1":
            raise
        pytest.skip(str(error))


def offline_environment(home: Path) -> dict[str, str]:
    """All that a peer sees of our environment: its own home, no keys, and a dead proxy for what would call out."""
    nowhere = "http://127.0.0.1:9"
    return {
        "HOME": str(home),
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1",
        "PI_OFFLINE": "1",
        "PI_TELEMETRY": "0",
        "PI_SKIP_VERSION_CHECK": "1",
        "PI_NO_TITLE": "1",
        "PI_NATIVE_VARIANT": "baseline",
    }


def op(method: str, *args: Any, name: str | None = None) -> dict[str, Any]:
    """One call of the peer's SessionManager; "$name" among later arguments stands for its result."""
    call: dict[str, Any] = {"op": method, "args": list(args)}
    return call if name is None else {**call, "as": name}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": _now()}


def assistant(text: str, *calls: dict[str, Any], stop: str | None = None) -> dict[str, Any]:
    blocks = ([{"type": "text", "text": text}] if text else []) + list(calls)
    cost = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}
    usage = {"input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 2, "cost": cost}
    return {
        "role": "assistant",
        "content": blocks,
        "api": "openai-completions",
        "provider": "mock",
        "model": "mock-1",
        "usage": usage,
        "stopReason": stop or ("toolUse" if calls else "stop"),
        "timestamp": _now(),
    }


def tool_call(call_id: str, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "toolCall", "id": call_id, "name": tool, "arguments": arguments}


def tool_result(call_id: str, tool: str, text: str, *, is_error: bool = False) -> dict[str, Any]:
    return {
        "role": "toolResult",
        "toolCallId": call_id,
        "toolName": tool,
        "content": [{"type": "text", "text": text}],
        "isError": is_error,
        "timestamp": _now(),
    }


def _now() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Oracle:
    """One peer's SessionManager in a process of its own, one process per call."""

    name: str
    command: tuple[str, ...]
    timeout: float = 60

    def load(
        self, paths: Iterable[Path], *, blobs: Path | None = None, everywhere: bool = False
    ) -> list[dict[str, Any]]:
        """What the peer makes of each file, read from a copy; `everywhere`: with the context at each entry.

        Keys: path, header, name, entries [{id, type, parentId}], leafId, tips (ids without children),
        paths {tip: [id]}, labels {id: text}, roots, tree (ids in preorder), context and contexts {tip: context},
        rewritten (opening changed the copy). A context has messages, llm (what the model would see), thinkingLevel,
        model ("provider/id" or None) and what else the peer puts there. `{"error": ...}` stands for what the peer
        could not do: for one key, or beside path and rewritten for the whole file.
        """
        with tempfile.TemporaryDirectory(prefix="oracle-") as scratch:
            home = Path(scratch)
            if blobs is not None:
                shutil.copytree(blobs, home / ".omp" / "agent" / "blobs", copy_function=shutil.copyfile)
            originals = list(paths)
            copies = [_copy(path, home / str(number)) for number, path in enumerate(originals)]
            requests = [{"path": str(copy), "cwd": str(home), "everywhere": everywhere} for copy in copies]
            answers = self._ask(requests, home)
            return [
                {**answer, "path": path, "rewritten": copy.read_bytes() != path.read_bytes()}
                for path, copy, answer in zip(originals, copies, answers, strict=True)
            ]

    def script(
        self, path: Path, ops: Sequence[dict[str, Any]], *, cwd: Path | None = None, home: Path | None = None
    ) -> dict[str, Any]:
        """Open `path` (created when absent) and perform `ops` on it.

        Answers `file` (where the manager is at the end), `leafId` and `results` by name or number; a method that
        returns another manager gives that one's file. Raises OracleError at the first operation that fails.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="oracle-") as scratch:
            request = {"path": str(path), "cwd": str(cwd or path.parent), "ops": list(ops)}
            (answer,) = self._ask([request], home or Path(scratch))
        if "error" in answer:
            raise OracleError(f"{self.name}: {answer['error']}")
        return answer

    def _ask(self, requests: list[dict[str, Any]], home: Path) -> list[dict[str, Any]]:
        return ask(self.name, self.command, requests, home, self.timeout)


def ask(name: str, command: Sequence[str], requests: list[Any], home: Path, timeout: float) -> list[dict[str, Any]]:
    """The answers of one oracle process to a list of requests."""
    done = subprocess.run(
        command,
        input=json.dumps(requests).encode(),
        capture_output=True,
        cwd=home,
        env=offline_environment(home),
        timeout=timeout,
    )
    if done.returncode:
        raise OracleError(f"{name} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return json.loads(done.stdout)


def _copy(path: Path, folder: Path) -> Path:
    folder.mkdir()
    return Path(shutil.copyfile(path, folder / path.name))


def pi() -> Oracle:
    """pi 1.6.0."""
    return _oracle("pi", NODE, "pi_oracle.mjs", PI)


def old_pi() -> Oracle:
    """pi 0.73.1, the last under its old name; it truncates files that it does not recognise."""
    return _oracle("old pi", NODE, "pi_oracle.mjs", PI_OLD)


def omp() -> Oracle:
    """omp 18.2.3."""
    return _oracle("omp", BUN, "omp_oracle.ts", OMP)


def _oracle(name: str, runtime: str, script: str, package: str) -> Oracle:
    return Oracle(name, (str(modules() / runtime), str(HERE / script), str(modules() / package)))
