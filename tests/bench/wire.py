"""A plain blocking client, and the bare socket server that its answers are compared with."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import orjson

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 1 << 18


class Refused(RuntimeError):
    """The daemon answered with an error."""


class Client:
    """One connection, one request at a time; what is pushed meanwhile collects in `pushed`."""

    def __init__(self, path: Path, name: str = "bench", timeout: float = 60.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(str(path))
        self.buffer = bytearray()
        self.pushed: list[dict[str, Any]] = []
        self.last_id = 0
        self.last_size = 0  # bytes of the last message read
        self.result = self.request(
            "initialize",
            processId=os.getpid(),
            clientInfo={"name": name},
            rootUri=None,
            capabilities={},
            initializationOptions={"protocolVersion": 1},
        )
        self.write({"method": "initialized", "params": {}})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def write(self, message: dict[str, Any]) -> None:
        body = orjson.dumps({"jsonrpc": "2.0", **message})
        self.socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    def read(self) -> dict[str, Any]:
        """The next message; waits for it."""
        while (split := self.buffer.find(b"\r\n\r\n")) < 0:
            self._more(CHUNK)
        end = split + 4 + int(self.buffer[16:split].split(b"\r\n")[0])
        while len(self.buffer) < end:
            self._more(max(CHUNK, end - len(self.buffer)))
        body = bytes(memoryview(self.buffer)[split + 4 : end])
        del self.buffer[:end]
        self.last_size = end
        return orjson.loads(body)

    def _more(self, size: int) -> None:
        data = self.socket.recv(size)
        if not data:
            raise ConnectionError("the daemon hung up")
        self.buffer += data

    def send(self, method: str, **params: Any) -> int:
        """Ask without waiting; the id of the request."""
        self.last_id += 1
        self.write({"id": self.last_id, "method": method, "params": params})
        return self.last_id

    def answer(self, id_: int) -> dict[str, Any]:
        while True:
            message = self.read()
            if "method" in message:
                self.pushed.append(message)
            elif message["id"] == id_:
                if "error" in message:
                    raise Refused(str(message["error"])[:400])
                return message["result"]

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        return self.answer(self.send(method, **params))

    def next_push(self, method: str) -> dict[str, Any]:
        """The params of the next `method` notification, waiting for it."""
        while True:
            message = self.pushed.pop(0) if self.pushed else self.read()
            if message.get("method") == method:
                return message["params"]

    def readable(self) -> bool:
        return bool(self.buffer) or bool(select.select([self.socket], [], [], 0)[0])


class Bare:
    """An asyncio server that does nothing but answer: five bytes ask, N bytes come back (to all, with `share`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process = subprocess.Popen([sys.executable, "-c", _BARE, str(path)])
        self.sockets: list[socket.socket] = []
        self.connect()

    def connect(self) -> socket.socket:
        deadline = time.monotonic() + 20
        while True:
            made = socket.socket(socket.AF_UNIX)
            try:
                made.connect(str(self.path))
            except OSError:
                made.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                self.sockets.append(made)
                return made

    def ask(self, size: int = 60, *, share: bool = False) -> None:
        """One round trip of `size` bytes back; with `share`, to every connection, all read before this returns."""
        self.sockets[0].sendall((b"s" if share else b"p") + size.to_bytes(4, "big"))
        for each in self.sockets if share else self.sockets[:1]:
            left = size
            while left:
                left -= len(each.recv(min(left, CHUNK)))

    def close(self) -> None:
        for each in self.sockets:
            each.close()
        self.process.terminate()
        self.process.wait()


_BARE = """
import asyncio, sys

everyone = set()

class Answer(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
        everyone.add(transport)

    def data_received(self, data):
        body = bytes(int.from_bytes(data[1:5], "big"))
        for transport in everyone if data[:1] == b"s" else (self.transport,):
            transport.write(body)

    def connection_lost(self, exc):
        everyone.discard(self.transport)

async def main():
    server = await asyncio.get_running_loop().create_unix_server(Answer, sys.argv[1])
    await server.serve_forever()

asyncio.run(main())
"""
