"""The mock: no provider, always the same answer."""

import anyio
import pytest

from streamagent.calls import ToolSpec
from streamagent.message import Message
from streamagent.models.mock import MockModel
from streamagent.protocols import ModelSettings

pytestmark = pytest.mark.anyio

TEXT = {"type": "object", "properties": {"product": {"type": "string"}}, "required": ["product"]}
UNFIT = {"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}}, "required": ["id"]}
LOOK_UP = ToolSpec(name="look_up", description="", parameters=UNFIT)
STOCK = ToolSpec(name="stock", description="", parameters=TEXT)
QUESTION = "How many blue mugs are left?"


async def test_a_prompt_is_quoted_in_several_fragments_with_usage():
    pieces = [message async for message in MockModel().send("Who are you?")]
    texts = [message.content for message in pieces if message.content]
    assert "".join(texts) == "This is a mock answer to: Who are you?"
    assert len(texts) > 1
    assert pieces[-1].query["usage"] == {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}


async def test_the_text_can_be_given():
    assert str(await MockModel("Always this.").send("Hi")) == "Always this."


async def test_the_first_fitting_tool_is_called():
    result = await MockModel().send(QUESTION, tools=[LOOK_UP, STOCK])
    assert result[0].query == {"tool": "stock", "id": "mock_1", "args": {"product": "blue mugs"}}
    assert result.reason == "tool_calls"


async def test_a_result_is_quoted():
    call = (await MockModel().send(QUESTION, tools=[STOCK]))[0]
    result = Message(role="tool", type="tool_result", content="15", query={"call": call.id, "id": "mock_1"})
    answer = await MockModel().send([Message.user(QUESTION), call, result], tools=[STOCK])
    assert (str(answer), answer.reason) == ("Tool result: 15", "stop")


@pytest.mark.parametrize("choice", ["none", "look_up"])
async def test_a_choice_of_tools_is_heeded(choice):
    result = await MockModel().send(QUESTION, tools=[STOCK], settings=ModelSettings(tool_choice=choice))
    assert result.reason == "stop"


async def test_without_a_fitting_tool_it_answers():
    assert (await MockModel().send(QUESTION, tools=[LOOK_UP])).reason == "stop"


async def test_an_empty_conversation_is_answered():
    assert (await MockModel().send([])).reason == "stop"


async def test_a_picture_is_no_text():
    picture = Message(role="user", type="image", query={"url": "https://example.com/a.png"})
    assert str(await MockModel().send([picture])) == "This is a mock answer to: "


async def test_it_answers_the_same_each_time():
    first, second = [await MockModel().send(QUESTION, tools=[STOCK]) for _ in range(2)]
    assert [(message.type, message.content, message.query) for message in first] == [
        (message.type, message.content, message.query) for message in second
    ]


async def test_a_delay_counts_against_the_deadline():
    result = await MockModel(delay=60).send("Hi", deadline=anyio.current_time() + 0.01)
    assert result.error["kind"] == "timeout"


async def test_an_object_that_is_asked_for_is_made_up():
    prompt = "How many 'blue mug' are left?"
    result = await MockModel().send(prompt, settings=ModelSettings(response_schema=TEXT))
    assert result.text == '{"product": "blue mug"}'
    result = await MockModel().send(prompt, settings=ModelSettings(response_schema=UNFIT))
    assert result.text == f"This is a mock answer to: {prompt}"
