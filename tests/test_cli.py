"""The terminal client as a person and a shell script meet it: real processes against a real daemon."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from dsh_daemon.cli.render import ending

from .dsh_logs import Log
from .support import assistant, entry, header, tool_result, user, write_log

DSHD = [sys.executable, "-m", "dsh_daemon"]
COMMANDS = [
    "list", "tree", "leaves", "show", "family", "turns", "request", "stats", "transcript", "search", "touched",
    "replay", "watch", "demo",
    "create", "navigate", "branch", "fork", "compact", "label", "rename", "append", "move", "draft", "archive", "pin",
    "delete", "resume", "agent", "status", "serve", "stdio", "stop", "doctor", "config", "socket-path",
]  # fmt: skip
HOSTILE = "\x1b]0;evil\x07 \r\n 漢字 👩\u200d👩\u200d👧 \u202etxt.exe\x9b31m"


# Imports once what every command imports, then forks a process for each: what is tested is not how Python starts.
FORKS = """
import io, json, os, socket, sys
from importlib import import_module
for name in sys.argv[2:]:
    import_module(name)
from dsh_daemon.__main__ import main
link = socket.socket(fileno=int(sys.argv[1]))
while True:
    data, fds, *_ = socket.recv_fds(link, 1 << 20, 3)
    if not data:
        break
    pid = os.fork()
    if not pid:
        link.close()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        order = json.loads(data)
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["env"])
        files = (open(number, "w" if number else "r", encoding="utf-8", closefd=False) for number in range(3))
        sys.stdin, sys.stdout, sys.stderr = files
        sys.argv = ["dsh_daemon/__main__.py", *order["args"]]
        try:
            sys.exit(main(order["args"]))
        except SystemExit as exc:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exc.code or 0)
    for fd in fds:
        os.close(fd)
    link.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
LOADED = [
    f"dsh_daemon.cli.{name}"
    for name in (
        "agents", "app", "changing", "daemon", "moving", "reading", "replay", "reporting", "searching", "touched",
        "watch",
    )
]  # fmt: skip


class Forks:
    """Runs commands in processes that are forked from one."""

    def __init__(self, env: dict[str, str]) -> None:
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(60)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", FORKS, str(theirs.fileno()), *LOADED], pass_fds=[theirs.fileno()], env=env
            )

    def run(self, args: Sequence[str], data: bytes, cwd: Path, env: dict[str, str]) -> tuple[int, str, str]:
        with TemporaryFile() as stdin, TemporaryFile() as out, TemporaryFile() as err:
            stdin.write(data)
            stdin.seek(0)
            order = json.dumps({"args": args, "cwd": str(cwd), "env": env}).encode()
            socket.send_fds(self.link, [order], [file.fileno() for file in (stdin, out, err)])
            code = int(self.link.recv(16))
            out.seek(0)
            err.seek(0)
            return code, out.read().decode(), err.read().decode()

    def close(self) -> None:
        self.link.close()
        self.process.wait(20)


def interruptible() -> None:
    """What a shell's background job inherits is a SIGINT that is ignored; a person at a terminal has another."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Shell:
    """Runs `dshd` in an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "sessions"
        self.cwd = folder / "proj"
        self.root.mkdir()
        self.cwd.mkdir()
        dropped = re.compile("DSHD_|XDG_|(NO_COLOR|FORCE_COLOR|COLUMNS|LINES)$")
        keep = {name: value for name, value in os.environ.items() if not dropped.match(name)}
        self.env = keep | {
            "DSHD_HOME": str(folder / "home"),
            "DSHD_ROOTS": f"pi={self.root}",
            "PYTHONPATH": str(Path(os.path.abspath(__file__)).parents[1]),
            "TERM": "xterm-256color",
        }
        self.forks: Forks | None = None

    def run(self, *args: str, stdin: str | bytes = "", code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        self.forks = self.forks or Forks(self.env)
        done = subprocess.CompletedProcess(args, *self.forks.run(args, data, self.cwd, self.env | env))
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        return done

    def run_anew(self, *args: str, **env: str) -> subprocess.CompletedProcess[bytes]:
        """Run `dshd` as a process of its own from the start."""
        return subprocess.run(
            [*DSHD, *args], stdin=subprocess.DEVNULL, capture_output=True, env=self.env | env, cwd=self.cwd, timeout=60
        )

    def close(self) -> None:
        self.run("stop")
        if self.forks:
            self.forks.close()

    def json(self, *args: str, **options: Any) -> Any:
        return json.loads(self.run(*args, "--json", **options).stdout)

    def session(self, name: str, entries: list[dict[str, Any]], **head: Any) -> str:
        """Write a session file; its path, which names it to every command."""
        path = self.root / "--proj--" / f"2026-01-01T00-00-00-000Z_{name}.jsonl"
        return str(write_log(path, entries, header(name, **{"cwd": str(self.cwd), **head})))

    def story(self, name: str) -> str:
        """Two ways after one prompt; the leaf is `bbbb0004`, the last line."""
        call = {"id": "c1", "name": "read", "arguments": {"path": "src/a.ts"}}
        return self.session(name, [
            user("aaaa0001", None, "Find the bug", 1),
            assistant("aaaa0002", "aaaa0001", "", 2, calls=[call]),
            tool_result("aaaa0003", "aaaa0002", "c1", "text", 3, name="read"),
            assistant("aaaa0004", "aaaa0003", "It is in line 3.", 4),
            user("cccc0001", "aaaa0004", "Rewrite everything", 5),
            assistant("cccc0002", "cccc0001", "Done, sadly.", 6),
            user("bbbb0003", "aaaa0004", "Fix the line only", 7),
            assistant("bbbb0004", "bbbb0003", "Fixed.", 8),
        ])  # fmt: skip


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("cli"))
    yield shell
    shell.close()


def without_ids(text: str) -> list[str]:
    return [line[10:] for line in text.splitlines()]


# --- what is printed


def test_the_tree_reads_as_in_the_editors(shell: Shell) -> None:
    lines = shell.run("tree", shell.story("drawn")).stdout.splitlines()
    assert re.fullmatch(r"● Find the bug +pi · .* · 8 entries", lines[0])
    assert [line[10:] for line in lines[1:]] == [
        "user       Find the bug",
        "[read: src/a.ts]",
        "assistant  It is in line 3.",
        "├─ user       Fix the line only",
        "│  assistant  Fixed.  ← leaf",
        "└─ user       Rewrite everything",
        "   assistant  Done, sadly.",
    ]
    assert lines[1][:8] == "aaaa0001"


