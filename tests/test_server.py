"""Many clients, one service: introduction, who may do what, slow readers, drain."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import time
from typing import Any

import pytest

from dsh_daemon.config import Settings
from dsh_daemon.wire.codec import Notification, encode
from dsh_daemon.wire.methods import METHODS
from dsh_daemon.wire.outbox import Outbox
from dsh_daemon.wire.server import Server

from .wire import Small, in_loop, until, world


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


# --- introduction


@in_loop
async def test_initialize_announces_what_is_served(home):
    async with world(home) as w:
        peer = await w.peer(initialize=False)
        result = (await peer.initialize(protocolVersion=1))["result"]
        assert result["serverInfo"]["name"] == "dsh-daemon"
        dsh = result["capabilities"]["experimental"]["dsh"]
        assert "session/append" in dsh["methods"]
        assert "exit" in dsh["methods"]
        assert "session/stats" not in dsh["methods"]
        assert dsh["limits"]["maxMessageBytes"] == 64 << 20
        assert dsh["daemon"]["pid"] == os.getpid()


@in_loop
async def test_any_lsp_client_may_connect(home):
    async with world(home) as w:
        peer = await w.peer(initialize=False)
        params = {"processId": 1, "rootUri": None, "capabilities": {"x": {}}, "trace": "off", "locale": "de", "zz": 1}
        assert "result" in await peer.call("initialize", params)
        assert "result" in await peer.call("session/open", {"sessionId": "s"})


@in_loop
async def test_before_initialize_only_administration_is_answered(home):
    """A127: who cannot initialize can still ask, and stop, a daemon of another version."""
    async with world(home) as w:
        peer = await w.peer(initialize=False)
        assert (await peer.refused("session/open", {"sessionId": "s"}))["code"] == -32002
        assert (await peer.refused("no/such"))["code"] == -32002
        assert (await peer.refused("daemon/doctor"))["code"] == -32002
        assert (await peer.result("daemon/status"))["state"] == "ready"
        assert (await peer.result("daemon/ping"))["pid"] == os.getpid()
        assert (await peer.initialize(protocolVersion=99))["error"]["data"]["kind"] == "versionMismatch"
        assert await peer.result("daemon/stop") == {}
        assert await peer.ended()


@pytest.mark.parametrize(("theirs", "older", "action"), [(2, "daemon", "updateDaemon"), (0, "client", "updateClient")])
@in_loop
async def test_a_version_mismatch_says_which_side_is_older(home, theirs, older, action):
    """A125: both versions are named, and the message blames the right one."""
    async with world(home) as w:
        peer = await w.peer(initialize=False)
        error = (await peer.initialize(protocolVersion=theirs))["error"]
        assert error["code"] == 1024
        assert error["data"] == {"kind": "versionMismatch", "daemon": 1, "client": theirs, "action": action}
        assert f"the {older} is older" in error["message"]
        assert "result" in await peer.initialize(protocolVersion=1)


@in_loop
async def test_clients_of_other_releases_are_served_by_what_they_ask_for(home):
    """A126, A158: only the protocol's number decides; unknown options are ignored."""
    async with world(home) as w:
        peer = await w.peer(initialize=False)
        params = {
            "clientInfo": {"name": "old", "version": "0.0.1", "build": "x"},
            "initializationOptions": {"future": 1},
        }
        assert "result" in await peer.call("initialize", params)
        assert (await peer.result("daemon/status"))["connections"][0]["name"] == "old"


@in_loop
async def test_a_second_initialize_is_an_error(home):
    """A159: one introduction."""
    async with world(home) as w:
        peer = await w.peer()
        assert (await peer.initialize())["error"]["code"] == -32600


