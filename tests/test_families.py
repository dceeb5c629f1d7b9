"""Families: who descends from whom, by paths and by ids, whatever the headers say; each session once, and it ends."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from dsh_daemon.catalog import Catalog
from dsh_daemon.client import Client
from dsh_daemon.listing import Filters
from dsh_daemon.roots import Root
from dsh_daemon.state import State
from dsh_daemon.store import Store
from tests.running import Daemon
from tests.support import assistant, header, stamp, user, write_log
from tests.wire import in_loop

Make = Callable[..., Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture
def make(root: Path) -> Make:
    """Write a session of one turn."""

    def made(name: str, folder: str = "--work--", second: int = 0, file: str = "", **more: Any) -> Path:
        path = root / folder / (file or f"2026-01-01T00-00-00-000Z_{name}.jsonl")
        talk = [user("u", None, "same question"), assistant("a", "u", "same answer")]
        return write_log(path, talk, {**header(name, **more), "timestamp": stamp(second)})

    return made


def store_of(root: Path) -> Store:
    store = Store([Root(str(root), None, "config")], Catalog(None), State(None))
    store.refresh()
    return store


def parents(store: Store, session_id: str) -> dict[str, str | None]:
    return {m["sessionId"]: m["parentSessionId"] for m in store.family(store.get(session_id))["sessions"]}


def test_parents_are_found_by_path_and_by_id(root: Path, make: Make) -> None:
    """pi, omp's branch and we write a path; omp's fork writes an id; pi's first version called the field otherwise."""
    top = make("top")
    make("by-path", parentSession=str(top), second=1)
    make("by-id", parentSession="top", title="x", second=2)
    make("of-old", branchedFrom=str(top), second=3)
    store = store_of(root)
    assert parents(store, "top") == {"top": None, "by-path": "top", "by-id": "top", "of-old": "top"}
    for child in ("by-path", "by-id", "of-old"):
        family = store.family(store.get(child))
        assert (family["root"], family["ancestors"], family["complete"]) == ("top", ["top"], True)


def test_a_parent_that_moved_is_found_by_what_it_is_called(root: Path, make: Make) -> None:
    """The child's header keeps the path of then: the file's name tells, or else the id in it."""
    make("moved", folder="--elsewhere--")
    make("renamed", file="my favourite.jsonl")
    make("a", parentSession="/old/store/--work--/2026-01-01T00-00-00-000Z_moved.jsonl")
    make("b", parentSession="C:\\old\\2026-01-01T00-00-00-000Z_renamed.jsonl")
    make("lost", parentSession="/old/2026-01-01T00-00-00-000Z_nobody.jsonl")
    store = store_of(root)
    assert parents(store, "moved") == {"moved": None, "a": "moved"}
    assert parents(store, "b") == {"renamed": None, "b": "renamed"}
    lost = store.family(store.get("lost"))
    assert (lost["root"], lost["ancestors"], lost["complete"]) == ("lost", [], False)
    assert lost["sessions"] == [{"sessionId": "lost", "parentSessionId": "nobody"}]


def test_of_two_files_with_one_id_the_child_belongs_to_the_one_that_it_means(root: Path, make: Make) -> None:
    one = make("twin", folder="--one--")
    two = make("twin", folder="--two--")
    make("by-path", folder="--three--", parentSession=str(two))
    make("near", folder="--one--", parentSession="twin")
    make("unclear", folder="--three--", parentSession="twin")
    store = store_of(root)
    names = {path: item.id for path, item in store.items().items()}
    assert parents(store, "by-path") == {names[str(two)]: None, "by-path": names[str(two)]}
    assert parents(store, "near") == {names[str(one)]: None, "near": names[str(one)]}
    assert not store.family(store.get("unclear"))["complete"]
    assert parents(store, "unclear") == {"unclear": "twin"}


def test_circles_have_one_first_session_whoever_asks(root: Path, make: Make) -> None:
    """A059."""
    make("b", parentSession="a", second=2)
    make("c", parentSession="b", second=3)
    first = make("a", parentSession="c", second=1)
    make("tail", parentSession=str(first), second=4)
    make("tip", parentSession="tail", second=5)
    make("self", parentSession="self")
    store = store_of(root)
    found = {name: store.family(store.get(name)) for name in ("a", "b", "c", "tail", "tip")}
    assert {family["root"] for family in found.values()} == {"a"}
    assert {name: family["ancestors"] for name, family in found.items()} == {
        "a": [], "b": ["a"], "c": ["b", "a"], "tail": ["a"], "tip": ["tail", "a"],
    }  # fmt: skip
    for family in found.values():
        assert sorted(m["sessionId"] for m in family["sessions"]) == ["a", "b", "c", "tail", "tip"]
    assert parents(store, "self") == {"self": None}
    listed = [item["sessionId"] for item in store.list(Filters(group="family"))["items"]]
    assert sorted(listed) == ["a", "b", "c", "self", "tail", "tip"]


def test_a_session_of_a_forks_source_stays_with_the_source(root: Path, make: Make) -> None:
    """A059: the child C of S1 is no child of S1's fork S2, and both are found from each other."""
    make("S1")
    make("C", parentSession="S1", origin="subagent")
    make("S2", parentSession="S1")
    store = store_of(root)
    for name in ("S1", "S2", "C"):
        assert parents(store, name) == {"S1": None, "C": "S1", "S2": "S1"}


