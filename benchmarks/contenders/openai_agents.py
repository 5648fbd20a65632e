"""The OpenAI Agents SDK: `Runner.run_streamed` with a `SQLiteSession`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

from benchmarks.contender import Contender, Heard, Past
from benchmarks.workload import MODEL, PROMPT, Workload, stock

from .rows import entries


@asynccontextmanager
async def open_contender(workload: Workload) -> AsyncIterator[Contender]:
    """Give what runs one session."""
    set_tracing_disabled(disabled=True)
    file = Path(workload.folder, "sessions.db")
    client = AsyncOpenAI(base_url=workload.url, api_key="none")
    model, tools = OpenAIChatCompletionsModel(model=MODEL, openai_client=client), [function_tool(stock)]
    agent = Agent(name="shop", model=model, tools=tools)

    async def run(name: str, hear: Heard) -> None:
        session = SQLiteSession(name, file)
        result = Runner.run_streamed(agent, PROMPT, session=session)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                hear(event.data.delta)
        session.close()

    async def fill(name: str, past: Past) -> None:
        session = SQLiteSession(name, file)
        await session.add_items(list(entries(past)))
        session.close()

    async def idle(name: str) -> object:
        return Agent(name="shop", model=model, tools=tools), SQLiteSession(name, file)

    async with client:
        yield Contender(run=run, fill=fill, idle=idle)
