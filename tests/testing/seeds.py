"""Many seeds, in blocks: `STREAMAGENT_SEEDS=20000` for more, `STREAMAGENT_FIRST_SEED=2000` for others."""

import os
from collections import Counter
from time import process_time

import pytest

from streamagent import Agent, tool
from streamagent.calls import ToolContext
from streamagent.testing import SimulationFailed, simulate, simulate_resuming

from .test_simulation import AGENT, TOOLS, look_up

SEEDS = int(os.environ.get("STREAMAGENT_SEEDS", "2000"))
FIRST = int(os.environ.get("STREAMAGENT_FIRST_SEED", "0"))
BLOCKS = 8  # half of them in each of two files: a file is what a worker of the suite takes
STEADY = 10  # one of so many is lived through twice, with and without deaths
TEAMS = 20  # one of so many seeds is a life with sub-agents, which takes several times as long

sent = Counter()


@tool
async def send(context: ToolContext, product: str) -> str:
    """Send a product, and write that down."""
    sent[context.idempotency_key] += 1
    return "sent"


HELPER = Agent("mock", tools=[send], name="helper", description="Helps.")
TEAM = Agent("mock", tools=[*TOOLS, HELPER.as_tool()])


@tool(retry_safe=True, requires_approval=True)
async def reserve(product: str) -> str:
    """Reserve a product; once more does no harm."""
    return f"reserved {product}"


@tool(reconcile=lambda asked: f"booked {asked.args['product']}")
async def book(product: str) -> str:
    """Book a product; the tool knows what came of a call."""
    return f"booked {product}"


RESUMED = Agent("mock", tools=[look_up, reserve, book])
TIMEOUT = pytest.mark.timeout(max(120, SEEDS))


def failures(block, record_property):
    """Live through the seeds of a block; return what they failed of, and record how many they were, in how long."""
    found, began = [], process_time()
    seeds = range(FIRST + block, FIRST + SEEDS, BLOCKS)
    for number, seed in enumerate(seeds):
        sent.clear()
        try:
            if number % STEADY == 1:
                simulate_resuming(RESUMED, seed=seed)
            else:
                simulate(AGENT if number % TEAMS else TEAM, seed=seed)
        except SimulationFailed as failure:
            found.append(str(failure))
        found += [f"seed {seed}: {key} was sent {times} times" for key, times in sent.items() if times > 1]
    record_property("seeds", [len(seeds), process_time() - began])
    return found
