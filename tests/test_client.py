"""`dsh_daemon.connect()`: a client of the running daemon, which it starts if need be."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

import dsh_daemon
from dsh_daemon.client import RpcError, connect

from .wire import Dshd, in_loop, until, world


@pytest.fixture
def dshd(tmp_path, monkeypatch):
    made = Dshd(tmp_path / "home")
    for name in ("DSHD_HOME", "DSHD_ROOTS"):
        monkeypatch.setenv(name, made.env[name])
    for name in ("DSHD_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    yield made
    made.close()


@in_loop
async def test_it_starts_the_daemon_and_uses_it(dshd):
    async with dsh_daemon.connect(name="first") as client:
        assert client.capabilities["protocolVersion"] == 1
        pid = client.capabilities["daemon"]["pid"]
        created = await client.request("session/create", {"cwd": "/tmp"}, title="made by a test")
        listed = await client.request("session/list")
        assert [item["sessionId"] for item in listed["items"]] == [created["sessionId"]]
        status = await client.request("daemon/status")
        assert [c["name"] for c in status["connections"]] == ["first"]
    client = await connect()
    async with client:
        assert client.capabilities["daemon"]["pid"] == pid
    assert client.closed


@in_loop
async def test_a_socket_that_the_caller_names_is_where_the_daemon_is_started(dshd, tmp_path):
    async with connect(str(tmp_path / "own.sock")) as client:
        dshd.started.add(client.capabilities["daemon"]["pid"])
        assert (await client.request("daemon/status"))["socketPath"] == str(tmp_path / "own.sock")
        await client.request("daemon/stop")
    assert not dshd.socket.exists()
    with pytest.raises(FileNotFoundError):
        await connect(str(tmp_path / "no folder" / "own.sock"), start=False)


@in_loop
async def test_many_clients_at_once_start_one_daemon(dshd):
    """A115: one well-known address for every tool."""
    clients = await asyncio.gather(*(connect(name=f"c{i}") for i in range(5)))
    assert len({client.capabilities["daemon"]["pid"] for client in clients}) == 1
    for client in clients:
        await client.close()


@in_loop
async def test_without_start_the_absence_of_a_daemon_is_an_error(dshd):
    with pytest.raises(FileNotFoundError, match="no daemon"):
        await connect(start=False)
    assert not dshd.home.exists()


@in_loop
async def test_a_daemon_that_cannot_start_is_an_error_with_its_reason(dshd, monkeypatch):
    monkeypatch.setenv("DSHD_DURABILITY", "sometimes")
    with pytest.raises(ConnectionError, match="DSHD_DURABILITY"):
        await connect()


@in_loop
async def test_a_daemon_that_left_meanwhile_is_started_again(dshd, monkeypatch):
    monkeypatch.setenv("DSHD_IDLE_TIMEOUT", "0.2")
    pids = set()
    for _ in range(3):
        async with connect() as client:
            pids.add(client.capabilities["daemon"]["pid"])
        await asyncio.sleep(0.5)
    assert pids


@in_loop
async def test_a_refusal_is_an_exception_with_its_kind(tmp_path):
    async with world(tmp_path) as w, connect(str(w.where.socket), start=False) as client:
        with pytest.raises(RpcError, match="no session nobody") as caught:
            await client.request("session/open", sessionId="nobody")
        assert (caught.value.kind, caught.value.code) == ("sessionNotFound", 1001)
        assert caught.value.data["sessionId"] == "nobody"
        with pytest.raises(RpcError) as caught:
            await client.request("session/open", nonsense=1)
        assert caught.value.kind == "invalidParams"
        assert caught.value.data["issues"]
        with pytest.raises(RpcError) as caught:
            await client.request("no/such")
        assert caught.value.kind == "methodNotFound"


@in_loop
async def test_options_reach_the_daemon(tmp_path):
    async with world(tmp_path) as w, connect(str(w.where.socket), start=False, readOnly=True) as client:
        with pytest.raises(RpcError) as caught:
            await client.request("session/append", sessionId="s", entries=[{"type": "x"}])
        assert caught.value.kind == "readOnly"


@in_loop
async def test_notifications_come_to_callbacks_and_iterators(tmp_path):
    async with world(tmp_path) as w, connect(str(w.where.socket), start=False) as client:
        heard = []
        stop = client.on("session/changed", heard.append)
        stream = client.notifications()
        await client.request("session/open", sessionId="s")
        await client.request("session/append", sessionId="s", entries=[{"type": "x", "id": "a"}])
        assert [params["leafId"] for params in heard] == ["a"]
        stop()
        await client.request("session/append", sessionId="s", entries=[{"type": "x", "id": "b"}])
        await client.close()
        assert len(heard) == 1
        assert [params["leafId"] async for method, params in stream if method == "session/changed"] == ["a", "b"]
        assert [item async for item in client.notifications()] == []


@in_loop
async def test_cancelling_a_call_cancels_the_request(tmp_path):
    async with world(tmp_path) as w, connect(str(w.where.socket), start=False) as client:
        task = asyncio.create_task(client.request("session/path", sessionId="s"))
        await until(lambda: w.service.started)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (connection,) = w.server._connections.values()
        await until(lambda: not connection.busy)
        assert await client.request("daemon/ping")


@in_loop
async def test_a_question_that_nobody_serves_is_refused_not_left_hanging(tmp_path):
    async with world(tmp_path) as w, connect(str(w.where.socket), start=False) as client:
        with pytest.raises(RpcError):
            await client.request("session/leaves", sessionId="s")


@in_loop
async def test_the_end_of_the_daemon_ends_every_call(tmp_path):
    async with world(tmp_path) as w:
        client = await connect(str(w.where.socket), start=False)
        calls = [asyncio.create_task(client.request("session/path", sessionId="s")) for _ in range(3)]
        await until(lambda: len(w.service.started) == 3)
        w.server.stop(force=True)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, ConnectionError | RpcError)
        await until(lambda: client.closed)
        with pytest.raises(ConnectionError):
            await client.request("daemon/ping")
        await client.close()


@in_loop
async def test_large_messages_and_many_calls_at_once(tmp_path):
    async with world(tmp_path) as w, connect(str(w.where.socket), start=False) as client:
        w.service.result = {"text": "é" * (1 << 20)}
        assert await client.request("session/context", sessionId="s") == w.service.result
        results = await asyncio.gather(
            *(client.request("session/draft", sessionId="s", text=str(i)) for i in range(500))
        )
        assert [result["text"] for result in results] == [str(i) for i in range(500)]


@in_loop
async def test_an_older_daemon_that_nobody_uses_is_replaced(dshd, monkeypatch):
    """A125: a client of a later protocol stops an idle older daemon and starts its own; one in use it leaves alone."""
    import dsh_daemon.client as module

    async with connect() as other:
        pid = other.capabilities["daemon"]["pid"]
        monkeypatch.setattr(module, "PROTOCOL_VERSION", 2)
        with pytest.raises(RpcError) as caught:
            await connect()
        assert caught.value.kind == "versionMismatch"
        assert (await other.request("daemon/ping"))["pid"] == pid
    await asyncio.sleep(0.1)
    with pytest.raises(RpcError):  # the next one speaks version 1 too; it is tried, and it is not tried for ever
        await connect()
    assert dshd.ping()["pid"] != pid


def test_importing_the_client_is_cheap():
    code = "import sys, dsh_daemon.client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pygls", "lsprotocol", "pydantic", "pydantic_settings", "typer", "rich", "apsw"} & set(loaded)


@in_loop
async def test_a_second_client_is_there_at_once_from_any_folder(dshd, tmp_path, monkeypatch):
    """A115: less than 300 ms, whatever the current folder."""
    async with connect() as first:
        monkeypatch.chdir(tmp_path)
        start = time.monotonic()
        async with connect() as second:
            assert time.monotonic() - start < 0.3
            assert second.capabilities["daemon"] == first.capabilities["daemon"]
    assert os.getcwd() == str(tmp_path)
