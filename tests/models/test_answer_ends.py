"""How a response ends behind the end of the answer that is in it."""

import asyncio
import socket
import struct
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from streamagent.models import http
from streamagent.models.direct import DirectModel
from streamagent.testing.provider import finish, sse, text

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SAID = b"".join(sse(text("Hel"), text("lo"), finish("stop")))
LAST = b"0\r\n\r\n"


@asynccontextmanager
async def serving(end):
    """Serve answers whose response `end` brings to its end; give the model that asks, and the connections."""
    connections = []

    async def serve(reader, writer):
        connections.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
                writer.write(HEAD + b"%x\r\n%b\r\n" % (len(SAID), SAID))
                await writer.drain()
                await end(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield DirectModel("openai/test", api_base=url, api_key="none"), connections
        await http.close_idle()
        for writer in connections:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def close(_reader, writer):
    writer.close()


async def reset(_reader, writer):
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


async def damage(_reader, writer):
    await asyncio.sleep(0.005)
    writer.write(b"nonsense\r\n\r\n")


async def late(_reader, writer):
    await asyncio.sleep(0.005)
    writer.write(LAST)


async def never(reader, _writer):
    await reader.read(1)


@pytest.mark.parametrize("end", [close, reset, damage])
async def test_what_goes_wrong_behind_the_end_of_an_answer_fails_nothing(end):
    async with serving(end) as (model, _):
        for _ in range(2):
            result = await model.send("Hi")
            assert (result.text, result.reason, result.error) == ("Hello", "stop", None)


async def test_an_end_that_comes_by_itself_is_waited_for_so_that_the_connection_is_used_again():
    async with serving(late) as (model, connections):
        assert [(await model.send("Hi")).text for _ in range(3)] == ["Hello"] * 3
        assert len(connections) == 1


async def test_an_end_that_does_not_come_is_waited_for_once(monkeypatch):
    waits, wait = [], anyio.move_on_after

    def move_on_after(seconds):
        waits.append(seconds)
        return wait(0)

    monkeypatch.setattr(http.anyio, "move_on_after", move_on_after)
    async with serving(never) as (model, connections):
        assert [(await model.send("Hi")).text for _ in range(3)] == ["Hello"] * 3
        assert (len(connections), len(waits)) == (3, 1)
