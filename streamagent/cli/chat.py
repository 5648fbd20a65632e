"""`streamagent chat`: prompt after prompt, on the terminal or from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from .exits import USAGE, exit_codes, fail
from .interrupts import Interrupted, Interrupts
from .options import Database, Json, ModelName, NoStream, SessionId


def chat(  # noqa: PLR0913 - the options of a command
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="'module:attr' or 'path/to/file.py'.", show_default=False)
    ] = None,
    *,
    model: ModelName = None,
    db: Database = None,
    session: SessionId = None,
    json: Json = False,
    no_stream: NoStream = False,
) -> None:
    """Talk to an agent, line by line.

    Ctrl-C cuts an answer, and leaves at the prompt; so do Ctrl-D and /exit.
    """
    with exit_codes() as interrupts:
        from streamagent.message import new_id

        from .converse import converse
        from .render import make_view
        from .target import is_target, load_target

        if target is not None and not is_target(target):
            raise fail(f"{target!r} is no target; write module:attr or path/to/file.py", USAGE)
        if sys.stdin is None:
            raise fail("standard input is closed; there is nothing to read prompts from")
        loaded = load_target(target, model=model, db=db)
        view = make_view(json=json, stream=not no_stream)
        session = session or new_id()
        view.note(f"session {session}; /exit or Ctrl-D leaves")

        async def talk() -> int:
            async with loaded.agent.session(session) as opened:
                try:
                    for prompt in _prompts(interrupts):
                        await converse(opened, prompt, view, interrupts)
                        interrupts.forget_ctrl_c()
                except Interrupted as error:
                    return error.code
            return 0

        raise typer.Exit(interrupts.run(talk))


def _prompts(interrupts: Interrupts) -> Iterator[str]:
    """Read lines until the end, or `/exit`; empty ones are passed over. The loop stands still: nothing else runs."""
    shown = "> " if sys.stdin.isatty() and sys.stdout.isatty() else ""
    if shown:
        import readline  # noqa: F401 - gives `input` its line editing
    while True:
        try:
            with interrupts.raised():
                line = input(shown).strip()
        except EOFError:
            return
        if line == "/exit":
            return
        if line:
            yield line
