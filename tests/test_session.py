"""Sessions: asking, duplex, cutting, and what the store holds afterwards."""

import gc
import tracemalloc
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from streamagent import Agent, Hooks, MemoryStore, Message, Runtime, SessionBusy, SessionClosed, ToolContext, tool
from streamagent.driver import RunReply
from streamagent.errors import ConfigError, ConflictError, LeaseLost, MessageError, ModelError, StoreFull
from streamagent.run import Run
from streamagent.tasks import RunTasks
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, rows, stock, text

pytestmark = pytest.mark.anyio


def agent_of(*turns, tools=(stock,), **options):
    return Agent(ScriptedModel(*turns), tools=tools, **options)


async def test_a_prompt_is_answered_and_stored():
    agent = agent_of(answer("Fif", "teen."))
    async with agent.session("s") as session:
        result = await session.ask("How many?")
    assert (str(result), result.reason, result.usage) == ("Fifteen.", "stop", {"total_tokens": 3})
    assert await rows(agent.store) == [
        (1, "user", "text", "How many?"),
        (2, "assistant", "text", "Fifteen."),
        (3, "assistant", "stop", ""),
    ]


async def test_a_call_is_stored_before_it_runs_and_its_result_goes_to_the_model():
    seen = []

    @tool
    async def look(context: ToolContext) -> str:
        """Look at the store."""
        seen.extend(await rows(agent.store))
        return "15"

    agent = agent_of(calls(call("look")), answer("Done."), tools=[look])
    async with agent.session("s") as session:
        assert (await session.ask("Look.")).text == "Done."
    assert (2, "assistant", "tool_call", "{}") in seen
    assert [m.type for m in agent.model.contexts[1]] == ["text", "tool_call", "stop", "tool_result"]
    await check_rows(agent.store)


async def test_results_come_in_call_order_whatever_finishes_first():
    first_may_end = anyio.Event()

    @tool
    async def slow() -> str:
        """Wait for the fast one."""
        await first_may_end.wait()
        return "slow"

    @tool
    async def fast() -> str:
        """Let the slow one go."""
        first_may_end.set()
        return "fast"

    agent = agent_of(calls(call("slow", "c1"), call("fast", "c2")), answer("Done."), tools=[slow, fast])
    async with agent.session("s") as session:
        result = await session.ask("Both.")
    assert [m.content for m in result if m.type == "tool_result"] == ["slow", "fast"]
    await check_rows(agent.store)


async def test_the_next_process_continues_the_conversation():
    store = MemoryStore()
    for turn in ("one", "two"):
        agent = agent_of(answer(turn), store=store, system="Be brief.")
        async with agent.session("s") as session:
            await session.ask(turn + "?")
    assert [m.content for m in agent.model.contexts[0]] == ["Be brief.", "one?", "one", "", "two?"]


@pytest.mark.parametrize("at", range(1, 8))
async def test_leaving_the_block_after_any_message_keeps_what_was_said_and_the_next_prompt_works(at):
    agent = agent_of([*text("a", "b"), call("stock", product="mug"), Message.stop("tool_calls")], answer("end"))
    shown = []
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            shown.append(message)
            if len(shown) == at:
                break
    stored = await check_rows(agent.store)
    said = "".join(m.content for m in shown if m.type == "text" and m.role == "assistant")
    assert said == "".join(m.content for m in stored if m.type == "text" and m.role == "assistant")
    assert stored[-1].query["reason"] == "aborted"
    async with agent.session("s") as session:
        assert (await session.ask("Again.")).reason == "stop"
    assert agent.model.closed == len(agent.model.contexts)
    await check_rows(agent.store)


async def test_a_cut_text_is_marked():
    agent = agent_of(text("half an ans")[:1])
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            if message.role == "assistant":
                break
    stored = await check_rows(agent.store)
    assert [(m.content, m.query) for m in stored[1:2]] == [("half an ans", {"cut": "aborted"})]


