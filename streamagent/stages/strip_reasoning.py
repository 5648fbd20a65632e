"""`strip_reasoning`: what the model thinks stays behind the curtain."""

from __future__ import annotations

from streamagent.protocols import Stage, Stream


def strip_reasoning() -> Stage:
    """Hide the model's reasoning from everyone downstream; what `persist` stored upstream stays."""

    async def stage(stream: Stream) -> Stream:
        async for message in stream:
            if message.type != "reasoning":
                yield message

    return stage
