"""Who follows which session, and what wakes them: the store's own commits at once, those of others by one poll."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from anyio import Event, create_task_group, sleep

from streamagent.cancellation import raise_single
from streamagent.errors import StoreError
from streamagent.protocols import Changes

# Gives a version of each of these sessions, which differs when it has changed; `None` when nothing has.
Look = Callable[[Collection[str]], Awaitable[Mapping[str, Any] | None]]

_UNKNOWN = object()
PAUSE = 0.05  # seconds


class Channel:
    """A session that somebody follows; it lives as long as they do."""

    __slots__ = ("__weakref__", "changed", "version")

    def __init__(self) -> None:
        self.changed = Event()
        self.version: Any = _UNKNOWN

    def notify(self) -> None:
        """Wake all who follow, also those who are about to wait."""
        changed, self.changed = self.changed, Event()
        changed.set()


class Wakeup(Changes):
    """One follower. It holds the event that was current when it looked, so it misses no later one."""

    __slots__ = ("_changed", "_channel")

    def __init__(self, channel: Channel) -> None:
        self._channel: Channel | None = channel
        self._changed = channel.changed

    async def wait(self) -> None:
        """Return when something may have changed; see `Changes`."""
        if self._channel is not None:
            await self._changed.wait()
        if self._channel is not None:
            self._changed = self._channel.changed

    def close(self) -> None:
        """Want no more hints; see `Changes`."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.notify()  # somebody may wait for this one; to the others it is a hint too many


class Wakeups:
    """The followers of a store."""

    def __init__(self) -> None:
        self._channels: WeakValueDictionary[str, Channel] = WeakValueDictionary()
        self._wanted = Event()

    def __len__(self) -> int:
        return len(self._channels)

    async def wanted(self) -> None:
        """Return when somebody follows a session."""
        while not self._channels:
            await self._wanted.wait()
            await sleep(PAUSE)  # the event stays set until a poll has seen that nobody follows any more

    def subscribe(self, session: str) -> Wakeup:
        """Begin to follow a session."""
        channel = self._channels.get(session)
        if channel is None:
            channel = self._channels[session] = Channel()
        self._wanted.set()
        return Wakeup(channel)

    def notify(self, session: str) -> None:
        """Say that a session has changed."""
        channel = self._channels.get(session)
        if channel is not None:
            channel.notify()

    def notify_all(self) -> None:
        """Say that any session may have changed."""
        for channel in list(self._channels.values()):
            channel.notify()

    async def poll(self, look: Look, interval: float) -> None:
        """Look for changes that nobody told of, one question for all sessions, until it is cancelled.

        Without followers it sleeps. When the store cannot be asked they are woken, and meet the error themselves.

        Args:
            look: Asks.
            interval: Time between two questions, in seconds.
        """
        while True:
            await self._wanted.wait()
            while sessions := list(self._channels):
                await sleep(interval)
                try:
                    self._compare(await look(sessions))
                except StoreError:
                    self.notify_all()
            self._wanted = Event()

    def _compare(self, versions: Mapping[str, Any] | None) -> None:
        for session, channel in list(self._channels.items()) if versions is not None else ():
            version = versions.get(session) if versions else None
            if version != channel.version:
                channel.version = version
                channel.notify()


@asynccontextmanager
async def polling(wakeups: Wakeups, look: Look, interval: float) -> AsyncGenerator[None, None]:
    """Poll for as long as the block lasts; see `Wakeups.poll`."""
    try:
        async with create_task_group() as tasks:
            tasks.start_soon(wakeups.poll, look, interval)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_single(group)
