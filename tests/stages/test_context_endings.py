"""The context stages, left in every way after every message (STYLE §3)."""

import gc

import pytest

from streamagent.models.mock import MockModel
from streamagent.stages.compact import compact
from streamagent.stages.inject import inject
from streamagent.stages.redact import redact
from streamagent.stores.memory import MemoryStore
from streamagent.testing.stages import ENDINGS, check_stage

from .test_endings import turn

pytestmark = pytest.mark.anyio

STAGES = {
    "compact": lambda: compact(tokens=1_000),
    "compact(small)": lambda: compact(tokens=20),
    "compact(model)": lambda: compact(tokens=40, model=MockModel("In short.")),
    "inject": lambda: inject(lambda *_: "News."),
    "inject(after_system)": lambda: inject(lambda *_: "News.", where="after_system"),
    "redact": lambda: redact(values=["many", "I look", "mug"[0] * 4]),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", STAGES)
async def test_nothing_is_left_however_a_context_stage_is_left(name, ending):
    messages = [*turn(), *turn()]
    for at in range(1, len(messages) + 1):
        await check_stage(STAGES[name](), messages, ending, at=at, store=MemoryStore())
    gc.collect()  # what was not closed warns here, and warnings are errors


@pytest.mark.parametrize("name", sorted(set(STAGES) - {"compact(small)", "compact(model)"}))
async def test_messages_of_unknown_types_pass_a_context_stage_untouched(name):
    messages = turn()
    seen = await check_stage(STAGES[name](), messages, store=MemoryStore())
    assert [message for message in seen if message.type == "of the future"] == [messages[-2]]
