"""What becomes of a run that did not end by itself: cut messages are marked, calls are closed, a `stop` says why."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from anyio import move_on_after

from ._core.closing import UNKNOWN, close_all
from .message import Message, afold, each
from .pipeline import Chain
from .protocols import RunContext, Stage, Store
from .records import Unfinished

logger = logging.getLogger("streamagent")

SCRUB_TIMEOUT = 1.0  # seconds for the results of a run that was cut to pass its stages
WITHHELD = "Finished, but its result was not stored: it did not pass the pipeline when the run was cut."
Cause = Literal[
    "aborted", "crashed", "deadline", "ended", "error", "forked", "handover", "interrupted", "poison", "superseded"
]

_CALL_TEXTS: dict[Cause, str] = {
    "aborted": "Cancelled before it finished.",
    "crashed": UNKNOWN,
    "deadline": "Stopped: the run's time was over before this call finished.",
    "ended": "Not executed: the run ended before this call.",
    "error": "Stopped: the run failed before this call finished.",
    "forked": "Not known here: this session was forked before the call's result.",
    "interrupted": "Interrupted by the user before it finished.",
    "poison": UNKNOWN,
    "superseded": "Not executed: the conversation went on before anybody approved this call.",
}

_STOPS: dict[Cause, dict[str, Any]] = {
    "aborted": {"reason": "aborted"},
    "crashed": {
        "reason": "aborted",
        "error": {"kind": "interrupted", "message": "the run broke off before the answer", "retryable": True},
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
    "interrupted": {"reason": "aborted", "cut": "interrupted"},
    "poison": {
        "reason": "error",
        "error": {
            "kind": "poison",
            "message": "the process ended each time this run was tried; it is given up, the session goes on",
            "retryable": False,
        },
    },
    "superseded": {"reason": "superseded"},
}


_AFTER_DEATH = ("crashed", "poison")
_NEVER_BEGUN = "Not executed: the run broke off before this call began."
ENDED_WELL = frozenset({"stop"})  # after which nothing that was cut may stand

Scrub = Callable[[Mapping[str, Message]], Awaitable[Mapping[str, Message]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the process knows of a run that was cut in it, beside its rows.

    Args:
        outcomes: Results of finished calls that were not stored, by the call's message id.
        scrub: What they pass before they are.
        said: What the `stop` says besides.
        begun: Message ids of calls that a process which died before had begun.
    """

    outcomes: Mapping[str, Message] = field(default_factory=dict)
    scrub: Scrub | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    begun: Collection[str] = ()


_UNKNOWN = Known()


async def settle(  # noqa: PLR0913 - all by keyword
    store: Store,
    session: str,
    *,
    fence: int,
    cause: Cause,
    known: Known = _UNKNOWN,
    left: Unfinished | None = None,
    by: Message | None = None,
) -> list[Message]:
    """Close what a run left open. Calls that wait for an approval go on waiting when the process had crashed.

    Args:
        store: Where the session lives.
        session: The session.
        fence: The writer's fence.
        cause: Why the run is over; a fork's own reason, as long as nothing was written to it, is `forked`. A pause
            ends with `superseded` alone, or by a `cancel`.
        known: What is known of the run.
        left: What it left open, when that is known.
        by: The `cancel` that ended the run.

    Returns:
        The rows that were added, with their sequence; the closing fragments of cut messages among them. At the end a
        `stop`, which may have been there before.
    """
    left = left or await store.unfinished(session)
    sent = [row for row in await store.inbox(session) if row.type == "cancel"] if cause == "aborted" else []
    ended = cause == "superseded" or sent or by  # no call waits for an approval any more
    if left.at_rest and not (left.approvals and ended):
        return []
    outcomes = await _outcomes(left, known)
    if not left.forked and (cause in _AFTER_DEATH or (cause == "aborted" and known is _UNKNOWN)):
        outcomes = await _on_record(store, session, left, cause)
    rows = closings(left, "forked" if left.forked else cause, outcomes, known)
    ids = [row.id for row in sent]
    if sent:  # from other processes
        sent = await store.admit(session, fence=fence, limit=len(ids), ids=ids)
    if by is not None and by.id not in ids:
        rows.insert(0, by)
    sequences = await store.write(session, rows, fence=fence)
    numbered = zip(rows, sequences, strict=True)
    last = [] if rows[-1].type == "stop" or left.last is None else [left.last]  # it was written as it was cut
    return [*sent, *(replace(row, session=session, sequence=sequence) for row, sequence in numbered), *last]


