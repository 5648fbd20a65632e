"""The bus over a real NATS server: one worker each, again when it dies, never more than a hint."""

import logging
from contextlib import aclosing
from itertools import count

import anyio
import pytest
from anyio import to_thread
from nats.js.errors import ServiceUnavailableError

from streamagent import Agent, ConfigError, MemoryStore, Message, Runtime, UnsupportedBackendError, Worker
from streamagent.buses.nats import CONSUMER, DELIVERIES, NatsBus
from tests.fleet.waiting import at_rest, until, working
from tests.scripted import ScriptedModel, answer

pytestmark = pytest.mark.anyio
NEVER = 3600.0  # seconds between two sweeps: what happens is the bus's doing

names = (f"test_{number}" for number in count())


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def make(nats_server):
    """Make buses of one name."""
    name = next(names)
    return lambda **options: NatsBus(nats_server.url, **{"name": name, **options})


@pytest.fixture
async def bus(make):
    async with make() as bus:
        await bus._ready.wait()
        yield bus


async def first(orders):
    with anyio.fail_after(10):
        return await anext(orders)


async def expect(orders, session):
    assert (await first(orders)).session == session


async def test_what_is_announced_goes_to_one_of_those_that_listen(bus, make):
    async with make() as other, aclosing(bus.listen()) as ours, aclosing(other.listen()) as theirs:
        for session in ("a", "ü b.*>", "c" * 256):
            await bus.announce(session)
        heard = [await first(orders) for orders in (ours, theirs, ours)]
        assert [order.session for order in heard] == ["a", "ü b.*>", "c" * 256]
        for order in heard:
            await order.in_progress()
            await order.done()


async def test_what_waits_of_a_session_is_one_order(bus):
    for _ in range(3):
        await bus.announce("a")
    await bus.announce("b")
    async with aclosing(bus.listen()) as orders:
        assert [(await first(orders)).session for _ in range(2)] == ["a", "b"]


async def test_an_order_that_was_given_back_is_handed_out_again_and_one_that_is_done_is_not(bus):
    await bus.announce("a")
    async with aclosing(bus.listen()) as orders:
        await (await first(orders)).again(0)
        again = await first(orders)
        assert again.session == "a"
        await again.done()
        await bus.announce("b")
        assert (await first(orders)).session == "b"


async def test_an_order_of_which_nobody_says_anything_is_handed_out_again_then_left_and_told(make, caplog):
    caplog.set_level(logging.WARNING, "streamagent")
    async with make(ack_wait=0.3) as bus:
        await bus._ready.wait()
        await bus.announce("poisoned")
        async with aclosing(bus.listen()) as orders:
            assert [(await first(orders)).session for _ in range(DELIVERIES)] == ["poisoned"] * DELIVERIES
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(expect, orders, "another")  # the server looks when somebody wants an order
                await until(lambda: "session poisoned was handed out 3 times" in caplog.text)
                await bus.announce("another")
            await bus.announce("poisoned")  # what comes new begins anew
            assert (await first(orders)).session == "poisoned"


async def test_as_long_as_its_worker_says_so_an_order_is_nobody_else_s(make):
    async with make(ack_wait=0.5) as bus, make(ack_wait=0.5) as other:
        await bus._ready.wait()
        await bus.announce("a")
        async with aclosing(bus.listen()) as ours, aclosing(other.listen()) as theirs:
            order = await first(ours)
            with anyio.move_on_after(1.5):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(marking, order)
                    raise AssertionError((await anext(theirs)).session)


async def marking(order):
    while True:
        await order.in_progress()
        await anyio.sleep(0.1)


async def test_a_message_that_is_no_order_is_dropped(bus, caplog):
    await bus._jetstream.publish(bus._subject("x"), b"[1]")
    await bus._jetstream.publish(bus._subject("y"), b"\xff")
    await bus.announce("a")
    async with aclosing(bus.listen()) as orders:
        assert (await first(orders)).session == "a"
    assert len([record for record in caplog.records if "is no order" in record.message]) == 2


async def test_workers_hear_at_once_of_what_is_submitted_in_another_process(make, tmp_path):
    agent = Agent(ScriptedModel(answer("Here.")))
    store = MemoryStore()
    async with working(store, lambda _: agent, bus=make(), sweep=NEVER) as runtime:
        await runtime.bus._ready.wait()
        await anyio.sleep(0)
        async with make() as other:
            await other._ready.wait()
            for number in range(40):  # more than are driven at once
                await store.enqueue(f"s{number}", Message.user("hi"))
                await other.announce(f"s{number}")
        for number in range(40):
            await until(lambda number=number: at_rest(store, f"s{number}"))


async def test_what_is_left_at_the_end_of_a_process_goes_to_another_at_once(make, monkeypatch):
    monkeypatch.setattr("streamagent.handover.BORDER", 0.01)
    store, begun = MemoryStore(), anyio.Event()
    slow, quick = Agent(Hanging(begun)), Agent(ScriptedModel(answer("Here.")))
    async with Runtime(store=store, bus=make()) as runtime, anyio.create_task_group() as tasks:
        await runtime.bus._ready.wait()
        tasks.start_soon(Worker(runtime, lambda _: slow, sweep=NEVER).run)
        await runtime.submit("s", "hi")
        with anyio.fail_after(20):
            await begun.wait()
        async with working(store, lambda _: quick, bus=make(), sweep=NEVER) as other:
            await other.bus._ready.wait()  # it has looked, and found a session that is held
            await runtime.drain(0.01)
            await until(lambda: at_rest(store))


