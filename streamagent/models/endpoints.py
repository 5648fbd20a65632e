"""Providers that speak OpenAI's chat completions: where they listen, and where their keys are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streamagent.errors import ConfigError, ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A provider.

    Args:
        base: Its API base; empty when everybody has one of their own.
        bases: Environment variables that name another one; the first that is set holds.
        keys: Environment variables with the key; the first that is set holds.
        needs_key: It answers nobody without.
        header: The header that carries the key; `Authorization` with `Bearer` in front.
        longest: What the longest answer is called for models that reason.
    """

    base: str = ""
    bases: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    needs_key: bool = True
    header: str = "Authorization"
    longest: str = "max_tokens"


# The names and variables are LiteLLM's, so that one name means the same in each lane.
ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    "openai": Endpoint(
        base="https://api.openai.com/v1",
        bases=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        keys=("OPENAI_API_KEY",),
        longest="max_completion_tokens",
    ),
    "azure": Endpoint(
        bases=("AZURE_API_BASE",), keys=("AZURE_API_KEY",), header="api-key", longest="max_completion_tokens"
    ),
    "openrouter": Endpoint(
        base="https://openrouter.ai/api/v1", bases=("OPENROUTER_API_BASE",), keys=("OPENROUTER_API_KEY", "OR_API_KEY")
    ),
    "groq": Endpoint(base="https://api.groq.com/openai/v1", bases=("GROQ_API_BASE",), keys=("GROQ_API_KEY",)),
    "deepseek": Endpoint(
        base="https://api.deepseek.com/beta", bases=("DEEPSEEK_API_BASE",), keys=("DEEPSEEK_API_KEY",)
    ),
    "mistral": Endpoint(base="https://api.mistral.ai/v1", bases=("MISTRAL_API_BASE",), keys=("MISTRAL_API_KEY",)),
    "xai": Endpoint(base="https://api.x.ai/v1", bases=("XAI_API_BASE",), keys=("XAI_API_KEY",)),
    "cerebras": Endpoint(base="https://api.cerebras.ai/v1", bases=("CEREBRAS_API_BASE",), keys=("CEREBRAS_API_KEY",)),
    "together_ai": Endpoint(
        base="https://api.together.xyz/v1",
        bases=("TOGETHER_AI_API_BASE",),
        keys=("TOGETHER_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHERAI_API_KEY", "TOGETHER_AI_TOKEN"),
    ),
    "nvidia_nim": Endpoint(
        base="https://integrate.api.nvidia.com/v1", bases=("NVIDIA_NIM_API_BASE",), keys=("NVIDIA_NIM_API_KEY",)
    ),
    "hosted_vllm": Endpoint(bases=("HOSTED_VLLM_API_BASE",), keys=("HOSTED_VLLM_API_KEY",), needs_key=False),
    "llamafile": Endpoint(
        base="http://127.0.0.1:8080/v1", bases=("LLAMAFILE_API_BASE",), keys=("LLAMAFILE_API_KEY",), needs_key=False
    ),
    "lm_studio": Endpoint(
        base="http://127.0.0.1:1234/v1", bases=("LM_STUDIO_API_BASE",), keys=("LM_STUDIO_API_KEY",), needs_key=False
    ),
    "ollama": Endpoint(
        base="http://127.0.0.1:11434", bases=("OLLAMA_API_BASE",), keys=("OLLAMA_API_KEY",), needs_key=False
    ),
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where one model is asked, and with what key.

    Args:
        url: The whole address.
        key: The key; `None` for a provider that needs none.
        headers: What carries the key.
    """

    url: str
    key: str | None
    headers: Mapping[str, str]


def address(provider: str, model: str, *, api_base: str | None = None, api_key: str | None = None) -> Address:
    """Find out where a model is asked.

    Args:
        provider: A name in `ENDPOINTS`.
        model: The model's name there.
        api_base: The API base; by default that of the environment, or the provider's public one.
        api_key: The key; by default that of the environment.

    Raises:
        ConfigError: Nobody has said where the provider listens.
        ModelError: There is no key, and the provider needs one (kind `auth`).
    """
    endpoint = ENDPOINTS[provider]
    base = (api_base or _first(endpoint.bases) or endpoint.base).rstrip("/")
    if not base:
        raise ConfigError(f"{provider}/{model}: where does it listen? Give api_base, or set {endpoint.bases[0]}")
    key = api_key or _first(endpoint.keys)
    if key is None and endpoint.needs_key:
        raise ModelError(f"{provider}/{model}: there is no API key (not set: {', '.join(endpoint.keys)})", kind="auth")
    value = f"Bearer {key}" if endpoint.header == "Authorization" else key
    return Address(_url(provider, base, model), key, {endpoint.header: value} if key and value else {})


def _url(provider: str, base: str, model: str) -> str:
    if provider == "azure":
        version = os.environ.get("AZURE_API_VERSION")
        if version:  # the form with a deployment in the path; without a version, that of API v1
            return f"{base}/openai/deployments/{model}/chat/completions?api-version={version}"
        base = base if base.endswith("/openai/v1") else f"{base}/openai/v1"
    if provider == "ollama" and not base.endswith("/v1"):
        base = f"{base}/v1"
    return base if base.endswith("/chat/completions") else f"{base}/chat/completions"


def _first(names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)
