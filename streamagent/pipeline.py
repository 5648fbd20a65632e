"""`Pipeline`: which stages stand where; `open_pipeline`: the only place that links them and closes the links."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import AsyncGeneratorType, FunctionType
from typing import Any, cast

from anyio import CancelScope, create_task_group, move_on_after

from .calls import Child, Output
from .cancellation import raise_single
from .duties import Duty, duty_of
from .errors import ConfigError
from .message import Message
from .protocols import RunContext, Source, Stage, Store, Stream, Tasks
from .records import CallRecord
from .waiting import GRACE, leaving

logger = logging.getLogger("streamagent")

CLOSE_TIMEOUT = 5.0
WITH_RUN = 2  # parameters of a stage that takes (stream, run)


class Pipeline:
    """The stages of an agent, as values that can be printed, compared by eye and added.

    Args:
        context: Stages between the store and the model, anew each turn.
        reply: Stages between the model and the session, once per run. The first stands next to the model.

    Raises:
        ConfigError: Something is not a stage; the text says which.
    """

    __slots__ = ("context", "reply")

    def __init__(self, *, context: Iterable[Stage] = (), reply: Iterable[Stage] = ()) -> None:
        self.context: tuple[Stage, ...] = tuple(context)
        self.reply: tuple[Stage, ...] = tuple(reply)
        for stage in (*self.context, *self.reply):
            wants_run(stage)
        _check_places([duty for stage in self.reply if (duty := duty_of(stage))])

    @property
    def shown(self) -> tuple[Stage, ...]:
        """The reply stages behind the one that stores: they change only what is shown."""
        stored = [number for number, stage in enumerate(self.reply, 1) if duty_of(stage) == "persist"]
        return self.reply[stored[-1] if stored else 0 :]

    @property
    def inner(self) -> tuple[Stage, ...]:
        """The reply stages between the one that runs calls and the one that stores: results pass them."""
        duties = [duty_of(stage) for stage in self.reply]
        start = duties.index("dispatch") + 1 if "dispatch" in duties else 0
        return self.reply[start : duties.index("persist") if "persist" in duties else len(duties)]

    def has(self, *duties: Duty) -> bool:
        """Tell whether there is a stage for each of these duties."""
        return {*duties} <= {duty_of(stage) for stage in (*self.context, *self.reply)}

    @property
    def repeats(self) -> frozenset[str]:
        """Names of the tools that do no harm when a call is run again."""
        return frozenset().union(*(getattr(stage, "repeats", ()) for stage in self.reply))

    @property
    def runs(self) -> frozenset[str]:
        """Names of the tools that it runs."""
        return frozenset().union(*(getattr(stage, "runs", ()) for stage in self.reply))

    def __add__(self, other: Pipeline | Stage | Sequence[Stage]) -> Pipeline:
        """Append the stages of another pipeline, or reply stages."""
        if not isinstance(other, Pipeline):
            other = Pipeline(reply=[other] if callable(other) else other)
        return Pipeline(context=self.context + other.context, reply=self.reply + other.reply)

    def __repr__(self) -> str:
        parts = [("context", self.context), ("reply", self.reply)]
        shown = [f"{name}=[{', '.join(map(describe, stages))}]" for name, stages in parts if stages]
        return f"Pipeline({', '.join(shown)})"

    def __str__(self) -> str:
        chain = ["store", *map(describe, self.context), "model", *map(describe, self.reply), "session"]
        return " → ".join(chain)


def _check_places(duties: list[Duty]) -> None:
    once: list[Duty] = [duty for duty in duties if duty != "run_ahead"]
    if len(set(once)) < len(once):
        raise ConfigError(f"the stages that {' and '.join(once)}: each duty stands once in a pipeline")
    if once == ["persist", "dispatch"]:
        raise ConfigError("tool_dispatch stands before persist: so a call is stored before it runs, and its result too")
    if "dispatch" in once and "run_ahead" in duties[: duties.index(once[-1])]:
        raise ConfigError(
            "buffer stands behind tool_dispatch and persist: else a turn begins before results are stored"
        )


_SAYS_OTHERWISE = frozenset({"__signature__", "__wrapped__"})


def wants_run(stage: Stage) -> bool:
    """Tell whether a stage takes `(stream, run)` rather than `(stream)`.

    Raises:
        ConfigError: It takes neither.
    """
    if not callable(stage):
        raise ConfigError(f"{stage!r} is not a stage: a stage is a function of (stream) or (stream, run)")
    if isinstance(stage, FunctionType) and stage.__defaults__ is None and not _SAYS_OTHERWISE & vars(stage).keys():
        count = stage.__code__.co_argcount
        if 0 < count <= WITH_RUN:  # of nearly all stages; `signature` takes longer than the stage
            return count == WITH_RUN
    try:
        parameters = inspect.signature(stage).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in positional if p.default is p.empty]
    if len(required) > WITH_RUN or not (positional or any(p.kind is p.VAR_POSITIONAL for p in parameters)):
        raise ConfigError(
            f"{describe(stage)} is not a stage: a stage takes (stream) or (stream, run). Is its call missing, "
            "as in persist()?"
        )
    return len(required) == WITH_RUN or "run" in [p.name for p in positional[1:WITH_RUN]]


def describe(stage: Any) -> str:
    """Name a stage as it was written: `rate_limit(messages=100, scope='run')`."""
    name: str = getattr(stage, "__qualname__", type(stage).__qualname__)
    factory, closed, _ = name.partition(".<locals>")
    if not closed or not inspect.isfunction(stage):
        return name if hasattr(stage, "__qualname__") else repr(stage)
    # The options of a factory are the free variables of the function that it returned.
    cells = zip(stage.__code__.co_freevars, stage.__closure__ or (), strict=True)
    values = [(variable, cell.cell_contents) for variable, cell in cells]
    shown = ", ".join(f"{variable}={_short(value)}" for variable, value in values if not _is_left_out(value))
    return f"{factory}({shown})"


def _is_left_out(value: Any) -> bool:
    return value is None or value is False or callable(value)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "[" + ", ".join(map(str, value)) + "]"
    return f"{value!r:.60}"


@dataclass(slots=True)
class BareRun:
    """The run of a chain that no session drives."""

    tasks: Tasks
    session: str = ""
    deadline: float = math.inf
    outcomes: dict[str, Message] = field(default_factory=dict)
    opened: tuple[Store, int] | None = None
    again: Message | None = None
    cut_usage: Mapping[str, Any] | None = None
    bounds: list[Stage] = field(default_factory=list)
    decided: dict[str, Message] = field(default_factory=dict)
    started: Mapping[str, CallRecord] = field(default_factory=dict)
    since: int | None = None

    @property
    def store(self) -> Store:
        """The store that the pipeline was opened with."""
        return self._opened()[0]

    @property
    def fence(self) -> int:
        """What writes to it carry; 0 without one."""
        return 0 if self.opened is None else self.opened[1]

    async def start_call(self, call: str) -> int:
        """Commit that a call's tool is about to run, where there is a store."""
        if self.opened is None:
            return 1
        return await self.store.start_call(self.session, call, fence=self.fence)

    async def finish_call(self, call: str, result: Message) -> None:
        """Leave a result to the stages: nobody goes on with a run that no session drives."""

    async def start_child(self, child: Child) -> Output:
        """Refuse: sub-agents live beside a session that a runtime keeps."""
        raise ConfigError(f"call {child.call} wants a sub-agent, and no session drives this pipeline; use an Agent")

    def _opened(self) -> tuple[Store, int]:
        if self.opened is None:
            raise ConfigError("a stage wants a store, and this pipeline has none: open_pipeline(…, store=…, session=…)")
        return self.opened


