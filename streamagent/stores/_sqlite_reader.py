"""The one reader of an SQLite store: it answers in groups what all sessions ask."""

from __future__ import annotations

import sqlite3
from asyncio import Future, Task, get_running_loop
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import aiosqlite
from anyio import CancelScope

from ._connection import call, translate
from ._dialect import Database
from ._queries import snapshot

P = ParamSpec("P")
T = TypeVar("T")
Question = Callable[[Database], Any]
Answer = tuple[Any, Exception | None]  # what was found, or why nothing

GROUP = 64  # questions at most: the first of them waits for the last


@asynccontextmanager
async def reading(db: aiosqlite.Connection, path: str) -> AsyncGenerator[SqliteReader, None]:
    """Answer questions; leaving the block answers those that were asked in it."""
    reader = SqliteReader(db, path)
    try:
        yield reader
    finally:
        with CancelScope(shield=True):  # bounded: as `connect` is
            await reader.rest()


class SqliteReader:
    """Owns the connection that reads. What is asked while it answers is answered next, together, as of one moment.

    Waking its thread costs more than most answers, so a group takes one hop.

    Args:
        db: The connection.
        path: The file, for errors.
    """

    def __init__(self, db: aiosqlite.Connection, path: str) -> None:
        self._db = db
        self._path = path
        self._asked: list[tuple[Future[Any], Question]] = []
        self._answering: Task[None] | None = None

    async def ask(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that reads, with the connection, on its thread.

        Raises:
            StoreError: What SQLite failed with.
        """
        loop = get_running_loop()
        answer: Future[T] = loop.create_future()
        self._asked.append((answer, lambda db: function(db, *args, **kwargs)))
        if self._answering is None:  # by a task of its own: one that asks may be cancelled while others wait
            self._answering = loop.create_task(self._answer())
        try:
            return await answer
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    async def rest(self) -> None:
        """Return when everything is answered."""
        while self._answering is not None:
            await self._answering

    async def _answer(self) -> None:
        while self._asked:
            asked, self._asked = self._asked[:GROUP], self._asked[GROUP:]
            waiting = [(answer, question) for answer, question in asked if not answer.done()]
            try:
                answers: list[Answer] = await call(self._db, _answer_all, [question for _, question in waiting])
            except Exception as failure:  # noqa: BLE001 - it goes to all who wait
                answers = [(None, failure)] * len(waiting)
            for (answer, _), (result, error) in zip(waiting, answers, strict=True):
                if answer.done():  # cancelled meanwhile
                    continue
                if error is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(error)
        self._answering = None


def _answer_all(db: sqlite3.Connection, questions: Sequence[Question]) -> list[Answer]:
    with snapshot(db):
        return [_attempt(db, question) for question in questions]


def _attempt(db: sqlite3.Connection, question: Question) -> Answer:
    try:
        return question(db), None
    except Exception as error:  # noqa: BLE001 - it goes to whoever asked
        return None, error
