"""Several models behind one (issue 3, item 13; T123, F03, F07): no doubled text, no call of a failed attempt runs."""

import math

import anyio
import pytest

from streamagent import Agent, ConfigError, get_model, tool
from streamagent._core.request import build_request
from streamagent.errors import ModelError
from streamagent.message import Message, afold, fold
from streamagent.models.fallback import MODELS_LIMIT, FallbackModel
from streamagent.models.mock import MockModel
from tests.scripted import ScriptedModel, answer, call, check_rows, text

from .script import ANSWER, delta
from .script import ScriptedModel as ScriptedChunks

pytestmark = pytest.mark.anyio
OWN_STORES = True


def failure(kind="overloaded", *, retryable=True, **query):
    return Message.stop("error", error={"kind": kind, "message": "down", "retryable": retryable}, **query)


def failing(*messages, **options):
    return ScriptedModel([*messages, failure(**options)])


def named(name, model):
    model.name = name
    return model


def half(*pieces):
    """A text that is not closed."""
    return text(*pieces)[:-1]


async def ask(*models, prompt="Hi.", **options):
    return [message async for message in FallbackModel(models).send(prompt, **options)]


@pytest.mark.parametrize("kind", ["overloaded", "auth", "quota", "not_found"])
async def test_a_failure_before_anything_was_shown_is_not_seen(kind):
    models = [named("a", failing(kind=kind, retryable=False)), named("b", ScriptedModel(answer("Hello")))]
    messages = fold(await ask(*models))
    assert [message.type for message in messages] == ["text", "stop"]
    [failed] = messages[-1].query["attempts"]
    assert (messages[-1].query["model"], failed["model"], failed["error"]["kind"]) == ("b", "a", kind)


async def test_a_refusal_by_a_content_filter_stands():
    messages = await ask(failing(kind="content_filter", retryable=False), MockModel())
    assert [message.query["error"]["kind"] for message in messages] == ["content_filter"]


async def test_what_was_shown_is_superseded_by_the_next_model():
    first = ScriptedModel([*half("Hel"), failure(usage={"total_tokens": 7})])
    messages = await ask(named("a", first), named("b", ScriptedModel(answer("Hello"))))
    cut, said, stop = fold(messages)
    assert (cut.content, cut.attempt, cut.query["cut"], cut.more) == ("Hel", 1, "superseded", False)
    assert (said.content, said.attempt, said.query) == ("Hello", 2, None)
    assert (stop.attempt, stop.query["model"], stop.query["attempts"][0]["usage"]) == (2, "b", {"total_tokens": 7})
    assert cut.id != said.id
    assert sum(message.type == "stop" for message in messages) == 1


async def test_text_that_the_model_closed_before_it_failed_is_superseded_too():
    cut, said, _ = fold(await ask(failing(*text("Hel")), ScriptedModel(answer("Hello"))))
    assert (cut.query, said.query) == ({"cut": "superseded"}, None)


async def test_what_was_shown_stands_when_the_failure_is_final():
    second = ScriptedModel(answer("Hello"))
    said, stop = fold(await ask(failing(*half("Hel"), kind="repetition", retryable=False), second))
    assert (said.query["cut"], stop.query["error"]["kind"], second.contexts) == ("error", "repetition", [])


async def test_what_was_shown_stands_when_no_other_model_has_anything_to_show():
    said, stop = fold(await ask(failing(*half("Hel")), failing(kind="auth", retryable=False)))
    assert (said.content, said.query["cut"], said.attempt) == ("Hel", "error", 1)
    assert (stop.query["error"]["kind"], len(stop.query["attempts"])) == ("auth", 1)


async def test_an_attempt_that_showed_nothing_leaves_the_earlier_one_to_the_third():
    messages = fold(await ask(failing(*half("Hel")), failing(), ScriptedModel(answer("Hello"))))
    assert [(message.type, message.attempt) for message in messages] == [("text", 1), ("text", 3), ("stop", 3)]
    assert messages[0].query["cut"] == "superseded"


