"""Commands about who works in a session: resume, agent, and fork, which gives another agent a start."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from .arguments import EntryOrNone, Json, RefOrLast
from .call import (
    Client,
    Refusal,
    RpcError,
    argument,
    find_entry,
    folder,
    guard,
    here,
    program,
    put,
    put_json,
    read_state,
    remark,
    resolve,
    run,
    screen,
    short_ref,
)
from .render import Info, Screen, cells, clean, content_text, facts, new_lines, pad, plural, session_line, short_id
from .summarising import stop

MOST_ASKED = 200  # ids in one `session/entries`
_ADVICE = {
    "TOOL_NOT_STARTED": "had not begun; call it again if it is still needed",
    "TOOL_OUTCOME_UNKNOWN": "was running; look at what it was to change before you call it again",
}


def resume(
    ref: RefOrLast = "last",
    extra: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- EXTRA]", help="More arguments for the agent's program.", show_default=False),
    ] = None,
    *,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Also where an agent is connected; its open turn is closed.")
    ] = False,
    go: Annotated[bool, typer.Option("--run", help="Run the agent's program without asking.")] = False,
    print_: Annotated[bool, typer.Option("--print", help="Print its command line only.")] = False,
    json: Json = False,
) -> None:
    """Make a session ready to go on: close what a crash cut off, or run the agent that it belongs to.

    A native session gets an answer for each tool call that has none, and the end of its open turn; nothing is
    written where nothing was cut off. Sessions of pi, omp and dsh are continued by their own program. pi and omp
    start at the leaf: where that is not the last line of the file, one entry that says nothing is written. dsh opens
    sessions in its browser page: `dsh web` is run, the session is chosen there, and dsh closes what was cut off.

    Examples: `dshd resume last`, `dshd resume last --run -- --model sonnet`, `eval "$(dshd resume last --print)"`
    """
    if go and print_:
        raise typer.BadParameter("name --run or --print, not both", param_hint="--print")
    more = [argument(word) for word in extra or []]
    chosen: dict[str, Any] = {}  # what is to be run once the client has left

    async def work(client: Client) -> None:
        session = await resolve(client, ref)
        info = await _known(client, session)
        if info["format"] == "native":
            if go or print_ or more:
                text = "no program belongs to a native session; its agent itself calls session/resume"
                raise Refusal("notSupportedByFormat", text)
            await _repair(client, info, takeover=takeover, json=json)
            return
        if takeover:
            text = f"nothing is taken from an agent here: {info['format']} itself continues its sessions"
            raise Refusal("notSupportedByFormat", text)
        ask = sys.stdin.isatty() and sys.stdout.isatty() and not (go or print_ or json)
        launch = await _launch(client, session, keep=not (go or ask))
        launch["argv"] += more
        if json:
            put_json(launch)
        elif not go:
            view, line = screen(), command_line(launch)
            shown = clean(line) if view.is_terminal else line
            put(view.join([("$ ", "dim"), (shown, "command")]) if ask else shown)
            if info["format"] == "dsh":
                _on_dsh(view, info, ask=ask)
        if go or ask:
            chosen.update(launch, program=_program(launch))
            if ask and not _is_wanted():
                chosen.clear()
            else:
                await _launch(client, session, keep=True)

    run(work)
    if chosen:
        guard(lambda: _become(chosen))


def _on_dsh(view: Screen, info: Info, *, ask: bool) -> None:
    """Its command names no session and closes nothing by itself."""
    if ask:
        for note in view.note(f"opens dsh in the browser; choose “{info['title']}” there to go on with it"):
            put(note)
    elif not view.is_terminal:
        cut_off = "; what was cut off is closed then" if info["tail"] in {"open", "pendingTool"} else ""
        remark(f"nothing is changed yet: dsh goes on when “{info['title']}” is chosen in its browser page{cut_off}")


async def _known(client: Client, session: str) -> Info:
    """The state of a session; of one that is not served no more than its format."""
    try:
        return await read_state(client, session)
    except RpcError as exc:
        if exc.kind != "notSupportedByFormat":
            raise
        return {"format": exc.data["format"]}


async def _launch(client: Client, session: str, *, keep: bool) -> dict[str, Any]:
    return await client.request("session/launch", {"sessionId": session, "keepLeaf": keep})


def _is_wanted() -> bool:
    sys.stdout.write("run it? [Y/n] ")
    sys.stdout.flush()
    answer = sys.stdin.readline()
    return bool(answer) and answer.strip().casefold() in {"", "y", "yes"}


def command_line(launch: dict[str, Any]) -> str:
    """What a shell must be told, in its folder where that is another one."""
    env = [f"{name}={shlex.quote(value)}" for name, value in launch.get("env", {}).items()]
    line = " ".join([*env, shlex.join(launch["argv"])])
    cwd = launch["cwd"]
    return line if cwd is None or cwd == here() else f"cd {shlex.quote(cwd)} && {line}"


def _program(launch: dict[str, Any]) -> str:
    """Path of the agent's program, looked for before anything is written. Raises Refusal."""
    name: str = launch["argv"][0]
    cwd: str | None = launch["cwd"]
    if cwd is not None and not os.path.isdir(cwd):
        raise Refusal("notFound", f"the folder of this session is gone: {cwd}")
    found = shutil.which(name)
    if found is None:
        raise Refusal("notFound", f"there is no program `{name}` on the PATH")
    return found


