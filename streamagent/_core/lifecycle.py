"""The parts of a turn as lifecycle events: `Answer` of the model, `Batch` of its calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from streamagent.errors import MessageError
from streamagent.message import Message

from .output import Capped
from .pi import Event, EventType, Partial, Shape, assistant_message, is_refused, output, tool_result

# Longest result that is shown whole, in bytes: five times what a model is given of one. A tool may yield gigabytes.
RESULT_BYTES: Final = 256 * 1024
NOT_FINISHED: Final = "Operation aborted"
_KINDS: Final[Mapping[str, str]] = {"text": "text", "reasoning": "thinking", "tool_call": "toolcall"}
BLOCKS: Final = frozenset(_KINDS)
_STATES: Final = ("start", "update", "end")


def said(message: Shape) -> list[Event]:
    """Return the events of a message that came whole."""
    return [Event(type="message_start", message=message), Event(type="message_end", message=message)]


class Answer:
    """One answer of the model, from its first message to its stop.

    Args:
        first: What it begins with.

    Attributes:
        message: It, closed; `None` before.
        index: Where the block of each message stands.
        refused: Ids of calls that broke off.
    """

    def __init__(self, first: Message) -> None:
        self.attempt = first.attempt
        self.message: Shape | None = None
        self.refused: set[str] = set()
        self.index: dict[str, int] = {}
        self._began = first.created_at
        self._fragments: list[Message] = []
        self._open: set[str] = set()

    def take(self, fragment: Message) -> list[Event]:
        """Return the updates that a fragment makes, `message_start` in front of the first.

        Raises:
            MessageError: Its message was closed already.
        """
        if fragment.id in self.index and fragment.id not in self._open:
            raise MessageError(f"message {fragment.id} was closed already; nothing can follow its last fragment")
        started = [] if self._fragments else [Event(type="message_start", message=self._partial())]
        if is_refused(fragment):
            self.refused.add(fragment.id)
        return started + [self._update(step, piece) for step, piece in self._steps(fragment)]

    def end(self, stop: Message) -> list[Event]:
        """Close it; `refused` keeps its calls that a failure cut off, to which no result is shown."""
        self.message = assistant_message(self._began, self._fragments, stop)
        if "errorMessage" not in self.message:
            self.refused.clear()
        started = [] if self._fragments else [Event(type="message_start", message=self.message)]
        return [*started, Event(type="message_end", message=self.message)]

    def _steps(self, fragment: Message) -> Iterator[tuple[str, Message]]:
        if fragment.id not in self.index:
            self.index[fragment.id] = len(self.index)
            self._open.add(fragment.id)
            yield "start", replace(fragment, content="", more=True)
        if fragment.content:
            yield "delta", fragment if fragment.more else replace(fragment, more=True)
        if not fragment.more:
            self._open.discard(fragment.id)
            yield "end", replace(fragment, content="")

    def _update(self, step: str, piece: Message) -> Event:
        self._fragments.append(piece)
        partial = self._partial()
        index = self.index[piece.id]
        update: dict[str, Any] = {"type": f"{_KINDS[piece.type]}_{step}", "contentIndex": index, "partial": partial}
        if step == "delta":
            update["delta"] = piece.content
        elif step == "end":
            whole = partial["content"][index]
            update |= {"toolCall": whole} if piece.type == "tool_call" else {"content": whole[whole["type"]]}
        return Event(type="message_update", message=partial, assistant_message_event=update)

    def _partial(self) -> Partial:
        return Partial(self._began, self._fragments)


@dataclass(slots=True)
class _Call:
    """A call, and what became of it so far."""

    id: str
    tool: str
    args: Shape
    streamed: str = ""
    pending: bool = False
    started: bool = False
    ended: bool = False
    result: Shape | None = None
    shown: bool = False

    def start(self) -> list[Event]:
        """Return the event that it begins, once."""
        if self.started:
            return []
        self.started = True
        return [self._event("tool_execution_start", args=self.args)]

    def update(self, text: str) -> list[Event]:
        """Return the event that it has something to show; nothing after its end."""
        if self.ended:
            return []
        return [*self.start(), self._event("tool_execution_update", args=self.args, partial_result=output(text, {}))]

    def end(self, text: str, query: Shape) -> list[Event]:
        """Return the event that it ends, once."""
        if self.ended:
            return []
        started = self.start()
        self.ended = True
        is_error = bool(query.get("is_error"))
        return [*started, self._event("tool_execution_end", result=output(text, query), is_error=is_error)]

    def _event(self, kind: EventType, **known: Any) -> Event:
        return Event(type=kind, tool_call_id=self.id, tool_name=self.tool, **known)


@dataclass(slots=True)
class _Result:
    """A result message, as far as it came."""

    query: dict[str, Any] = field(default_factory=dict)
    text: Capped = field(default_factory=lambda: Capped(max_bytes=RESULT_BYTES, max_lines=sys.maxsize))


class Batch:
    """The calls of one answer.

    `progress` messages say when each starts and ends. Without them all start with the first result, but for those
    that wait for an approval, and each ends with its own.
    """

    def __init__(self) -> None:
        self.results: list[Shape] = []
        self._calls: dict[str, _Call] = {}
        self._opened: dict[str, _Result] = {}
        self._announced = False
        self._sequential = False

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def complete(self) -> bool:
        """Whether all calls have shown their result."""
        return all(call.shown for call in self._calls.values())

    def add(self, key: str, call: Shape) -> None:
        """Take a call that the model has completed.

        Args:
            key: Id of its message.
            call: Its block of the answer.
        """
        self._calls[key] = _Call(call["id"] or "", call["name"] or "", call["arguments"])

    def close(self, answer: Answer) -> None:
        """Put the calls in the order of the answer, without those that its failure cut off."""
        left = sorted(self._calls.keys() - answer.refused, key=answer.index.__getitem__)
        self._calls = {key: self._calls[key] for key in left}

    def take(self, message: Message) -> list[Event]:
        """Take what is said of a call: a result or a piece of one, progress, a request to approve it."""
        query = message.query or {}
        if message.type == "approval":
            if query.get("call") in self._calls:
                self._calls[query["call"]].pending = True
            return []
        return self._progress(message, query) if message.type == "progress" else self._result(message, query)

    def _progress(self, message: Message, query: Shape) -> list[Event]:
        state = query.get("state")
        if state not in _STATES or (state != "start" and query.get("call") not in self._calls):  # late, or not ours
            return []
        self._announced = True
        self._sequential |= bool(query.get("sequential"))
        call = self._find(query)
        if state == "start":
            return call.start()
        if state == "update":
            return call.update(message.content)
        return call.end(call.streamed + message.content, query)

    def _result(self, message: Message, query: Shape) -> list[Event]:
        made = self._opened.setdefault(message.id, _Result())
        made.text.add(message.content)
        made.query |= query
        if message.more and not made.query:  # it says in a later fragment whose result it is
            return []
        call = self._find(made.query)
        text = made.text.output().content
        others = [] if self._announced else [other for other in self._calls.values() if not other.pending]
        started = [event for other in others for event in other.start()]
        if message.more:
            call.streamed = text
            return started + call.update(text)
        del self._opened[message.id]
        call.result = tool_result(replace(message, content=text, query=made.query))
        return started + call.end(text, made.query)

    def _find(self, query: Shape) -> _Call:
        """Return the call that is meant: by its message, in old rows by the provider's id; else one not seen here."""
        key = query.get("call")
        if key is None:
            same = (name for name, call in self._calls.items() if call.id == query.get("id") and not call.result)
            key = next(same, "")
        if key not in self._calls:
            self._calls[key] = _Call(query.get("id") or "", query.get("tool") or "", query.get("args") or {})
        return self._calls[key]

    def show(self) -> list[Event]:
        """Return the result messages that may be shown: in call order, when no call of the batch is left to run.

        In a sequential batch each follows its call.
        """
        calls = self._calls.values()
        if not self._sequential and not all(call.ended or call.pending for call in calls):
            return []
        ready = [call for call in calls if call.result and not call.shown]
        for call in ready:
            call.shown = True
        shapes = [call.result for call in ready if call.result]
        self.results += shapes
        return [event for shape in shapes for event in said(shape)]

    def end(self) -> list[Event]:
        """End the calls that still run: nothing more comes."""
        running = [call for call in self._calls.values() if call.started and not call.ended]
        ended = [event for call in running for event in call.end(NOT_FINISHED, {"is_error": True})]
        for call in self._calls.values():
            call.pending |= not call.ended
        return ended + self.show()
