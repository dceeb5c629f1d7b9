"""Path -> the messages that a model would see, in the agent's own form (formats of pi and oh-my-pi)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict, cast

from .log.index import NO_TIME
from .log.times import instant
from .text import as_dict, as_str, blocks, message_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .types import Entry

Message = dict[str, Any]

# Types of entries that a context depends on; all others leave no trace.
SPEAKING = frozenset({"message", "custom_message", "branch_summary", "compaction", "context_edit", "reset_boundary"})
SETTINGS = frozenset({"model_change", "thinking_level_change", "mode_change", "ttsr_injection"})


class Model(TypedDict):
    provider: str
    modelId: str


class Settings(TypedDict):
    model: NotRequired[Model]
    models: dict[str, str]  # by role, "provider/id"
    thinkingLevel: str
    mode: str
    injectedRules: list[str]


class Context(Settings):
    messages: list[Message]
    sources: list[list[str]]  # by message: the entries that it was made from
    compactedFrom: NotRequired[str]  # the compaction in force


class Sourced(NamedTuple):
    message: Message
    ids: list[str]


def build_context(path: Sequence[Entry], *, omp: bool = False) -> Context:
    """Context at the end of `path` (entries, root first); `omp` adds what oh-my-pi does with broken-off answers."""
    boundary = _last(path, "reset_boundary")
    checkpoint = _last(path, "compaction")
    if boundary > checkpoint:
        checkpoint = -1
        part = path[boundary + 1 :]
    elif checkpoint >= 0:
        part = [*_kept(path, checkpoint), *path[checkpoint + 1 :]]
    else:
        part = path
    shown: list[Sourced] = []
    # An edit counts only where it is itself in the context: one that a compaction took with it is done.
    edits = {as_str(entry.get("targetId")): entry for entry in part if entry.get("type") == "context_edit"}
    if checkpoint >= 0 and not _removes(edits.get(as_str(path[checkpoint].get("id")), {})):
        shown += _compaction(path[checkpoint])
    for entry in part:
        if omp and _is_display(entry):
            continue
        for message in _messages(entry):
            edit = edits.get(as_str(entry.get("id")))
            item = Sourced(message, [as_str(entry.get("id"))]) if edit is None else _edited(entry, message, edit)
            if item is not None:
                shown.append(item)
    if omp:
        shown = _without_broken_answers(shown)
    shown = [item for item in shown if not _is_silent(item.message)]
    result: Context = {
        "messages": [item.message for item in shown],
        **_settings(path),
        "sources": [item.ids for item in shown],
    }
    if checkpoint >= 0:
        result["compactedFrom"] = as_str(path[checkpoint].get("id"))
    return result


def _last(path: Sequence[Entry], type_: str) -> int:
    return next((k for k in range(len(path) - 1, -1, -1) if path[k].get("type") == type_), -1)


def _kept(path: Sequence[Entry], checkpoint: int) -> list[Entry]:
    """List what a compaction keeps: from `firstKeptEntryId` on, and nothing where that names no entry above it."""
    first = path[checkpoint].get("firstKeptEntryId")
    start = next((k for k in range(checkpoint) if path[k].get("id") == first), checkpoint)
    return [entry for entry in path[start:checkpoint] if message_of(entry).get("role") != "system"]


def _stamped(entry: Entry, message: Message) -> Message:
    time = instant(entry.get("timestamp"))
    return message if time == NO_TIME else {**message, "timestamp": time}


def _picked(entry: Entry, *names: str) -> dict[str, Any]:
    return {name: entry[name] for name in names if name in entry}


def _compaction(entry: Entry) -> list[Sourced]:
    ids = [as_str(entry.get("id"))]
    fields = _picked(entry, "tokensBefore", "shortSummary", "tokensAfter", "method", "warning")
    summary = _stamped(entry, {"role": "compactionSummary", "summary": as_str(entry.get("summary")), **fields})
    system = as_dict(entry.get("systemMessage"))
    return [Sourced(message, ids) for message in (system, summary) if message]


def _messages(entry: Entry) -> list[Message]:
    """Turn an entry into what it says to a model: one message, or nothing."""
    type_ = entry.get("type")
    if type_ == "message":
        message = message_of(entry)
        role = message.get("role")
        if not isinstance(role, str):
            return []
        if message.get("content") is None and role in {"system", "user", "assistant", "toolResult"}:
            empty: Message = {"content": "" if role == "system" else []}
            message = message | empty
        return [message]
    if type_ == "custom_message":
        content = entry.get("content")
        if content is not None and not isinstance(content, str | list):
            return []
        fields = _picked(entry, "display", "details", "attribution")
        said = cast("Any", [] if content is None else content)
        custom: Message = {"role": "custom", "customType": entry.get("customType"), "content": said}
        return [_stamped(entry, custom | fields)]
    if type_ == "branch_summary" and (summary := as_str(entry.get("summary"))):
        return [_stamped(entry, {"role": "branchSummary", "summary": summary, **_picked(entry, "fromId")})]
    return []


def _removes(edit: Entry) -> bool:
    return "replacement" in edit and edit["replacement"] is None


def _edited(entry: Entry, message: Message, edit: Entry) -> Sourced | None:
    """`message` with the content that a `context_edit` gives it; None where the edit removes it."""
    ids = [as_str(entry.get("id")), as_str(edit.get("id"))]
    if _removes(edit):
        return None
    role = message.get("role")
    fields = as_dict(edit.get("replacement"))
    if "content" not in fields or role not in {"user", "assistant", "toolResult", "custom"}:
        return Sourced(message, ids[:1])
    content = fields["content"]
    if isinstance(content, str) and role in {"assistant", "toolResult"}:
        content = [{"type": "text", "text": content}]
    return Sourced({**message, "content": content}, ids)


def _is_silent(message: Message) -> bool:
    """Whether a message is never sent: a shell command that was kept out of the context, an answer without content."""
    role = message.get("role")
    if role == "bashExecution":
        return bool(message.get("excludeFromContext"))
    if role != "assistant":
        return False
    content = blocks(message.get("content"))
    return all(block.get("type") == "text" and not as_str(block.get("text")).strip() for block in content)


def _settings(path: Iterable[Entry]) -> Settings:
    """Find the last models, thinking level and mode of a path, and the rules injected along it."""
    models: dict[str, str] = {}
    chosen = False  # a default set by name stays, whichever model answered in its place
    thinking, mode = "off", "none"
    rules: dict[str, None] = {}
    for entry in path:
        type_ = entry.get("type")
        if type_ == "thinking_level_change":
            thinking = as_str(entry.get("thinkingLevel")) or "off"
        elif type_ == "mode_change":
            mode = as_str(entry.get("mode")) or "none"
        elif type_ == "ttsr_injection":
            names = entry.get("injectedRules")
            for name in cast("list[Any]", names) if isinstance(names, list) else []:
                if isinstance(name, str):
                    rules[name] = None
        elif type_ == "model_change":
            if name := as_str(entry.get("model")):
                role = as_str(entry.get("role")) or "default"
                models[role] = name
                chosen = chosen or role == "default"
            elif name := _model(entry.get("provider"), entry.get("modelId")):
                models["default"] = name
        elif not chosen and (name := names_model(entry)):
            models["default"] = name
    result: Settings = {"models": models, "thinkingLevel": thinking, "mode": mode, "injectedRules": list(rules)}
    if "default" in models:
        provider, _, model = (
            models["default"].partition("/") if models["default"].count("/") > 1 else models["default"].rpartition("/")
        )
        result["model"] = {"provider": provider, "modelId": model}
    return result


def names_model(entry: Entry) -> str:
    """The model that an answer says it is of, or the header of a request, as "provider/id"; "" for other entries."""
    if entry.get("type") == "request_header":
        config = as_dict(as_dict(entry.get("header")).get("config"))
        return _model(config.get("provider"), config.get("model"))
    message = message_of(entry)
    answer = entry.get("type") == "message" and message.get("role") == "assistant"
    return _model(message.get("provider"), message.get("model")) if answer else ""


def _model(provider: object, model: object) -> str:
    return "/".join(name for name in (as_str(provider), as_str(model)) if name)


def _calls(message: Message) -> set[str]:
    return {as_str(b.get("id")) for b in blocks(message.get("content")) if b.get("type") == "toolCall"}


def _is_display(entry: Entry) -> bool:
    """Whether oh-my-pi keeps an entry for display only: an answer that a retry replaced, a note of one of its modes."""
    if entry.get("type") == "custom_message":
        return as_str(entry.get("customType")) in {"prewalk-plan", "vibe-mode-context"}
    return bool(message_of(entry).get("retryRecovery")) and message_of(entry).get("role") == "assistant"


def _without_broken_answers(shown: list[Sourced]) -> list[Sourced]:
    """Leave out what oh-my-pi does not send: calls without a result, failed or aborted answers and their results.

    An aborted answer stays where the note that explains its unfinished thoughts follows it.
    """
    answered = {as_str(m.get("toolCallId")) for m, _ in shown if m.get("role") == "toolResult"}
    kept: list[Sourced | None] = []  # last first
    results: dict[str, list[int]] = {}  # by call: places in `kept`
    for message, ids in reversed(shown):
        role = message.get("role")
        item = Sourced(message, ids)
        if role == "toolResult":
            results.setdefault(as_str(message.get("toolCallId")), []).append(len(kept))
        elif role == "assistant":
            calls = _calls(message)
            if not calls <= answered:
                if not (content := _unsigned(message, answered)):
                    continue
                item = Sourced({**message, "content": content}, ids)
            if as_str(message.get("stopReason")) in {"aborted", "error"}:
                while kept and kept[-1] is None:
                    kept.pop()
                following = kept[-1].message if kept and kept[-1] else {}
                if following.get("customType") != "interrupted-thinking":
                    for call in calls:
                        for place in results.pop(call, ()):
                            kept[place] = None
                    continue
        kept.append(item)
    return [item for item in reversed(kept) if item is not None]


def _unsigned(message: Message, answered: set[str]) -> list[dict[str, Any]]:
    """Content without its unanswered calls, and without signatures, which hold for the content as it was only."""
    return [
        {key: value for key, value in block.items() if key != "thinkingSignature"}
        for block in blocks(message.get("content"))
        if block.get("type") != "redactedThinking"
        and not (block.get("type") == "toolCall" and as_str(block.get("id")) not in answered)
    ]
