"""The connections of a PostgreSQL store, each used by one worker thread at a time."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
from anyio import CancelScope, CapacityLimiter, Event, Semaphore, move_on_after, to_thread
from anyio.abc import TaskGroup

from streamagent.errors import StoreBusy

from ._postgres_connection import Connection, Options, connect, translate
from ._running import grouped

T = TypeVar("T")
_CONFLICTS = ("40001", "40P01")  # serialization failure, deadlock: the same transaction may succeed when done again
_LOST = ("08", "57P", "25P03")  # broken; the server stops, starts or crashed; it ended what was idle for too long
_LONGEST_PAUSE = 0.5  # seconds between two tries


class Unsettled(psycopg.OperationalError):
    """The server does not know yet what becomes of a transaction; ask again."""


@dataclass(slots=True, eq=False)
class _Question:
    """What a reader asks, and what came of it."""

    function: Callable[[Connection], Any]
    done: Event = field(default_factory=Event)
    result: Any = None
    error: Exception | None = None


class Pool:
    """Lends connections to functions that are called on worker threads.

    A function that fails because the connection was lost, or because of a conflict with another transaction, is called
    again, with another connection if need be, for `timeout` seconds; it is a whole transaction, or reads only. The
    caller's cancellation reaches neither the thread nor the connection.
    """

    def __init__(self, options: Options, tasks: TaskGroup) -> None:
        self.options = options
        self._tasks = tasks
        self._idle: deque[Connection] = deque()
        self._room = Semaphore(options.pool)
        self._threads = CapacityLimiter(options.pool)

    async def ask(self, function: Callable[[Connection], T]) -> T:
        """Call a function that reads. A caller that is cancelled leaves at once; the function goes on.

        Raises:
            StoreError: What PostgreSQL failed with; `StoreBusy` when no connection was free for `timeout` seconds.
        """
        question = _Question(function)
        self._tasks.start_soon(self._answer, question)
        await question.done.wait()
        if question.error is not None:
            raise question.error
        result: T = question.result
        return result

    async def run(self, function: Callable[[Connection], T], *, patient: bool = True) -> T:
        """Call a function that is a whole transaction, and wait until it is over.

        Args:
            function: What to call.
            patient: Try again what may succeed later.

        Raises:
            StoreError: As `ask` does.
        """
        found: list[T] = []
        with CancelScope(shield=True):  # bounded: by timeout and statement_timeout
            await self._enter()
            try:
                found.append(await to_thread.run_sync(self._work, function, patient, limiter=self._threads))
            finally:
                self._room.release()
        return found[0]

    async def _enter(self) -> None:
        options = self.options
        with move_on_after(options.timeout) as waiting:
            await self._room.acquire()
        if waiting.cancelled_caught:
            raise StoreBusy(
                f"{options.name}: no connection was free within {options.timeout:g} s; "
                f"raise pool={options.pool}, or do less at once"
            )

    def close(self) -> None:
        """Hang up."""
        while self._idle:
            self._idle.pop().close()

    async def _answer(self, question: _Question) -> None:
        try:
            question.result = await self.run(question.function)
        except Exception as error:  # noqa: BLE001 - it goes to whoever asked
            question.error = error
        question.done.set()

    def _work(self, function: Callable[[Connection], T], patient: bool) -> T:
        pauses = _pauses(self.options.timeout)
        while True:
            try:
                with self._connection() as connection:
                    return function(connection)
            except psycopg.Error as error:
                if not (patient and _may_succeed_later(error) and next(pauses, False)):
                    raise translate(error, self.options) from error

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = connect(self.options)
        try:
            yield connection
        finally:
            try:
                connection.rest()
            finally:
                if connection.lost:
                    self.close()  # the others have most likely lost the same server
                    connection.close()
                else:
                    self._idle.append(connection)


def _may_succeed_later(error: psycopg.Error) -> bool:
    """Tell whether a connection was lost, or another transaction was in the way."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate in _CONFLICTS or error.sqlstate.startswith(_LOST)


def _pauses(timeout: float) -> Iterator[bool]:
    """Wait, longer each time and never as long as others do, for `timeout` seconds in all."""
    deadline = time.monotonic() + timeout
    longest = 0.01
    while (pause := random.uniform(0, longest)) < deadline - time.monotonic():  # noqa: S311 - no secret
        time.sleep(pause)  # on a worker thread
        yield True
        longest = min(2 * longest, _LONGEST_PAUSE)


@asynccontextmanager
async def open_pool(options: Options) -> AsyncGenerator[Pool, None]:
    """Make a pool; leaving the block hangs up."""
    pool: Pool | None = None
    try:
        async with grouped() as tasks:  # it waits for what readers have asked
            pool = Pool(options, tasks)
            yield pool
    finally:
        if pool is not None:
            with CancelScope(shield=True):
                await to_thread.run_sync(pool.close)
