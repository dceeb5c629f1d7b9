"""The published contract: its examples hold for the models, and the daemon answers them as they say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jsonschema
import pytest
from pydantic import ValidationError

from dsh_daemon.wire.generate import SPEC, stale
from dsh_daemon.wire.methods import METHODS, NOTIFICATIONS, PUSHES

from .dsh_logs import Log
from .examples import (
    CHILD_ID,
    DATA,
    EPOCH,
    HOME,
    SAMPLE,
    SAMPLE_ID,
    SAMPLE_PLACE,
    Comparison,
    Example,
    examples,
    files,
    method_of,
    typed,
)
from .lines import Line
from .running import PATIENCE, Daemon
from .shapes import misfits, shape_of

EXAMPLES = examples()
HOLD = "import sys, time; f = open(sys.argv[1], 'ab'); print('held', flush=True); time.sleep(60)"


# --- the examples and the models


def test_every_method_of_the_table_has_examples_and_every_example_has_its_method() -> None:
    named = {method_of(path) for path in files()}
    assert named == set(METHODS) | set(NOTIFICATIONS)
    for example in EXAMPLES:
        assert example.request["method"] == example.method, example.name


def test_the_generated_files_are_what_the_models_say() -> None:
    assert stale() == []


def published(reference: dict[str, Any]) -> jsonschema.Draft202012Validator:
    """The schema that a client in another language would take for one entry of protocol.json."""
    whole = json.loads((SPEC / "schema.json").read_text())
    local = json.loads(json.dumps(reference).replace("schema.json#", "#"))
    return jsonschema.Draft202012Validator({**whole, **local})


@pytest.mark.parametrize("method", METHODS)
def test_the_published_schemas_accept_the_examples(method: str) -> None:
    row = json.loads((SPEC / "protocol.json").read_text())["requests"][method]
    for example in EXAMPLES:
        if example.method == method and example.accepted:
            assert example.answer is not None
            published(row["params"]).validate(example.request.get("params") or {})
            published(row["result"]).validate(example.answer["result"])


def test_every_request_method_has_accepted_and_refused_examples() -> None:
    for kind in (True, False):
        shown = {example.method for example in EXAMPLES if example.accepted is kind}
        assert set(METHODS) <= shown


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.method in METHODS], ids=lambda e: e.name)
def test_the_models_accept_and_refuse_what_the_examples_say(example: Example) -> None:
    params = example.request.get("params")
    raw = {} if params is None or params == [] else params
    wrong = not example.accepted and example.answer is not None and example.answer["error"]["code"] == -32602
    if wrong:
        with pytest.raises(ValidationError):
            METHODS[example.method].params.model_validate(raw)
    else:
        METHODS[example.method].params.model_validate(raw)


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.accepted and e.method in METHODS], ids=lambda e: e.name)
def test_the_answers_of_the_examples_have_the_shape_that_the_table_gives(example: Example) -> None:
    assert example.answer is not None
    assert example.answer["id"] == example.request["id"]
    assert misfits(METHODS[example.method].result, example.answer["result"]) == []


def test_notifications_have_no_answer() -> None:
    for example in EXAMPLES:
        assert (example.answer is None) == ("id" not in example.request), example.name


@pytest.mark.parametrize(
    ("name", "accepted", "title", "value"), typed(), ids=lambda v: v if isinstance(v, str) else None
)
def test_the_types_accept_and_refuse_what_their_examples_say(name: str, accepted: bool, title: str, value: Any) -> None:
    del title
    assert (misfits(shape_of(name), value) == []) is accepted


def test_the_errors_of_the_examples_are_declared_for_their_methods() -> None:
    for example in EXAMPLES:
        if example.answer and "error" in example.answer:
            data = example.answer["error"].get("data", {})
            if "kind" in data:
                assert data["kind"] in METHODS[example.method].errors, example.name


def test_the_text_names_every_method_push_and_kind_and_its_links_lead_somewhere() -> None:
    text = (SPEC / "README.md").read_text()
    assert [name for name in (*METHODS, *NOTIFICATIONS, *PUSHES) if f"`{name}`" not in text] == []
    kinds = {kind for row in METHODS.values() for kind in row.errors}
    table = text[text.index("| code | kind |") : text.index("## Resync")]
    assert [kind for kind in kinds if not re.search(rf"\b{kind}\b", table)] == []
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert [link for link in re.findall(r"\]\(#([^)]+)\)", text) if link not in anchors] == []


def test_what_was_settled_has_a_number_of_its_own() -> None:
    numbers = re.findall(r"^- S(\d+)\. ", (SPEC / "README.md").read_text(), re.MULTILINE)
    assert sorted(map(int, numbers)) == list(range(1, len(numbers) + 1))


# --- the examples and the daemon


class Store:
    """A daemon of its own that has the sample session and nothing else."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dshd-spec-"))
        self.person = self.root / HOME[1:]
        self.data = self.root / DATA[1:]
        self.sample = self.data / SAMPLE_PLACE
        self.sample.parent.mkdir(parents=True)
        self.sample.parent.chmod(0o700)
        self.sample.parent.parent.chmod(0o700)
        shutil.copyfile(SAMPLE, self.sample)
        self.sample.chmod(0o600)
        self.roots: list[str] = []
        self.daemon = Daemon(self.data, DSHD_SOCKET=str(self.root / "dshd.sock"))
        self.daemon.socket = str(self.root / "dshd.sock")
        self.ends: list[Callable[[], object]] = []
        self.line: Line | None = None

    def start(self) -> None:
        self.daemon.env["DSHD_ROOTS"] = os.pathsep.join(self.roots)
        self.daemon.start()
        self.ends.append(self.daemon.stop)
        until = time.monotonic() + PATIENCE
        while not self._idle():
            assert time.monotonic() < until
            time.sleep(0.02)

    def _idle(self) -> bool:
        """It answers and has looked at every file once."""
        try:
            with Line.unix(self.daemon.socket) as line:
                return line.call("daemon/status")["result"]["index"]["state"] == "idle"
        except ConnectionRefusedError:  # the socket has its name before it listens
            return False

    def connect(self, name: str = "nvim-dsh", **options: Any) -> Line:
        line = Line.unix(self.daemon.socket)
        self.ends.append(line.close)
        line.initialize(name, **options)
        return line

    def agent(self, name: str = "nvim-dsh") -> Line:
        """A client that drives the sample session."""
        line = self.connect(name)
        done(line, "session/resume")
        return line

    def state(self) -> tuple[str, int]:
        """Epoch and revision of the sample session, where it can be opened."""
        with Line.unix(self.daemon.socket) as aside:
            aside.initialize()
            answer = aside.call("session/open", {"sessionId": SAMPLE_ID, "subscribe": False})
        return (answer["result"]["epoch"], answer["result"]["revision"]) if "result" in answer else ("", 1)

    def local(self, value: Any) -> Any:
        """A request of an example with the paths of this store."""
        if isinstance(value, dict):
            return {
                key: self.local(inner) if key in {"path", "ref", "uri"} or not isinstance(inner, str) else inner
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self.local(inner) for inner in value]
        here = isinstance(value, str) and value.startswith((HOME, f"file://{HOME}"))
        return value.replace(HOME, str(self.person), 1) if here else value

    def close(self) -> None:
        while self.ends:
            self.ends.pop()()
        shutil.rmtree(self.root)


