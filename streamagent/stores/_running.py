"""The task of a store's writer, and task groups that nobody sees."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from anyio import create_task_group
from anyio.abc import TaskGroup

from streamagent.cancellation import raise_single

from ._writer import Writer


@asynccontextmanager
async def running(writer: Writer) -> AsyncGenerator[None, None]:
    """Run a writer; leaving the block commits what waits, also when it is cancelled.

    Raises:
        StoreError: Why some fragments could not be written.
    """
    try:
        async with grouped() as tasks:
            tasks.start_soon(writer.run)
            try:
                yield
            finally:
                writer.close()  # the group waits for it: a transaction and the one that was queued meanwhile
    finally:
        writer.raise_left()


@asynccontextmanager
async def grouped() -> AsyncGenerator[TaskGroup, None]:
    """Open a task group of which nobody sees that it is one: an error in the block comes out as it is."""
    try:
        async with create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise_single(group)
