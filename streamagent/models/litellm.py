"""`LiteLLMModel`: every provider that LiteLLM knows, by `litellm.acompletion`. asyncio only."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import anyio

from streamagent._core.response_format import response_format
from streamagent._core.sse import DONE
from streamagent.errors import ModelError
from streamagent.shared import load_in_thread

from .attempt import Chunks
from .base import full_name, require_asyncio
from .chunks import ChunkModel, Request, tool_choice, tool_list
from .faults import WRONG_SHAPE, find_secrets, to_model_error
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

    async def prepare(self) -> None:
        """Import LiteLLM, which takes seconds the first time; see `ChunkModel.prepare`.

        Raises:
            UnsupportedBackendError: Another event loop than asyncio's runs.
        """
        require_asyncio()
        await load_in_thread(_load)

    async def chunks(self, request: Request) -> Chunks:
        """Ask the provider once, after `prepare`; see `ChunkModel.chunks`.

        Raises:
            ModelError: The request or the stream failed.
        """
        litellm, parameters = load_litellm(), self._parameters(request)
        answer, empty = None, True
        try:
            answer = await litellm.acompletion(**self._format(request, litellm), **parameters)
            while (chunk := await anext(answer, None)) is not None:
                plain = _plain(chunk, answer)
                empty = empty and not _says(plain)
                yield plain
        except Exception as error:
            raise self._translated(error, parameters) from error
        finally:
            if answer is not None:
                with anyio.move_on_after(_CLOSE_TIMEOUT, shield=True):
                    await answer.aclose()
        if empty and (kind := _foreign_type(answer)):
            raise ModelError(f"{WRONG_SHAPE} (content type {kind!r})", kind="protocol", retryable=True)
        yield DONE  # LiteLLM raises when neither a finish reason nor `[DONE]` came

    async def price(self, usage: Mapping[str, Any]) -> float | None:
        """Price tokens by LiteLLM's price map, the one that it ships with; see `ChunkModel.price`."""
        return await anyio.to_thread.run_sync(_price, self.name, usage)

    def _parameters(self, request: Request) -> dict[str, Any]:
        settings = request.settings
        chosen = {name: getattr(settings, name) for name in _PASSED}
        if request.tools:
            chosen |= {"tools": tool_list(request.tools), "tool_choice": tool_choice(settings.tool_choice)}
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

    def _translated(self, error: Exception, parameters: Mapping[str, Any]) -> ModelError:
        return self._hinted(to_model_error(error, secrets_of(parameters)), parameters)

    def _hinted(self, told: ModelError, parameters: Mapping[str, Any]) -> ModelError:
        """Name the variables that may hold a key, where none was given."""
        if told.kind != "auth" or parameters.get("api_key"):
            return told
        missing = [name for name in _missing(self.name) if name not in str(told)]
        return ModelError(f"{told} (not set: {', '.join(missing)})", kind="auth") if missing else told


_loading = threading.Lock()


def _load() -> None:
    """Import LiteLLM, and what it imports only when it answers for the first time."""
    with _loading:
        if not load_litellm.cache_info().currsize:
            _warm_up(load_litellm())


def _warm_up(litellm: Any) -> None:
    """Have LiteLLM make up an answer, unless somebody's callbacks would be told of it."""
    if litellm.callbacks or litellm.input_callback or litellm.success_callback or litellm.failure_callback:
        return
    with suppress(Exception):  # it only saves time
        litellm.token_counter(model="openai/mock", text="Hi")
        asked = [{"role": "user", "content": "Hi"}]
        litellm.completion(model="openai/mock", messages=asked, mock_response="Hi", api_key="none")


@cache
def load_litellm() -> Any:
    """Import LiteLLM: without its look-up of prices over the network, banners, and its own limit on repetition."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    # The assembler has the same rule, and does not raise.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize  # pyright: ignore[reportPrivateImportUsage]
    return litellm


def _price(model: str, usage: Mapping[str, Any]) -> float | None:
    """Look a model up by its full name, or without its provider; `None` when it is not in the map."""
    litellm = load_litellm()
    _, _, short = model.partition("/")
    known = next((name for name in (model, short) if name in litellm.model_cost), None)
    if known is None:
        return None
    if not any(litellm.model_cost[known].get(f"{kind}_cost_per_token") for kind in ("input", "output")):
        return 0.0  # of some models that cost nothing LiteLLM would ask their server
    try:
        return float(sum(litellm.cost_per_token(model=model, usage_object=litellm.Usage(**usage))))
    except Exception:  # noqa: BLE001 - foreign code on foreign data; an answer does not fail because of its price
        return None


def _missing(model: str) -> list[str]:
    """Name the environment variables that LiteLLM would look at for a provider's key."""
    try:
        return list(load_litellm().validate_environment(model)["missing_keys"])
    except Exception:  # noqa: BLE001 - foreign code, for a hint only
        return []


def secrets_of(parameters: Mapping[str, Any]) -> list[str]:
    """Find what must not occur in the text of an error, in the parameters of a call."""
    return list(find_secrets({**parameters, "messages": (), "tools": ()}))


def _says(plain: Mapping[str, Any]) -> bool:
    return any(value for choice in plain.get("choices", ()) for value in choice.get("delta", {}).values())


def _foreign_type(answer: Any) -> str:
    """Return the content type of an answer that was no stream of events; empty when it was, or is not known."""
    headers = answer.hidden_params.get("additional_headers") or {}
    kind = next((str(value) for name, value in headers.items() if name.endswith("content-type")), "")
    return "" if "stream" in kind or "ndjson" in kind else kind


def _plain(chunk: Any, answer: Any) -> Mapping[str, Any]:
    """Turn a chunk into plain data; a usage that no provider sent is LiteLLM's own count, and marked."""
    plain: dict[str, Any] = chunk.model_dump(exclude_none=True)
    if "usage" in plain and not any(getattr(seen, "usage", None) for seen in answer.chunks):
        plain["usage"]["estimated"] = 1  # a number, as all counts are
    return plain
