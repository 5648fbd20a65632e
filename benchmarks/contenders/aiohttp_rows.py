"""The floor of what is stored: the aiohttp loop, with a row a message, all of which it reads and sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.contender import Contender, Heard
from benchmarks.workload import PROMPT, Workload

from .aiohttp_loop import ask, open_http
from .results import result_of
from .rows import open_rows


@asynccontextmanager
async def open_contender(workload: Workload) -> AsyncIterator[Contender]:
    """Give what runs one session."""
    async with open_http() as http, open_rows(workload.folder) as rows:

        async def run(name: str, hear: Heard) -> None:
            await rows.append(name, {"role": "user", "content": PROMPT})
            messages: list[dict[str, Any]] = await rows.read(name)
            text, call = await ask(http, workload.url, messages, hear)
            for message in ({"role": "assistant", "content": text, "tool_calls": [call]}, await result_of(call)):
                messages.append(message)
                await rows.append(name, message)
            text, _ = await ask(http, workload.url, messages, hear)
            await rows.append(name, {"role": "assistant", "content": text})

        yield Contender(run=run, fill=rows.fill)
