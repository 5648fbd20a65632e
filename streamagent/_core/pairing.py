"""Stored messages as turns, each call with its result: what a provider accepts, whatever order the rows came in."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamagent.message import Message, Role
from streamagent.talk import Talk

_BROKEN = frozenset({"error", "aborted"})
_KNOWN = frozenset({"text", "reasoning", "tool_call", "image", "file"})


@dataclass(slots=True, kw_only=True)
class Turn:
    """What one side said before the other did.

    Args:
        role: Who; a user's or system's turn is one message.
        messages: The messages, without those of a superseded attempt.
        attempt: Which try of the model this is.
        model: The model that its `stop` names.
        closed: It ended well, so what follows supersedes nothing.
        talk: Whole exchanges, instead of messages; its role is that of what they begin with.
    """

    role: Role
    messages: list[Message] = field(default_factory=list)
    attempt: int = 1
    model: str = ""
    closed: bool = False
    talk: Talk | None = None


class Pairing:
    """Group whole messages, added in stored order, into turns, and find each call's result."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._answers: dict[str, Message] = {}
        self._asked: dict[str, list[str]] = {}

    def add(self, message: Message) -> None:
        """Take the next message; types that no provider knows are left out."""
        if message.type == "tool_result":
            self._answer(message)
        elif message.type == "stop":
            self._stop(message)
        elif message.type in _KNOWN:
            self._turn(message).messages.append(message)
            if message.type == "tool_call":
                self._asked.setdefault(_query(message, "id"), []).append(message.id)

    def add_talk(self, talk: Talk) -> None:
        """Take whole exchanges."""
        self.turns.append(Turn(role="user", talk=talk))

    def answer(self, call: Message) -> Message | None:
        """Return the result of `call`, if there is one."""
        return self._answers.get(call.id)

    def forget(self, turn: Turn) -> None:
        """Drop what is kept for the calls of a turn that was sent."""
        for message in turn.messages:
            if message.type == "tool_call":
                self._answers.pop(message.id, None)
                self._asked.pop(_query(message, "id"), None)

    def _answer(self, result: Message) -> None:
        """Pair by the call's message id; a result without one answers the nearest open call with its provider id."""
        if _query(result, "cut") == "resumed":  # of an attempt that another one supersedes
            return
        call = _query(result, "call")
        asked = self._asked.get(_query(result, "id"), [])
        while not call and asked:
            candidate = asked.pop()
            call = candidate if candidate not in self._answers else ""
        if call:
            self._answers.setdefault(call, result)
        if self.turns:
            self.turns[-1].closed = True

    def _stop(self, stop: Message) -> None:
        last = self.turns[-1] if self.turns else None
        if last is None or last.role != "assistant":
            return
        if _query(stop, "cut") == "resumed" and not last.closed:  # another attempt supersedes it, perhaps the next one
            self.turns.pop()
            return
        last.model = _query(stop, "model") or last.model  # a stop of the loop names none
        last.closed |= _query(stop, "reason") not in _BROKEN

    def _turn(self, message: Message) -> Turn:
        role: Role = "assistant" if message.type in {"reasoning", "tool_call"} else message.role
        last = self.turns[-1] if self.turns else None
        if role != "assistant" or last is None or last.role != role or last.closed or message.attempt < last.attempt:
            last = Turn(role=role, attempt=message.attempt)
            self.turns.append(last)
        elif message.attempt > last.attempt:
            last.attempt = message.attempt
            last.messages.clear()
        return last


def _query(message: Message, key: str) -> str:
    value = (message.query or {}).get(key)
    return value if isinstance(value, str) else ""
