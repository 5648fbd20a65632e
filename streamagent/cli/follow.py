"""`streamagent sessions follow`: see what a session says, while it says it in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .converse import show
from .escape import shorten
from .options import DEFAULT_DB, Json
from .sessions import Database, Id, with_store

if TYPE_CHECKING:
    from streamagent.follow import Follow
    from streamagent.message import Message
    from streamagent.protocols import Store

    from .render import View

_WIDTH = 200  # characters of a prompt that are shown


def follow(
    session: Id,
    *,
    after: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Where to go on: a row's number, or what an earlier follow printed."),
    ] = None,
    until_rest: Annotated[
        bool, typer.Option("--until-rest", help="End when nothing is going on; else Ctrl-C ends it.")
    ] = False,
    db: Database = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Show a session from its beginning, then live, whichever process runs it. Prints at its end where to go on."""

    async def work(store: Store) -> None:
        from streamagent.follow import Follow

        from .render import make_view

        view = make_view(json=json, stream=True)
        if (await store.unfinished(session)).last is None:
            view.note(f"session {session} has no messages yet")
        async with Follow(store, session, after=after, until="rest" if until_rest else None) as followed:
            try:
                await _show_all(followed, view, prompts=not json)
            finally:
                view.close()
                if str(followed.cursor) != (after or "0"):  # else there is nothing new to say
                    view.note(f"go on with --after {followed.cursor}")

    with_store(db, work, read_only=True)


async def _show_all(followed: Follow, view: View, *, prompts: bool) -> None:
    last: Message | None = None
    async for message in followed:
        begins = last is None or last.id != message.id
        last = message
        if prompts and begins and message.role == "user" and message.type == "text":
            view.note(f"> {shorten(message.content, _WIDTH)}")
        show(message, view)
        if message.is_final:
            view.close()
