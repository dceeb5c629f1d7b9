"""When two working directories are the same project."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dsh_daemon.cwd import Places, normal


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"C:\Users\a\ELM", r"c:\Users\a\ELM"),
        ("C:/p/x", r"C:\p\x"),
        ("C:/p/x/", "c:\\p\\x\\"),
        (r"\\Srv\Share\p", "//srv/share/p"),
        ("/a/b/", "/a/b"),
        ("/a/./b//c/..", "/a/b"),
        ("//", "/"),
    ],
)
def test_spellings_of_one_directory_are_equal(one: str, other: str) -> None:
    """A097, A098: drive letters and separators do not make a project."""
    assert normal(one) == normal(other)
    assert Places().matches(one, other, "exact")


@pytest.mark.parametrize(("one", "other"), [("/A/b", "/a/b"), ("/a/b-c", "/a-b/c"), (r"/a\b", "/a/b"), ("/a", "/ab")])
def test_different_directories_stay_different(one: str, other: str) -> None:
    """A094: what the folder names of a store confuse, the recorded directory tells apart."""
    assert not Places().matches(one, other, "exact")
    assert not Places().matches(one, other, "subtree")


def test_links_and_their_targets_are_one_place(tmp_path: Path) -> None:
    """A096."""
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    places = Places()
    assert places.matches(f"{tmp_path}/link", f"{tmp_path}/real", "exact")
    assert places.matches(f"{tmp_path}/real/sub", f"{tmp_path}/link", "subtree")
    assert places.matches(f"{tmp_path}/link/gone", f"{tmp_path}/real/gone", "exact"), (
        "also below, where nothing is left"
    )


def test_aliases_join_what_was_renamed() -> None:
    """A100."""
    places = Places({"X:\\p": r"\\srv\share\p", "/old": "/new"})
    assert places.matches(r"x:\p\sub", r"\\srv\share\p\sub", "exact")
    assert places.matches("/old/a", "/new/a", "exact")
    assert not places.matches("/older/a", "/newer/a", "exact")


def test_scopes(tmp_path: Path) -> None:
    """A102."""
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "repo/sub/inner/.git").mkdir(parents=True)
    repo, sub, inner = (f"{tmp_path}/{name}" for name in ("repo", "repo/sub", "repo/sub/inner"))
    places = Places()

    def seen(wanted: str, scope: object) -> list[str]:
        return [c for c in (repo, sub, inner, str(tmp_path), None) if places.matches(c, wanted, scope)]  # type: ignore[arg-type]

    assert seen(repo, "exact") == [repo]
    assert seen(repo, "subtree") == [repo, sub, inner]
    assert seen(sub, "repo") == [repo, sub], "a repository inside is another one"
    assert seen(str(tmp_path), "repo") == [str(tmp_path)]
    assert seen(repo, "all") == [repo, sub, inner, str(tmp_path), None]


def test_git_init_does_not_change_what_belongs_to_a_directory(tmp_path: Path) -> None:
    """A101."""
    cwd = str(tmp_path / "p")
    (tmp_path / "p").mkdir()
    assert Places().matches(cwd, cwd, "exact")
    subprocess.run(["git", "init", "-q", cwd], check=True)
    assert Places().matches(cwd, cwd, "exact")
    assert Places().matches(cwd, cwd, "repo")


def test_nothing_makes_it_raise() -> None:
    places = Places({"": "/x"})
    for cwd in ("", "\0", "C:", "\\\\", "relative/x", "a" * 10_000, "/" + "b/" * 5_000):
        for scope in ("exact", "subtree", "repo", "all"):
            places.matches(cwd, cwd, scope)  # type: ignore[arg-type]
        places.exists(cwd)
    assert not places.exists(None)
