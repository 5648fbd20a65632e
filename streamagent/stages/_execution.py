"""One tool call on its way from the model's words to a result."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from anyio import CancelScope, current_time, move_on_after

from streamagent._core.output import describe, error_output, render, text_of
from streamagent.calls import (
    AfterToolCall,
    BeforeToolCall,
    Child,
    HasPlan,
    Output,
    SteerAt,
    Tool,
    ToolCall,
    ToolContext,
)
from streamagent.errors import ToolError
from streamagent.hooks import lane_of, said_by
from streamagent.latch import Latch
from streamagent.message import Message, clean_text

from ._approval import Asked, Gate, ask_hook, prepared
from ._outbox import Outbox
from ._reconcile import outcome_of
from ._speech import Speech
from ._verdicts import REFUSED, SKIPPED, UNKNOWN, UNSEEN, Blocked, failure, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `tool_dispatch` was told; see there."""

    tools: Mapping[str, Tool]
    sequential: bool = False
    before: BeforeToolCall | None = None
    after: AfterToolCall | None = None
    platform: Mapping[str, Any] = field(default_factory=dict)
    announce: bool = False
    steer_at: SteerAt = "after_batch"

    def __repr__(self) -> str:
        told = [f"[{', '.join(self.tools)}]", "sequential" * self.sequential]
        return ", ".join(filter(None, [*told, self.steer_at * (self.steer_at == "after_tool")]))


