"""The vocabulary: what a log line can be, and which of it a person sees by default."""

from __future__ import annotations

from enum import IntFlag

from .types import FilterMode, Kind

KIND_OF_TYPE: dict[str, Kind] = {
    "compaction": "compaction",
    "branch_summary": "summary",
    "custom": "custom",
    "custom_message": "custom",
    "label": "label",
    "model_change": "model",
    "thinking_level_change": "thinking",
    "mode_change": "mode",
    "session_info": "title",
    "title_change": "title",
    "turn_start": "turn",
    "turn_end": "turn",
    "step_start": "step",
    "step_end": "step",
    "session_init": "system",
}

KIND_OF_ROLE: dict[str, Kind] = {
    "user": "user",
    "assistant": "assistant",
    "toolResult": "tool",
    "bashExecution": "bash",
    "pythonExecution": "bash",
    "custom": "custom",
    "hookMessage": "custom",
    "system": "system",
    "developer": "system",
    "branchSummary": "summary",
    "compactionSummary": "compaction",
}

# protocol-spec/README.md, "Row order and shape": what the `default` filter hides.
HIDDEN_BY_DEFAULT = frozenset({
    "label", "custom", "model_change", "thinking_level_change", "mode_change", "session_info", "usage",
    "context_edit", "model_usage", "service_tier_change", "title_change", "credential_pin", "session_init",
    "ttsr_injection", "reset_boundary", "turn_start", "turn_end", "step_start", "step_end", "tool_call",
    "assistant_chunks", "request_header", "end_seed",
})  # fmt: skip

FILTERS: tuple[FilterMode, ...] = ("default", "no-tools", "user-only", "labeled-only", "all")

# Types that version 1 to 3 logs of pi, omp and ours use; a line of one of these without an id is still an entry.
KNOWN_TYPES = frozenset(KIND_OF_TYPE) | HIDDEN_BY_DEFAULT | {"message"}


class Flag(IntFlag):
    """What the scan knows of one entry beyond its type."""

    ERROR = 1  # failed: stopReason error, a tool result with isError
    ABORTED = 2
    TOOLS_ONLY = 4  # assistant message with tool calls and no text
    EMPTY = 8  # assistant message without any content
    CALLS = 16  # assistant message with tool calls
    UNKNOWN = 32  # a type that we do not know
    ORPHAN = 64  # its parent is not in the file
    PROVISIONAL = 128  # from a last line that has no newline yet
    SURFACE = 256  # a message of a dsh log that a model sees, unless another one replaced it


def kind_of(type_: str, role: str | None = None) -> Kind:
    """Kind of row for an entry of `type_` (`role` for messages); unknown ones are "other"."""
    if type_ == "message":
        return KIND_OF_ROLE.get(role or "", "other")
    return KIND_OF_TYPE.get(type_, "other")
