"""`tool_dispatch`: run the calls that pass, give their results back in call order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from anyio import BrokenResourceError, create_memory_object_stream, move_on_after
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from streamagent._core.output import error_output, render
from streamagent.calls import Output, Tool, ToolContext
from streamagent.errors import ConfigError, ToolError
from streamagent.message import Message
from streamagent.protocols import RunContext, Stage, Stream


def tool_dispatch(offered: Iterable[Tool] = (), /) -> Stage:
    """Run tool calls in parallel, in the run's group, each as soon as everything downstream has dealt with the call.

    With `persist` downstream a call is therefore stored before it runs. The results follow the turn's `stop`, in call
    order; when the turn does not go on (a limit, a truncated answer) they come before it. A call that must not run
    (unknown tool, unreadable arguments, a truncated answer) and one that fails get an error result that tells the
    model why.

    Args:
        offered: The tools that may be called.

    Raises:
        ConfigError: Two tools have one name.
    """
    tools = _by_name(offered)

    async def stage(stream: Stream, run: RunContext) -> Stream:
        # Unbounded, but it never holds more than one result for each call of a turn.
        outbox, inbox = create_memory_object_stream[Message](math.inf)
        batch = _Batch(inbox)
        with outbox, inbox:
            async for message in stream:
                while batch.calls and message.is_final:  # the turn does not go on: its stop is the last word
                    yield await batch.next_result()
                yield message
                if message.type == "tool_call" and (call := batch.complete(message)):
                    run.tasks.start_soon(_execute, call, tools, run, outbox.clone())
                while batch.calls and message.type == "stop":
                    yield await batch.next_result()
            while batch.calls:
                yield await batch.next_result()

    return stage


def _by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    by_name: dict[str, Tool] = {}
    for tool in tools:
        if not hasattr(tool, "spec"):
            raise ConfigError(f"{tool!r:.80} is not a tool; decorate the function with @tool")
        if by_name.setdefault(tool.spec.name, tool) is not tool:
            raise ConfigError(f"two tools are named {tool.spec.name!r}; give one of them another name")
    return by_name


class _Batch:
    """The calls of a turn that wait for their results."""

    def __init__(self, inbox: MemoryObjectReceiveStream[Message]) -> None:
        self.calls: deque[Message] = deque()
        self._inbox = inbox
        self._early: dict[str, Message] = {}
        self._opened: dict[str, str] = {}

    def complete(self, fragment: Message) -> Message | None:
        """Return the call that a fragment completes, with as much of its arguments' text as a model is shown again."""
        content = (self._opened.pop(fragment.id, "") + fragment.content)[:RAW_SHOWN]
        if fragment.more:
            self._opened[fragment.id] = content
            return None
        call = replace(fragment, content=content)
        self.calls.append(call)
        return call

    async def next_result(self) -> Message:
        """Wait for the result of the oldest call."""
        call = self.calls.popleft()
        while call.id not in self._early:
            result = await self._inbox.receive()
            self._early[(result.query or {})["call"]] = result
        return self._early.pop(call.id)


async def _execute(
    call: Message, tools: Mapping[str, Tool], run: RunContext, outbox: MemoryObjectSendStream[Message]
) -> None:
    with outbox:
        result = as_result(call, await _output(call, tools, run))
        run.outcomes[call.id] = result
        with suppress(BrokenResourceError):  # the stage has gone; the outcome is stored all the same
            outbox.send_nowait(result)


def as_result(call: Message, output: Output) -> Message:
    """Make the `tool_result` that answers a call."""
    query = call.query or {}
    answer = {"tool": query.get("tool"), "id": query.get("id"), "call": call.id, "is_error": output.is_error}
    details = {"details": output.details} if output.details else {}
    return Message(role="tool", type="tool_result", content=output.content, query={**answer, **details})


async def _output(call: Message, tools: Mapping[str, Tool], run: RunContext) -> Output:
    query = call.query or {}
    tool = tools.get(query.get("tool", ""))
    if tool is None:
        known = ", ".join(sorted(tools)) or "none"
        return error_output(ToolError(f"Tool {query.get('tool')!r} not found. Available tools: {known}."))
    if invalid := query.get("invalid"):
        return error_output(ToolError(_REFUSED.get(invalid, "Not executed: {raw}").format(raw=call.content)))
    context = ToolContext(
        session=run.session,
        call_id=query.get("id", call.id),
        idempotency_key=f"{run.session}:{call.id}",
        deadline=run.deadline,
    )
    return await _call(tool, query.get("args") or {}, context)


RAW_SHOWN = 2000  # characters of unreadable arguments that the model is shown again

_REFUSED = {
    "bad_json": "Not executed: the arguments are not valid JSON. Send the call again with valid JSON. Received: {raw}",
    "not_object": "Not executed: the arguments must be a JSON object. Received: {raw}",
    "truncated": "Not executed: the answer was cut off before this call was complete. Send the call again.",
}


async def _call(tool: Tool, arguments: Mapping[str, object], context: ToolContext) -> Output:
    try:
        with move_on_after(tool.timeout) as scope:
            return render(await tool.run(arguments, context))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool is foreign code; its failure is data
        return error_output(error)
    finally:
        context.cancelled.set()
    if not scope.cancelled_caught:
        raise AssertionError("only a timeout leads here")
    return error_output(ToolError(f"{tool.spec.name} did not finish within {tool.timeout:g} s and was stopped."))
