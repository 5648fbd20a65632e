"""The direct lane: what only this way to a provider does."""

import subprocess
import sys
import threading

import anyio
import pytest

from streamagent import Agent, MemoryStore, Runtime
from streamagent._core.sse import EVENT_LIMIT
from streamagent.errors import ConfigError, ModelError
from streamagent.models import http, prices
from streamagent.models.direct import DirectModel
from streamagent.models.endpoints import ENDPOINTS, address
from streamagent.models.prices import cost, price
from streamagent.protocols import ModelSettings
from streamagent.shared import close_idle
from streamagent.testing import assert_no_leaks
from streamagent.testing.provider import Response, finish, scripted_provider, sse, text

from .lanes import ANSWER, KEY, anyio_backend  # noqa: F401 - a fixture
from .script import Naps

pytestmark = pytest.mark.anyio

ONCE = ModelSettings(retries=0)
JSON = {"content-type": "application/json"}
WHOLE = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}'


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in {name for endpoint in ENDPOINTS.values() for name in (*endpoint.bases, *endpoint.keys)}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AZURE_API_VERSION", raising=False)


async def ask(*responses, name="openai/test", settings=ONCE, **options):
    async with scripted_provider(responses) as provider:
        model = DirectModel(name, api_base=provider.url, api_key=KEY, sleep=Naps(), **options)
        return await model.send("Hi", settings=settings), provider.requests


async def test_what_comes_with_one_read_is_one_fragment():
    async with scripted_provider([Response(body=[b"".join(sse(text("Hel"), text("lo"), finish("stop")))])]) as provider:
        model = DirectModel("openai/test", api_base=provider.url, api_key=KEY)
        assert [message.content async for message in model.send("Hi") if message.content] == ["Hello"]


async def test_what_was_whole_before_a_damaged_event_is_shown():
    result, _ = await ask(Response(body=[b"".join(sse(text("Hel"), done=False)) + b"data: {nope\n\n"]))
    assert (result.text, result.error["kind"]) == ("Hel", "protocol")


async def test_a_provider_that_does_not_stream_is_understood():
    result, _ = await ask(Response(headers=JSON, body=[WHOLE]))
    assert (result.text, result.reason) == ("Hi", "stop")


@pytest.mark.parametrize("body", [b"{}", b"[]", b"nope", b" " * (EVENT_LIMIT + 1)])
async def test_json_that_is_no_answer_hints_at_the_address(body):
    result, _ = await ask(Response(headers=JSON, body=[body]))
    assert result.error["kind"] == "protocol"
    assert "api_base" in result.error["message"]


async def test_json_of_another_shape_is_no_answer():
    assert (await ask(Response(headers=JSON, body=[b'{"choices": 5}'])))[0].error["kind"] == "protocol"


async def test_an_answer_in_one_object_may_come_in_pieces():
    result, _ = await ask(Response(headers=JSON, body=[bytes([byte]) for byte in WHOLE]))
    assert (result.text, result.reason) == ("Hi", "stop")


async def test_a_stream_in_which_nothing_came_broke_off():
    result, _ = await ask(Response(body=[b": ping\n\n"]))
    assert result.error["kind"] == "truncated"


async def test_an_event_at_the_end_that_lacks_its_blank_line_counts():
    result, _ = await ask(Response(body=[b"".join(sse(text("Hi"), finish("stop"), done=False)).rstrip()]))
    assert (result.text, result.reason) == ("Hi", "stop")


async def test_a_redirect_is_not_followed_and_names_the_address():
    """The key goes to the host that was named, and to no other."""
    result, requests = await ask(Response(status=308, headers={"location": "https://elsewhere.example/v1"}), ANSWER)
    assert result.error["kind"] == "bad_request"
    assert "elsewhere.example" in result.error["message"]
    assert len(requests) == 1


