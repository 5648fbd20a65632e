"""A provider that sends bytes as they are told, heads and framing too, and leaves its connections open for the next."""

import asyncio
import socket
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

POLL = 0.001  # seconds
HEAD = "HTTP/1.1 {status} Scripted\r\n{fields}\r\n"


@dataclass(frozen=True)
class Play:
    """What one request is answered with.

    Args:
        pieces: Bytes, each piece a write of its own.
        ending: `keep` waits for the next request, `eof` closes, `reset` resets, `hang` is silent until the client acts.
    """

    pieces: tuple[bytes, ...]
    ending: str = "keep"


class RawProvider:
    """The server; see `raw_provider`. `plays` is what the next requests are answered with, before `otherwise`."""

    def __init__(self, otherwise):
        self.url = ""
        self.plays = []
        self._otherwise = otherwise
        self._open, self._clients = set(), set()

    async def serve(self, reader, writer):
        """Serve one connection, with any number of requests."""
        self._clients.add(asyncio.current_task())
        try:
            while await _request(reader):
                play = self.plays.pop(0) if self.plays else self._otherwise
                self._open.add(writer)
                await _send(play, writer)
                if play.ending in ("eof", "reset"):
                    return
                if play.ending == "keep":
                    self._open.discard(writer)
        except ConnectionError:
            return  # the client has left
        finally:
            self._open.discard(writer)
            self._clients.discard(asyncio.current_task())
            writer.close()

    async def left(self):
        """Wait until no connection is open."""
        while self._clients:
            await asyncio.sleep(POLL)

    async def quiet(self):
        """Wait until nobody has an answer open: what ended or was left is closed."""
        while self._open:
            await asyncio.sleep(POLL)


async def _send(play, writer):
    for piece in play.pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)  # the client reads meanwhile, so that a piece is a read
    if play.ending == "reset":
        # Closing with a linger time of zero sends RST instead of FIN.
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _request(reader):
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return b""


@asynccontextmanager
async def raw_provider(otherwise):
    """Serve on a free port of 127.0.0.1 until the block is left; `otherwise` is played when no other play is left."""
    provider = RawProvider(otherwise)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    try:
        provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield provider
    finally:
        server.close()
        await server.wait_closed()


def head(status=200, **fields):
    """Write the head of a response; underscores in names are dashes."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return HEAD.format(status=status, fields=lines).encode("latin-1")


def framed(body, framing, cuts=()):
    """Frame a body: return the fields of its head, and the bytes behind it.

    Args:
        body: The bytes.
        framing: `chunked`, `length`, or `close` for a body that the end of the connection ends.
        cuts: Where chunks end, for `chunked`.
    """
    if framing == "length":
        return {"content_length": len(body)}, body
    if framing == "close":
        return {"connection": "close"}, body
    chunks = [chunk for chunk in cut(body, cuts) if chunk]
    return {"transfer_encoding": "chunked"}, b"".join(
        b"%x\r\n%b\r\n" % (len(one), one) for one in chunks
    ) + b"0\r\n\r\n"


def cut(data, places):
    """Cut bytes at these places, as far as they are in them."""
    places = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(places)]
