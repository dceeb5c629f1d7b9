"""Whatever a path holds, what we make of it for OpenAI or Anthropic is a request that they take, and loses no words.

The rules of both APIs are written down here anew, from what they refuse; nothing of `providers` is used for that.
"""

from __future__ import annotations

import base64
import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon import tree
from dsh_daemon.context import build_context
from dsh_daemon.log.recover import loads
from dsh_daemon.providers import anthropic, openai
from dsh_daemon.reading import context_path
from dsh_daemon.session import Session
from tests.indexes import trees
from tests.support import CORPUS, assistant, entry, tool_result, user

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n and more").decode()
IMAGE = {"type": "image", "mimeType": "image/png", "data": PNG}
CLAUDE: dict[str, Any] = {"api": "anthropic-messages", "provider": "anthropic", "model": "claude-x"}

# The rules


def picture_faults(type_: object, data: object) -> list[str]:
    if type_ not in {"image/png", "image/jpeg", "image/gif", "image/webp"}:
        return [f"image type {type_}"]
    try:
        return [] if base64.b64decode(str(data), validate=True) else ["empty image"]
    except ValueError:
        return ["image is not base64"]


def anthropic_faults(messages: list[dict[str, Any]]) -> list[str]:
    """What Anthropic's Messages API would refuse."""
    json.dumps(messages, allow_nan=False).encode()
    faults: list[str] = []
    seen: set[str] = set()
    owed: list[str] = []
    for n, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if set(message) != {"role", "content"} or role != ("assistant" if n % 2 else "user"):
            faults.append(f"{n}: {role} out of turn")
        if not isinstance(content, list) or not content:
            faults.append(f"{n}: no content")
            continue
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        if sorted(results) != sorted(owed) or any(block["type"] != "tool_result" for block in content[: len(results)]):
            faults.append(f"{n}: results {results} for calls {owed}")
        owed = [block["id"] for block in content if block["type"] == "tool_use"]
        for block in content:
            faults += [f"{n}: {fault}" for fault in block_faults(role, block, seen)]
        if role == "assistant" and content[-1]["type"] in {"thinking", "redacted_thinking"}:
            faults.append(f"{n}: ends in a thought")
    if owed:
        faults.append(f"calls {owed} at the end")
    if messages and messages[-1]["role"] == "assistant":
        text = messages[-1]["content"][-1].get("text", "")
        if text != text.rstrip():
            faults.append("white space at the end")
    return faults


def block_faults(role: str, block: dict[str, Any], seen: set[str]) -> list[str]:
    type_ = block["type"]
    if type_ == "text":
        return [] if set(block) == {"type", "text"} and block["text"].strip() else ["blank text"]
    if role == "user" and type_ == "image":
        source = block["source"]
        return picture_faults(source["media_type"], source["data"]) + [
            f for f in ["source"] if source["type"] != "base64"
        ]
    if role == "user" and type_ == "tool_result":
        content = block["content"]
        faults = [] if content else ["empty result"]
        for inner in content:
            faults += block_faults("user", inner, seen) if inner["type"] in {"text", "image"} else ["in a result"]
            if inner["type"] == "image" and block.get("is_error"):
                faults.append("image in a failed result")
        return faults
    if role == "assistant" and type_ == "tool_use":
        faults = [] if re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", block["id"]) and block["id"] not in seen else ["id"]
        seen.add(block["id"])
        name = re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", block["name"])
        return faults + ([] if name and isinstance(block["input"], dict) else ["name or input"])
    if role == "assistant" and type_ == "thinking":
        return [] if isinstance(block["thinking"], str) and block["signature"].strip() else ["unsigned"]
    if role == "assistant" and type_ == "redacted_thinking":
        return [] if block["data"].strip() else ["no data"]
    return [f"{type_} from {role}"]


