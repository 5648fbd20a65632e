"""One SQLite row a message through aiosqlite: the store of contenders that have none of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import orjson

from benchmarks.contender import Past

_TABLE = "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, session TEXT, body BLOB)"
_INDEX = "CREATE INDEX IF NOT EXISTS messages_by_session ON messages (session, id)"
_INSERT = "INSERT INTO messages (session, body) VALUES (?, ?)"
_SELECT = "SELECT body FROM messages WHERE session = ? ORDER BY id"


class Rows:
    """Messages of sessions, each committed when it is appended.

    Args:
        database: Where they are.
    """

    def __init__(self, database: aiosqlite.Connection) -> None:
        self._database = database

    async def append(self, session: str, message: Any) -> None:
        """Store one message."""
        await self.append_raw(session, orjson.dumps(message))

    async def append_raw(self, session: str, body: bytes) -> None:
        """Store one message that is JSON already."""
        async with self._database.execute(_INSERT, (session, body)):
            await self._database.commit()

    async def read(self, session: str) -> list[Any]:
        """Load the messages of a session."""
        return [orjson.loads(body) for body in await self.read_raw(session)]

    async def read_raw(self, session: str) -> Sequence[bytes]:
        """Load the messages of a session as they are stored."""
        async with self._database.execute(_SELECT, (session,)) as cursor:
            return [body async for (body,) in cursor]

    async def fill(self, session: str, past: Past) -> None:
        """Store what was said before, as chat completions have it."""
        await self.fill_raw(session, (orjson.dumps(entry) for entry in entries(past)))

    async def fill_raw(self, session: str, bodies: Iterable[bytes]) -> None:
        """Store what was said before, in one transaction."""
        async with self._database.executemany(_INSERT, ((session, body) for body in bodies)):
            await self._database.commit()


def entries(past: Past) -> Iterable[Mapping[str, str]]:
    """Give messages the form of chat completions."""
    return ({"role": role, "content": content} for role, content in past)


@asynccontextmanager
async def open_rows(folder: str) -> AsyncIterator[Rows]:
    """Open the store in a folder; every commit is synced to the disk, as this runtime does by default."""
    async with aiosqlite.connect(Path(folder, "rows.db")) as database:
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", _TABLE, _INDEX):
            async with database.execute(statement):
                pass
        await database.commit()
        yield Rows(database)
