"""Standard output and standard error, when they are closed, full, or gone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path


class OutputError(OSError):
    """Standard input or output failed, which is no fault of the program's."""


@contextmanager
def writing() -> Iterator[None]:
    """Tell what fails here from other errors of the system; also a decorator. A reader that left is typer's business.

    Raises:
        OutputError: It failed.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise OutputError(error.errno, error.strerror) from error


def prepare_output() -> bool:
    """Make the streams fit for every text, and standard error exist.

    Returns:
        Whether standard output can be written.
    """
    if sys.stderr is None:  # closed: nobody wants to be told
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that has not all characters
    return sys.stdout is not None


def discard() -> None:
    """Throw away what waits in a stream that cannot be written, so that Python can exit without another error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
