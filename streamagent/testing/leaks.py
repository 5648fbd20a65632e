"""`assert_no_leaks`: when a block is over, nothing of it lives on."""

from __future__ import annotations

import gc
import inspect
import multiprocessing
import os
import sys
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType
from typing import Any
from weakref import WeakSet

import anyio

RUNNER = " TestRunner."  # anyio's, of which a fixture has another task at its end than at its beginning
POLL = 0.01  # seconds between two looks
POOLS = ("AnyIO worker thread", "Trio thread")  # threads that wait for the next call, and are kept
TRIO_WAITS = ("_thread_cache.py", "_work")
ANYIO_WAITS = [("queue.py", "get"), ("_asyncio.py", "run")]


@asynccontextmanager
async def assert_no_leaks(*, grace: float = 1.0) -> AsyncGenerator[None, None]:
    """Check that what began within the block has ended when it is left: nothing is checked when it is left by an error.

    Looked for are tasks, threads (but for those of pools, while they wait for work), child processes, open files and
    sockets, coroutines that were never awaited, and async generators that were begun and not closed. Child processes
    and files are seen where the system has `/proc`; elsewhere, those of `multiprocessing` and `/dev/fd` alone.

    Args:
        grace: How long it may take them to end, in seconds of real time.

    Raises:
        AssertionError: Something lives on; the text names all of it.
    """
    gc.collect()
    before = {kind: frozenset(look()) for kind, look in _LOOKS.items()}
    known = WeakSet(_suspended())
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message="coroutine .* was never awaited", category=RuntimeWarning)
        yield
        left = await _wait(before, known, caught, grace)
    for warning in caught:
        if "was never awaited" not in str(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if left:
        raise AssertionError("I11: left behind:\n" + "\n".join(left))


async def _wait(
    before: Mapping[str, frozenset[Hashable]], known: WeakSet[Any], caught: list[Any], grace: float
) -> list[str]:
    end = time.monotonic() + grace
    while True:
        late = time.monotonic() >= end  # asked before a look, which takes its time among very many objects
        gc.collect()
        left = [*_new(before), *_still_open(known), *_unawaited(caught)]
        if not left or late:
            return left
        await anyio.sleep(POLL)


def _new(before: Mapping[str, frozenset[Hashable]]) -> Iterator[str]:
    for kind, look in _LOOKS.items():
        yield from (f"{kind} {text}" for key, text in look().items() if key not in before[kind])


def _still_open(known: WeakSet[Any]) -> Iterator[str]:
    for item in _suspended():
        if item not in known:
            kind = "async generator" if isinstance(item, AsyncGeneratorType) else "coroutine that was never awaited"
            yield f"{kind} {item.__qualname__}"


def _unawaited(caught: Iterable[Any]) -> Iterator[str]:
    yield from (str(warning.message) for warning in caught if "was never awaited" in str(warning.message))


def _suspended() -> Iterator[Any]:
    """Give the coroutines that were not begun, and the async generators that were, and are neither over nor at work."""
    for item in gc.get_objects():
        if type(item) is CoroutineType:
            if inspect.getcoroutinestate(item) == inspect.CORO_CREATED:
                yield item
        elif type(item) is AsyncGeneratorType and _is_open(item):
            yield item


def _is_open(generator: AsyncGeneratorType[Any, Any]) -> bool:
    frame = generator.ag_frame
    begun = frame is not None and frame.f_lasti > _FRESH
    return begun and not generator.ag_running


async def _fresh() -> AsyncGenerator[None, None]:
    yield


_new_one: Any = _fresh()
_FRESH = _new_one.ag_frame.f_lasti  # where a generator stands that was not begun; versions of Python differ


def _tasks() -> Mapping[Hashable, str]:
    tasks = anyio.get_running_tasks()
    return {task.id: repr(task.name) for task in tasks if RUNNER not in repr(task.coro)}


def _threads() -> Mapping[Hashable, str]:
    frames = sys._current_frames()  # noqa: SLF001 - documented, in spite of its name
    return {
        thread: repr(thread.name)
        for thread in threading.enumerate()
        if not (thread.name.startswith(POOLS) and _is_idle(frames.get(thread.ident or 0)))
    }


def _is_idle(frame: Any) -> bool:
    """Tell whether a pool's thread waits for work: anyio's in its queue, trio's on a lock in its own loop."""
    places = []
    while frame is not None:
        places.append((Path(frame.f_code.co_filename).name, frame.f_code.co_name))
        frame = frame.f_back
    waits = [place for place in places if place != ("threading.py", "wait")]
    return places[:1] == [TRIO_WAITS] or waits[:2] == ANYIO_WAITS


def _children() -> Mapping[Hashable, str]:
    found = {str(child.pid) for child in multiprocessing.active_children()}
    for task in Path("/proc/self/task").glob("*/children"):
        found.update(task.read_text().split())
    return {pid: pid for pid in found}


def _files() -> Mapping[Hashable, str]:
    found: dict[Hashable, str] = {}
    folder = "/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd"
    for number in os.listdir(folder):  # noqa: PTH208 - the numbers alone
        try:
            target = os.readlink(f"{folder}/{number}")  # noqa: PTH115 - also of what is no file
        except OSError:  # the folder's own number, closed meanwhile
            continue
        found[number, target] = f"{number} {target}"
    return found


_LOOKS: Mapping[str, Callable[[], Mapping[Hashable, str]]] = {
    "task": _tasks,
    "thread": _threads,
    "child process": _children,
    "file": _files,
}
