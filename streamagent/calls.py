"""Tool calls: what a model may call, and what a program may say about a call before and after it ran."""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .errors import ConfigError

if TYPE_CHECKING:
    from .message import Message

ExecutionMode = Literal["parallel", "sequential"]
SteerAt = Literal["after_batch", "after_tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a model is told about a tool.

    Args:
        name: What the model calls it by.
        description: What it does, for the model.
        parameters: JSON Schema (draft 2020-12) of its arguments, an object.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a tool call; a tool may return one to say more than text.

    Args:
        content: What the model reads.
        is_error: The call failed, and `content` says why.
        details: What programs read, as JSON can hold it; the model does not see it.
        terminate: End the run after this batch, if all its results ask for that; it is not stored.
    """

    content: str
    is_error: bool = False
    details: Mapping[str, Any] | None = None
    terminate: bool = False


class HasPlan(Protocol):
    """What can be started as a sub-agent: an `Agent`."""

    @property
    def plan(self) -> Any:
        """What a run needs to know of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a running tool may know and do.

    Args:
        session: Id of the session.
        call_id: The call's id, as the model knows it.
        idempotency_key: Stable for this call, also when it is run again after a crash.
        attempt: How often this call was about to run, this time included; from 1.
        fence: Of the run: higher than that of any run of this session before. Whoever takes an effect can refuse what
            comes with a lower one than it saw: its run was taken over.
        deadline: When the run ends, on anyio's clock, in seconds.
        cancelled: Set when nobody waits for the result any more; a tool in a thread should look at it.
        platform: What the application hands to its tools; never shown to a model.
        report: Where `update` goes.
        starter: What `start` asks.
    """

    session: str
    call_id: str
    idempotency_key: str
    attempt: int = 1
    fence: int = 0
    deadline: float = math.inf
    cancelled: threading.Event = field(default_factory=threading.Event)
    platform: Mapping[str, Any] = field(default_factory=dict)
    report: Callable[[str], None] = field(default=lambda _: None, repr=False)
    starter: Callable[[HasPlan, str], Awaitable[Output]] | None = field(default=None, repr=False)

    def update(self, text: str) -> None:
        """Show progress to whoever watches the run; it is neither stored nor put into the context.

        From a worker thread it may be called as well. What comes after the call was settled is dropped.
        """
        if not self.cancelled.is_set():
            self.report(text)

    async def start(self, agent: HasPlan, prompt: str) -> Output:
        """Let a sub-agent answer a prompt, in a session of its own that lives beside the caller's.

        Args:
            agent: What answers, an `Agent`; its own store is not used.
            prompt: What to ask.

        Returns:
            The text of its answer, with `{session, reason}` as details; an error when it came to no answer, or when
            there are too many sub-agents already, or nobody waits for the call's result any more.

        Raises:
            ConfigError: `agent` is no agent, or the call belongs to no session.
        """
        if self.starter is None:
            raise ConfigError("sub-agents live beside a session, and this call belongs to none; use agent.session(…)")
        if self.cancelled.is_set():
            return Output("Not started: the call that wanted it is over.", is_error=True)
        return await self.starter(agent, prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A sub-agent that a call wants to have started.

    Args:
        agent: What answers.
        prompt: What it is asked.
        call: The call's message id.
        numbers: Numbers for the sub-agents of the call, from 1; one that begins takes the next.
        relay: Shows its messages to whoever reads the run.
    """

    agent: HasPlan
    prompt: str
    call: str
    numbers: Iterator[int]
    relay: Callable[[Message], Awaitable[None]]


class Tool(Protocol):
    """Something that a model may call.

    A tool may also have `prepare(arguments) -> Mapping`, which mends and validates the arguments before anybody
    decides about the call, `execution_mode`, `parallel` or `sequential`, and `requires_approval`: true, or a function
    of the prepared arguments that says so.

    What becomes of a call whose process died while it ran is the tool's to say. With `retry_safe` true it is run again,
    with the same `idempotency_key`. Otherwise it is never run twice: `reconcile(call: ToolCall)` is asked what came of
    it, with the arguments that it ran with, and returns that as `run` would, or `None` when it cannot tell; without an
    answer the model reads that the outcome is unknown.
    """

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        ...

    @property
    def timeout(self) -> float | None:
        """Longest run of one call, in seconds; `None` for no limit."""
        ...

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Validate the arguments, run the call and return its result: text, or anything that JSON can hold.

        An async iterator as the result is streamed: its pieces are shown and stored as they come.

        Raises:
            InvalidArguments: The arguments do not fit; the text tells the model what to mend.
            ToolError: The call failed; the model reads this text.
            Exception: Anything else is shown to the model with its type.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call, as the hooks see it.

    Args:
        id: The call's message id.
        tool: The tool's name.
        args: The arguments, prepared and validated.
        context: What the tool will get.
    """

    id: str
    tool: str
    args: Mapping[str, Any]
    context: ToolContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What `before_tool_call` says of a call; all defaults let it run.

    Args:
        block: Do not run it; this reason is the error result that the model reads.
        args: Run it with these arguments instead.
        terminate: Of a blocked call: its result asks for the run's end.
    """

    block: str | None = None
    args: Mapping[str, Any] | None = None
    terminate: bool = False


RequiresApproval = bool | Callable[[Mapping[str, Any]], Awaitable[bool] | bool]
Reconcile = Callable[[ToolCall], Awaitable[Any] | Any]
BeforeToolCall = Callable[[ToolCall], Awaitable[Decision | None] | Decision | None]
AfterToolCall = Callable[[ToolCall, Output], Awaitable[Output | None] | Output | None]
