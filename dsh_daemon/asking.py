"""What others have a say in, or a model summarises for: navigate, branch, compact.

Plan, ask, apply. Nothing is locked while hooks and models are asked; a cancel up to then leaves everything as it was.
What began to be applied is done to its end, whoever stops waiting for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from . import changing, elsewhere, hooks, summaries, tree
from .branches import branch as make_branch
from .changing import LeftBehind
from .compaction import CALLS, Cut, cut_at, first_cut, plan_cut
from .errors import Busy, Fault, NoActiveModel, NothingToCompact, NotSupportedByFormat, SessionGone, SummaryFailed
from .live import Operation
from .log.formats.writing import compaction_entry
from .log.index import NONE
from .progress import Progress
from .reading import cut_to
from .session import Rewritten

if TYPE_CHECKING:
    from .live import Client, LiveSession
    from .service import Service
    from .session import Prepared, Session
    from .types import Entry, MethodCause
    from .wire import types as t

MOST_ENTRIES = 10_000  # that a hook is sent, the newest
ENTRIES_BYTES = 8 << 20  # of the bodies that a hook is sent; what is over that is cut, the oldest first

T = TypeVar("T")


class Refused(NamedTuple):
    by: str
    reason: str | None


@contextmanager
def operation(live: LiveSession) -> Generator[Operation]:
    """One at a time: what takes long and can be stopped by `session/abort`. Raises Busy."""
    if live.operation is not None:
        raise Busy("somebody else's move or summary of this session is under way", retryAfterMs=1000)
    task = asyncio.current_task()
    assert task is not None
    live.operation = Operation(task)
    try:
        yield live.operation
    except Rewritten:
        raise Busy("another program is rewriting this session", retryAfterMs=500) from None
    finally:
        live.operation = None


async def to_its_end(service: Service, work: Coroutine[Any, Any, T]) -> T:
    """Apply what was decided: a cancel comes too late, and the answer says what happened."""
    task = service.finish(work)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise


def stopped(live: LiveSession) -> None:
    """A cancel was heard and is answered with a result. Raises SessionGone where it came from the session's end."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    if live.closed is not None:
        path = live.session.path
        raise SessionGone(f"the file of this session was {live.closed}", path=path, reason=live.closed)


# Navigate


async def navigate(
    service: Service, live: LiveSession, client: Client, params: t.SessionNavigateParams, cause: MethodCause
) -> t.NavigateResult:
    """session/navigate. Raises EntryNotFound, LeafMoved, NoActiveModel, SummaryFailed, TurnOpen, Busy."""
    async with live.lock:
        await live.catch_up()
        move = changing.plan_move(live, params)
    moving = move.plan.outcome == "moved" and not params.preview
    if moving and params.summarize is not False:
        service.check_model()
    summarising = params.summarize is not False and bool(move.plan.abandoned)
    if moving and (summarising or service.hooks.wanted(hooks.BEFORE_TREE)):
        changing.refuse_move(live, move.plan.leaf)
        if not summarising:
            changing.refuse_nameless(move, params)
        with operation(live) as running:
            try:
                if summarising:
                    await changing.check_ready(live.session, move.plan.leaf)
                left, params = await _before_tree(service, live, client, params, move)
            except asyncio.CancelledError:
                stopped(live)
                return _stays(move, "cancelled")
            if isinstance(left, Refused):
                return _stays(move, "refused") | _who(left)  # pyright: ignore[reportReturnType]
            running.decided = True
            result = await to_its_end(service, changing.apply(live, service.state, move, params, left, cause))
            if left is not None and left.left_out:
                result["leftOut"] = left.left_out
    else:
        left = None
        result = await to_its_end(service, changing.navigate(live, service.state, params, cause))
    if result["outcome"] == "moved":
        told: dict[str, Any] = {"sessionId": live.id, "newLeafId": result["leafId"], "oldLeafId": result["oldLeafId"]}
        if (id_ := result.get("summaryEntryId")) is not None:
            with suppress(Fault):  # it was written, whatever became of the file since then
                told["summaryEntry"] = live.session.stored(live.session.find(id_))
        service.hooks.tell("sessionTree", told | {"fromExtension": left is not None and left.from_extension})
    return result