def openai_faults(messages: list[dict[str, Any]]) -> list[str]:
    """What OpenAI's chat completions would refuse."""
    json.dumps(messages, allow_nan=False).encode()
    faults: list[str] = []
    seen: set[str] = set()
    owed: list[str] = []
    for n, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if role == "tool":
            if message["tool_call_id"] not in owed:
                faults.append(f"{n}: a result of no call")
            else:
                owed.remove(message["tool_call_id"])
            if not isinstance(content, str) or not content.strip():
                faults.append(f"{n}: a result is text")
            continue
        if owed:
            faults.append(f"{n}: before the results of {owed}")
            owed = []
        if role == "assistant":
            calls = message.get("tool_calls", [])
            if (
                not (content is None or content.strip())
                or not (content or calls)
                or ("tool_calls" in message and not calls)
            ):
                faults.append(f"{n}: an empty answer")
            for call in calls:
                owed.append(call["id"])
                if not 0 < len(call["id"]) <= 40 or call["id"] in seen or call["type"] != "function":
                    faults.append(f"{n}: id {call['id']}")
                seen.add(call["id"])
                if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]):
                    faults.append(f"{n}: name")
                if not isinstance(json.loads(call["function"]["arguments"]), dict):
                    faults.append(f"{n}: arguments")
        elif role in {"system", "user"}:
            parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
            if not parts or (role == "system" and not isinstance(content, str)):
                faults.append(f"{n}: no content")
            for part in parts:
                if part["type"] == "text":
                    faults += [] if part["text"].strip() else [f"{n}: blank text"]
                else:
                    type_, _, data = part["image_url"]["url"].removeprefix("data:").partition(";base64,")
                    faults += [f"{n}: {fault}" for fault in picture_faults(type_, data)]
        else:
            faults.append(f"{n}: role {role}")
    return faults + ([f"calls {owed} at the end"] if owed else [])


# Lists of messages as no agent would write them

words = st.sampled_from(["", " ", "\n\t", "look here ", "中文 😀\n", "{}", "x" * 90, "\u00a0", "\x00"])
ids = st.sampled_from(
    ["c1", "c2", "c1_2", "", "call|fc_1", "call|fc_2", "ü" * 30, "n" * 41, "n" * 64, "n" * 65, "m" * 99]
)
some_words = st.one_of(st.none(), words, st.integers())
text_block = st.builds(lambda text: {"type": "text", "text": text}, some_words)
image_block = st.builds(
    lambda mime, data: {"type": "image", "mimeType": mime, "data": data},
    st.sampled_from(["image/png", "IMAGE/JPEG", "image/svg+xml", "", None]),
    st.sampled_from([PNG, "blob:sha256:" + "0" * 64, "", "not base64", "AAA", f"data:image/gif;base64,{PNG}", None, 7]),
)
odd_block = st.sampled_from([{"type": "from_the_future"}, {"type": ""}, {"type": None}, {}, 7, None, "text"])
arguments = st.sampled_from(
    [None, {}, {"path": "a.py"}, "", "{}", '{"a": [1]}', "[1]", "rm -rf", '"s"', [1], 7, "[" * 500]
)
call_block = st.builds(
    lambda id_, name, given_: {"type": "toolCall", "id": id_, "name": name, "arguments": given_},
    st.one_of(ids, st.none()), st.sampled_from(["bash", "", "mcp.server/tool", "ß" * 70, None]), arguments,
)  # fmt: skip
thought = st.builds(
    lambda type_, text, signature, more: {"type": type_, "thinking": text, "thinkingSignature": signature, **more},
    st.sampled_from(["thinking", "redactedThinking"]), words, st.sampled_from(["", " ", "sig", None]),
    st.sampled_from([{}, {"redacted": True}, {"data": "opaque"}, {"data": ""}]),
)  # fmt: skip
content = st.one_of(
    some_words, st.lists(st.one_of(text_block, image_block, st.just(IMAGE), odd_block), max_size=4)
)  # fmt: skip
answer = st.builds(
    lambda content, who, stop: {"role": "assistant", "content": content, "stopReason": stop, **who},
    st.lists(st.one_of(text_block, call_block, call_block, thought, image_block, odd_block), max_size=5),
    st.sampled_from([CLAUDE, {}, {"api": "openai-completions", "provider": "copilot", "model": "claude-x"}]),
    st.sampled_from(["stop", "toolUse", "aborted", "error", None]),
)
other = st.one_of(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "custom", "hookMessage", "system", "developer", "of_tomorrow"]), content,
    ),
    st.builds(
        lambda role, text: {"role": role, "summary": text},
        st.sampled_from(["branchSummary", "compactionSummary"]), some_words,
    ),
    st.builds(
        lambda role, text, more: {"role": role, "command": text, "code": text, "output": text, **more},
        st.sampled_from(["bashExecution", "pythonExecution"]), some_words,
        st.sampled_from([{}, {"exitCode": 3}, {"excludeFromContext": True}, {"cancelled": True, "truncated": True}]),
    ),
    st.builds(
        lambda text, image: {"role": "fileMention", "files": [{"path": text, "content": text}, {"image": image}, 7]},
        some_words, image_block,
    ),
    st.builds(lambda a, b: {"role": "system", "sections": {"a": a, "b": b}}, some_words, some_words),
)  # fmt: skip
result = st.builds(
    lambda id_, content, failed: {
        "role": "toolResult", "toolCallId": id_, "toolName": "bash", "content": content, "isError": failed,
    },
    st.one_of(ids, st.none()), content, st.booleans(),
)  # fmt: skip
histories = st.lists(st.one_of(answer, result, result, other), max_size=14)


