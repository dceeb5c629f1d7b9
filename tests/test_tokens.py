# ruff: noqa: RUF001  (letters that look alike are what this is about)
"""What is found in the index is what a slow and simple reader finds in the text."""

from __future__ import annotations

import sys
import time
import unicodedata
from typing import NamedTuple

import apsw
import pytest
from hypothesis import example, given, settings, strategies as st

from dsh_daemon.tokens import BLOCK, TOKENIZER, TOKENS, Word, expression, fold, folded, indexed, phrase, words

# A slow and simple reader, which shares nothing with the module under test.

UNSPACED = (
    "HANGUL",
    "CJK",
    "HIRAGANA",
    "KATAKANA",
    "THAI",
    "IDEOGRAPHIC",
    "KHMER",
    "LAO",
    "MYANMAR",
    "BOPOMOFO",
    "COMBINING KATAKANA",
)


class Unit(NamedTuple):
    text: str
    unspaced: bool = False
    joined: bool = False  # to the character before it, in one run


def plain(text: str) -> str:
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    kept = [c for c in text if not "\u0300" <= c <= "\u036f" and c not in "\u00ad\u200d\ufe0f"]
    return unicodedata.normalize("NFC", "".join(kept))


def units(text: str) -> list[Unit]:
    """Words, characters of scripts without blanks, and walls; whatever else there is stands between them."""
    found: list[Unit] = []
    word, before = "", ""  # what is being read, and of which kind the last character was
    for char in plain(text) + " ":
        name = unicodedata.name(char, "")
        letter = char.isalnum() or unicodedata.category(char) in {"Mn", "Mc"}
        kind = "unspaced" if letter and name.startswith(UNSPACED) else "word" if letter else "gap"
        if word and kind != "word":
            found.append(Unit(word))
            word = ""
        if kind == "word":
            word += char
        elif kind == "unspaced":
            found.append(Unit(char, unspaced=True, joined=before == "unspaced"))
        elif char == BLOCK:
            found.append(Unit(BLOCK))
        before = kind
    return found


def fits(text: list[Unit], wanted: list[Unit], *, prefix: bool) -> bool:
    for at in range(len(text) - len(wanted) + 1):
        for n, (there, unit) in enumerate(zip(text[at:], wanted, strict=False)):
            begins = prefix and n == len(wanted) - 1 and not unit.unspaced and there.text.startswith(unit.text)
            same = there.unspaced == unit.unspaced and (there.text == unit.text or begins)
            if not same or (n and there.joined != unit.joined):
                break
        else:
            return True
    return False


def holds(text: str, query: str, *, prefix: bool = True) -> bool:
    """Whether a text holds all words and phrases of a query, at least one."""
    parts = query.split('"')
    if len(parts) % 2 == 0:
        parts = [*parts[:-2], f"{parts[-2]} {parts[-1]}"]
    wanted = [
        (list(filter(lambda unit: unit.text != BLOCK, units(piece))), prefix and not n % 2)
        for n, part in enumerate(parts)
        for piece in ([part] if n % 2 else part.split())
    ]
    wanted = [(sought, free) for sought, free in wanted if sought]
    return bool(wanted) and all(fits(units(text), sought, prefix=free) for sought, free in wanted)


# What is indexed


def table() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(f'CREATE VIRTUAL TABLE text USING fts5(said, content="", tokenize="{TOKENIZER}")')
    return connection


def search(texts: list[str], query: str, *, prefix: bool = True) -> list[int]:
    """Places of the texts in which the index finds a query."""
    connection = table()
    connection.executemany("INSERT INTO text (rowid, said) VALUES (?, ?)", enumerate(map(indexed, texts)))
    wanted = words(query)
    if not wanted:
        return []
    found = connection.execute("SELECT rowid FROM text WHERE text MATCH ?", (expression(wanted, prefix=prefix),))
    return [rowid for (rowid,) in found.fetchall()]


def stands(text: str, word: Word, *, prefix: bool = True) -> bool:
    return any(word.end(fold(text), at, prefix=prefix) >= 0 for at in range(len(fold(text)) + 1))


def scan(texts: list[str], query: str, *, prefix: bool = True) -> list[int]:
    """The same by looking at every place of the texts."""
    wanted = words(query)
    every = enumerate(texts)
    return [i for i, text in every if wanted and all(stands(text, word, prefix=prefix) for word in wanted)]


ALPHABET = [
    *"aAbB1é", "e\u0301", "ß", "ﬁ", "Ａ", "ж", "Ω", "_", "-", ".", " ", " ", "\n", BLOCK, "*", "(", '"', "\0",
    *"가간나마이", "\u1100\u1161", "\u11ab", "ㅎ", "ㅏ", *"数据データ", "ﾃ", "ﾞ", "か\u3099", "ー", "、", *"ไทย้",
    "हि", "न्", "🙂", "👍\u200d", "\ufe0f", "\ue000", "\ufffd",
]  # fmt: skip
texts = st.lists(st.sampled_from(ALPHABET), max_size=14).map("".join)
queries = st.lists(st.sampled_from([c for c in ALPHABET if c != BLOCK]), min_size=1, max_size=5).map("".join)


