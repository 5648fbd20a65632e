"""`Latch`: something that has happened, or not yet."""

from __future__ import annotations

import asyncio

from anyio import Event
from anyio.lowlevel import checkpoint


class Latch:
    """What `anyio.Event` is, but made of less: each message that is stored waits for one, and nobody for most others.

    On asyncio it wakes a bare future for each that waits, which takes two thirds of the time; on trio it is an event.
    """

    __slots__ = ("_event", "_futures", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: Event | None = None
        self._futures: list[asyncio.Future[None]] | None = None  # a cancelled waiter cancels its own, and no other's

    def set(self) -> None:
        """Let all go on that wait; idempotent, on the event loop's thread."""
        self._is_set = True
        if self._event is not None:
            self._event.set()
        for future in self._futures or ():
            if not future.done():
                future.set_result(None)
        self._futures = None

    def is_set(self) -> bool:
        """Tell whether it has happened."""
        return self._is_set

    async def wait(self) -> None:
        """Return when it has happened; others have their turn before, also when it has already."""
        if self._is_set:
            await checkpoint()
            return
        try:
            future = asyncio.get_running_loop().create_future()
        except RuntimeError:  # another event loop's
            self._event = self._event or Event()
            await self._event.wait()
            return
        if self._futures is None:
            self._futures = []
        self._futures.append(future)
        try:
            await future
        except BaseException:  # who leaves is not kept until it happens
            if self._futures is not None:
                self._futures.remove(future)
            raise
