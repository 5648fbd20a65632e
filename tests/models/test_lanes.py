"""What is the same on each way to a provider, against a real HTTP server."""

import asyncio

import anyio
import pytest

from streamagent.errors import ConfigError, UnsupportedBackendError
from streamagent.message import Message
from streamagent.protocols import ModelSettings
from streamagent.testing.provider import Response, call, delta, finish, scripted_provider, sse, text

from .lanes import ANSWER, KEY, NOISE, STOCK, anyio_backend, ask, lane, model_at, model_on_lane  # noqa: F401 - fixtures

pytestmark = [pytest.mark.anyio, NOISE]


async def test_an_answer_streams_with_its_usage():
    result, requests, _ = await ask(ANSWER)
    assert (result.text, result.reason, result.error) == ("Hello", "stop", None)
    assert (result.usage["prompt_tokens"], result.usage["completion_tokens"]) == (3, 2)
    assert "estimated" not in result.usage
    assert requests[0].path == "/v1/chat/completions"
    assert requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_the_request_is_what_was_asked():
    settings = ModelSettings(temperature=0.5, max_tokens=9, stop=["x"], tool_choice="stock", extra={"top_k": 3})
    _, requests, _ = await ask(ANSWER, settings=settings, tools=[STOCK], seed=7)
    body = requests[0].json
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert body["tools"][0]["function"]["name"] == "stock"
    assert body["tool_choice"] == {"type": "function", "function": {"name": "stock"}}
    assert body["stream_options"] == {"include_usage": True}
    assert [body[key] for key in ("temperature", "max_tokens", "stop", "seed", "top_k")] == [0.5, 9, ["x"], 7, 3]


@pytest.mark.parametrize("choice", [None, "auto", "none", "required"])
async def test_the_choice_of_tools_is_passed(choice):
    _, requests, _ = await ask(ANSWER, settings=ModelSettings(tool_choice=choice), tools=[STOCK])
    assert requests[0].json.get("tool_choice") == choice


async def test_interleaved_calls_keep_their_arguments():
    chunks = [
        call("", id="a", name="stock"),
        call("", index=1, id="b", name="stock"),
        call('{"x":'),
        call("{}", index=1),
        call("1}"),
        finish("tool_calls"),
    ]
    result, _, _ = await ask(Response(body=sse(*chunks)), tools=[STOCK])
    assert [message.query["args"] for message in result if message.type == "tool_call"] == [{"x": 1}, {}]
    assert result.reason == "tool_calls"


async def test_reasoning_is_apart_from_the_text():
    result, _, _ = await ask(Response(body=sse(delta(reasoning_content="Hm"), text("Hi"), finish("stop"))))
    assert [(message.type, message.content) for message in result[:2]] == [("reasoning", "Hm"), ("text", "Hi")]


async def test_signed_thinking_is_kept():
    blocks = [{"type": "thinking", "thinking": "Hm", "signature": "s"}]
    chunk = delta(reasoning_content="Hm", thinking_blocks=blocks)
    result, _, _ = await ask(Response(body=sse(chunk, text("Hi"), finish("stop"))))
    assert result[0].query["provider"]["thinking_blocks"] == blocks


async def test_a_piece_said_a_hundred_times_is_said():
    """LiteLLM alone would give up."""
    result, _, _ = await ask(Response(body=sse(*[text("abc")] * 120, finish("stop"))))
    assert result.text == "abc" * 120


async def test_bytes_cut_anywhere_are_the_same_answer():
    whole = b"".join(sse(text("Grüße"), finish("stop")))
    result, _, _ = await ask(Response(body=[whole[place : place + 1] for place in range(len(whole))]))
    assert result.text == "Grüße"


@pytest.mark.parametrize("name", ["openai/gpt", "openai:gpt"])
def test_a_name_has_two_forms(name):
    assert model_on_lane(name).name == "openai/gpt"


