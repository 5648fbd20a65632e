"""`TableReader`: what the stores have in common that read sessions in a database's tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from streamagent.message import Message
from streamagent.protocols import Excerpt, Store, Stream
from streamagent.records import CallRecord, Mark, SessionInfo, Standing, Unfinished, Usage
from streamagent.talk import PagedStore, Pages, in_pages

from ._codec import check_name
from ._dialect import Database
from ._looks import read_excerpt
from ._pages import Reading, read_next, read_page
from ._queries import (
    END,
    read_calls,
    read_info,
    read_marks,
    read_sessions,
    read_tally,
    read_unattended,
    read_usage,
    read_waiting,
    to_info,
)
from ._standing import read_inbox, read_standing, read_unfinished

if TYPE_CHECKING:
    from ._writer import Writer

P = ParamSpec("P")
T = TypeVar("T")
_LATEST = ("~", "")  # sorts behind every time


class TableReader(Store, PagedStore):
    """Read with functions that are called with a connection, whatever the database."""

    tenant: str
    _writer: Writer | None

    @abstractmethod
    async def _call(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that reads, with a connection, on a thread."""

    async def unattended(self, *, limit: int = 100) -> list[str]:
        """Find sessions with something to do that no living owner holds; see `Store`."""
        return await self._call(read_unattended, self.tenant, limit)

    async def calls(self, session: str) -> list[CallRecord]:
        """Return what is known of the calls that were started; see `Store`."""
        return await self._ask(read_calls, session)

    async def inbox(self, session: str) -> list[Message]:
        """Return the messages that wait; see `Store`."""
        return await self._ask(read_inbox, session)

    async def waiting(self, sessions: Collection[str], type: str) -> set[str]:  # noqa: A002 - the field's name
        """Tell which of these sessions have such a message in their inbox; see `Store`."""
        for session in sessions:
            check_name("session", session)
        return await self._call(read_waiting, self.tenant, sessions, type)

    async def unfinished(self, session: str) -> Unfinished:
        """Return what a run that ended badly left open; see `Store`."""
        return await self._ask(read_unfinished, session)

    async def standing(self, session: str) -> Standing:
        """Return what is unfinished and what waits, as of one moment; see `Store`."""
        return await self._ask(read_standing, session)

    async def read(self, session: str, *, after: int = 0, until: int | None = None) -> Stream:
        """Read messages by sequence, those included that waited for their lag when it began; see `Store`."""
        reading = Reading(session, min(after, END), END if until is None else min(until, END), talks=False)
        async with aclosing(self._pages(reading)) as pages:
            async for page in pages:
                for message in page:
                    yield cast("Message", message)

    def pages(self, session: str, *, until: int | None = None, talks: bool = True) -> Pages:
        """Read what `read` does, page by page; see `PagedStore`."""
        if type(self).read is not TableReader.read:  # a subclass has its own idea of what is in a session
            return in_pages(self.read(session, until=until))
        return self._pages(Reading(session, 0, END if until is None else min(until, END), talks=talks))

    async def _pages(self, reading: Reading) -> Pages:
        await self._catch_up(reading.session)
        page = await self._read(read_page, reading.session, reading)
        while parts := reading.parts:
            if page.items:
                yield page.items
            while page.left > 0:
                piece, content = await self._call(read_next, self.tenant, page)
                if not content:  # the session was deleted meanwhile
                    break
                yield (page.next_fragment(piece, content),)
            parts[0].after = page.after
            if not page.full:
                del parts[0]
            if parts:
                page = await self._read(read_page, reading.session, reading)

    async def look(self, session: str, *, after: int, offset: int = 0, hint: object = None) -> Excerpt:
        """Read what is committed behind a place; see `Store`."""
        return await self._read(read_excerpt, session, (after, offset), hint)

    async def tally(self, session: str) -> dict[tuple[str, str], int]:
        """Count the session's messages by (role, type); see `Store`."""
        return await self._ask(read_tally, session)

    async def usage(self, session: str | None, *, since: datetime | None = None) -> Usage:
        """Sum up what the stored turns took; see `Store`."""
        check_name("session", session)
        return await self._call(read_usage, self.tenant, session, since)  # stops and calls never wait for a lag

    async def sessions(self) -> AsyncGenerator[SessionInfo, None]:
        """List the sessions, the latest modified first; one that is modified meanwhile may be left out."""
        before = _LATEST
        while page := await self._call(read_sessions, self.tenant, before):
            for values in page:
                yield to_info(values)
            before = page[-1][2], page[-1][0]

    async def info(self, session: str) -> SessionInfo | None:
        """Tell of one session; see `Store`."""
        return await self._ask(read_info, session)

    async def marks(self, session: str) -> AsyncGenerator[Mark, None]:
        """Tell which messages wait for another row, and which have a client key; see `Store`."""
        after: int | None = 0
        while after is not None:
            after, marks = await self._read(read_marks, session, after)
            for mark in marks:
                yield mark

    async def _catch_up(self, session: str) -> None:
        """Let readers of this process see what it handed over; the writer is told when that fails, not they."""
        if self._writer is not None:
            await self._writer.catch_up(session)

    async def _ask(self, function: Callable[[Database, str, str], T], session: str) -> T:
        await self._catch_up(session)
        return await self._read(function, session)

    async def _read(
        self,
        function: Callable[Concatenate[Database, str, str, P], T],
        session: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        check_name("session", session)
        return await self._call(function, self.tenant, session, *args, **kwargs)
