"""LiteLLM: `acompletion`, streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.contender import Contender, Heard
from benchmarks.workload import Workload

from .completions import converse
from .litellm_loop import creator
from .rows import open_rows


@asynccontextmanager
async def open_contender(workload: Workload) -> AsyncIterator[Contender]:
    """Give what runs one session."""
    create = creator(workload)
    async with open_rows(workload.folder) as rows:

        async def run(name: str, hear: Heard) -> None:
            await converse(create, rows, name, hear)

        yield Contender(run=run, fill=rows.fill)
