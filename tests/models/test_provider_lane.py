"""The provider lane: what only this way to a provider does."""

import logging

import orjson
import pytest

from streamagent.calls import ToolSpec
from streamagent.models.configs import find_wire, write_call
from streamagent.models.litellm import LiteLLMModel, load_litellm
from streamagent.models.provider import ProviderModel
from streamagent.models.wires import Unfit
from streamagent.protocols import ModelSettings
from streamagent.testing.provider import Response, scripted_provider

from .lanes import ANSWER, KEY, NOISE, STOCK, anyio_backend  # noqa: F401 - a fixture
from .script import Naps

pytestmark = [pytest.mark.anyio, NOISE]

ONCE = ModelSettings(retries=0)
SCHEMA = {"type": "object", "title": "Stock", "properties": {"units": {"type": "integer"}}}
HI = [{"role": "user", "content": "Hi"}]
EVENTS = {"content-type": "text/event-stream"}


@pytest.fixture(autouse=True)
def _nothing_is_known():
    find_wire.cache_clear()
    yield
    find_wire.cache_clear()


async def ask(*responses, name="hosted_vllm/test", settings=ONCE, tools=(), **options):
    async with scripted_provider(responses) as provider:
        model = ProviderModel(name, api_base=provider.url, api_key=KEY, sleep=Naps(), **options)
        return await model.send("Hi", settings=settings, tools=tools), provider.requests


def reasons(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "streamagent"]


def write(name, **parameters):
    return write_call(load_litellm(), name, {"messages": HI, "stream": True, "api_key": KEY, **parameters})


async def test_nothing_is_said_when_nothing_is_in_the_way(caplog):
    caplog.set_level(logging.INFO)
    result, _ = await ask(ANSWER)
    assert (result.text, reasons(caplog)) == ("Hello", [])


async def test_what_cannot_be_done_is_done_by_litellm_and_told_once(caplog):
    caplog.set_level(logging.INFO)
    async with scripted_provider([ANSWER, ANSWER]) as provider:
        model = ProviderModel("hosted_vllm/test", api_base=provider.url, api_key=KEY, timeout=9)
        texts = [(await model.send("Hi", settings=ONCE)).text for _ in range(2)]
        agents = [request.headers["user-agent"] for request in provider.requests]
    assert texts == ["Hello", "Hello"]
    assert all("litellm" in agent for agent in agents)
    [told] = reasons(caplog)
    assert "hosted_vllm/test" in told
    assert "timeout is a parameter for LiteLLM itself" in told


@pytest.mark.parametrize(
    ("provider", "reason"),
    [
        ("bedrock", "ways of its own"),
        ("vertex_ai", "ways of its own"),
        ("replicate", "stream is not known"),
        ("azure", "stream is not known"),
        ("ollama_chat", "stream is not known"),
        ("bytez", "has_custom_stream_wrapper"),
        ("watsonx_text", "uses_async_transform_request"),
        ("langflow", "does not stream"),
        ("voyage", "no configuration"),
        ("nobody", "no configuration"),
        ("vllm", "by its configuration"),
        ("text-completion-openai", "by its configuration"),
    ],
)
def test_a_provider_that_is_not_fit_is_told_why(provider, reason):
    with pytest.raises(Unfit, match=reason):
        find_wire(load_litellm(), provider, "m")


def test_a_model_that_is_asked_for_responses_is_left_to_litellm(monkeypatch):
    monkeypatch.setitem(load_litellm().model_cost, "moonshot/thinks", {"mode": "responses"})
    with pytest.raises(Unfit, match="responses"):
        find_wire(load_litellm(), "moonshot", "thinks")