def done(line: Line, method: str, **params: Any) -> dict[str, Any]:
    """Ask something of the sample session that must be answered."""
    answer = line.call(method, {"sessionId": SAMPLE_ID, **params})
    assert "result" in answer, answer
    return answer["result"]


Setup = Callable[[Store], Line | None]
Made = TypeVar("Made", bound=Setup)
BEFORE: dict[str, Setup] = {}  # title of an example that needs something -> what makes it, before the daemon
THEN: dict[str, Setup] = {}  # the same with the daemon running; gives the connection to ask on, or None for a new one


def needs(title: str, book: dict[str, Setup]) -> Callable[[Made], Made]:
    def note(function: Made) -> Made:
        book[title] = function
        return function

    return note


def request_of(method: str, title: str) -> dict[str, Any]:
    return next(e.request for e in EXAMPLES if e.method == method and e.title == title)


@needs("daemon/doctor: NUL bytes at the end, which a power cut left", BEFORE)
@needs("daemon/doctor: the same taken off, on request: what was fixed is no problem any more", BEFORE)
def _ends_in_nuls(store: Store) -> None:
    other = store.sample.with_name("2026-03-01T08-00-00-000Z_019ca872-1c00-7c41-9d0e-5f2a61b8c3d4.jsonl")
    text = SAMPLE.read_text().replace(SAMPLE_ID, "019ca872-1c00-7c41-9d0e-5f2a61b8c3d4")
    other.write_text(text + "\0" * 24)
    other.chmod(0o600)


