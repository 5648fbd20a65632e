"""Plain functions: called in a worker thread, where what a generator yields is joined, too."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any

from streamagent._core.output import Capped, describe, text_of
from streamagent.calls import Output

from .threads import run_in_thread


async def call_in_thread(call: Callable[[], Any], cancelled: threading.Event) -> Any:
    """Call a function in a worker thread; see `run_in_thread`.

    Returns:
        What it returned; of a generator, what that yielded, joined up to an error or until nobody waits any more.
    """
    (result,) = await run_in_thread(functools.partial(_call, call, cancelled), cancelled)
    return result


def _call(call: Callable[[], Any], cancelled: threading.Event) -> tuple[Any]:
    """Call in the worker thread, and there run what a generator does between its pieces.

    Returns:
        The result in a tuple: trio takes a thread that returns a bare coroutine for a mistake.
    """
    result = call()
    return (_join(result, cancelled) if inspect.isgenerator(result) else result,)


def _join(pieces: Generator[Any, Any, Any], cancelled: threading.Event) -> Output:
    """Join what a generator yields, up to an error or until nobody waits any more."""
    capped = Capped()
    with contextlib.closing(pieces):
        try:
            for piece in pieces:
                _add(capped, piece)
                if cancelled.is_set():
                    break
        except Exception as error:  # noqa: BLE001 - foreign code; what it made before it failed is worth keeping
            return _failed(capped, error)
    return capped.output()


def _add(capped: Capped, piece: Any) -> None:
    capped.add(piece if isinstance(piece, str) else f"{text_of(piece)}\n")


def _failed(capped: Capped, error: Exception) -> Output:
    capped.add(f"\n{describe(error)}")
    return capped.output(is_error=True)
