"""A query is data: what fits it, and the line that shows where."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import example, given, settings, strategies as st

from dsh_daemon.query import REACH, WIDTH, Quality, Query
from dsh_daemon.tokens import BLOCK, fold


def fits(query: str, text: str) -> Quality | None:
    return Query(query).fits(fold(text))


def quoted(query: str, text: str) -> tuple[str, list[list[int]]]:
    found = Query(query).quote(text)
    assert found is not None
    return found


def marked(query: str, text: str) -> list[str]:
    snippet, ranges = quoted(query, text)
    return [snippet[a:b] for a, b in ranges]


@pytest.mark.parametrize(
    ("query", "text", "quality"),
    [
        ("week 12", "it broke in week 12, they say", Quality.PHRASE),
        ("12 week", "it broke in week 12", Quality.WORDS),
        ("wee 12", "it broke in week 12", Quality.BEGINNINGS),
        ('"week 12"', "12 days of the week", None),
        ('"week 12"', "in week 123", None),
        ('"week 12', "12 days of the week", Quality.WORDS),  # a quote without its partner is ignored
        ("eek", "it broke in week 12", None),
        ("week", f"we{BLOCK}ek", None),
        ('"a b"', f"a{BLOCK}b", None),
        ("NOT OR AND", "to be or not to be, and so on", Quality.WORDS),
        ("NEAR(a b)", "near a b", Quality.PHRASE),
        ("a*", "abc", Quality.BEGINNINGS),
        ("-a", "a", Quality.PHRASE),
        ("said:x", "said x", Quality.PHRASE),
        ("src/config.ts", "see src/config.ts:12", Quality.PHRASE),
        ("마이그레이", "마이그레이션을 한다", Quality.PHRASE),
        ("그레", "마이그레이션을 한다", Quality.PHRASE),
        ("션", "마이그레이션을 한다", Quality.PHRASE),
        ("데이터 검색", "검색할 데이터", Quality.WORDS),
        ("設定", "新しい設定を書く", Quality.PHRASE),
        ("naive", "naïve", Quality.PHRASE),
        ("NAÏVE", "nai\u0308ve", Quality.PHRASE),
        ("strasse", "Straße", Quality.PHRASE),
        ("\uff21\uff22\uff23", "abc", Quality.PHRASE),
        (unicodedata.normalize("NFD", "한글"), "한글", Quality.PHRASE),
        ("שלום", "אמר: שלום לך", Quality.PHRASE),
        ("+ - *", "+ - *", None),
        ("🙂", "🙂", None),
        ("🙂 smile", "a smile", Quality.PHRASE),
        ("\x00smile\x00", "a smile", Quality.PHRASE),
    ],
)  # fmt: skip
def test_what_fits_and_how_well(query: str, text: str, quality: Quality | None) -> None:
    """A074: a phrase does not match words that are split."""
    assert fits(query, text) is quality


def test_of_many_single_letters_only_the_first_few_are_beginnings() -> None:
    """Each costs the index as much as a word that is everywhere."""
    assert fits("t e o", "three examples only") is Quality.BEGINNINGS
    assert fits("t e o s", "three examples only so") is None
    assert fits("t e o s", "three examples only s") is Quality.BEGINNINGS


def test_a_snippet_is_one_line_around_the_phrase() -> None:
    """A074: a hit comes with what stands around it."""
    text = "alpha " * 200 + "beta\n\n\tgamma " + "alpha " * 200

    snippet, ranges = quoted("beta gamma", text)

    assert "beta gamma" in snippet
    assert [snippet[a:b] for a, b in ranges] == ["beta", "gamma"]
    assert snippet.startswith("…alpha")
    assert snippet.endswith("alpha…")
    assert WIDTH - 2 * REACH < len(snippet) <= WIDTH + 2


def test_a_snippet_shows_the_part_that_has_the_most_of_the_words() -> None:
    text = "foo " * 300 + "x " * 300 + "bar with foo " + "x " * 300

    assert set(marked("foo bar", text)) == {"foo", "bar"}


def test_a_range_holds_the_marks_that_belong_to_its_last_letter() -> None:
    assert marked("cafe", "a cafe\u0301 there") == ["cafe\u0301"]
    assert marked("strass", "die Straße") == ["Straß"]


def test_of_a_text_that_does_not_fit_there_is_no_snippet() -> None:
    assert Query("zeta").quote("alpha beta") is None
    assert Query("beta zeta").ranges("alpha beta") is None
    assert Query("?!").quote("alpha beta ?!") is None


def test_no_grapheme_is_cut_in_two_at_either_end() -> None:
    family = "👨‍👩‍👧‍👦"
    text = family * 60 + "needle" + family * 60

    snippet, _ = quoted("needle", text)
    before, _, after = snippet.strip("…").partition("needle")

    # Joined to what is before it, a word of letters would not be found; here nothing but emoji stand there.
    assert before == family * (len(before) // len(family))
    assert after == family * (len(after) // len(family))


_letters = st.sampled_from("ab xyzé́ßİı\u017f\n\t\x1e-_.12한글마이션設定日本ｱアがא\u05b7ש🙂👍🏽\u200d\u00adẞﬁ")
_texts = st.text(_letters, min_size=1, max_size=400)
_queries = st.text(_letters | st.sampled_from('"*'), min_size=1, max_size=8)


@given(_queries, _texts)
@settings(max_examples=1_500, deadline=None)
@example("션", "마이그레이션")
@example("é", "e\u0301\u0301 e")
@example("ß", "ss \u017fs ẞ")
def test_the_ranges_of_a_snippet_mark_what_was_asked(query: str, text: str) -> None:
    wanted = Query(query)
    found = wanted.quote(text)
    assert (found is None) == (wanted.fits(fold(text)) is None)
    if found is None:
        return
    snippet, ranges = found

    assert len(snippet) <= WIDTH + 2
    assert not any(char in snippet for char in "\n\t\x1e")
    assert all(0 <= a < b <= len(snippet) for a, b in ranges)
    assert all(one[1] < other[0] for one, other in pairwise(ranges))
    atoms = [atom.text for word in wanted.words for atom in word.atoms]
    for a, b in ranges:
        assert any(atom in fold(snippet[a:b]) for atom in atoms)
    assert ranges
    if len(text) <= WIDTH:
        assert len(ranges) == len(wanted.ranges(text) or [])


@given(_queries, _texts)
@settings(max_examples=500, deadline=None)
def test_a_text_holds_each_word_that_is_cut_out_of_it(query: str, text: str) -> None:
    """The beginning of any word of a text is found in it."""
    for word in Query(text).words[:5]:
        for atom in word.atoms:
            assert fits(atom.text[: max(1, len(query))], text) is not None


@pytest.mark.parametrize("query", ["a " * 2_048, "x" * 4_096, "마" * 4_096, '"' * 4_096, "a b " * 1_024, "é" * 4_096])
def test_a_query_of_4096_characters_is_compared_at_once(query: str) -> None:
    wanted = Query(query)
    text = "a b xx 마 é " * 10_000

    wanted.quote(text)
    found = wanted.quote(query)

    assert found is None or len(found[0]) <= WIDTH + 2