async def _outcomes(left: Unfinished, known: Known) -> Mapping[str, Message]:
    """Return the results that are known of calls that have none, as they are stored."""
    calls = (*left.calls, *left.open)
    outcomes: Mapping[str, Message] = {call.id: known.outcomes[call.id] for call in calls if call.id in known.outcomes}
    return await known.scrub(outcomes) if outcomes and known.scrub is not None else outcomes


async def _on_record(store: Store, session: str, left: Unfinished, cause: Cause) -> Mapping[str, Message]:
    """Return what the ledger knows of calls whose process died: their results, and that some never began."""
    known = {record.call: record.outcome for record in await store.calls(session)}
    ended = {call: outcome for call, outcome in known.items() if outcome is not None}
    calls = [call for call in (*left.cut, *left.open) if call.type == "tool_call" and call.id not in ended]
    others = close_all((), calls, {}, cause=cause, text=_NEVER_BEGUN, begun=known)
    return ended | {call.id: result for call, result in zip(calls, others, strict=True)}


def closings(left: Unfinished, cause: Cause, outcomes: Mapping[str, Message], known: Known) -> list[Message]:
    """Say which rows close an unfinished session; `outcomes` are results of its calls as they are stored."""
    paused = cause == "crashed" and left.approvals
    calls, requests = (left.cut, ()) if paused else (left.calls, left.approvals)
    rows = close_all(left.open, calls, outcomes, cause=cause, text=_CALL_TEXTS[cause], begun=known.begun)
    stop = {"reason": "paused", "approvals": [row.id for row in left.approvals]} if paused else _STOPS[cause]
    rows = [*(_expired(request, cause) for request in requests), *rows]
    failed = left.last is not None and left.last.is_final and (left.last.query or {}).get("reason") not in ENDED_WELL
    has_last_word = failed and not left.calls
    return rows if has_last_word else [*rows, Message.stop(**{**stop, **known.said})]


def _expired(request: Message, cause: Cause) -> Message:
    """Say that a call does not wait for a decision any more."""
    asked = request.query or {}
    query = {"approval": request.id, "call": asked.get("call"), "decision": "expired", "reason": cause}
    return Message(role="tool", type="approval", query=query)


async def scrub(results: Mapping[str, Message], stages: Sequence[Stage], run: RunContext) -> Mapping[str, Message]:
    """Pass results through the stages between the tools and the store, as they would have passed in the run.

    What does not come out at the end is not stored; its call gets a result that says so.

    Args:
        results: Whole results, by the call's message id.
        stages: The stages.
        run: What they get that want the run.
    """
    if not stages:
        return results
    by_id: dict[str, Message] = {}
    chain = Chain(each(results.values()))
    try:
        with move_on_after(SCRUB_TIMEOUT):
            await chain.extend(stages, run)
            passed = await afold(chain.tail)
            by_id = {message.id: message for message in passed if message.type == "tool_result" and not message.more}
    except Exception:
        logger.exception("session %s: results of a run that was cut are not stored", run.session)
    finally:
        await chain.aclose(SCRUB_TIMEOUT)
    return {call: by_id.get(result.id) or _withheld(result) for call, result in results.items()}


def _withheld(result: Message) -> Message:
    told = {key: value for key, value in (result.query or {}).items() if key in ("tool", "id", "call")}
    return replace(result, content=WITHHELD, query={**told, "is_error": True})
