"""`tool_output`: a tool that yields more than a process should hold, stored and read piece by piece."""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import orjson

from streamagent import Agent, Runtime, SqliteStore, tool

from .harness import child_environment, gather, run_child
from .measure import Sample, run
from .memory import forget_peak, peak, rss
from .report import Report, Setting, middle
from .workload import Workload

_OURS = "streamagent"
_MB = 16
_PIECE = 64 * 1024  # bytes that the tool yields at once
_MEGABYTE = 1024**2


def measure_output(setting: Setting) -> Report:
    """Run the tool in a session whose rows are in a file, and read all that it says."""
    with child_environment() as environment:
        task = setting.workload.to_json()
        samples = gather(
            [_OURS],
            setting.rounds,
            setting.tick,
            lambda _: run_child(environment, "-m", "benchmarks.tool_output", task),
        )
    checks = [middle(samples, _OURS, "peak_mb", target=_MB), middle(samples, _OURS, "cpu_ms_per_mb")]
    return Report(setting=setting, samples=samples, checks=checks)


async def _measure(workload: Workload) -> Sample:
    size = 0

    async def dump() -> AsyncIterator[str]:
        """Yield a long file."""
        for _ in range(size // _PIECE):
            yield "x" * _PIECE

    agent = Agent("mock", tools=[tool(dump, timeout=None)])
    with TemporaryDirectory() as folder:
        async with Runtime(store=SqliteStore(Path(folder, "sessions.db"))) as runtime:
            size = _MEGABYTE
            await _read(agent, runtime, "warm")
            size = workload.megabytes * _MEGABYTE
            gc.collect()
            forget_peak()
            memory, cpu = rss(), process_time()
            told = await _read(agent, runtime, "session")
            cpu, grown = process_time() - cpu, peak() - memory
    if told < size:
        raise RuntimeError(f"the tool's result has {told} characters, not {size}")
    return {"peak_mb": grown / _MEGABYTE, "cpu_ms_per_mb": cpu * 1000 / workload.megabytes}


async def _read(agent: Agent, runtime: Runtime, name: str) -> int:
    told = 0
    async with agent.session(name, runtime=runtime) as session:
        async for message in session.ask("Dump it."):
            told += len(message.content) if message.type == "tool_result" else 0
    return told


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(run(_measure, Workload.from_json(sys.argv[1]))))
