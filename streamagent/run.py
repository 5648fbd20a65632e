"""`Run`: one way from the inbox to the final answer; `turns`: the head of its chain, the agent loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anyio import CancelScope, Event, move_on_after
from anyio.abc import TaskGroup

from .calls import ToolSpec
from .cancellation import must_propagate
from .hooks import NO_HOOKS, Drain, Hooks, NextTurn, TurnEnd, lane_of, settled
from .inbox import Inbox
from .message import Message
from .pipeline import Chain, Pipeline
from .protocols import DEFAULT_SETTINGS, Model, ModelSettings, Source, Store, Stream
from .turn import Turn, with_system

TASK_TIMEOUT = 1.0  # seconds for cancelled background work to end; a tool that does not listen is left behind


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


class RunTasks:
    """The background work of one run, inside a group that is older than the run.

    A failure in it is raised where the run is driven, not in the group, which belongs to other runs too.
    """

    __slots__ = ("_count", "_group", "_idle", "_on_error", "_scopes", "cancelled")

    def __init__(self, group: TaskGroup, on_error: Callable[[BaseException], None]) -> None:
        self._group = group
        self._on_error = on_error
        self._scopes: set[CancelScope] = set()
        self._count = 0
        self._idle = Event()
        self.cancelled = False

    def start_soon(self, func: Callable[..., Coroutine[Any, Any, Any]], *args: Any, name: object = None) -> None:
        """Start `func(*args)`."""
        self._count += 1
        self._group.start_soon(self._child, func, args, name=name or func)

    async def _child(self, func: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]) -> None:
        try:
            with CancelScope() as scope:
                self._scopes.add(scope)
                if self.cancelled:
                    scope.cancel()
                await func(*args)
        except BaseException as error:
            if must_propagate(error):
                raise
            self._on_error(error)  # it is raised again in the task that drives the run
        finally:
            self._scopes.discard(scope)
            self._count -= 1
            if not self._count:
                self._idle.set()

    async def aclose(self, close_timeout: float = TASK_TIMEOUT) -> None:
        """Cancel what runs and wait for it, shielded, at most `close_timeout` seconds."""
        self.cancelled = True
        for scope in tuple(self._scopes):
            scope.cancel()
        if self._count:
            self._idle = Event()
            with move_on_after(close_timeout, shield=True):
                await self._idle.wait()


@dataclass(slots=True)
class Run:
    """A run as its stages see it (`protocols.RunContext`), and what its head needs.

    `prompt` is the id of what it was begun for, `asked` that of the last message that was admitted, `taken` has those
    of all, `number` counts the turns that are over, and after `last_turn` of them it ends; `again` takes a turn again
    (`protocols.RunContext`). `interrupted` is the id of the message for which it was cut, when it goes on after that;
    empty when nobody said for which. `turn` is the answer that is under way; `shrunk`, that a turn of the prompt was
    taken once more because its context was too long.
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
    interrupted: str | None = None
    turn: Turn | None = None
    shrunk: bool = False
    inbox: Inbox = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
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

    def take(self, prompt: Message) -> None:
        """Take note of what is admitted; only a follow-up has all turns again."""
        self.asked = prompt.id
        self.taken.add(prompt.id)
        if not self.number or lane_of(prompt) == "follow_up":  # steering must not keep a run alive for ever
            self.last_turn = self.number + self.plan.max_turns
            self.shrunk = False

    def resumed(self, tasks: RunTasks, by: str) -> Run:
        """Make what goes on after an interruption: the same run, with stages that begin anew.

        Args:
            tasks: Its background work.
            by: Id of the message for which it was cut; empty when nobody said for which.
        """
        return replace(self, tasks=tasks, outcomes={}, again=None, turn=None, interrupted=by)

    @property
    def cut_usage(self) -> Mapping[str, Any] | None:
        """Tokens of the answer that is under way."""
        return None if self.turn is None else self.turn.usage

    @property
    def last_words(self) -> Mapping[str, Any]:
        """What its `stop` says besides when it is cut: what the answer took that was under way, or that none was."""
        turn = self.turn
        return {"model": turn.model, "usage": turn.usage} if turn else {"usage": {"total_tokens": 0}}

    async def open(self) -> Chain:
        """Build the chain: the head, then the reply stages."""
        chain = Chain(turns(self))
        await chain.extend(self.plan.pipeline.reply, self)
        return chain


