"""Models: everything that turns a context into an answer. Nothing heavy is imported before it is used."""

from __future__ import annotations

from typing import overload

from streamagent.errors import ConfigError
from streamagent.protocols import Model

from .base import ModelBase, full_name
from .endpoints import ENDPOINTS

_EXAMPLES = "'mock', 'local', 'replay:session.jsonl', 'openai/gpt-5-mini' or 'anthropic:claude-sonnet-4-5'"


@overload
def get_model(model: str) -> ModelBase: ...
@overload
def get_model(model: Model) -> Model: ...
def get_model(model: str | Model) -> Model:
    """Return the model of a name; a model itself is returned as it is.

    Args:
        model: `mock`, `local`, `replay:FILE`, `provider/model` or `provider:model`; several of them with `|` between
            are tried in this order (`FallbackModel`).

    Raises:
        ConfigError: Nothing has this name; the text gives examples.
    """
    if not isinstance(model, str):
        if callable(getattr(model, "stream", None)):
            return model
        raise ConfigError(f"{model!r} is no model: give a name such as {_EXAMPLES}, or an object with `stream`")
    if "|" in model:
        from .fallback import FallbackModel

        return FallbackModel([name.strip() for name in model.split("|")])
    if model == "mock":
        from .mock import MockModel

        return MockModel()
    if model == "local":
        from .local import LocalModel

        return LocalModel()
    kind, _, file = model.partition(":")
    if kind == "replay" and file:
        from .replay import ReplayModel

        return ReplayModel(file)
    if kind in {"mock", "local", "replay"}:
        raise ConfigError(f"{model!r} names no model: write {_EXAMPLES}")
    return _provided(full_name(model))


def _provided(name: str) -> ModelBase:
    """Choose the shortest way to a provider."""
    if name.partition("/")[0] in ENDPOINTS:
        from .direct import DirectModel

        return DirectModel(name)
    from .provider import ProviderModel

    return ProviderModel(name)