def test_a_folded_branch_is_one_line_with_its_size(shell: Shell) -> None:
    lines = without_ids(shell.run("tree", shell.story("folded"), "--fold").stdout)
    assert lines[-1] == "└─ ▸ user       Rewrite everything  (1)"


def test_filters_queries_and_windows_are_the_protocols(shell: Shell) -> None:
    path = shell.story("windows")
    assert len(shell.json("tree", path)["rows"]) == 7
    assert len(shell.json("tree", path, "--all")["rows"]) == 8
    assert [row["id"] for row in shell.json("tree", path, "--filter", "user-only", "--query", "fix")["rows"]] == [
        "bbbb0003"
    ]
    window = shell.json("tree", path, "--around", "leaf", "-n", "1")
    assert [row["id"] for row in window["rows"]] == ["bbbb0004"]
    assert window["total"] == 7
    assert [row["id"] for row in shell.json("tree", path, "--at", "cccc0001")["rows"]][-1] == "cccc0002"


def test_a_long_tree_is_streamed_whole_and_its_json_is_one_document(shell: Shell) -> None:
    entries = [user("e0", None, "first", 0)] + [user(f"e{i}", f"e{i - 1}", f"message {i}", i) for i in range(1, 6200)]
    path = shell.session("long", entries)
    assert len(shell.run("tree", path, "--no-ids").stdout.splitlines()) == 6201
    document = shell.json("tree", path)
    assert [row["id"] for row in document["rows"]] == [f"e{i}" for i in range(6200)]
    assert document["total"] == 6200
    assert document["start"] == 0


def test_a_pipe_sees_no_colour_and_no_cut_lines(shell: Shell) -> None:
    path = shell.session("wide", [user("aaaa0001", None, "word " * 45, 1)])
    out = shell.run("tree", path).stdout
    assert "\x1b" not in out
    assert "word " * 44 in out


@pytest.mark.parametrize("command", ["list", "tree", "leaves", "show", "turns", "stats"])
def test_a_narrow_terminal_cuts_and_never_wraps(shell: Shell, command: str) -> None:
    path = shell.session(
        "narrow", [user("aaaa0001", None, "漢字漢字漢字漢字 and a great many words that do not fit", 1)]
    )
    args = [command] if command == "list" else [command, path]
    from rich.cells import cell_len

    lines = shell.run(*args, COLUMNS="40").stdout.splitlines()
    whole = [line for line in lines if line.endswith(path)]
    assert max(cell_len(line) for line in lines if line not in whole) <= 40
    assert len(whole) == (command == "show")  # a path is for copying


def test_hostile_text_cannot_steer_the_terminal_a086(shell: Shell) -> None:
    path = shell.session(
        "hostile", [user("aaaa0001", None, HOSTILE, 1), entry("session_info", "aaaa0002", "aaaa0001", 2, name=HOSTILE)]
    )
    for args in (
        ["list"],
        ["tree", path, "--all"],
        ["show", path],
        ["show", path, "aaaa0001"],
        ["leaves", path],
        ["family", path],
        ["turns", path],
        ["transcript", path],
        ["transcript", path, "--format", "jsonl"],
        ["show", path, "--context"],
    ):
        plain = shell.run(*args).stdout
        assert "漢字" in plain, args
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", plain), args
        raw = shell.run(*args, "--json").stdout
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", raw), args
    stored = shell.json("show", path, "aaaa0001")["entries"][0]["message"]["content"][0]["text"]
    assert stored == HOSTILE


def test_an_entry_is_shown_whole_and_a_session_with_its_facts(shell: Shell) -> None:
    path = shell.story("shown")
    assert shell.run("show", path, "leaf").stdout.splitlines()[1:] == ["Fixed."]
    facts = shell.run("show", path).stdout
    assert re.search(r"id +shown\n", facts)
    assert re.search(r"leaf +bbbb0004\n", facts)


def test_leaves_are_the_tips_of_all_branches(shell: Shell) -> None:
    path = shell.story("tips")
    lines = shell.run("leaves", path).stdout.splitlines()
    assert {line[:8] for line in lines} == {"cccc0002", "bbbb0004"}
    assert [line[:8] for line in lines if line.endswith("← leaf")] == ["bbbb0004"]


# --- json


def test_json_is_the_protocols_result_and_nothing_else(shell: Shell) -> None:
    path = shell.story("shapes")
    keys = {
        ("list",): {"items", "total", "skipped", "complete"},
        ("tree", path): {"epoch", "revision", "leafId", "total", "start", "rows"},
        ("leaves", path): {"items"},
        ("show", path): {"sessionId", "epoch", "revision", "leafId", "diagnostics", "can"},
        ("show", path, "leaf"): {"entries", "missing"},
        ("family", path): {"root", "ancestors", "sessions", "complete"},
        ("turns", path): {"turns", "derived"},
        ("stats", path): {"turns", "messages", "tokens", "cost", "models", "activePath", "inherited"},
        ("transcript", path): {"text"},
        ("show", path, "--context"): {"messages", "models", "thinkingLevel", "mode", "injectedRules", "sources"},
        ("draft", path): {"text"},
        ("navigate", path, "aaaa0004", "--preview"): {
            "outcome",
            "oldLeafId",
            "leafId",
            "commonAncestorId",
            "abandoned",
            "revision",
        },
        ("label", path, "aaaa0004", "here"): {"stored", "labelEntryId", "leafId", "revision"},
        ("move", path, "aaaa0004"): {"oldLeafId", "leafId", "revision"},
        ("branch", path, "cccc0001"): {"outcome", "session", "path", "editorText", "previousSessionId"},
        ("rename", path, "A title"): {"stored", "revision"},
        ("status",): {"state", "pid", "version", "protocolVersion", "roots", "connections"},
        ("doctor",): {"checked", "problems", "fixed"},
        ("config",): {"settings", "folders", "roots"},
        ("create", "--title", "New"): {"sessionId", "path", "epoch", "revision", "leafId"},
    }
    for args, wanted in keys.items():
        assert wanted <= shell.json(*args).keys(), args
    assert shell.json("pin", path) == {}
    assert shell.json("archive", path) == {}


@pytest.mark.parametrize(
    ("path", "width", "shown"),
    [("/home/a", None, "/home/a"), ("/home/a", 7, "/home/a"), ("/home/a", 5, "…me/a"), ("~/작업/코드", 7, "…/코드")],
)
def test_of_a_path_that_is_too_long_the_end_is_shown(path: str, width: int | None, shown: str) -> None:
    assert ending(path, width) == shown


