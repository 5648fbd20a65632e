"""The one reader of an SQLite store: it answers in groups what all sessions ask."""

from __future__ import annotations

import sqlite3
from asyncio import Future, get_running_loop, wait
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import aiosqlite
from anyio import CancelScope

from ._connection import begin_call, translate
from ._cursors import let_go
from ._dialect import Database
from ._queries import snapshot

P = ParamSpec("P")
T = TypeVar("T")
Question = Callable[[Database], Any]
Answer = tuple[Any, BaseException | None]  # what was found, or why nothing

GROUP = 64  # questions at most: the first of them waits for the last
_LOCK = "SELECT 1 FROM sqlite_schema LIMIT 1"  # a file that is locked is waited for once, and not by each question


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

    Waking its thread costs more than most answers, so a group takes one hop. No task does the work: one that asks may
    be cancelled while others wait, and one of its own would be, with all others, at the end of the event loop.

    Args:
        db: The connection.
        path: The file, for errors.
    """

    def __init__(self, db: aiosqlite.Connection, path: str) -> None:
        self._db = db
        self._path = path
        self._asked: list[tuple[Future[Any], Question]] = []
        self._hop: Future[list[Answer]] | None = None

    async def ask(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that reads, with the connection, on its thread.

        Raises:
            StoreError: What SQLite failed with.
        """
        answer: Future[T] = get_running_loop().create_future()
        self._asked.append((answer, lambda db: function(db, *args, **kwargs)))
        if self._hop is None:
            self._answer()
        try:
            return await answer
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    async def rest(self) -> None:
        """Return when everything is answered."""
        while self._hop is not None:
            await wait([self._hop])

    def _answer(self) -> None:
        """Begin to answer the next group."""
        group, self._asked = self._asked[:GROUP], self._asked[GROUP:]
        group = [(answer, question) for answer, question in group if not answer.done()]
        self._hop = begin_call(self._db, _answer_all, [question for _, question in group])
        self._hop.add_done_callback(lambda hop: self._answered(hop, [answer for answer, _ in group]))

    def _answered(self, hop: Future[list[Answer]], group: Sequence[Future[Any]]) -> None:
        failure = hop.exception()
        answers = [(None, failure)] * len(group) if failure is not None else hop.result()
        for answer, (result, error) in zip(group, answers, strict=True):
            if answer.done():  # cancelled meanwhile
                continue
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
        self._hop = None
        if self._asked:
            self._answer()


def _answer_all(db: sqlite3.Connection, questions: Sequence[Question]) -> list[Answer]:
    with snapshot(db):
        db.execute(_LOCK).fetchone()
        return [_attempt(db, question) for question in questions]


def _attempt(db: sqlite3.Connection, question: Question) -> Answer:
    try:
        return question(db), None
    except BaseException as error:  # noqa: BLE001 - it goes to whoever asked
        let_go(error)
        return None, error
