"""Requests in the form of OpenAI's chat completions, built from messages at send time; stored rows stay as they are."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import orjson

from streamagent.message import Message, clean_text, fold

from .attachments import attachment
from .output import Capped
from .pairing import Pairing, Turn, pair
from .profiles import DEFAULT_PROFILE, Profile, is_object

Entry = dict[str, Any]

CUT_MARK = "[interrupted here]"
NO_RESULT = "Error: this call was interrupted; whether it took effect is unknown."
NO_OUTPUT = "(no output)"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class RequestBuilder:
    """Collect the fragments of a context, then build the request.

    Args:
        profile: What the provider accepts.
    """

    def __init__(self, profile: Profile = DEFAULT_PROFILE) -> None:
        self._profile = profile
        self._fragments: list[Message] = []
        self._streamed: dict[str, tuple[int, Capped]] = {}  # results that tools have streamed, however long they are

    def add(self, fragment: Message) -> None:
        """Take the next message or fragment, in stored order."""
        if fragment.type != "tool_result" or not (fragment.query or {}).get("streamed"):
            self._fragments.append(fragment)
            return
        if fragment.id not in self._streamed:
            self._streamed[fragment.id] = (len(self._fragments), Capped())
            self._fragments.append(fragment)
        place, text = self._streamed[fragment.id]
        text.add(fragment.content)
        self._fragments[place] = replace(fragment, content="")

    def finish(self) -> list[Entry]:
        """Build the `messages` of the request; of a streamed result with its head and tail, if it is too long."""
        for place, text in self._streamed.values():
            self._fragments[place] = replace(self._fragments[place], content=text.output().content)
        return build_request(self._fragments, self._profile)


def build_request(messages: Iterable[Message], profile: Profile = DEFAULT_PROFILE) -> list[Entry]:
    """Build the `messages` of a request.

    Each call is followed at once by its results, in call order; a call without a result gets one that says so, a
    result without a call is left out. Of several attempts at one turn the last is sent.

    Args:
        messages: The history, whole messages or fragments, in stored order.
        profile: What the provider accepts.

    Returns:
        Entries that `lint` finds nothing wrong with.

    Raises:
        MessageError: A fragment follows the last one of its message.
    """
    pairing = pair(fold(messages))
    tail = max((number for number, turn in enumerate(pairing.turns) if turn.role == "user"), default=-1)
    system: list[Entry] = []
    entries: list[Entry] = []
    ids = _Ids(profile)
    for number, turn in enumerate(pairing.turns):
        if turn.role == "assistant":
            entries += _assistant(turn, pairing, ids, profile if number > tail else None)
        elif turn.role != "tool":
            target = system if turn.role == "system" else entries
            target += _spoken(turn.messages[0], profile)
    return _merge(system + entries) if profile.merge_neighbours else system + entries


class _Ids:
    """Provider-side ids of calls: kept where the provider takes them, else a hash that is the same each time."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._used: set[str] = set()

    def map(self, call: Message) -> str:
        """Return the id of `call` and its result, unique in this request."""
        wanted = str((call.query or {}).get("id"))
        if wanted in self._used or not re.fullmatch(self._profile.id_pattern, wanted):
            hashes = (_hash(f"{wanted}\0{call.id}\0{salt}", self._profile.id_length) for salt in count())
            wanted = next(candidate for candidate in hashes if candidate not in self._used)
        self._used.add(wanted)
        return wanted


def _hash(text: str, length: int) -> str:
    number = int.from_bytes(hashlib.sha512(text.encode("utf-8", "replace")).digest(), "big")
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def _assistant(turn: Turn, pairing: Pairing, ids: _Ids, loop: Profile | None) -> list[Entry]:
    """Build one assistant entry and the results of its calls.

    Args:
        turn: The turn.
        pairing: Where the results are.
        ids: The map of call ids.
        loop: The profile when this turn belongs to the tool loop that goes on, else `None`; only there does a
            provider want its own data back (quirks Q78 to Q82).
    """
    calls = [message for message in turn.messages if message.type == "tool_call"]
    names = [ids.map(call) for call in calls]
    entry: Entry = {"role": "assistant"}
    text = "".join(_text(message) for message in turn.messages if message.type == "text")
    if text.strip():
        entry["content"] = text
    if calls:
        entry["tool_calls"] = [_call(call, name) for call, name in zip(calls, names, strict=True)]
    if len(entry) == 1:
        return []
    if loop is not None and loop.accepts(turn.model):
        _give_back(entry, turn, calls, loop)
    return [entry, *(_result(pairing.answer(call), name) for call, name in zip(calls, names, strict=True))]


def _call(call: Message, call_id: str) -> Entry:
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", str((call.query or {}).get("tool") or "tool"))[:64]
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": _arguments(call)}}


def _arguments(call: Message) -> str:
    """Return the arguments as the text of a JSON object, `{}` when they are none (quirks Q25, Q39)."""
    args = (call.query or {}).get("args")
    if isinstance(args, Mapping):
        try:
            return orjson.dumps(dict(args)).decode()
        except TypeError:
            return json.dumps(args, separators=(",", ":"))  # integers beyond 64 bits
    return call.content if is_object(call.content) else "{}"


def _result(result: Message | None, call_id: str) -> Entry:
    text = NO_RESULT if result is None else _text(result)
    return {"role": "tool", "tool_call_id": call_id, "content": text if text.strip() else NO_OUTPUT}


def _give_back(entry: Entry, turn: Turn, calls: Sequence[Message], profile: Profile) -> None:
    """Put the provider's opaque data where it came from, byte for byte."""
    reasoning = [message for message in turn.messages if message.type == "reasoning"]
    if "reasoning_content" in profile.replay and (
        text := clean_text("".join(message.content for message in reasoning))
    ):
        entry["reasoning_content"] = text
    for message in reasoning:
        for key, value in _provider_data(message, profile):
            entry[key] = [*entry.get(key, []), *value] if isinstance(value, list) else value
    for call, sent in zip(calls, entry.get("tool_calls", []), strict=True):
        sent.update(_provider_data(call, profile))


def _provider_data(message: Message, profile: Profile) -> list[tuple[str, Any]]:
    data = (message.query or {}).get("provider")
    return [item for item in data.items() if item[0] in profile.replay] if isinstance(data, Mapping) else []


def _text(message: Message) -> str:
    """Return the text to send; one that was cut says so."""
    text = clean_text(message.content)
    cut = message.more or bool((message.query or {}).get("cut"))
    return f"{text}\n{CUT_MARK}" if text and cut else text


def _spoken(message: Message, profile: Profile) -> list[Entry]:
    content = _text(message) if message.type == "text" else attachment(message, profile)
    blank = isinstance(content, str) and not content.strip()
    return [] if blank else [{"role": message.role, "content": content}]


def _merge(entries: list[Entry]) -> list[Entry]:
    """Join neighbours of one role; some chat templates refuse two in a row (quirk Q93)."""
    merged: list[Entry] = []
    for entry in entries:
        last = merged[-1] if merged else {}
        if last.get("role") != entry["role"] or entry["role"] == "tool":
            merged.append(entry)
        else:
            content = _join(last.get("content", ""), entry.get("content", ""))
            merged[-1] = {**last, **entry, "content": content} if content else {**last, **entry}
    return merged


def _join(first: str | list[Entry], second: str | list[Entry]) -> str | list[Entry]:
    if isinstance(first, str) and isinstance(second, str):
        return "\n\n".join(filter(None, (first, second)))
    return [*_parts(first), *_parts(second)]


def _parts(content: str | list[Entry]) -> list[Entry]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content
