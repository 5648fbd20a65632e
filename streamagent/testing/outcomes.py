"""What sessions under load did: whether they gave text and ended well, and what became of their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from streamagent.message import Message
from streamagent.protocols import Stream

_GOOD = "stop"  # the reason of an answer that is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one session did.

    Args:
        text: Its reader got text.
        reason: Of the last `stop` that its reader got; `None` without one.
        calls: How many calls are stored.
        unanswered: How many of them have no result.
        errors: The first line of each result that is an error.
    """

    text: bool
    reason: str | None
    calls: int = 0
    unanswered: int = 0
    errors: Sequence[str] = ()

    @property
    def worked(self) -> bool:
        """It did what it is measured for."""
        return self.text and self.reason == _GOOD


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What went wrong in several sessions.

    Args:
        count: How many sessions, or calls.
        of: How many there are.
        what: `sessions` or `calls`, and what is the matter with them.
    """

    count: int
    of: int
    what: str

    def __str__(self) -> str:
        return f"{self.count} of {self.of} {self.what}"


async def look_at(rows: Stream, *, text: bool, stop: Message | None) -> Outcome:
    """Say what a session did.

    Args:
        rows: What is stored of it.
        text: Its reader got text.
        stop: The last `stop` that its reader got.
    """
    calls: set[str] = set()
    results: set[str] = set()
    errors: list[str] = []
    async for row in rows:
        query = row.query or {}
        if row.path:
            continue  # a sub-agent's
        if row.type == "tool_call":
            calls.add(row.id)
        elif row.type == "tool_result":
            results.add(query.get("call", ""))
            if query.get("is_error"):
                errors.append(next(iter(row.content.strip().splitlines()), ""))
    reason = None if stop is None else (stop.query or {}).get("reason")
    return Outcome(text=text, reason=reason, calls=len(calls), unanswered=len(calls - results), errors=errors)


def find_troubles(outcomes: Sequence[Outcome]) -> Sequence[Trouble]:
    """Say what went wrong, one for each kind; of the results that are errors, the most frequent is quoted."""
    return [*_sessions(outcomes), *_calls(outcomes)]


def _sessions(outcomes: Sequence[Outcome]) -> Iterator[Trouble]:
    silent = sum(not outcome.text for outcome in outcomes)
    if silent:
        yield Trouble(count=silent, of=len(outcomes), what="sessions gave no text")
    ends = Counter(outcome.reason for outcome in outcomes if outcome.reason != _GOOD)
    for reason, count in ends.most_common():
        how = "without a stop" if reason is None else f"with the reason {reason}"
        yield Trouble(count=count, of=len(outcomes), what=f"sessions ended {how}")


def _calls(outcomes: Sequence[Outcome]) -> Iterator[Trouble]:
    calls = sum(outcome.calls for outcome in outcomes)
    errors = Counter(error for outcome in outcomes for error in outcome.errors)
    if errors:
        what = f"calls had an error as their result: {errors.most_common(1)[0][0]}"
        yield Trouble(count=errors.total(), of=calls, what=what)
    unanswered = sum(outcome.unanswered for outcome in outcomes)
    if unanswered:
        yield Trouble(count=unanswered, of=calls, what="calls had no result")
