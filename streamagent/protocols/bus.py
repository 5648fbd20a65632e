"""`Bus`: how processes that share a store tell one another that a session has something to do."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Order(Protocol):
    """A session with something to do, as one process was told of it; one of the three is called in the end.

    Each does nothing when the bus cannot be reached: an order that is lost costs time and nothing else.
    """

    @property
    def session(self) -> str:
        """The session's id."""
        ...

    async def in_progress(self) -> None:
        """Say that it is being worked on, so that nobody else is told of it meanwhile."""
        ...

    async def done(self) -> None:
        """Say that nobody else need be told of it."""
        ...

    async def again(self, delay: float) -> None:
        """Have somebody told of it once more, after so many seconds."""
        ...


class Bus(AbstractAsyncContextManager["Bus"], Protocol):
    """Tells processes what to do. It is a hint: what is lost is found by looking, what comes twice finds nothing to do.

    No method raises because the other side is not there; entering it neither.
    """

    @property
    def interval(self) -> float:
        """How often whoever works on an order says so, in seconds."""
        ...

    async def announce(self, session: str) -> None:
        """Say that a session has something to do; returns within a second, also when nobody was told."""
        ...

    def listen(self) -> AsyncGenerator[Order, None]:
        """Take orders, each of which goes to one of those that listen; the next one when the generator is resumed."""
        ...