def sources_of(messages: list[dict[str, Any]]) -> list[list[str]]:
    return [[f"e{n}"] for n in range(len(messages))]


@given(histories)
@settings(max_examples=600, deadline=None)
def test_every_history_makes_a_valid_request(messages):
    before, sources = copy.deepcopy(messages), sources_of(messages)
    for make, faults in ((openai, openai_faults), (anthropic, anthropic_faults)):
        request = make(messages, sources)

        assert faults(request.messages) == []
        assert len(request.sources) == len(request.messages)
        assert {id_ for ids in request.sources for id_ in ids} <= {id_ for ids in sources for id_ in ids}
        assert all(len(ids) == len(set(ids)) for ids in request.sources)
        assert (messages, sources) == (before, sources_of(messages))


@given(histories)
@settings(max_examples=300, deadline=None)
def test_a_request_loses_no_words_and_no_images_and_makes_none_up_under_the_name_of_an_entry(messages):
    """Each word of the history is in a message that names its entry as a source."""
    for make in (openai, anthropic):
        request = make(messages, sources_of(messages))
        by_entry: dict[str, str] = {}
        for message, ids in zip(request.messages, request.sources, strict=True):
            for id_ in ids:
                by_entry[id_] = by_entry.get(id_, "") + "".join(strings(message))
        for n, message in enumerate(messages):
            if message["role"] in {"system", "developer"} and make is anthropic:
                said = request.system
            else:
                said = by_entry.get(f"e{n}", "")
            for text in texts_of(message):
                assert text.rstrip() in said
        assert all(
            ids or "not here" in str(m) or "cut off" in str(m)
            for m, ids in zip(request.messages, request.sources, strict=True)
        )


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for item in inner for text in strings(item)]


