"""What all chunk models share: waiting, asking again, ending in a stop."""

import math

import anyio
import pytest

from streamagent._core.sse import DONE
from streamagent.calls import ToolSpec
from streamagent.errors import ModelError
from streamagent.protocols import ModelSettings

from .script import ANSWER, ScriptedModel, delta

pytestmark = pytest.mark.anyio


def failure(kind="overloaded", **options):
    return ModelError("busy", **{"kind": kind, "retryable": True, **options})


async def test_an_answer_is_fragments_and_one_stop():
    fragments = [fragment async for fragment in ScriptedModel(ANSWER).send("Hi")]
    assert [(fragment.type, fragment.content) for fragment in fragments if fragment.content] == [
        ("text", "Hel"),
        ("text", "lo"),
    ]
    assert [fragment.type for fragment in fragments].count("stop") == 1
    assert fragments[-1].query == {"reason": "stop", "usage": {"total_tokens": 3}, "model": "script/model"}


async def test_a_failure_before_anything_was_shown_is_tried_again():
    model = ScriptedModel([failure()], [delta(role="assistant"), failure()], ANSWER)
    result = await model.send("Hi")
    assert result.text == "Hello"
    assert model.naps.taken == [0.5, 1.0]
    assert {message.attempt for message in result} == {3}


async def test_the_stop_tells_of_failed_attempts():
    empty = [delta("stop"), {"choices": [], "usage": {"total_tokens": 2}}, DONE]
    result = await ScriptedModel([failure()], empty, ANSWER).send("Hi")
    attempts = result.stop.query["attempts"]
    assert [attempt["error"]["kind"] for attempt in attempts] == ["overloaded", "empty_response"]
    assert [attempt.get("usage") for attempt in attempts] == [None, {"total_tokens": 2}]


async def test_the_stop_tells_what_all_attempts_cost():
    class Priced(ScriptedModel):
        async def price(self, usage):
            return usage["total_tokens"] / 4

    empty = [delta("stop"), {"choices": [], "usage": {"total_tokens": 2}}, DONE]
    result = await Priced(empty, ANSWER).send("Hi")
    assert result.stop.query["cost"] == 1.25


async def test_a_failure_after_something_was_shown_ends_the_answer():
    model = ScriptedModel([delta(content="Hel"), failure()], ANSWER)
    result = await model.send("Hi")
    assert (result.text, result.reason, result.error["kind"]) == ("Hel", "error", "overloaded")
    assert model.scripts == [ANSWER]


async def test_an_error_among_the_chunks_ends_the_answer():
    model = ScriptedModel([delta(content="Hel"), {"error": {"message": "Overloaded"}}, delta(content="lo")])
    result = await model.send("Hi")
    assert (result.text, result.error["kind"]) == ("Hel", "overloaded")
    assert model.closed == 1


async def test_attempts_are_counted():
    model = ScriptedModel(*[[failure()]] * 9)
    result = await model.send("Hi", settings=ModelSettings(retries=1))
    assert result.error["kind"] == "overloaded"
    assert len(model.requests) == 2


@pytest.mark.parametrize("answer", [[delta("stop"), DONE], [delta("MALFORMED_FUNCTION_CALL"), DONE]])
async def test_an_answer_of_nothing_is_asked_for_twice_more_at_once(answer):
    """Quirks Q47, Q48."""
    model = ScriptedModel(*[answer] * 9)
    result = await model.send("Hi")
    assert result.error["kind"] in {"empty_response", "malformed_call"}
    assert len(model.requests) == 3
    assert model.naps.taken == [0.0, 0.0]


async def test_an_answer_cut_before_it_began_is_not_tried_again():
    model = ScriptedModel([delta("length"), DONE])
    assert (await model.send("Hi")).reason == "length"


async def test_what_cannot_succeed_is_not_tried_again():
    model = ScriptedModel([failure("auth", retryable=False)], ANSWER)
    assert (await model.send("Hi")).error["kind"] == "auth"
    assert len(model.requests) == 1


async def test_nothing_is_slept_beyond_the_deadline():
    model = ScriptedModel([failure("rate_limited", retry_after=7)], ANSWER)
    result = await model.send("Hi", deadline=anyio.current_time() + 5)
    assert result.error["kind"] == "rate_limited"
    assert model.naps.taken == []


async def test_what_the_provider_asks_to_wait_is_waited():
    model = ScriptedModel([failure("rate_limited", retry_after=7)], ANSWER)
    assert (await model.send("Hi")).text == "Hello"
    assert model.naps.taken == [7]


async def test_silence_ends_the_answer():
    model = ScriptedModel([delta(content="Hel"), ...])
    result = await model.send("Hi", settings=ModelSettings(idle_timeout=0.01))
    assert (result.text, result.error["kind"]) == ("Hel", "timeout")
    assert "nothing for 0.01 s" in result.error["message"]
    assert model.closed == 1


async def test_silence_before_the_first_chunk_is_tried_again():
    model = ScriptedModel([...], ANSWER)
    assert (await model.send("Hi", settings=ModelSettings(idle_timeout=0.01))).text == "Hello"


async def test_the_deadline_ends_the_answer():
    model = ScriptedModel([...], ANSWER)
    result = await model.send("Hi", deadline=anyio.current_time() + 0.01)
    assert result.error["kind"] == "timeout"
    assert "deadline" in result.error["message"]
    assert len(model.requests) == 1


async def test_an_answer_without_proof_of_its_end_is_truncated():
    result = await ScriptedModel([delta(content="Hel")]).send("Hi")
    assert result.error["kind"] == "truncated"


async def test_garbage_is_a_protocol_error():
    result = await ScriptedModel([delta(content="Hel"), {"choices": 5}]).send("Hi")
    assert (result.text, result.error["kind"]) == ("Hel", "protocol")


async def test_a_bug_raises():
    model = ScriptedModel([delta(content="Hel"), ZeroDivisionError()])
    with pytest.raises(ZeroDivisionError):
        await model.send("Hi")
    assert model.closed == 1


@pytest.mark.parametrize("count", range(1, 4))
async def test_leaving_early_closes_the_provider(count):
    model = ScriptedModel(ANSWER)
    stream = model.send("Hi")
    for _ in range(count):
        await anext(stream)
    await stream.aclose()
    assert model.closed == 1


@pytest.mark.parametrize("count", range(3))
async def test_a_cancelled_answer_closes_the_provider(count):
    model = ScriptedModel([*[delta(content=f"{number}") for number in range(count)], ...])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(model.send("Hi").result)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert model.closed == 1


async def test_the_tools_names_resolve_calls():
    tools = [ToolSpec(name="stock", description="", parameters={})]
    opener = delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "stock", "arguments": "{}"}}])
    result = await ScriptedModel([opener, DONE]).send("Hi", tools=tools)
    assert result[0].query == {"tool": "stock", "id": "c", "args": {}}


async def test_think_tags_are_reasoning_when_asked():
    settings = ModelSettings(think_tags=True)
    result = await ScriptedModel([delta(content="<think>hm</think>Hi"), DONE]).send("Hi", settings=settings)
    assert [(message.type, message.content) for message in result[:2]] == [("reasoning", "hm"), ("text", "Hi")]


async def test_an_endless_deadline_is_none():
    assert (await ScriptedModel(ANSWER).send("Hi", deadline=math.inf)).reason == "stop"