@needs("session/open: a file whose last write was cut", BEFORE)
def _torn(store: Store) -> None:
    with store.sample.open("ab") as file:
        file.write(b'{"type":"message","id":"')


@needs("session/append: while another program is in the middle of a line", THEN)
def _in_the_middle(store: Store) -> None:
    _torn(store)


@needs("session/append: when the file is gone", THEN)
def _gone(store: Store) -> Line:
    line = store.connect()
    line.call("session/list")
    store.sample.unlink()
    return line


@needs("session/branch: across a damaged region", BEFORE)
def _damaged(store: Store) -> None:
    lines = store.sample.read_bytes().split(b"\n")
    lines[6] = b"#" * len(lines[6])
    store.sample.write_bytes(b"\n".join(lines))


@needs("session/label: a file whose header cannot be read", BEFORE)
def _headless(store: Store) -> None:
    # A header keeps its look in a bad place, else the session of this id is not to be found: the name says it too.
    lines = store.sample.read_bytes().split(b"\n")
    lines[0] = lines[0][:-1]
    store.sample.write_bytes(b"\n".join(lines))


@needs("session/open: a session of Claude Code, not served yet", BEFORE)
def _claude(store: Store) -> None:
    id_ = "7be0f1f6-6f0e-4c1c-9a55-2f4be6f7d0aa"
    folder = store.person / ".claude/projects/-home-mina-shop"
    folder.mkdir(parents=True)
    entry = {
        "parentUuid": None,
        "isSidechain": False,
        "userType": "external",
        "cwd": "/home/mina/shop",
        "sessionId": id_,
        "version": "2.0.1",
        "gitBranch": "",
        "type": "user",
        "message": {"role": "user", "content": "Rename the shop"},
        "uuid": "0f1e2d3c-0000-4000-8000-000000000001",
        "timestamp": "2026-03-01T08:00:00.000Z",
    }
    (folder / f"{id_}.jsonl").write_text(json.dumps(entry, separators=(",", ":")) + "\n")
    store.roots.append(f"claude={folder.parent}")


@needs("session/open: an id that two files carry", BEFORE)
def _twice(store: Store) -> None:
    backup = store.person / "backup"
    backup.mkdir()
    shutil.copyfile(store.sample, backup / "copy.jsonl")
    store.roots.append(str(backup))


