"""Token counts: the last value of each field holds (quirks Q62 to Q68)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streamagent.message import clean_text

# Beyond this a count is a mistake, and no JavaScript reader could hold it.
_MOST: Final = 2**53


def merge_usage(known: Mapping[str, Any], update: Any, *, levels: int = 2) -> dict[str, Any]:
    """Return `known` with the counts of `update` in place of its own; never a sum.

    Args:
        known: What earlier chunks said.
        update: The `usage` of a chunk. What is no count, also a negative one, is left out.
        levels: How deep counts may be grouped; `prompt_tokens_details` is the second level.
    """
    merged = dict(known)
    for key, value in update.items() if isinstance(update, Mapping) else ():
        name = clean_text(str(key))
        if isinstance(value, Mapping) and levels > 1:
            before = known.get(name)
            group = merge_usage(before if isinstance(before, Mapping) else {}, value, levels=levels - 1)
            if group:
                merged[name] = group
        elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST:
            merged[name] = value
    return merged
