"""Look through every session file and our own state; repair, on request, what can be repaired without losing a byte."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from contextlib import nullcontext, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from . import dsh_repair
from .config import ConfigError, load
from .errors import Fault
from .guards import guards
from .log.formats.header import id_from_name
from .log.index import NO_TIME
from .log.journal import Outdated, replace
from .progress import Progress
from .session import Session, dumps, now
from .summarizer import problem as no_model
from .text import iso

if TYPE_CHECKING:
    from collections.abc import Callable

    from .items import Item
    from .live import Client
    from .service import Service
    from .wire import types as t

WORTH_TELLING = frozenset({"warning", "error"})
_FIELD = re.compile(rb'"(id|cwd|timestamp)"\s*:\s*"((?:[^"\\]|\\.)*)"')


async def examine(service: Service, client: Client, params: t.DaemonDoctorParams) -> t.DoctorResult:
    """daemon/doctor, in a thread a file, with progress."""
    await service.background.up_to_date()
    store = service.store
    problems: list[t.Problem] = [*await asyncio.to_thread(_surroundings, service)]
    fixed: list[t.Fixed] = []
    items = list(store.items().values())
    with Progress(client, params.work_done_token, "Checking sessions") as progress:
        for number, item in enumerate(items):
            progress.report(f"{number}/{len(items)}")
            found, mended = await _examined(service, item, fix=params.fix)
            problems += found
            fixed += mended
    return {"checked": len(items), "problems": problems, "fixed": fixed}


async def _examined(service: Service, item: Item, *, fix: bool) -> tuple[list[t.Problem], list[t.Fixed]]:
    """What is wrong with one session, and what of it was repaired."""
    if item.peek.health == "unreadable":
        return [problem(item.path, "unreadable", item.record.reason or "it cannot be read")], []
    if item.peek.health == "unsupported":
        return [], []
    found = await asyncio.to_thread(check, item.path, service.recall)
    # A dsh that has the session goes on with what it read of it: its log is not to be another one under it.
    held = item.peek.format == "dsh" and await asyncio.to_thread(item.holder, service.store.facts) is not None
    if not fix or held or not any(p["fixable"] for p in found):
        return found, []
    live = service.live.get(item.path)
    async with live.lock if live is not None else nullcontext():
        done = await asyncio.to_thread(repair, item.path)
    await service.background.refresh([item.path])
    if not done:
        return found, []
    fixed: list[t.Fixed] = [
        {"path": p["path"], "code": p["code"], "detail": p["detail"]} for p in found if p["fixable"]
    ]
    return [p for p in found if not p["fixable"]], fixed


def problem(path: str, code: str, detail: str, *, fixable: bool = False) -> t.Problem:
    return {"path": path, "code": code, "detail": detail, "fixable": fixable}


def _surroundings(service: Service) -> list[t.Problem]:
    """What is wrong beside the sessions: our databases, loose modes in our store, leftovers of interrupted writes."""
    found: list[t.Problem] = []
    for path, trouble in (
        (service.folders.state_db, service.state.problem), (service.folders.catalog_db, service.catalog.problem),
        (service.folders.search_db, service.indexing.problem),
    ):  # fmt: skip
        if trouble:
            found.append(problem(str(path), "database", trouble))
    config = str(service.folders.config_file)
    service.take_settings()
    found += _settings(service)
    if service.settings.summarizer.model is not None and (trouble := no_model(service.settings.summarizer)):
        found.append(problem(config, "summarizer", trouble))
    found += [problem(config, "extension", trouble) for trouble in service.hooks.problems]
    for folder, _, names in os.walk(service.folders.sessions):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            if mode & 0o077:
                found.append(problem(path, "loose_mode", f"others may read it: its mode is {mode:04o}"))
    for left in service.store.leftovers:
        age = iso(int(left.mtime * 1000)) or "?"
        detail = f"{left.size} bytes of {age}, beside {os.path.basename(left.of)}; it is never put back by itself"
        found.append(problem(left.path, "leftover", detail))
    found += _mixed(service)
    for skipped in service.store.list(limit=1).get("skipped", []):
        found.append(problem(skipped["path"], "skipped", skipped["reason"]))
    return found


def _settings(service: Service) -> list[t.Problem]:
    """Settings that are not in force as they are written."""
    try:
        written = load(service.folders).model_dump()
    except ConfigError as exc:
        return [problem(exc.where, "settings", f"{exc}; the daemon goes on with what it read before")]
    counting = service.settings.model_dump()
    changed = sorted(name for name in written if written[name] != counting[name])
    text = f"{', '.join(changed)}: changed since the daemon started; it counts from the next start on (`dshd stop`)"
    return [problem(str(service.folders.config_file), "settings", text)] if changed else []


def _mixed(service: Service) -> list[t.Problem]:
    """Roots of dsh that hold compressed and plain logs: dsh refuses all of such a root."""
    kinds: dict[str, dict[bool, str]] = {}
    for item in service.store.items().values():
        if item.peek.format == "dsh":
            kinds.setdefault(item.root.path, {})[item.path.endswith(".zstd")] = item.path
    text = "dsh takes logs of one encoding in a root; this one has plain and compressed ones, for example {} and {}"
    return [
        problem(root, "mixed_encodings", text.format(*sorted(found.values())))
        for root, found in kinds.items()
        if len(found) > 1
    ]


def check(path: str, recall: Callable[[Session, str], None]) -> list[t.Problem]:
    """What is wrong with one session file; `recall` gives it the leaf that we keep beside it."""
    try:
        session = Session.open(path)
    except Fault as fault:
        return [problem(path, "unreadable", fault.message)]
    try:
        with suppress(Fault):  # our own state may be locked
            recall(session, path)
        index = session.index
        ours = session.header.format != "dsh"
        tail = nul_tail(session) if ours else None
        found: list[t.Problem] = []
        told: set[str] = set()
        refused = None if ours else dsh_repair.fault(session)
        for diagnostic in session.diagnostics():
            code = diagnostic["code"]
            if code == "lone_surrogate" or diagnostic["severity"] in WORTH_TELLING:
                told.add(code)
                place = f"line {diagnostic['line']}: " if "line" in diagnostic else ""
                header = code in {"no_header", "broken_header"} and bool(len(index)) and ours
                fixable = header or (code == "nul_run" and tail is not None and diagnostic.get("offset", -1) >= tail)
                fixable = fixable or (refused is not None and code in dsh_repair.MENDED)
                found.append(problem(path, code, place + diagnostic["message"], fixable=fixable))
        if tail is not None and "nul_run" not in told:
            found.append(problem(path, "nul_run", f"{index.size - tail} NUL bytes stand at its end", fixable=True))
        if refused is not None and not any(p["fixable"] for p in found):
            found.append(problem(path, "refused_by_dsh", refused.message, fixable=True))
        return found
    finally:
        session.journal.close()


def nul_tail(session: Session) -> int | None:
    """Where the NUL bytes begin that a file ends with; None when it does not."""
    end = size = session.index.size
    while end > 0:
        piece = session.journal.read(max(0, end - 65536), min(end, 65536))
        kept = piece.rstrip(b"\0")
        end -= len(piece) - len(kept)
        if kept:
            break
    return end if end < size else None


def repair(path: str) -> bool:
    """Put a repaired file in the place of a damaged one; the original stays beside it. False: not done."""
    session = Session.open(path)
    try:
        if session.header.format == "dsh":
            return dsh_repair.repair(session) is not None
        size = session.index.size
        data = session.journal.read(0, size)
        end = nul_tail(session)
        better = data if end is None else data[:end]
        if better and not better.endswith(b"\n"):
            better += b"\n"
        if session.header.state in {"broken", "headerless"} and len(session.index):
            better = dumps(new_header(session, better)) + b"\n" + better
        if better == data:
            return False
        keep = f"{path}.{sha256(data).hexdigest()[:8]}.bak"
        lock, ready = guards(session)
        with lock():
            ready()
            replace(path, better, keep, size)
    except (Outdated, Fault):
        return False
    finally:
        session.journal.close()
    return True


def new_header(session: Session, data: bytes) -> dict[str, Any]:
    """A header for a log that lost its own: from what can be read of the first line, the file's name, the entries."""
    index = session.index
    first = data.partition(b"\n")[0] if session.header.state == "broken" else b""
    known = {name.decode(): value.decode("utf-8", "replace") for name, value in _FIELD.findall(first)}
    began = next((time for time in index.time if time != NO_TIME), NO_TIME)
    return {
        "type": "session",
        "version": max(session.header.version, 1) if session.header.version < 3 else 3,
        "id": known.get("id") or id_from_name(session.path or ""),
        "timestamp": known.get("timestamp") or (iso(began) if began != NO_TIME else None) or now(),
        "cwd": known.get("cwd") or "",
    }