def _become(chosen: dict[str, Any]) -> None:
    """Go on as the agent's program, in the folder of the session."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and whoever is started by exec would too
    if chosen["cwd"] is not None:
        os.chdir(chosen["cwd"])
    os.execve(chosen["program"], chosen["argv"], os.environ | chosen.get("env", {}))  # noqa: S606  # no shell between


async def _repair(client: Client, before: Info, *, takeover: bool, json: bool) -> None:
    session = before["sessionId"]
    try:
        state = await client.request("session/resume", {"sessionId": session, "takeover": takeover})
    except RpcError as exc:
        if exc.kind != "agentBusy":
            raise
        holder = exc.data["holder"]
        text = f"{_who(holder)} drives this session; --takeover takes it away and closes the open turn"
        raise Refusal(exc.kind, text) from None
    await client.request("session/release", {"sessionId": session})
    if json:
        put_json(state)
        return
    view = screen()
    put(session_line(view, await read_state(client, session)))
    if before["live"]:
        put(f"  taken from {_who(before['live'])}")
    for line in repair_lines(view, state, await repaired_entries(client, state)):
        put(line)


async def repaired_entries(client: Client, state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries that a resume wrote, by id."""
    session, ids = state["sessionId"], [repair["entryId"] for repair in state["repaired"]]
    found: dict[str, dict[str, Any]] = {}
    for k in range(0, len(ids), MOST_ASKED):
        params = {"sessionId": session, "ids": ids[k : k + MOST_ASKED]}
        found |= {entry["id"]: entry for entry in (await client.request("session/entries", params))["entries"]}
    return found


