"""`RunReply`: a run that its consumer drives, by pulling."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING

from anyio import CancelScope, Event, current_time, get_cancelled_exc_class, move_on_after

from .errors import LeaseLost, SessionBusy, StoreError
from .message import Message
from .pipeline import CLOSE_TIMEOUT, Chain
from .protocols import Stream
from .reply import Reply
from .run import Plan, Run, RunTasks
from .settle import Cause, settle

if TYPE_CHECKING:
    from .runtime import Runtime

logger = logging.getLogger("streamagent")


class RunReply(Reply):
    """An answer of a session. Nothing happens until it is iterated; each `anext` drives the chain one step.

    Args:
        runtime: Where the session lives.
        session: Its id.
        plan: What answers.
        prompt: What to put into the inbox first; `None` to answer what waits there.
        client_key: The prompt's key for deduplication.
        previous: An earlier reply of the same handle, to be cut if it was abandoned.
    """

    def __init__(  # noqa: PLR0913 - made by Session alone
        self,
        runtime: Runtime,
        session: str,
        plan: Plan,
        *,
        prompt: Message | None = None,
        client_key: str | None = None,
        previous: RunReply | None = None,
    ) -> None:
        self._runtime = runtime
        self._session = session
        self._plan = plan
        self._prompt = prompt
        self._client_key = client_key
        self._previous = previous
        self._run: Run | None = None
        self._chain: Chain | None = None
        self._rows: deque[Message] = deque()  # what settling added: at most a few rows for each open call
        self._scope: CancelScope | None = None
        self._cause: Cause | None = None
        self._error: BaseException | None = None
        self._deadline = math.inf
        self._finished = Event()
        self._finishing = False

    @property
    def done(self) -> bool:
        """The run is over; rows of its end may still wait to be read."""
        return self._finished.is_set()

    @property
    def driven(self) -> bool:
        """A task is waiting for the next message right now."""
        return self._scope is not None

    async def __anext__(self) -> Message:
        if self.driven:
            raise SessionBusy("this reply is being read by another task; only one may read it")
        if not self._rows and not self._finishing:
            message = await self._advance()
            if message is not None:
                return message
        if self._rows:
            return self._rows.popleft()
        raise StopAsyncIteration

    async def cancel(self) -> None:
        """Cut the run: what was said is kept and marked, open calls are closed. Returns when that is done."""
        await self._cut("aborted")

    async def aclose(self) -> None:
        """Cut the run as `cancel` does, and read no more of it."""
        await self._cut("aborted")
        self._rows.clear()

    async def _cut(self, cause: Cause) -> None:
        self._cause = self._cause or cause
        if self._scope is not None:
            self._scope.cancel()
        elif not self._finishing:
            await self._finish(cause)
        await self._finished.wait()

    async def _advance(self) -> Message | None:
        """Drive the chain one step; `None` when the run is over."""
        try:
            with CancelScope(deadline=self._deadline) as self._scope:
                if self._chain is None:
                    await self._start()
                if self._rows:
                    return self._rows.popleft()
                if self._chain is not None and self._cause is None:
                    return await anext(self._chain.tail)
        except StopAsyncIteration:
            await self._finish("ended")
        except BaseException as error:
            cancelled = isinstance(error, (get_cancelled_exc_class(), KeyboardInterrupt))
            await self._finish("aborted" if cancelled else "error", error)
            raise
        else:
            await self._finish(self._cause or "deadline")
        finally:
            self._scope = None
        if self._error is not None:
            raise self._error
        return None

    async def _start(self) -> None:
        store, session = self._runtime.store, self._session
        if self._previous is not None:
            await self._previous.aclose()
            self._previous = None
        self._runtime.claim(session, self)
        prompt = self._prompt and await store.enqueue(session, self._prompt, client_key=self._client_key)
        if prompt is None or prompt.sequence is None:
            self._rows.extend(await self._open_run())
            return
        # It was admitted before: show what was answered then, and settle the answer first when it was cut by a crash.
        if not (await store.unfinished(session)).at_rest:
            await settle(store, session, fence=await store.acquire(session), cause="crashed")
        self._chain = await _replay(self._runtime, prompt)

    async def _open_run(self) -> list[Message]:
        """Take the session over and build the chain; return the rows that settled what an earlier run left."""
        store, session, plan = self._runtime.store, self._session, self._plan
        if plan.timeout is not None and self._scope is not None:
            self._scope.deadline = self._deadline = current_time() + plan.timeout
        fence = await store.acquire(session)
        rows = await settle(store, session, fence=fence, cause="crashed")
        self._run = Run(session, store, fence, plan, RunTasks(self._runtime.tasks, self._fail), self._deadline)
        self._chain = await self._run.open()
        return rows

    def _fail(self, error: BaseException) -> None:
        """Take the failure of a background task: it ends the run here."""
        self._error = self._error or error
        self._cause = "error"
        if self._scope is not None:
            self._scope.cancel()

    async def _finish(self, cause: Cause, error: BaseException | None = None) -> None:
        """End tasks, close the chain, settle the session; shielded, each part bounded."""
        if self._finishing:
            return
        self._finishing = True
        try:
            with CancelScope(shield=True):
                if self._run is not None:
                    await self._run.tasks.aclose()
                if self._chain is not None:
                    await self._chain.aclose()
                if self._run is not None and not isinstance(error, LeaseLost):
                    await self._settle(self._run, cause, error)
        finally:
            self._runtime.release(self._session, self)
            self._finished.set()

    async def _settle(self, run: Run, cause: Cause, error: BaseException | None) -> None:
        try:
            with move_on_after(CLOSE_TIMEOUT):
                await run.store.flush(run.session)
                rows = await settle(run.store, run.session, fence=run.fence, cause=cause, outcomes=run.outcomes)
                self._rows.extend(rows)
        except StoreError:
            if error is None:
                raise
            logger.exception("session %s could not be settled; its next run will do that", run.session)


async def _replay(runtime: Runtime, prompt: Message) -> Chain:
    """Show the stored answer to a prompt: what follows it, up to the next prompt."""

    async def until_next_prompt(stream: Stream) -> Stream:
        async for message in stream:
            if message.role == "user":
                return
            yield message

    chain = Chain(runtime.store.read(prompt.session or "", after=prompt.sequence or 0))
    await chain.extend([until_next_prompt], runtime.bare_run())
    return chain
