"""The connection of the Neovim client: one daemon for all (A115), nothing at startup, and coming back after a loss."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .nvim import BIN, Desk, Editor
from .support import assistant, header, line, user, write_log

ASK = """
local method, params = ...
_G.answer = nil
_G.asked = require("dsh.client").request(method, params, function(err, result)
  _G.answer = { err = err or false, result = result or false }
end)
"""
TIMERS = """
local active = 0
vim.uv.walk(function(handle)
  if handle:get_type() == "timer" and handle:is_active() then
    active = active + 1
  end
end)
return active
"""
CONNECT = """
local client, before, took = require("dsh.client"), vim.uv.hrtime(), nil
client.stop()
client.request("daemon/ping", nil, function()
  took = (vim.uv.hrtime() - before) / 1e6
end)
vim.wait(5000, function()
  return took
end, 1)
return took
"""
LINES = "return vim.api.nvim_buf_get_lines(require('dsh.view').ids(), 0, -1, false)"
ROW = "local row = require('dsh.view').row() return row and row.id"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(tmp_path) as made:
        yield made


@pytest.fixture
def log(desk: Desk) -> Path:
    return chain(desk, 40)


def chain(desk: Desk, count: int) -> Path:
    entries = [user(f"u{n}", f"u{n - 1}" if n else None, f"message {n}", n) for n in range(count)]
    return write_log(desk.folder / "pi" / "--shop--" / "chain.jsonl", entries, header("chain", str(desk.project)))


def asked(editor: Editor, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    editor.lua(ASK, method, params or {})
    return editor.wait(lambda: editor.lua("return _G.answer"), f"an answer to {method}")


def daemon_pid(editor: Editor) -> int:
    return asked(editor, "daemon/ping")["result"]["pid"]


def asking_for_the_socket(desk: Desk) -> float:
    """Milliseconds that starting `dshd` takes on this machine as it is now."""
    times: list[float] = []
    for _ in range(5):
        before = time.perf_counter()
        subprocess.run([BIN / "dshd", "socket-path"], env=desk.daemon.env, capture_output=True, check=True)
        times.append(time.perf_counter() - before)
    return min(times) * 1000


def leave(desk: Desk) -> None:
    """Close the other clients, whose daemon is about to end."""
    for peer in desk.peers:
        peer.close()
    desk.peers.clear()


def opened(desk: Desk, session_id: str) -> Editor:
    editor = desk.editor()
    editor.command(f"DshTree {session_id}")
    editor.wait(lambda: editor.lua(ROW), "rows")
    return editor


@pytest.fixture
def heir(desk: Desk) -> Iterator[None]:
    """End the daemon that an editor has started in the place of the one that was killed."""
    yield
    for editor in desk.editors:
        if editor.asks:
            editor.type("<C-c>")  # what failed may have left a question open
        editor.lua("require('dsh.client').stop()")
    peer = desk.client("undertaker")
    pid = peer.ask("daemon/ping")["pid"]
    peer.ask("daemon/stop", force=True)
    desk.editors[0].wait(lambda: not Path(f"/proc/{pid}").exists() or _gone(pid), "the end of the daemon")


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_an_editor_that_does_not_use_the_plugin_loads_only_the_commands(desk: Desk) -> None:
    editor = desk.editor()
    loaded = "return vim.tbl_filter(function(name) return name:find('^dsh') end, vim.tbl_keys(package.loaded))"
    assert editor.lua(loaded) == []
    assert editor.lua("return vim.fn.exists(':Dsh') == 2 and vim.fn.exists(':DshStop') == 2")
    assert editor.lua("return require('dsh').statusline()") == ""
    assert editor.lua(loaded) == ["dsh"]
    took = editor.lua(
        """vim.g.loaded_dsh = nil
        local before = vim.uv.hrtime()
        vim.cmd.runtime('plugin/dsh.lua')
        return (vim.uv.hrtime() - before) / 1e6"""
    )
    assert took < 10
    names = [one["name"] for one in desk.ask("daemon/status")["connections"]]
    assert "neovim" not in names


def test_every_editor_finds_the_one_daemon_from_any_directory_at_once(desk: Desk) -> None:
    """A115"""
    elsewhere = desk.folder / "else" / "where"
    elsewhere.mkdir(parents=True)
    for cwd in (desk.project, elsewhere):
        editor = desk.editor(cwd)
        took = min(editor.lua(CONNECT) or 5000 for _ in range(5))
        assert daemon_pid(editor) == desk.daemon.process.pid  # type: ignore[union-attr]
        assert took < max(300, 5 * asking_for_the_socket(desk))


def test_the_daemon_is_started_where_there_is_none(desk: Desk, heir: None) -> None:
    desk.daemon.stop()
    editor = desk.editor()
    editor.command("Dsh")
    editor.wait_screen("Fix the login redirect")
    assert editor.lua("return require('dsh.client').state()") == "ready"
    assert editor.messages == ""


def test_without_dshd_one_line_says_where_to_look(desk: Desk) -> None:
    editor = desk.editor(init="require('dsh').setup({ daemon = { cmd = { 'no-such-dshd' } } })")
    editor.command("DshTree")
    editor.wait_message("dsh: dshd was not found (see :checkhealth dsh)")
    assert "stack traceback" not in editor.messages
    assert editor.lua("return require('dsh.client').state()") == "off"


def test_what_is_null_on_the_wire_is_absent_in_lua_and_a_refusal_has_its_kind(desk: Desk, log: Path) -> None:
    editor = desk.editor()
    info = asked(editor, "session/open", {"sessionId": "chain", "subscribe": False})["result"]
    assert not {"parentSessionId", "live", "openTurn"} & set(info)
    assert editor.lua("return _G.answer.result.parentSessionId == nil")
    refused = asked(editor, "session/open", {"sessionId": "nobody"})["err"]
    assert refused["kind"] == "sessionNotFound"
    assert refused["code"] == 1001
    unknown = asked(editor, "session/open", {"sessionId": "chain", "colour": 1})["err"]
    assert unknown["kind"] == "protocol"
    assert unknown["code"] == -32602
    assert asked(editor, "daemon/ping", {})["err"] is False


def test_a_cancelled_read_is_answered_as_cancelled(desk: Desk) -> None:
    editor = desk.editor()
    made = asked(editor, "session/create", {"cwd": str(desk.project)})["result"]["sessionId"]
    asked(editor, "session/resume", {"sessionId": made})
    editor.lua(ASK, "agent/claim", {"sessionId": made, "waitMs": 60_000})
    editor.lua("require('dsh.client').cancel(_G.asked)")
    answer = editor.wait(lambda: editor.lua("return _G.answer"), "an answer")
    assert answer["err"]["kind"] == "cancelled"


def test_requests_that_wait_for_the_connection_can_be_cancelled(desk: Desk) -> None:
    editor = desk.editor()
    editor.lua(ASK + "require('dsh.client').cancel(_G.asked)", "daemon/ping", {})
    assert editor.lua("return _G.answer.err.kind") == "cancelled"


def test_followers_of_a_session_share_one_subscription_and_the_last_ends_it(desk: Desk, log: Path) -> None:
    editor = desk.editor()
    editor.lua(
        """_G.heard = {}
        local function follower(name)
          return {
            state = function(state, fresh) table.insert(_G.heard, { name, "state", state.revision, fresh }) end,
            change = function(change) table.insert(_G.heard, { name, "change", change.leafId }) end,
          }
        end
        local client = require('dsh.client')
        _G.close = { client.open('chain', follower('a')), client.open('chain', follower('b')) }"""
    )
    editor.wait(lambda: len(editor.lua("return _G.heard")) == 2, "two states")
    desk.ask("session/moveLeaf", sessionId="chain", entryId="u3")
    editor.wait(lambda: len(editor.lua("return _G.heard")) == 4, "two changes")
    assert sorted(editor.lua("return _G.heard")[2:]) == [["a", "change", "u3"], ["b", "change", "u3"]]

    def followed() -> int:
        return sum(one["subscriptions"] for one in desk.ask("daemon/status")["connections"] if one["name"] == "neovim")

    assert followed() == 1
    editor.lua("_G.close[1]()")
    assert followed() == 1
    editor.lua("_G.close[2]()")
    editor.wait(lambda: followed() == 0, "no subscription")


def test_a_gap_in_the_revisions_is_closed_by_opening_again(desk: Desk, log: Path) -> None:
    editor = opened(desk, "chain")
    editor.lua("require('dsh.view').state().revision = -5")
    desk.ask("session/moveLeaf", sessionId="chain", entryId="u3")
    editor.wait(lambda: editor.lua("return require('dsh.view').state().leafId") == "u3", "the leaf")
    assert editor.lua("return require('dsh.view').state().revision") > 0
    editor.wait_screen("message 3")


def test_a_killed_daemon_is_found_again_and_the_cursor_keeps_its_place(desk: Desk, log: Path, heir: None) -> None:
    editor = opened(desk, "chain")
    editor.lua("require('dsh.view').go_to('u17')")
    editor.wait(lambda: editor.lua(ROW) == "u17", "the cursor")
    editor.keys("zt")
    place = editor.lua("return { vim.fn.line('.'), vim.fn.winline() }")
    lines = editor.lua(LINES)
    first = daemon_pid(editor)

    leave(desk)
    desk.daemon.kill()
    editor.wait_message("dsh: connected again")
    second = daemon_pid(editor)
    assert second != first
    with log.open("ab") as file:
        file.write(line(assistant("new", "u39", "after the loss", 50)))
    editor.wait(lambda: len(editor.lua(LINES)) == 41, "the new row")
    assert editor.lua(LINES)[:40] == lines
    assert editor.lua(ROW) == "u17"
    assert editor.lua("return { vim.fn.line('.'), vim.fn.winline() }") == place
    assert editor.messages.splitlines() == ["dsh: the daemon is gone, reconnecting", "dsh: connected again"]


def test_a_daemon_that_was_stopped_is_left_in_peace_and_found_when_it_is_back(desk: Desk, log: Path) -> None:
    editor = opened(desk, "chain")
    leave(desk)
    desk.daemon.stop()
    editor.wait_message("dsh: the daemon was stopped")
    editor.wait_screen("no connection")
    assert not desk.daemon.answers()
    desk.daemon.start()
    editor.wait_message("dsh: connected again")
    assert daemon_pid(editor) == desk.daemon.process.pid  # type: ignore[union-attr]
    desk.ask("session/moveLeaf", sessionId="chain", entryId="u3")
    editor.wait(lambda: editor.lua("return require('dsh.view').state().leafId") == "u3", "the change")
    assert "no connection" not in editor.screen().text


def test_what_was_on_its_way_when_the_daemon_died_is_answered_as_disconnected(desk: Desk) -> None:
    editor = desk.editor()
    made = asked(editor, "session/create", {"cwd": str(desk.project)})["result"]["sessionId"]
    asked(editor, "session/resume", {"sessionId": made})
    editor.lua(ASK, "agent/claim", {"sessionId": made, "waitMs": 60_000})
    leave(desk)
    desk.daemon.kill()
    answer = editor.wait(lambda: editor.lua("return _G.answer"), "an answer")
    assert answer["err"]["kind"] == "disconnected"
    assert editor.lua("return require('dsh.client').state()") == "off"  # nobody follows anything
    assert editor.messages == ""


def test_nothing_runs_while_nothing_happens(desk: Desk, log: Path) -> None:
    editor = desk.editor()
    before = editor.lua(TIMERS)
    editor.command("DshTree chain")
    editor.wait(lambda: editor.lua(ROW), "rows")
    editor.wait(lambda: editor.lua(TIMERS) == before, "no timer")
    ticks = _ticks(editor.process.pid)
    time.sleep(1)
    assert _ticks(editor.process.pid) - ticks <= 2


def _ticks(pid: int) -> int:
    """Processor time used, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def _converges(desk: Desk, editors: list[Editor], count: int) -> None:
    def rows() -> list[str]:
        page = desk.ask("session/tree", sessionId="chain", count=5000)
        return [row["text"] for row in page["rows"]]

    def same() -> bool:
        wanted = rows()
        shown = [
            [text[-len(want) :] for text, want in zip(editor.lua(LINES), wanted, strict=False)] for editor in editors
        ]
        return len(wanted) == count and all(one == wanted for one in shown)

    editors[0].wait(same, "the same rows")


