"""The command line: `python -m benchmarks NAME|all [--json] [--plot]`, `python -m benchmarks peers list|install`."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import inf, nan
from subprocess import CalledProcessError, TimeoutExpired
from typing import Any

import orjson
from rich.console import Console
from rich.progress import Progress, TaskID, TimeElapsedColumn

from . import peers
from .catalog import BENCHMARKS, TWELVE
from .harness import Tick
from .plot import MISUSE, NO_MATPLOTLIB, can_plot, tell_plots
from .report import Report, Setting

_WORKLOAD = {
    "sessions": "sessions, each with two turns and a tool",
    "chunks": "chunks of text in each turn",
    "pace_ms": "milliseconds between two chunks; 0 sends a whole response in one write",
    "history": "messages that are stored before a turn",
    "megabytes": "what a tool yields",
}


def main() -> None:
    """Do what the command line says."""
    options = _options()
    if options.name == "peers":
        sys.exit(_peers(options.what, options.peer))
    if options.plot and not can_plot():
        print(NO_MATPLOTLIB, file=sys.stderr)
        sys.exit(MISUSE)
    names = [*TWELVE] if options.name == "all" else [options.name]
    reports = []
    for report in _run(names, options):
        reports.append(report)
        if not options.json:
            report.show()
    found = [report.to_dict() for report in reports]
    if options.json and found:
        print(orjson.dumps(found if options.name == "all" else found[0]).decode())
    for line in tell_plots(found) if options.plot else ():
        print(line, file=sys.stderr)
    sys.exit(len(reports) < len(names))


def _run(names: Sequence[str], options: Namespace) -> Iterator[Report]:
    """Run benchmarks one after the other; one that fails is named, and the next one runs."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:1], TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        for name in names:
            task = progress.add_task(name, total=None)

            def tick(step: str, name: str = name, task: TaskID = task) -> None:
                progress.update(task, description=f"{name}: {step}")

            try:
                yield BENCHMARKS[name].measure(_setting(name, options, tick))
            except (RuntimeError, TimeoutExpired) as error:
                print(f"{name} failed: {error}", file=sys.stderr)
            progress.remove_task(task)


def _setting(name: str, options: Namespace, tick: Tick) -> Setting:
    benchmark = BENCHMARKS[name]
    asked = [peer for peer in options.peers if peer in benchmark.peers]
    there = peers.installed(asked)
    workload = replace(benchmark.workload, **{key: value for key, value in _given(options) if key in benchmark.uses})
    return Setting(
        name=name,
        workload=workload,
        rounds=options.rounds or benchmark.rounds,
        tick=tick,
        peers=there,
        absent=[peer for peer in asked if peer not in there],
        published=workload == benchmark.workload,
    )


def _given(options: Namespace) -> Iterator[tuple[str, Any]]:
    return ((key, value) for key in _WORKLOAD if (value := getattr(options, key)) is not None)


def _peers(what: str, names: Sequence[str]) -> int:
    """List the peers, or install them one by one; return the exit code."""
    failed = 0
    for name in names or peers.PEERS:
        if what == "install":
            print(f"{name}: {', '.join(peers.PEERS[name].packages)}", file=sys.stderr)
            try:
                peers.install(name)
            except (CalledProcessError, FileNotFoundError) as error:
                print(f"{name} was not installed: {error}", file=sys.stderr)
                failed += 1
        there = peers.versions(name) if peers.installed([name]) else {}
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in there.items()) or 'not installed'}")
    return min(1, failed)


def _options() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks", description="Measure what streamagent costs.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    about = "the twelve, one after the other"
    _add_options(commands.add_parser("all", help=about, description=about), _WORKLOAD)
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(name, help=benchmark.about, description=benchmark.about)
        _add_options(command, benchmark.uses, benchmark.rounds)
    peer = commands.add_parser("peers", help="list what is compared with, or install it, each in its own environment")
    peer.add_argument("what", choices=["list", "install"], metavar="list|install")
    named = f"which; by default all: {', '.join(peers.PEERS)}"
    peer.add_argument("peer", nargs="*", type=_peer, default=[], metavar="NAME", help=named)
    return parser.parse_args()


def _add_options(parser: ArgumentParser, uses: Collection[str], rounds: int | None = None) -> None:
    """Add the options; the workload's are taken from all benchmarks, and shown by those that go by them."""
    parser.add_argument("--json", action="store_true", help="print JSON with versions and all samples")
    parser.add_argument("--plot", action="store_true", help="draw charts into docs/benchmarks; extra `plot`")
    parser.add_argument(
        "--peers",
        type=_names,
        default=[*peers.PEERS],
        help="names by commas, or none; by default all that are installed",
    )
    told = f", {rounds} by default" if rounds else ""
    parser.add_argument("--rounds", type=_count, help=f"interleaved rounds{told}; the medians count")
    for key, help_ in _WORKLOAD.items():
        told = help_ if key in uses else SUPPRESS
        if key == "pace_ms":
            parser.add_argument("--pace", type=_pace, dest=key, metavar="MS", help=told)
        else:
            parser.add_argument(f"--{key}", type=_count, metavar="N", help=told)


def _names(text: str) -> list[str]:
    return [] if text == "none" else [_peer(name) for name in text.split(",")]


def _peer(name: str) -> str:
    if name not in peers.PEERS:
        raise ArgumentTypeError(f"there is no peer {name!r}; there are {', '.join(peers.PEERS)}")
    return name


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"a count is 1 or more, not {text!r}")
    return number


def _pace(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not 0 <= number < inf:
        raise ArgumentTypeError(f"a pace is 0 milliseconds or more, not {text!r}")
    return number
