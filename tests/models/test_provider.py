"""The scripted provider itself."""

import anyio
import pytest

from streamagent.testing.provider import Response, call, delta, finish, scripted_provider, sse, text, usage

pytestmark = pytest.mark.anyio

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n"


async def exchange(provider, *pieces):
    """Send pieces and return what came until the server closed."""
    received = b""
    async with await anyio.connect_tcp("127.0.0.1", int(provider.url.split(":")[2].split("/")[0])) as stream:
        for piece in pieces:
            await stream.send(piece)
        try:
            while True:
                received += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            return received, type(error)


async def test_it_answers_as_told_and_keeps_what_it_was_asked():
    script = [Response(status=503, headers={"retry-after": "2"}, body=[b"no"])]
    async with scripted_provider(script) as provider:
        received, _ = await exchange(provider, REQUEST[:30], REQUEST[30:], b'{"a":', b"1}")
    assert received.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 2\r\n" in received
    assert received.endswith(b"2\r\nno\r\n0\r\n\r\n")
    assert (provider.requests[0].path, provider.requests[0].json) == ("/v1/chat/completions", {"a": 1})
    assert provider.requests[0].answered.is_set()


@pytest.mark.parametrize(("ending", "end"), [("eof", anyio.EndOfStream), ("reset", anyio.BrokenResourceError)])
async def test_it_breaks_as_told(ending, end):
    async with scripted_provider([Response(body=[b"x"], ending=ending)]) as provider:
        received, error = await exchange(provider, REQUEST, b"1234567")
    assert not received.endswith(b"0\r\n\r\n")
    assert error is end


async def test_it_waits_for_an_event_between_pieces():
    event = anyio.Event()
    async with scripted_provider([Response(body=[b"a", event, b"b"])]) as provider, anyio.create_task_group() as tasks:
        tasks.start_soon(exchange, provider, REQUEST, b"1234567")
        await anyio.wait_all_tasks_blocked()
        assert not provider.requests or not provider.requests[0].answered.is_set()
        event.set()
    assert provider.requests[0].answered.is_set()


async def test_it_notices_that_the_client_left():
    async with scripted_provider([Response(ending="hang")]) as provider:
        port = int(provider.url.split(":")[2].split("/")[0])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(REQUEST + b"1234567")
            await stream.receive()
        with anyio.fail_after(2):
            await provider.requests[0].disconnected.wait()


async def test_a_script_that_is_over_says_so():
    async with scripted_provider([]) as provider:
        received, _ = await exchange(provider, REQUEST, b"1234567")
    assert b"the script is over" in received


async def test_a_connection_without_a_request_is_none():
    async with scripted_provider([]) as provider:
        port = int(provider.url.split(":")[2].split("/")[0])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"POST")
        await anyio.wait_all_tasks_blocked()
    assert provider.requests == []


def test_chunks_are_made_as_providers_send_them():
    pieces = sse(text("a"), call("{}", id="c", name="t"), finish("stop"), usage(1, 2), delta(role="assistant"))
    assert len(pieces) == 6
    assert pieces[-1] == b"data: [DONE]\n\n"
    assert (
        b'"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"t","arguments":"{}"}}]' in pieces[1]
    )
