"""Pipelines: composition, printing, opening and closing."""

import logging

import anyio
import pytest

from streamagent.cancellation import raise_single
from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.pipeline import Chain, Pipeline, open_pipeline
from streamagent.stages.buffer import buffer
from streamagent.stages.persist import persist
from streamagent.stages.rate_limit import rate_limit
from streamagent.stages.strip_reasoning import strip_reasoning
from streamagent.testing.leaks import assert_no_leaks
from streamagent.testing.stages import Boom, Probe

pytestmark = pytest.mark.anyio

THREE = [Message(content=text) for text in "abc"]


async def shout(stream):
    async for message in stream:
        yield message


async def audit(stream, run):
    async for message in stream:
        yield message


def test_a_pipeline_prints_as_it_was_written():
    pipeline = Pipeline(context=[shout], reply=[rate_limit(messages=100, tool_calls=10), persist(), strip_reasoning()])
    assert repr(pipeline) == (
        "Pipeline(context=[shout], reply=[rate_limit(messages=100, scope='run', tool_calls=10), "
        "persist(lag_bytes=4096, lag_ms=50), strip_reasoning()])"
    )
    assert str(pipeline).startswith("store → shout → model → rate_limit(")
    assert str(pipeline).endswith("strip_reasoning() → session")


def test_a_callable_object_prints_as_itself():
    class Loud:
        def __call__(self, stream):
            return stream

        def __repr__(self):
            return "Loud(3)"

    assert repr(Pipeline(reply=[Loud()])) == "Pipeline(reply=[Loud(3)])"


def test_pipelines_compose_by_plus():
    both = Pipeline(context=[audit], reply=[shout]) + Pipeline(context=[shout], reply=[audit])
    assert (both.context, both.reply) == ((audit, shout), (shout, audit))
    assert (Pipeline() + shout).reply == (shout,)
    stages = [shout, audit]
    assert (Pipeline() + stages).reply == (shout, audit)


@pytest.mark.parametrize("wrong", [persist, strip_reasoning, "persist", lambda a, b, c: a])
def test_what_is_no_stage_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match="is not a stage"):
        Pipeline(reply=[wrong])


def test_a_builtin_without_signature_counts_as_a_plain_stage():
    assert Pipeline(reply=[zip]).reply == (zip,)


async def test_a_stage_that_returns_no_iterator_is_named():
    source = Probe(THREE)
    with pytest.raises(ConfigError, match=r"stage buffer\.<locals>|stage .*returned 3"):
        async with open_pipeline(source.stream(), lambda _: 3):
            pass


async def test_a_coroutine_that_a_stage_returned_is_closed():
    """A stage without a `yield`: Python would warn later that nobody awaited it, which fails a test here."""

    async def forgetful(stream):
        return stream

    async with assert_no_leaks():
        with pytest.raises(ConfigError, match="returned <coroutine object"):
            async with open_pipeline(Probe(THREE).stream(), forgetful):
                pass


async def test_a_store_is_missing_with_a_clear_text():
    with pytest.raises(ConfigError, match="store=…"):
        async with open_pipeline(Probe(THREE).stream(), persist()) as tail:
            async for _ in tail:
                pass


async def test_messages_pass_in_order_through_both_kinds_of_stage():
    async with open_pipeline(Probe(THREE).stream(), shout, audit, buffer(1)) as tail:
        assert [message.content async for message in tail] == ["a", "b", "c"]


async def test_the_error_of_a_background_task_is_raised_unwrapped():
    async def fail():
        raise Boom

    async def stage(stream, run):
        run.tasks.start_soon(fail)
        async for message in stream:
            yield message

    with pytest.raises(Boom):
        async with open_pipeline(Probe(THREE).stream(), stage) as tail:
            async for _ in tail:
                await anyio.sleep_forever()


def test_a_real_group_stays_a_group():
    group = BaseExceptionGroup("two", [Boom(), Boom()])
    for outer in (group, BaseExceptionGroup("one", [group])):
        with pytest.raises(BaseExceptionGroup) as caught:
            raise_single(outer)
        assert caught.value is group


async def test_a_link_that_does_not_close_is_abandoned_and_said(caplog):
    async def stubborn(stream):
        try:
            async for message in stream:
                yield message
        finally:
            await anyio.sleep_forever()

    source = Probe(THREE)
    with caplog.at_level(logging.WARNING, "streamagent"):
        async with open_pipeline(source.stream(), stubborn, close_timeout=0.01) as tail:
            await anext(tail)
    assert "did not close" in caplog.text
    assert source.closed == 1


async def test_a_link_that_was_left_in_the_middle_of_a_wait_is_not_closed():
    class Left:
        ag_running = True

        async def __anext__(self):
            raise StopAsyncIteration

        async def aclose(self):
            raise RuntimeError("asynchronous generator is already running")

    await Chain(Left()).aclose()
