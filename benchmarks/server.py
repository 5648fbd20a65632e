"""A provider whose answers were bytes before anybody asked. It ends when its standard input is closed."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson

from .workload import MODEL, TOOL, Workload

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
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

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until its client closes it."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await self._answer(writer, self._turns[b'"tool_call_id"' in body])
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
        head = _HEAD
        for piece in pieces:
            if self._pace:
                await asyncio.sleep(self._pace)
            writer.write(head + piece)
            head = b""
        await writer.drain()


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
