"""`streamagent sessions prune | erase`: which sessions go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .exits import USAGE, exit_codes, fail
from .options import DEFAULT_DB, Json
from .quantities import to_bytes, to_seconds
from .sessions import Database, print_dict, print_table, table_of, with_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamagent.protocols import Store
    from streamagent.retention import Pruned

DryRun = Annotated[bool, typer.Option("--dry-run", help="Delete nothing; show what would be.")]


def prune_sessions(  # noqa: PLR0913 - each is an option of the command
    *,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Those not written to for so long, such as 12h or 30d.")
    ] = None,
    larger_than: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Those with more content, such as 500KB or 64MiB.")
    ] = None,
    keep: Annotated[int | None, typer.Option(metavar="N", help="All but the N written to last.")] = None,
    prefix: Annotated[str, typer.Option(help="Look only at sessions whose id begins so.")] = "",
    busy: Annotated[bool, typer.Option("--busy", help="Delete also what runs, or waits for something.")] = False,
    dry_run: DryRun = False,
    db: Database = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Delete the sessions that are beyond a limit, with those of their sub-agents; shows which."""
    if (older_than, larger_than, keep) == (None, None, None):
        raise fail("without a limit nothing goes; give --older-than, --larger-than or --keep", USAGE)
    with exit_codes():
        from streamagent.retention import Retention, prune

        retention = Retention(
            max_age=None if older_than is None else to_seconds("--older-than", older_than),
            max_bytes=None if larger_than is None else to_bytes("--larger-than", larger_than),
            max_sessions=keep,
            prefix=prefix,
        )

    async def work(store: Store) -> Sequence[Pruned]:
        return await prune(store, retention, dry_run=dry_run, busy=busy)

    _show(with_store(db, work, read_only=dry_run), dry_run=dry_run, json=json)


def erase_user(
    *,
    user: Annotated[
        str, typer.Option(help="Whose: the session with this id, and those whose ids begin with it and a '/'.")
    ],
    dry_run: DryRun = False,
    db: Database = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Delete all sessions of a user, their forks and those of their sub-agents, also what runs; shows which."""

    async def work(store: Store) -> Sequence[Pruned]:
        from streamagent.retention import erase

        return await erase(store, user, dry_run=dry_run)

    _show(with_store(db, work, read_only=dry_run), dry_run=dry_run, json=json)


def _show(found: Sequence[Pruned], *, dry_run: bool, json: bool) -> None:
    table = table_of("session", "why", "messages", "modified")
    for pruned in found:
        info = pruned.session
        modified = info.modified_at.isoformat(timespec="milliseconds")
        if json:
            print_dict(id=info.id, why=pruned.why, messages=info.messages, modified_at=modified)
        else:
            table.add_row(info.id, pruned.why, str(info.messages), modified)
    print_table(table)
    number = f"{len(found)} session{'' if len(found) == 1 else 's'}"
    typer.echo(f"{'would delete' if dry_run else 'deleted'} {number}", err=True)
