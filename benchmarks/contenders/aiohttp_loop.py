"""The floor: read the events with aiohttp, parse them, keep the text and the call. It stores nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from benchmarks.contender import Contender, Heard
from benchmarks.workload import MODEL, PROMPT, TOOL, Workload

from .results import result_of


@asynccontextmanager
async def open_contender(workload: Workload) -> AsyncIterator[Contender]:
    """Give what runs one session."""
    async with open_http() as http:

        async def run(_name: str, hear: Heard) -> None:
            messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
            text, call = await ask(http, workload.url, messages, hear)
            messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
            messages.append(await result_of(call))
            await ask(http, workload.url, messages, hear)

        yield Contender(run=run)


def open_http() -> aiohttp.ClientSession:
    """Make a client without a limit of connections."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def ask(
    http: aiohttp.ClientSession, url: str, messages: list[dict[str, Any]], hear: Heard
) -> tuple[str, dict[str, Any]]:
    """Ask once; return the text and the call."""
    body = {
        "model": MODEL,
        "messages": messages,
        "tools": [TOOL],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text: list[str] = []
    call: dict[str, Any] = {}
    async with http.post(f"{url}/chat/completions", json=body) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            for choice in orjson.loads(line[6:])["choices"]:
                if content := choice["delta"].get("content"):
                    text.append(content)
                    hear(content)
                for piece in choice["delta"].get("tool_calls", ()):
                    if call:
                        call["function"]["arguments"] += piece["function"]["arguments"]
                    else:
                        call = piece
    return "".join(text), call
