"""One process at a time runs a session: it holds it while it lives, and stops at once when it was replaced."""

import os
import subprocess
import sys
from contextlib import asynccontextmanager, nullcontext

import anyio
import pytest

from streamagent import Agent, MemoryStore, Runtime, SqliteStore, tool
from streamagent.errors import ConfigError, ConflictError, LeaseLost, SessionBusy, StoreBusy, StoreFull
from streamagent.message import Message
from streamagent.owners import is_gone, new_owner
from streamagent.records import Owner
from tests.scripted import ScriptedModel, answer, call, calls, check_rows

pytestmark = pytest.mark.anyio


class Counting(MemoryStore):
    """Counts how often a process says that it is alive, and may refuse what it is asked."""

    def __init__(self):
        super().__init__()
        self.beats = anyio.Event()
        self.refuses = set()
        self.released = anyio.Event()

    async def heartbeat(self, owner):
        await super().heartbeat(owner)
        self.beats.set()

    async def release(self, session, **options):
        if "release" in self.refuses:
            raise StoreBusy("locked")
        await super().release(session, **options)
        self.released.set()


@asynccontextmanager
async def running(store, *, lease=15.0):
    """A run whose tool hangs, in a process of its own; give the runtime, the reply and the tool's events."""
    started, gone = anyio.Event(), anyio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            gone.set()

    agent = Agent(ScriptedModel(calls(call("hang"))), tools=[hang])
    async with (
        Runtime(store=store, lease=lease, poll=0.01) as runtime,
        agent.session("s", runtime=runtime) as session,
        anyio.create_task_group() as tasks,
    ):
        reply, errors = session.ask("Go."), []

        async def read():
            try:
                await reply
            except LeaseLost as error:
                errors.append(error)

        tasks.start_soon(read)
        await started.wait()
        yield runtime, session, errors, gone
        tasks.cancel_scope.cancel()


