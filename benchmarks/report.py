"""What a benchmark found, as a table for people and as JSON."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from . import peers
from .harness import Samples, Tick
from .measure import loop
from .workload import Workload

_PACKAGES = ("streamagent", "aiohttp", "aiosqlite", "anyio", "litellm", "msgspec", "orjson", "uvloop")

_WIDE = 6  # measurements that fit beside one another
_WIDTH = 140  # columns, where there is no terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a benchmark is to be run.

    Args:
        name: Of the benchmark.
        workload: What is to be done.
        rounds: How often; the median counts.
        tick: Told what runs next.
        peers: Who else does the work.
        absent: Peers that were asked for, could take part, and are not installed.
        published: The workload is that of the published figures, for which the targets are.
    """

    name: str
    workload: Workload
    rounds: int
    tick: Tick
    peers: Sequence[str] = ()
    absent: Sequence[str] = ()
    published: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A figure and what it should be.

    Args:
        name: What is measured.
        value: The figure.
        target: What it should not exceed; `None` when it is only told.
        at_least: The target is what it should reach.
    """

    name: str
    value: float
    target: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; `None` without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a benchmark found.

    Args:
        setting: How it was run.
        samples: Measurements of each contender, one a round.
        checks: Figures with their targets.
    """

    setting: Setting
    samples: Samples
    checks: Sequence[Check]

    @property
    def absent(self) -> list[str]:
        """Peers that could have taken part, and are not installed, or failed."""
        return [*self.setting.absent, *(name for name in self.setting.peers if name not in self.samples)]

    def to_json(self) -> str:
        """Write everything, with versions and all samples, as one JSON object."""
        return orjson.dumps(self.to_dict()).decode()

    def to_dict(self) -> dict[str, Any]:
        """Return everything, with versions and all samples."""
        workload = {key: value for key, value in asdict(self.setting.workload).items() if key not in ("url", "folder")}
        return {
            "benchmark": self.setting.name,
            "versions": versions(self.samples),
            "workload": workload,
            "published": self.setting.published,
            "rounds": self.setting.rounds,
            "absent": self.absent,
            "samples": self.samples,
            "medians": medians(self.samples),
            "checks": [{**asdict(check), "met": check.met} for check in self.checks],
        }

    def show(self) -> None:
        """Print the medians and the checks as tables."""
        console = Console()
        if not console.is_terminal:
            console = Console(width=_WIDTH)
        console.print(_medians_table(self))
        if self.checks:
            console.print(_checks_table(self.checks))
            if not self.setting.published:
                console.print("the targets are for another workload: that of the published figures", style="dim")
        console.print(", ".join(f"{name} {number}" for name, number in versions(self.samples).items()), style="dim")
        if self.absent:
            console.print(f"not installed, or failed: {', '.join(self.absent)}", style="dim")


def medians(samples: Samples) -> dict[str, dict[str, float]]:
    """Take the median over the rounds, of each contender's each measurement."""
    return {
        name: {key: median(sample[key] for sample in rounds) for key in rounds[0]} for name, rounds in samples.items()
    }


def compare(samples: Samples, ours: str, theirs: str, key: str, **target: Any) -> Check:
    """Take the median of the ratios within each round: what slows a round down slows both."""
    pairs = zip(samples[ours], samples[theirs], strict=True)
    ratio = median(mine[key] / other[key] for mine, other in pairs)
    return Check(name=f"{key}: {ours} / {theirs}", value=ratio, **target)


def subtract(samples: Samples, ours: str, theirs: str, key: str, **target: Any) -> Check:
    """Take the median of the differences within each round."""
    pairs = zip(samples[ours], samples[theirs], strict=True)
    return Check(
        name=f"{key}: {ours} - {theirs}", value=median(mine[key] - other[key] for mine, other in pairs), **target
    )


def middle(samples: Samples, ours: str, key: str, **target: Any) -> Check:
    """Take the median over the rounds."""
    return Check(name=f"{key}: {ours}", value=median(sample[key] for sample in samples[ours]), **target)


def versions(contenders: Iterable[str] = ()) -> dict[str, str]:
    """Say on what it ran, the loop too, and which versions the peers among the contenders have."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "loop": loop(),
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    for name in peers.installed(contender for contender in contenders if contender in peers.PEERS):
        found |= {f"{name}: {package}": number for package, number in peers.versions(name).items()}
    return found


def _medians_table(report: Report) -> Table:
    """Give each contender a row, or a column where more than a few things were measured."""
    found = medians(report.samples)
    keys = list(dict.fromkeys(key for values in found.values() for key in values))
    across = len(keys) > _WIDE
    table = Table()
    table.add_column(f"{report.setting.name} (medians of {report.setting.rounds})")
    for column in found if across else keys:
        table.add_column(column, justify="right")
    for row in keys if across else found:
        cells = [(name, row) for name in found] if across else [(row, key) for key in keys]
        table.add_row(row, *(f"{found[name][key]:,.4g}" if key in found[name] else "" for name, key in cells))
    return table


def _checks_table(checks: Sequence[Check]) -> Table:
    table = Table()
    for column in ("figure", "value", "target", "met"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for check in checks:
        target = "" if check.target is None else f"{'≥' if check.at_least else '≤'} {check.target:g}"
        met = {None: "", True: "yes", False: "no"}[check.met]
        table.add_row(check.name, f"{check.value:.3g}", target, met)
    return table