@in_loop
async def test_leaving_ends_the_connection_and_not_the_daemon(home):
    async with world(home) as w:
        peer, other = await w.peer(), await w.peer()
        answer = await peer.call("shutdown")
        assert answer["result"] is None
        assert "error" not in answer
        assert (await peer.refused("session/open", {"sessionId": "s"}))["code"] == -32600
        peer.send({"jsonrpc": "2.0", "method": "exit"})
        assert await peer.ended()
        assert "result" in await other.call("session/open", {"sessionId": "s"})
        other.send({"jsonrpc": "2.0", "method": "exit"})
        assert await other.ended()


@in_loop
async def test_a_read_only_client_cannot_write(home):
    """A160: the mode is kept on our side."""
    async with world(home) as w:
        peer = await w.peer(readOnly=True)
        for method, params in [
            ("session/append", {"sessionId": "s", "entries": [{"type": "x"}]}),
            ("session/rename", {"sessionId": "s", "title": "x"}),
            ("session/draft", {"sessionId": "s", "text": "x"}),
            ("session/draft", {"sessionId": "s", "text": None}),
            ("session/navigate", {"sessionId": "s", "targetId": None}),
            ("daemon/stop", {}),
        ]:
            error = await peer.refused(method, params)
            assert (error["code"], error["data"]) == (1020, {"kind": "readOnly", "reason": "client"}), method
        assert "result" in await peer.call("session/draft", {"sessionId": "s"})
        w.service.gate.set()
        assert "result" in await peer.call("session/navigate", {"sessionId": "s", "targetId": None, "preview": True})
        assert w.service.sessions["s"] == []


@in_loop
async def test_methods_without_a_handler_are_not_announced_nor_served(home):
    async with world(home) as w:
        peer = await w.peer(initialize=False)
        dsh = (await peer.initialize())["result"]["capabilities"]["experimental"]["dsh"]
        for name in METHODS:
            served = name in dsh["methods"]
            error = (await peer.call(name, {"sessionId": 1, "x": 1})).get("error", {})
            assert (error.get("code") == -32601) != served, name


# --- TCP


@in_loop
async def test_over_tcp_nothing_is_answered_without_the_token(home):
    """A107: a web page that reaches the port gets nowhere."""
    async with world(home) as w:
        for first in ("daemon/ping", "daemon/status", "daemon/stop", "session/open", "no/such"):
            peer, _ = await w.tcp_peer()
            assert (await peer.refused(first))["data"]["kind"] == "unauthorized"
            assert await peer.ended()
        for token in ("", "wrong", "é", None):
            peer, _ = await w.tcp_peer()
            assert (await peer.initialize(token=token))["error"]["data"]["kind"] == "unauthorized"
            assert await peer.ended()
        peer, token = await w.tcp_peer()
        assert (await peer.initialize(token=token, protocolVersion=2))["error"]["data"]["kind"] == "versionMismatch"
        assert "result" in await peer.initialize(token=token)
        assert "result" in await peer.call("session/open", {"sessionId": "s"})


@in_loop
async def test_the_token_is_private_and_goes_with_the_daemon(home):
    """A105: 0600 under any umask."""
    mask = os.umask(0)
    try:
        async with world(home) as w:
            await w.tcp_peer()
            token = w.where.token
            assert stat.S_IMODE(token.stat().st_mode) == 0o600
            assert stat.S_IMODE(w.where.socket.stat().st_mode) == 0o600
            assert stat.S_IMODE(w.where.run.stat().st_mode) == 0o700
        assert not token.exists()
    finally:
        os.umask(mask)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "example.org:80", ":5", "127.0.0.1", "127.0.0.1:x", "[::]:0"])
@in_loop
async def test_tcp_is_loopback_only(home, address):
    async with world(home) as w:
        with pytest.raises(ValueError, match="loopback"):
            await w.server.listen_tcp(address)
        assert len(w.server._listeners) == 1


# --- status