def _stays(move: changing.Move, outcome: Literal["cancelled", "refused"]) -> t.NavigateResult:
    """The answer where nothing moves: there is no prompt to edit either."""
    told: t.NavigateResult = {**move.result, "outcome": outcome, "leafId": move.old}
    told.pop("editorText", None)
    told.pop("editorImages", None)
    return told


async def _before_tree(
    service: Service, live: LiveSession, client: Client, params: t.SessionNavigateParams, move: changing.Move
) -> tuple[LeftBehind | Refused | None, t.SessionNavigateParams]:
    """What hooks say of a move, and its summary. A label that a hook gives counts where the caller gave none."""
    asked = params.summarize is not False
    wishes = params.summarize if not isinstance(params.summarize, bool) else None
    left: LeftBehind | None = None
    named: str | None = None
    part = Part(live.session, move.plan.abandoned, move.old, move.epoch)
    if service.hooks.wanted(hooks.BEFORE_TREE):
        preparation = {
            "targetId": params.target_id if not params.back else live.session.index.id_of(move.plan.leaf),
            "oldLeafId": move.old,
            "commonAncestorId": move.result["commonAncestorId"],
            "entriesToSummarize": await entries_of(part),
            "userWantsSummary": asked,
        }
        told: dict[str, Any] = {"sessionId": live.id, "preparation": preparation}
        if wishes is not None and wishes.instructions:
            told["instructions"] = wishes.instructions
        async for owner, said in service.hooks.ask(hooks.BEFORE_TREE, live.key, told, hooks.TreeOpinion):
            if said.cancel:
                return Refused(owner.name, said.reason), params
            if said.summary is not None and said.summary.text.strip() and asked:
                left = LeftBehind(said.summary.text, said.summary.details, from_extension=True)
            named = said.label or named
    if asked and left is None and move.plan.abandoned:
        ask = Ask(summaries.LEFT, wishes.instructions if wishes else None, replace=bool(wishes and wishes.replace))
        left = await summarise(service, live, client, part, ask, params.work_done_token)
    nameless = left is None and params.target_id is None and move.plan.leaf == NONE
    if named and params.label is None and not nameless:
        params = params.model_copy(update={"label": named})
    return left, params


# Branch


async def branch(
    service: Service, live: LiveSession, client: Client, params: t.SessionBranchParams, cause: MethodCause
) -> t.BranchResult:
    """session/branch, behind its hooks."""
    del client
    entry_id = live.session.leaf_id if params.entry_id is None else params.entry_id
    live.session.find(entry_id)
    if entry_id is not None:
        params = params.model_copy(update={"entry_id": entry_id})  # what hooks agree to is what is done
    if service.hooks.wanted(hooks.BEFORE_BRANCH):
        nothing: t.BranchResult = {"outcome": "cancelled", "path": None, "previousSessionId": live.id}
        told = {"sessionId": live.id, "entryId": entry_id, "position": params.position}
        with operation(live):
            try:
                async for owner, said in service.hooks.ask(hooks.BEFORE_BRANCH, live.key, told, hooks.Opinion):
                    if said.cancel:
                        refusal: t.BranchResult = {**nothing, "outcome": "refused"}
                        return refusal | _who(Refused(owner.name, said.reason))  # pyright: ignore[reportReturnType]
            except asyncio.CancelledError:
                stopped(live)
                return nothing
    result = await to_its_end(service, make_branch(service, live, params, cause))
    if (info := result.get("session")) is not None:
        made = {"newSessionId": info["sessionId"], "path": result["path"]}
        service.hooks.tell("sessionBranch", {"sessionId": live.id, "entryId": entry_id, **made})
    return result


# Compact


