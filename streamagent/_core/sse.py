"""Server-sent events, from bytes cut anywhere to chunks (WHATWG HTML §9.2; quirks Q84 to Q90)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from streamagent.errors import ModelError

DONE: Final = b"[DONE]"

# An inline image is the largest thing that a provider sends in one event: 8 MiB hold one of 6 MB in base64.
EVENT_LIMIT: Final = 8 * 1024 * 1024

_BOM: Final = b"\xef\xbb\xbf"
# orjson turns integers beyond 64 bits into floats, which matters where they are somebody's arguments (quirk Q30).
_OBJECT_ARGUMENTS: Final = re.compile(rb'"arguments"\s*:\s*[{\[]')
_LENIENT: Final = json.JSONDecoder(strict=False)


class SSEDecoder:
    """Take what the network gives and return the data of events.

    Args:
        limit: Longest event, in bytes.
    """

    __slots__ = ("_after_cr", "_buffer", "_limit")

    def __init__(self, *, limit: int = EVENT_LIMIT) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._after_cr = False

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Decode one network read.

        Args:
            data: Bytes that may begin and end anywhere.

        Returns:
            The data of each event that is complete now, without comments and empty events; `DONE` is one of them. To
            be iterated to its end before the next read: an event that is longer than the limit raises `ModelError`
            (kind `protocol`) there, and the decoder is of no use any more.
        """
        data = self._normalised(data)
        if self._buffer:
            searched = len(self._buffer) - 1
            self._buffer += data
            if self._buffer.find(b"\n\n", searched) < 0:
                return self._events(b"")
            data = bytes(self._buffer)
            self._buffer.clear()
        block, _, rest = data.rpartition(b"\n\n")
        self._buffer += rest
        plain = _plain_events(block) if len(data) <= self._limit else None
        return self._events(block) if plain is None else plain

    def _events(self, block: bytes) -> Iterator[bytes]:
        for event in block.split(b"\n\n"):
            self._check(event)
            if payload := _payload(event):
                yield payload
        self._check(self._buffer)

    def end(self) -> Iterator[bytes]:
        """Take the end of the stream for the end of the event; one that was cut is dropped.

        Yields:
            The data of the last event, when its blank line is missing but it is whole.
        """
        payload = _payload(bytes(self._buffer))
        self._buffer.clear()
        if payload == DONE or _is_json(payload):
            yield payload

    def _normalised(self, data: bytes) -> bytes:
        """Make LF of CRLF and CR, also when a read ends between the two."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" not in data:
            return data
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check(self, event: bytes | bytearray) -> None:
        if len(event) > self._limit:
            raise ModelError(f"the provider sent an event of more than {self._limit} bytes", kind="protocol")


def _plain_events(block: bytes) -> list[bytes] | None:
    """Return the data of events that are a line of data each, as nearly all are; `None` if there are others."""
    events = block.split(b"\n\ndata:")
    if not block.startswith(b"data:") or block.count(b"\n") > 2 * (len(events) - 1):
        return None
    events[0] = events[0][5:]
    return list(filter(None, map(bytes.strip, events)))


def _payload(event: bytes) -> bytes:
    """Return the data of an event; its other fields and comments mean nothing here."""
    if event.startswith(b"data:") and b"\n" not in event:
        return event[5:].strip()
    fields = (line.removeprefix(_BOM).partition(b":") for line in event.split(b"\n"))
    return b"\n".join(value.strip() for name, _, value in fields if name == b"data").strip()


def parse_event(data: bytes | str) -> dict[str, Any] | None:
    """Parse the data of an event.

    Args:
        data: What `SSEDecoder` yielded, but not `DONE`.

    Returns:
        The chunk: a JSON object with `choices`, `error` or `usage`. `None` for anything else that providers send: it
        means nothing. Of several objects in one event, the one that tells of an error (quirk Q89).

    Raises:
        ModelError: The event is a damaged JSON object, or several objects (kind `protocol`).
    """
    value = parse_object(data)
    means = value and ("choices" in value or "error" in value or "usage" in value or value.get("object") == "error")
    return value if means else None


def parse_object(data: bytes | str) -> dict[str, Any] | None:
    """Parse the data of an event of any provider, as `parse_event` does: `None` for what is no JSON object."""
    raw = (data.encode("utf-8", "replace") if isinstance(data, str) else data).strip()
    return _parsed(raw) if raw.startswith(b"{") else None


def _parsed(raw: bytes) -> dict[str, Any]:
    if b'"arguments"' in raw and _OBJECT_ARGUMENTS.search(raw):
        return _parsed_slowly(raw)
    try:
        value: dict[str, Any] = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _parsed_slowly(raw)  # half a surrogate pair, NaN, several objects
    return value


def _parsed_slowly(raw: bytes) -> dict[str, Any]:
    try:
        values = list(_values(raw.decode("utf-8", "replace")))
    except (ValueError, RecursionError) as error:
        raise ModelError("the provider sent an event that is not JSON", kind="protocol", retryable=True) from error
    if len(values) == 1:
        return values[0]
    for value in values:
        if value.get("error"):
            return value
    raise ModelError("the provider sent several objects in one event", kind="protocol", retryable=True)


def _values(text: str) -> Iterator[dict[str, Any]]:
    """Decode the objects that stand one after another.

    Raises:
        ValueError: Something is no JSON object.
    """
    position, end = 0, len(text)
    while position < end:
        value, position = _LENIENT.raw_decode(text, position)
        if not isinstance(value, dict):
            raise ValueError("not an object")  # noqa: TRY004  # the JSON is what is wrong, not a caller's type
        yield value
        while position < end and text[position].isspace():
            position += 1


def _is_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True
