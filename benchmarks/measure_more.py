"""What else a child process measures of itself: a turn on a long history, many open sessions, idle ones."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from statistics import quantiles
from time import process_time

import anyio.to_thread

from .contender import OpenContender
from .measure import WARM_UP, Sample, run_all, settle
from .memory import forget_peak, peak, rss, written
from .received import received
from .workload import Workload

_PAST = "past"
_EVERY = 20  # of so many open sessions one streams
_IDLE = WARM_UP


async def fill(open_contender: OpenContender, workload: Workload) -> Sample:
    """Store the history of a session.

    Raises:
        RuntimeError: The contender keeps none.
    """
    async with open_contender(workload) as contender:
        if contender.fill is None:
            raise RuntimeError("it has no history of its own")
        await contender.fill(_PAST, workload.past())
    return {}


async def measure_turn(open_contender: OpenContender, workload: Workload) -> Sample:
    """Take one turn, of two requests, on the history that `fill` stored.

    Raises:
        RuntimeError: The text is not whole, the tool did not run, or the provider did not get the history.
    """
    async with open_contender(workload) as contender:
        await run_all(contender, workload, [f"warm {number}" for number in range(WARM_UP)])
        await settle()
        gc.collect()
        forget_peak()
        sent = await anyio.to_thread.run_sync(received, workload.url)
        memory, stored, cpu = rss(), written(), process_time()
        seen = await run_all(contender, workload, [_PAST])
        await settle()
        cpu = process_time() - cpu
        sample = {
            "cpu_ms": cpu * 1000,
            "peak_mb": (peak() - memory) / 1024**2,
            "written_kb": (written() - stored) / 1024,
            "first_ms": seen.first[0] * 1000,
        }
        sent = await anyio.to_thread.run_sync(received, workload.url) - sent
    if sent < (told := 2 * workload.history * workload.message_bytes):
        raise RuntimeError(f"the provider got {sent} bytes, not the {told} of the history in two requests")
    return sample


async def measure_many(open_contender: OpenContender, workload: Workload) -> Sample:
    """Open all sessions, let one in twenty stream, and say how long that took."""
    async with open_contender(workload) as contender:
        if contender.idle is None:
            raise RuntimeError("it has nothing that could be opened")
        names = [f"session {number}" for number in range(workload.sessions)]
        await run_all(contender, workload, [f"warm {number}" for number in range(WARM_UP)])
        await settle()
        gc.collect()
        memory = rss()
        kept = [await contender.idle(name) for name in names]
        gc.collect()
        idle, cpu = rss(), process_time()
        seen = await run_all(contender, workload, streaming := names[::_EVERY])
        await settle()
        cpu = process_time() - cpu
    return {
        "open": len(kept),
        "streaming": len(streaming),
        "idle_kb_per_session": (idle - memory) / 1024 / len(kept),
        "streaming_kb_per_session": (seen.peak - idle) / 1024 / len(streaming),
        "cpu_us_per_chunk": cpu * 1e6 / (2 * workload.chunks * len(streaming)),
        **_percentiles("first_ms", seen.first),
        **_percentiles("session_ms", seen.whole),
    }


async def measure_idle(open_contender: OpenContender, workload: Workload) -> Sample:
    """Open sessions and hold them, while nothing happens in them.

    Raises:
        RuntimeError: The contender has nothing of the kind.
    """
    async with open_contender(workload) as contender:
        if contender.idle is None:
            raise RuntimeError("it has nothing that could be opened")
        kept = [await contender.idle(f"warm {number}") for number in range(_IDLE)]
        gc.collect()
        memory, cpu = rss(), process_time()
        kept += [await contender.idle(f"session {number}") for number in range(workload.sessions)]
        cpu = process_time() - cpu
        gc.collect()
        grown = rss() - memory
        del kept
    return {
        "rss_kb_per_session": grown / 1024 / workload.sessions,
        "cpu_us_per_session": cpu * 1e6 / workload.sessions,
    }


def _percentiles(name: str, seconds: Sequence[float]) -> Sample:
    cuts = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else [*seconds] * 99
    return {f"{name}_p{percent}": cuts[percent - 1] * 1000 for percent in (50, 90, 99)}
