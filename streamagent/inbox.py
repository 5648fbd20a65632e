"""The inbox of a run: which of the messages that wait are admitted, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .hooks import Drain, Hooks, Lane, Maybe, lane_of, settled
from .message import Message
from .protocols import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """A session's inbox, as one run drains it.

    Args:
        store: Where it is.
        session: The session.
        fence: The run's.
        hooks: What gives further messages.
        steering: How many steering messages are admitted at one border.
        follow_ups: How many follow-ups are admitted when nothing else is left.
    """

    store: Store
    session: str
    fence: int
    hooks: Hooks
    steering: Drain = "one_at_a_time"
    follow_ups: Drain = "one_at_a_time"

    async def first(self) -> list[Message]:
        """Admit the prompt that waits longest, and the steering messages that came before the run.

        Decisions that nothing waits for any more are admitted with it, for the record.
        """
        waiting = await self.store.inbox(self.session)
        spoken = [message for message in waiting if lane_of(message) != "decision"]
        prompts = [message for message in spoken if lane_of(message) == "prompt"] or spoken
        if not prompts:
            return []
        steering = [message for message in spoken if lane_of(message) == "steer" and message is not prompts[0]]
        if len(spoken) < len(waiting):
            await self._admit([message for message in waiting if lane_of(message) == "decision"])
        return [*await self._admit([prompts[0]]), *await self._admit(_drain(steering, self.steering))]

    async def decided(self) -> list[Message]:
        """Admit decisions about calls that wait for an approval."""
        waiting = await self.store.inbox(self.session)
        return await self._admit([message for message in waiting if lane_of(message) == "decision"])

    async def steered(self) -> list[Message]:
        """Admit steering messages."""
        return await self._next("steer", self.steering, self.hooks.get_steering_messages)

    async def followed_up(self) -> list[Message]:
        """Admit follow-ups."""
        return await self._next("follow_up", self.follow_ups, self.hooks.get_follow_up_messages)

    async def _next(
        self, lane: Lane, drain: Drain, more: Callable[[], Maybe[Sequence[Message]]] | None
    ) -> list[Message]:
        waiting = [message for message in await self.store.inbox(self.session) if lane_of(message) == lane]
        given = list(await settled(more())) if more is not None else []
        return [*await self._admit(_drain(waiting, drain)), *given]

    async def _admit(self, messages: Sequence[Message]) -> list[Message]:
        if not messages:
            return []
        ids = [message.id for message in messages]
        return await self.store.admit(self.session, fence=self.fence, limit=len(ids), ids=ids)


def _drain(messages: Sequence[Message], mode: Drain) -> Sequence[Message]:
    return messages if mode == "all" else messages[:1]
