"""`dshd stdio`: bytes between an editor's pipes and the daemon's socket, nothing more."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time

from dsh_daemon.paths import Folders

from .launch import start_daemon
from .lifecycle import STALE, connect

LEAVE_S = 0.8  # after the end of our input, without anything moving


def forward(where: Folders) -> int:
    """Copy both ways until one end closes. Returns the exit status; never returns where a thread still reads."""
    try:
        sock = connect(where.socket)
    except STALE:
        start_daemon(where)
        sock = connect(where.socket)
    sock.settimeout(None)
    link = _Link(sock)
    threading.Thread(target=link.up, daemon=True).start()
    status = link.down()
    if status:
        sys.stderr.write("dshd: the daemon closed the connection\n")
        sys.stderr.flush()
    os._exit(status)  # the other thread may sit in a read that nothing ends


class _Link:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.ended = self.said_exit = False
        self.moved = time.monotonic()

    def up(self) -> None:
        tail = b""
        try:
            while data := _read(0):
                tail = (tail + data)[-256:]
                self.said_exit = b'"exit"' in tail
                self.sock.sendall(data)
            self.ended = True
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the socket is gone; the other direction says so
        self.moved = time.monotonic()
        while time.monotonic() - self.moved < LEAVE_S:
            time.sleep(0.05)
        os._exit(0)

    def down(self) -> int:
        try:
            while data := self.sock.recv(1 << 18):
                self.moved = time.monotonic()
                view = memoryview(data)
                while view:
                    view = view[_write(1, view) :]
                    self.moved = time.monotonic()
        except BrokenPipeError:
            return 0  # nobody reads us any more
        except ConnectionError:
            pass
        return 0 if self.ended or self.said_exit else 1


def _read(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, 1 << 18)
        except BlockingIOError:  # an inherited pipe may be non-blocking
            select.select([fd], [], [])


def _write(fd: int, data: memoryview) -> int:
    while True:
        try:
            return os.write(fd, data)
        except BlockingIOError:
            select.select([], [fd], [])
