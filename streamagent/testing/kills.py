"""Kills: a child process ends at a point, as by `kill -9`; `for_each_kill` tries every one.

It is also what runs in the child: `python -m streamagent.testing.kills MODULE:FUNCTION AT ONLY [ARG …]`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

import anyio

from .points import MOST, FaultPoints

KILLED = 137  # the exit code that shells report of a process that was killed


async def for_each_kill(
    scenario: str,
    *args: str,
    check: Callable[[int], Awaitable[Any]],
    only: str = "",
    first: int = 1,
    step: int = 1,
) -> list[str]:
    """Run a scenario in a child process that ends at the first point; then at the second; until one comes through.

    Nothing of a process runs after its point: no `finally`, no flush. A child takes some tenths of a second, so a
    long scenario may be tried at every `step`-th point, another `first` each time.

    Args:
        scenario: `module:function`; it is called with the child's `FaultPoints` and `args`, on asyncio.
        args: What it needs to know, such as the path of a file.
        check: Called after each child with the number of its point, also after the one that came through: resumes
            what the child has left, and asserts what must hold.
        only: Beginning of the names of the points that count.
        first: The first point, from 1.
        step: How many points further the next one is.

    Returns:
        Names of all points.

    Raises:
        AssertionError: A child failed by itself; the text has what it wrote to standard error.
    """
    for at in count(first, step):
        names = await _child(scenario, at, only, args)
        try:
            await check(at)
        except BaseException as error:
            error.add_note(f"killed at point {at}")
            raise
        if names is not None:
            return names
        if at >= MOST:
            raise AssertionError(f"{scenario} was killed at {at} points and has more")
    raise AssertionError  # `count` has no end


async def _child(scenario: str, at: int, only: str, args: tuple[str, ...]) -> list[str] | None:
    """Run one child; return the names of its points if it came through."""
    command = [sys.executable, "-m", __name__, scenario, str(at), only, *args]
    paths = os.pathsep.join(path or "." for path in sys.path)
    environment = {**os.environ, "PYTHONPATH": paths}
    done = await anyio.run_process(command, stdin=subprocess.DEVNULL, check=False, env=environment)
    if done.returncode == KILLED:
        return None
    if done.returncode:
        raise AssertionError(f"{scenario} failed before point {at}:\n{done.stderr.decode(errors='replace')}")
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def main(scenario: str, at: str, only: str, *args: str) -> None:
    """Run a scenario, in the child; print the names of its points if it comes through."""
    module, _, name = scenario.partition(":")
    function = getattr(importlib.import_module(module), name)
    points = FaultPoints(int(at), partial(os._exit, KILLED), only=only)
    with points:
        anyio.run(function, points, *args)
    print(json.dumps(points.passed))  # noqa: T201 - for the parent


if __name__ == "__main__":
    main(*sys.argv[1:])
