"""Answers that are objects (issue 3, item 9): partial while they stream, validated at the end, repaired once."""

import json
from dataclasses import dataclass

import pytest
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from streamagent import Agent, ConfigError, MemoryStore, ModelError, ModelSettings, SessionClosed, get_model
from streamagent.message import Message, fold
from streamagent.models.fallback import FallbackModel
from streamagent.structured import REPAIRS_LIMIT, Output, StructuredReply
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock, text

pytestmark = pytest.mark.anyio
OWN_STORES = True


class Mug(BaseModel):
    """A mug."""

    name: str
    units: int = Field(ge=0)


class Node(BaseModel):
    """A recursive type."""

    value: int
    children: list["Node"] = []


MUG = '{"name": "blue mug", "units": 15}'


def pieces(text, size=4):
    return [text[start : start + size] for start in range(0, len(text), size)]


def session(*turns, **options):
    return Agent(ScriptedModel(*turns), **options).session("s")


async def test_partial_objects_come_while_it_streams_and_a_validated_one_at_the_end():
    async with session(answer(*pieces(MUG))) as opened:
        reply = opened.ask("Which?", output=Mug)
        seen = [partial async for partial in reply.partials()]
        assert await reply.object() == Mug(name="blue mug", units=15)
    assert seen[:3] == [{}, {"name": "bl"}, {"name": "blue m"}]
    assert seen[-1] == {"name": "blue mug", "units": 15}


async def test_the_object_needs_no_reading_before():
    async with session(answer(MUG)) as opened:
        reply = opened.ask("Which?", output=Mug)
        assert (await reply.object()).units == 15
        assert (await reply.object()).units == 15


async def test_it_is_a_reply_as_any_other():
    async with session(answer(*pieces(MUG))) as opened:
        assert "".join([piece async for piece in opened.ask("Which?", output=Mug).text()]) == MUG
        result = await opened.ask("Which?", output=Mug)
    assert (result.text, result.reason, result.usage) == (MUG, "stop", {"total_tokens": 3})


async def test_the_model_is_told_the_schema_in_words_and_in_its_settings():
    class Settled(ScriptedModel):
        async def stream(self, context, *, settings, **options):
            self.settings = settings
            async for message in super().stream(context, **options):
                yield message

    model = Settled(answer(MUG))
    async with Agent(model, system="Be brief.", settings=ModelSettings(seed=1)).session() as opened:
        await opened.ask("Which?", output=Mug).object()
    system = model.contexts[0][0].content
    assert system.startswith("Be brief.\n\n")
    assert json.loads(system[system.index("{") :]) == Mug.model_json_schema() == model.settings.response_schema
    assert model.settings.seed == 1


async def test_tools_may_be_called_before_the_object():
    turns = [calls(call("stock", product="mug")), answer(MUG)]
    async with session(*turns, tools=[stock]) as opened:
        reply = opened.ask("Which?", output=Mug)
        assert [partial async for partial in reply.partials()] == [{"name": "blue mug", "units": 15}]
        assert (await reply.object()).units == 15


async def test_an_answer_that_does_not_fit_is_given_back_with_what_is_wrong():
    store = MemoryStore()
    async with session(answer('{"name": "mug", "units": -1}'), answer(MUG), store=store) as opened:
        reply = opened.ask("Which?", output=Mug)
        partials = [partial async for partial in reply.partials()]
        assert (await reply.object()).units == 15
        rows = await check_rows(store)
    assert partials == [{"name": "mug", "units": -1}, {"name": "blue mug", "units": 15}]
    assert [(row.role, row.type) for row in rows] == [
        ("user", "text"),
        ("assistant", "text"),
        ("assistant", "stop"),
    ] * 2
    assert "units: Input should be greater than or equal to 0" in rows[3].content
    assert rows[3].query == {"feedback": {"of": "output", "round": 1}}


