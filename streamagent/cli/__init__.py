"""The command line: `streamagent run | chat | approve | sessions | worker`, one file a command."""

from __future__ import annotations

from typing import Annotated

import typer

from .approve import approve
from .chat import chat
from .run import run
from .sessions import sessions
from .worker import worker

app = typer.Typer(
    name="streamagent",
    help="Run LLM agent sessions as streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from streamagent import __version__

        typer.echo(f"streamagent {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run LLM agent sessions as streams."""


app.command()(run)
app.command()(chat)
app.command()(approve)
app.command()(worker)
app.add_typer(sessions, name="sessions")