@pytest.mark.parametrize("name", ["gpt", "", "/gpt", ":gpt", "openai/", "openai: "])
def test_a_name_without_provider_or_model_is_refused(name):
    with pytest.raises(ConfigError, match="provider/model"):
        model_on_lane(name)


async def test_a_key_that_is_not_the_providers_is_not_sent():
    _, requests, _ = await ask(ANSWER)
    assert not [value for name, value in requests[0].headers.items() if KEY in value and name != "authorization"]


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_cancelling_after_any_chunk_closes_the_connection(count):
    body = [*sse(*[text(f"{number}") for number in range(count)], done=False)]
    async with scripted_provider([Response(body=body, ending="hang")]) as provider:
        seen = []

        async def read():
            async for piece in model_at(provider).send("Hi").text():
                seen.append(piece)
                if len("".join(seen)) == count:
                    reached.set()

        reached = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await reached.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(2):
            await provider.requests[0].disconnected.wait()


async def test_cancelling_before_the_first_byte_closes_the_connection():
    """FAILURES T111."""
    async with scripted_provider([Response(status=0, ending="hang")]) as provider:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(model_at(provider).send("Hi").result)
            with anyio.fail_after(5):
                while not provider.requests:
                    await anyio.sleep(0)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(2):
            await provider.requests[0].disconnected.wait()


async def test_closing_early_closes_the_connection():
    async with scripted_provider([Response(body=sse(text("Hel"), done=False), ending="hang")]) as provider:
        reply = model_at(provider).send("Hi")
        async for _ in reply:
            break
        await reply.aclose()
        with anyio.fail_after(2):
            await provider.requests[0].disconnected.wait()


async def test_nothing_of_ours_runs_afterwards():
    before = set(asyncio.all_tasks())
    async with scripted_provider([ANSWER]) as provider:
        await model_at(provider).send("Hi")
    left = {task.get_coro().__qualname__ for task in asyncio.all_tasks() - before}
    assert not [name for name in left if "Logging" not in name and "CustomStreamWrapper" not in name]


async def test_a_conversation_with_a_call_goes_out_in_order():
    asked = Message(type="tool_call", query={"tool": "stock", "id": "c1", "args": {}})
    answer = Message(role="tool", type="tool_result", content="15", query={"id": "c1", "call": asked.id})
    _, requests, _ = await ask(ANSWER, prompt=[Message.user("How many?"), asked, answer], tools=[STOCK])
    assert [entry["role"] for entry in requests[0].json["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_trio_is_refused(anyio_backend):  # noqa: F811 - pytest's way
    with pytest.raises(UnsupportedBackendError, match="asyncio"):
        await model_on_lane("openai/test").send("Hi")


SCHEMA = {"type": "object", "title": "Stock", "properties": {"units": {"type": "integer"}}}


async def test_a_provider_is_held_to_a_schema():
    _, requests, _ = await ask(ANSWER, settings=ModelSettings(response_schema=SCHEMA))
    told = requests[0].json["response_format"]
    assert (told["type"], told["json_schema"]["name"], told["json_schema"]["strict"]) == ("json_schema", "Stock", True)
    assert told["json_schema"]["schema"] == {**SCHEMA, "required": ["units"], "additionalProperties": False}


async def test_a_response_format_of_ones_own_is_kept():
    own = {"type": "json_object"}
    settings = ModelSettings(response_schema=SCHEMA, extra={"response_format": own})
    _, requests, _ = await ask(ANSWER, settings=settings)
    assert requests[0].json["response_format"] == own
    _, requests, _ = await ask(ANSWER, settings=ModelSettings(response_schema=SCHEMA), response_format=own)
    assert requests[0].json["response_format"] == own


async def test_the_stop_says_what_the_answer_cost():
    async with scripted_provider([ANSWER]) as provider:
        result = await model_on_lane("openai/gpt-4o-mini", api_base=provider.url, api_key=KEY).send("Hi")
    assert result.stop.query["cost"] == pytest.approx(3 * 0.15e-6 + 2 * 0.6e-6)
