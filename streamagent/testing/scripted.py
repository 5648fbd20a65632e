"""Scripted models: what is answered, turn by turn, on any backend, without a clock.

model = ScriptedModel(calls(call("stock", product="mug")), lambda context: answer("There are ", context[-1].content))
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from streamagent.calls import ToolSpec
from streamagent.message import Message, new_id
from streamagent.protocols import DEFAULT_SETTINGS, ModelSettings, Stream

Turn = Iterable[Message] | Callable[[Sequence[Message]], Iterable[Message]]


class ScriptedModel:
    """Answers turn by turn from a script; a turn without a stop at its end hangs there, as a stalled provider does.

    Args:
        turns: The messages of each turn, or a function of the context that makes them, in the order in which they are
            asked for; the last one is repeated.

    Attributes:
        contexts: What it was given, turn by turn.
        tools: What it might call, turn by turn.
        closed: How many of its answers were closed.
        hangs: Set when an answer hangs.
    """

    name = "scripted"

    def __init__(self, *turns: Turn) -> None:
        self.turns: list[Turn] = list(turns) or [answer("")]
        self.contexts: list[list[Message]] = []
        self.tools: list[Sequence[ToolSpec]] = []
        self.closed = 0
        self.hangs = anyio.Event()

    async def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,  # noqa: ARG002 - the protocol's
        deadline: float = math.inf,  # noqa: ARG002
    ) -> Stream:
        """Play the next turn; see `streamagent.protocols.Model`."""
        self.contexts.append([message async for message in context])
        self.tools.append(tools)
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        script = [*(turn(self.contexts[-1]) if callable(turn) else turn)]
        ids = {item.id: new_id() for item in script}  # a script may be played several times
        try:
            for item in script:
                await checkpoint()
                yield replace(item, id=ids[item.id])
            if not script or script[-1].type != "stop":
                self.hangs.set()
                await anyio.sleep_forever()
        finally:
            self.closed += 1


def call(tool: str, id: str = "c1", /, **args: Any) -> Message:  # noqa: A002 - the wire's name
    """Make a complete tool call.

    Args:
        tool: The tool's name.
        id: The call's id, as a provider gives it.
        args: The arguments.
    """
    return Message(type="tool_call", content="{}", query={"tool": tool, "id": id, "args": args})


def text(*pieces: str) -> list[Message]:
    """Make a text message in fragments; an empty one closes it."""
    id_ = new_id()
    return [*(Message(id=id_, content=piece, more=True) for piece in pieces), Message(id=id_)]


def answer(*pieces: str) -> list[Message]:
    """Make a turn that answers in text."""
    return [*text(*pieces), Message.stop("stop", usage={"total_tokens": 3})]


def calls(*messages: Message) -> list[Message]:
    """Make a turn that calls tools."""
    return [*messages, Message.stop("tool_calls")]
