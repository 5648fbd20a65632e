"""Strands Agents: `stream_async` of an agent with a `FileSessionManager`, one agent a session as documented."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.session.file_session_manager import FileSessionManager

from benchmarks.contender import Contender, Heard
from benchmarks.workload import MODEL, PROMPT, Workload, stock


@asynccontextmanager
async def open_contender(workload: Workload) -> AsyncIterator[Contender]:
    """Give what runs one session."""
    model = OpenAIModel(client_args={"base_url": workload.url, "api_key": "none"}, model_id=MODEL)
    tools = [tool(stock)]

    def make(name: str) -> Agent:
        manager = FileSessionManager(session_id=name.replace(" ", "-"), storage_dir=workload.folder)
        return Agent(model=model, tools=tools, session_manager=manager, callback_handler=None)

    async def run(name: str, hear: Heard) -> None:
        async for event in make(name).stream_async(PROMPT):
            if "data" in event:
                hear(event["data"])

    async def idle(name: str) -> object:
        return make(name)

    yield Contender(run=run, idle=idle)