@settings(max_examples=600, deadline=None)
@given(st.lists(texts, min_size=1, max_size=4), queries, st.booleans())
@example(["마이그레이션을 했다"], "마이그레이", True)
@example(["foo" + BLOCK + "bar"], '"foo bar"', True)
@example(["A\uac00"], "a\uac00", True)
def test_index_scan_and_reader_agree(several: list[str], query: str, prefix: bool) -> None:
    expected = [i for i, text in enumerate(several) if holds(text, query, prefix=prefix)]
    assert search(several, query, prefix=prefix) == expected
    assert scan(several, query, prefix=prefix) == expected


@settings(max_examples=300, deadline=None)
@given(texts.filter(str.strip), st.data())
def test_any_substring_of_unspaced_text_is_found_and_any_beginning_of_a_word(text: str, data: st.DataObject) -> None:
    there = [unit for unit in units(text) if unit.text != BLOCK]
    if not there:
        return
    n = data.draw(st.integers(0, len(there) - 1))
    unit = there[n]
    query = unit.text[: data.draw(st.integers(1, len(unit.text)))]
    while unit.unspaced and n + 1 < len(there) and there[n + 1].joined:
        n += 1
        query += there[n].text
    assert search([text], query) == [0]


@settings(max_examples=300, deadline=None)
@given(st.one_of(texts, st.text(max_size=20)))
def test_each_place_of_folded_text_knows_where_it_comes_from(text: str) -> None:
    whole, origin = folded(text)
    assert whole == fold(text)
    assert len(origin) == len(whole) + 1
    assert list(origin) == sorted(origin)
    assert origin[-1] == len(text)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize(
    "text", ["마이그레이션을", "Crème brûlée", "データベース", "\uff26\uff55\uff4c\uff4c", "straße"]
)
def test_normal_form_width_and_case_do_not_matter(text: str, form: str) -> None:
    other = unicodedata.normalize(form, text)
    assert search([text, other, text.upper()], text) == [0, 1, 2]
    assert search([text], other) == [0]
    assert search([text], other.upper()) == [0]


def test_every_letter_is_one_for_the_index_and_for_the_scan() -> None:
    """SQLite knows another version of Unicode than Python does."""
    every = [chr(c) for c in range(1, sys.maxunicode) if not 0xD800 <= c < 0xE000 and chr(c) not in {BLOCK, '"'}]
    chosen = [
        char for char in every if ord(char) < 0x3500 or unicodedata.category(char)[0] != "L" or ord(char) % 97 == 0
    ]
    chosen = [char for char in chosen if unicodedata.category(char) not in {"Cn", "Co"} or ord(char) % 997 == 0]
    connection = table()
    connection.executemany(
        "INSERT INTO text (rowid, said) VALUES (?, ?)", ((n, indexed(f"q{char}q")) for n, char in enumerate(chosen))
    )
    connection.execute("CREATE VIRTUAL TABLE terms USING fts5vocab(text, instance)")
    cut: dict[int, list[str]] = {}
    for term, n, _, _ in connection.execute("SELECT * FROM terms ORDER BY doc, offset"):
        cut.setdefault(n, []).append(term)
    wrong = []
    for n, char in enumerate(chosen):
        atoms = words(f'"q{char}q"')[0].atoms
        expected = []
        for atom in atoms:
            pairs = [a + b for a, b in zip(atom.text, atom.text[1:], strict=False)]
            expected += [*pairs, atom.text[-1]] if atom.unspaced else [atom.text]
        if cut[n] != expected:
            wrong.append((char, cut[n], expected))
    assert wrong == []


@pytest.mark.parametrize(
    "query",
    [
        "OR",
        "a AND b",
        "NOT x",
        "NEAR(a b, 3)",
        "said : a",
        "^a",
        "a*",
        "-a",
        "{a b}",
        "a + b",
        "'",
        "\\",
        ";",
        "(",
        "a\0b",
    ],
)
def test_what_fts_takes_for_operators_is_text(query: str) -> None:
    inside = f"before {query} after"
    assert (search([inside, "nothing of it"], query) == [0]) == bool(words(query))
    assert (search(["x y z"], query) == []) or query == "NOT x"


def test_a_query_of_thousands_of_words_is_no_error() -> None:
    many = " ".join(chr(0xAC00 + n) for n in range(2_000))
    assert search([many, "가"], many) == [0]
    assert search(["x"], "가" * 4_096) == []


def test_of_a_phrase_so_many_words_count_as_the_index_can_follow_in_no_time() -> None:
    numbered = [f"n{n}" for n in range(2 * TOKENS)]
    assert search([" ".join(numbered)], f'"{" ".join(numbered[:TOKENS])} other"') == [0]
    assert search([" ".join(numbered)], f'"{" ".join(numbered[: TOKENS - 1])} other"') == []
    syllables = "".join(chr(0xAC00 + n) for n in range(2 * TOKENS))
    assert search([syllables], syllables[3 : TOKENS + 3]) == [0]
    assert search([syllables], syllables[: TOKENS - 1] + "힣") == []
    begun = time.process_time()
    assert search(["the common word"] * 5_000, "the " * 1_000) == [*range(5_000)]
    assert search(["the common word"] * 5_000, f'"{"the " * 1_000}"') == []
    assert time.process_time() - begun < 3


def test_words_are_read_once_and_what_holds_no_letter_is_left_out() -> None:
    assert words('  -- "" "!" ') == []
    assert words("Foo foo FOO") == words("foo")
    assert words('"foo bar" baz"') == words('baz "FOO  bar"')[::-1]
    assert phrase('"..."') is None
    whole = phrase('the "quick" fox')
    assert whole is not None
    assert stands("see the quick fox run", whole)
    assert not stands("the quick foxes", whole)
