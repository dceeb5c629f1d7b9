"""What we read of a dsh log is what dsh itself reads of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon import surface
from dsh_daemon.log.formats.dsh import expand
from dsh_daemon.session import Session
from tests.dsh_logs import Log, story
from tests.support import CORPUS

from . import dsh

pytestmark = pytest.mark.timeout(600)  # the first test may have to install the peers


def assert_the_same(seen: dict[str, Any]) -> None:
    session = Session.open(str(seen["path"]))
    index = session.index
    events = [event for i in range(len(index)) for event in expand(json.loads(session.raw(i)))]
    assert events == seen["stored"]["events"], seen["path"]
    assert [int(index.ids[i]) for i in index.surface.shown] == seen["stored"]["surface"]
    found = surface.context_of(index, session.stored, session.leaf)
    assert found["messages"] == seen["inspected"]["messages"], seen["path"]
    for i in range(0, len(index) - 1, 7):
        assert surface.context_of(index, session.stored, i)["sources"] is not None


@pytest.mark.skipif(CORPUS is None, reason="the corpus is not here")
def test_every_log_of_the_corpus_is_the_same_history_in_both() -> None:
    assert CORPUS is not None
    paths = sorted(path for part in ("dsh", "edge/dsh") for path in (CORPUS / part).rglob("session.jsonl*"))
    good = [seen for seen in dsh().load(paths, resume=False) if "error" not in seen and "error" not in seen["stored"]]
    for seen in good:
        assert_the_same(seen)
    assert len(good) > 20


def test_logs_with_compactions_forks_and_cut_off_turns_are_the_same_history_in_both(tmp_path: Path) -> None:
    whole = story()
    ends = [event["seq"] for event in whole.events if event["type"] == "turn/end"]
    fork = whole.fork("session-fork", ends[1])
    fork.talk("another way", "taken")
    cut = Log("session-cut")
    cut.talk("one", "first")
    cut.prompt("two")
    cut.answer("", [("c1", "bash", "{}"), ("c2", "bash", "{}")])
    cut.call("c1", "bash", "{}")
    paths = [
        log.write(tmp_path / f"{packed}-{zstd}-{number}", packed=packed, zstd=zstd)
        for number, log in enumerate((whole, fork, cut))
        for packed in (False, True)
        for zstd in (False, True)
    ]
    for seen in dsh().load(paths, resume=False):
        assert "error" not in seen, seen
        assert_the_same(seen)
