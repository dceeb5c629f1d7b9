"""The daemon's process: lock and socket first, then the imports that take time, then the service."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh_daemon.paths import Folders, folders, open_private, private_folder

from .commands import fail, say
from .lifecycle import AlreadyRunning, Bound, bind

if TYPE_CHECKING:
    from dsh_daemon.config import Settings

    from .server import Server

SWITCH_S = 0.0001  # a thread that scans gives the event loop the interpreter fifty times as often as by default
OPEN_FILES = 65_536  # each open session has one
LOG_BYTES = 2 << 20
LOG_FILES = 3
log = logging.getLogger("dshd")


class PrivateLog(RotatingFileHandler):
    """A rotated log whose files are 0600 whatever the umask."""

    def _open(self) -> TextIOWrapper:
        fd = open_private(Path(self.baseFilename), os.O_WRONLY | os.O_APPEND)
        return os.fdopen(fd, "a", encoding="utf-8", errors="backslashreplace")


def serve_foreground(where: Folders, tcp: str | None = None, ready_fd: int | None = None) -> int:
    """Be the daemon of `where` until stopped; the exit status. Tells `ready_fd` "ready PID" or "running PID"."""
    os.umask(0o077)
    gc.disable()  # a tenth of the start goes into collecting what imports made to stay
    try:
        private_folder(where.log.parent)
        bound = bind(where)
    except AlreadyRunning as exc:
        if ready_fd is None:
            say(f"dshd: {exc}")
        else:
            os.write(ready_fd, b"running %d\n" % exc.pid)
        return 0
    except OSError as exc:
        return fail(exc)
    try:
        return _guarded(where, bound, tcp, ready_fd)
    finally:
        bound.unlink()
        bound.lock.release()


def _guarded(where: Folders, bound: Bound, tcp: str | None, ready_fd: int | None) -> int:
    from dsh_daemon.config import ConfigError, load

    try:
        settings = load(where)
        _many_files()
        _log_to(where, settings.log_level, foreground=ready_fd is None)
        return asyncio.run(_main(where, settings, bound, tcp or settings.tcp, ready_fd))
    except (ConfigError, ValueError) as exc:
        sys.stderr.write(f"dshd: {exc}\n")
        return 1
    except OSError as exc:
        return fail(exc)


def _many_files() -> None:
    """Let each open session keep its file open, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _main(where: Folders, settings: Settings, bound: Bound, tcp: str | None, ready_fd: int | None) -> int:
    from dsh_daemon.service import Service

    from . import extensions
    from .codec import Notification
    from .server import Server

    service = Service(settings, where, Notification)
    server = Server(service, settings, where)
    extensions.load(service)
    await service.start()
    try:
        await server.listen(bound)
        if tcp:
            info = await server.listen_tcp(tcp)
            log.info("TCP on %s port %d, the token is in %s", info["host"], info["port"], info["tokenFile"])
    except BaseException:
        await server.close()
        raise
    _obey_signals(server)
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()
    gc.enable()
    log.info("ready: pid %d, socket %s", os.getpid(), where.socket)
    if ready_fd is not None:
        os.write(ready_fd, b"ready %d\n" % os.getpid())
        os.close(ready_fd)
        os.chdir("/")
    await server.run()
    log.info("ended")
    if server.forced:
        bound.unlink()
        logging.shutdown()
        os._exit(0)  # a thread that hangs in the file system must not keep us
    return 0


def serve_alone() -> int:
    """Serve one client on stdin and stdout, without a socket, until it leaves."""
    from dsh_daemon.config import ConfigError, load

    os.umask(0o077)
    gc.disable()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="dshd: %(message)s")
    logging.getLogger("pygls").setLevel(logging.CRITICAL)
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it names files at every change
    try:
        return asyncio.run(_alone(load(folders())))
    except ConfigError as exc:
        sys.stderr.write(f"dshd: {exc}\n")
    except OSError as exc:
        return fail(exc)
    return 1


async def _alone(settings: Settings) -> int:
    from dsh_daemon.service import Service

    from . import extensions
    from .codec import Notification
    from .server import Server

    service = Service(settings, folders(), Notification, helpers=False)
    server = Server(service, settings)
    extensions.load(service)
    await service.start()
    _obey_signals(server)
    gc.freeze()
    gc.enable()
    running = asyncio.create_task(server.run())
    await server.serve_stdio()
    server.stop()
    await running
    return 0


def _obey_signals(server: Server) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal that started us may go

    def report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        from .connection import refusal

        log.error("%s", context["message"])
        if isinstance(error := context.get("exception"), BaseException):
            refusal(error)

    loop.set_exception_handler(report)


def _log_to(where: Folders, level: str, *, foreground: bool) -> None:
    handlers: list[logging.Handler] = [PrivateLog(where.log, maxBytes=LOG_BYTES, backupCount=LOG_FILES, delay=False)]
    if foreground:
        handlers.append(logging.StreamHandler(sys.stderr))
    logging.basicConfig(
        level=level.upper(), handlers=handlers, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for name in ("openai", "httpx", "httpx2", "httpcore", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)  # they log addresses and what is sent there
    if level != "debug":
        logging.getLogger("pygls").setLevel(logging.CRITICAL)
        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it names files at every change  # it quotes params
    for path in (where.log.parent, where.log):
        if path.stat().st_mode & 0o077:
            log.warning("%s can be read by others; we leave it so", path)