async def test_cancel_from_another_task_ends_the_reply_with_a_stop_and_closed_calls():
    started = anyio.Event()

    @tool
    async def hang() -> str:
        """Never return."""
        started.set()
        await anyio.sleep_forever()

    agent = agent_of(calls(call("hang", "c1"), call("stock", "c2", product="mug")), tools=[hang, stock])
    async with agent.session("s") as session, anyio.create_task_group() as tasks:
        reply = session.ask("Go.")

        async def cancel():
            await started.wait()
            await anyio.wait_all_tasks_blocked()
            await session.cancel()

        tasks.start_soon(cancel)
        seen = [message async for message in reply]
        assert reply.done
    results = [m for m in seen if m.type == "tool_result"]
    assert [m.content for m in results] == ["Cancelled before it finished.", "15"]  # what was finished survives
    assert seen[-1].query["reason"] == "aborted"
    await check_rows(agent.store)


async def test_cancelling_the_consumer_settles_the_session():
    agent = agent_of(text("half")[:1])
    async with agent.session("s") as session:
        with anyio.CancelScope() as scope:
            async for message in session.ask("Go."):
                if message.role == "assistant":
                    scope.cancel()
    assert (await check_rows(agent.store))[-1].query["reason"] == "aborted"


async def test_a_timeout_around_the_wait_cuts_the_run():
    agent = agent_of(text("half")[:1])
    async with agent.session("s") as session:
        reply = session.ask("Go.")
        with anyio.move_on_after(0.05):
            async for _ in reply:
                pass
        assert reply.done
        assert [m async for m in reply][-1].query["reason"] == "aborted"
    await check_rows(agent.store)


async def test_the_runs_deadline_ends_it_with_a_stop_that_says_so():
    agent = agent_of(text("half")[:1], timeout=0.05)
    async with agent.session("s") as session:
        result = await session.ask("Go.")
    assert result.reason == "deadline"
    await check_rows(agent.store)


async def test_cancel_before_the_first_and_after_the_last_message_is_harmless():
    agent = agent_of(answer("x"))
    async with agent.session("s") as session:
        reply = session.ask("Go.")
        await reply.cancel()
        assert [m async for m in reply] == []
        await session.cancel()
        reply = session.ask("Again.")
        await reply.result()
        await reply.cancel()
        await reply.aclose()
    await check_rows(agent.store)


async def test_a_new_ask_cuts_the_reply_that_was_abandoned():
    agent = agent_of(text("half")[:1], answer("whole"))
    async with agent.session("s") as session:
        first = session.ask("One.")
        await anext(first)
        await anext(first)
        assert (await session.ask("Two.")).text == "whole"
        assert (first.done, first.reason, (await first).reason) == (True, "aborted", "aborted")
    assert "aborted" in [m.query["reason"] for m in await check_rows(agent.store) if m.type == "stop"]


async def test_any_number_of_replies_that_nobody_reads_is_dropped_by_the_one_that_is_read():
    agent = agent_of(answer("one"))
    async with agent.session("s") as session:
        first, *_ = [session.ask("x") for _ in range(2000)]  # more than frames fit on a stack
        assert (await session.ask("y")).text == "one"
        assert first.done
    assert [row.content for row in await check_rows(agent.store)] == ["y", "one", ""]


async def test_two_runs_of_one_session_do_not_mix():
    agent = agent_of(text("half")[:1], answer("x"))
    async with (
        Runtime(store=MemoryStore()) as runtime,
        agent.session("s", runtime=runtime) as one,
        agent.session("s", runtime=runtime) as two,
        agent.session("t", runtime=runtime) as other,
    ):
        reply = one.ask("One.")
        await anext(reply)
        await anext(reply)
        with pytest.raises(SessionBusy, match="active run"):
            await two.ask("Two.")
        assert (await other.ask("Other.")).text == "x"
        await two.cancel()
        assert reply.done


