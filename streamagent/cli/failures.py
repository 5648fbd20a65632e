"""Errors of the target's own code: its frames, without those of what called it."""

from __future__ import annotations

import errno
import sysconfig
import traceback
from pathlib import Path

import typer

import streamagent

from .escape import printable

_OURS = Path(streamagent.__file__).parent
_STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
_INSTALLED = {"site-packages", "dist-packages"}


def show_failure(error: Exception) -> bool:
    """Print an error to standard error, from the first frame on that is neither ours nor an installed package's.

    Args:
        error: What was raised; a group with one error stands for that error.

    Returns:
        Whether it was printed: not if none of the target's code took part, or if a reader of the output has left.
    """
    raised: BaseException = error
    while isinstance(raised, BaseExceptionGroup) and len(raised.exceptions) == 1:
        raised = raised.exceptions[0]
    trace = raised.__traceback__
    while trace is not None and not _is_targets(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    if trace is None and not (isinstance(raised, SyntaxError) and _is_targets(raised.filename)):
        return False
    if isinstance(raised, OSError) and raised.errno == errno.EPIPE:
        return False
    lines = traceback.format_exception(raised.with_traceback(trace))
    typer.echo(printable("".join(lines)), err=True, nl=False)
    return True


def _is_targets(file: str | None) -> bool:
    """Tell whether code of a file is the target's; what has no file of its own (`<string>`) is taken for not."""
    if file is None or file.startswith("<"):
        return False
    path = Path(file).absolute()
    return not (_INSTALLED & {*path.parts} or any(path.is_relative_to(root) for root in (_OURS, *_STANDARD)))