def test_the_doctor_tells_everything_on_a_narrow_terminal(shell: Shell) -> None:
    asked = assistant("aaaa0002", "aaaa0001", calls=[{"id": "c1", "name": "bash", "arguments": {}}])
    shell.session("cut-off-in-a-tool", [user("aaaa0001", None, "Go", 1), asked])
    out = shell.run("doctor", COLUMNS="50").stdout
    assert max(map(len, out.splitlines())) <= 50
    assert re.search(r"cut-off-in-a-tool\.jsonl +dangling\n(  .*\n)+?.*last safe\s+entry is aaaa0001\n", out)


def test_list_gives_all_items_however_many_pages(shell: Shell) -> None:
    listed = shell.json("list")
    assert len(listed["items"]) == listed["total"]
    assert len(shell.json("list", "--limit", "1")["items"]) == 1


def test_a_pipe_is_told_on_stderr_that_nothing_was_found(shell: Shell) -> None:
    path = shell.session("empty-in-a-pipe", [])
    for args, said in (
        (("turns", path), "no turns yet"),
        (("leaves", path), "no entries yet"),
        (("list", "-q", "no such words"), "no session matches"),
        (("search", "nosuchwordsatall"), "no session has that"),
        (("touched", "no/such/file.c"), "no session touched no/such/file.c"),
    ):
        done = shell.run(*args)
        assert (done.stdout, done.stderr) == ("", f"dshd: {said}\n"), args
        assert shell.run(*args, "--json").stderr == ""


# --- changing


def test_navigate_gives_the_prompt_back_and_back_returns(shell: Shell) -> None:
    path = shell.story("moves")
    out = shell.run("navigate", path, "bbbb0003").stdout
    assert "moved bbbb0004 → aaaa0004" in out
    assert "  │ Fix the line only" in out.splitlines()
    assert shell.run("draft", path).stdout == "Fix the line only\n"
    assert shell.json("navigate", path, "--back")["leafId"] == "bbbb0004"
    assert shell.json("navigate", path, "root")["leafId"] is None
    assert shell.run("navigate", path, "leaf", code=1).stderr.startswith("dshd: entryNotFound: ")


def test_entries_are_named_by_a_prefix_that_is_unique(shell: Shell) -> None:
    path = shell.story("prefixes")
    assert shell.json("navigate", path, "aaaa0004")["leafId"] == "aaaa0004"
    assert shell.json("move", path, "cccc0002")["leafId"] == "cccc0002"
    assert shell.json("show", path, "bbbb0003")["entries"][0]["id"] == "bbbb0003"
    refused = shell.run("show", path, "aaaa", code=1).stderr
    assert refused.startswith("dshd: invalidReference: 'aaaa' begins 4 entry ids: aaaa0001")
    assert shell.run("show", path, "zzzz", code=1).stderr.startswith("dshd: entryNotFound: ")


def test_append_reads_an_object_an_array_or_lines(shell: Shell) -> None:
    path = shell.story("grown")
    one = {"type": "message", "message": {"role": "user", "content": "Go on"}}
    first = shell.json("append", path, stdin=json.dumps(one))["ids"]
    assert len(shell.json("append", path, stdin=json.dumps([one, one]))["ids"]) == 2
    lines = shell.run(
        "append", path, "--parent", first[0], stdin=f"{json.dumps(one)}\n\n{json.dumps(one)}\n"
    ).stdout.splitlines()
    assert shell.json("show", path)["leafId"] == lines[-1]
    assert shell.run("append", path, stdin="{", code=1).stderr.startswith("dshd: invalidEntry: ")
    assert shell.run("append", path, stdin="", code=1).stderr.startswith("dshd: invalidEntry: ")


def test_expect_makes_a_change_conditional(shell: Shell) -> None:
    path = shell.story("conditions")
    refused = shell.run("label", path, "aaaa0004", "x", "--expect", "aaaa0001", code=1)
    assert refused.stderr.startswith("dshd: leafMoved: ")
    assert shell.run("label", path, "aaaa0004", "x", "--expect", "leaf").stdout.startswith("⚑ x")
    assert shell.run("label", path, "aaaa0004").stdout == "no label on aaaa0004\n"


def test_branch_makes_a_file_and_family_shows_it(shell: Shell) -> None:
    path = shell.story("parent")
    before = Path(path).read_bytes()
    made = shell.json("branch", path, "cccc0001")
    assert made["editorText"] == "Rewrite everything"
    assert Path(made["path"]).is_file()
    assert Path(path).read_bytes() == before
    drawn = shell.run("family", made["path"]).stdout.splitlines()
    assert len(drawn) == 2
    assert drawn[1].startswith("└─ ")
    assert drawn[1].endswith("← this")
    copy = shell.json("branch", path)
    assert copy["session"]["entryCount"] == 6


def test_create_rename_archive_delete(shell: Shell) -> None:
    made = shell.json("create", "--title", "Fresh start", "--id", "fresh-1")
    assert made["cwd"] == str(shell.cwd)
    shell.run("rename", "fresh-1", "Renamed")
    assert shell.json("show", "Renamed")["sessionId"] == "fresh-1"
    shell.run("archive", "fresh-1")
    assert "fresh-1" not in {item["sessionId"] for item in shell.json("list")["items"]}
    assert "fresh-1" in {item["sessionId"] for item in shell.json("list", "--archived")["items"]}
    shell.run("archive", "fresh-1", "--off")
    assert "fresh-1" in {item["sessionId"] for item in shell.json("list", "--here")["items"]}
    trash = shell.json("delete", "fresh-1")["trashPath"]
    assert Path(trash).is_file()
    assert not Path(made["path"]).exists()


def last_line(path: str) -> dict[str, Any]:
    return json.loads(Path(path).read_bytes().splitlines()[-1])


def test_a_kept_move_is_the_last_line_of_the_file_where_pi_starts(shell: Shell) -> None:
    path = shell.story("kept")
    before = Path(path).read_bytes()
    told = shell.run("navigate", path, "cccc0002").stdout
    assert "pi starts at the last line of its file" in told
    assert f"navigate {path} --keep`" in told
    assert Path(path).read_bytes() == before
    kept = shell.json("navigate", path, "--keep")
    assert (kept["outcome"], kept["leafId"]) == ("unchanged", kept["pinnedEntryId"])
    assert last_line(path) | {"timestamp": ""} == {
        "type": "custom",
        "customType": "dsh-daemon/leaf",
        "id": kept["leafId"],
        "parentId": "cccc0002",
        "timestamp": "",
    }
    size = Path(path).stat().st_size
    assert "--keep" not in shell.run("navigate", path, "--keep").stdout
    assert Path(path).stat().st_size == size
    shell.run("navigate", path, "root", "--keep")
    assert last_line(path)["parentId"] is None
    assert "--keep" not in shell.run("navigate", path, "aaaa0004", "--label", "here").stdout
    assert last_line(path)["type"] == "label"


