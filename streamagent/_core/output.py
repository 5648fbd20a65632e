"""What becomes a `tool_result`: any value as text that can be stored, capped to what a model can bear."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import orjson

from streamagent.calls import Output
from streamagent.errors import ToolError
from streamagent.message import clean_text

MAX_BYTES = 50 * 1024  # about 12,000 tokens: one result cannot crowd out a conversation
MAX_LINES = 2_000
NO_OUTPUT = "(no output)"
_SLICE = 64 * 1024  # characters encoded at once: a huge text is never in memory twice


class Capped:
    """Text that arrives in pieces, of which only the head and the tail are kept once it is too long.

    Args:
        max_bytes: Longest text that is kept whole, in bytes of UTF-8.
        max_lines: Longest text that is kept whole, in lines.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES) -> None:
        if max_bytes < 1 or max_lines < 1:
            raise ValueError(f"a text is capped at 1 byte and 1 line or more, not at {max_bytes} and {max_lines}")
        self._max_bytes = max_bytes
        self._max_lines = max_lines
        self._head = bytearray()  # at most max_bytes: the whole text, while it fits
        self._tail = bytearray()  # what came after the head: its last max_bytes, and one slice
        self._bytes = 0
        self._newlines = 0
        self._digest = hashlib.sha256()

    def add(self, text: str) -> None:
        """Take the next piece."""
        text = clean_text(text)
        for start in range(0, len(text), _SLICE):
            self._take(text[start : start + _SLICE].encode())

    def output(self, *, is_error: bool = False) -> Output:
        """Return what came so far; `details.truncated` has its true size in bytes and its SHA-256 if it was cut."""
        if self._bytes <= self._max_bytes and self._lines <= self._max_lines:
            return Output(self._head.decode(), is_error)
        notice = f"\n\n[… the middle is left out: the output has {self._bytes} bytes in {self._lines} lines …]\n\n"
        truncated = {"bytes": self._bytes, "sha256": self._digest.hexdigest()}
        return Output(self._first() + notice + self._last(), is_error, {"truncated": truncated})

    @property
    def _lines(self) -> int:
        end = self._tail or self._head
        return self._newlines + (not end.endswith(b"\n"))

    def _take(self, data: bytes) -> None:
        self._bytes += len(data)
        self._newlines += data.count(b"\n")
        self._digest.update(data)
        room = self._max_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: -self._max_bytes]

    def _first(self) -> str:
        """Half of what may be kept, from the start; `ignore` drops the character that the cut went through."""
        text = self._head[: self._max_bytes // 2].decode(errors="ignore")
        lines = self._max_lines // 2
        return "\n".join(text.split("\n", lines)[:lines])

    def _last(self) -> str:
        """The other half, from the end."""
        half = self._max_bytes - self._max_bytes // 2
        text = (self._head + self._tail)[-half:].decode(errors="ignore")
        lines = self._max_lines - self._max_lines // 2
        return "\n".join(text.rsplit("\n", lines)[-lines:])


def render(value: Any, *, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES) -> Output:
    """Turn what a tool returned into what is stored; never raises for a value.

    Text stays text, `None` is said, an `Output` is kept at its length, everything else becomes JSON.

    Args:
        value: The tool's result.
        max_bytes: Longest content that is kept whole, in bytes of UTF-8.
        max_lines: Longest content that is kept whole, in lines.

    Returns:
        The content, cut in the middle if it is too long; an error `Output` if `value` is not JSON (NaN, a cycle,
        an object).
    """
    capped = Capped(max_bytes=max_bytes, max_lines=max_lines)
    try:
        if isinstance(value, Output):
            orjson.dumps(value.details)
            return dataclasses.replace(value, content=clean_text(value.content))
        capped.add(text_of(value))
    except Exception as error:  # noqa: BLE001 - foreign code: properties, `model_dump`, `__repr__`
        return Output(f"unserialisable result of type {type(value).__name__}: {describe(error)}", is_error=True)
    return capped.output()


def error_output(error: BaseException) -> Output:
    """Turn what a tool raised into what the model reads: type and text, no traceback; of a `ToolError` its text."""
    return dataclasses.replace(render(describe(error)), is_error=True)


def describe(error: BaseException) -> str:
    """Put an error in one text; a group is the list of its members."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(describe(member) for member in error.exceptions)
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - foreign code; an error that cannot speak still has a name
        return name
    if not text:
        return name
    return text if isinstance(error, ToolError) else f"{name}: {text}"


def text_of(value: Any) -> str:
    """Return text as it is, bytes decoded, and everything else as JSON.

    Raises:
        Exception: The value is not JSON, or its own code failed.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return NO_OUTPUT
    if isinstance(value, bytes | bytearray | memoryview):
        return _decode(bytes(value))
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        notice = f"[{len(data)} bytes that are not UTF-8 text; what cannot be read is U+FFFD]"
        return f"{notice}\n{data.decode(errors='replace')}"


def _plain(value: Any) -> Any:
    """Take `value` one step towards JSON; the encoder comes back for what is inside."""
    match value:
        case Enum():
            return value.value
        case dt.date() | dt.time():
            return value.isoformat()
        case UUID() | Decimal() | PurePath() | dt.timedelta():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return _decode(bytes(value))
        case Mapping():
            return dict(value)
        case AbstractSet():
            return sorted(value, key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if dump := getattr(value, "model_dump", None):  # pydantic, which is not imported for this
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no form in JSON")
