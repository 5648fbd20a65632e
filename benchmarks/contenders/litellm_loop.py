"""The peer: a loop over `litellm.acompletion` that keeps the text and the call. Nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import litellm
import orjson

from benchmarks.measure import RunSession
from benchmarks.workload import MODEL, PROMPT, TOOL, Workload, stock


@asynccontextmanager
async def open_sessions(workload: Workload) -> AsyncIterator[RunSession]:
    """Give what runs one session."""

    async def run_session(_name: str) -> str:
        messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
        text, call = await _turn(workload.url, messages)
        messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
        result = str(await stock(**orjson.loads(call["function"]["arguments"])))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        answer, _ = await _turn(workload.url, messages)
        return text + answer

    yield run_session


async def _turn(url: str, messages: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    answer = await litellm.acompletion(
        model=f"openai/{MODEL}",
        api_base=url,
        api_key="none",
        messages=messages,
        tools=[TOOL],
        stream=True,
        stream_options={"include_usage": True},
        max_retries=0,
    )
    text: list[str] = []
    call: dict[str, Any] = {}
    async for chunk in answer:
        for choice in chunk.choices:
            text.append(choice.delta.content or "")
            for piece in choice.delta.tool_calls or ():
                if not call:
                    call = {"id": piece.id, "type": "function", "function": {"name": piece.function.name}}
                    call["function"]["arguments"] = ""
                call["function"]["arguments"] += piece.function.arguments
    return "".join(text), call
