"""The loop that the OpenAI SDK and LiteLLM share: chunks of chat completions, and messages kept as they are sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.contender import Heard
from benchmarks.workload import PROMPT

from .results import result_of
from .rows import Rows

Create = Callable[[list[dict[str, Any]]], Awaitable[Any]]


async def converse(create: Create, rows: Rows, name: str, hear: Heard) -> None:
    """Run a session whose messages are rows."""
    await rows.append(name, {"role": "user", "content": PROMPT})
    messages: list[dict[str, Any]] = await rows.read(name)
    text, call = await turn(create, messages, hear)
    for message in ({"role": "assistant", "content": text, "tool_calls": [call]}, await result_of(call)):
        messages.append(message)
        await rows.append(name, message)
    text, _ = await turn(create, messages, hear)
    await rows.append(name, {"role": "assistant", "content": text})


async def turn(create: Create, messages: list[dict[str, Any]], hear: Heard) -> tuple[str, dict[str, Any]]:
    """Ask once; return the text and the call."""
    text: list[str] = []
    call: dict[str, Any] = {}
    async for chunk in await create(messages):
        for choice in chunk.choices:
            if content := choice.delta.content:
                text.append(content)
                hear(content)
            for piece in choice.delta.tool_calls or ():
                if not call:
                    call = {"id": piece.id, "type": "function", "function": {"name": piece.function.name}}
                    call["function"]["arguments"] = ""
                call["function"]["arguments"] += piece.function.arguments
    return "".join(text), call
