"""How messages are put into plain columns: clean text, exact JSON, times of fixed width, pieces of bounded size."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import orjson

from streamagent import exactjson
from streamagent.errors import CursorError, MessageError
from streamagent.message import clean_text

PIECE = (
    64 * 1024
)  # bytes of UTF-8: small enough to hold hundreds at once, large enough that a hop a piece costs nothing


def encode_query(query: Mapping[str, Any] | None) -> str | None:
    """Write a query as JSON text that `decode_query` gives back exactly, with cleaned strings.

    Raises:
        MessageError: JSON cannot hold it; the text names the value.
    """
    if query is None:
        return None
    with suppress(ValueError):  # half a surrogate pair among others: the second try tells them apart
        data = exactjson.dumps(query)
        if b"\\u0000" not in data:
            return data.decode()
    try:
        return exactjson.dumps(_clean(query)).decode()
    except (ValueError, RecursionError) as error:
        raise MessageError(f"a query is JSON, which cannot hold this one: {error}: {reprlib.repr(query)}") from error


def decode_query(text: str | None) -> dict[str, Any] | None:
    """Read what `encode_query` wrote.

    Raises:
        ValueError: Another program wrote something else.
    """
    if text is None:
        return None
    try:
        value = exactjson.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its query is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"its query is not a JSON object: {text!r:.80}")  # noqa: TRY004 - the data is wrong, not the code
    return value


def merge_queries(first: str | None, second: str | None) -> str | None:
    """Join the queries of two fragments; the second one's keys win, and it replaces a first one that is no query."""
    if first is None or second is None:
        return first if second is None else second
    earlier: dict[str, Any] | None = None
    with suppress(ValueError):
        earlier = decode_query(first)
    return encode_query({**(earlier or {}), **(decode_query(second) or {})})


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value


def check_name(what: str, name: str | None) -> None:
    """Refuse an identifier that not every database can hold; cleaning it could make two of them one.

    Raises:
        MessageError: It holds NUL or half a surrogate pair.
    """
    if name is None or (name.isascii() and "\0" not in name):  # of nearly all names; this is asked at each hop
        return
    if clean_text(name) != name:
        raise MessageError(f"{what} {name!r:.80} holds NUL or half a surrogate pair; leave them out")


def utf8_size(text: str) -> int:
    """Count the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def drop_bytes(text: str, count: int) -> str:
    """Leave out the first bytes, in UTF-8, of a text.

    Raises:
        CursorError: They end inside a character.
    """
    if not count:
        return text
    if text.isascii():
        return text[count:]
    try:
        return text.encode()[count:].decode()
    except UnicodeDecodeError as error:
        raise CursorError(f"the cursor's offset is inside a character, {count} bytes behind a border") from error


def as_utc(moment: datetime) -> datetime:
    """Move a time to UTC; a naive one is UTC already."""
    return moment.astimezone(timezone.utc) if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def encode_time(moment: datetime) -> str:
    """Write a time in UTC as ISO 8601 of fixed width, so that texts sort as times do."""
    text = orjson.dumps(moment, option=orjson.OPT_UTC_Z).decode()[1:-1]
    return text if len(text) == 27 else f"{text[:19]}.000000Z"  # noqa: PLR2004 - orjson leaves zero microseconds out


def decode_time(text: str) -> datetime:
    """Read what `encode_time` wrote; a time without a zone is UTC.

    Raises:
        ValueError: Another program wrote something else.
    """
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"its time is {text!r:.80}") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def decode_any_time(text: str) -> datetime:
    """Read a time; one that cannot be read is the epoch."""
    with suppress(ValueError):
        return decode_time(text)
    return datetime.fromtimestamp(0, timezone.utc)


def pack(pieces: Iterable[str]) -> Iterator[str]:
    """Cut and join texts, on character borders, to pieces of at most `PIECE` bytes."""
    group: list[str] = []
    size = 0
    for part in _cut(pieces):
        length = utf8_size(part)
        if group and size + length > PIECE:
            yield "".join(group)
            group, size = [], 0
        group.append(part)
        size += length
    if group:
        yield "".join(group)


def _cut(pieces: Iterable[str]) -> Iterator[str]:
    for piece in pieces:
        # Without a copy of the whole text in bytes: a character takes 4 of them at most.
        step = PIECE if piece.isascii() else PIECE // 4
        for start in range(0, len(piece), step):
            yield piece[start : start + step]