def test_the_leaf_that_is_labelled_is_the_row_that_the_tree_marks(shell: Shell) -> None:
    path = shell.story("hidden-leaf")
    shell.run("navigate", path, "aaaa0004", "--keep")
    assert shell.run("label", path, "leaf", "good").stdout == "⚑ good  on aaaa0004\n"
    marked = [line for line in shell.run("tree", path).stdout.splitlines() if "← leaf" in line]
    assert marked[0].split()[-4:] == ["⚑", "good", "←", "leaf"]


@pytest.mark.parametrize("args", [["label", "root", "x"], ["show", "root"], ["branch", "root"]])
def test_root_is_no_entry(shell: Shell, args: list[str]) -> None:
    refused = shell.run(args[0], shell.story("no-root"), *args[1:], code=1).stderr
    assert refused.startswith("dshd: invalidReference: `root` is the place before the first entry; name the first")


def test_a_title_of_two_sessions_is_refused_with_what_tells_them_apart(shell: Shell) -> None:
    path = shell.session("ambiguous-one", [user("aaaa0001", None, "An ambiguous beginning", 1)])
    made = shell.run("branch", path).stdout.splitlines()
    ref = re.fullmatch("  continue with `.+ resume ([^ ]+)`", made[-1])
    assert ref
    assert shell.json("show", ref[1])["parentSessionId"] == "ambiguous-one"
    refused = shell.run("tree", "ambiguous beginning", code=1).stderr.splitlines()
    assert refused[0].startswith("dshd: ambiguousSession: ")
    assert len(refused) == 3
    for line in refused[1:]:
        assert re.fullmatch(r"  \S{8,} +An ambiguous beginning  pi  \S.*", line)
        assert shell.json("show", line.split()[0])["title"] == "An ambiguous beginning"


def test_going_back_where_nothing_was_left_says_so(shell: Shell) -> None:
    assert shell.run("navigate", shell.story("unmoved"), "--back").stdout == "nothing to go back to\n"


def test_a_family_is_drawn_as_a_tree(shell: Shell) -> None:
    path = shell.story("ancestor")
    first = shell.json("branch", path, "--id", "first-child")["path"]
    shell.run("branch", path, "--id", "second-child")
    shell.run("branch", first, "--id", "grandchild")
    drawn = shell.run("family", path).stdout.splitlines()
    assert [line.partition("Find")[0] for line in drawn] == ["", "├─ ", "│  └─ ", "└─ "]


# --- turns, requests, sums, documents


def test_turns_say_where_each_was_closed_and_how_it_ended(shell: Shell) -> None:
    path = shell.story("turned")
    assert shell.run("turns", path).stdout.splitlines() == [
        "1  aaaa0004  done         2 steps   Find the bug",
        "2  bbbb0004  done         1 step    Fix the line only",
    ]
    assert shell.run("turns", path, "aaaa0002").stdout.splitlines() == ["1    open         1 step    Find the bug"]
    assert "by the messages alone" in terminal(shell, "turns", path)
    assert "no turns yet" in terminal(shell, "turns", shell.session("no-turns", []))


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_turns_fit_into_any_terminal(shell: Shell, width: int) -> None:
    path = shell.story(f"turned-{width}")
    lines = shell.run("turns", path, COLUMNS=str(width)).stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert all(line.startswith(f"{number}  ") for number, line in enumerate(lines, 1))
    assert lines[1][-4:] == "only" or lines[1].endswith("…")


def test_stats_are_a_table_of_the_session_its_path_and_its_models(shell: Shell) -> None:
    lines = shell.run("stats", shell.story("summed")).stdout.splitlines()
    assert lines[0].split() == ["cost", "turns", "messages", "input", "output", "cache", "read", "cache", "write"]
    assert lines[1].split() == ["this", "session", "$0.0000", "3", "8", "4", "4", "0", "0"]
    assert lines[2].split() == ["way", "to", "the", "leaf", "$0.0000", "2", "6", "3", "3", "0", "0"]
    assert lines[3].split() == ["mock/mock-1", "$0.0000", "4", "4", "0", "0"]


@pytest.mark.parametrize("width", [30, 50, 60, 80, 90, 100, 200])
def test_stats_of_a_model_with_a_long_name_fit_into_any_terminal(shell: Shell, width: int) -> None:
    provider, model = "a-provider-of-many", "a-model-with-a-very-long-name"
    used = {"input": 123_456, "output": 7_890, "cacheRead": 1, "cacheWrite": 2, "cost": {"total": 1.5}}
    answer = assistant("aaaa0002", "aaaa0001", "Hi.", usage=used, provider=provider, model=model)
    path = shell.session(f"summed-{width}", [user("aaaa0001", None, "Hello"), answer])
    lines = shell.run("stats", path, COLUMNS=str(width)).stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert "$1.5" in lines[1]
    assert ("input" in lines[0]) == (width >= 50)
    assert ("cache write" in lines[0]) == (width >= 80)
    assert "…" not in lines[0] + lines[1] + lines[2]
    assert (f"{provider}/{model}" in lines[3]) == (width >= 200)


def test_the_sections_of_a_system_prompt_are_shown(shell: Shell) -> None:
    prompt = {"role": "system", "content": "", "sections": {"rules": "Be kind.", "tools": "None."}}
    path = shell.session("sections", [entry("message", "aaaa0001", None, message=prompt), user("b", "aaaa0001", "Hi")])
    said = ["  Be kind.", "  None."]
    lines = shell.run("show", path, "--context").stdout.splitlines()
    assert lines[lines.index("system") + 1 :][:2] == said
    assert shell.run("replay", path).stdout.splitlines()[1:3] == said
    assert [line.strip() for line in said] == shell.run("show", path, "aaaa0001").stdout.splitlines()[1:]


def test_a_transcript_goes_to_the_screen_or_to_a_file_of_ones_own(shell: Shell, tmp_path: Path) -> None:
    path = shell.story("written")
    text = shell.run("transcript", path).stdout
    assert text.startswith("# Find the bug\n")
    assert "> Fixed.\n" in text
    assert "Fixed." not in shell.run("transcript", path, "aaaa0004").stdout
    target = tmp_path / "talk.html"
    assert re.fullmatch(r".*talk\.html  [\d.]+ kB\n", shell.run("transcript", path, "-o", str(target)).stdout)
    assert target.stat().st_mode & 0o777 == 0o600
    assert target.read_text().startswith("<!doctype html>")
    there = shell.run("transcript", path, "-o", str(target), code=1)
    assert re.fullmatch(r"dshd: alreadyExists: .*talk\.html is there already; --force overwrites it\n", there.stderr)
    target.chmod(0o644)
    shell.run("transcript", path, "--format", "jsonl", "-o", str(target), "--force")
    assert target.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()][-1] == "bbbb0004"
    nowhere = shell.run("transcript", path, "-o", str(tmp_path / "no" / "x.md"), code=1).stderr
    assert re.fullmatch(r"dshd: storageError: .*x\.md: No such file or directory\n", nowhere)


