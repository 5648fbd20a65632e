"""Kills: a child process ends at a point, as by `kill -9`; `for_each_kill` tries every one.

It is also the server that makes the children: `python -m streamagent.testing.kills MODULE:FUNCTION` has imported all
that they need, and forks one for each line that it reads. That costs some milliseconds, an interpreter some tenths of
a second.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from streamagent.errors import ConfigError

from .points import MOST, FaultPoints

KILLED = 137  # the exit code that shells report of a process that was killed
ANSWER = 10_000_000  # bytes of a line of the server: far more than the names of all points


async def for_each_kill(
    scenario: str,
    *args: str,
    check: Callable[[int], Awaitable[Any]],
    only: str = "",
    first: int = 1,
    step: int = 1,
) -> list[str]:
    """Run a scenario in a child process that ends at the first point; then at the second; until one comes through.

    Nothing of a process runs after its point: no `finally`, no flush.

    Args:
        scenario: `module:function`; it is called with the child's `FaultPoints` and `args`, on asyncio.
        args: What it needs to know, such as the path of a file.
        check: Called after each child with the number of its point, also after the one that came through: resumes
            what the child has left, and asserts what must hold.
        only: Beginning of the names of the points that count.
        first: The first point, from 1.
        step: How many points further the next one is.

    Returns:
        Names of all points.

    Raises:
        AssertionError: A child failed by itself; the text has what it wrote to standard error.
        ConfigError: This platform cannot fork.
    """
    async with open_victims(scenario) as victims:
        for at in count(first, step):
            names = await victims.run(*args, at=at, only=only)
            try:
                await check(at)
            except BaseException as error:
                error.add_note(f"killed at point {at}")
                raise
            if names is not None:
                return names
            if at >= MOST:
                raise AssertionError(f"{scenario} was killed at {at} points and has more")
    raise AssertionError  # `count` has no end


class Victims:
    """Processes that run a scenario, one after the other; see `open_victims`.

    Args:
        scenario: What they run.
        server: What makes them.
    """

    def __init__(self, scenario: str, server: Process) -> None:
        self._scenario = scenario
        self._server = server
        assert server.stdout is not None  # noqa: S101 - it is a pipe
        self._answers = BufferedByteReceiveStream(server.stdout)

    async def run(self, *args: str, at: int | None = None, only: str = "") -> list[str] | None:
        """Run the scenario in a new process.

        Args:
            args: What it is called with, behind its `FaultPoints`.
            at: The point at which the process is killed; `None` for none.
            only: Beginning of the names of the points that count.

        Returns:
            Names of the points that it passed; `None` if it was killed.

        Raises:
            AssertionError: It failed by itself; the text has what it wrote to standard error.
        """
        request = json.dumps({"at": at, "only": only, "args": args})
        assert self._server.stdin is not None  # noqa: S101 - it is a pipe
        try:
            await self._server.stdin.send(f"{request}\n".encode())
            answer = json.loads(await self._answers.receive_until(b"\n", ANSWER))
        except (anyio.BrokenResourceError, anyio.IncompleteRead) as error:
            assert self._server.stderr is not None  # noqa: S101 - it is a pipe
            told = b"".join([part async for part in self._server.stderr])
            raise AssertionError(f"{self._scenario} cannot be run:\n{told.decode(errors='replace')}") from error
        if answer["code"] == KILLED:
            return None
        if answer["code"]:
            raise AssertionError(f"{self._scenario} failed before point {at}:\n{answer['told']}")
        names: list[str] = json.loads(answer["told"].splitlines()[-1])
        return names


@asynccontextmanager
async def open_victims(scenario: str) -> AsyncIterator[Victims]:
    """Run a scenario in one process after the other, each of which may be killed at a point of its own.

    Args:
        scenario: As of `for_each_kill`. What its module imports, all its processes have.

    Raises:
        ConfigError: This platform cannot fork.
    """
    if not hasattr(os, "fork"):
        raise ConfigError("kills need a platform that can fork; here, let points raise: FaultPoints(…, fatal=True)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    command = [sys.executable, "-m", __name__, scenario]
    async with await anyio.open_process(command, env=environment, start_new_session=True) as server:
        try:
            yield Victims(scenario, server)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)  # a child that hangs, too


def serve(scenario: str) -> None:
    """Make a child for each request, one after the other, and tell how it ended."""
    module, _, name = scenario.partition(":")
    function = getattr(importlib.import_module(module), name)
    importlib.import_module("anyio._backends._asyncio")
    gc.freeze()  # what is here already is none of the children's business
    for request in sys.stdin:
        print(json.dumps(_fork(function, **json.loads(request))), flush=True)  # noqa: T201 - for whoever asked


def _fork(function: Callable[..., Awaitable[Any]], **request: Any) -> dict[str, Any]:
    with tempfile.TemporaryFile() as told:
        pid = os.fork()
        if not pid:
            _die(function, told.fileno(), **request)
        _, status = os.waitpid(pid, 0)
        told.seek(0)
        return {"code": os.waitstatus_to_exitcode(status), "told": told.read().decode(errors="replace")}


def _die(function: Callable[..., Awaitable[Any]], told: int, *, at: int | None, only: str, args: list[str]) -> None:
    """Run the scenario, in the child; tell the names of its points if it comes through."""
    code = 1
    try:
        os.dup2(told, sys.stdout.fileno())
        os.dup2(told, sys.stderr.fileno())
        points = FaultPoints(at, partial(os._exit, KILLED), only=only)
        with points:
            anyio.run(partial(function, points, *args))
        print(json.dumps(points.passed))  # noqa: T201 - for the parent
        code = 0
    except BaseException:  # noqa: BLE001 - the server's code must not go on here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(*sys.argv[1:])