def texts_of(message: dict[str, Any]) -> list[str]:
    """What a model should read of a message."""
    content = message.get("content")
    if message["role"] == "of_tomorrow" or message.get("excludeFromContext"):
        return []
    if message["role"] in {"branchSummary", "compactionSummary"}:
        content = message["summary"]
    if message["role"] in {"bashExecution", "pythonExecution"}:
        content = message["output"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        return []
    found = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
    pictures = [
        b.get("data")
        for b in blocks
        if isinstance(b, dict)
        and message["role"] != "assistant"
        and message["role"] not in {"system", "developer"}
        and b.get("type") == "image"
        and b.get("data") == PNG
        and b.get("mimeType") == "image/png"
    ]
    return [text for text in [*found, *pictures] if isinstance(text, str) and text.strip()]


@given(histories, st.integers(0, 14))
@settings(max_examples=200, deadline=None)
def test_ids_of_calls_stay_when_a_conversation_goes_on(messages, count):
    """A provider's cache holds as long as what was sent stays the same."""

    def called(messages: list[dict[str, Any]]) -> list[str]:
        return [c["id"] for m in openai(messages, sources_of(messages)).messages for c in m.get("tool_calls", [])]

    assert called(messages)[: len(called(messages[:count]))] == called(messages[:count])


@given(trees(30), st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_context_of_every_tree_makes_a_valid_request(entries, omp):
    context = build_context(entries, omp=omp)
    for make, faults in ((openai, openai_faults), (anthropic, anthropic_faults)):
        assert faults(make(context["messages"], context["sources"]).messages) == []


@pytest.mark.skipif(CORPUS is None, reason="the corpus is not here")
def test_every_entry_of_the_corpus_has_a_valid_request():
    """A014: also where an answer was cut off, in whatever way."""
    assert CORPUS is not None
    count = 0
    for path in sorted(CORPUS.rglob("*.jsonl")):
        if {"pi", "omp", "pi-omp-v3"}.isdisjoint(path.parts):
            continue
        session = Session.open(str(path))
        for n in range(len(session.index)):
            entries = context_path(session, tree.path(session.index, n))
            context = build_context(entries, omp=session.header.format == "omp")
            for make, faults in ((openai, openai_faults), (anthropic, anthropic_faults)):
                request = make(context["messages"], context["sources"])
                assert (path.name, faults(request.messages)) == (path.name, [])
                count += len(request.messages)
        session.journal.close()
    assert count > 5_000


def test_wrong_types_never_raise():
    """A013: a damaged message says what can still be read of it."""
    from tests.test_text import JUNK, SAMPLES, places, replaced

    for sample, _ in SAMPLES:
        for place in places(sample):
            for junk in JUNK:
                damaged = loads(json.dumps(replaced(sample, place, junk)).encode())
                context = build_context([user("u0", None, "hi"), damaged, user("z", "k", "on")])
                for make, faults in ((openai, openai_faults), (anthropic, anthropic_faults)):
                    assert faults(make(context["messages"], context["sources"]).messages) == []


# What they look like


def made(make, *entries):
    context = build_context(list(entries))
    return make(context["messages"], context["sources"])


def test_an_exchange_with_a_tool():
    path = [
        entry("message", "s", None, message={"role": "system", "content": "Be kind"}),
        user("u", "s", "hi"),
        assistant("a", "u", "on it", calls=[{"id": "c1", "name": "bash", "arguments": {"command": "ls"}}]),
        tool_result("t", "a", "c1", "out"),
        assistant("b", "t", "done "),
    ]
    assert made(openai, *path) == (
        [
            {"role": "system", "content": "Be kind"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "on it", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "out"},
            {"role": "assistant", "content": "done "},
        ],
        [["s"], ["u"], ["a"], ["t"], ["b"]],
        "",
    )  # fmt: skip
    assert made(anthropic, *path) == (
        [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "on it"},
                {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "out"}]},
            ]},
            {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
        ],
        [["u"], ["a"], ["t"], ["b"]],
        "Be kind",
    )  # fmt: skip


def test_a_call_without_a_result_gets_one_that_no_entry_said():
    """A014: a path that ends in calls can be sent."""
    path = [user("u", None, "hi"), assistant("a", "u", calls=[{"id": "c1", "name": "bash", "arguments": {}}])]
    request = made(openai, *path)
    assert request.sources == [["u"], ["a"], []]
    assert request.messages[2]["tool_call_id"] == "c1"
    assert "Look at the state" in request.messages[2]["content"]
    request = made(anthropic, *path)
    assert request.sources == [["u"], ["a"], []]
    assert request.messages[2]["content"][0]["is_error"] is True


