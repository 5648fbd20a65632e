"""Times and sizes, as people write them."""

from __future__ import annotations

import re

from streamagent.errors import ConfigError

_SECONDS = {"S": 1, "M": 60, "H": 3600, "D": 86_400, "W": 7 * 86_400}
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_QUANTITY = re.compile(r"(?P<number>\d{1,12}(\.\d{1,6})?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)


def to_seconds(option: str, text: str) -> float:
    """Read a time such as `90m`, `12h`, `30d` or `2w`.

    Raises:
        ConfigError: It is none.
    """
    return _read(option, text, _SECONDS, "a time such as 90m, 12h, 30d or 2w")


def to_bytes(option: str, text: str) -> int:
    """Read a size such as `500KB`, `2GB` or `64MiB`; without a unit it is bytes.

    Raises:
        ConfigError: It is none.
    """
    return int(_read(option, text, _BYTES, "a size such as 500KB, 2GB or 64MiB"))


def _read(option: str, text: str, units: dict[str, int], wanted: str) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    unit = None if found is None else units.get(found["unit"].upper())
    if found is None or unit is None:
        raise ConfigError(f"{option} is {wanted}, not {text!r:.80}")
    return float(found["number"]) * unit
