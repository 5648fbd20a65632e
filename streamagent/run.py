"""`Run`: one way from the inbox to the final answer; `turns`: the head of its chain, the agent loop."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .calls import Child, Output, ToolSpec
from .errors import ConfigError
from .hooks import NO_HOOKS, Drain, Hooks, NextTurn, TurnEnd, lane_of, settled
from .inbox import Inbox
from .lineage import Lineage
from .message import Message
from .pipeline import Chain, Pipeline
from .protocols import DEFAULT_SETTINGS, Model, ModelSettings, Source, Stage, Store, Stream
from .records import NOTHING, Unfinished
from .tasks import RunTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run needs to know of its agent.

    Args:
        model: What answers.
        pipeline: The stages around it.
        tools: What the model is told that it may call.
        system: The system prompt; it is sent in front of the stored messages and not stored.
        settings: Options of the model calls.
        max_turns: How many model turns one prompt may take.
        timeout: How long a run may take, in seconds; `None` for no limit.
        hooks: What the loop asks the program.
        steering: How many steering messages are admitted at one border.
        follow_ups: How many follow-ups are admitted when nothing else is left.
        max_depth: How deep sub-agents may be nested in a run that is not a sub-agent's itself.
        max_children: How many sub-agents may be at work at once in such a run, at all depths together.
    """

    model: Model
    pipeline: Pipeline
    tools: Sequence[ToolSpec] = ()
    system: str | None = None
    settings: ModelSettings = DEFAULT_SETTINGS
    max_turns: int = 50
    timeout: float | None = None
    hooks: Hooks = NO_HOOKS
    steering: Drain = "one_at_a_time"
    follow_ups: Drain = "one_at_a_time"
    max_depth: int = 3
    max_children: int = 8


_PAUSED = Message.stop("tool_calls")  # what a run that goes on after a pause takes for the last turn's stop


@dataclass(slots=True)
class Run:
    """A run as its stages see it (`protocols.RunContext`), and what its head needs.

    `prompt` is the id of what it was begun for, `asked` that of the last message that was admitted, and `last_turn` the
    number of the turn after which it ends; `again`, `decided` and `bounds` are as in `protocols.RunContext`. `left` is
    how it found the session: with calls that wait for an approval, if the last run paused; `resumed` that some were
    decided. `stop` is that of the last turn. `lineage` is its place among the runs of sub-agents; `starter` starts one.
    """

    session: str
    store: Store
    fence: int
    plan: Plan
    tasks: RunTasks
    deadline: float = math.inf
    outcomes: dict[str, Message] = field(default_factory=dict)
    prompt: str | None = None
    again: Message | None = None
    asked: str | None = None
    last_turn: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    starter: Callable[[Run, Child], Awaitable[Output]] | None = None
    bounds: list[Stage] = field(default_factory=list)
    decided: dict[str, Message] = field(default_factory=dict)
    left: Unfinished = NOTHING
    resumed: bool = False
    stop: Message = _PAUSED
    inbox: Inbox = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
        self.last_turn = plan.max_turns if self.left.approvals else 0
        self.inbox = Inbox(
            store=self.store,
            session=self.session,
            fence=self.fence,
            hooks=plan.hooks,
            steering=plan.steering,
            follow_ups=plan.follow_ups,
        )

    @property
    def hooks(self) -> Hooks:
        """What the loop asks the program."""
        return self.plan.hooks

    def take(self, prompt: Message, number: int) -> None:
        """Take note of what is admitted after turn `number`; only a follow-up has all turns again."""
        self.asked = prompt.id
        self.prompt = self.prompt or prompt.id
        if not number or lane_of(prompt) == "follow_up":  # steering must not keep a run alive for ever
            self.last_turn = number + self.plan.max_turns

    async def decide(self, left: Unfinished) -> list[Message]:
        """Admit what was decided about calls that wait."""
        decisions = await self.inbox.decided() if left.approvals else []
        about = {(decision.query or {}).get("call") for decision in decisions}
        self.decided.update((call.id, call) for call in left.calls if call.id in about)
        self.resumed |= bool(decisions)
        return decisions

    async def open(self) -> Chain:
        """Build the chain: the head, the limits of the runs above, then the reply stages."""
        chain = Chain(turns(self))
        await chain.extend([*self.lineage.bounds, *self.plan.pipeline.reply], self)
        return chain

    async def start_child(self, child: Child) -> Output:
        """Let a sub-agent answer; see `ToolContext.start`."""
        if self.starter is None:
            raise ConfigError(f"call {child.call} wants a sub-agent, and this run has no runtime")
        return await self.starter(self, child)