def test_show_context_is_what_a_model_would_see(shell: Shell) -> None:
    path = shell.story("contexts")
    lines = shell.run("show", path, "--context").stdout.splitlines()
    assert lines[:4] == ["  model     mock/mock-1", "  thinking  off", "  mode      none", "  messages  6"]
    assert lines[5:7] == ["user", "  Find the bug"]
    assert lines[8:10] == ["assistant", '  [read] {"path": "src/a.ts"}']
    assert lines[11:13] == ["toolResult  read", "  text"]
    above = shell.json("show", path, "aaaa0001", "--context", "--format", "openai")
    assert [message["role"] for message in above["messages"]] == ["user"]
    for format_ in ("openai", "anthropic"):
        shown = shell.run("show", path, "--context", "--format", format_).stdout
        assert '  [read] {"path":' in shown
        assert "  Fixed." in shown


def test_a_request_that_was_recorded_is_shown_as_it_was_sent(shell: Shell) -> None:
    header_ = {"config": {"model": "m1", "maxTokens": 9}, "system": "Be brief.", "tools": [{"name": "read"}, {"x": 1}]}
    path = shell.session("sent", [
        entry("turn_start", "aaaa0001", None, 1, turn=1),
        user("aaaa0002", "aaaa0001", "Hello", 2),
        entry("request_header", "aaaa0003", "aaaa0002", 3, header=header_, reason="initial"),
        entry("step_start", "aaaa0004", "aaaa0003", 4, turn=1, step=1),
        assistant("aaaa0005", "aaaa0004", "Hi.", 5),
    ], generator="dsh-daemon/1")  # fmt: skip
    assert shell.run("request", path, "1").stdout.splitlines() == [
        "  model      m1",
        "  maxTokens  9",
        "  tools      read, ?",
        "",
        "system",
        "  Be brief.",
        "",
        "user",
        "  Hello",
    ]
    assert shell.json("request", path, "1", "1")["header"] == header_
    missing = shell.run("request", path, "1", "2", code=1).stderr
    assert re.fullmatch("dshd: notRecorded: [^\n]+\n", missing)


def test_one_command_says_what_a_restart_cut_off(shell: Shell) -> None:
    call = {"id": "c1", "name": "bash", "arguments": {"command": "make"}}
    shell.session(
        "cut-off", [user("aaaa0001", None, "Build", 1), assistant("aaaa0002", "aaaa0001", "", 2, calls=[call])]
    )
    shell.story("finished")
    found = {info["sessionId"] for info in shell.json("list", "--tail", "open,interrupted,pendingTool")["items"]}
    assert "cut-off" in found
    assert "finished" not in found
    assert found == {
        info["sessionId"] for info in shell.json("list", "--tail", "open", "--tail", "interrupted,pendingTool")["items"]
    }


# --- going on with the agent's own program


def program(folder: Path, name: str) -> str:
    """A program that says how it was started; a PATH where it is found."""
    path = folder / name
    path.write_text('#!/bin/sh\necho "$PWD|$PI_CODING_AGENT_DIR"\nprintf "%s\\n" "$@"\n')
    path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_resume_prints_the_command_of_the_agents_program_for_a_shell(shell: Shell) -> None:
    path = shell.story("to-resume")
    wanted = f"pi --session {path}"
    assert shell.run("resume", path).stdout == wanted + "\n"
    assert shell.run("resume", path, "--print", "--", "--model", "a b").stdout == f"{wanted} --model 'a b'\n"
    assert shell.json("resume", path) == {"argv": ["pi", "--session", path], "cwd": str(shell.cwd)}
    away = shell.session("away", [user("aaaa0001", None, "Hi", 1)], cwd=str(shell.root))
    assert shell.run("resume", away).stdout == f"cd {shell.root} && pi --session {away}\n"


def test_resume_runs_the_agents_program_where_the_leaf_is(shell: Shell, tmp_path: Path) -> None:
    path = shell.story("to-run")
    shell.run("navigate", path, "aaaa0004")
    out = shell.run("resume", path, "--run", "--", "--model", "a b", PATH=program(tmp_path, "pi")).stdout
    assert out.splitlines() == [f"{shell.cwd}|", "--session", path, "--model", "a b"]
    last = json.loads(Path(path).read_bytes().splitlines()[-1])
    assert (last["type"], last["parentId"]) == ("custom", "aaaa0004")


def test_what_cannot_be_run_is_said_before_anything_is_written(shell: Shell, tmp_path: Path) -> None:
    path = shell.story("not-to-run")
    shell.run("navigate", path, "aaaa0004")
    before = Path(path).read_bytes()
    missing = shell.run("resume", path, "--run", PATH=str(tmp_path), code=1)
    assert (missing.stdout, missing.stderr) == ("", "dshd: notFound: there is no program `pi` on the PATH\n")
    gone = shell.session("gone", [user("aaaa0001", None, "Hi", 1)], cwd=str(tmp_path / "gone"))
    refused = shell.run("resume", gone, "--run", PATH=program(tmp_path, "pi"), code=1).stderr
    assert refused == f"dshd: notFound: the folder of this session is gone: {tmp_path / 'gone'}\n"
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize(("answer", "runs"), [("\r", True), ("y\r", True), ("n\r", False), ("\x04", False)])
def test_on_a_terminal_resume_asks_first(shell: Shell, tmp_path: Path, answer: str, *, runs: bool) -> None:
    path = shell.story("asked" + answer.strip().strip("\x04"))
    shell.run("navigate", path, "aaaa0004")
    before = Path(path).read_bytes()
    out = terminal(shell, "resume", path, typed=answer, NO_COLOR="1", PATH=program(tmp_path, "pi"))
    assert f"$ pi --session {path}" in out.replace("\r\n", "\n")
    assert "run it? [Y/n] " in out
    assert (f"{shell.cwd}|" in out) is runs
    assert (Path(path).read_bytes() != before) is runs


