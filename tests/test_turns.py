"""Turns of a path, recorded and derived, against a model that reads the entries themselves."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from dsh_daemon import tree, turns
from dsh_daemon.log.index import NONE, Index
from dsh_daemon.log.journal import MemoryJournal
from dsh_daemon.session import Session

from .indexes import turns_of
from .support import assistant, entry, header, line, tool_result, user

Entry = dict[str, Any]

ODD_NUMBERS: list[Any] = [None, 0, -3, "4", True, 2.5, [1], 1 << 70]


def session_of(entries: list[Entry], journal: type[MemoryJournal] = MemoryJournal) -> Session:
    session = Session(journal(line(header()) + b"".join(map(line, entries))))
    session.load()
    return session


def start(id_: str, parent: str | None, number: Any) -> Entry:
    return entry("turn_start", id_, parent, turn=number)


def end(id_: str, parent: str | None, number: Any, kind: str = "completed") -> Entry:
    return entry("turn_end", id_, parent, turn=number, reason={"kind": kind})


# --- the model: pieces of a path, cut at marks and prompts, judged by what the entries say


def pieces(path: list[Entry]) -> Iterator[list[Entry]]:
    piece: list[Entry] = []
    for e in path:
        recorded = bool(piece) and piece[0]["type"] == "turn_start"
        if e["type"] == "turn_end":
            if recorded:
                yield [*piece, e]
            elif piece:
                yield piece
            piece = []
        elif e["type"] == "turn_start" or (role_of(e) == "user" and not recorded):
            if piece:
                yield piece
            piece = [e]
        elif piece:
            piece.append(e)
    if piece:
        yield piece


def role_of(e: Entry) -> str | None:
    return e.get("message", {}).get("role")


def truth(path: list[Entry]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cut = list(pieces(path))
    for n, piece in enumerate(cut):
        first, last = piece[0], piece[-1]
        recorded = first["type"] == "turn_start"
        number = first.get("turn") if recorded else None
        if type(number) is not int or not 0 < number < 1 << 63:
            number = (found[-1]["number"] if found else 0) + 1
        answers = [e for e in piece if role_of(e) == "assistant"]
        closed, kind = None, None
        if recorded:
            if last["type"] == "turn_end":
                closed, kind = last["id"], last["reason"]["kind"]
        elif answers:
            final = answers[-1]["message"]
            kind = {"error": "error", "aborted": "aborted"}.get(final["stopReason"])
            settled = kind is not None or (final["content"] and not any(map(is_call, final["content"])))
            if settled and not open_calls(piece):
                closed, kind = answers[-1]["id"], kind or "completed"
        if closed is None and kind is None and n < len(cut) - 1:
            kind = "interrupted"
        steps = sum(e["type"] == "step_start" for e in piece) if recorded else len(answers)
        prompt = next((e["id"] for e in piece if role_of(e) == "user"), None)
        found.append({
            "start": first["id"], "recorded": recorded, "number": number, "end": closed, "kind": kind, "steps": steps,
            "prompt": prompt, "calls": open_calls(piece),
        })  # fmt: skip
    return found


def is_call(block: Entry) -> bool:
    return block["type"] == "toolCall"


def open_calls(piece: list[Entry]) -> list[str]:
    waiting: list[str] = []
    for e in piece:
        if role_of(e) == "assistant":
            waiting += [block["id"] for block in e["message"]["content"] if is_call(block)]
        elif role_of(e) == "toolResult" and e["message"]["toolCallId"] in waiting:
            waiting.remove(e["message"]["toolCallId"])
    return waiting


def seen(session: Session, leaf: int) -> list[dict[str, Any]]:
    """What `turns_of` finds, in the words of the model."""
    index = session.index
    found = turns_of(index, tree.path(index, leaf), session.entry)
    return [
        {
            "start": index.ids[turn.start], "recorded": turn.recorded, "number": turn.number,
            "end": index.id_of(turn.end), "kind": turn.kind, "steps": turn.steps, "prompt": index.id_of(turn.prompt),
            "calls": [call.id for call in turns.unanswered(turn, index, session.entry)],
        }
        for turn in found
    ]  # fmt: skip


# --- random trees


@st.composite
def trees(draw: st.DrawFn) -> list[Entry]:
    """Entries in the order in which they came: marks without partners, odd numbers, calls without results."""
    rng = draw(st.randoms(use_true_random=False))
    entries: list[Entry] = []
    calls: dict[str | None, list[str]] = {None: []}  # those open on the way to an entry, as far as they are unique
    for n in range(draw(st.integers(0, 40))):
        id_ = f"e{n:03}"
        parent = entries[-1]["id"] if entries else None
        if entries and rng.random() < 0.15:
            parent = rng.choice([None, *(e["id"] for e in entries)])
        waiting = list(calls[parent])
        kind = rng.choice(("start", "end", "user", "user", "answer", "answer", "result", "step", "stepped", "other"))
        number = rng.choice([*range(1, 12), rng.choice(ODD_NUMBERS)])
        if kind == "start":
            made = start(id_, parent, number)
        elif kind == "end":
            made = end(id_, parent, number, rng.choice(["completed", "aborted", "max-tokens"]))
        elif kind == "user":
            made = user(id_, parent, "do it")
        elif kind == "answer":
            new = [f"c{n}-{k}" for k in range(rng.choice((0, 0, 1, 2)))]
            stop = rng.choice([None, None, None, "aborted", "error"])
            more: dict[str, Any] = {"stopReason": stop} if stop else {}
            text = rng.choice(["", "done"])
            made = assistant(id_, parent, text, calls=[{"id": c, "name": "bash", "arguments": {}} for c in new], **more)
            waiting += new
        elif kind == "result" and waiting:
            made = tool_result(id_, str(parent), waiting.pop(rng.randrange(len(waiting))), "ok")
        elif kind in {"step", "stepped"}:
            made = entry("step_start" if kind == "step" else "step_end", id_, parent, turn=number, step=1)
        else:
            made = entry("custom", id_, parent, customType="x")
        calls[id_] = waiting
        entries.append(made)
    return entries


def paths_of(entries: list[Entry]) -> dict[str, list[Entry]]:
    found: dict[str | None, list[Entry]] = {None: []}
    for e in entries:
        found[e["id"]] = [*found[e["parentId"]], e]
    return {id_: path for id_, path in found.items() if id_ is not None}


@settings(max_examples=150, deadline=None)
@given(trees(), st.randoms(use_true_random=False))
def test_turns_of_every_path_are_what_its_entries_say(entries: list[Entry], rng: random.Random) -> None:
    """Whichever way the lines stand in the file; the next number is the last one plus one, wherever the leaf is."""
    paths = paths_of(entries)
    shuffled = list(entries)
    rng.shuffle(shuffled)
    for written in (entries, shuffled):
        session = session_of(written)
        index = session.index
        begun = turns.begun(index)
        for id_, path in paths.items():
            expected = truth(path)
            i = session.leaf = index.ordinal[id_]

            assert seen(session, i) == expected
            assert session.next_turn() == (expected[-1]["number"] if expected else 0) + 1
            assert {index.ids[k] for k in tree.path(index, i) if begun[k]} == {turn["start"] for turn in expected}


@settings(max_examples=100, deadline=None)
@given(trees())
def test_the_open_turn_and_the_boundaries_agree_with_the_turns(entries: list[Entry]) -> None:
    session = session_of(entries)
    index = session.index
    for id_, path in paths_of(entries).items():
        expected = truth(path)
        session.leaf = index.ordinal[id_]
        places = tree.path(index, session.leaf)
        last = expected[-1] if expected else None

        opened = session.open_turn()
        if last and last["recorded"] and last["end"] is None:
            assert opened == {"turn": last["number"], "entryId": last["start"]}
        else:
            assert opened is None
        broken = turns.broken_off(index, places, session.entry)
        assert (broken and broken.number) == (last["number"] if last and last["end"] is None else None)
        closed = [turn["end"] for turn in expected if turn["end"] is not None]
        assert index.id_of(turns.last_closed(index, places, session.entry)) == (closed[-1] if closed else None)


@settings(max_examples=100, deadline=None)
@given(trees(), st.randoms(use_true_random=False))
def test_what_is_remembered_of_the_nearest_mark_is_what_a_walk_finds(entries: list[Entry], rng: random.Random) -> None:
    """Also while lines come that are the parents of earlier ones, and a last line that is not whole yet."""
    if rng.random() < 0.5:
        rng.shuffle(entries)
    data = line(header()) + b"".join(map(line, entries))
    journal = MemoryJournal()
    session = Session(journal)
    nearest = turns.Nearest(turns.TURN_MARKS)
    done = 0
    while done < len(data):
        piece = data[done : done + rng.choice((40, 200, 1_000))]
        journal.append(piece, done, unterminated=False)
        done += len(piece)
        if len(session.index):
            session.refresh()
        else:
            session.load()
        index = session.index
        for _ in range(4):
            i = rng.randrange(-1, len(index)) if rng.random() < 0.5 else len(index) - 1

            assert nearest.above(index, i) == walked(index, i)


def walked(index: Index, i: int) -> int:
    while i >= 0 and index.type_of(i) not in turns.TURN_MARKS:
        i = index.parent[i]
    return i


# --- one by one


def test_a_turn_with_marks_between_turns_without() -> None:
    """S40: each prompt outside of recorded turns counts, and numbers go on from the recorded ones."""
    session = session_of(
        [
            user("a1", None, "first"),
            assistant("a2", "a1", "done"),
            start("b1", "a2", 2),
            user("b2", "b1", "second"),
            assistant("b3", "b2", "done"),
            end("b4", "b3", 2),
            user("c1", "b4", "third"),
        ]
    )

    assert [(t["number"], t["recorded"], t["end"]) for t in seen(session, session.leaf)] == [
        (1, False, "a2"),
        (2, True, "b4"),
        (3, False, None),
    ]
    assert session.next_turn() == 4


def test_numbers_run_along_the_path_and_not_through_the_file() -> None:
    """After a way back the abandoned turns count no more."""
    session = session_of([
        start("a1", None, 1), end("a2", "a1", 1),
        start("b1", "a2", 2), end("b2", "b1", 2),
        start("c1", "b2", 3), end("c2", "c1", 3),
    ])  # fmt: skip
    session.leaf = session.find("a2")

    assert session.next_turn() == 2
    session.leaf = NONE
    assert session.next_turn() == 1


def test_an_id_that_a_model_uses_again_is_another_call() -> None:
    session = session_of(
        [
            start("a1", None, 1),
            assistant("a2", "a1", calls=[{"id": "call_0", "name": "read", "arguments": {}}]),
            entry("tool_call", "a3", "a2", callId="call_0"),
            tool_result("a4", "a3", "call_0", "text"),
            assistant("a5", "a4", calls=[{"id": "call_0", "name": "bash", "arguments": {}}]),
        ]
    )
    turn = turns_of(session.index, tree.path(session.index, session.leaf), session.entry)[0]

    assert turns.unanswered(turn, session.index, session.entry) == [turns.Call("call_0", "bash", started=False)]


def test_a_call_that_was_started_says_so() -> None:
    session = session_of(
        [
            start("a1", None, 1),
            assistant("a2", "a1", calls=[{"id": c, "name": "bash", "arguments": {}} for c in ("x", "y", "z")]),
            entry("tool_call", "a3", "a2", callId="y"),
            tool_result("a4", "a3", "z", "text"),
        ]
    )
    turn = turns.spans(session.index, tree.path(session.index, session.leaf))[0]
    turn.number = 1
    calls = turns.unanswered(turn, session.index, session.entry)
    made = turns.closers(turn, 2, calls, {"kind": "interrupted"})

    assert [e["type"] for e in made] == ["message", "message", "step_end", "turn_end"]
    assert [e["message"]["details"]["code"] for e in made[:2]] == [turns.NOT_STARTED, turns.OUTCOME_UNKNOWN]
    assert made[2:] == [
        {"type": "step_end", "turn": 1, "step": 2, "outcome": "aborted"},
        {"type": "turn_end", "turn": 1, "reason": {"kind": "interrupted"}},
    ]


@pytest.mark.parametrize("odd", ODD_NUMBERS)
def test_a_damaged_number_is_the_one_after_the_turn_before(odd: Any) -> None:
    marks = [start("a1", None, 6), end("a2", "a1", 6), user("b1", "a2", "x"), assistant("b2", "b1", "y")]
    session = session_of([*marks, start("c1", "b2", odd), entry("step_start", "c2", "c1", turn=odd, step=odd)])

    assert session.open_turn() == {"turn": 8, "entryId": "c1"}
    assert session.recorded_turn() == turns.Open(8, session.find("c1"), 1, 1)
    assert session.next_turn() == 9
    ended = session_of([*marks, start("c1", "b2", 8), end("c2", "c1", odd), user("d1", "c2", "z")])
    assert ended.next_turn() == 10


def test_writing_a_prompt_anew_goes_above_the_mark_of_its_turn() -> None:
    session = session_of(
        [
            user("a1", None, "x"),
            start("b1", "a1", 2),
            user("b2", "b1", "y"),
            user("b3", "b2", "steered"),
        ]
    )
    above = {
        id_: session.index.id_of(turns.before_prompt(session.index, session.find(id_))) for id_ in ("a1", "b2", "b3")
    }

    assert above == {"a1": None, "b2": "a1", "b3": "b2"}


# --- size


class Counting(MemoryJournal):
    """Counts what is read."""

    reads = 0

    def read(self, offset: int, length: int) -> bytes:
        Counting.reads += 1
        return super().read(offset, length)


def long_log(turn: list[str]) -> Session:
    """20,000 turns of five entries each."""
    entries: list[Entry] = []
    for n in range(20_000):
        for kind in turn:
            id_, parent = f"{len(entries):06x}", f"{len(entries) - 1:06x}" if entries else None
            match kind:
                case "user":
                    made = user(id_, parent, "go on")
                case "start":
                    made = start(id_, parent, n + 1)
                case "end":
                    made = end(id_, parent, n + 1)
                case "call":
                    made = assistant(id_, parent, calls=[{"id": f"c{n}", "name": "bash", "arguments": {}}])
                case "result":
                    made = tool_result(id_, str(parent), f"c{n}", "ok")
                case "answer":
                    made = assistant(id_, parent, "done")
                case _:
                    made = entry("custom", id_, parent)
            entries.append(made)
    return session_of(entries, Counting)


@pytest.fixture(scope="module", params=["recorded", "derived"])
def long(request: pytest.FixtureRequest) -> Session:
    recorded = ["start", "user", "answer", "custom", "end"]
    return long_log(recorded if request.param == "recorded" else ["user", "call", "result", "custom", "answer"])


def test_a_hundred_thousand_entries_take_well_under_a_second(long: Session) -> None:
    path = tree.path(long.index, long.leaf)
    kept = {i: long.entry(i) for i in path}  # what is measured is not how bodies are read
    began = time.process_time()
    found = turns_of(long.index, path, kept.__getitem__)
    took = time.process_time() - began

    assert [turn.number for turn in found] == list(range(1, 20_001))
    assert {turn.kind for turn in found} == {"completed"}
    assert took < 0.8


def test_the_next_number_of_a_long_path_reads_a_body_at_most(long: Session) -> None:
    Counting.reads = 0
    long.runs()
    began = time.process_time()
    number = long.next_turn()
    took = time.process_time() - began

    assert number == 20_001
    assert Counting.reads <= 1
    assert took < 0.05


def test_a_turn_that_grows_costs_only_what_is_new() -> None:
    """The open turn is looked up with every change: a long one must not be walked each time."""
    entries = [start("s", None, 1)] + [entry("custom", f"e{n}", f"e{n - 1}" if n else "s") for n in range(50_000)]
    session = session_of(entries)
    assert session.open_turn() == {"turn": 1, "entryId": "s"}
    began = time.process_time()
    for n in range(50_000, 50_200):
        session.append([{"type": "custom", "id": f"e{n}", "customType": "x"}], sync=False)
        session.open_turn()
    took = time.process_time() - began

    assert took < 0.5  # a walk each time takes some 2 ms
