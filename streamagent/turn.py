"""`Turn`: what is known of a model's turn while it is under way."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, cast

from ._core.usage import estimated_usage
from ._core.window import CHARS, estimate_tokens
from .message import Message
from .protocols import Stage, Stream
from .talk import Item, Paged, Pages, Talk

SHORTER = "shorter"  # what a stop says in `query.again` whose turn is taken once more with a shorter context


@dataclass(slots=True)
class Turn:
    """One answer of a model.

    Args:
        model: Its name.
        asked: How much it was given, in tokens as `compact` estimates them; tools are not counted.
        said: How much it said, in characters.
        silent: It said nothing.
        attempt: The last attempt that a crash has cut; what the model says now supersedes it.
        shrinks: When the context was too long, the turn is taken once more with a shorter one.
        stop: Its end, as the model told it.
    """

    model: str
    asked: float = 0.0
    said: int = 0
    silent: bool = True
    attempt: int = 0
    shrinks: bool = False
    stop: Message | None = None

    def counted(self) -> Stage:
        """Make the last context stage, which counts what the model is given."""

        async def stage(stream: Stream) -> Stream:
            self.asked = 0.0
            async for message in stream:
                self.asked += estimate_tokens(message)
                yield message

        return stage

    def take(self, message: Message) -> Message:
        """Take note of what the model says, and return what is passed on of it."""
        if message.type == "stop":
            self.stop = message = self._told(self._counted_stop(message))
        else:
            self.silent = False
            self.said += len(message.content)
        if self.attempt:
            message = replace(message, attempt=self.attempt + message.attempt)
        # Sequences are the store's to give: a message that had one would pass for stored.
        return message if message.sequence is None else replace(message, sequence=None)

    def end(self) -> Message:
        """Make the `stop` of a model that ended without one."""
        error = {"kind": "truncated", "message": "the model's stream ended without a stop", "retryable": False}
        return self.take(Message.stop("error", model=self.model, error=error))

    @property
    def usage(self) -> Mapping[str, Any]:
        """What it took so far, as an estimate."""
        return estimated_usage(self.asked, self.said)

    @property
    def overflowed(self) -> bool:
        """The provider refused the context as too long, and nothing was said."""
        return self.stop is not None and self._refuses(self.stop)

    @property
    def retried(self) -> bool:
        """Its stop says that it is taken once more."""
        return self.shrinks and self.overflowed

    def _refuses(self, stop: Message) -> bool:
        error = (stop.query or {}).get("error")
        return self.silent and isinstance(error, Mapping) and error.get("kind") == "context_overflow"

    def _told(self, stop: Message) -> Message:
        """Let a stop say, for whoever goes on after a crash, that the turn is taken once more."""
        again = self.shrinks and self._refuses(stop)
        return replace(stop, query={**(stop.query or {}), "again": SHORTER}) if again else stop

    def _counted_stop(self, stop: Message) -> Message:
        """Estimate what an answer took that broke off before the provider counted it."""
        query = stop.query or {}
        if self.silent or query.get("reason") != "error" or "usage" in query:
            return stop
        return replace(stop, query={**query, "usage": self.usage})


class Given(Paged):
    """What a model is given before any stage: the system prompt, then the rows. Each iteration reads them anew.

    What the turn itself has added meanwhile is no part of it.

    Args:
        rows: Reads the rows up to a sequence, page by page, with talks or without; no page is empty.
        system: The system prompt.
        turn: Counts what is read, if no stage changes it.
    """

    def __init__(self, rows: Callable[[int | None, bool], Pages], system: str | None, turn: Turn | None) -> None:
        self._rows = rows
        self._system = system
        self._turn = turn
        self._opened: list[AsyncGenerator[Any, None]] = []
        self._until: int | None = None

    def __aiter__(self) -> Stream:
        reading = self._messages()
        self._opened.append(reading)
        return reading

    def pages(self) -> Pages:
        """Read it page by page; see `Paged`."""
        reading = self._read(talks=True)
        self._opened.append(reading)
        return reading

    @property
    def is_over(self) -> bool:
        """All that was opened has been read to its end."""
        return all(getattr(reading, "ag_frame", reading) is None for reading in self._opened)

    async def aclose(self) -> None:
        """Close what was not read to its end."""
        for reading in self._opened:
            if not getattr(reading, "ag_running", False):
                await reading.aclose()

    async def _messages(self) -> Stream:
        async with aclosing(self._read(talks=False)) as pages:
            async for page in pages:
                for message in page:
                    yield cast("Message", message)

    async def _read(self, *, talks: bool) -> Pages:
        turn = self._turn
        system = Message.system(self._system) if self._system else None
        if turn is not None:
            turn.asked = 0.0 if system is None else estimate_tokens(system)
        if system is not None:
            yield (system,)
        last: int | None = 0
        async with aclosing(self._rows(self._until, talks)) as pages:
            async for page in pages:
                if turn is not None:
                    turn.asked += sum(map(_tokens, page))
                item = page[-1]
                last = item.last if isinstance(item, Talk) else item.sequence
                yield page
        self._until = self._until or last


def _tokens(item: Item) -> float:
    return item.chars / CHARS if isinstance(item, Talk) else estimate_tokens(item)