@pytest.mark.parametrize("command", ["resume", "fork", "agent"])
def test_what_is_not_there_is_refused_and_nothing_is_made(shell: Shell, tmp_path: Path, command: str) -> None:
    """A041, A042, A052: every command finds its session in one way, and none becomes a new one."""
    shell.story(f"there-{command}")
    before = sorted(shell.folder.rglob("*.jsonl"))
    for ref in ("no such session", str(tmp_path / "no.jsonl")):
        assert shell.run(command, ref, code=1).stderr.startswith("dshd: sessionNotFound: ")
    shell.cwd, kept = tmp_path, shell.cwd  # a folder without sessions
    try:
        assert shell.run(command, "last", code=1).stderr.startswith("dshd: sessionNotFound: ")
    finally:
        shell.cwd = kept
    assert sorted(shell.folder.rglob("*.jsonl")) == before
    listed = shell.json("list", "--cwd", str(shell.cwd))["items"]
    latest = next(item["sessionId"] for item in listed if item["tail"] != "empty")
    assert shell.json("show", "last")["sessionId"] == latest


def test_a_native_session_has_no_program_to_run(shell: Shell) -> None:
    made = shell.json("create", "--title", "Ours")
    before = Path(made["path"]).read_bytes()
    for option in (["--run"], ["--print"], ["--", "--model", "x"]):
        refused = shell.run("resume", made["sessionId"], *option, code=1).stderr
        assert refused.startswith("dshd: notSupportedByFormat: no program belongs to a native session")
    assert "nothing was cut off; the next turn is 1" in shell.run("resume", made["sessionId"]).stdout
    assert re.search("agent +nobody\n", shell.run("agent", made["sessionId"]).stdout)
    assert Path(made["path"]).read_bytes() == before


# --- sessions of dsh


@pytest.fixture
def of_dsh(shell: Shell, tmp_path: Path) -> tuple[Log, str]:
    """Two closed turns and one that was cut off; the path of the log."""
    log = Log("session-cli", cwd=str(shell.cwd))
    log.talk("Find the bug", "It is in line 3.")
    log.tool_turn("Fix it", "npm test", "Fixed.")
    log.prompt("Now the docs")
    return log, str(log.write(tmp_path / "logs"))


def number(log: Log, type_: str, turn: int) -> str:
    """Of the first event of a kind in a turn, as an entry is called."""
    start = next(e["seq"] for e in log.events if e["type"] == "turn/start" and e["data"]["turn"] == turn)
    return str(next(e["seq"] for e in log.events[start:] if e["type"] == type_))


@pytest.mark.parametrize("command", ["navigate", "move"])
def test_going_back_in_a_dsh_log_names_the_fork_that_does_it(
    shell: Shell, of_dsh: tuple[Log, str], command: str
) -> None:
    log, path = of_dsh
    refused = shell.run(command, path, number(log, "user/message", 2), code=1).stderr
    assert refused.startswith("dshd: notSupportedByFormat: a dsh log has one path and cannot go back in it; ")
    assert refused.endswith(f"fork {path} {number(log, 'turn/end', 1)}`\n")
    first = shell.run(command, path, number(log, "user/message", 1), code=1).stderr
    assert first.endswith("cannot go back in it, and no turn is closed before that place\n")


def test_a_dsh_session_is_forked_and_branched_at_closed_turns(shell: Shell, of_dsh: tuple[Log, str]) -> None:
    log, path = of_dsh
    end = number(log, "turn/end", 2)
    before = Path(path).read_bytes()
    for args in (["fork", path], ["branch", path], ["fork", path, "--turn", "3"]):
        assert shell.run(*args, code=1).stderr.endswith(f"fork {path} {end}`\n")
    out = shell.run("fork", path, "--turn", "2", "--id", "forked-cli").stdout
    assert f"begins with {int(end) + 1} events of the source up to {end}\n" in out
    out = shell.run("branch", path, number(log, "user/message", 3), "--id", "branched-cli").stdout
    assert "Now the docs" in out
    assert [turn["reason"]["kind"] for turn in shell.json("turns", "branched-cli")["turns"]] == ["completed"] * 2
    assert Path(path).read_bytes() == before


def test_labels_and_titles_of_a_dsh_session_leave_its_log_as_it_is(shell: Shell, of_dsh: tuple[Log, str]) -> None:
    log, path = of_dsh
    before = Path(path).read_bytes()
    answer = number(log, "assistant/message", 1)
    assert shell.run("label", path, answer, "the cause").stdout == f"⚑ the cause  on {answer}\n"
    assert shell.run("rename", path, "The bug").stdout == "renamed to The bug\n"
    tree = shell.run("tree", path).stdout
    assert "The bug" in tree.splitlines()[0]
    assert "It is in line 3.  ⚑ the cause" in tree
    assert Path(path).read_bytes() == before


def test_a_dsh_session_is_read_by_every_command(shell: Shell, of_dsh: tuple[Log, str]) -> None:
    _, path = of_dsh
    turns = shell.run("turns", path).stdout.splitlines()
    assert [re.split(r" {2,}", line)[-1] for line in turns] == ["Find the bug", "Fix it", "Now the docs"]
    assert "deepseek-v4-flash" in shell.run("stats", path).stdout
    assert shell.json("stats", path)["tokens"]["input"] == 300
    assert "> Now the docs" in shell.run("transcript", path).stdout
    context = shell.run("show", path, "--context").stdout
    assert "Now the docs" in context.split("\nuser\n")[-1]


def test_resuming_a_dsh_session_is_dshs_own_business(shell: Shell, of_dsh: tuple[Log, str], tmp_path: Path) -> None:
    _, path = of_dsh
    before = Path(path).read_bytes()
    piped = shell.run("resume", path)
    assert piped.stdout == "dsh web\n"
    assert re.search("nothing is changed yet: .*“Find the bug” is chosen .*; what was cut off is closed", piped.stderr)
    refused = shell.run("resume", path, "--takeover", code=1).stderr
    assert (
        refused
        == "dshd: notSupportedByFormat: nothing is taken from an agent here: dsh itself continues its sessions\n"
    )
    out = terminal(shell, "resume", path, typed="n\r", NO_COLOR="1", PATH=program(tmp_path, "dsh"))
    assert "choose “Find the bug” there to go on with it" in " ".join(out.split())
    assert Path(path).read_bytes() == before


# --- exit status and streams


