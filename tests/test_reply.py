"""Results: a collected answer as a sequence of messages."""

import pytest

from streamagent import Message, ModelError, Reply, Result


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


class Canned(Reply):
    """A reply that is there already."""

    def __init__(self, *messages):
        self._messages = list(messages)

    async def __anext__(self):
        if not self._messages:
            raise StopAsyncIteration
        return self._messages.pop(0)

    async def aclose(self):
        self._messages.clear()


@pytest.mark.anyio
async def test_text_raises_at_its_end_what_the_answer_failed_with():
    error = {"kind": "overloaded", "message": "too busy", "retryable": True}
    pieces = []
    with pytest.raises(ModelError, match="too busy"):
        async for piece in Canned(Message(content="half"), Message.stop("error", error=error)).text():
            pieces.append(piece)
    assert pieces == ["half"]


@pytest.mark.anyio
async def test_text_does_not_raise_for_an_earlier_turn_or_a_limit():
    reply = Canned(
        Message.stop("error", error={"kind": "x", "message": "x"}), Message(content="a"), Message.stop("length")
    )
    assert [piece async for piece in reply.text()] == ["a"]
    async with Canned(Message(content="a")) as reply:
        pass
    assert [piece async for piece in reply.text()] == []


class Given(Reply):
    """Gives these messages."""

    def __init__(self, *messages):
        self.messages = iter(messages)

    async def __anext__(self):
        for message in self.messages:
            return self._given(message)
        raise StopAsyncIteration

    async def aclose(self):
        pass


ERROR = {"kind": "auth", "message": "no key", "retryable": False}


@pytest.mark.anyio
@pytest.mark.parametrize("read", [0, 1, 2])
async def test_how_an_answer_ended_is_told_however_much_of_it_was_read_before(read):
    reply = Given(Message(content="a"), Message.stop("error", error=ERROR, usage={"total_tokens": 3}))
    for _ in range(read):
        await anext(reply)
    result = await reply.result()
    assert (len(result), result.reason, result.error, result.usage) == (2 - read, "error", ERROR, {"total_tokens": 3})
    with pytest.raises(ModelError, match="no key"):
        result.raise_for_error()
