"""`tool_dispatch`: run the calls that pass, give their results back in call order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import dropwhile
from typing import Any

from streamagent.calls import AfterToolCall, BeforeToolCall, ExecutionMode, SteerAt, Tool
from streamagent.duties import mark
from streamagent.errors import ConfigError
from streamagent.latch import Latch
from streamagent.message import Message
from streamagent.protocols import RunContext, Stage, Stream

from ._approval import Gate
from ._execution import Execution, Options
from ._outbox import Outbox

UNASKED = "Not executed: the run ended before anybody could approve this call."
RAW_SHOWN = 2000  # characters of unreadable arguments that the model is shown again
CONCERNS = frozenset({"tool_call", "stop", "approval"})


def tool_dispatch(  # noqa: PLR0913 - the options of a dispatcher, all by keyword
    offered: Iterable[Tool] = (),
    /,
    *,
    mode: ExecutionMode = "parallel",
    before_tool_call: BeforeToolCall | None = None,
    after_tool_call: AfterToolCall | None = None,
    platform: Mapping[str, Any] | None = None,
    announce: bool = False,
    steer_at: SteerAt = "after_batch",
) -> Stage:
    """Run tool calls in the run's tasks, when everything downstream has dealt with the answer that makes them.

    With `persist` downstream the answer is therefore stored before a call of it runs, and a crash in the middle of an
    answer leaves nothing that was done for it. Calls at its beginning whose tools are `retry_safe` start before, each
    when it is complete. That a tool is about to run is committed first, and what came of it after.

    The results follow the turn's `stop`, in call order; when the turn does not go on (a limit, a truncated answer) they
    come before it. A call that must not run (unknown tool, unreadable arguments, a truncated answer) and one that fails
    get an error result that tells the model why. When every result of a batch asks to terminate, a `stop` with reason
    `terminate` ends the run.

    For a call that needs an approval the request, a message of type `approval`, is yielded instead. When the decision
    passes by, in this run or a later one, the call is run, or gets the rejection as its result.

    Args:
        offered: The tools that may be called.
        mode: Whether the calls of a batch run at the same time. They are prepared one by one in either case, and one
            tool whose `execution_mode` is `sequential` makes its whole batch sequential.
        before_tool_call: Asked before a call runs, with its prepared and validated arguments; may block it, replace
            the arguments, or ask to terminate. What it raises is the call's error result.
        after_tool_call: Asked after a call ran; may give another output. What it raises is the call's error result.
        platform: What tools find as `context.platform`.
        announce: Also yield `progress` messages when a call starts and ends, for `events`.
        steer_at: When a steering message waits, whether the calls of the batch that have not begun are still run, or
            skipped as soon as one of them has finished. What runs is finished in either case.

    Raises:
        ConfigError: Two tools have one name, or there is no such mode or border.
    """
    if mode not in ("parallel", "sequential"):
        raise ConfigError(f"tool_dispatch: mode is 'parallel' or 'sequential', not {mode!r}")
    if steer_at not in ("after_batch", "after_tool"):
        raise ConfigError(f"tool_dispatch: steer_at is 'after_batch' or 'after_tool', not {steer_at!r}")
    options = Options(
        tools=_by_name(offered),
        sequential=mode == "sequential",
        before=before_tool_call,
        after=after_tool_call,
        platform=platform or {},
        announce=announce,
        steer_at=steer_at,
    )
    return _stage(options)


def _stage(tools: Options) -> Stage:
    """Make the stage; it is printed with the name of its free variable."""

    def stage(stream: Stream, run: RunContext) -> Stream:
        return _dispatched(stream, run, tools)

    def with_tools(change: Callable[[Tool], Tool]) -> Stage:
        return _stage(replace(tools, tools=_by_name(map(change, tools.tools.values()))))

    stage.__qualname__ = f"{tool_dispatch.__name__}.<locals>.stage"
    repeats = frozenset(name for name, tool in tools.tools.items() if _is_repeatable(tool))
    vars(stage).update(runs=frozenset(tools.tools), repeats=repeats, with_tools=with_tools)
    return mark(stage, "dispatch")


async def _dispatched(stream: Stream, run: RunContext, options: Options) -> Stream:
    with closing(_Batch(options, run)) as batch:
        async for message in stream:
            if message.type not in CONCERNS:
                yield message
                continue
            # The stop of a turn that does not go on is the last word.
            while message.is_final and (answer := await batch.next_answer(pausing=False)):
                yield answer
            yield message
            batch.take(message)
            while batch.complete(message) and (answer := await batch.next_answer()):
                yield answer
            if batch.terminated and not message.is_final:
                yield Message.stop("terminate")
                return
        while answer := await batch.next_answer():
            yield answer


def _by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    by_name: dict[str, Tool] = {}
    for tool in tools:
        if not hasattr(tool, "spec"):
            raise ConfigError(f"{tool!r:.80} is not a tool; decorate the function with @tool, or take agent.as_tool()")
        if by_name.setdefault(tool.spec.name, tool) is not tool:
            raise ConfigError(f"two tools are named {tool.spec.name!r}; give one of them another name")
    return by_name


class _Batch:
    """The calls of a turn."""

    __slots__ = (
        "_border",
        "_early",
        "_executions",
        "_gate",
        "_held",
        "_last",
        "_opened",
        "_options",
        "_outbox",
        "_recalled",
        "_run",
        "_votes",
        "terminated",
    )

    def __init__(self, options: Options, run: RunContext) -> None:
        self._options = options
        self._run = run
        self._gate = Gate(run)
        self._outbox: Outbox | None = None  # while calls run; most turns have none
        self._opened: dict[str, str] = {}
        self._held: list[tuple[Message, Message | None]] = []
        self._executions: list[Execution] = []
        self._last: Execution | None = None
        self._border = Latch()
        self._early: dict[str, Message] = {}
        self._votes: list[bool] = []
        self._recalled = False
        self.terminated = False

    def complete(self, message: Message) -> bool:
        """Tell whether a message is the batch's last: the turn's `stop`, or the last of the calls made before."""
        return message.type == "stop" or (self._recalled and not self._run.decided)

    def take(self, message: Message) -> None:
        """Start a call that may begin early; hold what follows the first that may not, until the batch is complete."""
        asked = (message.query or {}).get("call", "") if message.type == "approval" else message.id
        if call := self._run.decided.pop(asked, None):
            self._recalled = True
            self._held.append((call, message if message.type == "approval" else None))
            self._votes.append(False)  # what the rest of its batch asked for is not known any more
            return
        if message.type == "tool_call" and message.role == "assistant":
            content = (self._opened.pop(message.id, "") + message.content)[:RAW_SHOWN]
            if message.more:
                self._opened[message.id] = content
            else:
                whole = message if content == message.content else replace(message, content=content)
                self._held.append((whole, None))
        if message.type == "stop":
            self._start()
        elif self._held and not any(map(_is_sequential, self._options.tools.values())):
            self._start(early=True)

    def _may_begin(self, call: Message) -> bool:
        """Tell whether a call may run before its answer is complete, and perhaps for one that is taken anew."""
        tool = self._options.tools.get((call.query or {}).get("tool", ""))
        return tool is not None and _is_repeatable(tool) and getattr(tool, "requires_approval", False) is False

    def _start(self, *, early: bool = False) -> None:
        """Start the calls that are held, or those in front that may begin early."""
        if not self._held:
            return
        waiting = [] if not early else list(dropwhile(lambda held: self._may_begin(held[0]), self._held))
        self._held = self._held[: len(self._held) - len(waiting)]
        names = [(call.query or {}).get("tool", "") for call, _ in self._held]
        asked = [self._options.tools[name] for name in names if name in self._options.tools]
        sequential = self._options.sequential or any(map(_is_sequential, asked))
        for call, decision in self._held:
            self._outbox = self._outbox or Outbox()
            self._last = Execution(
                call,
                self._options,
                self._gate,
                self._outbox,
                previous=self._last,
                sequential=sequential,
                border=self._border,
                decision=decision,
            )
            self._executions.append(self._last)
            self._run.tasks.start_soon(self._last.execute)
        self._held = waiting

    async def next_answer(self, *, pausing: bool = True) -> Message | None:
        """Wait for what the tools say next; the results, which close the calls, come in call order.

        Args:
            pausing: The run may wait for approvals; else a call that needs one gets an error as its result.

        Returns:
            The message; `None` when all calls have their result.
        """
        self._start()
        while self._executions and self._outbox is not None:
            if result := self._early.pop(self._executions[0].call.id, None):
                self._votes.append(self._executions.pop(0).terminate)
                return result
            message = await self._outbox.receive()
            if message.path:
                return message
            if message.type == "approval" and not pausing:
                message = _unasked(message)
            if message.type == "approval":  # whoever decides need not wait for the calls before it
                self._executions = [item for item in self._executions if item.call.id != _call_of(message)]
                self._votes.append(False)
            if message.type != "tool_result" or message.more:
                return message
            self._early[_call_of(message)] = message
        self.terminated = bool(self._votes) and all(self._votes)
        self._votes, self._last, self._border, self._recalled = [], None, Latch(), False
        if self._outbox is not None and self._outbox.is_over:
            self.close()
        return None

    def close(self) -> None:
        """Take nothing more of what calls say; idempotent."""
        if self._outbox is not None:
            self._outbox.close(drop=True)
            self._outbox = None


def _unasked(request: Message) -> Message:
    """Close a call that nobody can approve any more, because the run ends with this answer."""
    asked = request.query or {}
    query = {"tool": asked.get("tool"), "id": asked.get("id"), "call": asked.get("call"), "is_error": True}
    return Message(role="tool", type="tool_result", content=UNASKED, query=query)


def _call_of(message: Message) -> str:
    return str((message.query or {}).get("call"))


def _is_repeatable(tool: Tool) -> bool:
    return bool(getattr(tool, "retry_safe", False))


def _is_sequential(tool: Tool) -> bool:
    return getattr(tool, "execution_mode", "parallel") == "sequential"
