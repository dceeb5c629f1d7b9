"""What a session file has for the catalog and the index: its counts and, piece by piece, the text of its entries.

Done in a thread where there is little of it, else in a process that does nothing else: `python -m dsh_daemon.extract`
reads jobs from its standard input and writes what comes of them to its standard output, each with its length in 4 bytes
before it. It has no database open and changes nothing, so it may be killed at any time.
"""

from __future__ import annotations

import gc
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import msgspec

from . import tree, turns
from .catalog import Counts, Stamp
from .errors import Fault
from .fulltext import says_something, text_of
from .log import snapshot
from .log.index import NO_TIME, NONE
from .log.scan import scan
from .search_index import Facts, Known, Piece
from .session import Session, SessionClosed
from .state import LeafMemory
from .tokens import indexed

TEXT_AT_ONCE = 2 << 20  # characters of one piece: what is lost when we are killed, and how long others may have to wait
ENTRIES_AT_ONCE = 4_096
READ_AT_ONCE = 128  # entries
FEW = 64  # entries of which each one's turn is looked for by itself
SNAPSHOT_AFTER = 4 << 20  # bytes that opening had to scan, above which the index is kept for the next time
RECOVERED = frozenset(
    {"torn_tail", "torn_frame", "nul_run", "glued_records", "fragment", "invalid_utf8", "nan", "missing_id"}
)


class Job(msgspec.Struct, array_like=True):
    """A file to look through, as it was at `stamp`."""

    path: str
    stamp: Stamp
    known: Known | None = None  # how far it is in the index
    said: bool = True  # its text is wanted, not only the counts
    memory: LeafMemory | None = None
    labels: dict[str, tuple[str, str]] = {}  # that the log cannot hold
    snapshot: bytes | None = None


class Done(msgspec.Struct, array_like=True, tag=True):
    """All of a job that was not in its pieces; no counts where the file could not be read."""

    counts: Counts | None = None
    snapshot: bytes | None = None  # of its index, where it is worth keeping


class Part(msgspec.Struct, array_like=True, tag=True):
    piece: Piece


def work(job: Job, cancelled: Callable[[], bool] = lambda: False) -> Iterator[Part | Done]:
    """Do a job: the pieces that are not in the index yet, then `Done`."""
    try:
        session = Session.open(job.path, job.snapshot, cancelled, scan)
    except (Fault, SessionClosed):
        yield Done()
        return
    try:
        if cancelled():
            return
        if session.header.format == "dsh":
            session.keep_labels(job.labels)
        elif job.memory is not None:
            session.restore(job.memory)
        if job.said:
            for piece in pieces(session, job.stamp, job.known):
                yield Part(piece)
        worth_it = session.scanned > SNAPSHOT_AFTER
        yield Done(counts_of(session), snapshot.dump(session.index, session.journal) if worth_it else None)
    except Fault:  # it goes away, or is rewritten, as we read: whoever sees that asks again
        yield Done()
    finally:
        session.journal.close()


def count(path: str) -> Counts | None:
    """Counts of a file from a full scan; None when it cannot be read."""
    (done,) = work(Job(path, Stamp(0, 0, 0, 0), said=False))
    assert isinstance(done, Done)
    return done.counts


def counts_of(session: Session) -> Counts:
    index, facts = session.index, session.index.facts
    faults = session.faults()
    return Counts(
        entries=len(index),
        messages=facts.messages,
        diagnostics=len(faults),
        cost=facts.cost,
        model=facts.model,
        name=session.title(),
        name_source=facts.title_source,
        activity=None if facts.last_activity == NO_TIME else facts.last_activity,
        damaged=session.damaged,
        recovered=any(fault["code"] in RECOVERED for fault in faults),
        fork_point=session.fork_point(),
        fork_text=session.fork_text(),
    )


def continues(session: Session, known: Known) -> bool:
    """Whether what is known of a log is the beginning of what it is now, and as it was.

    An entry whose parent comes after it may now hang elsewhere.
    """
    index, n = session.index, known.entries
    return (
        n <= len(index) - index.provisional
        and (not index.forward or max(index.parent[:n], default=NONE) < n)
        and end_of(session, n) == known.end
        and snapshot.fingerprint(session.journal, known.end) == known.mark
    )


