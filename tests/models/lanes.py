"""The ways to a provider, for tests of what is the same on each of them."""

import pytest

from streamagent.calls import ToolSpec
from streamagent.models.direct import DirectModel
from streamagent.models.litellm import LiteLLMModel, _load
from streamagent.models.provider import ProviderModel
from streamagent.models.retry import RetryPolicy
from streamagent.protocols import DEFAULT_SETTINGS
from streamagent.testing.provider import Response, finish, scripted_provider, sse, text, usage

from .script import Naps

LANES = {"direct": DirectModel, "provider": ProviderModel, "acompletion": LiteLLMModel}
NAMES = {"direct": "openai/test", "provider": "hosted_vllm/test", "acompletion": "openai/test"}

# LiteLLM looks through all attributes of its pydantic models, deprecated ones too.
NOISE = pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning")

KEY = "sk-canary-0123456789"
ANSWER = Response(body=sse(text("Hel"), text("lo"), finish("stop"), usage(3, 2)))
STOCK = ToolSpec(name="stock", description="Units in stock.", parameters={"type": "object", "properties": {}})

_chosen = []


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture(params=LANES, autouse=True)
def lane(request):
    """The name of the lane that `model_at` takes."""
    _chosen[:] = [request.param]
    if request.param != "direct":
        _load()  # its seconds count for a deadline
    return request.param


def model_on_lane(name, **options):
    return LANES[_chosen[0]](name, **options)


def model_at(provider, **options):
    retry = RetryPolicy(jitter=lambda: 1.0)
    return model_on_lane(NAMES[_chosen[0]], api_base=provider.url, api_key=KEY, retry=retry, sleep=Naps(), **options)


async def ask(*responses, settings=DEFAULT_SETTINGS, tools=(), prompt="Hi", **options):
    async with scripted_provider(responses) as provider:
        model = model_at(provider, **options)
        result = await model.send(prompt, settings=settings, tools=tools)
        return result, provider.requests, model._sleep.taken
