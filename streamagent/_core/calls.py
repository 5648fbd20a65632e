"""Put the pieces of tool calls together (quirks Q01 to Q39)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from streamagent.errors import ModelError
from streamagent.message import Message, new_id, utc_now

from .arguments import is_object, parse_arguments
from .blocks import Cleaner
from .delta import CallDelta

# No model asks for more in one answer; a stream that does is a loop.
CALLS_LIMIT: Final = 1024
# Longest arguments of a call, in characters: room for a large source file that the model writes.
ARGUMENTS_LIMIT: Final = 1024 * 1024


@dataclass(slots=True, eq=False)
class Slot:
    """A call that is being put together.

    Args:
        id: The provider's id, set once.
        name: The tool's name as far as it is known.
        parts: The arguments.
        size: Length of all arguments that came, in characters; what is beyond the limit is not kept.
        opaque: Data that the provider wants back with the call.
        opened: The name is resolved, and the first fragment was returned.
        call_id: The id that the call goes by: the provider's, or ours.
        message_id: Id of the call's message.
        created_at: When its message was made, UTC.
    """

    id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)
    size: int = 0
    opaque: dict[str, Any] = field(default_factory=dict)
    opened: bool = False
    call_id: str = ""
    message_id: str = field(default_factory=new_id)
    created_at: datetime = field(default_factory=utc_now)
    cleaner: Cleaner = field(default_factory=Cleaner)

    @property
    def is_call(self) -> bool:
        """Whether it has a name or an id; what has neither is noise (quirk Q04)."""
        return bool(self.name or self.id)

    def take(self, text: str) -> str:
        """Append to the arguments; return what is new within the limit."""
        room = max(0, ARGUMENTS_LIMIT - self.size)
        self.size += len(text)
        text = text[:room]
        self.parts.append(text)
        return text

    def is_resend(self, delta: CallDelta) -> bool:
        """Tell whether the same complete call came again (quirk Q12); its length is compared before all else."""
        text = delta.arguments
        same = len(text) == self.size > 0 and delta.id == self.id != "" and text == "".join(self.parts)
        return same and is_object(text)


@lru_cache(maxsize=128)  # agents of a process, not answers
def _shared(names: frozenset[str]) -> frozenset[str]:
    """Give the same set for equal ones: each answer of an agent has one."""
    return names


class Calls:
    """The calls of one answer. They are closed only at its end: nothing of an answer that was cut may run.

    Args:
        tools: The names that the model may call.
        attempt: Which try of the model this is.
    """

    __slots__ = ("_attempt", "_by_id", "_by_key", "_ids", "_opened", "_slots", "_tools")

    def __init__(self, tools: Collection[str], *, attempt: int) -> None:
        self._tools = _shared(frozenset(tools))
        self._attempt = attempt
        self._slots: list[Slot] = []
        self._by_key: dict[int | str, Slot] = {}
        self._by_id: dict[str, Slot] = {}
        self._ids: set[str] = set()
        self._opened: list[Slot] = []

    @property
    def shown(self) -> bool:
        """Whether a fragment was returned."""
        return bool(self._opened)

    def __bool__(self) -> bool:
        return any(slot.is_call for slot in self._slots)

    def check(self, deltas: Sequence[CallDelta]) -> None:
        """Refuse more calls than any answer has, before anything changes.

        Raises:
            ModelError: There are too many (kind `protocol`).
        """
        if len(self._slots) + len(deltas) > CALLS_LIMIT:
            raise ModelError(f"the model asked for more than {CALLS_LIMIT} calls at once", kind="protocol")

    def add(self, deltas: Sequence[CallDelta]) -> list[Message]:
        """Take the pieces of one chunk.

        Args:
            deltas: The pieces, in list order.

        Returns:
            Fragments of calls whose tool is known.
        """
        fragments: list[Message] = []
        seen: set[Slot] = set()
        for position, delta in enumerate(deltas):
            slot = self._find(delta, position, seen, alone=len(deltas) == 1)
            seen.add(slot)
            fragments += self._extended(slot, delta)
        return fragments

    def close(self, reason: str) -> list[Message]:
        """Close all calls.

        Args:
            reason: The turn's reason to stop; only those of `tool_calls` may run. After an `error`, calls that nobody
                saw stay unseen.
        """
        late = [] if reason == "error" else [slot for slot in self._slots if slot.is_call and not slot.opened]
        return [self._closed(slot, refused=reason != "tool_calls") for slot in [*self._opened, *late]]

    def _find(self, delta: CallDelta, position: int, seen: set[Slot], *, alone: bool) -> Slot:
        """Return the slot of a piece, a new one when it begins another call (rule 1)."""
        key = position if delta.index is None else delta.index
        slot = self._by_key.get(key)
        if delta.index is None and not delta.id and alone and self._slots:
            slot = self._slots[-1]
        elif delta.index is None and (slot is None or slot.id != delta.id):
            other = self._by_id.get(delta.id)
            slot = slot if other is None or other in seen else other
        if slot is None or self._is_another(slot, delta):
            slot = Slot()
            self._slots.append(slot)
            self._by_key[key] = slot
        if delta.id and not slot.id:
            slot.id = delta.id
            self._by_id[slot.id] = slot
        return slot

    def _is_another(self, slot: Slot, delta: CallDelta) -> bool:
        """Tell whether a piece belongs to another call than the one whose place it takes.

        Its id says so, or the name of another tool after this call's own was resolved.
        """
        if delta.id and slot.id and delta.id != slot.id:
            return True
        return slot.opened and delta.name != slot.name and delta.name in self._tools

    def _extended(self, slot: Slot, delta: CallDelta) -> list[Message]:
        if not slot.opened:
            self._name(slot, delta.name)
        slot.opaque.update(delta.opaque)
        new = "" if slot.is_resend(delta) else slot.cleaner.feed(delta.arguments)
        new = slot.take(new) if new else ""
        if slot.opened:
            return [self._fragment(slot, new)] if new else []
        if slot.name and (slot.size or self._is_final(slot.name)):
            self._open(slot)
            return [self._fragment(slot, "".join(slot.parts), query={"tool": slot.name, "id": slot.call_id})]
        return []

    def _name(self, slot: Slot, piece: str) -> None:
        """Set the name once; a further piece counts only as far as it leads to a tool (rule 2)."""
        if not slot.name:
            slot.name = piece
        elif piece and piece != slot.name and any(tool.startswith(slot.name + piece) for tool in self._tools):
            slot.name += piece

    def _is_final(self, name: str) -> bool:
        """Tell whether no piece can make another tool of this one."""
        return name in self._tools and not any(tool != name and tool.startswith(name) for tool in self._tools)

    def _open(self, slot: Slot) -> None:
        name = slot.name.partition("<|")[0]  # a template's marks leaked into the name (quirk Q20)
        slot.name = name if name in self._tools else slot.name
        slot.call_id = slot.id if slot.id and slot.id not in self._ids else self._minted()
        self._ids.add(slot.call_id)
        slot.opened = True
        self._opened.append(slot)

    def _minted(self) -> str:
        return f"call_{new_id().replace('-', '')[-16:]}"

    def _closed(self, slot: Slot, *, refused: bool) -> Message:
        tail = slot.cleaner.end()
        tail = slot.take(tail) if tail else ""
        if not slot.opened:
            self._open(slot)
            tail = "".join(slot.parts)
        verdict: dict[str, Any] = {"args": None, "invalid": "truncated"} if refused else self._judged(slot)
        query = {"tool": slot.name, "id": slot.call_id, **verdict}
        if slot.opaque:
            query["provider"] = slot.opaque
        return self._fragment(slot, tail, query=query, more=False)

    def _judged(self, slot: Slot) -> dict[str, Any]:
        if slot.size > ARGUMENTS_LIMIT:
            return {"args": None, "invalid": "bad_json"}
        args, invalid, repaired = parse_arguments("".join(slot.parts))
        verdict = {"args": args, "invalid": invalid, "repaired": repaired}
        if slot.name not in self._tools:
            verdict["invalid"] = "unknown_tool"
        return {key: value for key, value in verdict.items() if value is not None or key == "args"}

    def _fragment(self, slot: Slot, text: str, *, query: dict[str, Any] | None = None, more: bool = True) -> Message:
        return Message(
            id=slot.message_id,
            type="tool_call",
            content=text,
            query=query,
            more=more,
            attempt=self._attempt,
            created_at=slot.created_at,
        )
