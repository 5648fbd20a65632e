"""What a child process measures of itself: CPU of all its threads, time, resident memory."""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from statistics import median
from time import perf_counter, process_time
from typing import Any, TypeVar

import anyio

from .contender import Contender, OpenContender
from .memory import rss
from .workload import Stock, Workload

T = TypeVar("T")
Sample = dict[str, float]

LOOP = "BENCHMARKS_LOOP"  # which loop a child runs on: a peer's own environment has or lacks uvloop by itself
_LOOPS = ("asyncio", "uvloop")

WARM_UP = 3  # sessions: connections, caches and lazy imports
_PAUSE = 0.05  # seconds between two looks at whether threads are still working
_QUIET = 0.1  # share of a core below which nothing is going on
_GLANCE = 0.1  # seconds between two looks at the memory


def loop() -> str:
    """Return which loop is run on: the one that the runner told its children, else uvloop where this Python has it."""
    told = os.environ.get(LOOP, "")
    return told if told in _LOOPS else _LOOPS[find_spec("uvloop") is not None]


def run(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run an async function on asyncio, on the loop that all contenders of a run have.

    Raises:
        ImportError: That is uvloop, and this Python has none.
    """
    return anyio.run(function, *args, backend_options={"use_uvloop": loop() == "uvloop"})


@dataclass(slots=True)
class Observed:
    """What was seen while sessions ran.

    Args:
        peak: The highest resident memory, in bytes.
        first: Seconds until each session's first piece of text.
        whole: Seconds that each session took.
    """

    peak: int = 0
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


async def measure(open_contender: OpenContender, workload: Workload) -> Sample:
    """Run the sessions of a workload, after a warm-up.

    Raises:
        RuntimeError: A session did not give all of the text, or did not run its tool.
    """
    async with open_contender(workload) as contender:
        await run_all(contender, workload, [f"warm {number}" for number in range(WARM_UP)])
        await settle()
        gc.collect()
        memory, cpu, start = rss(), process_time(), perf_counter()
        seen = await run_all(contender, workload, [f"session {number}" for number in range(workload.sessions)])
        seconds = perf_counter() - start
        await settle()
        cpu = process_time() - cpu
    return {
        "cpu_us_per_chunk": cpu * 1e6 / (2 * workload.chunks * workload.sessions),
        "sessions_per_s": workload.sessions / seconds,
        "rss_kb_per_session": (seen.peak - memory) / 1024 / workload.sessions,
        "first_ms": median(seen.first) * 1000,
        "session_ms": median(seen.whole) * 1000,
    }


async def run_all(contender: Contender, workload: Workload, names: list[str]) -> Observed:
    """Run sessions, `workload.at_once` at a time, and look at the memory meanwhile.

    Raises:
        RuntimeError: A session did not give all of the text, or did not run its tool.
    """
    expected = "".join(workload.words) * 2
    seen, calls, limit = Observed(), Stock.calls, anyio.Semaphore(workload.at_once or len(names))

    async def one(name: str) -> None:
        async with limit:
            await _run_one(contender, name, expected, seen)

    async def glance() -> None:
        while True:
            seen.peak = max(seen.peak, rss())
            await anyio.sleep(_GLANCE)

    async with anyio.create_task_group() as glancing:
        glancing.start_soon(glance)
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(one, name)
        glancing.cancel_scope.cancel()
    if Stock.calls - calls != len(names):
        raise RuntimeError(f"the tool ran {Stock.calls - calls} times in {len(names)} sessions")
    return seen


async def _run_one(contender: Contender, name: str, expected: str, seen: Observed) -> None:
    pieces: list[str] = []
    first = 0.0

    def hear(text: str) -> None:
        nonlocal first
        if text and not first:
            first = perf_counter()
        pieces.append(text)

    start = perf_counter()
    await contender.run(name, hear)
    seen.whole.append(perf_counter() - start)
    if (told := "".join(pieces)) != expected:
        raise RuntimeError(f"session {name} gave {len(told)} characters, not {len(expected)}: {told[-200:]!r}")
    seen.first.append(first - start)
    seen.peak = max(seen.peak, rss())


async def settle() -> None:
    """Wait until the threads that log and commit have done their work, which belongs to the sessions too."""
    busy = 1.0
    while busy > _QUIET:
        before = process_time()
        await anyio.sleep(_PAUSE)
        busy = (process_time() - before) / _PAUSE
