"""`simulate`: the life of a session, decided by a seed: who comes, what fails, who is killed, what runs next.

for seed in range(100):
    simulate(agent, seed=seed)
"""

from __future__ import annotations

import gc
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest import mock

from streamagent.agent import Agent
from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.protocols import Model, Store
from streamagent.stores.memory import MemoryStore
from streamagent.testing.clock import run_in_virtual_time, seeded_schedule
from streamagent.testing.points import leaves
from streamagent.testing.same import same_rows

from .model import RechunkedModel, SeededModel
from .programs import life
from .resuming import SteadyModel, answered
from .world import FAULTS as FAULTS
from .world import World

Life = Callable[[World, Sequence[str]], Awaitable[list[Message]]]
PROMPTS = ("How many are left?", "Do it.", "And then?")
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What came of a seed.

    Args:
        seed: The seed.
        rows: The session's rows at its end.
        points: Names of the points that its processes passed, in order.
        faults: What disturbed it, in order.
    """

    seed: int
    rows: Sequence[Message]
    points: Sequence[str]
    faults: Sequence[str]

    @property
    def told(self) -> str:
        """The rows without their times, and with numbers for ids: what two runs of one seed have in common."""
        plain = [{**json.loads(row.to_json()), "created_at": None} for row in self.rows]
        numbers: dict[str, str] = {}
        return ID.sub(lambda id_: numbers.setdefault(id_.group(), f"#{len(numbers)}"), json.dumps(plain, indent=1))


class SimulationFailed(AssertionError):
    """An invariant does not hold, something waits for ever, or a bug was met.

    Args:
        seed: The seed that shows it again.
        error: What it was.
        world: Where it was.
    """

    def __init__(self, seed: int, error: BaseException, world: World) -> None:
        what = "\n".join(_told(one) for one in leaves(error))
        super().__init__(f"seed {seed}, after {'; '.join(world.done) or 'no fault'}:\n{what}")
        self.seed = seed
        self.points = world.points
        self.faults = world.done


def _check(prompts: Sequence[str], faults: Sequence[str]) -> None:
    if not prompts:
        raise ConfigError("simulate(prompts=…) takes what users ask, one text at least")
    if strange := sorted({*faults} - {*FAULTS}):
        names = ", ".join(map(repr, strange))
        raise ConfigError(f"simulate(faults=…) knows no faults like {names}; there are {', '.join(FAULTS)}")


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"


def simulate(  # noqa: PLR0913 - all by keyword
    agent: Agent,
    *,
    seed: int,
    prompts: Sequence[str] = PROMPTS,
    faults: Sequence[str] = FAULTS,
    model: Model | None = None,
    make_store: Callable[[], Store] = MemoryStore,
) -> Simulation:
    """Live through one life of a session, in virtual time and one thread, and check all invariants at its end.

    The seed decides what the model says and how that is cut into pieces, how long everything takes, which task runs
    next, what users do, what fails, when processes are killed and whether there are two of them. Synchronous tools are
    called in the event loop. The agent's store is not used, and its sub-agents answer as they always do.

    Args:
        agent: Whose stages, tools and limits are tried.
        seed: The same seed gives the same rows, as long as the agent's own code does the same.
        prompts: What users ask.
        faults: What may happen: `crash` kills a process at a point, `store`, `tool` and `model` let one fail, `leave`,
            `cancel` and `steer` are users', `second` is a second process with the same session.
        model: What answers; by default one that improvises by the seed.
        make_store: Makes the store of a life, which runs in the event loop alone: time jumps while a thread works.

    Returns:
        What came of it.

    Raises:
        SimulationFailed: An invariant does not hold, something waits for ever, or a bug was met.
        ConfigError: There is no such fault, nothing to ask, or trio is missing.
    """
    _check(prompts, faults)
    dice = Random(seed)  # noqa: S311 - to be repeated, not to be secret
    answers = SeededModel(dice) if model is None else RechunkedModel(model, dice)
    return _live(life, seed, World(agent, answers, make_store(), dice, faults), prompts)


def simulate_resuming(agent: Agent, *, seed: int, prompts: Sequence[str] = PROMPTS) -> Simulation:
    """Live through one life twice, once with processes that die; the rows are the same, as `same_rows` compares (I12).

    The model improvises by what it is asked, so that the same request has the same answer. Each tool must be
    `retry_safe`, or know by its `reconcile` what came of a call, and answer the same for the same arguments.

    Args:
        agent: Whose stages, tools and limits are tried.
        seed: Decides what is said, and where processes die: twice for each prompt at most, so that none is given up.
        prompts: What users ask, one after the other; calls that need an approval are approved.

    Returns:
        What came of the life with deaths.

    Raises:
        SimulationFailed: The rows are others, or as of `simulate`.
        ConfigError: Nothing to ask, or trio is missing.
    """
    _check(prompts, ())
    worlds = [
        World(agent, SteadyModel(seed), MemoryStore(), Random(seed), faults, linted=False)  # noqa: S311
        for faults in ((), ("crash",))
    ]
    uncut, cut = (_live(answered, seed, world, prompts) for world in worlds)
    try:
        same_rows(cut.rows, uncut.rows)
    except AssertionError as error:
        raise SimulationFailed(seed, AssertionError(f"I12: {error}"), worlds[1]) from error
    return cut


def _live(life: Life, seed: int, world: World, prompts: Sequence[str]) -> Simulation:
    with ExitStack() as stack:
        for context in (seeded_schedule(seed), _in_one_thread(), _quiet(), _uncollected()):
            stack.enter_context(context)
        try:
            rows = run_in_virtual_time(_in_store, life, world, prompts)
        except Exception as error:
            raise SimulationFailed(seed, error, world) from error
    return Simulation(seed=seed, rows=rows, points=world.points, faults=world.done)


async def _in_store(life: Life, world: World, prompts: Sequence[str]) -> list[Message]:
    async with world.store:
        return await life(world, prompts)


@contextmanager
def _in_one_thread() -> Iterator[None]:
    """Call synchronous tools in the event loop: time would jump while a thread works."""

    async def call(function: Callable[[], Any], _cancelled: object) -> Any:
        return function()

    with mock.patch("streamagent.tools.plain.run_in_thread", call):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the log of faults that were wanted out of the output."""
    logger = logging.getLogger("streamagent")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage of a life until its end: when it is collected depends on all that the program did before."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
