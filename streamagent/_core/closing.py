"""The rows that close what a run that was cut left open: cut messages are marked, each call has its result."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from streamagent.message import Message

UNKNOWN = "Interrupted: the run broke off before this call finished. Its outcome is unknown."


def close_all(  # noqa: PLR0913 - all by keyword but what is closed
    opened: Iterable[Message],
    calls: Iterable[Message],
    outcomes: Mapping[str, Message],
    *,
    cause: str,
    text: str,
    begun: Container[str] = (),
) -> list[Message]:
    """Say which fragments and results close a turn.

    Args:
        opened: Messages whose last fragment never came.
        calls: Complete calls without a result.
        outcomes: Results of finished calls that were not passed on, by the call's message id.
        cause: Why they are cut; it stands in `query.cut`.
        text: What the model reads as the result of a call that was not finished.
        begun: Message ids of calls that a process which died had begun: of those it reads that nobody knows.
    """
    cut = [_closed(message, cause) for message in opened]
    unanswered = [*calls, *(message for message in cut if message.type == "tool_call")]
    return [
        *cut,
        *(outcomes.get(call.id) or _result(call, cause, UNKNOWN if call.id in begun else text) for call in unanswered),
    ]


def _closed(message: Message, cause: str) -> Message:
    query = {**(message.query or {}), "cut": cause}
    if message.type == "tool_result":
        query |= {"is_error": True}
    if message.type == "tool_call":
        query |= {"args": None, "invalid": "truncated"}
    return replace(message, content="", query=query, more=False, sequence=None)


def _result(call: Message, cause: str, text: str) -> Message:
    asked = call.query or {}
    query = {"tool": asked.get("tool"), "id": asked.get("id"), "call": call.id, "is_error": True, "cut": cause}
    return Message(role="tool", type="tool_result", content=text, query=query)
