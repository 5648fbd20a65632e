"""`streamagent sessions`: look at what is stored, and cut what runs."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from streamagent.watch import CANCEL_TIMEOUT

from .escape import compact, printable, shorten
from .exits import exit_codes, fail
from .options import DEFAULT_DB, Json
from .output import writing

if TYPE_CHECKING:
    from rich.table import Table

    from streamagent.message import Message
    from streamagent.protocols import Store, Stream

T = TypeVar("T")

sessions = typer.Typer(
    no_args_is_help=True,
    help="List, show, follow, fork, cancel, export, import and delete stored sessions.",
    rich_markup_mode=None,
)

Database = Annotated[
    str, typer.Option("--db", envvar="STREAMAGENT_DB", help="The sessions' SQLite file or PostgreSQL URL.")
]
Id = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]

_PIPE_WIDTH = 160  # characters of a line where no terminal says how wide it is
_CONTENT, _QUERY = 50, 60  # characters of a row's content and query that are shown


@sessions.command("list")
def list_sessions(*, db: Database = DEFAULT_DB, json: Json = False) -> None:
    """List the sessions, the latest modified first."""

    async def work(store: Store) -> None:
        table = table_of("session", "messages", "created", "modified")
        async for info in store.sessions():
            times = [time.isoformat(timespec="milliseconds") for time in (info.created_at, info.modified_at)]
            if json:
                print_dict(id=info.id, messages=info.messages, created_at=times[0], modified_at=times[1])
            else:
                table.add_row(info.id, str(info.messages), *times)
        print_table(table)

    with_store(db, work, read_only=True)


@sessions.command()
def show(session: Id, *, db: Database = DEFAULT_DB, json: Json = False) -> None:
    """Show a session's rows, also while it runs in another process."""

    async def work(store: Store) -> bool:
        from .render import print_json

        table = table_of("#", "role", "type", "content", "query", "marks")
        found = False
        async for message in _messages(store, session):
            found = True
            if json:
                print_json(message)
            else:
                table.add_row(*_cells(message))
        print_table(table)
        return found

    require(with_store(db, work, read_only=True), session, db)


@sessions.command()
def fork(
    session: Id,
    *,
    at: Annotated[
        int | None, typer.Option(help="Number of the last row that the fork gets; all, if not given.")
    ] = None,
    new: Annotated[str | None, typer.Option(metavar="SESSION", help="The fork's id; a new one, if not given.")] = None,
    db: Database = DEFAULT_DB,
) -> None:
    """Fork a session: begin another one with its rows. Prints the fork's id."""

    async def work(store: Store) -> str:
        from streamagent.message import new_id
        from streamagent.runtime import Runtime

        fork = new_id() if new is None else new
        await Runtime(store=store).fork(session, fork, at=at)
        return fork

    forked = with_store(db, work, read_only=False)
    with writing():
        typer.echo(printable(forked))


@sessions.command()
def cancel(
    session: Id,
    *,
    reason: Annotated[str | None, typer.Option(help="Why; it is kept with the rows.", show_default=False)] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Longest wait for the end.")] = CANCEL_TIMEOUT,
    db: Database = DEFAULT_DB,
) -> None:
    """Cut the answer that a session is giving, in whatever process; what was said is kept. Returns when it is over."""

    async def work(store: Store) -> bool | None:
        from streamagent.runtime import Runtime

        known = (await store.unfinished(session)).last is not None
        return await Runtime(store=store).cancel(session, reason=reason, timeout=timeout) if known else None

    over = with_store(db, work, read_only=False)
    require(over is not None, session, db)
    if not over:
        raise fail(
            f"session {session!r} did not end within {timeout:g} s: its process was killed, or hangs; "
            "the session's next prompt closes what is open"
        )


@sessions.command()
def delete(session: Id, *, db: Database = DEFAULT_DB) -> None:
    """Delete a session and all its rows."""

    async def work(store: Store) -> bool:
        found = await store.delete(session)
        await store.shred()
        return found

    require(with_store(db, work, read_only=False), session, db)
    typer.echo(f"deleted {printable(session)}", err=True)


def with_store(db: str, work: Callable[[Store], Awaitable[T]], *, read_only: bool, new: bool = False) -> T:
    """Open the database, a new one if that is allowed; do something with it, and return what that gave."""
    with exit_codes() as interrupts:
        from streamagent.stores import is_url, open_store

        if not new and not is_url(db) and not Path(db).is_file():
            raise fail(f"there is no database {db!r}")

        found: list[T] = []

        async def main() -> None:
            async with open_store(db, read_only=read_only) as store:
                with interrupts.cut():
                    found.append(await work(store))

        interrupts.run(main)
        return found[0]


def require(found: bool, session: str, db: str) -> None:
    """Fail when there is no such session."""
    if not found:
        raise fail(f"there is no session {session!r} in {'this database' if '://' in db else db}")


async def _messages(store: Store, session: str) -> AsyncIterator[Message]:
    """Read whole messages, then what waits in the inbox."""
    from streamagent.message import fold

    parts: list[Message] = []
    stream: Stream = store.read(session)
    async for fragment in stream:
        if parts and parts[0].id != fragment.id:
            yield fold(parts)[0]
            parts.clear()
        parts.append(fragment)
    if parts:
        yield fold(parts)[0]
    for message in await store.inbox(session):
        yield message


def _cells(message: Message) -> list[str]:
    query = dict(message.query or {})
    marks = [f"cut: {query.pop('cut')}"] if "cut" in query else []
    if message.more:
        marks.append("open")
    if message.sequence is None:
        marks.append("waiting")
    shown = shorten(compact(query), _QUERY) if query else ""
    number = "" if message.sequence is None else str(message.sequence)
    return [number, message.role, printable(message.type), shorten(message.content, _CONTENT), shown, ", ".join(marks)]


def table_of(*columns: str) -> Table:
    """Make a table whose columns of content and query are cut to the terminal's width."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        cut = column in ("content", "query")
        table.add_column(column, no_wrap=cut, overflow="ellipsis" if cut else "fold", ratio=1 if cut else None)
    return table


@writing()
def print_table(table: Table) -> None:
    """Print a table, if it has rows."""
    from rich.console import Console

    if table.row_count:
        console = Console(markup=False, highlight=False, emoji=False)
        table.expand = console.is_terminal
        if not console.is_terminal:
            console.width = _PIPE_WIDTH
        console.print(table)
        sys.stdout.flush()


@writing()
def print_dict(**values: Any) -> None:
    """Print values as one line of JSON, safe for a terminal."""
    print(printable(compact(values)), flush=True)
