"""Secrets in text, however it is cut."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamagent._core.redactor import Redactor, Tail
from streamagent.errors import ConfigError

KEY = r"sk-[a-z0-9]{4,}+"


def redactor(*patterns, values=()):
    return Redactor(patterns, values, "#")


def streamed(redactor, pieces):
    tail = Tail(redactor)
    shown = [tail.feed(piece, final=False) for piece in pieces]
    return [*shown, tail.feed("", final=True)]


def cut(text, size):
    return [text[start : start + size] for start in range(0, len(text), size)]


def test_values_are_found_anywhere_and_the_longest_first():
    assert redactor(values=["hunter", "hunter two"]).text("xhunter two hunter") == "x# #"


def test_patterns_are_found_within_words():
    assert redactor(KEY).text('{"key":"sk-abcd1"} sk-abc d') == '{"key":"#"} sk-abc d'


def test_a_value_is_found_as_json_writes_it():
    text = '{"a":"p\\"w\\u00e4","b":"p\\"wä"}'
    assert redactor(values=['p"wä']).text(text) == '{"a":"#","b":"#"}'


def test_json_is_searched_in_depth():
    value = {"sk-abcd": ["sk-abcd", {"n": 123456, "ok": True, "t": ("x", None, 1.5)}]}
    assert redactor(KEY, values=["123456"]).json(value) == {"#": ["#", {"n": "#", "ok": True, "t": ["x", None, 1.5]}]}


def test_names_are_searched_too_and_none_of_their_values_is_lost():
    redact = redactor(values=["hidden", "secret"])
    given = {"hidden": 1, "ok": {"secret": [{"a hidden thing": "x"}]}, "secret": 2, "#": 3, 5: 4}
    assert redact.json(given) == {"#": 1, "ok": {"#": [{"a # thing": "x"}]}, "# 2": 2, "# 3": 3, 5: 4}


def test_a_word_that_is_whole_waits_for_nothing():
    assert streamed(redactor(KEY), ["one tw", "o ", "sk-ab", "cd three"]) == ["one ", "two ", "", "# ", "three"]


def test_text_without_spaces_in_other_scripts_flows():
    assert streamed(redactor(KEY), ["東京は", "晴れ"]) == ["東京は", "晴れ", ""]


def test_a_value_of_several_words_is_held_until_it_is_certain():
    shown = streamed(redactor(values=["my secret key"]), ["it is my sec", "ret ke", "y, and more words follow"])
    assert "".join(shown) == "it is #, and more words follow"
    assert shown[0] == ""


def test_what_only_begins_like_a_value_is_not_lost():
    assert "".join(streamed(redactor(values=["my secret key"]), ["my ", "secret", " garden"])) == "my secret garden"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a b", "a", " ", "b", "sk-", "abcd", "x\ny", "x", "\n", "é", "sk-abcdx", "a ba b"]),
        max_size=20,
    ),
    st.integers(1, 9),
)
def test_any_fragmentation_gives_the_same_text(parts, size):
    text = "".join(parts)
    finder = redactor(KEY, values=["a ba b", "x\nya", "éabc"])
    assert "".join(streamed(finder, cut(text, size))) == finder.text(text)


@pytest.mark.parametrize("size", [1_000, 8_192, 100_000])
def test_a_secret_in_a_word_that_is_longer_than_the_buffer_is_found(size):
    text = ("x" * 10_000 + "sk-" + "a" * 50 + "/") * 5 + " end"
    shown = "".join(streamed(redactor(r"sk-[a]{4,}+"), cut(text, size)))
    assert shown == ("x" * 10_000 + "#/") * 5 + " end"


def test_of_a_word_without_end_little_is_held():
    tail = Tail(redactor(KEY))
    passed = sum(len(tail.feed("x" * 1_000, final=False)) for _ in range(100))
    assert passed >= 100_000 - 3 * 4_096


def test_a_secret_longer_than_the_buffer_hides_its_word_to_the_end():
    text = "a sk-" + "a" * 50_000 + ",tail b"
    assert "".join(streamed(redactor(KEY), cut(text, 1_000))) == "a # b"


def test_a_value_longer_than_most_words_is_found():
    secret = "-----BEGIN KEY-----\n" + "MIIE\n" * 2_000
    finder = redactor(values=[secret])
    assert finder.text(f"a {secret} b") == "a # b"
    assert "".join(streamed(finder, cut(f"a {secret} b", 333))) == "a # b"


REFUSED = (
    """a+ a* a? a{2,} a{,2} a{2,3} a+? (?:a|aa){2} (?:a+)++ ^a a$ a\\Z (a)\\1 a\\s (?P<x>a) ( (?i)a a*+ (?!b) [a]]+"""
)


@pytest.mark.parametrize("pattern", [*REFUSED.split(), "a b"])
def test_patterns_that_may_backtrack_or_span_words_are_refused(pattern):
    with pytest.raises(ConfigError, match="pattern '"):
        redactor(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["a++", "a{2,3}+", "a{2}", "(?:a|aa){2}+", "(?i:a)b", "[+*?]x", "[]+]x", r"[\]+]x", r"\+a", "(?<=a)b", r"\d"],
)
def test_patterns_of_linear_time_are_taken(pattern):
    redactor(pattern)


@pytest.mark.parametrize("value", ["", "abc", 1234, None])
def test_a_value_that_is_too_short_is_refused_and_not_shown(value):
    with pytest.raises(ConfigError, match="4 characters") as raised:
        redactor(values=[value])
    assert repr(value) not in str(raised.value)


def test_a_value_at_the_limit_is_taken():
    assert redactor(values=["abcd"]).text("abcd") == "#"


def test_a_pattern_is_slow_on_no_text():
    """One word of 200,000 characters, in which each position begins a match that fails after 256."""
    finder = redactor(r"x[a-z]{1,256}+!")
    started = time.process_time()
    assert finder.text("x" * 200_000) == "x" * 200_000
    assert time.process_time() - started < 20  # some tenths of a second; quadratic, it would be hours
