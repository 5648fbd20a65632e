"""`ChunkModel`: a model whose provider streams chunks; one path for waiting, retrying and assembling."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import anyio

from streamagent import exactjson
from streamagent._core.assembler import Assembler
from streamagent._core.profiles import Profile, profile_for
from streamagent._core.request import RequestBuilder
from streamagent._core.usage import usages
from streamagent.calls import ToolSpec
from streamagent.message import Message
from streamagent.protocols import DEFAULT_SETTINGS, ModelSettings, Stream
from streamagent.talk import Item, Paged, Talk, in_pages

from .attempt import Attempt, Chunks, Limits
from .base import ModelBase
from .retry import RetryPolicy

HELD = 1024 * 1024  # bytes of a context that are held; a longer one is read while it is sent, where that can be done
_AT_ONCE = 64  # entries: with 1 KB each about what is sent at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a provider is asked.

    Args:
        messages: The conversation, in the form of OpenAI's chat completions; empty when it is in `history`.
        tools: What the model may call.
        settings: Options of the call.
        history: The conversation, when it is too long to be held; only for models that set `streams_context`.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[ToolSpec] = ()
    settings: ModelSettings = DEFAULT_SETTINGS
    history: History | None = None


class History:
    """A conversation that is read while it is sent, anew for each attempt.

    Args:
        context: Gives it, each time that it is iterated.
        profile: What the provider accepts.
    """

    def __init__(self, context: AsyncIterable[Message], profile: Profile) -> None:
        self._context = context
        self._profile = profile

    async def written(self) -> AsyncGenerator[bytes, None]:
        """Yield its entries, in the form of OpenAI's chat completions, as JSON with commas between them."""
        builder = RequestBuilder(self._profile)
        context = self._context
        pages = context.pages() if isinstance(context, Paged) else in_pages(cast("Stream", aiter(context)))
        async with aclosing(pages):
            async for page in pages:
                entries: list[dict[str, Any]] = []
                for item in page:
                    builder.add_item(item)
                    entries += builder.ready()
                for first in range(0, len(entries), _AT_ONCE):
                    yield exactjson.dumps_texts(entries[first : first + _AT_ONCE])
        if entries := builder.finish():
            yield exactjson.dumps_each(entries)


class ChunkModel(ModelBase):
    """A model whose provider streams chunks in the form of OpenAI's chat completions: give `chunks`, get `stream`.

    Args:
        name: The model's name; the provider's rules for requests are found by it.
        retry: When to ask again; `settings.retries` counts, not the policy's.
        sleep: Waits between attempts, in seconds.
    """

    streams_context = False  # `chunks` takes a `Request.history`

    def __init__(
        self,
        name: str,
        *,
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self.name = name
        self._retry = retry or RetryPolicy()
        self._sleep = sleep

    async def prepare(self) -> None:
        """Get ready to ask, before each request: for what takes its time here, and not at the provider.

        Raises:
            ModelError: It cannot be asked.
        """

    @abstractmethod
    def chunks(self, request: Request) -> Chunks:
        """Ask the provider once.

        Args:
            request: What is asked.

        Yields:
            Chunks, one by one or as lists of those that came together; then `DONE`, unless the answer broke off.

        Raises:
            ModelError: The request or the stream failed.
        """

    async def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,
        deadline: float = math.inf,
    ) -> Stream:
        """Answer `context`, asking again as long as nothing was shown; see `streamagent.protocols.Model`.

        Yields:
            Fragments, then a `stop`; its `query.attempts` tells of the attempts that failed unseen, its `query.cost`
            what all of them cost, if `price` can tell.
        """
        limits = _limits(settings, deadline)
        request: Request | None = await self._request(context, tools, settings)
        failures: list[Mapping[str, Any]] = []
        while request is not None:
            attempt = self._attempt(request, len(failures) + 1, limits)
            try:
                while not attempt.ended:
                    for message in await attempt.step():
                        request = None  # it is not asked again, and may be long
                        yield message if message.type != "stop" else await self._finish(message, failures)
            finally:
                await attempt.aclose()
            if attempt.wait is not None:
                failures.append(attempt.failure)
                await self._sleep(attempt.wait)

    async def _request(
        self, context: AsyncIterable[Message], tools: Sequence[ToolSpec], settings: ModelSettings
    ) -> Request:
        """Read a context, unless it is too long to be held and can be read once more."""
        profile = profile_for(self.name)
        builder, size = RequestBuilder(profile), 0
        if isinstance(context, Paged):
            pages = context.pages()
            async for page in pages:
                for item in page:
                    builder.add_item(item)
                    size += _size(item)
                if self.streams_context and size > HELD:
                    await pages.aclose()
                    return Request(messages=(), tools=tools, settings=settings, history=History(context, profile))
            return Request(messages=builder.finish(), tools=tools, settings=settings)
        rereads = self.streams_context and not isinstance(context, AsyncIterator)
        messages = aiter(context)
        async for message in messages:
            builder.add(message)
            size += _size(message)
            if rereads and size > HELD:
                await cast("Stream", messages).aclose()
                return Request(messages=(), tools=tools, settings=settings, history=History(context, profile))
        return Request(messages=builder.finish(), tools=tools, settings=settings)

    async def price(self, usage: Mapping[str, Any]) -> float | None:  # noqa: ARG002 - for models that have prices
        """Say what an answer costs; see `streamagent.models.litellm.LiteLLMModel.price`.

        Args:
            usage: Its tokens, as the provider counted them.

        Returns:
            US dollars; `None` when it cannot be told.
        """
        return None

    async def _finish(self, stop: Message, failures: Sequence[Mapping[str, Any]]) -> Message:
        query = {**(stop.query or {}), **({"attempts": [*failures]} if failures else {})}
        prices = [await self.price(usage) for usage in usages(query)]
        known = [price for price in prices if price is not None]
        if known:
            query["cost"] = sum(known)
        return stop if query == stop.query else replace(stop, query=query)

    def _attempt(self, request: Request, number: int, limits: Limits) -> Attempt:
        settings = request.settings
        assembler = Assembler(
            tools=[tool.name for tool in request.tools],
            model=self.name,
            attempt=number,
            think_tags=settings.think_tags,
            starts_in_think=settings.starts_in_think,
        )
        policy = self._retry
        if policy.retries != settings.retries:
            policy = replace(policy, retries=settings.retries)
        delay = partial(policy.delay, number, deadline=limits.deadline)
        return Attempt(partial(self._open, request), assembler, delay=delay, limits=limits)

    async def _open(self, request: Request) -> Chunks:
        await self.prepare()
        return self.chunks(request)


def _size(message: Item) -> int:
    """Return about how many bytes a message takes in a request."""
    if isinstance(message, Talk):
        return message.chars
    data = message.query.get("data") if message.query else None
    return len(message.content) + (len(data) if isinstance(data, str) else 0)


def _limits(settings: ModelSettings, deadline: float) -> Limits:
    end = anyio.current_time() + settings.timeout
    if deadline <= end:
        return Limits(idle=settings.idle_timeout, deadline=deadline, late="the provider was not ready at the deadline")
    late = f"the answer took longer than the {settings.timeout:g} s of ModelSettings.timeout"
    return Limits(idle=settings.idle_timeout, deadline=end, late=late)


def tool_list(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Describe tools in the form of OpenAI's chat completions."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
        }
        for tool in tools
    ]


def tool_choice(choice: str | None) -> str | Mapping[str, Any] | None:
    """Say which tool is to be called in the form of OpenAI's chat completions."""
    if choice in (None, "auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}
