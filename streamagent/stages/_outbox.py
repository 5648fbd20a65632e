"""`Outbox`: what the calls of a batch say, on its way to who reads it."""

from __future__ import annotations

from streamagent.channel import Channel
from streamagent.message import Message

SIZE = 16  # messages of tools that wait for the reader; a tool that yields faster is held back


class Outbox(Channel[Message]):
    """Takes messages of many calls for one reader; `speakers` counts those that may still say something."""

    __slots__ = ("speakers",)

    def __init__(self) -> None:
        super().__init__(SIZE)
        self.speakers = 0

    @property
    def is_over(self) -> bool:
        """Nobody says anything more, and all that was said has been taken."""
        return not (self.speakers or self._items)
