"""Pydantic AI: an agent whose events are streamed; its messages are rows, as it leaves storing to its users."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic_ai import (
    Agent,
    AgentRunResultEvent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserPromptPart,
)
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.contender import Contender, Heard, Past
from benchmarks.workload import MODEL, PROMPT, Workload, stock

from .rows import open_rows


@asynccontextmanager
async def open_contender(workload: Workload) -> AsyncIterator[Contender]:
    """Give what runs one session."""
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=workload.url, api_key="none"))
    agent = Agent(model, tools=[stock])

    async def run(name: str, hear: Heard) -> None:
        past = ModelMessagesTypeAdapter.validate_json(b"[" + b",".join(await rows.read_raw(name)) + b"]")
        async with agent.run_stream_events(PROMPT, message_history=past) as events:
            async for event in events:
                if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    hear(event.delta.content_delta)
                elif isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    hear(event.part.content)
                elif isinstance(event, AgentRunResultEvent):
                    for message in event.result.new_messages():
                        await rows.append_raw(name, _row(message))

    async def fill(name: str, past: Past) -> None:
        await rows.fill_raw(name, map(_row, (_message(role, content) for role, content in past)))

    async def idle(_name: str) -> object:
        return Agent(model, tools=[stock])

    async with open_rows(workload.folder) as rows:
        yield Contender(run=run, fill=fill, idle=idle)


def _row(message: ModelMessage) -> bytes:
    return bytes(ModelMessagesTypeAdapter.dump_json([message])[1:-1])


def _message(role: str, content: str) -> ModelMessage:
    if role == "assistant":
        return ModelResponse(parts=[TextPart(content=content)])
    return ModelRequest(parts=[UserPromptPart(content=content)])
