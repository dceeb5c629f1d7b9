"""Plan a move of the leaf, as a person asks for it: nothing is written here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .log.index import NONE
from .text import content_of, images, plain_text
from .tree import abandoned, common_ancestor
from .turns import before_prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from .log.index import Index
    from .types import Entry


class Prompt(NamedTuple):
    """What goes back into the editor."""

    text: str
    images: list[dict[str, Any]]


class Plan(NamedTuple):
    outcome: Literal["moved", "unchanged"]
    leaf: int  # where the leaf goes, NONE for before the first entry
    common_ancestor: int
    abandoned: list[int]  # oldest first
    prompt: Prompt | None = None


def is_prompt(index: Index, i: int) -> bool:
    """Whether navigating to `i` means writing it anew: a user message or a `custom_message`."""
    shape = index.shape_of(i)
    return shape.type == "custom_message" or (shape.type == "message" and shape.role == "user")


def prompt_of(entry: Entry) -> Prompt:
    """Text and image blocks of a user message or a `custom_message`."""
    content = content_of(entry)
    return Prompt(plain_text(content), images(content))


def plan_navigation(index: Index, read: Callable[[int], Entry], leaf: int, target: int) -> Plan:
    """Where `target` (NONE: before the first entry) leads from `leaf`.

    A prompt leads to its parent (that of its `turn_start`, where it begins a recorded turn) and back into the editor
    (a user message even when it is the leaf); anything else becomes the leaf.
    """
    ancestor = common_ancestor(index, leaf, target)
    left = abandoned(index, leaf, target)
    if target == leaf and (target == NONE or index.shape_of(target).role != "user"):
        return Plan("unchanged", leaf, ancestor, left)
    if target != NONE and is_prompt(index, target):
        return Plan("moved", before_prompt(index, target), ancestor, left, prompt_of(read(target)))
    return Plan("moved", target, ancestor, left)
