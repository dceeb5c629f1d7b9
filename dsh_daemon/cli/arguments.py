"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from .complete import entries, places, refs

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
