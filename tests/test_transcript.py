"""Paths as documents: everything that was said is in them, nothing in a log reaches out of its place."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st
from markdown_it import MarkdownIt

from dsh_daemon import tree
from dsh_daemon.log.journal import MemoryJournal
from dsh_daemon.session import Session
from dsh_daemon.transcript import ENVELOPE, RESULT_LIMIT, transcript

from .running import Daemon
from .support import CORPUS, assistant, entry, header, line, tool_result, user, write_log

Entry = dict[str, Any]
ROOMY = 64 << 20
FORMATS = ("markdown", "html", "jsonl")
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def session_of(entries: list[Entry], **head: Any) -> Session:
    data = b"".join(json.dumps(e).encode() + b"\n" for e in [header(**head), *entries])
    session = Session(MemoryJournal(data))
    session.load()
    return session


def written(session: Session, format_: str = "markdown", limit: int = ROOMY, *, cut_off: bool = False) -> str:
    path = tree.path(session.index, session.leaf)
    return transcript(session, path, format_, limit, cut_off=cut_off)


def call(id_: str, name: str = "bash", **arguments: Any) -> Entry:
    return {"id": id_, "name": name, "arguments": arguments}


def story() -> list[Entry]:
    return [
        entry("model_change", "m1", None, provider="mock", modelId="mock-1"),
        user("a1", "m1", "Fix the *bug*", 60),
        {**assistant("a2", "a1", "Looking.", calls=[call("c1", command="cat a.py")])},
        tool_result("a3", "a2", "c1", "def add(a, b):\n    return a - b"),
        assistant("a4", "a3", content=[{"type": "thinking", "thinking": "minus?"}, {"type": "text", "text": "Fixed."}]),
        entry("label", "l1", "a4", targetId="a4", label="good"),
        entry("compaction", "k1", "l1", summary="They fixed add.", firstKeptEntryId="a4", tokensBefore=12_345),
        user("b1", "k1", "And now?", 120),
        assistant("b2", "b1", "", stopReason="error", errorMessage="overloaded"),
        entry("branch_summary", "s1", "b2", summary="Another way was tried."),
    ]


# --- what is in it


def test_one_entry_and_one_turn_are_counted_as_one() -> None:
    assert "- Length: 1 entry, 1 turn\n" in written(session_of([user("a", None, "hello")]))


def test_markdown_reads_from_the_title_to_the_last_word() -> None:
    facts = [
        "Session: s1",
        "Agent: pi",
        "Folder: /tmp/demo/proj",
        "Time: 2026-01-01 00:00 UTC",
        "Length: 10 entries, 2 turns",
    ]
    assert written(session_of(story())).split("\n\n") == [
        "# Fix the \\*bug\\*",
        "\n".join(f"- {fact}" for fact in facts),
        "*model: mock/mock-1*",
        "---",
        "## Turn 1 · 2026-01-01 00:01 UTC",
        "### User",
        "> Fix the *bug*",
        "### Assistant",
        "> Looking.",
        "**Call of bash**",
        "```\ncommand: cat a.py\n```",
        "**Result of bash**",
        "```\ndef add(a, b):\n    return a - b\n```",
        "### Assistant · ⚑ good",
        "> *Thinking*\n>\n> > minus?",
        "> Fixed.",
        "### Compaction · 12,345 tokens",
        "> They fixed add.",
        "---",
        "## Turn 2 · 2026-01-01 00:02 UTC",
        "### User",
        "> And now?",
        "### Assistant",
        "**⚠ Error: overloaded**",
        "### Summary of another branch",
        "> Another way was tried.\n",
    ]


def test_html_says_the_same() -> None:
    page = written(session_of(story()), "html")
    text = re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", page.partition("<main>")[2]))

    words = "Fix the *bug* Session s1 Turn 1 User Fix the bug Looking. Call of bash command: cat a.py return a - b "
    words += "⚑ good Thinking minus? Fixed. Compaction They fixed add. Turn 2 Error: overloaded Another way was tried."
    place = 0
    for word in words.split():
        found = text.find(word, place)
        assert found >= 0, (word, text[place:])
        place = found + len(word)
    assert page.startswith("<!doctype html>")


def test_jsonl_is_the_lines_of_the_path_as_they_stand_in_the_file() -> None:
    entries = [user("a1", None, "é"), user("b1", "a1", "left"), user("c1", "a1", "right")]
    session = session_of(entries)

    assert written(session, "jsonl").encode() == b"".join(
        session.raw(session.find(id_)) + b"\n" for id_ in ("a1", "c1")
    )


def test_a_path_ends_where_it_is_asked_to_end() -> None:
    session = session_of(story())
    path = tree.path(session.index, session.find("a2"))

    assert "Fixed." not in transcript(session, path, "markdown", ROOMY)
    assert "Looking." in transcript(session, path, "markdown", ROOMY)


def test_an_empty_session_is_a_document_too() -> None:
    assert "Nothing was said yet." in written(session_of([]))
    assert "Nothing was said yet." in written(session_of([]), "html")
    assert written(session_of([]), "jsonl") == ""


def test_a_long_result_is_cut_and_says_how_much_is_missing() -> None:
    text = "a" * 30_000 + "the middle" + "z" * 30_000
    entries = [assistant("a1", None, calls=[call("c1")]), tool_result("a2", "a1", "c1", text)]
    for format_ in ("markdown", "html"):
        found = written(session_of(entries), format_)

        assert f"… {60_010 - RESULT_LIMIT:,} characters are left out here …" in found
        assert "the middle" not in found
        assert found.count("z") >= RESULT_LIMIT // 4
        assert len(found) < RESULT_LIMIT + 6_000


def test_a_turn_that_nobody_runs_is_shown_closed_and_marked() -> None:
    session = session_of(
        [
            entry("turn_start", "t1", None, turn=4),
            user("a1", "t1", "go"),
            assistant("a2", "a1", calls=[call("c1"), call("c2", "read")]),
            entry("tool_call", "a3", "a2", turn=4, step=1, callId="c2", name="read", arguments="{}"),
        ]
    )
    found = written(session, cut_off=True)

    assert "**Result of bash (interrupted, not in the log)**" in found
    assert "**Result of read (interrupted, not in the log)**" in found
    assert found.endswith("**⚠ Turn 4 was interrupted: the log does not say how it ended.**\n")
    assert "not in the log" not in written(session)
    assert "interrupted, not in the log" in written(session, "html", cut_off=True)
    assert len(written(session, "jsonl", cut_off=True).splitlines()) == 4


def test_a_turn_that_was_never_ended_says_so_where_the_next_begins() -> None:
    found = written(session_of([
        entry("turn_start", "t1", None, turn=1),
        user("a1", "t1", "go"),
        entry("turn_start", "t2", "a1", turn=2),
        entry("turn_end", "t3", "t2", turn=2, reason={"kind": "error", "error": {"message": "no *money*"}}),
    ]))  # fmt: skip

    assert found.index("Turn 1 was interrupted") < found.index("## Turn 2")
    assert "**⚠ turn 2 ended: error: no \\*money\\***" in found


def test_images_and_shells_leave_a_note() -> None:
    found = written(session_of([
        user("a1", None, "look"),
        {**user("a2", "a1", ""), "message": {"role": "user", "content": [{"type": "image", "data": "A" * 16_000}]}},
        entry("message", "a3", "a2", message={"role": "bashExecution", "command": "ls", "output": "x", "exitCode": 2}),
        entry("custom_message", "a4", "a3", customType="plan", content="Do this", display=True),
    ]))  # fmt: skip

    assert "*\\[image 12 kB\\]*" in found
    assert "**Command**\n\n```\nls\n```\n\n**Output (exit 2)**\n\n```\nx\n```" in found
    assert "### Note · plan\n\n> Do this" in found


# --- size


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("limit", [1024, 3_000, 30_000, 200_000])
def test_what_does_not_fit_is_left_out_from_the_beginning(format_: str, limit: int) -> None:
    entries = [user(f"e{n}", f"e{n - 1}" if n else None, f'word{n} "quoted"\n' * 10) for n in range(400)]
    found = written(session_of(entries), format_, limit)
    page = len(written(session_of([]), format_))

    assert len(orjson.dumps({"text": found})) <= max(limit, page + ENVELOPE)
    assert "word399" in found or limit < page + 5_000
    whole = limit == 200_000
    assert ("word1 " in found) == whole
    assert ("left out" in found or "left-out" in found) == (not whole)


def test_a_limit_that_holds_nothing_leaves_everything_out() -> None:
    found = written(session_of([user("a1", None, "x" * 100_000)]), "jsonl", 2_000)

    assert json.loads(found)["data"] == {"entries": 1}


# --- what cannot happen


class Tags(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes.update((name, value) for name, value in attrs)


PAGE = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "h1", "h2", "h3", "h4", "h5", "h6", "dl", "dt",
    "dd", "small", "div", "p", "details", "summary", "pre", "code", "em", "strong", "s", "a", "ul", "ol", "li", "hr",
    "br", "blockquote", "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
NASTY = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</pre></details><b>", "</title><svg/onload=x>", "]]>",
    "[x](javascript:alert(1))", "![x](http://evil/x.png)", "[x](data:text/html,y)", "<https://a.b/`c>", '" onclick="x',
    "&lt;b&gt;", "<!-- ", "-->", "<?php", "<![CDATA[", "```", "````", "~~~", "`", "``", "\\`", "\\", "# Turn 99", "===",
    "---", "- a", "1. b", "   ", "    ", "\t", "> ", "|a|b|\n|-|-|", "\n", "\n\n", "<b", "a <i> b", "*", "**", "[", "]",
    "\r", "\x1b[31m", "\u202e", "\u2028", "\x00", "\ud800", "word", "[a]: javascript:x", "<a@b.c>", "<div\n", "x>",
    "[x](command:a.b)", "[a]", "[a]:", "\ncommand:c", "<command:d>", "](", "command:e)", "$x$", "$(a) ", "![a]",
]  # fmt: skip
nasty = st.lists(st.sampled_from(NASTY), max_size=12).map("".join) | st.lists(st.sampled_from(NASTY), max_size=8).map(
    " ".join
)


def hostile(text: str) -> list[Entry]:
    """`text` wherever a log can hold text."""
    answer = [{"type": "thinking", "thinking": text}, {"type": "text", "text": text}]
    answer.append({"type": "toolCall", **call("c1", text, **{text or "x": text})})
    return [
        entry("session_info", "n1", None, name=text),
        user("a1", "n1", text),
        assistant("a2", "a1", content=answer, stopReason="error", errorMessage=text),
        tool_result("a3", "a2", "c1", text, name=text),
        entry("label", "l1", "a3", targetId="a2", label=text),
        entry("message", "a4", "l1", message={"role": "bashExecution", "command": text, "output": text}),
        entry("message", "a5", "a4", message={"role": text, "content": [{"type": text, "text": text}]}),
        entry("custom_message", "a6", "a5", customType=text, content=text),
        entry("model_change", "a7", "a6", provider=text, modelId=text),
        entry("turn_end", "a8", "a7", reason={"kind": text, "error": {"message": text}}),
        entry(f"x{text}", "a9", "a8"),
        entry("compaction", "b1", "a9", summary=text, firstKeptEntryId=text),
    ]


@settings(max_examples=150, deadline=None)
@given(nasty)
def test_nothing_in_a_log_becomes_part_of_the_page(text: str) -> None:
    page = written(session_of(hostile(text), cwd=text, parentSession=text), "html")
    tags = Tags()
    tags.feed(page)

    assert tags.seen <= PAGE
    for name, value in tags.attributes:
        assert name in {
            "lang", "charset", "name", "content", "http-equiv", "class", "dir", "open", "href", "title", "rel", "style",
            "start",
        }  # fmt: skip
        if name == "href":
            assert re.match("(https?|mailto):", str(value), re.IGNORECASE)
        if name == "style":
            assert re.fullmatch("text-align:(left|center|right)", str(value))
    assert page.count("<style>") == 1
    assert "default-src 'none'" in page
    assert not STEERING.search(page)


@settings(max_examples=400, deadline=None)
@given(nasty)
def test_nothing_in_a_log_becomes_part_of_the_markdown(text: str) -> None:
    """No heading of a message stands among those of the document, no fence is left early, no HTML begins anywhere."""
    found = written(session_of(hostile(text)))
    tokens = MarkdownIt("commonmark").parse(found)
    inner = [child.type for token in tokens for child in token.children or ()]
    top = [token for token in tokens if token.level == 0]

    assert "html_block" not in {token.type for token in tokens}
    assert "html_inline" not in inner
    assert "image" not in inner
    links = [child for token in tokens for child in token.children or () if child.type == "link_open"]
    assert all(re.match("(https?|mailto):", str(link.attrs["href"]), re.IGNORECASE) for link in links)
    headings = [token.tag for token in top if token.type == "heading_open"]
    assert headings == ["h1", "h2", "h3", "h3", "h3", "h3", "h3", "h3"]
    assert {token.type for token in top} <= {
        "heading_open", "inline", "heading_close", "paragraph_open", "paragraph_close", "blockquote_open", "hr",
        "blockquote_close", "fence", "bullet_list_open", "bullet_list_close",
    }  # fmt: skip
    assert not STEERING.search(found)


@settings(max_examples=100, deadline=None)
@given(nasty)
def test_the_lines_of_a_hostile_log_are_as_many_and_say_the_same(text: str) -> None:
    session = session_of(hostile(text))
    found = written(session, "jsonl")
    lines = found.removesuffix("\n").split("\n")

    assert [json.loads(one)["id"] for one in lines] == [e["id"] for e in hostile(text)]
    said = json.loads(lines[1])["message"]["content"][0]["text"]
    assert said == re.sub("[\ud800-\udfff]", "\ufffd", text)
    assert not STEERING.search(found)


@pytest.mark.parametrize(
    "kept",
    [
        "`Vec<T>` and ``a`<b>``",
        "```html\n<p>\n```\nafter",
        "see <https://example.org/x>",
        "1 < 2 and a<-b",
        "[here](https://example.org) and [there](mailto:a@example.org)",
        "[x][1]\n[1]: https://example.org",
        "`[x](command:y)` and `$HOME`",
        "    x = $y",
    ],
)
def test_code_and_links_stay_as_they_were_written(kept: str) -> None:
    found = written(session_of([user("a1", None, kept)]))

    assert "".join(f"> {part}\n" for part in kept.split("\n")) in found


def test_tags_outside_of_code_are_written_so_that_they_are_read_as_text() -> None:
    found = written(session_of([user("a1", None, "a <b> `<i>` <!-- x\n```\n<p>\n```\n<p>")]))

    assert "> a &lt;b> `<i>` &lt;!-- x\n> ```\n> <p>\n> ```\n> &lt;p>\n" in found


def test_links_to_commands_pictures_and_formulas_are_text() -> None:
    """Editors run `command:` links, load pictures while one reads, and set what stands between dollars as formulas."""
    prompt = "[run](command:a.b) ![p](https://example.org/p.png)\n[r]: command:c\n$HOME and $PATH"
    found = written(session_of([user("a1", None, prompt)]))
    read = MarkdownIt("commonmark").render(found)

    assert "<a href" not in read.replace('<a href="https://example.org/p.png">', "")
    assert "<img" not in read
    assert "[run](command:a.b)" in read
    assert "[r]: command:c" in read
    assert "$HOME and $PATH" in read
    assert not re.search(r"(?<!\\)\$", found)


@pytest.mark.skipif(CORPUS is None, reason="no corpus")
@pytest.mark.parametrize("format_", FORMATS)
def test_every_real_session_becomes_a_document(format_: str) -> None:
    assert CORPUS is not None
    done = 0
    for path in sorted(CORPUS.glob("[poe][imd]*/**/*.jsonl")):
        session = Session.open(str(path))
        found = written(session, format_)
        found.encode()
        assert not STEERING.search(found), path
        done += 1
    assert done > 50


# --- over the wire


def test_turns_and_transcript_of_a_daemon(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    write_log(root / "--x--" / "2026-01-01T00-00-00-000Z_s1.jsonl", story())

    async def ask(daemon: Daemon) -> None:
        client = await daemon.client()
        found = await client.request("session/turns", sessionId="s1")
        assert found == {
            "derived": True,
            "turns": [
                {
                    "turn": 1, "startId": "a1", "endId": "a4", "boundary": "a4", "reason": {"kind": "completed"},
                    "steps": 2, "text": "Fix the *bug*",
                },
                {
                    "turn": 2, "startId": "b1", "endId": "b2", "boundary": "b2", "reason": {"kind": "error"},
                    "steps": 1, "text": "And now?",
                },
            ],
        }  # fmt: skip
        short = await client.request("session/turns", sessionId="s1", entryId="a2")
        assert [(turn["endId"], turn["reason"]) for turn in short["turns"]] == [(None, None)]
        for format_ in FORMATS:
            text = (await client.request("session/transcript", sessionId="s1", format=format_))["text"]
            assert "And now?" in text
        await client.close()

    with Daemon(tmp_path / "home", f"pi={root}") as daemon:
        asyncio.run(ask(daemon))


def test_an_open_turn_is_shown_as_interrupted_only_while_nobody_runs_it(tmp_path: Path) -> None:
    async def ask(daemon: Daemon) -> None:
        agent, other = await daemon.client("agent"), await daemon.client("other")
        session = (await agent.request("session/create", cwd=str(tmp_path)))["sessionId"]
        await agent.request("session/resume", sessionId=session)
        await agent.request("turn/start", sessionId=session, content="go")
        running = await other.request("session/turns", sessionId=session)
        assert running["derived"] is False
        assert [(turn["turn"], turn["endId"], turn["reason"]) for turn in running["turns"]] == [(1, None, None)]
        assert "interrupted" not in (await other.request("session/transcript", sessionId=session))["text"]
        state = await other.request("session/open", sessionId=session)
        daemon.kill()
        daemon.start()
        again = await daemon.client("again")
        cut = await again.request("session/turns", sessionId=session)
        assert [(turn["turn"], turn["endId"], turn["reason"]) for turn in cut["turns"]] == [
            (1, None, {"kind": "interrupted"})
        ]
        assert "Turn 1 was interrupted" in (await again.request("session/transcript", sessionId=session))["text"]
        above = await again.request("session/turns", sessionId=session, entryId=cut["turns"][0]["startId"])
        assert above["turns"][0]["reason"] is None
        assert (await again.request("session/open", sessionId=session))["sizeBytes"] == state["sizeBytes"]
        await again.request("session/resume", sessionId=session)
        closed = await again.request("session/turns", sessionId=session)
        assert closed["turns"][0]["reason"] == {"kind": "interrupted"}
        assert closed["turns"][0]["boundary"] is not None
        await again.close()

    with Daemon(tmp_path / "home") as daemon:
        asyncio.run(ask(daemon))


def test_the_turns_of_a_long_log_keep_nobody_waiting(tmp_path: Path) -> None:
    """5,000 turns in one answer, while another client asks for a ping."""
    root = tmp_path / "sessions"
    path = root / "--x--" / "2026-01-01T00-00-00-000Z_s1.jsonl"
    entries: list[Entry] = []
    for n in range(5_000):
        prompt, asked, result, answer = (f"{n:06}{k}" for k in "abcd")
        entries += [
            user(prompt, f"{n - 1:06}d" if n else None, f"go on {n}"),
            assistant(asked, prompt, calls=[call(f"c{n}", command="ls")]),
            tool_result(result, asked, f"c{n}", "ok"),
            assistant(answer, result, "done"),
        ]
    path.parent.mkdir(parents=True)
    path.write_bytes(line(header()) + b"".join(map(line, entries)))

    async def ask(daemon: Daemon) -> None:
        client, other = await daemon.client(), await daemon.client()
        await client.request("session/open", sessionId="s1")
        clock = asyncio.get_running_loop().time
        work = asyncio.create_task(client.request("session/turns", sessionId="s1"))
        waits = []
        while not work.done():
            began = clock()
            await other.request("daemon/ping")
            waits.append(clock() - began)
        found = await work
        assert [turn["turn"] for turn in found["turns"]] == list(range(1, 5_001))
        assert {turn["reason"]["kind"] for turn in found["turns"]} == {"completed"}
        assert sorted(waits)[len(waits) // 2] < 0.1
        await client.close()
        await other.close()

    with Daemon(tmp_path / "home", f"pi={root}") as daemon:
        asyncio.run(ask(daemon))
