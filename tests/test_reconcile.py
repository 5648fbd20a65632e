"""What a tool is told that is asked, after a crash, what came of a call of its own."""

import pytest

from streamagent import Agent, Decision, Pipeline, Runtime, persist, tool, tool_dispatch
from streamagent.testing import Crash, FaultPoints, ScriptedModel, answer, call, calls, check_session, watched

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(either_store):
    return either_store


class Shop:
    """An agent with one tool, whose process dies when that has run for the last time.

    Args:
        store: Where it lives; not open.
        decisions: What is decided about its calls, one after the other, when they wait.
        options: Of the dispatcher.
    """

    def __init__(self, store, *, gated=False, decisions=(), **options):
        self.store, self.decisions, self.options = store, decisions, options
        self.gated, self.asked, self.ran = gated, [], []

    def agent(self, *turns):
        async def found(asked):
            self.asked.append(asked)
            return "sent, it is there"

        @tool(reconcile=found, requires_approval=self.gated)
        async def ship(product: str) -> str:
            """Ship a product."""
            self.ran.append({"product": product})
            return "sent"

        pipeline = Pipeline(reply=[tool_dispatch([ship], **self.options), persist(lag_ms=0)])
        return Agent(ScriptedModel(*turns), tools=[ship], pipeline=pipeline, store=self.store)

    async def die(self, at):
        """Call the tool until the process dies at a point."""
        turns = [calls(call("ship", f"c{number}", product="mug")) for number in range(2)]
        agent = watched(self.agent(*turns), FaultPoints(1, only=at, fatal=True))
        runtime = Runtime(store=agent.store)
        try:
            async with runtime, agent.session("s", runtime=runtime) as session:
                await session.ask("Go.")
                for options in self.decisions:
                    [waits] = await session.pending()
                    await session.approve(waits, **options)
                    await session.resume()
        except BaseException as error:
            assert isinstance(error, Crash) or all(isinstance(one, Crash) for one in error.exceptions), error
        return runtime.holding.owner.id

    async def go_on(self, dead):
        """Go on in the next process; return the rows."""
        agent = self.agent(answer("Done."))
        async with Runtime(store=self.store) as runtime:
            await self.store.retire(dead)
            async with agent.session("s", runtime=runtime) as session:
                await session.resume()
            return await check_session(self.store, crashed=True)


async def replace_product(asked):
    return Decision(args={"product": f"blue {asked.args['product']}"})


@pytest.mark.parametrize(
    ("options", "args"),
    [
        ({}, {"product": "mug"}),
        ({"before_tool_call": replace_product}, {"product": "blue mug"}),
        ({"gated": True, "decisions": [{}]}, {"product": "mug"}),
        ({"gated": True, "decisions": [{"args": {"product": "jug"}}]}, {"product": "jug"}),
    ],
    ids=["as made", "replaced by the hook", "approved", "edited"],
)
async def test_it_is_told_what_the_tool_ran_with(store, options, args):
    shop = Shop(store, **options)
    await shop.go_on(await shop.die("tool ship 1 after"))
    assert shop.ran == [args]
    assert [{**asked.args} for asked in shop.asked] == [args]


async def test_its_result_names_the_grant_that_let_the_call_pass(store):
    shop = Shop(store, gated=True, decisions=[{"always": {"product": "mug"}}])
    rows = await shop.go_on(await shop.die("tool ship 2 after"))
    [granted] = [row for row in rows if row.type == "approval" and "always" in row.query]
    results = [row for row in rows if row.type == "tool_result"]
    assert [row.content for row in results] == ["sent", "sent, it is there"]
    assert [row.query.get("approval") for row in results] == [granted.id, granted.id]


async def test_its_result_names_the_decision_about_the_call(store):
    shop = Shop(store, gated=True, decisions=[{}])
    rows = await shop.go_on(await shop.die("tool ship 1 after"))
    [decided] = [row for row in rows if row.type == "approval" and "decision" in row.query]
    assert [row.query.get("approval") for row in rows if row.type == "tool_result"] == [decided.id]


@pytest.mark.parametrize("later", [Decision(block="no more"), ValueError("gone")], ids=["blocks", "fails"])
async def test_a_hook_does_not_stop_what_has_begun(store, later):
    verdicts = [None, later]

    async def hook(_):
        verdict = verdicts.pop(0)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    shop = Shop(store, before_tool_call=hook)
    rows = await shop.go_on(await shop.die("tool ship 1 after"))
    assert [row.content for row in rows if row.type == "tool_result"] == ["sent, it is there"]
    assert [asked.args["product"] for asked in shop.asked] == ["mug"]
