"""Runs whose end the store did not take: who cut or reads them is told, and a cancel is heard by whoever goes on."""

from contextlib import asynccontextmanager

import anyio
import pytest

from streamagent import Agent, MemoryStore, Message, Runtime, ending, tool
from streamagent.errors import StoreBusy, StoreFull
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock, text

pytestmark = pytest.mark.anyio

HALF = text("half")[:1]
UNKNOWN = "Interrupted: the run broke off before this call finished. Its outcome is unknown."


@pytest.fixture
def store(either_store):
    return either_store


@pytest.fixture(autouse=True)
def short_closing(monkeypatch):
    """Let what `Lock` sets be as before."""
    monkeypatch.setattr(ending, "CLOSE_TIMEOUT", ending.CLOSE_TIMEOUT)


class Lock:
    """Keeps rows from a store, as another program that holds its lock; nobody waits long for it then.

    Args:
        store: The store.
        hangs: It does not answer, instead of refusing.
    """

    def __init__(self, store, *, hangs=False):
        self._store, self._write, self._enqueue = store, store.write, store.enqueue
        self._hangs, self._patience = hangs, ending.CLOSE_TIMEOUT

    def close(self, *, inbox=False):
        self._store.write, ending.CLOSE_TIMEOUT = self._refuse, 0.1
        if inbox:
            self._store.enqueue = self._refuse

    def open(self):
        self._store.write, self._store.enqueue = self._write, self._enqueue
        ending.CLOSE_TIMEOUT = self._patience

    async def _refuse(self, *_, **__):
        if self._hangs:
            await anyio.sleep_forever()
        raise StoreBusy("another process holds the write lock")


class Bank:
    """An agent whose first answer hangs, and whose next one would transfer money."""

    def __init__(self, *turns, requires_approval=False, **options):
        self.ran = []

        @tool(requires_approval=requires_approval)
        async def transfer() -> str:
            """Transfer money."""
            self.ran.append("transfer")
            return "done"

        self.model = ScriptedModel(*(turns or (HALF, calls(call("transfer")), answer("Transferred."))))
        self.agent = Agent(self.model, tools=[transfer], **options)

    @asynccontextmanager
    async def asked(self, store, *, is_read):
        """A session that is being answered, read by a task or by nobody; gives it, its reply and what the task got."""
        got = []

        async def read(reply):
            try:
                await reply
            except StoreBusy as error:
                got.append(error)

        async with (
            Runtime(store=store, poll=0.01) as runtime,
            self.agent.session("s", runtime=runtime) as session,
            anyio.create_task_group() as tasks,
        ):
            reply = session.ask("Go.")
            while (await anext(reply)).content != "half":
                pass
            if is_read:
                tasks.start_soon(read, reply)
                await self.model.hangs.wait()
            yield session, reply, got


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "refuses"])
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "left"])
async def test_a_cancel_whose_end_is_not_stored_is_not_over_and_whoever_goes_on_closes_the_run(store, hangs, is_read):
    bank, lock = Bank(), Lock(store, hangs=hangs)
    async with bank.asked(store, is_read=is_read) as (session, reply, got):
        lock.close()
        assert not await session.cancel(reason="no!", timeout=0.5)
        lock.open()
        if not is_read:
            with pytest.raises(StoreBusy):
                await reply
        assert [message.type async for message in session.resume()][-1] == "stop"
        stored = await check_rows(store)
    assert len(got) == is_read
    assert bank.ran == []
    assert [(row.type, (row.query or {}).get("cut"), (row.query or {}).get("reason")) for row in stored] == [
        ("text", None, None),
        ("text", "aborted", None),
        ("cancel", None, "no!"),
        ("stop", None, "aborted"),
    ]


async def test_a_cancel_is_over_when_another_process_has_closed_the_run_meanwhile(store):
    bank, lock = Bank(), Lock(store)
    async with bank.asked(store, is_read=True) as (session, _, _), anyio.create_task_group() as tasks:
        lock.close()

        async def go_on():
            while not await store.waiting(["s"], "cancel"):
                await anyio.sleep(0.01)
            lock.open()
            await session.resume()

        tasks.start_soon(go_on)
        assert await session.cancel(reason="no!")
        assert (await check_rows(store))[-1].query["reason"] == "aborted"
    assert bank.ran == []


async def test_a_cancel_that_can_be_kept_nowhere_says_so(store):
    lock = Lock(store)
    async with Bank().asked(store, is_read=True) as (session, _, got):
        lock.close(inbox=True)
        with pytest.raises(StoreBusy):
            await session.cancel()
        lock.open()
    assert len(got) == 1


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "left"])
async def test_a_reader_hears_that_the_end_at_its_deadline_is_not_stored(store, is_read):
    lock = Lock(store, hangs=True)
    async with Bank(timeout=0.5).asked(store, is_read=is_read) as (_, reply, got):
        lock.close()
        await reply.wait()
        lock.open()
        if not is_read:
            with pytest.raises(StoreBusy, match="deadline"):
                await reply
    assert ["deadline" in str(error) for error in got] == [True] * is_read


# a cancel that waits


async def test_a_cancel_that_waits_ends_the_run_of_a_process_that_died_and_says_what_is_known_of_its_calls(store):
    bank = Bank(answer("never"))
    made = [call("transfer", f"c{number}") for number in range(2)]
    async with Runtime(store=store) as runtime, bank.agent.session("s", runtime=runtime) as session:
        fence = await store.acquire("s")
        await store.write("s", [Message.user("Go."), *made, Message.stop("tool_calls")], fence=fence)
        await store.start_call("s", made[0].id, fence=fence)
        await store.enqueue("s", Message(role="user", type="cancel"))
        await session.resume()
        stored = await check_rows(store, crashed=True)
    assert (bank.ran, bank.model.contexts) == ([], [])
    assert [row.content for row in stored if row.type == "tool_result"] == [
        UNKNOWN,
        "Not executed: the run broke off before this call began.",
    ]
    assert stored[-1].query["reason"] == "aborted"


