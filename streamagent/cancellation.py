"""Cancellation, told apart from errors that look like it; and the errors of task groups."""

from __future__ import annotations

import asyncio
import math
from typing import NoReturn

from anyio import current_effective_deadline


def must_propagate(error: BaseException) -> bool:
    """Tell whether an exception of foreign code is not that code's failure but its end by whoever runs it.

    A tool that awaits something that was cancelled elsewhere raises the same class of exception as one that is
    cancelled; only the second is the business of the task that runs it. So with `GeneratorExit`, which also ends a
    coroutine that is closed; it must have been caught by a coroutine that another one awaits.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    if isinstance(error, GeneratorExit):
        return _is_closed(error)
    return not isinstance(error, Exception) and _is_cancelled()


def _is_closed(error: GeneratorExit) -> bool:
    """Tell whether it came from outside: what is awaited is closed first, so no frame below is in its traceback."""
    return error.__traceback__ is None or error.__traceback__.tb_next is None


def _is_cancelled() -> bool:
    if current_effective_deadline() == -math.inf:
        return True
    try:
        task = asyncio.current_task()
    except RuntimeError:  # another event loop than asyncio's
        return False
    return task is not None and task.cancelling() > 0


def raise_single(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise the only exception of a group, or the innermost group that holds several."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    raise inner from inner.__cause__
