"""The second part of `dshd demo`: an agent that is cut off and goes on, and another way from a turn of before."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from . import story
from .agents import agent_lines, driving, fork_lines, repair_lines, repaired_entries
from .call import Client, Refusal, connect, read_state, short_ref
from .reading import family_lines, list_lines
from .render import row_line, session_line
from .stage import Narrator, Stage

TITLE, REF = "Migrate the shop to Vue 3", "vue"
CUT_OFF = ["open", "interrupted", "pendingTool"]
HEADER: dict[str, Any] = {"config": {"model": "demo-1"}, "system": "You are the agent of a demo.", "tools": []}


async def act(session: str) -> None:
    """Be the agent of a session, in a process of its own: its model is a script, everything else is real."""
    async with connect(name="demo agent", start=False) as client:
        ask = partial(client.request, sessionId=session)
        await ask("session/resume")
        print("ready", flush=True)
        tell = partial(client.notify, "agent/status", sessionId=session)
        with suppress(ConnectionError):
            while True:
                if message := (await ask("agent/claim", waitMs=60_000))["message"]:
                    await _turn(ask, tell, message)


async def _turn(ask: Any, tell: Any, message: dict[str, Any]) -> None:
    work = story.WORKS[message["content"]]
    turn = (await ask("turn/start", messageId=message["messageId"]))["turn"]
    for name, arguments, result in [*work.calls, ("", {}, "")]:
        step = (await ask("step/start", turn=turn, header=HEADER))["step"]
        call = {"type": "toolCall", "id": f"call-{turn}-{step}", "name": name, "arguments": arguments}
        block = call if name else {"type": "text", "text": work.answer}
        await ask("session/append", entries=[_message("assistant", [block])])
        if name:
            # Before the tool runs: whoever finds the log without its result knows that it may have done something.
            start = {"type": "tool_call", "turn": turn, "step": step, "callId": call["id"], "name": name}
            tell(status="running", detail=" ".join([name, *arguments.values()]))
            await ask("session/append", entries=[{**start, "arguments": json.dumps(arguments)}])
            if result is None:
                print("in the middle", flush=True)
                await asyncio.Event().wait()
            about = {"toolCallId": call["id"], "toolName": name, "isError": False}
            await ask("session/append", entries=[_message("toolResult", [{"type": "text", "text": result}], **about)])
        await ask("step/end", turn=turn, step=step)
    tell(status="idle")
    await ask("turn/end", turn=turn, reason={"kind": "completed"})
    print("done", flush=True)


def _message(role: str, content: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"type": "message", "message": {"role": role, "content": content, **more}}


async def cut_off(tell: Narrator, stage: Stage, client: Client) -> tuple[Client, str]:
    """The first story: the agent and the daemon are killed in the middle of a tool call, and the work goes on."""
    made = await client.request("session/create", {"cwd": str(stage.cwd), "title": TITLE})
    session = made["sessionId"]
    agent = await stage.agent(session)
    await stage.reached(agent, "ready")
    for work in (story.BREAKS, story.ROUTER, story.REST):
        await client.request("agent/send", {"sessionId": session, "content": work.prompt})
    await stage.reached(agent, "in the middle")
    page = await client.request("session/tree", {"sessionId": session})
    text = "An agent works through the daemon: turns of steps, each step one request to its model."
    await tell.step(text, f"dshd tree {REF}", "session/tree", page)
    tell.line(session_line(tell.view, await read_state(client, session)))
    tell.lines(row_line(tell.view, row) for row in page["rows"])

    doing = await driving(client, session)
    text = "It is in the middle of a tool call. Then the machine restarts."
    await tell.step(text, f"dshd agent {REF}", "session/open", doing)
    tell.lines(agent_lines(tell.view, doing))
    assert stage.process
    tell.command(f"kill -9 {stage.process.pid} {agent.pid}")
    stage.kill()
    await client.close()

    client = await stage.start("dshd demo")
    listed = await client.request("session/list", {"tail": CUT_OFF})
    text = "What did the restart cut off?"
    await tell.step(text, f"dshd list --tail {','.join(CUT_OFF)}", "session/list", listed)
    tell.lines(list_lines(tell.view, listed, filtered=True))

    state = await client.request("session/resume", {"sessionId": session})
    await client.request("session/release", {"sessionId": session})
    text = "Resume answers the open call and closes the turn. What may have happened is said, to the model too."
    await tell.step(text, f"dshd resume {REF}", "session/resume", state)
    tell.line(session_line(tell.view, await read_state(client, session)))
    tell.lines(repair_lines(tell.view, state, await repaired_entries(client, state)))
    turn = await _goes_on(stage, client, session, story.LOOK)
    if turn != state["nextTurn"]:
        raise Refusal("demo", f"turn {turn} came after the resume, not {state['nextTurn']}")
    tell.note(f"The agent, started again, did turn {turn}: {story.LOOK.answer}", "good")
    return client, session


async def other_way(tell: Narrator, stage: Stage, client: Client, session: str) -> None:
    """The second story: a fork at a closed turn takes another way, and the first stays as it was."""
    path = (await read_state(client, session))["path"]
    before = _digest(path)
    turns = (await client.request("session/turns", {"sessionId": session}))["turns"]
    forked = await client.request("session/fork", {"sessionId": session, "boundary": turns[1]["boundary"]})
    child = forked["session"]["sessionId"]
    text = "Or take another way from the end of turn 2: a session of its own, and nothing is lost here."
    await tell.step(text, f"dshd fork {REF} --turn 2", "session/fork", forked)
    tell.lines(fork_lines(tell.view, forked, await short_ref(client, child)))
    turn = await _goes_on(stage, client, child, story.COMPAT)
    if _digest(path) != before:
        raise Refusal("demo", "the fork changed its source")
    tell.note(f"An agent did turn {turn} there: {story.COMPAT.answer}", "good")

    family = await client.request("session/family", {"sessionId": child})
    listed = (await client.request("session/list"))["items"]
    text = "Both are there. The first is the same, byte for byte."
    await tell.step(text, f"dshd family {await short_ref(client, child)}", "session/family", family)
    tell.lines(family_lines(tell.view, family, listed, child))


async def _goes_on(stage: Stage, client: Client, session: str, work: story.Work) -> int:
    """An agent does one turn; its number."""
    agent = await stage.agent(session)
    await stage.reached(agent, "ready")
    await client.request("agent/send", {"sessionId": session, "content": work.prompt})
    await stage.reached(agent, "done")
    return (await read_state(client, session))["nextTurn"] - 1


def _digest(path: str) -> bytes:
    return sha256(Path(path).read_bytes()).digest()