async def test_a_stream_without_a_stop_is_a_failure():
    class Mute(ScriptedModel):
        async def stream(self, context, **_):
            yield half("Hel")[0]

    messages = fold(await ask(Mute(), ScriptedModel(answer("Hello"))))
    assert [message.content for message in messages] == ["Hel", "Hello", ""]
    assert messages[-1].query["attempts"][0]["error"]["kind"] == "truncated"
    assert fold(await ask(Mute()))[-1].query["error"]["kind"] == "truncated"
    assert fold(await ask(Mute(), failing()))[-1].query["error"]["kind"] == "overloaded"


async def test_a_model_that_yields_nothing_at_all_is_a_failure():
    class Empty(ScriptedModel):
        async def stream(self, context, **_):
            return
            yield

    [stop] = await ask(Empty())
    assert (stop.attempt, stop.query["error"]["kind"]) == (1, "truncated")


async def test_silent_retries_of_a_model_are_told_too():
    down = ModelError("down", kind="overloaded", retryable=True)
    models = [ScriptedChunks([down], [down], [down], [down]), ScriptedChunks([down], ANSWER)]
    stop = (await ask(*models))[-1]
    assert [(attempt["model"], attempt["error"]["kind"]) for attempt in stop.query["attempts"]] == [
        ("script/model", "overloaded")
    ] * 5
    assert stop.attempt == 6


async def test_a_broken_provider_stream_falls_back_in_the_midst_of_the_answer():
    broken = [delta(content="Hel"), ModelError("reset", kind="truncated", retryable=True)]
    result = await FallbackModel([ScriptedChunks(broken), ScriptedChunks(ANSWER)]).send("Hi.")
    assert (result.text, result.reason, result.error) == ("Hello", "stop", None)


async def test_calls_of_a_failed_attempt_are_refused_and_others_pass():
    first = failing(*half("I look."), call("stock", "c1", product="mug"))
    second = ScriptedModel([call("stock", "c2", product="mug"), *text("So."), Message.stop("tool_calls")])
    messages = fold(await ask(first, second))
    shown = {message.query["id"]: message.query for message in messages if message.type == "tool_call"}
    assert (shown["c1"]["args"], shown["c1"]["invalid"], shown["c1"]["cut"]) == (None, "truncated", "superseded")
    assert shown["c2"] == {"tool": "stock", "id": "c2", "args": {"product": "mug"}}
    assert [message.type for message in messages] == ["text", "tool_call", "tool_call", "text", "stop"]


async def test_a_call_of_the_last_failed_attempt_is_refused():
    asked, _ = fold(await ask(failing(call("stock", product="mug"))))
    assert (asked.query["args"], asked.query["invalid"], asked.query["cut"]) == (None, "truncated", "error")


async def test_several_complete_messages_keep_their_order():
    whole = [Message(type="reasoning", content="Hm."), Message(content="Hello"), Message.stop("stop")]
    messages = await ask(ScriptedModel([*whole[:2], *text("!"), whole[2]]))
    assert [message.content for message in fold(messages)] == ["Hm.", "Hello", "!", ""]
    assert {message.query and message.query.get("cut") for message in messages} == {None}


async def test_every_model_reads_the_whole_context_also_when_the_first_read_half_of_it():
    class Hasty(ScriptedModel):
        async def stream(self, context, **_):
            await anext(aiter(context))
            yield failure()

    second = ScriptedModel(answer("Hello"))
    await ask(Hasty(), second, prompt=[Message.user("One."), Message.user("Two.")])
    assert [message.content for message in second.contexts[0]] == ["One.", "Two."]


async def test_after_the_deadline_no_other_model_is_asked():
    second = ScriptedModel(answer("Hello"))
    now = anyio.current_time()
    [stop] = await ask(failing(), second, deadline=now)
    assert (stop.query["reason"], second.contexts) == ("error", [])
    assert (await ask(failing(), second, deadline=math.inf))[-1].query["reason"] == "stop"


