"""The background work of a run."""

import anyio
import pytest

from streamagent.tasks import RunTasks

pytestmark = pytest.mark.anyio


async def test_work_that_was_started_but_has_not_run_yet_is_cancelled_at_its_first_await():
    steps = []

    async def work():
        steps.append("started")
        await anyio.sleep_forever()
        steps.append("never")

    async with anyio.create_task_group() as group:
        tasks = RunTasks(group, steps.append)
        tasks.start_soon(work)
        await tasks.aclose()
        assert steps in ([], ["started"])


async def test_work_that_does_not_end_is_left_behind_after_the_timeout():
    released = anyio.Event()

    async def stubborn():
        with anyio.CancelScope(shield=True):
            await released.wait()

    async with anyio.create_task_group() as group:
        tasks = RunTasks(group, print)
        tasks.start_soon(stubborn)
        await anyio.wait_all_tasks_blocked()
        await tasks.aclose(close_timeout=0.01)
        released.set()


async def test_a_failure_is_given_to_the_run_and_the_group_goes_on():
    failures = []

    async def fail():
        raise ZeroDivisionError

    async with anyio.create_task_group() as group:
        tasks = RunTasks(group, failures.append)
        tasks.start_soon(fail)
        await anyio.wait_all_tasks_blocked()
    assert [type(failure) for failure in failures] == [ZeroDivisionError]


async def test_what_fails_behind_the_end_of_a_run_is_logged(caplog):
    async def fail():
        raise ZeroDivisionError

    async with anyio.create_task_group() as group:
        tasks = RunTasks(group, print)
        await tasks.aclose()
        tasks.start_soon(fail)
    [logged] = caplog.records
    assert (logged.levelname, logged.exc_info[0]) == ("ERROR", ZeroDivisionError)
