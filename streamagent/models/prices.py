"""What tokens cost, by the price map that LiteLLM ships with, read as a file: LiteLLM is not imported."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from streamagent._core.usage import is_count
from streamagent.shared import load_in_thread

_FILE = "model_prices_and_context_window_backup.json"
_TIER = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")
_THOUSAND = 1000
_DECODER = json.JSONDecoder()
_entries: dict[str, Mapping[str, Any] | None] = {}


async def price(model: str, usage: Mapping[str, Any]) -> float | None:
    """Price tokens.

    Args:
        model: `provider/model`; an entry without the provider is taken when there is none with it.
        usage: Tokens, as OpenAI counts them: those that were cached or reasoned are part of the sums.

    Returns:
        US dollars; `None` when the model is not in the map, or nobody counted the tokens.
    """
    if model not in _entries:
        await load_in_thread(partial(_look_up, model))  # some tens of milliseconds
    entry = _entries[model]
    return None if entry is None else cost(entry, usage)


def _look_up(model: str) -> None:
    if model not in _entries:  # another one may have, while this one waited
        _entries[model] = _read_entry(model)


def _read_entry(model: str) -> Mapping[str, Any] | None:
    """Read what one model costs; the rest of the map, and of its entry, is not kept."""
    spec = find_spec("litellm")
    folders = (spec and spec.submodule_search_locations) or ()
    for file in (Path(folder, _FILE) for folder in folders):
        if file.is_file():
            text = file.read_text("utf-8")
            entry = _find(text, model) or _find(text, model.partition("/")[2])
            return entry and {key: value for key, value in entry.items() if "cost" in key}
    return None


def _find(text: str, model: str) -> Mapping[str, Any] | None:
    """Decode one entry of the map, which as a whole would take tens of megabytes."""
    found = re.search(rf'"{re.escape(model)}":\s*(?={{)', text)
    return _DECODER.raw_decode(text, found.end())[0] if found else None


def cost(entry: Mapping[str, Any], usage: Mapping[str, Any]) -> float | None:
    """Price tokens by a model's entry in the map; see `price`."""
    asked, said = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not (is_count(asked) and is_count(said)):
        return None
    tier = _tier(entry, asked)
    inside, outside = _count(usage, "prompt_tokens_details"), _count(usage, "completion_tokens_details")
    read, written = inside("cached_tokens"), inside("cache_creation_tokens")
    reasoned = outside("reasoning_tokens")

    def rate(name: str, otherwise: float = 0.0) -> float:
        value = entry.get(f"{name}{tier}", entry.get(name))
        return value if is_count(value) else otherwise

    per_input, per_output = rate("input_cost_per_token"), rate("output_cost_per_token")
    return float(
        (asked - read - written) * per_input
        + read * rate("cache_read_input_token_cost", per_input)
        + written * rate("cache_creation_input_token_cost", per_input)
        + (said - reasoned) * per_output
        + reasoned * rate("output_cost_per_reasoning_token", per_output)
    )


def _tier(entry: Mapping[str, Any], asked: float) -> str:
    """Return the end of the keys that hold for a prompt of so many tokens."""
    sizes = [int(found[1]) for key in entry if (found := _TIER.fullmatch(key)) and asked > int(found[1]) * _THOUSAND]
    return f"_above_{max(sizes)}k_tokens" if sizes else ""


def _count(usage: Mapping[str, Any], group: str) -> Callable[[str], float]:
    told = usage.get(group)
    details = told if isinstance(told, Mapping) else {}

    def count(name: str) -> float:
        value = details.get(name)
        return value if is_count(value) else 0

    return count
