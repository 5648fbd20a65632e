"""Waits that may be ended from outside."""

import asyncio
import math
from contextlib import suppress

import anyio
import pytest
from anyio.lowlevel import checkpoint

from streamagent import waiting
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


async def test_a_deadline_that_is_over_when_it_is_set_leaves_the_waiter_whole(waiter):
    """A value is there at once, so the timer has not come to its turn when the next wait looks at it."""
    for deadline in (anyio.current_time() - 1, anyio.current_time() - 2, math.inf):
        assert await waiter.wait(value(1), deadline=deadline) == 1
        assert not waiter.waiting
    await anyio.sleep(0.01)
    assert await waiter.wait(value(2, after=3), deadline=anyio.current_time() + 60) == 2


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


async def test_what_goes_on_after_it_was_cancelled_is_left(monkeypatch):
    monkeypatch.setattr(waiting, "GRACE", 0.05)
    left = []

    async def deaf():
        try:
            while True:
                with suppress(anyio.get_cancelled_exc_class()):
                    await anyio.sleep_forever()
        finally:
            left.append(True)

    waiter = make_waiter()
    with pytest.raises(Interrupted):
        await waiter.wait(deaf(), deadline=anyio.current_time())
    assert left == [True]
    assert await waiter.wait(value(1, after=2)) == 1
    waiter.close()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"debug": True})], ids=["asyncio"])
async def test_what_cannot_even_be_left_is_abandoned_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(waiting, "GRACE", 0.05)

    async def clinging():
        while True:
            try:
                await anyio.sleep_forever()
            except GeneratorExit:  # of the garbage collector, when the event loop may be gone
                raise
            except BaseException:
                continue

    waiter = make_waiter()
    with pytest.raises(Interrupted):
        await waiter.wait(clinging(), deadline=anyio.current_time())
    waiter.close()
    assert "was abandoned" in caplog.text


async def test_a_cancellation_that_is_caught_where_it_belongs_leaves_nothing(monkeypatch):
    monkeypatch.setattr(waiting, "GRACE", 0.0)

    async def busy():
        for _ in range(3):
            with anyio.move_on_after(0):
                await anyio.sleep_forever()
            await checkpoint()
        return "done"

    waiter = make_waiter()
    assert await waiter.wait(busy()) == "done"
    waiter.close()
