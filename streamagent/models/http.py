"""HTTP to providers: one pool of connections for all models of an event loop. asyncio only."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import anyio

from streamagent._core.event import EventReader
from streamagent._core.sse import DONE, EVENT_LIMIT
from streamagent.errors import ModelError
from streamagent.shared import closes_idle, load_in_thread

from .attempt import Chunks
from .body import StreamedBody
from .faults import find_secrets, nothing_came, redact, refusal

if TYPE_CHECKING:
    import aiohttp

_ERROR_LIMIT = 64 * 1024  # bytes that are read of the body of an error
_CONNECT_TIMEOUT = 30.0  # seconds
_LINGER = 0.05  # seconds that the end of a response is waited for, so that its connection can be used again
_PIECEWISE = 64 * 1024  # bytes of a body that is sent piece by piece, so that others have their turn
_OK, _FAILED, _LENGTH_REQUIRED = 200, 400, 411

_sized: set[str] = set()  # addresses that take no request of unknown length
_endless: set[str] = set()  # addresses whose responses go on behind their end


async def load() -> None:
    """Import aiohttp, in a thread the first time."""
    if not _aiohttp.cache_info().currsize:
        await load_in_thread(_aiohttp)


@cache
def _aiohttp() -> Any:
    import aiohttp

    return aiohttp


@dataclass(slots=True)
class _Pool:
    """The connections of an event loop.

    Args:
        keeper: Has the client open; the loop closes it with its other async generators at its end (PEP 525).
        http: The client.
        active: Requests under way.
        proxies: The proxy of each address, as the environment said when it was asked first.
    """

    keeper: AsyncGenerator[aiohttp.ClientSession, None]
    http: aiohttp.ClientSession
    active: int = 0
    proxies: dict[str, str | None] = field(default_factory=dict)

    def proxy(self, url: str) -> str | None:
        """Return the proxy for an address; aiohttp would read the whole environment for each request.

        Raises:
            ValueError: It is no address.
        """
        if url not in self.proxies:
            from urllib.request import getproxies, proxy_bypass

            parts = urlsplit(url)
            self.proxies[url] = None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
        return self.proxies[url]


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()


async def _keep() -> AsyncGenerator[aiohttp.ClientSession, None]:
    client = _aiohttp()
    async with client.ClientSession(
        connector=client.TCPConnector(limit=0),
        timeout=client.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT),  # an attempt has its own limits
        cookie_jar=client.DummyCookieJar(),
    ) as http:
        yield http


async def _pool() -> _Pool:
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    if pool is None:
        keeper = _keep()
        pool = _pools[loop] = _Pool(keeper, await anext(keeper))
    return pool


@closes_idle
async def close_idle() -> None:
    """Close the connections of the loop that runs, unless a request is under way; the next request opens new ones."""
    try:
        pool = _pools.get(asyncio.get_running_loop())
    except RuntimeError:  # trio
        return
    if pool is not None and not pool.active:
        del _pools[asyncio.get_running_loop()]
        await pool.keeper.aclose()


@dataclass(slots=True, kw_only=True)
class Post:
    """A request.

    Args:
        url: Where to.
        headers: Beside those for the body's length.
        body: The body, which is let go of once it was sent. One that is streamed is sent in chunks; where those are
            refused, the next request is measured before it is sent.
        secrets: Tells what must not occur in the text of an error, besides what looks secret in the headers.
    """

    url: str
    headers: Mapping[str, str]
    body: bytes | StreamedBody
    secrets: Callable[[], Iterable[str]] = tuple

    @property
    def hidden(self) -> list[str]:
        """What must not occur in the text of an error."""
        return [*find_secrets(self.headers), *self.secrets()]


async def answer(
    sent: Post, reader: EventReader, *, whole: Callable[[bytes], Mapping[str, Any]] | None = None
) -> Chunks:
    """Send a request and read the stream of events that answers it.

    Args:
        sent: The request.
        reader: Reads the events.
        whole: Makes a chunk of a response that is JSON: the provider does not stream.

    Yields:
        What came with each read of the network; then `DONE`, unless the answer broke off.

    Raises:
        ModelError: The request or the answer failed, or nothing came.
    """
    pool, client = await _pool(), _aiohttp()
    streamed = None if isinstance(sent.body, bytes) else sent.body
    pool.active += 1
    try:
        async with await _send(pool, sent) as response:
            content = response.content
            if whole is not None and response.content_type == "application/json":
                yield [whole(await _beginning(response, EVENT_LIMIT))]
                yield DONE
                return
            with suppress(AttributeError):  # by itself it looks for more after each piece of a read, not once a read
                content._low_water = 1  # noqa: SLF001 - aiohttp has no public name for it
            some = False
            while not (reader.done or reader.error) and (data := await content.readany()):
                said = reader.feed(data)
                some = some or bool(said)
                yield said
            if not (reader.done or reader.error):
                said = reader.end()
                some = some or bool(said)
                yield said
            if reader.error or not some:
                raise reader.error or nothing_came(response.content_type)
            if reader.done:
                try:
                    yield DONE
                finally:  # whoever has heard it asks for nothing more
                    await _finish(response, sent.url)
    except (client.ClientError, OSError) as error:
        if streamed is not None and streamed.error is not None:
            raise streamed.error from None
        raise _failure(error, sent) from error
    finally:
        pool.active -= 1
        if streamed is not None:
            await streamed.aclose()


async def _send(pool: _Pool, sent: Post) -> aiohttp.ClientResponse:
    """Send a request and return its response, once its head has come and if it is an answer."""
    url, headers, body = sent.url, sent.headers, sent.body
    if not isinstance(body, bytes) and url in _sized:
        headers = {**headers, "Content-Length": str(await body.measure())}
    data = _payload(body) if isinstance(body, bytes) else body.pieces()
    proxy = _proxy(pool, url)
    # Awaited, and not entered: what it returns would keep the whole request until the answer's end.
    response = await pool.http.post(url, data=data, headers=headers, proxy=proxy, allow_redirects=False)
    sent.body = b""
    if response.status == _OK:
        return response
    async with response:
        if response.status == _LENGTH_REQUIRED and not isinstance(body, bytes) and url not in _sized:
            _sized.add(url)
            raise ModelError("the provider wants to know a request's length", kind="protocol", retryable=True)
        raise await _refused(response, sent.hidden)


def _failure(error: Exception, sent: Post) -> ModelError:
    """Translate what became of a connection."""
    client = _aiohttp()
    if isinstance(error, client.ClientPayloadError):
        return ModelError("the answer broke off: the connection was lost", kind="truncated", retryable=True)
    if isinstance(error, client.InvalidURL):
        return _no_address(sent.url)
    text = redact(str(error), sent.hidden)
    return ModelError(f"the connection to the provider failed: {text}", kind="connection", retryable=True)


def _payload(body: bytes) -> bytes | io.BytesIO:
    """Give a large body in a form that aiohttp sends piece by piece."""
    return body if len(body) < _PIECEWISE else io.BytesIO(body)


async def _beginning(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a body, or so many bytes of it: one read of the network has only what has come by then."""
    pieces, left = [], limit
    while left and (piece := await response.content.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _proxy(pool: _Pool, url: str) -> str | None:
    try:
        return pool.proxy(url)
    except ValueError as error:
        raise _no_address(url) from error


def _no_address(url: str) -> ModelError:
    return ModelError(f"{url!r} is no address of a provider; set api_base", kind="bad_request")


async def _refused(response: aiohttp.ClientResponse, secrets: Iterable[str]) -> ModelError:
    if response.status < _FAILED:
        where = response.headers.get("location", "elsewhere")
        text = f"the provider points to another address (status {response.status}, {where}); set api_base to it"
        return ModelError(redact(text, secrets), kind="bad_request")
    body = (await _beginning(response, _ERROR_LIMIT)).decode("utf-8", "replace")
    return refusal(response.status, body, response.headers, secrets)


async def _finish(response: aiohttp.ClientResponse, url: str) -> None:
    """Wait for the end of a response that has said all: only then its connection can be used again."""
    if response.content.at_eof() or url in _endless:
        return
    with suppress(Exception), anyio.move_on_after(_LINGER) as scope:  # whatever happens behind the end is no part of it
        await response.content.read()
    if scope.cancelled_caught:
        _endless.add(url)
