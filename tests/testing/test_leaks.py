"""Each kind of thing that may be left behind is seen and named; what has ended is not, and pools may stay."""

import os
import subprocess
import sys
import threading
import warnings
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint

from streamagent import Agent, SqliteStore, tool
from streamagent.testing import ScriptedModel, answer, assert_no_leaks, call, calls

pytestmark = pytest.mark.anyio


async def numbers():
    yield 1
    yield 2


async def nothing():
    pass


async def leaking(match, leave, end):
    """Leave something behind, see it named, end it, and see that it is gone."""
    left = None
    with pytest.raises(AssertionError, match=match):
        async with assert_no_leaks(grace=0):
            left = await leave()
    await end(left)
    async with assert_no_leaks():
        await end(await leave())


async def test_a_task():
    async with anyio.create_task_group() as tasks:

        async def leave():
            scope = anyio.CancelScope()

            async def wait():
                with scope:
                    await anyio.sleep_forever()

            tasks.start_soon(wait, name="lasting")
            await checkpoint()
            return scope

        async def end(scope):
            scope.cancel()

        await leaking("task '.*lasting'", leave, end)


async def test_a_thread():
    async def leave():
        event = threading.Event()
        threading.Thread(target=event.wait, name="lasting").start()
        return event

    async def end(event):
        event.set()

    await leaking("thread 'lasting'", leave, end)


async def test_a_thread_of_a_pool_that_is_at_work():
    event, started = threading.Event(), threading.Event()

    def work():
        started.set()
        event.wait()

    with pytest.raises(AssertionError, match=r"thread .*\nthread "):
        async with assert_no_leaks(grace=0), anyio.create_task_group() as tasks:
            for function in (event.wait, work):
                tasks.start_soon(partial(anyio.to_thread.run_sync, function, abandon_on_cancel=True))
            while not started.is_set():
                await checkpoint()
            tasks.cancel_scope.cancel()
    event.set()


async def test_a_pool_that_waits_for_work_may_stay():
    async with assert_no_leaks():
        await anyio.to_thread.run_sync(int)


async def test_a_child_process():
    async def leave():
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    async def end(child):
        child.communicate(b"\n")

    await leaking("child process", leave, end)


async def test_an_open_file(tmp_path):
    async def leave():
        return os.open(tmp_path, os.O_RDONLY)

    async def end(number):
        os.close(number)

    await leaking(f"file .*{tmp_path.name}", leave, end)


async def test_a_generator_that_was_begun():
    async def leave():
        generator = numbers()
        await anext(generator)
        return generator

    async def end(generator):
        await generator.aclose()

    await leaking("async generator numbers", leave, end)


async def test_a_generator_that_was_not_begun_has_nothing_to_close():
    async with assert_no_leaks():
        generator = numbers()
    assert [number async for number in generator] == [1, 2]


async def test_a_coroutine_that_was_never_awaited():
    async def leave():
        return nothing()

    async def end(coroutine):
        coroutine.close()

    await leaking("never awaited nothing", leave, end)


async def test_a_coroutine_that_was_never_awaited_and_is_gone():
    with pytest.raises(AssertionError, match="coroutine 'nothing' was never awaited"):
        async with assert_no_leaks(grace=0):
            nothing()


async def test_other_warnings_come_through():
    with pytest.warns(UserWarning, match="said"):
        async with assert_no_leaks():
            warnings.warn("said", stacklevel=1)


async def test_an_error_of_the_block_is_raised_as_it_is():
    with pytest.raises(ValueError, match="mine"):
        async with assert_no_leaks():
            generator = numbers()
            await anext(generator)
            raise ValueError("mine")
    await generator.aclose()


@pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
async def test_a_session_in_a_file_leaves_nothing(tmp_path):
    @tool
    def stock() -> int:
        """Units in stock."""
        return 15

    model = ScriptedModel(calls(call("stock")), answer("15."))
    agent = Agent(model, tools=[stock], store=SqliteStore(tmp_path / "s.db"))
    async with assert_no_leaks(), agent.session("s") as session:
        assert (await session.ask("How many?")).text == "15."