async def test_one_reply_has_one_reader():
    agent = agent_of(text("half")[:1])
    async with agent.session("s") as session, anyio.create_task_group() as tasks:
        reply = session.ask("Go.")
        tasks.start_soon(reply.result)
        await agent.model.hangs.wait()
        with pytest.raises(SessionBusy, match="another task"):
            await anext(reply)
        with pytest.raises(SessionBusy, match="is answering"):
            session.ask("More.")
        await reply.cancel()


async def test_a_closed_session_refuses():
    agent = agent_of(answer("x"))
    async with agent.session("s") as session:
        pass
    with pytest.raises(SessionClosed):
        session.ask("Late.")
    with pytest.raises(SessionClosed):
        await session.send("Late.")
    assert "closed" in repr(session)


async def test_the_same_client_key_is_one_prompt_and_shows_the_stored_answer():
    agent = agent_of(answer("first"), answer("second"))
    async with agent.session("s") as session:
        await session.ask("Go.", client_key="k")
        again = await session.ask("Go.", client_key="k")
        assert again.text == "first"
        with pytest.raises(ConflictError):
            await session.ask("Other.", client_key="k")
        assert (await session.ask("Go.")).text == "second"
        assert (await session.ask("Go.", client_key="k")).text == "first"
    await check_rows(agent.store)


async def test_a_key_that_is_used_again_shows_the_whole_answer_of_a_run_that_was_steered():
    agent = agent_of(calls(call("stock", product="mug")), answer("done"), answer("other"), tools=[stock])
    async with agent.session("s") as session:
        reply = session.ask("Go.", client_key="k")
        await anext(reply)
        await session.steer("In French.")
        await reply.result()
        first = await check_rows(agent.store)
        await session.ask("Other.")
        again = await session.ask("Go.", client_key="k")
    assert [m.id for m in again] == [m.id for m in first]
    assert again.reason == "stop"


async def test_who_receives_when_the_block_is_left_gets_the_end_of_the_stream():
    agent = agent_of(answer("one"))
    ends = []

    async def receive(session):
        with pytest.raises(anyio.EndOfStream):
            await session.receive()
        ends.append(session.id)

    async with anyio.create_task_group() as tasks, agent.session("s") as session:
        tasks.start_soon(receive, session)
        await anyio.wait_all_tasks_blocked()
    assert ends == ["s"]


@asynccontextmanager
async def taken_over(store):
    """Ask something that hangs; give the reply, its session, and the same session in another process."""
    hanging, other = agent_of(text("half")[:1], answer("done")), agent_of(answer("two"))
    async with (
        Runtime(store=store) as one,
        Runtime(store=store) as two,
        hanging.session("s", runtime=one) as session,
        other.session("s", runtime=two) as second,
    ):
        reply = session.ask("One?")
        while (await anext(reply)).content != "half":
            pass
        await store.retire(one.holding.owner.id)  # it is taken for dead
        yield reply, session, second


async def test_who_reads_a_run_that_another_process_has_ended_hears_of_it_and_not_who_cuts_it():
    async with taken_over(MemoryStore()) as (reply, session, second):
        await second.ask("Two?")
        await session.cancel()
        assert reply.done
        with pytest.raises(LeaseLost):
            await anext(reply)
        assert list(await reply) == []


async def test_a_new_question_does_not_fail_because_of_a_run_that_another_process_took_over():
    async with taken_over(MemoryStore()) as (_, session, second):
        await second.ask("Two?")
        assert (await session.ask("Three?")).text == "done"


async def test_what_another_process_runs_cannot_be_asked_at_the_same_time():
    store = MemoryStore()
    async with (
        Runtime(store=store) as one,
        Runtime(store=store) as two,
        agent_of(answer("done"), answer("and more")).session("s", runtime=one) as session,
        agent_of(answer("two")).session("s", runtime=two) as second,
    ):
        reply = session.ask("One?")
        await anext(reply)
        with pytest.raises(SessionBusy, match="is held by"):
            await second.ask("Two?")
        assert await store.inbox("s") == []
        await reply
        assert (await second.ask("Two?")).text == "two"


