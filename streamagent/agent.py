"""`Agent`: what answers, as an immutable value that any number of sessions share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from os import PathLike
from typing import Any

from .calls import SteerAt, Tool
from .errors import ConfigError
from .hooks import NO_HOOKS, Drain, Hooks
from .message import new_id
from .models import get_model
from .pipeline import Pipeline
from .protocols import DEFAULT_SETTINGS, Model, ModelSettings, Stage, Store
from .run import Plan
from .runtime import Runtime
from .session import Session
from .stages.persist import persist
from .stages.tool_dispatch import tool_dispatch
from .stages.transform import transform
from .stores import open_store
from .tools.function import tool as as_tool


class Agent:
    """What answers: a model, its tools, the stages around it. It holds no state of a session.

    Args:
        model: `"provider/model"`, `"mock"`, `"local"`, `"replay:FILE"`, or a model.
        tools: What the model may call; plain functions are made tools.
        system: The system prompt; it is sent in front of the stored messages and not stored.
        store: Where sessions live when no runtime is given: the path of an SQLite file, a store, or `None` for the
            memory of this process.
        pipeline: The stages; by default `tool_dispatch(tools)` and `persist()`.
        settings: Options of the model calls.
        max_turns: How many model turns one prompt may take.
        timeout: How long a run may take, in seconds; `None` for no limit.
        hooks: What the loop asks the program.
        steering: Whether one or all steering messages are admitted at one border.
        follow_ups: Whether one or all follow-ups are admitted when nothing else is left.
        steer_at: When steering is seen, as in `tool_dispatch`; only of an agent that builds its own pipeline.

    Raises:
        ConfigError: A model, tool or limit that cannot be used as given.
    """

    __slots__ = ("plan", "store", "tools")

    def __init__(  # noqa: PLR0913 - the options of an agent, all by keyword
        self,
        model: str | Model = "mock",
        *,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        system: str | None = None,
        store: Store | str | PathLike[str] | None = None,
        pipeline: Pipeline | None = None,
        settings: ModelSettings = DEFAULT_SETTINGS,
        max_turns: int = 50,
        timeout: float | None = None,
        hooks: Hooks = NO_HOOKS,
        steering: Drain = "one_at_a_time",
        follow_ups: Drain = "one_at_a_time",
        steer_at: SteerAt = "after_batch",
    ) -> None:
        if not max_turns >= 1 or not (timeout is None or timeout > 0):
            raise ConfigError(f"max_turns is 1 or more and timeout above 0 seconds, not {max_turns} and {timeout}")
        _check("system", system, str | None)
        _check("pipeline", pipeline, Pipeline | None)
        _check("settings", settings, ModelSettings)
        _check("tools", tools, Iterable)
        _check("hooks", hooks, Hooks)
        for name, drain in (("steering", steering), ("follow_ups", follow_ups)):
            if drain not in ("one_at_a_time", "all"):
                raise ConfigError(f"Agent({name}=…) takes 'one_at_a_time' or 'all', not {drain!r}")
        if pipeline is not None and steer_at != "after_batch":
            raise ConfigError(f"this agent has a pipeline; write tool_dispatch(…, steer_at={steer_at!r}) there")
        self.tools: tuple[Tool, ...] = tuple(map(_as_tool, tools))
        self.store: Store = open_store(store)
        self.plan = Plan(
            model=get_model(model),
            pipeline=(pipeline or _pipeline(self.tools, hooks, steer_at)) + Pipeline(context=_context(hooks)),
            tools=tuple(tool.spec for tool in self.tools),
            system=system,
            settings=settings,
            max_turns=max_turns,
            timeout=timeout,
            hooks=hooks,
            steering=steering,
            follow_ups=follow_ups,
        )

    def __repr__(self) -> str:
        names = ", ".join(tool.spec.name for tool in self.tools)
        return f"<Agent {self.model.name} tools=[{names}] {self.pipeline!r}>"

    @property
    def model(self) -> Model:
        """What answers."""
        return self.plan.model

    @property
    def pipeline(self) -> Pipeline:
        """The stages, in their order."""
        return self.plan.pipeline

    def with_options(
        self, *, model: str | Model | None = None, store: Store | str | PathLike[str] | None = None
    ) -> Agent:
        """Return a copy with another model or store; what is not given stays.

        Args:
            model: As in `Agent`.
            store: As in `Agent`.

        Raises:
            ConfigError: A model or store that cannot be used as given.
        """
        other = copy(self)
        if model is not None:
            other.plan = replace(self.plan, model=get_model(model))
        if store is not None:
            other.store = open_store(store)
        return other

    def _own_store(self) -> Store:
        """Open a file once more for each session: a store that is open belongs to whoever opened it."""
        reopened: Callable[[], Store] = getattr(self.store, "reopened", lambda: self.store)
        return reopened()

    @asynccontextmanager
    async def session(
        self,
        id: str | None = None,  # noqa: A002 - the field's name
        *,
        runtime: Runtime | None = None,
    ) -> AsyncGenerator[Session, None]:
        """Open a session; leaving the block cuts what still runs, and keeps what was said.

        Args:
            id: The session's id: a new one starts a session, a known one continues it. `None` makes a new one.
            runtime: Where it lives; without one the agent's own store is opened for the block.

        Raises:
            ConfigError: The id cannot be one, or the runtime is not open.
            StoreError: The store cannot be opened.
        """
        session_id = new_id() if id is None else id
        if runtime is not None:
            async with runtime.session(session_id, self.plan) as session:
                yield session
        else:
            async with Runtime(store=self._own_store()) as own, own.session(session_id, self.plan) as session:
                yield session


def _as_tool(item: Tool | Callable[..., Any]) -> Tool:
    """Take a tool as it is, and make one of a function."""
    found: Any = item
    made: Tool = found if hasattr(item, "spec") else as_tool(found)
    return made


def _pipeline(tools: Sequence[Tool], hooks: Hooks, steer_at: SteerAt) -> Pipeline:
    before, after = hooks.before_tool_call, hooks.after_tool_call
    dispatch = tool_dispatch(tools, before_tool_call=before, after_tool_call=after, steer_at=steer_at)
    return Pipeline(reply=[dispatch, persist()])


def _context(hooks: Hooks) -> list[Stage]:
    return [transform(hook) for hook in (hooks.transform_context, hooks.convert_to_llm) if hook is not None]


def _check(name: str, value: object, kind: Any) -> None:
    if not isinstance(value, kind):
        wanted = getattr(kind, "__name__", str(kind))
        raise ConfigError(f"Agent({name}=…) takes {wanted}, not {value!r:.80}")
