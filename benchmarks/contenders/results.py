"""How the loops run the tool."""

from __future__ import annotations

from typing import Any

import orjson

from benchmarks.workload import stock


async def result_of(call: dict[str, Any]) -> dict[str, Any]:
    """Run the tool that was called, and say what it gave as chat completions have it."""
    result = str(await stock(**orjson.loads(call["function"]["arguments"])))
    return {"role": "tool", "tool_call_id": call["id"], "content": result}
