"""`ProviderModel`: LiteLLM's configuration of a provider over our own transport. asyncio only."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import aclosing
from functools import cached_property, partial
from typing import Any

import anyio

from streamagent._core.event import EventReader
from streamagent.errors import ModelError

from . import http
from .attempt import Chunks
from .chunks import Request
from .configs import write_call
from .litellm import LiteLLMModel, load_litellm, secrets_of
from .parsed import read
from .wires import Call, Unfit

logger = logging.getLogger("streamagent")


class ProviderModel(LiteLLMModel):
    """Ask a provider as LiteLLM would, without its client; where that cannot be, through LiteLLM.

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

    @cached_property
    def _told(self) -> set[str]:
        """Reasons for which LiteLLM's own client was taken, of which each is told once."""
        return set()

    async def prepare(self) -> None:
        """Import LiteLLM and the HTTP client, which takes seconds the first time; see `ChunkModel.prepare`.

        Raises:
            UnsupportedBackendError: Another event loop than asyncio's runs.
        """
        await super().prepare()
        await http.load()

    async def chunks(self, request: Request) -> Chunks:
        """Ask the provider once, after `prepare`; see `ChunkModel.chunks`.

        Raises:
            ModelError: The request or the stream failed.
        """
        parameters = self._parameters(request)
        try:
            call = await anyio.to_thread.run_sync(self._write, request, parameters, abandon_on_cancel=True)
        except Unfit as reason:
            self._tell(str(reason))
            source = super().chunks(request)
        except Exception as error:
            raise self._translated(error, parameters) from error
        else:
            source = self._answer(call, parameters)
        async with aclosing(source):
            async for chunk in source:
                yield chunk

    async def _answer(self, call: Call, parameters: Mapping[str, Any]) -> Chunks:
        reader = EventReader(partial(read, call), plain=call.plain)
        asked = http.Post(
            url=call.url,
            headers=call.headers,
            body=call.body,
            secrets=lambda: [*secrets_of(parameters), call.key or ""],
        )
        try:
            async with aclosing(http.answer(asked, reader)) as said:
                async for batch in said:
                    yield batch
        except ModelError as error:
            raise self._hinted(error, parameters) from error

    def _write(self, request: Request, parameters: Mapping[str, Any]) -> Call:
        litellm = load_litellm()
        return write_call(litellm, self.name, {**self._format(request, litellm), **parameters})

    def _tell(self, reason: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            logger.info("%s is asked through LiteLLM's own client, which is slower: %s", self.name, reason)