async def test_an_address_that_is_none_is_told():
    result = await DirectModel("openai/test", api_base="http://[nope", api_key=KEY).send("Hi", settings=ONCE)
    assert result.error["kind"] == "bad_request"
    assert "api_base" in result.error["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no", "code": 7}}', "no"),
        (b'[{"error": {"message": "no"}}]', "no"),
        (b'{"error": "no"}', "no"),
        (b'{"message": "no"}', "no"),
        (b"no", "no"),
        (b"", "no reason was given"),
        (b"[]", "[]"),
        (b"5", "5"),
    ],
)
async def test_the_reason_of_a_refusal_is_found_wherever_it_stands(body, message):
    result, _ = await ask(Response(status=400, body=[body] if body else []))
    assert result.error["message"] == f"{message} (status 400)"


async def test_headers_and_options_of_ones_own_go_with_each_request():
    _, requests = await ask(ANSWER, headers={"x-team": "blue"}, top_k=3)
    assert (requests[0].headers["x-team"], requests[0].json["top_k"]) == ("blue", 3)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("openai/gpt-4.1-mini", "max_tokens"),
        ("openai/gpt-5-mini", "max_completion_tokens"),
        ("openai/o4-mini", "max_completion_tokens"),
        ("groq/o3-like", "max_tokens"),
    ],
)
async def test_the_longest_answer_has_the_name_that_the_model_takes(name, key):
    _, requests = await ask(ANSWER, name=name, settings=ModelSettings(max_tokens=9))
    assert {known for known in requests[0].json if known.startswith("max_")} == {key}


async def test_a_connection_is_used_again():
    ports = set()

    async def serve(stream):
        ports.add(stream.extra(anyio.abc.SocketAttribute.remote_port))
        async with stream:
            while True:
                try:
                    data = await stream.receive()
                except anyio.EndOfStream:
                    return
                while not data.endswith(b"}"):
                    data += await stream.receive()
                body = b"".join(sse(text("Hi"), finish("stop")))
                head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
                await stream.send(head + body)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        model = DirectModel("openai/test", api_base=f"http://127.0.0.1:{port}/v1", api_key=KEY)
        for _ in range(3):
            assert (await model.send("Hi", settings=ONCE)).text == "Hi"
        tasks.cancel_scope.cancel()
    assert len(ports) == 1


async def test_with_the_runtime_its_connections_end():
    await ask(ANSWER)  # the pool's own thread, if it has one, stays
    await close_idle()
    async with assert_no_leaks(), scripted_provider([ANSWER]) as provider:
        agent = Agent(DirectModel("openai/test", api_base=provider.url, api_key=KEY))
        async with Runtime(store=MemoryStore()) as runtime, agent.session("s", runtime=runtime) as session:
            assert (await session.ask("Hi")).text == "Hello"


@pytest.mark.parametrize(("bypass", "through"), [("", True), ("provider.example", False)])
async def test_a_proxy_is_taken_from_the_environment(bypass, through, monkeypatch):
    await close_idle()
    async with scripted_provider([ANSWER]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        monkeypatch.setenv("NO_PROXY", bypass)
        model = DirectModel("openai/test", api_base="http://provider.example/v1", api_key=KEY)
        result = await model.send("Hi", settings=ONCE)
        assert [request.path for request in proxy.requests] == (
            ["http://provider.example/v1/chat/completions"] if through else []
        )
    assert (result.text == "Hello") is through
    await close_idle()


def test_a_loop_that_ends_leaves_nothing_open():
    code = f"""
import anyio, sys
from streamagent.models import http, prices
from streamagent.models.direct import DirectModel
from streamagent.testing.provider import Response, finish, scripted_provider, sse, text

async def main():
    async with scripted_provider([Response(body=sse(text("Hello"), finish("stop")))]) as provider:
        print((await DirectModel("openai/test", api_base=provider.url, api_key="{KEY}").send("Hi")).text)

anyio.run(main)
print("litellm" in sys.modules)
"""
    arguments = [sys.executable, "-X", "dev", "-W", "error", "-c", code]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]  # which only took its time
    assert (done.stdout, told) == ("Hello\nFalse\n", [])


def test_a_provider_that_is_not_in_the_table_is_refused():
    with pytest.raises(ConfigError, match="get_model"):
        DirectModel("anthropic/claude")


