"""The ledger of effects: what is known of calls that were started. No IO, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamagent.message import Message
from streamagent.records import CallRecord

from ._codec import decode_query


@dataclass(slots=True, kw_only=True)
class Effect:
    """A call that was started, as it is kept.

    Args:
        call: Id of its message.
        attempts: How often it was started.
        outcome: Its result, as JSON text.
    """

    call: str
    attempts: int = 0
    outcome: str | None = None


def records(effects: Iterable[Effect]) -> list[CallRecord]:
    """Give them as a store tells of them."""
    return [
        CallRecord(call=effect.call, attempts=effect.attempts, outcome=_result(effect.outcome)) for effect in effects
    ]


def _result(outcome: str | None) -> Message | None:
    """Build the result of a call."""
    told = decode_query(outcome)
    if told is None:
        return None
    return Message(id=told["id"], role="tool", type="tool_result", content=told["content"], query=told["query"])
