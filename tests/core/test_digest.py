"""Equal calls have one name."""

import pytest

from streamagent._core.digest import call_digest, covers

CALL = {"tool": "stock", "id": "c1", "args": {"a": 1, "b": [True, None]}}


def test_the_order_of_keys_and_the_id_do_not_matter():
    assert call_digest(CALL, "") == call_digest({"args": {"b": [True, None], "a": 1}, "tool": "stock"}, "as written")


@pytest.mark.parametrize(
    "other",
    [{**CALL, "tool": "shop"}, {**CALL, "args": {"a": "1", "b": [True, None]}}, {**CALL, "args": {"a": 1}}, {}],
)
def test_another_tool_or_another_argument_is_another_call(other):
    assert call_digest(CALL, "") != call_digest(other, "")


def test_arguments_that_cannot_be_read_are_compared_as_they_were_written():
    broken = {"tool": "stock", "args": None, "invalid": "bad_json"}
    assert call_digest(broken, '{"a"') == call_digest(dict(broken), '{"a"')
    assert call_digest(broken, '{"a"') != call_digest(broken, '{"b"')
    assert call_digest(broken, "\ud83d") != call_digest(broken, "\ud83e")


@pytest.mark.parametrize(
    ("wanted", "value", "fits"),
    [
        ("/data/*", "/data/a", True),
        ("/data/*", "/data/", True),
        ("/data/*", "/data/../etc/passwd", False),
        ("/data/*", "/data/x\nrm", False),
        ("/data/../x", "/data/../x", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        (r"rm \*.tmp", "rm *.tmp", True),
        (r"rm \*.tmp", "rm -rf / .tmp", False),
        (5, 5.0, True),
        (1, True, False),
        (False, 0, False),
        ({"force": 0}, {"force": False}, False),
        ({"n": [1, 2]}, {"n": [1.0, 2]}, True),
        ({"n": [1, 2]}, {"n": [1]}, False),
    ],
)
def test_a_grant_covers_what_its_values_and_patterns_say(wanted, value, fits):
    grant = {"tool": "t", "version": "1", "always": {"x": wanted}}
    assert covers(grant, {"tool": "t", "version": "1", "args": {"x": value}}) is fits


def test_a_grant_covers_its_own_tool_and_version_alone():
    grant = {"tool": "t", "version": "1", "always": {}}
    assert covers(grant, {"tool": "t", "version": "1", "args": {}})
    assert not covers(grant, {"tool": "t", "version": "2", "args": {}})
    assert not covers(grant, {"tool": "u", "version": "1", "args": {}})
    assert not covers({**grant, "always": {"x": 1}}, {"tool": "t", "version": "1", "args": {}})
