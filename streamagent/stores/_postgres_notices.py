"""Hints between the processes that share a PostgreSQL database: `NOTIFY` tells which sessions changed, `LISTEN` hears.

A notification is sent behind the commit, by a transaction of its own for all sessions that changed meanwhile: inside
the writes' own transactions it would make their commits wait for one another, in the whole server.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial

import psycopg
from anyio import CapacityLimiter, Event, sleep, to_thread

from streamagent.errors import StoreError

from ._postgres_connection import Connection, Options, connect
from ._postgres_pool import Pool
from ._running import grouped
from ._wakeups import Wakeups

_NOTIFY = "SELECT pg_notify(?, session) FROM json_array_elements_text(?::json) AS changed(session)"
PAUSE = 0.01  # seconds between two notifications: what changed meanwhile is told by the next one
_HEARD = 0.25  # seconds that a thread listens before it looks whether it still should
_AGAIN = 1.0  # seconds until a lost listener is replaced; meanwhile the poll does its work


class Notices:
    """What this process tells others, and hears from them.

    Args:
        pool: Whose connections tell.
        tenant: Whose sessions these are.
        wakeups: Who is woken by what is heard.
    """

    def __init__(self, pool: Pool, tenant: str, wakeups: Wakeups) -> None:
        self._channel = channel(schema=pool.options.schema, tenant=tenant)
        self._pool = pool
        self._wakeups = wakeups
        self._changed: set[str] = set()
        self._wanted = Event()
        self._thread = CapacityLimiter(1)

    def committed(self, session: str) -> None:
        """Wake who follows a session here, and tell the others."""
        self._wakeups.notify(session)
        self._changed.add(session)
        self._wanted.set()

    async def tell(self) -> None:
        """Send what there is to tell, until it is cancelled. It may be lost: a hint is no promise."""
        while True:
            await self._wanted.wait()
            await sleep(PAUSE)
            changed, self._changed, self._wanted = self._changed, set(), Event()
            with suppress(StoreError):
                await self._pool.run(partial(_tell, told=(self._channel, json.dumps([*changed]))), patient=False)

    async def hear(self) -> None:
        """Wake followers of sessions that changed in other processes, for as long as there are some."""
        while True:
            await self._wakeups.wanted()
            with suppress(StoreError, psycopg.Error):
                await self._listen()
            await sleep(_AGAIN)

    async def _listen(self) -> None:
        connection: Connection = await to_thread.run_sync(self._connect, self._pool.options, limiter=self._thread)
        try:
            self._wakeups.notify_all()  # something may have changed before somebody listened
            while len(self._wakeups):
                for session in await to_thread.run_sync(_heard, connection, limiter=self._thread):
                    self._wakeups.notify(session)
        finally:
            connection.close()  # no answer is awaited

    def _connect(self, options: Options) -> Connection:
        connection = connect(options)
        connection.tell(f'LISTEN "{self._channel}"'.encode())
        return connection


def channel(*, schema: str, tenant: str) -> str:
    """Name the channel of a tenant's sessions; a name has at most 63 bytes."""
    return f"streamagent_{hashlib.sha256(f'{schema}/{tenant}'.encode()).hexdigest()[:32]}"


def _tell(connection: Connection, *, told: tuple[str, str]) -> None:
    connection.execute(_NOTIFY, told)


def _heard(connection: Connection) -> set[str]:
    """Wait a moment for a notification; return the sessions of all that came."""
    first = [notice.payload for notice in connection.raw.notifies(timeout=_HEARD, stop_after=1)]
    return {*first, *(notice.payload for notice in connection.raw.notifies(timeout=0))}


@asynccontextmanager
async def noticing(notices: Notices) -> AsyncGenerator[None, None]:
    """Tell and hear for as long as the block lasts."""
    async with grouped() as tasks:
        tasks.start_soon(notices.tell)
        tasks.start_soon(notices.hear)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()