async def test_duplex_answers_what_is_sent_in_order():
    agent = agent_of(answer("one"), answer("two"))
    async with agent.session("s") as session:
        await session.send("1?")
        await session.send(Message.user("2?"), client_key="k")
        await session.send("2?", client_key="k")
        await session.send_eof()
        said = [message.content async for message in session if message.type == "text" and message.content]
        with pytest.raises(anyio.EndOfStream):
            await session.receive()
        with pytest.raises(SessionClosed, match="send_eof"):
            await session.send("3?")
    assert said == ["1?", "one", "2?", "two"]
    await check_rows(agent.store)


async def test_duplex_waits_for_the_next_prompt_and_can_be_cancelled():
    agent = agent_of(text("half")[:1], answer("whole"))
    async with agent.session("s") as session:
        await session.send("1?")
        while (message := await session.receive()).content != "half":
            pass
        await session.cancel()
        while not (message := await session.receive()).is_final:
            pass
        assert message.query["reason"] == "aborted"
        await session.send("2?")
        while not (message := await session.receive()).is_final:
            pass
        assert message.query["reason"] == "stop"
    await check_rows(agent.store)


async def test_a_reply_that_was_abandoned_is_cut_for_what_is_sent():
    agent = agent_of(answer("two"))
    async with agent.session("s") as session:
        reply = session.ask("One?")
        await anext(reply)
        await session.send("Two?")
        with anyio.fail_after(5):
            assert (await session.receive()).content == "Two?"
        assert reply.done
        await session.send_eof()
        _ = [message async for message in session]
    stored = await check_rows(agent.store)
    assert [(row.type, row.content) for row in stored if row.type != "stop"] == [
        ("text", "One?"),
        ("text", "Two?"),
        ("text", "two"),
    ]


async def test_a_reply_that_was_abandoned_is_cut_at_eof_also_when_the_duplex_waited_for_it_before():
    agent = agent_of(answer("zero"), text("half")[:1])
    async with agent.session("s") as session:
        await session.send("Zero?")
        while not (await session.receive()).is_final:
            pass
        await anext(session.ask("One?"))
        await session.follow_up("And?")
        await anyio.wait_all_tasks_blocked()
        await session.send_eof()
        await anext(session)


async def test_what_is_sent_waits_for_a_reply_that_a_task_reads_and_for_that_of_another_handle():
    may_end = anyio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await may_end.wait()
        return "waited"

    agent = agent_of(calls(call("wait")), answer("one"), answer("two"), tools=[wait])
    async with Runtime(store=MemoryStore()) as runtime, anyio.create_task_group() as tasks:
        async with agent.session("s", runtime=runtime) as session, agent.session("s", runtime=runtime) as other:
            results = []

            async def read(reply):
                results.append(await reply)

            tasks.start_soon(read, session.ask("One?"))
            await anyio.wait_all_tasks_blocked()
            await session.send("Two?")
            await other.send("Three?")
            await anyio.wait_all_tasks_blocked()
            may_end.set()
            with anyio.fail_after(5):
                assert {(await session.receive()).content, (await other.receive()).content} == {"Two?", "Three?"}
            assert results[0].text == "one"
        await check_rows(runtime.store)


async def test_a_hook_that_raises_what_is_no_exception_fails_its_run_alone():
    asked = []

    def fail(end):
        asked.append(end)
        raise GeneratorExit("bye") if len(asked) == 1 else SystemExit

    async with agent_of(answer("one"), hooks=Hooks(should_stop_after_turn=fail)).session("s") as session:
        for wrong in (GeneratorExit, SystemExit):
            await session.send("Go.")
            with pytest.raises(wrong):
                while True:
                    await session.receive()


