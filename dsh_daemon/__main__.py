"""`dshd`: the few commands that must be quick are answered here, all others by the typer application."""

from __future__ import annotations

import os
import sys

# Flags that take a value, and those that do not; anything else (--help, a typo) is for typer to answer.
_FLAGS: dict[str, dict[str, bool]] = {
    "status": {"--json": False},
    "stop": {"--json": False, "--force": False, "--no-drain": False},
    "socket-path": {"--json": False},
    "stdio": {"--standalone": False},
    "serve": {"--foreground": False, "--socket": True, "--tcp": True, "--ready-fd": True},
}


def main(arguments: list[str] | None = None) -> int:
    """Run `dshd` with these arguments (default: the process's own); the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_closed_streams()
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except OSError as exc:  # stdout takes nothing: its reader left, or the disk is full
        from .wire import commands

        commands.quiet_pipe()
        return 0 if isinstance(exc, BrokenPipeError) else commands.fail(exc)


def _open_closed_streams() -> None:
    """Give the streams that whoever started us had closed back their numbers: the next file opened would get them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (it stays open)


def _run(arguments: list[str]) -> int:
    options = _parse(arguments)
    if options is None:
        from .cli.app import app

        app(arguments, prog_name="dshd")
        return 0
    from .wire import commands

    match arguments[0]:
        case "status":
            return commands.status(as_json="--json" in options)
        case "stop":
            return commands.stop(
                as_json="--json" in options, force="--force" in options, drain="--no-drain" not in options
            )
        case "socket-path":
            return commands.socket_path(as_json="--json" in options)
        case "stdio":
            return commands.stdio(standalone="--standalone" in options)
        case _:
            fd = options.get("--ready-fd")
            return commands.serve(
                foreground="--foreground" in options,
                socket=options.get("--socket"),
                tcp=options.get("--tcp"),
                ready_fd=int(fd) if fd else None,
            )


def _parse(arguments: list[str]) -> dict[str, str] | None:
    """Read flags with their values; None where typer must speak."""
    flags = _FLAGS.get(arguments[0]) if arguments else None
    if flags is None:
        return None
    found: dict[str, str] = {}
    rest = iter(arguments[1:])
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in flags or (equals and not flags[name]):
            return None
        if flags[name] and not equals:
            value = next(rest, "")
        if flags[name] and not value:
            return None
        found[name] = value
    return found


if __name__ == "__main__":
    sys.exit(main())