@pytest.mark.parametrize("provider", [name for name, endpoint in ENDPOINTS.items() if endpoint.base])
def test_each_provider_has_an_address(provider):
    where = address(provider, "m", api_key="k")
    assert where.url.startswith("http")
    assert where.url.endswith("/chat/completions")
    assert where.headers == {"Authorization": "Bearer k"}


@pytest.mark.parametrize(
    ("provider", "base", "url"),
    [
        ("openai", "http://h/v1/", "http://h/v1/chat/completions"),
        ("openai", "http://h/v1/chat/completions", "http://h/v1/chat/completions"),
        ("ollama", "http://h:1", "http://h:1/v1/chat/completions"),
        ("ollama", "http://h:1/v1", "http://h:1/v1/chat/completions"),
        ("azure", "https://h", "https://h/openai/v1/chat/completions"),
        ("azure", "https://h/openai/v1", "https://h/openai/v1/chat/completions"),
    ],
)
def test_an_address_is_made_of_the_api_base(provider, base, url):
    assert address(provider, "m", api_base=base, api_key="k").url == url


def test_azure_has_a_header_and_deployments_of_its_own(monkeypatch):
    monkeypatch.setenv("AZURE_API_VERSION", "2024-10-21")
    where = address("azure", "mine", api_base="https://h", api_key="k")
    assert where.url == "https://h/openai/deployments/mine/chat/completions?api-version=2024-10-21"
    assert where.headers == {"api-key": "k"}


def test_the_environment_says_where_and_with_what_key(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://h/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    where = address("openai", "m")
    assert (where.url, where.key) == ("http://h/v1/chat/completions", "k")


def test_a_provider_on_ones_own_machine_needs_no_key():
    where = address("hosted_vllm", "m", api_base="http://h/v1")
    assert (where.key, where.headers) == (None, {})


def test_what_nobody_has_told_is_named():
    with pytest.raises(ConfigError, match="HOSTED_VLLM_API_BASE"):
        address("hosted_vllm", "m")
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        address("openai", "m")


ENTRY = {
    "input_cost_per_token": 1.0,
    "input_cost_per_token_above_1k_tokens": 3.0,
    "output_cost_per_token": 10.0,
    "cache_read_input_token_cost": 0.5,
    "output_cost_per_reasoning_token": 20.0,
}


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        ({"prompt_tokens": 4, "completion_tokens": 2}, 24.0),
        ({"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 2}}, 23.0),
        ({"prompt_tokens": 4, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}}, 34.0),
        ({"prompt_tokens": 1000, "completion_tokens": 0}, 1000.0),
        ({"prompt_tokens": 1001, "completion_tokens": 0}, 3003.0),
        ({"prompt_tokens": "4", "completion_tokens": 2}, None),
        ({"prompt_tokens": 4}, None),
    ],
)
def test_tokens_cost_what_the_entry_says(usage, dollars):
    assert cost(ENTRY, usage) == dollars


@pytest.mark.parametrize("name", ["openai/gpt-4o-mini", "openai/gpt-5-mini", "deepseek/deepseek-chat"])
async def test_prices_are_litellms(name):
    import litellm

    usage = {
        "prompt_tokens": 900,
        "completion_tokens": 70,
        "total_tokens": 970,
        "prompt_tokens_details": {"cached_tokens": 100},
    }
    told = sum(litellm.cost_per_token(model=name, usage_object=litellm.Usage(**usage)))
    assert await price(name, usage) == pytest.approx(told)


async def test_a_model_without_an_entry_has_no_price():
    assert await price("openai/nobody-knows-it", {"prompt_tokens": 1, "completion_tokens": 1}) is None


def test_many_first_requests_take_one_thread_to_load_what_they_need():
    """An idle worker thread of anyio stays for as long as the event loop does."""

    def workers():
        return {thread for thread in threading.enumerate() if "AnyIO worker" in thread.name}

    async def main():
        before = workers()
        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(http.load)
                tasks.start_soon(prices.price, "openai/gpt-4o", {"prompt_tokens": 1, "completion_tokens": 1})
        return len(workers() - before)

    http._aiohttp.cache_clear()
    prices._entries.clear()
    assert anyio.run(main) == 1
