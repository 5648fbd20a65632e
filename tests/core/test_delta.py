"""Chunks with the wrong types in them."""

import pytest

from streamagent._core.assembler import Assembler
from streamagent._core.delta import read_chunk
from streamagent.errors import ModelError

loop = []
loop.append(loop)


def choice(delta, **more):
    return {"choices": [{"delta": delta, **more}]}


@pytest.mark.parametrize(
    ("chunk", "name"),
    [
        (None, "chunk"),
        ([], "chunk"),
        ({"choices": {}}, "choices"),
        ({"choices": [[]]}, "choice"),
        (choice([]), "delta"),
        (choice({}, finish_reason=1), "finish_reason"),
        (choice({"content": 1}), "content"),
        (choice({"content": ["x"]}), "content part"),
        (choice({"content": [{"type": "text", "text": 1}]}), "text"),
        (choice({"content": [{"type": "thinking", "thinking": 1}]}), "thinking"),
        (choice({"content": [{"type": "thinking", "thinking": [1]}]}), "thinking part"),
        (choice({"reasoning": {"x": 1}}), "reasoning"),
        (choice({"thinking_blocks": 1}), "thinking_blocks"),
        (choice({"thinking_blocks": [1]}), "thinking block"),
        (choice({"thinking_blocks": [{"thinking": 1}]}), "thinking"),
        (choice({"tool_calls": {"x": 1}}), "tool_calls"),
        (choice({"tool_calls": ["x"]}), "tool call"),
        (choice({"tool_calls": [{"index": 0.5}]}), "index"),
        (choice({"tool_calls": [{"id": 1}]}), "id"),
        (choice({"tool_calls": [{"function": "x"}]}), "function"),
        (choice({"tool_calls": [{"function": {"name": 1}}]}), "name"),
        (choice({"tool_calls": [{"function": {"arguments": loop}}]}), "arguments"),
    ],
)
def test_wrong_type(chunk, name):
    """The error names what is wrong; the assembler goes on as if the chunk had not come."""
    subject = Assembler()
    with pytest.raises(ModelError, match=f"whose {name} is of type") as caught:
        subject.feed(chunk)
    assert caught.value.kind == "protocol"
    assert [message.content for message in subject.feed(choice({"content": "a"}))] == ["a"]


@pytest.mark.parametrize("data", ["\ud83c", 2**70, loop])
def test_data_that_cannot_be_stored(data):
    """Opaque data that the store could not write is refused at once."""
    with pytest.raises(ModelError, match="cannot be stored"):
        read_chunk(choice({"encrypted_content": data}))


def test_nothing_in_it():
    """Null means absent, everywhere."""
    nothing = choice({"content": None, "tool_calls": None, "thinking_blocks": None}, finish_reason=None)
    strange = choice({"content": [{"type": []}, {"type": "image"}]})
    for chunk in ({}, {"choices": None}, {"choices": []}, {"choices": [None]}, choice(None), nothing, strange):
        assert Assembler().feed(chunk) == []


def test_litellm_chunk():
    """LiteLLM's dumped chunks carry many fields that say nothing."""
    delta = {"content": "Hi", "role": None, "function_call": None, "tool_calls": None, "audio": None}
    delta["provider_specific_fields"] = None
    chunk = {
        "id": "x",
        "choices": [{"finish_reason": "stop", "index": 0, "delta": delta, "logprobs": None}],
        "usage": None,
    }
    assert [message.content for message in Assembler().feed(chunk)] == ["Hi"]
