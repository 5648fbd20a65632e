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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio

from streamagent.message import Message
from streamagent.stores.memory import MemoryStore
from streamagent.stores.sqlite import SqliteStore
from streamagent.testing.evidence import ASIDE, Effect, Shown, Write


@dataclass(slots=True, kw_only=True)
class Log:
    """What was seen of one session; see `invariants.Evidence`.

    Args:
        holder: The process that has the lease; `None` when it has ended.
        left_open: Whoever had it was killed, or it is a new fork: the next run finds what was left.
    """

    effects: list[Effect] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    accepted: dict[str, str] = field(default_factory=dict)
    cancels: list[tuple[int, int]] = field(default_factory=list)
    before: list[Message] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    holder: int | None = None
    fence: int = 0
    inherited: int = 0
    crashed: bool = False
    left_open: bool = False

    def copied(self) -> Log:
        """Make a log that the processes of this one do not write to; all its viewers have lost their process."""
        return Log(
            effects=[replace(effect) for effect in self.effects],
            shown=[
                replace(one, texts=dict(one.texts), closed=set(one.closed), lagged=set(one.lagged), behind=True)
                for one in self.shown
            ],
            writes=[*self.writes],
            accepted=dict(self.accepted),
            cancels=[*self.cancels],
            before=[*self.before],
            gone={*self.gone},
            revoked={*self.revoked},
            fence=self.fence,
            inherited=self.inherited,
            crashed=True,
            left_open=True,
        )

    def forget(self) -> None:
        """The session was deleted: nothing of it is stored any more, and nothing that was seen binds what follows."""
        self.gone |= {write.id for write in self.writes}
        for seen in (self.effects, self.shown, self.writes, self.accepted, self.cancels, self.before):
            seen.clear()
        self.holder, self.left_open = None, False

    def lose(self) -> None:
        """Another process has the session now: what the viewers of this one saw within the lag may be lost."""
        self.crashed = True
        for one in self.shown:
            one.behind = True


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
    owner: int
    point: Callable[[], None]

    async def acquire(self, session):
        fence = await self._at_points(super().acquire(session))
        log = self.world.log(session)
        if log.holder not in (None, self.owner):
            log.lose()
        log.holder, log.fence, log.left_open = self.owner, fence, False
        return fence

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
        if message.type not in ASIDE:
            accepted = self.world.log(session).accepted
            accepted[client_key or message.content] = message.content
            accepted.update({part.content: part.content for part in rest})
        return stored

    async def flush(self, session):
        await self._at_points(super().flush(session))

    async def fork(self, session, new, *, at=None):
        await self._at_points(super().fork(session, new, at=at))

    async def delete(self, session):
        return await self._at_points(super().delete(session))

    def _note(self, session, fence, rows):
        self.world.log(session).writes += [Write(owner=self.owner, fence=fence, id=row.id) for row in rows]

    async def _at_points(self, operation):
        self.point()
        with self.world.activity():
            done = await operation
        self.point()
        return done


class WitnessedMemory(Witness, MemoryStore):
    """In memory."""


class WitnessedSqlite(Witness, SqliteStore):
    """In a file."""

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
        self._folder = folder
        self._number = number
        self._ledgers: dict[str, Any] = {}

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

    def store(self, owner: int, point: Callable[[], None]) -> MemoryStore | SqliteStore:
        """Open what this world keeps once more, as another process does."""
        if self._folder is None:
            store = WitnessedMemory()
            store._ledgers = self._ledgers
        else:
            store = WitnessedSqlite(self._path, synchronous="normal")
        store.world, store.owner, store.point = self, owner, point
        return store

    def killed(self) -> World:
        """Return a world like this one at this moment, without its processes."""
        other = World(self._folder, self.activity, self._number + 1)
        other.logs = {session: log.copied() for session, log in self.logs.items()}
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