class Hanging(ScriptedModel):
    def __init__(self, begun):
        super().__init__([])
        self.begun = begun

    async def stream(self, context, **options):
        self.begun.set()
        async for message in super().stream(context, **options):
            yield message


async def test_without_a_server_workers_look_and_nothing_fails(own_nats_server, caplog):
    own_nats_server.kill()
    agent = Agent(ScriptedModel(answer("Here.")))
    store = MemoryStore()
    async with working(store, lambda _: agent, bus=NatsBus(own_nats_server.url)) as runtime:
        await runtime.submit("s", "hi")
        await until(lambda: at_rest(store))
        await until(lambda: warnings(caplog))
    [told] = warnings(caplog)
    assert told.startswith(f"cannot reach NATS at {own_nats_server.url}; workers look by themselves meanwhile: ")


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_fails_in_its_own_way_is_told_and_stops_nobody(caplog, monkeypatch):
    async def connect(client, *args, **options):
        raise ValueError("odd: nats://me:secret@bus")

    monkeypatch.setattr("nats.aio.client.Client.connect", connect)
    store, agent = MemoryStore(), Agent(ScriptedModel(answer("Here.")))
    async with working(store, lambda _: agent, bus=NatsBus("nats://me:secret@bus")) as runtime:
        await runtime.submit("s", "hi")
        await until(lambda: at_rest(store))
        await until(lambda: warnings(caplog))
    assert warnings(caplog) == ["cannot use NATS at bus yet; workers look by themselves: ValueError"]


@pytest.mark.parametrize("made", ["another stream", "another consumer", "more replicas than servers"])
async def test_a_stream_that_cannot_be_made_is_told_once_with_the_reason_and_used_when_it_can(
    made, bus, make, caplog, monkeypatch
):
    monkeypatch.setattr("streamagent.buses.nats.RETRY", 0.01)
    caplog.set_level(logging.DEBUG, "streamagent")
    name = next(names)
    if made == "another stream":
        await bus._jetstream.add_stream(name=name, subjects=[f"{name}.work.*"])
    elif made == "another consumer":
        async with make(name=name) as other:
            await other._ready.wait()
        await bus._jetstream.delete_consumer(name, CONSUMER)
        await bus._jetstream.add_consumer(name, durable_name=CONSUMER, max_waiting=7)
    async with make(name=name, replicas=3 if made.startswith("more") else 1) as late:
        await until(lambda: caplog.text.count("cannot use NATS") >= 3)
        [told] = warnings(caplog)
        assert "Error: " in told
        assert f"nats stream rm {name}" in told
        assert "went away" not in caplog.text
        if made.startswith("another"):
            await bus._jetstream.delete_stream(name)
            with anyio.fail_after(10):
                await late._ready.wait()


async def test_a_server_without_jetstream_is_told(make, caplog, monkeypatch):
    async def refuse(*args, **options):
        raise ServiceUnavailableError(code=503, description="JetStream not enabled")

    monkeypatch.setattr("nats.js.client.JetStreamContext.add_stream", refuse)
    async with make():
        await until(lambda: warnings(caplog))
    [told] = warnings(caplog)
    assert "JetStream not enabled; does the server have JetStream (nats-server -js)?" in told


async def test_a_server_that_is_killed_and_comes_back_is_used_again(own_nats_server):
    agent = Agent(ScriptedModel(answer("Here.")))
    store = MemoryStore()
    async with working(store, lambda _: agent, bus=NatsBus(own_nats_server.url), sweep=0.2) as runtime:
        await runtime.bus._ready.wait()
        await runtime.submit("before", "hi")
        await until(lambda: at_rest(store, "before"))
        await to_thread.run_sync(own_nats_server.kill)
        await runtime.submit("meanwhile", "hi")
        await until(lambda: at_rest(store, "meanwhile"))
        await to_thread.run_sync(own_nats_server.start)
        await until(lambda: runtime.bus._client.is_connected)
        async with NatsBus(own_nats_server.url) as other:
            await other._ready.wait()
            async with aclosing(other.listen()) as orders:
                await until(lambda: announced(runtime.bus, orders))


async def announced(bus, orders):
    """Announce something until it arrives."""
    await bus.announce("nobody's")
    with anyio.move_on_after(1):
        return await anext(orders)


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_under_trio_it_says_that_it_is_asyncio_s():
    with pytest.raises(UnsupportedBackendError, match="NatsBus runs on asyncio"):
        async with NatsBus("nats://localhost"):
            raise AssertionError


async def test_what_it_cannot_use_is_told_and_no_password():
    for options in ({"name": "a.b"}, {"name": "ü"}, {"ack_wait": 0}, {"replicas": 6}, {"replicas": 0}):
        with pytest.raises(ConfigError, match=f"{next(iter(options))}=…"):
            NatsBus("nats://localhost", **options)
    for url in (
        "http://me:secret@a",
        "nats://",
        "nats://me:secret@a:port",
        "nats://[::1",
        "nats://a,ws://b",
    ):
        with pytest.raises(ConfigError, match=r"such as nats://host:4222$"):
            NatsBus(url)
    assert repr(NatsBus("nats://me:secret@a:1,nats://b")) == "NatsBus('a:1,nats://b', name='streamagent')"


async def test_without_its_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nats", None)
    with pytest.raises(ConfigError, match=r"pip install 'streamagent\[nats\]'"):
        NatsBus("nats://localhost")
