"""What the tests of the wire share: a small service behind the real server, a raw client, real `dshd` processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from dsh_daemon.config import Settings
from dsh_daemon.errors import SessionNotFound
from dsh_daemon.paths import folders
from dsh_daemon.wire.codec import Notification
from dsh_daemon.wire.lifecycle import bind
from dsh_daemon.wire.server import Server

ROOT = Path(__file__).resolve().parents[1]


class Small:
    """A few of the service's methods over sessions that are lists in a dict."""

    def __init__(self) -> None:
        self.sessions: dict[str, list[str]] = {"s": []}
        self.followers: dict[str, set[Any]] = {"s": set()}
        self.lock = asyncio.Lock()
        self.clients: list[Any] = []
        self.busy = False
        self.closed = False
        self.started: list[str] = []
        self.gate = asyncio.Event()
        self.result: Any = {}
        self.secret = "what the user wrote in confidence"
        self.summarizes = False

    async def start(self) -> None: ...

    async def close(self) -> None:
        self.closed = True

    def connected(self, client) -> None:
        self.clients.append(client)

    def disconnected(self, client) -> None:
        self.clients.remove(client)
        for followers in self.followers.values():
            followers.discard(client)

    def wake(self, client: Any | None = None) -> None:
        del client

    def status_parts(self) -> dict[str, Any]:
        following = {c.id: sum(c in f for f in self.followers.values()) for c in self.clients}
        return {
            "subscriptions": following,
            "openSessions": len(self.sessions),
            "roots": [],
            "watch": {"mode": "native"},
            "index": {"state": "idle", "indexed": 0, "total": 0},
        }

    def change(self, id_: str, text: str = "", session: str = "s") -> int:
        entries = self.sessions[session]
        entries.append(id_)
        params = {
            "sessionId": session,
            "epoch": "e",
            "fromRevision": len(entries) - 1,
            "revision": len(entries),
            "cause": "external",
            "entries": [{"id": id_, "parentId": None, "type": "message"}],
            "leafId": id_,
            "openTurn": None,
            **({"info": {"title": text}} if text else {}),
        }
        note = Notification("session/changed", params)
        for client in list(self.followers[session]):
            client.push("session/changed", note, session)
        return len(entries)

    async def session_open(self, client, params) -> dict[str, Any]:
        if params.session_id not in self.sessions:
            raise SessionNotFound(f"there is no session {params.session_id}", sessionId=params.session_id)
        self.followers[params.session_id].add(client)
        return {"sessionId": params.session_id, "epoch": "e", "revision": len(self.sessions[params.session_id])}

    async def session_append(self, client, params) -> dict[str, Any]:
        async with self.lock:
            await asyncio.sleep(0)
            ids = [entry.get("id", "x") for entry in params.entries]
            revision = [self.change(i) for i in ids][-1]
            return {"ids": ids, "leafId": ids[-1], "revision": revision}

    async def session_path(self, client, params) -> dict[str, Any]:
        """Wait for the gate."""
        self.started.append(params.session_id)
        await self.gate.wait()
        return {"ids": self.sessions["s"]}

    async def session_rename(self, client, params) -> dict[str, Any]:
        """A write that cannot be hurried."""
        await asyncio.sleep(0.3)
        self.sessions[params.session_id].append(params.title)
        return {"stored": "log", "revision": 1}

    async def session_context(self, client, params) -> dict[str, Any]:
        return self.result

    async def session_labels(self, client, params) -> dict[str, Any]:
        raise KeyError(self.secret)

    async def session_leaves(self, client, params) -> dict[str, Any]:
        return await client.ask("hook/sessionBeforeTree", {"sessionId": params.session_id})

    async def session_draft(self, client, params) -> dict[str, Any]:
        return {"text": params.text}

    async def session_navigate(self, client, params) -> dict[str, Any]:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            return {"outcome": "cancelled"}
        return {"outcome": "moved"}


