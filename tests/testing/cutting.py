"""The crash matrix: the scenario of `matrix` is cut at every point, in every way, and gone on with in a new process."""

import json
import logging
import os
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from io import StringIO
from itertools import count

from streamagent.testing import Crash, FaultPoints, for_each_point, open_victims

from .matrix import SECRET, Life, Process, check, live

SCENARIO = "tests.testing.matrix:scenario"
LEAST = 150  # points
LAG = 50.0  # milliseconds, as `persist` has it; 0 where it is not said
STEP = int(os.environ.get("STREAMAGENT_MATRIX_STEP", "0"))  # of kills; 0: as each test has it
SAMPLE = ("tool stock 1 after", "store.start_call 2 after", "store.enqueue 3 after", "model call 2 chunk 2")


def report(figure, what, points, step=1):
    """Say in the summary of the run at how many points it was cut, after which the rows were the same."""
    cut = len(range(0, points, step))
    figure(f"crash matrix, {what}: {points if step == 1 else f'{cut} of {points}'} points, all equal")
    return points


@asynccontextmanager
async def open_matrix(where, folder, **options):
    """Open a matrix, and live once without a cut."""
    lives = (Life(where, f"s{number}", str(folder), **options) for number in count())
    uncut, points = Process(next(lives)), FaultPoints()
    async with uncut.life.open() as store, uncut.life.open(tenant="other") as other:
        await live(points, uncut)
        assert {"store.start_call 3 after", "store.finish_call 3 after"} <= {*points.passed}
        with logged() as log:
            yield Matrix(lives, store, await check(store, uncut.life, [uncut]), points.passed, other, log)


@contextmanager
def logged():
    """Give what the package logs."""
    log, logger = StringIO(), logging.getLogger("streamagent")
    handler = logging.StreamHandler(log)
    logger.addHandler(handler)
    try:
        yield log
    finally:
        logger.removeHandler(handler)


class Revealing(Crash):
    """A crash that says what nobody may be told."""

    def __init__(self, text):
        super().__init__(f"{text}, {SECRET}")


class Matrix:
    """All cuts of one kind of store.

    Args:
        lives: New ones.
        store: Where they are, for whoever looks on.
        rows: Those of a life without a cut.
        names: Those of its points.
        other: Another tenant's store in the same place.
        log: What is logged.
    """

    def __init__(self, lives, store, rows, names, other, log):
        self.names = names
        self._lives = lives
        self._store = store
        self._rows = rows
        self._other = other
        self._log = log

    async def by_exception(self, *, first=None):
        """Let every point be the last of its process, then go on in another one.

        Args:
            first: Name of an earlier cut, behind which it is gone on with in the process whose points these are.

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
                    await process(FaultPoints(self._at(first), fatal=True))
                await bury()
            await process(points)

        async def process(points):
            processes.append(Process(life, len(processes)))
            await live(points, processes[-1])

        async def bury():
            """Say what time would tell: this process lives on, and so does its owner."""
            await self._store.retire(processes[-1].owner)
            for viewer in processes[-1].shown:
                viewer.behind = life.lag > 0

        async def go_on(_):
            await bury()
            await process(FaultPoints())
            await self._check(life, processes)

        return len(await for_each_point(scenario, go_on, fault=Revealing, fatal=True))

    async def by_kill(self, *, first=None, step=1):
        """Let every point be the last of a child process, then another one goes on; see `by_exception`."""
        names = None
        async with open_victims(SCENARIO) as victims:
            for at in count(1, step):
                life = next(self._lives)
                told = json.dumps(asdict(life))
                if first is not None:
                    assert await victims.run(told, at=self._at(first)) is None
                names = await victims.run(told, at=at)
                await victims.run(told)
                try:
                    await self._check(life)
                except BaseException as error:
                    error.add_note(f"killed at point {at}")
                    raise
                if names is not None:
                    break
        return len(names)

    async def _check(self, life, processes=()):
        found = {"others": [self._other], "logs": [self._log.getvalue()]}
        await check(self._store, life, processes, self._rows, **found)

    def _at(self, name):
        return self.names.index(name) + 1
