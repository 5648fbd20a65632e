"""What a store gives to those who follow a session: what is committed behind a place, and hints that it grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streamagent.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """What is committed behind a place in a session, as of one moment; a page at most.

    Args:
        head: The session's last sequence; 0 without messages.
        id: Of the message that the place is in, else of the last one before it; `None` when there is none.
        size: Bytes of UTF-8 that are committed of the message behind the place.
        messages: Whole messages, and of those that are large or open fragments of at most 64 KiB: of the first one
            what is behind the offset. A message that is open is the last: what follows it is shown when it is closed.
        more: There is more to read right now.
        hint: Finds what follows quickly; for the next `Store.look`.
    """

    head: int
    id: str | None = None
    size: int = 0
    messages: Sequence[Message] = ()
    more: bool = False
    hint: object = None


class Changes(Protocol):
    """One viewer's line to the changes of a session. A hint and no more: what changed stands in the store."""

    async def wait(self) -> None:
        """Return when something may have been committed since this returned last, or since it was made; or closed."""
        ...

    def close(self) -> None:
        """Want no more hints; idempotent."""
        ...


class Followed(Protocol):
    """The part of a store that following needs."""

    async def look(self, session: str, *, after: int, offset: int = 0, hint: object = None) -> Excerpt:
        """Read what is committed behind a place; what waits for its lag is not, and is not hurried.

        Args:
            session: The session; an unknown one is empty.
            after: Sequence of the last message before the place.
            offset: Bytes of UTF-8 of the message behind it that come before the place, too.
            hint: What the look before gave.

        Raises:
            CursorError: The offset is inside a character.
        """
        ...

    def changes(self, session: str) -> Changes:
        """Ask for hints that a session has changed, whoever changed it; whoever asks first and looks then misses none.

        They come at once for changes of this process, and soon for those of others. Who drops them needs not close.
        """
        ...
