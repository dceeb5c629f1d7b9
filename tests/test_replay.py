"""`dshd touched` and `dshd replay` as a person and a shell script meet them: real processes, a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from .dsh_logs import Log
from .running import PATIENCE
from .support import assistant, entry, tool_result, user
from .test_cli import DSHD, Shell

CONFIG = "export const config = {\n  port: 8080,\n  host: 'a',\n};\n"
# What the hints call a program that was started so.
NAME = "dshd" if shutil.which("dshd") else f"{os.path.basename(sys.executable)} -m dsh_daemon"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("replay"))
    yield shell
    shell.close()


def call(id_: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id_, "name": name, "arguments": arguments}


def broken(shell: Shell, name: str, file: str) -> str:
    """A session in whose third turn a config file breaks; the path of its log."""
    return shell.session(name, [
        user("aaaa0001", None, "Set up the config", 10),
        assistant("aaaa0002", "aaaa0001", "I write it.", 11, calls=[call("c1", "write", path=file, content=CONFIG)]),
        tool_result("aaaa0003", "aaaa0002", "c1", "ok", 12, name="write"),
        assistant("aaaa0004", "aaaa0003", "There.", 13),
        user("bbbb0001", "aaaa0004", "Port from the environment", 60),
        assistant("bbbb0002", "bbbb0001", "", 61, calls=[
            call("c2", "edit", path=file, edits=[{"oldText": "nope", "newText": "x"}]),
        ]),
        tool_result("bbbb0003", "bbbb0002", "c2", "not found", 62, name="edit", isError=True),
        assistant("bbbb0004", "bbbb0003", "", 63, calls=[
            call("c3", "edit", path=f"./{file}", edits=[{"oldText": "8080", "newText": "env.PORT"}]),
        ]),
        tool_result("bbbb0005", "bbbb0004", "c3", "ok", 64, name="edit"),
        assistant("bbbb0006", "bbbb0005", "Done.", 65),
        user("cccc0001", "bbbb0006", "Clean up", 120),
        assistant("cccc0002", "cccc0001", "", 121, calls=[call("c4", "read", path=file)]),
        tool_result("cccc0003", "cccc0002", "c4", "…", 122, name="read"),
        assistant("cccc0004", "cccc0003", "", 123, calls=[
            call("c5", "write", path=file, content=CONFIG.replace("8080", "env.PROT")),
        ]),
        tool_result("cccc0005", "cccc0004", "c5", "ok", 124, name="write"),
        assistant("cccc0006", "cccc0005", "Clean.", 125),
    ])  # fmt: skip


# --- touched


def test_the_touches_of_a_file_read_from_the_first_to_the_last(shell: Shell) -> None:
    broken(shell, "order", "src/order.ts")
    lines = shell.run("touched", "src/order.ts").stdout.splitlines()
    assert lines[0].startswith("● Set up the config")
    assert lines[0].endswith("order")
    assert [line.split()[1:5] for line in lines[1:]] == [
        ["1.1", "aaaa0002", "write", "src/order.ts"],
        ["2.1", "bbbb0002", "edit", "src/order.ts"],
        ["2.2", "bbbb0004", "edit", "./src/order.ts"],
        ["3.1", "cccc0002", "read", "src/order.ts"],
        ["3.2", "cccc0004", "write", "src/order.ts"],
    ]
    assert [line.split()[5:] for line in lines[2:]] == [["+1", "-1", "failed"], ["+1", "-1"], [], ["+1", "-1"]]


def test_changes_are_diffs_of_what_may_have_changed_it(shell: Shell) -> None:
    broken(shell, "diffs", "src/diffs.ts")
    shown = shell.run("touched", "diffs.ts", "--changes").stdout
    assert "read" not in shown
    last = shown[shown.index("cccc0004") :].splitlines()[1:]
    assert last == [
        "      @@ -1,4 +1,4 @@", "       export const config = {", "      -  port: env.PORT,",
        "      +  port: env.PROT,", "         host: 'a',", "       };",
    ]  # fmt: skip


def test_json_is_what_the_protocol_says_latest_first(shell: Shell) -> None:
    broken(shell, "as-json", "src/as-json.ts")
    found = shell.json("touched", "as-json.ts")
    assert [item["entryId"] for item in found["items"]] == ["cccc0004", "cccc0002", "bbbb0004", "bbbb0002", "aaaa0002"]
    assert "change" not in found["items"][0]
    assert len(shell.json("touched", "as-json.ts", "--limit", "2", "--changes")["items"]) == 2
    assert found["coverage"]["indexed"] == found["coverage"]["total"]


def test_a_path_that_is_here_means_that_file_and_any_other_every_end_of_a_path(shell: Shell) -> None:
    broken(shell, "here", "src/meant.ts")
    read = [call("c", "read", path="/srv/other/src/meant.ts")]
    shell.session("there", [assistant("dddd0001", None, "", 5, calls=read)])
    both = shell.json("touched", "src/meant.ts")["items"]
    assert {item["sessionId"] for item in both} == {"here", "there"}
    (shell.cwd / "src").mkdir(exist_ok=True)
    (shell.cwd / "src/meant.ts").touch()
    for spelled in ("src/meant.ts", "./src/meant.ts", str(shell.cwd / "src/meant.ts")):
        assert {item["sessionId"] for item in shell.json("touched", spelled)["items"]} == {"here"}
    assert {item["sessionId"] for item in shell.json("touched", "src/meant.ts", "--in", "there")["items"]} == {"there"}


def test_a_file_that_is_here_and_untouched_shows_others_of_its_name_and_says_so(shell: Shell) -> None:
    read = [call("c", "read", path="/srv/other/namesake.ts")]
    shell.session("namesake", [assistant("dddd0001", None, "", 5, calls=read)])
    (shell.cwd / "namesake.ts").touch()
    with Terminal(shell, "touched", "namesake.ts") as at:
        text = " ".join(at.rest().split())
    assert "/srv/other/namesake.ts" in text
    assert re.search(r"no session touched \S*proj/namesake.ts; these are other files of that name", text)
    assert "no session changed namesake.ts" in text


def test_a_terminal_gets_the_commands_that_lead_to_the_last_change(shell: Shell) -> None:
    path = broken(shell, "lead", "src/lead.ts")
    with Terminal(shell, "touched", "src/lead.ts") as at:
        text = at.rest()
    for command in ("replay lead --from cccc0004", "navigate lead cccc0004", "fork lead --turn 2"):
        assert f"{NAME} {command}" in text
    assert f"{NAME} replay" not in shell.run("touched", "src/lead.ts").stdout
    fork = shell.json("fork", path, "--turn", "2")
    assert fork["boundary"] == "bbbb0006"
    with Terminal(shell, "touched", "nobody/knows.ts") as at:
        assert "no session touched nobody/knows.ts" in at.rest()


@pytest.mark.parametrize("width", [24, 50, 79, 200])
def test_touches_and_changes_fit_into_any_terminal(shell: Shell, width: int) -> None:
    broken(shell, "narrow", "src/narrow-漢字.ts")
    shown = shell.run("touched", "src/narrow-漢字.ts", "-c", COLUMNS=str(width)).stdout
    from dsh_daemon.cli.render import cells

    assert max(cells(line) for line in shown.splitlines()) <= width
    assert "env.PR" in shown


def test_hostile_names_and_changes_steer_no_terminal(shell: Shell) -> None:
    evil = "\x1b]0;evil\x07\u202e"
    calls = [
        call("c1", "write", path="src/evil.ts", content=f"{evil}\x9b31m"),
        call("c2", "bash", command=f"cat src/evil.ts {evil}"),
    ]
    shell.session("evil", [user("aaaa0001", None, evil, 1), assistant("aaaa0002", "aaaa0001", evil, 2, calls=calls)])
    for shown in (shell.run("touched", "evil.ts", "-c").stdout, shell.run("replay", "evil").stdout):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)


# --- replay in a pipe


def test_a_replay_tells_what_was_said_and_done_in_order(shell: Shell) -> None:
    path = broken(shell, "told", "src/told.ts")
    text = shell.run("replay", path).stdout
    places = [text.index(mark) for mark in ("turn 1", "aaaa0001", "aaaa0003", "turn 2", "bbbb0004", "turn 3", "Clean.")]
    assert places == sorted(places)
    assert "    -8080\n    +env.PORT\n" in text
    assert "result of edit  bbbb0003  failed" in text


def test_one_turn_or_what_comes_after_an_entry(shell: Shell) -> None:
    path = broken(shell, "parts", "src/parts.ts")
    lines = shell.run("replay", path, "--turn", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [
        "bbbb0001", "bbbb0002", "bbbb0003", "bbbb0004", "bbbb0005", "bbbb0006",
    ]  # fmt: skip
    text = shell.run("replay", path, "--from", "bbbb0004").stdout
    assert text.startswith("── turn 2\n")
    assert "bbbb0003" not in text
    assert "cccc0006" in text
    assert "there is no turn 9: turns 1 to 3 are" in shell.run("replay", path, "--turn", "9", code=1).stderr
    assert shell.run("replay", path, "--turn", "1", "--from", "leaf", code=2)


def test_json_is_each_entry_as_it_is_stored_one_on_a_line(shell: Shell) -> None:
    path = broken(shell, "lines", "src/lines.ts")
    stored = [json.loads(line) for line in Path(path).read_text().splitlines()[1:]]
    assert [json.loads(line) for line in shell.run("replay", path, "--json").stdout.splitlines()] == stored


def test_entries_are_whole_however_long_they_are(shell: Shell) -> None:
    long = ["".join(f"{n} {k}\n" for k in range(150_000)) for n in range(4)]
    path = shell.session("whole", [
        assistant(f"aaaa000{n}", f"aaaa000{n - 1}" if n else None, text, n) for n, text in enumerate(long)
    ])  # fmt: skip
    lines = shell.run("replay", path, "--json").stdout.splitlines()
    assert [json.loads(line)["message"]["content"][0]["text"] for line in lines] == long
    assert shell.run("replay", path).stdout.count("149999\n") == 4


def test_a_line_that_is_longer_than_the_screen_goes_on_below_in_no_time() -> None:
    from dsh_daemon.cli.player import wrapped
    from dsh_daemon.cli.render import cells

    text = "    " + "word 단어 " * 500_000
    begun = time.process_time()
    lines = [line for line, _ in wrapped([(text, ""), ("", ""), ("x" * 90, "")], 40)]
    assert time.process_time() - begun < 2
    assert max(map(cells, lines)) <= 40
    assert all(line.startswith("    ") for line in lines[:100])
    assert lines[-4:] == ["", "x" * 40, "x" * 40, "x" * 10]
    assert "".join(lines[:100]).replace(" ", "") in text.replace(" ", "")


def test_branches_are_told_where_the_log_has_them(shell: Shell) -> None:
    text = shell.run("replay", shell.story("branching")).stdout
    assert (
        text.index("Rewrite everything") < text.index("another branch, from aaaa0004 on") < text.index("Fix the line")
    )
    assert text.count("another branch") == 1


def test_a_speed_paces_it_and_no_pause_is_longer_than_two_seconds(shell: Shell) -> None:
    path = shell.session("paced", [
        user("aaaa0001", None, "one", 1), assistant("aaaa0002", "aaaa0001", "two", 2),
        user("aaaa0003", "aaaa0002", "three", 9_000),
    ])  # fmt: skip
    begun = time.monotonic()
    shell.run("replay", path, "--speed", "5")
    assert 0.2 + 0.4 <= time.monotonic() - begun < PATIENCE


def with_chunks(shell: Shell, name: str, *, whole: bool) -> str:
    """A native session with an answer in pieces, and the answer itself where it came to its end."""
    kept = {"type": "assistant_chunks", "turn": 1, "step": 1, "index": 0, "kind": "text", "t0": 4_000}
    entries = [
        entry("turn_start", "t1", None, 1, turn=1), user("aaaa0001", "t1", "Say it", 1),
        entry("step_start", "s1", "aaaa0001", 2, turn=1, step=1),
        {**entry("assistant_chunks", "k1", "s1", 3), **kept, "dt": [0, 40], "texts": ["Hel", "lo\nwor"]},
        {**entry("assistant_chunks", "k2", "k1", 3), **kept, "dt": [80], "texts": ["ld"]},
    ]  # fmt: skip
    if whole:
        entries += [
            assistant("aaaa0002", "k2", "Hello\nworld", 5, calls=[call("c", "bash", command="ls")]),
            entry("step_end", "e1", "aaaa0002", 6, turn=1, step=1, outcome="completed"),
        ]
    return shell.session(name, entries, generator="dsh-daemon/1")


def test_an_answer_is_told_once_and_with_a_speed_in_its_pieces(shell: Shell) -> None:
    path = with_chunks(shell, "pieces", whole=True)
    for options in ((), ("--speed", "50")):
        text = shell.run("replay", path, *options).stdout
        assert text.count("  Hello\n  world\n") == 1
        assert text.count("[bash: ls]") == 1
        assert "cut off" not in text


def test_an_answer_that_never_ended_is_told_by_its_pieces(shell: Shell) -> None:
    path = with_chunks(shell, "cut", whole=False)
    for options in ((), ("--speed", "50")):
        assert shell.run("replay", path, *options).stdout.endswith("  Hello\n  world\n  … cut off here\n\n")


def test_a_dsh_log_is_replayed_in_our_words_and_its_json_in_its_own(shell: Shell, tmp_path: Path) -> None:
    log = Log("of-dsh")
    log.tool_turn("Look at it", "cat a.ts", "It is fine.")
    path = str(log.write(tmp_path / "dsh", zstd=True))
    text = shell.run("replay", path).stdout
    assert text.count("It is fine.") == 1
    assert text.index("Look at it") < text.index("[bash: cat a.ts]") < text.index("It is fine.")
    stored = [json.loads(line) for line in shell.run("replay", path, "--json").stdout.splitlines()]
    assert {"user/message", "assistant/message", "tool/call"} <= {event["type"] for event in stored}


# --- replay on a terminal


def resize(number: int, columns: int, lines: int) -> None:
    fcntl.ioctl(number, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


class Terminal:
    """`dshd` on a terminal of its own, and what stands on it."""

    def __init__(self, shell: Shell, *args: str, columns: int = 80, lines: int = 24) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(shell.cwd)
            resize(0, columns, lines)
            env = {name: value for name, value in shell.env.items() if name not in {"COLUMNS", "LINES"}}
            os.execve(DSHD[0], [*DSHD, *args], env | {"NO_COLOR": "1"})
        self.out = ""
        self.code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def type(self, keys: str) -> None:
        self.out = ""
        os.write(self.fd, keys.encode())

    def read(self, seconds: float) -> bool:
        """Take what comes within some time; False at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.out += data.decode(errors="replace")
        return bool(data)

    def shows(self, *wanted: str) -> str:
        """Wait until all of this stands on the screen at once; the screen."""
        until = time.monotonic() + PATIENCE
        while not all(text in (screen := self.screen()) for text in wanted):
            assert time.monotonic() < until, (wanted, screen)
            assert self.read(0.2), (wanted, self.out)
        return screen

    def screen(self) -> str:
        """What was drawn last: from the last time that it began at the top."""
        return _CONTROL.sub("", self.out[self.out.rfind("\x1b[H") :])

    def rest(self) -> str:
        """All that it writes until it ends."""
        until = time.monotonic() + PATIENCE
        while self.read(0.5):
            assert time.monotonic() < until, self.out
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return _CONTROL.sub("", self.out)

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.fd)[3] & termios.ECHO)