def test_two_editors_and_an_agent_that_appends_see_the_same(desk: Desk, log: Path) -> None:
    """A118"""
    editors = [opened(desk, "chain"), opened(desk, "chain")]
    editors[1].lua("require('dsh.view').go_to('u5')")
    editors[1].wait(lambda: editors[1].lua(ROW) == "u5", "the cursor")
    last = "u39"
    with log.open("ab") as file:
        for n in range(100):
            file.write(line(assistant(f"n{n}", last, f"answer {n}", 100 + n)))
            file.flush()
            last = f"n{n}"
            if n == 50:
                editors[1].lua("require('dsh.actions').label('chain', 'u5', 'here')")
            time.sleep(0.005)
    _converges(desk, editors, 140)
    assert editors[0].lua(ROW) == "n99"
    assert editors[1].lua(ROW) == "u5"
    editors[0].lua("require('dsh.view').go_to('u5')")
    editors[0].wait_screen("⚑ here")
    editors[1].wait_screen("⚑ here")

    editors[1].keys("<CR>")
    prompt = editors[1].wait(lambda: editors[1].named("^dsh%-prompt://"), "the prompt")
    assert editors[1].lines(prompt) == ["message 5"]
    editors[0].wait(lambda: editors[0].lua("return require('dsh.view').state().leafId") == "u4", "the other's move")
    _converges(desk, editors, 140)
    assert all("Error" not in editor.messages for editor in editors)


