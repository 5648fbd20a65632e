"""`sessions`, `chunk_burst`, `chunk_paced`: whole sessions, against a bare aiohttp loop and a bare LiteLLM loop."""

from __future__ import annotations

from .harness import Tick, interleave
from .report import Report, compare
from .workload import Workload

OURS, PEER, FLOOR = "streamagent_sessions", "litellm_loop", "aiohttp_loop"
_CPU = "cpu_us_per_chunk"
_CPU_TARGET = 1.15  # of the CPU of a bare LiteLLM loop, with stages, tools and persistence on


def measure_sessions(name: str, workload: Workload, rounds: int, tick: Tick) -> Report:
    """Compare the CPU of whole sessions, and how many end in a second."""
    samples = interleave([OURS, PEER, FLOOR], workload, rounds, tick)
    checks = [
        compare(samples, OURS, PEER, _CPU, target=_CPU_TARGET),
        compare(samples, OURS, FLOOR, _CPU),
        compare(samples, PEER, FLOOR, _CPU),
    ]
    return Report(benchmark=name, workload=workload, samples=samples, checks=checks)
