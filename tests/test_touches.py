"""What a tool call does to a file: the tools of pi, omp, dsh and others, paths in every spelling, patches, commands."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon import patches, shellwords
from dsh_daemon.touches import Known, Touch, Wanted, applied, change, touches

CWD = "/home/mina/shop"
WANTED = Wanted("src/config.ts", "/home/mina")


def only(name: str, arguments: Any, wanted: Wanted = WANTED, cwd: str | None = CWD) -> Touch:
    found = touches(name, arguments, wanted, cwd)
    assert len(found) == 1, (name, arguments, found)
    return found[0]


# --- paths


@pytest.mark.parametrize(
    "spelled",
    [
        "src/config.ts", "./src/config.ts", "src//config.ts", "src/./config.ts", "src/auth/../config.ts",
        "../shop/src/config.ts", "/home/mina/shop/src/config.ts", "~/shop/src/config.ts", "@src/config.ts",
        "file:///home/mina/shop/src/config.ts", " src/config.ts ", "src/config.ts:50-200", "src/config.ts:2-4:raw",
        "README.md; src/config.ts",
    ],
)  # fmt: skip
def test_a_file_is_found_in_every_spelling(spelled: str) -> None:
    for given_path in ("src/config.ts", "config.ts", "/home/mina/shop/src/config.ts", "~/shop/src/config.ts"):
        assert only("read", {"path": spelled}, Wanted(given_path, "/home/mina")).action == "read"


@pytest.mark.parametrize(
    "spelled",
    ["src/config.tsx", "lib/src/config.ts.bak", "src/my-config.ts", "src/config", "src", "", "src/config.ts/x"],
)
def test_another_file_is_not_found(spelled: str) -> None:
    for given_path in ("src/config.ts", "config.ts", "/home/mina/shop/src/config.ts"):
        assert touches("read", {"path": spelled}, Wanted(given_path, "/home/mina"), CWD) == []


def test_an_absolute_path_means_one_file_and_a_relative_one_every_file_that_ends_so() -> None:
    elsewhere = {"path": "/home/mina/other/src/config.ts"}
    assert only("read", elsewhere)
    assert touches("read", elsewhere, Wanted("/home/mina/shop/src/config.ts", "/home/mina"), CWD) == []
    assert touches("read", {"path": "src/config.ts"}, Wanted("../other/src/config.ts", "/home/mina"), CWD) == []
    assert only("read", elsewhere, Wanted("../other/src/config.ts", "/home/mina"))


def test_a_session_without_a_folder_is_compared_by_the_end_of_the_path() -> None:
    whole = Wanted("/home/mina/shop/src/config.ts", "/home/mina")
    assert only("read", {"path": "src/config.ts"}, whole, None)
    assert touches("read", {"path": "lib/config.ts"}, whole, None) == []
    assert only("bash", {"command": "cd src/auth && cat ../config.ts"}, whole, None)


def test_names_are_compared_composed_however_a_file_system_gives_them() -> None:
    assert only("read", {"path": "caf\u00e9.md"}, Wanted("cafe\u0301.md", "/"))
    assert only("read", {"path": "설정.md"}, Wanted("docs/../설정.md", "/"))


def test_a_windows_path_is_found_with_either_slash_and_in_either_case() -> None:
    wanted = Wanted("C:\\Users\\Mina\\shop\\src\\config.ts", "C:/Users/Mina")
    assert only("read", {"path": "src\\config.ts"}, wanted, "C:\\Users\\mina\\shop")
    assert only("read", {"path": "c:/users/mina/shop/src/Config.ts"}, wanted, None)


def test_a_folder_that_moved_is_the_same_by_its_alias() -> None:
    def spelled(path: str) -> str:
        return path.replace("/workspace", CWD, 1)

    wanted = Wanted("/home/mina/shop/src/config.ts", "/home/mina", spelled)
    assert only("read", {"path": "/workspace/src/config.ts"}, wanted, "/workspace")


# --- tools


@pytest.mark.parametrize(
    ("action", "name", "arguments"),
    [
        ("read", "read", {"path": "src/config.ts", "offset": 3, "limit": 9}),
        ("read", "read", {"file_path": "src/config.ts"}),
        ("read", "read_image", {"file_path": "src/config.ts"}),
        ("read", "grep", {"pattern": "port", "path": "src/config.ts"}),
        ("read", "str_replace_editor", {"command": "view", "path": "/home/mina/shop/src/config.ts"}),
        ("read", "mcp__fs__read_multiple_files", {"paths": ["a.ts", "src/config.ts"]}),
        ("write", "write", {"path": "src/config.ts", "content": "x"}),
        ("write", "write", {"file_path": "src/config.ts", "content": ""}),
        ("write", "str_replace_editor", {"command": "create", "path": "src/config.ts", "file_text": "x"}),
        ("write", "mcp__fs__create_file", {"path": "src/config.ts"}),
        ("edit", "edit", {"path": "src/config.ts", "oldText": "a", "newText": "b"}),
        ("edit", "edit", {"path": "src/config.ts", "edits": [{"oldText": "a", "newText": "b"}]}),
        ("edit", "edit", {"path": "src/config.ts", "edits": '[{"oldText": "a", "newText": "b"}]'}),
        ("edit", "edit", {"path": "src/config.ts", "edits": {"oldText": "a", "newText": "b"}}),
        ("edit", "edit", {"file_path": "src/config.ts", "old_string": "a", "new_string": "b", "replace_all": True}),
        ("edit", "edit", {"path": "src/config.ts", "edits": [{"op": "update", "diff": "@@\n-a\n+b\n"}]}),
        ("edit", "ast_edit", {"ops": [{"pat": "a", "out": "b"}], "paths": ["src/config.ts"]}),
        ("edit", "str_replace_editor", {"command": "insert", "path": "src/config.ts", "insert_line": 1, "new_str": ""}),
        ("edit", "mcp__fs__delete_file", {"path": "src/config.ts"}),
        ("edit", "apply_patch", "*** Begin Patch\n*** Update File: src/config.ts\n@@\n-a\n+b\n*** End Patch"),
        ("write", "apply_patch", {"input": "*** Begin Patch\n*** Add File: src/config.ts\n+a\n*** End Patch"}),
        ("edit", "edit", {"input": "[a.ts#0F3C]\nCUT 4\n[src/config.ts#1A2B]\nPUT 3.=5:\n+port: 8080,\n"}),
        ("edit", "edit", {"input": '<SM:EDIT path="src/config.ts"><SM:FIND>a</SM:FIND><SM:PUT>b</SM:PUT></SM:EDIT>'}),
        ("shell", "bash", {"command": "cat src/config.ts"}),
        ("shell", "bash", {"command": "cat config.ts", "workdir": "src"}),
        ("shell", "shell", {"command": ["bash", "-lc", "cat src/config.ts"]}),
        ("shell", "eval", {"code": "open('src/config.ts').read()"}),
    ],
)  # fmt: skip
def test_each_tool_is_told_by_what_it_is_given(action: str, name: str, arguments: Any) -> None:
    assert only(name, arguments).action == action


def test_a_call_that_speaks_of_the_file_does_not_touch_it() -> None:
    for name, arguments in [
        ("todo", {"list": ["change src/config.ts"]}),
        ("task", {"prompt": "Look at src/config.ts"}),
        ("write", {"path": "notes.md", "content": "see src/config.ts"}),
        ("edit", {"path": "notes.md", "oldText": "src/config.ts", "newText": "x"}),
        ("grep", {"pattern": "src/config.ts", "path": "lib"}),
    ]:
        assert touches(name, arguments, WANTED, CWD) == []


@pytest.mark.parametrize(
    "arguments", [None, 3, [], "", "{", {"path": 3}, {"path": None, "edits": [None, 3]}, {"paths": 3}]
)
def test_arguments_of_any_shape_are_no_touch_and_no_error(arguments: Any) -> None:
    assert touches("edit", arguments, WANTED, CWD) == []


# --- shell


@pytest.mark.parametrize(
    "command",
    [
        "cat src/config.ts", "cat 'src/config.ts'", 'cat "src/config.ts"', "cat src/'config.ts'", "cat src/config\\.ts",
        "sed -i 's/a/b/' src/config.ts", "echo x>src/config.ts", "echo x 2>>src/config.ts", "wc<src/config.ts",
        "ls && cat src/config.ts;ls", "(cat src/config.ts)", "x=$(cat src/config.ts)", "echo `cat src/config.ts`",
        "prettier --config=src/config.ts", "git show HEAD:src/config.ts", "vim src/config.ts:12",
        "curl -d @src/config.ts",
        "cd src && cat config.ts", "cd src; cd ..; cat src/config.ts", "(cd /tmp && ls); cat src/config.ts",
        "cat $HOME/shop/src/config.ts", "cat ~/shop/src/config.ts", "tee src/config.ts <<EOF\nit's x\nEOF",
        "python3 -c \"import re; open('src/config.ts')\"", "node -e 'f(\"./src/config.ts\", 1)'",
        "cat \\\n  src/config.ts",
        "git -C src add config.ts src/config.ts", "# see src/config.ts", "cat 'src/config.ts", 'cat src/con"fig".ts',
    ],
)  # fmt: skip
def test_a_command_that_names_the_file_as_a_word_touches_it(command: str) -> None:
    assert only("bash", {"command": command}).action == "shell"


ELSEWHERE = [
    "git -C src checkout config.ts", "git -c core.pager=cat -C src log config.ts",
    "sudo -E timeout 5 git -C src add config.ts",
    "git -C lib -C ../src add config.ts", "make -C src config.ts", "make config.ts -C src", "make -Csrc config.ts",
    "make --directory=src config.ts", "tar -C src -cf /tmp/a.tar config.ts", "tar -cf src/config.ts -C lib a",
    "npm --prefix src run format config.ts",
    "pushd src; vi config.ts; popd", "pushd src >/dev/null && vi config.ts", "pushd lib; popd; vi src/config.ts",
    "pushd lib; pushd ../src; pushd; pushd; cat config.ts", "cd src >/dev/null && cat config.ts",
    "cd -P -- src; cat config.ts",
    "cd lib && cd - && cat src/config.ts", "if cd src; then cat config.ts; fi", "cd; cat shop/src/config.ts",
    "cd ~/shop && cat src/config.ts", "bash -lc 'cd src && vi config.ts'", "bash -c 'cat \"$1\"' _ src/config.ts",
]  # fmt: skip
LISTS = [
    "rm src/{config,other}.ts", "rm src/{other,config}.{js,ts}", "rm {lib,src}/config.ts", "cp src/config.ts{,.bak}",
    "rm src/con{fi{x,g},x}.ts", "rm src/c{onfig.ts,ache}", "rm {~/shop/src/config.ts,a}",
    "rm src/{'config',\"other\"}.ts",
    "cd src && rm {a,config}.ts", "git -C src rm {a,config}.ts", "prettier -w 'src/{config,other}.ts'",
]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("a{b,c}d", ["abd", "acd"]), ("{a,{b,c}}", ["a", "b", "a", "c"]), ("a{,.bak}", ["a", "a.bak"]),
        ("{a}{b c,d}{", ["{a}{b c,d}{"]), ("{a,b}{c,d}", ["ac", "ad", "bc", "bd"]), ("", [""]),
    ],
)  # fmt: skip
def test_a_list_stands_for_each_of_its_members(word: str, words: list[str]) -> None:
    assert list(shellwords.expanded(word)) == words


def test_a_command_is_spelled_out_to_so_many_words_only() -> None:
    begun = time.process_time()
    lists = f"rm {'{config,x}' * 300}.ts", f"rm src/config.ts{'{a,b}' * 800}", "rm {a,b}config{.ts,x}; " * 9_000
    for command in lists:
        touches("bash", {"command": command}, WANTED, CWD)
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("command", [*ELSEWHERE, *LISTS])
def test_a_command_names_the_file_from_the_folder_where_it_is_and_in_lists(command: str) -> None:
    wanted = Wanted("/home/mina/shop/src/config.ts", "/home/mina")
    assert only("bash", {"command": command}, wanted).action == "shell"
    for log in (json.dumps({"command": command}), json.dumps(json.dumps({"command": command}), indent=1)):
        assert wanted.may_be_in(log.encode())


@pytest.mark.parametrize(
    "command",
    [
        "git -C lib checkout config.ts", "git commit -C config.ts", "pushd src; popd; vi config.ts",
        "popd; vi config.ts",
        "bash -c 'cd lib && vi config.ts'", "bash -c 'cd src'; vi config.ts", "tar -cf config.ts -C src a",
        "rm lib/{config,other}.ts", "rm src/{config,other}.tsx", "rm src/{config}.ts", "rm src/{con,fig}.ts",
        "cd src; cd -; cat config.ts", "cd $(pwd) && cat config.ts",
    ],
)  # fmt: skip
def test_a_command_names_no_file_of_another_folder_and_nothing_beside_its_lists(command: str) -> None:
    assert touches("bash", {"command": command}, Wanted("/home/mina/shop/src/config.ts", "/home/mina"), CWD) == []


def test_a_command_may_give_a_name_decomposed_or_on_windows_in_any_case() -> None:
    cafe = Wanted("/home/mina/shop/docs/caf\u00e9.md", "/home/mina")
    for command in ("rm -- docs/cafe\u0301.md", "rm docs/{a,cafe\u0301}.md"):
        assert only("bash", {"command": command}, cafe).path.endswith("docs/cafe\u0301.md")  # as it spells it
        for plain in (True, False):
            assert cafe.may_be_in(json.dumps(command, ensure_ascii=plain).encode())
    wanted = Wanted("C:/shop/src/config.ts", "C:/Users/Mina")
    assert only("bash", {"command": "type src/Config.TS"}, wanted, "C:\\shop")
    assert wanted.may_be_in(b'{"command":"type src/Config.TS"}')


def test_a_list_in_a_move_tells_what_became_of_the_file() -> None:
    touch = only("bash", {"command": "mv src/config.{ts,js}"}, Wanted("/home/mina/shop/src/config.ts", "/home/mina"))
    assert (touch.path, touch.renamed_to) == ("src/config.ts", "src/config.js")


PARTS = st.recursive(
    st.sampled_from(["c", "on", "fig", ".ts", "config", "src/", "x", "", "'", '"']),
    lambda part: st.lists(part, max_size=3).flatmap(lambda m: st.sampled_from(["".join(m), f"{{{','.join(m)}}}"])),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None)
@given(st.lists(PARTS, max_size=6).map("".join), st.sampled_from(["cat ", "cd src; cat ", ""]))
def test_no_log_is_passed_over_whose_call_touches_the_file(word: str, before: str) -> None:
    command = f"{before}{word}"
    if touches("bash", {"command": command}, WANTED, CWD):
        record = {"id": "a", "arguments": {"command": command, "timeout": 5}}
        for log in (record, json.dumps(record)):
            assert WANTED.may_be_in(json.dumps(log, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    "command",
    [
        "cat src/config.tsx", "cat lib/config.ts", "cd lib && cat config.ts", "ls src", "cat srcconfig.ts",
        "(cd src && ls); cat config.ts", "cat 'src/config .ts'", "grep config.ts", "",
    ],
)  # fmt: skip
def test_a_command_that_names_another_file_does_not(command: str) -> None:
    assert touches("bash", {"command": command}, Wanted("/home/mina/shop/src/config.ts", "/home/mina"), CWD) == []


def test_a_path_with_blanks_is_one_word_in_quotes_only() -> None:
    wanted = Wanted("my notes.md", "/")
    assert only("bash", {"command": "cat 'docs/my notes.md'"}, wanted)
    assert only("bash", {"command": "cat docs/my\\ notes.md"}, wanted)
    assert touches("bash", {"command": "cat docs/my notes.md"}, wanted, CWD) == []


@pytest.mark.parametrize(
    ("command", "moved_from", "moved_to"),
    [
        ("mv src/config.ts src/settings.ts", "", "src/settings.ts"),
        ("git mv -f src/config.ts lib/", "", "lib/config.ts"),
        ("sudo mv a.ts src/config.ts lib", "", "lib/config.ts"),
        ("mkdir lib && FOO=1 git -C src mv config.ts ../lib/x.ts", "", "../lib/x.ts"),
        ("cat src/config.ts; mv src/config.ts b.ts", "", "b.ts"),
        ("mv src/old.ts src/config.ts", "src/old.ts", ""),
        ("cd src && mv old.ts config.ts", "old.ts", ""),
        ("mv lib/config.ts src/", "lib/config.ts", ""),
    ],
)  # fmt: skip
def test_a_move_tells_where_the_file_came_from_or_went(command: str, moved_from: str, moved_to: str) -> None:
    touch = only("bash", {"command": command}, Wanted("/home/mina/shop/src/config.ts", "/home/mina"))
    assert (touch.action, touch.renamed_from, touch.renamed_to) == ("shell", moved_from, moved_to)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("edit", {"path": "src/config.ts", "edits": [{"op": "update", "rename": "src/settings.ts", "diff": "-a\n+b"}]}),
        ("edit", {"input": "[src/config.ts#1A2B]\nPUT 3.=3:\n+b\nMV src/settings.ts\n"}),
        ("apply_patch", {"input": "*** Update File: src/config.ts\n*** Move to: src/settings.ts\n@@\n-a\n+b"}),
        ("mcp__fs__move_file", {"source": "src/config.ts", "destination": "src/settings.ts"}),
        ("apply_patch", {"patch": "--- a/src/config.ts\n+++ b/src/settings.ts\n@@ -1 +1 @@\n-a\n+b\n"}),
    ],
)  # fmt: skip
def test_a_patch_that_moves_a_file_is_found_by_both_names(name: str, arguments: Any) -> None:
    before, after = only(name, arguments), only(name, arguments, Wanted("src/settings.ts", "/"))
    assert (before.path, before.renamed_to, before.renamed_from) == ("src/config.ts", "src/settings.ts", "")
    assert (after.path, after.renamed_to, after.renamed_from) == ("src/settings.ts", "", "src/config.ts")


# --- changes

BEFORE = "export const config = {\n  port: 80,\n  host: 'a',\n  retries: 3,\n  debug: false,\n  x: 1,\n  y: 2,\n};\n"
EDIT = {"path": "src/config.ts", "oldText": "  port: 80,", "newText": "  port: 8080,"}


def test_an_edit_is_a_hunk_without_numbers_where_nobody_tells_its_place() -> None:
    told = change(only("edit", EDIT), {}, None)
    assert told == "--- src/config.ts\n+++ src/config.ts\n@@ @@\n-  port: 80,\n+  port: 8080,"


def test_an_edit_of_a_known_text_has_its_lines_around_it() -> None:
    told = change(only("edit", EDIT), {}, Known(BEFORE))
    assert told.split("\n")[2:] == [
        "@@ -1,5 +1,5 @@", " export const config = {", "-  port: 80,", "+  port: 8080,", "   host: 'a',",
        "   retries: 3,", "   debug: false,",
    ]  # fmt: skip


def test_what_the_tool_says_that_it_did_comes_first() -> None:
    patch = "--- src/config.ts\n+++ src/config.ts\n@@ -7,1 +7,1 @@\n-a\n+b\n"
    assert change(only("edit", EDIT), {"patch": patch}, Known(BEFORE)) == patch.rstrip("\n")
    shown = "     ...\n  6   host\n-  7   port: 80,\n+  7   port: 8080,\n  8   y\n     ..."
    assert change(only("edit", EDIT), {"diff": shown}, None).split("\n")[2] == "@@ -6,3 +6,3 @@"
    omp = " 6|  host\n-7|  port: 80,\n+7|  port: 8080,\n+8|  more\n 9|  y"
    assert change(only("edit", EDIT), {"diff": omp}, None).split("\n")[2:4] == ["@@ -6,3 +6,4 @@", "   host"]
    texts = {"oldText": "a\nb\n", "newText": "a\nc\n"}
    assert change(only("edit", EDIT), texts, None).split("\n")[2:] == ["@@ -1,2 +1,2 @@", " a", "-b", "+c"]
    several = {"perFileResults": [{"path": "/x/a.ts", "diff": "-1|q"}, {"path": f"{CWD}/src/config.ts", **texts}]}
    assert change(only("edit", EDIT), several, None).endswith("-b\n+c")


def test_a_file_that_is_written_is_compared_with_what_it_was_last_known_to_be() -> None:
    write = only("write", {"path": "src/config.ts", "content": BEFORE.replace("80", "8080")})
    assert change(write, {}, None).startswith("--- /dev/null\n+++ src/config.ts\n@@ -0,0 +1,8 @@\n+export")
    for known in (Known(BEFORE), Known(BEFORE, sure=False)):
        assert "\n-  port: 80,\n+  port: 8080,\n" in change(write, {}, known)
    assert change(write, {}, Known(BEFORE.replace("80", "8080"))) == ""


def test_a_hashline_edit_shows_its_operations_where_the_result_does_not_tell_more() -> None:
    edit = only(
        "edit", {"input": "*** Begin Patch\n[src/config.ts#1A2B]\nPUT 3.=5:\n+  port: 1,\nCUT 9\n*** End Patch"}
    )
    assert change(edit, {}, None).split("\n")[2:] == ["@@ PUT 3.=5: @@", "+  port: 1,", "@@ CUT 9 @@"]


def test_reads_and_commands_hold_no_change() -> None:
    assert change(only("read", {"path": "src/config.ts"}), {"diff": "-1|a"}, None) == ""
    assert change(only("bash", {"command": "rm src/config.ts"}), {}, Known(BEFORE)) == ""


def test_a_long_change_is_cut_between_lines_and_says_so() -> None:
    write = only("write", {"path": "src/config.ts", "content": "".join(f"line {n}\n" for n in range(9_000))})
    told = change(write, {}, None)
    assert len(told) < patches.LIMIT + 60
    assert told.split("\n")[-1].startswith("\\ ")
    shown = told.count("\n+line")
    assert told.endswith(f"\n\\ {9_000 - shown:,} more lines are left out")


def test_a_change_steers_no_terminal() -> None:
    assert "\x1b" not in change(only("write", {"path": "src/config.ts", "content": "\x1b]0;evil\x07 a"}), {}, None)


def test_a_text_is_followed_through_edits_and_not_through_guesses() -> None:
    known = applied(only("write", {"path": "src/config.ts", "content": BEFORE}), None)
    assert known == Known(BEFORE)
    known = applied(only("edit", EDIT), known)
    assert known == Known(BEFORE.replace("80", "8080"))
    assert known is not None
    assert applied(only("bash", {"command": "prettier -w src/config.ts"}), known) == known._replace(sure=False)
    assert applied(only("edit", {**EDIT, "oldText": "not there"}), known) is None
    twice = only("edit", {**EDIT, "oldText": ",", "newText": ";"})
    assert applied(twice, known) is None


TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", "  d", "-e", "+f", "@@ g"]), max_size=30).map("\n".join)


def patched(old: list[str], diff: str) -> list[str]:
    """What a unified diff makes of some lines; every context line must be where the hunk says."""
    made: list[str] = []
    at = 0
    for line in diff.split("\n")[2:]:
        if (hunk := re.fullmatch(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@", line)) is not None:
            start = int(hunk[1]) - (hunk[2] != "0")
            made += old[at:start]
            at = start
            assert len(made) == int(hunk[3]) - (hunk[4] != "0")
        elif line[0] == "+":
            made.append(line[1:])
        else:
            assert old[at] == line[1:]
            made += [line[1:]] if line[0] == " " else []
            at += 1
    return made + old[at:]


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS)
def test_a_diff_of_two_texts_makes_one_of_the_other(old: str, new: str) -> None:
    old, new = old and old + "\n", new and new + "\n"
    diff = patches.whole("x", old, new)
    assert bool(diff) == (old != new)
    if diff:
        assert patched(patches.lines_of(old), diff) == patches.lines_of(new)


def test_texts_of_many_lines_are_compared_in_no_time() -> None:
    old = [f"line {n}" for n in range(30_000)]
    new = [*old[:10], "new", *reversed(old[10:-10]), *old[-10:]]
    begun = time.process_time()
    diff = patches.whole("x", "\n".join(old), "\n".join(new))
    assert time.process_time() - begun < 2
    assert patched(old, diff) == new


def test_lines_that_come_again_and_again_are_compared_in_no_time() -> None:
    for rows, more in ((2_000, 2_000), (20_000, 190)):
        old, new = [str(n % 7) for n in range(rows)], [str(n % 5) for n in range(more)]
        begun = time.process_time()
        diff = patches.whole("x", "\n".join(old), "\n".join(new))
        assert time.process_time() - begun < 1
        assert patched(old, diff) == new


def test_a_line_number_that_no_file_has_is_no_number() -> None:
    assert patches.numbered(f"+{'1' * 5_000} far away\n+12 near") == "@@ -11,0 +12,1 @@\n+near"


def test_a_patch_in_tags_tells_each_file_and_its_texts() -> None:
    find, put = "<SM:FIND>\n<old> & worn\n</SM:FIND>", "<SM:PUT>\nnew\n</SM:PUT>"
    tagged = f'<SM:EDIT n="1" path="a>b.ts">\n{find}\n{put}\n<SM:FIND>open\n<SM:EDIT path="c.ts"><SM:PUT>x</SM:PUT>'
    assert patches.sections(tagged) == [
        patches.Section("a>b.ts", "update", "", "@@ @@\n-<old> & worn\n+new"),
        patches.Section("c.ts", "update", "", "@@ @@\n+x"),
    ]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab/. \n'\"\\`$(){};|&<>=#~config.ts", max_size=60))
def test_any_text_is_a_command_and_a_patch(text: str) -> None:
    wanted = Wanted("config.ts", "/home/mina")
    for name in ("command", "input", "path", "edits"):
        touches("bash", {name: text}, wanted, CWD)
    for section in patches.sections(text):
        assert section.path == section.path.strip()
    patches.numbered(text)


@pytest.mark.parametrize(
    "piece",
    [
        "'", '"', "\\", "$(", "cat config.ts ", "[config.ts]\n", "a:", "--- a\n+++ b\n", "<SM:EDIT ", '<SM:EDIT "',
        "cd a;", "pushd a;", "{", "{a,", "{a,b}", "{config.ts,b}", "{c,o}{n,f}{i,g}.ts ", "git -C a ",
        "bash -c config.ts;",
        '<SM:EDIT path="config.ts"><SM:FIND>', '<SM:EDIT path="config.ts"><SM:FIND></SM:PUT>', '<SM:EDIT> path="a" ',
    ],
)  # fmt: skip
def test_long_calls_are_read_in_no_time(piece: str) -> None:
    text = piece * (400_000 // len(piece)) + " config.ts"
    begun = time.process_time()
    for name in ("command", "input", "path"):
        touches("bash", {name: text}, WANTED, CWD)
        touches("bash", {name: f"{text}/"}, WANTED, CWD)
    WANTED.may_be_in(text.replace("config", "other").encode())
    assert time.process_time() - begun < 3
