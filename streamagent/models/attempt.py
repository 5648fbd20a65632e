"""One try at an answer: waits for chunks, makes messages of them, and decides whether to try again."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from streamagent._core.assembler import Assembler
from streamagent._core.event import Said
from streamagent._core.sse import DONE
from streamagent.errors import ModelError
from streamagent.message import Message
from streamagent.waiting import Interrupted, make_waiter

Delay = Callable[..., float | None]
Batch = Sequence[Mapping[str, Any] | Said]  # what came with one read of the network, as a list
Chunks = AsyncGenerator[Mapping[str, Any] | Batch | bytes, None]  # chunks, then `DONE`


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a call may take, all attempts together.

    Args:
        idle: Longest wait for a chunk, in seconds.
        deadline: When to give up, on anyio's clock, in seconds.
        late: What is said then.
    """

    idle: float
    deadline: float
    late: str


class Attempt:
    """One try at an answer. Nothing of it is passed on before there is something to show.

    Args:
        open: Gives the provider's stream, which is closed with the attempt; the time that this takes is no silence of
            the provider.
        assembler: Makes messages of chunks.
        delay: Tells the wait before another try, in seconds, or `None`; called with the error and `now`.
        limits: How long it may take.
    """

    __slots__ = (
        "_assembler",
        "_chunks",
        "_delay",
        "_error",
        "_held",
        "_limits",
        "_open",
        "_waiter",
        "ended",
        "wait",
    )

    def __init__(
        self,
        open: Callable[[], Awaitable[Chunks]],  # noqa: A002 - what it does
        assembler: Assembler,
        *,
        delay: Delay,
        limits: Limits,
    ) -> None:
        self._open = open
        self._chunks: Chunks | None = None
        self._assembler = assembler
        self._delay = delay
        self._limits = limits
        self._waiter = make_waiter()
        self._held: list[Message] = []  # bounded: the first visible piece releases it
        self._error: ModelError | None = None
        self.ended = False
        self.wait: float | None = None

    @property
    def failure(self) -> Mapping[str, Any]:
        """What is told of this attempt when another one follows."""
        query = self._held[-1].query or {}
        return {key: query[key] for key in ("error", "usage") if query.get(key) is not None}

    async def step(self) -> list[Message]:
        """Wait for the next chunk and return what can be passed on.

        At the end `wait` is the time until the next try, in seconds, or `None` when this one counts.
        """
        messages = await self._next()
        if self._held:
            messages = [*self._held, *messages]
        self.ended = bool(messages) and messages[-1].type == "stop"
        self._held = []
        if not self._assembler.yielded:
            self.wait = self._wait(messages[-1]) if self.ended else None
            if self.wait is not None or not self.ended:
                self._held = messages
                return []
        return messages

    async def aclose(self) -> None:
        """Close the provider's stream."""
        self._waiter.close()
        chunks = self._chunks
        if chunks is not None and not getattr(chunks, "ag_running", False):  # else it was left in the middle of a wait
            await chunks.aclose()

    async def _next(self) -> list[Message]:
        waiter, limits = self._waiter, self._limits
        now = waiter.now()
        left = limits.deadline - now
        idle = math.inf if self._chunks is None else limits.idle
        try:
            if left <= 0:  # a provider that always has a chunk ready is never waited for: nothing else would stop it
                raise Interrupted  # noqa: TRY301 - the same as waiting until then
            until = now + min(idle, left)
            if self._chunks is None:
                self._chunks = await waiter.wait(self._open(), deadline=until)
                del self._open  # with what is asked: it is held no longer than the provider needs it
                return []
            return self._taken(await waiter.wait(anext(self._chunks), deadline=until))
        except StopAsyncIteration:
            return self._assembler.end(done=False)
        except Interrupted:
            what = f"the provider sent nothing for {idle:g} s" if idle < left else limits.late
            self._error = ModelError(what, kind="timeout", retryable=True)
        except ModelError as error:
            self._error = error
        return self._assembler.fail(self._error)

    def _taken(self, chunk: Mapping[str, Any] | Batch | bytes) -> list[Message]:
        if isinstance(chunk, list):
            return self._assembler.feed(*chunk)
        if isinstance(chunk, Mapping):
            return self._assembler.feed(chunk)
        return self._assembler.end(done=chunk == DONE)

    def _wait(self, stop: Message) -> float | None:
        told = (stop.query or {}).get("error")
        if told is None:
            return None
        error = self._error or ModelError(told["message"], kind=told["kind"], retryable=told["retryable"])
        return self._delay(error, now=anyio.current_time())