async def turns(run: Run) -> Stream:
    """Admit the prompt that waits longest, and take model turns until it has its final answer.

    Steering messages are admitted after each turn, and follow-ups when nothing else is left: the same run answers them.
    When the last run paused, this one begins with what was decided since.

    Yields:
        The prompts, and what the model says; a `stop` with reason `turn_limit` when one took more turns than the plan
        allows, with reason `stopped` when `should_stop_after_turn` said so, with reason `paused` when calls wait for an
        approval.
    """
    left: Unfinished | None = run.left if run.left.approvals else None
    admitted = [] if left else await run.inbox.first()
    end = TurnEnd(session=run.session, number=0, stop=run.stop)
    while True:
        for prompt in admitted:
            run.take(prompt, end.number)
            yield prompt
        if left is None:
            if not run.last_turn:  # nothing waited
                return
            chain = Chain(run.store.read(run.session))
            try:
                async for message in await _answer(run, chain):
                    yield message
            finally:
                await chain.aclose()
            end = replace(end, number=end.number + 1, stop=run.stop)
            left = await _left(run)
        while left is not None and (decisions := await run.decide(left)):
            for decision in decisions:
                yield decision
            left = await run.store.unfinished(run.session)
        border = await _border(run, end, left)
        if isinstance(border, Message):
            yield border
        if not isinstance(border, list):
            return
        admitted, left = border, None


_QUEUES_LEFT = ("error", "tool_calls")  # reasons after which what waits goes on waiting: a failure, calls nobody ran


async def _border(run: Run, end: TurnEnd, left: Unfinished | None) -> list[Message] | Message | None:
    """Decide between two turns what comes next.

    Args:
        run: The run.
        end: The turn that is over.
        left: How its calls stand, if it made some.

    Returns:
        What was admitted, when there is another turn; `None`, or a last `stop`, when there is none.
    """
    hook = run.hooks.should_stop_after_turn
    if hook is not None and end.number and await settled(hook(end)):
        closing = left is not None and left.calls  # of a run that leaves calls, their closing has the last word
        return None if end.stop.is_final or closing else Message.stop("stopped", turn=end.number)
    if left is not None and left.approvals:
        waiting = [request.id for request in left.approvals]
        return Message.stop("paused", approvals=waiting) if end.number or run.resumed else None
    goes_on = run.again is not None or _has_results(run, left)
    over = end.number >= run.last_turn
    if over and goes_on:
        return Message.stop("turn_limit", limit={"turns": run.plan.max_turns})
    admitted: list[Message] = []
    if goes_on or (end.stop.query or {}).get("reason") not in _QUEUES_LEFT:
        steered = [] if over else await run.inbox.steered()
        admitted = steered or ([] if goes_on else await run.inbox.followed_up())
    if not (goes_on or admitted):
        return None
    await _prepare(run, end)
    again, run.again = run.again, None
    return admitted if again is None else [again, *admitted]


async def _prepare(run: Run, end: TurnEnd) -> None:
    """Let `prepare_next_turn` change what the rest of the run uses."""
    hook = run.hooks.prepare_next_turn
    wanted: NextTurn | None = await settled(hook(end)) if hook is not None else None
    if wanted is not None:
        named: dict[str, Any] = {"model": wanted.model, "settings": wanted.settings, "system": wanted.system}
        run.plan = replace(run.plan, **{name: value for name, value in named.items() if value is not None})


_NO_STOP = {"kind": "truncated", "message": "the model's stream ended without a stop", "retryable": False}


async def _answer(run: Run, chain: Chain) -> Source:
    """Link the stored rows, the context stages and the model."""
    plan, settings = run.plan, run.plan.settings
    if run.hooks.get_api_key is not None:
        key = await settled(run.hooks.get_api_key(plan.model.name.partition("/")[0]))
        settings = replace(settings, extra={**settings.extra, **({"api_key": key} if key else {})})
    await chain.extend([_with_system(plan.system), *plan.pipeline.context], run)
    answer = plan.model.stream(chain.tail, tools=plan.tools, settings=settings, deadline=run.deadline)
    chain.append(answer)
    chain.append(_with_stop(answer, run))
    return chain.tail


async def _with_stop(answer: Stream, run: Run) -> Stream:
    """End an answer with a `stop`, if the model did not; take note of it."""
    stop: Message | None = None
    async for message in answer:
        stop = message if message.type == "stop" else stop
        # Sequences are the store's to give: a message that had one would pass for stored.
        yield message if message.sequence is None else replace(message, sequence=None)
    run.stop = stop or Message.stop("error", model=run.plan.model.name, error=_NO_STOP)
    if stop is None:
        yield run.stop


def _with_system(system: str | None) -> Stage:
    async def stage(stream: Stream) -> Stream:
        if system:
            yield Message.system(system)
        async for message in stream:
            yield message

    return stage


async def _left(run: Run) -> Unfinished | None:
    """Look how the calls of the last turn stand, if it made some."""
    made = (run.stop.query or {}).get("reason") == "tool_calls"
    return await run.store.unfinished(run.session) if made else None


def _has_results(run: Run, left: Unfinished | None) -> bool:
    """Tell whether the turn's calls have their results, so that the model can go on."""
    # Without `persist` the last row is still the prompt, and the model would be asked the same again.
    return left is not None and not left.calls and left.last is not None and left.last.id != run.asked