async def test_a_cancel_that_waits_ends_a_pause_also_when_the_call_was_approved(store):
    bank = Bank(calls(call("transfer")), answer("never"), requires_approval=True)
    async with Runtime(store=store) as runtime, bank.agent.session("s", runtime=runtime) as session:
        assert (await session.ask("Go.")).reason == "paused"
        [waits] = await session.pending()
        await session.approve(waits)
        await store.enqueue("s", Message(role="user", type="cancel"))
        await session.resume()
        stored = await check_rows(store)
    assert bank.ran == []
    assert stored[-1].query["reason"] == "aborted"


class Committed(MemoryStore):
    """Its first `stop` is stored, and whoever wrote it is cut before he hears of that."""

    def __init__(self):
        super().__init__()
        self.stored = anyio.Event()

    async def write(self, session, rows, **options):
        sequences = await super().write(session, rows, **options)
        if any(row.type == "stop" for row in rows) and not self.stored.is_set():
            self.stored.set()
            await anyio.sleep_forever()
        return sequences


@pytest.mark.parametrize("cut", ["interrupt", "cancel", "close"])
async def test_an_end_that_was_stored_in_the_moment_of_a_cut_is_the_end_for_all_who_asked(cut):
    store = Committed()
    agent = Agent(ScriptedModel(answer("one"), answer("two")), store=store)
    seen = []
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:

        async def read():
            seen.extend([message async for message in session.ask("Go.", client_key="k")])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await store.stored.wait()
            if cut == "interrupt":
                await session.steer("New.", interrupt=True)
            elif cut == "cancel":
                await session.cancel()
            else:
                await runtime.active["s"].cut("deadline")
        again = [message async for message in session.ask("Go.", client_key="k")]
        rows = await check_rows(store)
    ends = [row.id for row in rows if row.type == "stop"]
    assert [message.id for message in seen if message.type == "stop"] == ends
    assert [message.id for message in again if message.type == "stop"] == ends[:1]
    assert [row.content for row in rows if row.role == "user"] == ["Go.", *(["New."] if cut == "interrupt" else [])]
    said = "".join(message.content for message in seen if message.role == "assistant")
    assert said == ("onetwo" if cut == "interrupt" else "one")


async def test_an_end_that_was_shown_is_not_shown_again_when_the_reply_that_went_on_is_cut():
    """The reply goes on behind its end with what interrupted it, and is cancelled before that is admitted."""

    class Slow(MemoryStore):
        admits = anyio.Event()

        async def admit(self, session, **options):
            if any(row.content == "New." for row in await self.inbox(session)):
                self.admits.set()
                await anyio.sleep_forever()
            return await super().admit(session, **options)

    store = Slow()
    agent = Agent(ScriptedModel(answer("one")), store=store)
    seen = []
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:

        async def read():
            async for message in session.ask("Go."):
                seen.append(message)
                if message.type == "stop" and not store.admits.is_set():
                    await session.steer("New.", interrupt=True)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await store.admits.wait()
            await session.cancel()
        [end] = [row.id for row in await check_rows(store) if row.type == "stop"]
    assert [message.id for message in seen if message.type == "stop"] == [end]


class Refusing(MemoryStore):
    """Has no room for the first `stop`."""

    refused = False

    async def write(self, session, rows, **options):
        if not self.refused and any(row.type == "stop" for row in rows):
            self.refused = True
            raise StoreFull("no space")
        return await super().write(session, rows, **options)


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
async def test_what_a_turn_took_is_counted_though_its_own_end_was_not_stored(reason):
    """I15; and the answer is told as that of the model which gave it, so that no other one is sent its data (I4)."""
    took = {"model": "other/model", "usage": {"total_tokens": 7}, "cost": 0.5}
    said = calls(call("stock", product="mug"))[:-1] if reason == "tool_calls" else text("one")
    agent = Agent(ScriptedModel([*said, Message.stop(reason, **took)]), store=Refusing(), tools=[stock])
    async with Runtime(store=agent.store) as runtime, agent.session("s", runtime=runtime) as session:
        with pytest.raises(StoreFull):
            await session.ask("Go.")
        *_, stop = await check_rows(agent.store)
        used = await agent.store.usage("s")
    assert stop.query["reason"] == "error"
    assert {key: stop.query[key] for key in took} == took
    assert (used.turns, used.tokens, used.cost, used.uncounted) == (1, 7, 0.5, 0)


async def test_what_a_turn_took_is_counted_once_when_its_end_was_stored_and_its_calls_are_cut():
    store, started = MemoryStore(), anyio.Event()

    @tool
    async def hang() -> str:
        """Never return."""
        started.set()
        await anyio.sleep_forever()

    said = [*calls(call("hang"))[:-1], Message.stop("tool_calls", usage={"total_tokens": 7})]
    agent = Agent(ScriptedModel(said), store=store, tools=[hang])
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.ask("Go.").result)
            await started.wait()
            await session.cancel()
        stops = [row for row in await check_rows(store) if row.type == "stop"]
        used = await store.usage("s")
    assert [stop.query["usage"]["total_tokens"] for stop in stops] == [7, 0]
    assert used.tokens == 7
