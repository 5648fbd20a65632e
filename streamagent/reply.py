"""`Reply`: an answer on its way, from a model alone or from a session; `Result`: the same, collected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any, Self, overload

from .errors import ModelError
from .message import Message, fold


class TurnText:
    """The visible text of the last model turn that has any, while it streams; of several attempts the last.

    What sub-agents say on the way does not count.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._attempt = 0
        self._earlier = ""
        self.size = 0  # characters of the turn's text so far

    def __str__(self) -> str:
        return "".join(self._pieces) or self._earlier

    def add(self, message: Message) -> None:
        """Take the next message or fragment."""
        if message.path:
            return
        if message.type == "stop":
            self._earlier = str(self)
            self._pieces, self._attempt = [], 0
        elif message.role == "assistant":
            if message.attempt > self._attempt:
                self._pieces, self._attempt = [], message.attempt
                self.size = 0
            if message.type == "text":
                self._pieces.append(message.content)
                self.size += len(message.content)


class Result(Sequence[Message]):
    """A collected answer: a sequence of whole messages.

    Args:
        messages: What was streamed, folded.
        stop: The last `stop` that was given before these messages.
    """

    def __init__(self, messages: Sequence[Message], stop: Message | None = None) -> None:
        self._messages = tuple(messages)
        self._stop = stop

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Result {self.reason}: {len(self)} messages, {self.text!r:.60}>"

    @property
    def text(self) -> str:
        """The visible text of the last model turn that has any, without what a later attempt superseded."""
        text = TurnText()
        for message in self._messages:
            text.add(message)
        return str(text)

    @property
    def stop(self) -> Message | None:
        """The last `stop`, or `None` when the stream was left before one."""
        stops = (message for message in reversed(self._messages) if message.type == "stop" and not message.path)
        return next(stops, self._stop)

    @property
    def reason(self) -> str | None:
        """Why the answer ended; see `Message.stop`."""
        reason: str | None = self._of_stop("reason")
        return reason

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """Tokens as the provider counted them in the last model turn; `None` when it did not say."""
        usage: Mapping[str, Any] | None = self._of_stop("usage")
        return usage

    @property
    def error(self) -> Mapping[str, Any] | None:
        """`{kind, message, retryable}` of a failure, else `None`."""
        error: Mapping[str, Any] | None = self._of_stop("error")
        return error

    def raise_for_error(self) -> Self:
        """Return itself, or raise what the answer failed with.

        Raises:
            ModelError: The answer ended in an error.
        """
        if self.error is None:
            return self
        kind = self.error.get("kind", "provider_error")
        raise ModelError(self.error.get("message", kind), kind=kind, retryable=bool(self.error.get("retryable")))

    def _of_stop(self, key: str) -> Any:
        return (self.stop.query or {}).get(key) if self.stop else None


class Reply(ABC):
    """An answer on its way: iterate it for fragments, `text()` for text, await it for the `Result`.

    Each takes what the others have left: a message is given once. `reason` says afterwards why it ended.
    """

    stop: Message | None = None  # the last one that was given

    @property
    def reason(self) -> str | None:
        """Why it ended, once it has: see `Message.stop`."""
        reason: str | None = ((self.stop.query if self.stop else None) or {}).get("reason")
        return reason

    def __aiter__(self) -> Self:
        return self

    def _given(self, message: Message) -> Message:
        if message.type == "stop" and not message.path:
            self.stop = message
        return message

    @abstractmethod
    async def __anext__(self) -> Message:
        """Return the next fragment."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop the answer and release what it holds; idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def text(self) -> AsyncGenerator[str, None]:
        """Yield the pieces of visible text as they come.

        Raises:
            ModelError: At the end, when the answer ended in an error: what was yielded is all there is.
        """
        last: list[Message] = []
        async for message in self:
            if message.type == "text" and message.role == "assistant" and message.content and not message.path:
                yield message.content
            elif message.type == "stop" and not message.path:
                last = [message]
        Result(last).raise_for_error()

    async def result(self) -> Result:
        """Collect the rest of the answer; how it ended is told also when all of it was given before."""
        given = self.stop
        return Result(fold([message async for message in self]), given)

    def __await__(self) -> Generator[Any, Any, Result]:
        return self.result().__await__()
