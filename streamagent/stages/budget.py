"""`budget`: so much, and at most one step more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from streamagent._core.usage import tokens_of, usage_of, usages
from streamagent.errors import ConfigError
from streamagent.message import Message, utc_now
from streamagent.protocols import RunContext, Stage, Stream
from streamagent.records import Usage

from . import _time_budget
from ._counting import Counts, begins_turn, earlier, limit_stop

Scope = Literal["run", "session", "day"]
_OF_TURNS = ("tokens", "cost", "turns")
Price = Callable[[str | None, Mapping[str, Any]], float | None]


def budget(  # noqa: PLR0913 - one option for each thing that is limited
    *,
    tokens: float = math.inf,
    cost: float = math.inf,
    seconds: float = math.inf,
    turns: float = math.inf,
    tool_calls: float = math.inf,
    scope: Scope = "run",
    price: Price | None = None,
) -> Stage:
    """End a run that has used up what it may, with a `stop` of reason `budget` whose `limit` names what it was.

    Tokens, cost and turns are looked at before each model turn: the one in which they are used up is finished, its
    calls are run, and no other begins. The tool call beyond the limit does not pass, as in `rate_limit`. Stand it
    before `tool_dispatch`. Seconds cut at once, also a running tool: they want a budget of their own that stands behind
    `tool_dispatch`.

    What sub-agents use counts as well, and ends them, too: with scope `run` what this run's own use, with `day` all.
    Several at once may each exceed a limit by one turn.

    A turn that nobody counted or priced counts as 0, and its stop says so in `uncounted`. What a turn cost stands in
    its stop's `cost`.

    Args:
        tokens: Tokens of questions and answers, as the provider counts them.
        cost: Money: what the model says, which is US dollars by LiteLLM's price map, or by `price`.
        seconds: How long a run may take.
        turns: Answers of the model.
        tool_calls: Calls that it makes.
        scope: `run`; `session`: all that is stored of it; `day`: all sessions of the store's tenant since midnight UTC.
        price: Prices a usage of a model, instead of the model itself; `None` when it cannot.

    Raises:
        ConfigError: A limit below 0, an unknown scope, or seconds beside something else.
    """
    _check([tokens, cost, turns, tool_calls], seconds, scope)
    if seconds < math.inf:
        return _time_budget.budget(seconds)

    def stage(stream: Stream, run: RunContext) -> Stream:
        limits = {"tokens": tokens, "cost": cost, "turns": turns, "tool_calls": tool_calls}
        spent = _Spent()

        def bound(stream: Stream, run: RunContext) -> Stream:
            return _bounded(stream, run, _Account(limits, scope, price, spent))

        if scope != "session":
            run.bounds.append(bound)
        return _bounded(stream, run, _Account(limits, scope, price, spent), goes_on=scope == "run")

    return stage


async def _bounded(stream: Stream, run: RunContext, account: _Account, *, goes_on: bool = False) -> Stream:
    if goes_on:
        async for row in earlier(run):
            account.count(row)
    elif run.since is not None:  # it may go on without a message that begins a turn
        await account.read(run)
    async for message in stream:
        if passed := account.take(message):
            yield passed
        if begins_turn(message) and not account.ended:
            await account.read(run)
            if name := account.used_up():
                yield account.stop(name)
        if account.ended:
            return


def _check(limits: Sequence[float], seconds: float, scope: str) -> None:
    if not all(limit >= 0 for limit in limits) or not seconds > 0:
        raise ConfigError(f"budget takes limits of 0 or more and seconds above 0, not {[*limits, seconds]}")
    if scope not in get_args(Scope):
        raise ConfigError(f"budget takes scope 'run', 'session' or 'day', not {scope!r}")
    if seconds < math.inf and (min(limits) < math.inf or scope != "run"):
        raise ConfigError("budget(seconds=…) cuts tools, so it stands behind tool_dispatch, by itself and per run")


@dataclass(slots=True)
class _Spent:
    """What was used up by a run and its sub-agents."""

    used: Usage = field(default_factory=Usage)
    passed: dict[str, int] = field(default_factory=dict)


class _Account:
    """What is used up, of what there is, as one run sees it.

    Args:
        limits: What there is.
        scope: Whose use counts.
        price: Prices a usage.
        spent: What is used up.
    """

    def __init__(self, limits: Mapping[str, float], scope: Scope, price: Price | None, spent: _Spent) -> None:
        self._limits = limits
        self._scope = scope
        self._price = price
        self._counts = Counts({"tool_calls": limits["tool_calls"]}, spent.passed)
        self._spent = spent
        self.ended = False

    async def read(self, run: RunContext) -> None:
        """Look up what was used, unless this run alone counts; its own turns are stored by now."""
        if self._scope == "run":
            return
        today = utc_now().replace(hour=0, minute=0, second=0, microsecond=0)
        of_session = self._scope == "session"
        used = self._spent.used = await run.store.usage(
            run.session if of_session else None, since=None if of_session else today
        )
        self._counts.passed["tool_calls"] = used.tool_calls

    def count(self, row: Message) -> None:
        """Count a row of the run before it was paused or interrupted."""
        if row.role == "assistant" and not row.more:
            self._counts.counts(row)
            self._spent.used += usage_of("stop", row.query) if row.type == "stop" else Usage()

    def used_up(self) -> str | None:
        """Name a limit that leaves no room for another turn."""
        return next((name for name in _OF_TURNS if getattr(self._spent.used, name) >= self._limits[name]), None)

    def take(self, message: Message) -> Message | None:
        """Return what is passed on for a message: it, nothing, or the stop that ends the run."""
        if message.type == "stop":
            return self._close(message)
        if self._counts.passes(message):
            return message
        return self.stop("tool_calls") if self._counts.ends(message) else None

    def stop(self, name: str, last: Message | None = None) -> Message:
        """End the run because of a limit."""
        self.ended = True
        return limit_stop("budget", {name: self._limits[name], "scope": self._scope}, last)

    def _close(self, stop: Message) -> Message:
        if usage_of("stop", stop.query).turns:
            stop = self._priced(stop)
            self._spent.used += usage_of("stop", stop.query)
        name = self._counts.refused or (None if stop.is_final else self.used_up())
        return self.stop(name, stop) if name else stop

    def _priced(self, stop: Message) -> Message:
        """Write into a stop what its turn cost, and what could not be counted."""
        query = dict(stop.query or {})
        if self._price is not None:
            prices = [self._price(query.get("model"), usage) for usage in usages(query)]
            known = [price for price in prices if price is not None]
            query |= {"cost": sum(known)} if known else {}
        counted = {"tokens": tokens_of(query), "cost": query.get("cost")}
        uncounted = [name for name, count in counted.items() if self._limits[name] < math.inf and count is None]
        return replace(stop, query={**query, "uncounted": uncounted} if uncounted else query)
