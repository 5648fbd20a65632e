"""What a contender is: something that runs sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from .workload import Role, Workload

Heard = Callable[[str], object]
Past = Iterable[tuple[Role, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Runs sessions of a workload.

    Args:
        run: Runs one, by its name, on what is stored of it; tells every piece of text as it comes.
        fill: Stores messages of a session: role and content of each.
        idle: Gives what a session is while nothing happens in it.
    """

    run: Callable[[str, Heard], Awaitable[None]]
    fill: Callable[[str, Past], Awaitable[None]] | None = None
    idle: Callable[[str], Awaitable[object]] | None = None


OpenContender = Callable[[Workload], AbstractAsyncContextManager[Contender]]
