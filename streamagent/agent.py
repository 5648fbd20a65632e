"""`Agent`: what answers, as an immutable value that any number of sessions share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike
from typing import Any, TypedDict, Unpack

from .calls import Output, SteerAt, Tool, ToolContext
from .errors import ConfigError
from .hooks import NO_HOOKS, Drain, Hooks
from .message import new_id
from .models import get_model
from .pipeline import Pipeline
from .plan import Plan
from .protocols import DEFAULT_SETTINGS, Model, ModelSettings, Stage, Store
from .runtime import Runtime
from .session import Session
from .stages.persist import persist
from .stages.tool_dispatch import tool_dispatch
from .stages.transform import transform
from .stores import open_store
from .tools.function import FunctionTool
from .tools.function import tool as make_tool
from .tools.skill import Skill, skill_tool, with_skills


class Changes(TypedDict, total=False):
    """Options of another agent; `None` leaves one as it was. See `Agent`."""

    model: str | Model | None
    tools: Sequence[Agent | Tool | Callable[..., Any]] | None
    system: str | None
    skills: Sequence[Skill] | None
    store: Store | str | PathLike[str] | None
    pipeline: Pipeline | None
    settings: ModelSettings | None
    hooks: Hooks | None
    name: str | None
    description: str | None
    max_turns: int | None
    timeout: float | None
    max_depth: int | None
    max_children: int | None


class Agent:
    """What answers: a model, its tools, the stages around it. It holds no state of a session.

    Args:
        model: `"provider/model"`, `"mock"`, `"local"`, `"replay:FILE"`, or a model.
        tools: What the model may call; plain functions and agents with a name and a description are made tools.
        system: The system prompt; it is sent in front of the stored messages and not stored.
        skills: Instructions that the model is told of, and reads by the tool `skill` when it needs them.
        store: Where sessions live when no runtime is given: the path of an SQLite file, a PostgreSQL URL, a
            store, or `None` for the memory of this process.
        pipeline: The stages; by default `tool_dispatch(tools)` and `persist()`.
        settings: Options of the model calls.
        max_turns: How many model turns one prompt may take.
        timeout: How long a run may take, in seconds; `None` for no limit.
        hooks: What the loop asks the program.
        steering: Whether one or all steering messages are admitted at one border.
        follow_ups: Whether one or all follow-ups are admitted when nothing else is left.
        steer_at: When steering is seen, as in `tool_dispatch`; only of an agent that builds its own pipeline.
        announce: Also yield `progress` when a call starts and ends, as `tool_dispatch` does; likewise.
        name: What a model calls it by, as the tool of another agent.
        description: What it is good for, as the tool of another agent.
        max_depth: How deep sub-agents may be nested, where this is the outermost agent; 0 for none.
        max_children: How many sub-agents may be at work at once, where this is the outermost agent.

    Raises:
        ConfigError: A model, tool or limit that cannot be used as given.
    """

    __slots__ = ("_given", "description", "name", "plan", "store", "tools")

    def __init__(  # noqa: PLR0913 - the options of an agent, all by keyword
        self,
        model: str | Model = "mock",
        *,
        tools: Sequence[Agent | Tool | Callable[..., Any]] = (),
        system: str | None = None,
        skills: Sequence[Skill] = (),
        store: Store | str | PathLike[str] | None = None,
        pipeline: Pipeline | None = None,
        settings: ModelSettings = DEFAULT_SETTINGS,
        max_turns: int = 50,
        timeout: float | None = None,
        hooks: Hooks = NO_HOOKS,
        steering: Drain = "one_at_a_time",
        follow_ups: Drain = "one_at_a_time",
        steer_at: SteerAt = "after_batch",
        announce: bool = False,
        name: str | None = None,
        description: str | None = None,
        max_depth: int = 3,
        max_children: int = 8,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        _check_options(given)
        own = tuple(map(_as_tool, tools))
        self.tools: tuple[Tool, ...] = (*own, *([skill_tool(skills)] if skills else ()))
        self.store: Store = open_store(store)
        self.name, self.description = name, description
        self.plan = Plan(
            model=get_model(model),
            pipeline=(pipeline or _pipeline(self.tools, hooks, steer_at, announce=announce))
            + Pipeline(context=_context(hooks)),
            tools=tuple(tool.spec for tool in self.tools),
            system=with_skills(system, skills),
            settings=settings,
            max_turns=max_turns,
            timeout=timeout,
            hooks=hooks,
            steering=steering,
            follow_ups=follow_ups,
            max_depth=max_depth,
            max_children=max_children,
        )
        self._given = {**given, "model": self.plan.model, "tools": own, "store": self.store}

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

    def with_options(self, **changes: Unpack[Changes]) -> Agent:
        """Return a copy with other options; what is not given, or `None`, stays.

        Args:
            changes: As in `Agent`.

        Raises:
            ConfigError: An option that cannot be used as given, or tools and skills of an agent whose pipeline is its
                own: that names its tools itself.
        """
        wanted: Any = {name: value for name, value in changes.items() if value is not None}
        if self._given["pipeline"] is not None and wanted.keys() & {"tools", "skills"} and "pipeline" not in wanted:
            raise ConfigError("this agent has a pipeline of its own, which runs its tools; give a pipeline=… with them")
        return Agent(**{**self._given, **wanted})

    def as_tool(self, *, name: str | None = None, description: str | None = None, timeout: float | None = None) -> Tool:
        """Make a tool of the agent: it answers a prompt in a session of its own, beside the caller's.

        Args:
            name: What the model calls it by; the agent's name by default.
            description: What it is good for; the agent's description by default.
            timeout: Longest run of one call, in seconds; `None` for no limit but the caller's.

        Raises:
            ConfigError: It has no name or no description, or one that cannot be used.
        """
        name, description = name or self.name, description or self.description
        if not name or not description:
            raise ConfigError(
                "an agent that is a tool wants a name and a description: Agent(…, name='researcher', description='…') "
                "or agent.as_tool(name=…, description=…)"
            )

        async def ask(context: ToolContext, prompt: str) -> Output:
            """Ask it.

            Args:
                context: The call's.
                prompt: What it shall do, with all that it needs to know: it sees nothing of this conversation.
            """
            return await context.start(self, prompt)

        # Its session has the prompt once, and the calls in it are on record: running it again goes on where it was.
        return FunctionTool(ask, name=name, description=description, timeout=timeout, retry_safe=True)

    def session(
        self,
        id: str | None = None,  # noqa: A002 - the field's name
        *,
        runtime: Runtime | None = None,
        **changes: Unpack[Changes],
    ) -> AbstractAsyncContextManager[Session]:
        """Open a session; leaving the block cuts what still runs, and keeps what was said.

        Args:
            id: The session's id: a new one starts a session, a known one continues it. `None` makes a new one.
            runtime: Where it lives; without one the agent's own store is opened for the block.
            changes: What answers otherwise in this block: `system=…`, `tools=…`, `model=…`; as `with_options`.

        Raises:
            ConfigError: As `with_options`; on entering: the id cannot be one, or the runtime is not open.
            StoreError: On entering: the store cannot be opened.
        """
        agent = self.with_options(**changes) if changes else self
        session_id = new_id() if id is None else id
        return _alone(agent, session_id) if runtime is None else runtime.session(session_id, agent.plan)


@asynccontextmanager
async def _alone(agent: Agent, session_id: str) -> AsyncGenerator[Session, None]:
    """Open a session in a runtime of its own."""
    async with (
        Runtime(store=_reopened(agent.store)) as runtime,
        runtime.session(session_id, agent.plan) as session,
    ):
        yield session


def _as_tool(item: Agent | Tool | Callable[..., Any]) -> Tool:
    """Take a tool as it is, and make one of an agent or a function."""
    if isinstance(item, Agent):
        return item.as_tool()
    found: Any = item
    made: Tool = found if hasattr(item, "spec") else make_tool(found)
    return made


def _reopened(store: Store) -> Store:
    """Open a file once more for each session: a store that is open belongs to whoever opened it."""
    reopened: Callable[[], Store] = getattr(store, "reopened", lambda: store)
    return reopened()


def _pipeline(tools: Sequence[Tool], hooks: Hooks, steer_at: SteerAt, *, announce: bool) -> Pipeline:
    before, after = hooks.before_tool_call, hooks.after_tool_call
    dispatch = tool_dispatch(
        tools, before_tool_call=before, after_tool_call=after, steer_at=steer_at, announce=announce
    )
    return Pipeline(reply=[dispatch, persist()])


def _context(hooks: Hooks) -> list[Stage]:
    return [transform(hook) for hook in (hooks.transform_context, hooks.convert_to_llm) if hook is not None]


_KINDS: dict[str, Any] = {
    "system": str | None,
    "pipeline": Pipeline | None,
    "settings": ModelSettings,
    "tools": Iterable,
    "skills": Sequence,
    "hooks": Hooks,
    "name": str | None,
    "description": str | None,
    "max_turns": int,
    "timeout": float | int | None,
    "max_depth": int,
    "max_children": int,
}


def _check_options(given: Mapping[str, Any]) -> None:
    for name, kind in _KINDS.items():
        _check(name, given[name], kind)
    turns, timeout = given["max_turns"], given["timeout"]
    if not turns >= 1 or not (timeout is None or timeout > 0):
        raise ConfigError(f"max_turns is 1 or more and timeout above 0 seconds, not {turns} and {timeout}")
    depth, children = given["max_depth"], given["max_children"]
    if depth < 0 or children < 0:
        raise ConfigError(f"max_depth and max_children are 0 or more, not {depth} and {children}")
    for name in ("steering", "follow_ups"):
        if given[name] not in ("one_at_a_time", "all"):
            raise ConfigError(f"Agent({name}=…) takes 'one_at_a_time' or 'all', not {given[name]!r}")
    for name in ("before_tool_call", "after_tool_call"):
        if given["pipeline"] is not None and getattr(given["hooks"], name) is not None:
            raise ConfigError(f"this agent has a pipeline; write tool_dispatch(…, {name}=…) there, not in Hooks")
    for name, usual in (("steer_at", "after_batch"), ("announce", False)):
        if given["pipeline"] is not None and given[name] != usual:
            raise ConfigError(f"this agent has a pipeline; write tool_dispatch(…, {name}={given[name]!r}) there")


def _check(name: str, value: object, kind: Any) -> None:
    if not isinstance(value, kind):
        wanted = getattr(kind, "__name__", str(kind))
        raise ConfigError(f"Agent({name}=…) takes {wanted}, not {value!r:.80}")