@in_loop
async def test_status_names_every_client_with_its_process(home):
    async with world(home) as w:
        peer = await w.peer(initialize=False)
        await peer.call("initialize", {"clientInfo": {"name": "nvim"}})
        other = await w.peer()
        await other.result("session/open", {"sessionId": "s"})
        status = await peer.result("daemon/status")
        mine, theirs = status["connections"]
        assert (mine["name"], mine["pid"], mine["subscriptions"]) == ("nvim", os.getpid(), 0)
        assert (theirs["name"], theirs["subscriptions"]) == (theirs["id"], 1)
        assert status["socketPath"] == str(w.where.socket)
        assert status["memoryBytes"] > 1 << 20
        assert status["startedAt"].endswith("Z")


@in_loop
async def test_more_clients_than_allowed_are_refused_and_administration_is_not(home):
    """A159: too much is an error with a time to retry."""
    async with world(home, limits={"max_connections": 2}) as w:
        await w.peer()
        second = await w.peer()
        third = await w.peer(initialize=False)
        assert (await third.initialize())["error"]["data"]["kind"] == "overloaded"
        assert "pid" in await third.result("daemon/ping")
        second.close()
        await until(lambda: len(w.server._connections) == 2)
        assert "result" in await third.initialize()


# --- slow readers (C13)


