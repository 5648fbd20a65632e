"""The benchmarks, by their names, with the workloads that their published figures are of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .chunks import measure_burst, measure_first, measure_open, measure_paced
from .context import BIG, measure_big, measure_growth
from .fleet import measure_fleet
from .idle import measure_idle
from .imports import measure_import
from .lanes import measure_lanes
from .many import measure_many
from .parts import measure_parts
from .peers import PEERS
from .persist import measure_persist
from .report import Report, Setting
from .stages import measure_stages
from .tool_output import measure_output
from .workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark.

    Args:
        about: What it measures.
        measure: Does it.
        workload: What its published figures are of.
        uses: Fields of the workload that it goes by, of those that the command line can change.
        peers: Who else can take part.
        rounds: How many of these.
    """

    about: str
    measure: Callable[[Setting], Report]
    workload: Workload
    uses: Sequence[str] = ("sessions", "chunks", "pace_ms")
    peers: Sequence[str] = ()
    rounds: int = 5


TWELVE = {
    "chunk_burst": Benchmark(
        about="CPU a chunk when a whole response comes in one write",
        measure=measure_burst,
        workload=Workload(sessions=50, chunks=100),
        peers=[*PEERS],
    ),
    "chunk_paced": Benchmark(
        about="CPU a chunk when each comes alone, every 5 ms",
        measure=measure_paced,
        workload=Workload(sessions=50, chunks=200, pace_ms=5),
        peers=[*PEERS],
    ),
    "sessions_500": Benchmark(
        about="memory of a session while 500 stream",
        measure=measure_open,
        workload=Workload(sessions=500, chunks=20, pace_ms=250),
        peers=[*PEERS],
    ),
    "first_delta": Benchmark(
        about="time to the first text of a session that is alone",
        measure=measure_first,
        workload=Workload(sessions=15, chunks=20, pace_ms=5, at_once=1),
        peers=[*PEERS],
    ),
    "context_growth": Benchmark(
        about="a turn on 100, 1,000 and 10,000 stored messages of 1 KB",
        measure=measure_growth,
        workload=Workload(sessions=1, chunks=20, history=10_000),
        uses=["chunks", "pace_ms", "history"],
        peers=[name for name, peer in PEERS.items() if peer.remembers],
    ),
    "context_200mb": Benchmark(
        about="a turn on 200 MB of stored messages",
        measure=measure_big,
        workload=Workload(sessions=1, chunks=20, history=3_200, message_bytes=62_500),
        uses=["chunks", "pace_ms", "history"],
        peers=BIG,
    ),
    "idle_10k": Benchmark(
        about="memory of a session in which nothing happens",
        measure=measure_idle,
        workload=Workload(sessions=10_000, chunks=1),
        uses=["sessions"],
        peers=[name for name, peer in PEERS.items() if peer.idles],
    ),
    "import": Benchmark(
        about="CPU and memory of `import streamagent`",
        measure=measure_import,
        workload=Workload(sessions=0, chunks=0),
        uses=[],
        peers=[name for name, peer in PEERS.items() if peer.imports],
    ),
    "stage_cost": Benchmark(
        about="a chain of stages against plain async generators; `sessions` messages of `chunks` fragments",
        measure=measure_stages,
        workload=Workload(sessions=200, chunks=100),
        uses=["sessions", "chunks"],
    ),
    "persist": Benchmark(
        about="CPU of a stored message; `sessions` sessions that each store `chunks`",
        measure=measure_persist,
        workload=Workload(sessions=20, chunks=200, message_bytes=3_200),
        uses=["sessions", "chunks"],
    ),
    "litellm_lanes": Benchmark(
        about="CPU a chunk of each lane to a provider, against `litellm.acompletion`",
        measure=measure_lanes,
        workload=Workload(sessions=10, chunks=500),
    ),
    "tool_output": Benchmark(
        about="memory while a tool yields a gigabyte",
        measure=measure_output,
        workload=Workload(sessions=1, chunks=0, megabytes=1024),
        uses=["megabytes"],
    ),
}

BENCHMARKS = {
    **TWELVE,
    "sessions": Benchmark(
        about="thousands of open sessions, of which one in twenty streams: memory, percentiles of latency",
        measure=measure_many,
        workload=Workload(sessions=10_000, chunks=20, pace_ms=100),
        rounds=1,
    ),
    "chunk_parts": Benchmark(
        about="what each part of the runtime takes of a chunk, without a network",
        measure=measure_parts,
        workload=Workload(sessions=1, chunks=100),
        uses=["chunks"],
    ),
    "fleet": Benchmark(
        about="many workers on one PostgreSQL, simulated; `sessions` is how many workers",
        measure=measure_fleet,
        workload=Workload(sessions=1_000, chunks=0),
        uses=["sessions"],
        rounds=1,
    ),
}
