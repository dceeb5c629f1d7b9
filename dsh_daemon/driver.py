"""What writes an agent's work into the logs of one format: its own for each of them, all called alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .session import Prepared


class Resumed(NamedTuple):
    prepared: Prepared
    repaired: list[dict[str, Any]]  # what closed a turn that was cut off, as `session/resume` tells it


class Begun(NamedTuple):
    number: int  # of the turn or step
    entry_id: str  # of the user's message, or of the mark of the step
    mark_id: str  # of the mark with which it begins
    prepared: Prepared


class Driver(Protocol):
    """One agent's hold on a session. It gives what is to be written to the log as it is now, and writes nothing.

    Whoever shares the session between tasks holds its lock for every call.
    """

    @property
    def heavy(self) -> bool:
        """Whether what is next takes so long that it belongs into a thread."""
        ...

    def check(self) -> None:
        """Raise what forbids to go on with the log as it is now."""
        ...

    def resume(self) -> Resumed:
        """Close a turn that was cut off; nothing where none was."""
        ...

    def interrupt(self) -> Resumed:
        """Close the turn that this agent leaves open."""
        ...

    def start_turn(self, content: object) -> Begun:
        """Begin a turn with what the user says, behind the closers of one that nobody runs. Raises InvalidEntry."""
        ...

    def start_step(self, turn: int, header: Mapping[str, Any] | None) -> Begun:
        """Begin the next step, with its header where it is another one. Raises NoOpenTurn, StepOpen, InvalidEntry."""
        ...

    def end_step(self, turn: int, step: int, outcome: str) -> Prepared:
        """End a step; a completed one has its answer. Raises NoOpenTurn, InvalidEntry."""
        ...

    def end_turn(self, turn: int, reason: dict[str, Any]) -> Prepared:
        """End a turn, and what is open in it where it was not completed. Raises NoOpenTurn, StepOpen, InvalidEntry."""
        ...
