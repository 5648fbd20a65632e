"""The command line: `python -m benchmarks NAME [--json]`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from .chunks import measure_sessions
from .fleet import measure_fleet
from .harness import Tick
from .idle import measure_idle
from .imports import measure_import
from .report import Report
from .stages import measure_stages
from .workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark and the workload that its published figures are of."""

    about: str
    measure: Callable[[str, Workload, int, Tick], Report]
    workload: Workload
    rounds: int = 5


BENCHMARKS = {
    "sessions": Benchmark(
        about="many sessions at once: CPU a chunk, sessions a second, memory a session",
        measure=measure_sessions,
        workload=Workload(sessions=500, chunks=100),
        rounds=1,
    ),
    "chunk_burst": Benchmark(
        about="CPU a chunk when a whole response comes in one write",
        measure=measure_sessions,
        workload=Workload(sessions=50, chunks=100),
    ),
    "chunk_paced": Benchmark(
        about="CPU a chunk when each comes alone, every 5 ms",
        measure=measure_sessions,
        workload=Workload(sessions=50, chunks=100, pace_ms=5),
    ),
    "stage_cost": Benchmark(
        about="a chain of stages against plain async generators; `sessions` messages of `chunks` fragments",
        measure=measure_stages,
        workload=Workload(sessions=200, chunks=100),
    ),
    "idle": Benchmark(
        about="memory of a session in which nothing happens",
        measure=measure_idle,
        workload=Workload(sessions=10_000, chunks=0),
    ),
    "fleet": Benchmark(
        about="many workers on one PostgreSQL, simulated; `sessions` is how many workers",
        measure=measure_fleet,
        workload=Workload(sessions=1_000, chunks=0),
        rounds=1,
    ),
    "import": Benchmark(
        about="CPU and memory of `import streamagent`",
        measure=measure_import,
        workload=Workload(sessions=0, chunks=0),
    ),
}


def main() -> None:
    """Run one benchmark and print what it found."""
    options = _options()
    benchmark = BENCHMARKS[options.name]
    given = {key: getattr(options, key) for key in ("sessions", "chunks") if getattr(options, key)}
    workload = replace(benchmark.workload, **given)
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:1], TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(options.name, total=None)

        def tick(step: str) -> None:
            progress.update(task, description=f"{options.name}: {step}")

        report = benchmark.measure(options.name, workload, options.rounds or benchmark.rounds, tick)
    if options.json:
        print(report.to_json())
    else:
        report.show()


def _options() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks", description="Measure what streamagent costs.")
    names = "; ".join(f"{name}: {benchmark.about}" for name, benchmark in BENCHMARKS.items())
    parser.add_argument("name", choices=BENCHMARKS, metavar="NAME", help=names)
    parser.add_argument("--json", action="store_true", help="print one JSON object with versions and all samples")
    parser.add_argument("--rounds", type=_count, help="interleaved rounds; the median counts")
    parser.add_argument("--sessions", type=_count, help="sessions that run at once")
    parser.add_argument("--chunks", type=_count, help="chunks of text in each turn")
    return parser.parse_args()


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("a count is 1 or more")
    return number


if __name__ == "__main__":
    main()
