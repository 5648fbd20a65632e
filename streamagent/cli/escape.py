"""What models, tools and files say is not to be trusted with a terminal."""

from __future__ import annotations

import json
import re
from typing import Any

# Control characters but tab and newline; those that reverse or hide the reading direction (UAX #9); line separators.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Spell characters that control a terminal as `\u001b`; in JSON this says the same as before."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def compact(value: Any) -> str:
    """Write a value as JSON for people: numbers of any size, every script as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)


def shorten(text: str, width: int) -> str:
    """Return `text` as one safe line of at most `width` characters."""
    line = printable(" ".join(text[: 2 * width].split()))
    return line if len(line) <= width and len(text) <= 2 * width else f"{line[: width - 1]}…"
