"""`RunReply`: a run that its consumer drives, by pulling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anyio import CancelScope, get_cancelled_exc_class

from .ending import Ending, end_run
from .errors import HandedOver, LeaseLost, SessionBusy, SessionError, StoreError
from .latch import Latch
from .lineage import Lineage
from .loop import open_run
from .message import Message
from .opening import Opening
from .pipeline import Chain
from .plan import Plan
from .reply import Reply
from .resume import is_left_open
from .run import Run
from .settle import Cause
from .tasks import RunTasks
from .waiting import Interrupted, Waiter, make_waiter

if TYPE_CHECKING:
    from .runtime import Runtime


class RunReply(Reply):
    """An answer of a session. Nothing happens until it is iterated; each `anext` drives the chain one step.

    Prompts that wait in the inbox since before are answered first, each by a run of its own.

    Args:
        runtime: Where the session lives.
        session: Its id.
        plan: What answers.
        prompt: What to put into the inbox first; `None` to answer what waits there longest.
        rest: Further messages of the same prompt.
        client_key: The prompt's key for deduplication.
        previous: An earlier reply of the same handle, to be cut if it was abandoned.
        lineage: Where its runs stand in the tree of a sub-agent's runs; `None` for the root of a tree.
    """

    def __init__(  # noqa: PLR0913 - made by Session alone
        self,
        runtime: Runtime,
        session: str,
        plan: Plan,
        *,
        prompt: Message | None = None,
        rest: Sequence[Message] = (),
        client_key: str | None = None,
        previous: RunReply | None = None,
        lineage: Lineage | None = None,
    ) -> None:
        self._runtime = runtime
        self._session = session
        self._previous = previous
        self._opening = Opening(
            runtime=runtime,
            session=session,
            plan=plan,
            lineage=lineage,
            prompt=prompt,
            rest=rest,
            client_key=client_key,
        )
        self._run: Run | None = None
        self._chain: Chain | None = None
        self._rows: list[Message] = []  # what settling added: at most a few rows for each open call
        self._last: Message | None = None  # of the run
        self._waiter: Waiter | None = None
        self._cause: Cause | None = None
        self._error: BaseException | None = None
        self._lost: StoreError | SessionError | None = None
        self._leaving = False
        self._settled = False
        self._shown = 0  # sequence of the last row that was shown again
        self._deadline = math.inf
        self._by: Message | None = None
        self._switching = False
        self._finishing = False
        self._finished = Latch()
        self.ended: Callable[[RunReply], None] | None = None  # told once, at its end

    @property
    def done(self) -> bool:
        """The answer is over; rows of its end may still wait to be read."""
        return self._finished.is_set()

    @property
    def settled(self) -> bool:
        """The answer is over, and so it stands in the store: nobody goes on with it."""
        return self.done and self._settled

    @property
    def driven(self) -> bool:
        """A task is waiting for the next message right now."""
        return self._waiter is not None and self._waiter.waiting

    @property
    def is_root(self) -> bool:
        """It is no sub-agent's."""
        return self._opening.lineage is None

    @property
    def running(self) -> Run | None:
        """The run that a `cancel` would cut: it has begun, and nothing has ended it yet."""
        run = self._run
        begun = run is not None and (run.prompt or run.resumed)
        return run if begun and not (self._cause or self._finishing) else None

    async def __anext__(self) -> Message:
        if self.driven:
            raise SessionBusy("this reply is being read by another task; only one may read it")
        while not self._rows:
            if self._finishing:  # perhaps by another task, whose rows are this one's to show
                await self._finished.wait()
                if not self._rows:
                    lost, self._lost = self._lost, None
                    raise lost or StopAsyncIteration
            elif (message := await self._advance()) is not None:
                return self._given(message)
        return self._given(self._rows.pop(0))

    async def cancel(self, by: Message | None = None) -> None:
        """Cut the run: what was said is kept and marked, open calls are closed. Returns when that is done.

        Args:
            by: The `cancel` message that asked for it; it is stored if there was something to cut.
        """
        self._by = self._by or by
        await self.cut("aborted")

    def interrupt(self, by: str = "") -> None:
        """Cut what is being said or done, at once when a task reads this reply, else when one does.

        The reply goes on with the steering messages that wait; without any it ends there.

        Args:
            by: Id of the message for which it is cut; when the run has taken that one already, nothing is cut.
        """
        run = self._run
        self._opening.hurried = run is None  # a run that begins looks into the inbox
        if run is None or self._finishing or by in run.taken:
            return
        run.pressed = by or run.pressed or ""
        if self._waiter is not None and run.begun:  # a message that is being admitted is not cut off
            self._waiter.interrupt()

    def leave(self) -> None:
        """Let the run end at its next border between two turns, unfinished: another process goes on with it."""
        self._leaving = True
        if self._run is not None:
            self._run.leaving = True

    async def aclose(self) -> None:
        """Cut the run as `cancel` does, and read no more of it; `reason` says how it ended all the same."""
        await self.cut("aborted")
        for row in self._rows:
            self._given(row)
        self._rows.clear()

    async def wait(self) -> None:
        """Return when the answer is over."""
        await self._finished.wait()

    async def cut(self, cause: Cause) -> None:
        """End the run for this reason, if none came first."""
        self._cause = self._cause or cause
        if self._waiter is not None and self._waiter.waiting:
            self._waiter.interrupt()
        elif not (self._finishing or self._switching):
            try:
                await self._finish(cause)
            except StoreError as error:  # the reader's business
                self._lost = error
                if not isinstance(error, LeaseLost):  # also that of whoever wants the end
                    raise
        await self._finished.wait()

    async def _advance(self) -> Message | None:
        """Drive the chain one step; `None` when a run is over, or rows were added."""
        waiter = self._waiter = self._waiter or make_waiter()
        try:
            if self._cause is not None:
                raise Interrupted  # noqa: TRY301 - a background task failed while nobody was waiting
            if self._chain is None:
                await waiter.wait(self._start())
                return None
            self._check(self._deadline)
            message = self._last = await waiter.wait(anext(self._chain.tail), deadline=self._deadline)
            if not message.is_final:
                self._check()  # it may have come in spite of the end, and nobody may ask for another
            return None if self._is_known(message) else message
        except StopAsyncIteration:
            await (self._resume() if self._hurries() else self._next_run())
        except Interrupted:
            if self._cause is None and self._hurries():
                await self._resume()
            else:
                await self._finish(self._cause or "deadline")
        except BaseException as error:
            cancelled = isinstance(error, get_cancelled_exc_class() | KeyboardInterrupt)
            await self._finish("aborted" if cancelled else "error", error)
            raise
        if self._error is not None:
            raise self._error
        return None

    def _check(self, deadline: float = math.inf) -> None:
        """End a wait that nobody interrupted: nobody was waiting, or what is waited for never waits itself."""
        late = deadline < math.inf and self._waiter is not None and self._waiter.now() >= deadline
        if self._cause is not None or late or self._hurries():
            raise Interrupted

    def _is_known(self, message: Message) -> bool:
        """Tell whether a run that goes on passes a row once more that its reader was shown before."""
        if self._run is None:
            self._shown = message.sequence or 0
        return self._run is not None and 0 < (message.sequence or 0) <= self._shown

    async def _start(self) -> None:
        """Open the first run, or show the answer that the prompt has already."""
        if not self._opening.begun:
            await self._drop_previous()
            self._runtime.claim(self._session, self)
            self._chain = await self._opening.start()
        if self._chain is None:
            await self._open_run()

    async def _open_run(self) -> None:
        self._run, rows = await self._opening.open(self.fail)
        self._rows.extend(rows)
        if self._run is not None:
            self._run.leaving = self._leaving
            self._deadline = self._run.deadline
            self._chain = await open_run(self._run)

    def fail(self, error: BaseException) -> None:
        """Take the failure of a background task: it ends the run here."""
        self._error = self._error or error
        self._cause = "error"
        if self._waiter is not None:
            self._waiter.interrupt()

    async def _next_run(self) -> None:
        """A chain is exhausted: go on with the next prompt until this reply's own is answered."""
        run, prompt = self._run, self._opening.prompt
        if run is None and await self._goes_on():
            return
        if run is not None and run.left_off:
            await self._finish("handover")
            return
        if run is None or prompt is None or run.prompt == prompt.id or not (run.prompt or run.resumed):
            await self._finish("ended")
            return
        if self._leaving:
            self._lost = self._handed_over()
            await self._finish("ended")
            return
        if await self._left("ended"):
            self._run = self._chain = self._last = self._opening.fence = None
            self._deadline = math.inf

    async def _goes_on(self) -> bool:
        """Go on with the run whose prompt was shown again, if its process died in it."""
        try:
            if await self._opening.goes_on():
                await self._open_run()
        except BaseException as error:
            await self._finish("error", error)
            raise
        return self._run is not None

    def _hurries(self) -> bool:
        return self._run is not None and self._run.hurries

    async def _resume(self) -> None:
        """Close what the run left open, and let it go on with what the user says."""
        if (run := self._run) is not None and await self._left("interrupted"):
            self._run = run.going_on(RunTasks(self._runtime.tasks, self.fail))
            self._chain, self._last = await open_run(self._run), None

    async def _left(self, cause: Cause) -> bool:
        """End a run, but not the answer; return whether that may go on: its end is left to this meanwhile."""
        self._switching = True
        try:
            await self._end_run(cause)
        except BaseException as error:
            await self._finish("error", error)
            raise
        finally:
            self._switching = False
        if self._cause is not None:
            await self._finish(self._cause)
        return self._cause is None

    async def _finish(self, cause: Cause, error: BaseException | None = None) -> None:
        """End the answer."""
        if self._finishing:
            return
        self._finishing = True
        run = self._run
        if cause == "handover":
            self._lost = self._handed_over()
            if run is not None:
                run.lineage.tree.left = True  # before its tasks end, and with them the sub-agents' runs
        elif cause == "aborted" and run is not None and run.lineage.tree.left:
            cause = "handover"
        try:
            with CancelScope(shield=True):  # bounded
                try:
                    await self._drop_previous()
                    await self._end_run(cause, error)
                finally:
                    await self._runtime.release(
                        self._session, self, fence=self._opening.fence, unfinished=not self._settled
                    )
        finally:
            if self._waiter is not None:
                self._waiter.close()
            self._finished.set()
            ended, self.ended = self.ended, None
            if ended is not None:
                ended(self)

    async def _drop_previous(self) -> None:
        while (previous := self._previous) is not None:  # one that never began may have one itself
            self._previous, previous._previous = previous._previous, None  # noqa: SLF001 - of the same class
            await previous.aclose()

    async def _end_run(self, cause: Cause, error: BaseException | None = None) -> None:
        ending = Ending(cause=cause, error=error, by=self._by, last=self._last, rows=self._rows)
        self._settled = False
        settled = await end_run(self._run, self._chain, ending, bare=self._runtime.bare_run(self._session))
        only_looked = self._run is None and self._opening.fence is not None
        self._settled = settled and not (only_looked and await is_left_open(self._runtime.store, self._session))

    def _handed_over(self) -> HandedOver:
        return HandedOver(f"session {self._session!r}: this process is ending, and another one goes on; follow it")
