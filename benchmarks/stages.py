"""`stage_cost`: chains of stages against chains of as many plain async generators."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from time import thread_time_ns
from typing import Any

import aiostream

from streamagent import (
    MemoryStore,
    Message,
    Stage,
    Stream,
    open_pipeline,
    persist,
    rate_limit,
    split,
    strip_reasoning,
    think_tags,
    tool_dispatch,
    whole,
)

from .harness import Samples, Tick
from .measure import run
from .report import Report, Setting, compare
from .workload import Workload

Chain = Callable[[Stream], AbstractAsyncContextManager[Stream]]

_TARGET = 1.3  # times as many plain async generators
_LENGTHS = (1, 4, 6)
_KEY = "ns_per_message"


async def pass_on(stream: Stream) -> Stream:
    """Do what the shortest stage of a user does."""
    async for message in stream:
        yield message


def passing(length: int) -> list[Stage]:
    """Make a chain of shipped stages that have nothing to do with text."""
    return [strip_reasoning() if index % 2 else tool_dispatch() for index in range(length)]


def working() -> dict[str, Stage]:
    """Make one of each shipped stage that does something with every piece of text."""
    return {
        "rate_limit": rate_limit(messages=10**9),
        "whole": whole(),
        "think_tags": think_tags(),
        "persist": persist(),
    }


def measure_stages(setting: Setting) -> Report:
    """Drive the same messages through each chain; the source is part of every chain."""
    stages = working()
    chains: dict[str, Chain] = {f"plain x {length}": partial(_plain, length) for length in _LENGTHS}
    chains |= {f"user x {length}": partial(_staged, [pass_on] * length) for length in _LENGTHS}
    chains |= {f"passing x {length}": partial(_staged, passing(length)) for length in _LENGTHS}
    chains |= {f"aiostream x {length}": partial(_operated, length) for length in _LENGTHS}
    chains |= {kind: partial(_staged, [stage]) for kind, stage in stages.items()}
    samples = run(_measure, setting.workload, setting.rounds, chains, setting.tick)
    checks = [
        compare(samples, f"{kind} x {length}", f"plain x {length}", _KEY, target=_TARGET)
        for kind in ("user", "passing")
        for length in _LENGTHS
    ]
    checks += [compare(samples, f"aiostream x {length}", f"plain x {length}", _KEY) for length in _LENGTHS]
    checks += [compare(samples, kind, "plain x 1", _KEY) for kind in stages]
    return Report(setting=setting, samples=samples, checks=checks)


@asynccontextmanager
async def _plain(length: int, source: Stream) -> AsyncIterator[Stream]:
    for _ in range(length):
        source = pass_on(source)
    yield source


@asynccontextmanager
async def _operated(length: int, source: Stream) -> AsyncIterator[Stream]:
    operated: Any = aiostream.stream.iterate(source)
    for _ in range(length):
        operated = aiostream.pipe.filter(bool)(operated)
    async with operated.stream() as stream:
        yield stream


@asynccontextmanager
async def _staged(stages: Sequence[Stage], source: Stream) -> AsyncIterator[Stream]:
    async with MemoryStore() as store, open_pipeline(source, *stages, store=store, session="bench") as stream:
        yield stream


async def _measure(workload: Workload, rounds: int, chains: Mapping[str, Chain], tick: Tick) -> Samples:
    """Measure each chain once a round; a round before the first warms up."""
    words = "".join(workload.words)
    size = -(-len(words) // workload.chunks)
    messages = [part for _ in range(workload.sessions) for part in split(Message(content=words), size)]
    samples: Samples = {name: [] for name in chains}
    for number in range(rounds + 1):
        tick(f"round {number}")
        for name, chain in chains.items():
            cost = await _drive(chain, messages)
            if number:
                samples[name].append({_KEY: cost})
    return samples


async def _drive(chain: Chain, messages: Sequence[Message]) -> float:
    """Return the nanoseconds of this thread's CPU that a message costs."""
    async with chain(_source(messages)) as stream:
        gc.collect()
        start = thread_time_ns()
        async for _ in stream:
            pass
        return (thread_time_ns() - start) / len(messages)


async def _source(messages: Iterable[Message]) -> Stream:
    for message in messages:
        yield message
