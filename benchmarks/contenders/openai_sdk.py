"""The OpenAI SDK: chat completions, streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from benchmarks.contender import Contender, Heard
from benchmarks.workload import MODEL, TOOL, Workload

from .completions import converse
from .rows import open_rows


@asynccontextmanager
async def open_contender(workload: Workload) -> AsyncIterator[Contender]:
    """Give what runs one session."""
    async with AsyncOpenAI(base_url=workload.url, api_key="none") as client:

        async def create(messages: list[dict[str, Any]]) -> Any:
            return await client.chat.completions.create(
                model=MODEL, messages=messages, tools=[TOOL], stream=True, stream_options={"include_usage": True}
            )

        async with open_rows(workload.folder) as rows:

            async def run(name: str, hear: Heard) -> None:
                await converse(create, rows, name, hear)

            yield Contender(run=run, fill=rows.fill)
