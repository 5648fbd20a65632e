"""Answers in the providers' own forms (tests/wire), and that LiteLLM's own client makes the same of them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from streamagent.calls import ToolSpec
from streamagent.message import Message, fold
from streamagent.models.litellm import LiteLLMModel
from streamagent.models.provider import ProviderModel
from streamagent.protocols import ModelSettings
from streamagent.testing.provider import Response, scripted_provider

from .lanes import KEY, NOISE, anyio_backend  # noqa: F401 - a fixture

pytestmark = [pytest.mark.anyio, NOISE]

WIRE = Path(__file__).parent.parent / "wire"
NAMES = {
    "anthropic": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini/gemini-2.5-flash",
    "cohere": "cohere/command-a-03-2025",
    "mistral": "mistral/magistral-medium-latest",
    "deepseek": "deepseek/deepseek-reasoner",
}
# LiteLLM's own client reads lines of JSON where Cohere sends events.
BOTH = [name for name in NAMES if name != "cohere"]
STOCK = ToolSpec(
    name="stock",
    description="Units in stock.",
    parameters={"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
)
SETTINGS = ModelSettings(retries=0, temperature=1.0, max_tokens=4096)
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
RANDOM_ID = re.compile(r"call_[0-9a-f]{28}")  # LiteLLM's, as Gemini gives calls none


def events(name):
    return Response(headers={"content-type": "text/event-stream"}, body=[(WIRE / f"{name}.sse").read_bytes()])


async def ask(lane, name, *responses, prompt="How many in both?", settings=SETTINGS):
    async with scripted_provider(responses) as provider:
        model = lane(NAMES[name], api_base=provider.url, api_key=KEY)
        result = await model.send(prompt, tools=[STOCK], settings=settings)
        return list(result), provider.requests


def same(messages):
    """What is to be the same: all but ids, times, how the text was cut, and what LiteLLM counted itself."""
    found = []
    for message in fold(messages):
        query = dict(message.query or {})
        if "usage" in query:
            query["usage"] = {name: query["usage"][name] for name in COUNTS}
        if "id" in query:
            query["id"] = RANDOM_ID.sub("call", query["id"])
        found.append((message.type, message.content, query))
    return found


def outcome(messages):
    whole = fold(messages)
    calls = [(call.query["tool"], call.query["args"]) for call in whole if call.type == "tool_call"]
    texts = [[message.content for message in whole if message.type == kind] for kind in ("text", "reasoning")]
    usage = whole[-1].query["usage"]
    reason, counts = whole[-1].query["reason"], [usage[name] for name in COUNTS]
    return {"said": tuple(map("".join, texts)), "calls": calls, "reason": reason, "usage": counts}


CALLS = [("stock", {"place": "Köln"}), ("stock", {"place": "東京"})]
TEXT = "Let me look in Köln and 東京."
SAID = {
    "anthropic": (TEXT, "They ask for stock in two places; I look both up.", [540, 97, 637]),
    "gemini": (TEXT, "**Plan** The user wants two places. Two calls it is.", [60, 62, 122]),
    "cohere": ("", "", [901, 64, 965]),
    "mistral": (TEXT, "Two places, two calls.", [88, 53, 141]),
    "deepseek": (TEXT, "Two places, two calls.", [70, 66, 136]),
}


@pytest.mark.parametrize("name", NAMES)
async def test_an_answer_in_the_providers_form_is_understood(name):
    messages, _ = await ask(ProviderModel, name, events(name))
    *said, usage = SAID[name]
    assert outcome(messages) == {"said": tuple(said), "calls": CALLS, "reason": "tool_calls", "usage": usage}
    assert messages[-1].query["cost"] > 0


@pytest.mark.parametrize("name", BOTH)
async def test_litellms_client_gives_the_same_messages_for_the_same_request(name):
    ours, requests = await ask(ProviderModel, name, events(name))
    theirs, others = await ask(LiteLLMModel, name, events(name))
    assert same(ours) == same(theirs)
    assert requests[0].json == others[0].json


async def test_litellms_client_cannot_read_the_events_of_cohere():
    """When this fails, LiteLLM can: then Cohere belongs to BOTH."""
    theirs, others = await ask(LiteLLMModel, "cohere", events("cohere"))
    _, requests = await ask(ProviderModel, "cohere", events("cohere"))
    assert theirs[-1].query["error"]["kind"] == "protocol"
    assert requests[0].json == others[0].json


async def test_cohere_says_text_too():
    messages, requests = await ask(ProviderModel, "cohere", events("cohere-text"))
    assert outcome(messages) == {
        "said": ("In Köln there are 15.", ""),
        "calls": [],
        "reason": "stop",
        "usage": [980, 11, 991],
    }
    assert requests[0].headers["accept"] == "text/event-stream"


@pytest.mark.parametrize("name", NAMES)
async def test_bytes_cut_anywhere_are_the_same_answer(name):
    whole = events(name)
    cut = replace(whole, body=[bytes([byte]) for byte in whole.body[0]])
    messages, _ = await ask(ProviderModel, name, cut)
    assert same(messages) == same((await ask(ProviderModel, name, whole))[0])


@pytest.mark.parametrize("name", NAMES)
async def test_an_answer_that_breaks_off_says_so(name):
    whole = events(name).body[0]
    half = Response(headers={"content-type": "text/event-stream"}, body=[whole[: len(whole) // 2]], ending="eof")
    messages, _ = await ask(ProviderModel, name, half)
    assert messages[-1].query["error"]["kind"] == "truncated"


async def second(name, lane=ProviderModel):
    """Send the results of the calls back; return the body of that request."""
    first, _ = await ask(ProviderModel, name, events(name))
    whole = [message for message in fold(first) if message.type != "stop"]
    whole = [replace(message, query={**(message.query or {}), "model": NAMES[name]}) for message in whole]
    calls = [message for message in whole if message.type == "tool_call"]
    results = [
        Message(role="tool", type="tool_result", content="15", query={"id": call.query["id"], "call": call.id})
        for call in calls
    ]
    _, requests = await ask(lane, name, events(name), prompt=[Message.user("How many?"), *whole, *results])
    return requests[0].json


@pytest.mark.parametrize("name", NAMES)
async def test_the_second_turn_is_the_same_request_on_both_lanes(name):
    ours, theirs = await second(name), await second(name, LiteLLMModel)
    hide = lambda body: RANDOM_ID.sub("call", str(body))  # noqa: E731
    assert hide(ours) == hide(theirs)


async def test_anthropic_gets_its_thinking_back_with_the_signature():
    body = await second("anthropic")
    answer = next(entry for entry in body["messages"] if entry["role"] == "assistant")["content"]
    thinking, redacted, text, *uses = answer
    assert thinking["thinking"] == "They ask for stock in two places; I look both up."
    assert thinking["signature"] == "RXhhbXBsZVNpZ25hdHVyZU9mVGhpbmtpbmc="
    assert (redacted["type"], redacted["data"]) == ("redacted_thinking", "UmVkYWN0ZWRFeGFtcGxl")
    assert text["text"] == TEXT
    assert [(use["id"], use["input"]) for use in uses] == [
        ("toolu_01A", {"place": "Köln"}),
        ("toolu_01B", {"place": "東京"}),
    ]


async def test_gemini_gets_the_signature_of_its_thought_back():
    body = await second("gemini")
    parts = [part for entry in body["contents"] if entry["role"] == "model" for part in entry["parts"]]
    calls = [part for part in parts if "function_call" in part or "functionCall" in part]
    assert [part.get("thoughtSignature") for part in calls] == ["RXhhbXBsZVNpZ25hdHVyZUE=", None]


async def test_deepseek_gets_its_reasoning_back():
    body = await second("deepseek")
    answer = next(entry for entry in body["messages"] if entry["role"] == "assistant")
    assert answer["reasoning_content"] == "Two places, two calls."
