"""Results: a collected answer as a sequence of messages."""

import pytest

from streamagent import Message, ModelError, Result


def test_a_result_is_a_sequence_that_reads_as_its_text():
    result = Result(
        [Message(content="Let me see."), Message.stop("tool_calls"), Message(content="15"), Message.stop("stop")]
    )
    assert (len(result), result[2].content, [m.content for m in result[:1]]) == (4, "15", ["Let me see."])
    assert str(result) == "15"
    assert repr(result) == "<Result stop: 4 messages, '15'>"


def test_the_text_is_that_of_the_last_turn_that_has_any():
    assert Result([Message(content="a"), Message.stop("tool_calls"), Message.stop("turn_limit")]).text == "a"
    assert Result([Message(content="a"), Message(content="b")]).text == "ab"
    assert Result([Message.user("hi")]).text == ""


def test_a_result_that_was_left_early_has_no_stop():
    result = Result([Message(content="a")])
    assert (result.stop, result.reason, result.usage, result.error) == (None, None, None, None)
    assert result.raise_for_error() is result


def test_an_error_is_raised_on_request_with_its_kind():
    error = {"kind": "overloaded", "message": "too busy", "retryable": True}
    with pytest.raises(ModelError, match="too busy") as caught:
        Result([Message.stop("error", error=error)]).raise_for_error()
    assert (caught.value.kind, caught.value.retryable) == ("overloaded", True)
