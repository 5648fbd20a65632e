"""How a command ends: 0, or 1 for a failure, 2 for a wrong use, 128 and the signal's number when one ended it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from .escape import printable
from .interrupts import Interrupted, Interrupts
from .output import OutputError, discard, prepare_output

FAILURE = 1
USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


@contextmanager
def exit_codes() -> Iterator[Interrupts]:
    """Turn signals, the errors of this package and those of the output into a line on standard error and an exit code.

    An error of the target's code is printed with its own frames; what is nobody's but ours is raised.

    Yields:
        What the command runs its event loop with.
    """
    from streamagent.errors import ConfigError, StreamAgentError

    if not prepare_output():
        raise fail("standard output is closed")
    interrupts = Interrupts()
    try:
        with interrupts.handled():
            yield interrupts
    except ConfigError as error:
        raise fail(str(error), USAGE) from error
    except StreamAgentError as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(error.code if isinstance(error, Interrupted) else INTERRUPTED) from error
    except OutputError as error:
        discard()
        raise fail(f"standard input or output failed: {error.strerror}") from error
    except typer.Exit:
        raise
    except Exception as error:
        from .failures import show_failure

        if not show_failure(error):
            raise
        raise typer.Exit(FAILURE) from error


def fail(text: str, code: int = FAILURE) -> typer.Exit:
    """Print why a command fails; return the exception that ends it."""
    typer.echo(f"streamagent: {printable(text)}", err=True)
    return typer.Exit(code)
