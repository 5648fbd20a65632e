"""What becomes of a run that did not end by itself: cut messages are marked, calls are closed, a `stop` says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from ._core.closing import close_all
from .message import Message
from .protocols import Store
from .records import Unfinished

Cause = Literal["aborted", "crashed", "deadline", "ended", "error", "forked", "superseded"]

_CALL_TEXTS: dict[Cause, str] = {
    "aborted": "Cancelled before it finished.",
    "crashed": "Interrupted: the process ended before this call finished. Its outcome is unknown.",
    "deadline": "Stopped: the run's time was over before this call finished.",
    "ended": "Not executed: the run ended before this call.",
    "error": "Stopped: the run failed before this call finished.",
    "forked": "Not known here: this session was forked before the call's result.",
    "superseded": "Not executed: the conversation went on before anybody approved this call.",
}

_STOPS: dict[Cause, dict[str, Any]] = {
    "aborted": {"reason": "aborted"},
    "crashed": {
        "reason": "aborted",
        "error": {"kind": "interrupted", "message": "the process ended before the answer", "retryable": True},
    },
    "deadline": {"reason": "deadline"},
    "ended": {"reason": "ended"},
    "error": {
        "reason": "error",
        "error": {"kind": "internal", "message": "the run failed; its reader got the error", "retryable": False},
    },
    "forked": {
        "reason": "aborted",
        "error": {
            "kind": "forked",
            "message": "the session was forked before the end of the answer",
            "retryable": True,
        },
    },
    "superseded": {"reason": "superseded"},
}


async def settle(  # noqa: PLR0913 - all by keyword
    store: Store,
    session: str,
    *,
    fence: int,
    cause: Cause,
    outcomes: Mapping[str, Message] | None = None,
    left: Unfinished | None = None,
) -> list[Message]:
    """Close what a run left open. Calls that wait for an approval go on waiting when the process had crashed.

    Args:
        store: Where the session lives.
        session: The session.
        fence: The writer's fence.
        cause: Why the run is over; a fork's own reason, as long as nothing was written to it, is `forked`. A pause
            ends with `superseded` alone.
        outcomes: Results of finished calls that were not stored, by the call's message id.
        left: What it left open, when that is known.

    Returns:
        The rows that were added, with their sequence; the closing fragments of cut messages among them.
    """
    left = left or await store.unfinished(session)
    rows = closings(left, "forked" if left.forked else cause, outcomes or {})
    if not rows:
        return []
    sequences = await store.write(session, rows, fence=fence)
    numbered = zip(rows, sequences, strict=True)
    return [replace(row, session=session, sequence=sequence) for row, sequence in numbered]


def closings(left: Unfinished, cause: Cause, outcomes: Mapping[str, Message]) -> list[Message]:
    """Say which rows close an unfinished session; none when it ended in a final `stop`."""
    if left.at_rest and not (cause == "superseded" and left.approvals):
        return []
    paused = cause == "crashed" and left.approvals
    calls, requests = (left.cut, ()) if paused else (left.calls, left.approvals)
    rows = close_all(left.open, calls, outcomes, cause=cause, text=_CALL_TEXTS[cause])
    stop = {"reason": "paused", "approvals": [row.id for row in left.approvals]} if paused else _STOPS[cause]
    return [*(_expired(request, cause) for request in requests), *rows, Message.stop(**stop)]


def _expired(request: Message, cause: Cause) -> Message:
    """Say that a call does not wait for a decision any more."""
    asked = request.query or {}
    query = {"approval": request.id, "call": asked.get("call"), "decision": "expired", "reason": cause}
    return Message(role="tool", type="approval", query=query)
