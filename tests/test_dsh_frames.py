"""A zstd log of many frames reads as the one text that it holds, whatever happened to some of its bytes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from dsh_daemon.errors import ReadOnly, SessionGone
from dsh_daemon.log import frames
from dsh_daemon.log.frames import FrameJournal, head_text, open_journal, tail_text
from dsh_daemon.log.journal import FileJournal

from .dsh_logs import damaged, frame, story

PIECES = [b"header\n", b"".join(b"line %d\n" % n for n in range(400)), b"x" * 300_000 + b"\n", b"last\n"]
WHOLE = b"".join(PIECES)


def journal_of(tmp_path: Path, data: bytes) -> FrameJournal:
    path = tmp_path / "session.jsonl.zstd"
    path.write_bytes(data)
    return FrameJournal(str(path))


def text_of(journal: FrameJournal) -> bytes:
    return journal.read(0, journal.size())


def codes(journal: FrameJournal) -> list[str]:
    return [fault["code"] for fault in journal.faults()]


def test_all_frames_are_one_text_at_any_offset(tmp_path: Path) -> None:
    """A149: many decoders stop behind the first frame."""
    journal = journal_of(tmp_path, b"".join(map(frame, PIECES)))
    assert journal.size() == len(WHOLE)
    dice = random.Random(1)
    for _ in range(300):
        at, length = dice.randrange(len(WHOLE) + 10), dice.randrange(200_000)
        assert journal.read(at, length) == WHOLE[at : at + length]
    buffer = bytearray(1000)
    assert journal.readinto(5, memoryview(buffer)) == 1000
    assert buffer == WHOLE[5:1005]
    assert codes(journal) == []


def test_frames_with_lengths_without_checksums_and_frames_to_be_skipped_are_read(tmp_path: Path) -> None:
    data = zstandard.compress(PIECES[0]) + b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    data += zstandard.ZstdCompressor(write_checksum=False, write_content_size=False).compress(PIECES[1]) + frame(b"")
    data += zstandard.ZstdCompressor(level=19).compress(PIECES[2])
    assert text_of(journal_of(tmp_path, data)) == b"".join(PIECES[:3])


@pytest.mark.parametrize("at", range(4))
def test_a_flipped_byte_costs_its_frame_and_no_other(tmp_path: Path, at: int) -> None:
    packed = [frame(piece) for piece in PIECES]
    for place in (0, 4, 5, 7, len(packed[at]) // 2, len(packed[at]) - 1):
        broken = bytearray(packed[at])
        broken[place] ^= 0x55
        journal = journal_of(tmp_path, b"".join([*packed[:at], bytes(broken), *packed[at + 1 :]]))
        rest = b"".join(PIECES[:at] + PIECES[at + 1 :])
        text = text_of(journal)
        # Some bits mean nothing; what is read of a last frame may be its beginning.
        assert text in {rest, WHOLE} or (at == 3 and text.startswith(rest))
        assert codes(journal) or text == WHOLE


def test_bytes_between_frames_are_named_and_stepped_over(tmp_path: Path) -> None:
    packed = [frame(piece) for piece in PIECES]
    junk = b"junk" + frames.MAGIC + b"more junk"
    journal = journal_of(tmp_path, packed[0] + junk + b"".join(packed[1:]) + b"tail")
    assert text_of(journal) == WHOLE
    assert [(f["code"], f.get("offset"), f.get("length")) for f in journal.faults()] == [
        ("damaged_frame", len(packed[0]), len(junk)),
        ("damaged_frame", sum(map(len, packed)) + len(junk), 4),
    ]


def test_what_an_unfinished_last_frame_gives_is_read_and_grows_into_the_whole(tmp_path: Path) -> None:
    packed = b"".join(map(frame, PIECES[:3]))
    start = len(frame(PIECES[0])) + len(frame(PIECES[1]))
    path = tmp_path / "session.jsonl.zstd"
    path.write_bytes(packed[:start])
    journal = FrameJournal(str(path))
    known = journal.size()
    for end in range(start + 1, len(packed) + 1, 3):
        path.write_bytes(packed[:end])
        size = journal.size()
        assert size >= known
        assert text_of(journal) == WHOLE[:size]
        assert codes(journal) == ["torn_frame"] or end >= len(packed)
        known = size
    path.write_bytes(packed)
    assert text_of(journal) == b"".join(PIECES[:3])
    assert codes(journal) == []


def test_growth_is_told_and_only_what_came_is_read(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, frame(PIECES[0]))
    size = journal.size()
    assert journal.check(size) == "same"
    with open(journal.path or "", "ab") as file:
        file.write(frame(PIECES[1]))
    assert journal.check(size) == "grown"
    journal.accept()
    assert text_of(journal) == PIECES[0] + PIECES[1]
    assert journal.check(journal.size()) == "same"
    Path(journal.path or "").write_bytes(frame(b"other\n"))
    assert journal.check(journal.size()) in {"shrunk", "touched"}
    assert text_of(journal) == b"other\n"
    os.unlink(journal.path or "")
    assert journal.check(6) == "gone"


def test_a_rewriting_that_keeps_the_size_is_read_anew(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, frame(b"aaaa\n"))
    assert text_of(journal) == b"aaaa\n"
    other = frame(b"bbbb\n")
    Path(journal.path or "").write_bytes(other)
    os.utime(journal.path or "", ns=(1, 1))
    assert journal.check(5) == "touched"
    assert text_of(journal) == b"bbbb\n"


def test_nothing_is_ever_written_inside_of_it(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, frame(b"a\n"))
    with pytest.raises(ReadOnly):
        journal.overwrite(0, b"x")
    assert Path(journal.path or "").read_bytes() == frame(b"a\n")


def test_a_log_is_opened_by_what_it_holds(tmp_path: Path) -> None:
    for name, data, packed in (
        ("a.jsonl.zstd", frame(b"{}\n"), True), ("b.jsonl", frame(b"{}\n"), True), ("c.jsonl", b"{}\n", False),
        ("d.jsonl.zstd", b'{"type":"session"}\n', False), ("e.jsonl.zstd", b"", True), ("f.jsonl.zstd", b"\0x", True),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        journal = open_journal(str(tmp_path / name))
        assert isinstance(journal, FileJournal)
        assert isinstance(journal, FrameJournal) == packed, name
    with pytest.raises(SessionGone):
        open_journal(str(tmp_path / "missing.jsonl.zstd"))


def test_both_ends_of_a_log_are_read_without_its_middle() -> None:
    packed = b"".join(frame(b"".join(b"%d %d\n" % (k, n) for n in range(50))) for k in range(3_000))

    def read(offset: int, length: int) -> bytes:
        assert length <= 8_192, "no more than was asked for"
        return packed[offset : offset + length]

    head, whole = head_text(read, len(packed), 8_192)
    assert head.startswith(b"0 0\n0 1\n")
    assert not whole
    tail = tail_text(read, len(packed), 8_192)
    assert tail.endswith(b"2999 48\n2999 49\n")
    assert len(head) == 8_192 >= len(tail) > 4_000
    assert head_text(lambda at, n: frame(b"x\n")[at : at + n], len(frame(b"x\n")), 8_192) == (b"x\n", True)
    assert tail_text(lambda at, n: b"y" * n, 5_000, 1_000) == b""


def test_the_end_of_one_long_frame_is_found_from_its_beginning() -> None:
    dice = random.Random(2)
    text = b"".join(b"%d %d\n" % (n, dice.getrandbits(900)) for n in range(2_000))
    packed = frame(b"header\n") + frame(text)
    assert len(packed) > 200_000

    def read(offset: int, length: int) -> bytes:
        return packed[offset : offset + length]

    assert tail_text(read, len(packed), 8_192) == b""
    tail = tail_text(read, len(packed), 8_192, deep=True)
    assert text.endswith(tail)
    assert 7_000 < len(tail) <= 8_192


PACKED = story().zstd(packed=True)
PLAIN = story().plain(packed=True)


@given(st.integers(0, 2**32))
@settings(max_examples=250, deadline=None)
def test_random_damage_loses_the_frames_that_it_touches_and_nothing_else(seed: int) -> None:
    dice = random.Random(seed)
    data, at, stop = damaged(PACKED, dice)
    table = frames.Frames()
    table.extend(lambda offset, length: data[offset : offset + length], len(data))
    sound = frames.Frames()
    sound.extend(lambda offset, length: PACKED[offset : offset + length], len(PACKED))
    got = b""
    for k in range(len(table.at)):
        got += frames.Text(lambda o, n: data[o : o + n], table.at[k], table.end[k]).take(1 << 20)
    for k in range(len(sound.at)):
        if sound.end[k] <= at or sound.at[k] >= max(stop, at + 1):
            size = (sound.start[k + 1] if k + 1 < len(sound.at) else sound.total) - sound.start[k]
            assert PLAIN[sound.start[k] : sound.start[k] + size] in got


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_it_raise(data: bytes) -> None:
    for junk in (data, frames.MAGIC + data, PACKED[:200] + data + PACKED[200:900]):
        table = frames.Frames()
        table.extend(lambda offset, length, junk=junk: junk[offset : offset + length], len(junk))
        assert table.total >= 0
        tail_text(lambda offset, length, junk=junk: junk[offset : offset + length], len(junk), 300)


MEASURE = """
import resource, sys
from dsh_daemon.session import Session
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
session = Session.open(sys.argv[1])
for i in range(0, len(session.index), max(1, len(session.index) // 50)):
    session.stored(i)
print(session.journal.size(), len(session.index), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize("lines", [20, 10**6], ids=["many frames", "one frame"])
def test_a_long_log_never_stands_in_memory(tmp_path: Path, lines: int) -> None:
    """A152: 128 MB of text that are a few on disk; the whole log may be one frame."""
    body = (
        '{"type":"todo/write","seq":%d,"time":1796033552000,"data":{"todos":[{"content":"' + "word " * 1_600 + '"}]}}\n'
    )
    packer = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False)
    path = tmp_path / "session.jsonl.zstd"
    with open(path, "wb") as file:
        file.write(frame(b'{"type":"session","version":0,"id":"s","createdAt":1,"delegationDepth":0}\n'))
        for start in range(0, 16_000, lines):
            with packer.stream_writer(file, closefd=False) as writer:
                for n in range(start, min(start + lines, 16_000)):
                    writer.write((body % n).encode())
    output = subprocess.run([sys.executable, "-c", MEASURE, str(path)], check=True, capture_output=True, text=True)
    size, entries, grown = map(int, output.stdout.split())
    assert size > 120 << 20
    assert entries == 16_000
    assert grown < 40
