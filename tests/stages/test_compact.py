"""`compact`: the model sees what fits, and a summary of the rest when there is a model for it."""

import math
from dataclasses import replace

import pytest

from streamagent.agent import Agent
from streamagent.errors import ConfigError, ModelError
from streamagent.message import Message, split
from streamagent.models.mock import MockModel
from streamagent.pipeline import Pipeline, describe, open_pipeline
from streamagent.stages import compact as module
from streamagent.stages.compact import HEADER, compact
from streamagent.stages.persist import persist
from streamagent.stages.tool_dispatch import tool_dispatch
from streamagent.stores.memory import MemoryStore
from streamagent.testing.stages import Probe, check_stage
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock

pytestmark = pytest.mark.anyio
OWN_STORES = True


def numbered(messages):
    return [replace(message, sequence=number) for number, message in enumerate(messages, 1)]


def exchange(name):
    """24 tokens: a prompt, an answer, a stop."""
    return [Message.user(f"{name}?".ljust(24)), Message(content=f"{name}!".ljust(24)), Message.stop("stop")]


def conversation(count):
    """`count` exchanges and a prompt, behind a system message."""
    rows = [message for number in range(count) for message in exchange(number)]
    return [Message.system("Be kind."), *numbered([*rows, Message.user("Now?")])]


ROWS = conversation(30)


class Summariser:
    """Answers `S1`, `S2` … or what it is told to; keeps what it was asked."""

    name = "summariser"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.deadlines = []

    async def stream(self, context, *, tools=(), settings=None, deadline=math.inf):
        self.asked.append([message async for message in context])
        self.deadlines.append(deadline)
        said = self.answers.pop(0) if self.answers else f"S{len(self.asked)}"
        if isinstance(said, Exception):
            raise said
        if isinstance(said, Message):
            yield said
        else:
            for piece in split(Message(content=said), 2):
                yield piece
            yield Message.stop("stop")


async def context(stage, messages, session="s"):
    """What the model would see."""
    store = MemoryStore()
    async with open_pipeline(Probe(messages).stream(), stage, store=store, session=session) as tail:
        return [message async for message in tail]


def contents(messages):
    return [message.content.strip() for message in messages if message.type != "stop"]


async def test_a_context_that_fits_is_passed_on():
    messages = conversation(3)
    assert await check_stage(compact(tokens=1_000), messages) == messages


async def test_the_oldest_turns_are_left_out():
    assert contents(await context(compact(tokens=100), conversation(5))) == ["Be kind.", "3?", "3!", "4?", "4!", "Now?"]


async def test_the_limit_holds_in_the_loop_of_one_prompt_too():
    """T53."""
    model = ScriptedModel(*[calls(call("stock", f"c{n}", product="x" * 200)) for n in range(6)], answer("Done."))
    pipeline = Pipeline(context=[compact(tokens=250)], reply=[tool_dispatch([stock]), persist()])
    store = MemoryStore()
    async with Agent(model, tools=[stock], store=store, pipeline=pipeline).session("s") as session:
        await session.ask("How many?")
    assert [seen[0].content for seen in model.contexts] == ["How many?"] * 7
    assert [len([m for m in seen if m.type == "tool_call"]) for seen in model.contexts] == [0, 1, 2, 3, 1, 2, 3]
    assert len(await check_rows(store)) == 1 + 6 * 3 + 2  # nothing is changed in the store


async def test_a_prompt_that_cannot_fit_is_passed_on_and_logged(caplog):
    messages = [Message.user("x" * 400)]
    assert await context(compact(tokens=50), messages) == messages
    assert "have about 104 tokens, compact's limit is 50" in caplog.text


async def test_what_is_left_out_is_summarised_behind_the_system_messages():
    model = Summariser()
    seen = await context(compact(tokens=100, model=model), conversation(5))
    assert contents(seen) == ["Be kind.", f"{HEADER}S1", "3?", "3!", "4?", "4!", "Now?"]
    assert seen[1].role == "user"
    system, material = model.asked[0]
    assert (system.role, material.role) == ("system", "user")
    assert [line.strip() for line in material.content.splitlines()][:3] == ["User: 0?", "Assistant: 0!", "User: 1?"]


