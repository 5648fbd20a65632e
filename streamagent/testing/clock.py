"""Virtual time: a clock that jumps to the next thing that is waited for, so that hours pass in no time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import anyio

from streamagent.errors import ConfigError

T = TypeVar("T")


def virtual_time() -> tuple[str, dict[str, Any]]:
    """Return a backend of anyio, with its options, on which time jumps as soon as every task waits.

    All waits of this package are on the event loop's clock, and so are those of `anyio.sleep`, `move_on_after` and
    their kin: deadlines, leases, back-off and idle limits pass without anybody waiting. What runs in a thread is not
    seen: time jumps while it works. `throttle` counts its minutes by a clock of its own; give it
    `clock=anyio.current_time`.

    Returns:
        What `anyio_backend` of anyio's pytest plugin takes. One clock is for one event loop.

    Raises:
        ConfigError: trio is not installed.
    """
    try:
        from trio.testing import MockClock
    except ImportError as error:
        raise ConfigError("virtual time is trio's, and trio is not installed: pip install trio") from error
    return "trio", {"clock": MockClock(autojump_threshold=0)}


def run_in_virtual_time(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run `function(*args)` in an event loop of its own, in virtual time; see `virtual_time`.

    Where an event loop runs already, that one stands still meanwhile.
    """
    backend, options = virtual_time()
    run = partial(anyio.run, function, *args, backend=backend, backend_options=options)
    if not _in_event_loop():
        return run()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()  # without this context, in which another event loop runs


def _in_event_loop() -> bool:
    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:
        return False
    return True


@contextmanager
def seeded_schedule(seed: int) -> Iterator[None]:
    """Let a seed decide in which order tasks run that could run now, for event loops in virtual time begun within.

    Args:
        seed: The same seed gives the same order, as long as the program does the same.

    Raises:
        ConfigError: trio is not installed, or this version of it cannot.
    """
    virtual_time()  # says so if trio is missing
    from trio._core import _run  # Hypothesis does the same: trio has no public way to have its order repeated

    if not (hasattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING") and hasattr(_run, "_r")):
        raise ConfigError("this version of trio does not let a seed decide which task runs next; use trio 0.27 to 0.35")
    loop: Any = _run
    before, state = loop._ALLOW_DETERMINISTIC_SCHEDULING, loop._r.getstate()  # noqa: SLF001
    loop._ALLOW_DETERMINISTIC_SCHEDULING = True  # noqa: SLF001
    loop._r.seed(seed)  # noqa: SLF001
    try:
        yield
    finally:
        loop._ALLOW_DETERMINISTIC_SCHEDULING = before  # noqa: SLF001
        loop._r.setstate(state)  # noqa: SLF001