def test_results_go_to_their_calls_and_what_came_between_comes_after_them():
    calls = [{"id": "c1", "name": "bash", "arguments": {}}, {"id": "c2", "name": "read", "arguments": {}}]
    path = [
        user("u", None, "hi"),
        assistant("a", "u", calls=calls),
        tool_result("t2", "a", "c2", "second"),
        user("v", "t2", "hurry"),
        tool_result("t1", "v", "c1", "first"),
        tool_result("t3", "t1", "c1", "again"),
        tool_result("t4", "t3", "c9", "lost", name="grep"),
    ]
    request = made(openai, *path)
    assert request.sources == [["u"], ["a"], ["t1"], ["t2"], ["v"], ["t3"], ["t4"]]
    assert [m["role"] for m in request.messages] == ["user", "assistant", "tool", "tool", "user", "user", "user"]
    request = made(anthropic, *path)
    assert request.sources == [["u"], ["a"], ["t1", "t2", "v", "t3", "t4"]]
    assert [strings(block)[-1] for block in request.messages[2]["content"]] == [
        "first", "second", "hurry", "A result of bash that answers no call here:", "again",
        "A result of grep that answers no call here:", "lost",
    ]  # fmt: skip


def test_calls_of_one_id_are_told_apart_and_keep_their_results():
    """Some models count their calls anew in each answer."""
    path = [user("u", None, "hi")]
    for n in range(3):
        path.append(assistant(f"a{n}", None, calls=[{"id": "call|0", "name": "bash", "arguments": {}}]))
        path.append(tool_result(f"t{n}", "a", "call|0", f"out {n}"))
    request = made(anthropic, *path)
    used = [message["content"][0]["id"] for message in request.messages[1::2]]
    assert used == ["call_0", "call_0_2", "call_0_3"]
    assert [m["content"][0]["tool_use_id"] for m in request.messages[2::2]] == used
    assert [strings(m)[-1] for m in request.messages[2::2]] == ["out 0", "out 1", "out 2"]


def test_a_result_answers_the_latest_call_of_its_id_and_there_the_first():
    """As far as can be told: what an earlier answer left open was given up."""

    def call(name):
        return {"id": "c", "name": name, "arguments": {}}

    request = made(
        openai,
        assistant("a", None, calls=[call("first")]),
        assistant("b", "a", calls=[call("second"), call("third")]),
        tool_result("t", "b", "c", "out"),
    )
    assert request.sources == [["a"], [], ["b"], ["t"], []]


def test_images_of_results_follow_as_the_users_where_an_api_takes_only_text():
    call = {"id": "c1", "name": "read", "arguments": {}}
    calls = [call, {**call, "id": "c2"}]
    path = [
        user("u", None, "hi"),
        assistant("a", "u", calls=calls),
        tool_result("t", "a", "c1", "", content=[IMAGE]),
        tool_result("v", "t", "c2", "out"),
    ]
    shown = made(openai, *path)
    assert shown.messages[2:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "(an image, shown below)"},
        {"role": "tool", "tool_call_id": "c2", "content": "out"},
        {"role": "user", "content": [
            {"type": "text", "text": "From the result of read (c1):"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        ]},
    ]  # fmt: skip
    assert shown.sources[2:] == [["t"], ["v"], ["t"]]
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    assert made(anthropic, *path).messages[2]["content"][0]["content"] == [picture]
    path[2]["message"]["isError"] = True
    failed, _, *shown = made(anthropic, *path).messages[2]["content"]
    assert failed["content"] == [{"type": "text", "text": "(an image, shown below)"}]
    assert shown == [{"type": "text", "text": "From the result of read (c1):"}, picture]


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (
            {"data": "blob:sha256:" + "0" * 64},
            "(An image stood here. It is kept apart from the session, and not here.)",
        ),
        ({"data": ""}, "(An image stood here that cannot be shown: [image])"),
        ({"data": "A" * 4001}, "(An image stood here that cannot be shown: [image 3 kB])"),
        ({"mimeType": "image/tiff"}, "(An image stood here that cannot be shown: [image 1 kB])"),
    ],
)
def test_an_image_that_cannot_be_sent_is_a_word_on_that(image, said):
    shown = made(openai, entry("message", "u", None, message={"role": "user", "content": [{**IMAGE, **image}]}))
    assert shown.messages[0]["content"] == said


