"""What is measured. Each case yields `Measure`s; its raw operation is taken in turn with ours, round by round."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from tests import generate
from tests.bench.indexing import building, cutting
from tests.bench.measure import Bench, Measure, clock, list_all, percentile, timed
from tests.bench.searching import searching
from tests.bench.wire import Bare, Client


def parse_lines(path: Path) -> None:
    """The raw operation of an open: read line by line, parse each, keep nothing."""
    with path.open("rb") as file:
        for each in file:
            orjson.loads(each)


def parse_each(lines: list[bytes]) -> None:
    for each in lines:
        orjson.loads(each)


def ask_each(bare: Bare, sizes: list[int]) -> None:
    for size in sizes:
        bare.ask(size)


def write_and_sync(file: int, data: bytes, times: int = 1) -> None:
    for _ in range(times):
        os.write(file, data)
        os.fdatasync(file)


def open_and_draw(client: Client, path: Path) -> str:
    state = client.request("session/open", path=str(path))
    rows = client.request("session/tree", sessionId=state["sessionId"], count=100)["rows"]
    assert rows
    return state["sessionId"]


def opening(bench: Bench) -> Iterator[Measure]:
    """Open the big session and draw its first 100 rows."""
    path = bench.big()
    raw = "orjson parses its lines"
    cold = Measure("cold open + first 100 rows", raw_what=raw, reach="1.5 x raw")
    warm = Measure("warm open (index snapshot) + first 100 rows", raw_what=raw)
    again = Measure("open again in the same daemon + first 100 rows", raw_what=raw)
    grown = Measure("memory growth by opening it", unit="MB", reach="80 MB", raw_what="size of the file")
    for _ in range(bench.rounds):
        cold.raw.append(timed(parse_lines, path))
        home = bench.home()
        with bench.daemon(home, keep=True) as daemon, daemon.client() as client:
            daemon.settle()
            before = daemon.memory()
            cold.ours.append(timed(open_and_draw, client, path))
            time.sleep(1.5)  # a snapshot is written behind the answer
            grown.ours.append(max(0, daemon.memory() - before))
            grown.raw.append(path.stat().st_size)
            with daemon.client() as other:
                again.ours.append(timed(open_and_draw, other, path))
        warm.raw.append(timed(parse_lines, path))
        with bench.daemon(home) as daemon, daemon.client() as client:
            daemon.settle()
            warm.ours.append(timed(open_and_draw, client, path))
    again.raw = cold.raw
    yield from (cold, warm, again, grown)


def reading(bench: Bench) -> Iterator[Measure]:
    """Page through the tree of the big session; its path; its context."""
    path = bench.big()
    with bench.daemon() as daemon, daemon.client() as client, bench.bare() as bare:
        session = open_and_draw(client, path)

        for count in (100, 1_000):
            one = Measure(f"a window of {count:,} rows", raw_what="bare socket, same bytes", reach="5 ms")
            for filter_ in ("default", "all"):
                ask = {"sessionId": session, "filter": filter_, "count": count}
                total = client.request("session/tree", **ask)["total"]
                for start in range(0, total, max(count, total // 30)):
                    one.ours.append(timed(client.request, "session/tree", **ask, start=start))
                    one.raw.append(timed(bare.ask, client.last_size))
            one.note = f"p99 {percentile(one.ours, 99) * 1000:.1f} ms"
            yield one

        layout = Measure("first rows under another filter (new layout)", raw_what="orjson parses its lines")
        whole = Measure("page through the whole tree, 1,000 rows a time", raw_what="bare socket, same bytes")
        ways = Measure("path root to leaf", raw_what="bare socket, same bytes")
        context = Measure("context of the leaf", raw_what="orjson parses the path's lines")
        search = Measure("rows that match a query, first time", raw_what="orjson parses its lines")
        on_path = set(client.request("session/path", sessionId=session)["ids"])
        chosen = [each for each in path.read_bytes().split(b"\n")[1:-1] if orjson.loads(each)["id"] in on_path]
        for round_ in range(bench.rounds):
            mode = ("no-tools", "user-only", "labeled-only")[round_ % 3]
            layout.ours.append(timed(client.request, "session/tree", sessionId=session, filter=mode, count=100))
            layout.raw.append(timed(parse_lines, path))

            sizes: list[int] = []
            started, start, total = clock(), 0, 1
            while start < total:
                page = client.request("session/tree", sessionId=session, filter="all", start=start, count=1_000)
                start, total = start + 1_000, page["total"]
                sizes.append(client.last_size)
            whole.ours.append(clock() - started)
            whole.raw.append(timed(ask_each, bare, sizes))

            ways.ours.append(timed(client.request, "session/path", sessionId=session))
            ways.raw.append(timed(bare.ask, client.last_size))

            context.ours.append(timed(client.request, "session/context", sessionId=session))
            context.raw.append(timed(parse_each, chosen))

            word = ("socket buffer", "assert expected", "retry timeout")[round_ % 3]
            search.ours.append(timed(client.request, "session/tree", sessionId=session, query=word, count=100))
            search.raw.append(timed(parse_lines, path))
        yield from (layout, whole, ways, context, search)


def shaping(bench: Bench) -> Iterator[Measure]:
    """Trees that make careless code quadratic: deep, wide, and branching at each step."""
    made: dict[str, Callable[[Path], Path]] = {
        f"chain of {bench.entries():,}": lambda path: generate.chain(path, bench.entries()),
        f"star of {bench.entries() // 5:,}": lambda path: generate.star(path, bench.entries() // 5),
        f"{bench.entries() // 20:,} nested branches": lambda path: generate.alternating(path, bench.entries() // 20),
    }
    for number, (name, make) in enumerate(made.items()):
        path = make(bench.scratch / f"shape{number}.jsonl")
        first = Measure(f"{name}: open + first 100 rows", raw_what="orjson parses its lines")
        last = Measure(f"{name}: rows around the leaf, leaves, path, folded root", raw_what="orjson parses its lines")
        for _ in range(bench.rounds):
            first.raw.append(timed(parse_lines, path))
            with bench.daemon() as daemon, daemon.client() as client:
                daemon.settle()
                first.ours.append(timed(open_and_draw, client, path))
                state = client.request("session/open", path=str(path))
                session, leaf = state["sessionId"], state["leafId"]
                last.raw.append(timed(parse_lines, path))
                started = clock()
                client.request("session/tree", sessionId=session, around=leaf, count=100)
                client.request("session/leaves", sessionId=session)
                root = client.request("session/path", sessionId=session)["ids"][0]
                client.request("session/tree", sessionId=session, collapsed=[root], count=100)
                last.ours.append(clock() - started)
        path.unlink()
        yield from (first, last)


def appending(bench: Bench) -> Iterator[Measure]:
    """Durable appends, one after the other, each beside a bare write and fdatasync in the same folder."""
    entry = {"type": "message", "message": {"role": "user", "content": "a prompt of usual length " * 8}}
    data = orjson.dumps(entry) + b"\n"
    count = max(20, int(300 * bench.scale))

    def appends(what: str, client: Client, session: str, folder: Path) -> Iterator[Measure]:
        ours: list[float] = []
        raw: list[float] = []
        file = os.open(folder / "raw.tmp", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for _ in range(count):
                raw.append(timed(write_and_sync, file, data))
                ours.append(timed(client.request, "session/append", sessionId=session, entries=[entry]))
        finally:
            os.close(file)
            (folder / "raw.tmp").unlink()
        yield Measure(f"append {what}, p50", ours, "write + fdatasync, p50", raw, reach="raw + 2 ms")
        p99 = [percentile(ours, 99)], "write + fdatasync, p99", [percentile(raw, 99)]
        yield Measure(f"append {what}, p99", *p99)

    with bench.daemon() as daemon, daemon.client() as client:
        state = client.request("session/create", cwd=str(bench.scratch))
        yield from appends("to a new session", client, state["sessionId"], Path(state["path"]).parent)
        copy = bench.scratch / "append.jsonl"
        shutil.copyfile(bench.big(), copy)
        yield from appends("to the big session", client, open_and_draw(client, copy), bench.scratch)
        copy.unlink()

        crowd = [daemon.client(f"writer {i}") for i in range(8)]
        sessions = [client.request("session/create", cwd=str(bench.scratch))["sessionId"] for _ in crowd]
        both = Measure("8 clients append to 8 sessions at once", raw_what="8 x write + fdatasync in turn")
        file = os.open(bench.scratch / "raw.tmp", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for _ in range(count // 8):
            both.raw.append(timed(write_and_sync, file, data, len(crowd)))
            started = clock()
            asked = [
                c.send("session/append", sessionId=s, entries=[entry]) for c, s in zip(crowd, sessions, strict=True)
            ]
            for each, id_ in zip(crowd, asked, strict=True):
                each.answer(id_)
            both.ours.append(clock() - started)
        os.close(file)
        yield both
        for each in crowd:
            each.socket.close()


def look_at_all(folder: Path) -> None:
    """The raw operation of a list: stat each file, read its first 16 KiB and its last 32 KiB."""
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as found:
            for item in found:
                if item.is_dir():
                    pending.append(Path(item.path))
                    continue
                size = item.stat().st_size
                file = os.open(item.path, os.O_RDONLY)
                os.pread(file, 16 << 10, 0)
                os.pread(file, 32 << 10, max(0, size - (32 << 10)))
                os.close(file)


def listing(bench: Bench) -> Iterator[Measure]:
    """List the store: nothing known, catalogue from the last run, asked again."""
    folder = bench.store()
    count = len(list(folder.rglob("*.jsonl")))
    raw = "scandir + stat + read head and tail"
    cold = Measure(f"list {count:,} sessions, first start", raw_what=raw)
    warm = Measure(f"list {count:,} sessions, after a restart", raw_what=raw)
    again = Measure(f"list {count:,} sessions, asked again", raw_what=raw)
    page = Measure("list the newest 50", raw_what=raw)
    for _ in range(bench.rounds):
        cold.raw.append(timed(look_at_all, folder))
        with bench.daemon(roots=folder) as daemon, daemon.client() as client:
            cold.ours.append(timed(list_all, client))
            assert list_all(client) == count
        home = bench.knowing_home()
        warm.raw.append(timed(look_at_all, folder))
        with bench.daemon(home, folder, keep=True) as daemon, daemon.client() as client:
            warm.ours.append(timed(list_all, client))
            daemon.settle()
            again.ours.append(timed(list_all, client))
            page.ours.append(timed(client.request, "session/list", limit=50))
    again.raw = page.raw = warm.raw
    yield from (cold, warm, again, page)


def fanning(bench: Bench) -> Iterator[Measure]:
    """One client appends, 50 hear of it: from the request to the last one's notification."""
    count, rounds = 50, max(10, int(100 * bench.scale))
    found = Measure(f"append until {count} clients know", raw_what=f"fdatasync + bare broadcast to {count}")
    entry = {"type": "message", "message": {"role": "user", "content": "hello"}}
    with bench.daemon() as daemon, daemon.client() as writer, bench.bare() as bare:
        session = writer.request("session/create", cwd=str(bench.scratch))["sessionId"]
        crowd = [daemon.client(f"follower {i}") for i in range(count)]
        for each in crowd:
            each.request("session/open", sessionId=session)
        while len(bare.sockets) < count:
            bare.connect()
        time.sleep(0.1)
        file = os.open(bench.scratch / "raw.tmp", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for _ in range(rounds):
            started = clock()
            write_and_sync(file, b"x" * 200)
            bare.ask(400, share=True)
            found.raw.append(clock() - started)
            started = clock()
            asked = writer.send("session/append", sessionId=session, entries=[entry])
            for each in crowd:
                each.next_push("session/changed")
            found.ours.append(clock() - started)
            writer.answer(asked)
        os.close(file)
        found.note = f"p99 {percentile(found.ours, 99) * 1000:.1f} ms"
        for each in crowd:
            each.socket.close()
    yield found


def steady(ask: Callable[[], Any], until: Callable[[], bool], every: float = 0.001) -> list[float]:
    """Latencies of calls, one each `every` seconds, from when they were due: a stall is seen by all that it delays."""
    found: list[float] = []
    due = clock()
    while not until():
        while clock() < due:
            time.sleep(max(0.0, due - clock() - 0.0001))
        ask()
        found.append(clock() - due)
        due += every
    return found


def pinging(bench: Bench) -> Iterator[Measure]:
    """Ping a thousand times a second while another client opens the big session."""
    path = bench.big()
    raw_what = "bare socket while orjson parses the file in another process"
    p50 = Measure("ping while the big session is opened, p50", raw_what=raw_what)
    p99 = Measure("ping while the big session is opened, p99", raw_what=raw_what, reach="20 ms")
    worst = Measure("ping while the big session is opened, slowest", raw_what=raw_what)
    idle = Measure("ping, nothing else going on", raw_what="bare socket")
    code = "import orjson, sys\nfor line in open(sys.argv[1], 'rb'): orjson.loads(line)"
    with bench.bare() as bare:
        for _ in range(bench.rounds):
            with subprocess.Popen([sys.executable, "-c", code, str(path)]) as other:
                raw = steady(bare.ask, lambda: other.poll() is not None)
            with bench.daemon() as daemon, daemon.client() as opener, daemon.client() as client:
                daemon.settle()
                ping = lambda: client.request("daemon/ping")  # noqa: E731
                idle.ours += [timed(ping) for _ in range(300)]
                idle.raw += [timed(bare.ask) for _ in range(300)]
                asked = opener.send("session/open", path=str(path))
                ours = steady(ping, opener.readable)
                session = opener.answer(asked)["sessionId"]
                opener.send("session/tree", sessionId=session, count=100)
                ours += steady(ping, opener.readable)
            for measure, pick in ((p50, 50), (p99, 99)):
                measure.ours.append(percentile(ours, pick))
                measure.raw.append(percentile(raw, pick))
            worst.ours.append(max(ours))
            worst.raw.append(max(raw))
    yield from (idle, p50, p99, worst)


def starting(bench: Bench) -> Iterator[Measure]:
    """From starting the process to the answer of the first ping."""
    found = Measure("daemon start to first answer", raw_what="python -c pass", reach="900 ms")
    for _ in range(bench.rounds):
        found.raw.append(python_pass())
        with bench.daemon() as daemon:
            found.ours.append(daemon.seconds)
    yield found


def python_pass() -> float:
    return timed(subprocess.run, [sys.executable, "-c", "pass"], check=True)


def commands(bench: Bench) -> Iterator[Measure]:
    """Commands of the terminal client against a running daemon that knows the store."""
    folder = bench.store()
    by_size = sorted(folder.rglob("*.jsonl"), key=lambda path: path.stat().st_size)
    sample = by_size[len(by_size) // 2]
    wanted = {
        "status": ("120 ms", ["status"]),
        "socket-path": ("120 ms", ["socket-path"]),
        "list": ("400 ms", ["list"]),
        "list --json": ("400 ms", ["list", "--json"]),
        "tree": ("400 ms", ["tree", str(sample)]),
    }
    found = {
        name: Measure(f"dshd {name}", raw_what="python -c pass", reach=reach) for name, (reach, _) in wanted.items()
    }
    stop = Measure("dshd stop", raw_what="python -c pass", reach="120 ms")
    with bench.daemon(bench.knowing_home(), folder, keep=True) as daemon:
        daemon.settle()
        for _, args in wanted.values():
            daemon.run(*args)
        for _ in range(bench.rounds):
            for name, (_, args) in wanted.items():
                found[name].raw.append(python_pass())
                found[name].ours.append(daemon.run(*args))
    for _ in range(bench.rounds):
        stop.raw.append(python_pass())
        with bench.daemon() as daemon:
            stop.ours.append(daemon.run("stop"))
    yield from (*found.values(), stop)


def native(source: Path, target: Path) -> Path:
    """The same session as one of ours, which an agent can drive."""
    with source.open("rb") as old, target.open("wb") as new:
        new.write(orjson.dumps({**orjson.loads(old.readline()), "generator": "dsh-daemon/1"}) + b"\n")
        shutil.copyfileobj(old, new, 1 << 20)
    return target


def driving(bench: Bench) -> Iterator[Measure]:
    """An agent's work: a step of four durable writes, each beside a bare one; a resume that closes a turn."""
    count = max(10, int(100 * bench.scale))
    call = {"type": "toolCall", "id": "call", "name": "bash", "arguments": {"command": "ls"}}
    answer = {"type": "message", "message": {"role": "assistant", "content": [call]}}
    started = {"type": "tool_call", "turn": 1, "step": 1, "callId": "call", "name": "bash", "arguments": "{}"}
    result = {"type": "message", "message": {"role": "toolResult", "toolCallId": "call", "content": "a file"}}
    header = {"config": {"model": "m"}, "system": "You are an agent. " * 200}
    data = orjson.dumps(answer) + b"\n"

    with bench.daemon() as daemon, daemon.client() as client:
        big = native(bench.big(), bench.scratch / "drive.jsonl")
        sessions = {
            "a new session": client.request("session/create", cwd=str(bench.scratch))["sessionId"],
            "the big session": open_and_draw(client, big),
        }
        for what, session in sessions.items():
            step = Measure(f"a step in {what} (4 durable writes)", raw_what="4 x write + fdatasync")
            file = os.open(bench.scratch / "raw.tmp", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            client.request("session/resume", sessionId=session)
            turn = client.request("turn/start", sessionId=session, content="go")["turn"]
            for _ in range(count):
                step.raw.append(timed(write_and_sync, file, data, 4))
                began = clock()
                number = client.request("step/start", sessionId=session, turn=turn, header=header)["step"]
                client.request("session/append", sessionId=session, entries=[answer, started])
                client.request("session/append", sessionId=session, entries=[result])
                client.request("step/end", sessionId=session, turn=turn, step=number)
                step.ours.append(clock() - began)
            client.request("turn/end", sessionId=session, turn=turn, reason={"kind": "completed"})
            yield step

            closing_ = Measure(f"resume that closes a turn of {what}", raw_what="write + fdatasync")
            for _ in range(max(2, count // 10)):
                turn = client.request("turn/start", sessionId=session, content="go")["turn"]
                client.request("step/start", sessionId=session, turn=turn)
                client.request("session/append", sessionId=session, entries=[answer, started])
                closing_.raw.append(timed(write_and_sync, file, data))
                with daemon.client("another agent") as other:
                    closing_.ours.append(timed(other.request, "session/resume", sessionId=session, takeover=True))
                    other.request("session/release", sessionId=session)
                client.request("session/resume", sessionId=session)
            os.close(file)
            yield closing_
        big.unlink()


def projecting(bench: Bench) -> Iterator[Measure]:
    """What is made of a big log: a fork of it, its turns, sums, requests to providers, a document."""
    path = bench.big()
    with bench.daemon() as daemon, daemon.client() as client:
        copy = bench.scratch / "project.jsonl"
        shutil.copyfile(path, copy)
        session = open_and_draw(client, copy)
        fork = Measure("fork at the last closed turn", raw_what="copy of the file + fsync")
        made: list[str] = []
        turns = client.request("session/turns", sessionId=session)["turns"]
        boundary = next(turn["boundary"] for turn in reversed(turns) if turn["boundary"])
        for _ in range(bench.rounds):
            fork.raw.append(timed(copy_and_sync, copy, bench.scratch / "raw.tmp"))
            began = clock()
            made.append(client.request("session/fork", sessionId=session, boundary=boundary)["session"]["path"])
            fork.ours.append(clock() - began)
        yield fork
        for each in made:
            Path(each).unlink()
        asks = {
            "its turns": ("session/turns", {}),
            "its sums": ("session/stats", {}),
            "context for OpenAI": ("session/context", {"format": "openai"}),
            "context for Anthropic": ("session/context", {"format": "anthropic"}),
            "transcript of the path": ("session/transcript", {}),
        }
        for what, (method, params) in asks.items():
            found = Measure(what, raw_what="orjson parses its lines")
            for _ in range(bench.rounds):
                found.raw.append(timed(parse_lines, path))
                found.ours.append(timed(client.request, method, sessionId=session, **params))
            yield found
        copy.unlink()


def copy_and_sync(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    file = os.open(target, os.O_RDWR)
    os.fsync(file)
    os.close(file)
    target.unlink()


CASES: dict[str, Callable[[Bench], Iterator[Measure]]] = {
    "open": opening,
    "read": reading,
    "shapes": shaping,
    "append": appending,
    "drive": driving,
    "project": projecting,
    "list": listing,
    "index": building,
    "cutting": cutting,
    "fanout": fanning,
    "ping": pinging,
    "start": starting,
    "cli": commands,
    "search": searching,
}
