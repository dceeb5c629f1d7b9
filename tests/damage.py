"""Ways in which session files get damaged: each a function from the bytes of a clean log to the bytes of a bad one.

`CLEAN` is a log to apply them to; any version 3 log of ten entries or more, each ending in a newline, will do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support import assistant, header, line, tool_result, user

if TYPE_CHECKING:
    from collections.abc import Callable

MIDDLE = 4  # the entry (0 = first after the header) that most damages strike; its child is the next one
IMAGE = 64 << 20


@dataclass(frozen=True)
class Damage:
    """`codes`: of the diagnostics that an opened session must give. `lost`: ordinals of entries that no scan can save.

    `added`: entries more than the clean log has. `heavy`: takes 64 MB.
    """

    name: str
    apply: Callable[[bytes], bytes]
    codes: tuple[str, ...] = ()
    lost: tuple[int, ...] = ()
    added: int = 0
    case: str = ""
    heavy: bool = False


def clean() -> bytes:
    """A log of twelve entries; the texts hold what a careless splitter trips over."""
    made: list[dict[str, Any]] = [user("00000000", None, "first {prompt}")]
    for i in range(1, 11, 2):
        call = {"id": f"call_{i}", "name": "bash", "arguments": {"command": 'echo "}{" | tr "\\n" x'}}
        made.append(assistant(f"{i:08x}", made[-1]["id"], f"naïve 한국어 🙂 }}{{ {i}", i, [call]))
        made.append(
            tool_result(
                f"{i + 1:08x}", made[-1]["id"], f"call_{i}", 'sep: \u2028 \u2029 \x85 }{"type":"message"', i + 1
            )
        )
    made.append(user("0000000c", made[-1]["id"], "last prompt, long enough to be cut in two " * 4, 20))
    return line(header()) + b"".join(line(e) for e in made)


def records(data: bytes) -> list[bytes]:
    """The lines without their newlines; [0] is the header, the entry of ordinal i is [i + 1]."""
    return data.split(b"\n")[:-1]


def joined(lines: list[bytes]) -> bytes:
    return b"".join(each + b"\n" for each in lines)


def _at(edit: Callable[[bytes], bytes], ordinal: int = MIDDLE) -> Callable[[bytes], bytes]:
    """Damage that replaces one line by others."""

    def apply(data: bytes) -> bytes:
        lines = records(data)
        place = ordinal + 1 if ordinal >= 0 else len(lines) + ordinal
        return joined([*lines[:place], edit(lines[place]), *lines[place + 1 :]])

    return apply


def _fields(ordinal: int = MIDDLE, **changes: Any) -> Callable[[bytes], bytes]:
    """Damage that sets fields of one entry; `...` removes the field."""

    def edit(record: bytes) -> bytes:
        entry = json.loads(record) | changes
        return line({key: value for key, value in entry.items() if value is not ...})[:-1]

    return _at(edit, ordinal)


def _insert(text: bytes, ordinal: int = MIDDLE) -> Callable[[bytes], bytes]:
    return _at(lambda record: text + b"\n" + record, ordinal)


def _glue_with(glue: bytes, count: int = 2) -> Callable[[bytes], bytes]:
    def apply(data: bytes) -> bytes:
        lines = records(data)
        return joined([*lines[:3], glue.join(lines[3 : 3 + count]), *lines[3 + count :]])

    return apply


def _headless(first: bytes) -> Callable[[bytes], bytes]:
    """Damage that puts `first` where the header line stood."""
    return lambda data: first + joined(records(data)[1:])


def _fragment_of_another(data: bytes) -> bytes:
    lines = records(data)
    return joined([*lines[:5], lines[5][: len(lines[5]) // 2] + lines[6], *lines[7:]])


def _fragments_before_full(data: bytes) -> bytes:
    lines = records(data)
    for place, share in ((3, 0.3), (5, 0.6), (7, 0.95)):
        lines[place] = lines[place][: int(len(lines[place]) * share)] + lines[place]
    return joined(lines)


def _cut_in_a_character(data: bytes) -> bytes:
    lines = records(data)[:-1]  # the last prompt is plain ASCII
    lines[-1:] = [lines[-1] + b"\n" + lines[-2][: lines[-2].rindex("🙂".encode()) + 2]]
    return joined(lines)[:-1]


def _repeat(data: bytes) -> bytes:
    lines = records(data)
    return joined([*lines[:6], lines[5], *lines[6:], lines[5]])


def _same_id_other_text(data: bytes) -> bytes:
    lines = records(data)
    return joined([*lines[:6], lines[5].replace(b"sep:", b"other:"), *lines[6:]])


def _cycle_of(*ordinals: int) -> Callable[[bytes], bytes]:
    """Each named entry gets the next one as parent, the last one the first."""

    def apply(data: bytes) -> bytes:
        lines = records(data)
        ids = [json.loads(lines[i + 1])["id"] for i in ordinals]
        for place, i in enumerate(ordinals):
            parent = ids[(place + 1) % len(ids)]
            lines[i + 1] = line(json.loads(lines[i + 1]) | {"parentId": parent})[:-1]
        return joined(lines)

    return apply


def _forward_parent(data: bytes) -> bytes:
    lines = records(data)
    lines[5], lines[6] = lines[6], lines[5]
    return joined(lines)


def _pretty(record: bytes) -> bytes:
    return json.dumps(json.loads(record), indent=2, ensure_ascii=False).encode()


def _image(record: bytes) -> bytes:
    entry = json.loads(record)
    entry["message"]["content"] = [{"type": "image", "mimeType": "image/png", "data": "@"}]
    return line(entry)[:-1].replace(b'"@"', b'"' + b"iVBORw0K" * (IMAGE // 8) + b'"')


def _swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Damage inside the text of the entry at MIDDLE - 1, an assistant message."""
    return _at(lambda record: record.replace(old, new, 1), MIDDLE - 1)


