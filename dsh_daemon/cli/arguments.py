"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .call import folder, here
from .complete import entries, places, refs
from .render import clean


class Scope(StrEnum):
    exact = "exact"
    subtree = "subtree"
    repo = "repo"


class Format(StrEnum):
    native = "native"
    pi = "pi"
    omp = "omp"
    dsh = "dsh"
    claude = "claude"
    codex = "codex"


_REF = "A session: an id or the beginning of one, a title, a path, or `last` (the latest of this folder)."
_ENTRY = "An entry: an id or the beginning of one, or `leaf`."
_PLACE = "An entry: an id or the beginning of one, or `leaf`; or `root`, which is before the first entry."

Ref = Annotated[str, typer.Argument(metavar="REF", help=_REF, autocompletion=refs, show_default=False)]
RefOrLast = Annotated[str, typer.Argument(metavar="REF", help=_REF, autocompletion=refs)]
Entry = Annotated[str, typer.Argument(metavar="ENTRY", help=_ENTRY, autocompletion=entries, show_default=False)]
EntryOrNone = Annotated[str | None, typer.Argument(metavar="ENTRY", help=_ENTRY, autocompletion=entries)]
Place = Annotated[str, typer.Argument(metavar="ENTRY", help=_PLACE, autocompletion=places, show_default=False)]
PlaceOrNone = Annotated[str | None, typer.Argument(metavar="ENTRY", help=_PLACE, autocompletion=places)]
Json = Annotated[bool, typer.Option("--json", help="Print the protocol's result as one JSON document.")]
Expect = Annotated[
    str | None,
    typer.Option("--expect", metavar="ID", help="Do nothing and say `leafMoved` unless the leaf is this entry."),
]
HereOnly = Annotated[bool, typer.Option("--here", help="Only sessions of the current folder.")]
InFolder = Annotated[Path | None, typer.Option("--cwd", metavar="DIR", help="Only sessions of this folder.")]
InScope = Annotated[
    Scope | None,
    typer.Option(
        metavar="SCOPE", help="The folder alone (exact), with all below it (subtree), or its repository (repo)."
    ),
]
OfFormats = Annotated[
    list[str] | None,
    typer.Option("--format", "-f", metavar="FORMAT", help=f"{', '.join(Format)}; several by commas."),
]
Archived = Annotated[bool, typer.Option("--archived", help="Archived sessions too.")]
Subagents = Annotated[bool, typer.Option("--subagents", help="Sessions of subagents too.")]


def place_of(here_: bool, cwd: Path | None, scope: Scope | None) -> str | None:
    """The folder that --here, --cwd and --scope mean together; None for all folders."""
    return folder(str(cwd)) if cwd and not here_ else here() if here_ or scope else None


def choices(kinds: type[StrEnum], given: list[str] | None, option: str) -> list[StrEnum]:
    """The values of an option that may be repeated or hold several, between commas."""
    words = [word.strip() for text in given or [] for word in text.split(",")]
    for word in words:
        if word not in list(kinds):
            raise typer.BadParameter(f"{clean(word)!r} is not one of {', '.join(kinds)}", param_hint=option)
    return [kinds(word) for word in words]
