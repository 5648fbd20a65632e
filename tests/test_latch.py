"""Something that has happened, or not yet."""

import anyio
import pytest

from streamagent.latch import Latch

pytestmark = pytest.mark.anyio


async def test_all_who_wait_go_on_when_it_is_set_and_whoever_comes_later_at_once():
    latch, gone_on = Latch(), []

    async def wait(name):
        await latch.wait()
        gone_on.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, "first")
        tasks.start_soon(wait, "second")
        await anyio.wait_all_tasks_blocked()
        assert (gone_on, latch.is_set()) == ([], False)
        latch.set()
        latch.set()
    assert (sorted(gone_on), latch.is_set()) == (["first", "second"], True)
    await wait("late")
    assert gone_on[-1] == "late"


async def test_whoever_waits_for_what_is_set_can_be_cancelled_and_gives_others_a_turn():
    latch = Latch()
    latch.set()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await latch.wait()
    assert scope.cancelled_caught


async def test_who_is_cancelled_waits_no_more_and_the_others_go_on():
    latch, woken = Latch(), []
    scope = anyio.CancelScope()

    async def leave():
        with scope:
            await latch.wait()
        woken.append("left")

    async def stay():
        await latch.wait()
        woken.append("stayed")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        tasks.start_soon(stay)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert woken == ["left"]
        latch.set()
    assert woken == ["left", "stayed"]


async def test_who_leaves_is_not_kept():
    latch = Latch()
    for _ in range(10):
        with anyio.move_on_after(0):
            await latch.wait()
    assert not latch._futures
