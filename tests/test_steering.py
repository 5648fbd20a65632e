"""Steering at a tool's border, interruptions, and prompts of several messages, in memory and in a file."""

import anyio
import pytest

from streamagent import Agent, Hooks, MemoryStore, Message, Pipeline, Runtime, persist, tool, tool_dispatch
from streamagent.errors import ConfigError
from streamagent.events import EventEncoder
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock, text

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(either_store):
    return either_store


def shown(messages):
    """Rows in short: role or type, content."""
    return [(m.role if m.type == "text" else m.type, m.content) for m in messages if m.type != "stop"]


def reasons(messages):
    return [m.query["reason"] for m in messages if m.type == "stop"]


def waiting_tool(name="hang"):
    """A tool that says when it runs and never returns."""
    started = anyio.Event()

    async def hang() -> str:
        """Never return."""
        started.set()
        await anyio.sleep_forever()

    hang.__name__ = name
    return tool(hang), started


class Conversation:
    """A session whose reply is read by a task, while the test does something else."""

    def __init__(self, agent, store):
        self.agent = agent
        self.store = store
        self.seen = []
        self.news = anyio.Event()

    async def read(self, session, prompt):
        async for message in session.ask(prompt):
            self.seen.append(message)
            self.news.set()
            self.news = anyio.Event()

    async def until(self, content):
        """Wait until something was shown."""
        while not any(message.content == content for message in self.seen):
            await self.news.wait()
        await anyio.wait_all_tasks_blocked()

    async def run(self, act, prompt="Go."):
        """Ask, do something meanwhile, read to the end; return the rows."""
        async with Runtime(store=self.store) as runtime, self.agent.session("s", runtime=runtime) as session:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.read, session, prompt)
                await act(session)
            return await check_rows(self.store)


HALF = text("half an ans")[:1]
SILENT = []
ARGUMENTS = [Message(type="tool_call", content='{"pro', query={"tool": "stock", "id": "c1"}, more=True)]


# --- interrupt: the answer is cut now


@pytest.mark.parametrize("turn", [SILENT, HALF, ARGUMENTS], ids=["silent", "text", "arguments"])
async def test_an_interruption_cuts_the_answer_and_the_same_reply_goes_on(store, turn):
    agent = Agent(ScriptedModel(turn, answer("new")), tools=[stock])
    talk = Conversation(agent, store)

    async def act(session):
        await agent.model.hangs.wait()
        await anyio.wait_all_tasks_blocked()
        await session.steer("Stop, say something new.", interrupt=True)

    stored = await talk.run(act)
    said = [(item.type if item.type != "text" else "assistant", item.content) for item in turn]
    results = [("tool_result", "Interrupted by the user before it finished.")] if turn is ARGUMENTS else []
    middle = [("user", "Stop, say something new."), ("assistant", "new")]
    assert shown(stored) == [("user", "Go."), *said, *results, *middle]
    assert [m.query["cut"] for m in stored[1 : 1 + len(said)]] == ["interrupted"] * len(said)
    assert reasons(stored) == ["aborted", "stop"]
    assert agent.model.closed == 2
    assert [m.content for m in agent.model.contexts[1] if m.role == "user"] == ["Go.", "Stop, say something new."]
    assert {m.id for m in talk.seen} == {m.id for m in stored}


async def test_what_was_finished_survives_an_interruption_and_what_runs_is_closed(store):
    """T77."""
    hang, started = waiting_tool()
    turn = calls(call("hang", "c1"), call("stock", "c2", product="mug"))
    agent = Agent(ScriptedModel(turn, answer("new")), tools=[hang, stock])

    async def act(session):
        await started.wait()
        await anyio.wait_all_tasks_blocked()
        await session.steer("New.", interrupt=True)

    stored = await Conversation(agent, store).run(act)
    results = [(m.content, m.query.get("cut")) for m in stored if m.type == "tool_result"]
    assert results == [("Interrupted by the user before it finished.", "interrupted"), ("15", None)]
    assert [m.role for m in stored][-3:] == ["user", "assistant", "assistant"]  # T76: the results are rows before it


