"""A context that is too long to be held is read while it is sent."""

from dataclasses import replace

import anyio
import orjson
import pytest

from streamagent import Agent, MemoryStore, Message, ModelSettings, Pipeline, Runtime, SqliteStore, persist
from streamagent._core.profiles import Profile
from streamagent._core.request import build_request
from streamagent.errors import StoreCorrupt
from streamagent.models import http
from streamagent.models.body import PIECE, StreamedBody
from streamagent.models.chunks import HELD, History
from streamagent.models.direct import DirectModel
from streamagent.models.fallback import FallbackModel
from streamagent.testing import assert_no_leaks
from streamagent.testing.provider import Response, scripted_provider, sse, text

from .lanes import ANSWER, KEY, anyio_backend  # noqa: F401 - a fixture
from .script import Naps

pytestmark = pytest.mark.anyio

BUSY = Response(status=503, body=[b'{"error": {"message": "busy"}}'])
LENGTH = Response(status=411, body=[b"Length Required"])


class Context:
    """A conversation that can be read more than once; it counts how often it was, and what is open."""

    def __init__(self, messages, error=None):
        self.messages = messages
        self.error = error
        self.begun = self.ended = 0

    async def __aiter__(self):
        self.begun += 1
        try:
            for message in self.messages:
                yield message
            if self.error:
                raise self.error
        finally:
            self.ended += 1


