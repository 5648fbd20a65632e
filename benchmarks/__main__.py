"""The command line: `python -m benchmarks NAME|all [--json] [--plot]`, `python -m benchmarks peers list|install`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from subprocess import CalledProcessError, TimeoutExpired

import orjson
from rich.console import Console
from rich.progress import Progress, TaskID, TimeElapsedColumn

from . import peers
from .catalog import BENCHMARKS, TWELVE
from .harness import Tick
from .report import Report, Setting

_GIVEN = ("sessions", "chunks", "pace_ms", "history", "megabytes")


def main() -> None:
    """Do what the command line says."""
    options = _options()
    if options.name == "peers":
        sys.exit(_peers(options.what, options.peer))
    names = [*TWELVE] if options.name == "all" else [options.name]
    reports = []
    for report in _run(names, options):
        reports.append(report)
        if not options.json:
            report.show()
    found = [report.to_dict() for report in reports]
    if options.json and found:
        print(orjson.dumps(found if options.name == "all" else found[0]).decode())
    if options.plot:
        from .plot import plot

        print(*plot(found), sep="\n", file=sys.stderr)
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
    there = peers.installed(options.peers)
    given = {key: getattr(options, key) for key in _GIVEN if getattr(options, key)}
    return Setting(
        name=name,
        workload=replace(benchmark.workload, **given),
        rounds=options.rounds or benchmark.rounds,
        tick=tick,
        peers=there,
        absent=[peer for peer in options.peers if peer not in there],
        published=not given,
    )


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
    about = {name: benchmark.about for name, benchmark in BENCHMARKS.items()}
    for name, help_ in {"all": "the twelve, one after the other", **about}.items():
        _add_options(commands.add_parser(name, help=help_, description=help_))
    peer = commands.add_parser("peers", help="list what is compared with, or install it, each in its own environment")
    peer.add_argument("what", choices=["list", "install"])
    peer.add_argument("peer", nargs="*", choices=[*peers.PEERS, []], metavar="NAME", help=", ".join(peers.PEERS))
    return parser.parse_args()


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON with versions and all samples")
    parser.add_argument("--plot", action="store_true", help="draw charts into docs/benchmarks")
    parser.add_argument(
        "--peers",
        type=_names,
        default=[*peers.PEERS],
        help="names by commas, or none; by default all that are installed",
    )
    parser.add_argument("--rounds", type=_count, help="interleaved rounds; the median counts")
    parser.add_argument("--sessions", type=_count, help="sessions, each with two turns and a tool")
    parser.add_argument("--chunks", type=_count, help="chunks of text in each turn")
    parser.add_argument("--pace", type=float, dest="pace_ms", help="milliseconds between two chunks")
    parser.add_argument("--history", type=_count, help="messages that are stored before a turn")
    parser.add_argument("--megabytes", type=_count, help="what a tool yields")


def _names(text: str) -> list[str]:
    names = [] if text == "none" else text.split(",")
    if unknown := {*names} - {*peers.PEERS}:
        raise ArgumentTypeError(f"there is no peer {', '.join(sorted(unknown))}; there are {', '.join(peers.PEERS)}")
    return names


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("a count is 1 or more")
    return number


if __name__ == "__main__":
    main()
