"""Asking what came of a call whose process died while it ran."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from anyio import CancelScope, Event, current_time, move_on_after

from streamagent._core.output import render
from streamagent.calls import Output, Reconcile, ToolCall
from streamagent.errors import ToolError
from streamagent.hooks import settled
from streamagent.protocols import RunContext

from ._approval import Asked
from ._verdicts import UNKNOWN, unknown


@dataclass(slots=True)
class _Asking:
    """A question on its way, and what is known so far."""

    done: Event = field(default_factory=Event)
    scope: CancelScope = field(default_factory=CancelScope)
    output: Output | None = None


async def outcome_of(reconcile: Reconcile, asked: Asked, run: RunContext) -> Output:
    """Ask what came of a call: bounded as the call itself is, in a task of its own.

    Args:
        reconcile: Whom to ask.
        asked: The call, and its tool.
        run: The run that goes on.

    Returns:
        What came of it; that nobody knows, when there is no answer in time, or it fails.
    """
    call, asking = asked.call, _Asking()
    limit = math.inf if asked.tool.timeout is None else asked.tool.timeout
    run.tasks.start_soon(_ask, reconcile, call, asking)
    try:
        with move_on_after(min(limit, run.deadline - current_time())):
            await asking.done.wait()
    finally:
        call.context.cancelled.set()
    if asking.output is None:
        asking.scope.cancel()
        return unknown(ToolError(f"reconcile of {call.tool} did not answer in time"), call.id)
    return asking.output


async def _ask(reconcile: Reconcile, call: ToolCall, asking: _Asking) -> None:
    with asking.scope:
        try:
            found = await settled(reconcile(call))
            asking.output = UNKNOWN if found is None else render(found)
        except BaseException as error:  # noqa: BLE001 - foreign code; see `failure`
            asking.output = unknown(error, call.id)
        asking.done.set()
