"""TARGET: where on the command line an agent comes from."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from streamagent.agent import Agent
from streamagent.errors import ConfigError
from streamagent.hooks import settled
from streamagent.protocols import Store
from streamagent.stores import open_store
from streamagent.stores.memory import MemoryStore
from streamagent.worker import PlanFor

from .options import DEFAULT_DB

_TARGET = re.compile(r"(?P<source>.+\.py|[A-Za-z_][\w.]*(?=:))(?::(?P<attr>[A-Za-z_]\w*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a command works with.

    Args:
        agent: What answers.
        prompt: What to ask when nothing is given: the constant `PROMPT` of the target's module.
    """

    agent: Agent
    prompt: str | None = None


def is_target(text: str) -> bool:
    """Tell a target from a prompt: an existing `.py` file, or one word like `module:attr` or `file.py[:attr]`."""
    found = _TARGET.fullmatch(text)
    return found is not None and (not re.search(r"\s", text) or Path(found["source"]).is_file())


def load_target(text: str | None, *, model: str | None, db: str | None) -> Target:
    """Load an agent; a plain one when there is no target.

    Args:
        text: `module:attr` or `path/to/file.py[:attr]`, where `attr` (default `agent`) is an `Agent`, or a function
            of a model's name that returns one.
        model: The model's name, instead of the target's own.
        db: The SQLite file or PostgreSQL URL, instead of the target's own store.

    Raises:
        ConfigError: There is no such target, or it is no agent.
    """
    target = Target(agent=Agent("mock" if model is None else model)) if text is None else _load(text, model)
    if db is None and isinstance(target.agent.store, MemoryStore):
        db = DEFAULT_DB  # in memory nothing could be continued
    return Target(agent=target.agent.with_options(store=db), prompt=target.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a worker works on.

    Args:
        store: Where the sessions are.
        plan_for: Gives what answers in a session.
    """

    store: Store
    plan_for: PlanFor


def load_workload(text: str, *, model: str | None, db: str | None) -> Workload:
    """Load what answers in the sessions of a store.

    Args:
        text: As in `load_target`; `attr` may also be a mapping of sessions' ids to agents, or a function of one
            parameter `session` that returns an agent, or `None` for a session that is not this worker's.
        model: The model's name, instead of the targets' own.
        db: Where the sessions are, instead of the agent's own store.

    Raises:
        ConfigError: There is no such target, or it is none of these.
    """
    _, name, module = _find(text)
    value = getattr(module, name, None)
    if not isinstance(value, Mapping) and not (callable(value) and "session" in _parameters(value)):
        agent = load_target(text, model=model, db=db).agent
        return Workload(store=agent.store, plan_for=lambda _: agent)
    choose = value.get if isinstance(value, Mapping) else value

    async def plan_for(session: str) -> Agent | None:
        agent = await settled(choose(session))
        if not isinstance(agent, Agent | None):
            raise ConfigError(f"{text} gives {agent!r:.80} for session {session!r}, which is no Agent")
        return agent.with_options(model=model) if agent is not None and model is not None else agent

    return Workload(store=open_store(db or DEFAULT_DB), plan_for=plan_for)


def _parameters(function: Callable[..., object]) -> Collection[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()


def _find(text: str) -> tuple[str, str, ModuleType]:
    """Say where a target comes from, what it is called there, and import that."""
    found = _TARGET.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{text!r} is no target; write module:attr or path/to/file.py, with :attr if it is not 'agent'"
        )
    return found["source"], found["attr"] or "agent", _import(found["source"])


def _load(text: str, model: str | None) -> Target:
    source, name, module = _find(text)
    value = getattr(module, name, None)
    agent = value if isinstance(value, Agent) or not callable(value) else _call(value, model, source)
    if not isinstance(agent, Agent):
        raise ConfigError(f"{source} has no agent {name!r}: an Agent, or a function of a model that returns one")
    return Target(agent=agent.with_options(model=model), prompt=getattr(module, "PROMPT", None))


def _call(factory: Callable[..., object], model: str | None, source: str) -> object:
    try:
        signature = inspect.signature(factory)
        first = next(iter(signature.parameters.values()), None)
        if model is None and first is not None and first.default is first.empty:
            model = "mock"
        call = signature.bind() if first is None or model is None else signature.bind(model)
    except (TypeError, ValueError) as error:
        name = getattr(factory, "__name__", "agent")
        raise ConfigError(f"{source}: {name!r} cannot be called with a model's name alone: {error}") from error
    if inspect.iscoroutinefunction(factory):
        return None
    made = factory(*call.args)
    if inspect.iscoroutine(made):
        made.close()  # nobody awaits it
    return made


def _import(source: str) -> ModuleType:
    if not source.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
        try:
            return importlib.import_module(source)
        except ModuleNotFoundError as error:
            if error.name and f"{source}.".startswith(f"{error.name}."):
                raise ConfigError(f"there is no module {source!r}") from error
            raise
    path = Path(source).resolve()
    if (known := sys.modules.get(path.stem)) is not None and getattr(known, "__file__", None) == str(path):
        return known  # it runs once
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"there is no file {source!r}")
    sys.path.insert(0, str(path.parent))  # as `python file.py` does
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
