"""`quotas`: the limits of CAP's `@agent.quota`, by the names that they have there."""

from __future__ import annotations

import re
from typing import Any

from streamagent.errors import ConfigError
from streamagent.protocols import Stage

from .budget import budget

# Which budget, and its option.
_KNOWN = {
    "maxLLMInvocationsPerTask": ("task", "turns"),
    "maxLLMTokensPerTask": ("task", "tokens"),
    "maxToolCallsPerTask": ("task", "tool_calls"),
    "maxLLMTokensPerDay": ("day", "tokens"),
    "maxExecutionTimePerTask": ("time", "seconds"),
}
_NOT_YET = (
    "maxConcurrentTasks",
    "maxConcurrentTasksPerUser",
    "maxIncomingMessageLength",
    "maxTasksPerHour",
    "maxTasksPerHourPerUser",
    "maxToolCallsPerHour",
    "timeoutGrace",
)
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def quotas(dispatch: Stage, /, **names: float | str) -> list[Stage]:
    """Make the budgets of CAP's quotas and stand them around `tool_dispatch`, each where it belongs.

    Args:
        dispatch: The stage that runs the tools.
        names: `maxToolCallsPerTask`, `maxLLMInvocationsPerTask`, `maxLLMTokensPerTask`, `maxLLMTokensPerDay`, and
            `maxExecutionTimePerTask` in seconds or with a unit, as in `"5 min"`. A task is a run; `False` is no limit.

    Returns:
        Stages for `Pipeline(reply=[*quotas(…), persist()])`.

    Raises:
        ConfigError: An unknown name, one that is not there yet, or a value that is no limit.
    """
    limits: dict[str, dict[str, Any]] = {"task": {}, "day": {}, "time": {}}
    for name, value in names.items():
        _check(name, value)
        if value is not False:
            place, option = _KNOWN[name]
            limits[place][option] = _number(name, value)
    task, day, time = limits.values()
    before = [budget(**task)] if task else []
    before += [budget(scope="day", **day)] if day else []
    return [*before, dispatch, *([budget(**time)] if time else [])]


def _check(name: str, value: float | str) -> None:
    if name not in _KNOWN and name not in _NOT_YET:
        raise ConfigError(f"quotas knows {', '.join(_KNOWN)}, not {name!r}")
    if name in _NOT_YET and value is not False:
        raise ConfigError(f"quotas: {name} is about many runs or their prompts, which nothing limits yet; set it False")


def _number(name: str, value: float | str) -> float:
    if isinstance(value, int | float) and value is not True and value >= 0:
        return value
    if isinstance(value, str) and name == "maxExecutionTimePerTask" and (time := _TIME.fullmatch(value)):
        return float(time[1]) * _SECONDS[time[2]]
    raise ConfigError(f"quotas: {name} is a number of 0 or more, a time also '5 min', or False, not {value!r}")
