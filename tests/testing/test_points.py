"""Every point of a run is found, named and hit once; after a fault at any of them the rows keep all invariants."""

from functools import partial

import pytest

from streamagent import (
    Agent,
    ConfigError,
    MemoryStore,
    Message,
    Pipeline,
    Runtime,
    StoreFull,
    persist,
    tool,
    tool_dispatch,
)
from streamagent.testing import (
    Crash,
    FaultPoints,
    ScriptedModel,
    answer,
    call,
    calls,
    check_session,
    faulty,
    for_each_point,
    point,
    watched,
)
from streamagent.testing.watched import with_tools

pytestmark = pytest.mark.anyio


class Shop:
    """Two turns with two tools and one that streams, in a store that outlives its processes."""

    def __init__(self):
        self.store = MemoryStore()
        self.effects = []
        self.number = 0

    def agent(self, points):
        model = ScriptedModel(calls(call("stock"), call("ship", "c2"), call("list", "c3")), answer("It ", "is sent."))
        tools = [tool(self.stock), tool(self.ship), tool(self.list)]
        pipeline = Pipeline(reply=[tool_dispatch(tools), persist(lag_ms=0)])
        return watched(Agent(model, tools=tools, pipeline=pipeline, store=self.store), points)

    async def stock(self) -> int:
        """Units in stock."""
        return 15

    async def ship(self) -> str:
        """Ship it."""
        self.effects.append("shipped")
        return "sent"

    async def list(self) -> object:
        """List them."""

        async def pieces():
            yield "mug "
            yield "cup"

        return pieces()

    async def run(self, points):
        """What a process does."""
        agent = self.agent(points)
        async with Runtime(store=agent.store) as runtime, agent.session("s", runtime=runtime) as session:
            await session.ask("Ship it.", client_key="a1")

    async def resume(self):
        """What the next one does."""
        await self.run(FaultPoints())
        return await check_session(self.store)


POINTS = [
    "store.enqueue 1 before",
    "store.write 1 after",
    "yield 1 behind tool_dispatch",
    "yield 1 behind persist",
    "model call 1",
    "model call 1 chunk 1",
    "model call 1 stop",
    "tool stock 1 before",
    "tool ship 1 after",
    "tool list 1 piece 2",
    "model call 2 chunk 3",
]


async def test_each_point_of_a_run_has_its_name():
    points, shop = FaultPoints(), Shop()
    await shop.run(points)
    assert {*POINTS} <= {*points.passed}
    assert len(points.passed) == len({*points.passed})
    assert shop.effects == ["shipped"]


@pytest.mark.parametrize("fault", [Crash, StoreFull("no space")], ids=["crash", "full"])
async def test_a_fault_at_any_point_leaves_what_the_next_process_goes_on_with(fault):
    shop = Shop()

    async def scenario(points):
        nonlocal shop
        shop = Shop()
        await shop.run(points)

    async def check(points):
        rows = await shop.resume()
        assert [row.content for row in rows if row.role == "user"].count("Ship it.") == 1
        assert len(shop.effects) <= 1
        assert rows[-1].is_final

    passed = await for_each_point(scenario, check, fault=fault)
    assert len(passed) > 40


async def test_only_the_points_that_are_wanted_count():
    names = await for_each_point(lambda points: Shop().run(points), only="store.write ")
    assert names[0] == "store.write 1 before"
    assert {name.split(" ")[0] for name in names} == {"store.write"}


async def test_a_point_of_ones_own_is_found_in_the_plan_that_is_active():
    async def scenario(_):
        point("mine")

    point("nobody counts this")
    assert await for_each_point(scenario) == ["mine"]


async def test_what_a_scenario_fails_of_besides_is_raised_with_the_points_name():
    async def scenario(points):
        try:
            points.point("one")
        except Crash:
            raise ValueError("another") from None

    with pytest.raises(ValueError, match="another") as caught:
        await for_each_point(scenario)
    assert caught.value.__notes__ == ["fault point 1: one"]


async def test_the_fault_in_a_group_is_the_fault_and_another_one_beside_it_is_not():
    async def alone(points):
        try:
            points.point("one")
        except Crash as crash:
            raise BaseExceptionGroup("tasks", [BaseExceptionGroup("inner", [crash])]) from None

    async def beside(points):
        try:
            points.point("one")
        except Crash as crash:
            raise BaseExceptionGroup("tasks", [crash, ValueError("another")]) from None

    assert await for_each_point(alone) == ["one"]
    with pytest.raises(BaseExceptionGroup):
        await for_each_point(beside)


async def test_a_scenario_without_points_and_one_without_end_are_refused():
    async def nothing(_):
        pass

    async def three(points):
        for number in range(3):
            points.point(f"{number}")

    with pytest.raises(AssertionError, match="no point"):
        await for_each_point(nothing)
    assert len(await for_each_point(three, limit=4)) == 3
    with pytest.raises(AssertionError, match="3 points were hit"):
        await for_each_point(three, limit=3)


async def test_a_function_is_called_at_the_point_and_the_run_goes_on():
    reached = []
    points = FaultPoints(2, partial(reached.append, "here"))
    for name in ("a", "b", "c"):
        points.point(name)
    assert (reached, points.hit, points.raised, points.passed) == (["here"], "b", None, ["a", "b", "c"])


@pytest.mark.parametrize("at", [0, -1])
async def test_points_are_numbered_from_one(at):
    with pytest.raises(ConfigError, match="from 1"):
        FaultPoints(at)
    assert FaultPoints(1).at == 1


async def test_a_store_that_is_opened_again_is_faulty_again(tmp_path):
    class Reopened(MemoryStore):
        def reopened(self):
            return self

    points = FaultPoints()
    async with faulty(Reopened(), points).reopened() as store:
        await store.enqueue("s", Message.user("hi"))
        assert [row.content for row in await store.inbox("s")] == ["hi"]
    assert points.passed == ["store.enqueue 1 before", "store.enqueue 1 after"]


async def test_a_stage_without_tools_stays_as_it_is():
    stage = persist()
    assert with_tools(stage, lambda tool: tool) is stage


async def test_the_fault_before_a_write_leaves_it_out_and_the_one_after_does_not():
    for at, stored in ((1, []), (2, ["hi"])):
        store = MemoryStore()
        with pytest.raises(Crash, match=r"store\.enqueue 1"):
            await faulty(store, FaultPoints(at)).enqueue("s", Message.user("hi"))
        assert [row.content for row in await store.inbox("s")] == stored


async def test_behind_a_fatal_point_nothing_is_written():
    store = MemoryStore()
    points = FaultPoints(3, fatal=True)
    agent = watched(Agent(ScriptedModel(answer("Hi.")), store=store), points)
    with pytest.raises(Crash):
        async with Runtime(store=agent.store) as runtime, agent.session("s", runtime=runtime) as session:
            await session.ask("Hello?")
    assert points.passed == ["store.acquire 1 before", "store.acquire 1 after", "store.enqueue 1 before"]
    assert await store.inbox("s") == []
    with pytest.raises(Crash):
        await points.pause("anything")