async def test_steering_from_another_handle_is_answered_by_the_one_that_serves():
    agent = agent_of(answer("one"), answer("two"))
    async with (
        Runtime(store=MemoryStore()) as runtime,
        agent.session("s", runtime=runtime) as served,
        agent.session("s", runtime=runtime) as other,
    ):
        await served.send("One?")
        while not (await served.receive()).is_final:
            pass
        await anyio.wait_all_tasks_blocked()
        await other.steer("Two?")
        with anyio.fail_after(5):
            assert [(await served.receive()).content for _ in range(2)] == ["Two?", "two"]


async def test_leaving_the_block_while_nobody_receives_ends_the_duplex_run():
    agent = agent_of([*[m for _ in range(200) for m in text("x")], Message.stop("stop")])
    async with agent.session("s") as session:
        await session.send("1?")
        await anyio.wait_all_tasks_blocked()  # the outbox is full
    assert (await check_rows(agent.store))[-1].query["reason"] == "aborted"
    assert agent.model.closed == 1


async def test_both_ways_of_driving_store_the_same_rows():
    script = [calls(call("stock", product="mug")), answer("Fif", "teen.")]
    pull, duplex = agent_of(*script), agent_of(*script)
    async with pull.session("s") as session:
        await session.ask("Go.")
    async with duplex.session("s") as session:
        await session.send("Go.")
        await session.send_eof()
        _ = [message async for message in session]
    assert await rows(pull.store) == await rows(duplex.store)


async def test_a_crashed_run_is_settled_before_the_next_prompt():
    store = MemoryStore()
    fence = await store.acquire("s")
    await store.enqueue("s", Message.user("Go."))
    await store.admit("s", fence=fence)
    lost = call("stock", product="mug")
    await store.write(
        "s",
        [*text("half")[:1], lost, Message(type="tool_call", query={"tool": "x", "id": "c2"}, more=True)],
        fence=fence,
    )
    await store.start_call("s", lost.id, fence=fence)
    agent = agent_of(answer("whole"), store=store)
    async with agent.session("s") as session:
        result = await session.ask("Next.")
    assert result.text == "whole"
    stored = await check_rows(store)
    assert stored[1].query == {"cut": "crashed"}
    assert "outcome is unknown" in stored[4].content
    assert stored[3].query["invalid"] == "truncated"
    assert stored[5].content == "Not executed: the run broke off before this call began."
    assert stored[6].query["error"]["kind"] == "interrupted"
    assert stored[7].content == "Next."


async def test_many_prompts_in_the_inbox_are_answered_by_one_run():
    store = MemoryStore()
    await store.enqueue("s", Message.user("1?"))
    agent = agent_of(answer("one"), answer("two"), store=store)
    async with agent.session("s") as session:
        result = await session.ask("2?")
    assert [m.content for m in result if m.type == "text"] == ["1?", "one", "2?", "two"]


async def test_the_turn_limit_ends_a_loop_at_the_limit_and_not_before():
    two_turns = [calls(call("stock", product="mug")), answer("Done.")]
    agent = agent_of(*two_turns, max_turns=2)
    async with agent.session("s") as session:
        assert (await session.ask("Go.")).reason == "stop"
    agent = agent_of(*two_turns, max_turns=1)
    async with agent.session("s") as session:
        result = await session.ask("Go.")
    assert result.stop.query == {"reason": "turn_limit", "limit": {"turns": 1}}
    await check_rows(agent.store)


async def test_the_turn_limit_is_fifty_by_default():
    agent = agent_of(calls(call("stock", product="mug")))
    async with agent.session("s") as session:
        result = await session.ask("Go.")
    assert (result.reason, len(agent.model.contexts)) == ("turn_limit", 50)


async def test_a_model_stream_without_a_stop_is_an_error_stop():
    class Silent:
        name = "silent"

        async def stream(self, context, **_):
            yield Message(content="hm")

    agent = Agent(Silent())
    async with agent.session("s") as session:
        result = await session.ask("Go.")
    assert result.error["kind"] == "truncated"
    with pytest.raises(ModelError, match="without a stop"):
        result.raise_for_error()
    await check_rows(agent.store)