@in_loop
async def test_a_client_that_does_not_read_costs_little_and_the_others_do_not_wait(home):
    """A128: changes of one session become one resync; a healthy client never waits; nothing is lost for good."""
    async with world(home, limits={"max_backlog_bytes": 1 << 20}) as w:
        slow, quick = await w.peer(), await w.peer()
        for peer in (slow, quick):
            await peer.result("session/open", {"sessionId": "s"})
        slow.writer.transport.pause_reading()
        latest, waits = 0, []
        for i in range(4000):
            latest = w.service.change(f"e{i}", "x" * 2000)
            if i % 20 == 0:
                start = time.perf_counter()
                await quick.result("daemon/ping")
                waits.append(time.perf_counter() - start)
        connection = next(iter(w.server._connections.values()))
        assert connection.outbox.told < 1 << 20
        assert sorted(waits)[len(waits) * 99 // 100] < 0.1
        slow.writer.transport.resume_reading()
        messages = []
        while not messages or messages[-1]["params"]["revision"] < latest:
            messages.append(await slow.read())
        assert len(messages) < 2000
        resync = [m["params"] for m in messages if m["params"].get("resync")]
        assert len(resync) == 1
        assert resync[0]["entries"] == []
        assert (resync[0]["revision"], resync[0]["leafId"]) == (latest, "e3999")
        known = 0
        for message in messages:  # a gap is seen by whoever follows the ten lines of the protocol
            assert message["params"]["fromRevision"] == known or message["params"].get("resync")
            known = message["params"]["revision"]
        assert "result" in await slow.call("daemon/ping")


@in_loop
async def test_a_long_answer_reaches_a_slow_reader_whole(home):
    """A129: back-pressure is not death: 4 MB, read in pieces while changes pour in, over several stall times."""
    async with world(home, limits={"max_backlog_bytes": 65536, "stall_seconds": 0.5}) as w:
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        await loop.sock_connect(sock, str(w.where.socket))
        w.service.result = {"text": "é" * (2 << 20)}
        for id_, method, params in [
            (1, "initialize", {}),
            (2, "session/open", {"sessionId": "s"}),
            (3, "session/context", {"sessionId": "s"}),
        ]:
            await loop.sock_sendall(sock, encode({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}))
        buffer, messages, latest = bytearray(), [], 0
        while not any(m.get("id") == 3 for m in messages) or messages[-1].get("params", {}).get("revision") != latest:
            if latest < 2000:
                for _ in range(10):
                    latest = w.service.change(f"c{latest}", "y" * 500)
            async with asyncio.timeout(5):
                buffer += await loop.sock_recv(sock, 60_000)
            await asyncio.sleep(0.02)
            while (split := buffer.find(b"\r\n\r\n")) >= 0:
                end = split + 4 + int(buffer[:split].split(b":")[1])
                if len(buffer) < end:
                    break
                messages.append(json.loads(bytes(buffer[split + 4 : end])))
                del buffer[:end]
        sock.close()
        assert next(m for m in messages if m.get("id") == 3)["result"] == w.service.result
        assert any(m.get("params", {}).get("resync") for m in messages)


@in_loop
async def test_a_client_that_reads_nothing_for_long_is_disconnected(home):
    async with world(home, limits={"stall_seconds": 0.6}) as w:
        slow, idle = await w.peer(), await w.peer()
        w.service.result = {"text": "x" * (8 << 20)}
        slow.ask("session/context", {"sessionId": "s"})
        slow.writer.transport.pause_reading()
        await until(lambda: len(w.server._connections) == 1)
        assert "result" in await idle.call("daemon/ping")


@in_loop
async def test_a_client_that_does_not_read_its_answers_is_not_read_from(home):
    async with world(home) as w:
        slow, other = await w.peer(), await w.peer()
        w.service.result = {"text": "x" * (256 << 10)}
        slow.writer.transport.pause_reading()
        for _ in range(500):
            slow.ask("session/context", {"sessionId": "s"})
        await asyncio.sleep(0.3)
        connection = next(iter(w.server._connections.values()))
        assert connection.outbox.owed < 24 << 20
        assert "result" in await other.call("daemon/ping")
        slow.writer.transport.resume_reading()
        for _ in range(500):
            assert "result" in await slow.read()


@in_loop
async def test_a_cancel_gets_through_while_an_answer_waits(home):
    async with world(home) as w:
        peer = await w.peer()
        w.service.result = {"text": "x" * (8 << 20)}
        waiting = peer.ask("session/path", {"sessionId": "s"})
        peer.ask("session/context", {"sessionId": "s"})
        peer.writer.transport.pause_reading()
        await until(lambda: w.service.started)
        connection = next(iter(w.server._connections.values()))
        await until(connection.outbox.congested)
        peer.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": waiting}})
        await until(lambda: not connection.busy)


@in_loop
async def test_waiting_catalog_changes_are_merged_without_loss():
    box = _Stuck(8 << 10)
    for i in range(1000):
        info = {"sessionId": f"s{i % 7}", "title": f"t{i}"}
        box.tell(Notification("catalog/changed", {"upserts": [info], "removed": []}), "catalog")
    box.tell(Notification("catalog/changed", {"upserts": [], "removed": ["s3"]}), "catalog")
    box.tell(Notification("catalog/changed", {"upserts": [{"sessionId": "s9"}], "removed": ["s4"]}), "catalog")
    state: dict[str, str] = {}
    for note in box.notes():
        for session_id in note.params["removed"]:
            state.pop(session_id, None)
        for info in note.params["upserts"]:
            state[info["sessionId"]] = info.get("title")
    assert state == {"s0": "t994", "s1": "t995", "s2": "t996", "s5": "t999", "s6": "t993", "s9": None}
    assert box.told < 8 << 10


@in_loop
async def test_what_cannot_be_merged_ends_at_the_limit():
    box = _Stuck(8 << 10)
    for _ in range(200):
        box.tell(Notification("agent/delta", {"chunk": "x" * 100}))
    assert box.overflowed


class _Stuck(Outbox):
    """An outbox whose client reads nothing."""

    def __init__(self, limit: int) -> None:
        self.overflowed = False

        class Writer:
            def get_write_buffer_size(self) -> int:
                return 1 << 20

            async def drain(self) -> None:
                await asyncio.sleep(3600)

        writer: Any = Writer()
        writer.transport = writer
        super().__init__(writer, limit, self._over)  # type: ignore[arg-type]

    def _over(self, _reason: str) -> None:
        self.overflowed = True

    def notes(self) -> list[Notification]:
        return [item.note for item in self._queue if item.note]


@in_loop
async def test_a_thousand_reconnects_leave_nothing_behind(home):
    """A112: file descriptors, tasks and clients of ended connections are all freed."""
    async with world(home) as w:

        async def visit(i: int) -> None:
            peer = await w.peer(initialize=bool(i % 3))
            if i % 3:
                peer.ask("session/open", {"sessionId": "s"})
            if i % 4 == 0:
                peer.writer.transport.abort()
            else:
                peer.close()
            w.peers.clear()

        for i in range(20):
            await visit(i)
        await until(lambda: not w.server._tasks)
        fds, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        for i in range(1000):
            await visit(i)
        await until(lambda: not w.server._tasks)
        assert w.service.clients == []
        assert w.service.followers["s"] == set()
        assert w.server._connections == {}
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= fds)


