"""Sessions as files of JSON lines: written from a store, and put back into one exactly."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from contextlib import aclosing, nullcontext
from dataclasses import replace
from typing import IO

from anyio import CancelScope, to_thread

from ._core.archive import LINE_LIMIT, PIECE, Tally, call_line, encode, header_line, message_line, more_line
from ._core.archive_reader import Header, Reader
from .errors import ArchiveError, ConfigError, ConflictError, MessageError
from .message import Message, utc_now
from .protocols import Store
from .records import Mark, Restored, SessionInfo, check_id

SIZE_LIMIT = 1024**3  # bytes of a file
_SPOOLED = 1024 * 1024  # bytes that are held in memory before a file is made


async def export_session(store: Store, session: str) -> AsyncGenerator[bytes, None]:
    """Write a session as JSON lines, from which `import_session` makes the same one again.

    It is read page by page, however long it is. One that is written to meanwhile cannot be exported: export a fork of
    it, which stays as it is.

    Args:
        store: Where it is.
        session: The session.

    Yields:
        One line each, with its end.

    Raises:
        ConfigError: There is no such session.
        ConflictError: It was written to, or deleted, meanwhile; what was yielded is not complete.
        ArchiveError: A message of it could not be read again: it is too large, or of a role that its type has not.
    """
    info = await store.info(session)
    if info is None:
        raise ConfigError(f"there is no session {session!r} to export")
    tally = Tally()
    async with aclosing(_lines(store, info)) as lines:
        async for line in lines:
            data = encode(line)
            tally.add(line, data)
            yield data
    now = await store.info(session)
    if now is None or _state(now) != _state(info):
        raise ConflictError(f"session {session!r} was written to while it was exported; export a fork of it")
    yield encode(tally.end_line())


def _state(info: SessionInfo) -> tuple[object, ...]:
    return info.modified_at, info.messages, info.size


async def _lines(store: Store, info: SessionInfo) -> AsyncGenerator[dict[str, object], None]:
    """Say what the lines say, but the last one."""
    yield header_line(info)
    async with aclosing(store.marks(info.id)) as marks, aclosing(_fragments(store, info.id)) as fragments:
        mark: Mark | None = await anext(marks, None)
        begun = ""
        async for fragment in fragments:
            if fragment.id == begun:
                yield more_line(fragment)
                continue
            begun = fragment.id
            found = mark if mark is not None and mark.id == begun else None
            yield message_line(fragment, found)
            if found is not None:
                mark = await anext(marks, None)
    for record in await store.calls(info.id):
        yield call_line(record)


async def _fragments(store: Store, session: str) -> AsyncGenerator[Message, None]:
    """Read the messages that have a sequence, then those that wait."""
    async with aclosing(store.read(session)) as rows:
        async for fragment in rows:
            yield fragment
    for message in await store.inbox(session):
        size = PIECE if message.content.isascii() else PIECE // 4  # characters, which take 4 bytes at most
        end = len(message.content)
        for start in range(0, max(end, 1), size):
            yield replace(message, content=message.content[start : start + size], more=start + size < end)


async def import_session(
    store: Store, data: AsyncIterable[bytes], *, as_id: str | None = None, max_bytes: int = SIZE_LIMIT
) -> str:
    """Make the session that `export_session` wrote, all of it or nothing.

    What it holds is checked line by line, but whoever writes the file decides what it says: a grant in it allows calls
    without asking. It waits in a temporary file until it is complete; then it is stored in one transaction.

    Args:
        store: Where to put it.
        data: The file, cut into chunks anywhere; a generator is closed.
        as_id: The session's id here; by default the one that it had.
        max_bytes: Largest file.

    Returns:
        The session's id.

    Raises:
        ArchiveError: The file is not an exported session, not all of it, or too large; the text names the line.
        ConfigError: The id is none.
        ConflictError: The session exists.
    """
    if as_id is not None:
        check_id(as_id)
    with tempfile.SpooledTemporaryFile(max_size=_SPOOLED) as file:
        await _spool(data, file, max_bytes)
        reader = Reader()
        header = await to_thread.run_sync(_check, reader, file)
        session = header.session if as_id is None else as_id
        check_id(session)
        modified_at = min(max(header.modified_at, reader.latest or header.modified_at), utc_now())
        second = Reader()

        def rows() -> Iterator[Restored]:
            nonlocal second
            second = Reader()
            return second.read(_from_start(file))

        try:
            with CancelScope(shield=True):  # it reads the file; bounded by its size
                await store.restore(
                    session, rows, created_at=min(header.created_at, modified_at), modified_at=modified_at
                )
        except MessageError as error:
            raise ArchiveError(f"line {second.number}: {error}") from error
    return session


async def _spool(data: AsyncIterable[bytes], file: IO[bytes], limit: int) -> None:
    size = 0
    waiting = bytearray()
    async with aclosing(data) if isinstance(data, AsyncGenerator) else nullcontext():
        async for chunk in data:
            size += len(chunk)
            if size > limit:
                raise ArchiveError(f"the file has more than {limit} bytes; raise max_bytes, if you trust it")
            waiting += chunk
            if len(waiting) >= _SPOOLED:
                await to_thread.run_sync(file.write, waiting)
                waiting = bytearray()
    file.write(waiting)


def _check(reader: Reader, file: IO[bytes]) -> Header:
    for _ in reader.read(_from_start(file)):
        pass
    if reader.header is None:  # of an empty file, which is refused
        raise ArchiveError("the file is empty")
    return reader.header


def _from_start(file: IO[bytes]) -> Iterator[bytes]:
    """Give the lines; of one that is too long only so much that this is seen."""
    file.seek(0)
    return iter(lambda: file.readline(LINE_LIMIT + len(b"\r\n") + 1), b"")
