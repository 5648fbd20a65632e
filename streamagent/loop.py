"""`turns`: the head of a run's chain, the agent loop; `open_run` builds the chain."""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from .errors import ConfigError
from .hooks import NextTurn, TurnEnd, settled
from .message import Message
from .pipeline import Chain
from .protocols import Source, Stream
from .records import Unfinished
from .run import Run
from .turn import Given, Turn


async def open_run(run: Run) -> Chain:
    """Build a run's chain: the head, the limits of the runs above, then the reply stages."""
    chain = Chain(turns(run))
    await chain.extend([*run.lineage.bounds, *run.plan.pipeline.reply], run)
    return chain


async def turns(run: Run) -> Stream:
    """Admit the prompt that waits longest, and take model turns until it has its final answer.

    Steering messages are admitted after each turn, and follow-ups when nothing else is left: the same run answers them.
    When the last run paused, this one begins with what was decided since.

    Yields:
        The prompts, and what the model says; a `stop` with reason `turn_limit` when one took more turns than the plan
        allows, with reason `stopped` when `should_stop_after_turn` said so, with reason `paused` when calls wait for an
        approval.
    """
    left = run.behind
    admitted = [] if left or run.used_up else await run.begin()
    going = bool(admitted or left or run.goes_on)
    recalled = run.recall() if going else []
    while going:
        run.take(admitted)
        run.begun = left is None or not left.approvals  # what was decided is admitted before anything is cut
        for prompt in admitted:
            yield prompt
        if left is None:
            turn = run.turn = Turn(run.plan.model.name, attempt=run.attempts, shrinks=_may_shrink(run))
            async with aclosing(Chain()) as chain:
                async for message in await _answer(run, chain, turn):
                    yield turn.take(message)
            if turn.stop is None:
                yield turn.end()
            left = await _left(run, turn)
        while known := recalled or await run.decide(left):
            run.begun = True
            for row in known:
                yield row
            recalled, left = [], await run.look()
        run.begun = False
        border = await _border(run, left)
        run.waiting = None
        going = isinstance(border, list)
        if isinstance(border, Message):
            yield border
        elif border is not None:
            admitted, left = await run.hurried(border), None


_QUEUES_LEFT = ("error", "tool_calls")  # reasons after which what waits goes on waiting: a failure, calls nobody ran


async def _border(run: Run, left: Unfinished | None) -> list[Message] | Message | None:
    """Decide between two turns what comes next.

    Args:
        run: The run.
        left: How the last turn's calls stand, if it made some.

    Returns:
        What was admitted, when there is another turn; `None`, or a last `stop`, when there is none.
    """
    end = TurnEnd(session=run.session, number=run.number + run.retry, stop=run.stop)
    hook = run.plan.hooks.should_stop_after_turn
    if hook is not None and run.turn is not None and await settled(hook(end)):
        closing = left is not None and left.calls  # of a run that leaves calls, their closing has the last word
        return None if end.stop.is_final or closing else Message.stop("stopped", turn=end.number)
    if left is not None and left.approvals:
        waiting = [request.id for request in left.approvals]
        new = run.turn is not None or run.resumed
        return Message.stop("paused", approvals=waiting, run=run.pause) if new else None
    goes_on = run.retry or run.again is not None or _has_results(run, left)
    over = run.number >= run.last_turn
    if over and goes_on:
        return Message.stop("turn_limit", limit={"turns": run.plan.max_turns})
    admitted: list[Message] = []
    if run.leaving:
        run.left_off = goes_on
        return None
    if goes_on or (end.stop.query or {}).get("reason") not in _QUEUES_LEFT:
        found = run.waiting if hook is None else None  # a hook may have taken its time
        admitted = await run.inbox.between(found, steering=not over, follow_ups=not goes_on)
    if not (goes_on or admitted):
        return None
    await _prepare(run, end)
    again, run.again = run.again, None
    return admitted if again is None else [again, *admitted]


async def _prepare(run: Run, end: TurnEnd) -> None:
    """Let `prepare_next_turn` change what the rest of the run uses."""
    hook = run.plan.hooks.prepare_next_turn
    wanted = await settled(hook(end)) if hook is not None else None
    if wanted is not None:
        if not isinstance(wanted, NextTurn):
            raise ConfigError(f"prepare_next_turn returns a NextTurn or None, not {wanted!r:.80}")
        named: dict[str, Any] = {"model": wanted.model, "settings": wanted.settings, "system": wanted.system}
        run.plan = replace(run.plan, **{name: value for name, value in named.items() if value is not None})
        run.context = wanted.context


def _may_shrink(run: Run) -> bool:
    """Tell whether a turn is taken once more if its context is too long: a stage will read that in its stored stop.

    The second time is final (F04).
    """
    return not run.shrunk and run.plan.pipeline.has("shrink", "persist")


async def _answer(run: Run, chain: Chain, turn: Turn) -> Source:
    """Link the stored rows, the context stages and the model; without stages it may read the rows more than once."""
    plan, settings = run.plan, run.plan.settings
    if run.plan.hooks.get_api_key is not None:
        key = await settled(run.plan.hooks.get_api_key(plan.model.name.partition("/")[0]))
        settings = replace(settings, extra={**settings.extra, **({"api_key": key} if key else {})})
    stages = plan.pipeline.context
    given = Given(run.rows(), plan.system, None if stages else turn)
    chain.hold(given)
    if stages:
        chain.append(aiter(given))
        await chain.extend([*stages, turn.counted()], run)
    context: AsyncIterable[Message] = chain.tail if stages else given
    answer = plan.model.stream(context, tools=plan.tools, settings=settings, deadline=run.deadline)
    chain.append(answer)
    return answer


async def _left(run: Run, turn: Turn) -> Unfinished | None:
    """Take note of a turn that is over, and look how its calls stand, if it made some."""
    run.stop = turn.stop or run.stop
    run.retry = turn.retried
    run.shrunk |= turn.overflowed
    run.number += not run.retry
    made = (run.stop.query or {}).get("reason") == "tool_calls"
    return await run.look() if made else None


def _has_results(run: Run, left: Unfinished | None) -> bool:
    """Tell whether the turn's calls have their results, so that the model can go on."""
    # Without `persist` the last row is still the prompt, and the model would be asked the same again.
    return left is not None and not left.calls and left.last is not None and left.last.id != run.asked
