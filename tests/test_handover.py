"""A process that is to end leaves its runs to others: nothing is closed, lost, or counted as a crash."""

import anyio
import pytest

from streamagent import Agent, HandedOver, Pipeline, Runtime, Worker, persist, tool, tool_dispatch
from streamagent import handover as handover_module
from tests.fleet.waiting import at_rest, until, working
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, rows, text

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(either_store):
    return either_store


@pytest.fixture
def no_borders(monkeypatch):
    """Cut what has not ended at once."""
    monkeypatch.setattr(handover_module, "BORDER", 0.01)


class Doer:
    """Tools that tell when they run, and wait until they may end."""

    def __init__(self):
        self.begun, self.may_end = anyio.Event(), anyio.Event()
        self.times = []

    def tool(self, **options):
        @tool(**options)
        async def do() -> str:
            """Do it."""
            self.times.append(1)
            self.begun.set()
            await self.may_end.wait()
            return "done"

        return do


async def worked(store, agent, act):
    """Let a worker begin with a prompt, do something with it, and leave."""
    async with Runtime(store=store) as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(Worker(runtime, lambda session: agent, sweep=0.02).run)
        await runtime.submit("s", "hi")
        await act(runtime)


async def finished(store, agent):
    """Let another worker finish; return the session's rows."""
    async with working(store, lambda session: agent) as runtime:
        await until(lambda: at_rest(runtime.store))
        assert await runtime.store.unattended() == []
        return await check_rows(runtime.store, crashed=True)


async def test_a_run_that_ends_within_the_grace_is_whole(store):
    doer = Doer()
    agent = Agent(ScriptedModel(calls(call("do")), answer("Well.")), tools=[doer.tool()])

    async def act(runtime):
        await doer.begun.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.drain)
            await runtime.draining.wait()
            doer.may_end.set()
        assert not runtime.active
        assert await store.unattended() == []

    await worked(store, agent, act)
    async with store:
        assert [content for *_, content in await rows(store) if content] == ["hi", "{}", "done", "Well."]


async def test_a_run_that_takes_longer_ends_at_its_next_border_and_goes_on_elsewhere(store):
    doer = Doer()
    agent = Agent(ScriptedModel(calls(call("do")), answer("Well.")), tools=[doer.tool()])

    async def act(runtime):
        await doer.begun.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.drain, 0.01)
            await until(lambda: all(reply._leaving for reply in runtime.active.values()))
            doer.may_end.set()
        assert await store.unattended() == ["s"]
        left = await store.unfinished("s")
        assert (left.last.type, left.last.content, left.crashes) == ("tool_result", "done", 0)

    await worked(store, agent, act)
    stored = await finished(store, agent)
    assert [m.content for m in stored if m.content] == ["hi", "{}", "done", "Well."]
    assert (len(doer.times), len(agent.model.contexts)) == (1, 2)


async def test_a_run_that_comes_to_no_border_ends_where_it_is(store, no_borders):
    agent = Agent(ScriptedModel(text("half an ", "answer ")[:2], answer("The whole answer.")))

    async def act(runtime):
        await agent.model.hangs.wait()
        await runtime.drain(0.01)
        left = await store.unfinished("s")
        assert ([m.more for m in left.open], left.crashes) == ([True], 0)

    await worked(store, agent, act)
    stored = await finished(store, agent)
    assert [(m.content, (m.query or {}).get("cut")) for m in stored if m.type == "text"] == [
        ("hi", None),
        ("half an answer ", "resumed"),
        ("The whole answer.", None),
    ]
    assert stored[-1].query["reason"] == "stop"


@pytest.mark.parametrize(("options", "times", "said"), [({"retry_safe": True}, 2, "done"), ({}, 1, "unknown")])
async def test_a_tool_that_was_at_work_runs_again_if_that_does_no_harm(store, no_borders, options, times, said):
    doer = Doer()
    agent = Agent(ScriptedModel(calls(call("do")), answer("Well.")), tools=[doer.tool(**options)])

    async def act(runtime):
        await doer.begun.wait()
        await runtime.drain(0.01)
        doer.may_end.set()

    await worked(store, agent, act)
    stored = await finished(store, agent)
    [result] = [m.content for m in stored if m.type == "tool_result"]
    assert said in result
    assert len(doer.times) == times


async def test_what_came_of_a_call_is_kept_though_its_neighbour_was_at_work(store, no_borders):
    doer = Doer()

    @tool
    async def quick() -> str:
        """Be quick."""
        doer.times.append("quick")
        return "quickly done"

    agent = Agent(
        ScriptedModel(calls(call("do", "c1"), call("quick", "c2")), answer("Well.")), tools=[doer.tool(), quick]
    )

    async def act(runtime):
        await doer.begun.wait()
        await until(lambda: "quick" in doer.times)
        await runtime.drain(0.01)

    await worked(store, agent, act)
    stored = await finished(store, agent)
    assert [m.content for m in stored if m.type == "tool_result"][1] == "quickly done"
    assert doer.times.count("quick") == 1