class Peer:
    """A client that reads and writes what it is told to, and nothing else."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.pushed: list[dict[str, Any]] = []
        self.ids = 0

    def send(self, message: Any) -> None:
        self.write(message if isinstance(message, bytes) else json.dumps(message).encode())

    def write(self, body: bytes) -> None:
        self.writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    def ask(self, method: str, params: Any = None, id_: Any = None) -> Any:
        """Send a request without waiting; its id."""
        self.ids += 1
        id_ = self.ids if id_ is None else id_
        self.send({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})
        return id_

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            head = await self.reader.readuntil(b"\r\n\r\n")
            return json.loads(await self.reader.readexactly(int(head.split(b":")[1])))

    async def answer(self, id_: Any) -> dict[str, Any]:
        while True:
            message = await self.read()
            if "method" in message:
                self.pushed.append(message)
            elif message["id"] == id_:
                return message

    async def call(self, method: str, params: Any = None) -> dict[str, Any]:
        """The whole answer to one request."""
        return await self.answer(self.ask(method, params))

    async def result(self, method: str, params: Any = None) -> Any:
        return (await self.call(method, params))["result"]

    async def refused(self, method: str, params: Any = None) -> dict[str, Any]:
        return (await self.call(method, params))["error"]

    async def initialize(self, **options: Any) -> dict[str, Any]:
        params = {"processId": None, "capabilities": {}, "initializationOptions": options or None}
        return await self.call("initialize", params)

    async def ended(self) -> bool:
        async with asyncio.timeout(10):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass
            return True

    def close(self) -> None:
        self.writer.close()


class World:
    """A server with the small service, in this process."""

    def __init__(self, server: Server, service: Small) -> None:
        self.server, self.service = server, service
        self.peers: list[Peer] = []
        assert server.where is not None
        self.where = server.where

    async def peer(self, *, initialize: bool = True, **options: Any) -> Peer:
        reader, writer = await asyncio.open_unix_connection(str(self.where.socket), limit=1 << 26)
        peer = Peer(reader, writer)
        self.peers.append(peer)
        if initialize:
            assert "result" in await peer.initialize(**options)
        return peer

    async def tcp_peer(self) -> tuple[Peer, str]:
        info = await self.server.listen_tcp("127.0.0.1:0")
        reader, writer = await asyncio.open_connection(info["host"], info["port"])
        peer = Peer(reader, writer)
        self.peers.append(peer)
        return peer, Path(info["tokenFile"]).read_text()


@asynccontextmanager
async def world(home: Path, **settings: Any):
    """The server on `home`'s socket, running; ended afterwards."""
    where = folders({"DSHD_HOME": str(home)})
    service = Small()
    server = Server(service, Settings(**settings), where)
    bound = bind(where)
    await server.listen(bound)
    running = asyncio.create_task(server.run())
    made = World(server, service)
    try:
        yield made
    finally:
        for peer in made.peers:
            peer.close()
        server.stop()
        await running
        bound.lock.release()


def in_loop(test: Any) -> Any:
    """Run an async test; what it leaves behind in the loop is an error."""

    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    import functools
    import inspect

    run = functools.wraps(test)(run)
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


async def until(claim: Any, seconds: float = 5) -> None:
    """Wait until `claim()` holds."""
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.01)


class Dshd:
    """`dshd` as a person runs it, with a home of its own; what it started is ended by `close`."""

    def __init__(self, home: Path, **env: str) -> None:
        self.home = home
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("DSHD_", "XDG_"))}
        self.env |= {"DSHD_HOME": str(home), "DSHD_ROOTS": "", "PYTHONPATH": str(ROOT), **env}
        self.socket = Path(env.get("DSHD_SOCKET") or folders(self.env).socket)
        self.started: set[int] = set()

    def popen(self, *arguments: str, **more: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dsh_daemon", *arguments]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, **{**pipes, "env": self.env, **more})
        self.started.add(process.pid)
        return process

    def run(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dsh_daemon", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, **{"env": self.env, **more})

    def status(self) -> dict[str, Any]:
        return json.loads(self.run("status", "--json").stdout)

    def ping(self, timeout: float = 5) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(timeout)
            sock.connect(str(self.socket))
            return call(sock, "daemon/ping")

    def serve(self) -> int:
        """Start the daemon; its pid."""
        done = self.run("serve")
        assert done.returncode == 0, done.stderr
        pid = self.ping()["pid"]
        self.started.add(pid)
        return pid

    def listening(self) -> bool:
        try:
            self.ping()
        except OSError:
            return False
        return True

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self.started.add(self.ping(2)["pid"])
        for pid in self.started:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def call(sock: socket.socket, method: str, params: Any = None, id_: int = 1) -> Any:
    """The result of one request over a blocking socket."""
    body = json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}).encode()
    sock.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    return receive(sock)["result"]


def receive(sock: socket.socket) -> Any:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = sock.recv(1)
        if not chunk:
            raise ConnectionResetError("it ended")
        data += chunk
    length = int(data.split(b":")[1])
    body = b""
    while len(body) < length:
        chunk = sock.recv(length - len(body))
        if not chunk:
            raise ConnectionResetError("it ended")
        body += chunk
    return json.loads(body)


def wait_for(claim: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)
