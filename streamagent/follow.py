"""`Follow`: a session from any place on, then live, in whatever process it runs; `Cursor`: the place."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Literal, Self, TypeAlias
from zlib import crc32

from anyio import ResourceGuard, fail_after

from .errors import ConfigError, CursorError, CursorGone, SlowConsumer
from .hooks import lane_of
from .message import Message
from .protocols import Changes, Excerpt, Store

_CURSOR = re.compile(r"(?P<sequence>[0-9]{1,19})(?::(?P<offset>[0-9]{1,19}))?(?:@(?P<mark>[0-9a-f]{8}))?")
_INT64 = 1 << 63
PATIENCE = 30.0  # seconds: longer than a network stutters, shorter than a server keeps what nobody reads


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place in a session; later places are greater.

    As text it is `sequence[:offset][@mark]`, such as `12`, `12:340` and `12:340@9c0dd1e2`. `12` alone is a cursor, too.

    Args:
        sequence: Of the last message that is seen whole; 0 for none.
        offset: How much of the next message's content is seen, in bytes of UTF-8, always whole characters.
        mark: Tells the message of this place from one of another session that has the same id later; empty for a place
            that is not checked so.

    Raises:
        CursorError: A number is none, or negative, or does not fit into 64 bits.
    """

    sequence: int = 0
    offset: int = 0
    mark: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for number in (self.sequence, self.offset):
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < _INT64:
                raise CursorError(f"a cursor has numbers from 0 to 2**63 - 1, not {number!r:.80}")

    def __str__(self) -> str:
        offset = f":{self.offset}" if self.offset else ""
        return f"{self.sequence}{offset}{self.mark and '@'}{self.mark}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read what `str(cursor)` wrote.

        Raises:
            CursorError: It is no cursor.
        """
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise CursorError(f"a cursor is like '12' or '12:340', not {text!r:.80}; give back what was given out")
        return cls(int(found["sequence"]), int(found["offset"] or 0), found["mark"] or "")

    @classmethod
    def of(cls, place: Place) -> Cursor:
        """Take a place as people give it; `None` and an empty text are the beginning.

        Raises:
            CursorError: It is no place.
        """
        if isinstance(place, Cursor):
            return place
        if isinstance(place, str):
            return cls.parse(place) if place else cls()
        return cls() if place is None else cls(place)

    def behind(self, message: Message) -> Cursor:
        """Return the place behind a stored message or fragment, which is the one at this place."""
        sequence = message.sequence or 0
        mark = mark_of(message.id)
        if not message.more:
            return Cursor(sequence, mark=mark)
        seen = self.offset if sequence == self.sequence + 1 else 0
        return Cursor(sequence - 1, seen + len(message.content.encode()), mark)


Place: TypeAlias = Cursor | str | int | None
Until: TypeAlias = Literal["rest"] | None


def mark_of(message_id: str) -> str:
    """Shorten a message's id to what a cursor carries."""
    return f"{crc32(message_id.encode()):08x}"