@pytest.mark.parametrize("seed", range(30))
def test_any_links_at_all_give_each_session_once(root: Path, make: Make, seed: int) -> None:
    """A059: cycles, references to itself, to nobody, to two of one name; parents come before their children."""
    chance = random.Random(seed)
    names = [f"s{n}" for n in range(12)]
    for n, name in enumerate(names):
        parent = chance.choice([*names, *names[:n], "nobody", "", "twin"])
        link = {"parentSession": parent} if parent else {}
        make(name, second=n, folder=f"--{n % 3}--", **link)
    for folder in ("--0--", "--1--"):
        make("twin", folder=folder, parentSession=chance.choice(names))
    store = store_of(root)
    families: dict[str, list[str]] = {}
    for item in store.items().values():
        family = store.family(item)
        members = [member["sessionId"] for member in family["sessions"]]
        assert max(Counter(members).values()) == 1
        assert item.id in members
        assert members[0] == family["root"]
        assert len(set(family["ancestors"])) == len(family["ancestors"])
        assert item.id not in family["ancestors"]
        assert family["ancestors"][-1:] == [family["root"]] * (item.id != family["root"])
        assert families.setdefault(family["root"], sorted(members)) == sorted(members)
    everyone = sorted(chain.from_iterable(families.values()))
    assert everyone == sorted(item.id for item in store.items().values())
    listed = [item["sessionId"] for item in store.list(Filters(group="family", subagents=True))["items"]]
    assert sorted(listed) == everyone


def test_a_chain_of_a_thousand_forks_is_walked(root: Path, make: Make) -> None:
    for n in range(1_000):
        make(f"s{n:03}", second=n, **({"parentSession": f"/old/x_s{n - 1:03}.jsonl"} if n else {}))
    store = store_of(root)
    family = store.family(store.get("s999"))
    assert family["ancestors"] == [f"s{n:03}" for n in range(998, -1, -1)]
    assert (family["root"], len(family["sessions"]), family["complete"]) == ("s000", 1_000, True)
    listed = [item["sessionId"] for item in store.list(Filters(group="family"))["items"]]
    assert listed == [f"s{n:03}" for n in range(1_000)]


async def forks_of(client: Client, source: str) -> list[str]:
    """Two forks of forks and branches: s <- f <- g, s <- b."""
    made: list[str] = []
    for method, of, params in (
        ("session/fork", source, {"boundary": "a"}),
        ("session/fork", "", {}),
        ("session/branch", source, {"entryId": "u2"}),
    ):
        result = await client.request(method, sessionId=of or made[-1], **params)
        made.append(result["session"]["sessionId"])
    return made


@in_loop
async def test_a_list_by_family_nests_forks_and_tells_them_apart(root: Path, tmp_path: Path) -> None:
    """A055: the same title, so the message at which each one left, and when."""
    talk = [
        user("u", None, "question", 1), assistant("a", "u", "first answer", 2),
        user("u2", "a", "more", 3), assistant("a2", "u2", "second answer", 4),
    ]  # fmt: skip
    path = root / "--work--" / "2026-01-01T00-00-00-000Z_s.jsonl"
    write_log(path, talk, header("s"))
    write_log(path.with_name("2026-01-01T00-00-00-000Z_stranger.jsonl"), talk[:2], header("stranger"))
    with Daemon(tmp_path / "home", root) as daemon:
        async with daemon.client() as client:
            fork, grandchild, branch = await forks_of(client, "s")
            later = (await client.request("session/fork", sessionId="s"))["session"]
            listed = (await client.request("session/list", group="family"))["items"]
            family = await client.request("session/family", sessionId=grandchild)
            rows = {item["sessionId"]: item for item in listed}
    order = [item["sessionId"] for item in listed]
    start = order.index("s")
    assert set(order[start : start + 5]) == {"s", fork, grandchild, branch, later["sessionId"]}
    assert order.index(grandchild) == order.index(fork) + 1
    assert {rows[name]["title"] for name in order} == {"question"}
    assert {name: (rows[name].get("forkPoint"), rows[name].get("forkText")) for name in order} == {
        "s": (None, None), "stranger": (None, None), fork: ("a", "first answer"), grandchild: ("a", "first answer"),
        branch: ("a", "first answer"), later["sessionId"]: ("a2", "second answer"),
    }  # fmt: skip
    assert len({(row["createdAt"], row.get("forkText")) for row in listed if row.get("forkPoint")}) == 4
    assert (family["root"], family["ancestors"]) == ("s", [fork, "s"])
    points = {member["sessionId"]: member.get("forkPoint") for member in family["sessions"]}
    assert points == {"s": None, fork: "a", grandchild: "a", branch: "a", later["sessionId"]: "a2"}


@in_loop
async def test_the_tree_of_a_family_larger_than_what_stays_open_is_drawn(root: Path, tmp_path: Path) -> None:
    top = write_log(
        root / "x_top.jsonl", [user("u", None, "question"), assistant("a", "u", "answer", 2)], header("top")
    )
    for n in range(80):
        more = [user("u", None, "question"), assistant("a", "u", "answer", 2), user(f"v{n}", "a", f"way {n}", 70)]
        head = {**header(f"k{n}", parentSession=str(top)), "timestamp": stamp(60)}
        write_log(root / f"x_k{n}.jsonl", more, head)
    with Daemon(tmp_path / "home", root) as daemon:
        async with daemon.client() as client:
            tree = await client.request("session/tree", sessionId="top", family=True)
    assert tree["total"] == 82
    assert {row["text"] for row in tree["rows"]} == {"question", "answer", *(f"way {n}" for n in range(80))}
