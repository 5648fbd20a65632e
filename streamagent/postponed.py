"""`Postponed`: which sessions are tried again, and when: later and later."""

from __future__ import annotations

import random
from dataclasses import dataclass

from anyio import current_time

MOST = 10_000  # sessions: a megabyte or two; the one that was put off first is forgotten then, and tried again sooner
LONGEST = 300.0  # seconds, for one that fails: whatever was wrong with it may have been repaired
IDLE = 8  # sweeps, for one in which nothing was to be done: a prompt may come
DOUBLINGS = 16


@dataclass(slots=True)
class _Delay:
    times: int = 0
    due: float = 0.0


class Postponed:
    """Sessions that are tried again later, `MOST` at most.

    Args:
        first: How long one waits for its second try, in seconds.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._delays: dict[str, _Delay] = {}

    def __len__(self) -> int:
        return len(self._delays)

    def is_due(self, session: str) -> bool:
        """Tell whether a session may be tried."""
        delay = self._delays.get(session)
        return delay is None or current_time() >= delay.due

    def put_off(self, session: str, *, failed: bool) -> None:
        """Try a session again after twice the time of the last time."""
        delay = self._delays.pop(session, None) or _Delay()
        longest = LONGEST if failed else IDLE * self._first
        wait = min(self._first * 2 ** min(delay.times, DOUBLINGS), longest)
        delay.times += 1
        delay.due = current_time() + wait * random.uniform(0.75, 1.25)  # noqa: S311 - what failed together spreads
        self._delays[session] = delay
        if len(self._delays) > MOST:
            del self._delays[next(iter(self._delays))]

    def forget(self, session: str) -> None:
        """Treat a session like any other again."""
        self._delays.pop(session, None)
