"""A token bucket that hands out waiting times. It never waits, and is told what time it is."""

from __future__ import annotations


class Bucket:
    """So much per period, refilled evenly, with a burst of one period's worth.

    Whoever reserves more than is there makes a debt and waits until it is refilled. A later one finds that debt and
    waits behind it, so the order of the calls is the order in which they may go.

    Args:
        capacity: What one period gives.
        period: Length of the period, in seconds.
        now: The time, in seconds on any steady clock.
    """

    __slots__ = ("_at", "_level", "capacity", "rate")

    def __init__(self, capacity: float, *, period: float = 60.0, now: float) -> None:
        self.capacity = capacity
        self.rate = capacity / period
        self._level = capacity
        self._at = now

    def reserve(self, amount: float, *, now: float) -> float:
        """Take an amount, or give a negative one back.

        Args:
            amount: How much.
            now: The time; an earlier one than before refills nothing.

        Returns:
            Seconds until it may be used; 0.0 = go.
        """
        self._refill(now)
        self._level = min(self._level - amount, self.capacity)
        return max(-self._level / self.rate, 0.0)

    def is_full(self, *, now: float) -> bool:
        """Tell whether it is as good as a new one."""
        self._refill(now)
        return self._level >= self.capacity

    def _refill(self, now: float) -> None:
        self._level = min(self._level + max(now - self._at, 0.0) * self.rate, self.capacity)
        self._at = max(self._at, now)