@needs("session/append: while omp holds the file", BEFORE)
@needs("session/delete: while an agent runs it", BEFORE)
def _held_by_omp(store: Store) -> None:
    root = store.person / ".omp/agent/sessions/-shop"
    root.mkdir(parents=True)
    slot = {"type": "title", "v": 1, "title": "", "updatedAt": "2026-03-02T09:14:07.120Z", "pad": ""}
    slot["pad"] = " " * (255 - len(json.dumps(slot, separators=(",", ":"))))
    lines = SAMPLE.read_text().splitlines()[1:]
    head = {
        "type": "session",
        "version": 3,
        "id": SAMPLE_ID,
        "timestamp": "2026-03-02T09:14:07.120Z",
        "cwd": "/home/mina/shop",
    }
    moved = root / store.sample.name
    moved.write_text("\n".join([json.dumps(slot, separators=(",", ":")), json.dumps(head), *lines]) + "\n")
    store.sample.unlink()
    store.sample = moved
    store.roots.append(f"omp={root.parent}")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(moved)],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()

    def end() -> None:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()

    store.ends.append(end)


@needs("session/entries: a large entry is cut to the budget", BEFORE)
def _large(store: Store) -> None:
    answer = next(e.answer for e in EXAMPLES if e.title == "a large entry is cut to the budget")
    assert answer is not None
    entry = dict(answer["result"]["entries"][0])
    field, size = entry["truncated"]["field"], entry.pop("truncated")["bytes"]
    place = entry
    *parts, last = field.split(".")
    for part in parts:
        place = place[int(part) if isinstance(place, list) else part]
    shown = place[int(last) if isinstance(place, list) else last]
    place[last] = shown.rstrip("…")[:1] * size
    with store.sample.open("a") as file:
        file.write(json.dumps(entry, separators=(",", ":")) + "\n")


@needs("session/append: the same once more: the first result", THEN)
def _appended(store: Store) -> Line:
    line = store.connect()
    line.call("session/append", request_of("session/append", "a prompt, under the leaf, with a chosen id")["params"])
    return line


@needs("session/open: again, after one append was missed", THEN)
def _missed(store: Store) -> Line:
    line = store.connect()
    line.call("session/open", {"sessionId": SAMPLE_ID})
    line.call("session/append", request_of("session/append", "a prompt, under the leaf, with a chosen id")["params"])
    return store.connect()


@needs("session/open: again after a lost connection, nothing missed", THEN)
@needs("session/entries: since a state: nothing new", THEN)
def _opened(store: Store) -> Line:
    line = store.connect()
    line.call("session/open", {"sessionId": SAMPLE_ID})
    return line


@needs("session/close: again", THEN)
def _closed(store: Store) -> Line:
    line = store.connect()
    line.call("session/open", {"sessionId": SAMPLE_ID})
    line.call("session/close", {"sessionId": SAMPLE_ID})
    return line


@needs("session/create: the same again gives the same session", THEN)
def _created(store: Store) -> Line:
    line = store.connect()
    line.call(
        "session/create", request_of("session/create", "in a directory that need not exist, with a chosen id")["params"]
    )
    return line


@needs("session/family: a child that branched off before its second prompt; needs the session of session/branch", THEN)
@needs("session/resolve: a prefix that several sessions share", THEN)
def _branched(store: Store) -> Line:
    line = store.connect()
    line.call("session/branch", request_of("session/branch", "before a prompt, into a new file")["params"])
    return line


@needs("session/rename: by a client that said readOnly", THEN)
def _read_only(store: Store) -> Line:
    return store.connect(readOnly=True)


@needs("initialize: a second initialize on one connection", THEN)
def _initialized(store: Store) -> Line:
    return store.connect()


@needs("shutdown: any request after shutdown, shutdown too", THEN)
def _shut_down(store: Store) -> Line:
    line = store.connect()
    line.call("shutdown")
    return line


# --- of agents

TURN = 3  # the next one of the sample session
HEADER = {"config": {"model": "claude-sonnet-4-5"}, "system": "You are careful."}
CALL = {"type": "toolCall", "id": "toolu_03T", "name": "bash", "arguments": {"command": "npm test"}}
ANSWER = {"type": "message", "message": {"role": "assistant", "content": [{"type": "text", "text": "Done."}]}}


