"""`check_stage`: drive a stage as consumers and providers do, careless ones too, and assert that nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from anyio import CancelScope
from anyio.lowlevel import checkpoint

from streamagent.message import Message
from streamagent.pipeline import open_pipeline
from streamagent.protocols import Stage, Store, Stream

Ending = Literal["exhaust", "break", "cancel", "raise", "source_raises"]
ENDINGS: tuple[Ending, ...] = ("exhaust", "break", "cancel", "raise", "source_raises")


class Boom(Exception):
    """What `check_stage` raises, as the consumer or as the source."""


class Probe:
    """A source of messages that counts how often it was closed.

    Args:
        messages: What it yields, with a checkpoint before each.
        fail_at: Before which message it raises `Boom`, from 0; `None` for never.
    """

    def __init__(self, messages: Sequence[Message], *, fail_at: int | None = None) -> None:
        self._messages = messages
        self._fail_at = fail_at
        self.started = False
        self.closed = 0

    async def stream(self) -> Stream:
        """Yield the messages."""
        self.started = True
        try:
            for number, message in enumerate(self._messages):
                if number == self._fail_at:
                    raise Boom
                await checkpoint()
                yield message
        finally:
            self.closed += 1


async def check_stage(
    stage: Stage, messages: Sequence[Message], ending: Ending = "exhaust", *, at: int = 0, store: Store | None = None
) -> list[Message]:
    """Drive a stage over `messages` and leave it in one of five ways.

    Args:
        stage: The stage.
        messages: What its source yields.
        ending: `exhaust` reads to the end; `break`, `cancel` and `raise` leave after message `at` was seen;
            `source_raises` lets the source fail before its message `at`.
        at: A message number, from 1 for the consumer's endings and from 0 for the source's.
        store: What the stage finds as `run.store`; the session is `"check"`.

    Returns:
        What was seen.

    Raises:
        AssertionError: The source was not closed exactly once, or an ending was swallowed.
    """
    source = Probe(messages, fail_at=at if ending == "source_raises" else None)
    seen: list[Message] = []
    raised = False
    with CancelScope() as scope:
        try:
            async with open_pipeline(source.stream(), stage, store=store, session="check") as tail:
                async for message in tail:
                    seen.append(message)
                    if len(seen) == at and await _leave(ending, scope):
                        break
        except Boom:
            raised = True
    ended_early = bool(seen) and seen[-1].is_final
    if ending == "source_raises" and at < len(messages) and not (raised or ended_early):
        raise AssertionError("the source's error was swallowed")
    if source.started and source.closed != 1:
        raise AssertionError(f"the source was closed {source.closed} times")
    return seen


async def _leave(ending: Ending, scope: CancelScope) -> bool:
    if ending == "raise":
        raise Boom
    if ending == "cancel":
        scope.cancel()
        await checkpoint()
    return ending == "break"
