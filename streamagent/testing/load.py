"""What an agent's sessions cost under load: CPU a chunk, time to the first text, memory a session."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from anyio import create_task_group, sleep

from streamagent.agent import Agent
from streamagent.cancellation import raise_single
from streamagent.errors import StreamAgentError
from streamagent.message import Message
from streamagent.protocols import Model, Stream
from streamagent.runtime import Runtime
from streamagent.session import Session
from streamagent.stores.sqlite import SqliteStore

from .outcomes import Outcome, look_at

_WARM_UP = 3  # sessions: connections, caches and lazy imports
_GLANCE = 0.05  # seconds between two looks at the memory, and at whether threads are still working
_WORD = 1.0  # seconds between two words of what is going on; each is work that is measured
_NAMED = 5  # sessions that an error names
_QUIET = 0.1  # share of a core below which nothing is going on


class LoadTimeout(StreamAgentError):
    """Sessions did not end in the time that they have."""


Told = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of an agent.

    Args:
        sessions: How many, all at once, with a prompt each.
        chunks: Pieces of text in an answer of the model that is asked.
        prompt: What each is asked.
        timeout: How long a session may take, in seconds.
    """

    sessions: int
    chunks: int
    prompt: str
    timeout: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What sessions cost, and did.

    Args:
        figures: `cpu_us_per_chunk`, of all threads of this process; `first_ms`, of the sessions that gave text, and
            `session_ms`, with `_p99` of both; `rss_kb_per_session`, 0 where the system does not tell;
            `sessions_per_s`; `turns` that the model took a session. What could not be measured is missing.
        outcomes: What each session did.
    """

    figures: Mapping[str, float]
    outcomes: Sequence[Outcome]


@dataclass(slots=True)
class _Seen:
    peak: int = 0
    error: Exception | None = None
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    stops: dict[str, Message | None] = field(default_factory=dict)  # of the sessions that are over
    spoke: set[str] = field(default_factory=set)  # sessions that gave text


class _Counted:
    """A model that counts its turns.

    Args:
        model: What answers.
    """

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self.turns = 0
        self._model = model

    def stream(self, context: AsyncIterable[Message], **options: Any) -> Stream:
        self.turns += 1
        return self._model.stream(context, **options)


async def measure_load(agent: Agent, load: Load, *, told: Told = lambda _: None) -> Measured:
    """Run sessions of an agent, after a warm-up, with their rows in a file that goes with them.

    Args:
        agent: The agent, with a model that answers at once; its tools run.
        load: How much.
        told: Is told once a second what is going on.

    Raises:
        ModelError: An answer failed.
        StoreError: The store failed.
        LoadTimeout: Sessions did not end in the time of the load.
    """
    model = _Counted(agent.model)
    agent = agent.with_options(model=model)
    names = [f"session {number}" for number in range(load.sessions)]
    with TemporaryDirectory() as folder:
        async with Runtime(store=SqliteStore(Path(folder, "sessions.db"))) as runtime:
            warm = [f"warm-up {number}" for number in range(_WARM_UP)]
            await _run_all(agent, runtime, load, warm, lambda text: told(f"warm-up, {text}"))
            await _settle()
            gc.collect()
            model.turns = 0
            memory, cpu, start = _rss(), process_time(), perf_counter()
            seen = await _run_all(agent, runtime, load, names, told)
            seconds = perf_counter() - start
            await _settle()
            cpu = process_time() - cpu
            outcomes = [
                await look_at(runtime.store.read(name), text=name in seen.spoke, stop=seen.stops[name])
                for name in names
            ]
    figures = {
        "cpu_us_per_chunk": cpu * 1e6 / (load.chunks * load.sessions),
        **_times("first_ms", seen.first),
        **_times("session_ms", seen.whole),
        "rss_kb_per_session": (seen.peak - memory) / 1024 / load.sessions,
        "sessions_per_s": load.sessions / seconds,
        "turns": model.turns / load.sessions,
    }
    return Measured(figures=figures, outcomes=outcomes)


async def _run_all(agent: Agent, runtime: Runtime, load: Load, names: Sequence[str], told: Told) -> _Seen:
    seen = _Seen()
    try:
        async with create_task_group() as glancing:

            async def one(name: str) -> None:
                try:
                    async with agent.session(name, runtime=runtime) as session:
                        await _ask(session, load.prompt, seen)
                except Exception as error:  # noqa: BLE001 - of a stage, too; the others would fail just so
                    seen.error = seen.error or error
                    glancing.cancel_scope.cancel()

            glancing.start_soon(_glance, seen, load, names, told)
            async with create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(one, name)
            glancing.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_single(group)
    if seen.error is not None:
        raise seen.error
    return seen


async def _glance(seen: _Seen, load: Load, names: Sequence[str], told: Told) -> None:
    """Look at the memory and the time until there is none left.

    Raises:
        LoadTimeout: There is none left.
    """
    start, next_word = perf_counter(), 0.0
    while (now := perf_counter() - start) < load.timeout:
        seen.peak = max(seen.peak, _rss())
        if now >= next_word:
            told(f"{len(seen.stops)} of {len(names)} sessions have ended, {now:.0f} s")
            next_word += _WORD
        await sleep(_GLANCE)
    left = [name for name in names if name not in seen.stops]
    some = ", ".join(left[:_NAMED]) + (", …" if len(left) > _NAMED else "")
    raise LoadTimeout(f"{len(left)} of {len(names)} sessions have not ended within {load.timeout:g} s: {some}")


async def _ask(session: Session, prompt: str, seen: _Seen) -> None:
    start, first = perf_counter(), 0.0
    reply = session.ask(prompt)
    async for _ in reply.text():
        first = first or perf_counter()
    end = perf_counter()
    if first:
        seen.spoke.add(session.id)
        seen.first.append(first - start)
    seen.whole.append(end - start)
    seen.stops[session.id] = reply.stop
    seen.peak = max(seen.peak, _rss())


def _times(name: str, seconds: Sequence[float]) -> Mapping[str, float]:
    return {name: median(seconds) * 1000, f"{name}_p99": _p99(seconds) * 1000} if seconds else {}


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
