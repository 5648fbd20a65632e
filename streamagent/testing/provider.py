"""A scripted provider: a real HTTP server on loopback that answers as told, and breaks as told.

async with scripted_provider([Response(body=sse(text("Hello"), finish("stop")))]) as provider:
    model = LiteLLMModel("openai/test", api_base=provider.url, api_key="none")
    result = await model.send("Hi")
assert provider.requests[0].json["messages"] == [{"role": "user", "content": "Hi"}]
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import anyio.abc
import orjson

Ending = Literal["end", "eof", "reset", "hang"]

_BACKLOG = 65_536  # bytes of a request's head; ours are far below


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What one request is answered with.

    Args:
        status: HTTP status; 0 for no response at all, only the `ending`.
        headers: Headers beside those for the body.
        body: Pieces, each one write; an event among them is waited for.
        ending: `end` finishes the response; `eof` closes the connection in the midst of it, `reset` resets it, `hang`
            keeps it open in silence until the client closes it.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Sequence[bytes | anyio.Event] = ()
    ending: Ending = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A request that came.

    Args:
        path: Its path.
        headers: Its headers, names in lower case.
        body: Its body.
        answered: Set when the response was sent as scripted.
        disconnected: Set when the client closed the connection before that.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes
    answered: anyio.Event = field(default_factory=anyio.Event)
    disconnected: anyio.Event = field(default_factory=anyio.Event)

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return orjson.loads(self.body)


class ScriptedProvider:
    """The server; see `scripted_provider`.

    Args:
        script: One response for each request, in order of arrival; afterwards requests are answered with status 400.
    """

    def __init__(self, script: Iterable[Response]) -> None:
        self._script = iter(script)
        self.requests: list[Received] = []
        self.url = ""

    async def handle(self, stream: anyio.abc.SocketStream) -> None:
        """Serve one connection, with one request."""
        async with stream:
            received = await _read_request(stream)
            if received is None:
                return
            self.requests.append(received)
            response = next(self._script, Response(status=400, body=[b'{"error": {"message": "the script is over"}}']))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_watch, stream, received, tasks.cancel_scope)
                try:
                    await _respond(stream, response)
                except anyio.BrokenResourceError:
                    received.disconnected.set()
                else:
                    received.answered.set()
                tasks.cancel_scope.cancel()


@asynccontextmanager
async def scripted_provider(script: Iterable[Response]) -> AsyncIterator[ScriptedProvider]:
    """Serve a script on a free port of 127.0.0.1, on any backend of anyio.

    Args:
        script: One response for each request, in order of arrival.

    Yields:
        The provider: `url` is what clients call the API base, `requests` what came.
    """
    provider = ScriptedProvider(script)
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not Django's
        provider.url = f"http://127.0.0.1:{port}/v1"
        tasks.start_soon(listener.serve, provider.handle)
        yield provider
        tasks.cancel_scope.cancel()


def sse(*chunks: Mapping[str, Any], done: bool = True) -> list[bytes]:
    """Encode chunks as server-sent events, one piece each, with `[DONE]` at the end."""
    pieces = [b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks]
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """Make a chunk with a delta of these fields."""
    choice = {"index": 0, "delta": fields, "finish_reason": finish_reason}
    return {"id": "r1", "object": "chat.completion.chunk", "created": 1, "model": "test", "choices": [choice]}


def text(content: str) -> dict[str, Any]:
    """Make a chunk of text."""
    return delta(content=content)


def call(arguments: str, *, index: int = 0, id: str | None = None, name: str | None = None) -> dict[str, Any]:  # noqa: A002 - the wire's name
    """Make a chunk of a tool call; `id` and `name` belong to its first chunk."""
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    opener = {} if id is None else {"id": id, "type": "function"}
    return delta(tool_calls=[{"index": index, **opener, "function": function}])


def finish(reason: str) -> dict[str, Any]:
    """Make the chunk with the finish reason."""
    return delta(reason)


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """Make the chunk with the usage, in tokens."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**delta(), "choices": [], "usage": counts}


async def _read_request(stream: anyio.abc.SocketStream) -> Received | None:
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            data += await stream.receive(_BACKLOG)
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        chunked = headers.get("transfer-encoding") == "chunked"
        while len(body) < int(headers.get("content-length", 0)) or (chunked and not body.endswith(b"0\r\n\r\n")):
            body += await stream.receive(_BACKLOG)
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return None
    whole = _joined(body) if chunked else body
    return Received(path=first.split(" ")[1], headers=headers, body=whole)


def _joined(body: bytes) -> bytes:
    """Join the chunks of a body (RFC 9112 §7.1)."""
    chunks, size = [], -1
    while size:
        line, _, body = body.partition(b"\r\n")
        size = int(line, 16)
        chunks.append(body[:size])
        body = body[size + 2 :]
    return b"".join(chunks)


async def _watch(stream: anyio.abc.SocketStream, received: Received, scope: anyio.CancelScope) -> None:
    """Notice that the client went away, and stop responding."""
    try:
        await stream.receive(1)
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        received.disconnected.set()
        scope.cancel()


async def _respond(stream: anyio.abc.SocketStream, response: Response) -> None:
    if response.status:
        await stream.send(_head(response))
    for piece in response.body:
        if isinstance(piece, bytes):
            await stream.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            await piece.wait()
    if response.ending == "end":
        await stream.send(b"0\r\n\r\n")
    elif response.ending == "hang":
        await anyio.sleep_forever()
    elif response.ending == "reset":
        # Closing with a linger time of zero sends RST instead of FIN.
        raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 - not Django's
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _head(response: Response) -> bytes:
    kind = "text/event-stream" if response.status == 200 else "application/json"  # noqa: PLR2004
    headers = {"content-type": kind, "transfer-encoding": "chunked", "connection": "close", **response.headers}
    lines = [f"HTTP/1.1 {response.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
