"""Workers: what waits is answered, what died goes on, and what fails blocks nobody."""

import math

import anyio
import pytest

from streamagent import Agent, ConfigError, ConflictError, MemoryStore, Message, Runtime, StoreError, Worker, tool
from streamagent.lineage import child_id
from streamagent.message import new_id
from streamagent.postponed import IDLE, LONGEST, MOST, Postponed
from streamagent.records import Owner
from tests.fleet.waiting import at_rest, until, working
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, rows

pytestmark = pytest.mark.anyio

DEAD = Owner(id="host:1:dead", ttl=1000.0)


@pytest.fixture
def store(either_store):
    return either_store


def answering(*words):
    agent = Agent(ScriptedModel(answer(*(words or ["Here."]))))
    return lambda session: agent


async def die_after(store, session, *messages):
    """Leave a session as a process leaves it that dies there."""
    fence = await store.acquire(session, owner=DEAD)
    await store.write(session, messages, fence=fence)
    await store.retire(DEAD.id)


async def test_a_prompt_that_was_submitted_is_stored_at_once_and_answered_by_a_worker(store):
    async with Runtime(store=store) as runtime:
        stored = await runtime.submit("s", "hi", client_key="k")
        assert (stored.content, stored.sequence) == ("hi", None)
        assert [message.id for message in await store.inbox("s")] == [stored.id]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Worker(runtime, answering(), sweep=0.02).run)
            await until(lambda: at_rest(store))
            again = await runtime.submit("s", "hi", client_key="k")
            assert (again.id, again.sequence) == (stored.id, 1)
            with pytest.raises(ConflictError):
                await runtime.submit("s", "something else", client_key="k")
            await runtime.drain()
        assert await rows(store) == [(1, "user", "text", "hi"), (2, "assistant", "text", "Here."), (3, *STOP)]


STOP = ("assistant", "stop", "")


async def test_a_session_submits_too_and_several_prompts_are_answered_in_their_order(store):
    agent = Agent(ScriptedModel(answer("Here.")))
    async with working(store, lambda session: agent) as runtime:
        async with agent.session("s", runtime=runtime) as session:
            await session.submit("one")
            await session.submit(["two", "and more"])
        await until(lambda: at_rest(store))
        said = [m.content for m in await check_rows(store) if m.type == "text"]
        assert said == ["one", "Here.", "two", "and more", "Here."]


async def test_a_run_whose_process_died_goes_on(store):
    async with store:
        await die_after(store, "s", Message.user("hi"))
        assert await store.unattended() == ["s"]
    async with working(store, answering()) as runtime:
        await until(lambda: at_rest(runtime.store))
        assert [content for *_, content in await rows(store)] == ["hi", "Here.", ""]
        assert await store.unattended() == []


async def test_what_was_decided_about_a_call_lets_its_run_go_on(store):
    @tool(requires_approval=True)
    async def refund() -> str:
        """Give money back."""
        return "refunded"

    agent = Agent(ScriptedModel(calls(call("refund")), answer("Done.")), tools=[refund])
    async with working(store, lambda session: agent) as runtime:
        await runtime.submit("s", "Refund.")
        async with agent.session("s", runtime=runtime) as session:
            [asked] = await until(session.pending)
            await session.approve(asked)
        await until(lambda: at_rest(store))
        results = [m.content for m in await check_rows(store) if m.type == "tool_result"]
        assert results == ["refunded"]


async def test_so_many_sessions_are_driven_at_once_and_not_one_more(store):
    live, most, gate = set(), [0], anyio.Event()

    class Slow(ScriptedModel):
        async def stream(self, context, **options):
            mine = object()
            live.add(mine)
            most[0] = max(most[0], len(live))
            try:
                if len(live) == 3:
                    gate.set()
                await gate.wait()
                async for message in super().stream(context, **options):
                    yield message
            finally:
                live.discard(mine)

    agent = Agent(Slow(answer("Here.")))
    async with working(store, lambda session: agent, concurrency=3) as runtime:
        for number in range(10):
            await runtime.submit(f"s{number}", "hi")
        for number in range(10):
            await until(lambda number=number: at_rest(store, f"s{number}"))
    assert most == [3]


async def test_what_fails_is_tried_later_and_blocks_nobody(store):
    """T92: more sessions that fail than are looked up at once, and all of them wait longer."""
    tried = []

    def plan_for(session):
        tried.append(session)
        if session.startswith("bad") and tried.count(session) < 3:
            raise RuntimeError("a bug")
        return good(session)

    good = answering()
    async with working(store, plan_for, concurrency=1, sweep=0.01) as runtime:
        for number in range(12):
            await runtime.submit(f"bad {number}", "hi")
        await runtime.submit("good", "hi")
        await until(lambda: at_rest(store, "good"))
        for number in range(12):
            await until(lambda number=number: at_rest(store, f"bad {number}"))
    assert {tried.count(f"bad {number}") for number in range(12)} == {3}


