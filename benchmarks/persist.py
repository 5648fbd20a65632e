"""`persist`: what a finished message costs, beside one commit a message through aiosqlite.

Tasks that share a connection of aiosqlite commit what others have inserted, so that most of their own commits have
nothing to do: twenty of them make one commit of twenty messages. That is shown beside; a commit a message is one at a
time.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import anyio
import orjson

from streamagent import Message, SqliteStore

from .contenders.rows import open_rows
from .harness import child_environment, gather, run_child
from .measure import Sample, run, settle
from .report import Report, Setting, compare
from .workload import Workload

Append = Callable[[str, str], Awaitable[object]]

_OURS, _FLOOR, _SHARED = "streamagent", "aiosqlite", "aiosqlite_shared"
_TARGET = 0.6  # of the CPU of a commit a message
_WARM_UP = 10  # messages


def measure_persist(setting: Setting) -> Report:
    """Store `chunks` messages in each of the workload's sessions, which all write at once."""
    with child_environment() as environment:
        task = setting.workload.to_json()
        samples = gather(
            [_OURS, _FLOOR, _SHARED],
            setting.rounds,
            setting.tick,
            lambda name: run_child(environment, "-m", "benchmarks.persist", name, task),
        )
    key = "cpu_us_per_message"
    checks = [compare(samples, _OURS, _FLOOR, key, target=_TARGET), compare(samples, _OURS, _SHARED, key)]
    return Report(setting=setting, samples=samples, checks=checks)


@asynccontextmanager
async def _open_streamagent(folder: str) -> AsyncIterator[Append]:
    fences: dict[str, int] = {}
    async with SqliteStore(Path(folder, "sessions.db")) as store:

        async def append(session: str, content: str) -> None:
            if session not in fences:
                fences[session] = await store.acquire(session)
            await store.write(session, [Message(content=content)], fence=fences[session])

        yield append


@asynccontextmanager
async def _open_shared(folder: str) -> AsyncIterator[Append]:
    async with open_rows(folder) as rows:
        yield lambda session, content: rows.append(session, {"role": "assistant", "content": content})


@asynccontextmanager
async def _open_aiosqlite(folder: str) -> AsyncIterator[Append]:
    one_at_a_time = anyio.Lock()
    async with _open_shared(folder) as append_shared:

        async def append(session: str, content: str) -> None:
            async with one_at_a_time:
                await append_shared(session, content)

        yield append


_OPENERS: dict[str, Callable[[str], AbstractAsyncContextManager[Append]]] = {
    _OURS: _open_streamagent,
    _FLOOR: _open_aiosqlite,
    _SHARED: _open_shared,
}


async def _measure(name: str, workload: Workload) -> Sample:
    content = "x" * workload.message_bytes

    async def write(session: str, number: int) -> None:
        for _ in range(number):
            await append(session, content)

    async def write_all(number: int) -> None:
        async with anyio.create_task_group() as tasks:
            for index in range(workload.sessions):
                tasks.start_soon(write, f"session {index}", number)

    with TemporaryDirectory() as folder:
        async with _OPENERS[name](folder) as append:
            await write_all(_WARM_UP)
            await settle()
            cpu = process_time()
            await write_all(workload.chunks)
            await settle()
            cpu = process_time() - cpu
    return {"cpu_us_per_message": cpu * 1e6 / (workload.sessions * workload.chunks)}


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(run(_measure, sys.argv[1], Workload.from_json(sys.argv[2]))))
