"""What providers refuse of a request, by what their documentation says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Problems = Iterator[str]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a provider wants of a request: the form of call ids, no two neighbours of one role, its own data alone."""

    ids: str = r"[a-zA-Z0-9_-]{1,64}"
    alternating: bool = False
    own: tuple[str, ...] = ()


RULES = {
    "openai/gpt": Rules(r"[a-zA-Z0-9_-]{1,40}"),
    "mistral/large": Rules("[a-zA-Z0-9]{9}", alternating=True),
    "anthropic/claude": Rules(own=("thinking_blocks",)),
    "deepseek/chat": Rules(own=("reasoning_content",)),
    "gemini/pro": Rules(own=("extra_content", "provider_specific_fields")),
    "other/model": Rules(),
}
PLAIN = {"role", "content", "tool_calls", "tool_call_id"}
SIGNED = "signed by "  # a scripted model writes this and its name into its opaque data


def lint(model: str, request: Sequence[Mapping[str, Any]]) -> Problems:
    """Say what a provider would refuse, by what its documentation says."""
    rules = RULES[model]
    waiting: list[str] = []
    seen: set[str] = set()
    for number, entry in enumerate(request):
        role, content, asked = entry.get("role"), entry.get("content"), entry.get("tool_calls", [])
        if role not in ("system", "user", "assistant", "tool"):
            yield f"{number}: role {role!r}"
        if not (content or asked) or ("content" in entry and not str(content).strip()):
            yield f"{number}: empty"
        if rules.alternating and role != "tool" and number and request[number - 1]["role"] == role:
            yield f"{number}: a second {role} in a row"
        yield from (f"{number}: {text}" for text in _foreign(entry, rules, model))
        if role == "tool":
            if not waiting or waiting.pop(0) != entry.get("tool_call_id"):
                yield f"{number}: a result that answers no call, or out of order"
        elif waiting:
            yield f"{number}: before it the calls {waiting} have no result"
            waiting = []
        for call in asked:
            waiting.append(call["id"])
            yield from (f"{number}: {text}" for text in _call(call, rules, seen))
    if waiting:
        yield f"the last calls {waiting} have no result"


def _foreign(entry: Mapping[str, Any], rules: Rules, model: str) -> Problems:
    parts = [entry, *entry.get("tool_calls", [])]
    for key in {key for part in parts for key in part} - PLAIN - {"id", "type", "function", *rules.own}:
        yield f"{key!r} is another provider's"
    for signer in re.findall(SIGNED + r"(\w+)", json.dumps(entry)):
        if signer not in model:
            yield f"data of {signer} is sent to {model}"


def _call(call: Mapping[str, Any], rules: Rules, seen: set[str]) -> Problems:
    if call["id"] in seen or not re.fullmatch(rules.ids, call["id"]):
        yield f"call id {call['id']!r}"
    seen.add(call["id"])
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]):
        yield f"tool name {call['function']['name']!r}"
    try:
        good = isinstance(json.loads(call["function"]["arguments"]), dict)
    except ValueError:
        good = False
    if not good:
        yield f"arguments {call['function']['arguments']!r}"
