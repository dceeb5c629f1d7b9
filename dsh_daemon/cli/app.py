"""`dshd`: the commands of the terminal client and how they are grouped in its help."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup

from dsh_daemon import __version__


class Command(NamedTuple):
    panel: str
    module: str
    function: str


COMMANDS = {
    "list": Command("Look", "reading", "list_sessions"),
    "tree": Command("Look", "reading", "tree"),
    "leaves": Command("Look", "reading", "leaves"),
    "show": Command("Look", "reading", "show"),
    "family": Command("Look", "reading", "family"),
    "turns": Command("Look", "reporting", "turns"),
    "request": Command("Look", "reporting", "request"),
    "stats": Command("Look", "reporting", "stats"),
    "transcript": Command("Look", "reporting", "transcript"),
    "search": Command("Look", "searching", "search"),
    "touched": Command("Look", "touched", "touched"),
    "replay": Command("Look", "replay", "replay"),
    "watch": Command("Look", "watch", "watch"),
    "demo": Command("Look", "demo", "demo"),
    "create": Command("Change", "changing", "create"),
    "navigate": Command("Change", "moving", "navigate"),
    "branch": Command("Change", "moving", "branch"),
    "fork": Command("Change", "agents", "fork"),
    "compact": Command("Change", "summarising", "compact"),
    "label": Command("Change", "changing", "label"),
    "rename": Command("Change", "changing", "rename"),
    "append": Command("Change", "changing", "append"),
    "move": Command("Change", "moving", "move"),
    "draft": Command("Change", "changing", "draft"),
    "archive": Command("Change", "changing", "archive"),
    "pin": Command("Change", "changing", "pin"),
    "delete": Command("Change", "changing", "delete"),
    "resume": Command("Work", "agents", "resume"),
    "agent": Command("Work", "agents", "agent"),
    "status": Command("Daemon", "daemon", "status"),
    "serve": Command("Daemon", "daemon", "serve"),
    "stdio": Command("Daemon", "daemon", "stdio"),
    "stop": Command("Daemon", "daemon", "stop"),
    "doctor": Command("Daemon", "daemon", "doctor"),
    "config": Command("Daemon", "daemon", "config"),
    "socket-path": Command("Daemon", "daemon", "socket_path"),
}


class _Plain:
    """A command whose help names the values of its options as we write them, not the types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = cast("list[Any]", super().get_params(ctx))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        for param in params:
            if param.param_type_name == "argument":
                param.display_type_rich = _nothing  # its name stands before it
            elif param.metavar is None and (param.is_flag or param.name == "help"):
                param.metavar = ""
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        except typer.BadParameter as exc:
            exc.message = exc.message.removeprefix("Value error, ")  # as the library below Typer begins it
            raise


class _Command(_Plain, TyperCommand):
    pass


class _Group(_Plain, TyperGroup):
    pass


def _nothing(ctx: Any) -> None:
    del ctx


def app(arguments: list[str], prog_name: str = "dshd") -> None:
    """Run one command and end the process; only what that command needs is imported and built."""
    named = arguments[0] if arguments else ""
    application = typer.Typer(
        cls=_Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback()(dshd)
    for name in [named] if named in COMMANDS else COMMANDS:
        command = COMMANDS[name]
        function = getattr(import_module(f".{command.module}", __package__), command.function)
        application.command(name, cls=_Command, rich_help_panel=command.panel)(function)
    application(arguments, prog_name=prog_name)


def _version(asked: bool) -> None:
    if asked:
        print(f"dshd {__version__}")
        raise typer.Exit


def dshd(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """The sessions of your coding agents as trees: look, go back, branch, label, follow.

    One daemon owns the session logs and serves every tool; it is started when a command needs it.

    New here? `dshd demo` shows everything in a quarter of a minute and touches nothing of yours.
    """
    del version
