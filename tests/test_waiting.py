"""Waits that may be ended from outside."""

import asyncio
import math

import anyio
import pytest
from anyio.lowlevel import checkpoint

from streamagent.waiting import Interrupted, make_waiter

pytestmark = pytest.mark.anyio


@pytest.fixture
async def waiter():
    waiter = make_waiter()
    yield waiter
    waiter.close()


async def value(result, *, after=0):
    for _ in range(after):
        await checkpoint()
    return result


async def forever():
    await anyio.sleep_forever()


async def test_a_wait_gives_what_it_waited_for(waiter):
    assert await waiter.wait(value(1)) == 1
    assert await waiter.wait(value(2, after=3), deadline=math.inf) == 2
    with pytest.raises(KeyError):
        await waiter.wait(fail())
    assert not waiter.waiting


async def fail():
    await checkpoint()
    raise KeyError("x")


async def test_a_wait_ends_at_its_deadline_also_when_earlier_ones_had_another(waiter):
    now = anyio.current_time()
    assert await waiter.wait(value(1), deadline=now + 60) == 1
    with pytest.raises(Interrupted):
        await waiter.wait(forever(), deadline=now)
    assert await waiter.wait(value(2, after=2), deadline=now + 60) == 2
    with pytest.raises(Interrupted):
        await waiter.wait(forever(), deadline=anyio.current_time() + 0.01)


async def test_one_timer_serves_many_waits(waiter):
    for _ in range(3):
        deadline = anyio.current_time() + 0.02
        with pytest.raises(Interrupted):
            await waiter.wait(forever(), deadline=deadline)
        assert anyio.current_time() >= deadline
        assert await waiter.wait(value(1, after=1), deadline=anyio.current_time() + 60) == 1


async def test_another_task_ends_a_wait(waiter):
    async with anyio.create_task_group() as tasks:

        async def interrupt():
            await anyio.wait_all_tasks_blocked()
            assert waiter.waiting
            waiter.interrupt()
            waiter.interrupt()

        tasks.start_soon(interrupt)
        with pytest.raises(Interrupted):
            await waiter.wait(forever())
        assert await waiter.wait(value(1, after=2)) == 1


async def test_interrupting_while_nobody_waits_does_nothing(waiter):
    waiter.interrupt()
    assert await waiter.wait(value(1, after=1)) == 1


async def test_a_cancellation_from_outside_goes_through(waiter):
    with anyio.move_on_after(0.01) as scope:
        await waiter.wait(forever(), deadline=anyio.current_time() + 60)
    assert scope.cancelled_caught
    assert await waiter.wait(value(1, after=1)) == 1


async def test_a_cancellation_from_outside_wins_over_an_interruption(waiter):
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def both():
                await anyio.wait_all_tasks_blocked()
                waiter.interrupt()
                scope.cancel()

            tasks.start_soon(both)
            try:
                await waiter.wait(forever())
            except Interrupted:
                await checkpoint()  # whichever came first: the scope is cancelled
    assert scope.cancelled_caught
    await checkpoint()


async def test_scopes_inside_and_outside_of_a_wait_stay_whole(waiter):
    async def inside():
        with anyio.move_on_after(60):
            await anyio.sleep_forever()

    with anyio.CancelScope():
        for _ in range(2):
            with pytest.raises(Interrupted):
                await waiter.wait(inside(), deadline=anyio.current_time() + 0.01)
    await checkpoint()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"debug": True})], ids=["asyncio"])
async def test_a_wait_that_swallows_its_end_is_ended_again(waiter):
    swallowed = 0

    async def stubborn():
        nonlocal swallowed
        while True:
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 3:
                    raise

    with pytest.raises(Interrupted):
        await waiter.wait(stubborn(), deadline=anyio.current_time())
    assert swallowed == 3
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"debug": True})], ids=["asyncio"])
async def test_a_value_that_comes_in_spite_of_the_end_is_kept(waiter):
    async def swallow():
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            return 7

    assert await waiter.wait(swallow(), deadline=anyio.current_time()) == 7
    assert asyncio.current_task().cancelling() == 0
    await checkpoint()
