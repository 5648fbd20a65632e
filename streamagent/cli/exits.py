"""How a command ends: 0, or 1 for a failure, 2 for a wrong use, 128 and the signal's number when one ended it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

import typer

from .escape import printable
from .interrupts import Interrupted, Interrupts

FAILURE = 1
USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


@contextmanager
def exit_codes() -> Iterator[Interrupts]:
    """Turn signals, the errors of this package and those of the output into a line on standard error and an exit code.

    Yields:
        What the command runs its event loop with.
    """
    from streamagent.errors import ConfigError, StreamAgentError

    _prepare_output()
    interrupts = Interrupts()
    try:
        with interrupts.handled():
            yield interrupts
            sys.stdout.flush()
    except ConfigError as error:
        raise fail(str(error), USAGE) from error
    except StreamAgentError as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(error.code if isinstance(error, Interrupted) else INTERRUPTED) from error
    except OSError as error:
        broken = [stream for stream in (sys.stdout, sys.stderr) if _is_broken(stream)]
        if error.errno == errno.EPIPE or not broken:
            raise
        raise fail(f"the output cannot be written: {error.strerror}") from error


def fail(text: str, code: int = FAILURE) -> typer.Exit:
    """Print why a command fails; return the exception that ends it."""
    typer.echo(f"streamagent: {printable(text)}", err=True)
    return typer.Exit(code)


def _prepare_output() -> None:
    if sys.stderr is None:  # closed; nobody is to be told
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        raise fail("standard output is closed")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that has not all characters


def _is_broken(stream: TextIO) -> bool:
    """Tell whether a stream cannot be written; if so, what waits in it is thrown away, so that Python can exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return True
    return False
