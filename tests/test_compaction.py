"""Where a context is cut, over logs of any shape."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, strategies as st

from dsh_daemon import tree
from dsh_daemon.compaction import cut_at, first_cut, plan_cut
from dsh_daemon.context import build_context
from dsh_daemon.session import Session
from dsh_daemon.summaries import FORM, request, tokens_in
from dsh_daemon.text import as_str, calls_of, message_of
from tests.support import assistant, entry, header, tool_result, user, write_log

STEPS = st.lists(
    st.sampled_from(["user", "answer", "calls", "result", "label", "compaction", "summary", "marks", "bash"]),
    max_size=40,
)


def session_of(steps: list[str], folder: str, size: int = 40) -> Session:
    """A chain of these steps; a result answers the oldest call that has none."""
    lines: list[dict] = []
    waiting: list[str] = []
    parent = None
    for n, step in enumerate(steps):
        id_ = f"e{n}"
        if step == "user":
            made = user(id_, parent, f"prompt {n} " + "x" * size, n)
        elif step == "answer":
            made = assistant(id_, parent, f"answer {n} " + "x" * size, n)
        elif step == "calls":
            calls = [{"id": f"c{n}.{k}", "name": "read", "arguments": {"path": "a"}} for k in range(2)]
            waiting += [call["id"] for call in calls]
            made = assistant(id_, parent, "", n, calls=calls)
        elif step == "result":
            if not waiting:
                continue
            made = tool_result(id_, parent or "", waiting.pop(0), "x" * size, n, "read")
        elif step == "label":
            made = entry("label", id_, parent, n, targetId="e0", label="here")
        elif step == "compaction":
            made = entry("compaction", id_, parent, n, summary="s", firstKeptEntryId=parent or "", tokensBefore=1)
        elif step == "summary":
            made = entry("branch_summary", id_, parent, n, fromId="root", summary="tried")
        elif step == "bash":
            message = {"role": "bashExecution", "command": "ls", "output": "x", "timestamp": 1}
            made = entry("message", id_, parent, n, message=message)
        else:
            made = entry("step_start", id_, parent, n, turn=1, step=n)
        lines.append(made)
        parent = id_
    return Session.open(str(write_log(Path(folder) / "s.jsonl", lines, header("s", generator="dsh-daemon/0"))))


@given(STEPS, st.integers(0, 400))
def test_no_call_is_parted_from_its_result_and_every_message_is_summarised_or_kept(steps, keep):
    with TemporaryDirectory() as folder:
        session = session_of(steps, folder)
        try:
            index = session.index
            path = tree.path(index, session.leaf)
            before = build_context([session.entry(i) for i in path])
            cut = plan_cut(index, path, session.entry, keep)
            if cut is None:
                return
            place = path.index(cut.first_kept)
            asked = {as_str(call.get("id")) for i in path[:place] for call in calls_of(session.entry(i))}
            answered = {as_str(message_of(session.entry(i)).get("toolCallId")) for i in path[place:]}
            assert not asked & answered
            # What a model saw is in the summary's request or stays.
            made = entry("compaction", "c", None, 99, summary="S", firstKeptEntryId=index.ids[cut.first_kept])
            after = build_context([*[session.entry(i) for i in path], made])
            kept = {source for sources in after["sources"] for source in sources}
            gone = {index.ids[i] for i in cut.summarised}
            seen = {source for sources in before["sources"] for source in sources}
            assert seen <= kept | gone
            assert not (kept & gone)
            assert cut.tokens_before > 0
        finally:
            session.journal.close()


@given(STEPS, st.integers(0, 60))
def test_the_more_is_to_be_kept_the_earlier_is_the_cut_and_what_fits_is_not_cut(steps, keep):
    with TemporaryDirectory() as folder:
        session = session_of(steps, folder, size=400)
        try:
            path = tree.path(session.index, session.leaf)
            assert plan_cut(session.index, path, session.entry, 1_000_000) is None
            wide = plan_cut(session.index, path, session.entry, keep + 150)
            narrow = plan_cut(session.index, path, session.entry, keep)
            if wide is not None:
                assert narrow is not None
                assert path.index(narrow.first_kept) >= path.index(wide.first_kept)
        finally:
            session.journal.close()


def test_a_cut_where_a_client_says_wants_something_before_it():
    with TemporaryDirectory() as folder:
        session = session_of(["user", "answer", "user", "compaction", "user", "answer"], folder)
        index = session.index
        path = tree.path(index, session.leaf)
        assert cut_at(index, path, session.entry, index.ordinal["e0"]) is None  # before what the last one kept
        assert cut_at(index, path, session.entry, index.ordinal["e2"]) is None  # nothing stands between
        cut = cut_at(index, path, session.entry, index.ordinal["e5"])
        assert cut is not None
        assert [index.ids[i] for i in cut.summarised] == ["e3", "e2", "e4"]  # the summary so far comes first
        session.journal.close()


def kept_by(session: Session, cut) -> str:
    return session.index.ids[cut.first_kept]


def test_a_call_that_nobody_will_answer_holds_nothing_from_where_somebody_speaks_next():
    for reason in ("aborted", "error", "toolUse"):
        with TemporaryDirectory() as folder:
            broken = assistant("a0", "u0", "", 1, calls=[{"id": "t1", "name": "read", "arguments": {}}])
            broken["message"]["stopReason"] = reason
            lines, parent = [user("u0", None, "go", 0), broken], "a0"
            for n in range(1, 201):
                lines += [user(f"u{n}", parent, "x" * 400, 2 * n), assistant(f"a{n}", f"u{n}", "y" * 400, 2 * n + 1)]
                parent = f"a{n}"
            session = Session.open(str(write_log(Path(folder) / "s.jsonl", lines)))
            path = tree.path(session.index, session.leaf)
            cut = plan_cut(session.index, path, session.entry, 2_000)
            assert cut is not None
            assert path.index(cut.first_kept) > 350
            first = cut_at(session.index, path, session.entry, session.find("u1"))
            assert first is not None
            assert kept_by(session, first) == "u1"
            session.journal.close()


def test_a_result_that_comes_late_or_to_an_id_that_is_used_again_holds_its_call():
    with TemporaryDirectory() as folder:
        calls = [{"id": "t1", "name": "read", "arguments": {}}]
        lines = [
            user("u0", None, "go"),
            assistant("a0", "u0", "", calls=calls),
            user("u1", "a0", "never mind"),
            assistant("a1", "u1", "", calls=calls),
            user("u2", "a1", "are you there?"),
            tool_result("r1", "u2", "t1", "here"),
            user("u3", "r1", "good"),
        ]
        session = Session.open(str(write_log(Path(folder) / "s.jsonl", lines)))
        path = tree.path(session.index, session.leaf)
        kept = {}
        for id_ in ("u1", "a1", "u2", "r1", "u3"):
            cut = cut_at(session.index, path, session.entry, session.find(id_))
            kept[id_] = cut and kept_by(session, cut)
        assert kept == {"u1": "u1", "a1": "a1", "u2": "a1", "r1": "a1", "u3": "u3"}
        session.journal.close()


@given(STEPS)
def test_where_a_client_says_no_call_is_parted_either_and_no_less_is_kept(steps):
    with TemporaryDirectory() as folder:
        session = session_of(steps, folder)
        try:
            index = session.index
            path = tree.path(index, session.leaf)
            first = first_cut(index, path, session.entry)
            assert first < 0 or cut_at(index, path, session.entry, first) is not None
            for place, i in enumerate(path):
                cut = cut_at(index, path, session.entry, i)
                if cut is None:
                    continue
                at = path.index(cut.first_kept)
                assert at <= place
                asked = {as_str(call.get("id")) for k in path[:at] for call in calls_of(session.entry(k))}
                assert not asked & {as_str(message_of(session.entry(k)).get("toolCallId")) for k in path[at:]}
        finally:
            session.journal.close()


def test_the_summary_so_far_is_told_whatever_else_fits():
    so_far = entry("compaction", "c", None, 1, summary="Use tabs. " * 20, firstKeptEntryId="u0", tokensBefore=1)
    said = [user(f"u{n}", None, f"<{n}> " + "x" * 400, n) for n in range(40)]
    for entries in ([so_far, *said], [*said[:20], so_far, *said[20:]]):
        made = request(reversed(entries), 2_000, "About.", so_far=so_far)
        assert "Use tabs." in made.text
        assert "<39>" in made.text
        assert made.told == sum(f"<{n}>" in made.text for n in range(40)) + 1 < 41
        assert tokens_in(made.system) + tokens_in(made.text) <= 2_040
    huge = {**so_far, "summary": "Use tabs. " * 20_000}
    made = request(reversed([huge, *said]), 2_000, "About.", so_far=huge)
    assert "Use tabs." in made.text
    assert "<39>" in made.text
    assert tokens_in(made.system) + tokens_in(made.text) <= 2_040


def test_a_large_image_costs_what_an_image_costs_not_its_bytes():
    with TemporaryDirectory() as folder:
        image = {"type": "image", "data": "A" * 4_000_000, "mimeType": "image/png"}
        seen = user("u2", "a1", "look", 3)
        seen["message"]["content"].append(image)
        lines = [user("u1", None, "x" * 4000), assistant("a1", "u1", "y" * 4000), seen, assistant("a2", "u2", "ok", 4)]
        session = Session.open(str(write_log(Path(folder) / "s.jsonl", lines)))
        path = tree.path(session.index, session.leaf)
        cut = plan_cut(session.index, path, session.entry, 2_000)
        assert cut is not None
        assert session.index.ids[cut.first_kept] == "u2"
        session.journal.close()


@given(st.lists(st.text(max_size=300), min_size=1, max_size=30), st.integers(700, 3_000))
def test_a_request_keeps_the_newest_and_stays_within_the_window(texts, room):
    entries = [user(f"u{n}", None, f"<{n}> {text}") for n, text in enumerate(texts)]
    made = request(reversed(entries), room, "About.")
    assert f"<{len(texts) - 1}>" in made.text
    inside = [n for n in range(len(texts)) if f"<{n}>" in made.text]
    assert inside == list(range(inside[0], len(texts)))
    assert ("older messages are left out" in made.text) == (len(inside) < len(texts))
    if len(inside) > 1:
        assert tokens_in(made.system) + tokens_in(made.text) <= room + 40
    assert FORM in made.text
