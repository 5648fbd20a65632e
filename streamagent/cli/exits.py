"""How a command ends: 0, or 1 for a failure, 2 for a wrong use, 130 after Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

import typer

from .escape import printable

FAILURE = 1
USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn the errors of this package into a line on standard error and an exit code."""
    from streamagent.errors import ConfigError, StreamAgentError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that has not all characters
    try:
        yield
    except ConfigError as error:
        raise fail(str(error), USAGE) from error
    except StreamAgentError as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error


def fail(text: str, code: int = FAILURE) -> typer.Exit:
    """Print why a command fails; return the exception that ends it."""
    typer.echo(f"streamagent: {printable(text)}", err=True)
    return typer.Exit(code)