RIGHT, LEFT, UP, DOWN = "\x1b[C", "\x1b[D", "\x1b[A", "\x1b[B"


def test_keys_lead_through_a_session(shell: Shell) -> None:
    path = broken(shell, "keys", "src/keys.ts")
    with Terminal(shell, "replay", path, "--from", "aaaa0001") as at:
        at.shows("Set up the config", "■ 1 of 16 · turn 1 · 1x")
        at.type(RIGHT)
        assert "There." not in at.shows("I write it.", "■ 2 of 16")
        at.type(RIGHT + RIGHT)
        at.shows("There.", "■ 4 of 16")
        at.type(LEFT)
        assert "There." not in at.shows("■ 3 of 16")
        at.type(DOWN)
        at.shows("Port from the environment", "■ 5 of 16 · turn 2")
        at.type(DOWN)
        at.shows("Clean up", "■ 11 of 16 · turn 3")
        at.type(UP)
        assert "Clean up" not in at.shows("■ 5 of 16 · turn 2")
        at.type("G")
        at.shows("Clean.", "■ 16 of 16")
        at.type("g")
        at.shows("■ 1 of 16")
        at.type("++-")
        at.shows("2x")
        at.type("q")
        at.rest()
        assert at.code == 0


def test_it_plays_by_itself_and_space_holds_it(shell: Shell) -> None:
    path = broken(shell, "plays", "src/plays.ts")
    with Terminal(shell, "replay", path, "--speed", "8") as at:
        at.shows("▶", "I write it.")
        at.type(" ")
        at.shows("■")
        at.type(" ")
        at.shows("■ 16 of 16", "Clean.")
        at.type("\x1b")
        at.rest()
        assert at.code == 0


