"""The crash matrix: the scenario of `matrix` is cut at every point, in every way, and gone on with in a new process."""

import json
import os
from contextlib import suppress
from dataclasses import asdict
from itertools import count

from streamagent.testing import Crash, FaultPoints, for_each_point, open_victims

from .matrix import Life, Process, check, live

SCENARIO = "tests.testing.matrix:scenario"
LEAST = 150  # points
LAG = 50.0  # milliseconds, as `persist` has it; 0 where it is not said
STEP = int(os.environ.get("STREAMAGENT_MATRIX_STEP", "1"))  # of kills
SAMPLE = ("tool stock 1 after", "store.start_call 2 after", "store.enqueue 3 after", "model call 2 chunk 2")


def report(how, where, points):
    """Print how many points there were, which `pytest -s` shows; return it."""
    print(f"crash matrix, {how}, {where}: {points} points")
    return points


class Matrix:
    """All cuts of one kind of store.

    Args:
        where: As of `Life`.
        folder: Where the effects are written down.
        options: As of `Life`.
    """

    def __init__(self, where, folder, **options):
        self._lives = (Life(where, f"s{number}", str(folder), **options) for number in count())
        self._uncut = None

    async def uncut(self):
        """Live without a cut; return the names of the points."""
        life, process, points = next(self._lives), Process(), FaultPoints()
        await live(life, points, process)
        self._uncut = await check(life, [process])
        return points.passed

    async def by_exception(self, *, first=None):
        """Let every point be the last of its process, then go on in another one.

        Args:
            first: An earlier cut, behind which it is gone on with in the process whose points these are.

        Returns:
            How many points there were.
        """
        life, processes = None, []

        async def scenario(points):
            nonlocal life
            life = next(self._lives)
            processes.clear()
            if first is not None:
                with suppress(Crash):
                    await process(FaultPoints(first, fatal=True))
                await bury()
            await process(points)

        async def process(points):
            processes.append(Process(len(processes)))
            await live(life, points, processes[-1])

        async def bury():
            """Say what time would tell: this process lives on, and so does its owner."""
            async with life.open() as store:
                await store.retire(processes[-1].owner)
            for viewer in processes[-1].shown:
                viewer.behind = life.lag > 0

        async def go_on(_):
            await bury()
            await process(FaultPoints())
            await check(life, processes, self._uncut)

        return len(await for_each_point(scenario, go_on, fatal=True))

    async def by_kill(self, *, first=None, step=1):
        """Let every point be the last of a child process, then another one goes on; see `by_exception`."""
        async with open_victims(SCENARIO) as victims:
            for at in count(1, step):
                life = next(self._lives)
                told = json.dumps(asdict(life))
                if first is not None:
                    assert await victims.run(told, at=first) is None
                names = await victims.run(told, at=at)
                await victims.run(told)
                try:
                    await check(life, uncut=self._uncut)
                except BaseException as error:
                    error.add_note(f"killed at point {at}")
                    raise
                if names is not None:
                    return len(names)
        return None
