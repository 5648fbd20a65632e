"""quotas: CAP's names."""

import math

import pytest

from streamagent import Pipeline, tool_dispatch
from streamagent.errors import ConfigError
from streamagent.pipeline import describe
from streamagent.stages.quotas import quotas


def test_each_quota_becomes_a_budget_at_its_place():
    stages = quotas(
        tool_dispatch(),
        maxToolCallsPerTask=50,
        maxLLMInvocationsPerTask=40,
        maxLLMTokensPerTask=200_000,
        maxLLMTokensPerDay=5_000_000,
        maxExecutionTimePerTask="5 min",
        maxTasksPerHour=False,
    )
    assert [describe(stage).partition("(")[0] for stage in stages] == ["budget", "budget", "tool_dispatch", "budget"]
    shown = str(Pipeline(reply=stages))
    assert "scope='run', tokens=200000, tool_calls=50, turns=40" in shown
    assert "scope='day', tokens=5000000" in shown
    assert "budget(seconds=300.0)" in shown


def test_no_quota_is_the_dispatch_alone():
    dispatch = tool_dispatch()
    assert quotas(dispatch, maxToolCallsPerTask=False, maxConcurrentTasks=False) == [dispatch]


@pytest.mark.parametrize(("text", "seconds"), [("15s", 15), ("1500 ms", 1.5), ("2m", 120), ("1.5h", 5400), (60, 60)])
def test_times_have_units(text, seconds):
    assert f"seconds={seconds:g}" in describe(quotas(tool_dispatch(), maxExecutionTimePerTask=text)[1]).replace(
        ".0", ""
    )


@pytest.mark.parametrize(
    ("quota", "says"),
    [
        ({"maxTokens": 1}, "maxLLMTokensPerTask.*not 'maxTokens'"),
        ({"maxTokens": False}, "not 'maxTokens'"),
        ({"maxTasksPerHour": 100}, "maxTasksPerHour.*nothing limits yet"),
        ({"maxConcurrentTasksPerUser": 4}, "maxConcurrentTasksPerUser"),
        ({"maxToolCallsPerTask": True}, "maxToolCallsPerTask"),
        ({"maxToolCallsPerTask": -1}, "maxToolCallsPerTask"),
        ({"maxToolCallsPerTask": math.nan}, "maxToolCallsPerTask"),
        ({"maxToolCallsPerTask": "5 min"}, "maxToolCallsPerTask"),
        ({"maxExecutionTimePerTask": "soon"}, "maxExecutionTimePerTask"),
        ({"maxExecutionTimePerTask": 0}, "seconds above 0"),
    ],
)
def test_what_is_no_quota_is_refused_by_name(quota, says):
    with pytest.raises(ConfigError, match=says):
        quotas(tool_dispatch(), **quota)
