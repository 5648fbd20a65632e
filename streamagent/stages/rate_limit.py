"""`rate_limit`: so many messages and tool calls, and not one more."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.protocols import RunContext, Stage, Stream


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
        counts = _Counts(limits, await _stored(run) if scope == "session" else {})
        async for message in stream:
            if (counts.refused is None or message.id in counts.open) and counts.passes(message):
                yield message
            elif counts.refused and (message.type == "stop" or (message.more and not counts.open)):
                # The turn is over, or nothing but refused messages would still stream: read no more of it.
                yield _stop(message, limit={counts.refused: limits[counts.refused], "scope": scope})
                return
        if counts.refused:
            yield Message.stop("rate_limit", limit={counts.refused: limits[counts.refused], "scope": scope})

    return stage


def _is_count(value: object) -> bool:
    return value == math.inf or (isinstance(value, int) and value >= 0)


def _stop(last: Message, limit: dict[str, object]) -> Message:
    """End the turn; what the model's own stop says of usage is kept."""
    known = dict(last.query or {}) if last.type == "stop" else {}
    return Message.stop(**{**known, "reason": "rate_limit", "limit": limit})


async def _stored(run: RunContext) -> dict[str, int]:
    stored = {"messages": 0, "tool_calls": 0}
    for (role, kind), number in (await run.store.tally(run.session)).items():
        if role == "assistant" and (name := _counted(kind)):
            stored[name] += number
    return stored


def _counted(kind: str) -> str | None:
    if kind == "tool_call":
        return "tool_calls"
    return None if kind in ("stop", "progress", "approval", "cancel") else "messages"


@dataclass(slots=True)
class _Counts:
    limits: dict[str, float]
    passed: dict[str, int]
    open: set[str] = field(default_factory=set)
    refused: str | None = None

    def passes(self, message: Message) -> bool:
        """Count a message that opens; remember what is open, so that it can be completed."""
        name = _counted(message.type) if message.role == "assistant" else None
        if name and message.id not in self.open:
            if self.passed.get(name, 0) >= self.limits[name]:
                self.refused = name
                return False
            self.passed[name] = self.passed.get(name, 0) + 1
        (self.open.add if message.more else self.open.discard)(message.id)
        return True
