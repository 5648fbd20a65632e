"""A line on standard error that says what a command is doing."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Self

from .escape import shorten
from .output import writing


class ProgressLine:
    """One line, written over and over; gone at the block's end. Where standard error is no terminal, there is none.

    Nothing writes but who calls `show`: a thread that draws would be measured by who measures.
    """

    def __init__(self) -> None:
        self._wanted = sys.stderr.isatty()
        self._shown = 0  # characters

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self.show("")
            self._write("\r")

    def show(self, text: str) -> None:
        """Show a text instead of the one before."""
        line = shorten(text, shutil.get_terminal_size().columns - 1)
        self._write(f"\r{line:<{self._shown}}")
        self._shown = len(line)

    @writing()
    def _write(self, text: str) -> None:
        if self._wanted:
            sys.stderr.write(text)
            sys.stderr.flush()