async def test_a_summary_is_made_once_for_each_cut():
    model = Summariser()
    stage = compact(tokens=200, model=model)
    for count in range(8, 30):
        await context(stage, ROWS[: 1 + 3 * count + 1])
    assert 3 <= len(model.asked) <= 8


async def test_a_later_summary_takes_up_the_earlier_one():
    model = Summariser()
    stage = compact(tokens=200, model=model)
    await context(stage, ROWS[: 1 + 3 * 8 + 1])
    seen = await context(stage, ROWS[: 1 + 3 * 14 + 1])
    assert seen[1].content == HEADER + "S2"
    material = model.asked[1][1].content
    assert material.startswith("Summary of what came before:\nS1\n\nUser: ")
    assert "User: 0?" not in material


async def test_the_context_begins_the_same_until_the_next_cut():
    """T125."""
    stage = compact(tokens=200, model=Summariser())
    first = await context(stage, ROWS[: 1 + 3 * 8 + 1])
    second = await context(stage, ROWS[: 1 + 3 * 9 + 1])
    assert contents(second)[: len(contents(first))] == contents(first)


async def test_another_process_makes_the_summary_in_few_calls_of_bounded_size():
    model = Summariser()
    await context(compact(tokens=200, model=model), conversation(200))
    assert 15 <= len(model.asked) <= 40  # 200 exchanges of some 60 characters, 640 at once
    assert max(len(material.content) for _, material in model.asked) <= 640 + len("Summary of what came before:\n") + 84
    told = "".join(material.content for _, material in model.asked)
    assert all(f"User: {number}?" in told for number in range(190))


async def test_a_known_summary_is_used_although_the_cuts_before_it_are_forgotten():
    model = Summariser()
    stage = compact(tokens=200, model=model)
    await context(stage, conversation(5))  # nothing to cut
    history = conversation(100)
    await context(stage, history)
    made = len(model.asked)
    seen = await context(stage, history)
    assert (len(model.asked), seen[1].content) == (made, f"{HEADER}S{made}")


@pytest.mark.parametrize("change", [-60, 60])
async def test_a_known_summary_is_used_although_another_system_prompt_moved_the_cuts(change):
    model = Summariser()
    stage = compact(tokens=400, model=model)
    await context(stage, [Message.system("x" * 200), *ROWS[1:]])
    made = len(model.asked)
    seen = await context(stage, [Message.system("x" * (200 + 4 * change)), *ROWS[1:]])
    assert seen[1].content == f"{HEADER}S{len(model.asked)}"
    assert len(model.asked) - made <= 1
    assert all("Summary of what came before" in material.content for _, material in model.asked[made:])


async def test_a_known_summary_is_not_used_when_nothing_is_left_out_any_more():
    model = Summariser()
    stage = compact(tokens=100, model=model)
    await context(stage, [Message.system("x" * 200), *ROWS[1:8]])
    assert len(model.asked) == 1
    assert contents(await context(stage, ROWS[:8])) == contents(ROWS[:8])


async def test_a_session_of_the_same_name_gets_no_summary_of_another():
    """Sessions of two tenants, or one that was deleted and begun anew."""
    model = Summariser()
    stage = compact(tokens=100, model=model)
    await context(stage, conversation(20))
    before = len(model.asked)
    seen = await context(stage, conversation(5))
    assert seen[1].content == f"{HEADER}S{before + 1}"
    assert "Summary of what came before" not in model.asked[-1][1].content


async def test_a_failed_summary_is_logged_and_tried_again_at_the_next_turn(caplog):
    error = ModelError("no such model", kind="not_found")
    stop = Message.stop("error", error={"kind": "overloaded", "message": "later"})
    model = Summariser(error, stop, " ", "At last.")
    stage = compact(tokens=100, model=model)
    for said in ("ModelError: no such model", "ModelError: later", "the answer is empty"):
        assert contents(await context(stage, ROWS[:17])) == ["Be kind.", "3?", "3!", "4?", "4!", "5?"]
        assert f"session s: no summary, so older turns are left out: {said}" in caplog.text
    assert contents(await context(stage, ROWS[:17]))[1] == f"{HEADER}At last."


