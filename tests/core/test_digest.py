"""Equal calls have one name."""

import pytest

from streamagent._core.digest import call_digest

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
