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
from pathlib import Path
from typing import Any, Self

import pytest

from dsh_daemon import errors
from dsh_daemon.wire.methods import METHODS

from .lines import Line
from .running import PATIENCE, Daemon
from .support import assistant, header, line, user

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
}
PARAMS: dict[str, dict[str, Any]] = {
    **WRITING,
    "session/branch": {"position": "at"},
    "session/archive": {"on": True},
    "session/pin": {"on": True},
    "session/draft": {"text": "unsent"},
    "session/children": {"entryId": None},
    "session/entries": {"ids": ["u1"]},
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
}
SECOND_LINE = {  # params that name the second line of one id
    "session/append": {"entries": [{"type": "custom"}], "parentId": "u1~2"},
    "session/label": {"entryId": "u1~2", "label": "x"},
    "session/moveLeaf": {"entryId": "u1~2", "summary": {"text": "x"}},
    "session/navigate": {"targetId": "u1~2", "label": "x"},
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
    """A daemon over a pi root with one session of two entries."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dshd-err-"))
        self.root = self.folder / "root"
        self.path = self.root / "--tmp-demo-proj--" / "2026-01-01T00-00-00-000Z_s1.jsonl"
        self.path.parent.mkdir(parents=True)
        self.entries = [user("u1", None, "one"), assistant("a1", "u1", "two", 2)]
        self.head = header()
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
}

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
        return kind_of(house.start().call(method, params))


@provokes("ambiguousSession")
def _two_files_of_one_id(method: str) -> str:
    with House() as house:
        house.write()
        shutil.copyfile(house.path, house.path.with_name("copy.jsonl"))
        params = {"ref": "s1"} if method == "session/resolve" else params_of(method)
        return kind_of(house.start().call(method, params))


@provokes("sessionGone")
def _file_removed(method: str) -> str:
    with House() as house:
        client = house.start()
        client.call("session/list")
        house.path.unlink()
        house.until_unlisted(client)
        return kind_of(client.call(method, params_of(method)))


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
        return kind_of(house.start().call(method, params_of(method, OTHER)))


@provokes("notSupportedByFormat", "session/archive", "session/pin")
def _in_memory(method: str) -> str:
    with House() as house:
        client = house.start()
        client.call("session/create", {"cwd": "/x", "persist": False, "sessionId": OTHER})
        return kind_of(client.call(method, params_of(method, OTHER)))


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
    with House() as house:
        client = house.start()
        with house.path.open("ab") as file:
            file.write(b'{"type":"custom","id":"half')
        return kind_of(client.call(method, params_of(method)))


@provokes("damagedHeader")
def _broken_header(method: str) -> str:
    with House() as house:
        house.write()
        lines = house.path.read_bytes().split(b"\n")
        house.path.write_bytes(b"\n".join([lines[0][:-1], *lines[1:]]))
        return kind_of(house.start().call(method, params_of(method)))


def limited(house: House, what: int, value: int) -> None:
    prlimit = getattr(resource, "prlimit", None)
    if prlimit is None:
        pytest.skip("limits of another process are Linux's")
    prlimit(house.pid, what, (value, prlimit(house.pid, what)[1]))


@provokes("storageFull")
def _no_space(method: str) -> str:
    with House() as house:
        client = house.start()
        if method != "session/create":
            client.call("session/open", {"sessionId": "s1"})
        # The system says EFBIG where a full disk says ENOSPC.
        small = method in {"session/create", "session/branch", "session/delete"}
        limited(house, resource.RLIMIT_FSIZE, 0 if small else house.path.stat().st_size + 10)
        before = house.path.read_bytes()
        kind = kind_of(client.call(method, params_of(method)))
        assert house.path.read_bytes() == before
        return kind


@provokes("storageError")
def _no_descriptors(method: str) -> str:
    with House() as house:
        client = house.start()
        if METHODS[method].writes and method not in {"session/create", "session/delete"}:
            client.call("session/open", {"sessionId": "s1"})
        taken = house.descriptors()
        limited(house, resource.RLIMIT_NOFILE, min(set(range(len(taken) + 1)) - taken))
        return kind_of(client.call(method, params_of(method)))


IN_STATE = ("session/archive", "session/pin", "session/draft")


@provokes("busy", *IN_STATE)
def _state_is_locked(method: str) -> str:
    with House() as house:
        client = house.start()
        with closing(sqlite3.connect(house.folder / "home/state/state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            return kind_of(client.call(method, params_of(method)))


@provokes("storageFull", *IN_STATE)
def _no_space_for_state(method: str) -> str:
    with House() as house:
        client = house.start()
        client.call("session/list")
        limited(house, resource.RLIMIT_FSIZE, 0)
        return kind_of(client.call(method, params_of(method)))


@provokes("entryNotFound")
def _unknown_entry(method: str) -> str:
    with House() as house:
        return kind_of(house.start().call(method, {"sessionId": "s1", **NAMING[method]}))


@provokes("leafMoved")
def _leaf_elsewhere(method: str) -> str:
    with House() as house:
        return kind_of(house.start().call(method, {**params_of(method), "expectedLeafId": "u1"}))


@provokes("damagedRegion")
def _second_line_of_an_id(method: str) -> str:
    with House() as house:
        house.entries.append(user("u1", "a1", "the same id, another text", 3))
        client = house.start()
        return kind_of(client.call(method, {"sessionId": "s1", **SECOND_LINE[method]}))


@provokes("damagedRegion", "session/branch")
def _unreadable_line_between(method: str) -> str:
    with House() as house:
        house.write(b"#####\n" + line(user("u2", "a1", "three", 3)))
        return kind_of(house.start().call(method, params_of(method)))


@provokes("alreadyExists", "session/create")
def _session_id_taken(method: str) -> str:
    with House() as house:
        return kind_of(house.start().call(method, {"cwd": "/x", "sessionId": "s1"}))


@provokes("alreadyExists", "session/branch")
def _child_id_taken(method: str) -> str:
    with House() as house:
        return kind_of(house.start().call(method, {"sessionId": "s1", "position": "at", "childSessionId": "s1"}))


@provokes("alreadyExists", "session/append")
def _entry_id_taken(method: str) -> str:
    with House() as house:
        return kind_of(house.start().call(method, {"sessionId": "s1", "entries": [{"type": "custom", "id": "u1"}]}))


@provokes("invalidEntry", "session/append")
def _message_without_content(method: str) -> str:
    with House() as house:
        return kind_of(house.start().call(method, {"sessionId": "s1", "entries": [{"type": "message", "message": {}}]}))


@provokes("invalidEntry", "session/moveLeaf")
def _details_that_no_log_holds(method: str) -> str:
    with House() as house:
        summary = {"text": "left it", "details": {"n": 2**64}}
        return kind_of(house.start().call(method, {"sessionId": "s1", "entryId": "u1", "summary": summary}))


@provokes("noActiveModel", "session/navigate")
def _nothing_to_summarise_with(method: str) -> str:
    with House() as house:
        return kind_of(house.start().call(method, {"sessionId": "s1", "targetId": "u1", "summarize": True}))


@provokes("notAUserMessage", "session/branch")
def _before_an_answer(method: str) -> str:
    with House() as house:
        return kind_of(house.start().call(method, {"sessionId": "s1", "entryId": "a1"}))


@provokes("cursorExpired", "session/list")
def _foreign_cursor(method: str) -> str:
    with House() as house:
        return kind_of(house.start().call(method, {"cursor": "eyJnIjoxfQ"}))


@provokes("cursorExpired", "session/entries")
def _epoch_that_is_over(method: str) -> str:
    with House() as house:
        return kind_of(house.start().call(method, {"sessionId": "s1", "since": {"epoch": "over", "revision": 1}}))


@provokes("invalidReference", "session/resolve")
def _nothing_named(method: str) -> str:
    with House() as house:
        return kind_of(house.start().call(method, {"ref": " "}))


@provokes("invalidReference", "session/open")
def _path_of_no_session(method: str) -> str:
    with House() as house:
        other = house.folder / "notes.jsonl"
        other.write_text("no session\n")
        return kind_of(house.start().call(method, {"path": str(other)}))


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


@pytest.mark.parametrize(("method", "kind"), [(row.name, kind) for row in METHODS.values() for kind in row.errors])
def test_a_declared_error_occurs(method: str, kind: str) -> None:
    provoke = CASES.get((kind, method)) or CASES[kind, ""]
    assert provoke(method) == kind


# --- where the system itself refuses


@pytest.mark.parametrize("method", [*WRITING, "session/branch", "session/delete", "session/create"])
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
        assert kind_of(client.call(method, params_of(method))) == "readOnly"
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