async def turns(run: Run) -> Stream:
    """Admit the prompt that waits longest, and take model turns until it has its final answer.

    Steering messages are admitted after each turn, and follow-ups when nothing else is left: the same run answers them.

    Yields:
        The prompts, and what the model says; a `stop` with reason `turn_limit` when one took more turns than the plan
        allows, or with reason `stopped` when `should_stop_after_turn` said so.
    """
    admitted = await _begin(run)
    while admitted is not None:
        for prompt in admitted:
            run.take(prompt)
        for prompt in admitted:
            yield prompt
        if run.number == run.last_turn:
            yield Message.stop("turn_limit", limit={"turns": run.plan.max_turns})
            return
        turn = run.turn = Turn(run.plan.model.name)
        chain = Chain(run.store.read(run.session))
        try:
            async for message in await _answer(run, chain, turn):
                if message.type == "stop":
                    run.turn = None
                yield turn.take(message)
        finally:
            await chain.aclose()
        if turn.stop is None:
            run.turn = None
            yield turn.end()
        border = await _border(run, turn)
        if isinstance(border, Message):
            yield border
        admitted = border if isinstance(border, list) else None


async def _begin(run: Run) -> list[Message] | None:
    """Admit what a run is begun for, or goes on with after an interruption; `None` when there is nothing to answer."""
    if run.interrupted is None:
        admitted = await run.inbox.first()
        run.prompt = admitted[0].id if admitted else None
        return admitted or None
    admitted = await run.inbox.steered("all")
    return admitted if admitted or run.interrupted else None


_QUEUES_LEFT = ("error", "tool_calls")  # reasons after which what waits goes on waiting: a failure, calls nobody ran


async def _border(run: Run, turn: Turn) -> list[Message] | Message | None:
    """Decide between two turns what comes next.

    Returns:
        What was admitted, when there is another turn; `None`, or a last `stop`, when there is none.
    """
    end = TurnEnd(session=run.session, number=run.number + 1, stop=turn.stop or turn.end())
    retry = _shrinks(run, turn)
    run.number += not retry
    hook = run.hooks.should_stop_after_turn
    if hook is not None and await settled(hook(end)):
        return None if end.stop.is_final else Message.stop("stopped", turn=end.number)
    goes_on = retry or run.again is not None or await _has_results(run, end.stop)
    admitted: list[Message] = []
    if goes_on or (end.stop.query or {}).get("reason") not in _QUEUES_LEFT:
        admitted = await run.inbox.steered() or ([] if goes_on else await run.inbox.followed_up())
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


def _shrinks(run: Run, turn: Turn) -> bool:
    """Tell whether a turn is taken once more: its context was too long, and a stage will read that in its stored stop.

    The second time is final (F04).
    """
    first, run.shrunk = not run.shrunk, run.shrunk or turn.overflowed
    return first and turn.overflowed and run.plan.pipeline.has("shrink", "persist")


async def _answer(run: Run, chain: Chain, turn: Turn) -> Source:
    """Link the stored rows, the context stages and the model."""
    plan, settings = run.plan, run.plan.settings
    if run.hooks.get_api_key is not None:
        key = await settled(run.hooks.get_api_key(plan.model.name.partition("/")[0]))
        settings = replace(settings, extra={**settings.extra, **({"api_key": key} if key else {})})
    await chain.extend([with_system(plan.system), *plan.pipeline.context, turn.counted()], run)
    answer = plan.model.stream(chain.tail, tools=plan.tools, settings=settings, deadline=run.deadline)
    chain.append(answer)
    return answer


async def _has_results(run: Run, stop: Message) -> bool:
    """Tell whether the turn's calls have their results, so that the model can go on."""
    if (stop.query or {}).get("reason") != "tool_calls":
        return False
    left = await run.store.unfinished(run.session)
    # Without `persist` the last row is still the prompt, and the model would be asked the same again.
    return not left.calls and left.last is not None and left.last.id != run.asked
