"""What a benchmark found, as a table for people and as JSON."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from .harness import Samples
from .workload import Workload

_PACKAGES = ("streamagent", "litellm", "openai", "aiohttp", "aiosqlite", "anyio", "orjson", "uvloop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A figure and what it should be.

    Args:
        name: What is measured.
        value: The figure.
        target: What it should not exceed; `None` when it is only told.
    """

    name: str
    value: float
    target: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; `None` without one."""
        return None if self.target is None else self.value <= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a benchmark found.

    Args:
        benchmark: Its name.
        workload: What was done.
        samples: Measurements of each contender, one a round.
        checks: Figures with their targets.
    """

    benchmark: str
    workload: Workload
    samples: Samples
    checks: Sequence[Check]

    def to_json(self) -> str:
        """Write everything, with versions and all samples, as one JSON object."""
        workload = {key: value for key, value in asdict(self.workload).items() if key != "url"}
        checks = [{**asdict(check), "met": check.met} for check in self.checks]
        found = {"workload": workload, "samples": self.samples, "medians": medians(self.samples), "checks": checks}
        return orjson.dumps({"benchmark": self.benchmark, "versions": versions(), **found}).decode()

    def show(self) -> None:
        """Print the medians and the checks as tables."""
        console = Console()
        console.print(_medians_table(self))
        console.print(_checks_table(self.checks))
        console.print(", ".join(f"{name} {number}" for name, number in versions().items()), style="dim")


def medians(samples: Samples) -> dict[str, dict[str, float]]:
    """Take the median over the rounds, of each contender's each measurement."""
    return {
        name: {key: median(sample[key] for sample in rounds) for key in rounds[0]} for name, rounds in samples.items()
    }


def compare(samples: Samples, ours: str, theirs: str, key: str, *, target: float | None = None) -> Check:
    """Take the median of the ratios within each round: what slows a round down slows both."""
    pairs = zip(samples[ours], samples[theirs], strict=True)
    ratio = median(mine[key] / other[key] for mine, other in pairs)
    return Check(name=f"{key}: {ours} / {theirs}", value=ratio, target=target)


def versions() -> dict[str, str]:
    """Say on what it ran."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _medians_table(report: Report) -> Table:
    found = medians(report.samples)
    columns = list(next(iter(found.values())))
    table = Table()
    table.add_column(f"{report.benchmark} (medians)")
    for column in columns:
        table.add_column(column, justify="right")
    for name, values in found.items():
        table.add_row(name, *(f"{values[column]:,.4g}" for column in columns))
    return table


def _checks_table(checks: Sequence[Check]) -> Table:
    table = Table()
    for column in ("figure", "value", "target", "met"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for check in checks:
        target = "" if check.target is None else f"≤ {check.target:g}"
        met = {None: "", True: "yes", False: "no"}[check.met]
        table.add_row(check.name, f"{check.value:.3g}", target, met)
    return table
