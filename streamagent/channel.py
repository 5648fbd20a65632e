"""`Channel`: a bounded queue between two tasks of one event loop."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from anyio import BrokenResourceError, EndOfStream

from .latch import Latch

T = TypeVar("T")


class Channel(Generic[T]):
    """What anyio's memory object stream is, but made of less: an answer passes by here chunk for chunk.

    An item is taken from the queue in the same step in which `receive` returns it, so that a cancelled one loses none.

    Args:
        size: How many items may wait.
    """

    __slots__ = ("_closed", "_items", "_receiver", "_sender", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[T] = deque()
        self._closed = False
        self._receiver: Latch | None = None  # set when there is something, made by who waits for that
        self._sender: Latch | None = None  # set when there is room

    async def send(self, item: T) -> None:
        """Put something into the queue, as soon as there is room.

        Raises:
            BrokenResourceError: It was closed.
        """
        while not self.offer(item):
            if self._closed:
                raise BrokenResourceError
            self._sender = self._sender or Latch()
            await self._sender.wait()

    def offer(self, item: T) -> bool:
        """Put something into the queue if there is room; tell whether."""
        if self._closed or len(self._items) >= self._size:
            return False
        self._items.append(item)
        if self._receiver is not None:
            self._receiver.set()
            self._receiver = None
        return True

    async def receive(self) -> T:
        """Take what waits longest, as soon as there is something.

        Raises:
            EndOfStream: It was closed, and everything was taken.
        """
        while not self._items:
            if self._closed:
                raise EndOfStream
            self._receiver = self._receiver or Latch()
            await self._receiver.wait()
        item = self._items.popleft()
        if self._sender is not None:
            self._sender.set()
            self._sender = None
        return item

    def close(self, *, drop: bool = False) -> None:
        """Take nothing more; whoever waits is woken.

        Args:
            drop: Nobody receives what waits.
        """
        self._closed = True
        if drop:
            self._items.clear()
        for waiting in (self._receiver, self._sender):
            if waiting is not None:
                waiting.set()
        self._receiver = self._sender = None