def test_a_full_disk_is_one_line_and_status_1(shell: Shell) -> None:
    for args in (["status"], ["--help"], ["list"], ["config"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([*DSHD, *args], stdout=full, stderr=subprocess.PIPE, env=shell.env, cwd=shell.cwd)
        assert (done.returncode, done.stderr.decode()) == (1, "dshd: storageError: No space left on device\n"), args


def test_a_broken_config_is_named_so_whatever_finds_it(tmp_path: Path) -> None:
    broken = Shell(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text("watch = 'sometimes'\n")
    for args in (["list"], ["config"], ["serve"], ["serve", "--foreground"]):
        done = broken.run_anew(*args)
        assert done.returncode == 1
        assert re.fullmatch(rb"dshd: config: /\S+config.toml: watch: [^\n]+\n", done.stderr), (args, done.stderr)


def test_a_daemon_that_runs_is_not_asked_to_listen_elsewhere(shell: Shell, tmp_path: Path) -> None:
    pid = shell.json("list") and shell.json("status")["pid"]
    there = f"dshd: busy: a daemon runs already (pid {pid})"
    assert shell.run("serve", "--tcp", "127.0.0.1:0", code=1).stderr.startswith(f"{there} without TCP; `")
    assert shell.run("serve", "--socket", str(tmp_path / "s"), code=1).stderr.startswith(f"{there} on ")
    assert "loopback" in shell.run("serve", "--tcp", "0.0.0.0:0", code=1).stderr
    assert shell.run("serve").stdout == f"dshd: already running (pid {pid})\n"


def test_tcp_is_told_at_the_start_and_in_the_status(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    try:
        place = re.search(
            r"^TCP (127\.0\.0\.1:\d+, token in .+)$", shell.run("serve", "--tcp", "127.0.0.1:0").stdout, re.MULTILINE
        )
        assert place
        assert f"\ntcp      {place[1]}\n" in shell.run("status").stdout
    finally:
        shell.close()


def test_a_refusal_says_what_to_do(shell: Shell) -> None:
    path = shell.story("refused")
    for args, advice in (
        (("tree", "no such session"), " list` shows those that there are"),
        (("show", path, "zzzz"), " --all` shows their ids"),
        (("branch", path, "aaaa0004"), f" branch {path} aaaa0004 --at`"),
        (("agent", path, "--send", "hi"), f" resume {path}` runs it"),
        (("request", path, "1"), " ENTRY --context` shows what a model would see there"),
    ):
        refused = shell.run(*args, code=1).stderr
        assert advice in refused, args
        assert refused.count("\n") == 1
    wrong = shell.run("transcript", path, "-f", "pdf", code=2, COLUMNS="200").stderr
    assert "'pdf' is not one of" in wrong
    assert "Value error" not in wrong


def test_a_refusal_is_one_line_on_stderr_and_status_1(shell: Shell) -> None:
    refused = shell.run("tree", "no such session", code=1)
    assert refused.stdout == ""
    assert re.fullmatch(r"dshd: sessionNotFound: [^\n]+\n", refused.stderr)
    assert "Traceback" not in refused.stderr
    hostile = shell.run("tree", "a\x1b]0;evil\x07\nb", code=1).stderr
    assert re.fullmatch(r"dshd: \w+: [^\n\x1b\x07]+\n", hostile)


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["tree", "--nonsense"],
        ["navigate", "x"],
        ["navigate", "x", "y", "--back"],
        ["list", "--format", "x"],
        ["list", "--tail", "x"],
        ["label", "x"],
        ["list", "--sort", "x"],
        ["request", "x"],
        ["request", "x", "one"],
        ["request", "x", "0"],
        ["transcript", "x", "--format", "pdf"],
        ["transcript", "x", "-o", "y", "--json"],
        ["show", "x", "--format", "openai"],
        ["show", "x", "--context", "--format", "x"],
        ["list", "--tail", "open,x"],
        ["resume", "x", "--run", "--print"],
        ["agent", "x", "--abort", "--send", "y"],
        ["fork", "x", "y", "--turn", "1"],
    ],
)
def test_wrong_usage_is_status_2(shell: Shell, args: list[str]) -> None:
    wrong = shell.run(*args, code=2)
    assert wrong.stdout == ""
    assert "Usage: dshd" in wrong.stderr


def test_an_entry_where_the_session_stands_is_explained(shell: Shell) -> None:
    wrong = shell.run("navigate", "ebe0e173", code=2, COLUMNS="200").stderr
    assert re.search("`ebe0e173` was read as the session: `.+ navigate last ebe0e173`", wrong)


def test_hints_name_the_program_as_it_was_started(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "dshd").symlink_to("/bin/true")
    found = shell.run("navigate", "x", code=2, COLUMNS="200", PATH=str(tmp_path)).stderr
    assert "`dshd navigate last x`" in found
    lost = shell.run("navigate", "x", code=2, COLUMNS="200", PATH="/nowhere").stderr
    assert " -m dsh_daemon navigate last x`" in lost


def test_a_reader_that_leaves_ends_the_command_quietly(shell: Shell) -> None:
    path = shell.session(
        "piped", [user("e0", None, "first", 0)] + [user(f"e{i}", f"e{i - 1}", "x" * 200, i) for i in range(1, 2000)]
    )
    for args in (["tree", path], ["tree", path, "--json"]):
        process = subprocess.Popen(
            [*DSHD, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=shell.env, cwd=shell.cwd
        )
        assert process.stdout
        assert process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(20) == 0


def test_an_argument_that_is_no_unicode_is_refused_not_a_crash(shell: Shell) -> None:
    done = subprocess.run([*DSHD, "tree", b"\xff\xfe"], capture_output=True, env=shell.env, cwd=shell.cwd, timeout=30)
    assert done.returncode == 1
    assert done.stderr.startswith(b"dshd: sessionNotFound: ")


def test_a_terminal_that_cannot_show_a_character_shows_another(shell: Shell) -> None:
    done = shell.run_anew("list", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()


# --- help


def test_every_command_is_in_the_help_and_has_its_own(shell: Shell) -> None:
    whole = shell.run("--help", COLUMNS="100").stdout
    for command in COMMANDS:
        assert re.search(rf"^│ {command} ", whole, re.MULTILINE), command
    assert sorted(COMMANDS) == sorted(re.findall(r"^│ ([a-z][a-z-]*) ", whole, re.MULTILINE))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(shell: Shell, command: str) -> None:
    text = shell.run(command, "--help", COLUMNS="100").stdout
    assert f"Usage: dshd {command}" in text
    assert not re.search("<[a-z]", text)
    if command not in {"serve", "stdio"}:
        assert "--json" in text


def test_completion_knows_sessions_and_entries_of_a_running_daemon(shell: Shell) -> None:
    path = shell.story("completed")
    shell.run("show", path)
    asked = {"_DSHD_COMPLETE": "complete_bash", "COMP_WORDS": "dshd tree comp", "COMP_CWORD": "2"}
    assert "completed" in shell.run(**asked).stdout.split()
    asked = {"_DSHD_COMPLETE": "complete_bash", "COMP_WORDS": "dshd show completed cccc", "COMP_CWORD": "3"}
    assert shell.run(**asked).stdout.split() == ["cccc0001", "cccc0002"]
    asked = {"_DSHD_COMPLETE": "complete_bash", "COMP_WORDS": "dshd request completed ", "COMP_CWORD": "3"}
    assert shell.run(**asked).stdout.split() == ["2", "1"]


def test_completion_starts_no_daemon(tmp_path: Path) -> None:
    lonely = Shell(tmp_path)
    asked = {"_DSHD_COMPLETE": "complete_bash", "COMP_WORDS": "dshd tree x", "COMP_CWORD": "2"}
    done = lonely.run_anew(**asked)
    assert (done.returncode, done.stdout.split()) == (0, [])
    assert not (tmp_path / "home" / "run").exists()


# --- as a person sits before it


def terminal(shell: Shell, *args: str, typed: str = "", **env: str) -> str:
    """What `dshd` writes to a terminal of 80 by 24, on which somebody types."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(shell.cwd)
        os.environ.clear()
        os.environ.update(shell.env | {"COLUMNS": "80", "LINES": "24"} | env)
        os.execv(DSHD[0], [*DSHD, *args])
    out = bytearray()
    if typed:
        os.write(fd, typed.encode())
    while select.select([fd], [], [], 20)[0]:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        out += data
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return out.decode()


def test_a_terminal_gets_colour_and_no_color_is_honoured(shell: Shell) -> None:
    path = shell.story("coloured")
    drawn = terminal(shell, "tree", path)
    assert "\x1b[1" in drawn
    dim = [line for line in drawn.splitlines() if "Rewrite everything" in line]
    assert "\x1b[2m" in dim[0]
    assert "\x1b" not in terminal(shell, "tree", path, NO_COLOR="1")
    assert "\x1b" not in terminal(shell, "tree", path, TERM="dumb")


def test_what_is_empty_says_so_on_a_terminal(shell: Shell) -> None:
    path = shell.session("bare", [])
    assert "no session matches" in terminal(shell, "list", "-q", "nothing has such words")
    assert "nothing to draw; `--all` shows hidden entries too" in terminal(shell, "tree", path)
    assert terminal(shell, "draft", path, "--clear") == ""
    assert "no draft" in terminal(shell, "draft", path)


def test_a_narrow_list_keeps_the_ids(shell: Shell) -> None:
    shell.story("narrow-list")
    listed = terminal(shell, "list", "--limit", "0", COLUMNS="50", NO_COLOR="1")
    assert re.search(r"^● Find the bug .* narrow-l\S* *\r?$", listed, re.MULTILINE)


# --- watch


@contextmanager
def following(shell: Shell, *args: str) -> Generator[subprocess.Popen[str]]:
    """`dshd watch`, ended by Ctrl-C when the block has seen what it wants."""
    env = shell.env | {"PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [*DSHD, "watch", *args],
        **pipes,
        env=env,
        cwd=shell.cwd,
        text=True,
        preexec_fn=interruptible,  # noqa: PLW1509
    ) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=10)
            assert (process.returncode, err) == (130, "")
        finally:
            process.kill()


def until(condition: Any, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def lines_of(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout
    return [process.stdout.readline() for _ in range(count)]


def subscribed(shell: Shell, times: int = 1) -> bool:
    connections = shell.json("status")["connections"]
    return sum(bool(c["subscriptions"]) for c in connections if c["name"] == "dshd watch") >= times


def test_watch_prints_what_comes_and_ends_with_130(shell: Shell) -> None:
    path = shell.story("followed")
    with following(shell, path) as process:
        head = lines_of(process, 6)
        assert head[0].startswith("Find the bug")
        assert head[-1].endswith("assistant  Fixed.\n")
        shell.run(
            "append",
            path,
            stdin=json.dumps({"type": "message", "message": {"role": "user", "content": "Now the docs"}}),
        )
        assert lines_of(process, 1)[0].endswith("user       Now the docs\n")
        with open(path, "ab") as file:
            leaf = shell.json("show", path)["leafId"]
            file.write(json.dumps(user("ffff0001", leaf, "By another program", 99)).encode() + b"\n")
        assert lines_of(process, 1)[0].endswith("user       By another program\n")
        shell.run("label", path, "aaaa0004", "good")
        assert "⚑ good  on aaaa0004" in lines_of(process, 1)[0]
        shell.run("navigate", path, "aaaa0004")
        assert "leaf → aaaa0004, by dshd (session/navigate)" in lines_of(process, 1)[0]


def test_watch_starts_no_daemon_after_a_stop(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    path = shell.story("stopped")
    try:
        with following(shell, path, "-n", "0") as process:
            lines_of(process, 1)
            shell.run("stop")
            assert lines_of(process, 1)[0].endswith("the daemon ended; waiting\n")
            time.sleep(0.8)
            assert shell.run("status", code=1).stdout.startswith("no daemon runs")
    finally:
        shell.close()


def test_watch_json_is_one_document_a_line(shell: Shell) -> None:
    path = shell.story("followed-json")
    with following(shell, path, "--json") as process:
        until(lambda: subscribed(shell))
        shell.run("navigate", path, "aaaa0004")
        note = json.loads(lines_of(process, 1)[0])
        assert note["method"] == "session/changed"
        assert note["params"]["leafId"] == "aaaa0004"


def test_watch_without_a_session_tells_of_all(shell: Shell) -> None:
    with following(shell) as process:
        until(lambda: subscribed(shell))
        shell.story("appeared")
        assert "Find the bug" in lines_of(process, 1)[0]


def test_watch_finds_a_new_daemon_after_the_old_one_was_killed(shell: Shell) -> None:
    path = shell.story("survivor")
    with following(shell, path, "-n", "0") as process:
        lines_of(process, 1)
        os.kill(shell.json("status")["pid"], signal.SIGKILL)
        assert lines_of(process, 1)[0].endswith("the daemon ended; waiting\n")
        shell.run("list")
        until(lambda: subscribed(shell))
        assert lines_of(process, 1)[0].endswith("connected again\n")
        shell.run(
            "append", path, stdin=json.dumps({"type": "message", "message": {"role": "user", "content": "Still here"}})
        )
        assert lines_of(process, 1)[0].endswith("user       Still here\n")


def test_a_command_costs_less_than_four_tenths_of_a_second(shell: Shell) -> None:
    path = shell.story("quick")
    shell.run("tree", path)
    times: list[float] = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert shell.run_anew("tree", path).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time: what else this machine does is not the command's cost.
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.4
