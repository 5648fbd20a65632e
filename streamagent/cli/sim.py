"""`streamagent sim`: many lives of an agent's session, each decided by a seed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .exits import USAGE, exit_codes, fail

if TYPE_CHECKING:
    from streamagent.agent import Agent
    from streamagent.protocols import Model


def sim(  # noqa: PLR0913 - the options of a command
    target: Annotated[str, typer.Argument(metavar="TARGET", help="'module:attr' or 'path/to/file.py'.")],
    *,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Live through this seed alone.", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds, from 0.")] = 100,
    faults: Annotated[
        str | None,
        typer.Option(
            "--faults", help="What may happen, by commas; '' for nothing, all by default.", show_default=False
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="'seeded' improvises by the seed, 'mock' answers, 'own' is the target's."),
    ] = "seeded",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print what happened in each life, and its points.")
    ] = False,
) -> None:
    """Simulate an agent's sessions: crashes, faults, impatient users, two processes at once, in virtual time.

    Exits with 1 at the first seed after which an invariant does not hold, and prints the command that repeats it.
    """
    with exit_codes():
        from streamagent.testing.simulation import FAULTS, SimulationFailed, simulate

        from .target import load_target

        agent = load_target(target, model=None, db=None).agent
        wanted = FAULTS if faults is None else tuple(filter(None, faults.split(",")))
        answers, points, rows = _model(model, agent), 0, 0
        for number in range(seeds) if seed is None else [seed]:
            try:
                lived = simulate(agent, seed=number, faults=wanted, model=answers)
            except SimulationFailed as failure:
                print(failure)
                again = "" if faults is None else f" --faults '{faults}'"
                again += "" if model == "seeded" else f" --model {model}"
                print(f"\nto repeat it: streamagent sim {target} --seed {number}{again}")
                raise typer.Exit(1) from failure
            points, rows = points + len(lived.points), rows + len(lived.rows)
            if verbose:
                print(f"seed {number}: {len(lived.rows)} rows; {'; '.join(lived.faults) or 'no fault'}")
                print(*lived.points, sep="\n", file=sys.stderr)
        lives = "1 life" if seed is not None or seeds == 1 else f"{seeds} lives"
        print(f"{lives}, {points} points, {rows} rows, no violation")


def _model(name: str, agent: Agent) -> Model | None:
    if name not in ("seeded", "mock", "own"):
        raise fail(f"--model is seeded, mock or own, not {name!r}; a provider is not asked a thousand times", USAGE)
    from streamagent.models import get_model

    return {"seeded": None, "mock": get_model("mock"), "own": agent.model}[name]
