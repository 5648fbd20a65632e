"""Whatever a provider sends, over real HTTP, on each lane: one stop, no error but ours, and nothing left open.

`pytest tests/models/test_lane_fuzz.py --hypothesis-profile thorough` looks further, and elsewhere each time.
"""

from contextlib import asynccontextmanager, nullcontext

import anyio
import anyio.from_thread
import litellm
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamagent.calls import ToolSpec
from streamagent.message import Message
from streamagent.protocols import ModelSettings
from streamagent.shared import close_idle
from streamagent.testing import assert_no_leaks
from streamagent.testing.provider import finish, sse, text
from tests.quirks import check_stream

from .lanes import NAMES, NOISE, anyio_backend, lane, model_at  # noqa: F401 - fixtures
from .raw import raw_provider
from .streams import TOOLS, answers, assembled, bodies, broken, essence, good, odd_answers, responses, whole

THOROUGH = settings.get_current_profile_name() == "thorough"
QUICK = settings(
    max_examples=12, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
LOOKING = settings() if THOROUGH else QUICK
# LiteLLM makes a coroutine and awaits it later: cut between the two, it was never awaited.
UNAWAITED = pytest.mark.filterwarnings("ignore:coroutine 'OpenAIChatCompletion:RuntimeWarning")
pytestmark = [pytest.mark.anyio, NOISE, UNAWAITED, pytest.mark.timeout(7_200 if THOROUGH else 120)]

HANGS = 60  # seconds after which something hangs, on any machine
SILENCE = 0.05  # seconds; what a provider that hangs costs
GOOD = good(b"".join(sse(text("Hel"), text("lo"), finish("stop"))))
SPECS = [ToolSpec(name=name, description=name, parameters={"type": "object"}) for name in TOOLS]
KINDS = {
    *("auth", "bad_request", "connection", "content_filter", "context_overflow", "empty_response", "malformed_call"),
    *("not_found", "overloaded", "protocol", "provider_error", "quota", "rate_limited", "repetition", "timeout"),
    "truncated",
}
# LiteLLM's parser has rules of its own for what is not as OpenAI sends it (`tests/test_quirks_end_to_end.py`).
PARSED_BY_LITELLM = ("acompletion",)


class Asker:
    """Asks a model on a lane, from the thread in which hypothesis runs."""

    def __init__(self, lane, provider):  # noqa: F811 - pytest's way
        self.lane, self.name = lane, NAMES[lane]
        self._provider, self._model = provider, model_at(provider)

    def ask(self, *plays, leave=None, retries=0):
        """Ask; return the messages of the answer.

        Args:
            plays: What is sent, in turn.
            leave: After how many messages the reader leaves.
            retries: How often the model may ask again.
        """
        return anyio.from_thread.run(self._ask, plays, leave, retries)

    async def _ask(self, plays, leave, retries):
        self._provider.plays[:] = plays
        idle = SILENCE if any(play.ending == "hang" for play in plays) and leave is None else HANGS
        options = ModelSettings(retries=retries, idle_timeout=idle, timeout=HANGS)
        seen = []
        with anyio.fail_after(HANGS):
            reply = self._model.send("Hi", tools=SPECS, settings=options)
            async for message in reply:
                seen.append(message)
                if len(seen) == leave:
                    break
            await reply.aclose()
        return seen

    def check_closed(self):
        """Assert that no answer is open any more: its connection is closed, or waits for the next request."""
        anyio.from_thread.run(self._wait)

    async def _wait(self):
        with anyio.fail_after(HANGS):
            await self._provider.quiet()


@asynccontextmanager
async def asking(lane):  # noqa: F811 - pytest's way
    """Give an asker; when the block is left, no connection of it is open, and no task or generator of ours."""
    async with raw_provider(GOOD):
        pass  # the first server of a loop opens a file of its own for good
    leaks = nullcontext() if lane == "acompletion" else assert_no_leaks(grace=HANGS)  # LiteLLM keeps threads of its own
    async with leaks, raw_provider(GOOD) as provider:
        yield Asker(lane, provider)
        await close_idle()
        if lane == "acompletion":
            await litellm.close_litellm_async_clients()
        with anyio.fail_after(HANGS):
            await provider.left()


async def look(lane, strategy, holds):  # noqa: F811 - pytest's way
    """Run `holds` with an asker and each example of a strategy."""
    async with asking(lane) as asker:
        await anyio.to_thread.run_sync(LOOKING(given(strategy)(lambda example: holds(asker, example))))


def as_openai(lane):  # noqa: F811 - pytest's way
    return bodies(answers(), noisy=False) if lane in PARSED_BY_LITELLM else bodies(answers() | odd_answers())


def said(messages, kind):
    return "".join(message.content for message in messages if message.type == kind)


def check(messages):
    """Hold an answer against what holds of each."""
    check_stream(messages)
    for message in messages:
        assert Message.from_json(message.to_json()).id == message.id
    error = messages[-1].query.get("error")
    assert (messages[-1].query["reason"] in ("error", "content_filter")) == (error is not None)
    assert error is None or error["kind"] in KINDS, error


async def test_what_comes_whole_is_what_the_assembler_makes_of_it(lane):  # noqa: F811 - a fixture
    def holds(asker, sent):
        messages = asker.ask(sent.play)
        asker.check_closed()
        check(messages)
        assert essence(messages) == essence(assembled(sent.body, name=asker.name))

    await look(lane, whole(as_openai(lane)), holds)


async def test_what_is_cut_anywhere_is_a_beginning_and_says_so(lane):  # noqa: F811 - a fixture
    def holds(asker, sent):
        messages = asker.ask(sent.play)
        asker.check_closed()
        check(messages)
        right = assembled(sent.body, name=asker.name)
        for kind in ("text", "reasoning"):
            assert said(right, kind).startswith(said(messages, kind))
        if messages[-1].query["reason"] != "error":
            assert essence(messages) == essence(right)

    await look(lane, broken(as_openai(lane)), holds)


async def test_garbage_ends_in_one_stop_and_spoils_nothing(lane):  # noqa: F811 - a fixture
    def holds(asker, drawn):
        play, again = drawn
        retries = int(again and play.ending != "hang")
        messages = asker.ask(play, retries=retries)
        check(messages)
        attempts = messages[-1].query.get("attempts", ())
        assert len(attempts) <= retries
        if attempts and said(messages, "text") != "Hello":  # it went out as the provider closed the connection
            assert messages[-1].query["error"]["kind"] in ("connection", "truncated")
        assert said(asker.ask(retries=3), "text") == "Hello"

    await look(lane, st.tuples(responses(), st.booleans()), holds)


async def test_who_leaves_leaves_nothing(lane):  # noqa: F811 - a fixture
    def holds(asker, drawn):
        sent, leave = drawn
        assert len(asker.ask(sent.play, leave=leave)) <= leave
        asker.check_closed()
        assert said(asker.ask(retries=3), "text") == "Hello"

    await look(lane, st.tuples(whole(as_openai(lane)), st.integers(1, 4)), holds)