async def test_a_bug_in_a_stage_raises_and_the_session_stays_usable():
    async def buggy(stream):
        async for message in stream:
            if message.content == "bad":
                raise ZeroDivisionError
            yield message

    agent = agent_of([*text("a", "bad"), Message.stop("stop")], answer("good"), tools=())
    agent = Agent(agent.model, store=agent.store, pipeline=agent.pipeline + buggy)
    async with agent.session("s") as session:
        with pytest.raises(ZeroDivisionError):
            await session.ask("Go.")
        assert (await session.ask("Again.")).text == "good"
    assert "error" in [m.query["reason"] for m in await check_rows(agent.store) if m.type == "stop"]


@pytest.mark.parametrize("while_waiting", [True, False])
async def test_a_bug_in_background_work_raises_where_the_run_is_driven(while_waiting):
    fail = anyio.Event()

    async def broken():
        await fail.wait()
        raise ZeroDivisionError

    async def stage(stream, run):
        run.tasks.start_soon(broken)
        async for message in stream:
            yield message

    agent = agent_of(text("half")[:1])
    agent = Agent(agent.model, store=agent.store, pipeline=agent.pipeline + stage)
    async with agent.session("s") as session:
        with pytest.raises(ZeroDivisionError):
            async for message in session.ask("Go."):
                if message.content == "half":
                    fail.set()
                    if not while_waiting:
                        await anyio.wait_all_tasks_blocked()
    assert (await check_rows(agent.store))[-1].query["reason"] == "error"


async def test_a_stage_that_ends_the_stream_early_does_not_end_it_silently():
    async def only_three(stream):
        seen = 0
        async for message in stream:
            seen += 1
            if seen > 3:
                return
            yield message

    agent = agent_of([*text("a", "b", "c"), Message.stop("stop")])
    agent = Agent(agent.model, store=agent.store, pipeline=agent.pipeline + only_three)
    async with agent.session("s") as session:
        result = await session.ask("Go.")
    assert result.reason == "ended"
    await check_rows(agent.store)


async def test_calls_without_a_dispatcher_end_the_run_and_are_closed():
    from streamagent import Pipeline, persist

    agent = Agent(ScriptedModel(calls(call("elsewhere"))), pipeline=Pipeline(reply=[persist()]))
    async with agent.session("s") as session:
        result = await session.ask("Go.")
    assert [m.content for m in result if m.type == "tool_result"] == ["Not executed: the run ended before this call."]
    await check_rows(agent.store)


async def test_a_pipeline_without_persist_still_ends():
    from streamagent import Pipeline, tool_dispatch

    agent = Agent(ScriptedModel(calls(call("stock", product="mug"))), pipeline=Pipeline(reply=[tool_dispatch([stock])]))
    async with agent.session("s") as session:
        seen = [m.type async for m in session.ask("Go.")]
    assert seen == ["text", "tool_call", "stop", "tool_result", "stop"]


async def test_a_failing_store_stops_the_stream_at_once():
    class Full(MemoryStore):
        broken = False

        async def write(self, session, fragments, *, fence):
            if self.broken:
                raise StoreFull("disk full")
            return await super().write(session, fragments, fence=fence)

    store = Full()
    agent = agent_of(answer("a"), store=store)
    store.broken = True
    seen = []
    async with agent.session("s") as session:
        with pytest.raises(StoreFull):
            async for message in session.ask("Go."):
                seen.append(message.type)
        assert "stop" not in seen
        store.broken = False
        assert (await session.ask("Again.")).reason == "stop"
    await check_rows(store)


async def test_a_runner_that_lost_its_lease_writes_nothing_more():
    from streamagent import LeaseLost

    agent = agent_of([*text("a"), *text("b"), Message.stop("stop")])
    async with agent.session("s") as session:
        reply = session.ask("Go.")
        await anext(reply)
        await agent.store.acquire("s")
        with pytest.raises(LeaseLost):
            await reply.result()
        before = await rows(agent.store)
    assert await rows(agent.store) == before


