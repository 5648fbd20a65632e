"""Parse the arguments of a call: strictly, with two repairs that lose nothing (quirks Q23 to Q39)."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NamedTuple

from streamagent.message import clean_text

# Python refuses to convert more than 4300 digits by default (CVE-2020-10735); this holds whatever it is set to.
_DIGITS: Final = 4000
# orjson, which stores messages, writes 254 levels.
_DEPTH: Final = 200
# A string (also one that does not end), a comma after nothing, and a comma before a bracket: only that one goes.
_TRAILING_COMMA: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]\s*,|,(?=\s*[}\]])', re.DOTALL)


class Arguments(NamedTuple):
    """What became of the text of a call's arguments.

    Args:
        args: The arguments; `None` when the call must not run.
        invalid: `bad_json` or `not_object`, when it must not.
        repaired: `trailing_comma` or `double_encoding`, when the text was mended without loss.
    """

    args: dict[str, Any] | None
    invalid: str | None = None
    repaired: str | None = None


def parse_arguments(text: str) -> Arguments:
    """Parse the text that the model wrote; nothing and `null` are no arguments.

    Args:
        text: The arguments, whole.
    """
    if text.strip() in {"", "null"}:
        return Arguments({})
    try:
        value, repaired = _parse_or_mend(text)
    except (ValueError, RecursionError):
        return Arguments(None, "bad_json")
    if isinstance(value, str) and isinstance(inner := _inner(value), dict):
        value, repaired = inner, "double_encoding"
    return Arguments(value, None, repaired) if isinstance(value, dict) else Arguments(None, "not_object")


def is_object(text: str) -> bool:
    """Return whether `text` is a JSON object as it stands."""
    try:
        return isinstance(_parse(text), dict)
    except (ValueError, RecursionError):
        return False


def _parse_or_mend(text: str) -> tuple[Any, str | None]:
    try:
        return _parse(text), None
    except ValueError:
        mended = _TRAILING_COMMA.sub(lambda found: "" if found[0] == "," else found[0], text)
        if mended == text:
            raise
        return _parse(mended), "trailing_comma"


def _inner(text: str) -> Any:
    try:
        return _parse(text)
    except (ValueError, RecursionError):
        return None


def _parse(text: str) -> Any:
    value = _STRICT.decode(text)
    if not _is_storable(value):
        raise ValueError("half a surrogate pair, NUL, or too many levels")
    return value


def _is_storable(value: Any, depth: int = 0) -> bool:
    if isinstance(value, str):
        return clean_text(value) == value
    if isinstance(value, dict):
        return depth < _DEPTH and all(
            _is_storable(key) and _is_storable(item, depth + 1) for key, item in value.items()
        )
    return not isinstance(value, list) or (depth < _DEPTH and all(_is_storable(item, depth + 1) for item in value))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError("an integer of too many digits")
    return int(text)


_STRICT: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_finite, parse_int=_integer, parse_constant=_finite
)
