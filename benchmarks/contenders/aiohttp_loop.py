"""The floor: read the events with aiohttp, parse them, keep the text and the call. Nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from benchmarks.measure import RunSession
from benchmarks.workload import MODEL, PROMPT, TOOL, Workload, stock


@asynccontextmanager
async def open_sessions(workload: Workload) -> AsyncIterator[RunSession]:
    """Give what runs one session."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def run_session(_name: str) -> str:
            messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
            text, call = await _turn(http, workload.url, messages)
            messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
            result = str(await stock(**orjson.loads(call["function"]["arguments"])))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            answer, _ = await _turn(http, workload.url, messages)
            return text + answer

        yield run_session


async def _turn(http: aiohttp.ClientSession, url: str, messages: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
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
                text.append(choice["delta"].get("content") or "")
                for piece in choice["delta"].get("tool_calls", ()):
                    if call:
                        call["function"]["arguments"] += piece["function"]["arguments"]
                    else:
                        call = piece
    return "".join(text), call
