"""`import`: what `import streamagent` costs a process."""

from __future__ import annotations

from statistics import median

from .harness import Samples, Tick, child_environment, run_child
from .report import Check, Report
from .workload import Workload

_TARGET_SECONDS = 0.15
_TARGET_MB = 40
_PROBE = """
import time
from benchmarks.memory import rss
before = time.process_time()
{statement}
print('{{"cpu_s": %r, "rss_mb": %r}}' % (time.process_time() - before, rss() / 1024**2))
"""


def measure_import(name: str, workload: Workload, rounds: int, tick: Tick) -> Report:
    """Import in fresh processes, beside ones that import nothing; the first import compiles and does not count."""
    statements = {"python": "pass", "streamagent": "import streamagent"}
    samples: Samples = {contender: [] for contender in statements}
    with child_environment() as environment:
        run_child(environment, "-c", _PROBE.format(statement=statements["streamagent"]))
        for number in range(rounds):
            tick(f"round {number + 1}")
            for contender, statement in statements.items():
                samples[contender].append(run_child(environment, "-c", _PROBE.format(statement=statement)))
    ours = samples["streamagent"]
    checks = [
        Check(name="seconds of CPU", value=median(sample["cpu_s"] for sample in ours), target=_TARGET_SECONDS),
        Check(name="MB of RSS", value=median(sample["rss_mb"] for sample in ours), target=_TARGET_MB),
    ]
    return Report(benchmark=name, workload=workload, samples=samples, checks=checks)