def repair_lines(view: Screen, state: dict[str, Any], entries: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What was cut off and is closed now, the number of the next turn."""
    repaired = state["repaired"]
    turns = [entries[repair["entryId"]]["turn"] for repair in repaired if repair["kind"] == "turnEnd"]
    calls = [repair for repair in repaired if repair["kind"] == "toolResult"]
    if turns:
        yield view.join([("  ", ""), (f"turn {turns[0]} was cut off", "warn"), (", it is closed now", "")])
    names = {call["entryId"]: clean(str(entries[call["entryId"]]["message"]["toolName"])) for call in calls}
    width = max(map(cells, names.values()), default=0)
    for call in calls:
        left = [("    " + pad(names[call["entryId"]], width) + "  ", "kind"), (call["code"], "warn")]
        advice = _ADVICE[call["code"]]
        if view.width is None or width + len(call["code"]) + len(advice) + 8 <= view.width:
            yield view.join([*left, ("  " + advice, "dim")])
        else:
            yield view.join(left)
            yield from view.note(advice, indent=" " * 6)
    closed = (
        "the turn that was cut off is closed already; " if state["tail"] == "interrupted" else "nothing was cut off; "
    )
    yield from view.note(
        f"{'' if repaired else closed}the next turn is {state['nextTurn']}, an agent can go on", "good"
    )


def agent(
    ref: RefOrLast = "last",
    *,
    send: Annotated[
        str | None, typer.Option("--send", metavar="TEXT", help="Leave a message for its next turn.")
    ] = None,
    steer: Annotated[
        str | None, typer.Option("--steer", metavar="TEXT", help="Leave one for the turn that it runs.")
    ] = None,
    abort: Annotated[bool, typer.Option("--abort", help="Ask it to stop the turn that it runs.")] = False,
    json: Json = False,
) -> None:
    """Show who works in a session, at what, and the messages that wait; leave one, or ask it to stop.

    Messages wait in memory, for an agent that is connected; without one they are refused (`noAgent`).

    Examples: `dshd agent last`, `dshd agent last --send "Now the docs"`, `dshd agent last --abort`
    """
    if sum((send is not None, steer is not None, abort)) > 1:
        raise typer.BadParameter("name one of --send, --steer and --abort", param_hint="--send")
    text, mode = (send, "queue") if steer is None else (steer, "steer")

    async def work(client: Client) -> None:
        session = await resolve(client, ref)
        view = screen()
        if text is not None:
            params = {"sessionId": session, "content": argument(text), "mode": mode}
            result = await _send(client, params, ref)
            lines = [f"left for {'the next turn' if mode == 'queue' else 'the turn that runs'}"]
        elif abort:
            result = await client.request("session/abort", {"sessionId": session})
            lines = ["asked to stop" if result["aborted"] else "no turn runs"]
        else:
            result = await driving(client, session)
            lines = [session_line(view, result), *agent_lines(view, result)]
        if json:
            put_json(result)
            return
        for line in lines:
            put(line)

    run(work)


async def _send(client: Client, params: dict[str, Any], ref: str) -> dict[str, Any]:
    """Leave a message; where nobody takes it, say who would. Raises Refusal."""
    try:
        return await client.request("agent/send", params)
    except RpcError as exc:
        if exc.kind != "noAgent":
            raise
        format_ = (await read_state(client, params["sessionId"]))["format"]
        if format_ in {"native", "dsh"}:
            raise Refusal(exc.kind, "no agent works in this session; start yours, then send again") from None
        line = f"`{program()} resume {shlex.quote(argument(ref))}`"
        raise Refusal(exc.kind, f"{format_} takes no messages from here; {line} runs it") from None


async def driving(client: Client, session: str) -> dict[str, Any]:
    """The state of a session, with `agent` and `inbox`: what those who follow it are told."""
    told: dict[str, dict[str, Any]] = {}
    for method in ("agent/status", "agent/inbox"):
        client.on(method, lambda params, method=method: told.update({method: params}))
    state = await client.request("session/open", {"sessionId": session})
    await client.request("session/close", {"sessionId": session})
    said = told.get("agent/status", {})
    status = {name: said[name] for name in ("status", "detail") if name in said}
    return {**state, "agent": status or None, "inbox": told.get("agent/inbox", {}).get("messages", [])}


def agent_lines(view: Screen, state: dict[str, Any]) -> Iterator[str]:
    """Who works in a session, at what, and what waits for it."""
    live, turn, waiting = state["live"], state["openTurn"], state["inbox"]
    said: dict[str, Any] = state["agent"] or {}
    pairs = [("agent", "nobody" if live is None else _who(live) + ("" if live["certain"] else ", perhaps"))]
    if live is not None:
        detail = f": {said['detail']}" if "detail" in said else ""
        pairs.append(("status", live["status"] + detail))
    if turn is not None:
        pairs.append(("turn", f"{turn['turn']} is open" + ("" if live else ", nobody runs it")))
    else:
        pairs.append(("turn", f"none open, the next is {state['nextTurn']}"))
    if state["format"] == "native":
        pairs.append(("inbox", plural(len(waiting), "message") if waiting else "empty"))
    yield from facts(view, pairs, indent="  ")
    for message in waiting:
        left = [(f"    {message['mode']}  ", "kind"), (clean(message["from"]) + "  ", "dim")]
        yield view.fit(left, (clean(content_text(message["content"])), ""))


def _who(live: dict[str, Any]) -> str:
    pid = live.get("pid")
    return clean(live["client"]) + (f" (pid {pid})" if pid else "")


def fork(
    ref: RefOrLast = "last",
    entry: EntryOrNone = None,
    *,
    turn: Annotated[
        int | None, typer.Option("--turn", metavar="N", min=1, help="At the end of this turn of the way to the leaf.")
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id of the new session; a repeat is harmless.")
    ] = None,
    cwd: Annotated[Path | None, typer.Option("--cwd", metavar="DIR", help="Folder of the new session.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Copy across damage.")] = False,
    json: Json = False,
) -> None:
    """Make a new session of the way up to an entry, which must not stand within a turn; without ENTRY: to the leaf.

    The source stays as it is, byte for byte. `branch` starts from a prompt instead, to write it anew.

    Examples: `dshd fork last`, `dshd fork last --turn 3`, `dshd fork last 4f2a`
    """
    if turn is not None and entry is not None:
        raise typer.BadParameter("name ENTRY or --turn, not both", param_hint="--turn")

    async def work(client: Client) -> None:
        session = await resolve(client, ref)
        params: dict[str, Any] = {"sessionId": session}
        if turn is not None:
            params["boundary"] = await _end_of_turn(client, session, turn, ref)
        elif entry is not None:
            params["boundary"] = await find_entry(client, session, entry)
        await make_copy(client, "session/fork", params | copy_params(id_, cwd, force), ref, fork_lines, json=json)

    run(work)


def copy_params(id_: str | None, cwd: Path | None, force: bool) -> dict[str, Any]:
    """What is sent of the options that fork and branch have in common."""
    params: dict[str, Any] = {}
    if id_:
        params["childSessionId"] = argument(id_)
    if cwd:
        params["cwd"] = folder(str(cwd))
    if force:
        params["force"] = True
    return params


async def make_copy(
    client: Client,
    method: str,
    params: dict[str, Any],
    ref: str,
    lines: Callable[[Screen, dict[str, Any], str], Iterator[str]],
    *,
    json: bool,
) -> None:
    """Fork or branch, and say what was made. Raises Refusal."""
    try:
        result = await client.request(method, params)
    except RpcError as exc:
        if exc.kind == "notAUserMessage":
            line = f"`{program()} branch {shlex.quote(argument(ref))} {short_id(params['entryId'])} --at`"
            raise Refusal(exc.kind, f"{exc.message}; this takes the entry along: {line}") from None
        if exc.kind != "boundaryInTurn":
            raise
        raise _within(exc.data["turn"], exc.data["nearestClosed"], ref) from None
    if json:
        put_json(result)
    if "session" not in result:
        raise stop(result, "nothing was written")
    if not json:
        for line in lines(screen(), result, await short_ref(client, result["session"]["sessionId"])):
            put(line)


async def _end_of_turn(client: Client, session: str, number: int, ref: str) -> str:
    """Where a turn of the way to the leaf ended."""
    turns = (await client.request("session/turns", {"sessionId": session}))["turns"]
    found = next((turn for turn in reversed(turns) if turn["turn"] == number), None)
    if found is None:
        known = f"turns {turns[0]['turn']} to {turns[-1]['turn']} are" if turns else "no turn is"
        raise Refusal("invalidReference", f"there is no turn {number}: {known} on the way to the leaf")
    if found["boundary"] is None:
        before = (turn["boundary"] for turn in reversed(turns[: turns.index(found)]) if turn["boundary"])
        raise _within(number, next(before, None), ref)
    return found["boundary"]


def _within(turn: int, nearest: str | None, ref: str) -> Refusal:
    """What is said of a boundary that does not stand outside of turns."""
    text = f"turn {turn} is not closed there; a fork takes along whole turns"
    if nearest is None:
        return Refusal("boundaryInTurn", text + ", and none is closed before it")
    line = f"`{program()} fork {shlex.quote(argument(ref))} {short_id(nearest)}`"
    return Refusal("boundaryInTurn", text + f". The nearest closed place before: {line}")


def fork_lines(view: Screen, result: dict[str, Any], ref: str) -> Iterator[str]:
    """The new session, what it begins with, and how to go on."""
    yield from new_lines(view, result["session"])
    boundary = result["boundary"]
    until = f" up to {short_id(boundary)}" if boundary else ""
    words = ("event", "events") if result["session"]["format"] == "dsh" else ("entry", "entries")
    yield from view.note(f"begins with {plural(result['seedLength'], *words)} of the source{until}")
    yield from go_on_lines(view, result, ref)


def go_on_lines(view: Screen, result: dict[str, Any], ref: str) -> Iterator[str]:
    """How work goes on in a session that was made: in the agent's program, where it has one."""
    command = "tree" if result["session"]["format"] == "native" else "resume"
    yield from view.note(f"continue with `{program()} {command} {clean(ref)}`")