async def test_an_interruption_while_nobody_reads_is_done_when_somebody_does(store):
    agent = Agent(ScriptedModel(HALF, answer("new")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        reply = session.ask("Go.")
        while (await anext(reply)).role == "user":
            pass
        await session.steer("New.", interrupt=True)
        result = await reply
        assert shown(result) == [("assistant", ""), ("user", "New."), ("assistant", "new")]
        await check_rows(store)


async def test_the_duplex_form_is_interrupted_too(store):
    agent = Agent(ScriptedModel(HALF, answer("new")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        await session.send("Go.")
        await agent.model.hangs.wait()
        await anyio.wait_all_tasks_blocked()
        await session.steer("New.", interrupt=True)
        await session.send_eof()
        seen = [message async for message in session]
        assert reasons(seen) == ["aborted", "stop"]
        assert reasons(await check_rows(store)) == ["aborted", "stop"]


async def test_an_interruption_takes_all_that_the_user_said_and_in_order(store):
    agent = Agent(ScriptedModel(HALF, answer("new")))

    async def act(session):
        await agent.model.hangs.wait()
        await session.steer("One.")
        await session.steer("Two.", interrupt=True)
        await session.steer("Three.", interrupt=True)

    stored = await Conversation(agent, store).run(act)
    assert [m.content for m in stored if m.role == "user"] == ["Go.", "One.", "Two.", "Three."]
    assert reasons(stored) == ["aborted", "stop"]


async def test_the_same_interruption_twice_cuts_once(store):
    """A retry of its sender must not cut the answer to it."""
    agent = Agent(ScriptedModel(HALF, answer("new")))
    talk = Conversation(agent, store)

    async def act(session):
        await agent.model.hangs.wait()
        await session.steer("New.", interrupt=True, client_key="k")
        await talk.until("new")
        await session.steer("New.", interrupt=True, client_key="k")

    assert reasons(await talk.run(act)) == ["aborted", "stop"]


async def test_an_interruption_does_not_cut_the_answer_to_itself():
    store = MemoryStore()
    agent = Agent(ScriptedModel(answer("one"), answer("two")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        reply = session.ask("Go.")
        async for message in reply:
            if message.content == "one":
                await session.steer("And?", client_key="k")
            if message.content == "And?":
                reply.interrupt(message.id)
        assert reasons(await check_rows(store)) == ["stop", "stop"]


async def test_an_interruption_that_comes_while_the_run_begins_is_not_left_for_its_next_border():
    class Interrupted(MemoryStore):
        async def begin_run(self, *args, **options):
            begun = await super().begin_run(*args, **options)
            await session.steer("New.", interrupt=True)
            return begun

    agent = Agent(ScriptedModel(answer("ok")), store=Interrupted())
    async with agent.session("s") as session:
        await session.ask("Go.")
        assert shown(await check_rows(agent.store)) == [("user", "Go."), ("user", "New."), ("assistant", "ok")]


async def test_interrupt_without_a_message_ends_the_answer(store):
    agent = Agent(ScriptedModel(HALF))
    talk = Conversation(agent, store)

    async def act(session):
        await agent.model.hangs.wait()
        await anyio.wait_all_tasks_blocked()
        session._runtime.active["s"].interrupt()

    stored = await talk.run(act)
    assert shown(stored) == [("user", "Go."), ("assistant", "half an ans")]
    assert reasons(stored) == ["aborted"]


async def test_an_answer_that_ended_by_an_interruption_ends_there_for_whoever_asks_again(store):
    agent = Agent(ScriptedModel(text("Well"), answer("B it is.")), store=store)
    async with agent.session("s") as session:
        reply = session.ask("A", client_key="a")
        await anext(reply)
        await anext(reply)
        reply.interrupt()
        await reply.result()
        await session.ask("B")
        assert shown([m async for m in session.ask("A", client_key="a")]) == [("user", "A"), ("assistant", "Well")]


async def test_an_answer_that_a_hook_steers_after_an_interruption_goes_on_for_whoever_asks_again(store):
    given = [[], [Message.user("Louder!")]]
    hooks = Hooks(get_steering_messages=lambda: given.pop() if given else [])
    agent = Agent(ScriptedModel(text("Well"), answer("WELL.")), store=store, hooks=hooks)
    async with agent.session("s") as session:
        reply = session.ask("A", client_key="a")
        await anext(reply)
        await anext(reply)
        reply.interrupt()
        await reply.result()
        again = shown([m async for m in session.ask("A", client_key="a")])
        assert again == [("user", "A"), ("assistant", "Well"), ("user", "Louder!"), ("assistant", "WELL.")]


async def test_interrupt_is_nothing_before_the_first_step_and_after_the_last():
    agent = Agent(ScriptedModel(answer("one")))
    async with agent.session("s") as session:
        reply = session.ask("Go.")
        reply.interrupt()
        assert reasons(await reply) == ["stop"]
        reply.interrupt()
        assert reply.done
        assert list(await reply) == []


async def test_an_interruption_before_the_prompt_is_admitted_does_not_lose_the_prompt():
    """It waits for the moment in which the prompt is the run's."""

    class Slow(MemoryStore):
        admits, may = anyio.Event(), anyio.Event()

        async def admit(self, *args, **options):
            self.admits.set()
            await self.may.wait()
            return await super().admit(*args, **options)

    slow = Slow()
    agent = Agent(ScriptedModel(answer("x")))
    talk = Conversation(agent, slow)

    async def act(session):
        await slow.admits.wait()
        await session.steer("New.", interrupt=True)
        slow.may.set()

    stored = await talk.run(act)
    assert [m.content for m in stored if m.role == "user"] == ["Go.", "New."]
    assert reasons(stored) == ["aborted", "stop"]
    assert len(agent.model.contexts) == 1


async def test_a_message_that_is_just_being_admitted_cuts_nothing():
    """It comes between the row and the moment in which the run knows of it."""

    class Slow(MemoryStore):
        admitted, may = anyio.Event(), anyio.Event()

        async def admit(self, session, **options):
            rows = await super().admit(session, **options)
            if rows and rows[0].content == "New.":
                self.admitted.set()
                await self.may.wait()
            return rows

    slow = Slow()
    agent = Agent(ScriptedModel(answer("one"), answer("two")))
    async with Runtime(store=slow) as runtime, agent.session("s", runtime=runtime) as session:

        async def read():
            async for message in session.ask("Go."):
                if message.content == "one":
                    await session.steer("New.")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await slow.admitted.wait()
            [new] = [m async for m in slow.read("s") if m.content == "New."]
            runtime.active["s"].interrupt(new.id)
            await session.steer("Newer.", interrupt=True)
            slow.may.set()
        stored = await check_rows(slow)
    assert shown(stored) == [("user", "Go."), ("assistant", "one"), *WITH_BOTH]
    assert reasons(stored) == ["stop", "stop"]


WITH_BOTH = [("user", "New."), ("user", "Newer."), ("assistant", "two")]


async def test_a_run_that_ends_just_then_answers_the_interruption_all_the_same():
    agent = Agent(ScriptedModel(answer("one"), answer("two")), max_turns=1)
    async with agent.session("s") as session:
        reply = session.ask("Go.")
        while (await anext(reply)).type != "stop":
            pass
        await session.steer("New.", interrupt=True)
        assert shown(await reply) == [("user", "New."), ("assistant", "two")]


async def test_an_interrupted_turn_is_none_of_max_turns_and_the_ones_before_are():
    agent = Agent(ScriptedModel(calls(call("stock", product="mug")), HALF, calls(call("stock", product="mug"))))
    agent = Agent(agent.model, tools=[stock], max_turns=2)

    async def act(session):
        await agent.model.hangs.wait()
        await anyio.wait_all_tasks_blocked()
        await session.steer("New.", interrupt=True)

    stored = await Conversation(agent, MemoryStore()).run(act)
    assert reasons(stored) == ["tool_calls", "aborted", "tool_calls", "turn_limit"]


async def test_cancel_while_the_run_is_switched_ends_the_answer():
    """Whoever cuts the answer meanwhile leaves its end to the task that reads."""

    class Slow(MemoryStore):
        flushing, may = anyio.Event(), anyio.Event()

        async def flush(self, session):
            self.flushing.set()
            await self.may.wait()

    slow = Slow()
    agent = Agent(ScriptedModel(HALF, answer("never")))

    async def act(session):
        await agent.model.hangs.wait()
        await anyio.wait_all_tasks_blocked()
        await session.steer("New.", interrupt=True)
        await slow.flushing.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.cancel)
            await anyio.wait_all_tasks_blocked()
            slow.may.set()

    stored = await Conversation(agent, slow).run(act)
    assert reasons(stored) == ["aborted"]
    assert [m.content for m in await slow.inbox("s")] == ["New."]


async def test_a_store_that_fails_when_the_run_is_switched_ends_the_answer_with_that():
    class Full(MemoryStore):
        full = False

        async def unfinished(self, session):
            if self.full:
                self.full = False
                raise OSError("no")
            return await super().unfinished(session)

    full = Full()
    agent = Agent(ScriptedModel(HALF, answer("x")))
    async with Runtime(store=full) as runtime, agent.session("s", runtime=runtime) as session:
        reply = session.ask("Go.")
        while (await anext(reply)).role == "user":
            pass
        full.full = True
        reply.interrupt()
        with pytest.raises(OSError, match="no"):
            await anext(reply)
        assert reply.done
        assert "s" not in runtime.active
        await check_rows(full)


async def test_an_interruption_of_another_process_is_seen_at_the_next_border(store):
    """No run of this process is cut: the message waits in the inbox like any steering."""
    agent = Agent(ScriptedModel(calls(call("stock", product="mug")), answer("x")), tools=[stock])
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        seen = []
        async for message in session.ask("Go."):
            seen.append(message)
            if message.type == "tool_call":
                await store.enqueue(
                    "s", Message(role="user", content="New.", query={"lane": "steer", "interrupt": True})
                )
        assert reasons(seen) == ["tool_calls", "stop"]
        assert [m.content for m in seen if m.role == "user"] == ["Go.", "New."]


@pytest.mark.parametrize("end", ["cancel", "leave", "error"])
async def test_what_was_not_admitted_stays_in_the_inbox_however_the_run_ends(store, end):
    hang, _ = waiting_tool()
    failed = [Message.stop("error", error={"kind": "overloaded", "message": "!", "retryable": True})]
    script = [failed] if end == "error" else [calls(call("hang"))]
    agent = Agent(ScriptedModel(*script, answer("x")), tools=[hang])
    async with Runtime(store=store) as runtime:
        async with agent.session("s", runtime=runtime) as session:
            async for message in session.ask("Go."):
                if message.content == "Go.":
                    await session.steer("Now.")
                    await session.follow_up("Later.")
                if message.type == "stop" and message.query["reason"] == "tool_calls":
                    await (session.cancel() if end == "cancel" else session.aclose())
        assert [m.content for m in await store.inbox("s")] == ["Now.", "Later."]
        async with agent.session("s", runtime=runtime) as session:
            result = await session.ask("Again.")
        assert [m.content for m in result if m.role == "user"] == ["Again.", "Now.", "Later."]
        await check_rows(store)


async def test_what_was_not_admitted_is_found_after_a_crash(store):
    agent = Agent(ScriptedModel(answer("x")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        await store.enqueue("s", Message.user("Go."))
        fence = await store.acquire("s")
        await store.admit("s", fence=fence)
        await store.write("s", HALF, fence=fence)
        await session.steer("Now.", interrupt=True)
        await session.follow_up("Later.")  # here the process was killed
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        result = await session.ask("Again.")
        assert [m.content for m in result if m.role == "user"] == ["Again.", "Now.", "Later."]
        await check_rows(store)


@pytest.mark.parametrize("at", range(1, 11))
async def test_the_reader_interrupts_after_any_message_and_both_messages_are_answered(store, at):
    turn = calls(*text("a", "b"), call("stock", product="mug"))
    agent = Agent(ScriptedModel(turn, answer("end"), answer("new"), answer("new")), tools=[stock])
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        seen = []
        async for message in session.ask("Go."):
            seen.append(message)
            if len(seen) == at:
                await session.steer("New.", interrupt=True)
        stored = await check_rows(store)
    assert [m.content for m in stored if m.role == "user"] == ["Go.", "New."]
    assert stored[-2].content in ("end", "new")
    assert agent.model.closed == len(agent.model.contexts)


@pytest.mark.parametrize("after", range(0, 60, 3))
async def test_another_task_interrupts_at_any_moment(store, after):
    turn = calls(*text("a", "b"), call("stock", product="mug"))
    agent = Agent(ScriptedModel(turn, answer("end"), answer("new"), answer("new")), tools=[stock])
    talk = Conversation(agent, store)

    async def act(session):
        for _ in range(after):
            await anyio.lowlevel.checkpoint()
        await session.steer("New.", interrupt=True)

    stored = await talk.run(act)
    async with store:
        waiting = await store.inbox("s")
    assert [m.content for m in [*stored, *waiting] if m.role == "user"].count("New.") == 1
    assert reasons(stored)[-1] == "stop"
    assert agent.model.closed == len(agent.model.contexts)


async def test_the_events_of_an_interrupted_run_are_those_of_two_turns():
    agent = Agent(ScriptedModel(calls(call("stock", product="mug"))[:1], answer("new")), tools=[stock])
    talk = Conversation(agent, MemoryStore())

    async def act(session):
        await agent.model.hangs.wait()
        await anyio.wait_all_tasks_blocked()
        await session.steer("New.", interrupt=True)

    await talk.run(act)
    encoder = EventEncoder()
    told = [event.type for message in talk.seen for event in encoder.feed(message)]
    told += [event.type for event in encoder.end()]
    whole = [event for event in told if event.startswith(("turn", "agent"))]
    assert whole == ["agent_start", "turn_start", "turn_end", "turn_start", "turn_end", "agent_end"]


async def test_a_call_that_waits_for_an_approval_is_closed_by_an_interruption(store):
    hang, started = waiting_tool()

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    turn = calls(call("pay", "c1"), call("hang", "c2"))
    agent = Agent(ScriptedModel(turn, answer("new")), tools=[hang, pay])

    async def act(session):
        await started.wait()
        await anyio.wait_all_tasks_blocked()
        await session.steer("New.", interrupt=True)
        await talk.until("new")
        assert await session.pending() == []

    talk = Conversation(agent, store)
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.read, session, "Go.")
            await act(session)
        stored = [row async for row in session.history()]
    assert [m.content for m in stored if m.type == "tool_result"] == ["Interrupted by the user before it finished."] * 2
    assert [m.query.get("decision") for m in stored if m.type == "approval"] == [None, "expired"]
    assert reasons(stored) == ["tool_calls", "aborted", "stop"]


# --- steer_at: after each batch, or after each tool


def sequential(**options):
    return Pipeline(reply=[tool_dispatch(options.pop("tools"), mode="sequential", **options), persist()])


THREE = calls(*(call("stock", f"c{n}", product="mug") for n in range(3)))


@pytest.mark.parametrize(("steer_at", "run"), [("after_batch", 3), ("after_tool", 1)])
async def test_steering_is_seen_after_the_batch_or_after_the_tool(store, steer_at, run):
    """pi #4001 and #1883: both rules have their users."""
    ran = []

    @tool
    async def stock(product: str) -> str:
        """Count."""
        ran.append(product)
        await session.steer(f"Quick! {len(ran)}")
        return "15"

    pipeline = sequential(tools=[stock], steer_at=steer_at)
    agent = Agent(ScriptedModel(THREE, answer("x")), tools=[stock], pipeline=pipeline, steering="all")
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        await session.ask("Go.")
        stored = await check_rows(store)
    assert len(ran) == run
    results = [(m.content, m.query.get("skipped"), m.query["is_error"]) for m in stored if m.type == "tool_result"]
    skipped = ("Skipped: the user said something new.", True, True)
    assert results == [("15", None, False)] * run + [skipped] * (3 - run)
    assert [m.content for m in agent.model.contexts[1]][-run:] == [f"Quick! {n + 1}" for n in range(run)]


async def test_a_parallel_call_that_is_still_being_prepared_is_skipped_and_a_running_one_finishes():
    deciding, decided, may, ran = anyio.Event(), anyio.Event(), anyio.Event(), []

    @tool
    async def work(name: str) -> str:
        """Work; the slow one until it may."""
        ran.append(name)
        if name == "slow":
            await may.wait()
        return name

    async def before(asked):
        if asked.args["name"] == "late":
            deciding.set()
            await decided.wait()

    four = calls(*(call("work", name, name=name) for name in ("slow", "fast", "late", "last")))
    dispatch = tool_dispatch([work], before_tool_call=before, steer_at="after_tool")
    agent = Agent(ScriptedModel(four, answer("x")), tools=[work], pipeline=Pipeline(reply=[dispatch, persist()]))

    async def act(session):
        await deciding.wait()
        await anyio.wait_all_tasks_blocked()
        await session.steer("New.")
        decided.set()
        await anyio.wait_all_tasks_blocked()
        may.set()

    stored = await Conversation(agent, MemoryStore()).run(act)
    assert ran == ["slow", "fast"]
    results = [(m.content, m.query.get("skipped")) for m in stored if m.type == "tool_result"]
    skipped = ("Skipped: the user said something new.", True)
    assert results == [("slow", None), ("fast", None), skipped, skipped]


async def test_the_next_batch_begins_afresh_after_a_skip():
    ran = []

    @tool
    async def stock(product: str) -> str:
        """Count."""
        ran.append(product)
        if len(ran) == 1:
            await session.steer("New.")
        return "15"

    pipeline = sequential(tools=[stock], steer_at="after_tool")
    agent = Agent(ScriptedModel(THREE, THREE, answer("x")), tools=[stock], pipeline=pipeline)
    async with agent.session("s") as session:
        await session.ask("Go.")
    assert len(ran) == 4


async def test_a_follow_up_skips_nothing():
    ran = []

    @tool
    async def stock(product: str) -> str:
        """Count."""
        ran.append(product)
        await session.follow_up("Later.")
        return "15"

    pipeline = sequential(tools=[stock], steer_at="after_tool")
    agent = Agent(ScriptedModel(THREE, answer("x")), tools=[stock], pipeline=pipeline)
    async with agent.session("s") as session:
        await session.ask("Go.")
    assert len(ran) == 3


async def test_the_agent_passes_the_border_on_and_refuses_it_beside_a_pipeline():
    assert "tools=[stock], after_tool" in repr(Agent("mock", tools=[stock], steer_at="after_tool").pipeline)
    with pytest.raises(ConfigError, match=r"tool_dispatch\(…, steer_at='after_tool'\)"):
        Agent("mock", pipeline=Pipeline(), steer_at="after_tool")
    with pytest.raises(ConfigError, match="steer_at is 'after_batch' or 'after_tool', not 'now'"):
        Agent("mock", steer_at="now")


@pytest.mark.parametrize("decided", [True, False])
async def test_an_interruption_while_a_run_looks_what_was_decided_leaves_no_call_without_its_result(decided):
    """The model is never asked behind a call that waits: what was decided is admitted first, or the pause goes on."""

    class Slow(MemoryStore):
        began, looks, may = 0, anyio.Event(), anyio.Event()

        async def begin_run(self, *args, **options):
            begun = await super().begin_run(*args, **options)
            self.began += 1
            return begun

        async def inbox(self, session):
            if self.began == 2 and not self.may.is_set():
                self.looks.set()
                await self.may.wait()
            return await super().inbox(session)

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    slow = Slow()
    agent = Agent(ScriptedModel(calls(call("pay")), answer("Well.")), tools=[pay])
    async with Runtime(store=slow) as runtime, agent.session("s", runtime=runtime) as session:
        await session.ask("Go.")
        [waiting] = await session.pending()
        if decided:
            await session.approve(waiting)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.resume().result)
            await slow.looks.wait()
            await session.steer("New.", interrupt=True)
            slow.may.set()
        stored = await check_rows(slow)
        assert [m.content for m in await slow.inbox("s")] == ([] if decided else ["New."])
        assert await session.pending() == ([] if decided else [waiting])
    results = [m.query["cut"] for m in stored if m.type == "tool_result"]
    assert results == (["interrupted"] if decided else [])
    assert reasons(stored) == ["tool_calls", "paused", *(["aborted", "stop"] if decided else [])]