def test_thoughts_go_back_only_to_whom_signed_them():
    content = [
        {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"},
        {"type": "thinking", "thinking": "unsigned"},
        {"type": "redactedThinking", "data": "opaque"},
        {"type": "text", "text": "so"},
        {"type": "thinking", "thinking": "after all", "thinkingSignature": "sig"},
    ]
    whole = made(anthropic, user("u", None, "hi"), assistant("a", "u", content=content, **CLAUDE))
    assert whole.messages[1]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "text", "text": "so"},
    ]
    others: list[dict[str, Any]] = [{**CLAUDE, "stopReason": "aborted"}, {"api": "openai-completions", "provider": "x"}]
    for other in others:
        left = made(anthropic, user("u", None, "hi"), assistant("a", "u", content=content, **other))
        assert left.messages[1]["content"] == [{"type": "text", "text": "so"}]
    assert made(openai, assistant("a", None, content=content, **CLAUDE)).messages[0]["content"] == "so"
    assert made(openai, assistant("a", None, content=content[:1], **CLAUDE)).messages == []


def test_a_broken_off_answer_keeps_its_words_and_its_calls_are_answered():
    call = {"id": "c1", "name": "bash", "arguments": '{"command": "l'}
    broken = assistant("a", "u", "half a", calls=[call], stopReason="aborted")
    request = made(openai, user("u", None, "hi"), broken, user("v", "a", "go on"))
    assert [m["role"] for m in request.messages] == ["user", "assistant", "tool", "user"]
    assert request.messages[1]["content"] == "half a"
    function = request.messages[1]["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == {"arguments": '{"command": "l'}


def test_a_conversation_that_begins_with_an_answer_gets_a_beginning():
    request = made(anthropic, assistant("a", None, "as I said"))
    assert (request.messages[0]["role"], request.sources) == ("user", [[], ["a"]])


def test_sections_of_the_system_prompt_are_patched():
    def prompt(id_, **sections):
        return entry("message", id_, None, message={"role": "system", "content": "", "sections": sections})

    path = [prompt("s1", a="one", b="two"), user("u", "s1", "hi"), prompt("s2", a="three", b=None)]
    assert made(anthropic, *path).system == "three"
    first, _, last = [m["content"] for m in made(openai, *path).messages]
    assert first == "one\n\ntwo"
    assert last.split("\n\n") == [
        "The section 'a' of these instructions is now:",
        "three",
        "The section 'b' of these instructions no longer holds.",
    ]


def test_summaries_shell_commands_and_files_are_told_by_the_user():
    request = made(
        anthropic,
        entry("compaction", "k", None, summary="so far", tokensBefore=1, firstKeptEntryId="k"),
        entry("branch_summary", "b", "k", summary="tried", fromId="k"),
        entry("message", "x", "b", message={"role": "bashExecution", "command": "ls", "output": "a.py", "exitCode": 1}),
        entry("message", "p", "x", message={"role": "pythonExecution", "code": "1+1", "output": ""}),
        entry("message", "q", "p", message={"role": "pythonExecution", "code": "2+2", "excludeFromContext": True}),
        entry("message", "f", "p", message={"role": "fileMention", "files": [{"path": "a.py", "content": "x = 1"}]}),
        entry("custom_message", "n", "f", customType="note", content="look"),
    )
    assert request.sources == [["k", "b", "x", "p", "f", "n"]]
    assert [block["text"] for block in request.messages[0]["content"]] == [
        "A summary of this conversation up to here:\n\nso far",
        "A summary of another branch of this conversation, which was left:\n\ntried",
        "I ran a command:\n\n$ ls\n\nIt gave:\n\na.py\n\nIts exit code was 1.",
        "I ran Python code:\n\n1+1\n\nIt gave no output.",
        "The file a.py:\n\nx = 1",
        "look",
    ]


def test_a_hundred_thousand_messages_take_no_longer_than_they_are_many():
    """Ids that all collide, results that never come: nothing here is quadratic."""
    messages: list[dict[str, Any]] = []
    for _ in range(25_000):
        messages.append({"role": "assistant", "content": [{"type": "toolCall", "id": "c", "name": "bash"}] * 2})
        messages.append({"role": "toolResult", "toolCallId": "c", "content": "out"})
    for make in (openai, anthropic):
        assert len(make(messages, sources_of(messages)).messages) > 50_000
