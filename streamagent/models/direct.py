"""`DirectModel`: providers that speak OpenAI's chat completions, over HTTP and nothing else. asyncio only."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import orjson

from streamagent import exactjson
from streamagent._core.event import EventReader
from streamagent._core.response_format import response_format
from streamagent.errors import ConfigError, ModelError

from . import http, prices
from .attempt import Chunks
from .base import full_name, require_asyncio
from .body import StreamedBody
from .chunks import ChunkModel, Request, tool_choice, tool_list
from .endpoints import ENDPOINTS, address
from .faults import WRONG_SHAPE
from .retry import RetryPolicy

_PASSED = ("temperature", "top_p", "max_tokens", "seed", "stop", "reasoning_effort")
_REASONS = re.compile(r"(^|/)(o\d|gpt-5)")  # names of OpenAI's models that take `max_completion_tokens` alone
_OURS = {"Accept": "text/event-stream", "Content-Type": "application/json"}


class DirectModel(ChunkModel):
    """Ask a provider that speaks OpenAI's chat completions; LiteLLM is not imported.

    Args:
        model: `provider/model` or `provider:model`; the providers are those of `endpoints.ENDPOINTS`.
        api_base: Where the provider listens; by default as its environment variable says, else its public address.
        api_key: The key; by default from the provider's environment variable.
        headers: Further headers of each request.
        retry: When to ask again.
        sleep: Waits between attempts, in seconds.
        options: Further parameters of each request, as the provider names them.

    Raises:
        ConfigError: `model` names no provider, or one that is not in the table.
    """

    streams_context = True

    def __init__(  # noqa: PLR0913 - options by keyword
        self,
        model: str,
        *,
        api_base: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        **options: Any,
    ) -> None:
        super().__init__(full_name(model), retry=retry, sleep=sleep)
        self._provider, _, self._model = self.name.partition("/")
        if self._provider not in ENDPOINTS:
            raise ConfigError(f"{self._provider!r} is not in the table of {', '.join(ENDPOINTS)}; use get_model")
        self._api_base, self._api_key = api_base, api_key
        self._headers = {**_OURS, **(headers or {})}
        self._options = options

    async def prepare(self) -> None:
        """Import the HTTP client, in a thread the first time; see `ChunkModel.prepare`.

        Raises:
            UnsupportedBackendError: Another event loop than asyncio's runs.
        """
        require_asyncio()
        await http.load()

    def chunks(self, request: Request) -> Chunks:
        """Ask the provider once, after `prepare`; see `http.answer`.

        Raises:
            ConfigError: Nothing says where the provider listens.
            ModelError: The provider needs a key, and there is none (kind `auth`).
        """
        body = {**self._parameters(request), **request.settings.extra}
        base, key, more = (body.pop(name, None) for name in ("api_base", "api_key", "extra_headers"))
        where = address(self._provider, self._model, api_base=base or self._api_base, api_key=key or self._api_key)
        headers = {**self._headers, **where.headers, **(more or {})}
        history = request.history
        sent = exactjson.dumps(body) if history is None else StreamedBody(body, history)
        asked = http.Post(url=where.url, headers=headers, body=sent, secrets=lambda: [where.key or ""])
        return http.answer(asked, EventReader(), whole=_whole)

    async def price(self, usage: Mapping[str, Any]) -> float | None:
        """Price tokens by the map that LiteLLM ships with; see `ChunkModel.price`."""
        return await prices.price(self.name, usage)

    def _parameters(self, request: Request) -> dict[str, Any]:
        settings = request.settings
        chosen = {name: value for name in _PASSED if (value := getattr(settings, name)) is not None}
        if "max_tokens" in chosen and _REASONS.search(self._model):
            chosen[ENDPOINTS[self._provider].longest] = chosen.pop("max_tokens")
        if request.tools:
            chosen["tools"] = tool_list(request.tools)
            if settings.tool_choice is not None:
                chosen["tool_choice"] = tool_choice(settings.tool_choice)
        if settings.response_schema is not None and "response_format" not in self._options:
            chosen["response_format"] = response_format(settings.response_schema)
        asked = {"model": self._model, "messages": request.messages, "stream": True}
        return {**asked, "stream_options": {"include_usage": True}, **self._options, **chosen}


def _whole(data: bytes) -> Mapping[str, Any]:
    """Read an answer that came in one piece as a chunk of it.

    Raises:
        ModelError: It is none (kind `protocol`).
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ModelError(WRONG_SHAPE, kind="protocol", retryable=True) from error
    if not isinstance(value, dict) or not value.keys() & {"choices", "error"}:
        raise ModelError(WRONG_SHAPE, kind="protocol", retryable=True)
    choices = value.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and "message" in choice:
            choice["delta"] = choice.pop("message")
    return value