async def test_an_unfinished_runtime_is_closed_with_everything_in_it():
    agent = agent_of(text("half")[:1])
    async with Runtime(store=MemoryStore()) as runtime:
        cm = agent.session("s", runtime=runtime)
        session = await cm.__aenter__()
        await anext(reply := session.ask("Go."))
        async with agent.session("t", runtime=runtime) as other:
            await other.send("x")
            await other.receive()
    assert reply.done
    await cm.__aexit__(None, None, None)
    await check_rows(runtime.store, "s")
    gc.collect()


@pytest.mark.parametrize("id_", ["", "x" * 257, "a\nb", 7])
async def test_a_bad_session_id_is_refused(id_):
    with pytest.raises(ConfigError, match="session id"):
        async with agent_of(answer("x")).session(id_):
            pass


async def test_a_session_id_at_the_limit_is_fine_and_none_makes_a_new_one():
    agent = agent_of(answer("x"))
    async with agent.session("x" * 256) as session:
        await session.ask("Go.")
    async with agent.session() as one, agent.session() as two:
        assert one.id != two.id


async def test_a_runtime_says_when_it_is_not_open_or_open_twice():
    agent = agent_of(answer("x"))
    runtime = Runtime(store=MemoryStore())
    with pytest.raises(ConfigError, match="not open"):
        async with agent.session("s", runtime=runtime):
            pass
    async with runtime:
        with pytest.raises(RuntimeError, match="already been entered"):
            async with runtime:
                pass
    with pytest.raises(ConfigError, match="takes a store"):
        Runtime(store="shop.db")


@pytest.mark.parametrize("options", [{"max_turns": 0}, {"timeout": 0}, {"store": 3}, {"model": 3}])
def test_an_agent_that_cannot_work_is_refused(options):
    with pytest.raises(ConfigError):
        Agent(**options)


def test_an_agent_shows_what_it_built():
    agent = agent_of(answer("x"))
    assert repr(agent) == (
        "<Agent scripted tools=[stock] "
        "Pipeline(reply=[tool_dispatch(tools=[stock]), persist(lag_bytes=4096, lag_ms=50)])>"
    )


async def test_history_reads_from_any_sequence():
    agent = agent_of(answer("x"))
    async with agent.session("s") as session:
        await session.ask("Go.")
        assert [m.sequence async for m in session.history(after=1)] == [2, 3]


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True}), ("trio", {})], ids=["uvloop", "trio"])
async def test_five_hundred_sessions_share_one_agent_without_mixing():
    """I1, I2, T60."""

    class Echo:
        name = "echo"

        async def stream(self, context, **_):
            last = [m async for m in context][-1]
            if last.role == "user":
                yield call("stock", product=last.content)
                yield Message.stop("tool_calls")
            else:
                for message in answer("units: ", last.content):
                    yield message

    @tool(name="stock")
    async def units(product: str) -> str:
        """Units in stock."""
        return f"{product}!"

    agent = Agent(Echo(), tools=[units])
    async with Runtime(store=MemoryStore()) as runtime, anyio.create_task_group() as tasks:

        async def one(number):
            async with agent.session(f"s{number}", runtime=runtime) as session:
                assert (await session.ask(str(number))).text == f"units: {number}!"

        for number in range(500):
            tasks.start_soon(one, number)
    for number in range(500):
        assert len(await check_rows(runtime.store, f"s{number}")) == 6


@pytest.mark.parametrize("wrong", [{"role": "assistant"}, {"role": "tool"}, {"role": "user", "more": True}])
async def test_only_whole_messages_of_users_and_systems_can_be_sent(wrong):
    """S29: nobody writes the model's part."""
    async with agent_of(answer("x")).session("s") as session:
        with pytest.raises(MessageError, match="role 'user'"):
            session.ask(Message(**wrong))
        with pytest.raises(MessageError, match="role 'user'"):
            await session.send(Message(**wrong))


