"""`sessions`: thousands of open sessions, of which some stream: memory, and percentiles of how long they take."""

from __future__ import annotations

from .chunks import OURS
from .harness import interleave
from .report import Report, Setting


def measure_many(setting: Setting) -> Report:
    """Open the sessions of the workload, and let one in twenty of them stream."""
    samples = interleave([OURS], setting.workload, setting.rounds, setting.tick, "many")
    return Report(setting=setting, samples=samples, checks=[])
