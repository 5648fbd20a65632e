"""Arguments of calls: strict, with two repairs."""

import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamagent._core.arguments import is_object, parse_arguments

# A busy machine is no failure.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("text", ["", " \n", "null", " null ", "{}"])
def test_no_arguments(text):
    """Nothing is an empty object."""
    assert parse_arguments(text) == ({}, None, None)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1e999}',
        '{"a": 1, "a": 1}',
        '{"b": {"a": 1, "a": 2}}',
        '{"a": 1' + "0" * 4001 + "}",
        '{"a": 1',
        '{"a": 1}{"b": 2}',
        "{{}}",
        "{a: 1}",
        "{'a': 1}",
        '{"a": "x"y"}',
        '{"a": "\\ud83d"}',
        '{"\\ud83d": 1}',
        '{"a": ["\\u0000"]}',
        '{"a": "tab\t"}',
        "{,}",
        "[ ,]",
        '{"a": 1,,}',
        "\ufeff{}",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"a":' * 201 + "1" + "}" * 201,
        '{"a": ' + "[" * 201 + "]" * 201 + "}",
        '"' + '\\"' * 100_000,
        '{"a": "\\',
    ],
)
def test_bad_json(text):
    """What is not plainly JSON, or cannot be stored, is refused."""
    assert parse_arguments(text) == (None, "bad_json", None)


@pytest.mark.parametrize("text", ["1", "true", "[1]", '"text"', '"[1]"', '"{"', '"\\"{}\\""'])
def test_not_an_object(text):
    """JSON that is no object is refused."""
    assert parse_arguments(text) == (None, "not_object", None)


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ('{"a": 1,}', {"a": 1}),
        ('{"a": [1, 2 , ] , }', {"a": [1, 2]}),
        ('{"a": ",}", "b": ",]\\",}",}', {"a": ",}", "b": ',]",}'}),
    ],
)
def test_trailing_comma(text, args):
    """A comma before a bracket goes, but never one inside a string."""
    assert parse_arguments(text) == (args, None, "trailing_comma")


def test_double_encoding():
    """An object inside a string is unwrapped, once."""
    once = json.dumps({"a": "é\n"})
    assert parse_arguments(json.dumps(once)) == ({"a": "é\n"}, None, "double_encoding")
    assert parse_arguments(json.dumps(json.dumps(once))) == (None, "not_object", None)


def test_exact_integers():
    """Integers keep every digit, up to a length that is the same whatever Python is set to."""
    number = 10**3999
    limit = sys.get_int_max_str_digits()
    assert parse_arguments(f'{{"a": {number}}}').args == {"a": number}
    try:
        sys.set_int_max_str_digits(0)
        assert parse_arguments(f'{{"a": {"1" * 4001}}}').invalid == "bad_json"
    finally:
        sys.set_int_max_str_digits(limit)


def test_deep_but_storable():
    """Two hundred levels can be stored."""
    assert parse_arguments('{"a":' * 200 + "1" + "}" * 200).invalid is None


@pytest.mark.parametrize(("text", "expect"), [("{}", True), ("[]", False), ("{", False), ("[" * 100_000, False)])
def test_is_object(text, expect):
    """Only what is an object as it stands is one."""
    assert is_object(text) is expect


storable = st.text(max_size=10).map(lambda text: text.replace("\0", ""))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(storable, inner, max_size=4),
    max_leaves=6,
)


@PATIENT
@given(st.dictionaries(storable, values, max_size=4))
def test_whatever_was_meant_is_understood(args):
    """Every object comes back as it is: plain, doubly encoded, with a comma too many."""
    text = json.dumps(args)
    assert parse_arguments(text) == (args, None, None)
    assert parse_arguments(json.dumps(text)) == (args, None, "double_encoding")
    if args:
        assert parse_arguments(text[:-1] + ",}") == (args, None, "trailing_comma")


@PATIENT
@given(st.text() | st.text(alphabet='{}[]",:\\ 1anull'))
def test_any_text(text):
    """Any text gives arguments or a reason, never both and never an exception."""
    args, invalid, repaired = parse_arguments(text)
    assert (args is None) == (invalid is not None)
    assert repaired is None or args is not None