def test_an_editor_that_is_killed_leaves_nothing_behind(desk: Desk, log: Path) -> None:
    editor = opened(desk, "chain")
    editor.process.send_signal(signal.SIGKILL)
    editor.process.wait()

    def names() -> list[str]:
        return [one["name"] for one in desk.ask("daemon/status")["connections"]]

    until = time.monotonic() + 10
    while "neovim" in names():
        assert time.monotonic() < until
        time.sleep(0.02)


def stand_in(desk: Desk, script: str) -> None:
    """Another `dshd`, first on the PATH of the editors."""
    program = desk.bin / "dshd"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_dshd_that_fails_is_quoted_and_the_sidebar_does_not_go_on_looking(desk: Desk) -> None:
    stand_in(desk, "echo 'No module named dsh' >&2; echo more >&2; exit 1")
    editor = desk.editor()
    editor.command("Dsh")
    editor.wait_message("dsh: dshd failed: No module named dsh")
    editor.wait_screen("the daemon cannot be asked")
    assert editor.lua(LINES) == ["the daemon cannot be asked (:checkhealth dsh, R: again)"]
    (desk.bin / "dshd").unlink()
    editor.keys("R")
    editor.wait_screen("← leaf")


def test_a_dshd_that_hangs_is_given_up(desk: Desk) -> None:
    stand_in(desk, "exec sleep 600")
    editor = desk.editor()
    editor.command("Dsh")
    editor.wait_screen("looking for sessions")
    editor.wait(lambda: "dshd does not answer" in editor.messages, "the end of the patience", within=40)
    editor.wait_screen("the daemon cannot be asked")
