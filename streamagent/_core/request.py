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

from streamagent.errors import MessageError
from streamagent.message import Message, clean_text, fold
from streamagent.talk import Item, Talk

from .attachments import attachment
from .output import Capped
from .pairing import Pairing, Turn
from .profiles import DEFAULT_PROFILE, Profile, is_object

Entry = dict[str, Any]

CUT_MARK = "[interrupted here]"
NO_RESULT = "Error: this call was interrupted; whether it took effect is unknown."
NO_OUTPUT = "(no output)"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class RequestBuilder:
    """Collect the fragments of a context, and build the request: at its end, or turn by turn while it is read.

    Args:
        profile: What the provider accepts.
    """

    def __init__(self, profile: Profile = DEFAULT_PROFILE) -> None:
        self._profile = profile
        self._ids = _Ids(profile)
        self._pairing = Pairing()
        self._closed: set[str] = set()  # ids of whole messages since the last turn that was taken
        self._fragments: list[Message] = []  # since the message opened that is the oldest still open
        self._open: set[str] = set()
        self._streamed: dict[str, Capped] = {}  # open results that tools have streamed, however long they are
        self._last: Entry | None = None  # what a neighbour may still be merged with

    def add(self, fragment: Message) -> None:
        """Take the next message or fragment, in stored order.

        Raises:
            MessageError: It follows the last fragment of its message.
        """
        if fragment.id in self._closed:
            raise MessageError(f"message {fragment.id} was closed already; nothing can follow its last fragment")
        streamed = fragment.type == "tool_result" and (fragment.query or {}).get("streamed")
        if streamed or fragment.id in self._streamed:
            fragment = self._capped(fragment)
            if fragment.more and fragment.id in self._open:
                return
        if fragment.more:
            self._open.add(fragment.id)
            self._fragments.append(fragment)
            return
        self._closed.add(fragment.id)
        self._open.discard(fragment.id)
        if not self._fragments:
            self._pairing.add(fragment)
            return
        self._fragments.append(fragment)
        if not self._open:
            self._fold()

    def add_item(self, item: Item) -> None:
        """Take the next message or fragment, or whole exchanges, in stored order; see `add`."""
        if isinstance(item, Talk) and not self._fragments:
            self._closed.clear()
            self._pairing.add_talk(item)
            return
        # Behind a message that is still open its place is among what came later.
        for message in item.messages() if isinstance(item, Talk) else (item,):
            self.add(message)

    def ready(self) -> list[Entry]:
        """Return what nothing that follows can change, and forget it.

        Calls have their results before the next prompt there; a result that comes later is left out, and its call gets
        one that says so. Provider data is kept until the next prompt, if the provider wants it back.
        """
        turns = self._pairing.turns
        last = len(turns) - 1
        if self._profile.replay:
            last = max((number for number, turn in enumerate(turns) if turn.role == "user"), default=0)
        if last <= 0:
            return []
        entries: list[Entry] = []
        for turn in turns[:last]:
            entries += self._entries(turn, None)
            self._pairing.forget(turn)
        del turns[:last]
        self._closed.clear()
        return self._settled(entries)

    def finish(self) -> list[Entry]:
        """Build the rest of the `messages` of the request; a system prompt comes first, wherever it was said."""
        self._fold()
        turns = self._pairing.turns
        tail = max((number for number, turn in enumerate(turns) if turn.role == "user"), default=-1)
        built = [
            (turn, self._entries(turn, self._profile if number > tail else None)) for number, turn in enumerate(turns)
        ]
        first = [entry for turn, entries in built if turn.role == "system" for entry in entries]
        rest = [entry for turn, entries in built if turn.role != "system" for entry in entries]
        settled = self._settled([*first, *rest])
        return settled if self._last is None else [*settled, self._last]

    def _capped(self, fragment: Message) -> Message:
        """Keep the head and the tail of a streamed result, and give them with its last fragment."""
        text = self._streamed.setdefault(fragment.id, Capped())
        text.add(fragment.content)
        if fragment.more:
            return replace(fragment, content="")
        del self._streamed[fragment.id]
        return replace(fragment, content=text.output().content)

    def _fold(self) -> None:
        for place, part in enumerate(self._fragments):
            if part.id in self._streamed:  # the context ended in its midst
                self._fragments[place] = replace(part, content=self._streamed[part.id].output().content)
        for message in fold(self._fragments):
            self._pairing.add(message)
        self._fragments.clear()
        self._open.clear()

    def _entries(self, turn: Turn, loop: Profile | None) -> Sequence[Entry]:
        if turn.talk is not None:
            return turn.talk.entries
        if turn.role == "assistant":
            return _assistant(turn, self._pairing, self._ids, loop)
        return [] if turn.role == "tool" else _spoken(turn.messages[0], self._profile)

    def _settled(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return entries as they will be sent: of two in a row that may have to be merged, the second is held."""
        if not self._profile.merge_neighbours:
            return [*entries]
        settled: list[Entry] = []
        for entry in entries:
            last, self._last = self._last, entry
            if last is None:
                continue
            if last["role"] == entry["role"] != "tool":
                self._last = _merged(last, entry)
            else:
                settled.append(last)
        return settled


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
    builder = RequestBuilder(profile)
    for message in messages:
        builder.add(message)
    return builder.finish()


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


def _merged(first: Entry, second: Entry) -> Entry:
    """Join neighbours of one role; some chat templates refuse two in a row (quirk Q93)."""
    content = _join(first.get("content", ""), second.get("content", ""))
    return {**first, **second, "content": content} if content else {**first, **second}


def _join(first: str | list[Entry], second: str | list[Entry]) -> str | list[Entry]:
    if isinstance(first, str) and isinstance(second, str):
        return "\n\n".join(filter(None, (first, second)))
    return [*_parts(first), *_parts(second)]


def _parts(content: str | list[Entry]) -> list[Entry]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content
