"""Prompts of several messages: stored together, admitted together, one answer."""

from dataclasses import replace

import anyio
import pytest

from streamagent import Agent, Message, Runtime
from streamagent.attachments import file, image
from streamagent.errors import ConfigError, ConflictError, MessageError
from streamagent.message import new_id
from streamagent.prompts import PARTS_LIMIT, as_prompt
from streamagent.records import Owner
from streamagent.resume import CRASHES
from streamagent.settle import settle
from tests.scripted import ScriptedModel, answer, check_rows

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(either_store):
    return either_store


PICTURE = image("https://example.com/mug.png")
NOTES = file(b"Remember the milk.", name="notes.txt")
DATA = Message(role="user", type="data", content='{"a": 1}')
PROMPT = ["What is this?", PICTURE, NOTES, DATA, "And this?"]
KINDS = ["text", "image", "file", "data", "text"]


def again(items=PROMPT):
    """The same prompt, as another process would make it: with ids of its own."""
    return [item if isinstance(item, str) else replace(item, id=new_id()) for item in items]


async def test_the_messages_of_a_prompt_are_one_prompt_with_one_answer(store):
    agent = Agent(ScriptedModel(answer("A mug.")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        result = await session.ask(again())
        stored = await check_rows(store)
    assert [m.type for m in result] == [*KINDS, "text", "stop"]
    assert [m.type for m in stored] == [m.type for m in result]
    assert [m.type for m in agent.model.contexts[0]] == KINDS
    assert len(agent.model.contexts) == 1


async def test_send_takes_them_too_and_each_prompt_is_answered_by_itself(store):
    agent = Agent(ScriptedModel(answer("x")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        await session.send(["1", "2"])
        await session.send(["3", "4"])
        await session.send_eof()
        seen = [m.content async for m in session if m.role == "user"]
        assert seen == ["1", "2", "3", "4"]
    assert [[m.content for m in context if m.role == "user"] for context in agent.model.contexts] == [
        ["1", "2"],
        ["1", "2", "3", "4"],
    ]


async def test_steering_that_came_before_comes_behind_all_of_them(store):
    agent = Agent(ScriptedModel(answer("x")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        await session.steer("Be brief.")
        await session.ask(["1", "2"])
    assert [m.content for m in agent.model.contexts[0]] == ["1", "2", "Be brief."]


async def test_the_same_key_shows_the_stored_answer_to_all_of_them(store):
    agent = Agent(ScriptedModel(answer("A mug."), answer("never")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        first = await session.ask(again(), client_key="k")
        second = await session.ask(again(), client_key="k")
        assert [m.id for m in second] == [m.id for m in first]
        await session.ask("Next.")
        assert [m.id for m in await session.ask(again(), client_key="k")] == [m.id for m in first]
    assert len(agent.model.contexts) == 2


@pytest.mark.parametrize("other", [["a", "c"], ["a"], ["a", "b", "b"], ["b", "a"], ["a", Message.system("b")]])
async def test_the_key_stands_for_the_whole_list(store, other):
    agent = Agent(ScriptedModel(answer("x")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        await session.ask(["a", "b"], client_key="k")
        with pytest.raises(ConflictError, match="'k' was used before"):
            await session.ask(other, client_key="k")
        assert await store.inbox("s") == []


async def test_nothing_is_stored_when_one_of_them_cannot_be(store):
    async with Runtime(store=store):
        known = await store.enqueue("s", Message.user("known"))
        with pytest.raises(MessageError, match="already"):
            await store.enqueue("s", Message.user("a"), rest=[Message.user("b"), replace(known, sequence=None)])
        with pytest.raises(MessageError, match="fragment"):
            await store.enqueue("s", Message.user("a"), rest=[Message(role="user", content="half", more=True)])
        assert [m.content for m in await store.inbox("s")] == ["known"]


async def test_a_prompt_that_waits_when_the_process_ends_is_whole_for_the_next(store):
    first, *rest = as_prompt(["1", "2", "3"])
    async with Runtime(store=store) as runtime:
        await store.enqueue("s", first, rest=rest)
        agent = Agent(ScriptedModel(answer("x")))
        async with agent.session("s", runtime=runtime) as session:
            await session.ask("4")
    assert [[m.content for m in context if m.role == "user"] for context in agent.model.contexts] == [
        ["1", "2", "3"],
        ["1", "2", "3", "4"],
    ]


async def test_a_part_whose_prompt_is_gone_is_answered_by_itself(store):
    async with Runtime(store=store) as runtime:
        await store.enqueue("s", Message(role="user", content="alone", query={"part_of": "nobody"}))
        agent = Agent(ScriptedModel(answer("x")))
        async with agent.session("s", runtime=runtime) as session:
            await session.send_eof()
            assert [m.content async for m in session if m.role == "user"] == ["alone"]


async def test_a_stored_message_is_sent_again_without_what_tied_it_to_its_prompt():
    first, second = as_prompt(["1", "2"])
    assert as_prompt(replace(first, id=new_id(), sequence=1))[0].query is None
    assert as_prompt(replace(second, id=new_id(), sequence=2))[0].query is None


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "1 to 100 messages, not 0"),
        (["x"] * (PARTS_LIMIT + 1), "1 to 100 messages, not 101"),
        (["x", 5], "text or a Message, not 5"),
        (["x", Message.stop("stop")], "a whole message of role 'user' or 'system'"),
        (5, "text or a Message, not 5"),
        ({"role": "user"}, "text or a Message, not {'role': 'user'}"),
        ([PICTURE, PICTURE], "same id"),
    ],
)
async def test_what_is_no_prompt_is_refused_with_what_it_is(prompt, said):
    async with Agent("mock").session() as session:
        with pytest.raises(MessageError) as caught:
            session.ask(prompt)
        assert said in str(caught.value)
        with pytest.raises(MessageError):
            await session.send(prompt)


async def test_as_many_messages_as_may_be_are_one_prompt():
    agent = Agent(ScriptedModel(answer("x")))
    async with agent.session("s") as session:
        assert len(await session.ask(("x",) * PARTS_LIMIT)) == PARTS_LIMIT + 2


# --- F57: a prompt that crashes its process is not tried again


async def test_a_prompt_in_which_three_processes_have_died_is_given_up_and_the_session_goes_on(store):
    agent = Agent(ScriptedModel(answer("fine")))
    async with Runtime(store=store) as runtime:
        poison = await store.enqueue("s", Message.user("poison"), client_key="k")
        for number in range(CRASHES):
            fence = await store.acquire("s", owner=Owner(id=f"process {number}", ttl=60))
            await store.admit("s", fence=fence)
            await store.retire(f"process {number}")
        async with agent.session("s", runtime=runtime) as session:
            result = await session.ask("poison", client_key="k")  # the client tries again
            assert result.error["kind"] == "poison"
            assert result[0].id == poison.id
        async with agent.session("s", runtime=runtime) as session:
            await session.send("Are you there?")
            await session.send_eof()
            assert [m.content async for m in session if m.role == "user"] == ["Are you there?"]
        assert len(agent.model.contexts) == 1
        await check_rows(store)


async def test_a_prompt_that_crashes_while_it_waits_is_settled_once_it_is_admitted(store):
    agent = Agent(ScriptedModel(answer("fine")))
    async with Runtime(store=store) as runtime:
        await store.enqueue("s", Message.user("poison"))
        fence = await store.acquire("s")
        await store.admit("s", fence=fence)
        assert [m.type for m in await settle(store, "s", fence=fence, cause="crashed")] == ["stop"]
        async with agent.session("s", runtime=runtime) as session:
            await session.send_eof()
            with anyio.fail_after(5):
                assert [m async for m in session] == []
    assert agent.model.contexts == []


# --- what only the runtime may say

ODD = [
    {"lane": []},
    {"lane": "decision"},
    {"lane": "cancel"},
    {"lane": "steer", "interrupt": True},
    {"feedback": {"round": 1}},
    {"part_of": ["x"]},
    {"parent": {"session": "s"}, "path": ["x"], "cut": "aborted"},
]


@pytest.mark.parametrize("odd", ODD)
async def test_what_a_user_says_in_the_runtimes_name_is_left_out_and_the_message_is_answered(store, odd):
    agent = Agent(ScriptedModel(answer("one"), answer("two")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        with anyio.fail_after(5):
            result = await session.ask(Message(role="user", content="1", query={**odd, "mine": 1}))
            assert (result[0].query, result.text) == ({"mine": 1}, "one")
            assert (await session.ask("2")).text == "two"


@pytest.mark.parametrize("odd", [{"lane": []}, {"lane": {}}, {"lane": "decision"}, {"part_of": []}])
async def test_an_odd_message_that_waits_already_is_answered_as_a_prompt(store, odd):
    agent = Agent(ScriptedModel(answer("one"), answer("two")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        await store.enqueue("s", Message(role="user", content="1", query=odd))
        with anyio.fail_after(5):
            assert (await session.ask("2")).text == "two"
    assert len(agent.model.contexts) == 2


async def test_a_part_with_a_lane_stays_with_its_prompt(store):
    agent = Agent(ScriptedModel(answer("x")))
    async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
        await session.ask(["1", Message(role="user", content="2", query={"lane": "steer"}), "3"])
        assert [m.content for m in agent.model.contexts[0]] == ["1", "2", "3"]


@pytest.mark.parametrize("key", ["streamagent:decision:1", 3, ["k"]])
async def test_a_key_that_is_none_of_a_user_is_refused(key):
    async with Agent("mock").session() as session:
        for send in (session.send, session.steer, session.follow_up):
            with pytest.raises(ConfigError, match="key"):
                await send("a", client_key=key)
        with pytest.raises(ConfigError, match="key"):
            session.ask("a", client_key=key)


@pytest.mark.parametrize(
    "odd",
    [
        {"content": 3},
        {"query": [1]},
        {"id": 3},
        {"type": ["text"]},
        {"role": []},
        {"created_at": "now"},
        {"attempt": None},
    ],
)
async def test_a_message_with_a_field_of_a_wrong_type_is_refused_with_its_name(odd):
    async with Agent("mock").session() as session:
        with pytest.raises(MessageError, match=f"field '{next(iter(odd))}' cannot be"):
            session.ask(Message(**{"role": "user", **odd}))