@needs("session/resume: after a crash in the middle of a tool call: what was open is closed", BEFORE)
@needs("session/turns: with a recorded turn that was cut off", BEFORE)
def _crashed(store: Store) -> None:
    call = {"turn": TURN, "step": 1, "callId": CALL["id"], "name": "bash", "arguments": '{"command":"npm test"}'}
    parent = "3b72d8ee"
    with store.sample.open("a") as file:
        for id_, entry in {
            "1c0ffee1": {"type": "turn_start", "turn": TURN},
            "1c0ffee2": {"type": "message", "message": {"role": "user", "content": "Run the tests"}},
            "1c0ffee3": {"type": "step_start", "turn": TURN, "step": 1},
            "1c0ffee4": {"type": "message", "message": {"role": "assistant", "content": [CALL]}},
            "1c0ffee5": {"type": "tool_call", **call},
        }.items():
            fields = {"id": id_, "parentId": parent, "timestamp": "2026-03-02T09:30:00.000Z"}
            file.write(json.dumps(entry | fields, separators=(",", ":")) + "\n")
            parent = id_


@needs("session/resume: a session of pi, which continues it itself", BEFORE)
@needs("turn/start: a session of pi", BEFORE)
@needs("session/launch: a session of pi", BEFORE)
@needs("session/launch: a session of pi whose leaf was moved", BEFORE)
def _of_pi(store: Store) -> None:
    store.sample.write_text(SAMPLE.read_text().replace(',"generator":"dsh-daemon/1"', "", 1))


@needs("session/launch: a session of pi whose leaf was moved", THEN)
def _moved(store: Store) -> Line:
    line = store.connect()
    done(line, "session/moveLeaf", entryId="f25a90b7")
    return line


OF_DSH = "session-5d0c4f1e-6a0b-4d7e-9c55-2f4be6f7d0aa"


def _log_of_dsh() -> Log:
    """Two turns; the first ends with event 13, the prompt of the second is 17."""
    log = Log(OF_DSH, cwd=f"{HOME}/shop")
    log.talk("Rename the shop", "It has its new name.")
    log.talk("Now the docs", "Written.")
    return log


def _add_root_of_dsh(store: Store, log: Log) -> None:
    root = store.person / ".dsh/sessions"
    folder = root / "--home-mina-shop--" / OF_DSH
    folder.mkdir(parents=True)
    (folder / "session.jsonl.zstd").write_bytes(log.zstd(packed=True))
    store.roots.append(f"dsh={root}")


@needs("session/navigate: in a dsh session: another way begins with a fork", BEFORE)
@needs("session/label: of a dsh session: kept in our own state", BEFORE)
@needs("session/rename: of a dsh session: kept in our own state", BEFORE)
@needs("session/fork: of a dsh session, in its own layout", BEFORE)
@needs("session/branch: before a prompt of a dsh session: at the end of the turn above", BEFORE)
@needs("session/append: an event, as the agent of a dsh session", BEFORE)
@needs("session/append: to a dsh session, by a client that is not its agent", BEFORE)
@needs("turn/start: in a dsh session", BEFORE)
def _of_dsh(store: Store) -> None:
    _add_root_of_dsh(store, _log_of_dsh())


@needs("session/append: an event, as the agent of a dsh session", THEN)
@needs("turn/start: in a dsh session", THEN)
def _agent_of_dsh(store: Store) -> Line:
    line = store.connect()
    done(line, "session/resume", sessionId=OF_DSH)
    return line


@needs("session/resume: a dsh session with an event that dsh does not know", BEFORE)
def _of_a_later_dsh(store: Store) -> None:
    log = _log_of_dsh()
    log.add("garden/planted", {})
    _add_root_of_dsh(store, log)


@needs("session/fork: the same again gives the same fork", THEN)
def _forked(store: Store) -> Line:
    line = store.connect()
    done(line, "session/fork", boundary="7d25fb90", childSessionId=CHILD_ID)
    return line


