"""`events`: the lifecycle of a run, as pi tells it, from its messages alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from dataclasses import dataclass, field

from ._core.lifecycle import BLOCKS, Answer, Batch, said
from ._core.pi import REASONS, Event, Shape, user_message
from .message import Message, fold

__all__ = ["Event", "EventEncoder", "events"]

_SPOKEN = frozenset({"text", "image", "file"})
_OF_TOOLS = frozenset({"tool_result", "progress", "approval"})
_SILENT = frozenset({"stop", "tool_calls"})
# Ends of an answer whose own stop is not there: its calls ran before it, the stream ended, another attempt began.
_RAN = Message.stop("tool_calls")
_CUT = Message.stop("aborted")
_SUPERSEDED = Message.stop("error", error={"message": "superseded by another attempt"})


async def events(stream: AsyncIterable[Message]) -> AsyncGenerator[Event, None]:
    """Tell the lifecycle of a run.

    The stream is not closed when this is left early: whoever opened it closes it.

    Args:
        stream: The messages of one run, live or from the store; each prompt that it holds is a turn of its own.

    Yields:
        `agent_start`, then for each turn `turn_start`, `message_…` and `tool_execution_…`, `turn_end`; `agent_end`
        when the stream ends. Nothing for an empty stream.

    Raises:
        MessageError: A fragment follows the last one of its message.
    """
    encoder = EventEncoder()
    async for message in stream:
        for event in encoder.feed(message):
            yield event
    for event in encoder.end():
        yield event


@dataclass(slots=True)
class _Turn:
    """A turn that is open.

    Args:
        answer: What the model says; `None` before it does, and when the run only finishes calls of an earlier one.
        batch: The calls.
        held: What was said of calls while the answer was open, by call and state; of updates the last.
        later: Messages of the user that came before the calls had their results: they belong to the next turn.
        stopped: The run's last word was said; nothing more is expected.
    """

    answer: Answer | None = None
    batch: Batch = field(default_factory=Batch)
    held: dict[object, Message] = field(default_factory=dict)
    later: list[Message] = field(default_factory=list)
    stopped: bool = False

    @property
    def speaking(self) -> Answer | None:
        """The answer that is not closed."""
        return self.answer if self.answer is not None and self.answer.message is None else None

    def takes(self, fragment: Message) -> bool:
        """Tell whether a fragment belongs to this turn; what it still waits for will not come otherwise."""
        answer = self.speaking
        return answer.attempt == fragment.attempt if answer else not (self.answer or self.batch)

    def hold(self, message: Message) -> None:
        """Keep what is said of a call until the answer is closed: three messages of progress a call at most."""
        query = message.query or {}
        key = (query.get("call"), query.get("state")) if message.type == "progress" else len(self.held)
        self.held[key] = message


class EventEncoder:
    """Messages in, events out, without waiting. It holds the messages of the run, which `agent_end` repeats."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._out: list[Event] = []
        self._messages: list[Shape] = []
        self._started = False
        self._reason: str | None = None
        self._turn: _Turn | None = None
        self._refused: set[str] = set()
        self._prompts: dict[str, list[Message]] = {}

    def feed(self, message: Message) -> list[Event]:
        """Take the next message or fragment; what pi has no event for gives none.

        Raises:
            MessageError: A fragment follows the last one of its message; it changed nothing.
        """
        if message.path:
            return []  # a sub-agent's: pi's lifecycle is that of one agent, and its tools are opaque to it
        if message.type == "stop":
            self._stop(message)
        elif message.type in _OF_TOOLS:
            self._work(message)
        elif message.role == "assistant" and message.type in BLOCKS:
            self._speak(message)
        elif message.role == "user" and message.type in _SPOKEN:
            self._prompts.setdefault(message.id, []).append(message)
            if not message.more:
                self._ask(*fold(self._prompts.pop(message.id)))
        return self._collected()

    def end(self) -> list[Event]:
        """Take the end of the run: what is open is closed. The next message begins another run."""
        while self._turn is not None:
            self._end_turn(self._turn)
        if self._started:
            self._out.append(Event(type="agent_end", messages=self._messages, reason=self._reason))
        out = self._collected()
        self._begin()
        return out

    def _ask(self, prompt: Message) -> None:
        turn = self._opened()
        if turn.answer is not None and not turn.stopped:
            turn.later.append(prompt)
        elif turn.answer is not None or turn.batch:
            self._end_turn(turn)
            self._ask(prompt)
        else:
            self._say(said(user_message(prompt)))

    def _speak(self, fragment: Message) -> None:
        while self._turn is not None and not self._turn.takes(fragment):
            self._end_turn(self._turn, _SUPERSEDED)
        turn = self._opened()
        turn.answer = turn.answer or Answer(fragment)
        updates = turn.answer.take(fragment)
        if fragment.type == "tool_call" and not fragment.more:
            turn.batch.add(fragment.id, (updates[-1].assistant_message_event or {})["toolCall"])
        self._say(updates)

    def _stop(self, stop: Message) -> None:
        reason = (stop.query or {}).get("reason", "stop")
        turn = self._turn if self._started else self._opened()
        if turn is not None and turn.answer is None and not turn.batch:
            turn.answer = Answer(stop)
        answer = turn and turn.speaking
        self._reason = None if reason in (REASONS if answer else _SILENT) else reason
        if turn is not None:
            turn.stopped = stop.is_final
        if turn and answer:
            self._close(turn, answer, stop)
        elif turn and stop.is_final:
            self._end_turn(turn)

    def _work(self, message: Message) -> None:
        query = message.query or {}
        answer = self._turn and self._turn.speaking
        if query.get("call") in self._refused:
            return
        if self._turn and answer and message.type != "approval":
            if message.type == "progress" or answer.refused:
                self._turn.hold(message)
                return
            self._close(self._turn, answer, _RAN)
        if self._turn is None and message.type != "tool_result" and query.get("state") != "start":
            return
        turn = self._opened()
        self._say(turn.batch.take(message))
        self._say(turn.batch.show())
        self._settle(turn)

    def _close(self, turn: _Turn, answer: Answer, stop: Message) -> None:
        """Close the answer, then say what was held; calls that a failure cut off are not even begun."""
        self._say(answer.end(stop))
        self._refused |= answer.refused
        turn.batch.close(answer)
        held = list(turn.held.values())
        turn.held.clear()
        for message in held:
            self._work(message)
        self._settle(turn)

    def _settle(self, turn: _Turn) -> None:
        """End the turn when all is answered."""
        if turn is self._turn and turn.answer and not turn.speaking and turn.batch.complete:
            self._end_turn(turn)

    def _opened(self) -> _Turn:
        if self._turn is None:
            begun = [] if self._started else [Event(type="agent_start")]
            self._started = True
            self._turn = _Turn()
            self._say([*begun, Event(type="turn_start")])
        return self._turn

    def _end_turn(self, turn: _Turn, cut: Message = _CUT) -> None:
        if turn.speaking:
            self._close(turn, turn.speaking, cut)
        if turn is not self._turn:
            return
        self._say(turn.batch.end())
        self._turn = None
        message = turn.answer.message if turn.answer else None
        self._say([Event(type="turn_end", message=message, tool_results=turn.batch.results)])
        for prompt in turn.later:
            self._ask(prompt)

    def _say(self, events: Sequence[Event]) -> None:
        self._out += events
        self._messages += [event.message for event in events if event.type == "message_end" and event.message]

    def _collected(self) -> list[Event]:
        out, self._out = self._out, []
        return out
