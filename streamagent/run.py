"""`Run`: one way from the inbox to the final answer; `turns`: the head of its chain, the agent loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anyio import CancelScope, Event, move_on_after
from anyio.abc import TaskGroup

from .calls import ToolSpec
from .cancellation import must_propagate
from .message import Message
from .pipeline import Chain, Pipeline
from .protocols import DEFAULT_SETTINGS, Model, ModelSettings, Source, Stage, Store, Stream

TASK_TIMEOUT = (
    1.0  # seconds for background work to end when it is cancelled; a tool that does not listen is left behind
)


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
    """

    model: Model
    pipeline: Pipeline
    tools: Sequence[ToolSpec] = ()
    system: str | None = None
    settings: ModelSettings = DEFAULT_SETTINGS
    max_turns: int = 50
    timeout: float | None = None


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
    """A run as its stages see it (`protocols.RunContext`), and what its head needs; `prompt` is what it answers."""

    session: str
    store: Store
    fence: int
    plan: Plan
    tasks: RunTasks
    deadline: float = math.inf
    outcomes: dict[str, Message] = field(default_factory=dict)
    prompt: str | None = None
    again: Message | None = None

    async def open(self) -> Chain:
        """Build the chain: the head, then the reply stages."""
        chain = Chain(turns(self))
        await chain.extend(self.plan.pipeline.reply, self)
        return chain


async def turns(run: Run) -> Stream:
    """Admit the prompt that waits longest, and take model turns until it has its final answer.

    Yields:
        The prompt, and what the model says; a `stop` with reason `turn_limit` when it took more turns than the plan
        allows.
    """
    for prompt in await run.store.admit(run.session, fence=run.fence):
        run.prompt = prompt.id
        yield prompt
        for _ in range(run.plan.max_turns):
            stop: Message | None = None
            chain = Chain(run.store.read(run.session))
            try:
                async for message in await _answer(run, chain):
                    # Sequences are the store's to give: a message that had one would pass for stored.
                    yield message if message.sequence is None else replace(message, sequence=None)
                    if message.type == "stop":
                        stop = message
            finally:
                await chain.aclose()
            again, run.again = run.again, None
            if again is not None:
                yield again
                continue
            if stop is None:
                yield Message.stop("error", model=run.plan.model.name, error=_NO_STOP)
            if stop is None or not await _has_results(run, stop):
                return
        yield Message.stop("turn_limit", limit={"turns": run.plan.max_turns})


_NO_STOP = {"kind": "truncated", "message": "the model's stream ended without a stop", "retryable": False}


async def _answer(run: Run, chain: Chain) -> Source:
    """Link the stored rows, the context stages and the model."""
    plan = run.plan
    await chain.extend([_with_system(plan.system), *plan.pipeline.context], run)
    answer = plan.model.stream(chain.tail, tools=plan.tools, settings=plan.settings, deadline=run.deadline)
    chain.append(answer)
    return answer


def _with_system(system: str | None) -> Stage:
    async def stage(stream: Stream) -> Stream:
        if system:
            yield Message.system(system)
        async for message in stream:
            yield message

    return stage


async def _has_results(run: Run, stop: Message) -> bool:
    """Tell whether the turn's calls have their results, so that the model can go on."""
    if (stop.query or {}).get("reason") != "tool_calls":
        return False
    left = await run.store.unfinished(run.session)
    # Without `persist` the last row is still the prompt, and the model would be asked the same again.
    return not left.calls and left.last is not None and left.last.id != run.prompt