@pytest.mark.parametrize("name", ["validate_environment", "get_complete_url", "transform_request", "sign_request"])
@pytest.mark.parametrize("method", [None, lambda self, other: other])
async def test_a_method_that_is_another_in_a_version_of_litellm_is_no_failure(name, method, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    config = find_wire(load_litellm(), "moonshot", "m")._config
    original = getattr(type(config), name)
    find_wire.cache_clear()
    monkeypatch.setattr(type(config), name, method)
    with pytest.raises(Unfit, match=f"another {name}"):
        find_wire(load_litellm(), "moonshot", "m")
    monkeypatch.setattr(type(config), name, original)
    assert find_wire(load_litellm(), "moonshot", "m")


@pytest.mark.parametrize(
    ("provider", "module", "name"),
    [
        ("anthropic", "litellm.llms.anthropic.chat.handler", "ModelResponseIterator"),
        ("anthropic", "litellm.anthropic_beta_headers_manager", "update_request_with_filtered_beta"),
        ("gemini", "litellm.llms.vertex_ai.gemini.transformation", "sync_transform_request_body"),
        ("gemini", "litellm.llms.vertex_ai.gemini.vertex_and_google_ai_studio_gemini", "VertexLLM"),
        ("cohere", "litellm.llms.cohere.common_utils", "CohereV2ModelResponseIterator"),
        ("moonshot", "litellm.utils", "ProviderConfigManager"),
    ],
)
def test_a_part_that_is_missing_in_a_version_of_litellm_is_named(provider, module, name, monkeypatch):
    load_litellm()
    monkeypatch.delattr(f"{module}.{name}")
    with pytest.raises(Unfit, match=name):
        find_wire(load_litellm(), provider, "m")


async def test_what_breaks_while_a_request_is_written_is_left_to_litellm(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    wire = find_wire(load_litellm(), "hosted_vllm", "test")
    monkeypatch.setattr(wire, "write", lambda asked: asked["gone"])
    result, _ = await ask(ANSWER)
    assert result.text == "Hello"
    assert "cannot write this request (KeyError)" in reasons(caplog)[0]


@pytest.mark.parametrize(
    ("setting", "value"), [("success_callback", ["langfuse"]), ("callbacks", [print]), ("cache", object())]
)
def test_who_listens_to_litellm_is_not_passed_by(setting, value, monkeypatch):
    monkeypatch.setattr(load_litellm(), setting, value)
    with pytest.raises(Unfit, match=f"litellm.{setting}"):
        write("hosted_vllm/test", api_base="http://h/v1")


def test_litellms_own_callback_is_nobody(monkeypatch):
    monkeypatch.setattr(load_litellm(), "success_callback", ["cache"])
    assert write("hosted_vllm/test", api_base="http://h/v1").url == "http://h/v1/chat/completions"


async def test_a_parameter_that_litellm_refuses_is_a_clear_error_and_no_request():
    result, requests = await ask(name="perplexity/sonar", tools=[STOCK])
    assert result.error["kind"] == "bad_request"
    assert "does not support parameters: ['tools']" in result.error["message"]
    assert requests == []


async def test_a_parameter_may_be_dropped():
    _, requests = await ask(ANSWER, name="perplexity/sonar", tools=[STOCK], drop_params=True)
    assert "tools" not in requests[0].json
    assert "drop_params" not in requests[0].json


@pytest.mark.parametrize(("name", "held"), [("hosted_vllm/test", True), ("cohere/command-a-03-2025", False)])
async def test_a_schema_is_sent_where_litellm_says_that_it_can_be(name, held):
    _, requests = await ask(ANSWER, name=name, settings=ModelSettings(retries=0, response_schema=SCHEMA))
    assert ("response_format" in requests[0].json) is held


async def test_a_schema_that_needs_a_tool_is_left_to_litellm(caplog):
    caplog.set_level(logging.INFO)
    settings = ModelSettings(retries=0, response_schema=SCHEMA)
    await ask(ANSWER, name="anthropic/claude-3-haiku-20240307", settings=settings)
    assert "this request needs json_mode" in reasons(caplog)[0]


@pytest.mark.parametrize(
    "provider",
    ["moonshot", "fireworks_ai", "xai", "groq", "dashscope", "nebius", "together_ai", "volcengine", "openai"],
)
async def test_the_request_is_the_one_that_litellms_client_sends(provider):
    sent = []
    for lane in (ProviderModel, LiteLLMModel):
        async with scripted_provider([ANSWER]) as server:
            model = lane(f"{provider}/m", api_base=server.url, api_key=KEY)
            result = await model.send("Hi", settings=ModelSettings(retries=0, temperature=0.5, max_tokens=9, seed=7))
        [request] = server.requests
        sent.append((result.text, request.path, request.json, request.headers["authorization"]))
    assert sent[0] == sent[1]


async def test_a_redirect_is_not_followed_and_names_the_address():
    """The key goes to the host that was named, and to no other."""
    result, requests = await ask(Response(status=307, headers={"location": "https://elsewhere.example/v1"}), ANSWER)
    assert result.error["kind"] == "bad_request"
    assert "elsewhere.example" in result.error["message"]
    assert len(requests) == 1


@pytest.mark.parametrize("name", ["anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash", "cohere/command-a"])
async def test_no_error_text_holds_the_key(name):
    """I17."""
    body = orjson.dumps({"error": {"message": f"bad key {KEY}, as in x-api-key: {KEY}"}})
    result, requests = await ask(Response(status=401, body=[body]), name=name)
    assert KEY in str(requests[0].headers)
    assert result.error["kind"] == "auth"
    assert KEY not in str(list(result))


@pytest.mark.parametrize(
    ("name", "event", "kind"),
    [
        ("anthropic/c", {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}, "overloaded"),
        ("gemini/g", {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota"}}, "rate_limited"),
        ("hosted_vllm/v", {"object": "error", "message": "the server is overloaded"}, "overloaded"),
        ("hosted_vllm/v", {"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}, "provider_error"),
        ("anthropic/c", {"type": "content_block_start", "index": 0, "content_block": 5}, "protocol"),
        ("gemini/g", {"candidates": 5}, "protocol"),
    ],
)
async def test_an_event_that_tells_of_an_error_or_is_none_of_the_providers(name, event, kind):
    result, _ = await ask(Response(headers=EVENTS, body=[b"data: " + orjson.dumps(event) + b"\n\n"]), name=name)
    assert result.error["kind"] == kind


@pytest.mark.parametrize(("headers", "kind"), [(EVENTS, "truncated"), ({"content-type": "text/html"}, "protocol")])
async def test_nothing_is_no_answer(headers, kind):
    result, _ = await ask(Response(headers=headers, body=[b"data: 5\n\n"]))
    assert result.error["kind"] == kind


async def test_a_body_that_was_signed_is_sent_as_it_was_signed(monkeypatch):
    wire = find_wire(load_litellm(), "hosted_vllm", "test")
    signed = orjson.dumps({"signed": True})
    monkeypatch.setattr(wire._config, "sign_request", lambda **asked: ({**asked["headers"], "x-signed": 1}, signed))
    _, requests = await ask(ANSWER)
    assert (requests[0].body, requests[0].headers["x-signed"]) == (signed, "1")


@pytest.mark.parametrize(
    ("name", "url", "header"),
    [
        ("anthropic/c", "https://api.anthropic.com/v1/messages", "x-api-key"),
        (
            "gemini/gemini-2.5-flash",
            "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
            "x-goog-api-key",
        ),
        ("cohere/c", "https://api.cohere.com/v2/chat", "authorization"),
        ("moonshot/k", "https://api.moonshot.ai/v1/chat/completions", "authorization"),
        ("mistral/m", "https://api.mistral.ai/v1/chat/completions", "authorization"),
        ("fireworks_ai/f", "https://api.fireworks.ai/inference/v1/chat/completions", "authorization"),
    ],
)
def test_a_provider_is_asked_at_its_public_address(name, url, header):
    call = write(name)
    assert call.url == url
    assert KEY in {known.lower(): value for known, value in call.headers.items()}[header]


@pytest.mark.parametrize(
    ("name", "base", "variable"),
    [
        ("anthropic/c", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
        ("gemini/g", "GEMINI_API_BASE", "GEMINI_API_KEY"),
        ("cohere/c", "COHERE_API_BASE", "CO_API_KEY"),
        ("moonshot/k", "MOONSHOT_API_BASE", "MOONSHOT_API_KEY"),
    ],
)
def test_the_environment_says_where_and_with_what_key(name, base, variable, monkeypatch):
    monkeypatch.setenv(base, "http://elsewhere.example/x")
    monkeypatch.setenv(variable, "k" * 12)
    call = write(name, api_key=None)
    assert call.url.startswith("http://elsewhere.example/x")
    assert "k" * 12 in str(call.headers)


@pytest.mark.parametrize("base", ["http://h", "http://h/", "http://h/v1", "http://h/v1/messages"])
def test_the_address_of_anthropic_is_made_of_the_api_base(base):
    assert write("anthropic/c", api_base=base).url == "http://h/v1/messages"


async def test_a_missing_key_is_named(monkeypatch):
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "PALM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    result = await ProviderModel("gemini/g", sleep=Naps()).send("Hi", settings=ONCE)
    assert result.error["kind"] == "auth"
    assert "GEMINI_API_KEY" in result.error["message"]


def test_a_tool_with_a_name_of_anthropics_limits_has_its_own_name_back():
    tool = ToolSpec(name="a/b", description="", parameters={"type": "object", "properties": {}})
    told = {"type": "function", "function": {"name": tool.name, "description": "", "parameters": dict(tool.parameters)}}
    call = write("anthropic/c", tools=[told])
    sent = orjson.loads(call.body)["tools"][0]["name"]
    opened = {"type": "tool_use", "id": "t", "name": sent, "input": {}}
    chunk = call.parse({"type": "content_block_start", "index": 0, "content_block": opened})
    assert sent != "a/b"
    assert chunk.choices[0].delta.tool_calls[0].function.name == "a/b"
