"""The index: how fast it is built, how big it is, and why words are cut as they are."""

from __future__ import annotations

import os
import random
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import NamedTuple

import apsw

from dsh_daemon.fulltext import text_of
from dsh_daemon.session import Session
from dsh_daemon.tokens import TOKENIZER, expression, fold, indexed, words
from tests.bench.measure import Bench, Measure
from tests.bench.wire import Client
from tests.support import line, user

BATCH = 2 << 20  # characters in one transaction, as in the daemon
QUERIES = 60  # of each script, half words and whole ones
clock = time.perf_counter


def texts_of(folder: Path) -> list[str]:
    """What the entries of all sessions of a folder say."""
    found: list[str] = []
    for path in sorted(folder.rglob("*.jsonl")):
        session = Session.open(str(path))
        found += [said.text for i in range(len(session.index)) if (said := text_of(session.entry(i)))]
        session.journal.close()
    return found


def size_of(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def plain_insert(path: Path, texts: Sequence[str]) -> float:
    """The raw operation of a build: put the same texts into FTS5 as they are, in one process that has them ready."""
    with_wal = apsw.Connection(str(path))
    with_wal.pragma("journal_mode", "wal")
    with_wal.pragma("synchronous", "normal")
    with_wal.execute("CREATE VIRTUAL TABLE text USING fts5(said, content='')")
    seconds = insert(with_wal, texts, str)
    with_wal.close()
    return seconds


def insert(connection: apsw.Connection, texts: Sequence[str], prepare: Callable[[str], str]) -> float:
    started, rows, length = clock(), list[tuple[int, str]](), 0
    for number, text in enumerate(texts):
        rows.append((number, prepare(text)))
        length += len(text)
        if length > BATCH or number == len(texts) - 1:
            with connection:
                connection.executemany("INSERT INTO text (rowid, said) VALUES (?, ?)", rows)
            rows, length = [], 0
    return clock() - started


def building(bench: Bench) -> Iterator[Measure]:
    """A daemon that knows nothing indexes a store; beside it a plain insert of the same texts."""
    folder, _ = bench.library()
    texts = texts_of(folder)
    size = size_of(texts)
    built = Measure(f"index a store with {size / 1e6:.1f} MB of text", raw_what="plain FTS5 insert of the same texts")
    stored = Measure("size of its index", unit="MB", raw_what="bytes of text", reach="0.5 x")
    grown = Measure("an append to its largest session is in the index", raw_what="plain FTS5 insert of one text")
    largest = max(folder.rglob("*.jsonl"), key=lambda path: path.stat().st_size)
    for number in range(bench.rounds):
        built.raw.append(plain_insert(bench.scratch / f"plain{number}.db", texts))
        home = bench.home()
        with bench.daemon(home, folder, keep=True) as daemon, daemon.client() as client:
            started = clock()
            daemon.settle(1_200)
            built.ours.append(clock() - started)
            stored.ours.append((home / "cache" / "search.db").stat().st_size)
            stored.raw.append(size)
            before = largest.stat().st_size
            grown.ours.append(until_found(client, largest, f"zyzzyva{number}"))
            os.truncate(largest, before)
            grown.raw.append(plain_insert(bench.scratch / f"one{number}.db", ["one text"]))
        shutil.rmtree(home)
    built.note = f"{size / 1e6 / median(built.ours):.1f} MB/s, plain {size / 1e6 / median(built.raw):.1f} MB/s"
    yield from (built, stored, grown)


def until_found(client: Client, path: Path, word: str) -> float:
    """Seconds from an append of another program until a search finds it."""
    with path.open("ab") as file:
        file.write(line(user(word, None, word)))
    started = clock()
    while not client.request("search/sessions", query=word)["items"]:
        time.sleep(0.005)
    return clock() - started


class Scheme(NamedTuple):
    """A way to cut text into what is looked up."""

    name: str
    tokenizer: str
    prepare: Callable[[str], str]
    match: Callable[[str], str]


SCHEMES = (
    Scheme("pairs and the last character", TOKENIZER, indexed, lambda query: expression(words(query))),
    Scheme("words and their beginnings", "unicode61", str, lambda query: f'"{query}"*'),
    Scheme("single characters", TOKENIZER, lambda text: " ".join(fold(text)), lambda query: f'"{" ".join(query)}"'),
    Scheme("trigrams", "trigram", str, lambda query: f'"{query}"'),
)


def cutting(bench: Bench) -> Iterator[Measure]:
    """What each way to cut words costs and finds, by script; ours must find all that is there."""
    rng = random.Random(3)
    for script, texts in samples(rng, max(50_000, int(20_000_000 * bench.scale))).items():
        folded = [fold(text) for text in texts]
        there = {
            query: {number for number, text in enumerate(folded) if stands(text, query, script)}
            for query in (part_of_word(rng, folded, script) for _ in range(QUERIES))
        }
        for scheme in SCHEMES:
            one = Measure(f"{script}, {scheme.name}: index", unit="MB", raw_what="bytes of text")
            one.raw.append(size_of(texts))
            path = bench.scratch / "cut.db"
            found, rate, seconds = try_out(scheme, path, texts, there, one)
            path.unlink()
            one.note = f"{rate:.0f} MB/s, finds {found:.0%}, {seconds * 1000:.2f} ms a query"
            assert scheme is not SCHEMES[0] or found == 1
            yield one


def try_out(
    scheme: Scheme, path: Path, texts: Sequence[str], there: Mapping[str, set[int]], one: Measure
) -> tuple[float, float, float]:
    """Build and ask: the share of what is there that is found, MB of text a second, seconds of a query."""
    connection = apsw.Connection(str(path))
    options = f"content='', contentless_delete=1, tokenize=\"{scheme.tokenizer}\""
    connection.execute(f"CREATE VIRTUAL TABLE text USING fts5(said, {options})")
    built = insert(connection, texts, scheme.prepare)
    connection.execute("INSERT INTO text (text) VALUES ('optimize')")
    pages = connection.pragma("page_count") - connection.pragma("freelist_count")
    one.ours.append(pages * connection.pragma("page_size"))
    found, times = 0, list[float]()
    for query, expected in there.items():
        started = clock()
        rows = connection.execute("SELECT rowid FROM text WHERE text MATCH ?", (scheme.match(query),)).fetchall()
        times.append(clock() - started)
        found += len(expected & {number for (number,) in rows})
    connection.close()
    return found / sum(map(len, there.values())), one.raw[0] / 1e6 / built, median(times)


LETTERS = {
    "Korean": [chr(c) for c in range(0xAC00, 0xD7A4, 9)],
    "Japanese": [chr(c) for c in (*range(0x3041, 0x3094), *range(0x30A1, 0x30F4), *range(0x4E00, 0x5600))],
    "Chinese": [chr(c) for c in range(0x4E00, 0x5A00)],
}


def samples(rng: random.Random, size: int) -> dict[str, list[str]]:
    """Texts of about `size` bytes for each script: real code with its comments, and made up sentences.

    Their words are as common and as rare as in real talk.
    """
    sources = iter(sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")))
    result = {"English and code": filled(size, lambda: next(sources).read_text("utf-8", "replace"))}
    for script, letters in LETTERS.items():
        # The hundred most common characters make up half of a text, as in real ones.
        weights = list(accumulate(1 / (k + 5) for k in range(len(letters))))
        stems = ["".join(rng.choices(letters, cum_weights=weights, k=rng.randrange(1, 4))) for _ in range(20_000)]
        often = list(accumulate(1 / (k + 3) for k in range(len(stems))))
        endings = ["".join(rng.choices(letters[:40], k=rng.randrange(1, 3))) for _ in range(30)]
        between = " " if script == "Korean" else ""
        result[script] = filled(size, partial(_sentence, rng, stems, often, endings, between))
    return result


def _sentence(
    rng: random.Random, stems: Sequence[str], often: Sequence[float], endings: Sequence[str], between: str
) -> str:
    chosen = rng.choices(stems, cum_weights=often, k=rng.randrange(4, 16))
    return between.join(stem + rng.choice(endings) for stem in chosen) + rng.choice(("\u3002", ". ", " log.py "))


def filled(size: int, piece: Callable[[], str]) -> list[str]:
    """Texts of some hundred to some thousand characters, as entries are."""
    texts: list[str] = []
    while size > 0:
        text = " ".join(piece() for _ in range(17))
        cuts = range(0, len(text), 2_400)
        texts += [text[at : at + 100 + at % 2_300] for at in cuts]
        size -= sum(len(one.encode()) for one in texts[-len(cuts) :])
    return texts


def part_of_word(rng: random.Random, texts: Sequence[str], script: str) -> str:
    """What a person types: of an English word its beginning, of others any part."""
    while True:
        word = rng.choice(rng.choice(texts).split())
        if script in LETTERS:
            start, length = rng.randrange(len(word)), rng.randrange(2, 5)
            part = word[start : start + length]
            if len(part) > 1 and all(letter in LETTERS[script] for letter in part):
                return part
        elif word.isalpha() and len(word) > 2:
            return word[: rng.randrange(3, len(word) + 1)]


def stands(text: str, query: str, script: str) -> bool:
    """Whether a folded text holds what was typed, found without any index."""
    if script in LETTERS:
        return query in text
    at = text.find(query)
    while at > 0 and text[at - 1].isalnum():
        at = text.find(query, at + 1)
    return at >= 0
