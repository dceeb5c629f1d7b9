"""The published contract: its examples hold for the models, and the daemon answers them as they say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from dsh_daemon.wire.generate import SPEC, stale
from dsh_daemon.wire.methods import METHODS, NOTIFICATIONS

from .examples import (
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
    assert stale(SPEC) == []


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

    def connect(self, **options: Any) -> Line:
        line = Line.unix(self.daemon.socket)
        self.ends.append(line.close)
        line.initialize("nvim-dsh", **options)
        return line

    def local(self, value: Any) -> Any:
        """A request of an example with the paths of this store."""
        if isinstance(value, dict):
            return {
                key: self.local(inner) if key in {"path", "ref"} or not isinstance(inner, str) else inner
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self.local(inner) for inner in value]
        return value.replace(HOME, str(self.person), 1) if isinstance(value, str) and value.startswith(HOME) else value

    def close(self) -> None:
        while self.ends:
            self.ends.pop()()
        shutil.rmtree(self.root)


Setup = Callable[[Store], Line | None]
BEFORE: dict[str, Setup] = {}  # title of an example that needs something -> what makes it, before the daemon
THEN: dict[str, Setup] = {}  # the same with the daemon running; gives the connection to ask on, or None for a new one


def needs(title: str, book: dict[str, Setup]) -> Callable[[Setup], Setup]:
    def note(function: Setup) -> Setup:
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


ELSEWHERE = {
    "initialize: over TCP, a wrong token": "tests/test_transcripts.py plays it over TCP",
    "session/append: when the disk is full": "tests/test_declared_errors.py provokes it",
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


def play(store: Store, example: Example, line: Line | None) -> list[str]:
    """Ask and compare; the differences."""
    request = store.local(example.request)
    base, epoch = 1, ""
    if line is None and example.method != "initialize":
        line = store.connect()
    with Line.unix(store.daemon.socket) as aside:
        aside.initialize()
        state = aside.call("session/open", {"sessionId": SAMPLE_ID, "subscribe": False})
        if "result" in state:
            epoch, base = state["result"]["epoch"], state["result"]["revision"]
    if example.name in {
        "session/append: the same once more: the first result",
        "session/open: again, after one append was missed",
    }:
        base -= 1
    params = request.get("params")
    if isinstance(params, dict) and isinstance(since := params.get("since"), dict) and since.get("epoch") == EPOCH:
        since["epoch"] = epoch
        if "revision" in since:
            since["revision"] += base - 1
    if line is None:
        line = Line.unix(store.daemon.socket)
        store.ends.append(line.close)
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
        agree(play(store, example, None))
        return
    store = Store()
    try:
        if example.name in BEFORE:
            BEFORE[example.name](store)
        store.start()
        line = THEN[example.name](store) if example.name in THEN else None
        agree(play(store, example, line))
    finally:
        store.close()


def agree(differences: list[str]) -> None:
    if differences:
        pytest.fail("the daemon answers otherwise\n" + "\n".join(differences), pytrace=False)
