"""`Model`: what turns a context into an answer, and its settings."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from streamagent.calls import ToolSpec
from streamagent.message import Message

from .streams import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Options of a model call; `None` leaves the provider's default.

    Args:
        temperature: Sampling temperature.
        top_p: Nucleus sampling mass.
        max_tokens: Longest answer, in tokens.
        seed: Sampling seed, where the provider has one.
        stop: Texts at which the model stops.
        tool_choice: `auto`, `none`, `required`, or a tool's name.
        reasoning_effort: `minimal`, `low`, `medium` or `high`.
        idle_timeout: Longest silence between two events of the provider, in seconds.
        timeout: Longest time for the whole call, with its retries, in seconds.
        retries: How often a call is repeated while nothing was yielded.
        think_tags: Take a leading `<think>` block of the text as reasoning.
        starts_in_think: The model's template has opened the think block already.
        response_schema: JSON Schema of an object that the answer shall be, for providers that can be told.
        extra: Further parameters, passed to the provider as they are.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: Sequence[str] | None = None
    tool_choice: str | None = None
    reasoning_effort: str | None = None
    idle_timeout: float = 120.0
    timeout: float = 600.0
    retries: int = 3
    think_tags: bool = False
    starts_in_think: bool = False
    response_schema: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


DEFAULT_SETTINGS = ModelSettings()


class Model(Protocol):
    """Something that turns a context into an answer, both streams of messages."""

    name: str

    def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,
        deadline: float = math.inf,
    ) -> Stream:
        """Answer `context`.

        Args:
            context: The conversation. An iterator is read once, while the request is built; anything else gives it
                anew each time that it is iterated, so a request may be sent again without being held.
            tools: What the model may call.
            settings: Options of this call.
            deadline: When to give up, on anyio's clock (`anyio.current_time`), in seconds.

        Yields:
            Fragments of the answer; the last message is a `stop`, also on every expected failure.
        """
        ...
