"""Every stage, left in every way after every message (STYLE §3)."""

import gc

import pytest

from streamagent.message import Message, split
from streamagent.stages.budget import budget
from streamagent.stages.buffer import buffer
from streamagent.stages.persist import persist
from streamagent.stages.quotas import quotas
from streamagent.stages.rate_limit import rate_limit
from streamagent.stages.repetition_guard import repetition_guard
from streamagent.stages.strip_reasoning import strip_reasoning
from streamagent.stages.think_tags import think_tags
from streamagent.stages.throttle import throttle
from streamagent.stages.tool_dispatch import tool_dispatch
from streamagent.stages.whole import whole
from streamagent.stores.memory import MemoryStore
from streamagent.testing.stages import ENDINGS, check_stage
from streamagent.tools.function import tool

pytestmark = pytest.mark.anyio


@tool
async def stock(product: str) -> int:
    """Units in stock."""
    return 15


def turn():
    """A turn with every kind of message, in fragments."""
    call = Message(
        type="tool_call", content='{"product":"mug"}', query={"tool": "stock", "id": "c1", "args": {"product": "mug"}}
    )
    return [
        Message(role="user", content="How many?", sequence=1),
        *split(Message(type="reasoning", content="let me see"), 4),
        *split(Message(content="<think>hm</think>I look."), 6),
        *split(call, 6),
        Message(type="of the future", content="?"),
        Message.stop("tool_calls"),
    ]


STAGES = {
    "budget": lambda: budget(tool_calls=0, tokens=1),
    "budget(day)": lambda: budget(tokens=1, scope="day"),
    "budget(seconds)": lambda: budget(seconds=1000),
    "buffer(0)": lambda: buffer(0),
    "buffer(8)": lambda: buffer(8),
    "persist": persist,
    "persist(lag_ms=0)": lambda: persist(lag_ms=0),
    "quotas": lambda: quotas(tool_dispatch([stock]), maxToolCallsPerTask=5)[0],
    "rate_limit": lambda: rate_limit(messages=1, tool_calls=0),
    "rate_limit(session)": lambda: rate_limit(messages=5, scope="session"),
    "repetition_guard": repetition_guard,
    "strip_reasoning": strip_reasoning,
    "think_tags": think_tags,
    "throttle": lambda: throttle(requests_per_minute=10_000, tokens_per_minute=10_000),
    "tool_dispatch": lambda: tool_dispatch([stock]),
    "whole": whole,
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", STAGES)
async def test_nothing_is_left_however_a_stage_is_left(name, ending):
    messages = turn()
    for at in range(1, len(messages) + 1):
        await check_stage(STAGES[name](), messages, ending, at=at, store=MemoryStore())
    gc.collect()  # what was not closed warns here, and warnings are errors


@pytest.mark.parametrize("name", sorted(set(STAGES) - {"budget", "rate_limit"}))
async def test_messages_of_unknown_types_pass_untouched(name):
    messages = turn()
    unknown = [message for message in messages if message.type == "of the future"]
    async with MemoryStore() as store:
        seen = await check_stage(STAGES[name](), messages, store=store)
    assert [message.content for message in seen if message.type == "of the future"] == [unknown[0].content]