@needs("session/resume: a file of a later version", BEFORE)
def _later_version(store: Store) -> None:
    store.sample.write_text(SAMPLE.read_text().replace('"version":3', '"version":4', 1))


@needs("session/resume: a session that is in memory only", THEN)
def _in_memory(store: Store) -> Line:
    line = store.connect()
    line.call("session/create", {"cwd": "/home/mina/shop", "sessionId": CHILD_ID, "persist": False})
    return line


@needs("session/resume: again, by the agent itself", THEN)
@needs("session/release: by the agent", THEN)
@needs("turn/start: with a text", THEN)
@needs("turn/start: with blocks", THEN)
@needs("turn/start: a message that does not wait", THEN)
@needs("turn/end: when none is open", THEN)
@needs("agent/claim: when nothing waits", THEN)
@needs("agent/status: it works", THEN)
def _agent(store: Store) -> Line:
    return store.agent()


@needs("session/resume: while another client is the agent", THEN)
@needs("session/delete: while another client is its agent", THEN)
@needs("turn/start: by a client that is not the agent", THEN)
@needs("agent/send: for the next turn", THEN)
@needs("agent/send: to steer the turn that runs", THEN)
def _agent_elsewhere(store: Store) -> Line:
    store.agent("carpenter")
    return store.connect()


def _turn(store: Store, line: Line) -> Line:
    del store
    done(line, "turn/start", content="Run the tests")
    return line


@needs("session/release: in the middle of a turn, which is closed", THEN)
@needs("turn/start: while a turn is open", THEN)
@needs("turn/end: completed", THEN)
@needs("turn/end: as a kind that is the daemon's own", THEN)
@needs("step/start: with its header", THEN)
@needs("step/start: without a header", THEN)
@needs("step/start: of a turn that is not the open one", THEN)
@needs("session/moveLeaf: away from a turn that an agent runs", THEN)
@needs("session/append: outside of a turn that an agent runs", THEN)
@needs("session/navigate: away from a turn that an agent runs", THEN)
@needs("session/fork: at the leaf, in the middle of a recorded turn", THEN)
def _turn_open(store: Store) -> Line:
    return _turn(store, store.agent())


@needs("session/resume: with takeover, in the middle of a turn of another client", THEN)
@needs("session/abort: while an agent runs a turn", THEN)
@needs("turn/end: by a client that is not the agent", THEN)
@needs("step/start: by a client that is not the agent", THEN)
def _turn_elsewhere(store: Store) -> Line:
    _turn(store, store.agent("carpenter"))
    return store.connect()


@needs("step/start: while a step is open", THEN)
@needs("step/end: without an answer, which is no completed step", THEN)
@needs("step/end: cut off by the provider", THEN)
@needs("turn/end: completed, with a step still open", THEN)
@needs("agent/delta: a piece of the answer", THEN)
@needs("session/request: of a step that has just begun", THEN)
def _step_open(store: Store) -> Line:
    line = _turn_open(store)
    done(line, "step/start", turn=TURN, header=HEADER)
    return line


@needs("step/end: with its answer", THEN)
@needs("step/end: another step than the open one", THEN)
def _answered(store: Store) -> Line:
    line = _step_open(store)
    done(line, "session/append", entries=[ANSWER])
    return line


@needs("step/start: with the header that was sent before, which is not written again", THEN)
def _second_step(store: Store) -> Line:
    line = _answered(store)
    done(line, "step/end", turn=TURN, step=1)
    return line


@needs("turn/end: aborted in the middle of a tool call: the call gets a result, the step ends", THEN)
def _calling(store: Store) -> Line:
    line = _step_open(store)
    done(line, "session/append", entries=[{"type": "message", "message": {"role": "assistant", "content": [CALL]}}])
    return line