class Execution:
    """A call that is being executed.

    Args:
        call: The call, complete.
        options: What the dispatcher was told.
        gate: What lets calls of the run pass.
        outbox: Where progress and the result go.
        previous: The call before it in the batch, which it waits for: in a sequential batch until that is finished,
            in a parallel one until that is prepared.
        sequential: The batch is executed one by one.
        border: Set when a call of the batch has finished, so that steering may be seen.
        decision: What was decided about it, when it waited for an approval.
    """

    def __init__(  # noqa: PLR0913 - made by tool_dispatch alone
        self,
        call: Message,
        options: Options,
        gate: Gate,
        outbox: Outbox,
        *,
        previous: Execution | None,
        sequential: bool,
        border: Latch,
        decision: Message | None = None,
    ) -> None:
        self.call = call
        self.passed = Latch()
        self.terminate = False
        self._options = options
        self._gate = gate
        self._run = gate.run
        self._decision = decision
        self._approval: str | None = None
        self._speech = Speech(call, outbox, announce=options.announce)
        self._previous = previous
        self._sequential = sequential
        self._border = border
        self._children = count(1)

    async def execute(self) -> None:
        """Take the call through all steps; its last message is its result, or the request to approve it."""
        with self._speech:
            try:
                if self._previous is not None:
                    await self._previous.passed.wait()
                    self._previous = None
                output = await self._output()
                if isinstance(output, Message):
                    await self._speech.send(output)
                    return
                self.terminate = output.terminate
                result = self._keep(output)
                await self._run.finish_call(self.call.id, result)
                self._border.set()
                await self._speech.announce("end", output.content, is_error=output.is_error)
                await self._speech.send(result)
            finally:
                self.passed.set()

    def _keep(self, output: Output) -> Message:
        """Make the result; from here on it is stored however the run ends."""
        skipped = output is SKIPPED or None
        result = self._run.outcomes[self.call.id] = self._speech.result(
            output, approval=self._approval, skipped=skipped
        )
        return result

    async def _output(self) -> Output | Message:
        """Run the call if it may; else say why not, or ask for an approval."""
        try:
            known = await self._recall() or self._gate.rejection(self._decision) or await self._skip()
            verdict = known or await self._judge()
        except BaseException as error:  # noqa: BLE001 - foreign code; see `failure`
            verdict = unknown(error, self.call.id) if self.call.id in self._run.started else failure(error)
        if isinstance(verdict, Message):
            return verdict
        await self._speech.announce("start", args=(self.call.query or {}).get("args"), sequential=self._sequential)
        if isinstance(verdict, Output):
            return verdict
        if skipped := await self._skip():  # whoever decided may have taken his time
            return skipped
        if not self._sequential:
            self.passed.set()
        attempt = await self._run.start_call(self.call.id)
        call = verdict.call
        if attempt != call.context.attempt:
            call = replace(call, context=replace(call.context, attempt=attempt))
        output = await self._call(verdict.tool, call)
        if self._options.after is None:
            return output
        try:
            given = await said_by(self._options.after(call, output), Output, "after_tool_call")
            return output if given is None else render(given)
        except BaseException as error:  # noqa: BLE001 - foreign code; see `failure`
            return failure(error)

    async def _recall(self) -> Output | Message | None:
        """Look at what a process that died has done of the call; `None` to run it, perhaps again."""
        record = self._run.started.get(self.call.id)
        if record is None:
            return None
        if record.outcome is not None:
            self._run.outcomes[self.call.id] = record.outcome
            return record.outcome
        tool = self._tool(self.call.query or {})
        if getattr(tool, "retry_safe", False):
            return None
        self._approval = None if self._decision is None else self._decision.id
        reconcile = getattr(tool, "reconcile", None)
        if reconcile is None:
            return UNKNOWN
        asked = await self._asked(begun=True)
        self._approval = await self._gate.passed(asked)
        return await outcome_of(reconcile, asked, self._run)

    async def _skip(self) -> Output | None:
        """Skip the call when the user has said something new, and the option is to see that before a call begins."""
        if self._options.steer_at == "after_batch" or not self._border.is_set():
            return None
        waiting = await self._run.store.inbox(self._run.session)
        return SKIPPED if any(lane_of(message) == "steer" for message in waiting) else None

    async def _judge(self) -> Asked | Output | Message:
        """Make the call ready, and ask whoever has to approve it."""
        try:
            asked = await self._asked()
        except Blocked as blocked:
            return blocked.output
        verdict = await self._gate.judge(asked)
        if not isinstance(verdict, str | None):
            return verdict
        self._approval = verdict
        return asked

    async def _asked(self, *, begun: bool = False) -> Asked:
        """Find the tool, prepare and validate the arguments, ask the hook.

        Args:
            begun: The tool had been run already: the hook tells once more what with, and stops nothing.

        Raises:
            Blocked: The hook blocks the call.
        """
        query = self.call.query or {}
        tool = self._tool(query)
        decided = None if self._decision is None else self._decision.query or {}
        args = await prepared(tool, (query if decided is None else decided).get("args") or {})
        call = ToolCall(id=self.call.id, tool=tool.spec.name, args=args, context=self._context(query))
        try:
            changed = await ask_hook(self._options.before, call)
        except Exception:
            if not begun:
                raise
            changed = args
        # What was approved was shown as the hook had left it; it may still have blocked it.
        replaced = changed != args and (decided is None or decided["decision"] == "edit")
        call = replace(call, args=await prepared(tool, changed)) if replaced else call
        return Asked(tool=tool, call=call, message=self.call, replaced=replaced, decision=self._decision)

    def _tool(self, query: Mapping[str, Any]) -> Tool:
        tool = self._options.tools.get(query.get("tool", ""))
        if tool is None:
            known = ", ".join(sorted(self._options.tools)) or "none"
            raise ToolError(f"Tool {query.get('tool')!r} not found. Available tools: {known}.")
        if invalid := query.get("invalid"):
            raise ToolError(REFUSED.get(invalid, "Not executed: {raw}").format(raw=self.call.content))
        return tool

    def _context(self, query: Mapping[str, Any]) -> ToolContext:
        return ToolContext(
            session=self._run.session,
            call_id=query.get("id", self.call.id),
            idempotency_key=f"{self._run.session}:{self.call.id}",
            fence=self._run.fence,
            deadline=self._run.deadline,
            platform=self._options.platform,
            report=self._speech.report,
            starter=self._start,
        )

    async def _start(self, agent: HasPlan, prompt: str) -> Output:
        return await self._run.start_child(
            Child(agent=agent, prompt=prompt, call=self.call.id, numbers=self._children, relay=self._speech.send)
        )

    async def _call(self, tool: Tool, asked: ToolCall) -> Output:
        """Wait for the tool in a task of its own: one that does not listen to its timeout cannot hold the run."""
        limit = math.inf if tool.timeout is None else tool.timeout
        running = _Running()
        self._run.tasks.start_soon(self._drive, tool, asked, running)
        try:
            with move_on_after(min(limit, self._run.deadline - current_time())):
                await running.done.wait()
        finally:
            asked.context.cancelled.set()
        if running.output is not None:
            return running.output
        running.abandoned = True
        running.scope.cancel()
        late = current_time() >= self._run.deadline
        when = "before the run's deadline" if late else f"within {limit:g} s"
        return error_output(ToolError(f"{tool.spec.name} did not finish {when} and was stopped."))

    async def _drive(self, tool: Tool, asked: ToolCall, running: _Running) -> None:
        with running.scope:
            output = await self._use(tool, asked, running)
            if not running.abandoned:
                running.output = output
                self._keep(
                    output if self._options.after is None else UNSEEN
                )  # it may be cut before anybody hears of it
            running.done.set()

    async def _use(self, tool: Tool, asked: ToolCall, running: _Running) -> Output:
        try:
            value = await tool.run(asked.args, asked.context)
            return await self._stream(value, running) if isinstance(value, AsyncIterator) else render(value)
        except BaseException as error:  # noqa: BLE001 - foreign code; see `failure`
            return failure(error)

    async def _stream(self, pieces: AsyncIterator[Any], running: _Running) -> Output:
        """Pass on what a tool yields, piece by piece; what follows an error is the error."""
        try:
            async with aclosing(pieces) if isinstance(pieces, AsyncGenerator) else nullcontext():
                async for piece in pieces:
                    if running.abandoned:
                        break
                    text = piece if isinstance(piece, str) else f"{text_of(piece)}\n"
                    await self._speech.send(self._speech.fragment(clean_text(text)))
        except Exception as error:  # noqa: BLE001 - foreign code; what it made before it failed is kept
            return Output(f"\n{describe(error)}" if self._speech.opened else describe(error), is_error=True)
        return Output("")


@dataclass(slots=True)
class _Running:
    """A tool at work, and what came of it."""

    done: Latch = field(default_factory=Latch)
    scope: CancelScope = field(default_factory=CancelScope)
    output: Output | None = None
    abandoned: bool = False
