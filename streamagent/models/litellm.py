"""`LiteLLMModel`: every provider that LiteLLM knows, by `litellm.acompletion`. asyncio only."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any

import anyio

from streamagent._core.response_format import response_format
from streamagent._core.sse import DONE
from streamagent.errors import ConfigError, UnsupportedBackendError

from .attempt import Chunks
from .chunks import ChunkModel, Request, tool_list
from .faults import to_model_error
from .retry import RetryPolicy

_CLOSE_TIMEOUT = 5.0  # seconds that closing a connection may take
_PASSED = ("temperature", "top_p", "max_tokens", "seed", "stop", "reasoning_effort")


class LiteLLMModel(ChunkModel):
    """Ask a provider through LiteLLM.

    Args:
        model: `provider/model` or `provider:model`.
        api_base: Where the provider listens; its public address when `None`.
        api_key: The key; from the provider's environment variable when `None`.
        retry: When to ask again.
        sleep: Waits between attempts, in seconds.
        options: Further parameters of `litellm.acompletion`, in each call.

    Raises:
        ConfigError: `model` names no provider.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str | None = None,
        api_key: str | None = None,
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        **options: Any,
    ) -> None:
        super().__init__(full_name(model), retry=retry, sleep=sleep)
        where = {"api_base": api_base, "api_key": api_key}
        self._options = {**options, **{name: value for name, value in where.items() if value is not None}}

    async def chunks(self, request: Request) -> Chunks:
        """Ask the provider once; see `ChunkModel.chunks`.

        Raises:
            ModelError: The request or the stream failed.
            UnsupportedBackendError: Another event loop than asyncio's runs.
        """
        require_asyncio()
        litellm = await anyio.to_thread.run_sync(_litellm)  # the first import takes seconds
        answer = None
        try:
            answer = await litellm.acompletion(**self._format(request, litellm), **self._parameters(request))
            while (chunk := await anext(answer, None)) is not None:
                yield _plain(chunk, answer)
        except Exception as error:
            raise to_model_error(error, self._secrets()) from error
        finally:
            if answer is not None:
                with anyio.move_on_after(_CLOSE_TIMEOUT, shield=True):
                    await answer.aclose()
        yield DONE  # LiteLLM raises when neither a finish reason nor `[DONE]` came

    def _parameters(self, request: Request) -> dict[str, Any]:
        settings = request.settings
        chosen = {name: getattr(settings, name) for name in _PASSED}
        if request.tools:
            chosen |= {"tools": tool_list(request.tools), "tool_choice": _tool_choice(settings.tool_choice)}
        return {
            "model": self.name,
            "messages": [dict(entry) for entry in request.messages],  # LiteLLM edits them for some providers
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_retries": 0,
            "num_retries": 0,
            **self._options,
            **{name: value for name, value in chosen.items() if value is not None},
            **settings.extra,
        }

    def _format(self, request: Request, litellm: Any) -> dict[str, Any]:
        """Hold the provider to a schema, where LiteLLM says that it can be."""
        schema = request.settings.response_schema
        if schema is None or "response_format" in {**self._options, **request.settings.extra}:
            return {}
        known = litellm.get_supported_openai_params(model=self.name) or ()
        return {"response_format": response_format(schema)} if "response_format" in known else {}

    def _secrets(self) -> list[str]:
        return [str(value) for name, value in self._options.items() if name.endswith(("key", "token", "secret"))]


def full_name(model: str) -> str:
    """Bring `provider:model` into the form `provider/model`.

    Raises:
        ConfigError: There is no provider or no model in it.
    """
    cut = min((model.find(sign) for sign in ":/" if sign in model), default=0)
    provider, name = model[:cut], model[cut + 1 :]
    if not (provider and name.strip()):
        known = "'mock', 'local', 'replay:FILE' or 'provider/model', as in 'openai/gpt-5-mini'"
        raise ConfigError(f"{model!r} names no model: write {known}")
    return f"{provider}/{name}"


@cache
def _litellm() -> Any:
    """Import LiteLLM: without its look-up of prices over the network, banners, and its own limit on repetition."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    # The assembler has the same rule, and does not raise.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize  # pyright: ignore[reportPrivateImportUsage]
    return litellm


def require_asyncio() -> None:
    """Make sure that asyncio's event loop runs.

    Raises:
        UnsupportedBackendError: Another one does.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        raise UnsupportedBackendError("LiteLLM runs on asyncio only; use asyncio, or another model") from error


def _tool_choice(choice: str | None) -> str | Mapping[str, Any] | None:
    if choice in (None, "auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _plain(chunk: Any, answer: Any) -> Mapping[str, Any]:
    """Turn a chunk into plain data; a usage that no provider sent is LiteLLM's own count, and marked."""
    plain: dict[str, Any] = chunk.model_dump(exclude_none=True)
    if "usage" in plain and not any(getattr(seen, "usage", None) for seen in answer.chunks):
        plain["usage"]["estimated"] = 1  # a number, as all counts are
    return plain
