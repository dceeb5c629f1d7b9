"""A zstd log, which is many frames one behind the other, shown as the one stream of text that it holds.

    file      | frame | frame | damaged | frame | half a fr
    stream    | text  | text  |         | text  | what can be read of it

Offsets above this module are places in the stream. Nothing is kept but where each frame begins in both, and a few
pieces of text that were read last: a frame may hold more than memory should.
"""

from __future__ import annotations

import io
import os
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import zstandard

from dsh_daemon.errors import DamagedRegion, Fault, ReadOnly, storage_fault
from dsh_daemon.types import Diagnostic

from .journal import FileJournal, Found, Outdated, Written, locked

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAGIC = b"\x28\xb5\x2f\xfd"
PIECE = 128 << 10  # bytes of text that are kept or dropped together
KEPT = 4 << 20  # bytes of text that are kept
WINDOW = 1 << 27  # bytes of text that a frame may refer back to: the limit that zstd itself has
IN_VAIN = 64 << 20  # bytes of text that a search for the next frame may decompress for nothing
DEEP = 32 << 20  # bytes of a file that is read whole for what its end says
CANDIDATES = 10_000  # places that such a search tries
# No log is like this, and a few bytes of a file must not become all of memory: a frame that goes beyond is damaged.
LONGEST_LINE = 128 << 20
MUCH = 256 << 20  # bytes of text that a file may hold however small it is
RATIO = 500  # bytes of text that each byte of a larger file may stand for
SMALL = 16 << 10  # bytes of a frame that is read in one call
_STEP = 1 << 16
_HEADER = 18  # bytes that a frame's header has at most

Read = Callable[[int, int], bytes]  # (offset, length) -> bytes of the file, fewer only at its end


class Extent(NamedTuple):
    """How far the marks of a frame reach."""

    end: int
    whole: bool  # it ends inside the file


class Window:
    """The bytes of a file, read in steps: walking over marks asks for a few bytes at a time."""

    def __init__(self, read: Read, size: int) -> None:
        self.read, self.size = read, size
        self._at, self._data = 0, b""

    def get(self, offset: int, length: int) -> bytes:
        start = offset - self._at
        if start < 0 or start + length > len(self._data):
            self._at, self._data = offset, self.read(offset, max(length, min(_STEP, self.size - offset)))
            start = 0
        return self._data[start : start + length]

    def find(self, what: bytes, start: int) -> int:
        """Offset of the next place at or after `start` that holds `what`; -1 where there is none."""
        while start < self.size:
            data = self.read(start, _STEP + len(what))
            at = data.find(what)
            if at >= 0:
                return start + at
            start += _STEP
        return -1


def extent(window: Window, at: int) -> Extent | None:
    """Where the frame at `at` ends, by the lengths that it gives; None where no frame begins there."""
    head = window.get(at, _HEADER)
    if len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50:  # to be skipped
        end = at + 8 + int.from_bytes(head[4:8], "little")
        return Extent(end, len(head) >= 8 and end <= window.size)
    if not head.startswith(MAGIC) and not (len(head) < 4 and MAGIC.startswith(head) and head):
        return None
    if len(head) < 6:
        return Extent(window.size + 1, whole=False)
    mark = head[4]
    if mark & 0x08:  # reserved
        return None
    single = mark >> 5 & 1
    sizes = (single, 2, 4, 8)
    at += 5 + (1 - single) + (0, 1, 2, 4)[mark & 3] + sizes[mark >> 6]
    while True:
        block = window.get(at, 3)
        if len(block) < 3:
            return Extent(window.size + 1, whole=False)
        word = int.from_bytes(block, "little")
        kind = word >> 1 & 3
        if kind == 3:
            return None
        at += 3 + (1 if kind == 1 else word >> 3)
        if word & 1:
            break
    end = at + (4 if mark & 0x04 else 0)
    return Extent(end, end <= window.size)


class _Bytes(io.RawIOBase):
    """The bytes of a file between two offsets, for the decompressor."""

    def __init__(self, read: Read, start: int, stop: int) -> None:
        self._read, self._at, self._stop = read, start, stop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        data = self._read(self._at, min(len(view), self._stop - self._at)) if self._stop > self._at else b""
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


