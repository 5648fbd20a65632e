"""Each guard is taken out in turn, and the invariant that it had kept is named, in a simulation or by `apart`."""

import re
from contextlib import ExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import anyio
import pytest
from anyio import move_on_after

from streamagent import Agent, MemoryStore, Pipeline, Runtime, persist, settle, tool, tool_dispatch
from streamagent._core.profiles import Profile
from streamagent.run import Run
from streamagent.stages._execution import Execution
from streamagent.stores._ledger import Ledger
from streamagent.stores._memory_ledger import MemoryLedger
from streamagent.testing import SimulationFailed, simulate

from .apart import APART

SEEDS = 200  # within which each is seen
FEW = 40  # that pass without a mutation; test_simulation has more


@tool
async def stock(product: str) -> int:
    """Units of a product in stock."""
    return 15


@tool(requires_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return "paid"


class Skipping(MemoryStore):
    """Leaves out the second row."""

    async def read(self, session, **span):
        async with aclosing(super().read(session, **span)) as rows:
            async for row in rows:
                if row.sequence != 2:
                    yield row


class OffByOne(MemoryStore):
    """Reads from the row itself, for whoever reads on after it."""

    async def read(self, session, *, after=0, until=None):
        async with aclosing(super().read(session, after=max(after - 1, 0), until=until)) as rows:
            async for row in rows:
                yield row


class Doubling(MemoryStore):
    """Counts twice."""

    async def usage(self, session, **span):
        used = await super().usage(session, **span)
        return used + used


async def shout(stream):
    """Shows another text than was stored."""
    async for message in stream:
        yield replace(message, content=message.content.upper())


async def twice(self, tool, asked, running):
    await tool.run(asked.args, asked.context)
    return await USE(self, tool, asked, running)


async def never(asked):
    return False


def for_ever(self, prompts):
    TAKE(self, prompts)
    self.last_turn = 1_000


def without_stop(*args):
    return [row for row in CLOSINGS(*args) if row.type != "stop"]


async def at_once(self, session, **options):
    with move_on_after(0):
        await CANCEL(self, session, **options)
    return True


USE, TAKE, CLOSINGS, CANCEL = Execution._use, Run.take, settle.closings, Runtime.cancel
LOUD = Pipeline(reply=[tool_dispatch([stock, pay]), persist(), shout])
WELL = {cause: {"reason": "stop"} for cause in settle._STOPS}
MUTATIONS = {
    "calls that were left open are not closed": ("I1", mock.patch.object(settle, "close_all", lambda *_, **__: [])),
    "a row is left out when a session is read": ("I2", Skipping),
    "a stage behind persist changes what is shown": ("I3", {"pipeline": LOUD}),
    "data of one provider is sent to another": ("I4", mock.patch.object(Profile, "accepts", lambda *_: True)),
    "a call is run twice": ("I5", mock.patch.object(Execution, "_use", twice)),
    "client keys are not looked up": ("I6", mock.patch.object(MemoryLedger, "find_key", lambda *_: None)),
    "a write's fence is not compared": ("I7", mock.patch.object(Ledger, "_check", lambda *_: None)),
    "nobody is asked for an approval": ("I8", mock.patch("streamagent.stages._approval._is_gated", never)),
    "a run that was cut gets no stop": ("I9", mock.patch.object(settle, "closings", without_stop)),
    "reading on begins one row too early": ("I13", OffByOne),
    "turns are counted twice": ("I15", Doubling),
    "a run that was cut ends in ok": ("I16", mock.patch.dict(settle._STOPS, WELL)),
    "a cancel does not wait for the end": ("I18", mock.patch.object(Runtime, "cancel", at_once)),
    "turns are not limited": ("I19", mock.patch.object(Run, "take", for_ever)),
}


def lives(change=None):
    """Live through seeds, with a guard taken out; yield what each is told to have failed of."""
    options = change if isinstance(change, dict) else {}
    store = change if isinstance(change, type) else MemoryStore
    agent = Agent("mock", max_turns=2, **{"tools": [stock, pay], **options})
    for seed in range(SEEDS if change else FEW):
        try:
            with ExitStack() as stack:
                if hasattr(change, "__enter__"):
                    stack.enter_context(change)
                simulate(agent, seed=seed, make_store=store)
        except SimulationFailed as failure:
            yield str(failure)


@pytest.mark.parametrize("guard", MUTATIONS)
def test_without_the_guard_the_invariant_is_named(guard):
    invariant, change = MUTATIONS[guard]
    assert any(re.search(rf"(?m)^{invariant}: ", failure) for failure in lives(change))


def test_with_all_guards_nothing_is():
    assert [*lives()] == []


@pytest.mark.parametrize("guard", APART)
def test_without_the_guard_a_scenario_of_its_own_fails(guard, tmp_path):
    invariant, scenario, changes = APART[guard]
    anyio.run(scenario, tmp_path / "whole")
    with ExitStack() as stack, pytest.raises(AssertionError, match=rf"(?m)^{invariant}: "):
        for change in changes:
            stack.enter_context(change)
        anyio.run(scenario, tmp_path / "changed")


def test_the_list_in_the_docs_is_this_one():
    guards = {guard: invariant for guard, (invariant, *_) in (MUTATIONS | APART).items()}
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    listed = re.findall(r"^\| (I\d+) .*\| ([^|]+) \|$", page, re.MULTILINE)
    assert {guard: invariant for invariant, guard in listed} == guards
