"""The real dsh: what its own packages make of a session log, logs that they wrote, and its processes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from .install import NODE
from .mock_model import MockModel
from .peers import HERE, OracleError, ask, dsh_modules, modules, offline_environment
from .processes import RpcProcess

Facts = dict[str, Any]
DSH = "@deepseek-ai/dsh/lib/bin.js"
REPLACED = ("headless-runner", "headless-startup", "session-title-llm")


@dataclass(frozen=True)
class DshOracle:
    """dsh's session store and log reader, without its agent, in a process of its own per call.

    A log is named by its path, `<root>/<project>/<session>/session.jsonl[.zstd]`.
    """

    command: tuple[str, ...]
    timeout: float = 120

    def load(self, paths: Iterable[Path], *, resume: bool = True) -> list[Facts]:
        """What dsh makes of each log, each copied into a root of its own.

        Keys: path; listed (ids); raw (the text of its complete frames); stored {header, events, surface, messages}: the
        decoded events, the seqs of those that make the history, and the history; inspected {events, surface, messages}:
        the same with the closers that dsh adds in memory. With `resume` also resumed {events, messages}: the session
        that it would go on with; after: as stored, when it was closed again; rawAfter; written: the events that this
        added; kept: whether the file only grew. `{"error", "kind"}` stands for what dsh refused to do.
        """
        originals = list(paths)
        with tempfile.TemporaryDirectory(prefix="oracle-") as scratch:
            home = Path(scratch)
            copies = [_placed(path, home / str(number)) for number, path in enumerate(originals)]
            requests = [
                {**_place(copy), "kind": "look", "id": session_id(copy.parent.name), "resume": resume}
                for copy in copies
            ]
            answers = self._ask(requests, home)
            return [
                {**answer, "path": path, **(_growth(answer, path, copy) if resume else {})}
                for path, copy, answer in zip(originals, copies, answers, strict=True)
            ]

    def listed(self, root: Path) -> list[str]:
        """The ids of all sessions of a root; OracleError when dsh refuses to list it."""
        suffix = next(root.rglob("session.jsonl*")).suffix
        (answer,) = self._ask([{"kind": "list", "root": str(root), "compression": COMPRESSION[suffix]}], root)
        return _success(answer)["listed"]

    def make(self, root: Path, ops: Sequence[Facts], *, compression: str = "zstd", pack: bool = True) -> None:
        """Write sessions into `root`: `write` and `fork` in order. OracleError at the first that dsh refuses."""
        root.parent.mkdir(parents=True, exist_ok=True)
        place = {"root": str(root), "compression": compression, "packChunks": pack}
        (answer,) = self._ask([{"kind": "make", **place, "ops": list(ops)}], root.parent)
        _success(answer)

    def _ask(self, requests: list[Facts], home: Path) -> list[Facts]:
        return ask("dsh", self.command, requests, home, self.timeout)


COMPRESSION = {".zstd": "zstd", ".jsonl": "none"}


def write(header: Facts, *batches: Sequence[Facts]) -> Facts:
    """A new session; each batch of events is one durable append. `header` without type and version."""
    return {"op": "write", "header": header, "batches": [list(batch) for batch in batches]}


def fork(source: str, child: str, boundary: int | None = None) -> Facts:
    """dsh's own fork of `source`, through the event `boundary` or all of it.

    dsh opens the source for that, and so marks its end with `session/end-seed` where there is no such mark yet.
    """
    return {"op": "fork", "id": source, "child": child, "boundary": boundary}


def dsh() -> DshOracle:
    """dsh 0.1.0-rc.8."""
    return DshOracle((str(modules() / NODE), str(HERE / "dsh_oracle.mjs"), str(dsh_modules())))


def session_id(folder: str) -> str:
    """The id that the name of a session's folder stands for: `~XXXX` is a UTF-16 code unit."""
    units = re.sub(r"~([0-9A-F]{4})", lambda match: chr(int(match[1], 16)), folder)
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _placed(path: Path, root: Path) -> Path:
    folder = root / path.parent.parent.name / path.parent.name
    folder.mkdir(parents=True)
    return Path(shutil.copyfile(path, folder / path.name))


def _place(path: Path) -> Facts:
    return {"root": str(path.parents[2]), "compression": COMPRESSION[path.suffix]}


def _growth(answer: Facts, path: Path, copy: Path) -> Facts:
    kept = copy.read_bytes().startswith(path.read_bytes())
    if any("error" in answer[key] for key in ("stored", "resumed", "after")):
        return {"written": [], "kept": kept}
    return {"written": answer["after"]["events"][len(answer["stored"]["events"]) :], "kept": kept}


def _success(answer: Facts) -> Facts:
    if "error" in answer:
        raise OracleError(f"dsh: {answer['error']}")
    return answer


class DshProcess(RpcProcess):
    """The headless profile of dsh with a driver instead of its runner; `resume` is the id of a session to go on with.

    A session is on the disk from its first prompt on. The model's own title is switched off.
    """

    turn_ended = "idle"

    def __init__(self, model: MockModel, home: Path, cwd: Path, *, resume: str | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        config = {"modules": str(dsh_modules()), "resume": resume}
        driver = {"id": "test-driver", "name": (HERE / "dsh_app.mjs").as_uri(), "config": config}
        patch = home / "driver.yml"
        patch.write_text(json.dumps([*({"id": row, "disabled": True} for row in REPLACED), {"insert": [driver]}]))
        super().__init__(_command("--patch", str(patch)), home, cwd, _environment(model))

    @property
    def session_id(self) -> str:
        return self.state()["sessionId"]

    def messages(self) -> list[Facts]:
        """The history as dsh would send it now."""
        return self.request("get_messages")

    def fork(self, child: str, boundary: int | None = None) -> Path:
        """dsh's own fork of the living session; the new log."""
        return Path(self.request("fork", child=child, **({} if boundary is None else {"boundary": boundary})))

    def kill(self) -> None:
        """SIGKILL, with the commands that its tools have started."""
        children = psutil.Process(self.pid).children(recursive=True) if self.process.poll() is None else []
        super().kill()
        for child in children:
            if child.is_running():
                child.kill()


def headless(model: MockModel, home: Path, cwd: Path, task: str) -> str:
    """`dsh --profile headless <task>`, as a person starts it, in a new session; what it printed."""
    home.mkdir(parents=True, exist_ok=True)
    cwd.mkdir(parents=True, exist_ok=True)
    environment = offline_environment(home) | _environment(model)
    done = subprocess.run(_command(task), cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise OracleError(f"dsh ended with {done.returncode}: {done.stderr}")
    return done.stdout


def _command(*args: str) -> list[str]:
    return [str(modules() / NODE), str(dsh_modules() / DSH), "--profile", "headless", *args]


def _environment(model: MockModel) -> dict[str, str]:
    return {"DEEPSEEK_BASE_URL": model.url, "DEEPSEEK_API_KEY": "unused", "DSH_TELEMETRY_DISABLED": "1"}
