"""What a child process measures of itself: CPU of all its threads, time, resident memory."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from time import perf_counter, process_time
from typing import Any, TypeVar

import anyio

from .memory import rss
from .workload import Workload

T = TypeVar("T")
RunSession = Callable[[str], Awaitable[str]]
OpenSessions = Callable[[Workload], AbstractAsyncContextManager[RunSession]]
Sample = dict[str, float]

_WARM_UP = 3  # sessions: connections, caches and lazy imports
_PAUSE = 0.05  # seconds between two looks at whether threads are still working
_QUIET = 0.1  # share of a core below which nothing is going on


def run(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run an async function on asyncio, on uvloop where it is installed."""
    return anyio.run(function, *args, backend_options={"use_uvloop": find_spec("uvloop") is not None})


async def measure(open_sessions: OpenSessions, workload: Workload) -> Sample:
    """Run all sessions at once, after a warm-up.

    Raises:
        RuntimeError: A session did not give all of the text.
    """
    async with open_sessions(workload) as run_session:
        await _run_all(run_session, workload, "warm", _WARM_UP)
        await _settle()
        gc.collect()
        memory, cpu, start = rss(), process_time(), perf_counter()
        peak = await _run_all(run_session, workload, "session", workload.sessions)
        seconds = perf_counter() - start
        await _settle()
        cpu = process_time() - cpu
    return {
        "cpu_us_per_chunk": cpu * 1e6 / (2 * workload.chunks * workload.sessions),
        "sessions_per_s": workload.sessions / seconds,
        "rss_kb_per_session": (peak - memory) / 1024 / workload.sessions,
    }


async def _run_all(run_session: RunSession, workload: Workload, prefix: str, number: int) -> int:
    """Run sessions in parallel; return the highest resident memory seen when one ended."""
    expected = "".join(workload.words) * 2
    peak = 0

    async def one(name: str) -> None:
        nonlocal peak
        if (text := await run_session(name)) != expected:
            raise RuntimeError(f"session {name} gave {len(text)} characters, not {len(expected)}: {text[-200:]!r}")
        peak = max(peak, rss())

    async with anyio.create_task_group() as tasks:
        for index in range(number):
            tasks.start_soon(one, f"{prefix} {index}")
    return peak


async def _settle() -> None:
    """Wait until the threads that log and commit have done their work, which belongs to the sessions too."""
    busy = 1.0
    while busy > _QUIET:
        before = process_time()
        await anyio.sleep(_PAUSE)
        busy = (process_time() - before) / _PAUSE
