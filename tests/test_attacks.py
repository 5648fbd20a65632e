"""What somebody found who tried to break sessions: each with its right outcome."""

import asyncio
from contextlib import aclosing

import anyio
import pytest

from streamagent import (
    Agent,
    MemoryStore,
    Message,
    Pipeline,
    Runtime,
    SessionBusy,
    buffer,
    persist,
    rate_limit,
    strip_reasoning,
    tool,
    tool_dispatch,
    whole,
)
from streamagent.errors import ConfigError, MessageError, StoreBusy
from streamagent.testing.stages import check_stage
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock, text

pytestmark = pytest.mark.anyio

ASYNCIO = pytest.mark.parametrize("anyio_backend", [("asyncio", {"debug": True})], ids=["asyncio"])


class Outrage(BaseException):
    """No Exception, and no cancellation either."""


async def outcome_of(broken):
    """Let a tool break in a runtime that another session uses too; return its result."""
    agent = Agent(ScriptedModel(calls(call(broken.spec.name)), answer("x")), tools=[broken])
    other = Agent(ScriptedModel(answer("fine")))
    async with Runtime(store=MemoryStore()) as runtime:
        async with agent.session("s", runtime=runtime) as session:
            assert (await session.ask("Go.")).text == "x"
        async with other.session("t", runtime=runtime) as session:
            assert (await session.ask("Go.")).text == "fine"
        [result] = [m for m in await check_rows(runtime.store) if m.type == "tool_result"]
        return result


@ASYNCIO
async def test_a_cancellation_that_a_tool_lets_out_is_its_error_and_nobody_elses():
    @tool
    async def leak() -> str:
        """Await what was cancelled elsewhere."""
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    result = await outcome_of(leak)
    assert (result.content, result.query["is_error"]) == ("CancelledError", True)


async def test_an_outrage_of_a_tool_is_its_error_result():
    @tool
    async def rage() -> str:
        """Rage."""
        raise Outrage("!")

    result = await outcome_of(rage)
    assert (result.content, result.query["is_error"]) == ("Outrage: !", True)


async def test_an_outrage_in_background_work_is_raised_where_the_run_is_driven():
    async def rage():
        raise Outrage

    async def stage(stream, run):
        run.tasks.start_soon(rage)
        async for message in stream:
            yield message

    agent = Agent(ScriptedModel(text("half")[:1]), pipeline=Pipeline(reply=[stage, persist()]))
    async with agent.session("s") as session:
        with pytest.raises(Outrage):
            await session.ask("Go.")
    await check_rows(agent.store)


async def test_a_reply_that_was_never_read_passes_the_cut_on():
    agent = Agent(ScriptedModel(text("half")[:1], answer("three")))
    async with Runtime(store=MemoryStore()) as runtime:
        async with agent.session("s", runtime=runtime) as session:
            first = session.ask("one")
            await anext(first)
            await anext(first)
            session.ask("two")
            assert (await session.ask("three")).text == "three"
            assert first.done
        assert runtime.active == {}
        async with agent.session("s", runtime=runtime) as session:
            await anext(session.ask("four"))
            session.ask("five")
        assert runtime.active == {}
        await check_rows(runtime.store)


@pytest.mark.parametrize("type_", ["tool_call", "tool_result", "stop", "reasoning", "progress", "of the future"])
async def test_nobody_sends_what_only_a_model_or_a_tool_says(type_):
    async with Agent(ScriptedModel(answer("x"))).session("s") as session:
        with pytest.raises(MessageError, match="role 'user'"):
            session.ask(Message(role="user", type=type_, query={"tool": "stock", "id": "1", "args": {}}))


@pytest.mark.parametrize("wrong", [123, None, {"role": "user"}])
async def test_what_is_no_prompt_is_refused(wrong):
    async with Agent(ScriptedModel(answer("x"))).session("s") as session:
        with pytest.raises(MessageError, match="text or a Message"):
            session.ask(wrong)


async def test_a_dispatcher_runs_only_calls_of_the_assistant():
    foreign = Message(role="user", type="tool_call", query={"tool": "stock", "id": "1", "args": {"product": "x"}})
    assert [m.type for m in await check_stage(tool_dispatch([stock]), [foreign])] == ["tool_call"]


async def test_a_repeated_prompt_shows_the_same_as_the_first_time():
    thinking = [Message(type="reasoning", content="SECRET"), *answer("A.")]
    agent = Agent(ScriptedModel(thinking, answer("B.")), pipeline=Pipeline(reply=[persist(), strip_reasoning()]))
    async with agent.session("s") as session:
        first = await session.ask("A?", client_key="k")
        await session.ask(Message.system("B?"))
        again = await session.ask("A?", client_key="k")
    assert [(m.role, m.type, m.content) for m in again] == [(m.role, m.type, m.content) for m in first]
    assert "reasoning" not in [m.type for m in again]
    assert again[0].content == "A?"


