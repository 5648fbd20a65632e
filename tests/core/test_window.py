"""Which turns stay when a context is too long."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamagent._core.profiles import PROFILES, Profile, lint
from streamagent._core.request import build_request
from streamagent._core.window import LEFT_OUT, Window, estimate_tokens
from streamagent.message import Message, split

FRAME = 4


def user(content="?" * 24, **fields):  # 10 tokens
    return Message(role="user", content=content, **fields)


def said(content="!" * 24):
    return Message(content=content)


def stop(reason="stop", **query):
    return Message.stop(reason, **query)


def exchange(number, size=24):
    """A prompt and its answer: 24 tokens at size 24."""
    return [user(f"{number}?".ljust(size, "?")), said(f"{number}!".ljust(size, "!")), stop()]


def call(name="c1", args=None):
    return Message(type="tool_call", query={"tool": "t", "id": name, "args": args or {}})


def result(asked, content="r" * 24):
    return Message(role="tool", type="tool_result", content=content, query={"call": asked.id, "id": asked.query["id"]})


def through(messages, limit=100, keep=0.5, **options):
    window = Window(limit, keep, **options)
    dropped = [message for fragment in messages for message in window.add(fragment)]
    dropped += window.trim()
    return window, dropped


def kept(messages, limit=100, keep=0.5, **options):
    return list(through(messages, limit, keep, **options)[0])


def test_what_fits_passes_in_order():
    messages = [*exchange(1), *exchange(2), user()]
    window, dropped = through(messages)
    assert (list(window), window.system, dropped) == (messages, [], [])


def test_a_context_is_cut_one_beyond_the_limit_and_not_at_it():
    messages = [*exchange(1), *exchange(2), user()]
    size = through(messages)[0].size
    assert size == 2 * 24 + 10
    assert kept(messages, limit=size) == messages
    assert kept(messages, limit=size - 1) == messages[6:]


def test_a_cut_drops_whole_exchanges_down_to_the_kept_share():
    messages = [*exchange(1), *exchange(2), *exchange(3), *exchange(4), user()]
    window, dropped = through(messages, limit=100, keep=0.6)
    assert list(window) == messages[6:]
    assert dropped == messages[:6]
    assert window.size <= 60


def test_the_beginning_stays_the_same_for_many_turns():
    """T125: a cut that moved at each turn would throw away the provider's prefix cache."""
    history = [message for number in range(100) for message in exchange(number)]
    prompts = range(0, len(history), 3)
    starts = [kept(history[: end + 1], limit=240)[0].content for end in prompts]
    moves = sum(first != second for first, second in pairwise(starts))
    assert 15 <= moves <= 25  # one in four or five turns: half of 240 tokens are five exchanges


def test_what_was_seen_before_is_the_beginning_of_what_is_seen_now():
    history = [message for number in range(40) for message in exchange(number)]
    seen = [kept(history[: end + 1], limit=240) for end in range(0, len(history), 3)]
    for before, now in pairwise(seen):
        assert now[: len(before)] == before or now[0] in before


def test_system_messages_are_always_kept():
    messages = [Message.system("A" * 40), *exchange(1), Message.system("B"), *exchange(2), user()]
    window, _ = through(messages, limit=50)
    assert window.system == [messages[0], messages[4]]
    assert list(window) == messages[-1:]


def test_the_last_prompt_is_kept_however_long_it_is():
    messages = [*exchange(1), user("x" * 4_000), user("and"), Message(role="user", type="image", query={"url": "u"})]
    assert kept(messages) == messages[3:]


def test_a_call_is_never_without_its_result():
    """T53: in the loop of one prompt, where there is no other prompt to cut at."""
    prompt = user()
    turns = []
    for number in range(10):
        calls = [call(f"{number}a"), call(f"{number}b")]
        turns.append([*calls, stop("tool_calls"), result(calls[1]), result(calls[0])])
    messages = [prompt, *(message for turn in turns for message in turn)]
    window, dropped = through(messages, limit=150)
    held = list(window)
    assert held[0] is prompt
    assert held[1:] in [[message for turn in turns[start:] for message in turn] for start in range(1, 10)]
    assert window.size <= 150
    assert {message.id for message in dropped} == {m.id for m in messages} - {m.id for m in held}


def test_an_orphan_call_does_not_stop_the_cuts():
    """T41."""
    messages = [user(), call(), stop("aborted"), *(m for number in range(9) for m in exchange(number)), user()]
    window, _ = through(messages)
    assert window.size <= 100
    assert messages[1] not in list(window)


def test_a_result_that_comes_late_stays_with_its_call():
    asked = call()
    late = result(asked)
    messages = [user("1"), asked, stop("paused"), *exchange(2), late, stop(), user("3")]
    assert kept(messages) == [*messages[:3], late, *messages[3:6], *messages[7:]]
    window, dropped = through([*messages[:6], *exchange(4, 200), *exchange(5, 200), late, user("6")])
    assert late not in [*window, *dropped]
    assert asked in dropped


def test_the_last_turn_is_cut_where_the_limit_is_reached():
    """A model that reads more than its context does not lose the call with the result, and ask again for ever."""
    asked = [call("a"), call("b")]
    messages = [user(), *asked, stop("tool_calls"), result(asked[0], "x" * 100), result(asked[1], "y" * 400)]
    window, dropped = through(messages, limit=80)
    assert dropped == []
    assert [message.content for message in window][-2:] == ["x" * 100, LEFT_OUT]
    assert window.size <= 80


