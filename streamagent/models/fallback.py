"""`FallbackModel`: several models behind one; when one fails, the next answers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from streamagent.calls import ToolSpec
from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.protocols import DEFAULT_SETTINGS, Model, ModelSettings, Stream

from . import get_model
from .base import ModelBase

MODELS_LIMIT = 8  # each one is asked `settings.retries` times more; a longer list only hides an outage

_NO_STOP = {"kind": "truncated", "message": "the model's stream ended without a stop", "retryable": True}


class FallbackModel(ModelBase):
    """Ask the first model; when it fails, the next one, each at most once.

    While nothing of an answer was shown, the next model takes over unseen, whatever the failure was; only a refusal by
    a content filter stands. After that it takes over when the failure is retryable: its messages have a higher
    `attempt` and supersede the earlier ones, whose last has `cut: superseded`, and whose calls are never run. The
    `stop` names the model that answered and, in `attempts`, the failures before.

    Args:
        models: 1 to 8 models or their names, in the order in which they are tried. One that stands in it twice is
            tried twice.

    Raises:
        ConfigError: A name that names no model, or not 1 to 8 of them.
    """

    def __init__(self, models: Sequence[str | Model]) -> None:
        if isinstance(models, str) or not 1 <= len(models) <= MODELS_LIMIT:
            raise ConfigError(f"FallbackModel takes a list of 1 to {MODELS_LIMIT} models, not {models!r:.80}")
        self.models: tuple[Model, ...] = tuple(get_model(model) for model in models)
        self.name = "|".join(model.name for model in self.models)

    async def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,
        deadline: float = math.inf,
    ) -> Stream:
        """Answer `context`; see `streamagent.protocols.Model`."""
        if isinstance(context, AsyncIterator):  # it can be read once, and is no more than the request built of it
            context = _Again([message async for message in context])
        answer = _Answer()
        for number, model in enumerate(self.models):
            if number:
                answer.give_up()
            answer.begin(model.name)
            source = model.stream(context, tools=tools, settings=settings, deadline=deadline)
            try:
                async for message in source:
                    for fragment in answer.take(message):
                        yield fragment
            finally:
                await source.aclose()
            if not answer.replaceable or anyio.current_time() >= deadline:
                break
        for fragment in answer.end():
            yield fragment


class _Again(AsyncIterable[Message]):
    """A context that can be read more than once."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __aiter__(self) -> AsyncIterator[Message]:
        return _Reading(self._messages)


class _Reading(AsyncIterator[Message]):
    """No generator: a model may leave it half read."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = iter(messages)

    async def __anext__(self) -> Message:
        for message in self._messages:
            return message
        raise StopAsyncIteration


class _Answer:
    """What was shown of an answer over all attempts, and what waits until it is known whether an attempt counts."""

    def __init__(self) -> None:
        self._failures: list[Mapping[str, Any]] = []
        self._attempt = 0  # the highest that was given out
        self._abandoned: list[Message] = []  # what closes the messages of an attempt that failed; one for each
        self._stop: Message | None = None

    def begin(self, model: str) -> None:
        """Take another attempt."""
        self._model = model
        self._base = self._attempt
        self._open: dict[str, Message] = {}
        self._held: list[Message] = []  # last fragments: of calls all, of the rest those that nothing followed
        self._shown = False
        self._stop = None

    def take(self, message: Message) -> Iterator[Message]:
        """Take a message of the attempt; yield what can be shown."""
        message = replace(message, attempt=self._base + message.attempt)
        self._attempt = max(self._attempt, message.attempt)
        if message.type == "stop":
            self._stop = message
            return
        yield from self._supersede()
        self._shown = True
        opened = self._open.pop(message.id, None)
        if message.more:
            yield from self._release()
            self._open[message.id] = message
            yield message
        else:
            if opened is None and message.type == "tool_call":  # its place in the order is here
                yield replace(message, content="", more=True)
            self._held.append(message)

    @property
    def replaceable(self) -> bool:
        """Another model may answer instead."""
        error = self._error
        if error is None:
            return False
        return bool(error.get("retryable")) if self._shown else error.get("kind") != "content_filter"

    def give_up(self) -> None:
        """Note the failure; nothing is shown before another attempt has something to show."""
        self._abandoned += self._closings()
        query = (self._stop.query if self._stop else None) or {"error": _NO_STOP}
        told = {key: query[key] for key in ("error", "usage") if query.get(key) is not None}
        self._failures += [*self._earlier(query), {"model": self._model, **told}]

    def end(self) -> Iterator[Message]:
        """Yield what was held back, and the stop."""
        stop = self._stop or replace(Message.stop("error", error=_NO_STOP), attempt=max(1, self._attempt))
        failed = self._error is not None
        rest = [*self._abandoned, *self._closings()] if failed else [*self._supersede(), *self._held]
        yield from (_cut(message, "error") for message in rest) if failed else rest
        query = {**(stop.query or {})}
        query["model"] = query.get("model") or self._model
        if attempts := [*self._failures, *self._earlier(query)]:
            query["attempts"] = attempts
        yield replace(stop, query=query)

    @property
    def _error(self) -> Mapping[str, Any] | None:
        if self._stop is None:
            return _NO_STOP
        query = self._stop.query or {}
        return query.get("error", {}) if query.get("reason") == "error" else None

    def _earlier(self, query: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return what the model's own stop tells of the attempts before it."""
        return [{"model": self._model, **attempt} for attempt in query.get("attempts", ())]

    def _closings(self) -> list[Message]:
        """Return the last fragments of all messages that are not closed to the reader."""
        return [*self._held, *(replace(last, content="", query=None, more=False) for last in self._open.values())]

    def _supersede(self) -> Iterator[Message]:
        abandoned, self._abandoned = self._abandoned, []
        return (_cut(message, "superseded") for message in abandoned)

    def _release(self) -> Iterator[Message]:
        held, self._held = self._held, [message for message in self._held if message.type == "tool_call"]
        return (message for message in held if message.type != "tool_call")


def _cut(message: Message, cause: str) -> Message:
    """Mark a message as cut; a call of a failed attempt must not run."""
    refused = {"args": None, "invalid": "truncated"} if message.type == "tool_call" else {}
    return replace(message, query={**(message.query or {}), **refused, "cut": cause})
