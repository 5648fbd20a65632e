"""`Run`: one way from the inbox to the final answer; `turns`: the head of its chain, the agent loop."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .approvals import refuse_strange
from .calls import Child, Output
from .errors import ConfigError
from .hooks import NextTurn, TurnEnd, lane_of, settled
from .inbox import Inbox
from .lineage import Lineage
from .message import Message, each
from .pipeline import Chain
from .plan import Plan
from .protocols import Source, Stage, Store, Stream
from .records import NOTHING, Unfinished
from .tasks import RunTasks
from .turn import Turn, with_system

_PAUSED = Message.stop("tool_calls")  # what a run that goes on after a pause takes for the last turn's stop


@dataclass(slots=True)
class Run:
    """A run as its stages see it (`protocols.RunContext`), and what its head needs.

    `prompt` is the id of what it was begun for, `asked` that of the last message that was admitted, `taken` has those
    of all. `number` counts the turns that are over, and after `last_turn` of them it ends; `again`, `decided` and
    `bounds` are as in `protocols.RunContext`. `left` is how it found the session: with calls that wait for an approval,
    if the last run paused; `resumed` that some were decided. `turn` is the last one, `stop` that of the last that is
    over; `shrunk`, that one is taken once more because its context was too long, and `retry`, that this comes next.
    `begun`, that it is not looking into the inbox now; `pressed` is the id of the message for which it is to be cut, or
    empty, and `interrupted`, when it goes on after that, of the one for which it was. `lineage` is its place among the
    runs of sub-agents; `starter` starts one. `first` is the sequence of its first row, also before a
    pause; `context`, what the next turn is given instead of the stored messages.
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
    taken: set[str] = field(default_factory=set)  # as many as the run has prompts and steering messages
    number: int = 0
    last_turn: int = 0
    pressed: str | None = None
    interrupted: str | None = None
    begun: bool = False
    turn: Turn | None = None
    shrunk: bool = False
    retry: bool = False
    lineage: Lineage = field(default_factory=Lineage)
    starter: Callable[[Run, Child], Awaitable[Output]] | None = None
    bounds: list[Stage] = field(default_factory=list)
    decided: dict[str, Message] = field(default_factory=dict)
    left: Unfinished = NOTHING
    resumed: bool = False
    context: Sequence[Message] | None = None
    first: int | None = None
    since: int | None = None
    stop: Message = _PAUSED
    inbox: Inbox = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
        if self.left.approvals:
            self._go_on(((self.left.last and self.left.last.query) or {}).get("run") or {})
        self.inbox = Inbox(
            store=self.store,
            session=self.session,
            fence=self.fence,
            hooks=plan.hooks,
            steering=plan.steering,
            follow_ups=plan.follow_ups,
        )

    def _go_on(self, before: Mapping[str, Any]) -> None:
        """Take over what a run that paused had used up; after a crash nobody knows."""
        self.number = before.get("turns", 0)
        self.last_turn = before.get("last_turn", self.plan.max_turns)
        self.since = before.get("since")
        self.first = None if self.since is None else self.since + 1

    @property
    def pause(self) -> Mapping[str, Any]:
        """What the run that goes on has to know."""
        return {"turns": self.number, "last_turn": self.last_turn, "since": (self.first or 1) - 1}

    def take(self, prompts: Sequence[Message]) -> None:
        """Take note of what is admitted; only a follow-up has all turns again."""
        for prompt in prompts:
            self.asked = prompt.id
            self.taken.add(prompt.id)
            self.prompt = self.prompt or prompt.id
            self.first = self.first or prompt.sequence
            if not self.number or lane_of(prompt) == "follow_up":  # steering must not keep a run alive for ever
                self.last_turn = self.number + self.plan.max_turns
                self.shrunk = False

    def going_on(self, tasks: RunTasks) -> Run:
        """Make what goes on after an interruption: the same run with new tasks, whose stages begin anew."""
        fresh: dict[str, Any] = {"outcomes": {}, "decided": {}, "bounds": [], "again": None, "turn": None}
        fresh |= {"interrupted": self.pressed or "", "pressed": None, "begun": False}
        fresh["since"] = None if self.first is None else self.first - 1
        return replace(self, tasks=tasks, left=NOTHING, **fresh)

    @property
    def hurries(self) -> bool:
        """It is to be cut for a message that it has not taken."""
        return self.begun and self.pressed is not None and self.pressed not in self.taken

    async def hurried(self, admitted: list[Message]) -> list[Message]:
        """Add what has to be said at once, if it came while these were admitted."""
        if not self.pressed or self.pressed in self.taken | {message.id for message in admitted}:
            return admitted
        return [*admitted, *await self.inbox.steered("all")]

    @property
    def cut_usage(self) -> Mapping[str, Any] | None:
        """Tokens of the answer that is under way."""
        return None if self.turn is None or self.turn.stop is not None else self.turn.usage

    @property
    def last_words(self) -> Mapping[str, Any]:
        """What its `stop` says besides when it is cut: what the answer took that was under way, or that none was."""
        if self.turn is None or self.cut_usage is None:
            return {"usage": {"total_tokens": 0}}
        return {"model": self.turn.model, "usage": self.cut_usage}

    async def decide(self, left: Unfinished) -> list[Message]:
        """Admit what was decided about calls that wait.

        Raises:
            ConfigError: They are of tools that this agent does not have; the decisions go on waiting.
        """
        refuse_strange(left.approvals, self.plan.pipeline.runs)
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

    def source(self) -> Stream:
        """Give what the next turn is about: the stored messages, or once what `prepare_next_turn` has given."""
        given, self.context = self.context, None
        return self.store.read(self.session) if given is None else each(given)

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
    admitted = [] if left else await _first(run)
    if not (admitted or left or run.interrupted):
        return
    while True:
        run.take(admitted)
        run.begun = True
        for prompt in admitted:
            yield prompt
        if left is None:
            turn = run.turn = Turn(run.plan.model.name)
            chain = Chain(run.source())
            try:
                async for message in await _answer(run, chain, turn):
                    yield message
            finally:
                await chain.aclose()
            left = await _left(run, turn)
        while left is not None and (decisions := await run.decide(left)):
            for decision in decisions:
                yield decision
            left = await run.store.unfinished(run.session)
        run.begun = False
        border = await _border(run, left)
        if isinstance(border, Message):
            yield border
        if not isinstance(border, list):
            return
        admitted, left = await run.hurried(border), None


