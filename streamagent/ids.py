"""`new_id`: ids in the order of time; `utc_now`."""

from __future__ import annotations

import os
import threading
import time
from datetime import datetime, timezone


class _Ticks:
    """A clock that never gives the same tick twice, also when the system's steps back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> int:
        """48 bits of milliseconds followed by 12 bits of their fraction (RFC 9562 §6.2, method 3)."""
        now_ns = time.time_ns()
        tick = (now_ns // 1_000_000 << 12) | (now_ns % 1_000_000 * 4096 // 1_000_000)
        with self._lock:
            self._last = max(tick, self._last + 1)
            return self._last


_ticks = _Ticks()


def new_id() -> str:
    """Mint a UUIDv7 (RFC 9562 §5.7): time-ordered, strictly increasing within this process."""
    stamp = _ticks.next()
    tail = int.from_bytes(os.urandom(8), "big")
    value = (stamp >> 12 << 80) | (7 << 76) | ((stamp & 0xFFF) << 64) | (0b10 << 62) | (tail & (1 << 62) - 1)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(timezone.utc)
