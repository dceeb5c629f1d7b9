"""Session files of any size and shape, the same bytes for the same seed: for tests of scale and for the benchmarks."""

from __future__ import annotations

import json
import random
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any

from tests.support import assistant, entry, header, line, tool_result, user, write_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOCABULARY = (
    "the parser reads one line at a time and keeps only what it needs for the tree so that memory follows entries "
    "file test branch leaf label cursor retry timeout socket buffer offset return value error stack trace module "
    "import function class method argument result config default expected actual assert before after because"
)
WORDS = VOCABULARY.split()
PIECES = (
    '"quoted"',
    "C:\\temp",
    "\tdef run(self):\n",
    "\n\n",
    "naïve",
    "→",
    "한국어",
    "🙂",
    "x = {'a': 1}\n",
    "=" * 40,
)
TOOLS = (("bash", "command"), ("read", "path"), ("edit", "path"), ("grep", "pattern"), ("write", "path"))
MODELS = ("mock-1", "mock-2")
CWDS = tuple(f"/tmp/demo/{name}" for name in ("proj", "site", "notes", "api-server", "deep/er", "game", "old", "lib"))


class Prose:
    """Escaped pieces of text, joined without encoding again: what makes 100 MB in a few seconds possible."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.pool = [
            json.dumps(" ".join(rng.choices(WORDS, k=rng.randrange(8, 60)) + rng.choices(PIECES, k=rng.randrange(3))),
                       ensure_ascii=False)[1:-1] + " "
            for _ in range(2_000)
        ]  # fmt: skip

    def take(self, size: int) -> str:
        """About `size` bytes of JSON string content, the quotes not included."""
        pool, rng = self.pool, self.rng
        out: list[str] = []
        while size > 0:
            piece = pool[int(rng.random() * len(pool))]
            out.append(piece if len(piece) <= size + 80 else "and so on ")
            size -= len(out[-1])
        return "".join(out)


def hex_ids(seed: int = 0) -> Iterator[str]:
    """Eight hex digits each, no repeats (an odd multiplier permutes the 32-bit numbers)."""
    return (f"{(i * 2_654_435_761 + seed * 40_503 + 17) & 0xFFFFFFFF:08x}" for i in count(1))


class _Lines:
    """Writes entries of a pi v3 session as text: envelope and message around escaped prose."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.prose = Prose(self.rng)
        self.ids = hex_ids(seed)
        self.ms = 1_767_225_600_000  # 2026-01-01T00:00:00Z
        self.leaf: str | None = None

    def _envelope(self, type_: str) -> str:
        self.ms += 250 + int(self.rng.random() * 4_000)
        seconds = self.ms // 1000 - 1_767_225_600
        day, second = divmod(seconds, 86_400)
        month, day = divmod(day, 28)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.{self.ms % 1000:03}Z"
        when = f"2026-{month % 12 + 1:02}-{day + 1:02}T{clock}"
        parent = "null" if self.leaf is None else f'"{self.leaf}"'
        self.leaf = next(self.ids)
        return f'{{"type":"{type_}","id":"{self.leaf}","parentId":{parent},"timestamp":"{when}"'

    def user(self, size: int) -> str:
        envelope = self._envelope("message")
        content = f'[{{"type":"text","text":"{self.prose.take(size)}"}}]'
        return f'{envelope},"message":{{"role":"user","content":{content},"timestamp":{self.ms}}}}}\n'

    def assistant(self, size: int, call: str = "") -> str:
        stop = "stop"
        envelope = self._envelope("message")
        rng = self.rng
        blocks: list[str] = []
        if size > 400:
            thought = self.prose.take(size // 3)
            blocks.append(f'{{"type":"thinking","thinking":"{thought}","thinkingSignature":"reasoning_content"}}')
            size -= size // 3
        if size > 0:
            blocks.append(f'{{"type":"text","text":"{self.prose.take(size)}"}}')
        if call:
            name, argument = TOOLS[int(rng.random() * len(TOOLS))]
            self.tool, stop = name, "toolUse"
            value = self.prose.take(30).replace("\\n", " ")
            blocks.append(f'{{"type":"toolCall","id":"{call}","name":"{name}","arguments":{{"{argument}":"{value}"}}}}')
        into = int(rng.random() * 90_000)
        usage = (
            f'{{"input":{into},"output":{size},"cacheRead":{into * 2},"cacheWrite":0,"totalTokens":{into * 3 + size},'
            f'"cost":{{"input":0.0012,"output":0.0034,"cacheRead":0.0001,"cacheWrite":0,"total":0.0047}}}}'
        )
        return (
            f'{envelope},"message":{{"role":"assistant","content":[{",".join(blocks)}],"api":"openai-completions",'
            f'"provider":"mock","model":"{MODELS[0]}","usage":{usage},"stopReason":"{stop}","timestamp":{self.ms}}}}}\n'
        )

    def result(self, size: int, call: str) -> str:
        envelope = self._envelope("message")
        wrong = "true" if self.rng.random() < 0.03 else "false"
        return (
            f'{envelope},"message":{{"role":"toolResult","toolCallId":"{call}","toolName":"{self.tool}","content":'
            f'[{{"type":"text","text":"{self.prose.take(size)}"}}],"isError":{wrong},"timestamp":{self.ms}}}}}\n'
        )

    def small(self, type_: str, fields: str) -> str:
        return f"{self._envelope(type_)},{fields}}}\n"


def big(path: Path, entries: int = 100_000, bytes_: int = 100_000_000, seed: int = 1, cwd: str = CWDS[0]) -> Path:
    """One long session of `entries` entries and about `bytes_` bytes: prompts, tool calls and results, answers,

    a rewind every few hundred entries, labels, compactions, model changes. Tool results hold most of the bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    out = _Lines(seed)
    rng = out.rng
    trail: list[str] = []  # prompts that a rewind may go back to
    made = written = calls = 0
    head = header(session_id=f"{seed:08x}-0000-7000-8000-{entries:012x}", cwd=cwd)
    with path.open("wb", buffering=1 << 20) as file:

        def put(text: str) -> None:
            nonlocal made, written
            data = text.encode()
            file.write(data)
            made += 1
            written += len(data)

        written += file.write(line(head))
        if entries > 1:
            put(out.small("model_change", f'"provider":"mock","modelId":"{MODELS[0]}"'))
        while made < entries:
            mean = max(0, (bytes_ - written) // (entries - made) - 450)  # 450: what a line has around its text
            if trail and rng.random() < 0.01:
                out.leaf = trail[-1 - int(rng.random() ** 2 * min(len(trail), 40))]
            put(out.user(min(400, mean) + int(rng.random() * 100)))
            trail.append(str(out.leaf))
            for _ in range(int(rng.expovariate(0.2))):
                if made + 3 > entries:
                    break
                calls += 1
                call = f"call_{calls:06d}"
                put(out.assistant(int(mean * 0.4 * rng.random()) if rng.random() < 0.7 else 0, call))
                put(out.result(int(mean * min(rng.lognormvariate(0.0, 0.9), 40.0)), call))
            if made < entries:
                put(out.assistant(int(mean * (0.5 + rng.random()))))
            if made < entries and rng.random() < 0.02:
                target, place = trail[int(rng.random() * len(trail))], len(trail)
                put(out.small("label", f'"targetId":"{target}","label":"mark {place}"'))
            if made < entries and rng.random() < 0.003:
                summary = out.prose.take(min(2_000, mean * 4))
                fields = f'"summary":"{summary}","firstKeptEntryId":"{trail[-1]}","tokensBefore":90000'
                put(out.small("compaction", fields))
    return path


def chain(path: Path, entries: int = 100_000) -> Path:
    """A conversation without a branch, `entries` deep, short texts."""
    return big(path, entries, entries * 520, seed=2)


def star(path: Path, children: int = 20_000) -> Path:
    """One entry with `children` children, each a prompt that was tried once."""
    ids = hex_ids(3)
    root = next(ids)
    made = [user(root, None, "try this"), *(user(next(ids), root, f"way {i}", i % 80_000) for i in range(children))]
    return write_log(path, made, header(session_id="star"))


def alternating(path: Path, branches: int = 5_000) -> Path:
    """A path with a second way at each step, so that branching points nest `branches` deep.

    The way that goes on is the older child at even steps and the newer one at odd steps.
    """
    ids = hex_ids(4)
    here = next(ids)
    made = [user(here, None, "begin")]
    for i in range(branches):
        first, second = next(ids), next(ids)
        made.append(user(first, here, f"left {i}", i + 1))
        made.append(assistant(second, here, f"right {i}", i + 1))
        here = first if i % 2 == 0 else second
    made.append(user(next(ids), here, "end", branches + 1))
    return write_log(path, made, header(session_id="alternating"))


def random_tree(rng: random.Random, n: int, *, branchiness: float = 0.25, roots: bool = True) -> list[dict[str, Any]]:
    """`n` entries of every kind, parents before children, as `dict`s in file order.

    Also among them: clock skew, equal and missing times, empty and tools-only assistant messages, cleared labels,
    labels on labels, unknown types. `roots`: now and then another entry without a parent.
    """
    seed = rng.randrange(1 << 30)
    ids = hex_ids(seed)
    made: list[dict[str, Any]] = []
    names: list[str] = []
    prompts: list[str] = []
    open_call: tuple[str, str] | None = None
    second = 0
    for i in range(n):
        id_ = next(ids)
        second = max(0, second + rng.choice((0, 1, 1, 2, 5, 60, -3)))
        if not names or (roots and rng.random() < 0.01):
            parent = None
        elif rng.random() < branchiness:
            parent, open_call = rng.choice(names), None
        else:
            parent = names[-1]
        pick = rng.random()
        text = " ".join(rng.choices([*WORDS, *PIECES], k=rng.randrange(1, 12)))
        if open_call and parent and rng.random() < 0.8:
            made.append(tool_result(id_, parent, open_call[0], text, second, open_call[1], isError=rng.random() < 0.2))
            open_call = None
        elif pick < 0.25:
            made.append(user(id_, parent, text, second))
            prompts.append(id_)
        elif pick < 0.60:
            calls = None
            if rng.random() < 0.5:
                open_call = (f"call_{i}", rng.choice(TOOLS)[0])
                calls = [{"id": open_call[0], "name": open_call[1], "arguments": {"path": f"src/{i}.py"}}]
            more = rng.choice(({}, {}, {}, {"stopReason": "error", "errorMessage": "busy"}, {"stopReason": "aborted"}))
            made.append(assistant(id_, parent, rng.choice((text, text, "")), second, calls, **more))
        elif pick < 0.68 and names:
            label = rng.choice((text[:20], text[:20], None))
            fields = {"targetId": rng.choice(names)} | ({"label": label} if label else {})
            made.append(entry("label", id_, parent, second, **fields))
        elif pick < 0.72:
            made.append(entry("model_change", id_, parent, second, provider="mock", modelId=rng.choice(MODELS)))
        elif pick < 0.75:
            level = rng.choice(("off", "low", "high"))
            made.append(entry("thinking_level_change", id_, parent, second, thinkingLevel=level))
        elif pick < 0.78 and prompts:
            fields = {"summary": text, "firstKeptEntryId": rng.choice(prompts), "tokensBefore": 900}
            made.append(entry("compaction", id_, parent, second, **fields))
        elif pick < 0.82:
            made.append(entry("branch_summary", id_, parent, second, fromId=parent or "root", summary=text))
        elif pick < 0.87:
            made.append(entry("custom", id_, parent, second, customType="state", data={"n": i}))
        elif pick < 0.91:
            fields = {"customType": "note", "content": text, "display": rng.random() < 0.7}
            made.append(entry("custom_message", id_, parent, second, **fields))
        elif pick < 0.94:
            made.append(entry("session_info", id_, parent, second, name=text[:30]))
        elif pick < 0.97:
            message = {"role": "bashExecution", "command": "ls", "output": text, "exitCode": 0}
            made.append(entry("message", id_, parent, second, message=message))
        else:
            made.append(entry(rng.choice(("vendor_note", "x-thing")), id_, parent, second, payload={"deep": [text]}))
        if rng.random() < 0.02:
            made[-1].pop("timestamp")
        names.append(id_)
    return made


def folder_of(cwd: str) -> str:
    """pi's folder name for a working directory."""
    return "--" + cwd.lstrip("/\\").translate(str.maketrans("/\\:", "---")) + "--"


def store(folder: Path, sessions: int = 2_000, seed: int = 5) -> list[Path]:
    """pi's layout: sessions of two to some thousand entries, 50 kB on average, in eight working directories.

    Every tenth is a child of an earlier one; some are named; some end inside a turn.
    """
    made: list[Path] = []
    lines = _Lines(seed)
    rng = lines.rng
    for i in range(sessions):
        cwd = CWDS[int(rng.random() ** 2 * len(CWDS))]
        session_id = f"019b0000-{i:04x}-7000-8000-{seed:012x}"
        when = f"2026-{i % 12 + 1:02}-{i % 28 + 1:02}T{i % 24:02}-{i % 60:02}-00-000Z"
        path = folder / folder_of(cwd) / f"{when}_{session_id}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        more = {"parentSession": str(rng.choice(made))} if made and i % 10 == 9 else {}
        lines.leaf, lines.ms = None, 1_767_225_600_000 + i * 3_600_000
        text = [line(header(session_id, cwd, **more)).decode(), lines.user(80)]
        for turn in range(min(int(rng.paretovariate(0.9)), 400)):
            if turn:
                text.append(lines.user(120))
            if i % 50 == 7:
                continue
            text.append(lines.assistant(200, f"call_{turn}"))
            text.append(lines.result(int(rng.expovariate(1 / 3_000)), f"call_{turn}"))
            text.append(lines.assistant(600))
        if i % 20 == 3:
            text.append(lines.small("session_info", f'"name":"Session number {i}"'))
        path.write_bytes("".join(text).encode())
        made.append(path)
    return made


class Words:
    """Words as common and as rare as in real talk: made up Latin ones, names in code, Korean ones with particles."""

    def __init__(self, rng: random.Random, size: int = 40_000) -> None:
        self.rng = rng
        parts = [start + vowel for start in (*"bcdfghklmnprstvwz", "st", "tr", "pl") for vowel in "aeiou"]
        latin = [
            "".join(rng.choices(parts, k=rng.randrange(1, 5))) + rng.choice(("", "", "n", "r", "s"))
            for _ in range(size)
        ]
        self.latin = list(dict.fromkeys([*WORDS, *latin]))
        self.korean = [
            "".join(chr(rng.randrange(0xAC00, 0xD7A4)) for _ in range(rng.randrange(2, 5))) for _ in range(size // 10)
        ]
        self._weights = [
            list(accumulate(1 / (k + 3) for k in range(len(words)))) for words in (self.latin, self.korean)
        ]

    def some(self, count: int) -> list[str]:
        return self.rng.choices(self.latin, cum_weights=self._weights[0], k=count)

    def line(self) -> str:
        """A piece of prose or code, a sixth of them Korean."""
        rng = self.rng
        if rng.random() < 1 / 6:
            stems = rng.choices(self.korean, cum_weights=self._weights[1], k=rng.randrange(4, 20))
            return " ".join(stem + rng.choice(("을", "를", "은", "에서", "으로", "", "", "")) for stem in stems)
        return self.latin_line()

    def latin_line(self) -> str:
        rng = self.rng
        words = self.some(rng.randrange(8, 40))
        if rng.random() < 0.3:
            words.insert(0, f"src/{words[0]}/{words[1]}_{words[2]}.py:{rng.randrange(900)}")
        return " ".join(words) + rng.choice((".\n", "\n", "; ", ", "))


def library(folder: Path, words: Words, sessions: int = 2_000, bytes_: int = 500_000_000, seed: int = 6) -> None:
    """Sessions of pi to be searched: `bytes_` in all, some large and many small, most of it what tools printed."""
    lines = _Lines(seed)
    rng = lines.rng
    lines.prose.pool = [json.dumps(words.line(), ensure_ascii=False)[1:-1] + " " for _ in range(60_000)]
    for i in range(sessions):
        cwd = CWDS[i % len(CWDS)]
        path = folder / folder_of(cwd) / f"2026-01-01T00-00-00-000Z_019c0000-{i:04x}-7000-8000-{seed:012x}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines.leaf, lines.ms = None, 1_767_225_600_000 + i * 3_600_000
        size = bytes_ / sessions * rng.lognormvariate(-0.5, 1)
        with path.open("wb") as file:
            file.write(line(header(path.stem.partition("_")[2], cwd)))
            while file.tell() < size:
                file.write(lines.user(150).encode())
                for turn in range(4):
                    file.write(lines.assistant(300, f"call_{turn}").encode())
                    file.write(lines.result(int(rng.expovariate(1 / 2_500)), f"call_{turn}").encode())
                file.write(lines.assistant(700).encode())
