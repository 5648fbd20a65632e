"""An order of NATS JetStream."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nats.aio.msg import Msg


class NatsOrder:
    """A message of the stream: until it is acknowledged it is somebody's, or comes again.

    Args:
        message: The message.
        session: What it is about.
        tell: Tells the server something about it, as far as that is there.
    """

    def __init__(
        self, message: Msg, session: str, tell: Callable[[Coroutine[Any, Any, None]], Awaitable[None]]
    ) -> None:
        self._message = message
        self._tell = tell
        self.session = session

    async def in_progress(self) -> None:
        """Begin the time anew after which it is handed to somebody else."""
        await self._tell(self._message.in_progress())

    async def done(self) -> None:
        """Acknowledge it."""
        await self._tell(self._message.ack())

    async def again(self, delay: float) -> None:
        """Have it handed out again."""
        await self._tell(self._message.nak(delay=delay))


def session_of(body: bytes) -> str | None:
    """Read what a message is about; `None` of one that is no order."""
    try:
        session = json.loads(body)["session"]
    except (ValueError, TypeError, KeyError):
        return None
    return session if isinstance(session, str) and session else None