@in_loop
async def test_fifty_clients_hear_every_change_in_order(home):
    async with world(home) as w:
        peers = [await w.peer() for _ in range(50)]
        for peer in peers:
            await peer.result("session/open", {"sessionId": "s"})
        for i in range(100):
            w.service.change(f"e{i}")
        for peer in peers:
            assert [(await peer.read())["params"]["revision"] for _ in range(100)] == list(range(1, 101))


# --- the end


@in_loop
async def test_stop_answers_waits_for_what_is_under_way_and_closes_the_service(home):
    async with world(home) as w:
        writer, reader, stopper = await w.peer(), await w.peer(), await w.peer()
        writer.ask("session/rename", {"sessionId": "s", "title": "kept"}, id_="w")
        await asyncio.sleep(0.05)
        assert await stopper.result("daemon/stop") == {}
        assert not w.where.socket.exists() or await asyncio.sleep(0.05) is None
        assert (await reader.refused("session/open", {"sessionId": "s"}))["data"]["kind"] == "overloaded"
        assert (await reader.result("daemon/status"))["state"] == "draining"
        assert "result" in await writer.answer("w")
        for peer in (writer, reader, stopper):
            assert await peer.ended()
        assert w.service.sessions["s"] == ["kept"]
        assert w.service.closed
        assert not w.where.socket.exists()


@in_loop
async def test_a_stop_without_drain_ends_reads_and_lets_writes_finish(home):
    async with world(home) as w:
        peer = await w.peer()
        peer.ask("session/rename", {"sessionId": "s", "title": "kept"}, id_="w")
        peer.ask("session/path", {"sessionId": "s"}, id_="r")
        await until(lambda: w.service.started)
        assert await peer.result("daemon/stop", {"drain": False}) == {}
        assert (await peer.answer("r"))["error"]["code"] == -32800
        assert "result" in await peer.answer("w")
        assert await peer.ended()


@in_loop
async def test_a_forced_stop_waits_for_nothing(home):
    async with world(home) as w:
        peer = await w.peer()
        peer.ask("session/rename", {"sessionId": "s", "title": "lost"}, id_="w")
        await asyncio.sleep(0.05)
        start = time.monotonic()
        assert await peer.result("daemon/stop", {"force": True}) == {}
        assert await peer.ended()
        assert time.monotonic() - start < 0.25
        assert w.service.sessions["s"] == []


@in_loop
async def test_an_idle_server_ends_and_a_busy_one_does_not(home):
    """A131: no clients and no pending writes for a while."""
    settings = Settings(idle_timeout=0.3)
    service = Small()
    server = Server(service, settings)
    service.busy = True
    running = asyncio.create_task(server.run())
    await asyncio.sleep(0.6)
    assert not running.done()
    service.busy = False
    await asyncio.wait_for(running, 2)
    assert service.closed


@in_loop
async def test_a_connected_client_keeps_the_server(home):
    async with world(home, idle_timeout=0.2) as w:
        peer = await w.peer()
        await asyncio.sleep(0.6)
        assert "result" in await peer.call("daemon/ping")
        peer.close()
        await until(lambda: w.service.closed, 2)


@in_loop
async def test_two_servers_with_different_limits_do_not_share_them(home):
    async with world(home, limits={"max_message_bytes": 4096}) as w:
        dsh = (await (await w.peer(initialize=False)).initialize())["result"]["capabilities"]["experimental"]["dsh"]
        assert dsh["limits"]["maxMessageBytes"] == 4096
