"""`rate_limit`: so many messages and tool calls, and not one more."""

from __future__ import annotations

import math
from typing import Literal

from streamagent.errors import ConfigError
from streamagent.protocols import RunContext, Stage, Stream

from ._counting import Counts, counted_as, earlier, limit_stop


def rate_limit(
    *,
    messages: float = math.inf,
    tool_calls: float = math.inf,
    scope: Literal["run", "session"] = "run",
) -> Stage:
    """Let exactly so many of the model's messages and tool calls through.

    The one beyond the limit is not passed on, so it is neither stored nor run. What was passed is completed, then the
    stream ends with a `stop` of reason `rate_limit` whose `limit` names the number that was reached.

    Args:
        messages: How many messages of the model may pass, tool calls and stops not counted.
        tool_calls: How many tool calls may pass.
        scope: Count within one run, or all that the session holds.

    Raises:
        ConfigError: A negative number, or an unknown scope.
    """
    if not (_is_count(messages) and _is_count(tool_calls) and scope in ("run", "session")):
        given = f"messages={messages!r}, tool_calls={tool_calls!r}, scope={scope!r}"
        raise ConfigError(f"rate_limit takes whole numbers of 0 or more and scope 'run' or 'session', not {given}")

    async def stage(stream: Stream, run: RunContext) -> Stream:
        limits = {"messages": messages, "tool_calls": tool_calls}
        counts = Counts(limits, await _stored(run) if scope == "session" else {})
        if scope == "run":
            async for row in earlier(run):
                counts.counts(row)
        async for message in stream:
            if counts.passes(message):
                yield message
            elif counts.refused and counts.ends(message):
                yield limit_stop("rate_limit", {counts.refused: limits[counts.refused], "scope": scope}, message)
                return
        if counts.refused:
            yield limit_stop("rate_limit", {counts.refused: limits[counts.refused], "scope": scope})

    return stage


def _is_count(value: object) -> bool:
    return value == math.inf or (isinstance(value, int) and value >= 0)


async def _stored(run: RunContext) -> dict[str, int]:
    stored = {"messages": 0, "tool_calls": 0}
    for (role, kind), number in (await run.store.tally(run.session)).items():
        if role == "assistant" and (name := counted_as(kind)):
            stored[name] += number
    return stored
