"""What all chunk models share: waiting, asking again, ending in a stop."""

import itertools
import math
from contextlib import suppress

import anyio
import pytest

from streamagent._core.assembler import Assembler
from streamagent._core.sse import DONE
from streamagent.calls import ToolSpec
from streamagent.errors import ModelError
from streamagent.models.attempt import Attempt, Limits
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


class Endless(ScriptedModel):
    """Says the same things for ever, without ever waiting."""

    def __init__(self, *chunks):
        super().__init__(chunks)

    async def chunks(self, request):
        [chunks] = self.scripts
        for chunk in itertools.cycle(chunks):
            yield chunk


def arguments(text):
    return delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "stock", "arguments": text}}])


@pytest.mark.parametrize(
    "chunks",
    [[delta()], [delta(content="a"), delta(content="b")], [delta(reasoning_content="a"), delta(reasoning_content="b")]],
)
async def test_a_call_ends_when_its_time_is_up(chunks):
    """F09."""
    result = await Endless(*chunks).send("Hi", settings=ModelSettings(timeout=0.05))
    assert (result.reason, result.error["kind"]) == ("error", "timeout")
    assert "0.05 s of ModelSettings.timeout" in result.error["message"]


async def test_the_time_of_a_call_counts_for_all_attempts():
    model = ScriptedModel(*[[failure("rate_limited", retry_after=7)]] * 9)
    result = await model.send("Hi", settings=ModelSettings(timeout=6))
    assert (result.error["kind"], model.naps.taken) == ("rate_limited", [])


async def test_the_nearer_of_time_and_deadline_holds():
    deadline = anyio.current_time() + 0.01
    result = await Endless(delta()).send("Hi", settings=ModelSettings(timeout=60), deadline=deadline)
    assert "deadline" in result.error["message"]


@pytest.mark.parametrize(
    "piece", [lambda text: delta(content=text), lambda text: delta(reasoning_content=text), arguments]
)
async def test_an_answer_that_does_not_end_is_cut_at_its_limit(piece, monkeypatch):
    """F09."""
    monkeypatch.setattr("streamagent._core.assembler.ANSWER_LIMIT", 10)
    result = await Endless(piece("ab"), piece("cd")).send("Hi")
    assert (result.reason, result.error["kind"], result.error["retryable"]) == ("error", "repetition", False)
    assert result[0].content == "abcdabcdab"


async def test_an_answer_of_just_the_limit_is_whole(monkeypatch):
    monkeypatch.setattr("streamagent._core.assembler.ANSWER_LIMIT", 5)
    assert (await ScriptedModel(ANSWER).send("Hi")).text == "Hello"


class Slow(ScriptedModel):
    """Takes as long to get ready as a test wants."""

    async def prepare(self):
        self.preparing = True
        await self.ready.wait()


async def test_getting_ready_is_no_silence_of_the_provider():
    model = Slow(ANSWER)
    model.ready = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def ask():
            assert (await model.send("Hi", settings=ModelSettings(idle_timeout=0.2, retries=0))).text == "Hello"

        tasks.start_soon(ask)
        await anyio.sleep(0.3)  # longer than the provider may be silent
        model.ready.set()


async def test_getting_ready_ends_at_the_deadline():
    model = Slow(ANSWER)
    model.ready = anyio.Event()
    result = await model.send("Hi", deadline=anyio.current_time() + 0.01)
    assert (result.error["kind"], model.requests) == ("timeout", [])


async def test_what_cannot_get_ready_fails_as_a_request_does():
    class Broken(ScriptedModel):
        async def prepare(self):
            raise failure("auth", retryable=False)

    assert (await Broken(ANSWER).send("Hi")).error["kind"] == "auth"


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


@pytest.mark.parametrize("swallows", [True, False])
async def test_a_provider_that_swallows_its_cancellation_is_left_when_it_is_silent(monkeypatch, swallows):
    monkeypatch.setattr("streamagent.waiting.GRACE", 0.05)

    class Deaf(ScriptedModel):
        async def chunks(self, request):
            yield delta(content="Hel")
            while True:
                with suppress(anyio.get_cancelled_exc_class() if swallows else ()):
                    await anyio.sleep_forever()

    result = await Deaf(ANSWER).send("Hi", deadline=anyio.current_time() + 0.05)
    assert (result.text, result.error["kind"]) == ("Hel", "timeout")


async def test_chunks_that_were_left_in_the_middle_of_a_wait_are_not_closed():
    class Left:
        ag_running = True

        async def aclose(self):
            raise RuntimeError("asynchronous generator is already running")

    async def open_left():
        return Left()

    limits = Limits(idle=1, deadline=math.inf, late="late")
    attempt = Attempt(open_left, Assembler(), delay=None, limits=limits)
    assert await attempt.step() == []  # it has asked
    await attempt.aclose()