async def test_a_model_twice_in_the_list_is_tried_twice():
    model = ScriptedModel([*half("Hel"), failure()], answer("Hello"))
    assert (await FallbackModel([model, model]).send("Hi.")).text == "Hello"


@pytest.mark.parametrize("left_after", range(1, 6))
async def test_a_reader_who_leaves_has_closed_every_model(left_after):
    models = [ScriptedModel([*half("Hel"), failure()]), ScriptedModel(answer("Hel", "lo"))]
    stream = FallbackModel(models).send("Hi.")
    for _ in range(left_after):
        await anext(stream)
    await stream.aclose()
    assert [model.closed for model in models] == [len(model.contexts) for model in models]


async def test_a_bug_in_a_model_is_raised():
    class Bug(ScriptedModel):
        async def stream(self, context, **_):
            raise RuntimeError("bug")
            yield

    with pytest.raises(RuntimeError, match="bug"):
        await ask(Bug(), MockModel())


async def test_names_with_a_bar_between_are_a_fallback():
    model = get_model("mock | openai/gpt-5-mini")
    assert (type(model), model.name) == (FallbackModel, "mock|openai/gpt-5-mini")
    assert Agent("mock|mock").model.name == "mock|mock"


@pytest.mark.parametrize("models", [[], "mock", ["mock"] * (MODELS_LIMIT + 1)])
def test_a_list_that_cannot_be_used_is_refused(models):
    with pytest.raises(ConfigError, match=f"list of 1 to {MODELS_LIMIT} models"):
        FallbackModel(models)


def test_the_longest_list_is_taken():
    assert len(FallbackModel(["mock"] * MODELS_LIMIT).models) == MODELS_LIMIT
    with pytest.raises(ConfigError, match="names no model"):
        get_model("mock|")


STARTED = []


@tool
async def ship(product: str) -> str:
    """Send something off."""
    STARTED.append(product)
    return "sent"


@pytest.fixture
def store(either_store):
    return either_store


async def test_a_session_keeps_no_doubled_text_and_runs_no_call_of_a_failed_attempt(store):
    """Neither in the result, nor in the next request, nor after it was read again."""
    STARTED.clear()
    first = ScriptedModel([*half("Ship"), call("ship", "c1", product="lost"), failure()])
    second = ScriptedModel([*text("Shipping."), call("ship", "c2", product="mug"), Message.stop("tool_calls")])
    third = ScriptedModel(answer("Done."))
    turns = FallbackModel([first, second])
    agent = Agent(turns, tools=[ship], store=store)
    async with agent.session("s") as session:
        async for message in session.ask("Ship it.", client_key="k"):
            if message.type == "tool_result" and message.query["id"] == "c2":
                turns.models = (third,)
        rows = await check_rows(session._runtime.store)
        again = await session.ask("Ship it.", client_key="k")
    assert STARTED == ["mug"]
    request = build_request(rows)
    assert [entry.get("content") for entry in request] == ["Ship it.", "Shipping.", "sent", "Done."]
    assert [item["id"] for entry in request for item in entry.get("tool_calls", ())] == ["c2"]
    assert again.text == "Done."


async def test_the_text_of_a_superseded_attempt_is_no_text_of_the_result_after_a_reload(store):
    model = FallbackModel([ScriptedModel([*half("Hel"), failure()]), ScriptedModel(answer("Hello"))])
    async with Agent(model, store=store).session("s") as session:
        live = await session.ask("Hi.", client_key="k")
        again = await session.ask("Hi.", client_key="k")
        stored = await afold(session.history())
    assert (live.text, again.text) == ("Hello", "Hello")
    assert [(row.content, row.attempt) for row in stored] == [("Hi.", 1), ("Hel", 1), ("Hello", 2), ("", 2)]
