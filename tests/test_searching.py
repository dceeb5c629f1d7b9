"""`dshd search` as a person and a shell script meet it: lines in a pipe, a picker before a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, strategies as st

from dsh_daemon.cli.keys import ENTER_SCREEN, ESCAPE_S, LEAVE_SCREEN, Key, keys_of
from dsh_daemon.cli.render import cells, cut_parts
from dsh_daemon.cli.searching import marked, moment, unsearched

from .running import PATIENCE
from .support import assistant, entry, header, tool_result, user, write_log
from .test_cli import DSHD, Shell


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("search"))
    call = {"id": "c1", "name": "bash", "arguments": {"command": "npm run migrate"}}
    shell.session("korean", [
        user("k0000001", None, "데이터베이스 마이그레이션을 다시 실행해줘", 1),
        assistant("k0000002", "k0000001", "마이그레이션을 끝냈습니다.", 2, calls=[call]),
        tool_result("k0000003", "k0000002", "c1", "12 migrations", 3),
    ])  # fmt: skip
    shell.session("redirects", [
        user("r0000001", None, "Find why the redirect drops the query string", 1),
        assistant("r0000002", "r0000001", "The query is lost in the redirect.", 2),
        user("r0000003", "r0000002", "Rewrite the redirect", 3),
        user("r0000004", "r0000002", "Keep the old one", 4),
        entry("label", "r0000005", "r0000004", 5, targetId="r0000001", label="where it began"),
    ])  # fmt: skip
    elsewhere = header("far", "/far/away")
    write_log(
        shell.root / "--far--" / "2026-01-01T00-00-00-000Z_far.jsonl", [user("f1", None, "a redirect")], elsewhere
    )
    yield shell
    shell.close()


# --- lines


def test_each_session_stands_above_its_strongest_hit(shell: Shell) -> None:
    lines = shell.run("search", "마이그레이").stdout.splitlines()
    assert re.fullmatch(r"◐ 데이터베이스 .* pi · .* · turn open · 2 hits · korean", lines[0])
    assert re.fullmatch(r"  k0000001  user +데이터베이스 마이그레이션을 다시 실행해줘  turn 1 · 2026-01-01", lines[1])
    assert len(lines) == 2


def test_every_hit_of_one_session_says_where_it_hangs(shell: Shell) -> None:
    lines = shell.run("search", "redirect", "--in", "redirects").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["r0000001", "r0000003", "r0000002"]
    assert ["other branch" in line for line in lines] == [False, False, True, False]
    (labelled,) = shell.run("search", "it began", "-i", "redirects").stdout.splitlines()[1:]
    assert labelled.split()[:5] == ["r0000001", "label", "where", "it", "began"]


def test_json_is_the_result_of_the_protocol(shell: Shell) -> None:
    found = shell.json("search", "redirect")
    assert found["coverage"] == {"indexed": 3, "total": 3}
    assert {item["session"]["sessionId"]: item["hits"] for item in found["items"]} == {"redirects": 3, "far": 1}
    hits = shell.json("search", "redirect", "--in", "redirects")["items"]
    assert hits[0]["ranges"] == [[13, 21]]


@pytest.mark.parametrize(
    ("more", "ids"),
    [
        (["--role", "assistant"], ["r0000002"]),
        (["--role", "user,tool"], ["r0000001", "r0000003"]),
        (["--labeled"], ["r0000001"]),
        (["--branch", "abandoned"], ["r0000003"]),
        (["--until", "2025-12-31"], []),
        (["--since", "2026-01-01T00:00:02+00:00", "--until", "2026-01-01T00:00:02+00:00"], ["r0000002"]),
        (["--limit", "2"], ["r0000001", "r0000003"]),
        (["--limit", "0"], ["r0000001", "r0000003", "r0000002"]),
    ],
)
def test_filters_choose_among_the_entries(shell: Shell, more: list[str], ids: list[str]) -> None:
    found = shell.json("search", "redirect", "--in", "redirects", *more)
    assert [hit["entryId"] for hit in found["items"]] == ids


def test_folders_and_formats_choose_among_the_sessions(shell: Shell) -> None:
    def ids(*more: str) -> list[str]:
        return sorted(item["session"]["sessionId"] for item in shell.json("search", "redirect", *more)["items"])

    assert ids() == ["far", "redirects"]
    assert ids("--here") == ["redirects"]
    assert ids("--cwd", "/far", "--scope", "subtree") == ["far"]
    assert ids("--format", "omp") == []


def test_words_need_no_quotes_and_operators_are_text(shell: Shell) -> None:
    assert "r0000001" in shell.run("search", "query", "string").stdout
    assert "r0000001" in shell.run("search", '"query string"').stdout
    assert shell.run("search", '"string query"').stdout == ""
    assert shell.run("search", "query OR migrations").stdout == ""


@pytest.mark.parametrize("words", [[], [" "], ['""']])
def test_a_pipe_needs_a_query(shell: Shell, words: list[str]) -> None:
    refused = shell.run("search", *words, code=2)
    assert "what to look for?" in refused.stderr
    assert refused.stdout == ""


def test_what_is_no_time_or_role_is_wrong_usage(shell: Shell) -> None:
    assert "is no time" in shell.run("search", "x", "--since", "yesterday", code=2).stderr
    assert "is not one of" in shell.run("search", "x", "--role", "robot", code=2).stderr


def test_a_time_may_be_long_ago_a_day_or_of_another_zone() -> None:
    now = datetime.now(UTC)
    ago = datetime.fromisoformat(moment("3h", "--since") or "")
    assert timedelta(0) <= now - timedelta(hours=3) - ago + timedelta(seconds=5) < timedelta(seconds=10)
    day = datetime.fromisoformat(moment("2026-03-01", "--until", end=True) or "")
    assert day - datetime.fromisoformat(moment("2026-03-01", "--since") or "") == timedelta(days=1, milliseconds=-1)
    assert moment("20260301", "--until", end=True) == moment("2026-03-01", "--until", end=True)
    assert moment("2026-03-01T09:00+09:00", "--since") == "2026-03-01T00:00:00.000+00:00"
    for wrong in ("yesterday", "3 fortnights", "0000-01-01", ""):
        with pytest.raises(typer.BadParameter):
            moment(wrong, "--since")
    for edge in ("0001-01-01", "9999-12-31"):  # the one or the other, by where one lives
        with suppress(typer.BadParameter):
            moment(edge, "--until", end=True)


def test_what_is_not_indexed_yet_is_said_in_words() -> None:
    assert unsearched({"coverage": {"indexed": 3, "total": 3}}) == ""
    assert unsearched({"items": []}) == ""  # one session is always searched whole
    said = unsearched({"coverage": {"indexed": 1, "total": 2_001}})
    assert said == "2,000 of 2,001 sessions are not searched yet: the index is being built"


def test_sessions_and_filters_are_completed(shell: Shell) -> None:
    asked = {"_DSHD_COMPLETE": "complete_bash", "COMP_WORDS": "dshd search x --in red", "COMP_CWORD": "4"}
    assert shell.run(**asked).stdout.split() == ["redirects"]
    asked = {"_DSHD_COMPLETE": "complete_bash", "COMP_WORDS": "dshd search x --branch a", "COMP_CWORD": "4"}
    assert shell.run(**asked).stdout.split() == ["active", "abandoned"]


TEXT = st.text("ab 한글界é", max_size=60)


@given(TEXT, st.data(), st.integers(1, 40))
def test_a_snippet_is_cut_around_the_first_find(text: str, data: Any, room: int) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    ranges = [[a, b] for a, b in zip(places[::2], places[1::2], strict=False) if a < b and not text[a].isspace()]
    shown = list(marked(text, ranges, room))
    whole = "".join(part for part, _ in shown)
    assert whole == text or (whole[0] == "…" and text.endswith(whole[1:]))
    assert [part for part, style in shown if style == "hit"] == [text[a:b] for a, b in ranges]
    line = "".join(part for part, _ in cut_parts(shown, room))
    assert cells(line) <= room
    if ranges and cells(text[slice(*ranges[0])]) <= room // 2 - 1:
        assert text[slice(*ranges[0])] in line


# --- keys


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("up", ["up"]),
        ("\x1b[A\x1bOB\x1b[5~\x1b[1;2C", [Key.UP, Key.DOWN, Key.PAGE_UP, Key.RIGHT]),
        ("마\x7f\r", ["마", Key.BACKSPACE, Key.ENTER]),
        ("\x1b", [Key.ESCAPE]),
        ("\x1b[200~one\ntwo\x1b[201~\x03", ["one two", Key.INTERRUPT]),
        ("\x1b[200~cut\roff", ["cut off"]),
        ("a\x1bb\x1b[99xc", ["a", "c"]),
    ],
)
def test_keys_are_read_from_what_terminals_send(sent: str, keys: list[Key | str]) -> None:
    assert keys_of(sent, finished=True) == ("", keys)


@given(st.lists(st.sampled_from(["\x1b[A", "\x1bOB", "\x1b[6~", "a", "한", "\r", "\x1b[200~p\x1b[201~"])), st.data())
def test_keys_may_come_in_pieces(sent: list[str], data: Any) -> None:
    text = "".join(sent)
    cut = data.draw(st.integers(0, len(text)))
    rest, first = keys_of(text[:cut], finished=False)
    left, second = keys_of(rest + text[cut:], finished=False)

    def joined(keys: list[Key | str]) -> list[str]:
        return list("".join(key if isinstance(key, str) else f"<{key.name}>" for key in keys))

    assert left == ""
    assert joined(first + second) == joined(keys_of(text, finished=True)[1])


# --- as a person sits before it


class Sitting:
    """`dshd search` before a terminal of its own."""

    def __init__(self, shell: Shell, *args: str, width: int = 80, height: int = 24, term: str = "xterm") -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(shell.cwd)
            os.execve(DSHD[0], [*DSHD, "search", *args], {**shell.env, "TERM": term})
        self.resize(width, height)
        self.seen = ""

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def until(self, text: str) -> str:
        """Read until this was written; what was written since the last look."""
        end = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            assert self._more(), self.seen
        before, _, self.seen = self.seen.partition(text)
        return before

    def _more(self) -> bool:
        if not select.select([self.fd], [], [], 1)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    @property
    def cooked(self) -> bool:
        """Whether the terminal is as a shell wants it."""
        return bool(termios.tcgetattr(self.fd)[3] & termios.ICANON)

    def ends(self, code: int) -> str:
        """What was still written until the end."""
        while self._more():
            pass
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == code, self.seen
        return self.seen

    def close(self) -> None:
        os.close(self.fd)


@pytest.fixture
def sit(shell: Shell) -> Iterator[Any]:
    shell.run("search", "redirect")  # a daemon runs, and everything is indexed
    made: list[Sitting] = []

    def sit_down(*args: str, width: int = 80, height: int = 24) -> Sitting:
        made.append(Sitting(shell, *args, width=width, height=height))
        return made[-1]

    yield sit_down
    for sitting in made:
        sitting.close()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_typing_searches_and_enter_shows_the_entry_in_its_session(sit: Any) -> None:
    person = sit()
    person.until("the latest sessions")
    assert not person.cooked
    person.type("redir")
    person.until("2 sessions")
    person.type("ect rewr")
    person.until("1 session")
    person.type("\r")
    person.until(LEAVE_SCREEN)
    shown = plain(person.ends(0))
    assert "Rewrite the redirect" in shown
    assert re.search(r"r0000003 +├?└?─? ?user", shown)
    assert re.search(r"dshd\S* tree redirects? --around r0000003", shown) or "--around r0000003" in shown
    assert person.cooked


def test_tab_shows_every_hit_of_a_session_and_left_leads_back(sit: Any) -> None:
    person = sit()
    person.type("redirect")
    person.until("2 sessions")
    person.type("\t")
    person.until("Esc back")
    person.until("other branch")
    person.type("\x1b[D")
    person.until("2 sessions")
    person.type("\t")
    person.until("Esc back")
    person.until("3 hits")
    person.type("\x1b[B\x1b[B\r")
    person.until(LEAVE_SCREEN)
    assert "The query is lost in the redirect." in person.ends(0)


def test_enter_chooses_of_what_was_typed_however_quickly_it_follows(sit: Any) -> None:
    person = sit()
    person.until("the latest sessions")
    person.type("rewr\r")
    person.until(LEAVE_SCREEN)
    assert "Rewrite the redirect" in person.ends(0)


def test_enter_on_what_finds_nothing_chooses_nothing(sit: Any) -> None:
    person = sit()
    person.until("the latest sessions")
    person.type("zzznothing\r")
    person.until("nothing was found")
    person.type("\x15rewr")
    person.until("1 session")  # it is still here
    person.type("\x15zzznothing\t\x1b[B\r")
    person.until("nothing was found")
    person.type("\x03")
    person.until(LEAVE_SCREEN)
    assert person.ends(130).strip() == ""


def test_keys_that_come_before_the_answer_mean_what_it_brings(sit: Any) -> None:
    person = sit()
    person.until("the latest sessions")
    person.type("redirect\t\x1b[B\x1b[B\r")
    person.until(LEAVE_SCREEN)
    assert "The query is lost in the redirect." in person.ends(0)


def test_a_session_found_by_its_title_alone_shows_that_among_its_hits(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.session("cook", [user("c1", None, "hello"), entry("session_info", "c2", "c1", 2, name="Kitchen plans")])
    try:
        found = shell.run("search", "kitchen", "--in", "cook").stdout.splitlines()
        assert [line.split()[:4] for line in found[1:]] == [["c2", "title", "Kitchen", "plans"]]
        person = Sitting(shell)
        person.until("the latest sessions")
        person.type("kitchen")
        person.until("1 session")
        person.type("\t")
        person.until("1 hit")
        person.type("\r")
        person.until(LEAVE_SCREEN)
        assert "goes on with it" in person.ends(0)  # what is said of a session, not of one of its entries
        person.close()
    finally:
        shell.close()


@pytest.mark.parametrize("key", ["\x1b", "\x03"])
def test_leaving_prints_nothing_and_the_terminal_is_as_it_was(sit: Any, key: str) -> None:
    person = sit()
    person.type("마이그")
    person.until("1 session")
    person.type(key)
    person.until(LEAVE_SCREEN)
    assert person.ends(130).strip() == ""
    assert person.cooked


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_as_it_was_also_after_a_kill(sit: Any, number: int) -> None:
    person = sit()
    person.until("the latest sessions")
    os.kill(person.pid, number)
    person.until(LEAVE_SCREEN)
    person.ends(128 + number)
    assert person.cooked


def test_a_terminal_that_is_made_narrow_is_drawn_anew_without_a_line_too_long(sit: Any) -> None:
    person = sit("--in", "korean")
    person.type("마이그")
    person.until("2 hits")
    person.resize(34, 9)
    os.kill(person.pid, signal.SIGWINCH)
    person.type("레")
    person.until("> \x1b[0m마이그레")
    person.until("2 hits")
    lines = plain(person.until("\x1b[?25h")).split("\r\n")
    assert len(lines) == 9
    assert max(map(cells, lines)) <= 34
    assert any("마이그레이션을" in line for line in lines)
    person.type("\x1b")
    person.ends(130)


@pytest.mark.parametrize(("width", "height"), [(10, 3), (7, 2), (3, 2), (2, 1), (1, 1)])
def test_the_smallest_terminal_shows_what_is_typed_as_far_as_there_is_room(sit: Any, width: int, height: int) -> None:
    person = sit(width=width, height=height)
    person.until(ENTER_SCREEN)
    person.type("redirect")
    if width > 3:
        person.until("> \x1b[0m" + "redirect"[3 - width :])
        assert person.seen.partition("\x1b[?25h")[0].count("\r\n") < height
    person.type("\x1b")
    person.ends(130)


def test_a_paste_is_one_piece_of_text_however_slowly_it_comes_and_however_long_it_is(sit: Any) -> None:
    person = sit()
    person.until("the latest sessions")
    person.type("\x1b[200~redi\r")
    time.sleep(4 * ESCAPE_S)
    person.type("rect\x1b[201~")
    person.until("search: \x1b[0mredi rect")
    began = time.monotonic()
    for text in ("\x1b[200~", *["마" * 1_000] * 60, "\x1b[201~"):
        person.type(text)
    person.until("마" * 30)
    assert time.monotonic() - began < PATIENCE / 2
    person.type("\x03")
    person.ends(130)


def test_backspace_takes_back_what_looks_like_one_character(sit: Any) -> None:
    person = sit()
    person.until("the latest sessions")
    person.type("redirect👩‍👧")
    person.until("redirect👩‍👧")
    person.type("\x7f")
    person.until("search: \x1b[0mredirect ")
    person.type("\x1b")
    person.ends(130)


def test_on_a_terminal_that_cannot_be_drawn_on_a_query_is_needed(shell: Shell) -> None:
    person = Sitting(shell, term="dumb")
    try:
        assert "what to look for?" in person.ends(2)
    finally:
        person.close()


def test_a_daemon_that_ends_meanwhile_ends_the_picker_too(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.session("lonely", [user("u1", None, "alone")])
    pid = json.loads(shell.run("status", "--json").stdout)["pid"] if shell.run("list").returncode == 0 else 0
    person = Sitting(shell)
    try:
        person.until("the latest sessions")
        os.kill(pid, signal.SIGKILL)
        person.type("a")
        person.until(LEAVE_SCREEN)
        assert "the daemon closed the connection" in person.ends(1)
        assert person.cooked
    finally:
        person.close()
        assert shell.forks is not None
        shell.forks.close()
