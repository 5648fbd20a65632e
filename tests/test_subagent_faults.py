"""Sub-agents whose session the store does not take: it is closed before the call has a result, or that stays open."""

import pytest

from streamagent import Agent, MemoryStore, Message, Runtime, ToolContext, tool
from streamagent.errors import StoreFull
from streamagent.lineage import child_id
from streamagent.subagents import PROMPT
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock

pytestmark = pytest.mark.anyio


class Refusing(MemoryStore):
    """Takes nothing into sub-agents' sessions by these methods, so many times, or takes it and says that it did not."""

    def __init__(self, *methods, times=1, after=False):
        super().__init__()
        self.methods, self.times, self.after = methods, times, after

    async def begin_run(self, session, **options):
        return await self._do("begin_run", session, **options)

    async def acquire(self, session, **options):
        return await self._do("acquire", session, **options)

    async def write(self, session, fragments, **options):
        return await self._do("write", session, fragments, **options)

    async def _do(self, method, session, *args, **options):
        refuses = method in self.methods and session != "s" and self.times > 0
        self.times -= refuses
        given = None if refuses and not self.after else await getattr(super(), method)(session, *args, **options)
        if refuses:
            raise StoreFull("no room")
        return given


def family(*turns):
    """An agent that asks a sub-agent, which looks once into the stock."""
    child = Agent(ScriptedModel(*turns), name="researcher", description="Finds out.", tools=[stock])
    return Agent(ScriptedModel(answer("Done.")), tools=[child])


async def leave(store, prompt="How deep?"):
    """Store what a process leaves that dies while the sub-agent's tool is at work; return the sub-agent's session."""
    outer, inner = call("researcher", prompt="How deep?"), call("stock", product="mug")
    child = child_id("s", outer.id, 1)
    parent = {"parent": {"session": "s", "call": outer.id}}
    asks = Message(role="user", content=prompt, prev=outer.id, query=parent)
    for session, first, asked in (("s", Message.user("Go."), outer), (child, asks, inner)):
        fence = await MemoryStore.acquire(store, session)
        await store.enqueue(session, first, client_key=PROMPT if session == child else None)
        await store.admit(session, fence=fence, limit=1)
        await MemoryStore.write(store, session, [asked, Message.stop("tool_calls")], fence=fence)
        await store.start_call(session, asked.id, fence=fence)
        await store.release(session, fence=fence, unfinished=True)
    return child


async def go_on(store, agent):
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        return await session.resume()


@pytest.mark.parametrize("after", [False, True])
async def test_one_that_was_cut_is_closed_when_it_cannot_be_gone_on_with(after):
    async with Refusing("begin_run", after=after) as store:
        child = await leave(store)
        result = await go_on(store, family(answer("Deep.")))
        [given] = [row for row in await check_rows(store) if row.type == "tool_result"]
        assert (result.text, given.query["is_error"]) == ("Done.", True)
        assert "no room" in given.content
        inner = [row.type for row in await check_rows(store, child)]
        assert inner == ["text", "tool_call", "stop", "tool_result", "stop"]
        assert store.times == 0


async def test_one_that_was_cut_is_closed_when_its_call_would_now_ask_something_else():
    async with MemoryStore() as store:
        child = await leave(store, prompt="How far?")
        await go_on(store, family(answer("Deep.")))
        [given] = [row for row in await check_rows(store) if row.type == "tool_result"]
        assert "ConflictError" in given.content
        assert (await check_rows(store, child))[-1].query["reason"] == "aborted"


async def test_while_it_cannot_be_closed_its_call_has_no_result_and_is_gone_on_with():
    async with Refusing("begin_run", "acquire", times=3) as store:
        child = await leave(store)
        with pytest.raises(StoreFull):
            await go_on(store, family(answer("Deep.")))
        assert store.times == 0
        assert [row.type for row in (await store.unfinished("s")).calls] == ["tool_call"]
        assert await store.unattended() == ["s", child]
        result = await go_on(store, family(answer("Deep.")))
        [given] = [row for row in await check_rows(store) if row.type == "tool_result"]
        assert (result.text, given.content, given.query["is_error"]) == ("Done.", "Deep.", False)
        assert (await check_rows(store, child))[-1].query["reason"] == "stop"


@pytest.mark.parametrize("after", [False, True])
async def test_one_that_never_began_has_its_prompt_and_an_end(after):
    """Else the next sub-agent of the same call would stand behind a gap, and nobody would find it after a crash."""
    async with Refusing("begin_run", after=after) as store:
        given = []
        child = Agent(ScriptedModel(answer("Deep.")), name="c", description="d")

        @tool
        async def twice(context: ToolContext) -> str:
            """Start another one when the first one fails."""
            with pytest.raises(StoreFull):
                await context.start(child, "1")
            given.append(await context.start(child, "2"))
            return given[0].content

        agent = Agent(ScriptedModel(calls(call("twice")), answer("Done.")), tools=[twice])
        async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
            await session.ask("Go.")
        [asked] = [row for row in await check_rows(store) if row.type == "tool_call"]
        first, second = [await check_rows(store, child_id("s", asked.id, number)) for number in (1, 2)]
        assert [row.content for row in second] == ["2", "Deep.", ""]
        assert (first[0].content, first[1].query["reason"]) == ("1", "aborted")
        assert await store.unattended() == []


async def test_an_end_that_the_store_did_not_take_is_stored_before_the_call_has_its_result():
    async with Refusing("write", times=2) as store:
        child = await leave(store)
        await go_on(store, family(answer("Deep.")))
        await check_rows(store)
        assert (await check_rows(store, child))[-1].type == "stop"
        assert store.times == 0
