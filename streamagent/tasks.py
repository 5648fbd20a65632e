"""`RunTasks`: the background work of one run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from anyio import CancelScope, move_on_after
from anyio.abc import TaskGroup

from .cancellation import must_propagate
from .latch import Latch
from .waiting import leaving

logger = logging.getLogger("streamagent")

TASK_TIMEOUT = 1.0  # seconds for cancelled background work to end; a tool that does not listen is left behind
CLEANUP_TIMEOUT = 5.0  # seconds after which it is ended where it waits, so that its task does not stay


class RunTasks:
    """The background work of one run, inside a group that is older than the run.

    A failure in it is raised where the run is driven, not in the group, which belongs to other runs too.
    """

    __slots__ = ("_count", "_group", "_idle", "_on_error", "_scopes", "cancelled")

    def __init__(self, group: TaskGroup, on_error: Callable[[BaseException], None]) -> None:
        self._group = group
        self._on_error = on_error
        self._scopes: list[CancelScope] = []  # as many as calls run; an empty set is as large as the rest
        self._count = 0
        self._idle = Latch()
        self.cancelled = False

    def start_soon(self, func: Callable[..., Coroutine[Any, Any, Any]], *args: Any, name: object = None) -> None:
        """Start `func(*args)`."""
        self._count += 1
        self._group.start_soon(self._child, func, args, name=name or getattr(func, "__qualname__", func))

    def fail(self, error: BaseException) -> None:
        """Raise an error where the run is driven, as if a task had failed with it."""
        self._on_error(error)

    async def _child(self, func: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]) -> None:
        try:
            with CancelScope() as scope:
                self._scopes.append(scope)
                if self.cancelled:
                    scope.cancel()
                await leaving(func(*args), lambda: scope.cancel_called, CLEANUP_TIMEOUT)
        except BaseException as error:
            if must_propagate(error):
                raise
            self._on_error(error)  # it is raised again in the task that drives the run
        finally:
            self._scopes.remove(scope)
            self._count -= 1
            if not self._count:
                self._idle.set()

    async def aclose(self, close_timeout: float = TASK_TIMEOUT) -> None:
        """Cancel what runs and wait for it, shielded, at most `close_timeout` seconds."""
        self.cancelled = True
        for scope in tuple(self._scopes):
            scope.cancel()
        if self._count:
            self._idle = Latch()
            with move_on_after(close_timeout, shield=True):
                await self._idle.wait()
        if not self._count:
            self._on_error = _log  # of a run that is over, which would be kept by this, and this by it


def _log(error: BaseException) -> None:
    logger.error("background work that began behind the end of its run failed", exc_info=error)