async def test_a_sub_agent_is_left_with_the_run_that_asked_it(store, no_borders):
    inner = ScriptedModel(text("half ")[:1], answer("Deep."))
    child = Agent(inner, name="child", description="Goes deep.")
    agent = Agent(ScriptedModel(calls(call("child", prompt="How deep?")), answer("Well.")), tools=[child])

    async def act(runtime):
        await inner.hangs.wait()
        await runtime.drain(0.01)
        assert len(await store.unattended()) == 2

    await worked(store, agent, act)
    stored = await finished(store, agent)
    [result] = [m for m in stored if m.type == "tool_result"]
    assert (result.content, result.query["is_error"]) == ("Deep.", False)
    assert len(agent.model.contexts) == 2


async def test_steering_that_waits_at_the_border_is_the_next_process_s(store):
    doer = Doer()
    agent = Agent(ScriptedModel(calls(call("do")), answer("Well."), answer("Blue.")), tools=[doer.tool()])

    async def act(runtime):
        await doer.begun.wait()
        async with agent.session("s", runtime=runtime) as session:
            await session.steer("In blue.")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.drain, 0.01)
            await until(lambda: all(reply._leaving for reply in runtime.active.values()))
            doer.may_end.set()
        assert [m.content for m in await store.inbox("s")] == ["In blue."]

    await worked(store, agent, act)
    stored = await finished(store, agent)
    assert [m.content for m in stored if m.role == "user"] == ["hi", "In blue."]


async def test_whoever_reads_a_reply_hears_that_another_process_goes_on(store, no_borders):
    agent = Agent(ScriptedModel(text("half ")[:1], answer("Whole.")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        heard = []
        async with anyio.create_task_group() as tasks:

            async def read():
                with pytest.raises(HandedOver, match="another one goes on"):
                    async for message in session.ask("hi"):
                        heard.append(message.content)

            tasks.start_soon(read)
            await agent.model.hangs.wait()
            await runtime.drain(0.01)
        assert heard == ["hi", "half "]
        with pytest.raises(HandedOver, match="begins no run"):
            await session.ask("once more")
        assert await store.inbox("s") == []
        await session.send("durably")
        with pytest.raises(HandedOver):
            await session.receive()
        assert [message.content for message in await store.inbox("s")] == ["durably"]
    stored = await finished(store, agent)
    assert [m.content for m in stored if m.role == "user"] == ["hi", "durably"]


async def test_a_run_that_nobody_reads_is_left_too(store, no_borders):
    agent = Agent(ScriptedModel(answer("Whole.")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        reply = session.ask("hi")
        await anext(reply)
        await runtime.drain(0.01)
        assert reply.done
        with pytest.raises(HandedOver):
            await anext(reply)
        assert await store.unattended() == ["s"]
    assert [m.content for m in await finished(store, agent) if m.content] == ["hi", "Whole."]


async def test_a_user_s_cancel_while_the_process_drains_cancels(store):
    agent = Agent(ScriptedModel(text("half ")[:1]))

    async def act(runtime):
        await agent.model.hangs.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.drain, 20)
            await runtime.draining.wait()
            assert await runtime.cancel("s")
        assert await store.unattended() == []

    await worked(store, agent, act)
    async with store:
        assert (await check_rows(store))[-1].query["reason"] == "aborted"


async def test_leaving_many_times_is_no_poison(store, no_borders):
    model = ScriptedModel(*[text("half ")[:1]] * 5, answer("Whole."))
    pipeline = Pipeline(reply=[tool_dispatch(), persist(lag_ms=0)])
    for _ in range(5):
        model.hangs = anyio.Event()

        async def act(runtime):
            await model.hangs.wait()
            await runtime.drain(0.01)

        agent = Agent(model, pipeline=pipeline)
        if not model.contexts:
            await worked(store, agent, act)
        else:
            async with Runtime(store=store) as runtime, anyio.create_task_group() as tasks:
                tasks.start_soon(Worker(runtime, lambda session: agent, sweep=0.02).run)  # noqa: B023
                await act(runtime)
    stored = await finished(store, Agent(model, pipeline=pipeline))
    assert [m.content for m in stored if m.type == "text"] == ["hi", *["half "] * 5, "Whole."]


async def test_a_run_that_could_not_be_settled_is_somebody_s_to_go_on_with(store, caplog):
    """What the store refuses at the end of a run strands nothing."""
    agent = Agent(ScriptedModel(answer("Whole.")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        reply = session.ask("hi")
        await anext(reply)
        unfinished = store.unfinished

        async def fail(session):
            raise OSError("gone")

        store.unfinished = fail
        with pytest.raises(OSError, match="gone"):
            await reply.aclose()
        store.unfinished = unfinished
        assert await store.unattended() == ["s"]
    assert [m.content for m in await finished(store, agent) if m.content] == ["hi", "Whole."]
