"""Token counts, and errors that providers send as chunks."""

import pytest

from streamagent._core.assembler import Assembler
from streamagent._core.failures import classify
from streamagent._core.usage import merge_usage
from tests.core.test_assembler_text import answer, chunk, parts
from tests.quirks import outcome


@pytest.mark.parametrize(
    ("updates", "usage"),
    [
        ([None], None),
        ([{"a": 1}, None, {"a": 2, "b": 0}, {"b": None}], {"a": 2, "b": 0}),
        ([{"d": {"x": 1, "y": {"z": 1}}}, {"d": {"x": 2, "w": 1}}, {"d": {}}], {"d": {"x": 2, "w": 1}}),
        ([{"d": 1}, {"d": {"x": 1}}], {"d": {"x": 1}}),
        ([{"a": -1, "b": True, "c": "x", "d": float("nan"), "e": 2**60, "f": {"g": None}, "h": 0.5}], {"h": 0.5}),
        (["x", 3, [1]], None),
    ],
)
def test_usage(updates, usage):
    """The last count of each field holds; what is no count is none (quirks Q62 to Q68)."""
    assert outcome(answer(chunk(content="a"), *({"choices": [], "usage": one} for one in updates)))["usage"] == usage


def test_usage_beside_the_choice():
    """Some providers put the counts into the choice, or leave `choices` out."""
    messages = answer({"choices": [{"delta": {}, "usage": {"a": 1}}]}, {"usage": {"b": 2}})
    assert outcome(messages)["usage"] == {"a": 1, "b": 2}
    assert merge_usage({"a": 1}, None) == {"a": 1}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded"),
        ({"code": 503, "message": "x"}, "overloaded"),
        ({"code": "rate_limit_exceeded"}, "rate_limited"),
        ({"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "x"}, "rate_limited"),
        ({"code": "insufficient_quota", "type": "rate_limit"}, "quota"),
        ({"type": "invalid_request_error", "code": "context_length_exceeded"}, "context_overflow"),
        ({"type": "invalid_request_error", "code": "tool_use_failed"}, "malformed_call"),
        ({"message": "Tool call validation failed: x"}, "malformed_call"),
        ({"type": "authentication_error"}, "auth"),
        ({"code": 404}, "not_found"),
        ({"type": "invalid_request_error", "message": "x"}, "bad_request"),
        ({"code": 500, "message": "Internal error"}, "provider_error"),
        ({"code": 10**5000, "message": 5}, "provider_error"),
        ({"code": True}, "provider_error"),
        ("Request timed out", "timeout"),
        (["x"], "provider_error"),
    ],
)
def test_error_in_the_stream(error, kind):
    """An error in a chunk ends the answer, with what it means (quirks Q52 to Q56)."""
    subject = Assembler()
    messages = subject.feed(chunk(content="a"), {"choices": [{"delta": {"content": "b"}}], "error": error})
    assert outcome(messages)["error"] == kind
    assert parts(messages) == [("text", "a")]


@pytest.mark.parametrize(
    "place", [{"object": "error", "message": "overloaded"}, {"choices": [{"error": "overloaded"}]}]
)
def test_error_in_another_place(place):
    """Some providers send the error itself as the chunk, or put it into the choice."""
    messages = answer({**place, "usage": {"a": 1}})
    assert (outcome(messages)["error"], outcome(messages)["usage"]) == ("overloaded", {"a": 1})
    assert outcome(messages)["retry_transparently"]


def test_error_text():
    """The code stays, keys and half characters do not, and a page is cut."""
    error = classify({"code": "x1", "message": "bad key sk-abcdefgh12345678, Bearer abc.def \ud83c" + "y" * 5000})
    assert "[key], Bearer [key] \ufffdy" in str(error)
    assert str(error).endswith("(x1)")
    assert len(str(error)) < 1100
