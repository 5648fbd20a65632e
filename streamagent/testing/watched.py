"""Points around a store, the stages, the tools and the model of an agent: where a fault may hit them.

| points | names |
| --- | --- |
| before and after each write of a store | `store.write 3 before`, `store.write 3 after` |
| each message that a reply stage yields | `yield 12 behind tool_dispatch` |
| before a tool starts, after it returned and before its result is kept | `tool stock 1 before`, `tool stock 1 after` |
| each piece that a streaming tool yields | `tool stock 1 piece 2` |
| before a model is asked, before each fragment, before the stop | `model call 2`, `model call 2 chunk 5`, `… stop` |
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from streamagent.agent import Agent
from streamagent.calls import Tool, ToolContext, ToolSpec
from streamagent.pipeline import Pipeline, describe
from streamagent.protocols import DEFAULT_SETTINGS, Model, ModelSettings, Stage, Store, Stream

from .points import FaultPoints

S = TypeVar("S", bound=Store)

# The methods of a store that change something; those that it does not have are not missed.
WRITES = frozenset(
    {
        "acquire",
        "admit",
        "begin_run",
        "delete",
        "enqueue",
        "finish_call",
        "flush",
        "fork",
        "heartbeat",
        "release",
        "retire",
        "start_call",
        "write",
    }
)
WRITES_SOON = frozenset({"write_soon"})  # of these, those that are no coroutines
READS = frozenset({"calls", "inbox", "standing", "tally", "unattended", "unfinished", "usage", "waiting"})


class FaultyStore:
    """A store with points around what it writes; see `faulty`.

    Args:
        store: The store.
        points: The plan.
    """

    def __init__(self, store: Store, points: FaultPoints) -> None:
        self._store = store
        self._points = points

    async def __aenter__(self) -> Store:
        await self._store.__aenter__()
        return cast("Store", self)

    async def __aexit__(self, *exc_info: object) -> bool | None:
        return await self._store.__aexit__(*exc_info)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if getattr(value, "__func__", None) is Store.begin_run:  # of several commits, each with its points
            return partial(Store.begin_run, cast("Store", self))
        if name in WRITES:
            return partial(self._write, name)
        if name in WRITES_SOON:
            return partial(self._write_soon, name)
        if name in READS:
            return partial(self._read, name)
        if name == "reopened":
            return lambda: type(self)(value(), self._points)
        return value

    async def _write(self, name: str, *args: Any, **options: Any) -> Any:
        number = self._points.number(f"store.{name}")
        self._points.point(f"store.{name} {number} before")
        result = await getattr(self._store, name)(*args, **options)
        self.wrote(name, args, options, result)
        self._points.point(f"store.{name} {number} after")
        await self._points.pause(f"store.{name}")
        return result

    def _write_soon(self, name: str, *args: Any, **options: Any) -> Any:
        number = self._points.number(f"store.{name}")
        self._points.point(f"store.{name} {number} before")
        result = getattr(self._store, name)(*args, **options)
        self.wrote(name, args, options, result)
        self._points.point(f"store.{name} {number} after")
        return result

    async def _read(self, name: str, *args: Any, **options: Any) -> Any:
        result = await getattr(self._store, name)(*args, **options)
        await self._points.pause(f"store.{name}")
        return result

    def wrote(self, name: str, args: Sequence[Any], options: Mapping[str, Any], result: Any) -> None:
        """Take note of a write that the store took; a subclass may log it.

        Args:
            name: Of the method.
            args: What it got.
            options: What it got by keyword.
            result: What it gave.
        """


def faulty(store: S, points: FaultPoints) -> S:
    """Put points before and after the commit of every write of a store.

    Args:
        store: The store; the proxy is entered in its place.
        points: The plan.
    """
    return cast("S", FaultyStore(store, points))


def watched(agent: Agent, points: FaultPoints) -> Agent:
    """Put points around an agent's store, its model, its tools and behind each of its reply stages.

    Args:
        agent: The agent; it stays as it is. What it runs as sub-agents is watched where it writes alone, by the store.
        points: The plan.

    Returns:
        Another agent. Change options before this, not after: `with_options` makes an agent without points.
    """
    other = copy(agent)
    other.store = faulty(agent.store, points)
    other.plan = replace(
        agent.plan, model=watched_model(agent.model, points), pipeline=watched_pipeline(agent.pipeline, points)
    )
    return other


def watched_pipeline(
    pipeline: Pipeline, points: FaultPoints, change: Callable[[Tool], Tool] = lambda tool: tool
) -> Pipeline:
    """Put points behind each reply stage, and around the tools that they run.

    Args:
        pipeline: The pipeline.
        points: The plan.
        change: What is made of each tool before, such as `EffectLog.recorded`.
    """
    reply: list[Stage] = []
    for stage in pipeline.reply:
        reply += [with_tools(stage, lambda tool: watched_tool(change(tool), points)), points_behind(stage, points)]
    return Pipeline(context=pipeline.context, reply=reply)


def points_behind(stage: Stage, points: FaultPoints) -> Stage:
    """Make a stage that passes on what it gets, with a point before each message.

    Args:
        stage: The stage behind which it will stand, which gives the points their name.
        points: The plan.
    """
    name = describe(stage).partition("(")[0]

    async def passing(stream: Stream) -> Stream:
        async for message in stream:
            points.point(f"yield {points.number(f'yield behind {name}')} behind {name}")
            yield message

    return passing


def with_tools(stage: Stage, change: Callable[[Tool], Tool]) -> Stage:
    """Return a stage that runs other tools; one that runs none is returned as it is.

    Args:
        stage: Made by `tool_dispatch`, or any other.
        change: A function from each tool to the one that is run in its place, of the same name.
    """
    changed = getattr(stage, "with_tools", None)
    return stage if changed is None else cast("Stage", changed(change))


class ToolProxy:
    """A tool in front of another one; whatever it does not say itself, the other one says.

    Args:
        tool: The other one.
    """

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    def __getattr__(self, name: str) -> Any:
        if name == "tool":
            raise AttributeError(name)
        return getattr(self.tool, name)

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        return self.tool.spec

    @property
    def timeout(self) -> float | None:
        """Longest run of one call, in seconds."""
        return self.tool.timeout

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Run the call; see `Tool.run`."""
        return await self.tool.run(arguments, context)


