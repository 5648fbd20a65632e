"""Virtual time: hours pass in none, for the package's own waits too, and a seed decides which task runs next."""

import sys
import time
from types import SimpleNamespace

import anyio
import pytest
from anyio.lowlevel import checkpoint

from streamagent import Agent, ConfigError, MemoryStore, ModelSettings, tool
from streamagent.testing import ScriptedModel, answer, call, calls, run_in_virtual_time, virtual_time
from streamagent.testing.clock import seeded_schedule

HOUR = 3_600


@pytest.fixture(params=[("trio", {})], ids=["virtual"])
def anyio_backend():
    return virtual_time()


@pytest.mark.anyio
async def test_timeouts_and_deadlines_of_the_package_pass_in_no_time():
    @tool(timeout=HOUR)
    async def wait() -> None:
        """Wait."""
        await anyio.sleep_forever()

    model = ScriptedModel(calls(call("wait")), answer("It took too long."))
    agent = Agent(model, tools=[wait], store=MemoryStore())
    started, real = anyio.current_time(), time.monotonic()
    async with agent.session("s") as session:
        assert (await session.ask("Wait.")).text == "It took too long."
    assert HOUR <= anyio.current_time() - started < 2 * HOUR
    assert time.monotonic() - real < HOUR / 100


@pytest.mark.anyio
async def test_a_stalled_model_is_cut_at_the_runs_deadline():
    agent = Agent(ScriptedModel([]), timeout=2 * HOUR, settings=ModelSettings(), store=MemoryStore())
    async with agent.session("s") as session:
        assert (await session.ask("Hello?")).reason == "deadline"


async def order():
    """Tell in which order ten tasks ran that could have run in any."""
    seen = []

    async def one(number):
        await checkpoint()
        seen.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(one, number)
    return seen


def test_the_same_seed_runs_tasks_in_the_same_order_and_others_in_others():
    orders = {}
    for seed in (1, 2, 3, 1, 2, 3):
        with seeded_schedule(seed):
            orders.setdefault(seed, []).append(tuple(run_in_virtual_time(order)))
    assert all(first == second for first, second in orders.values())
    assert len({first for first, _ in orders.values()}) > 1
    assert sorted(orders[1][0]) == list(range(10))


def test_trio_is_left_as_it_was():
    from trio._core import _run

    before = (_run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate())
    with seeded_schedule(1):
        assert _run._ALLOW_DETERMINISTIC_SCHEDULING
    assert (_run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()) == before


def test_it_runs_beside_a_loop_that_stands_still():
    async def outer():
        return run_in_virtual_time(order)

    assert sorted(anyio.run(outer)) == sorted(anyio.run(outer, backend="trio")) == list(range(10))


def test_a_trio_that_cannot_and_one_that_is_missing_are_named(monkeypatch):
    with monkeypatch.context() as changed, pytest.raises(ConfigError, match=r"trio 0\.27"):
        changed.setattr("trio._core._run", SimpleNamespace())
        with seeded_schedule(1):
            raise AssertionError
    for begin in (virtual_time, lambda: seeded_schedule(1).__enter__()):
        with monkeypatch.context() as changed, pytest.raises(ConfigError, match="pip install trio"):
            changed.setitem(sys.modules, "trio.testing", None)
            begin()
