"""The end of a process in which something hangs that nobody can stop."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

import typer

from .exits import FAILURE

logger = logging.getLogger("streamagent")

LEFT_BEHIND = 2.0  # seconds that a tool may go on which nobody waits for any more


class Ending:
    """Ends the process, with the command's own exit code, if what a tool left behind keeps it alive.

    Python waits for every thread, and the event loop for every task; both may hang for ever. The block is the command.
    """

    def __init__(self) -> None:
        self._before = set(threading.enumerate())
        self._left: set[threading.Thread] = set()
        self._code = 0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._end, name="streamagent ending", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._code = error.exit_code if isinstance(error, typer.Exit) else FAILURE
        self._left = {thread for thread in {*threading.enumerate()} - self._before if not thread.daemon}
        self._over.set()
        self.begin()

    def begin(self) -> None:
        """Take it that nothing is to be done any more: from here on the command has `LEFT_BEHIND` seconds."""
        if self._watch.ident is None:
            self._watch.start()

    def _end(self) -> None:
        deadline = time.monotonic() + LEFT_BEHIND
        over = self._over.wait(LEFT_BEHIND)
        for thread in self._left:
            thread.join(max(deadline - time.monotonic(), 0))
        if over and not any(thread.is_alive() for thread in self._left):
            return
        logger.warning("a tool hangs; the process ends without it")
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        logging.shutdown()
        os._exit(self._code)
