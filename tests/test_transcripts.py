"""The recorded conversations of protocol-spec, played against real daemons over stdio, the unix socket and TCP."""

from __future__ import annotations

import pytest

from dsh_daemon.wire.methods import METHODS, NOTIFICATIONS, PUSHES

from .playing import TRANSPORTS, names, play, steps


def over(name: str) -> list[str]:
    return steps(name)[0].get("over") or list(TRANSPORTS)


@pytest.mark.parametrize(("name", "transport"), [(name, transport) for name in names() for transport in over(name)])
def test_the_daemon_answers_as_recorded(name: str, transport: str) -> None:
    differences = play(name, transport)
    if differences:
        pytest.fail("\n".join(differences), pytrace=False)


def test_every_method_of_the_table_is_in_a_transcript() -> None:
    sent = {step["sends"]["method"] for name in names() for step in steps(name) if "method" in step.get("sends", {})}
    assert set(METHODS) | set(NOTIFICATIONS) <= sent


def test_every_push_is_in_a_transcript() -> None:
    got = {step["gets"]["method"] for name in names() for step in steps(name) if "method" in step.get("gets", {})}
    assert set(PUSHES) - got <= {"$/progress", "$/cancelRequest"}


def test_every_transcript_says_what_it_is_about() -> None:
    for name in names():
        assert steps(name)[0]["about"], name
