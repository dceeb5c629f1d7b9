"""Where sessions are looked for."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dsh_daemon.roots import discover, expand


def test_every_agent_has_its_default_root(tmp_path: Path) -> None:
    roots = discover(str(tmp_path / "ours"), {"HOME": str(tmp_path)})
    assert roots[0].path == str(tmp_path / "ours")
    assert roots[0].format == "native"
    paths = {root.path.removeprefix(f"{tmp_path}/"): root.format for root in roots[1:]}
    assert paths == {
        ".pi/agent/sessions": "pi", ".omp/agent/sessions": "omp", ".dsh/sessions": "dsh", ".claude/projects": "claude",
        ".codex/sessions": "codex", ".codex/archived_sessions": "codex",
    }  # fmt: skip
    assert not roots[1].exists
    assert not roots[1].readable


def test_a_home_sign_and_variables_are_expanded(tmp_path: Path) -> None:
    """A103."""
    env = {"HOME": str(tmp_path), "PI_CODING_AGENT_SESSION_DIR": "~/x", "BASE": "/srv", "DSH_HOME": "$BASE/dsh"}
    roots = {root.path: root for root in discover("/ours", env)}
    assert roots[f"{tmp_path}/x"].origin == "PI_CODING_AGENT_SESSION_DIR"
    assert roots["/srv/dsh/sessions"].origin == "DSH_HOME"
    assert expand("${BASE}/a/$UNSET", env) == "/srv/a/$UNSET"
    assert expand("a$", env) == "a$"


def test_the_agents_own_variables_and_settings_are_followed(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "settings.json").write_text(json.dumps({"sessionDir": "~/elsewhere"}))
    (tmp_path / ".omp/profiles/work/agent").mkdir(parents=True)
    (tmp_path / ".local/share/omp/profiles/play").mkdir(parents=True)
    env = {
        "HOME": str(tmp_path), "PI_CODING_AGENT_DIR": f"{tmp_path}/agent",
        "CLAUDE_CONFIG_DIR": "/c", "CODEX_HOME": "/d",
    }  # fmt: skip
    paths = {root.path.removeprefix(f"{tmp_path}/"): root.origin for root in discover("/ours", env)}
    assert paths["agent/sessions"] == "PI_CODING_AGENT_DIR"
    assert paths["elsewhere"].startswith("sessionDir in ")
    assert paths[".omp/profiles/work/agent/sessions"] == "omp profile work"
    assert paths[".local/share/omp/sessions"] == "omp under XDG_DATA_HOME"
    assert paths[".local/share/omp/profiles/play/sessions"] == "omp profile play"
    assert {"/c/projects", "/d/sessions", "/d/archived_sessions"} <= paths.keys()


def test_broken_settings_do_not_hide_the_other_roots(tmp_path: Path) -> None:
    (tmp_path / ".pi/agent").mkdir(parents=True)
    for text in (b"\xff{", b"[]", b'{"sessionDir": 5}', b'{"sessionDir": "relative"}'):
        (tmp_path / ".pi/agent/settings.json").write_bytes(text)
        assert len(discover("/ours", {"HOME": str(tmp_path)})) == 7


def test_dshd_roots_replaces_all_roots_but_our_own() -> None:
    named = os.pathsep.join(["pi=/a", "/b", " omp=~/c ", "", "weird=x"])
    env = {"HOME": "/h", "DSHD_ROOTS": named, "DSH_HOME": "/no"}
    roots = [(root.path, root.format) for root in discover("/ours", env, ["/configured"])]
    here = os.getcwd()
    expected = [("/ours", "native"), ("/a", "pi"), ("/b", None), ("/h/c", "omp"), (f"{here}/weird=x", None)]
    assert roots == expected
    assert [root.path for root in discover("/ours", {"HOME": "/h", "DSHD_ROOTS": ""}, ["/configured"])] == ["/ours"]


def test_configured_roots_stand_beside_those_that_are_found() -> None:
    roots = {root.path: (root.format, root.origin) for root in discover("/ours", {"HOME": "/h"}, ["omp=~/mine", "/b"])}
    assert roots["/h/mine"] == ("omp", "config")
    assert roots["/b"] == (None, "config")
    assert "/h/.pi/agent/sessions" in roots


def test_one_folder_in_two_spellings_is_one_root(tmp_path: Path) -> None:
    """A096."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    env = {"HOME": "/h", "DSHD_ROOTS": f"{tmp_path}/link{os.pathsep}{tmp_path}/real/{os.pathsep}{tmp_path}/real"}
    assert [root.path for root in discover("/ours", env)] == ["/ours", f"{tmp_path}/link"]
