"""JSON both ways by orjson, and exactly where orjson is not: integers of any size, and NaN refused.

orjson refuses integers beyond 64 bits, reads them as floats, and writes NaN and infinities as `null`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

_LONG_NUMBER = re.compile(rb"[0-9]{19}")
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
    return _dumps_exactly(value) if b"null" in data else data


def loads(data: bytes | str) -> Any:
    """Read JSON.

    Raises:
        ValueError: It is none, or holds NaN.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return json.loads(raw, parse_constant=_refuse) if _LONG_NUMBER.search(raw) else orjson.loads(raw)


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
