"""The options that commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_DB = "streamagent.db"

ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="'provider/model', 'local', 'mock' or 'replay:FILE'; instead of the target's own model.",
        show_default=False,
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        envvar="STREAMAGENT_DB",
        help=f"The sessions' SQLite file or PostgreSQL URL; by default the target's own store, or {DEFAULT_DB}.",
        show_default=False,
    ),
]
SessionId = Annotated[
    str | None, typer.Option("--session", help="The session to continue; by default a new one.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print messages, one a line, as JSON.")]
NoStream = Annotated[bool, typer.Option("--no-stream", help="Print the whole answer when it is complete.")]
