import json
import random
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon import SessionManager
from tests.peers_support import TREE, differences
from tests.support import CORPUS, line

from . import (
    MockModel,
    OmpProcess,
    OracleError,
    PiProcess,
    RpcError,
    assistant,
    holds,
    old_pi,
    omp,
    op,
    pi,
    tool_call,
    tool_result,
    user,
)

pytestmark = pytest.mark.timeout(600)  # the first test may have to install the peers


def entry(kind: str, entry_id: str, parent: str | None, second: int, **fields: object) -> dict[str, object]:
    timestamp = f"2026-01-01T00:00:{second:02}.000Z"
    return {"type": kind, "id": entry_id, "parentId": parent, "timestamp": timestamp, **fields}


@pytest.fixture
def forked(tmp_path: Path) -> Path:
    """Two answers to one prompt, the second labelled, the label on the leaf."""
    lines = [
        {"type": "session", "version": 3, "id": "s1", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": str(tmp_path)},
        entry("message", "aaaaaaa1", None, 1, message=user("why \u2028 and 中文?")),
        entry("message", "aaaaaaa2", "aaaaaaa1", 2, message=assistant("because")),
        entry("message", "aaaaaaa3", "aaaaaaa1", 3, message=assistant("why not")),
        entry("label", "aaaaaaa4", "aaaaaaa3", 4, targetId="aaaaaaa3", label="better"),
    ]
    path = tmp_path / "2026-01-01T00-00-00-000Z_s1.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path


@pytest.fixture
def scripted(tmp_path: Path) -> Path:
    """What pi's own API writes: a turn, a summary branch from its prompt, a label, a name, a compaction."""
    path = tmp_path / "pi" / "scripted.jsonl"
    pi().script(
        path,
        [
            op("appendMessage", user("first"), name="prompt"),
            op("appendMessage", assistant("one way"), name="first"),
            op("branchWithSummary", "$prompt", "went one way", name="summary"),
            op("appendMessage", user("second"), name="kept"),
            op("appendMessage", assistant("another way"), name="second"),
            op("appendLabelChange", "$second", "good"),
            op("appendSessionInfo", "two ways"),
            op("appendCompaction", "both ways in short", "$kept", 1000),
        ],
    )
    return path


def test_pi_and_omp_read_the_same_tree_labels_and_context(forked: Path):
    for peer in (pi(), omp(), old_pi()):
        (seen,) = peer.load([forked])

        assert seen["tips"] == ["aaaaaaa2", "aaaaaaa4"]
        assert seen["tree"] == ["aaaaaaa1", "aaaaaaa2", "aaaaaaa3", "aaaaaaa4"]
        assert seen["leafId"] == "aaaaaaa4"
        assert seen["paths"]["aaaaaaa2"] == ["aaaaaaa1", "aaaaaaa2"]
        assert seen["labels"] == {"aaaaaaa3": "better"}
        assert seen["context"]["model"] == "mock/mock-1"
        assert [message["role"] for message in seen["context"]["messages"]] == ["user", "assistant"]
        assert seen["contexts"]["aaaaaaa2"]["llm"][1]["content"][0]["text"] == "because"
        assert not seen["rewritten"]


def test_one_call_answers_for_many_files_and_an_unreadable_one_costs_only_itself(forked: Path, tmp_path: Path):
    letter = tmp_path / "letter.jsonl"
    letter.write_text("dear reader\n")

    for peer in (pi(), omp()):
        refused, seen = peer.load([letter, forked])

        assert "not a valid" in refused["error"] or "malformed" in refused["error"]
        assert len(seen["entries"]) == 4


def test_old_pi_truncates_a_file_that_it_does_not_recognise_and_only_the_copy_suffers(tmp_path: Path):
    letter = tmp_path / "letter.jsonl"
    letter.write_text("dear reader\n")

    (seen,) = old_pi().load([letter])

    assert seen["rewritten"]
    assert letter.read_text() == "dear reader\n"


def test_a_file_that_pi_wrote_is_the_same_tree_and_conversation_in_omp(scripted: Path):
    (by_pi,), (by_omp,) = pi().load([scripted]), omp().load([scripted])

    for key in ("entries", "leafId", "tips", "paths", "labels", "roots", "tree"):
        assert by_pi[key] == by_omp[key]
    roles = [message["role"] for message in by_pi["context"]["messages"]]
    assert roles == [message["role"] for message in by_omp["context"]["messages"]]
    assert roles == ["compactionSummary", "user", "assistant"]
    assert (by_pi["name"], by_omp["name"]) == ("two ways", None)


def test_a_branched_session_of_each_peer_holds_the_path_and_its_label(forked: Path):
    for peer in (pi(), omp()):
        branched = peer.script(forked, [op("createBranchedSession", "aaaaaaa3")])
        (seen,) = peer.load([Path(branched["file"])])

        assert [item["type"] for item in seen["entries"]] == ["message", "message", "label"]
        assert seen["header"]["parentSession"] == str(forked)
        assert seen["labels"] == {"aaaaaaa3": "better"}


def test_a_refused_operation_is_an_error_that_names_it(forked: Path):
    with pytest.raises(OracleError, match="op 0 branch"):
        omp().script(forked, [op("branch", "nowhere")])


def test_omp_holds_its_file_while_it_lives_and_saves_again_after_a_foreign_label(tmp_path: Path):
    home, cwd = tmp_path / "home", tmp_path / "project"
    with MockModel() as model:
        with OmpProcess(model, home, cwd) as process:
            process.prompt('look\nCALL bash {"command":"echo found"}\nTHEN\nSAY seen')
            path = process.session_file

            assert holds(process, path)
            assert process.stop() == 0
        leaf = last(path)["id"]
        append(path, entry("label", "bbbbbbb1", leaf, 9, targetId=leaf, label="here"))
        with OmpProcess(model, home, cwd, resume=path) as process:
            process.prompt("SAY still here")

            assert process.session_file == path

    (seen,) = omp().load([path])
    assert seen["labels"] == {leaf: "here"}
    assert "bbbbbbb1" in seen["paths"][seen["leafId"]]
    assert seen["context"]["messages"][-1]["content"] == [{"type": "text", "text": "still here"}]


def test_a_foreign_append_costs_a_living_omp_what_it_says_after_its_next_rewrite(tmp_path: Path):
    home, cwd = tmp_path / "home", tmp_path / "project"
    with MockModel() as model, OmpProcess(model, home, cwd) as process:
        process.prompt('CALL bash {"command":"seq 2000"}\nTHEN\nSAY counted')
        for turn in range(6):
            process.prompt("SAY " + " ".join(f"word{turn}{number}" for number in range(600)))
        path = process.session_file
        leaf = last(path)["id"]
        append(path, entry("label", "bbbbbbb1", leaf, 9, targetId=leaf, label="here"))
        with pytest.raises(RpcError, match="changed before rewrite"):
            process.request("prompt", message="/shake elide")
        process.prompt("SAY lost")

    assert last(path)["id"] == "bbbbbbb1"


def test_pi_does_not_hold_its_file_and_keeps_the_prompt_when_killed_in_an_answer(tmp_path: Path):
    home, cwd = tmp_path / "home", tmp_path / "project"
    with MockModel() as model:
        with PiProcess(model, home, cwd) as process:
            process.prompt("SAY hello")
            path = process.session_file

            assert not holds(process, path)
            process.send_prompt("HOLD half an ans")
            assert model.holding.wait(30)
            process.kill()
        assert last(path)["message"]["role"] == "user"
        model.release()
        with PiProcess(model, home, cwd, session=path) as process:
            process.prompt("SAY whole")
            assert process.session_file == path

    assert last(path)["message"]["content"] == [{"type": "text", "text": "whole"}]


# Contexts


def random_tree(rng: random.Random, owner: str, size: int = 40) -> list[dict[str, Any]]:
    """A log of all that a context depends on, as no program would write it: references to anywhere, also to nothing."""
    entries: list[dict[str, Any]] = []
    ids = [f"{n:08x}" for n in rng.sample(range(1 << 32), size)]
    calls: list[str] = []
    for n, id_ in enumerate(ids):
        parent = ids[n - 1] if n and rng.random() < 0.8 else rng.choice([*ids[:n], None])
        other = rng.choice([*ids, "nowhere1"]) if rng.random() < 0.5 else rng.choice(ids[max(0, n - 8) : n + 1])
        kind, fields = rng.choice(list(fields_of_each_kind(rng, owner, n, other, calls).items()))
        if n == 0:
            kind, fields = "message", {"message": user("begin")}
        entries.append(entry(kind.partition(":")[0], id_, parent, n, **fields))
    return entries


def fields_of_each_kind(rng: random.Random, owner: str, n: int, other: str, calls: list[str]) -> dict[str, Any]:
    text = rng.choice([f"text {n}", "", " ", "中文 \u2028 😀"])
    call = tool_call(rng.choice(["c1", f"c{n}"]), "bash", command=text)
    calls.append(call["id"])
    half = [{"type": "thinking", "thinking": "hm", "thinkingSignature": "s"}]
    broken = assistant(text, *rng.choice([[], [call]]), stop=rng.choice(["aborted", "error"]))
    shell = {"command": "ls", "output": text, "exitCode": 0, "cancelled": False, "truncated": False, "timestamp": n}
    level = rng.choice(["low", "high", "off"])
    kinds: dict[str, Any] = {
        "message:user": {"message": {**user(text), "timestamp": n}},
        "message:user-text": {"message": {"role": "user", "content": text, "timestamp": n}},
        "message:answer": {"message": {**assistant(text), "model": f"m-{n % 3}"}},
        "message:thinking": {"message": {**assistant(text), "content": half}},
        "message:calls": {"message": assistant(text, call, tool_call(f"d{n}", "read", path="a.py"))},
        "message:broken": {"message": {**broken, "content": [*half, *broken["content"]]}},
        "message:result": {"message": tool_result(rng.choice(calls), "bash", text, is_error=rng.random() < 0.3)},
        "message:shell": {"message": {"role": "bashExecution", **shell, "excludeFromContext": rng.random() < 0.5}},
        "custom_message": {"customType": "note", "content": text, "display": rng.random() < 0.5, "details": {"n": n}},
        "custom": {"customType": "state", "data": {"n": n}},
        "branch_summary": {"fromId": other, "summary": text},
        "compaction": {"summary": text, "firstKeptEntryId": other, "tokensBefore": n},
        "label": {"targetId": other, "label": text},
        "thinking_level_change": {"thinkingLevel": level},
        "session_info": {"name": text},
        "from_the_future": {"content": "not for a model"},
    }
    if owner == "pi":
        edit = rng.choice([None, {"content": "edited"}, {"content": [{"type": "text", "text": "it"}]}])
        return kinds | {
            "context_edit": {"targetId": other, "replacement": edit},
            "message:system": {"message": {"role": "system", "content": text, "timestamp": n}},
            "model_change": {"provider": "mock", "modelId": f"m-{n}"},
        }
    return kinds | {
        "reset_boundary": {},
        "model_change": {"model": f"mock/m-{n}", "role": rng.choice(["default", "smol"])},
        "mode_change": {"mode": rng.choice(["plan", "none"])},
        "ttsr_injection": {"injectedRules": [f"rule {n % 4}"]},
        "message:retried": {"message": {**assistant(text), "retryRecovery": {"note": "again"}}},
        "custom_message:interrupted": {"customType": "interrupted-thinking", "content": "it was", "display": False},
        "custom_message:shown": {"customType": "prewalk-plan", "content": "shown only", "display": True},
    }


def contexts_everywhere(path: Path) -> dict[str, Any]:
    """Ours, at each entry, in the shape of `Oracle.load`."""
    manager = SessionManager.open(path)
    entries = manager.get_entries()
    return {
        "entries": entries,
        "tree": None,
        "contexts": {e["id"]: manager.build_session_context(e["id"]) for e in entries},
    }


@pytest.mark.skipif(CORPUS is None, reason="the corpus is not here")
@pytest.mark.parametrize("owner", ["pi", "omp"])
def test_each_entry_of_the_corpus_has_the_context_that_its_owner_gives_it(owner: str):
    assert CORPUS is not None
    paths = sorted((CORPUS / owner).rglob("*.jsonl"))
    compared = 0
    for seen in {"pi": pi, "omp": omp}[owner]().load(paths, everywhere=True):
        assert differences(seen, contexts_everywhere(seen["path"]), leave=(*TREE, "name")) == [], seen["path"].name
        compared += len(seen["contexts"])
    assert compared > 100


@pytest.mark.parametrize("owner", ["pi", "omp"])
def test_each_entry_of_a_random_tree_has_the_context_that_its_owner_gives_it(owner: str, tmp_path: Path):
    """References to entries of other branches, below, or nowhere; broken answers; results of other calls."""
    paths: list[Path] = []
    for seed in range(40):
        head = {"type": "session", "version": 3, "id": f"s{seed}", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/"}
        path = tmp_path / f"2026-01-01T00-00-00-000Z_{owner}{seed}.jsonl"
        path.write_bytes(b"".join(map(line, [head, *random_tree(random.Random(f"{owner}{seed}"), owner)])))
        paths.append(path)

    for seen in {"pi": pi, "omp": omp}[owner]().load(paths, everywhere=True):
        assert "error" not in seen
        assert len(seen["contexts"]) == 40
        ours = contexts_everywhere(seen["path"])
        assert differences(seen, ours, leave=(*TREE, "name")) == [], seen["path"].name


def last(path: Path) -> dict:
    return json.loads(path.read_bytes().splitlines()[-1])


def append(path: Path, line: dict[str, object]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