class Follow(AsyncIterator[Message]):
    """What is stored of a session behind a place, then what is added to it: each message once, in order, no gap.

    Iterate it, in a task of your own. It yields fragments: a message that is being written comes piece by piece, and
    its pieces, over any number of reconnects, are its stored content; the last one has `more=False`. One message comes
    after the other: what stands behind one that is still open comes when that is closed. An answer that was cut or
    superseded ends with a fragment whose query has `cut`.

    It pulls: nothing is kept for a slow reader but a page of 256 KiB, no writer waits for it, and a wait that is
    cancelled (for a heartbeat, say) loses nothing. Close it, or leave its `async with`, to end it; it may also just be
    dropped.

    Args:
        store: Where the session lives; open.
        session: Its id. One that has no messages is waited for.
        after: Where to start: a `Cursor`, its text, or the sequence of a message; `None` for the beginning.
        live: Wait for more; else it ends with what is stored now.
        until: `rest`: end when all is shown and nothing is going on: the run is over or paused, and no prompt waits.

    Raises:
        CursorError: `after` is no cursor. When iterated: it is ahead of the session, or inside a character.
        ConfigError: `until` is something else.
        CursorGone: When iterated: the session was deleted, also while it was followed.
        StoreError: When iterated: the store cannot be read. What was yielded is not yielded again by the next try.
        BusyResourceError: When iterated: by two tasks at once.
    """

    def __init__(
        self, store: Store, session: str, *, after: Place = None, live: bool = True, until: Until = None
    ) -> None:
        if until not in (None, "rest"):
            raise ConfigError(f"follow(until=…) takes 'rest' or None, not {until!r:.80}")
        self.session = session
        self._cursor = Cursor.of(after)
        self._store = store
        self._live = live
        self._until = until
        self._page: deque[Message] = deque()
        self._hint: object = None
        self._changes: Changes | None = None
        self._guard = ResourceGuard("reading this Follow")
        self._found = False  # the place was there, so it is gone when it is not
        self._caught_up = False
        self._closed = False

    @property
    def cursor(self) -> Cursor:
        """The place behind what was yielded last; follow `after` it to go on there, in any process."""
        return self._cursor

    async def __anext__(self) -> Message:
        with self._guard:
            while not self._page:
                await self._fetch()
            message = self._page.popleft()
            self._cursor = self._cursor.behind(message)
            return message

    async def check(self) -> None:
        """Look whether the place is there, without waiting: for a server, before it says that all is well.

        Raises:
            CursorError: It is not, see `Follow`.
            CursorGone: It is no more.
        """
        with self._guard:
            if not (self._page or self._caught_up or self._closed):
                await self._read()

    async def deliver(self, send: Callable[[Message], Awaitable[object]], *, patience: float = PATIENCE) -> None:
        """Hand over message after message, until the end; give up on a receiver that does not take one in time.

        Args:
            send: Takes a message; `cursor` is the place behind it meanwhile.
            patience: Longest time that it may take for one message, in seconds.

        Raises:
            SlowConsumer: It took longer, and was cancelled; its `cursor` is where to go on.
        """
        if not isinstance(patience, int | float) or not 0 < patience < math.inf:
            raise ConfigError(f"deliver(patience=…) takes seconds above 0, not {patience!r:.80}")
        async with self:
            taken = self.cursor
            async for message in self:
                try:
                    with fail_after(patience) as scope:
                        await send(message)
                except TimeoutError as error:
                    if not scope.cancelled_caught:
                        raise
                    text = f"session {self.session!r}: a viewer did not take a message within {patience:g} s"
                    raise SlowConsumer(f"{text}; it may go on at {taken}", cursor=str(taken)) from error
                taken = self.cursor

    def close(self) -> None:
        """End it, also for a task that waits in it; idempotent."""
        self._closed = True
        self._page.clear()
        if self._changes is not None:
            self._changes.close()

    async def aclose(self) -> None:
        """End it; see `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def _fetch(self) -> None:
        """Read the next page, or wait until there may be one; both change nothing until they are done."""
        if self._closed or (self._caught_up and not self._live):
            self.close()
            raise StopAsyncIteration
        resting = self._caught_up and await self._is_at_rest()
        if self._caught_up and not resting and self._changes is not None:
            await self._changes.wait()
            self._caught_up = False  # a wait that was told of a change is not repeated when the look fails
            return
        await self._read()
        if resting and self._caught_up and not self._page:
            self.close()

    async def _read(self) -> None:
        if self._changes is None:
            self._changes = self._store.changes(self.session)  # first this, then the look: no change is missed
        excerpt = await self._look()
        if self._closed:
            return
        self._found = True
        self._hint = excerpt.hint
        self._caught_up = not excerpt.more
        # Of an open message what has content; so each cursor is greater than the one before.
        self._page.extend(message for message in excerpt.messages if message.content or not message.more)

    async def _look(self) -> Excerpt:
        place = self._cursor
        try:
            excerpt = await self._store.look(self.session, after=place.sequence, offset=place.offset, hint=self._hint)
        except CursorError as error:
            if self._found:
                raise self._gone() from error
            raise
        if excerpt.head == 0 and place > Cursor():
            raise self._gone()
        mark = mark_of(excerpt.id) if excerpt.id is not None else ""
        if place.mark and mark and place.mark != mark:
            raise self._gone()
        if place.sequence > excerpt.head or place.offset > excerpt.size:
            if self._found:
                raise self._gone()
            raise self._ahead(excerpt)
        self._cursor = replace(place, mark=mark)  # from the first look on it is checked
        return excerpt

    async def _is_at_rest(self) -> bool:
        """Tell whether nothing is going on; asked before the last look, which then has everything."""
        if self._until is None or self._cursor.offset:
            return False
        left = await self._store.unfinished(self.session)
        lanes = {lane_of(message) for message in await self._store.inbox(self.session)} if left.at_rest else set()
        return left.at_rest and not (lanes & {"decision"} if left.paused else lanes - {"cancel"})

    def _gone(self) -> CursorGone:
        text = f"session {self.session!r} has no place {str(self._cursor)!r} any more, if it ever had: it was deleted"
        return CursorGone(f"{text}; follow it from its beginning")

    def _ahead(self, excerpt: Excerpt) -> CursorError:
        text = f"cursor {str(self._cursor)!r} is ahead of session {self.session!r}, which has {excerpt.head} messages"
        if self._cursor.offset and self._cursor.sequence < excerpt.head:
            text += f", of the next one {excerpt.size} bytes"
        return CursorError(f"{text}; follow it from an earlier place")


def follow(store: Store, session: str, *, after: Place = None, live: bool = True, until: Until = None) -> Follow:
    """Follow a session of a store that is open; see `Follow`."""
    return Follow(store, session, after=after, live=live, until=until)
