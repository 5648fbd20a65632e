"""The part of `budget` that watches the clock."""

from __future__ import annotations

import math

from anyio import CancelScope, current_time

from streamagent._core.closing import close_all
from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.protocols import RunContext, Stage, Stream

from ._counting import limit_stop

_SAID = frozenset({"text", "reasoning", "tool_call"})
_TEXT = "Stopped: the time of {:g} s for this run was over before this call finished."


def budget(seconds: float) -> Stage:
    """Cut a run after so many seconds, in the midst of an answer or of a tool.

    Args:
        seconds: How long a run may take.

    Raises:
        ConfigError: From the stage, when it stands in front of `tool_dispatch`: there it sees no results.
    """

    async def stage(stream: Stream, run: RunContext) -> Stream:
        turn = _Turn(current_time() + seconds)
        while (message := await turn.next(stream)) is not None:
            yield message
        if turn.cut:
            text = _TEXT.format(seconds)
            left = turn.open.values(), turn.calls.values(), run.outcomes
            for row in close_all(*left, cause="budget", text=text, begun=run.started):
                yield row
            yield limit_stop("budget", {"seconds": seconds, "scope": "run"})

    return stage


class _Turn:
    """What is not complete at this moment; a few messages at a time.

    Args:
        deadline: When to cut, on anyio's clock, in seconds.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._stopped = False  # the model has ended its turn
        self._at_rest = False  # the prompt has its answer: then there is nothing to cut
        self.open: dict[str, Message] = {}
        self.calls: dict[str, Message] = {}
        self.cut = False

    async def next(self, stream: Stream) -> Message | None:
        """Fetch the next message; `None` at the end, or when the time is over."""
        with CancelScope(deadline=math.inf if self._at_rest else self._deadline) as scope:
            message = await anext(stream, None)
        self.cut = scope.cancelled_caught
        if self.cut or message is None:
            return None
        self._see(message)
        return message

    def _see(self, message: Message) -> None:
        if message.path:  # a sub-agent's, which its own run closes
            return
        if message.type == "tool_result":
            self.calls.pop((message.query or {}).get("call", ""), None)
        elif message.type in _SAID and self._stopped and self.calls:
            raise ConfigError("budget(seconds=…) sees no results of tools: stand it behind tool_dispatch")
        if message.more:
            self.open.setdefault(message.id, message)
            return
        self.open.pop(message.id, None)
        if message.type == "tool_call":
            self.calls[message.id] = message
        self._stopped = message.type == "stop" or (self._stopped and message.type not in _SAID)
        self._at_rest = message.is_final
