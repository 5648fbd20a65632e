"""`streamagent sessions export | import`: sessions as files."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .escape import printable
from .exits import USAGE, exit_codes, fail
from .options import DEFAULT_DB
from .output import writing
from .quantities import to_bytes
from .sessions import Database, Id, require, with_store

if TYPE_CHECKING:
    from streamagent.protocols import Store

_CHUNK = 1024 * 1024  # bytes that are read of a file at once


def export_to_output(session: Id, *, db: Database = DEFAULT_DB) -> None:
    """Write a session to standard output, as JSON lines from which `import` makes the same one again."""
    if sys.stdout is not None and sys.stdout.isatty():
        raise fail("an exported session is for a file, not for a terminal; write `> session.jsonl` behind", USAGE)

    async def work(store: Store) -> bool:
        from streamagent.archive import export_session

        if await store.info(session) is None:
            return False
        async with aclosing(export_session(store, session)) as lines:
            async for line in lines:
                with writing():
                    sys.stdout.buffer.write(line)
        with writing():
            sys.stdout.buffer.flush()
        return True

    require(with_store(db, work, read_only=True), session, db)


def import_from_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` wrote.")],
    *,
    as_id: Annotated[
        str | None, typer.Option("--as", metavar="SESSION", help="The session's id here; its own, if not given.")
    ] = None,
    max_size: Annotated[str, typer.Option(metavar="SIZE", help="Largest file, such as 500MB or 2GiB.")] = "1GiB",
    db: Database = DEFAULT_DB,
) -> None:
    """Make a session of a file that `export` wrote: all of it, or nothing. Prints its id."""
    with exit_codes():
        limit = to_bytes("--max-size", max_size)
    if not file.exists() or file.is_dir():
        raise fail(f"there is no file {str(file)!r}")

    async def work(store: Store) -> str:
        from streamagent.archive import import_session

        try:
            async with aclosing(_chunks(file)) as chunks:
                return await import_session(store, chunks, as_id=as_id, max_bytes=limit)
        except OSError as error:
            raise fail(f"{str(file)!r} cannot be read: {error.strerror}") from error

    imported = with_store(db, work, read_only=False, new=True)
    with writing():
        typer.echo(printable(imported))


async def _chunks(file: Path) -> AsyncGenerator[bytes, None]:
    from anyio import open_file

    stream = await open_file(file, "rb")
    try:
        while chunk := await stream.read(_CHUNK):
            yield chunk
    finally:
        await stream.aclose()
