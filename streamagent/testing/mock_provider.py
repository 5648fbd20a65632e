"""The mock model behind HTTP, in a process of its own: `python -m streamagent.testing.mock_provider CHUNKS DELAY`.

It speaks OpenAI's chat completions, calls the first tool that fits, once, and ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import orjson

from streamagent.calls import ToolSpec
from streamagent.errors import ModelError
from streamagent.models.chunks import Request
from streamagent.models.mock import MockModel
from streamagent.protocols import ModelSettings

WORD = "word "  # the text of one chunk

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_BACKLOG = 4096  # connections: all sessions connect at once
_CLOSE_LIMIT = 5  # seconds that the process may take to end


def wordy_mock(chunks: int, delay: float) -> MockModel:
    """Make a mock whose answer has so many chunks, with so many seconds before each."""
    return MockModel(WORD * chunks, delay=delay, chunk=len(WORD))


@contextmanager
def open_mock_provider(chunks: int, delay: float = 0.0) -> Iterator[str]:
    """Run the provider in another process.

    Args:
        chunks: How many an answer has.
        delay: Seconds before each; 0 sends an answer in one write.

    Yields:
        Its address, as `api_base` takes it.

    Raises:
        ModelError: It did not start.
    """
    command = [sys.executable, "-m", "streamagent.testing.mock_provider", str(chunks), str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own
        try:
            port = process.stdout.readline().strip().decode() if process.stdout else ""
            if not port:
                raise ModelError("the local provider did not start", kind="connection")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            try:
                process.communicate(timeout=_CLOSE_LIMIT)  # closes its standard input
            except subprocess.TimeoutExpired:
                process.kill()


class _Provider:
    def __init__(self, chunks: int, delay: float) -> None:
        self._model = wordy_mock(chunks, delay)
        self._paced = delay > 0

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until its client closes it."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await self._answer(writer, _request(orjson.loads(body)))
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, request: Request) -> None:
        waiting = [_HEAD]
        async for chunk in self._model.chunks(request):
            data = orjson.dumps(chunk) if isinstance(chunk, Mapping) else b"[DONE]"
            waiting.append(_framed(b"data: %b\n\n" % data))
            if self._paced:
                writer.write(b"".join(waiting))
                waiting.clear()
        writer.write(b"".join([*waiting, b"0\r\n\r\n"]))
        await writer.drain()


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _request(body: Mapping[str, Any]) -> Request:
    functions = [tool["function"] for tool in body.get("tools") or ()]
    tools = [ToolSpec(**{"description": "", **function}) for function in functions]
    choice = body.get("tool_choice")
    settings = ModelSettings(tool_choice=choice if isinstance(choice, str) else None)
    return Request(messages=body["messages"], tools=tools, settings=settings)


async def _main(chunks: int, delay: float) -> None:
    provider = _Provider(chunks, delay)
    server = await asyncio.start_server(provider.converse, "127.0.0.1", 0, backlog=_BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - to the process that started this one
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2])))
