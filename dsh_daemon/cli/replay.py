"""`dshd replay`: a session once more, in the order in which its log was written."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from dsh_daemon.chunks import unpack
from dsh_daemon.log.times import NO_TIME

from .arguments import RefOrLast
from .call import Client, dump, find_entry, flush, interactive, put, resolve, run, screen, write
from .complete import entries, turn_numbers
from .render import Screen, clean, short_id
from .telling import CHUNKS, Log, Told, body, head

LONGEST_PAUSE_S = 2.0  # at speed 1; nobody waits through the night between two turns


def replay(
    ref: RefOrLast = "last",
    *,
    turn: Annotated[
        int | None, typer.Option("--turn", metavar="N", min=1, help="Only this turn.", autocompletion=turn_numbers)
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="ENTRY", help="From this entry on.", autocompletion=entries)
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option("--speed", metavar="X", min=0.01, help="2: twice as fast as it was; a pipe waits only with this."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Entries that the tree hides, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print each entry as one JSON document on a line.")] = False,
) -> None:
    """Go through a session in the order of its log: what was said and done, as it came.

    On a terminal: space plays and pauses, ← and → go a step back and on, ↑ and ↓ to the turn before and after, + and -
    change the speed, q ends; it waits at the place that --turn or --from name. Where the log has the pieces in which a
    model wrote its answer, they are shown so. No pause is longer than two seconds.

    Examples: `dshd replay`, `dshd replay last --turn 3`, `dshd replay last --from 4f2a > replay.txt`
    """
    if turn is not None and from_ is not None:
        raise typer.BadParameter("name --turn or --from, not both", param_hint="--from")

    async def work(client: Client) -> None:
        log = await Log.of(client, await resolve(client, ref), all_=all_)
        if turn is not None:
            await log.only_turn(turn)
        elif from_ is not None:
            await log.begin_at(await find_entry(client, log.session, from_))
        if json:
            await as_lines(log, speed)
        elif interactive():
            from .player import Player

            placed = turn is not None or from_ is not None
            await Player(log, screen(), speed or 1.0, playing=speed is not None or not placed).run()
        else:
            await Teller(log, screen(), speed).tell()

    run(work)


def pause(before: int, time: int, speed: float | None) -> float:
    """Seconds to wait between two moments of a log, in milliseconds; without a speed none."""
    if speed is None or NO_TIME in {before, time}:
        return 0.0
    return min(max((time - before) / 1000, 0.0), LONGEST_PAUSE_S) / speed


async def as_lines(log: Log, speed: float | None) -> None:
    """Each entry as its log has it, one on each line."""
    before = NO_TIME
    for k in range(log.start, log.end):
        told = await log.at(k)
        if wait := pause(before, told.time, speed):
            flush()
            await asyncio.sleep(wait)
        before = told.time
        put(dump(told.stored, pretty=False))


class Teller:
    """Tells a session as plain text; with a speed as slowly as it came, answers piece by piece."""

    def __init__(self, log: Log, view: Screen, speed: float | None) -> None:
        self.log = log
        self.view = view
        self.speed = speed
        self.time = NO_TIME
        self.heard = ""  # of the answer whose pieces come
        self.written = False  # whether they were told
        self.turn = 0

    async def tell(self) -> None:
        before: str | None = None
        branch = False
        for k in range(self.log.start, self.log.end):
            told = await self.log.at(k)
            branch = branch or (k > self.log.start and told.parent != before)
            before = told.id
            if told.type == CHUNKS:
                await self._pieces(told)
            elif self.log.shows(told):
                await self._wait(told.time)
                self._end_of_answer(told)
                self._entry(told, self.log.turn_at(k), branch=branch)
                branch = False
        self._end_of_answer(None)

    async def _wait(self, time: int) -> None:
        if wait := pause(self.time, time, self.speed):
            flush()
            await asyncio.sleep(wait)
        self.time = self.time if time == NO_TIME else time

    async def _pieces(self, told: Told) -> None:
        for delta in unpack(told.entry):
            if delta.kind != "text":
                continue
            self.heard += delta.text
            if self.speed is None:
                continue
            await self._wait(delta.time)
            if not self.written:
                put(self.view.join(head(told)))
                write("  ")
            self.written = True
            write("\n  ".join(clean(line) for line in delta.text.split("\n")))
            flush()

    def _end_of_answer(self, told: Told | None) -> None:
        """End what was told piece by piece, or tell what no answer will hold any more."""
        whole = told is not None and told.role == "assistant"
        if self.written:
            put("")
        elif self.heard and not whole:
            put(self.view.paint("assistant", "assistant"))
            for line in self.heard.split("\n"):
                put("  " + clean(line))
        if self.heard and not whole:
            put(self.view.paint("  … cut off here", "warn"))
            put("")
        self.heard = ""

    def _entry(self, told: Told, turn: int, *, branch: bool) -> None:
        said, self.written = self.written and told.role == "assistant", False
        if branch:
            put(self.view.paint(f"── another branch, from {short_id(told.parent or 'root')} on", "dim"))
        if turn != self.turn:
            self.turn = turn
            put(self.view.paint(f"── turn {turn:,}", "strong"))
        if not said:
            put(self.view.join(head(told)))
        for text, style in body(told, said=said):
            put(("  " + self.view.paint(text, style)).rstrip())
        put("")
