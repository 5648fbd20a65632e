"""How a run ends: its tasks, its chain and its rows, whatever fails of it; shielded, each part bounded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from anyio import CancelScope, move_on_after

from .errors import LeaseLost, StoreBusy, StoreError
from .lineage import close_children
from .message import Message
from .pipeline import CLOSE_TIMEOUT, Chain
from .protocols import RunContext
from .run import Run
from .settle import Cause, Known, scrub, settle

logger = logging.getLogger("streamagent")

_COUNTED = ("model", "usage", "cost", "attempts")  # what a `stop` says of what its answer took


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a run is over, and who is told.

    Args:
        cause: Why.
        error: What it failed with.
        by: The `cancel` message that ended it.
        last: The last message that was shown.
        rows: Where the rows go that are added, to be shown.
    """

    cause: Cause
    error: BaseException | None
    by: Message | None
    last: Message | None
    rows: list[Message]


async def end_run(run: Run | None, chain: Chain | None, ending: Ending, *, bare: RunContext) -> bool:
    """End a run's tasks, close its chain and settle its session; with the cause `handover` that is left to others.

    Args:
        run: The run, if it has begun.
        chain: Its links, or those of an answer that is only shown.
        ending: Why, and who is told.
        bare: What stages get that results pass once more before they are stored.

    Returns:
        Whether nothing is left to do.

    Raises:
        LeaseLost: Another process has the session, and this run's reader was not told of its end.
        StoreError: The session could not be settled, and the run ended without another error.
    """
    with CancelScope(shield=True):
        try:
            if run is not None:
                await run.tasks.aclose()
            if chain is not None:
                await chain.aclose()
        finally:
            settled = run is None or await _end_rows(run, ending, bare)
    return settled


async def _end_rows(run: Run, ending: Ending, bare: RunContext) -> bool:
    if isinstance(ending.error, LeaseLost):
        return await _forget(run)
    return await (_leave(run) if ending.cause == "handover" else _settle(run, ending, bare))


async def _forget(run: Run) -> bool:
    """Take what the store refused of a run whose reader knows that another process has it, lest it is raised later."""
    with suppress(StoreError), move_on_after(CLOSE_TIMEOUT):  # what may still be written stays with the store
        await run.store.flush(run.session)
    return False


async def _leave(run: Run) -> bool:
    """Store what was said, and what came of calls, as if the process died now; whoever goes on closes the rest."""
    try:
        with move_on_after(CLOSE_TIMEOUT):
            await run.store.flush(run.session)
            for call in (await run.store.unfinished(run.session)).calls:
                if call.id in run.outcomes:
                    await run.finish_call(call.id, run.outcomes[call.id])
    except StoreError:
        logger.exception("session %s is left to others without the last of what was known of it", run.session)
    return False


async def _settle(run: Run, ending: Ending, bare: RunContext) -> bool:
    passes = partial(scrub, stages=run.plan.pipeline.inner, run=bare)
    try:
        with move_on_after(CLOSE_TIMEOUT) as scope:
            await run.store.flush(run.session)
            left = await run.store.unfinished(run.session)
            said = run.last_words if left.at_rest else await _last_words(run)
            known = Known(outcomes=run.outcomes, scrub=passes, said=said, begun=run.started.keys())
            unseen = _unseen(run, ending, left.last)
            await close_children(run.store, run.session, *(call.id for call in left.calls))
            rows = await settle(
                run.store, run.session, fence=run.fence, cause=ending.cause, known=known, by=ending.by, left=left
            )
            if not rows and not (ending.last and ending.last.is_final):
                # Perhaps another process has ended it: then this reader must hear that it is not his any more.
                await run.store.write(run.session, (), fence=run.fence)
            shown = ending.last.id if ending.last and ending.last.type == "stop" else None
            ending.rows.extend(row for row in unseen if row not in rows)
            ending.rows.extend(row for row in rows if row.id != shown)
            run.behind_row = max(run.behind_row, *(row.sequence or 0 for row in rows), 0)
        if scope.cancelled_caught:
            what = f"the end of its run ({ending.cause}) could not be stored within {CLOSE_TIMEOUT:g} s"
            if ending.cause != "ended" or ending.last is None or not ending.last.is_final:  # else its reader has it
                raise StoreBusy(f"session {run.session!r}: {what}; its next run does that")
            logger.warning("session %s: %s; its next run does that", run.session, what)
        return not scope.cancelled_caught  # noqa: TRY300 - of the block above
    except StoreError:
        if ending.error is None:
            raise
        logger.exception("session %s could not be settled; its next run will do that", run.session)
        return False


async def _last_words(run: Run) -> Mapping[str, Any]:
    """Say what a turn took whose own `stop` was not stored, and whose answer it is; else what the run says."""
    stop = None if run.turn is None else run.turn.stop
    if run.turn is None or stop is None or stop is run.stop:
        return run.last_words
    async with aclosing(run.store.read(run.session, after=run.behind_row)) as rows:
        async for row in rows:
            if row.id == stop.id:
                return run.last_words
    told = stop.query or {}
    return {"model": run.turn.model, **{key: told[key] for key in _COUNTED if key in told}}


def _unseen(run: Run, ending: Ending, last: Message | None) -> list[Message]:
    """Find the last word of a run that was stored in the moment in which it was cut: all are told of the same end."""
    told = ending.cause == "ended" or (ending.last and ending.last.is_final)  # as far as a stage lets it through
    before, run.behind_row = run.behind_row, max(run.behind_row, (last and last.sequence) or 0)
    return [last] if last is not None and last.is_final and run.behind_row > before and not told else []