async def test_a_session_that_is_for_another_worker_is_left(store):
    async def plan_for(session):
        return answering()(session) if session == "mine" else None

    async with working(store, plan_for) as runtime:
        await runtime.submit("theirs", "hi")
        await runtime.submit("mine", "hi")
        await until(lambda: at_rest(store, "mine"))
        assert await store.unattended() == ["theirs"]
        assert await rows(store, "theirs") == []


async def test_the_session_of_a_sub_agent_is_left_to_the_run_that_it_belongs_to(store):
    child, alike = child_id("s", new_id(), 1), child_id("s", new_id(), 2)
    prompt = Message(role="user", content="hi", query={"parent": {"session": "s", "call": "c"}})
    async with store:
        await die_after(store, child, prompt)
        await store.enqueue(child_id("t", new_id(), 1), prompt)
    async with working(store, answering()) as runtime:
        await runtime.submit(alike, "hi")  # only named like one
        await until(lambda: at_rest(store, alike))
        assert len(await store.unattended()) == 2
        assert len(await rows(store, child)) == 1


async def test_what_another_worker_was_faster_with_is_no_error(store, caplog):
    async with working(store, answering()) as runtime:
        await store.acquire("s", owner=Owner(id="host:2:alive", ttl=1000.0))
        await runtime.submit("s", "hi")
        await store.enqueue("free", Message.user("hi"))
        await until(lambda: at_rest(store, "free"))
        assert await rows(store) == []
    assert caplog.records == []


async def test_what_is_served_in_this_process_is_answered_there(store):
    agent = Agent(ScriptedModel(answer("Here.")))
    async with (
        working(store, lambda session: agent, sweep=0.01) as runtime,
        agent.session("s", runtime=runtime) as session,
    ):
        for _ in range(5):
            await session.send("hi")
            heard = []
            while not heard or heard[-1].type != "stop":
                heard.append(await session.receive())
            assert next(message.content for message in heard if message.type == "text") == "hi"


async def test_a_store_that_fails_for_a_while_strands_nothing(store, caplog):
    async with working(store, answering()) as runtime:
        found, failures = store.unattended, iter(range(3))

        async def flaky(**options):
            if next(failures, None) is not None:
                raise StoreError("no server")
            return await found(**options)

        store.unattended = flaky
        await runtime.submit("s", "hi")
        await until(lambda: at_rest(store))
    assert len([record for record in caplog.records if "cannot look" in record.message]) == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"plan_for": "an agent"}, "Worker takes a function of a session's id"),
        ({"concurrency": 0}, "concurrency=…) is 1 or more, not 0"),
        ({"concurrency": 1.5}, "concurrency=…) is 1 or more, not 1.5"),
        ({"sweep": 0}, "sweep=…) takes seconds above 0, not 0"),
        ({"sweep": math.inf}, "sweep=…) takes seconds above 0"),
    ],
)
async def test_what_a_worker_cannot_use_is_told(options, told):
    with pytest.raises(ConfigError, match=told.replace("(", r"\(").replace(")", r"\)")):
        Worker(Runtime(store=MemoryStore()), **{"plan_for": answering(), **options})


async def test_a_worker_of_a_runtime_that_is_not_open_is_refused():
    with pytest.raises(ConfigError, match="is not open"):
        await Worker(Runtime(store=MemoryStore()), answering()).run()


async def test_a_session_is_put_off_for_longer_each_time_and_there_is_an_end_to_that(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("streamagent.postponed.current_time", lambda: now[0])
    for failed, longest in ((True, LONGEST), (False, IDLE)):
        waits, postponed = [], Postponed(1.0)
        for _ in range(20):
            postponed.put_off("s", failed=failed)
            assert not postponed.is_due("s")
            waits.append(postponed._delays["s"].due - now[0])
        assert waits[0] <= 1.25
        assert waits[1] >= 1.5
        assert 0.75 * longest <= waits[-1] <= 1.25 * longest
        now[0] += waits[-1]
        assert postponed.is_due("s")
    postponed.forget("s")
    assert len(postponed) == 0


async def test_of_sessions_that_were_put_off_so_many_are_kept_and_not_one_more():
    postponed = Postponed(1.0)
    for number in range(MOST):
        postponed.put_off(str(number), failed=True)
    assert (len(postponed), postponed.is_due("0")) == (MOST, False)
    postponed.put_off("another", failed=True)
    assert (len(postponed), postponed.is_due("0"), postponed.is_due("1")) == (MOST, True, False)


async def test_a_process_that_dies_when_it_has_just_taken_a_run_over_strands_nothing(store):
    async with store:
        closed = Message.stop("aborted", cut="resumed", error={"kind": "interrupted"})
        await die_after(store, "s", Message.user("hi"), Message(content="half", query={"cut": "resumed"}), closed)
        assert not (await store.unfinished("s")).at_rest
        await die_after(store, "t", Message.user("hi"), closed)
    async with working(store, answering()) as runtime:
        await until(lambda: at_rest(store))
        assert [content for *_, content in await rows(store) if content] == ["hi", "half", "Here."]
        async with answering()("t").session("u", runtime=runtime):
            await runtime.submit("t", "Something else.")
        await until(lambda: at_rest(store, "t"))
        await check_rows(store, "t", crashed=True)
