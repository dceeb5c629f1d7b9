"""Who drives a session, and what waits for them. In memory only: nothing of this is ever logged."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .errors import Overloaded
from .types import Live

if TYPE_CHECKING:
    from .driver import Driver
    from .live import Client

Mode = Literal["queue", "steer"]
Message = dict[str, Any]  # messageId, content, mode, from

MOST_WAITING = 1_000  # messages in an inbox
MOST_BYTES = 6 << 20  # of all their contents: followers are told of the whole inbox


@dataclass(slots=True, eq=False)
class Agent:
    """The one driver of a session's turns."""

    client: Client
    driver: Driver
    turn: str | None = None  # id of the `turn_start` of the turn that it began last
    status: Literal["idle", "running"] = "idle"
    detail: str | None = None

    def live(self, *, running: bool) -> Live:
        """Show it as lists do."""
        state = "running" if running or self.status == "running" else "idle"
        found = Live(client=self.client.name, status=state, certain=True)
        if self.client.pid is not None:
            found["pid"] = self.client.pid
        return found


@dataclass(slots=True)
class Inbox:
    """Messages for the agent of a session, oldest first. Those that are taken out but not used come back with it."""

    waiting: deque[Message] = field(default_factory=deque[Message])
    claimed: dict[str, Message] = field(default_factory=dict[str, Message])
    sizes: dict[str, int] = field(default_factory=dict[str, int])  # bytes, by message
    closed: bool = False  # the daemon stops: nothing more comes
    moved: asyncio.Event = field(default_factory=asyncio.Event)  # something came, or somebody else drives

    def put(self, content: Any, mode: Mode, sender: str, size: int) -> str:
        """Add a message of `size` bytes; its id. Raises Overloaded."""
        if len(self.sizes) >= MOST_WAITING or sum(self.sizes.values()) + size > MOST_BYTES:
            text = f"{len(self.sizes)} messages wait for this agent already, and there is no room for {size} bytes more"
            raise Overloaded(text, retryAfterMs=1_000)
        id_ = secrets.token_hex(8)
        self.waiting.append({"messageId": id_, "content": content, "mode": mode, "from": sender})
        self.sizes[id_] = size
        self.wake()
        return id_

    def next(self, mode: Mode | None) -> Message | None:
        """Take out the next message (of one mode): what steers comes before what waits for its turn."""
        wanted = (mode,) if mode else ("steer", "queue")
        for kind in wanted:
            for message in self.waiting:
                if message["mode"] == kind:
                    self.waiting.remove(message)
                    self.claimed[message["messageId"]] = message
                    return message
        return None

    def find(self, message_id: str) -> Message | None:
        """A message that waits or was taken out, and not used yet."""
        return self.claimed.get(message_id) or next((m for m in self.waiting if m["messageId"] == message_id), None)

    def use(self, message_id: str) -> None:
        """Forget a message: it is in the log now."""
        self.claimed.pop(message_id, None)
        self.sizes.pop(message_id, None)
        for message in self.waiting:
            if message["messageId"] == message_id:
                self.waiting.remove(message)
                break

    def restore(self) -> None:
        """Put back what an agent that left took out and did not use."""
        self.waiting.extendleft(reversed(self.claimed.values()))
        self.claimed.clear()
        self.wake()

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self.moved.set()
        self.moved = asyncio.Event()