async def _first(run: Run) -> list[Message]:
    """Admit what a run is begun for, or goes on with after an interruption."""
    return await (run.inbox.first() if run.interrupted is None else run.inbox.steered("all"))


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
    hook = run.plan.hooks.prepare_next_turn
    wanted = await settled(hook(end)) if hook is not None else None
    if wanted is not None:
        if not isinstance(wanted, NextTurn):
            raise ConfigError(f"prepare_next_turn returns a NextTurn or None, not {wanted!r:.80}")
        named: dict[str, Any] = {"model": wanted.model, "settings": wanted.settings, "system": wanted.system}
        run.plan = replace(run.plan, **{name: value for name, value in named.items() if value is not None})
        run.context = wanted.context


def _shrinks(run: Run, turn: Turn) -> bool:
    """Tell whether a turn is taken once more: its context was too long, and a stage will read that in its stored stop.

    The second time is final (F04).
    """
    first, run.shrunk = not run.shrunk, run.shrunk or turn.overflowed
    return first and turn.overflowed and run.plan.pipeline.has("shrink", "persist")


async def _answer(run: Run, chain: Chain, turn: Turn) -> Source:
    """Link the stored rows, the context stages and the model."""
    plan, settings = run.plan, run.plan.settings
    if run.plan.hooks.get_api_key is not None:
        key = await settled(run.plan.hooks.get_api_key(plan.model.name.partition("/")[0]))
        settings = replace(settings, extra={**settings.extra, **({"api_key": key} if key else {})})
    await chain.extend([with_system(plan.system), *plan.pipeline.context, turn.counted()], run)
    answer = plan.model.stream(chain.tail, tools=plan.tools, settings=settings, deadline=run.deadline)
    chain.append(answer)
    chain.append(turn.follow(answer))
    return chain.tail


async def _left(run: Run, turn: Turn) -> Unfinished | None:
    """Take note of a turn that is over, and look how its calls stand, if it made some."""
    run.stop = turn.stop or run.stop
    run.retry = _shrinks(run, turn)
    run.number += not run.retry
    made = (run.stop.query or {}).get("reason") == "tool_calls"
    return await run.store.unfinished(run.session) if made else None


def _has_results(run: Run, left: Unfinished | None) -> bool:
    """Tell whether the turn's calls have their results, so that the model can go on."""
    # Without `persist` the last row is still the prompt, and the model would be asked the same again.
    return left is not None and not left.calls and left.last is not None and left.last.id != run.asked