class Chain:
    """Links of an open pipeline, source first. One owner opens it, drives `tail` and closes it."""

    __slots__ = ("_links", "tail")

    tail: Source

    def __init__(self, source: Source | None = None) -> None:
        self._links: list[Any] = []
        if source is not None:
            self.append(source)

    async def extend(self, stages: Iterable[Stage], run: RunContext) -> None:
        """Put stages behind the tail.

        Raises:
            ConfigError: A stage returned something that is no async iterator.
        """
        for stage in stages:
            link: Any = stage(self.tail, run) if wants_run(stage) else stage(self.tail)  # type: ignore[call-arg,arg-type]
            if hasattr(link, "stream") and not hasattr(link, "__anext__"):
                # An aiostream operator: its stream is iterated inside its own context.
                link = link.stream()
                await link.__aenter__()
            if not hasattr(link, "__anext__"):
                if inspect.iscoroutine(link):
                    link.close()  # or Python warns, somewhere else, that nobody awaited it
                raise ConfigError(f"stage {describe(stage)} returned {link!r:.80}, not an async iterator")
            self.append(link)

    def append(self, link: Source) -> None:
        """Put a link that reads the tail, or what the tail feeds, behind it."""
        self.hold(link)
        self.tail = link

    def hold(self, link: Any) -> None:
        """Close something with the chain, before what was added earlier."""
        self._links.append(link)

    async def aclose(self, close_timeout: float = CLOSE_TIMEOUT) -> None:
        """Close all links, outermost first, shielded, within `close_timeout` seconds; idempotent."""
        links, self._links = [link for link in self._links if not _is_over(link)], []
        if not links:
            return
        with move_on_after(close_timeout, shield=True) as scope:
            async with AsyncExitStack() as stack:
                for link in links:
                    # One that runs was left in the middle of a wait, see `leaving`; nobody can close it.
                    if hasattr(link, "aclose") and not getattr(link, "ag_running", False):
                        stack.push_async_callback(_close, link, scope)
        if scope.cancelled_caught:
            logger.warning("a stage or model did not close within %s s and was abandoned", close_timeout)


def _is_over(link: Any) -> bool:
    """Tell whether nothing is left to close: a generator that has ended."""
    return link.ag_frame is None if isinstance(link, AsyncGeneratorType) else getattr(link, "is_over", False)


async def _close(link: Any, scope: CancelScope) -> None:
    await leaving(link.aclose(), lambda: scope.cancel_called, GRACE)


@asynccontextmanager
async def open_pipeline(
    source: Source,
    *stages: Stage,
    store: Store | None = None,
    session: str = "",
    close_timeout: float = CLOSE_TIMEOUT,
) -> AsyncGenerator[Stream, None]:
    """Link stages behind a source and yield the end of the chain; close every link at the block's end.

    The group of the stages' background work is entered here, in the caller's task, never inside a generator, and it
    ends before the links are closed.

    Args:
        source: Any async iterator of messages.
        stages: The stages, in the order in which messages pass them.
        store: What `persist` and other stages find as `run.store`; it must be open.
        session: The session that they write to.
        close_timeout: Longest time for closing all links, in seconds.

    Raises:
        ConfigError: A stage returned something that is no async iterator.
    """
    chain = Chain(source)
    opened = None if store is None else (store, await store.acquire(session))
    try:
        async with create_task_group() as tasks:
            await chain.extend(stages, BareRun(tasks, session, opened=opened))
            yield cast("Stream", chain.tail)
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_single(group)
    finally:
        await chain.aclose(close_timeout)
