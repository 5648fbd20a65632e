"""What all runtimes of an event loop share: connections, closed when nobody uses them, and a thread that loads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

T = TypeVar("T")

Close = Callable[[], Awaitable[None]]

_closing: list[Close] = []
_loading: RunVar[CapacityLimiter] = RunVar("streamagent_loading")


async def load_in_thread(function: Callable[[], T]) -> T:
    """Call what many want at once when they begin, and only the first one finds to do; the others take no threads."""
    limiter = _loading.get(None)
    if limiter is None:
        limiter = CapacityLimiter(1)
        _loading.set(limiter)
    return await to_thread.run_sync(function, abandon_on_cancel=True, limiter=limiter)


def closes_idle(close: Close) -> Close:
    """Register what closes that which is shared in the event loop that runs, unless it is in use."""
    _closing.append(close)
    return close


async def close_idle() -> None:
    """Close what is shared and not in use; a runtime does it when it is left."""
    for close in _closing:
        await close()
