"""Agno: an agent whose runs are streamed and kept by `SqliteDb`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.openai import OpenAIChat
from agno.run.agent import RunContentEvent

from benchmarks.contender import Contender, Heard
from benchmarks.workload import MODEL, PROMPT, Workload, stock

_AGENT = "shop"  # without a fixed id it loads no history


@asynccontextmanager
async def open_contender(workload: Workload) -> AsyncIterator[Contender]:
    """Give what runs one session."""
    database = SqliteDb(db_file=str(Path(workload.folder, "sessions.db")))

    def make() -> Agent:
        model = OpenAIChat(id=MODEL, base_url=workload.url, api_key="none")
        return Agent(id=_AGENT, model=model, tools=[stock], db=database, add_history_to_context=True, telemetry=False)

    agent = make()

    async def run(name: str, hear: Heard) -> None:
        async for event in agent.arun(PROMPT, session_id=name, stream=True):
            if isinstance(event, RunContentEvent) and event.content:
                hear(event.content)

    async def idle(_name: str) -> object:
        return make()

    yield Contender(run=run, idle=idle)
