"""What asks others before it is done: summaries of what is left behind, and programs that may refuse a move."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import expect

from dsh_daemon.client import Client

from .editor import Window, wait_until
from .test_changing import PROMPT, entries, leaf, tree
from .test_tree import PATH
from .world import World

pytestmark = pytest.mark.timeout(600)  # the first test may have to install VS Code

TARGET = "83d7e64c"  # where one is, past the prompt
SUMMARY = "Tried the conservative way."


class Summarizer:
    """A client that summarizes, as soon as it is let."""

    def __init__(self, client: Client) -> None:
        self.let = threading.Event()
        self.asked: list[str | None] = []
        self.given_up = 0
        client.serve("hook/summarize", self.summarize)

    async def summarize(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request.get("instructions"))
        try:
            while not self.let.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return {"text": SUMMARY}


@contextmanager
def summarizer(world: World) -> Iterator[Summarizer]:
    with world.client("model", summarizer=True) as client:
        yield Summarizer(client)


def summaries(world: World, session: str) -> list[object]:
    return [entry["summary"] for entry in entries(world, session) if entry["type"] == "branch_summary"]


def leave(window: Window, text: str = PROMPT) -> None:
    window.tree.press(window.tree.row(text), "Navigate Here")


def test_without_a_summarizer_nothing_is_asked_and_with_one_that_came_later_it_is(world: World) -> None:
    world.daemon.start()
    session, window = tree(world)
    leave(window)
    wait_until(window.page, lambda: leaf(world, session) == TARGET, "the leaf does not move")
    window.command("Agent Sessions: Undo the Last Move")
    expect(window.tree.row(PATH[-1])).to_have_attribute("aria-label", re.compile("leaf"))

    with summarizer(world):
        leave(window)
        expect(window.picks).to_have_count(3)
        expect(window.input).to_have_attribute("placeholder", re.compile("left behind"))
        window.shot("summary-asks")
        window.keys.press("Escape")
        expect(window.palette).to_be_hidden()
        assert leaf(world, session) != TARGET

    leave(window)
    wait_until(window.page, lambda: leaf(world, session) == TARGET, "it is asked of a summarizer that has gone")


def test_a_move_without_a_summary_writes_none(world: World) -> None:
    world.daemon.start()
    session, window = tree(world)
    before = world.file(session).read_bytes()

    with summarizer(world) as asked:
        leave(window)
        window.picks.filter(has_text="No summary").click()
        wait_until(window.page, lambda: leaf(world, session) == TARGET, "the leaf does not move")

    assert asked.asked == []
    assert world.file(session).read_bytes() == before


def test_the_model_s_progress_is_told_and_its_summary_stands_at_the_new_place(world: World) -> None:
    with world.model() as model:
        model.plan = [["a" * 700, 0.3, "b" * 600, 3.0, "the end"]]
        session, window = tree(world)
        known = len(summaries(world, session))

        leave(window)
        expect(window.picks).to_have_count(3)
        window.asked("left behind")
        window.keys.press("ArrowDown")
        window.keys.press("Enter")

        toast = window.toasts.first
        expect(toast).to_contain_text("Summarizing what is left behind")
        expect(toast).to_contain_text(re.compile(r"\d+ characters"))
        window.shot("summary-progress")
        expect(window.tree.row("aaaa")).to_be_visible()

    assert len(summaries(world, session)) == known + 1
    wait_until(window.page, lambda: window.editor_text() == PROMPT, "the prompt does not open")
    expect(toast).to_be_hidden()
    window.shot("summary-written")


def test_instructions_reach_the_summarizer(world: World) -> None:
    world.daemon.start()
    session, window = tree(world)

    with summarizer(world) as asked:
        asked.let.set()
        leave(window)
        window.picks.filter(has_text="with instructions").click()
        window.asked("What the summary should look at")
        window.keys.type("only the tests")
        window.shot("summary-instructions")
        window.keys.press("Enter")
        wait_until(window.page, lambda: SUMMARY in summaries(world, session), "there is no summary")

    assert asked.asked == ["only the tests"]


def test_a_summary_that_is_cancelled_leaves_everything_as_it_was(world: World) -> None:
    world.daemon.start()
    session, window = tree(world)
    before, old = world.file(session).read_bytes(), leaf(world, session)

    with summarizer(world) as asked:
        leave(window)
        window.picks.filter(has_text=re.compile("^Summarize$")).click()
        window.toasts.first.get_by_role("button", name="Cancel").click()

        expect(window.status).to_contain_text("Cancelled")
        wait_until(window.page, lambda: asked.given_up == 1, "the summarizer goes on")
    assert (world.file(session).read_bytes(), leaf(world, session)) == (before, old)


def test_a_summary_that_fails_is_said_and_nothing_moves(world: World) -> None:
    with world.model() as model:
        model.plan = [[400]]
        session, window = tree(world)
        old = leaf(world, session)

        leave(window)
        window.picks.filter(has_text=re.compile("^Summarize$")).click()

        expect(window.toasts.filter(has_text="Agent Sessions:").first).to_be_visible()
        window.shot("summary-failed")
        assert leaf(world, session) == old


HOSTILE = "not now [run](command:workbench.action.closeWindow) $(rocket)\nsecond line"


@pytest.mark.parametrize("reason", ["a release is being made", HOSTILE, None])
def test_who_refuses_a_move_or_a_branch_is_named_with_the_reason(world: World, reason: str | None) -> None:
    world.daemon.start()
    session, window = tree(world)
    old, count = leaf(world, session), world.ask("session/list")["total"]

    async def veto(_request: dict[str, Any]) -> dict[str, Any]:
        return {"cancel": True, **({} if reason is None else {"reason": reason})}

    with world.client("gatekeeper", hooks=["sessionBeforeTree", "sessionBeforeBranch"]) as client:
        client.serve("hook/sessionBeforeTree", veto)
        client.serve("hook/sessionBeforeBranch", veto)
        for title, what in (("Navigate Here", "the move"), ("Branch into a New Session", "the new session")):
            window.tree.press(window.tree.row(PROMPT), title)
            toast = window.toasts.filter(has_text=f"“gatekeeper” refused {what}")
            expect(toast).to_have_count(1)
            if reason is not None:
                expect(toast).to_contain_text(reason.split()[1])
            assert toast.locator("a[href^='command:'], .codicon-rocket").count() == 0
        window.shot(f"refused-{'plain' if reason is None else reason.split()[0]}")

    assert leaf(world, session) == old
    assert world.ask("session/list")["total"] == count


def test_who_thinks_long_about_a_branch_is_waited_for_and_can_be_left(world: World) -> None:
    world.daemon.start()
    _, window = tree(world)

    async def never(_request: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    with world.client("slow", hooks=["sessionBeforeTree", "sessionBeforeBranch"]) as client:
        client.serve("hook/sessionBeforeTree", never)
        client.serve("hook/sessionBeforeBranch", never)
        for title in ("Branch into a New Session", "Navigate Here"):
            window.tree.press(window.tree.row(PROMPT), title)
            expect(window.toasts.first).to_be_visible()
            window.shot("slow-hook")
            window.toasts.first.get_by_role("button", name="Cancel").click()
            expect(window.status).to_contain_text("Cancelled")
            expect(window.toasts).to_have_count(0)

    assert world.ask("session/list")["total"] == 1
    assert window.editor_text() == ""
