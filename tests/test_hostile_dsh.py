"""What a hostile tester found in logs of dsh: a few bytes that become all of memory, names and headers that mislead."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsh_daemon import dsh_driving
from dsh_daemon.errors import DamagedHeader
from dsh_daemon.log.formats import dsh
from dsh_daemon.log.frames import LONGEST_LINE, MUCH
from dsh_daemon.session import Session
from tests.dsh_logs import Log, dump, frame

from .test_dsh_daemon import refused
from .test_dsh_driven import Agent, Home, home  # noqa: F401  (a fixture)
from .wire import in_loop

BLOCK = 1 << 17


def bomb(byte: int, size: int) -> bytes:
    """A frame of `size` times the same byte, of which 128 KB take four bytes."""
    last = size // BLOCK - 1
    blocks = (BLOCK << 3 | 1 << 1 | (n == last) for n in range(last + 1))
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(block.to_bytes(3, "little") + bytes([byte]) for block in blocks)


@pytest.mark.parametrize(("byte", "size"), [(0x61, LONGEST_LINE + BLOCK), (0x0A, MUCH + BLOCK)])
def test_a_frame_of_a_few_bytes_that_holds_too_much_is_damaged_and_what_follows_is_read(
    tmp_path: Path, byte: int, size: int
) -> None:
    log = Log()
    log.talk("one", "first")
    after = dump({"type": "future/event", "seq": len(log.events), "time": 1, "data": {}, "ignorable": True})
    path = log.write(tmp_path)
    path.write_bytes(log.zstd() + bomb(byte, size) + frame(after))
    session = Session.open(str(path))

    assert session.index.ids[-1] == str(len(log.events))
    assert [d["code"] for d in session.faults()] == ["damaged_frame"]
    assert session.journal.size() < 1 << 20


def test_a_line_over_several_frames_has_a_limit_too(tmp_path: Path) -> None:
    log = Log()
    log.talk("one", "first")
    path = log.write(tmp_path)
    path.write_bytes(log.zstd() + bomb(0x20, LONGEST_LINE // 2) * 2 + bomb(0x20, LONGEST_LINE // 2) * 2)
    session = Session.open(str(path))

    assert session.journal.size() <= LONGEST_LINE + len(log.plain())
    assert "damaged_frame" in {d["code"] for d in session.faults()}


def test_a_folder_is_named_for_an_id_of_characters_that_take_two_units() -> None:
    assert dsh.id_of_folder("/r/p/a~D83D~DE42/session.jsonl.zstd") == "a\U0001f642"
    assert dsh.id_of_folder("/r/p/a~D83D/session.jsonl.zstd") == "a\ud83d"


def test_a_header_that_only_lenient_readers_take_is_damaged(tmp_path: Path) -> None:
    log = Log()
    log.talk("one", "first")
    path = log.write(tmp_path, zstd=False)
    path.write_bytes(path.read_bytes().replace(b'"version":0', b'"version":0,"agentPreset":"\\ud800"', 1))
    session = Session.open(str(path))

    assert session.header.state == "ok"
    with pytest.raises(DamagedHeader):
        dsh_driving.stored_header(session)


@in_loop
async def test_an_agent_that_resumes_again_is_told_what_became_of_its_log(home: Home) -> None:  # noqa: F811
    path = home.talk(("one", "first")).write(home.root)
    with home.daemon as daemon:
        async with daemon.client("agent") as client:
            agent = Agent(client)
            await agent.ask("session/resume")
            path.write_bytes(path.read_bytes()[:-20])
            fault = await refused(agent.ask("session/resume"))
            assert fault.kind == "damagedRegion"
