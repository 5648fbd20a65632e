"""`streamagent run`: one prompt, one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .exits import USAGE, exit_codes, fail
from .options import Database, Json, ModelName, NoStream, SessionId

if TYPE_CHECKING:
    from streamagent.session import Session


def run(  # noqa: PLR0913 - the options of a command
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET|PROMPT", help="'module:attr' or 'path/to/file.py'; anything else is the prompt."
        ),
    ],
    prompt: Annotated[str | None, typer.Argument(help="What to ask; by default the target's PROMPT.")] = None,
    *,
    model: ModelName = None,
    db: Database = None,
    session: SessionId = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Ask nothing: go on with calls that were decided about, or what waits.")
    ] = False,
    json: Json = False,
    no_stream: NoStream = False,
) -> None:
    """Ask an agent, and show the answer as it comes.

    The text goes to standard output, everything else to standard error. Ctrl-C cuts the answer; what was said is kept.
    """
    with exit_codes() as interrupts:
        from streamagent.message import new_id

        from .converse import converse
        from .render import make_view
        from .target import is_target, load_target

        if resume and not (prompt is None and is_target(target)):
            raise fail("--resume asks nothing; give a target and no prompt", USAGE)
        if prompt is not None and not is_target(target):
            raise fail(f"{target!r} is no target; quote the prompt if it has several words", USAGE)
        loaded = load_target(target if is_target(target) else None, model=model, db=db)
        asked = prompt or (loaded.prompt if is_target(target) else target)
        if resume and session is None:
            raise fail("--resume goes on with a session; name it with --session", USAGE)
        if not asked and not resume:
            raise fail(f"nothing to ask: give a prompt after {target!r}", USAGE)
        view = make_view(json=json, stream=not no_stream)
        if session is None:
            session = new_id()
            view.note(f"session {session}")

        async def ask() -> int:
            async with loaded.agent.session(session) as opened:
                if not resume:
                    return await converse(opened.ask(asked or ""), view, interrupts)
                return await converse(opened.resume(), view, interrupts, idle=await _idle(opened))

        raise typer.Exit(interrupts.run(ask))


async def _idle(session: Session) -> str:
    """Say why nothing goes on, should nothing go on."""
    waiting = len(await session.pending())
    if not waiting:
        return f"session {session.id!r} has nothing to do"
    return (
        f"{waiting} {'call waits' if waiting == 1 else 'calls wait'} for an approval: streamagent approve {session.id}"
    )
