"""LiteLLM against a real HTTP server: what only this way to a provider does."""

import os
import sys
from types import SimpleNamespace

import anyio
import pytest

from streamagent.models.chunks import Request
from streamagent.models.litellm import LiteLLMModel, _warm_up, load_litellm
from streamagent.protocols import ModelSettings
from streamagent.testing.provider import Response, finish, scripted_provider, sse, text

from .lanes import ANSWER, KEY, NOISE, anyio_backend  # noqa: F401 - a fixture

pytestmark = [pytest.mark.anyio, NOISE]

SCHEMA = {"type": "object", "title": "Stock", "properties": {"units": {"type": "integer"}}}
USED = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


async def test_a_usage_that_nobody_sent_is_marked():
    async with scripted_provider([Response(body=sse(text("Hello"), finish("stop")))]) as provider:
        result = await LiteLLMModel("openai/test", api_base=provider.url, api_key=KEY).send("Hi")
    assert result.usage["estimated"]


async def test_fragments_are_the_deltas():
    async with scripted_provider([ANSWER]) as provider:
        assert [
            piece async for piece in LiteLLMModel("openai/test", api_base=provider.url, api_key=KEY).send("Hi").text()
        ] == ["Hel", "lo"]


async def test_a_provider_that_takes_no_schema_is_not_told():
    from litellm import get_supported_openai_params

    model = LiteLLMModel("replicate/test")
    request = Request(messages=[], settings=ModelSettings(response_schema=SCHEMA))
    assert "response_format" not in get_supported_openai_params(model=model.name)
    for known in (get_supported_openai_params, lambda model: None):
        assert model._format(request, SimpleNamespace(get_supported_openai_params=known)) == {}


def listed(name):
    """What `USED` costs, by the map that this version of LiteLLM ships."""
    prices = load_litellm().model_cost[name]
    return pytest.approx(3 * prices["input_cost_per_token"] + 2 * prices["output_cost_per_token"])


@pytest.mark.parametrize(
    ("model", "name"), [("openai/gpt-4o-mini", "gpt-4o-mini"), ("gemini/gemini-2.5-flash", "gemini/gemini-2.5-flash")]
)
async def test_a_price_is_that_of_the_price_map(model, name):
    assert await LiteLLMModel(model).price(USED) == listed(name)


@pytest.mark.parametrize(("model", "price"), [("ollama/llama3", 0.0), ("openai/test", None)])
async def test_a_model_that_is_free_costs_nothing_and_an_unknown_one_has_no_price(model, price):
    assert await LiteLLMModel(model).price(USED) == price


async def test_a_usage_that_litellm_cannot_read_has_no_price():
    assert await LiteLLMModel("openai/gpt-4o-mini").price({"prompt_tokens": "?"}) is None


FRESH = """
import anyio, sys, threading
from streamagent import ModelSettings
from streamagent.models.litellm import LiteLLMModel
from streamagent.testing.provider import Response, finish, scripted_provider, sse, text

async def main():
    async with scripted_provider([Response(body=sse(text("Hello"), finish("stop")))]) as provider:
        model = LiteLLMModel("openai/test", api_base=provider.url, api_key="none")
        print((await model.send("Hi", settings=ModelSettings(idle_timeout=2, retries=0))).text)

async def left():
    model = LiteLLMModel("openai/test", api_base="http://127.0.0.1:9", api_key="none")
    result = await model.send("Hi", deadline=anyio.current_time() + 0.05)
    print(result.error["kind"], "litellm.main" in sys.modules)

anyio.run({"whole": main, "left": left}[sys.argv[1]])
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("case", "said"), [("whole", "Hello\n"), ("left", "timeout False\n")])
async def test_the_first_import_is_no_silence_and_ends_at_the_deadline(case, said, anyio_backend):  # noqa: F811 - pytest's way
    command = [sys.executable, "-c", FRESH, case]
    done = await anyio.run_process(command, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (done.stdout.decode(), "never awaited" in done.stderr.decode()) == (said, False)


def test_loading_tells_nobodys_callbacks(monkeypatch):
    litellm, told = load_litellm(), []
    monkeypatch.setattr(litellm, "success_callback", [lambda *_: told.append("success")])
    monkeypatch.setattr(litellm, "completion", lambda **_: told.append("asked"))
    _warm_up(litellm)
    assert told == []


async def test_a_hint_that_cannot_be_had_is_left_out(monkeypatch):
    monkeypatch.setattr(load_litellm(), "validate_environment", lambda model: {}[model])
    async with scripted_provider([Response(status=401, body=[b'{"error": {"message": "No key given"}}'])]) as provider:
        result = await LiteLLMModel("groq/test", api_base=provider.url).send("Hi")
    assert result.error["kind"] == "auth"
    assert "not set" not in result.error["message"]


async def test_a_provider_that_is_unknown_is_a_failure():
    result = await LiteLLMModel("nobody/test").send("Hi")
    assert result.error["kind"] == "bad_request"
