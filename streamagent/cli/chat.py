"""`streamagent chat`: prompt after prompt, on the terminal or from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from .approve import question
from .exits import USAGE, exit_codes, fail
from .interrupts import Interrupted, Interrupts
from .options import Database, Json, ModelName, NoStream, SessionId
from .output import writing

if TYPE_CHECKING:
    from streamagent.approvals import Approval
    from streamagent.driver import RunReply
    from streamagent.session import Session

    from .render import View


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

    Ctrl-C cuts an answer, and leaves at the prompt; so do Ctrl-D and /exit. When a call waits for an approval, `yes`,
    `ok`, `confirm` or `approve` runs it, and any other line is the reason why not.
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
                    shown = await _ask_about(opened, view)
                    for line in _prompts(interrupts):
                        reply = opened.ask(line) if shown is None else await _decided(opened, shown, line, view)
                        if reply is not None:
                            await converse(reply, view, interrupts)
                            interrupts.forget_ctrl_c()
                        shown = await _ask_about(opened, view)
                except Interrupted as error:
                    return error.code
            return 0

        raise typer.Exit(interrupts.run(talk))


async def _decided(session: Session, shown: Approval, line: str, view: View) -> RunReply | None:
    """Take what was typed for the decision about the call that was shown; the last one lets the run go on.

    When somebody else has decided meanwhile the line is about nothing, and whoever that was goes on with the run.
    """
    from streamagent.approval_views import cap_verdicts
    from streamagent.errors import ApprovalGone, ConfigError, ConflictError

    try:
        await session.decide(*cap_verdicts([shown], line))
    except (ApprovalGone, ConfigError, ConflictError) as error:
        view.note(str(error), style="yellow")
        return None
    return None if await session.pending() else session.resume()


async def _ask_about(session: Session, view: View) -> Approval | None:
    """Show the call that waits longest, and return it."""
    waiting = await session.pending()
    if not waiting:
        return None
    view.note(f"run {question(waiting[0])}? yes, or why not")
    return waiting[0]


def _prompts(interrupts: Interrupts) -> Iterator[str]:
    """Read lines until the end, or `/exit`; empty ones are passed over. The loop stands still: nothing else runs."""
    shown = "> " if sys.stdin.isatty() and sys.stdout.isatty() else ""
    if shown:
        import readline  # noqa: F401 - gives `input` its line editing
    while True:
        try:
            with interrupts.raised(), writing():
                line = input(shown).strip()
        except EOFError:
            return
        if line == "/exit":
            return
        if line:
            yield line