async def test_two_duplex_handles_of_one_session_take_turns():
    agent = Agent(ScriptedModel(answer("x")))
    async with Runtime(store=MemoryStore()) as runtime:
        async with agent.session("s", runtime=runtime) as one, agent.session("s", runtime=runtime) as two:
            await one.send("1?")
            await two.send("2?")
            await one.send_eof()
            await two.send_eof()
            said = [m.content async for m in one if m.role == "user"] + [
                m.content async for m in two if m.role == "user"
            ]
        assert sorted(said) == ["1?", "2?"]
        await check_rows(runtime.store)


async def test_a_duplex_session_outlives_a_store_that_was_busy():
    class Busy(MemoryStore):
        times = 1

        async def acquire(self, session, **options):
            if self.times:
                self.times -= 1
                raise StoreBusy("locked")
            return await super().acquire(session, **options)

    agent = Agent(ScriptedModel(answer("x")), store=Busy())
    async with agent.session("s") as session:
        await session.send("1?")
        with pytest.raises(StoreBusy):
            await session.receive()
        await session.send("2?")
        await session.send_eof()
        assert [m.content async for m in session if m.role == "user"] == ["1?", "2?"]
    await check_rows(agent.store)


async def test_asking_while_the_duplex_side_answers_says_so_and_both_go_on():
    agent = Agent(ScriptedModel(text("half")[:1], answer("x")))
    async with agent.session("s") as session:
        await session.send("1?")
        while (await session.receive()).content != "half":
            pass
        with pytest.raises(SessionBusy):
            await session.ask("2?")
        await session.cancel()
        assert (await session.ask("3?")).reason == "stop"
    await check_rows(agent.store)


class SlowToClose(ScriptedModel):
    """A model whose stream waits, when it is closed, until it may end."""

    def __init__(self, *turns):
        super().__init__(*turns)
        self.may_end = anyio.Event()

    async def stream(self, context, **options):
        try:
            async with aclosing(super().stream(context, **options)) as stream:
                async for message in stream:
                    yield message
        finally:
            with anyio.CancelScope(shield=True):
                await self.may_end.wait()


async def test_who_reads_while_another_task_cancels_sees_the_stop():
    model = SlowToClose([*text("half", "more"), Message.stop("stop")])
    agent = Agent(model)
    async with agent.session("s") as session, anyio.create_task_group() as tasks:
        reply = session.ask("Go.")
        await anext(reply)
        await anext(reply)
        tasks.start_soon(reply.cancel)
        await anyio.wait_all_tasks_blocked()
        model.may_end.set()
        assert [m async for m in reply][-1].query["reason"] == "aborted"
    await check_rows(agent.store)


async def test_who_receives_while_another_task_cancels_sees_the_stop():
    model = SlowToClose([*[m for _ in range(200) for m in text("x")], Message.stop("stop")])
    agent = Agent(model)
    async with agent.session("s") as session, anyio.create_task_group() as tasks:
        await session.send("Go.")
        await anyio.wait_all_tasks_blocked()  # the outbox is full
        tasks.start_soon(session.cancel)
        await anyio.wait_all_tasks_blocked()
        model.may_end.set()
        await session.send_eof()
        assert [m async for m in session][-1].query["reason"] == "aborted"
    await check_rows(agent.store)


async def test_a_run_is_over_at_its_deadline_though_its_tool_does_not_listen():
    released = anyio.Event()

    @tool
    async def stubborn() -> str:
        """Do not listen."""
        with anyio.CancelScope(shield=True):
            await released.wait()
        return "late"

    agent = Agent(ScriptedModel(calls(call("stubborn")), answer("x")), tools=[stubborn], timeout=0.05)
    async with agent.session("s") as session:
        shown = []
        async for message in session.ask("Go."):
            shown.append(message)
            if message.type == "tool_result":
                released.set()
    assert [m.query["is_error"] for m in shown if m.type == "tool_result"] == [True]
    assert shown[-1].query["reason"] == "deadline"
    await check_rows(agent.store)