@needs("step/end: by a client that is not the agent", THEN)
def _step_elsewhere(store: Store) -> Line:
    _step_open(store)
    return store.connect()


@needs("agent/send: when the inbox is full", THEN)
def _full(store: Store) -> Line:
    line = store.agent()
    for n in range(1000):
        done(line, "agent/send", content=f"message {n}")
    return line


@needs("agent/claim: the next message: what steers comes first", THEN)
@needs("agent/claim: the next one of a kind", THEN)
def _mail(store: Store) -> Line:
    line = store.agent()
    done(line, "agent/send", content="Then update the changelog")
    done(line, "agent/send", content="Not in that folder", mode="steer")
    return line


ELSEWHERE = {
    "initialize: over TCP, a wrong token": "tests/test_transcripts.py plays it over TCP",
    "session/append: when the disk is full": "tests/test_declared_errors.py provokes it",
    "turn/start: with a message of the inbox": "its id is not the one shown; transcripts/inbox.jsonl plays it",
    "daemon/status: standalone, where inotify is exhausted": "a limit of the whole machine",
    "session/list: a first page of one, with what was skipped; not yet scanned; more stores than the sample's": (
        "a race with the scan"
    ),
    "session/list: its second page, an agent whose format is not served yet": "its cursor is not the one shown",
}


def test_every_example_that_needs_something_is_set_up_or_excused() -> None:
    asked = {example.name for example in EXAMPLES if example.needs}
    assert asked == (BEFORE.keys() | THEN.keys() | ELSEWHERE.keys())


def changes(example: Example) -> bool:
    row = METHODS.get(example.method)
    if row is None or not example.accepted:
        return False
    raw = example.request.get("params")
    return row.changes(row.params.model_validate({} if raw is None or raw == [] else raw))


@pytest.fixture(scope="module")
def shared() -> Iterator[Store]:
    """A store for the examples that leave it as it was."""
    store = Store()
    try:
        (store.person / "shop").mkdir()
        (store.person / "shop/package.json").write_text('{"name": "shop"}\n')
        store.start()
        yield store
        assert store.sample.read_bytes() == SAMPLE.read_bytes()
    finally:
        store.close()


def play(store: Store, example: Example, line: Line | None, epoch: str, base: int) -> list[str]:
    """Ask and compare; the differences. `base`: the revision before anything was done."""
    request = store.local(example.request)
    if line is None and example.method != "initialize":
        line = store.connect()
    params = request.get("params")
    if isinstance(params, dict) and isinstance(since := params.get("since"), dict) and since.get("epoch") == EPOCH:
        since["epoch"] = epoch
        if "revision" in since:
            since["revision"] += base - 1
    if line is None:
        line = Line.unix(store.daemon.socket)
        try:  # what it says of itself must not hold for the others
            return play(store, example, line, epoch, base)
        finally:
            line.close()
    line.send(request)
    if example.answer is None:
        if example.method == "exit":
            assert line.receive() is None
        else:
            assert "result" in line.call("daemon/ping")
        return []
    known = SAMPLE.read_text() + json.dumps(example.request)
    return Comparison(known, base).compare(example.answer, line.answer(request["id"]))


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.name not in ELSEWHERE], ids=lambda e: e.name)
def test_the_daemon_answers_as_the_example_says(example: Example, request: pytest.FixtureRequest) -> None:
    if not example.needs and not changes(example):
        store = request.getfixturevalue("shared")
        agree(play(store, example, None, *store.state()))
        return
    store = Store()
    try:
        if example.name in BEFORE:
            BEFORE[example.name](store)
        store.start()
        epoch, base = store.state()
        line = THEN[example.name](store) if example.name in THEN else None
        agree(play(store, example, line, epoch, base))
    finally:
        store.close()


def agree(differences: list[str]) -> None:
    if differences:
        pytest.fail("the daemon answers otherwise\n" + "\n".join(differences), pytrace=False)