class Text:
    """What a frame holds, from its beginning, as much at a time as is asked for."""

    def __init__(self, read: Read, at: int, end: int) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)
        size = end - at
        source = read(at, size) if size <= _STEP else _Bytes(read, at, end)
        self._reader = decompressor.stream_reader(source, read_size=_STEP)  # pyright: ignore[reportArgumentType]
        self.broken = False

    def take(self, length: int) -> bytes:
        """At most `length` bytes, fewer only where the frame ends or cannot be read (`broken`)."""
        parts: list[bytes] = []
        while length > 0 and not self.broken:
            try:
                part = self._reader.read(length)
            except zstandard.ZstdError:
                self.broken = True
                break
            if not part:
                break
            parts.append(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _Small:
    """Reads small frames in one call: setting up what reads a large one takes longer than most frames do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)

    def text(self, read: Read, at: int, end: int) -> bytes | None:
        """All that the whole frame from `at` to `end` holds; None where that is much, or cannot be read."""
        if end - at > SMALL:
            return None
        data = read(at, end - at)
        room = min(PIECE, max(1 << 14, 16 * len(data)))
        try:
            if zstandard.frame_content_size(data) > room:  # it is made room for that, true or not
                return None
            with self._lock:
                return self._decompressor.decompress(data, max_output_size=room, allow_extra_data=False)
        except zstandard.ZstdError:
            return None


_small = _Small()


class Measured(NamedTuple):
    """What a frame gives."""

    length: int  # bytes of text
    sound: bool  # it could be read to its end, and is no more than it may be
    run: int  # bytes of text since the last newline, in it or before it


def measure(read: Read, at: int, end: int, run: int = 0, most: int | None = None) -> Measured:
    """Read a frame to its end; `run` is how long the line is already that it goes on with, `most` a limit."""
    if (whole := _small.text(read, at, end)) is not None:
        run = len(whole) - 1 - last if (last := whole.rfind(b"\n")) >= 0 else run + len(whole)
        return Measured(len(whole), run <= LONGEST_LINE, run)
    text = Text(read, at, end)
    total = 0
    while piece := text.take(PIECE):
        first, last = piece.find(b"\n"), piece.rfind(b"\n")
        long = run + (first if first >= 0 else len(piece)) > LONGEST_LINE
        if long or (most is not None and total + len(piece) > most):
            return Measured(total, sound=False, run=run)
        run = len(piece) - 1 - last if last >= 0 else run + len(piece)
        total += len(piece)
    return Measured(total, not text.broken, run)


class Frames:
    """Where each readable frame of a file stands, and what could not be read. Reads the whole file once."""

    def __init__(self) -> None:
        self.at = array("q")  # offset of the frame in the file
        self.end = array("q")
        self.start = array("q")  # offset of its text in the stream
        self.total = 0  # bytes of text in all
        self.size = 0  # bytes of the file that this describes
        self.faults: list[Diagnostic] = []  # those that stay
        self.tail: Diagnostic | None = None  # what is wrong with the end of the file, which may yet become right
        self._next = 0  # where the next frame begins
        self._run = 0  # bytes since the last newline, as far as whole frames go
        self._vain = 0  # bytes of text that were read for nothing since the file grew
        self.torn = False  # the last frame in the table is unfinished

    def extend(self, read: Read, size: int) -> None:
        """Take in what the file holds beyond what is known; an unfinished last frame is looked at again."""
        if self.torn:
            self._drop_last()
        self.tail, self._vain = None, 0
        window = Window(read, size)
        at = self._next
        while at < size:
            found = self._frame(window, at)
            if found is None:
                following = self._search(window, at + 1)
                if following < 0:
                    self._end(window, at)
                    break
                self._lost(at, following - at)
                at = following
            else:
                at = found
            self._next = at
        self.size = size

    def _frame(self, window: Window, at: int) -> int | None:
        """Add the whole frame at `at`; where it ends. None where there is none that can be read."""
        place = extent(window, at)
        if place is None or not place.whole:
            return None
        found = self._measure(window, at, place.end)
        if not found.sound:
            return None
        self._run = found.run
        self._add(at, place.end, found.length)
        return place.end

    def _measure(self, window: Window, at: int, end: int) -> Measured:
        if self._vain > MUCH:
            return Measured(0, sound=False, run=0)
        found = self._look(window, at, end)
        if not found.sound:
            self._vain += found.length
        return found

    def _look(self, window: Window, at: int, end: int) -> Measured:
        return measure(window.read, at, end, self._run, max(MUCH, RATIO * end) - self.total)

    def _add(self, at: int, end: int, length: int) -> None:
        self.at.append(at)
        self.end.append(end)
        self.start.append(self.total)
        self.total += length

    def _drop_last(self) -> None:
        self.torn = False
        self.at.pop()
        self.end.pop()
        self.total = self.start.pop()

    def _search(self, window: Window, start: int) -> int:
        """Offset of the next frame that can be read to its end; -1 where there is none.

        The mark of a frame may stand inside another one by chance, so only reading it tells.
        """
        wasted = 0
        for _ in range(CANDIDATES):
            at = window.find(MAGIC, start)
            if at < 0:
                return -1
            place = extent(window, at)
            if place is not None and place.whole:
                found = self._measure(window, at, place.end)
                if found.sound:
                    return at
                wasted += found.length
                if wasted > IN_VAIN:
                    return -1
            start = at + 1
        return -1

    def _end(self, window: Window, at: int) -> None:
        """The file ends with something that is no whole frame: what can be read of it counts."""
        place, text = extent(window, at), 0
        if place is None or place.whole:
            # A damaged frame; one behind it may be unfinished.
            torn = window.find(MAGIC, at + 1)
            while torn >= 0 and ((far := extent(window, torn)) is None or far.whole):
                torn = window.find(MAGIC, torn + 1)
            if torn >= 0 and self._look(window, torn, window.size).length:
                self._lost(at, torn - at)
                self._next = at = torn
                place = extent(window, at)
        if place is not None and not place.whole:
            text = self._look(window, at, window.size).length
            self._add(at, window.size, text)
            self.torn = True
            what = f"the last frame is unfinished; {text} bytes of text could be read of it"
            self.tail = _fault("torn_frame", "warning", at, window.size - at, what)
        else:
            what = "a frame is damaged" if place is not None else "these bytes are no frame"
            self.tail = _fault("damaged_frame", "error", at, window.size - at, f"{what}; what it held is lost")

    def _lost(self, at: int, length: int) -> None:
        text = f"{length} bytes cannot be read as a frame; what they held is lost, what follows is not"
        self.faults.append(_fault("damaged_frame", "error", at, length, text))

    def contract(self, read: Read) -> Diagnostic | None:
        """A first frame that holds more than the header: dsh itself refuses such a log."""
        if not len(self.at) or self.at[0]:
            return None
        stop = self.start[1] if len(self.at) > 1 else self.total
        text = Text(read, self.at[0], self.end[0])
        seen = 0
        while seen < stop and (piece := text.take(PIECE)):
            place = piece.find(b"\n")
            if place >= 0:
                if seen + place + 1 >= stop:
                    return None
                what = "the first frame holds more than the header; dsh refuses such a log"
                return _fault("header_frame_contract", "warning", self.at[0], self.end[0] - self.at[0], what)
            seen += len(piece)
        return None


def _fault(code: str, severity: Literal["warning", "error"], offset: int, length: int, message: str) -> Diagnostic:
    return Diagnostic(code=code, severity=severity, offset=offset, length=length, message=message)


def frame(text: bytes) -> bytes:
    """A frame as dsh writes it: with a checksum, without the length of its text."""
    return zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(text)


def framed(texts: Iterable[bytes]) -> Iterator[bytes]:
    """The same of a long text, in pieces."""
    packer = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compressobj()
    for text in texts:
        yield packer.compress(text)
    yield packer.flush()


class FrameJournal(FileJournal):
    """A zstd log: what is appended at once is a frame of its own."""

    plain = False

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._lock = threading.RLock()
        self._frames = Frames()
        self._stale = False  # the file may have been rewritten in place
        self._rebuilt = False  # it was cut, and nobody was told yet
        self._as_of = 0  # time of the file when the table was brought up to it
        self._pieces: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._held = 0  # bytes in `_pieces`
        self._open_text: tuple[int, int, Text] | None = None  # frame, number of its next piece, the rest of its text
        self._contract: Diagnostic | None = None

    def _raw(self, offset: int, length: int) -> bytes:
        return super().read(offset, length)

    def frames(self) -> Frames:
        """The table of frames, brought up to the size that the file has now."""
        with self._lock:
            status = os.fstat(self.fileno())
            size = status.st_size
            if self._stale or size < self._frames.size:
                self._rebuilt = not self._stale
                self._frames, self._stale = Frames(), False
                self._forget()
            if size != self._frames.size:
                self._forget()
                first = not len(self._frames.at)
                self._frames.extend(self._raw, size)
                if first:
                    self._contract = self._frames.contract(self._raw)
                self._as_of = status.st_mtime_ns
            return self._frames

    def _forget(self) -> None:
        self._pieces.clear()
        self._held, self._open_text = 0, None

    def faults(self) -> list[Diagnostic]:
        with self._lock:
            frames = self.frames()
            ends = [fault for fault in (self._contract, frames.tail) if fault is not None]
            return sorted(frames.faults + ends, key=lambda fault: fault.get("offset", 0))

    def size(self) -> int:
        return self.frames().total

    @property
    def file_size(self) -> int:
        """Bytes of the file that are known."""
        return self._frames.size

    def read(self, offset: int, length: int) -> bytes:
        with self._lock:
            parts: list[bytes] = []
            while length > 0 and (part := self._some(offset, length)):
                parts.append(part)
                offset += len(part)
                length -= len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def readinto(self, offset: int, buffer: memoryview) -> int:
        data = self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _some(self, offset: int, length: int) -> bytes:
        """Text at `offset` as far as one piece reaches; b"" at the end."""
        frames = self._frames
        if not frames.size:
            frames = self.frames()
        if not 0 <= offset < frames.total:
            return b""
        k = bisect_right(frames.start, offset) - 1
        within = offset - frames.start[k]
        number = within // PIECE
        piece = self._piece(k, number)
        within -= number * PIECE
        return piece[within : within + length]

    def _piece(self, k: int, number: int) -> bytes:
        key = k, number
        if (piece := self._pieces.get(key)) is not None:
            self._pieces.move_to_end(key)
            return piece
        frames = self._frames
        if (text := _small.text(self._raw, frames.at[k], frames.end[k])) is not None:
            self._keep(key, text)
            return text
        opened = self._open_text
        if opened is None or opened[0] != k or opened[1] > number:
            opened = k, 0, Text(self._raw, frames.at[k], frames.end[k])
        piece = b""
        for n in range(opened[1], number + 1):
            piece = opened[2].take(PIECE)
            self._keep((k, n), piece)
        stop = frames.start[k + 1] if k + 1 < len(frames.at) else frames.total
        more = stop - frames.start[k] > (number + 1) * PIECE
        self._open_text = (k, number + 1, opened[2]) if more else None
        return piece

    def _keep(self, key: tuple[int, int], piece: bytes) -> None:
        self._pieces[key] = piece
        self._held += len(piece) + 200
        while self._held > KEPT:
            self._held -= len(self._pieces.popitem(last=False)[1]) + 200

    def check(self, size: int) -> Found:
        """What became of the file, whose text is `size` bytes long as far as is known."""
        found = super().check(self._frames.size)
        if self._rebuilt and found in {"same", "touched", "grown"}:
            return "touched"
        if found == "touched" and self._looked != self._as_of:
            self._stale = True
        elif found in {"same", "touched", "grown"}:
            now = self.size()
            if now > size:
                return "grown"
            if now < size:
                return "shrunk"
            self.accept()
            return "same"
        return found

    def accept(self) -> None:
        super().accept()
        self._rebuilt = False

    def append(
        self, data: bytes, size: int, *, unterminated: bool, ready: Callable[[], None] = lambda: None
    ) -> Written:
        """Append whole lines as one frame, in one write, to a log whose text we know to be `size` bytes long.

        In place of an unfinished last frame comes one with the whole lines that could be read of it; the rest of it,
        which may be the beginning of a line (`unterminated`), is lost, as it is when dsh goes on with such a log.
        Raises Outdated, with nothing written, as for a plain log, and DamagedRegion where the end cannot be read.
        """
        end = self._writer()
        with locked(end.number, self._path), self._lock:
            ready()
            frames = self._frames
            now, found = os.fstat(end.number), super().check(frames.size)
            same = found in {"same", "touched"} and (now.st_dev, now.st_ino) == self.identity
            if not same or now.st_size != frames.size or frames.total != size:
                raise Outdated
            if (frames.tail is not None and not frames.torn) or (unterminated and not frames.torn):
                text = f"the last frame of {self._path} is damaged, so nothing can be written behind it"
                raise DamagedRegion(text, path=self._path, diagnostic="damaged_frame")
            if frames.torn:
                self._write_again(end.number, data)
            else:
                self._write_behind(end.number, frame(data), frames.size)
            if found == "same":
                self._known = os.fstat(end.number).st_mtime_ns  # changed by ourselves
            stop = self.frames().total
            newline = 1 if unterminated else 0  # for which who writes plain lines makes room
            return Written(stop - len(data) - newline, len(data) + newline)

    def _write_behind(self, fd: int, data: bytes, size: int) -> None:
        written = self._write(fd, data, size)
        if written.offset != size:  # somebody else was faster, so ours has the wrong numbers
            if os.fstat(fd).st_size == written.offset + written.length:
                os.ftruncate(fd, written.offset)
            raise Outdated

    def _write_again(self, fd: int, data: bytes) -> None:
        """Write the whole lines of the unfinished last frame, and `data`, in its place."""
        frames = self._frames
        at, start = frames.at[-1], frames.start[-1]
        text = self.read(start, frames.total - start)
        kept = text[: text.rfind(b"\n") + 1]
        before = self.read(start - 1, 1) if start else b"\n"
        if before != b"\n" and not kept:
            raise DamagedRegion(f"{self._path} ends in the middle of a line", path=self._path, diagnostic="torn_frame")
        torn = self._raw(at, frames.size - at)
        os.ftruncate(fd, at)
        self._stale = True
        try:
            self._write_behind(fd, frame(kept + data), at)
        except (Fault, Outdated):
            if os.fstat(fd).st_size == at:
                os.write(fd, torn)
            raise

    def overwrite(self, offset: int, data: bytes) -> None:
        del offset, data
        raise ReadOnly(f"nothing is written inside a compressed log: {self.path}", reason="zstd", path=self.path)


def open_journal(path: str) -> FileJournal:
    """The journal of the log at `path`: by its first bytes, and by its name where they are damaged or missing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            first = os.pread(fd, 4, 0)
        finally:
            os.close(fd)
    except OSError as exc:
        raise storage_fault(exc, path, reading=True) from exc
    packed = first == MAGIC or (path.endswith(".zstd") and not first.lstrip().startswith(b"{"))
    return FrameJournal(path) if packed else FileJournal(path)


def head_text(read: Read, size: int, limit: int) -> tuple[bytes, bool]:
    """The first `limit` bytes of text in the first `limit` bytes of a file, and whether that is all that it holds."""
    taken = min(size, limit)
    data = read(0, taken)
    frames = Frames()
    within: Read = lambda offset, length: data[offset : offset + length]  # noqa: E731
    frames.extend(within, len(data))
    text = b"".join(_texts(within, frames, 0, limit))
    return text, taken == size and len(text) == frames.total


def tail_text(read: Read, size: int, limit: int, *, deep: bool = False) -> bytes:
    """The last text that the last `limit` bytes of a file hold: whole lines, at most `limit` bytes of them.

    `deep`: where no frame begins there, the file is read from its beginning, unless it is very long.
    """
    start = max(0, size - limit)
    data = read(start, size - start)
    window = Window(lambda offset, length: data[offset : offset + length], len(data))
    at = window.find(MAGIC, 0)
    while at >= 0 and not _chained(window, at):
        at = window.find(MAGIC, at + 1)
    if at >= 0:
        rest = data[at:]
        read, size = lambda offset, length: rest[offset : offset + length], len(rest)
    elif not deep or size > DEEP:
        return b""
    frames = Frames()
    frames.extend(read, size)
    found = b"".join(_texts(read, frames, max(0, frames.total - limit), limit))
    return found if frames.total <= limit else found[found.find(b"\n") + 1 :]


def _chained(window: Window, at: int) -> bool:
    """Whether frames follow each other from `at` to the end, the last of which may be unfinished."""
    for _ in range(CANDIDATES):
        place = extent(window, at)
        if place is None:
            return False
        if not place.whole or place.end == window.size:
            return True
        at = place.end
    return True


def _texts(read: Read, frames: Frames, first: int, limit: int) -> Iterator[bytes]:
    """The text of the stream from `first` on, at most `limit` bytes."""
    for k in range(len(frames.at)):
        stop = frames.start[k + 1] if k + 1 < len(frames.at) else frames.total
        if stop <= first:
            continue
        text = Text(read, frames.at[k], frames.end[k])
        skip = first - frames.start[k]
        while skip > 0 and (piece := text.take(min(skip, PIECE))):
            skip -= len(piece)
        while limit > 0 and (piece := text.take(min(limit, PIECE))):
            limit -= len(piece)
            yield piece
