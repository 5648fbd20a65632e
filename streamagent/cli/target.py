"""TARGET: where on the command line an agent comes from."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from streamagent.agent import Agent
from streamagent.errors import ConfigError
from streamagent.stores.memory import MemoryStore

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


def _load(text: str, model: str | None) -> Target:
    found = _TARGET.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{text!r} is no target; write module:attr or path/to/file.py, with :attr if it is not 'agent'"
        )
    module = _import(found["source"])
    name = found["attr"] or "agent"
    value = getattr(module, name, None)
    agent = value if isinstance(value, Agent) or not callable(value) else _call(value, model, found["source"])
    if not isinstance(agent, Agent):
        raise ConfigError(
            f"{found['source']} has no agent {name!r}: an Agent, or a function of a model that returns one"
        )
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
    return None if inspect.iscoroutinefunction(factory) else factory(*call.args)


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
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"there is no file {source!r}")
    sys.path.insert(0, str(path.parent))  # as `python file.py` does
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
