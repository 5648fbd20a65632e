"""`throttle`: so many requests and tokens a minute, for all sessions that share it."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial

import anyio

from streamagent._core.bucket import Bucket
from streamagent._core.usage import tokens_of
from streamagent.errors import ConfigError
from streamagent.protocols import RunContext, Stage, Stream

from ._counting import begins_turn, limit_stop

_KEYS = 1024  # buckets, some 300 bytes each, before those are forgotten that are full again


def throttle(  # noqa: PLR0913 - two rates, and four options that have defaults
    *,
    requests_per_minute: float = math.inf,
    tokens_per_minute: float = math.inf,
    max_wait: float = 600.0,
    key: Callable[[RunContext], Hashable] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> Stage:
    """Delay model requests so that all runs of this process through this very stage keep within a rate.

    Who asks first goes first. A minute's worth may go at once, then it refills evenly. A turn's tokens are known at its
    end: a request takes as many as the last turn took, the difference is settled then. A request that would wait
    beyond the run's deadline or `max_wait` is not made: the stream ends with a `stop` of reason `throttle`, whose
    `limit` names the rate and whose `retry_after` is the wait, in seconds. Stand it first, next to the model.

    Args:
        requests_per_minute: Model requests; those that a model repeats unseen are not among them.
        tokens_per_minute: Tokens of questions and answers.
        max_wait: Longest wait for one request, in seconds.
        key: Gives each run a name; every name has its own rate. `None`: one for all.
        clock: The time, in seconds; it must be steady.
        sleep: Waits, in seconds.

    Raises:
        ConfigError: A rate that is not above 0, or a negative wait.
    """
    rates = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    if not all(rate > 0 for rate in rates.values()) or not max_wait >= 0:
        raise ConfigError(f"throttle takes rates above 0 a minute and max_wait of 0 or more seconds, not {rates}")
    meters = _Meters(rates, clock)

    async def stage(stream: Stream, run: RunContext) -> Stream:
        meter = meters.of(key(run) if key else None)
        request: _Request | None = None
        async for message in stream:
            if message.type == "stop":
                meter.settle(request or _Request(), tokens_of(message.query or {}))
                request = None
            yield message
            if begins_turn(message) and request is None:  # several prompts in a row make one request
                request = meter.reserve()
                if request.delay > min(max_wait, run.deadline - anyio.current_time()):
                    meter.give_back(request)
                    yield limit_stop("throttle", {request.limit: rates[request.limit]}, retry_after=request.delay)
                    return
                await _wait(request, meter, sleep)

    return stage


async def _wait(request: _Request, meter: _Meter, sleep: Callable[[float], Awaitable[None]]) -> None:
    try:
        if request.delay:
            await sleep(request.delay)
    except BaseException:
        meter.give_back(request)
        raise


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that may be made after a delay.

    Args:
        tokens: What was taken for it.
        delay: In seconds.
        limit: The rate that it waits for.
    """

    tokens: float = 0.0
    delay: float = 0.0
    limit: str = ""


class _Meter:
    """The buckets of one name."""

    def __init__(self, rates: Mapping[str, float], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets = {name: Bucket(rate, now=clock()) for name, rate in rates.items() if rate < math.inf}
        self._guess = 0.0  # tokens of the next turn: as many as the last one took

    def reserve(self) -> _Request:
        """Take a request and the tokens that it may need."""
        delays = self._take(requests=1, tokens=self._guess)
        limit = max(delays, key=delays.__getitem__, default="")
        return _Request(self._guess, delays.get(limit, 0.0), limit)

    def give_back(self, request: _Request) -> None:
        """Take a request back that is not made."""
        self._take(requests=-1, tokens=-request.tokens)

    def settle(self, request: _Request, tokens: float | None) -> None:
        """Take what a turn used beyond what was reserved; one that nobody counted used just that."""
        if tokens is not None:
            self._guess = tokens
            self._take(requests=0, tokens=tokens - request.tokens)

    @property
    def is_full(self) -> bool:
        """Nothing was taken lately: a new one is as good."""
        return all(bucket.is_full(now=self._clock()) for bucket in self._buckets.values())

    def _take(self, *, requests: float, tokens: float) -> dict[str, float]:
        amounts = {"requests_per_minute": requests, "tokens_per_minute": tokens}
        now = self._clock()
        return {name: bucket.reserve(amounts[name], now=now) for name, bucket in self._buckets.items()}


class _Meters:
    """The meters of all names."""

    def __init__(self, rates: Mapping[str, float], clock: Callable[[], float]) -> None:
        self._new = partial(_Meter, rates, clock)
        self._by_name: dict[Hashable, _Meter] = {}

    def of(self, name: Hashable) -> _Meter:
        """Return the meter of a name."""
        if name not in self._by_name and len(self._by_name) >= _KEYS:
            self._by_name = {key: meter for key, meter in self._by_name.items() if not meter.is_full}
        if name not in self._by_name:
            self._by_name[name] = self._new()
        return self._by_name[name]
