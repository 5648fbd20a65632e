"""When to ask again, and how long to wait before: decisions only, no clock and no sleep."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from streamagent.errors import ModelError

# The model itself answered badly: asking again at once is what helps (quirks Q47, Q48).
_RESAMPLED = frozenset({"malformed_call", "empty_response"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential back-off with full jitter.

    Args:
        retries: How often a request is repeated.
        resamples: How often of these because the answer was malformed or empty.
        base: Longest first wait, in seconds; doubled each time.
        cap: Longest wait, in seconds; a provider that asks for more is given up.
        jitter: Gives numbers from 0 to 1.
    """

    retries: int = 3
    resamples: int = 2
    base: float = 0.5
    cap: float = 60.0
    jitter: Callable[[], float] = random.random

    def delay(self, attempt: int, error: ModelError, *, now: float, deadline: float) -> float | None:
        """Return the seconds to wait before the next attempt, or `None` to give up.

        Args:
            attempt: How many attempts have failed, from 1.
            error: What the last one failed with; nothing of it was shown to anybody.
            now: The current time.
            deadline: When the next attempt must have started, on the same clock.
        """
        limit = min(self.retries, self.resamples) if error.kind in _RESAMPLED else self.retries
        if not error.retryable or attempt > limit:
            return None
        if error.retry_after is not None:
            wait = max(0.0, error.retry_after)
        elif error.kind in _RESAMPLED:
            wait = 0.0
        else:
            wait = self.jitter() * min(self.cap, self.base * 2.0 ** (attempt - 1))
        return wait if wait <= self.cap and now + wait < deadline else None