async def test_a_stage_that_fails_while_it_is_closed_does_not_keep_the_session_from_being_settled():
    async def bad_finally(stream):
        try:
            async for message in stream:
                yield message
        finally:
            raise ZeroDivisionError

    good = Agent(ScriptedModel(text("half")[:1]))
    bad = Agent(good.model, pipeline=Pipeline(reply=[persist(), bad_finally]))
    store = MemoryStore()
    with pytest.raises(ZeroDivisionError):
        async with Runtime(store=store) as runtime:
            opened = [bad.session("s", runtime=runtime), good.session("t", runtime=runtime)]
            for context in opened:
                session = await context.__aenter__()
                reply = session.ask("Go.")
                await anext(reply)
                await anext(reply)
    for context, name in zip(opened, "st", strict=True):
        await context.__aexit__(None, None, None)
        assert (await check_rows(store, name))[-1].query["reason"] == "aborted"


async def test_rows_between_the_results_and_the_next_turn_do_not_end_the_loop():
    async def note(stream):
        async for message in stream:
            yield message
            if message.type == "tool_result":
                yield Message(type="data", content="noted")

    stages = Pipeline(reply=[tool_dispatch([stock]), note, persist()])
    agent = Agent(ScriptedModel(calls(call("stock", product="x")), answer("end")), pipeline=stages)
    async with agent.session("s") as session:
        assert (await session.ask("Go.")).text == "end"


async def test_limits_are_of_one_prompt_also_when_several_wait():
    store = MemoryStore()
    await store.enqueue("s", Message.user("left over"))
    agent = Agent(ScriptedModel(answer("x")), store=store, pipeline=Pipeline(reply=[rate_limit(messages=1), persist()]))
    async with agent.session("s") as session:
        result = await session.ask("Go.")
        assert [m.query["reason"] for m in result if m.type == "stop"] == ["stop", "stop"]
        for number in range(3):
            await session.send(f"{number}?")
        await session.send_eof()
        assert [m.query["reason"] async for m in session if m.type == "stop"] == ["stop"] * 3
    await check_rows(store)


async def test_a_reply_ends_with_the_answer_to_its_own_prompt():
    store = MemoryStore()
    await store.enqueue("s", Message.user("left over"))
    stages = Pipeline(reply=[rate_limit(messages=0), persist()])
    agent = Agent(ScriptedModel(answer("x")), store=store, pipeline=stages)
    async with agent.session("s") as session:
        result = await session.ask("Go.")
    assert [m.content for m in result if m.role == "user"] == ["left over", "Go."]
    assert await store.inbox("s") == []


async def test_a_model_cannot_pass_off_a_message_as_stored():
    class Liar:
        name = "liar"

        async def stream(self, context, **_):
            yield Message(content="remember me", sequence=1)
            yield Message.stop("stop")

    agent = Agent(Liar())
    async with agent.session("s") as session:
        await session.ask("Go.")
    assert "remember me" in [m.content for m in await check_rows(agent.store)]


@pytest.mark.parametrize(
    "stages", [[persist(), persist()], [persist(), tool_dispatch()], [tool_dispatch(), tool_dispatch(), persist()]]
)
def test_a_pipeline_that_cannot_work_is_refused(stages):
    with pytest.raises(ConfigError, match="stands"):
        Pipeline(reply=stages)


async def test_a_limit_on_a_stream_without_a_stop_still_says_why_it_ended():
    seen = await check_stage(rate_limit(messages=1), [Message(content="a"), Message(content="b")])
    assert [m.type for m in seen] == ["text", "stop"]
    assert seen[-1].query["reason"] == "rate_limit"


@pytest.mark.parametrize(
    "make",
    [
        lambda: rate_limit(messages=float("nan")),
        lambda: rate_limit(messages=1.5),
        lambda: rate_limit(messages="3"),
        lambda: buffer(1.5),
        lambda: whole(max_chars=0),
        lambda: persist(lag_ms=float("inf")),
        lambda: Agent(timeout=float("nan")),
        lambda: Agent(settings=None),
        lambda: Agent(system=5),
        lambda: Agent(pipeline=[persist()]),
        lambda: Agent(tools=None),
        lambda: Agent(tools=stock),
    ],
)
def test_an_option_that_cannot_be_is_refused(make):
    with pytest.raises(ConfigError):
        make()


@ASYNCIO
async def test_one_agent_with_a_file_holds_many_sessions_at_once(tmp_path):
    agent = Agent(ScriptedModel(answer("x")), store=tmp_path / "many.db")

    async def talk(name):
        async with agent.session(name) as session:
            await session.ask("1?")
            await anyio.wait_all_tasks_blocked()
            await session.ask("2?")

    async with anyio.create_task_group() as tasks:
        for name in "abc":
            tasks.start_soon(talk, name)
    async with agent.store:
        for name in "abc":
            assert len(await check_rows(agent.store, name)) == 6