async def compact(
    service: Service, live: LiveSession, client: Client, params: t.SessionCompactParams, cause: MethodCause
) -> t.CompactResult:
    """session/compact. Raises NoActiveModel, NothingToCompact, EntryNotFound, LeafMoved, SummaryFailed, TurnOpen."""
    session = live.session
    if elsewhere.keeps_nothing(session):
        format_ = session.header.format
        raise NotSupportedByFormat(f"only {format_} itself compacts its sessions", format=format_)
    session.check_writable()
    if params.summary is None:
        service.check_model()
    async with live.lock:
        await live.catch_up()
        if "expected_leaf_id" in params.model_fields_set:
            session.expect_leaf(params.expected_leaf_id)
        if live.agent is None or live.agent.client is not client:
            changing.refuse_while_running(live)
        cut = await asyncio.to_thread(
            _cut, session, params.first_kept_entry_id, service.settings.summarizer.keep_tokens
        )
        part = Part(session, cut.summarised, session.leaf_id, session.epoch)
    unchanged: t.CompactResult = {"outcome": "cancelled", "revision": session.revision}
    with operation(live) as running:
        try:
            await changing.check_ready(session, session.leaf)
            left = await _before_compact(service, live, client, params, cut, part)
        except asyncio.CancelledError:
            stopped(live)
            return unchanged
        if isinstance(left, Refused):
            return {**unchanged, "outcome": "refused"} | _who(left)  # pyright: ignore[reportReturnType]

        def build() -> dict[str, Any]:
            changing.expect_same(session, part.leaf, part.epoch)
            kept = session.index.ids[cut.first_kept]
            session.hangable(kept)
            entry = session.header.format, left.text, kept, cut.tokens_before, left.details, left.from_extension
            return compaction_entry(*entry)

        running.decided = True
        prepared: Prepared = await to_its_end(service, changing.compact(live, build, cause))
    with suppress(Fault):  # it was written, whatever became of the file since then
        entry = session.stored(session.find(prepared.ids[0]))
        told = {"sessionId": live.id, "entry": entry, "fromExtension": left.from_extension}
        service.hooks.tell("sessionCompact", told)
    result: t.CompactResult = {"outcome": "compacted", "entryId": prepared.ids[0], "revision": prepared.revision}
    if left.left_out:
        result["leftOut"] = left.left_out
    return result


def _cut(session: Session, first_kept: str | None, keep: int) -> Cut:
    index = session.index
    path = tree.path(index, session.leaf)
    if first_kept is not None:
        cut = cut_at(index, path, session.entry, session.find(first_kept))
    else:
        cut = plan_cut(index, path, session.entry, keep)
    if cut is None:
        text = "nothing stands before what would be kept"
        if first_kept is None:
            text += f": the newest {keep} tokens stay (summarizer.keep_tokens)"
        elif index.ordinal[first_kept] not in path:
            text = f"{first_kept} is not on the path to the leaf"
        elif (first := first_cut(index, path, session.entry)) != NONE:
            text += f"; {index.ids[first]} is the first entry from which on all can be kept"
        raise NothingToCompact(text, keepTokens=keep)
    return cut


async def _before_compact(
    service: Service, live: LiveSession, client: Client, params: t.SessionCompactParams, cut: Cut, part: Part
) -> LeftBehind | Refused:
    """What hooks say of a compaction, and its summary: the caller's, a hook's, or a model's."""
    session = live.session
    left = None if params.summary is None else LeftBehind(params.summary, None, from_extension=False)
    told: dict[str, Any] = {}
    if service.hooks.wanted(hooks.BEFORE_COMPACT) or service.hooks.wanted(hooks.COMPACTING):
        preparation = {
            "firstKeptEntryId": session.index.ids[cut.first_kept],
            "entriesToSummarize": await entries_of(part),
            "tokensBefore": cut.tokens_before,
        }
        told = {"sessionId": live.id, "preparation": preparation}
    async for owner, said in service.hooks.ask(hooks.BEFORE_COMPACT, live.key, told, hooks.CompactOpinion):
        if said.cancel:
            return Refused(owner.name, said.reason)
        if said.summary is not None and said.summary.strip() and params.summary is None:
            left = LeftBehind(said.summary, said.details, from_extension=True)
    if left is not None:
        return left
    context: list[str] = []
    prompt: str | None = None
    async for _, more in service.hooks.ask(hooks.COMPACTING, live.key, told, hooks.PromptOpinion):
        context += more.context
        prompt = more.prompt if more.prompt is not None else prompt
    ask = Ask(summaries.CONDENSED, params.instructions, context=context, prompt=prompt)
    return await summarise(service, live, client, part, ask, params.work_done_token)


# Summaries