def test_of_a_long_result_the_beginning_is_kept():
    asked = call()
    pieces = list(split(result(asked, "x" * 400), 40))
    pieces = [Message(**{**fields(piece), "query": pieces[-1].query}) for piece in pieces]  # as a store gives them
    held = kept([user(), asked, stop("tool_calls"), *pieces], limit=80)
    text = "".join(message.content for message in held if message.type == "tool_result")
    assert text == "x" * 200 + LEFT_OUT


def fields(message):
    return {name: getattr(message, name) for name in Message.__dataclass_fields__}


def test_what_is_no_text_of_a_turn_is_not_cut():
    """Arguments are whole or nothing."""
    asked = call(args={"text": "x" * 1_000})
    window, _ = through([user(), asked, stop("tool_calls")], limit=80)
    assert asked in list(window)
    assert window.size > 250


@pytest.mark.parametrize("again", [0, 1])
def test_an_overflow_that_the_provider_reported_makes_room(again):
    """F04: the estimate was wrong; what was held is halved, and the next prompt passes."""
    overflow = stop("error", error={"kind": "context_overflow"})
    messages = [*exchange(1), *exchange(2), user("too long"), overflow, *[overflow] * again]
    assert kept(messages, limit=1_000) == messages[6:]
    assert kept([*messages, user("next")], limit=1_000)[-1].content == "next"


def test_an_overflow_is_forgotten_when_an_answer_came():
    overflow = stop("error", error={"kind": "context_overflow"})
    messages = [user("1"), overflow, said("fine"), stop(), *exchange(2), user("3")]
    assert kept(messages, limit=1_000) == messages


@pytest.mark.parametrize("error", [{"kind": "timeout"}, None, "odd"])
def test_another_error_drops_nothing(error):
    messages = [*exchange(1), user(), Message(type="stop", query={"reason": "error", "error": error})]
    assert kept(messages, limit=1_000) == messages


def test_a_history_that_begins_with_the_model_is_cut_too():
    messages = [said(), stop(), said(), stop(), said(), stop()]
    assert kept(messages, limit=40, keep=0.6) == messages[4:]


def test_unknown_types_stay_where_they_are():
    odd = Message(type="of the future")
    messages = [odd, *exchange(1), Message(role="user", type="approval", query={}), user()]
    assert kept(messages) == messages


def test_empty_messages_count_too():
    window, _ = through([message for _ in range(1_000) for message in (user(""), said(""), stop())])
    assert len(list(window)) <= 100 / FRAME


def test_what_is_held_is_bounded():
    window = Window(1_000, 0.5)
    history = (m for number in range(2_000) for m in exchange(number, 400))
    most = 0
    for message in history:
        window.add(message)
        most = max(most, sum(len(held.content) for held in window))
    assert most <= 1_000 * 4 + 800


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (user("x" * 8), 2),
        (Message(role="user", type="image", query={"data": "A" * 1_000_000}), 1_500),
        (Message(role="user", type="file", query={"mime": "application/pdf", "data": "A" * 1_000_000}), 1_500),
        (Message(role="user", type="file", query={"mime": "text/csv", "data": "A" * 400}), 100),
        (Message(role="user", type="file", query={"mime": "text/csv", "data": "A" * 1_000_000}), 25_000),
        (call(args={"a": "xx"}), 2.75),
        (Message(type="tool_call", content="{}", query={"args": {"a": 1 << 70}}), 7.25),
        (Message(type="tool_call", content='{"a":"xx"}', query={"args": {"a": "xx"}}), 2.75),
    ],
)
def test_tokens_are_estimated(message, tokens):
    assert estimate_tokens(message) == tokens


def test_another_counter_may_count():
    assert len(kept([*exchange(1), *exchange(2), user()], limit=27, count=lambda _: 0)) == 1
    assert len(kept([*exchange(1), *exchange(2), user()], limit=28, count=lambda _: 0)) == 7


@st.composite
def histories(draw):
    """Sessions as runs write them, some cut, with results in any order."""
    rows = [Message.system("s")] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 8))):
        rows.append(user("u" * draw(st.integers(1, 60))))
        for _ in range(draw(st.integers(0, 3))):
            calls = [call(f"c{draw(st.integers(0, 99))}") for _ in range(draw(st.integers(1, 3)))]
            results = [result(asked, "r" * draw(st.integers(0, 80))) for asked in calls]
            random.Random(draw(st.integers(0, 9))).shuffle(results)
            rows += [*calls, stop("tool_calls"), *results]
        if draw(st.booleans()):
            rows += [said("a" * draw(st.integers(1, 60))), stop()]
    return rows


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(20, 200), st.floats(0.1, 1), st.sampled_from([Profile(), *PROFILES.values()]))
def test_whatever_is_cut_the_request_is_one_that_providers_take(rows, limit, keep, profile):
    """I4, Q95: each call has its result, none is made up, the last prompt is there; the same rows give the same."""
    window, dropped = through(rows, limit, keep)
    held = [*window.system, *window]
    assert lint(build_request(held, profile), profile) == []
    calls = [message.id for message in held if message.type == "tool_call"]
    assert sorted(calls) == sorted(message.query["call"] for message in held if message.type == "tool_result")
    assert [m for m in rows if m.role == "user"][-1] in held
    assert sorted(m.id for m in [*held, *dropped]) == sorted(m.id for m in rows)
    assert list(through(rows, limit, keep)[0]) == list(window)
