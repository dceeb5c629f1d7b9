import json
from pathlib import Path

import pytest

from . import MockModel, OmpProcess, OracleError, PiProcess, RpcError, assistant, holds, old_pi, omp, op, pi, user

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


def last(path: Path) -> dict:
    return json.loads(path.read_bytes().splitlines()[-1])


def append(path: Path, line: dict[str, object]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
