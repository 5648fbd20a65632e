"""JSON both ways by orjson, and exactly where orjson is not: integers of any size, and NaN refused.

orjson refuses integers beyond 64 bits, reads them as floats, and writes NaN and infinities as `null`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_NULLS = (b":null", b",null", b"[null")
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def dumps(value: Any) -> bytes:
    """Write a value as JSON in UTF-8 that `loads` gives back exactly.

    Raises:
        ValueError: JSON cannot hold it: another type, a key that is no string, NaN, half a surrogate pair, a cycle.
    """
    try:
        data = orjson.dumps(value, default=_mapping, option=_STRICT)
    except TypeError:
        return _dumps_exactly(value)
    return _dumps_exactly(value) if _has_null(data) else data


def dumps_each(values: Sequence[Any]) -> bytes:
    """Write values as `dumps` does, with commas between them.

    Raises:
        ValueError: As `dumps`.
    """
    return b",".join(map(dumps, values))


def dumps_texts(values: Sequence[Any]) -> bytes:
    """Do what `dumps_each` does for values in which there is neither a number nor `None`: without looking for them.

    Raises:
        ValueError: As `dumps`.
    """
    try:
        return orjson.dumps(values, option=_STRICT)[1:-1]
    except TypeError:
        return dumps_each(values)


def loads(data: bytes | str) -> Any:
    """Read JSON.

    Raises:
        ValueError: It is none, or holds NaN.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return json.loads(raw, parse_constant=_refuse) if _LONG_NUMBER.search(raw) else orjson.loads(raw)


def _has_null(data: bytes) -> bool:
    """Tell whether JSON without spaces may hold a `null`; texts with that word are common, and written once only."""
    return b"null" in data and (data == b"null" or any(null in data for null in _NULLS))


def _dumps_exactly(value: Any) -> bytes:
    try:
        return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the keys of an object are strings")
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
