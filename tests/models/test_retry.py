"""When to ask again, and how long to wait."""

import pytest

from streamagent.errors import ModelError
from streamagent.models.retry import RetryPolicy

POLICY = RetryPolicy(jitter=lambda: 1.0)


def delay(attempt=1, kind="overloaded", *, policy=POLICY, now=100.0, deadline=1000.0, **options):
    error = ModelError("x", kind=kind, **{"retryable": True, **options})
    return policy.delay(attempt, error, now=now, deadline=deadline)


def test_the_wait_doubles():
    assert [delay(attempt) for attempt in (1, 2, 3)] == [0.5, 1.0, 2.0]


def test_the_wait_is_full_jitter():
    assert delay(3, policy=RetryPolicy(jitter=lambda: 0.25)) == 0.5


def test_the_wait_is_capped():
    assert delay(30, policy=RetryPolicy(retries=99, cap=10.0, jitter=lambda: 1.0)) == 10.0


def test_retries_are_counted():
    assert delay(4) is None


@pytest.mark.parametrize(("attempt", "expected"), [(1, 0.0), (2, 0.0), (3, None)])
@pytest.mark.parametrize("kind", ["malformed_call", "empty_response"])
def test_a_bad_answer_is_sampled_twice_more_at_once(kind, attempt, expected):
    assert delay(attempt, kind) == expected


def test_resampling_is_within_the_retries():
    assert delay(1, "empty_response", policy=RetryPolicy(retries=0)) is None


def test_what_cannot_succeed_is_given_up():
    assert delay(retryable=False) is None


@pytest.mark.parametrize(("asked", "expected"), [(7.0, 7.0), (-1.0, 0.0), (60.0, 60.0), (60.1, None)])
def test_the_provider_says_how_long(asked, expected):
    assert delay(retry_after=asked) == expected


@pytest.mark.parametrize(("deadline", "expected"), [(107.1, 7.0), (107.0, None), (90.0, None)])
def test_the_next_try_starts_before_the_deadline(deadline, expected):
    assert delay(retry_after=7.0, deadline=deadline) == expected
