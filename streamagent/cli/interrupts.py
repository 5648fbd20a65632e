"""Ctrl-C and its kin: what a signal stops, and the exit code it leads to."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import anyio
from anyio import CancelScope

from .output import OutputError

T = TypeVar("T")

# SIGHUP, the terminal that goes away, is not on every system.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """A signal ends the command.

    Args:
        number: The signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number  # as shells report it


class Interrupts:
    """Turns signals into cancellation while an event loop runs, which tears nothing, and else into `Interrupted`.

    The loop runs in the main thread, where Python handles signals. One that is ignored stays so, as `nohup` wants it.
    """

    def __init__(self) -> None:
        self._waiting = False  # a signal waits for the loop
        self._pending: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope: CancelScope | None = None

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals in this block, which is in the main thread."""
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        handled = {number: handler for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}
        for number in handled:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in handled.items():
                signal.signal(number, handler)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run something in an event loop; the first signal cancels it where it is in `cut`.

        Raises:
            Interrupted: A signal came, and was not forgotten; a second Ctrl-C raises it at once.
        """
        self._waiting = True
        try:
            result = anyio.run(self._main, work)
        except OutputError as error:
            if self._pending is None:
                raise
            raise Interrupted(self._pending) from error  # the terminal has hung up
        finally:
            self._waiting = False
        if self._pending is not None:
            raise Interrupted(self._pending)
        return result

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Cancel this block when a signal comes, or has come; what opens and closes things stays outside."""
        with CancelScope() as scope:
            self._scope = scope
            self._cancel()
            try:
                yield
            finally:
                self._scope = None

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Let signals raise `Interrupted` in this block: it holds the loop up, so nothing could be cancelled."""
        self._waiting = False
        try:
            if self._pending is not None:
                raise Interrupted(self._pending)
            yield
        finally:
            self._waiting = True

    def take(self) -> None:
        """Have it that the signal is dealt with; the next one ends the process at once."""
        for number in _SIGNALS:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)
        self._pending = None

    def forget_ctrl_c(self) -> None:
        """Go on after a Ctrl-C; other signals still end the command."""
        if self._pending == signal.SIGINT:
            self._pending = None

    async def _main(self, work: Callable[[], Awaitable[T]]) -> T:
        self._loop = asyncio.get_running_loop()
        try:
            return await work()
        finally:
            self._loop = None

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        again = number == self._pending == signal.SIGINT  # somebody is impatient; other signals repeat by themselves
        if again or not self._waiting:
            raise Interrupted(number)
        self._pending = self._pending or number
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)  # wakes the loop, which may wait for the network

    def _cancel(self) -> None:
        if self._pending is not None and self._scope is not None:
            self._scope.cancel()
