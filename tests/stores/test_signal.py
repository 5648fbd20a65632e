"""What waits for the end of an operation, on every event loop."""

import anyio
import pytest

from streamagent.stores._signal import Signal

pytestmark = pytest.mark.anyio


async def test_all_who_wait_are_woken_and_who_comes_later_does_not_wait():
    signal, woken = Signal(), []

    async def wait(number):
        await signal.wait()
        woken.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(wait, number)
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        signal.set()
    assert sorted(woken) == [0, 1, 2]
    signal.set()
    await signal.wait()


async def test_who_is_cancelled_waits_no_more_and_the_others_go_on():
    signal, woken = Signal(), []
    scope = anyio.CancelScope()

    async def leave():
        with scope:
            await signal.wait()
        woken.append("left")

    async def stay():
        await signal.wait()
        woken.append("stayed")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        tasks.start_soon(stay)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert woken == ["left"]
        signal.set()
    assert woken == ["left", "stayed"]
