"""Every error that the method table declares for a method is provoked over the wire, each by what causes it."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from dsh_daemon import errors
from dsh_daemon.wire.methods import METHODS
from dsh_daemon.wire.types import COMMANDS

from .dsh_logs import Log, dump, frame
from .lines import Line
from .running import PATIENCE, Daemon
from .support import assistant, entry, header, line, user

OTHER = "elsewhere"
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2

# The params with which a method writes a line to the log of session `s1` (or would).
WRITING: dict[str, dict[str, Any]] = {
    "session/append": {"entries": [{"type": "custom", "customType": "acme"}]},
    "session/rename": {"title": "Another name"},
    "session/label": {"entryId": "u1", "label": "here"},
    "session/moveLeaf": {"entryId": "u1", "summary": {"text": "left it"}},
    "session/navigate": {
        "targetId": "a1",
        "label": "here",
    },  # where the leaf is, so that the label is all that is written
    "session/compact": {"summary": "one was asked", "firstKeptEntryId": "a1"},
}
CALL = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {}}
# The same for the agent of a native session `s1`, which `House.ready` puts where they are in order.
DRIVING: dict[str, dict[str, Any]] = {
    "session/resume": {},
    "session/release": {},
    "turn/start": {"content": "two"},
    "turn/end": {"turn": 2, "reason": {"kind": "completed"}},
    "step/start": {"turn": 2, "header": {"config": {"model": "m"}}},
    "step/end": {"turn": 2, "step": 1},
}
PARAMS: dict[str, dict[str, Any]] = {
    **WRITING,
    **DRIVING,
    "agent/send": {"content": "more"},
    "session/request": {"turn": 1, "step": 1},
    "session/branch": {"position": "at"},
    "session/archive": {"on": True},
    "session/pin": {"on": True},
    "session/draft": {"text": "unsent"},
    "session/children": {"entryId": None},
    "session/entries": {"ids": ["u1"]},
    "session/touched": {"path": "src/a.ts"},
    "search/sessions": {"query": "one"},
    "search/entries": {"query": "one"},
}
NAMING = {
    "session/append": {"entries": [{"type": "custom"}], "parentId": "nowhere"},
    "session/label": {"entryId": "nowhere", "label": "x"},
    "session/moveLeaf": {"entryId": "nowhere"},
    "session/navigate": {"targetId": "nowhere"},
    "session/branch": {"entryId": "nowhere"},
    "session/tree": {"at": "nowhere"},
    "session/entries": {"around": "nowhere"},
    "session/path": {"entryId": "nowhere"},
    "session/children": {"entryId": "nowhere"},
    "session/context": {"entryId": "nowhere"},
    "session/fork": {"boundary": "nowhere"},
    "session/request": {"turn": 1, "step": 1, "entryId": "nowhere"},
    "session/turns": {"entryId": "nowhere"},
    "session/transcript": {"entryId": "nowhere"},
    "session/compact": {"summary": "x", "firstKeptEntryId": "nowhere"},
}
SECOND_LINE = {  # params that name the second line of one id
    "session/append": {"entries": [{"type": "custom"}], "parentId": "u1~2"},
    "session/label": {"entryId": "u1~2", "label": "x"},
    "session/moveLeaf": {"entryId": "u1~2", "summary": {"text": "x"}},
    "session/navigate": {"targetId": "u1~2", "label": "x"},
    "session/compact": {"summary": "x", "firstKeptEntryId": "u1~2"},
}


def params_of(method: str, session_id: str = "s1") -> dict[str, Any]:
    if method == "session/create":
        return {"cwd": "/tmp/elsewhere", "parentSessionId": session_id}
    return {"sessionId": session_id, **PARAMS.get(method, {})}


def obey_modes() -> None:
    """Give up what lets root write to anything, before the daemon begins."""
    libc = ctypes.CDLL(None)
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


class House:
    """A daemon over a pi root with one session of two entries; for what only agents may do, a native one."""

    def __init__(self, method: str = "") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dshd-err-"))
        self.root = self.folder / "root"
        self.path = self.root / "--tmp-demo-proj--" / "2026-01-01T00-00-00-000Z_s1.jsonl"
        self.path.parent.mkdir(parents=True)
        self.entries = [user("u1", None, "one"), assistant("a1", "u1", "two", 2)]
        self.head = header(generator="dsh-daemon/1") if method in DRIVING else header()
        if method == "session/resume":
            self.entries += [entry("turn_start", "t2", "a1", 3, turn=2), user("u2", "t2", "and more", 3)]
        self.env: dict[str, str] = {}
        self.roots = [str(self.root)]
        self.ends: list[Callable[[], object]] = []
        self.daemon: Daemon | None = None

    def write(self, extra: bytes = b"") -> None:
        self.path.write_bytes(line(self.head) + b"".join(map(line, self.entries)) + extra)

    def start(self, *, unprivileged: bool = False) -> Line:
        if not self.path.exists():
            self.write()
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        self.daemon = Daemon(home, os.pathsep.join(self.roots), **self.env)
        command = [sys.executable, "-m", "dsh_daemon", "serve", "--foreground"]
        more: dict[str, Any] = {"preexec_fn": obey_modes} if unprivileged and os.geteuid() == 0 else {}
        with (home / "stderr").open("ab") as log:
            self.daemon.process = subprocess.Popen(
                command, env=self.daemon.env, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more
            )
        self.ends.append(self.daemon.stop)
        until = time.monotonic() + PATIENCE
        while True:
            assert self.daemon.process.poll() is None, (home / "stderr").read_text()
            assert time.monotonic() < until
            try:
                with Line.unix(self.daemon.socket) as asking:
                    if asking.call("daemon/status")["result"]["index"]["state"] == "idle":
                        break
            except (ConnectionRefusedError, FileNotFoundError):
                pass
            time.sleep(0.02)
        if more:
            status = Path(f"/proc/{self.pid}/status").read_text()
            if int(status.partition("CapEff:")[2].split()[0], 16) & (1 << _CAP_DAC_OVERRIDE):
                pytest.skip("this root cannot be made to obey the modes of files")
        return self.connect()

    def ready(self, method: str) -> Line:
        """A client for whom `method` would write a line now."""
        client = self.start()
        ask = partial(self.done, client)
        if method == "session/launch":
            ask("session/moveLeaf", entryId="u1")  # so that there is something to pin
        elif method in DRIVING and method != "session/resume":
            ask("session/resume")
            if method != "turn/start":
                ask("turn/start", content="one more")
            if method == "step/end":
                ask("step/start", turn=2)
                ask("session/append", entries=[{"type": "message", "message": {"role": "assistant", "content": []}}])
        return client

    @staticmethod
    def done(client: Line, method: str, **params: Any) -> dict[str, Any]:
        answer = client.call(method, {"sessionId": "s1", **params})
        assert "result" in answer, answer
        return answer["result"]

    def ask(self, client: Line, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask what is to be refused: the log stays as it is."""
        before = self.content()
        answer = client.call(method, params)
        assert self.content() == before
        return answer

    def content(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def add(self, made: dict[str, Any]) -> None:
        """Append a line as another program would."""
        with self.path.open("ab") as file:
            file.write(line(made))

    def connect(self, **options: Any) -> Line:
        assert self.daemon is not None
        made = Line.unix(self.daemon.socket)
        self.ends.append(made.close)
        made.initialize("test", **options)
        return made

    def descriptors(self) -> set[int]:
        """What the daemon has open, once that stays the same: databases come and go while it starts."""
        seen: list[set[int]] = []
        while len(seen) < 5 or any(one != seen[-1] for one in seen[-5:]):
            assert len(seen) < 200, "the daemon does not come to rest"
            seen.append({int(name) for name in os.listdir(f"/proc/{self.pid}/fd")})
            time.sleep(0.05)
        return seen[-1]

    def until_unlisted(self, client: Line) -> None:
        until = time.monotonic() + PATIENCE
        while client.call("session/list")["result"]["items"]:
            assert time.monotonic() < until
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        assert self.daemon is not None
        assert self.daemon.process is not None
        return self.daemon.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        while self.ends:
            self.ends.pop()()
        shutil.rmtree(self.folder)


def kind_of(answer: dict[str, Any]) -> str:
    """Kind of a refusal, its details checked for what the protocol promises of it."""
    if "error" not in answer:
        return f"none: {json.dumps(answer)[:300]}"
    data = answer["error"].get("data", {})
    kind = data.get("kind", f"code {answer['error']['code']}: {answer['error']['message']}")
    missing = DETAILS.get(kind, set()) - data.keys()
    assert not missing, f"{kind} without {missing}: {data}"
    if kind in CODES:
        assert answer["error"]["code"] == CODES[kind]
    return kind


CODES = {
    cls.kind: cls.code
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, errors.Fault) and cls is not errors.Fault
}
DETAILS = {
    "entryNotFound": {"sessionId", "entryId"},
    "ambiguousSession": {"candidates"},
    "invalidReference": {"ref", "reason"},
    "alreadyExists": {"id"},
    "leafMoved": {"expected", "actual"},
    "notAUserMessage": {"entryId"},
    "damagedHeader": {"path", "detail"},
    "damagedRegion": {"offset", "diagnostic"},
    "sessionGone": {"sessionId", "path"},
    "agentBusy": {"holder"},
    "busy": {"retryAfterMs"},
    "readOnly": {"reason"},
    "storageFull": {"path"},
    "storageError": {"path", "errno"},
    "versionMismatch": {"daemon", "client", "action"},
    "overloaded": {"retryAfterMs"},
    "notSupportedByFormat": {"format"},
    "invalidEntry": {"index", "reason"},
    "turnOpen": {"turn", "entryId"},
    "noOpenTurn": {"turn"},
    "stepOpen": {"turn", "step"},
    "boundaryInTurn": {"turn", "nearestClosed"},
    "persistenceUnavailable": {"reason"},
    "unsupportedVersion": {"version"},
    "notTheAgent": {"holder"},
    "noAgent": {"sessionId"},
    "notRecorded": {"turn", "step"},
    "summaryFailed": {"reason"},
    "nothingToCompact": {"keepTokens"},
}