@pytest.mark.parametrize("repairs", [0, 1, REPAIRS_LIMIT])
async def test_it_is_repaired_as_often_as_was_said(repairs):
    model = ScriptedModel(answer("No."))
    async with Agent(model).session() as opened:
        reply = opened.ask("Which?", output=Output(Mug, repairs=repairs))
        with pytest.raises(ModelError, match=r"the answer: Invalid JSON") as caught:
            await reply.object()
    assert (len(model.contexts), caught.value.kind) == (repairs + 1, "invalid_output")


@pytest.mark.parametrize("repairs", [-1, REPAIRS_LIMIT + 1, "1"])
def test_more_repairs_are_refused(repairs):
    with pytest.raises(ConfigError, match=f"repairs is 0 to {REPAIRS_LIMIT}"):
        Output(Mug, repairs=repairs)


@pytest.mark.parametrize("turns", [[answer("No."), answer(MUG)], [answer(MUG)]])
async def test_asking_twice_with_one_key_shows_the_same_object_and_repairs_nothing_anew(turns):
    model = ScriptedModel(*turns, answer("never asked for"))
    store = MemoryStore()
    async with Agent(model, store=store).session("s") as opened:
        assert (await opened.ask("Which?", output=Mug, client_key="k").object()).units == 15
        before = await check_rows(store)
        assert (await opened.ask("Which?", output=Mug, client_key="k").object()).units == 15
        assert await check_rows(store) == before


async def test_a_failed_answer_raises_its_failure_and_is_not_repaired():
    model = ScriptedModel([Message.stop("error", error={"kind": "quota", "message": "no money", "retryable": False})])
    async with Agent(model).session() as opened:
        with pytest.raises(ModelError, match="no money") as caught:
            await opened.ask("Which?", output=Mug).object()
    assert (len(model.contexts), caught.value.kind) == (1, "quota")


@pytest.mark.parametrize("reason", ["length", "turn_limit"])
async def test_an_answer_that_was_cut_is_no_object_even_if_it_looks_like_one(reason):
    model = ScriptedModel([*text(MUG), Message.stop(reason)])
    async with Agent(model).session() as opened:
        with pytest.raises(ModelError, match=f"ended by '{reason}'") as caught:
            await opened.ask("Which?", output=Mug).object()
    assert (len(model.contexts), caught.value.kind) == (1, "invalid_output")


async def test_an_answer_that_was_left_is_no_object():
    model = ScriptedModel(answer("No."))
    async with Agent(model).session() as opened:
        async with opened.ask("Which?", output=Mug) as reply:
            await anext(reply)
        with pytest.raises(ModelError, match="left before its end"):
            await reply.object()
    assert len(model.contexts) == 0


async def test_another_question_cuts_an_abandoned_one_for_good():
    model = ScriptedModel(answer("No."))
    async with Agent(model).session() as opened:
        first = opened.ask("Which?", output=Mug)
        while (await anext(first)).role == "user":
            pass
        await opened.ask("Another?")
        with pytest.raises(ModelError, match="left before its end"):
            await first.object()
    assert len(model.contexts) == 2


async def test_nothing_is_asked_of_a_closed_session():
    async with session(answer(MUG)) as opened:
        pass
    with pytest.raises(SessionClosed):
        opened.ask("Which?", output=Mug)


async def test_what_a_later_attempt_superseded_is_no_part_of_the_object():
    half = [*text('{"name": "lost')[:-1], Message.stop("error", error={"kind": "overloaded", "retryable": True})]
    model = FallbackModel([ScriptedModel(half), ScriptedModel(answer(*pieces(MUG, 12)))])
    async with Agent(model).session() as opened:
        reply = opened.ask("Which?", output=Mug)
        seen = [partial async for partial in reply.partials()]
        assert (await reply.object()).name == "blue mug"
    assert seen == [{"name": "lost"}, {"name": "bl"}, {"name": "blue mug"}, {"name": "blue mug", "units": 15}]


