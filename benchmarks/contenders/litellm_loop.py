"""A bare loop over `litellm.acompletion`: it stores nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import litellm

from benchmarks.contender import Contender, Heard
from benchmarks.workload import MODEL, PROMPT, TOOL, Workload

from .completions import Create, turn
from .results import result_of


@asynccontextmanager
async def open_contender(workload: Workload) -> AsyncIterator[Contender]:
    """Give what runs one session."""
    create = creator(workload)

    async def run(_name: str, hear: Heard) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
        text, call = await turn(create, messages, hear)
        messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
        messages.append(await result_of(call))
        await turn(create, messages, hear)

    yield Contender(run=run)


def creator(workload: Workload) -> Create:
    """Make what asks the provider once."""

    async def create(messages: list[dict[str, Any]]) -> Any:
        return await litellm.acompletion(
            model=f"openai/{MODEL}",
            api_base=workload.url,
            api_key="none",
            messages=messages,
            tools=[TOOL],
            stream=True,
            stream_options={"include_usage": True},
        )

    return create
