"""Who has a say before something happens to a session, and who is told after it did.

Owners of hooks are connected clients that named them in `initialize`, and extensions inside the daemon. They are asked
in the order in which they came, one at a time. A timeout, an error, or an answer that makes no sense is no opinion.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from .errors import Busy, InvalidEntry
from .log.formats.writing import refuse_what_changes

log = logging.getLogger(__name__)

BEFORE_TREE, BEFORE_BRANCH = "sessionBeforeTree", "sessionBeforeBranch"
BEFORE_COMPACT, COMPACTING, SUMMARIZE = "sessionBeforeCompact", "sessionCompacting", "summarize"
HOOKS = (BEFORE_TREE, BEFORE_BRANCH, BEFORE_COMPACT, COMPACTING)
EVENTS = ("sessionTree", "sessionBranch", "sessionCompact")
MAX_LABEL = 1_000  # code points, as of any label


class Owner(Protocol):
    """A client or an extension. `hooks` and `events` are the parts of the methods' names behind the slash."""

    name: str
    summarizer: bool
    leaving: bool  # it answers nothing more

    @property
    def hooks(self) -> tuple[str, ...]: ...
    @property
    def events(self) -> tuple[str, ...]: ...

    async def ask(self, method: str, params: dict[str, Any]) -> Any: ...
    def push(self, method: str, params: Any, key: str | None = None) -> None: ...


def _storable(value: Any) -> Any:
    try:
        refuse_what_changes({"details": value}, 0)
    except InvalidEntry as exc:
        raise ValueError(exc.message) from None
    return value


Details = Annotated[Any, AfterValidator(_storable)]


class Answer(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", strict=True)


class Given(Answer):
    """A summary that a hook's owner made."""

    text: str
    details: Details = None


class Opinion(Answer):
    cancel: bool = False
    reason: str | None = None


class TreeOpinion(Opinion):
    summary: Given | None = None
    label: Annotated[str, Field(max_length=MAX_LABEL)] | None = None


class CompactOpinion(Opinion):
    summary: str | None = None
    details: Details = None


class PromptOpinion(Answer):
    context: list[str] = []
    prompt: str | None = None


Said = TypeVar("Said", bound=Answer)


class NoAnswer(Exception):
    """An owner gave no answer that can be used; its text says why, behind the owner's name."""

    def __init__(self, why: str, *, late: bool = False) -> None:
        super().__init__(why)
        self.late = late


class Hooks:
    """The owners of hooks, and which of them is being asked about which session."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long one owner may think."""
        self.seconds = seconds
        self.problems: list[str] = []  # extensions that failed, for the doctor
        self._owners: list[Owner] = []
        self._inside: Counter[tuple[Owner, str]] = Counter()

    def add(self, owner: Owner) -> None:
        self._owners.append(owner)

    def drop(self, owner: Owner) -> None:
        if owner in self._owners:
            self._owners.remove(owner)

    def wanted(self, hook: str) -> bool:
        return any(hook in owner.hooks for owner in self._owners)

    @property
    def summarizers(self) -> list[Owner]:
        """Clients that summarise themselves, in the order in which they came."""
        return [owner for owner in self._owners if owner.summarizer and not owner.leaving]

    def refuse_inside(self, owner: Any, key: str) -> None:
        """Refuse to change a session from inside of a hook about it: it would wait for itself. Raises Busy."""
        if self._inside[owner, key]:
            raise Busy("a hook about this session waits for your answer: it cannot be changed before", retryAfterMs=100)

    async def ask(
        self, hook: str, key: str, params: dict[str, Any], form: type[Said]
    ) -> AsyncGenerator[tuple[Owner, Said]]:
        """Give what each owner of `hook` says about the session at `key`; who has nothing to say is left out."""
        for owner in list(self._owners):
            if hook in owner.hooks and not owner.leaving:
                try:
                    said = await self.ask_one(owner, hook, key, params, form, self.seconds)
                except NoAnswer as exc:
                    log.warning("%s %s", owner.name, exc)
                else:
                    yield owner, said

    async def ask_one(
        self, owner: Owner, hook: str, key: str, params: dict[str, Any], form: type[Said], seconds: float
    ) -> Said:
        """Ask one owner. Raises NoAnswer."""
        self._inside[owner, key] += 1
        try:
            async with asyncio.timeout(seconds):
                answer = await owner.ask(f"hook/{hook}", params)
            return form.model_validate({} if answer is None or answer == [] else answer)
        except TimeoutError:
            raise NoAnswer(f"did not answer hook/{hook} within {seconds:g} s", late=True) from None
        except ValidationError as exc:
            raise NoAnswer(f"answered hook/{hook} with what it does not mean: {_first(exc)}") from None
        except ConnectionError as exc:
            raise NoAnswer(f"could not answer hook/{hook}: {exc}") from None
        finally:
            self._inside[owner, key] -= 1
            if not self._inside[owner, key]:
                del self._inside[owner, key]

    def tell(self, event: str, params: dict[str, Any]) -> None:
        for owner in list(self._owners):
            if event in owner.events and not owner.leaving:
                owner.push(f"event/{event}", params)


def _first(exc: ValidationError) -> str:
    issue = exc.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in issue['loc'])}: {issue['msg']}"
