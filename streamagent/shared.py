"""What all runtimes of an event loop share, such as connections to providers: it is closed when nobody uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

Close = Callable[[], Awaitable[None]]

_closing: list[Close] = []


def closes_idle(close: Close) -> Close:
    """Register what closes that which is shared in the event loop that runs, unless it is in use."""
    _closing.append(close)
    return close


async def close_idle() -> None:
    """Close what is shared and not in use; a runtime does it when it is left."""
    for close in _closing:
        await close()
