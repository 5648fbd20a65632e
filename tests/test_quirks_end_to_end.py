"""The quirk cases end to end, on each lane: a loopback SSE server, the model, our session, the SQLite file."""

from dataclasses import replace

import pytest

from streamagent import Agent, ModelSettings, SqliteStore, ToolSpec
from streamagent.models.direct import DirectModel
from streamagent.models.litellm import LiteLLMModel
from streamagent.models.provider import ProviderModel
from streamagent.testing.provider import Response, finish, scripted_provider, sse, text
from tests.quirks import body, cases, check, outcome
from tests.scripted import check_rows

pytestmark = pytest.mark.anyio

# LiteLLM changes these on their way (quirks README, "Measured"); what reaches us then, by (reason, error kind, text).
CHANGED = {
    "acompletion": {
        "29-done-without-finish": ("error", "truncated", "Hello"),
        "32-malformed-function-call": ("error", "empty_response", ""),
        "40-content-part-list": ("stop", None, " there"),
        "50-sse-noise": ("error", "protocol", ""),
    },
}

COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})])
def anyio_backend(request):
    return request.param


class Anything:
    """A tool that takes any arguments."""

    timeout = 5

    def __init__(self, name):
        self.spec = ToolSpec(name=name, description=name, parameters={"type": "object"})
        self.ran = []

    async def run(self, arguments, context):
        self.ran.append(dict(arguments))
        return "done"


LANES = {"direct": DirectModel, "provider": ProviderModel, "acompletion": LiteLLMModel}
NAMES = {"direct": "openai/test", "provider": "hosted_vllm/test", "acompletion": "openai/test"}
CASES = [(lane, name) for lane in LANES for name in cases() if name not in CHANGED.get(lane, ())]


async def ask(lane, case, path):
    """Play a case, then an ordinary answer to the results of its calls; return the messages and what ran."""
    tools = [Anything(name) for name in case["tools"]]
    settings = ModelSettings(retries=0, **case["options"])
    script = [Response(body=[body(case)]), Response(body=sse(text("ok"), finish("stop")))]
    async with scripted_provider(script) as provider:
        model = LANES[lane](NAMES[lane], api_base=provider.url, api_key="none")
        agent = Agent(model, tools=tools, settings=settings, store=SqliteStore(path / "quirks.db"))
        async with agent.session("s") as session:
            seen = [message async for message in session.ask("Go.")]
        async with agent.store:
            stored = await check_rows(agent.store)
    return seen, stored, [arguments for tool in tools for arguments in tool.ran]


def first_turn(messages):
    """The model's first turn: what the case is about; of its usage, what the provider counted."""
    answer = [message for message in messages if message.role == "assistant"]
    end = next(number for number, message in enumerate(answer) if message.type == "stop")
    query = answer[end].query
    usage = query.get("usage", {"estimated": 1})  # LiteLLM's own estimate is marked
    counted = None if "estimated" in usage else {name: usage[name] for name in COUNTS}
    return [*answer[:end], replace(answer[end], query={**query, "usage": counted})]


@pytest.mark.parametrize(("lane", "name"), CASES)
async def test_a_case_gives_its_outcome_and_the_same_rows(lane, name, tmp_path):
    case = cases()[name]
    seen, stored, ran = await ask(lane, case, tmp_path)
    check(case, first_turn(seen))
    assert outcome(first_turn(stored)) == outcome(first_turn(seen))
    runnable = [call for call in outcome(first_turn(seen))["tool_calls"] if not call["invalid"]]
    assert ran == [call["arguments"] for call in runnable]


@pytest.mark.parametrize(("lane", "name"), [(lane, name) for lane, names in CHANGED.items() for name in names])
async def test_what_litellm_changes_still_ends_in_the_one_right_stop(lane, name, tmp_path):
    seen, stored, ran = await ask(lane, cases()[name], tmp_path)
    found = outcome(first_turn(stored))
    assert (found["finish_reason"], found["error"], found["text"]) == CHANGED[lane][name]
    assert outcome(first_turn(seen)) == found
    assert not ran
