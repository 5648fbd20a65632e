"""Seeds: the same one gives the same rows; many keep all invariants; a failure names the seed that shows it again."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from streamagent import Agent, ConfigError, MemoryStore, Message, Pipeline, compact, persist, tool, tool_dispatch
from streamagent.message import each
from streamagent.testing import ScriptedModel, SimulationFailed, answer, call, calls, simulate, simulate_resuming
from streamagent.testing.simulation import FAULTS
from streamagent.testing.simulation.model import LintedModel

ROOT = Path(__file__).parents[2]


@tool
async def stock(product: str) -> int:
    """Units of a product in stock."""
    return 15


@tool(retry_safe=True)
async def look_up(product: str) -> str:
    """Look a product up; it does no harm twice."""
    return "blue"


@tool
def ship(product: str) -> str:
    """Ship a product, in a thread."""
    return "sent"


@tool(requires_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return "paid"


@tool
async def lines(number: int) -> object:
    """Give lines one by one."""

    async def pieces():
        for line in range(3):
            yield f"{line}\n"

    return pieces()


TOOLS = [stock, look_up, ship, pay, lines]
AGENT = Agent(
    "mock", tools=TOOLS, pipeline=Pipeline(context=[compact(tokens=2_000)], reply=[tool_dispatch(TOOLS), persist()])
)
PROBE = """
from tests.testing.test_simulation import AGENT
from streamagent.testing import simulate
print([simulate(AGENT, seed=seed).told for seed in range(5)])
"""


def test_the_same_seed_gives_the_same_rows_and_another_one_others():
    first, again, other = (simulate(AGENT, seed=seed) for seed in (7, 7, 8))
    assert (first.told, first.points, first.faults) == (again.told, again.points, again.faults)
    assert first.told != other.told


def test_the_same_seed_gives_the_same_rows_in_another_process():
    said = [
        subprocess.run(
            [sys.executable, "-c", PROBE],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]


def test_what_is_wanted_happens_and_nothing_else():
    heard = {"crash": "crash", "store": "store", "tool": "tool", "model": "model"}
    heard |= {"freeze": "freeze", "leave": "left", "cancel": "cancelled", "steer": "steered", "second": "a second"}
    for fault in FAULTS:
        lives = (simulate(AGENT, seed=seed, faults=[fault]).faults for seed in range(50))
        done = next(filter(None, lives))
        assert done
        assert all(line.startswith(heard[fault]) for line in done)


def test_without_faults_everything_ends_well():
    model = ScriptedModel(calls(call("stock", product="mug")), answer("There are 15."))
    lived = simulate(AGENT, seed=1, faults=(), model=model, prompts=["How many?"])
    assert lived.faults == []
    assert [row.type for row in lived.rows[:3]] == ["text", "tool_call", "stop"]
    assert {(row.query or {})["reason"] for row in lived.rows if row.type == "stop"} <= {"stop", "tool_calls"}


def test_an_answer_is_cut_into_other_pieces_by_each_seed():
    cut = [simulate(AGENT, seed=seed, faults=(), model=ScriptedModel(answer("0123456789"))) for seed in range(10)]
    assert {row.content for lived in cut for row in lived.rows if row.role == "assistant"} == {"0123456789", ""}
    assert len({len(lived.points) / len(lived.rows) for lived in cut}) > 1


def test_a_bug_names_its_seed_and_what_came_before():
    async def buggy(stream):
        async for message in stream:
            if message.type == "stop":
                raise ValueError("a bug in a stage")
            yield message

    agent = Agent("mock", pipeline=Pipeline(reply=[persist(), buggy]))
    with pytest.raises(SimulationFailed, match=r"seed 3, after no fault:\nValueError: a bug in a stage") as caught:
        simulate(agent, seed=3, faults=())
    assert (caught.value.seed, caught.value.faults) == (3, [])
    assert any(name.endswith("behind persist") for name in caught.value.points)


def test_what_waits_for_ever_is_found_in_no_time():
    @tool(timeout=None)
    async def wait() -> None:
        """Wait."""
        await anyio.sleep_forever()

    model = ScriptedModel(calls(call("wait")))
    with pytest.raises(SimulationFailed, match="I9: something waits for ever"):
        simulate(Agent("mock", tools=[wait]), seed=1, faults=(), model=model)


def test_what_is_accepted_and_never_answered_is_found():
    class Hoarding(MemoryStore):
        async def admit(self, session, *, fence, limit=1, ids=None):
            return []

    with pytest.raises(SimulationFailed, match=r"I9: .* wait when nothing disturbs them"):
        simulate(AGENT, seed=1, faults=(), make_store=Hoarding)


@pytest.mark.parametrize(
    ("options", "text"), [({"faults": ["flood"]}, "no faults like 'flood'"), ({"prompts": []}, "one text at least")]
)
def test_what_it_does_not_know_is_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        simulate(AGENT, seed=1, **options)


def test_another_answer_after_a_death_is_found():
    """I12."""

    async def told(stream, run):
        async for message in stream:
            yield replace(message, query={**message.query, "fence": run.fence}) if message.type == "stop" else message

    agent = Agent("mock", pipeline=Pipeline(reply=[told, persist()]))
    with pytest.raises(SimulationFailed, match="I12: --- uncut"):
        for seed in range(10):
            simulate_resuming(agent, seed=seed)


@pytest.mark.parametrize("lost", [False, True])
def test_a_request_of_a_process_that_lost_its_session_is_not_judged_and_any_other_is(lost):
    """Its context may end in the midst of what the other process has stored; nobody is told what it is answered."""
    foreign = Message(type="reasoning", query={"provider": {"thinking_blocks": ["signed by chat"]}})
    context = [Message.user("Go."), foreign, Message(content="Well."), Message.stop("error")]

    async def ask():
        model = LintedModel(ScriptedModel(answer("ok")), lambda: lost)
        return [message async for message in model.stream(each(context))]

    if lost:
        assert anyio.run(ask)
    else:
        with pytest.raises(AssertionError, match=r"I4: .* data of chat is sent to anthropic/claude"):
            anyio.run(ask)
