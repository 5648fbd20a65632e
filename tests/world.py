"""A world for the state machine: a store that many processes may use, what was seen of it, and how it is killed.

A kill is a fork of the world: what is on disk at that moment, and the logs of that moment, are copied; the processes
live on in the old world, where nobody looks any more, and are closed there. In the new one they have just vanished.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
import sqlite3
from collections.abc import Callable, Collection
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from streamagent.stores._memory_ledger import Sessions
from streamagent.stores.memory import MemoryStore
from streamagent.stores.sqlite import SqliteStore
from streamagent.testing.evidence import ASIDE, Effect, Write
from tests.logs import Log


class Activity:
    """Counts what the threads of the stores are doing, for whoever waits until nothing happens any more."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = anyio.Event()

    @contextmanager
    def __call__(self) -> Any:
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._idle.set()
                self._idle = anyio.Event()

    async def quiet(self) -> None:
        """Return when every other task waits, and not for a store."""
        while True:
            await _all_blocked()
            if not self._count:
                return
            await self._idle.wait()


async def _all_blocked() -> None:
    """As anyio's, which polls on asyncio ten times a second."""
    try:
        me = asyncio.current_task()
    except RuntimeError:
        await anyio.wait_all_tasks_blocked()
        return
    while any(_runs(task) for task in asyncio.all_tasks() if task is not me):
        await asyncio.sleep(0)
    await asyncio.sleep(0)


def _runs(task: asyncio.Task[Any]) -> bool:
    waits_for: Any = getattr(task, "_fut_waiter", None)
    return waits_for is None or waits_for.done()


class Witness:
    """Logs what a store took from one process; `point` is called before and after each commit."""

    world: World
    number: int
    point: Callable[[], None]

    async def acquire(self, session, *, owner=None):
        acquire = super().acquire(session, owner=owner)
        return await self._at_points(acquire, lambda fence: self._acquired(session, owner, fence))

    def _acquired(self, session, owner, fence):
        self.world.log(session).pass_on(self.number, None if owner is None else owner.id, fence)
        if owner is not None:
            self.world.alive.add(owner.id)

    async def release(self, session, *, fence, unfinished=False):
        def note(_):
            self.world.log(session).give_back(fence, unfinished=unfinished)

        await self._at_points(super().release(session, fence=fence, unfinished=unfinished), note)

    async def heartbeat(self, owner):
        await self._at_points(super().heartbeat(owner), lambda _: self.world.alive.add(owner.id))

    async def retire(self, owner):
        await self._at_points(super().retire(owner), lambda _: self.world.alive.discard(owner))

    async def start_call(self, session, call, *, fence):
        return await self._at_points(super().start_call(session, call, fence=fence))

    async def finish_call(self, session, call, outcome, *, fence):
        await self._at_points(super().finish_call(session, call, outcome, fence=fence))

    async def write(self, session, fragments, *, fence):
        written = await self._at_points(super().write(session, fragments, fence=fence))
        self._note(session, fence, fragments)
        return written

    def write_soon(self, session, fragment, *, fence, lag):
        waiting = super().write_soon(session, fragment, fence=fence, lag=lag)
        self._note(session, fence, [fragment])
        return waiting

    async def admit(self, session, *, fence, limit=1, ids=None):
        rows = await self._at_points(super().admit(session, fence=fence, limit=limit, ids=ids))
        self._note(session, fence, rows)
        return rows

    async def enqueue(self, session, message, *, client_key=None, rest=()):
        stored = await self._at_points(super().enqueue(session, message, client_key=client_key, rest=rest))
        self._accepted(session, message, client_key, rest)
        return stored

    def _accepted(self, session, message, client_key, rest):
        if message.type not in ASIDE:
            accepted = self.world.log(session).accepted
            accepted[client_key or message.content] = message.content
            accepted.update({part.content: part.content for part in rest})

    async def flush(self, session):
        await self._at_points(super().flush(session))

    async def fork(self, session, new, *, at=None):
        await self._at_points(super().fork(session, new, at=at))

    async def delete(self, session):
        return await self._at_points(super().delete(session))

    def _note(self, session, fence, rows):
        log = self.world.log(session)
        log.writes += [Write(owner=self.number, fence=fence, id=row.id) for row in rows]
        for row in rows:
            log.take(row)

    async def _at_points(self, operation, note=lambda _done: None):
        self.point()
        with self.world.activity():
            done = await operation
        note(done)
        self.point()
        return done


class WitnessedMemory(Witness, MemoryStore):
    """In memory."""


class WitnessedSqlite(Witness, SqliteStore):
    """In a file."""

    async def begin_run(self, session, *, owner, prompt=None, client_key=None, rest=()):
        def note(begun):
            self._acquired(session, owner, begun.fence)
            if prompt is not None:
                self._accepted(session, prompt, client_key, rest)

        begin = super().begin_run(session, owner=owner, prompt=prompt, client_key=client_key, rest=rest)
        return await self._at_points(begin, note)

    async def _call(self, *args):
        with self.world.activity():
            return await super()._call(*args)

    async def _catch_up(self, session):
        with self.world.activity():
            await super()._catch_up(session)


class World:
    """Where processes live.

    Args:
        folder: Where the files are made; `None` to live in memory.
        activity: Of the event loop's stores.
    """

    def __init__(self, folder: Path | None, activity: Activity, number: int = 0) -> None:
        self.activity = activity
        self.logs: dict[str, Log] = {}
        self.alive: set[str] = set()  # owners, as the store has to see them
        self._folder = folder
        self._number = number
        self._ledgers = Sessions()

    def log(self, session: str) -> Log:
        """Return a session's log."""
        return self.logs.setdefault(session, Log())

    def effects(self, session: str, calls: Collection[str]) -> list[Effect]:
        """Return what was done for a session, and for these calls before it was forked."""
        own = self.log(session).effects
        return own + [
            effect
            for log in self.logs.values()
            for effect in log.effects
            if effect.call in calls and log.effects is not own
        ]

    def store(self, number: int, point: Callable[[], None]) -> MemoryStore | SqliteStore:
        """Open what this world keeps once more, as another process does."""
        if self._folder is None:
            store = WitnessedMemory()
            store._ledgers = self._ledgers
        else:
            store = WitnessedSqlite(self._path, synchronous="normal")
        store.world, store.number, store.point = self, number, point
        return store

    def killed(self) -> World:
        """Return a world like this one at this moment, without its processes."""
        other = World(self._folder, self.activity, self._number + 1)
        other.logs = {session: log.copied() for session, log in self.logs.items()}
        other.alive = {*self.alive}
        if self._folder is None:
            other._ledgers = copy.deepcopy(self._ledgers)
        else:
            with _write_lock(self._path):  # the file first: what a checkpoint moves meanwhile is in both
                for suffix in ("", "-wal"):
                    if Path(f"{self._path}{suffix}").exists():
                        shutil.copyfile(f"{self._path}{suffix}", f"{other._path}{suffix}")
        return other

    @property
    def _path(self) -> Path:
        assert self._folder is not None
        return self._folder / f"world-{self._number}.db"


@contextmanager
def _write_lock(path: Path) -> Any:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")
    finally:
        db.close()
