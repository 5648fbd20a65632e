"""The body of a request whose conversation is too long to be held: it is read while it is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from streamagent import exactjson

from .chunks import History

PIECE = 64 * 1024  # bytes that are sent at once, at least


class StreamedBody:
    """Reads the conversation anew each time that it is iterated.

    Args:
        parameters: The request but for its `messages`.
        history: The conversation.
    """

    def __init__(self, parameters: Mapping[str, Any], history: History) -> None:
        rest = exactjson.dumps({name: value for name, value in parameters.items() if name != "messages"})
        self._tail = b"]," + rest[1:] if len(rest) > len(b"{}") else b"]}"
        self._history = history
        self._reading: AsyncGenerator[bytes, None] | None = None
        self.error: Exception | None = None  # what reading failed with

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield it; what it fails with is kept, as an HTTP client would tell of it in its own words."""
        self._reading = self._read()
        return self._reading

    async def aclose(self) -> None:
        """Close what was not sent to its end."""
        if self._reading is not None:
            await self._reading.aclose()

    async def _read(self) -> AsyncGenerator[bytes, None]:
        pieces, size, comma = [b'{"messages":['], 0, b""
        try:
            async with aclosing(self._history.written()) as entries:
                async for said in entries:
                    pieces += (comma, said)
                    comma = b","
                    if (size := size + len(said)) >= PIECE:
                        yield b"".join(pieces)
                        pieces, size = [], 0
        except Exception as error:
            self.error = error
            raise
        yield b"".join((*pieces, self._tail))

    async def measure(self) -> int:
        """Return its length in bytes; it is read for that."""
        async with aclosing(self.pieces()) as pieces:
            return sum([len(piece) async for piece in pieces])
