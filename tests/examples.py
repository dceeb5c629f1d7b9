"""The examples of protocol-spec: where they are, what they speak of, whether an answer is the one that they show."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPEC = Path(__file__).resolve().parents[1] / "protocol-spec"
EXAMPLES = SPEC / "examples"
SAMPLE = EXAMPLES / "sample-session.jsonl"
SAMPLE_ID = "019cadd3-8790-7c41-9d0e-5f2a61b8c3d4"
CHILD_ID = "019cae2a-0d10-7b33-a1c2-3d4e5f607182"
SAMPLE_PLACE = f"sessions/--home-mina-shop--/2026-03-02T09-14-07-120Z_{SAMPLE_ID}.jsonl"
HOME = "/home/mina"  # of the person in the examples
DATA = f"{HOME}/.local/share/dsh-daemon"
EPOCH = "k3f9-1"  # in a request it stands for the current one

_UNNAMED = {"lsp/cancelRequest": "$/cancelRequest"}


@dataclass(frozen=True)
class Example:
    """One request with its answer."""

    method: str
    accepted: bool
    title: str
    needs: str
    request: dict[str, Any]
    answer: dict[str, Any] | None

    @property
    def name(self) -> str:
        return f"{self.method}: {self.title}"


def method_of(path: Path) -> str:
    name = f"{path.parent.name}/{path.stem}"
    return _UNNAMED.get(name, name.removeprefix("lsp/"))


def files() -> list[Path]:
    return sorted(path for path in EXAMPLES.glob("*/*.json") if path.parent.name != "types")


def examples() -> list[Example]:
    found: list[Example] = []
    for path in files():
        content = json.loads(path.read_text())
        for kind in ("accepted", "refused"):
            for item in content[kind]:
                found.append(
                    Example(
                        method_of(path),
                        kind == "accepted",
                        item["title"],
                        item.get("needs", ""),
                        item["request"],
                        item["answer"],
                    )
                )
    return found


def typed() -> list[tuple[str, bool, str, Any]]:
    """(type, must be accepted, title, value) of each example of a type."""
    found: list[tuple[str, bool, str, Any]] = []
    for path in sorted((EXAMPLES / "types").glob("*.json")):
        content = json.loads(path.read_text())
        for kind in ("accepted", "refused"):
            found += [(path.stem, kind == "accepted", item["title"], item["value"]) for item in content[kind]]
    return found


# What a replay does not compare, by field (README, "The examples").
_NOT_COMPARED = frozenset(
    {
        "pid",
        "version",
        "build",
        "startedAt",
        "uptimeMs",
        "memoryBytes",
        "epoch",
        "nextCursor",
        "cwdExists",
        "connections",
        "roots",
        "message",
        "retryAfterMs",
    }
)
_MADE_ID = re.compile(r"[0-9a-f]{8}|[0-9a-f]{16}")  # of an entry, of a message
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_FILE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z")
_MIXED_ISSUE = re.compile(r"exactly one of|needs|required when")


class Comparison:
    """Compares an answer with the one expected. `known`: a text that holds what both name alike; the rest was made."""

    def __init__(self, known: str, base: int) -> None:
        self.known = known
        self.base = base  # the revision that session/open gave before
        self.found: list[str] = []

    def compare(self, expected: Any, actual: Any, at: str = "") -> list[str]:
        """Differences, one text each."""
        self.found = []
        self._any(expected, actual, at, "")
        return self.found

    def _differ(self, at: str, expected: Any, actual: Any) -> None:
        self.found.append(f"{at or '.'}: expected {json.dumps(expected)}, got {json.dumps(actual)}")

    def _any(self, expected: Any, actual: Any, at: str, field: str) -> None:
        if field == "version" and isinstance(expected, int):
            pass  # of a log, not of the daemon
        elif field in _NOT_COMPARED and type(expected) is type(actual):
            return
        if field == "timestamp" and f"{expected}{actual}".isdecimal() and str(expected) not in self.known:
            return  # of a message that the daemon wrote
        if isinstance(expected, dict) and isinstance(actual, dict):
            self._object(expected, actual, at)
        elif isinstance(expected, list) and isinstance(actual, list):
            if len(expected) != len(actual):
                self._differ(at, expected, actual)
                return
            for n, (one, other) in enumerate(zip(expected, actual, strict=True)):
                self._any(one, other, f"{at}.{n}", "")
        elif isinstance(expected, str) and isinstance(actual, str):
            if not self._same_text(expected, actual, field):
                self._differ(at, expected, actual)
        elif field in {"revision", "fromRevision"}:
            if not isinstance(actual, int) or actual - self.base != expected - 1:
                self._differ(at, f"base + {expected - 1}", actual)
        elif (
            isinstance(expected, int | float)
            and isinstance(actual, int | float)
            and float in {type(expected), type(actual)}
        ):
            if abs(expected - actual) > 1e-9:
                self._differ(at, expected, actual)
        elif expected != actual or type(expected) is not type(actual):
            self._differ(at, expected, actual)

    def _object(self, expected: dict[str, Any], actual: dict[str, Any], at: str) -> None:
        if expected.keys() != actual.keys():
            missing, more = expected.keys() - actual.keys(), actual.keys() - expected.keys()
            self.found.append(
                f"{at or '.'}: missing {sorted(missing)}, unexpected { ({k: actual[k] for k in sorted(more)}) }"
            )
        for key, value in expected.items():
            if key not in actual:
                continue
            if key == "path" and isinstance(value, list):
                if not _MIXED_ISSUE.search(str(expected.get("message"))):
                    self._any(value, actual[key], f"{at}.{key}", "")
            elif key == "reason" and expected.get("kind") in {"invalidEntry", "invalidReference"}:
                # For people, but for the fixed word that it may begin with.
                word, mark, _ = str(value).partition(": ")
                if mark and not str(actual[key]).startswith(word + mark):
                    self._differ(f"{at}.{key}", value, actual[key])
            elif key == "sizeBytes" and expected.get("parentSessionId"):
                assert isinstance(actual[key], int)  # its header holds the path of the parent
            else:
                self._any(value, actual[key], f"{at}.{key}", key)

    def _same_text(self, expected: str, actual: str, field: str) -> bool:
        if expected == actual:
            return True
        expected, actual = expected.removeprefix("file://"), actual.removeprefix("file://")
        if expected.startswith("/") and actual.startswith("/"):  # folders are not compared
            expected, actual = expected.rpartition("/")[2], actual.rpartition("/")[2]
            return expected == actual or _FILE_TIME.sub("", expected) == _FILE_TIME.sub("", actual)
        if "@" in expected and field == "sessionId":
            return expected.partition("@")[0] == actual.partition("@")[0]
        if expected in self.known:
            return False
        return any(form.fullmatch(expected) and form.fullmatch(actual) for form in (_MADE_ID, _TIME))