class _WatchedTool(ToolProxy):
    def __init__(self, tool: Tool, points: FaultPoints) -> None:
        super().__init__(tool)
        self._points = points

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        kind = f"tool {self.spec.name}"
        name = f"{kind} {self._points.number(kind)}"
        self._points.point(f"{name} before")
        await self._points.pause(name)
        value = await self.tool.run(arguments, context)
        if isinstance(value, AsyncIterator):
            return self._pieces(value, name)
        await self._points.pause(name)
        self._points.point(f"{name} after")
        return value

    async def _pieces(self, pieces: AsyncIterator[Any], name: str) -> AsyncGenerator[Any, None]:
        try:
            async for piece in pieces:
                self._points.point(f"{name} piece {self._points.number(name)}")
                await self._points.pause(name)
                yield piece
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        self._points.point(f"{name} after")


def watched_tool(tool: Tool, points: FaultPoints) -> Tool:
    """Put a point before a tool starts, one at each piece that it streams, and one when it has returned.

    Args:
        tool: The tool.
        points: The plan.
    """
    return _WatchedTool(tool, points)


class _WatchedModel:
    def __init__(self, model: Model, points: FaultPoints) -> None:
        self.name = model.name
        self._model = model
        self._points = points

    async def stream(
        self,
        context: AsyncIterable[Any],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,
        deadline: float = math.inf,
    ) -> Stream:
        name = f"model call {self._points.number('model call')}"
        self._points.point(name)
        answer = self._model.stream(context, tools=tools, settings=settings, deadline=deadline)
        try:
            async for fragment in answer:
                what = "stop" if fragment.type == "stop" else f"chunk {self._points.number(name)}"
                self._points.point(f"{name} {what}")
                await self._points.pause(name)
                yield fragment
        finally:
            await answer.aclose()


def watched_model(model: Model, points: FaultPoints) -> Model:
    """Put a point before each call of a model, and before each fragment and the stop of its answer.

    Args:
        model: The model.
        points: The plan.
    """
    return _WatchedModel(model, points)