async def test_after_a_failure_the_last_good_summary_stays_and_no_more_is_asked(caplog):
    model = Summariser("Good.", ModelError("x", kind="timeout"))
    stage = compact(tokens=200, model=model)
    await context(stage, ROWS[: 1 + 3 * 8 + 1])
    seen = await context(stage, ROWS)
    assert (seen[1].content, len(model.asked)) == (f"{HEADER}Good.", 2)
    assert "ModelError: x" in caplog.text


async def test_a_summary_is_not_longer_than_its_share():
    seen = await context(compact(tokens=100, model=MockModel("x" * 1_000)), conversation(5))
    assert seen[1].content == HEADER + "x" * 40


async def test_calls_results_and_attachments_are_told_as_text():
    asked = call("stock", product="mug")
    image = Message(role="user", type="image", query={"url": "https://example.com/a.png"})
    result = Message(role="tool", type="tool_result", content="15", query={"tool": "stock", "call": asked.id})
    rows = [image, Message(type="reasoning", content="hm"), asked, Message.stop("tool_calls"), result]
    model = Summariser()
    stage = compact(tokens=70, model=model, count=lambda fragment: len(fragment.content) / 4)
    await context(stage, numbered([*rows, *exchange(1), *exchange(2), Message.user("?")]))
    assert model.asked[0][1].content.splitlines()[:3] == [
        "User: [image https://example.com/a.png]",
        "Assistant calls stock: {'product': 'mug'}",
        "Result of stock: 15",
    ]


async def test_of_what_is_too_long_for_one_request_the_middle_is_left_out():
    long = numbered([Message.user("a" * 4_000), Message(content="b" * 100), Message.stop("stop"), Message.user("?")])
    model = Summariser()
    await context(compact(tokens=100, model=model), long)
    material = model.asked[0][1].content
    assert material == "User: " + "a" * 154 + "\n[…]\n" + material[-160:]


async def test_the_smallest_limit_has_a_summary_too():
    seen = await context(compact(tokens=1, model=MockModel("A summary.")), conversation(3))
    assert contents(seen) == ["Be kind.", f"{HEADER}A su", "Now?"]


async def test_nothing_is_asked_when_nothing_was_said():
    rows = numbered([message for _ in range(20) for message in (Message.user(""), Message.stop("error"))])
    model = Summariser()
    await context(compact(tokens=40, model=model), rows)
    assert model.asked == []


async def test_the_oldest_summaries_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "_SESSIONS", 2)
    model = Summariser()
    stage = compact(tokens=100, model=model)
    for session in ("a", "b", "a", "c", "a"):
        await context(stage, ROWS[:17], session)
    assert len(model.asked) == 3
    await context(stage, ROWS[:17], "b")
    assert len(model.asked) == 4


async def test_the_runs_deadline_and_the_prompt_are_the_models_too():
    model = Summariser()
    agent = Agent(
        "mock",
        timeout=60,
        pipeline=Pipeline(context=[compact(tokens=20, model=model, prompt="In rhymes.")], reply=[persist()]),
    )
    async with agent.session() as session:
        await session.ask("x" * 200)
        await session.ask("And?")
    assert model.asked[0][0].content == "In rhymes. Use at most 1 words."
    assert model.deadlines[0] < math.inf


@pytest.mark.parametrize("options", [{"tokens": 0}, {"tokens": 9, "keep": 0}, {"tokens": 9, "keep": 1.1}])
def test_limits_that_cannot_be_are_refused(options):
    with pytest.raises(ConfigError, match="tokens of 1 or more"):
        compact(**options)


def test_the_name_of_a_model_is_refused_with_the_way_to_get_one():
    with pytest.raises(ConfigError, match=r"get_model\('mock'\)"):
        compact(tokens=9, model="mock")


def test_it_prints_as_it_was_written():
    assert describe(compact(tokens=9, keep=1)) == "compact(keep=1, tokens=9)"
    assert describe(compact(tokens=9, model=MockModel())) == "compact(keep=0.5, summary='mock', tokens=9)"
