"""Token counts: the last value of each field holds (quirks Q62 to Q68); and what turns cost, summed up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard

from streamagent.message import clean_text
from streamagent.records import Usage

from .window import CHARS

# Beyond this a count is a mistake, and no JavaScript reader could hold it.
_MOST: Final = 2**53
_OF_LOOP: Final = frozenset({"paused", "stopped", "superseded", "terminate"})
COUNTED: Final = frozenset({"tool_call", "stop"})  # the types of message that `usage_of` counts


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
        elif is_count(value):
            merged[name] = value
    return merged


def is_count(value: Any) -> TypeGuard[float]:
    """Tell whether foreign data is a number that can have been counted."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST


def estimated_usage(asked: float, said: int) -> dict[str, Any]:
    """Make the usage of a turn that nobody counted: `estimated` says so, as a number, as all counts are.

    Args:
        asked: What the model was given, in tokens.
        said: What it answered, in characters.
    """
    prompt, completion = math.ceil(asked), math.ceil(said / CHARS)
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, "estimated": 1}


def usages(query: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Give the usage of a stop's turn, then those of the attempts that failed before it."""
    attempts = query.get("attempts")
    for told in (query, *(attempts if isinstance(attempts, list | tuple) else ())):
        usage = told.get("usage") if isinstance(told, Mapping) else None
        if isinstance(usage, Mapping):
            yield usage


def tokens_of(query: Mapping[str, Any]) -> float | None:
    """Sum the tokens of a stop's turn, failed attempts included; `None` when nobody counted them."""
    counts = [count for usage in usages(query) if (count := _total(usage)) is not None]
    return sum(counts) if counts else None


def _total(usage: Mapping[str, Any]) -> float | None:
    for names in (("total_tokens",), ("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")):
        counts: list[float] = [usage[name] for name in names if is_count(usage.get(name))]
        if counts:
            return sum(counts)
    return None


def usage_of(kind: str, query: Mapping[str, Any] | None) -> Usage:
    """Say what a message of the model adds to the sum.

    Args:
        kind: Its type; `tool_call` and `stop` count.
        query: Its query. A stop that names a limit, or is the loop's own, and has neither model nor usage is no turn.
    """
    if kind == "tool_call":
        return Usage(tool_calls=1)
    told = query or {}
    of_stage = "limit" in told or told.get("reason") in _OF_LOOP
    if kind != "stop" or (of_stage and not told.keys() & {"model", "usage"}):
        return Usage()
    tokens, cost = tokens_of(told), told.get("cost")
    return Usage(turns=1, tokens=tokens or 0, cost=cost if is_count(cost) else 0.0, uncounted=int(tokens is None))
