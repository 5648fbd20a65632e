"""A provider whose answers were bytes before anybody asked. It ends when its standard input is closed."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import orjson

from .workload import MODEL, TOOL, Workload

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_RESULT = b'"tool_call_id"'
_READ = 64 * 1024  # bytes of a request that are held at once
_BACKLOG = 4096  # connections: all sessions connect at once
_ARGUMENTS = ('{"pro', 'duct": ', '"blue ', 'mug"}')


class Provider:
    """Answers each request with one of the two turns, over and over.

    Args:
        workload: How long the turns are and how fast they come.
    """

    def __init__(self, workload: Workload) -> None:
        self._pace = workload.pace_ms / 1000
        turns = [list(map(_event, turn)) for turn in (calling_turn(workload.words), last_turn(workload.words))]
        self._turns = turns if self._pace else [[b"".join(turn)] for turn in turns]
        self._received = 0

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until its client closes it."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    said = str(self._received).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))
                    continue
                again = await self._has_result(reader, head)
                await self._answer(writer, self._turns[again])
        writer.close()

    async def _has_result(self, reader: asyncio.StreamReader, head: bytes) -> bool:
        """Read a request and throw it away; say whether the tool's result is in it."""
        found, before = False, b""
        async for data in _body(reader, head):
            self._received += len(data)
            found = found or _RESULT in before + data
            before = data[-len(_RESULT) :]
        return found

    async def _answer(self, writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
        head = _HEAD
        for piece in pieces:
            if self._pace:
                await asyncio.sleep(self._pace)
            writer.write(head + piece)
            head = b""
        await writer.drain()


async def _body(reader: asyncio.StreamReader, head: bytes) -> AsyncIterator[bytes]:
    length = _LENGTH.search(head)
    left = int(length[1]) if length else 0
    chunked = _CHUNKED.search(head) is not None
    while left or chunked:
        if not left:
            left = int(await reader.readuntil(b"\r\n"), 16)
            chunked = left > 0
            if not chunked:
                await reader.readuntil(b"\r\n")
                return
        data = await reader.read(min(left, _READ))
        if not data:
            raise asyncio.IncompleteReadError(data, left)
        yield data
        left -= len(data)
        if chunked and not left:
            await reader.readexactly(2)


def calling_turn(words: list[str]) -> Iterator[bytes]:
    """Yield the events' data of a turn that ends in a call of the tool."""
    yield from _text(words)
    opener = {"index": 0, "id": "call_7f3b", "type": "function"}
    yield _chunk({"tool_calls": [{**opener, "function": {"name": TOOL["function"]["name"], "arguments": ""}}]})
    for piece in _ARGUMENTS:
        yield _chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    yield from _end("tool_calls", len(words))


def last_turn(words: list[str]) -> Iterator[bytes]:
    """Yield the events' data of a turn that answers."""
    yield from _text(words)
    yield from _end("stop", len(words))


def _text(words: list[str]) -> Iterator[bytes]:
    yield _chunk({"role": "assistant", "content": ""})
    for word in words:
        yield _chunk({"content": word})


def _end(reason: str, tokens: int) -> Iterator[bytes]:
    yield _chunk({}, finish_reason=reason)
    usage = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": 20 + tokens}
    yield _chunk(None, usage=usage)
    yield b"[DONE]"


def _chunk(delta: dict[str, Any] | None, *, finish_reason: str | None = None, usage: Any = None) -> bytes:
    """Write a chunk with the fields, in the order and at the length, that OpenAI's have (about 225 bytes)."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return orjson.dumps(
        {
            "id": "cmpl-8a1",
            "object": "chat.completion.chunk",
            "created": 1750000000,
            "model": MODEL,
            "system_fingerprint": "fp_078",
            "choices": [] if delta is None else [choice],
            "usage": usage,
        }
    )


def _event(data: bytes) -> bytes:
    """Frame one event; each is one chunk of HTTP, the last is followed by the chunk that ends the response."""
    event = b"data: %b\n\n" % data
    end = b"0\r\n\r\n" if data == b"[DONE]" else b""
    return b"%x\r\n%b\r\n%b" % (len(event), event, end)


async def main(workload: Workload) -> None:
    """Serve on a free port of 127.0.0.1, whose number is printed first."""
    server = await asyncio.start_server(Provider(workload).converse, "127.0.0.1", 0, backlog=_BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Workload.from_json(sys.argv[1])))
