"""Who is woken, when, and what is asked for whom; on a store that is a dictionary of versions."""

import gc

import anyio
import pytest
from anyio.lowlevel import checkpoint

from streamagent.errors import StoreError
from streamagent.stores._wakeups import Wakeups, polling

pytestmark = pytest.mark.anyio


def is_awake(wakeup):
    return wakeup._changed.is_set()


async def test_a_change_wakes_those_who_follow_that_session_once():
    wakeups = Wakeups()
    one, other, elsewhere = (wakeups.subscribe(session) for session in ("s", "s", "t"))
    wakeups.notify("s")
    assert [is_awake(each) for each in (one, other, elsewhere)] == [True, True, False]
    await one.wait()
    assert [is_awake(each) for each in (one, other, elsewhere)] == [False, True, False]


async def test_a_change_that_nobody_waits_for_is_kept_for_the_next_wait():
    wakeups = Wakeups()
    wakeup = wakeups.subscribe("s")
    for _ in range(3):
        wakeups.notify("s")
    with anyio.fail_after(1):
        await wakeup.wait()
    with anyio.move_on_after(0) as scope:
        await wakeup.wait()
    assert scope.cancelled_caught


async def test_a_change_after_a_wait_that_was_cancelled_is_seen():
    wakeups = Wakeups()
    wakeup = wakeups.subscribe("s")
    with anyio.move_on_after(0):
        await wakeup.wait()
    wakeups.notify("s")
    with anyio.fail_after(1):
        await wakeup.wait()


async def test_who_has_closed_waits_for_nothing():
    wakeup = Wakeups().subscribe("s")
    wakeup.close()
    wakeup.close()
    with anyio.fail_after(1):
        await wakeup.wait()


async def test_the_poll_wakes_those_whose_version_differs():
    wakeups, versions = Wakeups(), {"a": 1, "b": 1}
    wakeup = {session: wakeups.subscribe(session) for session in ("a", "b", "unknown")}
    asked = []

    async def look(sessions):
        asked.append(sorted(sessions))
        return dict(versions)

    async def woken():
        count = len(asked)
        while len(asked) < count + 2:
            await checkpoint()
        return [session for session, each in wakeup.items() if is_awake(each)]

    with anyio.fail_after(10):
        async with polling(wakeups, look, 0):
            assert await woken() == ["a", "b", "unknown"]  # they may have changed before the first question
            for each in wakeup.values():
                await each.wait()
            assert await woken() == []
            versions["b"] = 2
            assert await woken() == ["b"]
            del versions["a"]
            assert await woken() == ["a", "b"]
    assert asked[0] == ["a", "b", "unknown"]


async def test_nobody_is_woken_while_nothing_changes_and_all_when_nothing_can_be_asked():
    wakeups = Wakeups()
    wakeup = wakeups.subscribe("s")
    answers = [None, None, StoreError("busy")]

    async def look(_):
        answer = answers.pop(0) if answers else None
        if answer is not None:
            assert not is_awake(wakeup)
            raise answer

    with anyio.fail_after(10):
        async with polling(wakeups, look, 0):
            await wakeup.wait()


async def test_the_poll_sleeps_when_nobody_follows():
    """With an interval of nothing it would never be blocked otherwise."""
    wakeups, asked = Wakeups(), []

    async def look(sessions):
        asked.append(sessions)

    with anyio.fail_after(10):
        async with polling(wakeups, look, 0):
            await anyio.wait_all_tasks_blocked()
            assert asked == []
            for leave in ("closed", "dropped"):
                wakeup = wakeups.subscribe("s")
                count = len(asked)
                while len(asked) < count + 2:
                    await checkpoint()
                if leave == "closed":
                    wakeup.close()
                del wakeup
                gc.collect()
                await anyio.wait_all_tasks_blocked()
    assert len(asked) >= 4
