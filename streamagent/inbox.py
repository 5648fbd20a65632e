"""The inbox of a run: which of the messages that wait are admitted, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from .hooks import Drain, Given, Hooks, Lane, Maybe, lane_of, settled
from .message import Message
from .prompts import as_message, part_of
from .protocols import Store

_SILENT: frozenset[Lane] = frozenset({"decision", "cancel"})  # lanes of what is no prompt


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

    async def first(self, found: Sequence[Message] | None = None) -> list[Message]:
        """Admit the prompt that waits longest, all its messages, and the steering that came before the run.

        Decisions that nothing waits for any more, and a `cancel` that was meant for an earlier run, are admitted with
        it, for the record.

        Args:
            found: What waits, when that is known.
        """
        found = await self.store.inbox(self.session) if found is None else found
        spoken = [message for message in found if lane_of(message) not in _SILENT]
        prompts = [message for message in spoken if lane_of(message) == "prompt" and not part_of(message)] or spoken
        if not prompts:
            return []
        prompt = [prompts[0], *(message for message in spoken if part_of(message) == prompts[0].id)]
        steering = [message for message in spoken if lane_of(message) == "steer" and message is not prompts[0]]
        await self._admit([message for message in found if lane_of(message) in _SILENT])
        return [*await self._admit(prompt), *await self._admit(_drain(steering, self.steering))]

    async def decided(self) -> list[Message]:
        """Admit decisions about calls that wait for an approval."""
        waiting = await self.store.inbox(self.session)
        return await self._admit([message for message in waiting if lane_of(message) == "decision"])

    async def steered(self, drain: Drain | None = None, found: Sequence[Message] | None = None) -> list[Message]:
        """Admit steering messages, as many as `drain` says, of those that were `found` or that wait now."""
        admitted = await self._next("steer", drain or self.steering, self.hooks.get_steering_messages, found)
        return [replace(message, query={**(message.query or {}), "lane": "steer"}) for message in admitted]

    async def between(self, found: Sequence[Message] | None, *, steering: bool, follow_ups: bool) -> list[Message]:
        """Admit what comes next between two turns: steering messages, or follow-ups when there is none.

        Args:
            found: What waited just now; `None` to look.
            steering: Steering messages may be next.
            follow_ups: Follow-ups may be next.
        """
        found = await self.store.inbox(self.session) if found is None else found
        steered = await self.steered(found=found) if steering else []
        if steered or not follow_ups:
            return steered
        asked = steering and self.hooks.get_steering_messages is not None  # which may have taken its time
        found = None if asked else found
        return await self._next("follow_up", self.follow_ups, self.hooks.get_follow_up_messages, found)

    async def _next(
        self, lane: Lane, drain: Drain, more: Callable[[], Maybe[Given]] | None, found: Sequence[Message] | None
    ) -> list[Message]:
        found = await self.store.inbox(self.session) if found is None else found
        waiting = [message for message in found if lane_of(message) == lane]
        given = _messages(await settled(more())) if more is not None else []
        return [*await self._admit(_drain(waiting, drain)), *given]

    async def _admit(self, messages: Sequence[Message]) -> list[Message]:
        if not messages:
            return []
        ids = [message.id for message in messages]
        return await self.store.admit(self.session, fence=self.fence, limit=len(ids), ids=ids)


def _messages(given: Given) -> list[Message]:
    """Make messages of what a hook gave."""
    if isinstance(given, str | Message) or not isinstance(given, Iterable | None):
        given = [given]
    return list(map(as_message, given or ()))


def _drain(messages: Sequence[Message], mode: Drain) -> Sequence[Message]:
    return messages if mode == "all" else messages[:1]
