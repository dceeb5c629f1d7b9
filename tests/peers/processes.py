"""Real pi and omp processes in RPC mode, offline, against a MockModel."""

import json
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from .install import NODE
from .mock_model import MODEL, MockModel
from .peers import BUN, OMP, PI, modules, offline_environment

Record = dict[str, Any]


class RpcError(RuntimeError):
    """The peer answered a command with an error, or did not answer."""


class RpcProcess:
    """A peer that speaks JSON lines; a context manager that stops the process at its end.

    `home` and `cwd` belong to the test: a later process with the same two sees the sessions of the former.
    `records` keeps all that the peer sent.
    """

    turn_ended: str

    def __init__(
        self, command: Sequence[str], home: Path, cwd: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.records: list[Record] = []
        self._arrived = threading.Condition()
        self._ended = False
        self._number = 0
        cwd.mkdir(parents=True, exist_ok=True)
        self.stderr = home / "stderr.log"
        with self.stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env=offline_environment(home) | dict(environment or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.state()
        except RpcError:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def session_file(self) -> Path:
        """Where this process saves its session; the file may not exist yet."""
        return Path(self.state()["sessionFile"])

    def request(self, command: str, *, timeout: float = 60, **params: Any) -> Any:
        """Send one command and return the `data` of its response."""
        self._number += 1
        identity = f"r{self._number}"
        mark = len(self.records)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": identity, "type": command, **params}).encode() + b"\n")
        self.process.stdin.flush()
        answer = self.wait_for(
            lambda record: (record.get("type"), record.get("id")) == ("response", identity), since=mark, timeout=timeout
        )
        if not answer["success"]:
            raise RpcError(f"{command}: {answer.get('error')}")
        return answer.get("data")

    def state(self) -> Record:
        return self.request("get_state")

    def wait_for(self, wanted: Callable[[Record], bool], *, since: int = 0, timeout: float = 60) -> Record:
        """The first wanted record from number `since` on; RpcError after `timeout` seconds or when the peer ends."""
        deadline = time.monotonic() + timeout
        with self._arrived:
            while True:
                for record in self.records[since:]:
                    if wanted(record):
                        return record
                since = max(since, len(self.records))
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    what = "the peer ended" if self._ended else f"no such record in {timeout} s"
                    raise RpcError(f"{what}; stderr: {self.stderr.read_text(errors='replace')[-2000:]}")
                self._arrived.wait(left)

    def send_prompt(self, text: str) -> int:
        """Start a turn and return the mark to give to `wait_idle`."""
        mark = len(self.records)
        self.request("prompt", message=text)
        return mark

    def wait_idle(self, mark: int, *, timeout: float = 60) -> None:
        """Return when the turn begun at `mark` has ended and the peer does nothing more by itself."""
        deadline = time.monotonic() + timeout
        self.wait_for(lambda record: record.get("type") == self.turn_ended, since=mark, timeout=timeout)
        while self.state()["isStreaming"]:
            if time.monotonic() > deadline:
                raise RpcError(f"still streaming after {timeout} s")
            time.sleep(0.05)

    def prompt(self, text: str, *, timeout: float = 60) -> list[Record]:
        """Run a turn to its end and return what the peer sent meanwhile."""
        mark = self.send_prompt(text)
        self.wait_idle(mark, timeout=timeout)
        return self.records[mark:]

    def stop(self, *, timeout: float = 20) -> int:
        """Quit as a user does, by closing its input; returns the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(timeout)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, the crash; harmless after the end."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                record = json.loads(line)
            except ValueError:
                record = {"type": "not json", "line": line.decode(errors="replace")}
            with self._arrived:
                self.records.append(record)
                self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class PiProcess(RpcProcess):
    """`pi --mode rpc`, on the session file `session` when given."""

    turn_ended = "agent_settled"

    def __init__(
        self, model: MockModel, home: Path, cwd: Path, *, session: Path | None = None, args: Sequence[str] = ()
    ) -> None:
        command = [*pi_command(model, home), "--mode", "rpc", "--offline", *args]
        super().__init__([str(part) for part in (*command, *(["--session", session] if session else []))], home, cwd)


class OmpProcess(RpcProcess):
    """`omp --mode rpc`, resuming the session file `resume` when given."""

    turn_ended = "agent_end"

    def __init__(
        self, model: MockModel, home: Path, cwd: Path, *, resume: Path | None = None, args: Sequence[str] = ()
    ) -> None:
        command = [*omp_command(model, home), "--mode", "rpc", "--no-title", "--no-lsp", *args]
        super().__init__([str(part) for part in (*command, *(["--resume", resume] if resume else []))], home, cwd)


def pi_command(model: MockModel, home: Path) -> list[Path]:
    """What starts pi, which is told in this home to use the model."""
    agent = home / ".pi" / "agent"
    _write_json(agent / "models.json", {"providers": {"mock": _provider(model)}})
    _write_json(agent / "settings.json", {"defaultProvider": "mock", "defaultModel": MODEL})
    return [modules() / NODE, modules() / PI / "dist/bundle/cli.js"]


def omp_command(model: MockModel, home: Path) -> list[Path]:
    """The same for omp."""
    agent = home / ".omp" / "agent"
    roles = dict.fromkeys(("default", "smol", "slow", "tiny"), f"mock/{MODEL}")
    _write_json(agent / "models.yml", {"providers": {"mock": _provider(model)}})
    _write_json(agent / "config.yml", {"modelRoles": roles})
    return [modules() / BUN, modules() / OMP / "dist/cli.js"]


def on_path(model: MockModel, home: Path) -> dict[str, str]:
    """Variables with which `pi` and `omp` are found as a user's shell finds them."""
    folder = home / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in (("pi", pi_command(model, home)), ("omp", omp_command(model, home))):
        words = " ".join(shlex.quote(str(part)) for part in command)
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)
    environment = offline_environment(home)
    return {**environment, "PATH": f"{folder}{os.pathsep}{environment['PATH']}"}


def holds(process: RpcProcess, path: Path) -> bool:
    """Whether the process has `path` open right now."""
    return any(Path(opened.path) == path.resolve() for opened in psutil.Process(process.pid).open_files())


def _provider(model: MockModel) -> Record:
    entry = {
        "id": MODEL,
        "name": MODEL,
        "input": ["text", "image"],
        "contextWindow": 200_000,
        "maxTokens": 8_000,
        "cost": {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0},
    }
    return {"baseUrl": model.url, "apiKey": "unused", "api": "openai-completions", "models": [entry]}


def _write_json(path: Path, value: Record) -> None:
    """JSON is YAML too, so this writes omp's configuration as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
