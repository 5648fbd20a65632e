"""What providers accept in a request, and `lint`, which checks a request against it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A provider's rules.

    Args:
        id_pattern: Regular expression that a call's id matches as a whole.
        id_length: Length of the ids that replace those which do not, in characters.
        merge_neighbours: Two entries of one role in a row are refused.
        replay: Keys of provider data that it wants back during a tool loop.
        owner: Text in the names of the models whose provider data it takes; empty for any.
        files: MIME types of files that it takes as they are, besides images.
    """

    id_pattern: str = r"[a-zA-Z0-9_-]{1,64}"
    id_length: int = 40
    merge_neighbours: bool = False
    replay: frozenset[str] = frozenset()
    owner: str = ""
    files: frozenset[str] = frozenset()

    def accepts(self, model: str) -> bool:
        """Return whether provider data of `model` may be sent; a model that is not known is taken for the same."""
        return not model or self.owner in model.lower()


DEFAULT_PROFILE = Profile()
_SHORT_IDS = r"[a-zA-Z0-9_-]{1,40}"
_PDF = frozenset({"application/pdf"})
_CALL_DATA = frozenset({"extra_content", "provider_specific_fields"})

# The first whose name occurs in the model's name. Sources: quirks Q78-Q82 (replay), Q93 (merging), Q96, Q97 (ids).
PROFILES: Mapping[str, Profile] = {
    "claude": Profile(replay=frozenset({"thinking_blocks"}), owner="claude", files=_PDF),
    "anthropic": Profile(replay=frozenset({"thinking_blocks"}), owner="anthropic", files=_PDF),
    "mistral": Profile(id_pattern="[a-zA-Z0-9]{9}", id_length=9, merge_neighbours=True),
    "magistral": Profile(id_pattern="[a-zA-Z0-9]{9}", id_length=9, merge_neighbours=True),
    "codestral": Profile(id_pattern="[a-zA-Z0-9]{9}", id_length=9, merge_neighbours=True),
    "deepseek": Profile(replay=frozenset({"reasoning_content"}), owner="deepseek"),
    "gemini": Profile(replay=_CALL_DATA, owner="gemini", files=_PDF),
    "openai/": Profile(id_pattern=_SHORT_IDS, files=_PDF),
    "azure/": Profile(id_pattern=_SHORT_IDS, files=_PDF),
}


@lru_cache(maxsize=128)  # models of a process
def profile_for(model: str) -> Profile:
    """Return the profile of a model by its name, `provider/model`."""
    name = model.lower()
    return next((profile for key, profile in PROFILES.items() if key in name), DEFAULT_PROFILE)


def is_object(text: str) -> bool:
    """Return whether `text` is a JSON object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def lint(request: Sequence[Mapping[str, Any]], profile: Profile = DEFAULT_PROFILE) -> list[str]:
    """Return what a provider would refuse in the `messages` of a request; empty when it is clean."""
    problems = [f"{number}: {text}" for number, entry in enumerate(request) for text in _entry(entry)]
    return [*problems, *_order(request), *_pairs(request), *_calls(request, profile)]


def _entry(entry: Mapping[str, Any]) -> Iterator[str]:
    if entry.get("role") not in {"system", "user", "assistant", "tool"}:
        yield f"unknown role {entry.get('role')!r}"
    if not entry.get("content") and not entry.get("tool_calls"):
        yield "neither content nor calls"
    content = entry.get("content", "x")
    if not content or (isinstance(content, str) and not content.strip()):
        yield "empty content"
    try:
        json.dumps(entry, ensure_ascii=False).encode()
    except (TypeError, UnicodeEncodeError) as error:
        yield f"not JSON: {error}"


def _order(request: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for number, (entry, following) in enumerate(pairwise(request)):
        if following["role"] == "system" and entry["role"] != "system":
            yield f"{number + 1}: system after {entry['role']}"


def _pairs(request: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    open_ids: list[str] = []
    for number, entry in enumerate(request):
        if entry["role"] == "tool":
            if not open_ids or open_ids.pop(0) != entry.get("tool_call_id"):
                yield f"{number}: result {entry.get('tool_call_id')!r} out of order or without a call"
        elif open_ids:
            yield f"{number}: calls {open_ids} have no result"
            open_ids = []
        open_ids += [call["id"] for call in entry.get("tool_calls", ())]
    if open_ids:
        yield f"end: calls {open_ids} have no result"


def _calls(request: Sequence[Mapping[str, Any]], profile: Profile) -> Iterator[str]:
    seen: set[str] = set()
    for call in (call for entry in request for call in entry.get("tool_calls", ())):
        if call["id"] in seen or not re.fullmatch(profile.id_pattern, call["id"]):
            yield f"call id {call['id']!r} is repeated or malformed"
        seen.add(call["id"])
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]):
            yield f"tool name {call['function']['name']!r} is malformed"
        if not is_object(call["function"]["arguments"]):
            yield f"arguments of {call['id']!r} are no JSON object"
