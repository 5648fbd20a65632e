"""`ModelBase`: what every model shares; `ModelReply`: an answer of a model alone, without a session."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, cast

from streamagent.calls import ToolSpec
from streamagent.errors import ConfigError, UnsupportedBackendError
from streamagent.message import Message
from streamagent.protocols import DEFAULT_SETTINGS, ModelSettings, Stream
from streamagent.reply import Reply

Item = Message | Mapping[str, Any]
Input = str | Item | Iterable[Item] | AsyncIterable[Item]


class ModelReply(Reply):
    """An answer on its way from a model.

    Args:
        stream: What `Model.stream` returned; closed with the reply.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def __anext__(self) -> Message:
        return self._given(await anext(self._stream))

    async def aclose(self) -> None:
        """Stop the answer; the connection to the provider is closed on return."""
        await self._stream.aclose()


class ModelBase(ABC):
    """A model: give `stream`, get `send`."""

    name: str

    @abstractmethod
    def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,
        deadline: float = math.inf,
    ) -> Stream:
        """Answer `context`; see `streamagent.protocols.Model`."""

    def send(
        self,
        prompt: Input,
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,
        deadline: float = math.inf,
    ) -> ModelReply:
        """Ask the model, without a session.

        Args:
            prompt: A text, a message, or a conversation: messages or their dicts, also as they come from an async
                iterator, which is read while the request is built. The role of a dict without one is `user`.
            tools: What the model may call; nobody runs the calls here.
            settings: Options of this call.
            deadline: When to give up, on anyio's clock, in seconds.

        Returns:
            The answer: iterate it for fragments, `text()` for text, or await it for the `Result`.
        """
        return ModelReply(self.stream(_context(prompt), tools=tools, settings=settings, deadline=deadline))


async def _context(prompt: Input) -> AsyncIterator[Message]:
    if isinstance(prompt, AsyncIterable):
        async for item in prompt:
            yield _message(item)
    elif isinstance(prompt, str | Message | Mapping):
        yield _message(cast("str | Item", prompt))
    else:
        for item in prompt:
            yield _message(item)


def _message(item: str | Item) -> Message:
    if isinstance(item, str):
        return Message.user(item)
    return item if isinstance(item, Message) else Message.from_dict({"role": "user", **item})


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


def require_asyncio() -> None:
    """Make sure that asyncio's event loop runs.

    Raises:
        UnsupportedBackendError: Another one does.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        raise UnsupportedBackendError("this model runs on asyncio only; use asyncio, or another model") from error
