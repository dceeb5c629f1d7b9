"""What the Neovim client says about itself: its help page and README name all that there is, as it is."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .nvim import PLUGIN, Editor
from .running import environment

HELP = (PLUGIN / "doc" / "dsh.txt").read_text()
README = (PLUGIN / "README.md").read_text()
WORDS = " ".join(HELP.split())  # whatever the lines
COMMANDS = re.findall(r"^  (Dsh\w*) = ", (PLUGIN / "plugin" / "dsh.lua").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    home = tmp_path_factory.mktemp("help")
    with Editor(environment(home), home) as made:
        yield made


def leaves(table: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{name}.")
        else:
            yield path + name


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_tag_and_a_place_in_the_readme(command: str) -> None:
    assert f"*:{command}*" in HELP
    assert re.search(rf"`:{command}\b", README)


def test_the_pages_name_no_command_that_is_not_there() -> None:
    assert set(re.findall(r":(Dsh\w*)", HELP + README)) == set(COMMANDS)


def test_every_key_stands_in_both_tables(editor: Editor) -> None:
    keys = editor.lua(
        "return vim.tbl_map(function(key) return { key.lhs, key.name, key.about } end, require('dsh.keys').list)"
    )
    assert len(keys) > 20
    for lhs, name, about in keys:
        assert f"{lhs} {name} {about}" in WORDS
        assert f"| `{lhs}` | {about} |" in README


def test_every_option_is_described_and_its_default_is_the_one_in_force(editor: Editor) -> None:
    shown = HELP.split("what they are by default: >lua\n")[1].split("\n<\n")[0]
    assert editor.lua(f"return vim.deep_equal(require('dsh.config').defaults, {shown})")
    options = list(leaves(editor.lua("return require('dsh.config').defaults")))
    assert "prompt.keys.send" in options
    assert [name for name in options if f"*dsh-option-{name}*" not in HELP] == []


def test_every_highlight_is_named_with_its_link(editor: Editor) -> None:
    links = editor.lua("return require('dsh.highlights').links")
    assert links
    assert [name for name, link in links.items() if f"{name} {link} " not in WORDS] == []


def test_every_tag_is_there_once_and_every_link_leads_somewhere(editor: Editor, tmp_path: Path) -> None:
    shutil.copytree(PLUGIN / "doc", tmp_path / "doc", ignore=shutil.ignore_patterns("tags"))
    editor.command(f"helptags {tmp_path / 'doc'}")  # an error where a tag stands twice
    tags = {line.split("\t")[0] for line in (tmp_path / "doc" / "tags").read_text().splitlines()}
    examples = re.sub(r" >\w*\n.*?\n<", "", HELP, flags=re.DOTALL)
    links = set(re.findall(r"(?<!\S)\|([^\s|]+)\|", examples))
    assert links
    known = "return vim.tbl_contains(vim.fn.getcompletion(..., 'help'), ...)"
    assert [link for link in links if link not in tags and not editor.lua(known, link)] == []


def test_no_line_of_the_page_is_wider_than_a_help_window() -> None:
    assert [line for line in HELP.splitlines() if len(line.expandtabs(8)) > 78] == []


def test_the_picture_of_the_readme_is_there() -> None:
    (name,) = re.findall(r"!\[.*?\]\((.*?)\)", README)
    assert (PLUGIN / name).read_bytes().startswith(b"\x89PNG")
