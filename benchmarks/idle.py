"""`idle`: what an open session costs while nothing happens in it."""

from __future__ import annotations

import gc
import sys
from contextlib import AsyncExitStack
from statistics import median
from time import process_time

import orjson

from streamagent import Agent, MemoryStore, Runtime

from .harness import Tick, child_environment, run_child
from .measure import Sample, run
from .memory import rss
from .report import Check, Report
from .workload import Workload

_TARGET_KB = 0.5


def measure_idle(name: str, workload: Workload, rounds: int, tick: Tick) -> Report:
    """Open sessions, each round in a fresh process."""
    samples: list[Sample] = []
    with child_environment() as environment:
        for number in range(rounds):
            tick(f"round {number + 1}")
            samples.append(run_child(environment, "-m", "benchmarks.idle", str(workload.sessions)))
    memory = median(sample["rss_kb_per_session"] for sample in samples)
    check = Check(name="KB of RSS an idle session", value=memory, target=_TARGET_KB)
    return Report(benchmark=name, workload=workload, samples={"streamagent": samples}, checks=[check])


async def open_idle(number: int) -> Sample:
    """Open so many sessions of one agent and hold them."""
    agent = Agent()
    async with Runtime(store=MemoryStore()) as runtime, AsyncExitStack() as stack:
        gc.collect()
        memory, cpu = rss(), process_time()
        for index in range(number):
            await stack.enter_async_context(agent.session(f"session {index}", runtime=runtime))
        cpu = process_time() - cpu
        return {"cpu_us_per_session": cpu * 1e6 / number, "rss_kb_per_session": (rss() - memory) / 1024 / number}


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(run(open_idle, int(sys.argv[1]))))
