"""`Channel`: what is sent is received once, in order, whoever is cancelled or leaves."""

import anyio
import pytest
from anyio import BrokenResourceError, EndOfStream, create_task_group, fail_after, move_on_after, wait_all_tasks_blocked

from streamagent.channel import Channel

pytestmark = pytest.mark.anyio

SIZE = 3


@pytest.fixture
def channel():
    return Channel(SIZE)


async def fill(channel):
    with fail_after(1):
        for item in range(SIZE):
            await channel.send(item)


async def drain(channel):
    got = []
    with fail_after(1):
        try:
            while True:
                got.append(await channel.receive())
        except EndOfStream:
            return got


async def test_as_many_as_its_size_wait_and_the_next_one_waits_for_room(channel):
    await fill(channel)
    with move_on_after(0.02) as scope:
        await channel.send("one more")
    assert scope.cancelled_caught
    async with create_task_group() as tasks:
        tasks.start_soon(channel.send, SIZE)
        await wait_all_tasks_blocked()
        assert [await channel.receive() for _ in range(SIZE + 1)] == [*range(SIZE + 1)]


async def test_who_waits_is_woken_by_what_is_sent(channel):
    got = []

    async def receive():
        got.append(await channel.receive())

    async with create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(receive)
        await wait_all_tasks_blocked()
        await channel.send("a")
        await channel.send("b")
    assert sorted(got) == ["a", "b"]


async def test_a_receiver_that_is_cancelled_when_something_came_loses_none(channel):
    got, scope = [], anyio.CancelScope()

    async def receive():
        with scope:
            got.append(await channel.receive())

    async with create_task_group() as tasks:
        tasks.start_soon(receive)
        await wait_all_tasks_blocked()
        await channel.send("a")
        scope.cancel()
    channel.close()
    assert [*got, *await drain(channel)] == ["a"]


async def test_what_waits_when_it_is_closed_is_received_and_then_it_is_over(channel):
    await fill(channel)
    channel.close()
    with pytest.raises(BrokenResourceError):
        await channel.send("late")
    assert await drain(channel) == [*range(SIZE)]


async def test_closing_wakes_who_waits_at_either_end(channel):
    ends = []

    async def wait(operation, error):
        with pytest.raises(error):
            await operation()
        ends.append(error)

    empty = Channel(1)
    await fill(channel)
    async with create_task_group() as tasks:
        tasks.start_soon(wait, lambda: channel.send("late"), BrokenResourceError)
        tasks.start_soon(wait, empty.receive, EndOfStream)
        await wait_all_tasks_blocked()
        channel.close(drop=True)
        empty.close()
    assert len(ends) == 2
    assert await drain(channel) == []


async def test_many_pass_in_order_through_a_small_one():
    channel = Channel(1)

    async def send():
        for item in range(200):
            await channel.send(item)
        channel.close()

    async with create_task_group() as tasks:
        tasks.start_soon(send)
        assert await drain(channel) == [*range(200)]


async def test_what_is_offered_is_taken_while_there_is_room_and_somebody_reads(channel):
    """Who offers never waits, and is told."""
    assert [channel.offer(item) for item in range(SIZE + 1)] == [True] * SIZE + [False]
    channel.close()

    assert not channel.offer("late")
    assert await drain(channel) == list(range(SIZE))