class HouseOfDsh(House):
    """A daemon over a root of dsh with one session `s1` of two turns."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log("s1")
        self.log.talk("one", "first")
        self.log.talk("two", "second")
        self.root = self.folder / "dsh"
        self.roots = [f"dsh={self.root}"]
        self.path = self.root / "--tmp-demo-proj--" / "s1" / "session.jsonl.zstd"

    def write(self, extra: bytes = b"") -> None:
        self.log.write(self.root)
        with self.path.open("ab") as file:
            file.write(extra)

    def add(self, made: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(frame(dump(made)))

    def agent(self) -> Line:
        client = self.start()
        self.done(client, "session/resume")
        return client


Provoke = Callable[[str], str]
CASES: dict[tuple[str, str], Provoke] = {}  # (kind, method; "" = any) -> what brings it about, and gives the kind


def provokes(kind: str, *methods: str) -> Callable[[Provoke], Provoke]:
    def note(function: Provoke) -> Provoke:
        for method in methods or ("",):
            CASES[kind, method] = function
        return function

    return note


@provokes("sessionNotFound")
def _unknown_session(method: str) -> str:
    with House() as house:
        params = {"ref": "nobody"} if method == "session/resolve" else params_of(method, "nobody")
        return kind_of(house.ask(house.start(), method, params))


@provokes("ambiguousSession")
def _two_files_of_one_id(method: str) -> str:
    with House() as house:
        house.write()
        shutil.copyfile(house.path, house.path.with_name("copy.jsonl"))
        params = {"ref": "s1"} if method == "session/resolve" else params_of(method)
        return kind_of(house.ask(house.start(), method, params))


@provokes("sessionGone")
def _file_removed(method: str) -> str:
    with House() as house:
        client = house.start()
        client.call("session/list")
        house.path.unlink()
        house.until_unlisted(client)
        return kind_of(house.ask(client, method, params_of(method)))


@provokes("notSupportedByFormat")
def _session_of_claude(method: str) -> str:
    with House() as house:
        folder = house.folder / "claude/projects/-x"
        folder.mkdir(parents=True)
        entry = {
            "parentUuid": None,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/x",
            "sessionId": OTHER,
            "version": "2.0.1",
            "type": "user",
            "message": {"role": "user", "content": "Hi"},
            "uuid": "u-1",
            "timestamp": "2026-03-01T08:00:00.000Z",
        }
        (folder / f"{OTHER}.jsonl").write_text(json.dumps(entry) + "\n")
        house.roots.append(f"claude={folder.parent}")
        return kind_of(house.ask(house.start(), method, params_of(method, OTHER)))


@provokes("notSupportedByFormat", "session/archive", "session/pin")
def _in_memory(method: str) -> str:
    with House() as house:
        client = house.start()
        client.call("session/create", {"cwd": "/x", "persist": False, "sessionId": OTHER})
        return kind_of(house.ask(client, method, params_of(method, OTHER)))


@provokes("readOnly")
def _client_that_reads(method: str) -> str:
    with House() as house:
        house.start()
        params: dict[str, Any] = {"daemon/stop": {}, "daemon/doctor": {"fix": True}}.get(method) or params_of(method)
        return kind_of(house.connect(readOnly=True).call(method, {} if method == "daemon/stop" else params))


@provokes("agentBusy")
def _held_by_omp(method: str) -> str:
    with House() as house:
        slot = {"type": "title", "v": 1, "title": "", "updatedAt": "2026-01-01T00:00:00.000Z", "pad": ""}
        slot["pad"] = " " * (255 - len(json.dumps(slot, separators=(",", ":"))))
        house.write()
        house.path.write_bytes(line(slot) + house.path.read_bytes())
        house.roots = [f"omp={house.root}"]
        client = house.start()
        held = "import sys; f = open(sys.argv[1], 'ab'); print('held', flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", held, str(house.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as omp:
            assert omp.stdout is not None
            omp.stdout.readline()
            answer = client.call(method, params_of(method))
        assert answer["error"]["data"]["holder"] == {"client": "omp", "pid": omp.pid}
        return kind_of(answer)


@provokes("busy")
def _last_line_being_written(method: str) -> str:
    with House(method) as house:
        client = house.ready(method)
        with house.path.open("ab") as file:
            file.write(b'{"type":"custom","id":"half')
        return kind_of(house.ask(client, method, params_of(method)))


@provokes("damagedHeader")
def _broken_header(method: str) -> str:
    with House(method) as house:
        house.write()
        first, _, rest = house.path.read_bytes().partition(b"\n")
        house.path.write_bytes(first[:-1] + b"\n" + rest)
        return kind_of(house.ask(house.start(), method, params_of(method)))


def limited(house: House, what: int, value: int) -> None:
    prlimit = getattr(resource, "prlimit", None)
    if prlimit is None:
        pytest.skip("limits of another process are Linux's")
    prlimit(house.pid, what, (value, prlimit(house.pid, what)[1]))


@provokes("storageFull")
def _no_space(method: str) -> str:
    with House(method) as house:
        client = house.ready(method)
        if method != "session/create":
            client.call("session/open", {"sessionId": "s1"})
        # The system says EFBIG where a full disk says ENOSPC.
        small = method in {"session/create", "session/branch", "session/fork", "session/delete"}
        limited(house, resource.RLIMIT_FSIZE, 0 if small else house.path.stat().st_size + 10)
        return kind_of(house.ask(client, method, params_of(method)))


@provokes("storageError")
def _no_descriptors(method: str) -> str:
    with House(method) as house:
        client = house.ready(method)
        if METHODS[method].writes and method not in {"session/create", "session/delete", "session/resume"}:
            client.call("session/open", {"sessionId": "s1"})
        taken = house.descriptors()
        limited(house, resource.RLIMIT_NOFILE, min(set(range(len(taken) + 1)) - taken))
        return kind_of(house.ask(client, method, params_of(method)))


@provokes("storageError", "session/release", "turn/end", "step/start", "step/end")
def _replaced_and_no_descriptors(method: str) -> str:
    with House(method) as house:
        client = house.ready(method)
        taken = house.descriptors()
        limited(house, resource.RLIMIT_NOFILE, min(set(range(len(taken) + 1)) - taken))
        copy = house.folder / "copy"
        shutil.copyfile(house.path, copy)
        copy.rename(house.path)
        return kind_of(house.ask(client, method, params_of(method)))


IN_STATE = ("session/archive", "session/pin", "session/draft")


@provokes("busy", *IN_STATE)
def _state_is_locked(method: str) -> str:
    with House() as house:
        client = house.start()
        with closing(sqlite3.connect(house.folder / "home/state/state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            return kind_of(house.ask(client, method, params_of(method)))


@provokes("storageFull", *IN_STATE)
def _no_space_for_state(method: str) -> str:
    with House() as house:
        client = house.start()
        client.call("session/list")
        limited(house, resource.RLIMIT_FSIZE, 0)
        return kind_of(house.ask(client, method, params_of(method)))


@provokes("entryNotFound")
def _unknown_entry(method: str) -> str:
    with House() as house:
        return kind_of(house.ask(house.start(), method, {"sessionId": "s1", **NAMING[method]}))


@provokes("leafMoved")
def _leaf_elsewhere(method: str) -> str:
    with House() as house:
        return kind_of(house.ask(house.start(), method, {**params_of(method), "expectedLeafId": "u1"}))


@provokes("damagedRegion")
def _second_line_of_an_id(method: str) -> str:
    with House() as house:
        house.entries.append(user("u1", "a1", "the same id, another text", 3))
        client = house.start()
        return kind_of(house.ask(client, method, {"sessionId": "s1", **SECOND_LINE[method]}))


@provokes("damagedRegion", "session/launch", *DRIVING)
def _leaf_on_the_second_line_of_an_id(method: str) -> str:
    with House(method) as house:
        if method == "session/resume":
            house.entries.append(user("u1", "u2", "the same id, another text", 4))
        client = house.ready(method)
        if method == "session/launch":
            house.add(user("u1", "a1", "the same id, another text", 4))
            house.add(assistant("a2", "u1", "the last line", 5))
            house.done(client, "session/moveLeaf", entryId="u1~2")
        elif method != "session/resume":
            house.add(user("u1", house.done(client, "session/open")["leafId"], "the same id, another text", 4))
        return kind_of(house.ask(client, method, params_of(method)))


@provokes("damagedRegion", "session/branch", "session/fork")
def _unreadable_line_between(method: str) -> str:
    with House() as house:
        house.write(b"#####\n" + line(user("u2", "a1", "three", 3)) + line(assistant("a2", "u2", "four", 4)))
        return kind_of(house.ask(house.start(), method, params_of(method)))


@provokes("damagedRegion", "session/rename")
def _log_of_dsh_that_another_program_spoiled(method: str) -> str:
    with HouseOfDsh() as house:
        client = house.agent()
        house.add({"type": "feedback/record", "seq": 99, "time": 0, "data": {}})
        return kind_of(house.ask(client, method, params_of(method)))


@provokes("alreadyExists", "session/create")
def _session_id_taken(method: str) -> str:
    with House() as house:
        return kind_of(house.ask(house.start(), method, {"cwd": "/x", "sessionId": "s1"}))


@provokes("alreadyExists", "session/branch", "session/fork")
def _child_id_taken(method: str) -> str:
    with House() as house:
        return kind_of(house.ask(house.start(), method, {**params_of(method), "childSessionId": "s1"}))


@provokes("alreadyExists", "session/append")
def _entry_id_taken(method: str) -> str:
    with House() as house:
        params = {"sessionId": "s1", "entries": [{"type": "custom", "id": "u1"}]}
        return kind_of(house.ask(house.start(), method, params))


@provokes("invalidEntry", "session/append")
def _message_without_content(method: str) -> str:
    with House() as house:
        params = {"sessionId": "s1", "entries": [{"type": "message", "message": {}}]}
        return kind_of(house.ask(house.start(), method, params))


@provokes("invalidEntry", "session/moveLeaf")
def _details_that_no_log_holds(method: str) -> str:
    with House() as house:
        summary = {"text": "left it", "details": {"n": 2**64}}
        return kind_of(house.ask(house.start(), method, {"sessionId": "s1", "entryId": "u1", "summary": summary}))


@provokes("invalidEntry", "turn/start", "turn/end", "step/start", "agent/send")
def _number_that_no_log_holds(method: str) -> str:
    large = {
        "turn/start": {"content": [{"type": "text", "text": "two", "n": 2**64}]},
        "turn/end": {"reason": {"kind": "error", "n": 2**64}},
        "step/start": {"header": {"config": {"n": 2**64}}},
        "agent/send": {"content": [{"type": "text", "text": "two", "n": 2**64}]},
    }
    with House("turn/start") as house:
        client = house.ready(method if method != "agent/send" else "turn/start")
        return kind_of(house.ask(client, method, {**params_of(method), **large[method]}))


@provokes("invalidEntry", "step/end")
def _completed_without_an_answer(method: str) -> str:
    with House(method) as house:
        client = house.ready("turn/end")
        house.done(client, "step/start", turn=2)
        return kind_of(house.ask(client, method, params_of(method)))


@provokes("agentBusy", "session/resume")
def _driven_by_another_client(method: str) -> str:
    with House(method) as house:
        house.done(house.start(), "session/resume")
        answer = house.ask(house.connect(), method, params_of(method))
        assert answer["error"]["data"]["holder"] == {"client": "test", "pid": os.getpid()}
        return kind_of(answer)


@provokes("persistenceUnavailable", "session/resume")
def _in_memory_only(method: str) -> str:
    with House() as house:
        client = house.start()
        client.call("session/create", {"cwd": "/x", "persist": False, "sessionId": OTHER})
        return kind_of(client.call(method, params_of(method, OTHER)))


@provokes("unsupportedVersion", "session/resume")
def _file_of_a_later_version(method: str) -> str:
    with House(method) as house:
        house.head["version"] = 4
        answer = house.ask(house.start(), method, params_of(method))
        assert answer["error"]["data"]["version"] == 4
        return kind_of(answer)


@provokes("unsupportedVersion", "session/fork", "session/branch")
def _log_of_a_later_dsh(method: str) -> str:
    with HouseOfDsh() as house:
        house.log.header["version"] = 1
        answer = house.ask(house.start(), method, params_of(method))
        assert answer["error"]["data"]["version"] == 1
        return kind_of(answer)


@provokes("notTheAgent", "agent/claim", *DRIVING)
def _somebody_else_is_the_agent(method: str) -> str:
    with House("turn/end") as house:
        nobody = house.ask(house.start(), method, params_of(method))
        assert nobody["error"]["data"] == {"kind": "notTheAgent", "holder": None}
        house.done(house.connect(), "session/resume")
        answer = house.ask(house.connect(), method, params_of(method))
        assert answer["error"]["data"]["holder"] == {"client": "test", "pid": os.getpid()}
        return kind_of(answer)


@provokes("notTheAgent", "session/append")
def _nobody_is_the_agent_of_a_dsh_session(method: str) -> str:
    with HouseOfDsh() as house:
        event = {"type": "feedback/record", "data": {}}
        answer = house.ask(house.start(), method, {"sessionId": "s1", "entries": [event]})
        assert answer["error"]["data"] == {"kind": "notTheAgent", "holder": None}
        return kind_of(answer)


@provokes("turnOpen", "session/compact")
def _agent_of_somebody_else_in_the_middle_of_a_turn(method: str) -> str:
    with House("turn/end") as house:
        house.ready("turn/end")
        return kind_of(house.ask(house.connect(), method, params_of(method)))


@provokes("turnOpen", "session/append", "session/moveLeaf", "session/navigate", "turn/start")
def _agent_in_the_middle_of_a_turn(method: str) -> str:
    out_of_it = {"session/append": {"parentId": "a1"}, "session/navigate": {"targetId": "a1"}}
    with House("turn/end") as house:
        client = house.ready("turn/end")
        assert client.call(method, {**params_of(method), **out_of_it.get(method, {})})["error"]["data"]["turn"] == 2
        other = house.connect() if method != "turn/start" else client
        return kind_of(house.ask(other, method, {**params_of(method), **out_of_it.get(method, {})}))


@provokes("turnOpen", "session/branch")
def _turn_in_memory(method: str) -> str:
    with House() as house:
        client = house.start()
        client.call("session/create", {"cwd": "/x", "persist": False, "sessionId": OTHER})
        client.call("turn/start", {"sessionId": OTHER, "content": "one"})
        return kind_of(client.call(method, params_of(method, OTHER)))


@provokes("noOpenTurn", "turn/end", "step/start", "step/end")
def _nothing_is_open(method: str) -> str:
    with House(method) as house:
        client = house.ready("turn/start")
        assert kind_of(house.ask(client, method, params_of(method))) == "noOpenTurn"
        house.done(client, "turn/start", content="two")
        return kind_of(house.ask(client, method, {**params_of(method), "turn": 1}))


@provokes("stepOpen", "turn/end", "step/start")
def _a_step_is_open(method: str) -> str:
    with House(method) as house:
        client = house.ready(method)
        house.done(client, "step/start", turn=2)
        return kind_of(house.ask(client, method, params_of(method)))


@provokes("invalidReference", "turn/start")
def _message_that_does_not_wait(method: str) -> str:
    with House(method) as house:
        return kind_of(house.ask(house.ready(method), method, {"sessionId": "s1", "messageId": "0123"}))


@provokes("noAgent", "agent/send")
def _nobody_to_read_it(method: str) -> str:
    with House("turn/start") as house:
        return kind_of(house.ask(house.start(), method, params_of(method)))


@provokes("overloaded", "agent/send")
def _inbox_is_full(method: str) -> str:
    with House("turn/start") as house:
        client = house.ready("turn/start")
        house.done(client, "agent/send", content="x" * (5 << 20))
        return kind_of(house.ask(client, method, {"sessionId": "s1", "content": "x" * (2 << 20)}))


@provokes("boundaryInTurn", "session/fork")
def _in_the_middle_of_a_turn(method: str) -> str:
    with House("turn/end") as house:
        answer = house.ask(house.ready("turn/end"), method, params_of(method))
        assert answer["error"]["data"] == {"kind": "boundaryInTurn", "turn": 2, "nearestClosed": "a1"}
        return kind_of(answer)


@provokes("boundaryInTurn", "session/branch")
def _in_the_middle_of_a_turn_of_dsh(method: str) -> str:
    with HouseOfDsh() as house:
        house.log.prompt("three")
        answer = house.ask(house.start(), method, params_of(method))
        last = house.log.events[-5]
        assert last["type"] == "turn/end"
        assert answer["error"]["data"] == {"kind": "boundaryInTurn", "turn": 3, "nearestClosed": str(last["seq"])}
        return kind_of(answer)


@provokes("notRecorded", "session/request")
def _step_without_marks(method: str) -> str:
    with House() as house:
        return kind_of(house.ask(house.start(), method, params_of(method)))


SUMMARISING = {
    "session/navigate": {"sessionId": "s1", "targetId": "u1", "summarize": True},
    "session/compact": {"sessionId": "s1", "firstKeptEntryId": "a1"},
}


@provokes("noActiveModel", *SUMMARISING)
def _nothing_to_summarise_with(method: str) -> str:
    with House() as house:
        return kind_of(house.ask(house.start(), method, SUMMARISING[method]))


@provokes("summaryFailed", *SUMMARISING)
def _client_that_cannot_summarise_after_all(method: str) -> str:
    with House() as house:
        house.start()
        other = house.connect(summarizer=True)
        client = house.connect()
        client.send({"jsonrpc": "2.0", "id": 9, "method": method, "params": SUMMARISING[method]})
        asked = other.receive()
        assert asked is not None
        other.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": 1, "message": "no key"}})
        return kind_of(client.answer(9))


@provokes("busy", "session/branch")
def _another_branch_is_asked_about(method: str) -> str:
    with House() as house:
        house.start()
        other = house.connect(hooks=["sessionBeforeBranch"])
        house.connect().send({"jsonrpc": "2.0", "id": 9, "method": method, "params": params_of(method)})
        assert other.receive() is not None
        return kind_of(house.ask(house.connect(), method, params_of(method)))


@provokes("nothingToCompact", "session/compact")
def _everything_is_kept(method: str) -> str:
    with House() as house:
        params = {"sessionId": "s1", "summary": "x", "firstKeptEntryId": "u1"}
        return kind_of(house.ask(house.start(), method, params))


@provokes("notAUserMessage", "session/branch")
def _before_an_answer(method: str) -> str:
    with House() as house:
        return kind_of(house.ask(house.start(), method, {"sessionId": "s1", "entryId": "a1"}))


@provokes("cursorExpired", "session/list", "session/touched", "search/sessions")
def _foreign_cursor(method: str) -> str:
    with House() as house:
        params = {"cursor": "eyJnIjoxfQ", **PARAMS.get(method, {})}
        return kind_of(house.ask(house.start(), method, params))


@provokes("cursorExpired", "search/entries")
def _cursor_of_another_search(method: str) -> str:
    with House() as house:
        asking = house.start()
        params = {"sessionId": "s1", "query": "one", "cursor": "5d1f0c3a9b72-2"}
        return kind_of(house.ask(asking, method, params))


@provokes("cursorExpired", "session/entries")
def _epoch_that_is_over(method: str) -> str:
    with House() as house:
        return kind_of(house.ask(house.start(), method, {"sessionId": "s1", "since": {"epoch": "over", "revision": 1}}))


@provokes("invalidReference", "session/resolve")
def _nothing_named(method: str) -> str:
    with House() as house:
        return kind_of(house.ask(house.start(), method, {"ref": " "}))


@provokes("invalidReference", "session/open")
def _path_of_no_session(method: str) -> str:
    with House() as house:
        other = house.folder / "notes.jsonl"
        other.write_text("no session\n")
        return kind_of(house.ask(house.start(), method, {"path": str(other)}))


@provokes("versionMismatch", "initialize")
def _later_protocol(method: str) -> str:
    with House() as house:
        house.start()
        assert house.daemon is not None
        with Line.unix(house.daemon.socket) as asking:
            return kind_of(asking.initialize(protocolVersion=2))


@provokes("unauthorized", "initialize")
def _wrong_token(method: str) -> str:
    with House() as house:
        house.env["DSHD_TCP"] = "127.0.0.1:0"
        tcp = house.start().call("daemon/status")["result"]["tcp"]
        with Line.tcp(tcp["host"], tcp["port"]) as asking:
            return kind_of(asking.initialize(token="guess"))


@provokes("overloaded", "initialize")
def _one_client_too_many(method: str) -> str:
    with House() as house:
        house.env["DSHD_LIMITS__MAX_CONNECTIONS"] = "1"
        house.start()
        assert house.daemon is not None
        with Line.unix(house.daemon.socket) as asking:
            return kind_of(asking.initialize())


COMMAND = "workspace/executeCommand"


@provokes("invalidReference", COMMAND)
def _document_that_is_no_log(method: str) -> str:
    with House() as house:
        notes = house.folder / "notes.jsonl"
        notes.write_text("milk\n")
        arguments = [{"textDocument": {"uri": notes.as_uri()}}]
        return kind_of(house.ask(house.start(), method, {"command": "dsh.resume", "arguments": arguments}))


def as_command(kind: str) -> str:
    """Provoke what one of the methods behind commands declares, with that method sent as its command."""
    name, of = next((name, row.method) for name, row in COMMANDS.items() if kind in METHODS[row.method].errors)
    plain = Line.call

    def call(line: Line, method: str, params: Any = None, *more: Any) -> dict[str, Any]:
        if method == of:
            return plain(line, COMMAND, {"command": name, "arguments": [params]}, *more)
        return plain(line, method, params, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Line, "call", call)
        return (CASES.get((kind, of)) or CASES[kind, ""])(of)


@pytest.mark.parametrize(("method", "kind"), [(row.name, kind) for row in METHODS.values() for kind in row.errors])
def test_a_declared_error_occurs(method: str, kind: str) -> None:
    if method == COMMAND and (kind, method) not in CASES:
        assert as_command(kind) == kind
        return
    provoke = CASES.get((kind, method)) or CASES[kind, ""]
    assert provoke(method) == kind


# --- what dsh adds to them


def gap(log: Log) -> None:
    del log.events[12]


def later_event(log: Log) -> None:
    log.add("garden/planted", {})


def without_depth(log: Log) -> None:
    log.header["delegationDepth"] = None


@pytest.mark.parametrize(
    ("method", "spoil", "wanted"),
    [
        ("session/resume", gap, {"kind": "damagedRegion", "diagnostic": "seq_gap"}),
        ("session/fork", gap, {"kind": "damagedRegion", "diagnostic": "refused_event"}),
        ("session/branch", gap, {"kind": "damagedRegion", "diagnostic": "refused_event"}),
        ("session/resume", later_event, {"kind": "notSupportedByFormat", "eventType": "garden/planted"}),
        ("session/fork", later_event, {"kind": "notSupportedByFormat", "eventType": "garden/planted"}),
        ("session/branch", later_event, {"kind": "notSupportedByFormat", "eventType": "garden/planted"}),
        ("session/resume", without_depth, {"kind": "damagedHeader"}),
    ],
)
def test_what_dsh_refuses_of_a_log_is_said(method: str, spoil: Callable[[Log], None], wanted: dict[str, Any]) -> None:
    with HouseOfDsh() as house:
        spoil(house.log)
        answer = house.ask(house.start(), method, params_of(method))
        assert kind_of(answer) == wanted["kind"]
        assert answer["error"]["data"].items() >= wanted.items()


@pytest.mark.parametrize("method", ["session/append", "turn/start", "session/rename"])
def test_an_agent_does_not_write_behind_what_dsh_refuses(method: str) -> None:
    with HouseOfDsh() as house:
        client = house.agent()
        house.add({"type": "garden/planted", "seq": len(house.log.events), "time": 0, "data": {}})
        params = params_of(method)
        if method == "session/append":
            params["entries"] = [{"type": "feedback/record", "data": {}}]
        answer = house.ask(client, method, params)
        assert kind_of(answer) == "notSupportedByFormat"
        assert answer["error"]["data"]["eventType"] == "garden/planted"


@pytest.mark.parametrize("method", ["session/navigate", "session/moveLeaf", "session/append"])
def test_a_dsh_log_has_one_path(method: str) -> None:
    params = {
        "session/navigate": {"targetId": "3"},
        "session/moveLeaf": {"entryId": "3"},
        "session/append": {"entries": [{"type": "feedback/record", "data": {}}], "parentId": "3"},
    }
    with HouseOfDsh() as house:
        answer = house.ask(house.agent(), method, {"sessionId": "s1", **params[method]})
        assert kind_of(answer) == "notSupportedByFormat"
        assert answer["error"]["data"].items() >= {"instead": "session/fork", "boundary": None}.items()


# --- where the system itself refuses


UNWRITABLE = [*WRITING, "session/branch", "session/fork", "session/delete", "session/create"]


@pytest.mark.parametrize("method", UNWRITABLE)
def test_what_may_not_be_written_is_read_only(method: str) -> None:
    with House() as house:
        house.write()
        house.path.chmod(0o400)
        house.path.parent.chmod(0o500)
        client = house.start(unprivileged=True)
        if method == "session/create":
            assert house.daemon is not None
            (house.daemon.home / "sessions").mkdir(exist_ok=True)
            (house.daemon.home / "sessions").chmod(0o500)
        assert kind_of(house.ask(client, method, params_of(method))) == "readOnly"
        house.path.parent.chmod(0o700)


def test_what_may_not_be_read_is_listed_and_its_opening_a_storage_error() -> None:
    with House() as house:
        house.write()
        house.path.chmod(0)
        client = house.start(unprivileged=True)
        [info] = client.call("session/list")["result"]["items"]
        assert info["health"] == "unreadable"
        assert not any(info["can"].values())
        assert kind_of(client.call("session/open", {"path": str(house.path)})) == "storageError"


def test_a_session_whose_file_went_long_ago_is_gone_and_not_unknown() -> None:
    with House() as house:
        client = house.start()
        client.call("session/list")
        house.path.unlink()
        house.until_unlisted(client)
        assert kind_of(client.call("session/path", {"sessionId": "s1"})) == "sessionGone"
        assert kind_of(client.call("session/path", {"sessionId": "s2"})) == "sessionNotFound"


def test_a_session_that_cannot_be_written_is_not_resumed() -> None:
    """No pretended resume: without a durable log there is nothing to go on with."""
    with House("session/resume") as house:
        house.write()
        house.path.chmod(0o400)
        client = house.start(unprivileged=True)
        answer = house.ask(client, "session/resume", {"sessionId": "s1"})
        assert kind_of(answer) == "persistenceUnavailable"
        assert "EACCES" in answer["error"]["data"]["reason"] or str(house.path) in answer["error"]["data"]["reason"]
        assert client.call("session/open", {"sessionId": "s1"})["result"]["live"] is None


@pytest.mark.parametrize("what", ["RLIMIT_FSIZE", "RLIMIT_NOFILE"])
def test_a_resume_that_cannot_write_its_repairs_leaves_no_agent(what: str) -> None:
    with House("session/resume") as house:
        client = house.start()
        house.done(client, "session/open")
        taken = house.descriptors()
        value = house.path.stat().st_size + 10 if what == "RLIMIT_FSIZE" else min(set(range(len(taken) + 1)) - taken)
        limited(house, getattr(resource, what), value)
        assert kind_of(house.ask(client, "session/resume", {"sessionId": "s1"})) == "persistenceUnavailable"
        assert kind_of(house.ask(client, "turn/start", {"sessionId": "s1", "content": "x"})) == "notTheAgent"


def test_a_takeover_that_fails_leaves_the_agent_that_was() -> None:
    with House("turn/end") as house:
        client = house.ready("turn/end")
        limited(house, resource.RLIMIT_FSIZE, house.path.stat().st_size + 10)
        other = house.connect()
        answer = house.ask(other, "session/resume", {"sessionId": "s1", "takeover": True})
        assert kind_of(answer) == "persistenceUnavailable"
        assert kind_of(house.ask(other, "turn/end", params_of("turn/end"))) == "notTheAgent"
        assert kind_of(house.ask(client, "turn/end", params_of("turn/end"))) == "storageFull"


@pytest.mark.parametrize("method", ["session/resume", "turn/start", "turn/end", "step/start", "step/end"])
def test_sessions_of_pi_are_not_driven_by_us(method: str) -> None:
    with House() as house:
        answer = house.ask(house.start(), method, params_of(method))
        assert kind_of(answer) == "notSupportedByFormat"
        assert answer["error"]["data"] == {
            "kind": "notSupportedByFormat", "format": "pi", "instead": "session/launch",
        }  # fmt: skip


def test_a_native_session_is_resumed_and_not_launched() -> None:
    with House("turn/end") as house:
        answer = house.ask(house.start(), "session/launch", {"sessionId": "s1"})
        assert kind_of(answer) == "notSupportedByFormat"
        assert answer["error"]["data"]["instead"] == "session/resume"


def test_a_session_is_not_deleted_under_the_agent_of_another_client() -> None:
    with House("turn/end") as house:
        client = house.ready("turn/end")
        assert kind_of(house.ask(house.connect(), "session/delete", {"sessionId": "s1"})) == "agentBusy"
        assert client.call("session/delete", {"sessionId": "s1"})["result"]["trashPath"]
