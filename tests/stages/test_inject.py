"""`inject`: what a source gives stands where it was asked to, and is not stored."""

import pytest

from streamagent.agent import Agent
from streamagent.errors import ConfigError, MessageError
from streamagent.message import Message, split
from streamagent.pipeline import Pipeline, open_pipeline
from streamagent.stages.inject import inject
from streamagent.stages.persist import persist
from streamagent.stages.tool_dispatch import tool_dispatch
from streamagent.stores.memory import MemoryStore
from streamagent.testing.stages import Boom, Probe, check_stage
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock

pytestmark = pytest.mark.anyio
OWN_STORES = True

HISTORY = [
    Message.system("Be kind."),
    Message.user("One?"),
    Message(content="1."),
    Message.stop("stop"),
    Message.user("Two?"),
]


async def contents(stage, messages=HISTORY):
    return [message.content for message in await check_stage(stage, messages)]


async def news(prompt, run):
    return f"News for {prompt.content} in {run.session}."


async def test_a_text_stands_before_the_last_prompt():
    seen = await check_stage(inject(news), HISTORY)
    assert [message.content for message in seen[-2:]] == ["News for Two? in check.", "Two?"]
    assert (seen[-2].role, len(seen)) == ("user", 6)


async def test_a_text_stands_behind_the_system_messages():
    seen = await check_stage(inject(news, where="after_system", role="system"), HISTORY)
    assert [message.content for message in seen[:3]] == ["Be kind.", "News for Two? in check.", "One?"]
    assert (seen[1].role, len(seen)) == ("system", 6)


async def test_what_precedes_the_last_prompt_is_not_held():
    async with open_pipeline(Probe(HISTORY).stream(), inject(news)) as tail:
        assert (await anext(tail)).content == "Be kind."
    source = Probe([*HISTORY[:-1], *[HISTORY[-1]] * 2])
    async with open_pipeline(source.stream(), inject(news)) as tail:
        seen = [await anext(tail) for _ in range(4)]
    assert [message.content for message in seen] == ["Be kind.", "One?", "1.", ""]


async def test_of_several_prompts_in_a_row_the_last_text_is_shown_to_the_source():
    image = Message(role="user", type="image", query={"url": "u"})
    seen = await contents(inject(news), [*HISTORY, *split(Message.user("And three?"), 4), Message.system("!"), image])
    assert seen[4:] == ["News for And three? in check.", "Two?", "And ", "thre", "e?", "!", ""]


async def test_a_prompt_without_text_is_shown_as_it_is():
    asked = []
    image = Message(role="user", type="image", query={"url": "u"})
    await check_stage(inject(lambda prompt, run: asked.append(prompt)), [image])
    assert asked == [image]


async def test_in_the_tool_loop_it_stands_before_the_prompt_still():
    loop = [call("stock"), Message.stop("tool_calls"), Message(role="tool", type="tool_result", content="15")]
    assert (await contents(inject(news), [*HISTORY, *loop]))[4:6] == ["News for Two? in check.", "Two?"]


@pytest.mark.parametrize(
    ("given", "added"),
    [
        (None, []),
        ("", []),
        ([], []),
        (Message.user("a"), ["a"]),
        ([Message.system("a"), Message.user("b")], ["a", "b"]),
        ((Message.user("a"), Message.user("b")), ["a", "b"]),
    ],
)
async def test_a_source_gives_text_or_messages_or_nothing(given, added):
    assert await contents(inject(lambda prompt, run: given), HISTORY[-1:]) == [*added, "Two?"]


async def test_a_context_without_a_prompt_is_left_alone():
    messages = [Message.system("Be kind."), Message(content="1.")]
    assert await check_stage(inject(news), messages) == messages


async def fails(prompt, run):
    raise Boom("out of order")


def odd(prompt, run):
    return [42]


@pytest.mark.parametrize("source", [fails, odd])
async def test_a_source_that_fails_is_logged_and_the_context_goes_on(source, caplog):
    assert await check_stage(inject(source), HISTORY) == HISTORY
    assert "session check: inject's source failed" in caplog.text


@pytest.mark.parametrize(("source", "error"), [(fails, Boom), (odd, MessageError)])
async def test_what_a_required_source_raises_is_raised(source, error):
    with pytest.raises(error):
        async with open_pipeline(Probe(HISTORY).stream(), inject(source, required=True)) as tail:
            [message async for message in tail]


@pytest.mark.parametrize(
    ("source", "options"), [("text", {}), (news, {"role": "assistant"}), (news, {"where": "here"})]
)
def test_what_cannot_be_is_refused(source, options):
    with pytest.raises(ConfigError, match=r"inject takes a function of \(prompt, run\)"):
        inject(source, **options)


async def test_it_is_asked_at_each_turn_and_nothing_of_it_is_stored():
    model = ScriptedModel(calls(call("stock", product="mug")), answer("15."))
    store = MemoryStore()
    pipeline = Pipeline(context=[inject(news)], reply=[tool_dispatch([stock]), persist()])
    async with Agent(model, tools=[stock], store=store, pipeline=pipeline).session("s") as session:
        await session.ask("How many?")
    for context in model.contexts:
        assert [message.content for message in context[:2]] == ["News for How many? in s.", "How many?"]
    assert len(model.contexts) == 2
    assert "News" not in "".join(row.content for row in await check_rows(store))
