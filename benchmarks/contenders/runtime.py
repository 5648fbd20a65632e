"""This runtime: stages, tools, every message stored in SQLite; the modules of its lanes give it a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from pathlib import Path

from benchmarks.contender import Contender, Heard, Past
from benchmarks.workload import MODEL, PROMPT, Workload, stock
from streamagent import (
    Agent,
    Message,
    Pipeline,
    Runtime,
    SqliteStore,
    persist,
    rate_limit,
    strip_reasoning,
    tool,
    tool_dispatch,
)
from streamagent.models.base import ModelBase
from streamagent.protocols import Store

_BATCH = 500  # messages of a history that are written at once


@asynccontextmanager
async def open_runtime(
    workload: Workload, make_model: Callable[..., ModelBase], *, name: str = f"openai/{MODEL}", duplex: bool = False
) -> AsyncIterator[Contender]:
    """Give what runs one session.

    Args:
        workload: What is to be done.
        make_model: Makes the model, of its name and where it is.
        name: Of the model.
        duplex: Sessions are talked to by `send` and `receive`, instead of `ask`.
    """
    tools = [tool(stock)]
    stages = [rate_limit(messages=100, tool_calls=10), tool_dispatch(tools), persist(), strip_reasoning()]
    model = make_model(name, api_base=workload.url, api_key="none")
    agent = Agent(model, tools=tools, pipeline=Pipeline(reply=stages))

    async def pull(name: str, hear: Heard) -> None:
        async with agent.session(name, runtime=runtime) as session:
            async for text in session.ask(PROMPT).text():
                hear(text)

    async def receive(name: str, hear: Heard) -> None:
        async with agent.session(name, runtime=runtime) as session:
            await session.send(PROMPT)
            await session.send_eof()
            async for message in session:
                if message.role == "assistant" and message.type == "text":
                    hear(message.content)

    async def idle(name: str) -> object:
        manager = agent.session(name, runtime=runtime)
        opened.append(manager)
        return await manager.__aenter__()

    async def fill(name: str, past: Past) -> None:
        await _fill(runtime.store, name, past)

    opened: list[AbstractAsyncContextManager[object]] = []
    async with Runtime(store=SqliteStore(Path(workload.folder, "sessions.db"))) as runtime:
        try:
            yield Contender(run=receive if duplex else pull, fill=fill, idle=idle)
        finally:
            for manager in reversed(opened):
                await manager.__aexit__(None, None, None)


async def _fill(store: Store, session: str, past: Past) -> None:
    messages = (Message(role=role, content=content) for role, content in past)
    fence = await store.acquire(session)
    while batch := list(islice(messages, _BATCH)):
        await store.write(session, batch, fence=fence)
    await store.release(session, fence=fence)