def test_pieces_of_an_answer_appear_as_they_came(shell: Shell) -> None:
    path = with_chunks(shell, "seen", whole=True)
    with Terminal(shell, "replay", path, "--speed", "0.125") as at:
        assert "world" not in at.shows("assistant …", "Hel")
        at.type("+" * 9)
        screen = at.shows("Hello", "world", "[bash: ls]")
        assert "assistant …" not in screen
        at.type("q")
        at.rest()


@pytest.mark.parametrize(("how", "code"), [("\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_terminal_is_given_back_however_it_ends(shell: Shell, how: Any, code: int) -> None:
    path = broken(shell, "back", "src/back.ts")
    with Terminal(shell, "replay", path) as at:
        at.shows("of 16")
        assert not at.echoes
        if isinstance(how, str):
            at.type(how)
        else:
            os.kill(at.pid, how)
        at.rest()
        assert at.code == code
        assert at.out.endswith("\x1b[?1049l\x1b[?25h")
        if sys.platform == "linux":
            assert at.echoes


def test_a_resize_draws_anew_and_no_line_is_too_long(shell: Shell) -> None:
    from dsh_daemon.cli.render import cells

    long = "긴 문장과 a long sentence " * 20
    path = shell.session("wide", [user("aaaa0001", None, long, 1), assistant("aaaa0002", "aaaa0001", long, 2)])
    with Terminal(shell, "replay", path, "--from", "aaaa0001", columns=100, lines=30) as at:
        at.shows("of 2")
        for columns, lines in ((40, 12), (20, 5), (24, 3), (12, 2), (120, 40)):
            at.out = ""
            resize(at.fd, columns, lines)
            at.shows("of 2")
            drawn = at.screen().split("\r\n")
            assert len(drawn) == lines
            assert max(map(cells, drawn)) <= columns
        at.type("q")
        at.rest()


def test_what_is_longer_than_the_screen_begins_at_its_top_and_can_be_paged(shell: Shell) -> None:
    many = "\n".join(f"line {n}" for n in range(100))
    path = shell.session("long", [user("aaaa0001", None, "Say", 1), assistant("aaaa0002", "aaaa0001", many, 2)])
    with Terminal(shell, "replay", path, "--from", "aaaa0001") as at:
        at.shows("of 2")
        at.type(RIGHT)
        assert "line 99" not in at.shows("line 0", "line 5")
        for _ in range(9):
            at.type("\x1b[6~")
            at.shows("of 2")
        at.shows("line 99")
        at.type("q")
        at.rest()


def test_a_renamed_file_leads_on_to_its_other_name(shell: Shell) -> None:
    moved = [call("c", "bash", command="git mv src/old-name.ts src/new-name.ts")]
    shell.session(
        "renamed", [user("aaaa0001", None, "Rename", 1), assistant("aaaa0002", "aaaa0001", "", 2, calls=moved)]
    )
    with Terminal(shell, "touched", "old-name.ts", columns=120) as at:
        assert f"after that, it is src/new-name.ts: `{NAME} touched src/new-name.ts`" in at.rest()
    with Terminal(shell, "touched", "new-name.ts", columns=120) as at:
        assert f"before, it was src/old-name.ts: `{NAME} touched src/old-name.ts`" in at.rest()


@pytest.mark.parametrize("name", ["my file.ts", "-n", "it's.ts", "설정.ts"])
def test_the_command_for_the_other_name_can_be_typed_as_it_is_shown(shell: Shell, name: str) -> None:
    moved = [call("c", "edit", path="odd.ts", rename=name)]
    shell.session("odd", [user("aaaa0001", None, "Rename", 1), assistant("aaaa0002", "aaaa0001", "", 2, calls=moved)])
    with Terminal(shell, "touched", "odd.ts", columns=120) as at:
        shown = at.rest().partition(f"it is {name}: `{NAME} ")[2].partition("`")[0]
    assert f"→ {name}" in shell.run(*shlex.split(shown)).stdout.replace("odd.ts → ", "→ ")
