"""A raw client: whole messages out and in, over a unix socket, TCP, or the pipes of `dshd stdio`."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from typing import Any, Self


class Line:
    """One connection. Messages are read in the order in which they come."""

    def __init__(self, reads: int, writes: int, end: Any) -> None:
        self._reads, self._writes, self._end = reads, writes, end
        self._data = bytearray()

    @classmethod
    def unix(cls, path: str) -> Line:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(path)
        except OSError:
            sock.close()
            raise
        return cls(sock.fileno(), sock.fileno(), sock)

    @classmethod
    def tcp(cls, host: str, port: int) -> Line:
        sock = socket.create_connection((host, port))
        return cls(sock.fileno(), sock.fileno(), sock)

    @classmethod
    def stdio(cls, env: dict[str, str], *arguments: str) -> Line:
        """The pipes of a `dshd stdio` of its own."""
        process = subprocess.Popen(
            [sys.executable, "-m", "dsh_daemon", "stdio", *arguments],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        return cls(process.stdout.fileno(), process.stdin.fileno(), process)

    def send(self, message: Any) -> None:
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, body: bytes) -> None:
        data = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        while data:
            data = data[os.write(self._writes, data) :]

    def receive(self, within: float = 15.0) -> dict[str, Any] | None:
        """The next message; None when the other side ended the connection. Fails when nothing comes in time."""
        until = time.monotonic() + within
        while True:
            head, mark, rest = bytes(self._data).partition(b"\r\n\r\n")
            if mark:
                length = int(head.rpartition(b":")[2])
                if len(rest) >= length:
                    self._data = bytearray(rest[length:])
                    return json.loads(rest[:length])
            ready, _, _ = select.select([self._reads], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"nothing came; waiting: {bytes(self._data[:200])!r}")
            chunk = os.read(self._reads, 1 << 16)
            if not chunk:
                return None
            self._data += chunk

    def answer(self, id_: Any) -> dict[str, Any]:
        """The answer to the request `id_`; what comes before it is dropped."""
        while (message := self.receive()) is not None:
            if "method" not in message and message["id"] == id_:
                return message
        raise ConnectionError("the connection ended")

    def call(self, method: str, params: Any = None, id_: Any = "call") -> dict[str, Any]:
        self.send({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})
        return self.answer(id_)

    def initialize(self, name: str = "", **options: Any) -> dict[str, Any]:
        params: dict[str, Any] = {"processId": None, "rootUri": None, "capabilities": {}}
        params["initializationOptions"] = {"protocolVersion": 1, **options}
        if name:
            params["clientInfo"] = {"name": name}
        answer = self.call("initialize", params, "initialize")
        self.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
        return answer

    def close(self) -> None:
        if isinstance(self._end, subprocess.Popen):
            assert self._end.stdin is not None
            self._end.stdin.close()
            try:
                self._end.wait(15)
            except subprocess.TimeoutExpired:
                self._end.kill()
                self._end.wait()
            for pipe in (self._end.stdout, self._end.stderr):
                assert pipe is not None
                pipe.close()
        else:
            self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()
