"""`Talk`: the part of a long context of which most consist, and which needs no work: prompts and answers in plain text.

What gives a context in pages gives the rest of it as messages. No IO, no clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from streamagent.message import Message


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Talk:
    """Whole exchanges, each a prompt and its answer, that are text and nothing else; what follows is another prompt.

    So no call is left without its result, no attempt supersedes another one, and nothing that follows can change what
    is sent of them.

    Args:
        entries: What is sent of them, in the form of OpenAI's chat completions: clean text that is not blank.
        chars: How many characters they have, reasoning included.
        last: Sequence of the last message.
    """

    entries: Sequence[dict[str, Any]]
    chars: int
    last: int

    def messages(self) -> list[Message]:
        """Give what is sent of them as messages, with ids that no stored message has."""
        return [
            Message(id=f"\0{self.last}.{number}", role=entry["role"], content=entry["content"])
            for number, entry in enumerate(self.entries)
        ]


Item = Message | Talk
Pages = AsyncGenerator[Sequence[Item], None]


class Paged(ABC):
    """A context that is read in pages by who can take them, anew each time; iterated, it gives messages."""

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Message]:
        """Read it message by message."""

    @abstractmethod
    def pages(self) -> Pages:
        """Read it page by page."""


class PagedStore(ABC):
    """A store whose sessions are read in pages by who can take them."""

    @abstractmethod
    def pages(self, session: str, *, until: int | None = None, talks: bool = True) -> Pages:
        """Read what `read` does, page by page; no page is empty.

        Args:
            session: The session.
            until: Last sequence to read; `None` for the end.
            talks: Give whole exchanges of text as a `Talk`, of which a long context has a few instead of many messages.
        """


async def in_pages(messages: AsyncGenerator[Message, None]) -> Pages:
    """Give each message as a page; they are closed at the end."""
    async with aclosing(messages):
        async for message in messages:
            yield (message,)