async def test_a_prompt_whose_answer_crashed_is_answered_to_its_end_when_asked_again():
    store = MemoryStore()
    fence = await store.acquire("s")
    await store.enqueue("s", Message.user("Go."), client_key="k")
    await store.admit("s", fence=fence)
    await store.write("s", text("half")[:1], fence=fence)
    async with agent_of(answer("x"), store=store).session("s") as session:
        result = await session.ask("Go.", client_key="k")
    assert (result.text, result.reason) == ("x", "stop")
    stored = await check_rows(store)
    assert [(m.type, m.content, m.attempt) for m in stored[1:]] == [
        ("text", "half", 1),
        ("stop", "", 1),
        ("text", "x", 2),
        ("stop", "", 2),
    ]
    assert [m.query["reason"] for m in result if m.type == "stop"] == ["aborted", "stop"]


async def test_a_prompt_that_was_accepted_but_never_admitted_is_answered_when_asked_again():
    store = MemoryStore()
    await store.enqueue("s", Message.user("Go."), client_key="k")
    async with agent_of(answer("x"), store=store).session("s") as session:
        assert (await session.ask("Go.", client_key="k")).text == "x"
    assert len(await check_rows(store)) == 3


async def test_a_duplex_run_that_fails_raises_where_it_is_received():
    async def buggy(stream):
        async for message in stream:
            if message.role == "assistant":
                raise ZeroDivisionError
            yield message

    agent = agent_of(answer("x"))
    agent = Agent(agent.model, store=agent.store, pipeline=agent.pipeline + buggy)
    async with agent.session("s") as session:
        await session.send("Go.")
        assert (await session.receive()).content == "Go."
        with pytest.raises(ZeroDivisionError):
            await session.receive()
    await check_rows(agent.store)


async def test_eof_before_anything_was_sent_ends_the_duplex():
    async with agent_of(answer("x")).session("s") as session:
        await session.send_eof()
        assert [m async for m in session] == []


async def test_a_store_that_fails_at_the_end_does_not_pass_for_success():
    class Failing(MemoryStore):
        broken = False

        async def unfinished(self, session):
            if self.broken:
                raise StoreFull("disk full")
            return await super().unfinished(session)

    store = Failing()
    async with agent_of(answer("x"), store=store).session("s") as session:
        with pytest.raises(StoreFull):
            async for _ in session.ask("Go."):
                store.broken = True
        store.broken = False
        assert (await session.ask("Again.")).reason == "stop"


async def test_a_session_in_which_nothing_happens_needs_half_a_kilobyte():
    agent, number = Agent("mock"), 1_000
    async with Runtime(store=MemoryStore()) as runtime, AsyncExitStack() as stack:
        tracemalloc.start()
        try:
            for index in range(number):
                await stack.enter_async_context(agent.session(f"session {index}", runtime=runtime))
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert held / number <= 512


async def test_a_session_that_is_over_leaves_nothing_to_the_garbage_collector():
    agent = agent_of(calls(call("stock", product="mug")), answer("15"))

    async def ask():
        async with agent.session("s") as session:
            await session.ask("How many?")
            idle.set()
            await anyio.sleep_forever()  # also one that is open holds nothing of what is over

    idle = anyio.Event()
    gc.collect()
    gc.disable()
    try:
        before = {id(found) for found in gc.get_objects() if isinstance(found, (RunReply, Run, RunTasks))}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await idle.wait()
            await anyio.wait_all_tasks_blocked()
            open_still = [found for found in gc.get_objects() if isinstance(found, (RunReply, Run, RunTasks))]
            tasks.cancel_scope.cancel()
        assert {id(found) for found in open_still} <= before
        left = [found for found in gc.get_objects() if isinstance(found, (RunReply, Run, RunTasks))]
        assert {id(found) for found in left} <= before
    finally:
        gc.enable()
