"""What all sessions hand over to be written: in what order, when, and what becomes of what fails."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from anyio import CancelScope, current_time, move_on_after

from streamagent.errors import SessionBusy, StoreError, StoreUncertain
from streamagent.latch import Latch
from streamagent.message import Message

from ._codec import check_name
from ._ledger import Ledger
from ._operations import Lagged, Operation
from ._row import Row, add_fragment
from ._tables import REFUSALS

T = TypeVar("T")


class Writer(ABC):
    """Keeps the order of what each session hands over; `run` is its task.

    An operation that is refused fails alone. When a transaction fails, its operations fail; lagged fragments stay here,
    ahead of whatever their session writes next, and `write_soon` takes no more of that session until they are written,
    also while they are tried again. Of lagged fragments that are refused only the reason stays.

    Nothing here grows by itself: whoever hands over an operation waits for it, and whoever hands over a fragment is
    told how much waits and flushes above its limit.

    Args:
        name: What errors call the store.
        committed: Is told each session of which something was committed.
    """

    def __init__(self, name: str, committed: Callable[[str], object]) -> None:
        self._name = name
        self._committed = committed
        self._queue: list[Operation] = []
        self._latest: dict[str, Operation] = {}  # of each session, what was handed over last and is not over
        self._lagged: dict[str, Lagged] = {}
        self._stalled: dict[str, list[Lagged]] = {}
        self._refused: dict[str, Exception] = {}
        self._next_due = math.inf
        self._wake = Latch()
        self._closed = False

    @abstractmethod
    async def _serve(self) -> None:
        """Commit what is in the queue until `_closed` and it is empty."""

    @abstractmethod
    async def _transact(self, batch: list[Operation]) -> Sequence[Exception | None]:
        """Commit operations in one transaction; return what each of them was refused with."""

    async def submit(
        self,
        session: str,
        run: Callable[[Ledger], T],
        *,
        lives: bool = False,
        alone: bool = False,
        unclaimed: Callable[[Ledger, T], object] | None = None,
    ) -> T:
        """Do something after all that was handed over of the session, and wait for its commit; see `Operation`.

        A caller that is cancelled stops waiting; the operation is done all the same.

        Args:
            session: The session.
            run: What to do.
            lives: See `Operation`.
            alone: See `Operation`.
            unclaimed: What to do with its result when the caller was cancelled, who never gets it.
        """
        operation = self._hand_over(session, run, lives=lives, alone=alone)
        try:
            await operation.done.wait()
        except BaseException:
            if unclaimed is not None:
                self._put(Operation(session, operation.then(unclaimed), lives=True))
            raise
        if operation.error is not None:
            _raise(operation.error)
        result: T = operation.result
        return result

    async def write(self, session: str, rows: dict[str, Row], fence: int) -> dict[str, int]:
        """Write rows; the refusal of an earlier lagged fragment is raised instead."""
        if self._refused:
            _raise(self._refused.pop(session, None))
        return await self.submit(session, lambda ledger: ledger.write(rows.values(), fence=fence))

    async def flush(self, session: str) -> None:
        """Commit what waits of a session; return at once when nothing does."""
        self._check_open()
        if not await self.catch_up(session) and session in self._stalled:
            await self._hand_over(session, None).done.wait()
        self._raise_failure(session)

    async def catch_up(self, session: str) -> bool:
        """Wait until what was handed over of a session was tried, also by callers that have left; tell if it was."""
        if session in self._lagged:
            await self._hand_over(session, None).done.wait()
            return True
        latest = self._latest.get(session)
        if latest is not None:
            await latest.done.wait()
        return latest is not None

    async def take_over(
        self,
        session: str,
        run: Callable[[Ledger], T],
        *,
        alone: bool = False,
        unclaimed: Callable[[Ledger, T], object] | None = None,
    ) -> T:
        """Do something that ends the current writer's time: what it was refused concerns nobody any more.

        Args:
            session: The session.
            run: What to do.
            alone: See `Operation`.
            unclaimed: See `submit`.
        """
        result = await self.submit(session, run, alone=alone, unclaimed=unclaimed)
        self._refused.pop(session, None)
        return result

    def write_soon(self, session: str, fragment: Message, fence: int, lag: float) -> int:
        """Take a fragment; see `Store`."""
        if self._stalled or self._refused:
            self._raise_failure(session)
        lagged = self._lagged.get(session)
        if lagged is None or lagged.fence != fence or lag < lagged.lag:
            lagged = self._schedule(session, fence, lag)
        lagged.size += add_fragment(lagged.rows, fragment)
        return lagged.size

    async def shred(self) -> None:
        """Leave what was deleted to the database, which cleans up by itself."""
        self._check_open()

    def close(self) -> None:
        """Take nothing more; `run` ends when all that waits was tried."""
        self._closed = True
        for session in list(self._lagged):
            self._release(session)
        for session in self._stalled:
            self._put(Operation(session, None))
        self._wake.set()

    def raise_left(self) -> None:
        """Raise why some fragments could not be written, if there are any."""
        for session in (*self._refused, *self._stalled):
            self._raise_failure(session)

    async def run(self) -> None:
        """Commit what comes until `close`; no cancellation reaches the connection."""
        try:
            with CancelScope(shield=True):
                await self._serve()
        finally:  # also when all tasks of the event loop are cancelled, at its end: nobody waits in vain
            self._closed = True
            left, self._queue = self._queue, []
            self._tell(left, [StoreError(f"{self._name}: the event loop ended before this was written")] * len(left))

    async def _rest(self) -> None:
        """Wait until there is something to do."""
        self._wake = Latch()
        if self._next_due == math.inf:
            await self._wake.wait()
            return
        with move_on_after(self._next_due - current_time()):
            await self._wake.wait()

    def _hand_over(
        self, session: str, run: Callable[[Ledger], Any] | None, *, lives: bool = False, alone: bool = False
    ) -> Operation:
        self._check_open()
        check_name("session", session)
        operation = Operation(session, run, lives=lives, alone=alone)
        if self._lagged:
            self._release(session)
        self._put(operation)
        return operation

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._name} was closed; write inside its `async with`")

    def _schedule(self, session: str, fence: int, lag: float) -> Lagged:
        self._check_open()
        lagged = self._lagged.get(session)
        if lagged is None or lagged.fence != fence:
            check_name("session", session)
            self._release(session)
            lagged = self._lagged[session] = Lagged(session, fence)
        lagged.lag = lag
        lagged.due = min(lagged.due, current_time() + lag)
        if lagged.due < self._next_due:
            self._next_due = lagged.due
            self._wake.set()
        return lagged

    def _release(self, session: str) -> None:
        lagged = self._lagged.pop(session, None)
        if lagged is not None:
            self._put(lagged)

    def _put(self, operation: Operation) -> None:
        self._queue.append(operation)
        self._latest[operation.session] = operation
        self._wake.set()

    def _release_due(self) -> None:
        now = current_time()
        if now >= self._next_due:
            # What is due soon goes along: sessions that stream at the same time share commits.
            for lagged in [lagged for lagged in self._lagged.values() if lagged.due <= now + lagged.lag / 2]:
                self._release(lagged.session)
            self._next_due = min((lagged.due for lagged in self._lagged.values()), default=math.inf)

    def _with_stalled(self, operations: list[Operation]) -> list[Operation]:
        """Put what could not be written of the sessions of these operations ahead of them."""
        sessions = dict.fromkeys(operation.session for operation in operations) if self._stalled else ()
        return [*(lagged for session in sessions for lagged in self._stalled.get(session, ())), *operations]

    async def _commit(self, batch: list[Operation]) -> None:
        errors: Sequence[Exception | None] = [None] * len(batch)
        try:
            if any(operation.run for operation in batch):
                errors = await self._transact(batch)
        except Exception as error:  # noqa: BLE001 - also a bug goes to whoever waits
            errors = [error] * len(batch)
        except BaseException:  # all tasks of the event loop are cancelled, at its end
            errors = [StoreUncertain(f"{self._name}: the event loop ended in the middle of a transaction")] * len(batch)
            raise
        finally:
            self._tell(batch, errors)

    def _tell(self, batch: list[Operation], errors: Sequence[Exception | None]) -> None:
        """Tell those who wait what became of their operations."""
        for operation in batch if self._stalled else ():
            self._stalled.pop(operation.session, None)
        for operation, operation.error in zip(batch, errors, strict=True):
            if isinstance(operation, Lagged) and operation.error is not None:
                self._keep(operation, operation.error)
            operation.done.set()
            if self._latest.get(operation.session) is operation:
                del self._latest[operation.session]
            if operation.error is None and operation.run is not None:
                self._committed(operation.session)

    def _keep(self, lagged: Lagged, error: Exception) -> None:
        """Keep fragments that may still be written; a refusal is final."""
        if isinstance(error, REFUSALS) or (isinstance(error, StoreUncertain) and lagged.mark is None):
            self._refused.setdefault(lagged.session, error)
        else:
            self._stalled.setdefault(lagged.session, []).append(lagged)

    def _raise_failure(self, session: str) -> None:
        """Raise what a lagged fragment was refused with, once, or why it waits to be tried again."""
        _raise(self._refused.pop(session, None))
        for lagged in self._stalled.get(session, ()):
            _raise(lagged.error)


def _raise(error: Exception | None) -> None:
    """Raise an error, if there is one, that others may raise too: each gets its own, with a traceback of its own."""
    if error is None:
        return
    if isinstance(error, SessionBusy):
        raise SessionBusy(str(error), owner=error.owner) from error
    kind = type(error) if isinstance(error, (StoreError, *REFUSALS)) else StoreError
    raise kind(str(error)) from error
