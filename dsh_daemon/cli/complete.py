"""Shell completion of sessions and entries, from a daemon that runs; none is started for a press of Tab."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import typer

Pair = tuple[str, str]  # what is typed, what the shell shows beside it


def refs(incomplete: str) -> list[Pair]:
    """Sessions by id or title, those of the current folder first."""
    from .call import Client, here
    from .render import age, clean

    async def ask(client: Client) -> list[Pair]:
        found = await client.request("session/list", {"limit": 200})
        cwd = here()
        items = sorted(found["items"], key=lambda info: info["cwd"] != cwd)
        typed = incomplete.casefold()
        return [
            (info["sessionId"], clean(f"{info['title']} · {age(info['lastActivityAt'])}"))
            for info in items
            if info["sessionId"].casefold().startswith(typed) or typed in info["title"].casefold()
        ]

    return [pair for pair in [("last", "the latest session of this folder")] if pair[0].startswith(incomplete)] + _ask(
        ask
    )


def places(ctx: typer.Context, incomplete: str) -> list[Pair]:
    """Entries, and the place before the first of them."""
    root = [("root", "before the first entry")] if "root".startswith(incomplete) else []
    return root + entries(ctx, incomplete)


def entries(ctx: typer.Context, incomplete: str) -> list[Pair]:
    """Entries of the session named before, those at the leaf first."""
    from .call import Client, resolve
    from .render import clean

    async def ask(client: Client) -> list[Pair]:
        params = {"sessionId": await resolve(client, ctx.params.get("ref") or "last"), "count": 500, "textLimit": 60}
        state = await client.request("session/open", {"sessionId": params["sessionId"], "subscribe": False})
        if state["leafId"]:
            params["around"] = state["leafId"]
        page = await client.request("session/tree", params)
        return [
            (row["id"], clean(f"{row['kind']} {row['text']}"))
            for row in page["rows"]
            if row["id"].startswith(incomplete)
        ]

    leaf = [("leaf", "where the next entry goes")] if "leaf".startswith(incomplete) else []
    return leaf + _ask(ask)


def turn_numbers(ctx: typer.Context, incomplete: str) -> list[Pair]:
    """Turns of the session named before, the latest first."""
    from .call import Client, resolve
    from .render import clean

    async def ask(client: Client) -> list[Pair]:
        session = await resolve(client, ctx.params.get("ref") or "last")
        found = await client.request("session/turns", {"sessionId": session})
        return [
            (str(turn["turn"]), clean(turn["text"]))
            for turn in reversed(found["turns"])
            if str(turn["turn"]).startswith(incomplete)
        ]

    return _ask(ask)


def _ask(work: Callable[..., Awaitable[list[Pair]]]) -> list[Pair]:
    import asyncio

    from .call import RpcError, connect

    async def connected() -> list[Pair]:
        client = await connect(name="dshd completion", start=False)
        try:
            return await work(client)
        finally:
            await client.close()

    async def limited() -> list[Pair]:
        return await asyncio.wait_for(connected(), timeout=1.0)

    try:
        return asyncio.run(limited())
    except (OSError, RpcError, TimeoutError):
        return []
