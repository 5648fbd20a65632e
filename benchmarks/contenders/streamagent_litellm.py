"""This runtime, over LiteLLM: stages, tools, and every message stored in SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import RunSession
from benchmarks.workload import MODEL, PROMPT, Workload, stock
from streamagent import Agent, Pipeline, Runtime, SqliteStore, persist, rate_limit, strip_reasoning, tool, tool_dispatch
from streamagent.models.litellm import LiteLLMModel


@asynccontextmanager
async def open_sessions(workload: Workload) -> AsyncIterator[RunSession]:
    """Give what runs one session."""
    tools = [tool(stock)]
    agent = Agent(
        LiteLLMModel(f"openai/{MODEL}", api_base=workload.url, api_key="none"),
        tools=tools,
        pipeline=Pipeline(
            reply=[rate_limit(messages=100, tool_calls=10), tool_dispatch(tools), persist(), strip_reasoning()]
        ),
    )

    async def run_session(name: str) -> str:
        async with agent.session(name, runtime=runtime) as session:
            return "".join([text async for text in session.ask(PROMPT).text()])

    with TemporaryDirectory() as folder:
        async with Runtime(store=SqliteStore(Path(folder, "sessions.db"))) as runtime:
            yield run_session