def pieces(session: Session, stamp: Stamp, known: Known | None) -> Iterator[Piece]:
    """What is to be put into the index so that it has all of a session: at least one piece. Raises storage faults."""
    index = session.index
    size, solid = len(index), len(index) - index.provisional
    facts = Facts(
        [(s.type, s.role, s.flags, s.stored) for s in index.shapes.items], active(session), compacted(session)
    )
    labels = {i: label.text for i, label in index.labels.items()}
    start = known.entries if known is not None and continues(session, known) else 0
    turn = _turns(session, range(start, size))
    for said, stop in _said(session, start, size):
        entries = min(stop, solid)
        end = end_of(session, entries)
        mark = snapshot.fingerprint(session.journal, end)
        yield Piece(
            start,
            Known(stamp, entries, end, mark, stop == size, session.leaf_id, session.header.cwd),
            facts,
            labels,
            said,
            array("q", [index.time[i] for i in range(start, stop)]).tobytes(),
            index.shape[start:stop].tobytes(),
            index.offset[start:stop].tobytes(),
            index.length[start:stop].tobytes(),
            array("i", [next(turn) for _ in range(start, stop)]).tobytes(),
            list(index.ids[start:stop]),
            size - stop,
        )
        start = stop


def _said(session: Session, start: int, size: int) -> Iterator[tuple[list[tuple[int, int, str]], int]]:
    """What entries say, in pieces: ordinal, speaker and words of each, and the ordinal up to which that is all."""
    index = session.index
    speaks = [says_something(shape.type, shape.role) for shape in index.shapes.items]
    said: list[tuple[int, int, str]] = []
    length = 0
    for at in range(start, size, READ_AT_ONCE):
        stop = min(at + READ_AT_ONCE, size)
        chosen = [i for i in range(at, stop) if speaks[index.shape[i]]]
        read = session.fetch(chosen)
        for i in chosen:
            if (text := text_of(read(i))) is not None:
                said.append((i, int(text.speaker), indexed(text.text)))
                length += len(text.text)
        if (length > TEXT_AT_ONCE or stop - start >= ENTRIES_AT_ONCE) and stop < size:
            yield said, stop
            said, length, start = [], 0, stop
    yield said, size


def end_of(session: Session, entries: int) -> int:
    """Where in the log the first `entries` entries end."""
    index = session.index
    return index.offset[entries - 1] + index.length[entries - 1] if entries else 0


def active(session: Session) -> list[int]:
    """Spans of the entries on the path to the leaf."""
    runs, end = session.runs(), session.leaf + 1
    run = runs.of(session.leaf) if session.leaf >= 0 else NONE
    found: list[tuple[int, int]] = []
    while run >= 0:
        found.append((runs.starts[run], end))
        run = runs.parent[run]
        end = runs.end(run) if run >= 0 else 0
    return spans(i for start, stop in sorted(found) for i in (start, stop))


def spans(bounds: Iterable[int]) -> list[int]:
    """Flat spans without those that touch: where one ends and the next begins there is no bound."""
    found: list[int] = []
    for bound in bounds:
        if found and found[-1] == bound:
            found.pop()
        else:
            found.append(bound)
    return found


def compacted(session: Session) -> list[int]:
    """Spans of the entries on the path to the leaf that a compaction took from what a model sees."""
    index = session.index
    if index.header.format == "dsh":
        gone: Iterable[int] = index.surface.shadowed
    elif turns.codes_of(index, turns.CUTS):
        path = tree.path(index, session.leaf)
        gone = path[: turns.first_shown(index, path, session.entry)]
    else:
        return []
    return spans(bound for i in sorted(gone) for bound in (i, i + 1))


def _turns(session: Session, wanted: range) -> Iterator[int]:
    """The turn that each of the last entries belongs to."""
    index = session.index
    if len(wanted) > FEW:
        return iter(turns.numbers(index, session.entry)[wanted.start :])
    return (turns.number_at(index, session.runs(), session.entry, i) for i in wanted)


# A process that does this only

_encode = msgspec.msgpack.Encoder().encode
_job = msgspec.msgpack.Decoder(Job).decode
_reply = msgspec.msgpack.Decoder(Part | Done).decode


def send(stream: IO[bytes], message: Job | Part | Done) -> None:
    data = _encode(message)
    stream.write(len(data).to_bytes(4))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes], decode: Callable[[bytes], Any] = _reply) -> Any:
    """The next message. Raises EOFError where there is none."""
    head = stream.read(4)
    data = stream.read(int.from_bytes(head)) if len(head) == 4 else b""
    if len(head) < 4 or len(data) < int.from_bytes(head):
        raise EOFError
    try:
        return decode(data)
    except msgspec.DecodeError as exc:
        raise EOFError("not a message of ours") from exc


def main() -> None:
    """Do jobs until nobody gives us any more, or takes what we did."""
    gc.disable()  # what is parsed has no cycles
    parent = os.getppid()
    while True:
        try:
            for message in work(receive(sys.stdin.buffer, _job), lambda: os.getppid() != parent):
                send(sys.stdout.buffer, message)
        except (EOFError, BrokenPipeError):
            os._exit(0)  # without another look at a pipe that nobody reads


if __name__ == "__main__":
    main()
