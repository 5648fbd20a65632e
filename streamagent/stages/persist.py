"""`persist`: what passes here is in the store."""

from __future__ import annotations

import math
from dataclasses import replace

from streamagent.duties import mark
from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.protocols import RunContext, Stage, Stream

LAGGED = frozenset({"text", "reasoning"})


def persist(*, lag_ms: float = 50, lag_bytes: int = 4096) -> Stage:
    """Store every message on its way.

    A tool call, a result, a stop and everything else but text is committed before it is passed on. Text and other
    unfinished messages are committed within the lag: what was shown is stored exactly however the run ends, unless
    the process is killed, which loses at most the lag.

    Args:
        lag_ms: How long shown text may wait for its commit, in milliseconds; 0 commits before it is passed on.
        lag_bytes: How much shown text may wait, in bytes of UTF-8.

    Raises:
        ConfigError: A lag that is negative or without end.
        StoreError: From the stage, when a write fails; nothing that was not stored is passed on after it.
    """
    if not (0 <= lag_ms < math.inf and 0 <= lag_bytes < math.inf):
        raise ConfigError(f"lag_ms and lag_bytes are 0 or more, not {lag_ms} and {lag_bytes}")

    async def stage(stream: Stream, run: RunContext) -> Stream:
        store, session, fence = run.store, run.session, run.fence
        lag = lag_ms / 1000
        async for message in stream:
            if message.sequence is not None or message.type == "progress" or (message.query and message.path):
                yield message  # a row already, nothing that lasts, or a sub-agent's, which its own run stores
            elif lag and (message.more or message.type in LAGGED):
                waiting = store.write_soon(session, message, fence=fence, lag=lag)
                if waiting >= lag_bytes:
                    await store.flush(session)
                yield message
            else:
                row = _counted(message, run)
                [sequence] = await store.write(session, [row], fence=fence)
                yield replace(row, session=session, sequence=sequence)

    return mark(stage, "persist")


def _counted(message: Message, run: RunContext) -> Message:
    """Let the `stop` of a stage that ended an answer say what that took; the provider did not come to it (T124)."""
    query = message.query or {}
    if message.type != "stop" or "usage" in query or run.cut_usage is None:
        return message
    return replace(message, query={**query, "usage": run.cut_usage})
