"""Counting what the model says, and the `stop` of a stage that has counted enough."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from streamagent.attempts import latest
from streamagent.message import Message
from streamagent.protocols import RunContext, Stream


def counted_as(kind: str) -> str | None:
    """Say which limit a type of message counts against."""
    if kind == "tool_call":
        return "tool_calls"
    return None if kind in ("stop", "progress", "approval", "cancel") else "messages"


def begins_turn(message: Message) -> bool:
    """Tell whether the model is asked next, unless the run ends or another prompt comes first."""
    if message.type == "stop":
        return not message.is_final
    return message.role in ("user", "system") and not message.more


async def earlier(run: RunContext) -> Stream:
    """Give the rows of a run that goes on after a pause or an interruption, so that its limits hold."""
    if run.since is None:
        return
    async for row in latest(_heads(run), stops=True):
        yield row


async def _heads(run: RunContext) -> Stream:
    """Give these rows without what is said in them: they are only counted, and calls compared."""
    async with aclosing(run.store.read(run.session, after=run.since or 0)) as rows:
        async for row in rows:
            yield row if row.type == "tool_call" else replace(row, content="")


def limit_stop(reason: str, limit: Mapping[str, Any], last: Message | None = None, **more: Any) -> Message:
    """End a turn because of a limit.

    Args:
        reason: The stop's reason.
        limit: Which limit, with its number.
        last: The turn's last message; what the model's own stop says of usage and else is kept.
        more: What else the stop says.
    """
    known = dict(last.query or {}) if last is not None and last.type == "stop" else {}
    known.pop("again", None)
    return Message.stop(**{**known, **more, "reason": reason, "limit": limit})


@dataclass(slots=True)
class Counts:
    """Messages of the model, counted when they open.

    Args:
        limits: How many of each may pass.
        passed: How many have.
        open: Ids of messages that passed and are not complete; a model has a few at a time.
        refused: The limit that was reached.
    """

    limits: Mapping[str, float]
    passed: dict[str, int]
    open: set[str] = field(default_factory=set)
    refused: str | None = None

    def passes(self, message: Message) -> bool:
        """Count a message that opens; once one was refused, only what is open is completed."""
        if message.more and message.id in self.open:  # nearly all fragments
            return True
        if message.path or message.sequence is not None:  # a sub-agent's, or of before: it was counted
            return True
        return self.counts(message)

    def counts(self, message: Message) -> bool:
        """Count a message that opens, or a row of before."""
        if self.refused and message.id not in self.open:
            return False
        name = counted_as(message.type) if message.role == "assistant" else None
        if name and name in self.limits and message.id not in self.open:
            if self.passed.get(name, 0) >= self.limits[name]:
                self.refused = name
                return False
            self.passed[name] = self.passed.get(name, 0) + 1
        (self.open.add if message.more else self.open.discard)(message.id)
        return True

    def ends(self, refused: Message) -> bool:
        """Tell by a refused message that the turn is over, or that nothing but refused ones would still stream."""
        return refused.type == "stop" or (refused.more and not self.open)
