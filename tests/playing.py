"""Plays the transcripts of protocol-spec: what each client sends, what it must get, over any transport.

`python -m tests.playing NAME...` plays what the clients send and writes down what they get, with placeholders for what
varies; read the difference before you keep it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .examples import SAMPLE, SPEC
from .lines import Line
from .running import Daemon

TRANSCRIPTS = SPEC / "transcripts"
TRANSPORTS = ("stdio", "unix", "tcp")
SETTLE = 0.3  # seconds in which what must not come would have come

_PLACEHOLDER = re.compile(r"<(any|int|time|id|session|epoch|text)(?::(\w+)(?:\+(\d+))?)?>")
_PATTERNS = {
    "time": r"\d{4}-\d\d-\d\dT\d\d[:-]\d\d[:-]\d\d[.-]\d{3}Z",
    "id": r"[0-9a-f]{8,}",
    "session": r"[0-9a-f]{8}-[0-9a-f-]{27}",
    "epoch": r"[0-9a-z.:_-]+",
    "text": r".*",
}
_LOOSE = frozenset({"catalog/changed", "$/progress"})  # pushes that come when they come


def names() -> list[str]:
    return sorted(path.stem for path in TRANSCRIPTS.glob("*.jsonl"))


def steps(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TRANSCRIPTS / f"{name}.jsonl").read_text().splitlines()]


class Bindings:
    """Placeholders: `<kind>` matches, `<kind:name>` keeps what it matched, and is that from then on."""

    def __init__(self, **known: Any) -> None:
        self.known: dict[str, Any] = dict(known)

    def fill(self, value: Any) -> Any:
        """A message to send, with what was kept in the place of its placeholders."""
        if isinstance(value, dict):
            return {key: self.fill(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.fill(inner) for inner in value]
        if not isinstance(value, str):
            return value
        whole = _PLACEHOLDER.fullmatch(value)
        if whole:
            kept = self.known[whole[2]]
            return kept + int(whole[3]) if whole[3] else kept
        return _PLACEHOLDER.sub(lambda match: str(self.known[match[2]]), value)

    def differences(self, expected: Any, actual: Any, at: str = "") -> list[str]:
        if isinstance(expected, dict) and isinstance(actual, dict):
            rest = "..." in expected
            wanted = expected.keys() - {"..."}
            found = [f"{at}.{key}: missing" for key in sorted(wanted - actual.keys())]
            if not rest:
                found += [f"{at}.{key}: unexpected {actual[key]!r}" for key in sorted(actual.keys() - wanted)]
            for key in expected:
                if key in actual and key != "...":
                    found += self.differences(expected[key], actual[key], f"{at}.{key}")
            return found
        if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
            pairs = enumerate(zip(expected, actual, strict=True))
            return [text for n, (one, other) in pairs for text in self.differences(one, other, f"{at}.{n}")]
        if isinstance(expected, str) and _PLACEHOLDER.search(expected):
            return (
                [] if self._fits(expected, actual) else [f"{at}: {actual!r} is no {expected} ({self._now(expected)})"]
            )
        same = expected == actual and (type(expected) is type(actual) or {type(expected), type(actual)} == {int, float})
        return [] if same else [f"{at}: expected {expected!r}, got {actual!r}"]

    def _now(self, expected: str) -> str:
        return ", ".join(f"{m[2]} = {self.known.get(m[2])!r}" for m in _PLACEHOLDER.finditer(expected) if m[2])

    def _fits(self, expected: str, actual: Any) -> bool:
        whole = _PLACEHOLDER.fullmatch(expected)
        if whole and whole[1] in {"int", "any"}:
            if whole[1] == "int" and (not isinstance(actual, int) or isinstance(actual, bool)):
                return False
            if not whole[2]:
                return True
            if whole[2] in self.known:
                return actual == self.known[whole[2]] + int(whole[3] or 0)
            self.known[whole[2]] = actual
            return True
        if not isinstance(actual, str):
            return False
        pattern, last, new = "", 0, []
        for match in _PLACEHOLDER.finditer(expected):
            pattern += re.escape(expected[last : match.start()])
            last, name = match.end(), match[2]
            if name in self.known:
                pattern += re.escape(str(self.known[name]))
            elif name:
                pattern += f"(?P<{name}>{_PATTERNS[match[1]]})"
                new.append(name)
            else:
                pattern += _PATTERNS[match[1]]
        found = re.fullmatch(pattern + re.escape(expected[last:]), actual)
        if found:
            self.known.update({name: found[name] for name in new})
        return found is not None


class Stage:
    """A daemon with the sample session, and the clients of one transcript."""

    def __init__(self, transport: str, *, alone: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dshd-play-")
        self.home = Path(self._folder.name)
        self.sample = (
            self.home
            / "sessions/--home-mina-shop--"
            / f"2026-03-02T09-14-07-120Z_{json.loads(SAMPLE.read_text().partition(chr(10))[0])['id']}.jsonl"
        )
        self.sample.parent.mkdir(parents=True)
        self.sample.write_bytes(SAMPLE.read_bytes())
        for path in (self.sample, *list(self.sample.parents)[:2]):
            path.chmod(0o700 if path.is_dir() else 0o600)
        self.transport = transport
        self.standalone = alone and transport == "stdio"
        self.daemon = Daemon(self.home, **({"DSHD_TCP": "127.0.0.1:0"} if transport == "tcp" else {}))
        self.clients: dict[str, Line] = {}
        self.waiting: dict[str, list[dict[str, Any]]] = {}  # pushes that came before they were asked for
        self.held: dict[str, list[dict[str, Any]]] = {}  # other messages that came while a push was waited for
        self.tcp: dict[str, Any] = {}
        if not self.standalone:
            self.daemon.start()
        if transport == "tcp":
            with self._unix() as line:
                self.tcp = line.call("daemon/status")["result"]["tcp"]

    def _unix(self) -> Line:
        for _ in range(200):
            try:
                return Line.unix(self.daemon.socket)
            except (ConnectionRefusedError, FileNotFoundError):
                time.sleep(0.05)
        raise AssertionError("the daemon does not listen")

    def client(self, name: str) -> Line:
        if name not in self.clients:
            if self.transport == "unix":
                line = self._unix()
            elif self.transport == "tcp":
                line = Line.tcp(self.tcp["host"], self.tcp["port"])
            else:
                self._unix().close() if not self.standalone else None
                line = Line.stdio(self.daemon.env, *(["--standalone"] if self.standalone else []))
            self.clients[name], self.waiting[name], self.held[name] = line, [], []
        return self.clients[name]

    def send(self, name: str, message: Any) -> None:
        line = self.client(name)
        if self.transport == "tcp" and isinstance(message, dict) and message.get("method") == "initialize":
            options = message["params"].setdefault("initializationOptions", {})
            options.setdefault("token", Path(self.tcp["tokenFile"]).read_text())
        line.send(message)

    def get(self, name: str, fits: Callable[[dict[str, Any]], list[str]], *, loose: bool) -> list[str]:
        """Take the next message of a client, or with `loose` the next push that fits; the differences."""
        line, waiting, held = self.client(name), self.waiting[name], self.held[name]
        if not loose:
            while not held:
                message = line.receive()
                if message is None:
                    return ["the connection ended"]
                (waiting if message.get("method") in _LOOSE else held).append(message)
            return fits(held.pop(0))
        tried: list[str] = []
        while True:
            for n, message in enumerate(waiting):
                if not (tried := fits(message)):
                    del waiting[n]
                    return []
            waiting.clear()
            try:
                message = line.receive()
            except TimeoutError:
                return ["no push that fits came; the last one:", *tried]
            if message is None:
                return ["the connection ended"]
            (waiting if message.get("method") in _LOOSE else held).append(message)

    def nothing_more(self, name: str) -> list[str]:
        """What else a client got without a line of the transcript for it."""
        found = [f"{name} also got {message}" for message in self.held[name]]
        while True:
            try:
                message = self.client(name).receive(SETTLE)
            except TimeoutError:
                return found
            if message is None:
                return found
            if message.get("method") not in _LOOSE:
                found.append(f"{name} also got {message}")

    def close(self) -> None:
        for line in self.clients.values():
            line.close()
        self.daemon.stop()
        self._folder.cleanup()


def play(name: str, transport: str) -> list[str]:
    """Play one transcript; what was not as it says."""
    script = steps(name)
    clients = list(dict.fromkeys(step["client"] for step in script if "client" in step))
    stage = Stage(transport, alone=len(clients) == 1)
    bindings = Bindings(home=str(stage.home), sample=str(stage.sample))
    ended: set[str] = set()
    try:
        for number, step in enumerate(script, 1):
            client = step.get("client", "")
            found: list[str] = []
            if "sends" in step:
                stage.send(client, bindings.fill(step["sends"]))
            elif "gets" in step:
                expected = step["gets"]
                loose = expected.get("method") in _LOOSE
                found = stage.get(client, lambda message, e=expected: trial(bindings, e, message), loose=loose)
            elif "ends" in step:
                ended.add(client)
                rest = stage.client(client).receive()
                found = [] if rest is None else [f"the connection did not end: {rest}"]
            else:
                outside(stage, bindings, step)
            if found:
                return [f"{name}, line {number}, over {transport}:", *found]
        return [text for client in clients if client not in ended for text in stage.nothing_more(client)]
    finally:
        stage.close()


def trial(bindings: Bindings, expected: Any, message: Any) -> list[str]:
    """Differences; what a message that does not fit would have bound is forgotten."""
    before = dict(bindings.known)
    if expected.get("method") == message.get("method") == "catalog/changed":
        message = relevant(bindings, expected["params"], message)
    found = bindings.differences(expected, message)
    if found:
        bindings.known = before
    return found


def relevant(bindings: Bindings, expected: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    """A catalog/changed without what it tells of other sessions: several changes may come in one."""
    params = message["params"]
    wanted = {bindings.fill(info["sessionId"]) for info in expected["upserts"]}
    upserts = [info for info in params["upserts"] if info["sessionId"] in wanted]
    removed = [name for name in params["removed"] if name in bindings.fill(expected["removed"])]
    return {**message, "params": {"upserts": upserts, "removed": removed}}


def outside(stage: Stage, bindings: Bindings, step: dict[str, Any]) -> None:
    """What happens beside the protocol: another program appends to a file, or takes it away."""
    path = Path(bindings.fill(step.get("path", "<text:sample>")))
    if "appends" in step:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(json.dumps(bindings.fill(step["appends"]), separators=(",", ":")).encode() + b"\n")
    elif step.get("removes"):
        path.unlink()
    else:
        assert step.keys() <= {"about", "over"}, step
    del stage


# --- writing one down

_BY_FIELD = {
    "pid": "<int>",
    "version": "<text>",
    "build": "<any>",
    "startedAt": "<time>",
    "uptimeMs": "<int>",
    "memoryBytes": "<int>",
    "cwdExists": "<any>",
    "sizeBytes": "<int>",
    "message": "<text>",
    "incident": "<any>",
    "retryAfterMs": "<int>",
}
_TIME = re.compile(_PATTERNS["time"])


def record(name: str) -> None:
    """Play what the clients send over a unix socket and put down what they get."""
    written: list[dict[str, Any]] = []
    script = [step for step in steps(name) if "gets" not in step]
    stage = Stage((script[0].get("over") or ["unix"])[-1], alone=False)
    bindings = Bindings(home=str(stage.home), sample=str(stage.sample))
    marks: dict[str, str] = {}
    known = SAMPLE.read_text() + json.dumps(script)
    clients = list(dict.fromkeys(step["client"] for step in script if "client" in step))
    try:
        for step in script:
            written.append(step)
            if "sends" in step:
                stage.send(step["client"], bindings.fill(step["sends"]))
            elif "ends" not in step:
                outside(stage, bindings, step)
            pushed: set[str] = set()
            owed = step["sends"].get("id") if "method" in step.get("sends", {}) else None
            quiet = SETTLE if "client" in step else 5 * SETTLE
            for client in [name for name in clients if name in stage.clients]:
                mine = client == step.get("client")
                while True:
                    try:
                        message = stage.client(client).receive(10 if mine and owed is not None else quiet)
                    except TimeoutError:
                        break
                    if message is None:
                        break
                    if mine and message.get("id") == owed and "method" not in message:
                        owed = None
                    shown = placeholders(message, str(stage.home), known, marks, bindings)
                    if shown.get("method") in _LOOSE:
                        # It may come in pieces: one that says what counts is enough.
                        text = json.dumps(shown)
                        if text in pushed:
                            continue
                        pushed.add(text)
                    written.append({"client": client, "gets": shown})
    finally:
        stage.close()
    (TRANSCRIPTS / f"{name}.jsonl").write_text("".join(json.dumps(step, ensure_ascii=False) + "\n" for step in written))


_SHOWN = {
    "upserts": ("sessionId", "title", "archived", "pinned"),
    "capabilities": ("experimental",),
    "dsh": ("protocolVersion",),
    "status": ("state", "protocolVersion", "openSessions"),
}
_COUNTS = frozenset(
    {"scanned", "entryCount", "messageCount", "diagnosticCount", "costTotal", "model"}
)  # there or not yet


def placeholders(value: Any, home: str, known: str, marks: dict[str, str], bindings: Bindings, field: str = "") -> Any:
    """A message as a transcript shows it. `known`: a text with the ids and times that do not vary."""
    if isinstance(value, dict):
        kind = "status" if field == "result" and "uptimeMs" in value else field
        listed = field == "items" and "sessionId" in value
        shown = {key: value[key] for key in _SHOWN.get(kind, value) if not (listed and key in _COUNTS)}
        more = {"...": True} if kind in _SHOWN or listed else {}
        return {key: placeholders(inner, home, known, marks, bindings, key) for key, inner in shown.items()} | more
    if isinstance(value, list):
        return [
            placeholders(inner, home, known, marks, bindings, field if field in {"upserts", "items"} else "")
            for inner in value
        ]
    if field in _BY_FIELD and value is not None and not (field == "version" and isinstance(value, int)):
        return _BY_FIELD[field]
    if field == "timestamp" and str(value).isdecimal() and str(value) not in known:
        return "<int>"  # of a message
    if field == "epoch":
        return named(value, "epoch", marks, bindings)
    if not isinstance(value, str):
        return value
    if value.startswith((home, f"file://{home}")):
        value = value.replace(home, "<text:home>", 1)
    if re.fullmatch(_PATTERNS["id"], value) and value not in known:
        return named(value, "id", marks, bindings)
    if re.fullmatch(_PATTERNS["session"], value) and value not in known:
        return named(value, "session", marks, bindings)  # of a request of the daemon
    return _TIME.sub(lambda match: match[0] if _written(match[0]) in known else "<time>", value)


def _written(time_: str) -> str:
    """A time as logs have it; file names have other marks between the numbers."""
    day, _, rest = time_.partition("T")
    hours, minutes, seconds, milliseconds = re.split(r"[-:.]", rest.removesuffix("Z"))
    return f"{day}T{hours}:{minutes}:{seconds}.{milliseconds}Z"


def named(value: str, kind: str, marks: dict[str, str], bindings: Bindings) -> str:
    if value not in marks:
        name = f"{kind}{sum(mark.startswith(f'<{kind}') for mark in marks.values()) + 1}"
        marks[value] = f"<{kind}:{name}>"
        bindings.known[name] = value
    return marks[value]


if __name__ == "__main__":
    for chosen in sys.argv[1:]:
        record(chosen)
        sys.stdout.write(f"{chosen}: read what was written\n")