class Part(NamedTuple):
    """Entries of a session, oldest first, and the state of the session in which their ordinals mean them."""

    session: Session
    ordinals: Sequence[int]
    leaf: str | None
    epoch: str

    async def read(self, work: Callable[[], T]) -> T:
        """Do in a thread what reads the entries. Raises LeafMoved where the session went on: nothing comes of it."""
        try:
            found = await asyncio.to_thread(work)
        except IndexError:
            changing.expect_same(self.session, self.leaf, self.epoch)
            raise
        changing.expect_same(self.session, self.leaf, self.epoch)
        return found

    @property
    def so_far(self) -> int:
        """The newest compaction among them, which stands for what is older; NONE where there is none."""
        return next((i for i in reversed(self.ordinals) if self.session.index.type_of(i) == "compaction"), NONE)

    def request(self, room: int, about: str, wishes: dict[str, Any]) -> summaries.Request:
        so_far = None if self.so_far == NONE else self.session.entry(self.so_far)
        return summaries.request(self.newest_first(), room, about, so_far=so_far, **wishes)

    def newest(self) -> list[Entry]:
        """Entries as they can be sent, oldest first; the summary so far is always among them."""
        chosen, so_far = list(self.ordinals[-MOST_ENTRIES:]), self.so_far
        if so_far != NONE and so_far not in chosen:
            chosen[0] = so_far
        # What stands first is cut last.
        order = [*([] if so_far == NONE else [so_far]), *(i for i in reversed(chosen) if i != so_far)]
        entries = dict(zip(order, cut_to(self.session, order, ENTRIES_BYTES), strict=True))
        return [entries[i] for i in chosen]

    def newest_first(self) -> Iterator[Entry]:
        return (self.session.entry(i) for i in reversed(self.ordinals))

    def files(self) -> dict[str, list[str]]:
        index = self.session.index
        calls = (i for i in self.ordinals if index.shape_of(i).flags & CALLS)
        return summaries.files_of(map(self.session.entry, calls))


class Ask(NamedTuple):
    """What a summary is for, and what was wished of it."""

    about: str
    instructions: str | None = None
    replace: bool = False
    context: Sequence[str] = ()
    prompt: str | None = None


async def summarise(
    service: Service, live: LiveSession, client: Client, part: Part, ask: Ask, token: str | int | None
) -> LeftBehind:
    """Let the model summarise entries. Raises NoActiveModel, SummaryFailed, LeafMoved."""
    wishes: dict[str, Any] = {
        "instructions": ask.instructions, "replace": ask.replace, "context": ask.context, "prompt": ask.prompt,
    }  # fmt: skip
    with Progress(client, token, f"Summarising {len(part.ordinals)} entries") as progress:
        progress.report("0 characters")
        model = service.model
        if model is not None:
            request = await part.read(lambda: part.request(model.room, ask.about, wishes))
            details = await part.read(part.files)
            left_out = len(part.ordinals) - request.told
            short = f", without the {left_out} oldest, which do not fit" if left_out else ""
            text = await model.summarize(request, lambda size: progress.report(f"{size} characters{short}"))
            return LeftBehind(text, details, from_extension=False, left_out=left_out)
        owner = next(iter(service.hooks.summarizers), None)
        if owner is None:
            raise NoActiveModel("the client that summarised has left")
        told: dict[str, Any] = {"sessionId": live.id, "entries": await entries_of(part)}
        told |= {name: value for name, value in wishes.items() if value}
        seconds = service.settings.summarizer.timeout
        try:
            said = await service.hooks.ask_one(owner, hooks.SUMMARIZE, live.key, told, hooks.Given, seconds)
        except hooks.NoAnswer as exc:
            limit = " (summarizer.timeout)" if exc.late else ""
            raise SummaryFailed(f"{owner.name} did not give a summary: it {exc}{limit}", reason="client") from None
        if not said.text.strip():
            raise SummaryFailed(f"{owner.name} answered with nothing", reason="empty")
        left_out = len(part.ordinals) - len(told["entries"])
        return LeftBehind(said.text, said.details, from_extension=False, left_out=left_out)


async def entries_of(part: Part) -> list[Entry]:
    """Entries as they are sent to whoever is asked about them, oldest first."""
    return await part.read(part.newest)


def _who(refused: Refused) -> dict[str, Any]:
    return {"refusedBy": refused.by} | ({} if refused.reason is None else {"reason": refused.reason})
