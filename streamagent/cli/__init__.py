"""The command line: `streamagent run | chat | approve | sessions | sim | bench | worker`, one file a command."""

from __future__ import annotations

from typing import Annotated

import typer

from .approve import approve
from .bench import bench
from .chat import chat
from .follow import follow
from .keeping import erase_user, prune_sessions
from .run import run
from .sessions import sessions
from .sim import sim
from .transfer import export_to_output, import_from_file
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
app.command()(sim)
app.command()(bench)
sessions.command()(follow)
sessions.command("export")(export_to_output)
sessions.command("import")(import_from_file)
sessions.command("prune")(prune_sessions)
sessions.command("erase")(erase_user)
app.add_typer(sessions, name="sessions")
