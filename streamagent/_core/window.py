"""The part of a context that fits: whole turns, dropped from the oldest on, the same from the same rows."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from streamagent.message import Message

from .attachments import TEXT_CHARS, is_text

Counter = Callable[[Message], float]

LEFT_OUT = "[… the rest is left out: the context is full]"
CHARS = 4  # characters of a token, as providers say of English text
_ATTACHMENT = 1_500.0  # tokens: about what providers count for a large image or a dense page
_MESSAGE = 4.0  # tokens of a message's role and separators; also bounds how many empty ones are held
_PROMPTS = frozenset({"text", "image", "file"})
_SPOKEN = frozenset({"text", "reasoning", "tool_call"})
_CUT = frozenset({"text", "reasoning", "tool_result"})


def is_prompt(message: Message) -> bool:
    """Tell whether it is something that a user said, or a fragment of it."""
    return message.role == "user" and message.type in _PROMPTS


def estimate_tokens(fragment: Message) -> float:
    """Estimate how many tokens a message or fragment takes: a quarter of its characters, 1,500 for an image."""
    query = fragment.query or {}
    if fragment.type in ("image", "file"):
        data = query.get("data")
        text = fragment.type == "file" and isinstance(data, str) and is_text(str(query.get("mime")))
        return min(len(str(data)), TEXT_CHARS) / CHARS if text else _ATTACHMENT
    args = "" if fragment.more or not query.get("args") else json.dumps(query["args"], default=str, ensure_ascii=False)
    return max(len(fragment.content), len(args)) / CHARS


@dataclass(slots=True, kw_only=True, eq=False)
class _Unit:
    """Messages that stay together: what a user said in a row, or a turn of the model with the results of its calls.

    Args:
        prompt: It is the user's.
        room: How much it may hold, in tokens; what comes beyond is cut.
        size: How much it holds.
        ended: The turn is over: what the model says next is another one.
        dropped: It was left out; what still comes of it is too.
    """

    prompt: bool = False
    room: float = math.inf
    size: float = 0.0
    ended: bool = False
    dropped: bool = False
    messages: list[Message] = field(default_factory=list)


class Window:
    """Hold the latest turns of a conversation, as it is added in stored order.

    When more than `limit` is held, whole exchanges are dropped from the oldest on, then turns of the last exchange,
    until no more than `keep` of the limit is left: the next cut is far away, and the context's beginning stays the same
    until then, as prefix caches want it. System messages, the last prompt and the last turn are always kept; what that
    turn has beyond the limit is cut. An overflow that the provider reported is a reason to drop, too.

    Args:
        limit: How much may be held, in tokens.
        keep: Share of the limit that is left after a cut.
        count: Counts the tokens of a fragment.
    """

    def __init__(self, limit: float, keep: float, count: Counter = estimate_tokens) -> None:
        self.size = 0.0
        self._limit = limit
        self._keep = keep
        self._count = count
        self._head = _Unit()
        self._exchanges: deque[list[_Unit]] = deque()  # bounded by the limit and one turn
        self._homes: dict[str, _Unit] = {}  # of open messages and of calls without a result
        self._overflow = False
        self._marked = ""

    @property
    def system(self) -> list[Message]:
        """The system messages."""
        return self._head.messages

    def __iter__(self) -> Iterator[Message]:
        """Give what is held, without the system messages."""
        return (message for units in self._exchanges for unit in units for message in unit.messages)

    def add(self, fragment: Message) -> list[Message]:
        """Take the next message or fragment.

        Returns:
            What was dropped to make room for it, in order.
        """
        unit = self._home(fragment)
        dropped = [] if unit else self.trim()
        self._put(unit or self._open(prompt=is_prompt(fragment)), fragment)
        return dropped

    def trim(self) -> list[Message]:
        """Drop what is too much at the end of a turn, and return it, in order."""
        if not self._exchanges or (self.size <= self._limit and not self._overflow):
            return []
        goal = min(self.size, self._limit) * self._keep
        dropped: list[Message] = []
        while self.size > goal and len(self._exchanges) > 1:
            for unit in self._exchanges.popleft():
                dropped += self._drop(unit)
        last = self._exchanges[-1]
        first = 1 if last[0].prompt else 0
        while self.size > goal and len(last) > first + 1:
            dropped += self._drop(last.pop(first))
        return dropped

    def _home(self, fragment: Message) -> _Unit | None:
        """Find where a fragment belongs; `None` when it begins a unit."""
        call = (fragment.query or {}).get("call")
        if known := self._homes.get(fragment.id) or self._homes.get(call if isinstance(call, str) else ""):
            return known
        if fragment.role == "system":
            return self._head
        last = self._exchanges[-1][-1] if self._exchanges else None
        if last is None:
            return None
        speaks = fragment.role == "assistant" and fragment.type in _SPOKEN
        begins = speaks if last.prompt else is_prompt(fragment) or (speaks and last.ended)
        return None if begins else last

    def _open(self, *, prompt: bool) -> _Unit:
        if prompt or not self._exchanges:
            self._exchanges.append([])
        units = self._exchanges[-1]
        room = self._limit - self._head.size - (units[0].size if units and units[0].prompt else 0)
        units.append(_Unit(prompt=prompt, room=math.inf if prompt else room))
        return units[-1]

    def _put(self, unit: _Unit, fragment: Message) -> None:
        frame = 0 if fragment.id in self._homes else _MESSAGE
        size = self._count(fragment) + frame
        if fragment.type in _CUT and unit.size + size > unit.room:
            fragment = replace(fragment, content="" if self._marked == fragment.id else LEFT_OUT)
            self._marked = fragment.id
            size = self._count(fragment) + frame
        if not unit.dropped:
            unit.messages.append(fragment)
            unit.size += size
            self.size += size
        self._follow(unit, fragment)

    def _follow(self, unit: _Unit, fragment: Message) -> None:
        """Remember where what belongs to a fragment goes, and whether the turn is over with it."""
        query = fragment.query or {}
        if fragment.more or fragment.type == "tool_call":
            self._homes[fragment.id] = unit
        else:
            self._homes.pop(fragment.id, None)
        if fragment.type == "tool_result" and not fragment.more:
            self._homes.pop(str(query.get("call")), None)
        if fragment.type in ("stop", "tool_result"):
            unit.ended = True
        if fragment.type == "stop":
            error: Any = query.get("error")
            self._overflow = isinstance(error, Mapping) and error.get("kind") == "context_overflow"

    def _drop(self, unit: _Unit) -> list[Message]:
        self.size -= unit.size
        messages, unit.messages, unit.dropped = unit.messages, [], True
        return messages
