"""From a request in the form of OpenAI's chat completions to one in a provider's own, as `litellm.acompletion` does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from .dialects import DIALECTS
from .wires import Call, Unfit, Wire, part, takes

_OURS = frozenset({"model", "max_retries", "num_retries"})  # what is ours to do
_PASSED = frozenset({"drop_params", "additional_drop_params", "allowed_openai_params"})
_OTHERWISE = frozenset({"vllm", "oobabooga", "custom", "azure_text", "docker_model_runner"})
_SIGN_IN = frozenset({"bedrock", "bedrock_mantle", "sagemaker", "sagemaker_chat", "vertex_ai", "vertex_ai_beta", "gdc"})
_HEARD = ("callbacks", "input_callback", "success_callback", "failure_callback")
_KNOWN = 128  # configurations that are kept, far more than a program asks


def write_call(litellm: Any, name: str, parameters: Mapping[str, Any]) -> Call:
    """Write a request. It may ask the network, as LiteLLM does for some providers' keys.

    Args:
        litellm: The module.
        name: `provider/model`.
        parameters: Those of `litellm.acompletion`.

    Raises:
        Unfit: LiteLLM itself must be asked.
        Exception: LiteLLM refuses a parameter, or does not find a key.
    """
    if heard := _heard(litellm):
        raise Unfit(f"litellm.{heard} wants to know of each call")
    asked = {key: value for key, value in parameters.items() if key not in _OURS}
    base, key, headers = (asked.pop(each, None) for each in ("api_base", "api_key", "extra_headers"))
    if own := (asked.keys() & _own()) - _PASSED:
        raise Unfit(f"{min(own)} is a parameter for LiteLLM itself")
    model, provider, found, base = litellm.get_llm_provider(model=name, api_base=base, api_key=key)
    key = found or key
    wire = find_wire(litellm, provider, model)
    options = part("litellm.utils", "get_optional_params")(model=model, custom_llm_provider=provider, **asked)
    settings = part("litellm.litellm_core_utils.get_litellm_params", "get_litellm_params")
    where = {"api_base": base, "api_key": key}
    request = {
        "model": model,
        "messages": asked["messages"],
        "optional_params": options,
        "litellm_params": settings(**where, custom_llm_provider=provider, drop_params=asked.get("drop_params")),
        "headers": dict(headers or {}),
        "stream": True,
        **where,
    }
    try:
        return wire.call(request)
    except Unfit:
        raise
    except Exception as error:  # foreign code; nothing was sent yet
        if getattr(error, "status_code", None):
            raise
        raise Unfit(f"its configuration cannot write this request ({type(error).__name__})") from error


@lru_cache(maxsize=_KNOWN)
def find_wire(litellm: Any, provider: str, model: str) -> Wire:
    """Find out how a provider is asked.

    Raises:
        Unfit: Not without LiteLLM itself.
    """
    if provider in _OTHERWISE or provider.startswith("text-completion"):
        raise Unfit("LiteLLM does not ask it by its configuration")
    if provider in _SIGN_IN:
        raise Unfit("it is signed in to in ways of its own")
    for known in (f"{provider}/{model}", model):
        if litellm.model_cost.get(known, {}).get("mode") == "responses":
            raise Unfit("LiteLLM asks for this model's responses, not for chat completions")
    manager = part("litellm.utils", "ProviderConfigManager")
    find = takes(getattr(manager, "get_provider_chat_config", None), "get_provider_chat_config", "model", "provider")
    try:
        config = find(model=model, provider=litellm.LlmProviders(provider))
    except Exception as error:  # foreign code
        raise Unfit(f"LiteLLM has no configuration of it ({error})") from error
    if config is None:
        raise Unfit("LiteLLM has no configuration of it")
    wire = DIALECTS.get(provider, Wire)(provider, config)
    wire.check(model)
    return wire


def _heard(litellm: Any) -> str | None:
    """Name a setting of the module for which only LiteLLM itself cares; `"cache"` among callbacks is its own."""
    if litellm.cache is not None:
        return "cache"
    return next((name for name in _HEARD if any(each != "cache" for each in getattr(litellm, name, ()))), None)


@lru_cache(maxsize=1)
def _own() -> frozenset[str]:
    return frozenset({*part("litellm.types.utils", "all_litellm_params"), "timeout"})
