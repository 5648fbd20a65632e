"""What a tool is told that is asked, after a crash, what came of a call of its own."""

import threading
from contextlib import suppress

import anyio
import pytest

from streamagent import Agent, Decision, Pipeline, Runtime, budget, persist, tool, tool_dispatch
from streamagent.errors import HandedOver
from streamagent.testing import Crash, FaultPoints, ScriptedModel, answer, call, calls, check_session, watched

pytestmark = pytest.mark.anyio

UNKNOWN = "Interrupted: the run broke off before this call finished. Its outcome is unknown."


@pytest.fixture
def store(either_store):
    return either_store


class Shop:
    """An agent with one tool, whose process dies when that has run for the last time.

    Args:
        store: Where it lives; not open.
        decisions: What is decided about its calls, one after the other, when they wait.
        found: Says what came of a call.
        timeout: Of the tool.
        options: Of the dispatcher.
    """

    def __init__(self, store, *, gated=False, decisions=(), found=None, timeout=60, **options):
        self.store, self.decisions, self.options = store, decisions, options
        self.gated, self.asked, self.ran = gated, [], []
        self.found, self.timeout, self.stages = found or self._found, timeout, []

    async def _found(self, asked):
        self.asked.append(asked)
        return "sent, it is there"

    def agent(self, *turns):
        @tool(reconcile=self.found, requires_approval=self.gated, timeout=self.timeout)
        async def ship(product: str) -> str:
            """Ship a product."""
            self.ran.append({"product": product})
            return "sent"

        pipeline = Pipeline(reply=[tool_dispatch([ship], **self.options), *self.stages, persist(lag_ms=0)])
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

    async def go_on(self, dead, *, agent=None):
        """Go on in the next process; return the rows."""
        agent = agent or self.agent(answer("Done."))
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


# when nobody can tell


async def unreachable(_):
    raise ConnectionError("the carrier is down")


async def leave(_):
    raise SystemExit(3)


async def hang(_):
    await anyio.sleep_forever()


def results_of(rows):
    return [row.content for row in rows if row.type == "tool_result"]


@pytest.mark.parametrize("found", [unreachable, leave])
async def test_what_it_raises_is_logged_and_the_outcome_is_unknown(store, found, caplog):
    shop = Shop(store, found=found)
    assert results_of(await shop.go_on(await shop.die("tool ship 1 after"))) == [UNKNOWN]
    assert any("its outcome is unknown" in record.message and record.exc_info for record in caplog.records)


@tool
async def other() -> str:
    """Do something else."""
    return "done"


@tool(name="ship", reconcile=unreachable)
async def ship_further(product: str, country: str) -> str:
    """Ship a product."""
    return "sent"


@tool(name="ship", retry_safe=True)
async def ship_again(product: str, country: str) -> str:
    """Ship a product."""
    return "sent"


@pytest.mark.parametrize("changed", [other, ship_further, ship_again], ids=["gone", "reconcile", "retry_safe"])
async def test_of_a_tool_that_is_gone_or_has_changed_the_outcome_is_unknown(store, changed, caplog):
    shop = Shop(store)
    dead = await shop.die("tool ship 1 after")
    agent = Agent(ScriptedModel(answer("Done.")), tools=[changed], store=store)
    assert results_of(await shop.go_on(dead, agent=agent)) == [UNKNOWN]
    assert any("its outcome is unknown" in record.message for record in caplog.records)


async def test_one_that_hangs_has_the_time_of_its_tool(store):
    shop = Shop(store, found=hang)
    dead = await shop.die("tool ship 1 after")
    shop.timeout = 0.05
    assert results_of(await shop.go_on(dead)) == [UNKNOWN]


async def test_one_that_does_not_listen_has_no_more(store, monkeypatch):
    monkeypatch.setattr("streamagent.tasks.CLEANUP_TIMEOUT", 0.1)

    async def deaf(_):
        while True:
            with suppress(anyio.get_cancelled_exc_class()):
                await anyio.sleep_forever()

    shop = Shop(store, found=deaf)
    dead = await shop.die("tool ship 1 after")
    shop.timeout = 0.05
    assert results_of(await shop.go_on(dead)) == [UNKNOWN]


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "answers"])
async def test_a_plain_function_runs_in_a_thread(store, blocks):
    released, threads = threading.Event(), []

    def found(_):
        threads.append(threading.current_thread())
        if blocks:
            released.wait(60)
        return "sent"

    shop = Shop(store, found=found)
    dead = await shop.die("tool ship 1 after")
    shop.timeout = 0.2 if blocks else 60
    assert results_of(await shop.go_on(dead)) == [UNKNOWN if blocks else "sent"]
    released.set()
    assert threading.current_thread() not in threads


async def test_a_plain_function_may_give_what_is_to_be_awaited(store):
    async def look(text):
        return text

    shop = Shop(store, found=lambda _: look("sent"))
    assert results_of(await shop.go_on(await shop.die("tool ship 1 after"))) == ["sent"]


@pytest.mark.parametrize("cut", ["cancel", "budget"])
async def test_a_call_that_is_cut_while_it_is_asked_about_has_an_unknown_outcome(store, cut):
    asking = anyio.Event()

    async def found(_):
        asking.set()
        await anyio.sleep_forever()

    shop = Shop(store, found=found)
    dead = await shop.die("tool ship 1 after")
    shop.stages = [budget(seconds=0.2)] if cut == "budget" else []
    async with Runtime(store=store) as runtime, shop.agent().session("s", runtime=runtime) as session:
        await store.retire(dead)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.resume().result)
            await asking.wait()
            if cut == "cancel":
                assert await session.cancel()
        rows = await check_session(store, crashed=True)
    assert [(row.content, row.query["cut"]) for row in rows if row.type == "tool_result"] == [
        (UNKNOWN, {"cancel": "aborted", "budget": "budget"}[cut])
    ]


async def test_a_process_that_ends_while_it_asks_leaves_the_question_to_the_next_one(store, monkeypatch):
    monkeypatch.setattr("streamagent.handover.BORDER", 0.1)
    asking = anyio.Event()

    async def found(_):
        asking.set()
        await anyio.sleep_forever()

    shop = Shop(store, found=found)
    dead = await shop.die("tool ship 1 after")
    async with Runtime(store=store) as runtime, shop.agent().session("s", runtime=runtime) as session:
        await store.retire(dead)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, session)
            await asking.wait()
            await runtime.drain(0.01)
    shop.found = shop._found
    assert results_of(await shop.go_on(dead)) == ["sent, it is there"]


async def _read(session):
    with pytest.raises(HandedOver):
        await session.resume()
