"""What an agent's sessions cost under load: CPU a chunk, time to the first text, memory a session."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from anyio import create_task_group, sleep

from streamagent.agent import Agent
from streamagent.errors import StreamAgentError
from streamagent.runtime import Runtime
from streamagent.session import Session
from streamagent.stores.sqlite import SqliteStore

_WARM_UP = 3  # sessions: connections, caches and lazy imports
_GLANCE = 0.05  # seconds between two looks at the memory, and at whether threads are still working
_QUIET = 0.1  # share of a core below which nothing is going on


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of an agent.

    Args:
        sessions: How many, all at once, with a prompt each.
        chunks: Pieces of text in an answer of the model that is asked.
        prompt: What each is asked.
    """

    sessions: int
    chunks: int
    prompt: str


@dataclass(slots=True)
class _Seen:
    peak: int = 0
    error: StreamAgentError | None = None
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


async def measure_load(agent: Agent, load: Load) -> Mapping[str, float]:
    """Run sessions of an agent, after a warm-up, with their rows in a file that goes with them.

    Args:
        agent: The agent, with a model that answers at once; its tools run.
        load: How much.

    Returns:
        `cpu_us_per_chunk`, of all threads of this process; `first_ms` and `session_ms`, with `_p99` of both;
        `rss_kb_per_session`, 0 where the system does not tell; `sessions_per_s`.

    Raises:
        ModelError: An answer failed.
        StoreError: The store failed.
    """
    with TemporaryDirectory() as folder:
        async with Runtime(store=SqliteStore(Path(folder, "sessions.db"))) as runtime:
            await _run_all(agent, runtime, load.prompt, [f"warm {number}" for number in range(_WARM_UP)])
            await _settle()
            gc.collect()
            memory, cpu, start = _rss(), process_time(), perf_counter()
            seen = await _run_all(agent, runtime, load.prompt, [f"session {number}" for number in range(load.sessions)])
            seconds = perf_counter() - start
            await _settle()
            cpu = process_time() - cpu
    return {
        "cpu_us_per_chunk": cpu * 1e6 / (load.chunks * load.sessions),
        "first_ms": median(seen.first) * 1000,
        "first_ms_p99": _p99(seen.first) * 1000,
        "session_ms": median(seen.whole) * 1000,
        "session_ms_p99": _p99(seen.whole) * 1000,
        "rss_kb_per_session": (seen.peak - memory) / 1024 / load.sessions,
        "sessions_per_s": load.sessions / seconds,
    }


async def _run_all(agent: Agent, runtime: Runtime, prompt: str, names: Sequence[str]) -> _Seen:
    seen = _Seen()

    async def one(name: str) -> None:
        try:
            async with agent.session(name, runtime=runtime) as session:
                await _ask(session, prompt, seen)
        except StreamAgentError as error:
            seen.error = seen.error or error

    async def glance() -> None:
        while True:
            seen.peak = max(seen.peak, _rss())
            await sleep(_GLANCE)

    async with create_task_group() as glancing:
        glancing.start_soon(glance)
        async with create_task_group() as tasks:
            for name in names:
                tasks.start_soon(one, name)
        glancing.cancel_scope.cancel()
    if seen.error is not None:
        raise seen.error
    return seen


async def _ask(session: Session, prompt: str, seen: _Seen) -> None:
    start, first = perf_counter(), 0.0
    async for _ in session.ask(prompt).text():
        first = first or perf_counter()
    end = perf_counter()
    seen.first.append((first or end) - start)
    seen.whole.append(end - start)
    seen.peak = max(seen.peak, _rss())


async def _settle() -> None:
    """Wait until the threads that commit have done their work, which belongs to the sessions too."""
    busy = 1.0
    while busy > _QUIET:
        before = process_time()
        await sleep(_GLANCE)
        busy = (process_time() - before) / _GLANCE


def _p99(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=100, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]


def _rss() -> int:
    """Return the resident memory of this process in bytes; the highest so far where there is no `/proc`, or 0."""
    with suppress(ImportError):
        import resource

        with suppress(OSError):
            return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return highest if sys.platform == "darwin" else highest * 1024
    return 0
