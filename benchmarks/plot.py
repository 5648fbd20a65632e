"""Charts of what was found, as PNG and SVG; needs the extra `plot`.

`python -m benchmarks.plot FILE…` draws what `--json` has printed before.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

Report = Mapping[str, Any]  # as `Report.to_dict` gives it

MISUSE = 2  # the exit code of argparse
NO_MATPLOTLIB = "charts are drawn by matplotlib, which is not installed; from the checkout: pip install -e '.[plot]'"
FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"

_SIZE = (8.0, 4.5)  # inches
_OURS, _FLOOR, _PEER = "#0b6e4f", "#9aa5b1", "#c8553d"
_FLOORS = ("aiohttp_loop", "aiohttp_rows", "aiosqlite", "python", "plain")
_SPREAD = 20  # times the smallest bar: above this the scale is logarithmic
_BARS = {
    "chunk_burst": ("cpu_us_per_chunk", "CPU a chunk in µs, whole responses in one write"),
    "chunk_paced": ("cpu_us_per_chunk", "CPU a chunk in µs, one every 5 ms"),
    "sessions_500": ("rss_kb_per_session", "memory of a streaming session in KB"),
    "first_delta": ("first_ms", "time to the first text in ms, of which 10 are the server's"),
    "context_200mb": ("peak_mb at", "growth of memory in MB, a turn on 200 MB of messages"),
    "idle_10k": ("rss_kb_per_session", "memory of an idle session in KB"),
    "import": ("cpu_s", "CPU of the import in s"),
    "stage_cost": ("ns_per_message", "CPU a fragment in ns, source included"),
    "persist": ("cpu_us_per_message", "CPU a stored message in µs"),
    "litellm_lanes": ("cpu_us_per_chunk", "CPU a chunk in µs, by the lane to the provider"),
}
_LINES = {"context_growth": ("cpu_ms at", "stored messages of 1 KB", "CPU of a turn in ms")}


def can_plot() -> bool:
    """Return whether there is what draws."""
    return find_spec("matplotlib") is not None


def tell_plots(reports: Iterable[Report], folder: Path = FOLDER) -> Iterator[str]:
    """Draw each report that has a chart; yield a line for each file, and for each report without a chart."""
    for report in reports:
        files = plot([report], folder)
        yield from [str(file) for file in files] or [f"{report['benchmark']} has no chart"]


def plot(reports: Iterable[Report], folder: Path = FOLDER) -> list[Path]:
    """Draw each report that has a chart.

    Args:
        reports: As `Report.to_dict` gives them.
        folder: Where the files go.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for report in reports:
        name = report["benchmark"]
        if name in _BARS:
            files += _save(folder / name, _draw_bars, report)
        elif name in _LINES:
            files += _save(folder / name, _draw_lines, report)
    return files


def _save(path: Path, draw: Callable[[Any, Report], None], report: Report) -> Sequence[Path]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = path.name  # the same figures give the same file
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes, report)
    files = [path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")]
    figure.savefig(files[0], dpi=144)
    figure.savefig(files[1], metadata={"Date": None})
    return files


def _draw_bars(axes: Any, report: Report) -> None:
    key, title = _BARS[report["benchmark"]]
    found = {name: _value(values, key) for name, values in report["medians"].items()}
    bars = sorted(found.items(), key=lambda item: item[1], reverse=True)
    drawn = axes.barh([name for name, _ in bars], [value for _, value in bars], color=[_color(n) for n, _ in bars])
    axes.bar_label(drawn, labels=[f"{value:,.4g}" for _, value in bars], padding=3)
    if 0 < min(found.values()) * _SPREAD < max(found.values()):
        axes.set_xscale("log")
        axes.set_xlabel("logarithmic scale")
    axes.margins(x=0.15)
    axes.set_title(_titled(title, report), loc="left")


def _draw_lines(axes: Any, report: Report) -> None:
    key, across, up = _LINES[report["benchmark"]]
    for name, values in report["medians"].items():
        points = sorted((int(told.removeprefix(key)), value) for told, value in values.items() if told.startswith(key))
        axes.plot(*zip(*points, strict=True), marker="o", label=name, color=_OURS if _is_ours(name) else None)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"{across}; both scales are logarithmic")
    axes.set_title(_titled(up, report), loc="left")
    axes.legend(frameon=False)


def _value(values: Mapping[str, float], key: str) -> float:
    return next(value for told, value in values.items() if told.startswith(key))


def _titled(title: str, report: Report) -> str:
    return f"{report['benchmark']}: {title}\nless is better; medians of {report['rounds']}"


def _is_ours(name: str) -> bool:
    return name.startswith("streamagent")


def _color(name: str) -> str:
    if _is_ours(name):
        return _OURS
    return _FLOOR if name.startswith(_FLOORS) else _PEER


def main() -> None:
    """Draw what the files hold that the command line names."""
    parser = ArgumentParser(prog="python -m benchmarks.plot", description="Draw charts into docs/benchmarks.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what --json printed")
    files = parser.parse_args().files
    if not can_plot():
        parser.exit(MISUSE, f"{NO_MATPLOTLIB}\n")
    for file in files:
        try:
            found = orjson.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            parser.error(f"{file}: {error}")
        print(*tell_plots(found if isinstance(found, list) else [found]), sep="\n")


if __name__ == "__main__":
    main()
