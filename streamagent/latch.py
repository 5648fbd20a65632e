"""`Latch`: something that has happened, or not yet."""

from __future__ import annotations

from anyio import Event
from anyio.lowlevel import checkpoint


class Latch:
    """What `anyio.Event` is, made when somebody waits for it: nearly always nobody does, and one takes 0.9 KB."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._event: Event | None = None
        self._is_set = False

    def set(self) -> None:
        """Let all go on that wait; idempotent."""
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def is_set(self) -> bool:
        """Tell whether it has happened."""
        return self._is_set

    async def wait(self) -> None:
        """Return when it has happened."""
        if self._is_set:
            await checkpoint()
            return
        if self._event is None:
            self._event = Event()
        await self._event.wait()
