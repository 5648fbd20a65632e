"""Cancelling: from any task, any runtime, and at any await."""

from contextlib import aclosing, asynccontextmanager
from functools import partial
from types import coroutine

import anyio
import pytest
from anyio.lowlevel import checkpoint

import streamagent.watch
from streamagent import Agent, Message, Runtime, SqliteStore, tool
from streamagent.errors import ApprovalGone, ConfigError, LeaseLost, StoreBusy
from streamagent.hooks import NO_HOOKS, lane_of
from streamagent.inbox import Inbox
from streamagent.message import fold
from streamagent.stores.memory import MemoryStore
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, text

pytestmark = pytest.mark.anyio

ASYNCIO = pytest.mark.parametrize("anyio_backend", [("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})])
POLL = 0.01  # seconds


@asynccontextmanager
async def two_runtimes(agent, path=None):
    """The same session's handles in two runtimes over one store, as in two processes."""
    stores = [MemoryStore()] * 2 if path is None else [SqliteStore(path), SqliteStore(path)]
    async with (
        Runtime(store=stores[0], poll=POLL) as here,
        Runtime(store=stores[1], poll=POLL) as there,
        agent.session("s", runtime=here) as near,
        agent.session("s", runtime=there) as far,
    ):
        yield near, far, stores[0]


async def until_half(stream):
    """Read until the model has said the beginning of its answer."""
    while (await anext(stream)).content != "half":
        pass


def in_short(stored):
    return [(row.role, row.type, row.content, without_usage(row.query or {})) for row in stored]


def without_usage(query):
    """What a row says beside the estimate of what it took."""
    return {key: value for key, value in query.items() if key not in ("usage", "model")}


HALF = text("half")[:1]
CUT = [
    ("user", "text", "Go.", {}),
    ("assistant", "text", "half", {"cut": "aborted"}),
    ("user", "cancel", "", {"reason": "enough"}),
    ("assistant", "stop", "", {"reason": "aborted"}),
]


async def cut_from_another_runtime(path=None):
    agent = Agent(ScriptedModel(HALF, answer("whole")))
    async with two_runtimes(agent, path) as (near, far, store):
        reply = near.ask("Go.")
        await until_half(reply)
        assert await far.cancel(reason="enough")
        assert [m.type async for m in reply] == ["cancel", "text", "stop"]  # its text: the fragment that closes it
        assert in_short(await check_rows(store)) == CUT
        assert (await far.ask("Again.")).text == "whole"
        assert [m.content for m in agent.model.contexts[-1] if m.type == "text"] == ["Go.", "half", "Again."]


async def test_a_handle_in_another_runtime_cuts_the_run_and_history_says_why():
    await cut_from_another_runtime()


@ASYNCIO
async def test_a_handle_of_another_store_on_the_same_file_cuts_the_run(tmp_path):
    await cut_from_another_runtime(tmp_path / "s.db")


@ASYNCIO
async def test_a_reader_that_was_told_of_the_lost_session_is_not_told_again_when_the_runtime_is_left(tmp_path):
    agent = Agent(ScriptedModel(answer("one", "two")))
    async with two_runtimes(agent, tmp_path / "s.db") as (near, far, _):
        reply = near.ask("Go.")
        assert (await anext(reply)).content == "Go."
        await near._runtime.store.retire(near._runtime.holding.owner.id)  # it is taken for dead
        await far.ask("And now?")  # takes the session over
        with pytest.raises(LeaseLost):
            await reply  # the text that was shown, and the stop, are refused in one batch


async def test_a_handle_in_the_same_runtime_leaves_the_same_rows():
    agent = Agent(ScriptedModel(HALF))
    async with agent.session("s") as session:
        reply = session.ask("Go.")
        await until_half(reply)
        assert await session.cancel(reason="enough")
        assert in_short(await check_rows(agent.store)) == CUT


async def test_a_run_that_a_task_is_waiting_for_is_cut_from_another_runtime():
    agent = Agent(ScriptedModel(HALF))
    async with two_runtimes(agent) as (near, far, store), anyio.create_task_group() as tasks:
        tasks.start_soon(near.ask("Go.").result)
        await agent.model.hangs.wait()
        assert await far.cancel(reason="enough")
        assert in_short(await check_rows(store)) == CUT


async def test_the_next_prompt_in_the_queue_is_answered_and_the_cancel_returns_all_the_same():
    agent = Agent(ScriptedModel(HALF))  # its second answer hangs, too
    async with two_runtimes(agent) as (near, far, store):
        await near.send("Go.")
        await near.send("Next.")
        await until_half(near)
        assert await far.cancel(timeout=5)
        await until_half(near)
        assert [m.query["reason"] async for m in store.read("s") if m.type == "stop"] == ["aborted"]


async def test_a_cancel_without_a_run_touches_no_later_one(monkeypatch):
    """It waits, is admitted in silence with the next prompt, and no model sees it."""
    looked = anyio.Event()

    class Watched(MemoryStore):
        async def waiting(self, sessions, type):  # noqa: A002
            found = await super().waiting(sessions, type)
            if "s" in sessions and self.late:
                looked.set()
            return found

    store = Watched()
    store.late = False

    @tool
    async def wait() -> str:
        """Wait until the runtime has looked for cancels."""
        store.late = True
        await looked.wait()
        return "seen"

    agent = Agent(ScriptedModel(answer("one"), calls(call("wait")), answer("two")), tools=[wait])
    async with Runtime(store=store, poll=POLL) as runtime, agent.session("s", runtime=runtime) as session:
        await session.ask("1?")
        for _ in range(3):
            assert await session.cancel(reason="too late")
        assert [lane_of(m) for m in await store.inbox("s")] == ["cancel"]  # one is enough
        assert (await session.ask("2?")).text == "two"
    stored = await check_rows(store)
    assert [m.type for m in stored[3:5]] == ["cancel", "text"]
    assert [m.query["reason"] for m in stored if m.type == "stop"] == ["stop", "tool_calls", "stop"]
    assert "cancel" not in [entry.type for entry in agent.model.contexts[1] if entry.type == "text"]


async def test_a_cancel_that_waits_while_a_later_run_takes_it_and_pauses_leaves_that_pause(monkeypatch):
    awake = anyio.Event()

    async def sleep(_seconds):
        await awake.wait()

    monkeypatch.setattr(streamagent.watch, "sleep", sleep)
    agent = shop()
    agent.model.turns.insert(0, answer("Hello."))
    async with two_runtimes(agent) as (near, far, store), anyio.create_task_group() as tasks:
        await near.ask("Hello?")
        tasks.start_soon(far.cancel)
        while not await store.waiting(["s"], "cancel"):
            await checkpoint()
        assert (await near.ask("Go.")).reason == "paused"
        awake.set()
    assert len(await near.pending()) == 1
    assert [m.type for m in await check_rows(store)][2:5] == ["stop", "cancel", "text"]


async def test_a_cancel_does_not_return_while_an_interrupted_run_goes_on(monkeypatch):
    asleep, wake, sleepers = anyio.Event(), anyio.Event(), []

    async def sleep(_seconds):
        sleepers.append(1)
        if len(sleepers) == 2:  # the task that looks for cancels, and who waits for the end
            asleep.set()
        await wake.wait() if len(sleepers) <= 2 else await anyio.sleep(0)

    monkeypatch.setattr(streamagent.watch, "sleep", sleep)
    agent = Agent(ScriptedModel(HALF, [*HALF, *HALF]))
    async with two_runtimes(agent) as (near, far, store), anyio.create_task_group() as tasks:
        reply = near.ask("Go.")
        await until_half(reply)
        returned = []

        async def cancel():
            assert await far.cancel()
            returned.append([m.query["reason"] async for m in store.read("s") if m.type == "stop"])

        tasks.start_soon(cancel)
        await asleep.wait()
        await near.steer("Shorter!", interrupt=True)
        await until_half(reply)
        assert not [m async for m in store.read("s")][-1].is_final
        wake.set()
        assert [m.type async for m in reply][-1] == "stop"
    assert returned == [["aborted", "aborted"]]


async def test_a_cancel_of_a_session_that_never_ran_leaves_no_trace():
    async with Runtime(store=MemoryStore()) as runtime:
        assert await runtime.cancel("s")
        assert await runtime.store.inbox("s") == []
        assert [info async for info in runtime.store.sessions()] == []


async def test_a_duplex_side_does_not_answer_a_cancel():
    agent = Agent(ScriptedModel(answer("one")))
    async with two_runtimes(agent) as (near, far, store):
        await near.send("1?")
        while not (await near.receive()).is_final:
            pass
        await far.cancel()
        await near.send_eof()
        assert [m async for m in near] == []
        assert len(await store.inbox("s")) == 1


async def test_when_the_process_was_killed_the_cancel_gives_up_and_the_next_run_closes_what_it_left():
    store = MemoryStore()
    fence = await store.acquire("s")
    await store.write("s", [Message.user("Go."), Message(content="half", more=True)], fence=fence)
    agent = Agent(ScriptedModel(answer("whole")))
    async with Runtime(store=store, poll=POLL) as runtime, agent.session("s", runtime=runtime) as session:
        assert not await session.cancel(timeout=0.05)
        assert (await session.ask("Again.")).text == "whole"
    stored = await check_rows(store)
    assert [(m.type, m.content) for m in stored] == [
        ("text", "Go."),
        ("text", "half"),
        ("cancel", ""),
        ("stop", ""),
        ("text", "Again."),
        ("text", "whole"),
        ("stop", ""),
    ]
    assert stored[3].query == {"reason": "aborted"}


async def test_a_cancel_that_lasts_longer_than_its_timeout_says_so_and_goes_on():
    may_end = anyio.Event()

    class SlowToClose(ScriptedModel):
        async def stream(self, context, **options):
            try:
                async with aclosing(super().stream(context, **options)) as stream:
                    async for message in stream:
                        yield message
            finally:
                with anyio.CancelScope(shield=True):
                    await may_end.wait()

    agent = Agent(SlowToClose(HALF))
    async with agent.session("s") as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.ask("Go.").result)
        await agent.model.hangs.wait()
        assert not await session.cancel(timeout=0.02)
        may_end.set()
        assert await session.cancel()
    await check_rows(agent.store)


async def test_the_stored_answer_of_a_client_key_ends_behind_the_cancel():
    agent = Agent(ScriptedModel(HALF))
    async with agent.session("s") as session:
        reply = session.ask("Go.", client_key="k")
        await until_half(reply)
        await session.cancel()
        assert [m.type for m in await session.ask("Go.", client_key="k")] == ["text", "text", "cancel", "stop"]


async def test_an_inbox_with_nothing_but_a_cancel_starts_no_run():
    store = MemoryStore()
    cancel = await store.enqueue("s", Message(role="user", type="cancel"))
    inbox = Inbox(store=store, session="s", fence=await store.acquire("s"), hooks=NO_HOOKS)
    assert await inbox.first() == []
    assert await store.inbox("s") == [cancel]


# the watch


async def test_without_an_active_run_nothing_is_asked(monkeypatch):
    ticks, asked = anyio.create_memory_object_stream(0), []

    class Watched(MemoryStore):
        async def waiting(self, sessions, type):  # noqa: A002
            asked.append(sorted(sessions))
            return await super().waiting(sessions, type)

    async def tick(_):
        await asked_for_time.receive()

    give_time, asked_for_time = ticks
    monkeypatch.setattr(streamagent.watch, "sleep", tick)
    agent = Agent(ScriptedModel(HALF))
    with give_time, asked_for_time:
        async with (
            Runtime(store=Watched()) as runtime,
            agent.session("a", runtime=runtime) as a,
            agent.session("b", runtime=runtime) as b,
        ):
            replies = [a.ask("Go."), b.ask("Go.")]
            for reply in replies:
                await until_half(reply)
            await give_time.send(None)
            await anyio.wait_all_tasks_blocked()
            assert asked == [["a", "b"]]  # one question for all
            for reply in replies:
                await reply.aclose()
            await give_time.send(None)
            await anyio.wait_all_tasks_blocked()
            assert len(asked) == 1
            with pytest.raises(anyio.WouldBlock):
                give_time.send_nowait(None)  # it does not even wait for time to pass
            reply = a.ask("Again.")
            await until_half(reply)
            await give_time.send(None)
            await anyio.wait_all_tasks_blocked()
            assert asked[1:] == [["a"]]


async def test_a_store_that_fails_the_watch_is_asked_again_and_told_of_once(caplog):
    class Busy(MemoryStore):
        failures = 3

        async def waiting(self, sessions, type):  # noqa: A002
            if "other" not in sessions and self.failures:
                self.failures -= 1
                raise StoreBusy("the database is locked")
            return await super().waiting(sessions, type)

    store = Busy()
    agent = Agent(ScriptedModel(HALF))
    async with Runtime(store=store, poll=POLL) as runtime, agent.session("s", runtime=runtime) as session:
        reply = session.ask("Go.")
        await until_half(reply)
        await store.enqueue("s", Message(role="user", type="cancel"))
        await reply.wait()
    assert [record.message for record in caplog.records] == [
        "cannot see whether runs were cancelled, or calls decided about, in other processes"
    ]
    await check_rows(store)


async def test_a_stage_that_fails_to_close_when_nobody_reads_is_logged_and_the_runtime_goes_on(caplog):
    class Broken(ScriptedModel):
        async def stream(self, context, **options):
            try:
                async with aclosing(super().stream(context, **options)) as stream:
                    async for message in stream:
                        yield message
            finally:
                if len(self.contexts) == 1:
                    raise ValueError("a bug")

    agent = Agent(Broken(HALF, answer("whole")))
    async with two_runtimes(agent) as (near, far, store):
        await until_half(near.ask("Go."))
        assert await far.cancel()
        assert (await far.ask("Again.")).text == "whole"
        await check_rows(store)
    assert "session s: its run did not end well" in [record.message for record in caplog.records]


@pytest.mark.parametrize("poll", [0, -1, float("inf"), float("nan"), "1"])
def test_an_interval_is_a_time(poll):
    with pytest.raises(ConfigError, match="poll"):
        Runtime(store=MemoryStore(), poll=poll)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": float("nan")}, {"reason": 7}])
async def test_a_cancel_refuses_what_is_no_time_or_no_reason(options):
    async with Runtime(store=MemoryStore()) as runtime:
        with pytest.raises(ConfigError, match=next(iter(options))):
            await runtime.cancel("s", **options)


async def test_a_run_that_ended_while_the_store_was_asked_is_left_alone():
    class Slow(MemoryStore):
        reply = None

        async def waiting(self, sessions, type):  # noqa: A002
            if self.reply is not None:
                await self.reply.aclose()
                self.reply = None
            return {*sessions}

    store = Slow()
    agent = Agent(ScriptedModel(HALF, answer("whole")))
    async with Runtime(store=store, poll=POLL) as runtime, agent.session("s", runtime=runtime) as session:
        reply = session.ask("Go.")
        await until_half(reply)
        store.reply = reply
        await reply.wait()
        await anyio.wait_all_tasks_blocked()
        assert (await check_rows(store))[-1].query["reason"] == "aborted"


# a pause


def shop(*turns):
    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    return Agent(ScriptedModel(calls(call("pay")), *turns), tools=[pay])


CLOSED = [
    ("cancel", {"reason": "enough"}),
    ("approval", "expired"),
    ("tool_result", "aborted"),
    ("stop", "aborted"),
]


def of_the_end(stored):
    said = [dict(row.query or {}) for row in stored[-4:]]
    facts = [said[0], said[1].get("decision"), said[2].get("cut"), said[3].get("reason")]
    return [*zip((row.type for row in stored[-4:]), facts, strict=True)]


async def test_a_cancel_ends_a_pause_that_nobody_drives():
    agent = shop(answer("Never mind."))
    async with two_runtimes(agent) as (near, far, store):
        assert (await near.ask("Go.")).reason == "paused"
        [approval] = await far.pending()
        assert await far.cancel(reason="enough")
        assert of_the_end([row async for row in store.read("s")]) == CLOSED
        with pytest.raises(ApprovalGone):
            await near.approve(approval)
        assert await store.inbox("s") == []
        assert (await near.ask("And now?")).text == "Never mind."


async def test_a_cancel_ends_a_pause_whose_reply_was_not_read_to_its_end():
    agent = shop()
    async with two_runtimes(agent) as (near, _, store):
        reply = near.ask("Go.")
        while not (await anext(reply)).is_final:
            pass
        assert await near.cancel(reason="enough")
        assert of_the_end([row async for row in store.read("s")]) == CLOSED


async def test_leaving_a_reply_after_its_pause_keeps_the_pause():
    agent = shop()
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            if message.is_final:
                break
    async with agent.session("s") as session:
        assert len(await session.pending()) == 1


async def test_a_cancel_that_came_just_before_the_pause_ends_it():
    agent = shop()
    async with two_runtimes(agent) as (near, far, store), anyio.create_task_group() as tasks:
        reply = near.ask("Go.")
        while (message := await anext(reply)).type != "tool_call":
            pass
        near._runtime._watch._poll = 60  # it does not look any more
        await anyio.sleep(2 * POLL)
        tasks.start_soon(partial(far.cancel, reason="enough"))
        await until_waiting(store)
        assert (await reply).reason == "paused"
    assert of_the_end([row async for row in store.read("s")]) == CLOSED
    assert message.query["tool"] == "pay"


async def until_waiting(store):
    while not await store.waiting(["s"], "cancel"):
        await checkpoint()


# at any await


@coroutine
def at_await(awaitable, number, action):
    """Await something, and do something else where it waits for the so-manieth time."""
    steps = awaitable.__await__()
    count = 0
    try:
        trap = steps.send(None)
        while True:
            count += 1
            if count == number:
                action()
            try:
                value = yield trap
            except BaseException as error:
                trap = steps.throw(error)
            else:
                trap = steps.send(value)
    except StopIteration as end:
        return end.value


class Effects:
    """Two tools, and what they have done."""

    def __init__(self):
        self.done = []

        @tool
        async def put(thing: str) -> str:
            """Put something somewhere."""
            self.done.append(thing)
            await checkpoint()
            return f"put {thing}"

        self.tools = [put]


def story():
    """Two turns: streamed text and two parallel calls, then the answer."""
    said = text("I ", "shall ", "put.")
    return [[*said, call("put", "c1", thing="a"), call("put", "c2", thing="b"), Message.stop("tool_calls")]]


async def play(runtime, session_id, act):
    """Ask, with an earlier prompt in the inbox; `act` runs the reading. Then check the rows, and ask again."""
    effects = Effects()
    agent = Agent(ScriptedModel(answer("Be", "fore."), *story(), answer("Done", ".")), tools=effects.tools)
    shown = []
    await runtime.store.enqueue(session_id, Message.user("Earlier."))
    async with agent.session(session_id, runtime=runtime) as session:

        async def read():
            async for message in session.ask("Go."):
                shown.append(message)

        cut = await act(session, read)
        stored = await check_rows(runtime.store, session_id)
        _check_shown(shown, stored)
        assert sorted(effects.done) in ([], ["a"], ["b"], ["a", "b"])  # none of them twice
        agent.model.turns = [answer("Again.")]
        assert (await session.ask("And?")).text == "Again."
        stored = await check_rows(runtime.store, session_id)
    assert agent.model.closed == len(agent.model.contexts)
    return cut


def _check_shown(shown, stored):
    """What was shown of a message is stored, from its beginning."""
    contents = {row.id: row.content for row in stored}
    for message in fold([m for m in shown if m.type != "progress"]):
        assert contents[message.id].startswith(message.content)


async def cut_everywhere(runtime, how):
    """Cut the same story at each await of the task that reads, until it is over before that."""
    number = 0
    cut = True
    while cut:
        number += 1
        now = anyio.Event()

        async def act(session, read, number=number, now=now):
            if how == "scope":
                with anyio.CancelScope() as scope:
                    await at_await(read(), number, lambda: (now.set(), scope.cancel()))
            else:
                async with anyio.create_task_group() as tasks:

                    async def cancel():
                        await now.wait()
                        assert await session.cancel()

                    tasks.start_soon(cancel)
                    await at_await(read(), number, now.set)
                    reached = now.is_set()
                    now.set()
                    return reached
            return now.is_set()

        cut = await play(runtime, f"s{number}", act)
    return number


@pytest.mark.parametrize("how", ["cancel", "scope"])
async def test_at_any_await_in_memory(how):
    async with Runtime(store=MemoryStore()) as runtime:
        assert await cut_everywhere(runtime, how) > 10


@ASYNCIO
@pytest.mark.parametrize("how", ["cancel", "scope"])
async def test_at_any_await_in_a_file(how, tmp_path):
    async with Runtime(store=SqliteStore(tmp_path / "s.db", synchronous="normal")) as runtime:
        assert await cut_everywhere(runtime, how) > 10


@pytest.mark.parametrize("number", range(1, 14))
async def test_after_any_message_from_another_runtime(number):
    store = MemoryStore()
    async with Runtime(store=store, poll=POLL) as here, Runtime(store=store, poll=POLL) as there:

        async def act(session, read):
            seen = []
            async for message in session.ask("Go."):
                seen.append(message)
                if len(seen) == number:
                    assert await there.cancel("s", timeout=5)
            return seen[-1].query["reason"]

        assert await play(here, "s", act) in ("aborted", "stop")
