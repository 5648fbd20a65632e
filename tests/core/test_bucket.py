"""The token bucket."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streamagent._core.bucket import Bucket


def test_a_periods_worth_goes_at_once_and_the_next_one_waits_its_turn():
    bucket = Bucket(3, now=100.0)
    assert [bucket.reserve(1, now=100.0) for _ in range(5)] == [0.0, 0.0, 0.0, 20.0, 40.0]


def test_it_refills_evenly_and_not_beyond_its_capacity():
    bucket = Bucket(6, now=0.0)
    assert bucket.reserve(6, now=0.0) == 0.0
    assert bucket.reserve(1, now=5.0) == 5.0
    assert not bucket.is_full(now=60.0)
    assert bucket.is_full(now=70.0)
    assert bucket.reserve(7, now=1e6) == 10.0


def test_what_is_given_back_is_there_again():
    bucket = Bucket(1, now=0.0)
    bucket.reserve(1, now=0.0)
    assert bucket.reserve(1, now=0.0) == 60.0
    bucket.reserve(-1, now=0.0)
    assert bucket.reserve(1, now=0.0) == 60.0
    bucket.reserve(-100, now=0.0)
    assert bucket.is_full(now=0.0)


def test_a_clock_that_steps_back_refills_nothing():
    bucket = Bucket(1, now=100.0)
    bucket.reserve(1, now=100.0)
    assert bucket.reserve(1, now=50.0) == 60.0
    assert bucket.reserve(1, now=100.0) == 120.0


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 5)), max_size=40))
def test_who_reserves_first_goes_first_and_no_minute_gets_more_than_two_capacities(steps):
    now, bucket, grants = 0.0, Bucket(10, now=0.0), []
    for passed, amount in steps:
        now += passed
        grants.append((now + bucket.reserve(amount, now=now), amount))
    times = [time for time, _ in grants]
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(times))
    for start in times:
        inside = sum(amount for time, amount in grants if start <= time < start + 60)
        assert inside <= 20 + 5 + 1e-6  # the burst, the refill, and one request that straddles the border