def conversation(size, piece=50_000):
    """Texts of both sides in turn, of `size` characters together, with a call and its result."""
    asked = Message(type="tool_call", content="{}", query={"tool": "t", "id": "c1", "args": {}})
    result = Message(role="tool", type="tool_result", content="15", query={"id": "c1", "call": asked.id})
    rows = [Message.system("Be brief."), Message.user("How many?"), asked, Message.stop("tool_calls"), result]
    for number in range(-(-size // piece)):
        said = chr(0x41 + number % 26) * min(piece, size - number * piece)
        rows.append(Message.user(said) if number % 2 else Message(content=said))
    return [*rows, Message.user("And now?")]


def rows_of(size):
    """A conversation whose content has just so many bytes."""
    fixed = sum(len(row.content) for row in conversation(0))
    return conversation(size - fixed)


async def ask(context, *script, name="openai/test", **settings):
    async with scripted_provider(script) as provider:
        model = DirectModel(name, api_base=provider.url, api_key=KEY, sleep=Naps())
        answer = model.stream(context, settings=ModelSettings(**settings))
        said = [message async for message in answer]
        return said, provider.requests


@pytest.mark.parametrize(("size", "streamed"), [(HELD, False), (HELD + 1, True)])
async def test_the_limit_is_what_is_held(size, streamed):
    context = Context(rows_of(size))
    said, [request] = await ask(context, ANSWER)
    assert said[-1].query["reason"] == "stop"
    assert (request.headers.get("transfer-encoding") == "chunked") is streamed
    assert request.json["messages"] == build_request(context.messages)
    assert (context.begun, context.ended) == ((2, 2) if streamed else (1, 1))


async def test_the_rest_of_the_request_is_the_same():
    requests = [(await ask(Context(rows_of(size)), ANSWER, max_tokens=9))[1][0].json for size in (10, 2 * HELD)]
    short, long = ({key: value for key, value in request.items() if key != "messages"} for request in requests)
    assert short == long


async def test_an_iterator_can_be_read_once_and_is_held():
    rows = rows_of(2 * HELD)
    _, [first, second] = await ask(aiter(Context(rows)), BUSY, ANSWER)
    assert first.json["messages"] == second.json["messages"] == build_request(rows)
    assert "content-length" in first.headers


async def test_another_attempt_reads_it_again():
    context = Context(rows_of(2 * HELD))
    said, [first, second] = await ask(context, BUSY, ANSWER)
    assert "".join(message.content for message in said) == "Hello"
    assert first.json == second.json
    assert context.begun == context.ended == 3


async def test_a_provider_that_wants_the_length_gets_it_and_is_remembered():
    context = Context(rows_of(2 * HELD))
    async with scripted_provider([LENGTH, ANSWER, ANSWER]) as provider:
        model = DirectModel("openai/test", api_base=provider.url, api_key=KEY, sleep=Naps())
        for _ in range(2):
            said = [message async for message in model.stream(context)]
            assert said[-1].query["reason"] == "stop"
        lengths = [request.headers.get("content-length") for request in provider.requests]
    assert lengths == [None, str(len(provider.requests[1].body)), str(len(provider.requests[2].body))]
    assert provider.requests[1].json["messages"] == build_request(context.messages)


async def test_one_that_wants_it_all_the_same_is_not_asked_for_ever():
    said, requests = await ask(Context(rows_of(2 * HELD)), *[LENGTH] * 9)
    assert "Length Required (status 411)" in said[-1].query["error"]["message"]
    assert len(requests) == 4


async def test_what_reading_fails_with_comes_out_as_it_is():
    """The HTTP client would say that the connection was lost, and the request would be sent again."""
    context = Context(rows_of(2 * HELD), StoreCorrupt("page 7"))
    async with scripted_provider([ANSWER]) as provider:
        model = DirectModel("openai/test", api_base=provider.url, api_key=KEY)
        with pytest.raises(StoreCorrupt, match="page 7"):
            [message async for message in model.stream(context)]
    assert context.begun == context.ended


async def test_a_provider_that_refuses_before_it_has_read_all_is_understood():
    context = Context(rows_of(64 * HELD))

    async def refuse(stream):
        async with stream:
            await stream.receive()
            body = b'{"error": {"message": "This model\'s maximum context length is 4096 tokens"}}'
            await stream.send(b"HTTP/1.1 400 Bad\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            with anyio.move_on_after(5):  # a server that stops reading, but does not reset the connection
                while True:
                    await stream.receive()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, refuse)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        model = DirectModel("openai/test", api_base=f"http://127.0.0.1:{port}/v1", api_key=KEY)
        said = [message async for message in model.stream(context)]
        tasks.cancel_scope.cancel()
    assert said[-1].query["error"]["kind"] == "context_overflow"
    assert context.begun == context.ended


async def test_cancelled_in_the_midst_of_sending_nothing_is_left():
    context, connected = Context(rows_of(64 * HELD)), anyio.Event()

    async def stall(stream):
        connected.set()
        async with stream:
            await anyio.sleep_forever()

    await http.load()
    await ask(Context([Message.user("Hi")]), ANSWER)
    await http.close_idle()
    async with assert_no_leaks():
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(listener.serve, stall)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            model = DirectModel("openai/test", api_base=f"http://127.0.0.1:{port}/v1", api_key=KEY)
            answer = model.stream(context)
            with anyio.move_on_after(30) as scope:
                async with anyio.create_task_group() as inner:

                    async def cancel():
                        await connected.wait()
                        while context.begun < 2:
                            await anyio.sleep(0)
                        scope.cancel()

                    inner.start_soon(cancel)
                    async for _ in answer:
                        pass
            await answer.aclose()
            tasks.cancel_scope.cancel()
        await http.close_idle()
    assert context.begun == context.ended == 2


async def test_a_session_streams_its_history_from_the_store(tmp_path):
    async with scripted_provider([ANSWER, ANSWER]) as provider:
        model = DirectModel("openai/test", api_base=provider.url, api_key=KEY)
        agent = Agent(model, system="Be brief.", pipeline=Pipeline(reply=[persist()]))
        async with Runtime(store=SqliteStore(tmp_path / "s.db")) as runtime:
            rows = rows_of(2 * HELD)[1:-1]
            fence = await runtime.store.acquire("s")
            await runtime.store.write("s", rows, fence=fence)
            await runtime.store.release("s", fence=fence)
            async with agent.session("s", runtime=runtime) as session:
                assert (await session.ask("And now?")).text == "Hello"
        [request] = provider.requests
    assert request.headers["transfer-encoding"] == "chunked"
    wanted = build_request([Message.system("Be brief."), *rows, Message.user("And now?")])
    assert request.json["messages"] == wanted


async def test_with_a_stage_of_the_context_what_that_gives_is_sent():
    async def shouting(stream):
        async for message in stream:
            yield replace(message, content=message.content.upper())

    async with scripted_provider([ANSWER]) as provider:
        model = DirectModel("openai/test", api_base=provider.url, api_key=KEY)
        agent = Agent(model, pipeline=Pipeline(context=[shouting], reply=[persist()]))
        async with Runtime(store=MemoryStore()) as runtime, agent.session("s", runtime=runtime) as session:
            assert (await session.ask("a" * 2 * HELD)).text == "Hello"
        [request] = provider.requests
    assert request.json["messages"][0]["content"] == "A" * 2 * HELD


async def test_a_fallback_streams_too():
    context = Context(rows_of(2 * HELD))
    async with scripted_provider([Response(status=401, body=[b"no"]), ANSWER]) as provider:
        models = [DirectModel(f"openai/{name}", api_base=provider.url, api_key=KEY) for name in "ab"]
        said = [message async for message in FallbackModel(models).stream(context)]
        assert [request.headers.get("transfer-encoding") for request in provider.requests] == ["chunked"] * 2
    assert said[-1].query["model"] == "openai/b"


async def test_pieces_are_of_the_size_that_was_said_and_make_the_request():
    rows = rows_of(2 * HELD)
    body = StreamedBody({"model": "m", "messages": [], "stream": True}, History(Context(rows), Profile()))
    pieces = [piece async for piece in body.pieces()]
    assert all(len(piece) >= PIECE for piece in pieces[:-1])
    assert max(map(len, pieces)) < PIECE + 60_000
    assert orjson.loads(b"".join(pieces)) == {"messages": build_request(rows), "model": "m", "stream": True}
    assert await body.measure() == sum(map(len, pieces))


async def test_another_attempt_is_not_given_what_the_one_before_has_said():
    """The rows of the first are stored by then."""
    half = Response(body=sse(text("Half"), done=False), ending="reset")
    async with scripted_provider([half, ANSWER]) as provider:
        models = [DirectModel(f"openai/{name}", api_base=provider.url, api_key=KEY) for name in "ab"]
        agent = Agent(FallbackModel(models), pipeline=Pipeline(reply=[persist(lag_ms=0)]))
        async with Runtime(store=MemoryStore()) as runtime, agent.session("s", runtime=runtime) as session:
            assert (await session.ask("a" * 2 * HELD)).text == "Hello"
        first, second = (request.json["messages"] for request in provider.requests)
    assert first == second == [{"role": "user", "content": "a" * 2 * HELD}]