_HEADER = line(header("another", "/tmp/demo/other"))[:-1]
_LOST = (MIDDLE,)

DAMAGES: tuple[Damage, ...] = (
    # how a write ends
    Damage("torn tail", lambda data: data[:-60], ("torn_tail",), (-1,)),
    Damage("torn after one byte", lambda data: joined(records(data)[:-1]) + b"{", ("torn_tail",), (-1,)),
    Damage("torn in a character", _cut_in_a_character, ("torn_tail",), (-1,)),
    Damage("torn tail that got a newline", lambda data: data[:-60] + b"\n", ("unreadable_line",), (-1,)),
    Damage("torn in the header", lambda data: data[:30], ("torn_tail",), tuple(range(12))),
    Damage("missing newline", lambda data: data[:-1], ("missing_newline",)),
    Damage("glued records", _glue_with(b""), ("glued_records",), case="A003"),
    Damage("four records on a line, spaces between", _glue_with(b" ", 4), ("glued_records",), case="A003"),
    Damage("fragments before full records", _fragments_before_full, ("fragment",), case="A004"),
    Damage("fragment glued to the next record", _fragment_of_another, ("fragment", "unknown_parent"), _LOST),
    # NUL bytes, as after a power cut
    Damage("record with NULs behind", _at(lambda record: record + b"\0" * 9_000), ("nul_run",), case="A009"),
    Damage("record with NULs before", _at(lambda record: b"\0" * 300 + record), ("nul_run",), case="A009"),
    Damage("NULs between glued records", _glue_with(b"\0\0\0"), ("nul_run",), case="A009"),
    Damage("tail of NULs", lambda data: data + b"\0" * 143_000, ("nul_run",), case="A009"),
    Damage("line of NULs", _insert(b"\0" * 284), ("nul_run",), case="A009"),
    Damage("record overwritten by NULs", _at(lambda record: b"\0" * len(record)), ("nul_run", "unknown_parent"), _LOST),
    # encoding
    Damage("BOM", lambda data: b"\xef\xbb\xbf" + data, ("bom",)),
    Damage("CRLF", lambda data: data.replace(b"\n", b"\r\n"), ("crlf",)),
    Damage("CRLF on one line", _at(lambda record: record + b"\r"), ("crlf",)),
    Damage("invalid UTF-8", _swap("ï".encode(), b"\xef"), ("invalid_utf8",)),
    Damage("half a character", _swap("🙂".encode(), b"\xf0\x9f\x99"), ("invalid_utf8",)),
    Damage("surrogate encoded as UTF-8", _swap("ï".encode(), b"\xed\xa0\xbd"), ("invalid_utf8",)),
    Damage("lone surrogate escape", _swap("ï".encode(), b"\\ud83d"), ("lone_surrogate",)),
    Damage("low surrogate escape first", _swap("ï".encode(), b"\\ude42\\ud83d"), ("lone_surrogate",)),
    Damage("NaN", _swap(b'"output":1', b'"output":NaN'), ("nan",)),
    Damage("Infinity", _swap(b'"output":1', b'"output":-Infinity'), ("nan",)),
    Damage("raw tab in a string", _swap(" 한".encode(), "\t한".encode())),
    # lines
    Damage("image of 64 MB", _at(_image, MIDDLE - 1), ("huge_line",), case="A070", heavy=True),
    Damage("blank lines", _insert(b"\n   \n\t"), case="A012"),
    Damage("trailing spaces", _at(lambda record: record + b"   "), case="A012"),
    Damage("leading spaces", _at(lambda record: b"  " + record)),
    Damage("pretty printed record", _at(_pretty), ("unreadable_line", "unknown_parent"), _LOST, case="A012"),
    Damage("garbage line", _insert(b"Killed: 9"), ("unreadable_line",), case="A011"),
    Damage("binary line", _insert(bytes(range(11, 256)).replace(b"{", b"")), ("unreadable_line",)),
    Damage("opening braces", _insert(b"{" * 5_000), ("unreadable_line",)),
    Damage("nested 100,000 deep", _insert(b"[" * 100_000 + b"]" * 100_000), ("unreadable_line",)),
    Damage("array line", _insert(b"[1,2]"), ("unreadable_line",)),
    Damage("null line", _insert(b"null"), ("unreadable_line",)),
    Damage("string line", _insert(b'"message"'), ("unreadable_line",)),
    Damage("empty object", _insert(b"{}"), ("not_an_entry",)),
    Damage("type is a number", _fields(type=7)),
    Damage("type is null", _fields(type=None)),
    # headers
    Damage("second header", _insert(_HEADER), ("extra_header",)),
    Damage("header repeated", lambda data: records(data)[0] + b"\n" + data, ("extra_header",)),
    Damage("header at the end", lambda data: data + _HEADER + b"\n", ("extra_header",)),
    Damage("no header", _headless(b""), ("no_header",), case="A006"),
    Damage("broken header", _headless(b"{broken header\n"), ("broken_header",), case="A005"),
    Damage("header cut short", _headless(b'{"type":"session","version":3,"id":"s1\n'), ("broken_header",), case="A005"),
    # ids
    Damage("entry repeated byte for byte", _repeat),
    Damage("same id, other text", _same_id_other_text, ("duplicate_id",), added=1),
    Damage("id is null", _fields(id=None), ("missing_id", "unknown_parent")),
    Damage("id is empty", _fields(id=""), ("missing_id", "unknown_parent")),
    Damage("id is missing", _fields(id=...), ("missing_id", "unknown_parent")),
    Damage("id is a number", _fields(id=12), ("missing_id", "unknown_parent")),
    # the tree
    Damage("unknown parent", _fields(parentId="ffffffff"), ("unknown_parent",)),
    Damage("entry missing", lambda data: joined([*records(data)[:5], *records(data)[6:]]), ("unknown_parent",), _LOST),
    Damage("its own parent", _cycle_of(MIDDLE), ("cycle",)),
    Damage("cycle of two", _cycle_of(MIDDLE, MIDDLE + 1), ("cycle",)),
    Damage("cycle of all but the first", _cycle_of(*range(1, 10)), ("cycle",)),
    Damage("root below its child", _cycle_of(0, 1), ("cycle",)),
    Damage("child before its parent", _forward_parent),
    # fields of the wrong kind: the entry is shown as far as it goes
    Damage("parent is null", _fields(parentId=None)),
    Damage("timestamp is null", _fields(timestamp=None)),
    Damage("timestamp is words", _fields(timestamp="yesterday")),
    Damage("timestamp is an object", _fields(timestamp={"s": 1})),
    Damage("message is null", _fields(message=None)),
    Damage("message is text", _fields(message="hello")),
    Damage("message is missing", _fields(message=...)),
    Damage("role is null", _fields(message={"role": None, "content": "x"})),
    Damage("content is null", _fields(message={"role": "assistant", "content": None})),
    Damage("content is a number", _fields(message={"role": "user", "content": 3})),
    Damage("blocks are null", _fields(message={"role": "assistant", "content": [None, 1, "x", {"type": None}]})),
    Damage("a key twice", _at(lambda record: record.replace(b'{"type"', b'{"note":1,"note":2,"type"', 1))),
)  # fmt: skip

CLEAN = clean()
ENTRIES = len(records(CLEAN)) - 1
