"""What tests of workers wait for."""

from contextlib import asynccontextmanager

import anyio

from streamagent import Runtime, Worker

TICK = 0.005  # seconds between two looks


async def until(true, *, seconds=20):
    """Return when something has become true; it may be async."""
    with anyio.fail_after(seconds):
        while True:
            found = true()
            if hasattr(found, "__await__"):
                found = await found
            if found:
                return found
            await anyio.sleep(TICK)


async def at_rest(store, session="s"):
    """Tell whether a session has rows, and nothing to do."""
    if await store.inbox(session):  # first: what is taken from there meanwhile is unfinished then
        return False
    left = await store.unfinished(session)
    return left.last is not None and left.at_rest


@asynccontextmanager
async def working(store, plan_for, *, bus=None, **options):
    """Run a worker in a runtime of its own; give the runtime. It is drained at the end."""
    async with Runtime(store=store, bus=bus) as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(Worker(runtime, plan_for, **{"sweep": 0.02, **options}).run)
        yield runtime
        await runtime.drain(grace=5)
