"""`dshd demo`: everything once, in a temporary folder that is gone afterwards."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from dsh_daemon.paths import folders

from . import story, work
from .arguments import Json
from .call import Client, Refusal, connect, guard, put, short_ref
from .changing import label_line
from .daemon import roots_in_force
from .moving import after_lines, branch_lines, move_lines, pin_leaf
from .reading import list_lines
from .render import home, plural, row_line, session_line
from .stage import PATIENCE_S, Narrator, Stage
from .watch import event_line, head_line

TITLE = "redirect"  # a word of it
OWN = 5  # of the person's own sessions are listed
PAUSE_S = 0.35


def demo(
    *,
    fast: Annotated[bool, typer.Option("--fast", help="Without the short pauses between the steps.")] = False,
    agent: Annotated[str | None, typer.Option("--agent", hidden=True)] = None,
    json: Json = False,
) -> None:
    """Show what this is about, in a quarter of a minute: sample sessions, a daemon of their own, every move once.

    Nothing outside a temporary folder is written. Your own sessions are counted at the end, not touched.
    """
    if agent is not None:  # it is the demo itself that starts this process
        guard(lambda: asyncio.run(work.act(agent)))
        return
    guard(lambda: _run(Narrator(quiet=json, pause=0.0 if fast else PAUSE_S)))


def _run(tell: Narrator) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    own = [f"{root.format}={root.path}" if root.format else root.path for root in roots_in_force(folders())]
    folder = Path(tempfile.mkdtemp(prefix="dshd-demo-")).resolve()
    stage = Stage(folder)
    try:
        asyncio.run(_play(tell, stage, own))
    finally:
        with _undisturbed():
            stage.clear()
    tell.end()


def _leave(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _undisturbed() -> Generator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def _play(tell: Narrator, stage: Stage, own: list[str]) -> None:
    pi, omp = stage.folder / "pi", stage.folder / "omp"
    stage.cwd.mkdir()
    log = story.write_sessions(pi, omp, str(stage.cwd))
    stage.enter("home", [f"pi={pi}", f"omp={omp}"])
    if not tell.quiet:
        put("")
        tell.note("dshd demo: sample sessions in a temporary folder, with a daemon of their own.")
    client = await stage.start("dshd demo")
    session = await _look(tell, client)
    await _change(tell, client, session, log)
    client = await _pull_the_plug(tell, stage, client, session)
    client, session = await work.cut_off(tell, stage, client)
    await work.other_way(tell, stage, client, session)
    await stage.stop(client)
    await _own_sessions(tell, stage, own)


async def _look(tell: Narrator, client: Client) -> str:
    listed = await _counted(client)
    await tell.step("Three sessions of two agents, read where they lie.", "dshd list", "session/list", listed)
    tell.lines(list_lines(tell.view, listed, filtered=False))
    session = (await client.request("session/resolve", ref=TITLE))["sessionId"]
    page = await client.request("session/tree", sessionId=session)
    await tell.step(
        "Each is a tree. The way in use comes first; it ended badly.", f"dshd tree {TITLE}", "session/tree", page
    )
    await _tree(tell, client, session, page)
    return session


async def _counted(client: Client) -> dict[str, Any]:
    """The list once the background scan has counted the entries, or after a second without the counts."""
    until = time.monotonic() + 1
    while True:
        listed = await client.request("session/list")
        if all(info["scanned"] for info in listed["items"]) or time.monotonic() > until:
            return listed
        await asyncio.sleep(0.02)


async def _state(client: Client, session: str) -> dict[str, Any]:
    return await client.request("session/open", sessionId=session, subscribe=False)


async def _tree(tell: Narrator, client: Client, session: str, page: dict[str, Any]) -> None:
    tell.line(session_line(tell.view, await _state(client, session)))
    for row in page["rows"]:
        tell.line(row_line(tell.view, row))


async def _change(tell: Narrator, client: Client, session: str, log: Path) -> None:
    ref = await short_ref(client, session)
    async with connect(name="second tool", start=False) as second:
        heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        second.on("session/changed", heard.put_nowait)
        await second.request("session/open", sessionId=session)

        moved = await client.request("session/navigate", sessionId=session, targetId=story.REFACTOR)
        text = "Go back to the prompt that broke it. Its text returns for editing; the old way stays."
        await tell.step(text, f"dshd navigate {ref} {story.REFACTOR}", "session/navigate", moved)
        tell.lines(move_lines(tell.view, moved))
        tell.lines(after_lines(tell.view, await _state(client, session), None, ref))
        await _next(heard)

        began = time.perf_counter()
        params = {"sessionId": session, "entryId": story.DONE, "label": "before-refactor"}
        labelled = await client.request("session/label", params)
        change = await _next(heard)
        spent = time.perf_counter() - began
        text = "Name the good place. Another tool that follows the session hears it at once."
        await tell.step(text, f"dshd label {ref} {story.DONE} before-refactor", "session/label", labelled)
        tell.line(label_line(tell.view, story.DONE, change["labels"][story.DONE]))
        tell.note(f"A second tool heard of it {spent * 1000:.0f} ms after the request.")

        state = await _state(client, session)
        began = time.perf_counter()
        added = story.append_as_pi(log, labelled["leafId"])
        change = await _next(heard)
        while not {entry["id"] for entry in change["entries"]} >= set(added):
            change["entries"] += (await _next(heard))["entries"]
        spent = time.perf_counter() - began
        page = await client.request("session/tree", sessionId=session)
        text = "Meanwhile pi itself goes on at the label, asking nobody."
        await tell.step(text, f"dshd watch {ref} -n 0", "session/changed", change)
        tell.line(head_line(tell.view, state))
        tell.lines(event_line(tell.view, row) for row in page["rows"] if row["id"] in added)
        tell.note(f"All who follow the session know {spent * 1000:.0f} ms after the write.")

    await tell.step("Three ways now, none of them lost.", f"dshd tree {ref}", "session/tree", page)
    await _tree(tell, client, session, page)

    branched = await client.request("session/branch", sessionId=session, entryId=story.FIX)
    text = "Or give a prompt a file of its own, which pi lists and resumes like any other."
    await tell.step(text, f"dshd branch {ref} {story.FIX}", "session/branch", branched)
    made = branched["session"]["sessionId"]
    tell.lines(branch_lines(tell.view, branched, await short_ref(client, made)))


async def _next(heard: asyncio.Queue[dict[str, Any]]) -> dict[str, Any]:
    try:
        return await asyncio.wait_for(heard.get(), PATIENCE_S)
    except TimeoutError:
        raise Refusal("demo", "the second client heard nothing") from None


async def _pull_the_plug(tell: Narrator, stage: Stage, client: Client, session: str) -> Client:
    ref = await short_ref(client, session)
    before = await client.request("session/navigate", sessionId=session, targetId=story.DONE)
    pinned = await pin_leaf(client, await _state(client, session))
    text = "Move once more, with a line in the file so that pi starts there too. Then pull the plug."
    await tell.step(text, f"dshd navigate {ref} {story.DONE} --keep", "session/navigate", before)
    tell.lines(move_lines(tell.view, before))
    tell.lines(after_lines(tell.view, await _state(client, session), pinned, ref))
    assert stage.process
    tell.command(f"kill -9 {stage.process.pid}")
    stage.kill()
    await client.close()
    client = await stage.start("dshd demo")
    state = await _state(client, session)
    labels = await client.request("session/labels", sessionId=session)
    listed = await client.request("session/list")
    if pinned is None or state["leafId"] != pinned["leafId"] or not labels["items"]:
        raise Refusal("demo", "something was lost when the daemon was killed")
    await tell.step("A new daemon finds everything: what was answered is on disk.", "", "session/open", state)
    found = f"{plural(listed['total'], 'session')}, the leaf below {story.DONE}, ⚑ {labels['items'][0]['label']}"
    tell.note(found, "good")
    return client


async def _own_sessions(tell: Narrator, stage: Stage, own: list[str]) -> None:
    result: dict[str, Any] = {"items": [], "total": 0}
    if any(map(_has_logs, own)):
        stage.enter("own", own)
        client = await stage.start("dshd demo")
        result = await client.request("session/list", limit=OWN)
        await stage.stop(client)
    if result["total"]:
        text = f"And you have {plural(result['total'], 'session')} of your own here; the latest:"
        await tell.step(text, f"dshd list -n {OWN}", "session/list", result)
        tell.lines(list_lines(tell.view, result, filtered=False))
    else:
        await tell.step("No sessions of your own were found yet; they are looked for in:")
        for root in own:
            tell.note(home(_path(root)))


def _path(root: str) -> str:
    return root[root.index("/") :]


def _has_logs(root: str) -> bool:
    return next(Path(_path(root)).rglob("*.jsonl*"), None) is not None