async def test_a_model_alone_gives_objects_too():
    output = Output(Mug)
    model = get_model("mock")
    reply = StructuredReply(model.send("How many 'blue mug' are left?", settings=output.settings()), output)
    assert type(await reply.object()) is Mug
    prompt = [Message.system(output.instruction()), Message.user("How many?")]
    reply = StructuredReply(model.send(prompt), Mug)
    with pytest.raises(ModelError, match="Invalid JSON"):
        await reply.object()


async def test_a_model_alone_is_asked_again_by_its_caller():
    model = ScriptedModel(answer("No."), answer(MUG))
    first = FallbackModel([model])
    reply = StructuredReply(first.send("Which?"), Mug, again=lambda feedback: first.send(["Which?", feedback]))
    assert (await reply.object()).units == 15
    assert [message.role for message in model.contexts[1]] == ["user", "user"]


@dataclass
class Point:
    """A dataclass."""

    x: int


class Row(TypedDict):
    """A typed dict."""

    x: int


@pytest.mark.parametrize(("type_", "expected"), [(Point, Point(x=1)), (Row, {"x": 1})])
async def test_dataclasses_and_typed_dicts_are_outputs(type_, expected):
    async with session(answer('{"x": 1}')) as opened:
        assert await opened.ask("Where?", output=type_).object() == expected


def test_a_recursive_type_is_an_object():
    assert Output(Node).schema["type"] == "object"
    assert Output(Node).parse('{"value": 1, "children": [{"value": 2}]}').children[0].value == 2


@pytest.mark.parametrize("type_", [int, list[Mug], Mug(name="mug", units=1), object()])
def test_what_is_no_type_of_an_object_is_refused(type_):
    with pytest.raises(ConfigError, match="output="):
        Output(type_)


@pytest.mark.parametrize("fenced", [f"```json\n{MUG}\n```", f"  ```\n{MUG}```\n"])
def test_a_fence_is_taken_off(fenced):
    assert Output(Mug).parse(fenced).units == 15
    assert Output(Mug).partial(fenced.strip()[:-3])["units"] == 15


@pytest.mark.parametrize("unfinished", ["", "N", "```", "```json", "[1, 2"])
def test_what_is_no_object_yet_is_no_partial(unfinished):
    assert Output(Mug).partial(unfinished) is None


def test_only_the_first_errors_are_told():
    class Long(BaseModel):
        numbers: list[int]

    with pytest.raises(ModelError) as caught:
        Output(Long).parse(json.dumps({"numbers": ["x"] * 100}))
    assert str(caught.value).count("numbers.") == 8


def test_a_validator_of_ones_own_is_asked():
    class Even(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def even(cls, value):
            if value % 2:
                raise ValueError("is odd")
            return value

    with pytest.raises(ModelError, match="number: Value error, is odd"):
        Output(Even).parse('{"number": 1}')


async def test_a_long_answer_is_not_read_again_with_every_piece():
    class Counting(Output):
        read = 0

        def partial(self, text):
            self.read += len(text)
            return super().partial(text)

    class Long(BaseModel):
        words: list[str]

    whole = json.dumps({"words": ["word"] * 10_000})
    output = Counting(Long)
    async with session(answer(*pieces(whole, 8))) as opened:
        seen = [partial async for partial in opened.ask("Which?", output=output).partials()]
    assert output.read < 100 * len(whole)
    assert seen[-1] == json.loads(whole)


async def test_partials_may_be_left_early():
    async with session(answer(*pieces(MUG))) as opened:
        reply = opened.ask("Which?", output=Mug)
        partials = reply.partials()
        assert await anext(partials) == {}
        await partials.aclose()
        assert (await reply.object()).units == 15


async def test_the_prompt_that_repairs_is_seen_by_the_reader():
    async with session(answer("No."), answer(MUG)) as opened:
        messages = fold([message async for message in opened.ask("Which?", output=Mug)])
    assert [message.query for message in messages if message.role == "user"][1]["feedback"]["round"] == 1