def process(*code):
    return subprocess.Popen(
        [sys.executable, "-c", ";".join(["from streamagent.owners import new_owner", *code])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_an_owner_is_alive_as_long_as_its_process_is():
    child = process("print(new_owner(1.0).id, flush=True)", "input()")
    with child:
        owner = child.stdout.readline().strip()
        assert not is_gone(owner)
        child.kill()
        child.wait()
    assert is_gone(owner)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_runtime_that_could_not_say_that_it_ended_is_followed_by_the_next_at_once(anyio_backend, tmp_path):
    """The disk was full (F27); the same process goes on when there is room again."""

    class Full(SqliteStore):
        full = False

        async def release(self, session, **options):
            if self.full:
                raise StoreFull("no room")
            await super().release(session, **options)

        async def retire(self, owner):
            if self.full:
                raise StoreFull("no room")
            await super().retire(owner)

    store = Full(tmp_path / "s.db")
    async with Runtime(store=store, lease=600) as runtime, Agent("mock").session("s", runtime=runtime) as session:
        await session.ask("Hi")
        store.full = True
        assert (await session.ask("And?")).reason == "stop"
    store.full = False
    async with Runtime(store=store, lease=600) as runtime, Agent("mock").session("s", runtime=runtime) as session:
        assert (await session.ask("Well?")).reason == "stop"


def test_a_process_that_was_killed_and_not_yet_waited_for_is_gone():
    child = process("print(new_owner(1.0).id, flush=True)", "input()")
    with child:
        owner = child.stdout.readline().strip()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody took its exit code
        assert is_gone(owner)


def test_of_this_process_and_of_other_machines_nobody_is_gone():
    mine = new_owner(1.0)
    place, process, _ = mine.id.rsplit("/", 2)
    assert not is_gone(mine.id)
    assert mine.id != new_owner(1.0).id
    assert not is_gone(f"elsewhere.1/{process}/aa")
    assert not is_gone("alice")
    assert not is_gone(f"{place}/{'9' * 30}@1/aa")


def test_a_process_id_that_was_given_to_another_process_is_not_taken_for_the_owner():
    place, process, _ = new_owner(1.0).id.rsplit("/", 2)
    assert process.startswith(f"{os.getpid()}@")
    assert is_gone(f"{place}/{os.getpid()}@1/aa")


@pytest.mark.parametrize("lease", [0, -1, float("inf"), "15"])
async def test_a_lease_is_a_time(lease):
    with pytest.raises(ConfigError, match="lease"):
        Runtime(store=MemoryStore(), lease=lease)


async def test_a_run_keeps_its_lease_by_saying_that_it_lives():
    store = Counting()
    async with running(store, lease=0.06) as (_, _, errors, _):
        for _ in range(5):
            await store.beats.wait()
            store.beats = anyio.Event()
            with pytest.raises(SessionBusy):
                await store.acquire("s", owner=Owner(id="other", ttl=1))
        assert errors == []


async def test_a_process_that_was_replaced_stops_at_once_and_says_nothing_more():
    """F39: it slept past its lease, and its tool still runs."""
    store = Counting()
    async with running(store, lease=0.06) as (runtime, _, errors, gone):
        with anyio.fail_after(5):
            runtime._watch._beat -= 1000  # it wakes after a long sleep
            await store.retire(runtime.holding.owner.id)
            await store.acquire("s", owner=Owner(id="other", ttl=1000))
            await gone.wait()
            while not errors:
                await anyio.sleep(0.01)
        rows = [row.type async for row in store.read("s")]
        assert rows == ["text", "tool_call", "stop"]
    assert rows == [row.type async for row in store.read("s")]


async def test_leaving_a_runtime_hands_its_sessions_over_at_once():
    store = MemoryStore()
    async with running(store) as (runtime, _, _, _):
        owner = runtime.holding.owner
    assert await store.acquire("s", owner=Owner(id="other", ttl=1))
    assert not store._ledgers.alive.get(owner.id)
    await check_rows(store)


async def test_a_session_that_could_not_be_released_is_released_later():
    store = Counting()
    store.refuses = {"release"}
    agent = Agent(ScriptedModel(answer("one")))
    async with Runtime(store=store, poll=0.01, lease=0.06) as runtime, agent.session("s", runtime=runtime) as session:
        assert (await session.ask("Go.")).text == "one"
        assert runtime.holding.unreleased
        store.refuses = set()
        with anyio.fail_after(5):
            await store.released.wait()
    assert runtime.holding.unreleased == {}


async def test_sessions_that_end_at_once_are_released_once_each():
    class Slow(MemoryStore):
        async def release(self, session, **options):
            asked.append(session)
            if len(asked) == len(names):
                all_ended.set()
            await all_ended.wait()
            await super().release(session, **options)

    names, asked, all_ended = [str(number) for number in range(5)], [], anyio.Event()
    agent = Agent(ScriptedModel(*[answer("one")] * len(names)))

    async def ask(name):
        async with agent.session(name, runtime=runtime) as session:
            await session.ask("Go.")

    async with Runtime(store=Slow()) as runtime, anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(ask, name)
    assert sorted(asked) == names


async def test_a_served_session_waits_for_the_process_that_runs_it():
    store = MemoryStore()
    fence = await store.acquire("s", owner=Owner(id="other", ttl=1000))
    agent = Agent(ScriptedModel(answer("one")))
    async with Runtime(store=store, poll=0.01) as runtime, agent.session("s", runtime=runtime) as session:
        await session.send("Go.")
        await anyio.sleep(0.05)
        assert agent.model.contexts == []
        await store.release("s", fence=fence)
        with anyio.fail_after(5):
            assert [(await session.receive()).content for _ in range(2)] == ["Go.", "one"]


async def test_a_served_session_goes_on_with_what_a_dead_process_left():
    store = MemoryStore()
    fence = await store.acquire("s", owner=Owner(id="other", ttl=1000))
    await store.write("s", [Message.user("Go."), Message(content="half", more=True)], fence=fence)
    await store.retire("other")
    agent = Agent(ScriptedModel(answer("whole")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        await session.send_eof()
        said = [message async for message in session]
    assert [m.content for m in said if m.content] == ["whole"]
    assert [m.query["cut"] for m in said if "cut" in (m.query or {})] == ["resumed", "resumed"]
    assert [m.attempt for m in await check_rows(store)] == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("asked", ["One?", "Another?"])  # the answer is shown again, or the key is refused
async def test_who_only_looks_at_a_run_that_was_cut_leaves_it_to_others(asked):
    store = MemoryStore()
    agent = Agent(ScriptedModel(answer("Yes."), answer("Two.")), store=store)
    async with agent.session("s") as session:
        await session.ask("One?", client_key="k")
    fence = await store.acquire("s", owner=Owner(id="killed", ttl=1000.0))
    await store.write("s", [Message.user("Two?"), Message(content="Tw", more=True)], fence=fence)
    await store.retire("killed")
    async with agent.session("s") as session:
        with pytest.raises(ConflictError) if asked != "One?" else nullcontext():
            await session.ask(asked, client_key="k")
        assert await store.unattended() == ["s"]
        assert (await store.unfinished("s")).crashes == 1
        await session.resume()
        assert await store.unattended() == []
    assert (await check_rows(store))[-2].content == "Two."


async def test_who_leaves_an_answer_that_is_shown_again_leaves_nothing_to_others():
    store = MemoryStore()
    agent = Agent(ScriptedModel(answer("Yes.")), store=store)
    async with agent.session("s") as session:
        await session.ask("One?", client_key="k")
        async with session.ask("One?", client_key="k") as again:
            await anext(again)
        assert await store.unattended() == []
