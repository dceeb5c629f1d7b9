"""A small agent, run as a script: it does what comes into the inbox of one session, with a script for a model.

    python tests/agent.py SOCKET SESSION [takeover]

Each word of a message is a tool that one step calls; a last step answers. `stuck` is a tool that never comes back,
`unstarted` one before whose start the agent stops for ever. What it reaches is printed, a line each.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any

from dsh_daemon import connect

HEADER = {"config": {"model": "mock-1"}, "system": "You are a test.", "tools": [{"name": "read"}, {"name": "edit"}]}


async def main(socket: str, session: str, *options: str) -> None:
    async with connect(socket, name="agent", start=False) as client:
        running: list[asyncio.Task[None]] = []
        client.on("agent/lost", lambda lost: say("lost to", lost["by"]))

        def abort(_: Any) -> None:
            running[-1].cancel()

        client.on("agent/abortRequested", abort)
        state = await client.request("session/resume", sessionId=session, takeover="takeover" in options)
        say("ready", state["nextTurn"])
        with suppress(ConnectionError):
            while True:
                found = await client.request("agent/claim", sessionId=session, waitMs=60_000)
                if found["message"]:
                    running.append(asyncio.create_task(work(Session(client, session), found["message"])))
                    await running[-1]


class Session:
    def __init__(self, client: Any, session: str) -> None:
        self.client = client
        self.id = session

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.client.request(method, sessionId=self.id, **params)

    def tell(self, method: str, **params: Any) -> None:
        self.client.notify(method, sessionId=self.id, **params)


async def work(session: Session, message: dict[str, Any]) -> None:
    turn = (await session.ask("turn/start", messageId=message["messageId"]))["turn"]
    say("turn", turn)
    session.tell("agent/status", status="running", detail=message["content"])
    try:
        for word in [*message["content"].split(), ""]:
            await step(session, turn, word)
        await session.ask("turn/end", turn=turn, reason={"kind": "completed"})
        say("ended", turn)
    except asyncio.CancelledError:
        await session.ask("turn/end", turn=turn, reason={"kind": "aborted"})
        say("aborted", turn)
    session.tell("agent/status", status="idle")


async def step(session: Session, turn: int, tool: str) -> None:
    number = (await session.ask("step/start", turn=turn, header=HEADER))["step"]
    call = {"type": "toolCall", "id": f"call-{turn}-{number}", "name": tool, "arguments": {"path": "a"}}
    text = {"type": "text", "text": f"Turn {turn} is done."}
    session.tell("agent/delta", turn=turn, step=number, chunk={"type": "text-delta", "text": tool or text["text"]})
    stop = "toolUse" if tool else "stop"
    answer = {"role": "assistant", "content": [call if tool else text], "stopReason": stop}
    await session.ask("session/append", entries=[{"type": "message", "message": answer}])
    if tool == "unstarted":
        await for_ever(tool)
    if tool:
        start = {"type": "tool_call", "turn": turn, "step": number, "callId": call["id"], "name": tool}
        await session.ask("session/append", entries=[{**start, "arguments": '{"path":"a"}'}])
        if tool == "stuck":
            await for_ever(tool)
        content = [{"type": "text", "text": f"{tool} did it"}]
        result = {"role": "toolResult", "toolCallId": call["id"], "toolName": tool, "content": content}
        await session.ask("session/append", entries=[{"type": "message", "message": {**result, "isError": False}}])
    await session.ask("step/end", turn=turn, step=number)


async def for_ever(where: str) -> None:
    say(where)
    await asyncio.Event().wait()


def say(*words: object) -> None:
    print(*words, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
