"""Asking a model without a session."""

import pytest

from streamagent.errors import MessageError
from streamagent.message import Message

from .script import ANSWER, ScriptedModel

pytestmark = pytest.mark.anyio


async def messages():
    yield Message.system("Be brief.")
    yield {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    "prompt",
    [
        lambda: "Hi",
        lambda: Message.user("Hi"),
        lambda: {"content": "Hi"},
        lambda: [{"role": "user", "content": "Hi"}],
        lambda: (message for message in [Message.user("Hi")]),
    ],
    ids=["text", "message", "dict", "list", "generator"],
)
async def test_a_prompt_may_be_a_text_a_message_or_several(prompt):
    model = ScriptedModel(ANSWER)
    await model.send(prompt())
    assert model.requests[0].messages == [{"role": "user", "content": "Hi"}]


async def test_a_conversation_may_come_from_an_async_iterator():
    model = ScriptedModel(ANSWER)
    await model.send(messages())
    assert [entry["content"] for entry in model.requests[0].messages] == ["Be brief.", "Hi"]


async def test_awaiting_the_reply_gives_the_result():
    result = await ScriptedModel(ANSWER).send("Hi")
    assert str(result) == "Hello"
    assert (result.reason, result.usage) == ("stop", {"total_tokens": 3})


async def test_the_reply_gives_pieces_of_text():
    assert [piece async for piece in ScriptedModel(ANSWER).send("Hi").text()] == ["Hel", "lo"]


async def test_closing_the_reply_twice_closes_the_provider_once():
    model = ScriptedModel(ANSWER)
    reply = model.send("Hi")
    await anext(reply)
    await reply.aclose()
    await reply.aclose()
    assert model.closed == 1


async def test_what_is_no_message_is_refused():
    with pytest.raises(MessageError, match="role"):
        await ScriptedModel(ANSWER).send({"role": "robot", "content": "Hi"})
